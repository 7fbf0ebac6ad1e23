"""Measures a plugin's cost: each pod is decided by the default plugins with it and without it, in turn."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import isgenerator
from statistics import median
from time import thread_time_ns
from typing import Any

import msgspec

from stowplan.api.pod import Pod
from stowplan.bench.workloads import build, pending, read_workloads
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.config.types import V1
from stowplan.cycle import Planner
from stowplan.errors import InputError
from stowplan.framework.decision import Decision
from stowplan.framework.observer import UNOBSERVED
from stowplan.framework.plugin import Plugin
from stowplan.framework.plugin_check import methods_of
from stowplan.framework.registry import Registry

WORKLOAD = "plain"
WARM_UP = 20
IN_CYCLE = (
    *("pre_filter", "filter", "filter_nodes", "post_filter", "pre_score", "score", "score_nodes"),
    *("normalize_score", "sign_pod"),
)
AFTER_IT = ("reserve", "permit", "unreserve")
"""What hosts call once a node is chosen; the last one only if something fails then."""


class MethodCost(msgspec.Struct, rename="camel"):
    """A method that is called in some decisions only, since its answers are kept, counts as it is called."""

    method: str
    calls: float
    """Calls per decision, on average."""
    p50: float
    """Microseconds per decision in which it is called (median)."""


class PluginCost(msgspec.Struct, rename="camel"):
    """Microseconds per decision (median)."""

    plugin: str
    nodes: int
    decisions: int
    without_it: float
    with_it: float
    methods: list[MethodCost]

    @property
    def added(self) -> float:
        """What the plugin adds to a decision, the framework's own work for it included."""
        return round(self.with_it - self.without_it, 1)


def cost_of(
    plugin: type[Plugin], *, args: Mapping[str, object] | None = None, nodes: int = 5000, decisions: int = 200
) -> PluginCost:
    """Measures on a cluster of that many nodes, all of them scored, on one thread."""
    workload = next(each for each in read_workloads() if each.name == WORKLOAD)
    pods = list(pending(workload, 2 * (decisions + WARM_UP)))
    return cost_among(build(workload, nodes), pods, plugin, args or {})


def cost_among(
    cluster: Cluster,
    pods: Sequence[Pod],
    plugin: type[Plugin],
    args: Mapping[str, object],
    prepare: Callable[[Planner], None] = lambda planner: None,
) -> PluginCost:
    """Measures the decisions of these pods in a cluster; `prepare` is called with each planner first."""
    without, whole = _planner(cluster, plugin, None), _planner(cluster, plugin, args)
    prepare(whole)
    with _no_garbage_collection():
        times = [_in_turn(without, whole, pod, number) for number, pod in enumerate(pods[::2])][WARM_UP:]
        methods = _methods(cluster, plugin, args, pods[1::2], prepare)
    return PluginCost(
        plugin.__name__,
        len(cluster.nodes),
        len(times),
        round(median(one for one, _ in times), 1),
        round(median(other for _, other in times), 1),
        methods,
    )


def _planner(cluster: Cluster, plugin: type[Plugin], args: Mapping[str, object] | None) -> Planner:
    """A planner with the plugin, which replaces the queue sort if it is one; without it if there are no
    args."""
    name = plugin.__name__
    entry = [{"name": name}]
    plugins: dict[str, object] = {"multiPoint": {"disabled": entry} if args is None else {"enabled": entry}}
    if args is not None and methods_of(plugin, ("queue_sort",)):
        plugins["queueSort"] = {"disabled": [{"name": "*"}], "enabled": entry}
    profile = {"plugins": plugins, "pluginConfig": [{"name": name, "args": dict(args)}] if args else []}
    registry = Registry.installed(classes={name: plugin})
    config = load({"apiVersion": V1, "kind": "KubeSchedulerConfiguration", "profiles": [profile]}, registry)
    return Planner(cluster, config.config, registry=registry, observer=UNOBSERVED)


def _in_turn(one: Planner, other: Planner, pod: Pod, number: int) -> tuple[float, float]:
    """Measure both. The first one has to process what the last pod changed, so they take turns."""
    if number % 2:
        spent, decision = _decide_all(one, pod)
        return spent, _place_pods(other, pod, decision)
    spent_by_other, decision = _decide_all(other, pod)
    return _place_pods(one, pod, decision), spent_by_other


def _decide_all(planner: Planner, pod: Pod) -> tuple[float, Decision]:
    began = thread_time_ns()  # a busy machine would add what others do meanwhile
    decision = planner.decide(pod)
    spent = thread_time_ns() - began
    if decision.chosen is None:
        why = decision.error or decision.message
        raise InputError(f"nothing to measure: the pod fits on no node: {why}")
    return spent / 1000, decision


def _place_pods(planner: Planner, pod: Pod, decision: Decision) -> float:
    spent, _ = _decide_all(planner, pod)
    planner.carry_out(decision)
    return spent


def _methods(
    cluster: Cluster,
    plugin: type[Plugin],
    args: Mapping[str, object],
    pods: Sequence[Pod],
    prepare: Callable[[Planner], None],
) -> list[MethodCost]:
    """What each method costs by itself, from decisions of their own: a clock in between costs time too."""
    spent: dict[str, list[int]] = defaultdict(list)
    planner = _planner(cluster, _with_clocks(plugin, spent), args)
    prepare(planner)
    (profile,) = planner.profiles.values()
    timed: object = profile.plugins[plugin.__name__]
    rows: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for pod in pods:
        spent.clear()
        for method in methods_of(plugin, ("pre_enqueue",)):
            getattr(timed, method)(pod)
        _, decision = _decide_all(planner, pod)
        for method in methods_of(plugin, AFTER_IT):
            getattr(timed, method)(decision.state, pod, decision.chosen)
        for method, times in spent.items():
            rows[method].append((len(times), sum(times) / 1000))
    return [
        MethodCost(
            method,
            round(sum(calls for calls, _ in row) / len(pods), 3),
            round(median(spent_there for _, spent_there in row), 2),
        )
        for method, row in rows.items()
    ]


def _with_clocks(plugin: type[Plugin], spent: dict[str, list[int]]) -> type[Plugin]:
    """A subclass of the plugin that measures each call of its methods."""
    own = min(-thread_time_ns() + thread_time_ns() for _ in range(1000))

    def timed(name: str, method: Callable[..., object]) -> Callable[..., Any]:
        def call(*given: object) -> Any:
            began = thread_time_ns()
            answer = method(*given)
            answer = list(answer) if isgenerator(answer) else answer
            spent[name].append(thread_time_ns() - began - own)
            return answer

        return call

    def build_timed(self: Any, args: Any, handle: Any) -> None:
        plugin.__init__(self, args, handle)
        for name in methods_of(plugin, (*IN_CYCLE, *AFTER_IT, "pre_enqueue")):
            setattr(self, name, timed(name, getattr(self, name)))

    return type(plugin.__name__, (plugin,), {"__init__": build_timed})


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
