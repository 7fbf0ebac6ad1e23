"""What plugins of others are given: nothing through which they could change what the scheduler decides by.

The `seal_…` functions put this between a plugin and its host. The plugins that Stowplan brings along, and
classes derived from them, get the things themselves.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, TypeVar

import msgspec

from stowplan import log
from stowplan.api.meta import FrozenDict, FrozenList, ReadOnly, assign
from stowplan.api.pod import Pod
from stowplan.cluster.node_table import NodeRow
from stowplan.cluster.sealed import SealedCluster, sealed_array, sealed_row, sealed_table
from stowplan.config.gates import FeatureGates
from stowplan.framework.decision import Decision, ScoreColumn, Statuses, Verdicts
from stowplan.framework.handle import Handle, Nominations, WaitingPod
from stowplan.framework.plugin import Nomination, Plugin, Queued, SortKey
from stowplan.framework.scores import Scores
from stowplan.framework.state import CycleState, SealedState, sealed_state
from stowplan.framework.status import Status

T = TypeVar("T")
N = TypeVar("N")
A = TypeVar("A")
MAX_TRIALS = 10_000
"""How often filters may run in a search for pods to evict, which cannot be interrupted."""
DEPTH_LEFT = 200
"""So many calls must be possible still for a change that must not end halfway."""


def sealed_handle(kind: type[Plugin], handle: Handle, name: str) -> Handle:
    """The handle for a plugin of that class, whose log lines name the plugin from now on."""
    if kind.comes_with_stowplan or isinstance(handle, SealedHandle):
        return handle
    with suppress(OSError, TypeError):  # a class without a file, as from a console
        log.add_plugin(name, inspect.getfile(kind), kind.__name__)
    return SealedHandle(handle, name, kind)


# Methods as the cycle calls them: those of others are given views


def seal_nodes(
    plugin: Plugin, method: Callable[[CycleState, Pod, N], A]
) -> Callable[[CycleState, Pod, N], A]:
    """`pre_filter`, `filter_nodes`, `pre_score` or `score_nodes` of the plugin."""
    if plugin.comes_with_stowplan:
        return method
    return lambda state, pod, nodes: method(sealed_state(state), pod, _sealed_nodes(nodes))


def seal_scores(plugin: Plugin) -> Callable[[CycleState, Pod, Scores], Scores]:
    """`normalize_score` of the plugin."""
    method = plugin.normalize_score
    if plugin.comes_with_stowplan:
        return method
    return lambda state, pod, scores: method(sealed_state(state), pod, sealed_array(scores))


def seal_decision(
    plugin: Plugin,
) -> Callable[[CycleState, Pod, Decision], Nomination | Status | None]:
    """`post_filter` of the plugin."""
    method = plugin.post_filter
    if plugin.comes_with_stowplan:
        return method
    return lambda state, pod, decision: method(sealed_state(state), pod, sealed_decision(decision))


def seal_queued(plugin: Plugin) -> Callable[[Queued], SortKey]:
    """`queue_sort` of the plugin."""
    method = plugin.queue_sort
    return method if plugin.comes_with_stowplan else lambda queued: method(copy(queued))


class SealedNominations(ReadOnly, Nominations):
    __slots__ = ("_nominations",)
    _nominations: Nominations

    def __init__(self, nominations: Nominations) -> None:
        assign(self, _nominations=nominations)

    def __bool__(self) -> bool:
        return bool(self._nominations)

    def put(self, pod: Pod, node_name: str) -> None:
        raise AttributeError("a node is nominated by what `post_filter` returns")

    def remove(self, pod: Pod) -> None:
        raise AttributeError("a nomination ends when its pod is bound or rejected")

    def __iter__(self) -> Iterator[Pod]:
        return iter(tuple(self._nominations))

    def on(self, node_name: str) -> tuple[Pod, ...]:
        return self._nominations.on(node_name)

    def before(self, pod: Pod) -> Iterator[tuple[str, tuple[Pod, ...]]]:
        return self._nominations.before(pod)


class SealedWaitingPod(ReadOnly):
    __slots__ = ("_kind", "_plugin", "_waiting")
    _waiting: WaitingPod
    _plugin: str
    _kind: type[Plugin]

    def __init__(self, waiting: WaitingPod, plugin: str, kind: type[Plugin]) -> None:
        assign(self, _waiting=waiting, _plugin=plugin, _kind=kind)

    @property
    def pod(self) -> Pod:
        return self._waiting.pod

    @property
    def plugins(self) -> tuple[str, ...]:
        """The plugins that have not allowed it yet."""
        return self._waiting.plugins

    def allow(self, plugin: str = "") -> None:
        _check_depth()
        self._waiting.allow(self._name(plugin))

    def reject(self, plugin: str, message: str) -> None:
        _check_depth()
        self._waiting.reject(self._name(plugin), message)

    def _name(self, plugin: str) -> str:
        """The name in the configuration, which may be `module:Class`, of a plugin that gives its own."""
        return self._plugin if plugin in ("", self._kind.__name__) else plugin


class SealedWaitingPods(ReadOnly):
    __slots__ = ("_kind", "_plugin", "_pods")
    _pods: Iterable[WaitingPod]
    _plugin: str
    _kind: type[Plugin]

    def __init__(self, pods: Iterable[WaitingPod], plugin: str, kind: type[Plugin]) -> None:
        assign(self, _pods=pods, _plugin=plugin, _kind=kind)

    def __iter__(self) -> Iterator[SealedWaitingPod]:
        return (SealedWaitingPod(each, self._plugin, self._kind) for each in self._pods)


class SealedApi(ReadOnly):
    __slots__ = ("_api",)
    _api: Any

    def __init__(self, api: object) -> None:
        assign(self, _api=api)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)


class SealedHandle(ReadOnly, Handle):
    def __init__(self, handle: Handle, plugin: str, kind: type[Plugin]) -> None:
        assign(
            self,
            _handle=handle,
            log=log.logger_of(plugin),
            cluster=SealedCluster(handle.cluster),
            now=handle.now,
            nominations=SealedNominations(handle.nominations),
            waiting_pods=SealedWaitingPods(handle.waiting_pods, plugin, kind),
            record_event=handle.record_event,
            counter=handle.counter,
        )

    _handle: Handle

    @property
    def api(self) -> Any:
        return SealedApi(self._handle.api)

    @property
    def scheduler_name(self) -> str:  # type: ignore[override]
        return self._handle.scheduler_name

    @property
    def scheduler_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self._handle.scheduler_names)

    @property
    def gates(self) -> FeatureGates:  # type: ignore[override]
        return self._handle.gates

    @property
    def disabled_gates(self) -> FeatureGates:  # type: ignore[override]
        return self._handle.disabled_gates

    @property
    def pending_pods(self) -> Iterable[Pod]:
        return self._handle.pending_pods

    def activate(self, pods: Iterable[Pod]) -> None:
        pods = list(pods)
        _check_depth()
        self._handle.activate(pods)

    @property
    def record_device_wait(self) -> Callable[[str, str, str, float], None]:  # type: ignore[override]
        return self._handle.record_device_wait

    def preempt(
        self,
        state: CycleState,
        pod: Pod,
        decision: Decision,
        percentage: int,
        absolute: int,
        may_evict: frozenset[str] | None = None,
    ) -> Status | Nomination:
        own = state._state if isinstance(state, SealedState) else state
        if may_evict is not None:
            may_evict = frozenset(may_evict)
        return self._handle.preempt(own, pod, decision, percentage, absolute, may_evict)

    def preempt_across(
        self, pod: Pod, pools: Iterable[Sequence[Pod]], max_trials: int
    ) -> Status | Nomination:
        _check_depth()
        return self._handle.preempt_across(pod, [tuple(pool) for pool in pools], min(max_trials, MAX_TRIALS))


def _check_depth() -> None:
    """Fails before a change rather than in the middle of it, where a plugin recurses nearly too deep."""
    try:
        sys._getframe(sys.getrecursionlimit() - DEPTH_LEFT)
    except ValueError:
        return  # there are not so many frames
    raise RecursionError("the plugin's calls are nested too deep for this")


def sealed_decision(decision: Decision) -> Decision:
    """A copy; what is decided does not depend on it."""
    found = copy(decision)
    found.names = FrozenList(decision.names)
    found.looked_at, found.feasible = sealed_array(decision.looked_at), sealed_array(decision.feasible)
    found.not_looked_at = _sealed_or_none(decision.not_looked_at)
    found.relative_totals = _sealed_or_none(decision.relative_totals)
    found.filters = FrozenList(map(_sealed_verdicts, decision.filters))
    found.overruled = FrozenDict(decision.overruled)
    found.scores = FrozenList(map(_sealed_scores, decision.scores))
    found.state = None if decision.state is None else sealed_state(decision.state)
    return found


def _sealed_verdicts(each: Verdicts | Statuses) -> Verdicts | Statuses:
    fails = sealed_array(each.fails)
    if isinstance(each, Statuses):
        return each._replace(fails=fails, by_row=FrozenDict(each.by_row))
    return each._replace(fails=fails, bits=sealed_array(each.bits), reasons=tuple(each.reasons))


def _sealed_scores(column: ScoreColumn) -> ScoreColumn:
    everywhere = _sealed_or_none(column.everywhere)
    return msgspec.structs.replace(column, scores=sealed_array(column.scores), everywhere=everywhere)


def _sealed_or_none(array: Any) -> Any:
    return None if array is None else sealed_array(array)


def _sealed_nodes(nodes: Any) -> Any:
    return sealed_row(nodes) if isinstance(nodes, NodeRow) else sealed_table(nodes)
