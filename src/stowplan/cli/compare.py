"""`stowplan compare`: replay a trace with several configurations and compare what becomes of it."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click
import msgspec

from stowplan.cli.cluster_source import config_of
from stowplan.cli.options import OUTPUT, PLUGIN_DIRS, SEED
from stowplan.cli.replay import (
    DEPARTURES,
    EVICTION_SECONDS,
    MAPPING,
    NO_RETRY,
    PARTIAL,
    PREFER_RECORDED,
    PROGRESS,
    TRACE,
    load_trace,
    progress_of,
)
from stowplan.errors import InputError
from stowplan.explain.layout import printable
from stowplan.framework.registry import Registry
from stowplan.replay import ReplayOptions, Results, Trace, replay
from stowplan.replay.compare import Comparison, Condition

RECORDED = "recorded"
FAILED = 3
"""The exit status if a condition of --fail-if holds."""


@click.command()
@TRACE
@MAPPING
@PARTIAL
@click.option(
    "--config",
    "configs",
    metavar="FILE",
    type=click.Path(path_type=Path),
    multiple=True,
    help="KubeSchedulerConfiguration to compare. Repeatable; the first is what others are compared with.",
)
@click.option(
    "--scheduler",
    metavar="NAME",
    help="Compare with the placements that this scheduler made when the trace was recorded, "
    "such as kube-scheduler.",
)
@PLUGIN_DIRS
@SEED
@DEPARTURES
@NO_RETRY
@PREFER_RECORDED
@EVICTION_SECONDS
@click.option(
    "--fail-if",
    "conditions",
    metavar="CONDITION",
    multiple=True,
    help="Exit with status 3 if this holds for a configuration after the first, such as "
    "'waiting.p95 > +10%'. Repeatable.",
)
@click.option(
    "--explain",
    "explained",
    metavar="N",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    help="Explain the first N decisions that differ.",
)
@click.option(
    "--html", metavar="FILE", type=click.Path(path_type=Path), help="Write a page with tables and plots."
)
@click.option(
    "--resume",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep finished replays in this folder, and use those that are there.",
)
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Replays to run at once.",
)
@PROGRESS
@OUTPUT
def compare(
    trace: Path,
    mapping: Path | None,
    partial: bool,
    configs: tuple[Path, ...],
    scheduler: str | None,
    plugin_dirs: tuple[Path, ...],
    seed: int | None,
    departures: str,
    no_retry: bool,
    prefer_recorded: bool,
    eviction_seconds: float,
    conditions: tuple[str, ...],
    explained: int,
    html: Path | None,
    resume: Path | None,
    jobs: int,
    progress: bool | None,
    output: str,
) -> None:
    """Replay a trace with several configurations, and compare waiting times, allocation, evictions and more.

    TRACE is as for `stowplan replay`. Every pod that got another node is listed, and the first of them are
    explained.
    """
    if len(configs) + (scheduler is not None) < 2:
        raise click.UsageError("give at least two of --config, or one and --scheduler")
    parsed = [Condition.parse(each) for each in conditions]
    found = load_trace(trace, mapping, partial)
    options = ReplayOptions(
        seed=seed,
        departures=departures,  # type: ignore[arg-type]
        retry=not no_retry,
        prefers_recorded=prefer_recorded,
        eviction_seconds=eviction_seconds,
    )
    work = _Work(found, plugin_dirs, options, resume, progress)
    files: dict[str, Path | None] = dict(zip(_names(configs), configs, strict=True))
    if scheduler is not None:
        _check_recorded(found, scheduler)
        files = {scheduler: None, **files}
    comparison = Comparison(work.run(files, jobs))
    uids = frozenset(each.uid for each in comparison.differences[:explained])
    if uids:
        again = work.explain({name: file for name, file in files.items() if file is not None}, uids)
        for uid in (each.uid for each in comparison.differences[:explained]):
            texts = {name: each.explanations[uid] for name, each in again.items() if uid in each.explanations}
            comparison.explanations[uid] = texts
    if html is not None:
        try:
            html.write_text(comparison.as_html(f"Replays of {trace.name}"), encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(html)) from None
    click.echo(json.dumps(comparison.as_json()) if output == "json" else printable(comparison.as_text()))
    failing = comparison.failing(parsed)
    for text in failing:
        click.echo(printable(f"failed: {text}"), err=True)
    if failing:
        sys.exit(FAILED)


def _names(configs: Sequence[Path]) -> list[str]:
    """Short names where they are distinct, else the whole paths."""
    stems = [each.stem for each in configs]
    if len(set(stems)) == len(stems):
        return stems
    names = [str(each) for each in configs]
    if len(set(names)) < len(names):
        raise click.UsageError("the same file is given twice with --config")
    return names


def _check_recorded(trace: Trace, scheduler: str) -> None:
    known = {event.by for event in trace.events if event.verb == "bind"}
    if not known:
        raise InputError("the trace has no bindings to compare with", where=trace.source, what="--scheduler")
    if scheduler != RECORDED and not any(scheduler in each for each in known):
        who = ", ".join(sorted(known))
        raise InputError(f"no pod was bound by {scheduler!r}; pods were bound by {who}", where=trace.source)


class _Work:
    """Runs replays, or finds them finished."""

    def __init__(
        self,
        trace: Trace,
        plugin_dirs: tuple[Path, ...],
        options: ReplayOptions,
        folder: Path | None,
        progress: bool | None,
    ) -> None:
        self._trace, self._plugin_dirs, self._options = trace, plugin_dirs, options
        self._folder, self._progress = folder, progress

    def run(self, files: dict[str, Path | None], jobs: int) -> dict[str, Results]:
        done = {name: self._finished(file) for name, file in files.items()}
        left = {name: file for name, file in files.items() if done[name] is None}
        if jobs > 1 and len(left) > 1:
            with ProcessPoolExecutor(min(jobs, len(left))) as pool:
                running = {
                    name: pool.submit(self._one, name, file, frozenset()) for name, file in left.items()
                }
                fresh = {name: each.result() for name, each in running.items()}
        else:
            fresh = {name: self._one(name, file, frozenset()) for name, file in left.items()}
        return {name: kept or fresh[name] for name, kept in done.items()}

    def explain(self, files: dict[str, Path], uids: frozenset[str]) -> dict[str, Results]:
        """The same replays once more, which give the same decisions, now with explanations."""
        return {name: self._one(name, file, uids) for name, file in files.items()}

    def _one(self, name: str, file: Path | None, uids: frozenset[str]) -> Results:
        registry = Registry.installed(self._plugin_dirs)
        config = None if file is None else config_of(file, None, registry)
        options = msgspec.structs.replace(self._options, explained=uids, as_recorded=file is None)
        with progress_of(name, self._progress) as on_progress:
            found = replay(self._trace, config, registry=registry, options=options, on_progress=on_progress)
        if self._folder is not None and not uids:
            self._keep(file, found)
        return found

    def _file(self, config: Path | None) -> Path:
        """Named after all that the replay depends on but the plugins' code."""
        assert self._folder is not None
        digest = hashlib.sha256(msgspec.json.encode((self._options, list(map(str, self._plugin_dirs)))))
        for event in self._trace.events:
            digest.update(msgspec.json.encode(event))
        digest.update(b"recorded" if config is None else _read(config))
        return self._folder / f"replay-{digest.hexdigest()[:24]}.json"

    def _finished(self, config: Path | None) -> Results | None:
        if self._folder is None or not (file := self._file(config)).exists():
            return None
        try:
            return msgspec.json.decode(_read(file), type=Results)
        except msgspec.DecodeError:  # of another version, or damaged: it is run again
            return None

    def _keep(self, config: Path | None, found: Results) -> None:
        file = self._file(config)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(".part")
            part.write_bytes(msgspec.json.encode(found))
            part.replace(file)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(file)) from None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(file)) from None
