"""A StickyJob's status, from its slots and pods: counts, last node, conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stowplan.api.meta import Condition
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.sticky.job_status import SUCCEEDED, Note, has_given_up
from stowplan.sticky.places import wire_time
from stowplan.sticky.resources import JobPod, Slot, StickyJob, StickyJobStatus
from stowplan.sticky.rules import is_available, same_node

SOUND = ("False", "AsWanted", "")


def status_of(
    job: StickyJob,
    slots: Mapping[int, Slot],
    pods: Mapping[int, JobPod],
    nodes: LiveNodeTable,
    fault: Note | None,
    now: float,
) -> StickyJobStatus:
    """`fault` is why no pods can be made."""
    ours = [slot for index, slot in sorted(slots.items()) if index < job.spec.replicas]
    conditions = {"Sticky": _sticky(ours), "Degraded": _degraded(job, ours, pods, nodes, fault)}
    return StickyJobStatus(
        last_node=slots[0].last_node if 0 in slots else "",
        slots=tuple(slot for _, slot in sorted(slots.items())),
        active=sum(not pod.is_finished for pod in pods.values()),
        succeeded=sum(slot.outcome == SUCCEEDED for slot in ours),
        failed=sum(slot.failures for slot in ours),
        conditions=tuple(_conditions(job, conditions, wire_time(now))),
        observed_generation=job.metadata.generation,
    )


def _sticky(slots: Iterable[Slot]) -> tuple[str, str, str]:
    """Whether all pods came back to where the ones before them were."""
    known = [slot for slot in slots if slot.returned is not None]
    if not known:
        return "Unknown", "FirstPlacement", ""
    moved = [slot for slot in known if not slot.returned]
    if not moved:
        return "True", "Returned", ""
    text = "; ".join(f"slot {slot.index} is on {slot.last_node or 'no node'} now" for slot in moved)
    return "False", "Moved", text


def _degraded(
    job: StickyJob,
    slots: Iterable[Slot],
    pods: Mapping[int, JobPod],
    nodes: LiveNodeTable,
    fault: Note | None,
) -> tuple[str, str, str]:
    if fault is not None:
        return "True", fault.reason, fault.text
    for slot in slots:
        if has_given_up(job, slot):
            text = f"slot {slot.index} has failed {slot.failures} times"
            return "True", "BackoffLimitExceeded", text
        pod = pods.get(slot.index)
        if pod is not None and not pod.node_name and (found := _why_pending(job, slot, pod, nodes)):
            return "True", *found
        if slot.returned is False and job.spec.stickiness.mode == "RequiredThenPreferred":
            grace = job.spec.stickiness.grace_seconds
            return (
                "True",
                "GraceExpired",
                f"slot {slot.index} has moved: its place was not free for {grace} s",
            )
    return SOUND


def _why_pending(job: StickyJob, slot: Slot, pod: JobPod, nodes: LiveNodeTable) -> tuple[str, str] | None:
    """What keeps a pod from its old node, as far as that can be seen."""
    if not slot.last_node:
        return None
    node = same_node(nodes, slot.last_node, slot.last_node_uid, job.spec.stickiness)
    if node is None:
        return "NodeGone", f"slot {slot.index} waits for node {slot.last_node}, which is gone"
    if not is_available(node):
        return "NodeUnschedulable", f"slot {slot.index} waits for node {node.name}, which takes no pods now"
    said = pod.scheduled.message if pod.scheduled is not None else ""
    return ("InsufficientResources", f"slot {slot.index}: {said}") if "Insufficient" in said else None


def _conditions(job: StickyJob, wanted: Mapping[str, tuple[str, str, str]], at: str) -> Iterable[Condition]:
    known = {condition.type: condition for condition in job.status.conditions}
    for kind, (status, reason, message) in wanted.items():
        old = known.pop(kind, Condition())
        since = old.last_transition_time if old.status == status else at
        yield Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=since)
    yield from known.values()  # those of others
