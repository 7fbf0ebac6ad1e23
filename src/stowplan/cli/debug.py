"""`stowplan debug`: what goes on inside, for those who look into why."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from stowplan.api.kinds import object_of
from stowplan.api.meta import Object
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.errors import InputError, StowplanError
from stowplan.framework.events import Hint
from stowplan.framework.hints import QueueingHints, happenings
from stowplan.framework.registry import Registry


@click.group()
def debug() -> None:
    """Ask the engine about its inner workings."""


@debug.command()
def hints() -> None:
    """Say which plugins would want a waiting pod tried again after a change.

    One JSON object a line, in and out. A line has `name`, `objects` (the cluster), `pod` (the one that
    waits), `old` and `new` (an object before and after; no `old`: it was added, no `new`: deleted) and
    perhaps `config` (a KubeSchedulerConfiguration). Every line is answered; one that makes no sense
    with an `error`. The exit status is 1 if a line was not a JSON object.
    """
    registry = Registry.installed()
    unreadable = False
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            case = json.loads(line)
            if not isinstance(case, dict):
                raise ValueError("an event is a JSON object")
        except ValueError as error:
            unreadable = True
            answer: dict[str, Any] = {"name": None, "error": f"not an event: {error}"}
        else:
            answer = {"name": case.get("name"), **_answer(case, registry)}
        click.echo(json.dumps(answer))
    sys.exit(1 if unreadable else 0)


def _answer(case: dict[str, Any], registry: Registry) -> dict[str, Any]:
    try:
        pod, old, new = (_object(case, field) for field in ("pod", "old", "new"))
        if not isinstance(pod, Pod):
            raise InputError("only a pod can wait", field="pod")
        cluster = Cluster.of(_cluster(case.get("objects") or ()))
        if new is not None:
            cluster.apply(new)
        elif old is not None:
            cluster.remove(old)
        config = load(case["config"], registry).config if case.get("config") else None
        profile = Planner(cluster, config, registry=registry).profile_of(pod)
        return {"hints": _hints(QueueingHints(profile), pod, old, new)}
    except StowplanError as error:
        return {"error": str(error)}


def _hints(asked: QueueingHints, pod: Pod, old: Any, new: Any) -> dict[str, str]:
    """Each plugin's hint; where several events make up a change, one that says Queue is enough."""
    found: dict[str, str] = {}
    for happening in happenings(old, new):
        for plugin, hint in asked.answers(pod, happening).items():
            if found.get(plugin) != Hint.QUEUE:
                found[plugin] = hint.value
    return dict(sorted(found.items()))


def _object(case: dict[str, Any], field: str) -> Pod | Object | None:
    try:
        return object_of(case[field]) if case.get(field) is not None else None
    except InputError as error:
        raise InputError(str(error), field=field) from None


def _cluster(listed: Any) -> list[Pod | Object]:
    found = []
    for index, data in enumerate(listed):
        try:
            item = object_of(data)
        except InputError as error:
            raise InputError(str(error), field=f"objects[{index}]") from None
        if item is not None:
            found.append(item)
    return found
