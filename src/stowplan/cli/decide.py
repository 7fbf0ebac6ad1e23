"""`stowplan decide`: scenarios in, decisions out, one JSON object a line."""

from __future__ import annotations

from typing import Any

import click

from stowplan.api.pod import Pod
from stowplan.cli.json_lines import Case, answer_lines, config_in, objects_in
from stowplan.cluster import Cluster
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
    answer_lines("a scenario", lambda scenario: _answer(scenario, registry))


def _answer(scenario: Case, registry: Registry) -> dict[str, Any]:
    decisions: list[dict[str, Any]] = []
    try:
        cluster = Cluster.of(objects_in(scenario, "objects"))
        planner = Planner(cluster, config_in(scenario, registry), registry=registry)
        for pod in objects_in(scenario, "pending"):
            if not isinstance(pod, Pod):
                raise InputError("only pods can be pending", field="pending")
            decision = planner.decide(pod)
            decisions.append(decision.as_golden())
            planner.carry_out(decision)
    except StowplanError as error:
        return {"decisions": decisions, "error": str(error)}
    return {"decisions": decisions}
