"""A StickyJob's slots and status, computed from what the API server shows.

A bound pod's node wins over the stored status, so a status update that was lost is made up for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from stowplan.api.meta import Condition, decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import PodSpec
from stowplan.api.requests import amounts, of_spec
from stowplan.cluster import ClusterView
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.errors import InputError
from stowplan.framework import Handle
from stowplan.plugins.devices.claims import device_class_for
from stowplan.sticky.memory import record_binding, record_end, seconds_of, wire_time
from stowplan.sticky.resources import NODE, JobPod, Slot, Stay, StickyJob, StickyJobStatus
from stowplan.sticky.rules import domain_of, is_available, same_node

FIRST_BACKOFF, MAX_BACKOFF = 10.0, 300.0
SUCCEEDED, FAILED, DELETED = "Succeeded", "Failed", "Deleted"
SOUND = ("False", "AsWanted", "")


class Note(NamedTuple):
    """An event to record for a job."""

    type: Literal["Normal", "Warning"]
    reason: str
    text: str


class SlotUpdate(NamedTuple):
    slot: Slot
    notes: tuple[Note, ...] = ()


def slots_of(job: StickyJob) -> dict[int, Slot]:
    """The slots in the status; a status with only a last node, as in the tutorial, means slot 0."""
    found = {slot.index: slot for slot in job.status.slots}
    if job.status.last_node and 0 not in found:
        found[0] = Slot(index=0, last_node=job.status.last_node)
    return found


def update_slot(
    job: StickyJob, slot: Slot, pod: JobPod | None, cluster: ClusterView, now: float
) -> SlotUpdate:
    """The slot after all that its pod shows was recorded."""
    notes: list[Note] = []
    nodes, at = cluster.nodes, wire_time(now)
    if slot.pod_uid and all(stay.pod_uid != slot.pod_uid for stay in slot.history):
        slot, note = _with_stay(job, slot, _stay_from_status(slot), slot.pod_name, slot.domain, nodes)
        notes.append(note)
    if _has_gone(slot, pod, cluster):
        slot = _record_end(slot, slot.pod_uid, DELETED, at)
    if pod is not None and pod.node_name and slot.pod_uid != pod.uid:
        row = nodes.row_of(pod.node_name)
        node = None if row is None else nodes.objects[row]
        stay, domain = _stay_from_pod(pod, node, at), domain_of(job.spec.stickiness, node)
        slot, note = _with_stay(job, slot, stay, pod.name, domain, nodes)
        notes.append(note)
    if pod is not None and pod.is_finished and slot.ended_pod_uid != pod.uid:
        # A pod that is being deleted may exit with success; its work is not done.
        outcome = pod.status.phase if pod.metadata.deletion_timestamp is None else DELETED
        slot = _record_end(slot, pod.uid, outcome, at)
        how: Literal["Normal", "Warning"] = "Warning" if outcome == FAILED else "Normal"
        notes.append(Note(how, f"Pod{outcome}", f"pod {pod.name}"))
    if _has_lost_its_node(job, slot, pod, nodes):
        text = f"node {slot.last_node} of slot {slot.index} no longer exists"
        notes.append(Note("Warning", "NodeForgotten", text))
        slot = msgspec.structs.replace(slot, last_node="", last_node_uid="", domain="")
    return SlotUpdate(slot, tuple(notes))


def is_done(job: StickyJob, slot: Slot) -> bool:
    return job.spec.run_policy == "Once" and slot.outcome == SUCCEEDED


def has_given_up(job: StickyJob, slot: Slot) -> bool:
    return slot.outcome == FAILED and slot.failures > job.spec.backoff_limit


def next_pod_at(job: StickyJob, slot: Slot) -> float | None:
    """When to create the slot's next pod after the last one finished or was deleted; None for never."""
    if is_done(job, slot) or has_given_up(job, slot):
        return None
    if slot.outcome in ("", DELETED):
        return 0.0
    again = min(max(slot.failures - 1, 0), 10)
    wait = min(FIRST_BACKOFF * 2.0**again, MAX_BACKOFF)
    return (seconds_of(slot.ended_at) or 0.0) + wait


def _has_gone(slot: Slot, pod: JobPod | None, cluster: ClusterView) -> bool:
    """Whether the last bound pod was deleted. Both pod watches must agree, because one may lag."""
    if slot.pod_uid in ("", slot.ended_pod_uid) or (pod is not None and pod.uid == slot.pod_uid):
        return False
    return cluster.pod(slot.pod_uid) is None


def _stay_from_status(slot: Slot) -> Stay:
    """The stay that the scheduler wrote: it stores the place and leaves the history to the controller."""
    return Stay(
        node=slot.last_node,
        node_uid=slot.last_node_uid,
        pod_uid=slot.pod_uid,
        bound_at=slot.last_bind_time,
    )


def _stay_from_pod(pod: JobPod, node: NodeObject | None, at: str) -> Stay:
    """The stay of a pod whose binding was not stored."""
    scheduled = pod.scheduled
    since = scheduled.last_transition_time if scheduled is not None and scheduled.status == "True" else None
    return Stay(
        node=pod.node_name,
        node_uid="" if node is None else node.metadata.uid,
        pod_uid=pod.uid,
        bound_at=since or at,
    )


def _with_stay(
    job: StickyJob, slot: Slot, stay: Stay, pod_name: str, domain: str, nodes: LiveNodeTable
) -> tuple[Slot, Note]:
    policy, before = job.spec.stickiness, slot.history[0] if slot.history else None
    if before is None and slot.last_node and slot.pod_uid != stay.pod_uid:
        before = Stay(node=slot.last_node, node_uid=slot.last_node_uid)  # a status without history
    fresh = record_binding(slot, stay, domain=domain, pod_name=pod_name, limit=policy.history_limit)
    if before is None:
        return fresh, Note("Normal", "FirstPlacement", f"pod {pod_name} is on node {stay.node}")
    is_same = before.node == stay.node and (policy.trust_node_name or before.node_uid in ("", stay.node_uid))
    row = nodes.row_of(before.node)
    is_near = domain != "" and row is not None and domain_of(policy, nodes.objects[row]) == domain
    text = f"pod {pod_name} is on node {stay.node}, and was on node {before.node}"
    if is_same:
        note = Note("Normal", "Returned", f"pod {pod_name} is back on node {stay.node}")
    else:
        note = Note("Normal", "Returned", text) if is_near else Note("Warning", "Moved", text)
    return msgspec.structs.replace(fresh, returned=is_same or is_near), note


def _record_end(slot: Slot, uid: str, outcome: str, at: str) -> Slot:
    failures = slot.failures + 1 if outcome == FAILED else 0 if outcome == SUCCEEDED else slot.failures
    fresh = record_end(slot, uid, outcome, at)
    return msgspec.structs.replace(fresh, ended_pod_uid=uid, ended_at=at, outcome=outcome, failures=failures)


def _has_lost_its_node(job: StickyJob, slot: Slot, pod: JobPod | None, nodes: LiveNodeTable) -> bool:
    """Whether the slot's node was deleted and is to be forgotten; a pod still bound to it must go first."""
    policy = job.spec.stickiness
    if not slot.last_node or policy.on_node_deleted == "Wait" or (pod is not None and pod.node_name):
        return False
    is_gone = same_node(nodes, slot.last_node, slot.last_node_uid, policy) is None
    return is_gone and not (policy.scope != NODE and slot.domain)


def compute_status(
    job: StickyJob,
    slots: Mapping[int, Slot],
    pods: Mapping[int, JobPod],
    handle: Handle,
    fault: Note | None,
) -> StickyJobStatus:
    """`fault` is the reason why pods cannot be created."""
    ours = [slot for index, slot in sorted(slots.items()) if index < job.spec.replicas]
    conditions = {"Sticky": _sticky(ours), "Degraded": _degraded_condition(job, ours, pods, handle, fault)}
    return StickyJobStatus(
        last_node=slots[0].last_node if 0 in slots else "",
        slots=tuple(slot for _, slot in sorted(slots.items())),
        active=sum(not pod.is_finished for pod in pods.values()),
        succeeded=sum(slot.outcome == SUCCEEDED for slot in ours),
        failed=sum(slot.failures for slot in ours),
        conditions=tuple(_conditions(job, conditions, wire_time(handle.now()))),
        observed_generation=job.metadata.generation,
    )


def _sticky(slots: Iterable[Slot]) -> tuple[str, str, str]:
    """Whether all pods returned to the place of their predecessors."""
    known = [slot for slot in slots if slot.returned is not None]
    if not known:
        return "Unknown", "FirstPlacement", ""
    moved = [slot for slot in known if not slot.returned]
    if not moved:
        return "True", "Returned", ""
    text = "; ".join(f"slot {slot.index} is now on {slot.last_node or 'no node'}" for slot in moved)
    return "False", "Moved", text


def _degraded_condition(
    job: StickyJob,
    slots: Iterable[Slot],
    pods: Mapping[int, JobPod],
    handle: Handle,
    fault: Note | None,
) -> tuple[str, str, str]:
    if fault is not None:
        return "True", fault.reason, fault.text
    for slot in slots:
        if has_given_up(job, slot):
            text = f"slot {slot.index} failed {slot.failures} times"
            return "True", "BackoffLimitExceeded", text
        pod = pods.get(slot.index)
        if pod is not None and not pod.node_name and (found := _why_pending(job, slot, pod, handle)):
            return "True", *found
        if slot.returned is False and job.spec.stickiness.mode == "RequiredThenPreferred":
            grace = job.spec.stickiness.grace_seconds
            return (
                "True",
                "GraceExpired",
                f"slot {slot.index} moved: its place was not available within {grace} s",
            )
    return SOUND


def _why_pending(job: StickyJob, slot: Slot, pod: JobPod, handle: Handle) -> tuple[str, str] | None:
    """Why a pod cannot return to its old node, if that is known."""
    if not slot.last_node:
        return None
    nodes = handle.cluster.nodes
    node = same_node(nodes, slot.last_node, slot.last_node_uid, job.spec.stickiness)
    if node is None:
        return "NodeGone", f"slot {slot.index} waits for node {slot.last_node}, which no longer exists"
    if not is_available(node):
        return "NodeUnschedulable", f"slot {slot.index} waits for node {node.name}, which is unavailable"
    said = pod.scheduled
    if said is None or said.status != "False" or not _lacks_resources(pod, node.name, handle):
        return None
    return "InsufficientResources", f"slot {slot.index}: {said.message}"


def _lacks_resources(pod: JobPod, node_name: str, handle: Handle) -> bool:
    nodes = handle.cluster.nodes
    row = nodes.row_of(node_name)
    try:
        wanted = amounts(of_spec(decode(PodSpec, pod.spec)))
    except InputError:  # then it is not scheduled for that reason
        return False
    return bool(nodes.pod_count[row] >= nodes.allocatable["pods"][row]) or any(
        amount > nodes.allocatable[resource][row] - nodes.requested[resource][row]
        and (nodes.allocatable[resource][row] > 0 or device_class_for(handle, resource) is None)
        for resource, amount in wanted.items()
    )


def _conditions(job: StickyJob, wanted: Mapping[str, tuple[str, str, str]], at: str) -> Iterable[Condition]:
    known = {condition.type: condition for condition in job.status.conditions}
    for kind, (status, reason, message) in wanted.items():
        old = known.pop(kind, Condition())
        since = old.last_transition_time if old.status == status else at
        yield Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=since)
    yield from known.values()  # written by others
