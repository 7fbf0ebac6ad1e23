"""`stowplan page`: a running scheduler's page, through a port of this machine."""

from __future__ import annotations

import asyncio
import webbrowser

import click

from stowplan.cli.kept_decisions import scheduler_at
from stowplan.client.connection import Connection
from stowplan.web.forward import forwarded_to
from stowplan.web.local import served_locally


@click.command()
@click.option(
    "--server",
    metavar="URL",
    default="https://localhost:10259",
    show_default=True,
    help="Where the scheduler serves; `kubectl port-forward` brings one of a cluster there.",
)
@click.option("--kubeconfig", metavar="FILE", help="Instead of KUBECONFIG, or the usual file.")
@click.option("--context", help="Of the kubeconfig, instead of its current one.")
@click.option("--token-file", metavar="FILE", help="Instead of the kubeconfig's user.")
@click.option("--certificate-authority", "authority", metavar="FILE", help="That of the server.")
@click.option("--insecure-skip-tls-verify", "insecure", is_flag=True, help="Take it for what it says.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of this machine; any free one if 0.")
@click.option("--open/--no-open", "opens", default=True, show_default=True, help="Open it in a browser.")
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
    """Show the page of a running scheduler: its cluster, its queue and its decisions, live.

    It is served on a port of this machine until you press Ctrl-C, for those who have the link, with the
    rights of the kubeconfig's user, who needs GET on /page/*, and POST for what-if. Nothing on it changes
    the cluster.
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
    async with forwarded_to(connection) as answer, served_locally(answer, port) as link:
        click.echo(f"The page of {connection.server}: {link}")
        if opens:
            await asyncio.to_thread(webbrowser.open, link)
        await asyncio.Event().wait()
