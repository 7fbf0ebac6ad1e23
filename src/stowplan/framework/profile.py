"""A Profile: plugins with their arguments, by extension point, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Protocol, cast

import numpy as np

from stowplan.api.faults import describe_faults
from stowplan.api.pod import Pod
from stowplan.cluster.columns import Columns, Rows
from stowplan.cluster.node_table import NodeRow
from stowplan.errors import ConfigError, PluginError
from stowplan.framework.answers import check_constructed, describe, raise_interrupt, reason_of, where_text
from stowplan.framework.args import PluginArgs
from stowplan.framework.decision import UNRESOLVABLE_BIT, Statuses, Verdicts
from stowplan.framework.handle import Handle
from stowplan.framework.observer import UNOBSERVED, Observer
from stowplan.framework.plugin import (
    ExplainingPlugin,
    Plugin,
    Reads,
    ReservingPlugin,
    is_own,
    is_trusted,
    overrides,
)
from stowplan.framework.resolve import ResolvedProfile
from stowplan.framework.scores import MAX_SCORE
from stowplan.framework.sealed import seal_decision, seal_nodes, seal_scores, sealed_handle
from stowplan.framework.state import CycleState
from stowplan.framework.status import Status

EXTENDER = "Extender"
"""Stands for all extenders among the plugins of a decision, and among a pod's rejectors."""
MAX_REASONS = UNRESOLVABLE_BIT
"""How many a verdict has bits for."""


class TooManyReasonsError(PluginError):
    """A filter has given more different reasons in one go than a verdict has bits for."""


class RowReject(Protocol):
    """A `Reject` of `filter_nodes` for one row: booleans instead of masks."""

    mask: bool
    reason: str
    unresolvable: bool


class FilterStep:
    """A plugin's filter and how to ask it."""

    def __init__(self, plugin: Plugin, name: str) -> None:
        self.plugin, self.name = plugin, name
        self.filter, self.sign = plugin.filter, plugin.sign_pod
        self.filter_nodes = seal_nodes(plugin, plugin.filter_nodes)
        self.filter_row = cast(Callable[[CycleState, Pod, NodeRow], Iterable[RowReject]], self.filter_nodes)
        """`filter_nodes`, for plugins that take rows."""
        self.takes_columns = overrides(plugin, "filter_nodes")
        self.method = (plugin, "filter_nodes" if self.takes_columns else "filter")
        self.is_cached, self.reads_usage = is_cached(plugin), plugin.reads is Reads.USAGE
        self.takes_rows = plugin.takes_rows
        self.tries_many = self.takes_columns and (plugin.reads is not Reads.ANYTHING or plugin.takes_trials)
        """Whether it can be asked about changes of many nodes at once, each tried out by itself."""
        self.reasons: list[str] = []
        """Reasons this filter has given so far; verdicts refer to them by number."""
        self.generation = 0
        self._index: dict[str, int] = {}

    def reason_id(self, reason: str) -> int:
        found = self._index.get(reason)
        if found is None and (found := self._index.get(reason := reason_of(reason))) is None:
            if len(self.reasons) == MAX_REASONS:
                raise TooManyReasonsError
            found = self._index[reason] = len(self.reasons)
            self.reasons.append(reason)
        return found

    def verdicts(self, columns: Columns) -> Verdicts | None:
        """What the filter said, if it rejected any node at all."""
        (bits,) = columns
        fails = bits > 0
        return Verdicts(self.name, self.reasons, bits, fails) if np.count_nonzero(fails) else None

    def make_room(self) -> None:
        """Starts a new list of reasons where the old one is nearly full; earlier verdicts keep theirs."""
        if len(self.reasons) > MAX_REASONS // 2:
            self.reasons, self._index = [], {}
            self.generation += 1


class ScoreStep:
    """A plugin's score and how to ask it."""

    def __init__(self, plugin: Plugin, name: str, weight: int) -> None:
        self.plugin, self.name, self.weight = plugin, name, weight
        self.score, self.sign = plugin.score, plugin.sign_pod
        self.score_nodes = seal_nodes(plugin, plugin.score_nodes)
        self.score_row = cast(Callable[[CycleState, Pod, NodeRow], int], self.score_nodes)
        """`score_nodes`, for plugins that take rows."""
        self.normalize = seal_scores(plugin) if overrides(plugin, "normalize_score") else None
        self.takes_columns = overrides(plugin, "score_nodes")
        self.method = (plugin, "score_nodes" if self.takes_columns else "score")
        self.is_cached, self.reads_usage = is_cached(plugin), plugin.reads is Reads.USAGE
        self.takes_rows = plugin.takes_rows


class Profile:
    """Plugins of `kept` are reused where class and arguments are still the same.

    Whatever calls a plugin of the profile reports that to `observer`.
    """

    def __init__(
        self,
        resolved: ResolvedProfile,
        handle: Handle,
        kept: Mapping[str, Plugin] | None = None,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self.scheduler_name, self.observer = resolved.scheduler_name, observer
        self.percentage_of_nodes_to_score = resolved.percentage_of_nodes_to_score
        self.handle, self.gates = handle, resolved.gates
        handle.scheduler_name, handle.gates = resolved.scheduler_name, resolved.gates
        self.disabled_gates = handle.disabled_gates = resolved.disabled_gates
        self.plugins: dict[str, Plugin] = {
            name: _build(name, kind, resolved.args.get(name, PluginArgs()), handle, (kept or {}).get(name))
            for name, kind in resolved.classes.items()
        }
        self.points: dict[str, list[str]] = {
            point: [name for name, _ in entries] for point, entries in resolved.points.items()
        }
        self._at = {
            point: tuple((name, self.plugins[name]) for name in names) for point, names in self.points.items()
        }
        self._feasible: dict[tuple[int, ...], tuple[tuple[object, ...], Rows, Rows]] = {}
        self.pre_filters = [
            (name, plugin, seal_nodes(plugin, plugin.pre_filter)) for name, plugin in self.at("preFilter")
        ]
        """Each plugin with its method as it is to be called; so are `post_filters` and `pre_scores`."""
        self.awaiting = [
            plugin
            for _, plugin in self.at("preEnqueue")
            if isinstance(plugin, ReservingPlugin)
            and type(plugin).awaits_write is not ReservingPlugin.awaits_write
            and is_own(type(plugin))  # nothing guards the call
        ]
        """Plugins that may have a pod wait until something is written for another one."""
        self.told = frozenset(
            name
            for name, plugin, _ in self.pre_filters
            if overrides(plugin, "add_pod", "remove_pod") and not plugin.takes_trials
        )
        """Plugins that must be told of each pod that is added to or removed from a trial node."""
        self.filters = [FilterStep(self.plugins[name], name) for name in self.points.get("filter", ())]
        self.post_filters = [(name, plugin, seal_decision(plugin)) for name, plugin in self.at("postFilter")]
        self.pre_scores = [
            (name, plugin, seal_nodes(plugin, plugin.pre_score)) for name, plugin in self.at("preScore")
        ]
        self.scores = [
            ScoreStep(self.plugins[name], name, weight) for name, weight in resolved.points.get("score", ())
        ]
        self.explaining = [
            (step, step.plugin.explain_scores)
            for step in self.scores
            if isinstance(step.plugin, ExplainingPlugin)
            and type(step.plugin).explain_scores is not ExplainingPlugin.explain_scores
        ]
        """Plugins that may have something to say about their scores."""
        self._explaining_pods = [
            plugin.explain_pod
            for plugin in self.plugins.values()
            if isinstance(plugin, ExplainingPlugin)
            and type(plugin).explain_pod is not ExplainingPlugin.explain_pod
            and is_own(type(plugin))  # nothing guards the call
        ]
        self.watching = [(name, kind) for name, plugin in self.plugins.items() for kind in plugin.watches]
        """Plugins and the kinds that they watch."""
        self.placement_scores = [
            (name, self.plugins[name], weight) for name, weight in resolved.points.get("placementScore", ())
        ]
        """Plugins that score domains for pod groups, with their weights."""
        self.total_type = _total_type(self.scores)
        """Whole numbers that hold any total, the smaller the faster."""
        binding = (plugin for point in ("preBind", "bind", "postBind") for _, plugin in self.at(point))
        self.binds_plainly = all(is_trusted(type(plugin)) for plugin in binding)
        """Whether no plugin of others takes part in bindings."""
        binders = [plugin.only_creates_binding for _, plugin in self.at("bind")]
        self.binds_only = binders == [True] and not self.at("postBind")
        """Whether bindings are written to the API server, and nothing else is done about them."""

    def notes_on(self, pod: Pod) -> Iterator[str]:
        """What plugins do without, since it cannot be read, and what they have to say about the pod.

        Every record keeps it, so a note is no longer than a reason may be.
        """
        for name, kind in self.watching:
            unreadable = self.handle.watched(kind).unreadable
            if unreadable:
                texts = describe_faults(unreadable.values(), lambda each: str(each.fault))
                yield reason_of(f"{name} ignores objects that cannot be read: {'; '.join(texts)}.")
        for explain in self._explaining_pods:
            yield from map(reason_of, explain(pod))

    def plugins_holding(self, family: str) -> frozenset[str]:
        """The names of the plugins that keep incomplete pod groups of this API group out of the queue."""
        return frozenset(name for name, plugin in self.plugins.items() if family in plugin.group_families)

    def with_weight(self, name: str, weight: int) -> Profile:
        """The same profile, but for what the scores of one plugin count."""
        found = copy(self)
        found.scores = [
            ScoreStep(step.plugin, step.name, weight if step.name == name else step.weight)
            for step in self.scores
        ]
        found.total_type = _total_type(found.scores)
        return found

    def set_weights(self, weights: Sequence[int]) -> None:
        """Set the weights of the score plugins, in the order of `scores`."""
        for step, weight in zip(self.scores, weights, strict=True):
            step.weight = weight
        self.total_type = _total_type(self.scores)

    def feasible(
        self, rejections: list[Verdicts | Statuses], rows: Rows, overruled: Mapping[int, Status]
    ) -> Rows:
        """The rows that no filter rejected and that are not overruled, given by their places.

        The same answers give the identical array, for caching.
        """
        if not rejections and not overruled:
            return rows
        answers = (*rejections, overruled) if overruled else tuple(rejections)
        key = tuple(map(id, answers))
        found = self._feasible.get(key)
        if found is None or found[1] is not rows:
            passing = np.ones(len(rows), np.bool_)
            for each in rejections:
                passing &= ~each.fails
            passing[list(overruled)] = False
            if len(self._feasible) > 64:
                self._feasible.clear()
            found = self._feasible[key] = (answers, rows, rows[passing])
        return found[2]

    def at(self, point: str) -> Sequence[tuple[str, Plugin]]:
        """The plugins of an extension point, by name and in order."""
        return self._at.get(point, ())


def _total_type(scores: Sequence[ScoreStep]) -> Any:
    highest = MAX_SCORE * sum(step.weight for step in scores)
    return np.int16 if highest < 2**15 else np.int64


def _build(name: str, kind: type[Plugin], args: PluginArgs, handle: Handle, kept: Plugin | None) -> Plugin:
    try:
        if kept is not None and type(kept) is kind and kept.args == args:
            return kept
        return check_constructed(kind(args, sealed_handle(kind, handle, name)), kind)
    except BaseException as error:
        raise_interrupt(error)
        said = f"{describe(error)}{where_text(error, method=(kind, '__init__'))}"
        raise ConfigError(f'initializing plugin "{name}": {said}', stage="framework") from error


def is_cached(plugin: Plugin) -> bool:
    """Whether answers for pods with equal signatures are cached."""
    return plugin.reads in (Reads.NODE, Reads.USAGE) and overrides(plugin, "sign_pod")
