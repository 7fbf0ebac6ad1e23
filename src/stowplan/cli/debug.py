"""`stowplan debug`: what goes on inside, for those who look into why."""

from __future__ import annotations

from typing import Any

import click

from stowplan.api.pod import Pod
from stowplan.cli.json_lines import Case, answer_lines, config_in, object_in, objects_in
from stowplan.cluster import Cluster
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
    answer_lines("an event", lambda case: _answer(case, registry))


def _answer(case: Case, registry: Registry) -> dict[str, Any]:
    try:
        pod, old, new = (object_in(case, field) for field in ("pod", "old", "new"))
        if not isinstance(pod, Pod):
            raise InputError("only a pod can wait", field="pod")
        cluster = Cluster.of(objects_in(case, "objects"))
        if new is not None:
            cluster.apply(new)
        elif old is not None:
            cluster.remove(old)
        planner = Planner(cluster, config_in(case, registry), registry=registry)
        return {"hints": _hints(QueueingHints(planner.profile_of(pod)), pod, old, new)}
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
