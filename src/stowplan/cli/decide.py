"""`stowplan decide`: scenarios in, decisions out, one JSON object a line."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from stowplan.api.kinds import object_of
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.errors import InputError, StowplanError
from stowplan.framework.registry import Registry


@click.command()
def decide() -> None:
    """Decide scenarios from standard input, one JSON object a line, and print one answer a line.

    A scenario has `name`, `objects` (the cluster), `pending` (the pods to place one after another) and
    perhaps `config` (a KubeSchedulerConfiguration). Every line is answered; one that cannot be decided is
    answered with an `error`. The exit status is 1 if a line was not a JSON object.
    """
    registry = Registry.installed()
    unreadable = False
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            scenario = json.loads(line)
            if not isinstance(scenario, dict):
                raise ValueError("a scenario is a JSON object")
        except ValueError as error:
            unreadable = True
            answer: dict[str, Any] = {"name": None, "error": f"not a scenario: {error}"}
        else:
            answer = answer_to(scenario, registry)
        click.echo(json.dumps(answer))
    sys.exit(1 if unreadable else 0)


def answer_to(scenario: dict[str, Any], registry: Registry) -> dict[str, Any]:
    decisions: list[dict[str, Any]] = []
    answer = {"name": scenario.get("name"), "decisions": decisions}
    try:
        cluster = Cluster.of(_objects(scenario, "objects"))
        config = None
        if scenario.get("config"):
            config, warnings, _ = load(scenario["config"], registry)
            for warning in warnings:
                click.echo(f"{scenario.get('name')}: {warning}", err=True)
        planner = Planner(cluster, config, registry=registry)
        for pod in _objects(scenario, "pending"):
            if not isinstance(pod, Pod):
                raise InputError("only pods can be pending", field="pending")
            decision = planner.decide(pod)
            decisions.append(decision.as_golden())
            planner.carry_out(decision)
    except StowplanError as error:
        answer["error"] = str(error)
    return answer


def _objects(scenario: dict[str, Any], field: str) -> list[Any]:
    found = []
    for index, data in enumerate(scenario.get(field) or ()):
        try:
            item = object_of(data)
        except InputError as error:
            raise InputError(str(error), field=f"{field}[{index}]") from None
        if item is not None:
            found.append(item)
    return found
