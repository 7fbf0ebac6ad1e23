"""`stowplan debug`: inspect the scheduling engine."""

from __future__ import annotations

import click

from stowplan.api.pod import Pod
from stowplan.cli.decide import Case, answer_lines, config_in, object_in, objects_in
from stowplan.cluster import Cluster
from stowplan.cycle import Planner
from stowplan.errors import InputError, StowplanError
from stowplan.framework.events import Hint
from stowplan.framework.hints import QueueingHints, object_changes
from stowplan.framework.registry import Registry


@click.group()
def debug() -> None:
    """Inspect the scheduling engine."""


@debug.command()
def hints() -> None:
    """Show which plugins would requeue a waiting pod after a change.

    Reads one JSON object per line from standard input and prints one per line. Each has `name`, `objects`
    (the cluster), `pod` (the waiting pod), `old` and `new` (an object before and after the change; without
    `old` it was added, without `new` deleted) and optionally `config` (a KubeSchedulerConfiguration). An
    invalid line is answered with an `error`. The exit status is 1 if a line was not a JSON object.
    """
    registry = Registry.installed()
    answer_lines("an event", lambda case: _answer(case, registry))


def _answer(case: Case, registry: Registry) -> dict[str, object]:
    try:
        pod, old, new = (object_in(case, field) for field in ("pod", "old", "new"))
        if not isinstance(pod, Pod):
            raise InputError("expected a pod", field="pod")
        cluster = Cluster.of(objects_in(case, "objects"))
        if new is not None:
            cluster.apply(new)
        elif old is not None:
            cluster.remove(old)
        planner = Planner(cluster, config_in(case, registry), registry=registry)
        return {"hints": _hints(QueueingHints(planner.profile_of(pod)), pod, old, new)}
    except StowplanError as error:
        return {"error": str(error)}


def _hints(queueing_hints: QueueingHints, pod: Pod, old: object, new: object) -> dict[str, str]:
    """The hint of each plugin: Queue if it says so for any of the events that make up the change."""
    found: dict[str, str] = {}
    for change in object_changes(old, new):
        for plugin, hint in queueing_hints.answers(pod, change).items():
            if found.get(plugin) != Hint.QUEUE:
                found[plugin] = hint.value
    return dict(sorted(found.items()))
