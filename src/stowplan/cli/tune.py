"""`stowplan tune`: search weights and plugin arguments with replays of a trace."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from functools import partial as bind
from pathlib import Path

import click
import yaml

from stowplan.cli.cluster_source import config_of
from stowplan.cli.options import CONFIG, OUTPUT, PLUGIN_DIRS, POLICY
from stowplan.cli.replay import (
    DEPARTURES,
    EVICTION_SECONDS,
    EXECUTOR,
    JOBS,
    MAPPING,
    NO_RETRY,
    PARTIAL,
    PROGRESS,
    SCHEDULER_ADDRESS,
    TRACE,
    load_trace,
)
from stowplan.errors import InputError
from stowplan.explain.layout import printable, table
from stowplan.framework.registry import Registry
from stowplan.replay import ReplayOptions
from stowplan.replay.compare import number_text
from stowplan.replay.executors import open_executor
from stowplan.replay.tune import (
    DEFAULT_ARG,
    Objective,
    Parameter,
    Space,
    Tuner,
    Tuning,
    front_rows,
    report_json,
    report_markdown,
    verdict,
)


@click.command()
@TRACE
@MAPPING
@PARTIAL
@CONFIG
@POLICY
@PLUGIN_DIRS
@click.option(
    "--objective",
    "objectives",
    metavar="METRIC[:min|:max]",
    multiple=True,
    required=True,
    help="Metric to improve, such as waiting.p95 or nodes.used:min. Repeatable.",
)
@click.option(
    "--weight",
    "weights",
    metavar="PLUGIN=LOW:HIGH",
    multiple=True,
    help="Search this score weight; 0 disables the score. Repeatable.",
)
@click.option(
    "--arg",
    "args",
    metavar="PLUGIN.FIELD=VALUES",
    multiple=True,
    help="Search this plugin argument: A|B|C, or a range LOW:HIGH. Repeatable. Without --weight and --arg: "
    f"all score weights from 0 to 10, and {DEFAULT_ARG}.",
)
@click.option("--profile", metavar="NAME", help="Scheduler name of the profile to tune (default: the first).")
@click.option(
    "--trials", metavar="N", type=click.IntRange(1), default=50, show_default=True, help="Trials in all."
)
@click.option(
    "--batch",
    metavar="N",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Trials to draw before their results are used; larger than --jobs to keep all busy.",
)
@click.option(
    "--hold-out",
    metavar="SHARE",
    type=click.FloatRange(0, 0.9),
    default=0.25,
    show_default=True,
    help="Share of the pods, the last to arrive, that the search does not see.",
)
@click.option(
    "--seed",
    type=int,
    default=1,
    show_default=True,
    help="Seed of the search. Ties between nodes go to the first by name.",
)
@DEPARTURES
@NO_RETRY
@EVICTION_SECONDS
@EXECUTOR
@SCHEDULER_ADDRESS
@JOBS
@click.option(
    "--output-dir",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tuned"),
    show_default=True,
    help="Folder for the study, the configurations and the report. An existing study is continued.",
)
@PROGRESS
@OUTPUT
def tune(
    trace: Path,
    mapping: Path | None,
    partial: bool,
    config: Path | None,
    policy: Path | None,
    plugin_dirs: tuple[Path, ...],
    objectives: tuple[str, ...],
    weights: tuple[str, ...],
    args: tuple[str, ...],
    profile: str | None,
    trials: int,
    batch: int,
    hold_out: float,
    seed: int,
    departures: str,
    no_retry: bool,
    eviction_seconds: float,
    executor: str,
    scheduler_address: str | None,
    jobs: int | None,
    output_dir: Path,
    progress: bool | None,
    output: str,
) -> None:
    """Search score weights and plugin arguments that improve a trace, and check them on its last part.

    TRACE is as for `stowplan replay`. Writes to --output-dir: best.yaml, a configuration ready for use;
    pareto-N.yaml, the others that no trial beats in all objectives; report.md and report.json; and
    study.journal, from which the same command goes on if it was interrupted. Needs Optuna."""
    registry = Registry.installed(plugin_dirs)
    parsed = [Objective.parse(each) for each in objectives]
    space = Space(
        config_of(config, policy, registry),
        registry,
        weights=[Parameter.parse_weight(each) for each in weights],
        args=[Parameter.parse_arg(each) for each in args],
        profile=profile,
    )
    found = load_trace(trace, mapping, partial)
    options = ReplayOptions(
        departures=departures,  # type: ignore[arg-type]
        retry=not no_retry,
        eviction_seconds=eviction_seconds,
    )
    shown = sys.stderr.isatty() if progress is None else progress
    opened = open_executor(
        executor,  # type: ignore[arg-type]
        found,
        jobs=jobs,
        address=scheduler_address,
    )
    with opened as replays:
        tuner = Tuner(
            found,
            space,
            parsed,
            replays,
            study=output_dir / "study.journal",
            options=options,
            plugin_dirs=[str(each) for each in plugin_dirs],
            hold_out=hold_out,
            seed=seed,
            batch=batch,
            on_trial=bind(_show, parsed, trials, time.monotonic()) if shown else lambda number, metrics: None,
        )
        tuning = tuner.run(trials)
    _write(output_dir, tuning, str(trace))
    if output == "json":
        click.echo(report_json(tuning), nl=False)
        return
    heading, *rows = front_rows(tuning)
    lines = [*table([heading], rows), "", verdict(tuning), f"Report: {output_dir / 'report.md'}"]
    click.echo(printable("\n".join(lines)))


def _show(
    objectives: list[Objective], trials: int, began: float, number: int, metrics: Mapping[str, float]
) -> None:
    values = ", ".join(f"{each.metric} {number_text(metrics[each.metric])}" for each in objectives)
    seconds = time.monotonic() - began
    click.echo(f"trial {number + 1} of {trials}: {values} ({seconds:,.0f} s)", err=True)


def _write(folder: Path, tuning: Tuning, source: str) -> None:
    files = {"report.md": report_markdown(tuning, source).encode(), "report.json": report_json(tuning)}
    for place, each in enumerate(tuning.front):
        text = yaml.safe_dump(each.config, sort_keys=False, allow_unicode=True)
        files["best.yaml" if not place else f"pareto-{place}.yaml"] = text.encode()
    try:
        for stale in folder.glob("pareto-*.yaml"):
            stale.unlink()
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(error.filename)) from None
