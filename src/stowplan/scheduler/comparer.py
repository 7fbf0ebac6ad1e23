"""Compares the cache with what the watches reported: they must agree."""

from __future__ import annotations

from typing import NamedTuple

from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.scheduler.scheduler import Scheduler


class Mismatch(NamedTuple):
    """Names that only one side knows: missed are those we lack, redundant those only we have."""

    missed_nodes: list[str]
    redundant_nodes: list[str]
    missed_pods: list[str]
    redundant_pods: list[str]

    def __bool__(self) -> bool:
        return any(self)


def compare(scheduler: Scheduler) -> Mismatch:
    """Pods that we have placed but not yet seen on their node count as known, and so do those that wait."""
    nodes, pods = _known_objects(scheduler)
    cluster = scheduler.cluster
    known = {pod.uid for pod in cluster.pods()} | set(scheduler.handlers.pending)
    ours = {pod.uid for pod in pods if pod.node_name or pod.scheduler_name in scheduler.profiles}
    here = set(cluster.nodes.names)
    return Mismatch(sorted(nodes - here), sorted(here - nodes), sorted(ours - known), sorted(known - ours))


def _known_objects(scheduler: Scheduler) -> tuple[set[str], list[Pod]]:
    nodes: set[str] = set()
    pods: list[Pod] = []
    for reflector in scheduler.reflectors:
        for item in reflector.objects.values():
            if isinstance(item, NodeObject):
                nodes.add(item.name)
            elif isinstance(item, Pod):
                pods.append(item)
    return nodes, pods


def dump(scheduler: Scheduler) -> str:
    """The cache and the queue, for people."""
    nodes, lines = scheduler.cluster.nodes, []
    for node in nodes:
        pods = ", ".join(pod.key for pod in node.pods)
        lines.append(
            f"{node.name}: requested {node.requested}, allocatable {node.allocatable}, pods [{pods}]"
        )
    attempts = (
        f"attempts: assumed:{scheduler.cluster.assumed_count}; in flight:{len(scheduler.queue.in_flight)}; "
        f"waiting on permit:{len(list(scheduler.waiting))}; work under way:{scheduler.tasks_under_way}"
    )
    waiting = [f"{queued.pod.key} in {queued.place}" for queued in scheduler.queue]
    counts = "; ".join(f"{name}:{count}" for name, count in scheduler.queue.counts().items())
    return "\n".join(["nodes:", *lines, attempts, f"queue: {counts}", *waiting])
