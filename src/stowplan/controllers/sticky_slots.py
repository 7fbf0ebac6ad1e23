"""A StickyJob's slots as its pods show them, and what to do about each: functions of what the API has.

A bound pod says where it is, whatever the status says: a status that was never written is made up for.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.plugins.community.sticky_places import bound, ended, seconds_of, wire_time
from stowplan.plugins.community.sticky_resources import NODE, JobPod, Slot, Stay, StickyJob
from stowplan.plugins.community.sticky_rules import domain_of, same_node

FIRST_BACKOFF, LONGEST_BACKOFF = 10.0, 300.0
SUCCEEDED, FAILED, DELETED = "Succeeded", "Failed", "Deleted"


class Note(NamedTuple):
    """What there is to say of a job in an event."""

    type: Literal["Normal", "Warning"]
    reason: str
    text: str


class SlotNews(NamedTuple):
    slot: Slot
    notes: tuple[Note, ...] = ()


def slots_of(job: StickyJob) -> dict[int, Slot]:
    """As the status has them; one with nothing but a last node, as the tutorial has it, has slot 0."""
    found = {slot.index: slot for slot in job.status.slots}
    if job.status.last_node and 0 not in found:
        found[0] = Slot(index=0, last_node=job.status.last_node)
    return found


def slot_now(job: StickyJob, slot: Slot, pod: JobPod | None, nodes: LiveNodeTable, now: float) -> SlotNews:
    """The slot after all that its pod shows has been noted."""
    notes: list[Note] = []
    at = wire_time(now)
    if slot.pod_uid not in ("", slot.ended_pod_uid) and (pod is None or pod.uid != slot.pod_uid):
        slot = _ended(slot, slot.pod_uid, DELETED, at)
    if pod is not None and pod.node_name and _is_unknown(slot, pod):
        slot, note = _bound(job, slot, pod, nodes, at)
        notes.append(note)
    if pod is not None and pod.is_finished and slot.ended_pod_uid != pod.uid:
        slot = _ended(slot, pod.uid, pod.status.phase, at)
        how: Literal["Normal", "Warning"] = "Warning" if pod.status.phase == FAILED else "Normal"
        notes.append(Note(how, f"Pod{pod.status.phase}", f"pod {pod.name}"))
    if _has_lost_its_node(job, slot, pod, nodes):
        text = f"node {slot.last_node} of slot {slot.index} is gone"
        notes.append(Note("Warning", "NodeForgotten", text))
        slot = msgspec.structs.replace(slot, last_node="", last_node_uid="", domain="")
    return SlotNews(slot, tuple(notes))


def is_done(job: StickyJob, slot: Slot) -> bool:
    return job.spec.run_policy == "Once" and slot.outcome == SUCCEEDED


def has_given_up(job: StickyJob, slot: Slot) -> bool:
    return slot.outcome == FAILED and slot.failures > job.spec.backoff_limit


def next_pod_at(job: StickyJob, slot: Slot) -> float | None:
    """When the slot is to get another pod, if the one it had is gone or finished; None for never."""
    if is_done(job, slot) or has_given_up(job, slot):
        return None
    if slot.outcome in ("", DELETED):
        return 0.0
    again = min(max(slot.failures - 1, 0), 10)
    wait = min(FIRST_BACKOFF * 2.0**again, LONGEST_BACKOFF)
    return (seconds_of(slot.ended_at) or 0.0) + wait


def _is_unknown(slot: Slot, pod: JobPod) -> bool:
    """Whether the history does not have the pod yet: the scheduler writes the place, not the history."""
    return not (slot.history and slot.history[0].pod_uid == pod.uid) or slot.pod_uid != pod.uid


def _bound(job: StickyJob, slot: Slot, pod: JobPod, nodes: LiveNodeTable, at: str) -> tuple[Slot, Note]:
    policy = job.spec.stickiness
    row = nodes.row_of(pod.node_name)
    node = None if row is None else nodes.objects[row]
    is_written = slot.pod_uid == pod.uid
    scheduled = pod.scheduled
    since = scheduled.last_transition_time if scheduled is not None and scheduled.status == "True" else None
    stay = Stay(
        node=pod.node_name,
        node_uid=slot.last_node_uid if is_written else "" if node is None else node.metadata.uid,
        pod_uid=pod.uid,
        bound_at=slot.last_bind_time if is_written else since or at,
    )
    domain = slot.domain if is_written else domain_of(policy, node)
    before = _before(slot, pod)
    fresh = bound(slot, stay, domain=domain, pod_name=pod.name, limit=policy.history_limit)
    if before is None:
        return fresh, Note("Normal", "FirstPlacement", f"pod {pod.name} is on node {pod.node_name}")
    returned = before.node == stay.node and (policy.trust_node_name or before.node_uid in ("", stay.node_uid))
    if policy.scope != NODE and domain:
        row = nodes.row_of(before.node)
        returned = returned or (row is not None and domain_of(policy, nodes.objects[row]) == domain)
    text = f"pod {pod.name} is on node {pod.node_name}, and was on node {before.node}"
    if before.node == stay.node and returned:
        text = f"pod {pod.name} is back on node {pod.node_name}"
    note = Note("Normal", "Returned", text) if returned else Note("Warning", "Moved", text)
    return msgspec.structs.replace(fresh, returned=returned), note


def _before(slot: Slot, pod: JobPod) -> Stay | None:
    """Where the slot was before this pod."""
    for stay in slot.history:
        if stay.pod_uid != pod.uid:
            return stay
    if slot.last_node and slot.pod_uid != pod.uid:
        return Stay(node=slot.last_node, node_uid=slot.last_node_uid)
    return None


def _ended(slot: Slot, uid: str, outcome: str, at: str) -> Slot:
    failures = slot.failures + 1 if outcome == FAILED else 0 if outcome == SUCCEEDED else slot.failures
    fresh = ended(slot, uid, outcome, at)
    return msgspec.structs.replace(fresh, ended_pod_uid=uid, ended_at=at, outcome=outcome, failures=failures)


def _has_lost_its_node(job: StickyJob, slot: Slot, pod: JobPod | None, nodes: LiveNodeTable) -> bool:
    """Whether its node is gone for good and to be forgotten; a pod that is still bound to it goes first."""
    policy = job.spec.stickiness
    if not slot.last_node or policy.on_node_deleted == "Wait" or (pod is not None and pod.node_name):
        return False
    is_gone = same_node(nodes, slot.last_node, slot.last_node_uid, policy) is None
    return is_gone and not (policy.scope != NODE and slot.domain)
