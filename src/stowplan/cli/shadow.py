"""`stowplan shadow`: show what another configuration would do beside the live scheduler."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stowplan.cli.options import OUTPUT, PLUGIN_DIRS, kubeconfig_options, log_level
from stowplan.config.duration import Duration
from stowplan.framework.registry import Registry

if TYPE_CHECKING:
    from stowplan.client.connection import Connection
    from stowplan.replay.shadow import ShadowService, Summary, Verdict

MAX_CAUSES = 5


class _DurationType(click.ParamType):  # type: ignore[type-arg]
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = value if isinstance(value, float) else Duration.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds <= 0:
            self.fail("expected a duration above 0", param, ctx)
        return seconds


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--config",
    required=True,
    type=click.Path(path_type=Path),
    help="KubeSchedulerConfiguration to compare with the live scheduler.",
)
@kubeconfig_options
@PLUGIN_DIRS
@click.option(
    "--for", "seconds", metavar="DURATION", type=_DurationType(), help="End after this time, such as 10m."
)
@click.option(
    "--page-port", type=click.IntRange(0, 65535), help="Port of the web page (default: a free port)."
)
@click.option("--no-page", is_flag=True, help="Do not serve the web page on a local port.")
@OUTPUT
@log_level("Log level, 0 or higher (default: only warnings).", default=-1)
@click.argument("run_flags", nargs=-1, type=click.UNPROCESSED, metavar="[RUN_FLAGS]...")
def shadow(
    config: Path,
    kubeconfig: str | None,
    context: str | None,
    plugin_dirs: tuple[Path, ...],
    seconds: float | None,
    page_port: int | None,
    no_page: bool,
    output: str,
    verbosity: int,
    run_flags: tuple[str, ...],
) -> None:
    """Show what a configuration would do with the pods that the live scheduler places, until Ctrl-C.

    The cluster is only read: list and watch are all that is needed. Each disagreement is printed with its
    class: tie (the same score), timing (the cluster changed meanwhile), sample (other nodes were looked at)
    or policy (the configurations differ). --output json prints one line for each pod, and a summary at the
    end.

    RUN_FLAGS are flags of `stowplan run`, such as --secure-port=10262 to serve /metrics, /healthz and the
    page over HTTPS, --journal=DIR to keep all decisions, or --seed. The default of --secure-port is 0.
    """
    from stowplan import log
    from stowplan.client import kubeconfig as kubeconfigs
    from stowplan.replay.shadow import ShadowService
    from stowplan.scheduler.options import parse
    from stowplan.web import make_pages, make_source, mount

    argv = [
        f"--config={config}",
        "--secure-port=0",
        *run_flags,
        *(f"--plugin-dir={folder}" for folder in plugin_dirs),
        f"--v={max(verbosity, 0)}",
    ]
    registry = Registry.installed(plugin_dirs)
    options, warnings = parse(argv, program="stowplan shadow", registry=registry)
    log.configure(verbosity=verbosity, style=options.logs.format)
    for warning in warnings:
        click.echo(warning, err=True)
    if options.config.extenders:
        click.echo(f"{config}: asking its extenders, but not to bind pods", err=True)
    path = kubeconfig or options.config.client_connection.kubeconfig or None
    connection = kubeconfigs.load(path, context=context)
    service = ShadowService(
        options,
        registry,
        connection,
        lambda service: mount(make_pages(make_source(service), service.shadow)),  # type: ignore[attr-defined]
        on_verdict=_print_json if output == "json" else _print_text,
        seconds=seconds,
    )
    click.echo(f"Following {connection.server}; press Ctrl-C to end.", err=True)
    status = asyncio.run(_run(service, connection, None if no_page else page_port or 0))
    summary = service.shadow.summary()
    if output == "json":
        _print_line({"summary": summary})
    else:
        click.echo("\n".join(_describe(summary, config)))
    sys.exit(status)


async def _run(service: ShadowService, connection: Connection, page_port: int | None) -> int:
    from stowplan.client.api import ApiClient

    async with ApiClient(connection) as api:
        await api.get_json("/api/v1/nodes?limit=1")  # unreachable or forbidden: say so and end
    async with _page(service, page_port):
        return await service.run()


@asynccontextmanager
async def _page(service: ShadowService, port: int | None) -> AsyncIterator[None]:
    from stowplan.web import answer_by_name, make_pages, make_source, serve_locally

    if port is None:
        yield
        return
    async with serve_locally(answer_by_name(make_pages(make_source(service), service.shadow)), port) as link:
        click.echo(f"Page: {link}#/shadow", err=True)
        yield


def _print_json(verdict: Verdict) -> None:
    _print_line(verdict)


def _print_line(value: object) -> None:
    import msgspec

    click.echo(msgspec.json.encode(value))


def _print_text(verdict: Verdict) -> None:
    from stowplan.explain.layout import printable

    if verdict.result == "same":
        return
    at = time.strftime("%H:%M:%S", time.localtime(verdict.time))
    where = f"live {verdict.live or 'none'}, here {verdict.chosen or 'none'}"
    click.echo(printable(f"{at}  {verdict.result:<6}  {verdict.pod}  {where}: {verdict.reason}"))


def _describe(summary: Summary, config: Path) -> Iterator[str]:
    from stowplan.explain.layout import printable

    yield ""
    minutes, seconds = divmod(round(time.time() - summary.since), 60)
    yield f"{summary.judged:,} decisions of the live scheduler were compared in {minutes} min {seconds} s."
    if summary.agreement is not None and summary.same_node is not None:
        yield f"Same node: {summary.same_node:.1%}. Same node or same score: {summary.agreement:.1%}."
        counts = (f"{name} {number:,}" for name, number in summary.results.items() if number)
        yield f"By class: {', '.join(counts)}."
    if summary.causes:
        listed = list(summary.causes.items())[:MAX_CAUSES]
        yield (
            "Policy differs by: "
            + ", ".join(f"{name or 'several'} {count:,}" for name, count in listed)
            + "."
        )
    for what, number in (
        ("not bound yet", summary.pending),
        ("deleted before they were bound", summary.gone),
        ("first seen with a node", summary.unseen),
    ):
        if number:
            yield f"Pods {what}: {number:,}."
    for name, number in summary.unmatched.items():
        known = ", ".join(summary.profiles)
        yield printable(
            f"Not compared: {number:,} pods with the schedulerName {name!r}; "
            f"{config} has no profile with that name (it has: {known})."
        )
