"""Searches for the score weights and plugin arguments that give the best replays of a trace.

Trials are asked for and reported in batches of a fixed size, and each draws with a seed of its own: the
search depends on the trace, the settings and the seed, but not on where or in which order replays run, nor
on whether it was interrupted."""

from __future__ import annotations

import copy
import hashlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.cycle.planner import DEFAULT_CONFIG
from stowplan.errors import ConfigError, InputError, missing_extra
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import ResolvedProfile, resolve_profiles
from stowplan.replay.compare import change_of, number_text
from stowplan.replay.engine import ReplayOptions
from stowplan.replay.executors import Executor, ReplayJob
from stowplan.replay.results import Results
from stowplan.replay.trace import Trace

MAX_WEIGHT = 10
MAX_FRONT = 10
"""How many of the best trials are also replayed on the held-out part."""
RANDOM_TRIALS = 10
"""Trials drawn at random before the sampler learns from earlier ones."""
STUDY = "stowplan"
_HIGHER_IS_BETTER = ("allocated.", "balance.jain", "pods.bound")
_RANGE = re.compile(r"(-?\d+(?:\.\d+)?):(-?\d+(?:\.\d+)?)")
Params = Mapping[str, Any]


class Objective(NamedTuple):
    metric: str
    is_maximized: bool

    @classmethod
    def parse(cls, text: str) -> Objective:
        """`waiting.p95`, or `nodes.used:max` where the usual direction is not the wanted one."""
        metric, _, direction = text.partition(":")
        if direction not in ("", "min", "max") or not metric:
            text_wanted = "expected a metric such as waiting.p95, with :min or :max if need be"
            raise InputError(text_wanted, where="--objective", what=text)
        if metric.startswith("decision."):
            reason = "decision times differ from run to run, so they cannot be an objective"
            raise InputError(reason, where="--objective", what=text)
        return cls(metric, direction == "max" or (not direction and metric.startswith(_HIGHER_IS_BETTER)))

    def __str__(self) -> str:
        return f"{self.metric} ({'higher' if self.is_maximized else 'lower'} is better)"


class Parameter(NamedTuple):
    """A weight (`path` is empty) or an argument of a plugin, and the values to search."""

    plugin: str
    path: tuple[str, ...]
    choices: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0

    @property
    def name(self) -> str:
        return ".".join((self.plugin, *(self.path or ("weight",))))

    @classmethod
    def parse_weight(cls, text: str) -> Parameter:
        """`NodeResourcesFit=0:10`; a weight of 0 disables the score."""
        plugin, _, values = text.partition("=")
        match = re.fullmatch(r"(\d+):(\d+)", values)
        if not plugin or match is None or int(match[1]) > int(match[2]):
            raise InputError(
                "expected PLUGIN=LOW:HIGH, such as ImageLocality=0:5", where="--weight", what=text
            )
        return cls(plugin, (), low=int(match[1]), high=int(match[2]))

    @classmethod
    def parse_arg(cls, text: str) -> Parameter:
        """`NodeResourcesFit.scoringStrategy.type=LeastAllocated|MostAllocated`, or a range `LOW:HIGH`."""
        place, _, values = text.partition("=")
        plugin, *path = place.split(".")
        if not plugin or not all(path) or not path or not values:
            wanted = "expected PLUGIN.FIELD=A|B or PLUGIN.FIELD=LOW:HIGH"
            raise InputError(wanted, where="--arg", what=text)
        if (match := _RANGE.fullmatch(values)) is not None:
            low, high = (float(each) if "." in values else int(each) for each in match.groups())
            if low > high:
                raise InputError(f"{match[1]} is higher than {match[2]}", where="--arg", what=text)
            return cls(plugin, tuple(path), low=low, high=high)
        try:
            choices = tuple(yaml.safe_load(each) for each in values.split("|"))
        except yaml.YAMLError:
            raise InputError("the values are not YAML", where="--arg", what=text) from None
        return cls(plugin, tuple(path), choices)

    def distribution(self, optuna: Any) -> Any:
        if self.choices:  # by place, as values may be lists or objects
            return optuna.distributions.CategoricalDistribution(range(len(self.choices)))
        if isinstance(self.low, int) and isinstance(self.high, int):
            return optuna.distributions.IntDistribution(self.low, self.high)
        return optuna.distributions.FloatDistribution(self.low, self.high)

    def value(self, drawn: Any) -> Any:
        return self.choices[drawn] if self.choices else drawn


class Space:
    """What may change in one profile of a configuration, and configurations made of it."""

    def __init__(
        self,
        config: KubeSchedulerConfiguration | None,
        registry: Registry,
        *,
        weights: Sequence[Parameter] = (),
        args: Sequence[Parameter] = (),
        profile: str | None = None,
    ) -> None:
        """Without `weights` and `args`: all score weights, and whether NodeResourcesFit packs or spreads."""
        self.registry = registry
        config = config or load(DEFAULT_CONFIG, registry).config
        self.base: dict[str, Any] = config.without_defaults()
        resolved = resolve_profiles(config, registry)
        names = [each.scheduler_name for each in resolved]
        if profile is not None and profile not in names:
            raise InputError(f"unknown profile; the configuration has {', '.join(names)}", what=profile)
        self._place = 0 if profile is None else names.index(profile)
        self._profile: ResolvedProfile = resolved[self._place]
        self._scores = dict(self._profile.points["score"])
        if not weights and not args:
            weights = [Parameter(name, (), low=0, high=MAX_WEIGHT) for name in self._scores]
            default = Parameter.parse_arg(DEFAULT_ARG)
            args = [default] if default.plugin in self._profile.args else []
        self.parameters = (*weights, *args)
        self._check()

    def _check(self) -> None:
        for each in self.parameters:
            known = self._profile.args if each.path else self._scores
            if each.plugin not in known:
                kind = "plugin with arguments" if each.path else "score plugin"
                text = f"is not a {kind} of the profile; known: {', '.join(sorted(known))}"
                raise InputError(text, where="--arg" if each.path else "--weight", what=each.plugin)
            if each.path:
                self._set(each, copy.deepcopy(self._args(each.plugin)), None)
        names = [each.name for each in self.parameters]
        for name in names:
            if names.count(name) > 1:
                raise InputError("is given twice", where="--weight or --arg", what=name)

    def _args(self, plugin: str) -> Any:
        return self._profile.args[plugin].as_json()

    @staticmethod
    def _set(parameter: Parameter, args: Any, value: Any) -> None:
        """Set a field; its parents must exist, with their defaults at least."""
        *parents, last = parameter.path
        try:
            for name in parents:
                args = args[int(name)] if isinstance(args, list) else args[name]
            if isinstance(args, list):
                args[int(last)] = value
            else:
                args.update({last: value})
        except (KeyError, IndexError, ValueError, AttributeError, TypeError):
            raise InputError("has no such field", where="--arg", what=parameter.name) from None

    def base_params(self) -> dict[str, Any]:
        """The values of the configuration as it is, where the search may choose them."""
        found: dict[str, Any] = {}
        for each in self.parameters:
            if not each.path:
                value: Any = self._scores[each.plugin]
            else:
                value = self._args(each.plugin)
                for name in each.path:
                    value = value.get(name) if isinstance(value, dict) else value[int(name)]
            if each.choices:
                if value in each.choices:
                    found[each.name] = each.choices.index(value)
            elif isinstance(value, (int, float)) and each.low <= value <= each.high:
                found[each.name] = value
        return found

    def configuration(self, params: Params) -> dict[str, Any]:
        """The configuration with these values, as in a file."""
        found = copy.deepcopy(self.base)
        profiles = found.setdefault("profiles", [{"schedulerName": self._profile.scheduler_name}])
        profile, scores = profiles[self._place], dict(self._scores)
        args: dict[str, Any] = {}
        for each in self.parameters:
            value = each.value(params[each.name])
            if each.path:
                self._set(each, args.setdefault(each.plugin, self._args(each.plugin)), value)
            else:
                scores[each.plugin] = value
        if any(not each.path for each in self.parameters):
            enabled = [{"name": name, "weight": weight} for name, weight in scores.items() if weight]
            profile.setdefault("plugins", {})["score"] = {"enabled": enabled, "disabled": [{"name": "*"}]}
        entries = [each for each in profile.get("pluginConfig", ()) if each["name"] not in args]
        if entries or args:
            own = [{"name": name, "args": value} for name, value in args.items()]
            profile["pluginConfig"] = [*entries, *own]
        return found


DEFAULT_ARG = "NodeResourcesFit.scoringStrategy.type=LeastAllocated|MostAllocated"


class Candidate(msgspec.Struct, kw_only=True):
    """A configuration that was tried."""

    name: str
    params: dict[str, Any]
    training: dict[str, float]
    """Its metrics on the part of the trace that the search used."""
    held_out: dict[str, float] = {}
    """Its metrics on the rest."""
    config: dict[str, Any] = {}


class Tuning(msgspec.Struct, kw_only=True):
    """What a search found."""

    objectives: list[Objective]
    trials: int
    failed: int
    split: float | None
    """The time from which the trace was held out."""
    base: Candidate
    front: list[Candidate]
    """Trials that no other one beats in all objectives; the first is the one recommended."""

    @property
    def best(self) -> Candidate:
        return self.front[0]

    def holds(self) -> bool:
        """Whether the recommended trial is better than the base in some objective, and worse in none, on the
        held-out part too."""
        measured = [(self.base.held_out, self.best.held_out)] if self.split is not None else []
        return all(
            dominates(self.objectives, after, before)
            for before, after in [(self.base.training, self.best.training), *measured]
        )


def dominates(objectives: Iterable[Objective], one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    signed = [
        (one[each.metric] - other[each.metric]) * (1 if each.is_maximized else -1) for each in objectives
    ]
    return all(each >= 0 for each in signed) and any(each > 0 for each in signed)


class Tuner:
    """A search, kept in a file of Optuna's journal, from which it continues if it was interrupted."""

    def __init__(
        self,
        trace: Trace,
        space: Space,
        objectives: Sequence[Objective],
        executor: Executor,
        *,
        study: Path,
        options: ReplayOptions | None = None,
        plugin_dirs: Sequence[str] = (),
        hold_out: float = 0.25,
        seed: int = 1,
        batch: int = 8,
        on_trial: Callable[[int, Mapping[str, float]], None] = lambda number, metrics: None,
    ) -> None:
        if not objectives:
            raise InputError("give at least one", where="--objective")
        metrics = [each.metric for each in objectives]
        for metric in metrics:
            if metrics.count(metric) > 1:
                raise InputError("is given twice", where="--objective", what=metric)
        self._optuna = import_optuna()
        self._space, self._objectives, self._executor = space, list(objectives), executor
        self._options, self._plugin_dirs = options or ReplayOptions(), tuple(plugin_dirs)
        self._batch, self._seed, self._on_trial = batch, seed, on_trial
        self.split = split_time(trace, hold_out)
        self._distributions = {each.name: each.distribution(self._optuna) for each in space.parameters}
        self._file = study
        self._study = self._open(self._settings(trace))

    def _settings(self, trace: Trace) -> dict[str, Any]:
        """Everything the search depends on; a study continues only if it is the same."""
        digest = hashlib.sha256()
        for event in trace.events:
            digest.update(msgspec.json.encode(event))
        return {
            "trace": digest.hexdigest(),
            "configuration": self._space.base,
            "parameters": [list(map(str, each)) for each in self._space.parameters],
            "objectives": [list(map(str, each)) for each in self._objectives],
            "options": msgspec.to_builtins(self._options),
            "held-out part": self.split,
            "seed": self._seed,
            "batch": self._batch,
        }

    def _open(self, settings: dict[str, Any]) -> Any:
        optuna = self._optuna
        directions = ["maximize" if each.is_maximized else "minimize" for each in self._objectives]
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            _drop_unfinished_line(self._file)
            backend = optuna.storages.journal.JournalFileBackend(str(self._file))
            backend.append_logs = partial(_append, backend.append_logs, self._file)
            storage = optuna.storages.JournalStorage(backend)
            create = partial(optuna.create_study, storage=storage, study_name=STUDY, directions=directions)
            with _quiet(optuna):
                study = create(load_if_exists=True)
            before = study.user_attrs.get("settings", {})
        except OSError as error:
            raise InputError(f"cannot be used: {error.strerror}", where=str(self._file)) from None
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
            raise InputError("is not a study of Optuna", where=str(self._file)) from None
        different = [name for name, value in settings.items() if before.get(name) != value]
        if not different:
            return study
        if any(not each.state.is_finished() or each.values for each in study.get_trials(deepcopy=False)):
            text = f"belongs to another search: it differs in {', '.join(different)}"
            raise InputError(f"{text}; pass another --output-dir", where=str(self._file))
        if before:  # but nothing was measured: that search ended with an error, such as an unknown objective
            with _quiet(optuna):
                optuna.delete_study(study_name=STUDY, storage=storage)
                study = create()
        study.set_user_attr("settings", settings)
        return study

    def run(self, trials: int) -> Tuning:
        base = Candidate(name="base", params={}, training=self._base_metrics(), config=self._space.base)
        for each in self._objectives:
            if each.metric not in base.training:
                known = ", ".join(name for name in base.training if not name.startswith("decision."))
                text = f"unknown metric; known: {known}"
                raise InputError(text, where="--objective", what=each.metric)
        state = self._optuna.trial.TrialState
        while True:
            found = self._study.get_trials(deepcopy=False)
            running = [each for each in found if each.state == state.RUNNING]
            # An interrupted batch is completed before any of its trials is reported.
            batches = -(-len(found) // self._batch) if running else len(found) // self._batch + 1
            wanted = min(trials, batches * self._batch)
            while len(found) < wanted:
                running.append(self._ask(len(found)))
                found = self._study.get_trials(deepcopy=False)
            if not running:
                break
            self._evaluate(running)
        return self._finish(base, found)

    def _base_metrics(self) -> dict[str, float]:
        known = self._study.user_attrs.get("base")
        if known is None:
            job = self._job("base", None)
            ((_, results),) = self._executor.run([job])
            known = _repeatable(results.metrics())
            self._study.set_user_attr("base", known)
        return dict(known)

    def _job(self, name: str, config: dict[str, Any] | None) -> ReplayJob:
        return ReplayJob(
            name=name,
            config=config or self._space.base,
            options=self._options,
            plugin_dirs=self._plugin_dirs,
            until=self.split,
        )

    def _ask(self, number: int) -> Any:
        optuna = self._optuna
        with _quiet(optuna):
            if number == 0 and (params := self._space.base_params()):
                self._study.enqueue_trial(params)
            self._study.sampler = optuna.samplers.TPESampler(
                seed=self._seed * 1_000_003 + number, n_startup_trials=RANDOM_TRIALS, constant_liar=True
            )
            return self._study.ask(self._distributions)

    def _evaluate(self, trials: Sequence[Any]) -> None:
        """Replay a batch, and report its trials in their order."""
        jobs: list[ReplayJob] = []
        measured: dict[int, dict[str, float] | str] = {}
        places: list[int] = []
        for each in trials:
            if each.params.keys() != self._distributions.keys():
                measured[each.number] = "interrupted before all of its values were drawn"
                continue
            config = self._space.configuration(each.params)
            try:
                resolve_profiles(load(config, self._space.registry).config, self._space.registry)
            except ConfigError as error:
                measured[each.number] = str(error)
                continue
            places.append(each.number)
            jobs.append(self._job(f"trial {each.number + 1}", config))
        for place, results in self._executor.run(jobs):
            measured[places[place]] = _repeatable(results.metrics())
            self._on_trial(places[place], results.metrics())
        failed = self._optuna.trial.TrialState.FAIL
        for each in sorted(trials, key=lambda trial: int(trial.number)):
            outcome = measured[each.number]
            self._study.set_user_attr(_outcome_of(each), outcome)
            with _quiet(self._optuna):
                if isinstance(outcome, str):
                    self._study.tell(each.number, state=failed)
                else:
                    self._study.tell(each.number, [outcome[one.metric] for one in self._objectives])

    def _finish(self, base: Candidate, trials: Sequence[Any]) -> Tuning:
        complete = self._optuna.trial.TrialState.COMPLETE
        done = [each for each in trials if each.state == complete]
        if not done:
            first = next((self._study.user_attrs.get(_outcome_of(each), "") for each in trials), "")
            raise InputError(f"no trial gave a valid configuration, such as: {first}", where="--arg")
        candidates = [
            Candidate(
                name=f"trial {each.number + 1}",
                params={one.name: one.value(each.params[one.name]) for one in self._space.parameters},
                training=dict(self._study.user_attrs[_outcome_of(each)]),
                config=self._space.configuration(each.params),
            )
            for each in done
        ]
        front = self._front(base, candidates)
        if self.split is not None:
            jobs = [
                msgspec.structs.replace(self._job(each.name, each.config), until=None)
                for each in (base, *front)
            ]
            for place, results in self._executor.run(jobs):
                (base, *front)[place].held_out = _repeatable(results_since(results, self.split).metrics())
        return Tuning(
            objectives=self._objectives,
            trials=len(trials),
            failed=len(trials) - len(done),
            split=self.split,
            base=base,
            front=front,
        )

    def _front(self, base: Candidate, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that none beats, the one with the best mean gain over the base first."""
        kept: dict[tuple[float, ...], Candidate] = {}
        for each in candidates:
            values = tuple(each.training[one.metric] for one in self._objectives)
            if not any(dominates(self._objectives, one.training, each.training) for one in candidates):
                kept.setdefault(values, each)

        def gain(each: Candidate) -> float:
            return sum(
                max(min(change_of(base.training[one.metric], each.training[one.metric]), 1e6), -1e6)
                * (1 if one.is_maximized else -1)
                for one in self._objectives
            )

        # A trial that is worse than the base somewhere comes after those that are not.
        ordered = sorted(
            kept.values(),
            key=lambda each: (not dominates(self._objectives, each.training, base.training), -gain(each)),
        )
        return ordered[:MAX_FRONT]


class _Line(msgspec.Struct):
    """What every line of a journal of Optuna has."""

    op_code: int
    worker_id: str


def _drop_unfinished_line(file: Path) -> None:
    """Remove what a crash left at the end of a journal; Optuna would append to it.

    Raises ValueError if the file is not a journal, as Optuna would append to that, too."""
    if not file.exists():
        return
    *lines, unfinished = file.read_bytes().split(b"\n")
    for line in lines:
        msgspec.json.decode(line, type=_Line)
    if unfinished:
        start = b'{"op_code":'
        if unfinished[: len(start)] != start[: len(unfinished)]:
            raise ValueError("is not a journal of Optuna")
        with file.open("r+b") as stream:
            stream.truncate(sum(len(line) + 1 for line in lines))


def _append(append: Callable[[list[dict[str, Any]]], None], file: Path, logs: list[dict[str, Any]]) -> None:
    try:
        append(logs)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(file)) from None


def _outcome_of(trial: Any) -> str:
    """The attribute of the study that has the metrics of a trial, or its error."""
    return f"trial {trial.number}"


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Without a line for each trial, and without warnings that an option of Optuna may change."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def import_optuna() -> Any:
    try:
        import optuna
        import optuna.storages.journal
    except ImportError:
        raise missing_extra("stowplan tune", "optuna", "tune") from None
    return optuna


def split_time(trace: Trace, hold_out: float) -> float | None:
    """The time from which this share of the pods arrives; None if nothing is held out."""
    arrivals = [event.time for event in trace.events if event.kind == "Pod" and event.verb == "add"]
    if not hold_out or not arrivals:
        return None
    split = arrivals[min(round(len(arrivals) * (1 - hold_out)), len(arrivals) - 1)]
    if split <= arrivals[0]:
        text = f"cannot hold out {hold_out:.0%} of the pods: the first of them arrive at the same time"
        raise InputError(f"{text}; use --hold-out 0", where=trace.source)
    return split


def results_since(results: Results, time: float) -> Results:
    """What became of pods that arrived at this time or later, and of the cluster since."""
    samples = [each for each in results.samples if each.time >= time]
    found = Results(source=results.source, start=time, end=results.end, samples=samples)
    found.pods = [each for each in results.pods if each.arrived >= time]
    names = dict.fromkeys(name for each in samples for name in each.allocated)
    for name in names:
        found.mean_allocated[name] = _mean([each.allocated.get(name, 0.0) for each in samples])
    found.mean_pending = _mean([each.pending for each in samples])
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _repeatable(metrics: Mapping[str, float]) -> dict[str, float]:
    """Without decision times, which differ from run to run."""
    return {name: value for name, value in metrics.items() if not name.startswith("decision.")}


# The report


def report_json(tuning: Tuning) -> bytes:
    return msgspec.json.format(msgspec.json.encode(tuning), indent=2) + b"\n"


def front_rows(tuning: Tuning) -> list[tuple[str, ...]]:
    """A heading, the base, and the trials of the front: each objective in training and held out."""
    heading = ["CONFIGURATION"]
    for each in tuning.objectives:
        heading += [each.metric, *(["held out"] if tuning.split is not None else [])]
    rows = [tuple(heading)]
    for candidate in (tuning.base, *tuning.front):
        cells = [candidate.name]
        for each in tuning.objectives:
            cells.append(_cell(tuning.base.training, candidate.training, each.metric))
            if tuning.split is not None:
                cells.append(_cell(tuning.base.held_out, candidate.held_out, each.metric))
        rows.append(tuple(cells))
    return rows


def _cell(base: Mapping[str, float], own: Mapping[str, float], metric: str) -> str:
    if metric not in own:
        return "none"
    change = change_of(base.get(metric, 0.0), own[metric])
    shown = f" ({change:+.1f} %)" if round(change, 1) and abs(change) < 1e6 else ""
    return f"{number_text(own[metric])}{shown}"


def report_markdown(tuning: Tuning, source: str) -> str:
    heading, *rows = front_rows(tuning)
    lines = [
        f"# Tuning on {source}",
        "",
        f"{tuning.trials} trials ({tuning.failed} of them had invalid configurations). Objectives: "
        + ", ".join(map(str, tuning.objectives))
        + ".",
        "",
    ]
    if tuning.split is None:
        lines += ["No part of the trace was held out, so the gains may not carry over to other days.", ""]
    else:
        lines += [
            "The search saw only what happened before time "
            f"{tuning.split:.6f}. The columns *held out* measure pods that arrived later, on a cluster "
            "that the same configuration had filled until then.",
            "",
        ]
    lines += [verdict(tuning), "", "## Configurations that no other one beats", ""]
    lines += _markdown_table(heading, rows)
    lines += ["", "## Their parameters", ""]
    names = list(tuning.best.params)
    values = [
        (each.name, *(msgspec.json.encode(each.params[name]).decode() for name in names))
        for each in tuning.front
    ]
    lines += _markdown_table(("configuration", *names), values)
    lines += ["", f"## All metrics of {tuning.best.name}", ""]
    parts = [("base", tuning.base.training), (tuning.best.name, tuning.best.training)]
    if tuning.split is not None:
        parts += [
            ("base, held out", tuning.base.held_out),
            (f"{tuning.best.name}, held out", tuning.best.held_out),
        ]
    metrics = [
        (name, *(number_text(part[name]) if name in part else "none" for _, part in parts))
        for name in tuning.base.training
    ]
    lines += _markdown_table(("metric", *(name for name, _ in parts)), metrics)
    return "\n".join(lines) + "\n"


def verdict(tuning: Tuning) -> str:
    if tuning.holds():
        where = "" if tuning.split is None else ", on the held-out part too"
        return f"{tuning.best.name} is better than the base configuration{where}."
    if dominates(tuning.objectives, tuning.best.training, tuning.base.training):
        return (
            f"{tuning.best.name} is better than the base configuration where it was tuned, "
            "but not on the held-out part: do not rely on it."
        )
    if len(tuning.objectives) == 1:
        return "No trial is better than the base configuration."
    return (
        "No trial is better than the base configuration in one objective without being worse in another; "
        f"{tuning.best.name} has the highest mean gain."
    )


def _markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [heading, ["---"] * len(heading), *rows]
    return [f"| {' | '.join(each.replace('|', chr(92) + '|') for each in row)} |" for row in lines]
