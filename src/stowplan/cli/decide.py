"""`stowplan decide`: read scenarios and print decisions, one JSON object per line."""

from __future__ import annotations

from typing import Any

import click

from stowplan.api.pod import Pod
from stowplan.cli.json_lines import Case, answer_lines, config_in, objects_in
from stowplan.cluster import Cluster
from stowplan.cycle import Planner
from stowplan.errors import InputError, StowplanError
from stowplan.framework.registry import Registry

RESERVED = {"DynamicResources": "allocations", "VolumeBinding": "bindings"}
"""The name under which the reservations of a plugin are printed."""


@click.command()
@click.option(
    "--reserve",
    is_flag=True,
    help="Also print the devices and volumes that would be reserved on each feasible node.",
)
def decide(reserve: bool) -> None:
    """Decide scenarios from standard input, one JSON object per line, and print one answer per line.

    A scenario has `name`, `objects` (the cluster), `pending` (the pods to place one after another) and
    optionally `config` (a KubeSchedulerConfiguration). Pods among the objects that are nominated to a node
    keep their room there. A scenario that cannot be decided is answered with an `error`. The exit status is
    1 if a line was not a JSON object.

    With --reserve, decisions also have `allocations` (the devices that claims would get, by node) and
    `bindings` (the volumes that claims would be bound to, and the claims to provision, by node).
    """
    registry = Registry.installed()
    answer_lines("a scenario", lambda scenario: _answer(scenario, registry, reserve))


def _answer(scenario: Case, registry: Registry, reserve: bool) -> dict[str, Any]:
    decisions: list[dict[str, Any]] = []
    try:
        objects = objects_in(scenario, "objects")
        planner = Planner(Cluster.of(objects), config_in(scenario, registry), registry=registry)
        planner.keep_nominations(item for item in objects if isinstance(item, Pod))
        for pod in objects_in(scenario, "pending"):
            if not isinstance(pod, Pod):
                raise InputError("expected only pods", field="pending")
            decision = planner.decide(pod)
            reserved = planner.reservations(decision) if reserve else {}
            named = {RESERVED[plugin]: by_node for plugin, by_node in reserved.items() if by_node}
            decisions.append(decision.as_golden() | named)
            planner.carry_out(decision)
    except StowplanError as error:
        return {"decisions": decisions, "error": str(error)}
    return {"decisions": decisions}
