"""A plugin alone in its profile, asked through the planner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import make
from stowplan.api.kinds import object_of
from stowplan.api.pod import Pod
from stowplan.cycle import Planner
from stowplan.framework import Decision

UNSCHEDULABLE, UNRESOLVABLE = "Unschedulable", "UnschedulableAndUnresolvable"


def planner(plugin: str, *objects: Any, args: make.Json | None = None, also: Iterable[str] = ()) -> Planner:
    """A planner with no plugins but `plugin`, those in `also` and the two no profile can do without."""
    names = dict.fromkeys(("PrioritySort", "DefaultBinder", plugin, *also))
    enabled = [{"name": name} for name in names]
    profile = {
        "plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}},
        "pluginConfig": [{"name": plugin, "args": args}] if args else [],
    }
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    return make.planner(objects, kind | {"profiles": [profile]})


def plugin_of(name: str, *objects: Any, args: make.Json | None = None) -> Any:
    """The plugin itself, for the points that the planner does not run."""
    return planner(name, *objects, args=args).profiles["default-scheduler"].plugins[name]


def ask(plugin: str, pod: Pod, *objects: Any, args: make.Json | None = None) -> Decision:
    return planner(plugin, *objects, args=args).decide(pod)


def refusals(decision: Decision) -> dict[str, tuple[str, ...]]:
    """By node: the code, then the reasons."""
    assert decision.error is None
    refused = decision.rejected()
    return {name: (status.code.wire_name, *status.reasons) for name, status in refused.items()}


def scores(decision: Decision) -> dict[str, int]:
    """By node what the plugin gave, after normalising; nothing, if it skipped."""
    assert decision.error is None
    names = [decision.names[row] for row in decision.feasible.tolist()]
    columns = [column.scores.tolist() for column in decision.scores]
    return dict(zip(names, columns[0], strict=True)) if columns else {}


def manifest(kind: str, name: str, **fields: Any) -> Any:
    """Any object that is neither a pod nor a node."""
    return object_of({"kind": kind, "metadata": {"name": name, "namespace": "default"}, **fields})


def tolerating(*tolerations: make.Json, name: str = "pod", **spec: Any) -> Pod:
    """A pod with these tolerations, spelt out."""
    spec = {"containers": [{"name": "main"}], "tolerations": list(tolerations), **spec}
    return Pod.decode({"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec})
