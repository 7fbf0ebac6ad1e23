"""`stowplan decide`: read scenarios and print decisions, one JSON object per line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from stowplan.api.amounts import reject_unserved_values
from stowplan.api.custom import CustomResource
from stowplan.api.groups import GroupKey
from stowplan.api.kinds import object_of
from stowplan.api.meta import Object, decode
from stowplan.api.pod import Pod
from stowplan.cli.cluster_source import kinds_of
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.config.gates import RELEASE_MINOR, Features, choose_features
from stowplan.config.types import with_gates
from stowplan.cycle import Planner
from stowplan.cycle.group import Result
from stowplan.cycle.planner import run_pre_enqueue
from stowplan.errors import InputError, StowplanError
from stowplan.framework.registry import Registry

Case = dict[str, Any]
NO_KINDS: Mapping[tuple[Any, Any], type[CustomResource]] = {}


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
    keep their capacity there. With `featureGates`, such as {"GenericWorkload": true, "GangScheduling": true},
    pods of a PodGroup among the objects are decided as one. A scenario that cannot be decided is answered
    with an `error`. The exit status is 1 if a line was not a JSON object.

    With --reserve, decisions also have `allocations` (the devices that claims would get, by node) and
    `bindings` (the volumes that claims would be bound to, and the claims to provision, by node).
    """
    registry = Registry.installed()
    answer_lines("a scenario", lambda scenario: _answer(scenario, registry, reserve))


def _answer(scenario: Case, registry: Registry, reserve: bool) -> dict[str, object]:
    decisions: list[dict[str, object]] = []
    try:
        config, features = config_in(scenario, registry), features_in(scenario)
        if any(features):
            config = with_gates(config or KubeSchedulerConfiguration(), *features)
        objects = objects_in(scenario, "objects", kinds_of(config, registry))
        planner = Planner(Cluster.of(objects), config, registry=registry)
        planner.keep_nominations(item for item in objects if isinstance(item, Pod))
        pending = pending_in(scenario)
        planner.expect(pending)
        decided: dict[str, dict[str, object]] = {}
        for pod in pending:
            if (key := planner.group_of(pod)) is not None:
                if pod.uid not in decided:
                    members = [each for each in pending if planner.group_of(each) == key]
                    decided |= _group_answers(planner, key, members)
                decisions.append(decided[pod.uid])
                continue
            decision = planner.decide(pod)
            reserved = planner.reservations(decision) if reserve else {}
            decisions.append(decision.as_golden() | reserved)
            planner.carry_out(decision)
    except StowplanError as error:
        return {"decisions": decisions, "error": str(error)}
    return {"decisions": decisions}


def _group_answers(planner: Planner, key: GroupKey, pods: list[Pod]) -> dict[str, dict[str, object]]:
    """The answers for all pending members of a group, by uid."""
    held = {pod.uid: run_pre_enqueue(planner.profile_of(pod), pod) for pod in pods}
    answers: dict[str, dict[str, object]] = {
        pod.uid: {"pod": pod.key, "group": key.name, "message": status.message}
        for pod in pods
        if (status := held[pod.uid]) is not None
    }
    free = [pod for pod in pods if held[pod.uid] is None]
    if not free:
        return answers
    found = planner.decide_group(key, free)
    planner.carry_out_group(found)
    for pod in free:
        answers[pod.uid] = {"pod": pod.key, "group": key.name, "error": found.message}
    for member in found.members:
        plain = member.decision.as_golden() | {"group": key.name}
        if found.result is not Result.SCHEDULED:
            plain["groupMessage"] = found.message
            if plain.pop("chosen", None):
                plain["fits"] = member.node_name
        if found.placement:
            plain["placement"] = found.placement
        if found.victims:
            plain["groupVictims"] = sorted(victim.key for victim in found.victims)
        answers[member.pod.uid] = plain
    return answers


def pending_in(case: Case) -> list[Pod]:
    pods = []
    for item in objects_in(case, "pending"):
        if not isinstance(item, Pod):
            raise InputError("expected only pods", field="pending")
        pods.append(item)
    return pods


def features_in(case: Case) -> Features:
    """The feature gates of a case: `featureGates` maps their names to true or false."""
    given = case.get("featureGates") or {}
    if not isinstance(given, dict) or not all(isinstance(value, bool) for value in given.values()):
        raise InputError("expected an object of gates, each true or false", field="featureGates")
    return choose_features(given, RELEASE_MINOR)


def answer_lines(what: str, answer: Callable[[Case], dict[str, object]]) -> None:
    """Answer every line. Exit with status 1 in the end if one was not a JSON object."""
    is_readable = True
    for line in filter(str.strip, sys.stdin):
        try:
            case = json.loads(line)
            if not isinstance(case, dict):
                raise ValueError("it is not a JSON object")
        except ValueError as error:
            is_readable = False
            found: dict[str, object] = {"name": None, "error": f"not {what}: {error}"}
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


def objects_in(case: Case, field: str, kinds: Iterable[type[CustomResource]] = ()) -> list[Pod | Object]:
    """The objects of the list that affect scheduling, with those of the kinds that plugins watch."""
    listed = case.get(field) or ()
    known = {(kind.definition.api_version, kind.definition.kind): kind for kind in kinds}
    found = (_object(data, f"{field}[{index}]", known) for index, data in enumerate(listed))
    return [item for item in found if item is not None]


def object_in(case: Case, field: str) -> Pod | Object | None:
    return None if case.get(field) is None else _object(case[field], field)


def _object(
    data: object, field: str, kinds: Mapping[tuple[Any, Any], type[CustomResource]] = NO_KINDS
) -> Pod | Object | None:
    try:
        if isinstance(data, dict):
            reject_unserved_values(data)
            kind = kinds.get((str(data.get("apiVersion")), str(data.get("kind"))))
            if kind is not None:
                return decode(kind, data)
        return object_of(data)
    except InputError as error:
        raise InputError(str(error), field=field) from None
