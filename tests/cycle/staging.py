"""Planners with plugins that a test makes up, and small clusters for them to work on."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

from make import make_node
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.framework import Decision, Plugin, Status
from stowplan.framework.registry import ENTRY_POINTS, Registry

V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
INSTALLED = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def plan(
    objects: Iterable[Any], *plugins: type[Plugin] | str, default: bool = False, **config: Any
) -> Planner:
    """A planner with these plugins, classes or names, in order, after the default ones or instead of them."""
    return planner_of(objects, [profile(*plugins, default=default)], *plugins, **config)


def planner_of(
    objects: Iterable[Any], profiles: list[dict[str, Any]], *plugins: type[Plugin] | str, **config: Any
) -> Planner:
    classes = {plugin.__name__: plugin for plugin in plugins if isinstance(plugin, type)}
    registry = Registry(classes, INSTALLED)
    loaded = load({**V1, "profiles": profiles, **config}, registry)
    return Planner(Cluster.of(objects), loaded.config, registry=registry)


def profile(
    *plugins: type[Plugin] | str, default: bool = False, weights: dict[str, int] | None = None, **fields: Any
) -> dict[str, Any]:
    names = [plugin if isinstance(plugin, str) else plugin.__name__ for plugin in plugins]
    if not default:
        names = ["PrioritySort", "DefaultBinder", *names]
    enabled = [{"name": name, "weight": (weights or {}).get(name, 0)} for name in names]
    disabled = [] if default else [{"name": "*"}]
    return {"plugins": {"multiPoint": {"enabled": enabled, "disabled": disabled}}, **fields}


def nodes(*names: str) -> list[Any]:
    return [make_node(name) for name in names]


def refusals(decision: Decision) -> dict[str, Status]:
    """By node, without the name of the plugin."""
    return {name: Status(status.code, status.reasons) for name, status in decision.rejected().items()}


def feasible(decision: Decision) -> list[str]:
    return [decision.names[row] for row in decision.feasible.tolist()]


def scores(decision: Decision) -> dict[str, dict[str, int]]:
    """By plugin and node, before weights."""
    names = feasible(decision)
    return {
        column.plugin: dict(zip(names, column.scores.tolist(), strict=True)) for column in decision.scores
    }


def totals(decision: Decision) -> dict[str, int]:
    return dict(zip(feasible(decision), decision.totals.tolist(), strict=True))
