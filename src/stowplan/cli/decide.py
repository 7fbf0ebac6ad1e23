"""`stowplan decide`: read scenarios and print decisions, one JSON object per line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from stowplan.api.amounts import reject_unserved_values
from stowplan.api.kinds import object_of
from stowplan.api.meta import Object
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.cycle import Planner
from stowplan.errors import InputError, StowplanError
from stowplan.framework.registry import Registry

Case = dict[str, Any]
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


def answer_lines(what: str, answer: Callable[[Case], dict[str, Any]]) -> None:
    """Answer every line. Exit with status 1 in the end if one was not a JSON object."""
    is_readable = True
    for line in filter(str.strip, sys.stdin):
        try:
            case = json.loads(line)
            if not isinstance(case, dict):
                raise ValueError("it is not a JSON object")
        except ValueError as error:
            is_readable = False
            found: dict[str, Any] = {"name": None, "error": f"not {what}: {error}"}
        else:
            found = {"name": case.get("name"), **answer(case)}
        click.echo(json.dumps(found))
    sys.exit(0 if is_readable else 1)


def config_in(case: Case, registry: Registry) -> KubeSchedulerConfiguration | None:
    """The configuration of a case; its warnings are printed to standard error."""
    if not case.get("config"):
        return None
    config, warnings, _ = load(case["config"], registry)
    for warning in warnings:
        click.echo(f"{case.get('name')}: {warning}", err=True)
    return config


def objects_in(case: Case, field: str) -> list[Pod | Object]:
    """The objects of the list that affect scheduling."""
    listed = case.get(field) or ()
    found = (_object(data, f"{field}[{index}]") for index, data in enumerate(listed))
    return [item for item in found if item is not None]


def object_in(case: Case, field: str) -> Pod | Object | None:
    return None if case.get(field) is None else _object(case[field], field)


def _object(data: Any, field: str) -> Pod | Object | None:
    try:
        if isinstance(data, dict):
            reject_unserved_values(data)
        return object_of(data)
    except InputError as error:
        raise InputError(str(error), field=field) from None
