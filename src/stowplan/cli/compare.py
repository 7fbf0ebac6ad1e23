"""`stowplan compare`: replay a trace with several configurations and compare the results."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import msgspec

from stowplan.cli.cluster_source import config_of
from stowplan.cli.options import OUTPUT, PLUGIN_DIRS, SEED
from stowplan.cli.replay import (
    DEPARTURES,
    EVICTION_SECONDS,
    EXECUTOR,
    JOBS,
    MAPPING,
    NO_RETRY,
    PARTIAL,
    PREFER_RECORDED,
    PROGRESS,
    SCHEDULER_ADDRESS,
    TRACE,
    load_trace,
    progress_of,
)
from stowplan.errors import InputError
from stowplan.explain.layout import printable
from stowplan.framework.registry import Registry
from stowplan.replay import ReplayOptions, Results, Trace
from stowplan.replay.compare import Comparison, Condition
from stowplan.replay.executors import Executor, ReplayJob, open_executor

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
    help="KubeSchedulerConfiguration to compare. Repeatable; the first is the baseline.",
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
    help="Store finished replays in this folder, and reuse those already in it.",
)
@EXECUTOR
@SCHEDULER_ADDRESS
@JOBS
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
    executor: str,
    scheduler_address: str | None,
    jobs: int | None,
    progress: bool | None,
    output: str,
) -> None:
    """Replay a trace with several configurations, and compare waiting times, allocation, evictions and more.

    TRACE is as for `stowplan replay`. Every pod that got another node is listed, and the first of them are
    explained.
    """
    if len(configs) + (scheduler is not None) < 2:
        raise click.UsageError("pass --config at least twice, or once with --scheduler")
    parsed = [Condition.parse(each) for each in conditions]
    found = load_trace(trace, mapping, partial)
    options = ReplayOptions(
        seed=seed,
        departures=departures,  # type: ignore[arg-type]
        retry=not no_retry,
        prefers_recorded=prefer_recorded,
        eviction_seconds=eviction_seconds,
    )
    files: dict[str, Path | None] = dict(zip(_names(configs), configs, strict=True))
    if scheduler is not None:
        _check_recorded(found, scheduler)
        files = {scheduler: None, **files}
    opened = open_executor(
        executor,  # type: ignore[arg-type]
        found,
        jobs=jobs,
        address=scheduler_address,
        progress_of=functools.partial(progress_of, wanted=progress),
    )
    with opened as replays:
        work = _Work(found, plugin_dirs, options, resume, replays)
        comparison = Comparison(work.run(files))
        uids = [each.uid for each in comparison.differences[:explained]]
        if uids:
            decided = {name: file for name, file in files.items() if file is not None}
            again = work.explain(decided, frozenset(uids))
            for uid in uids:
                comparison.explanations[uid] = {
                    name: each.explanations[uid] for name, each in again.items() if uid in each.explanations
                }
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
    """Runs replays, except those whose results are known already."""

    def __init__(
        self,
        trace: Trace,
        plugin_dirs: tuple[Path, ...],
        options: ReplayOptions,
        folder: Path | None,
        executor: Executor,
    ) -> None:
        self._trace, self._plugin_dirs, self._options = trace, plugin_dirs, options
        self._folder, self._executor = folder, executor

    def run(self, files: dict[str, Path | None]) -> dict[str, Results]:
        done = {name: self._read_finished(file) for name, file in files.items()}
        left = {name: file for name, file in files.items() if done[name] is None}
        for name, found in self._replay(left, frozenset()):
            done[name] = found
            if self._folder is not None:
                self._keep(files[name], found)
        return {name: found for name, found in done.items() if found is not None}

    def explain(self, files: dict[str, Path], uids: frozenset[str]) -> dict[str, Results]:
        """The same replays once more, which give the same decisions, now with explanations."""
        return dict(self._replay(files, uids))

    def _replay(
        self, files: Mapping[str, Path | None], uids: frozenset[str]
    ) -> Iterator[tuple[str, Results]]:
        registry, jobs = Registry.installed(self._plugin_dirs), []
        for name, file in files.items():
            config = None if file is None else config_of(file, None, registry)
            job = ReplayJob(
                name=name,
                config=None if config is None else config.without_defaults(),
                options=msgspec.structs.replace(self._options, explained=uids, as_recorded=file is None),
                plugin_dirs=tuple(map(str, self._plugin_dirs)),
            )
            jobs.append(job)
        for place, found in self._executor.run(jobs):
            yield jobs[place].name, found

    def _file(self, config: Path | None) -> Path:
        """Named after all that the replay depends on but the plugins' code."""
        assert self._folder is not None
        digest = hashlib.sha256(msgspec.json.encode((self._options, list(map(str, self._plugin_dirs)))))
        for event in self._trace.events:
            digest.update(msgspec.json.encode(event))
        digest.update(b"recorded" if config is None else _read(config))
        return self._folder / f"replay-{digest.hexdigest()[:24]}.json"

    def _read_finished(self, config: Path | None) -> Results | None:
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
