"""`stowplan page`: open the web page of a running scheduler through a local port."""

from __future__ import annotations

import asyncio
import webbrowser

import click

from stowplan.cli.options import kubeconfig_options, scheduler_credentials
from stowplan.cli.scheduler_client import scheduler_at
from stowplan.client.connection import Connection
from stowplan.web.local import forward_to, serve_locally


@click.command()
@click.option(
    "--server",
    metavar="URL",
    default="https://localhost:10259",
    show_default=True,
    help="URL of the scheduler; use `kubectl port-forward` to reach one in a cluster.",
)
@kubeconfig_options
@scheduler_credentials
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Local port for the page (default: a free port)."
)
@click.option(
    "--open/--no-open", "opens", default=True, show_default=True, help="Open the page in a browser."
)
def page(
    server: str,
    kubeconfig: str | None,
    context: str | None,
    token_file: str | None,
    authority: str | None,
    insecure: bool,
    port: int,
    opens: bool,
) -> None:
    """Open the web page of a running scheduler: its cluster, queue and decisions, live.

    The page is served on a local port until you press Ctrl-C, to anyone who has the link, with the
    permissions of the kubeconfig's user: GET on /page/*, and POST for what-if. Nothing on it changes the
    cluster.
    """
    connection = scheduler_at(
        server,
        kubeconfig=kubeconfig,
        context=context,
        token_file=token_file,
        authority=authority,
        insecure=insecure,
    )
    asyncio.run(_serve(connection, port, opens))


async def _serve(connection: Connection, port: int, opens: bool) -> None:
    async with forward_to(connection) as answer, serve_locally(answer, port) as link:
        click.echo(f"Page of {connection.server}: {link}")
        if opens:
            await asyncio.to_thread(webbrowser.open, link)
        await asyncio.Event().wait()
