"""`stowplan replay`: run a trace through a scheduler configuration."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from stowplan.cli.cluster_source import config_of
from stowplan.cli.options import CONFIG, OUTPUT, PLUGIN_DIRS, POLICY, SEED
from stowplan.explain.layout import printable, table
from stowplan.framework.registry import Registry
from stowplan.replay import ReplayOptions, Trace, read_trace
from stowplan.replay import replay as run_replay
from stowplan.replay.compare import number_text

TRACE = click.argument("trace", type=click.Path(path_type=Path))
MAPPING = click.option(
    "--mapping",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File that maps the columns of a CSV trace to objects.",
)
PARTIAL = click.option(
    "--partial", is_flag=True, help="Use the events before the error if the trace cannot be read to its end."
)
DEPARTURES = click.option(
    "--departures",
    type=click.Choice(["run-time", "recorded", "never"]),
    default="run-time",
    show_default=True,
    help="When pods leave: after the time that they ran when recorded, at the recorded time, or never.",
)
NO_RETRY = click.option(
    "--no-retry", is_flag=True, help="Drop pods that do not fit instead of retrying them."
)
PREFER_RECORDED = click.option(
    "--prefer-recorded", is_flag=True, help="Choose the recorded node where it is among the best."
)
EVICTION_SECONDS = click.option(
    "--eviction-seconds",
    metavar="SECONDS",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="How long evicted pods take to end.",
)
PROGRESS = click.option(
    "--progress/--no-progress", default=None, help="Show progress (default: on a terminal)."
)
EXECUTOR = click.option(
    "--executor",
    type=click.Choice(["processes", "dask"]),
    default="processes",
    show_default=True,
    help="Where to run replays: in processes of this machine, or on a Dask cluster.",
)
SCHEDULER_ADDRESS = click.option(
    "--scheduler-address",
    metavar="ADDRESS",
    help="Dask scheduler to use with --executor dask, such as tcp://10.0.0.1:8786.",
)
JOBS = click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(1),
    help="Replays to run at once on this machine (default: one per CPU; 1 for a small trace).",
)
INTERVAL_SECONDS = 0.2


def load_trace(path: Path, mapping: Path | None, partial: bool) -> Trace:
    """Read a trace; stop at what is wrong with it, unless the part before that will do."""
    found = read_trace(path, mapping)
    for kind, count in sorted(found.ignored.items()):
        click.echo(printable(f"{path}: ignoring {count} × {kind}"), err=True)
    for fault in found.faults:
        click.echo(printable(f"stowplan: {fault}"), err=True)
    if found.faults and not partial:
        if kept := len(found.events):
            click.echo(f"The {kept:,} events before it are intact; use --partial to replay them.", err=True)
        sys.exit(1)
    return found


@contextmanager
def progress_of(what: str, wanted: bool | None) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how far a replay is, on one line of standard error."""
    shown = sys.stderr.isatty() if wanted is None else wanted
    began, last, ends = time.monotonic(), 0.0, "\r" if sys.stderr.isatty() else "\n"

    def show(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if shown and (now - last >= INTERVAL_SECONDS or done == total):
            last = now
            rate = done / max(now - began, 1e-6)
            share = 100 * done // max(total, 1)
            text = f"{what}: {done:,} of {total:,} events ({share} %), {rate:,.0f} a second"
            click.echo(f"{text:<80}{ends}", nl=False, err=True)

    try:
        yield show
    finally:
        if shown and ends == "\r":
            click.echo("", err=True)


@click.command()
@TRACE
@MAPPING
@PARTIAL
@CONFIG
@POLICY
@PLUGIN_DIRS
@SEED
@DEPARTURES
@NO_RETRY
@PREFER_RECORDED
@EVICTION_SECONDS
@click.option(
    "--results",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write what became of each pod: Parquet if the name ends in .parquet, else JSON lines.",
)
@PROGRESS
@OUTPUT
def replay(
    trace: Path,
    mapping: Path | None,
    partial: bool,
    config: Path | None,
    policy: Path | None,
    plugin_dirs: tuple[Path, ...],
    seed: int | None,
    departures: str,
    no_retry: bool,
    prefer_recorded: bool,
    eviction_seconds: float,
    results: Path | None,
    progress: bool | None,
    output: str,
) -> None:
    """Run the pods and nodes of a trace through the scheduler, and show what becomes of them.

    TRACE is a recording of `stowplan record`, a CSV file with --mapping, a SimKube trace (.sktrace), a
    Kubernetes audit log (.log), or manifests with arrival times: see docs/traces.md. The clock is virtual:
    hours take seconds. The same trace, configuration and seed give the same result."""
    registry = Registry.installed(plugin_dirs)
    loaded = config_of(config, policy, registry)
    found = load_trace(trace, mapping, partial)
    options = ReplayOptions(
        seed=seed,
        departures=departures,  # type: ignore[arg-type]
        retry=not no_retry,
        prefers_recorded=prefer_recorded,
        eviction_seconds=eviction_seconds,
    )
    with progress_of(str(trace), progress) as on_progress:
        outcome = run_replay(found, loaded, registry=registry, options=options, on_progress=on_progress)
    if results is not None:
        outcome.write(results)
    if failed := [each for each in outcome.pods if each.is_error and not each.node]:
        first = f"{failed[0].namespace}/{failed[0].name}: {failed[0].message}"
        click.echo(printable(f"{len(failed):,} pods failed with an error, the first {first}"), err=True)
    metrics = outcome.metrics()
    if output == "json":
        click.echo(json.dumps(metrics))
    else:
        rows = [(name, number_text(value)) for name, value in metrics.items()]
        click.echo(printable("\n".join(table([("METRIC", "VALUE")], rows))))
