"""Sticky: pods return to the node, zone or rack where their predecessor ran.

Places are stored in StickyJobs and StickyRecords. Both are watched, so a decision makes no request. A pod
that may only run on its old node is filtered against that node alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from stowplan.api.node import NodeObject
from stowplan.framework import (
    QUEUE,
    SKIP_HINT,
    Action,
    ClusterEvent,
    CycleState,
    Handle,
    Hint,
    NodeTable,
    Plugin,
    Pod,
    Reject,
    Resource,
    Right,
    Scores,
    Status,
)
from stowplan.sticky import rules
from stowplan.sticky.memory import (
    Key,
    Memories,
    Memory,
    StickyArgs,
    invalid_annotations,
    record_binding,
    wire_time,
    write_record,
    write_slot,
)
from stowplan.sticky.resources import (
    GROUP,
    BatchJob,
    JobPod,
    Stay,
    StickyJob,
    StickyRecord,
)
from stowplan.sticky.rules import Standing, Tie

CLAIM_SECONDS = 600.0
"""Waiting pods are retried every few minutes; a pod not seen for this long is gone."""
NODE_EVENTS = (
    Action.ADD
    | Action.DELETE
    | Action.UPDATE_NODE_ALLOCATABLE
    | Action.UPDATE_NODE_LABEL
    | Action.UPDATE_NODE_TAINT
    | Action.UPDATE_NODE_CONDITION
)


class Claim(NamedTuple):
    """A pod that waits for one node and accepts no other."""

    pod: Pod
    since: str
    """When its predecessor was bound there."""
    seen: float


class Sticky(Plugin):
    args: StickyArgs
    watches = (StickyJob, StickyRecord, JobPod, BatchJob)
    rights = (
        Right("stickyjobs", ("get",), GROUP),
        Right("stickyjobs/status", ("patch",), GROUP),
        Right("stickyrecords", ("get", "create", "patch", "delete"), GROUP),
        Right("pods", ("create", "delete")),
    )
    controllers = (
        "stowplan.sticky.controllers:StickyJobs",
        "stowplan.sticky.controllers:StickyRecords",
    )

    def __init__(self, args: StickyArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._memories = Memories(args, handle)
        # The arguments may name another API group than the class attributes.
        rights = [
            replace(right, group=args.group) if right.group == GROUP else right for right in self.rights
        ]
        vars(self).update(watches=(*self._memories.kinds, JobPod, BatchJob), rights=tuple(rights))
        self._claims: dict[str, dict[Key, Claim]] = {}
        """The pods waiting for each node."""
        self._retries: dict[str, tuple[float, Pod]] = {}
        """When the grace period of each pod ends: no cluster event marks it, so `run` retries the pod."""
        self._placements = handle.counter(
            "stowplan_sticky_placements_total",
            "Number of sticky pods bound, by whether they returned to their old place.",
            "result",
        )

    def pre_enqueue(self, pod: Pod) -> Status | None:
        """Hold back a pod whose only node is unavailable, until an event shows that the node is back."""
        found = self._standing(pod)
        if found is None or found.tie is not Tie.TIED or found.domain or found.grace_ends is not None:
            return None
        row = self.handle.cluster.nodes.row_of(found.node)
        waits = found.memory.policy.on_node_deleted == "Wait"
        if row is None or not waits or rules.is_available(self.handle.cluster.nodes.objects[row]):
            return None
        reason = f"waiting for {found.place_name}, where the pod ran before: it is unavailable"
        self.handle.record_event(pod, "Warning", "StickyNodeUnavailable", reason)
        return Status.unresolvable(reason)

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | frozenset[str] | None:
        found = self._standing(pod)
        if found is None:
            return Status.skip()
        state.write(found)
        for text in invalid_annotations(pod):
            self.handle.record_event(pod, "Warning", "StickyAnnotationInvalid", text)
        if found.memory.policy.mode != "Preferred" and not self._memories.is_served(found.memory.key):
            where = self._memories.kinds.record.definition
            return Status.unresolvable(
                f"CRD {where.plural}.{where.group} is not installed: "
                "run `stowplan crd Sticky | kubectl apply -f -`"
            )
        if found.tie not in (Tie.TIED, Tie.STRANDED):
            return Status.skip()
        if found.grace_ends is not None:
            self._retries[pod.uid] = (found.grace_ends, pod)
        if found.tie is Tie.STRANDED:
            return Status.unresolvable(f"{found.place_name}, where the pod ran before, no longer exists")
        return None if found.domain else frozenset((found.node,))

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        found = state.find(Standing)
        if found is not None and found.tie is Tie.TIED and found.domain:
            outside = ~rules.in_domain(found.memory.policy, found.domain, nodes)
            yield Reject(outside, f"node(s) outside {found.place_name}, where the pod ran before", True)

    def pre_score(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        found = state.find(Standing)
        return Status.skip() if found is None or found.tie is Tie.FREE else None

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        return rules.score_rows(state.read(Standing), nodes, self.handle.now())

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Remember the place at once: the slot's next pod may arrive before the watch shows this one."""
        found = state.find(Standing)
        if found is None:
            return
        memory, nodes = found.memory, self.handle.cluster.nodes
        row = nodes.row_of(node_name)
        node = None if row is None else nodes.objects[row]
        stay = Stay(
            node=node_name,
            node_uid="" if node is None else node.metadata.uid,
            pod_uid=pod.uid,
            bound_at=wire_time(self.handle.now()),
        )
        domain = rules.domain_of(memory.policy, node)
        limit = memory.policy.history_limit
        place = record_binding(memory.place, stay, domain=domain, pod_name=pod.name, limit=limit)
        self._memories.remember(memory.key, place)
        self._claims.get(found.node, {}).pop(memory.key, None)
        self._retries.pop(pod.uid, None)

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        if (found := state.find(Standing)) is not None:
            self._memories.forget(found.memory.key, pod)

    async def post_bind(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Store the place. If that fails, a controller does it when it sees the bound pod."""
        found = state.find(Standing)
        place = None if found is None else self._memories.own(found.memory.key)
        if found is None or place is None or place.pod_uid != pod.uid:
            return
        result = "first" if not found.node else "returned" if found.node == node_name else "moved"
        self._placements[result,] += 1
        key, kinds = found.memory.key, self._memories.kinds
        if key.kind == "StickyRecord" and self._memories.is_served(key):
            owners = self._memories.owners_of_record(pod)
            await write_record(self.handle, kinds.record, key.namespace, key.part, owners, place)
        elif key.kind == "StickyJob" and pod.controller is not None:
            await write_slot(self.handle, kinds.job, pod.controller, key.namespace, int(key.part), place)

    def events_to_register(self) -> list[ClusterEvent]:
        return [
            ClusterEvent(Resource.NODE, NODE_EVENTS),
            ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE),
            ClusterEvent(Resource.UNSCHEDULABLE_POD, Action.UPDATE),
            *(ClusterEvent(kind.definition.event_resource, Action.ALL) for kind in self._memories.kinds),
        ]

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        """Only a change of the old place, or of the stored record, can help."""
        memory = self._memories.of(pod)
        if memory is None or event.resource == Resource.UNSCHEDULABLE_POD or not memory.place.last_node:
            return QUEUE
        changed = old if new is None else new
        if isinstance(changed, NodeObject):
            helps = self._is_place(memory, changed) or (old is not None and self._is_place(memory, old))
        elif isinstance(changed, Pod):
            row = self.handle.cluster.nodes.row_of(changed.node_name)
            helps = row is not None and self._is_place(memory, self.handle.cluster.nodes.objects[row])
        else:
            helps = changed.key == memory.key.path and _differs(memory.key, old, new)
        return QUEUE if helps else SKIP_HINT

    async def run(self) -> None:
        """Retry pods whose grace period has ended."""
        while True:
            await asyncio.sleep(1)
            now = self.handle.now()
            due = [pod for ends, pod in self._retries.values() if ends <= now]
            for pod in due:
                del self._retries[pod.uid]
            self.handle.activate(due)

    def _standing(self, pod: Pod) -> Standing | None:
        memory = self._memories.of(pod)
        if memory is None:
            return None
        found = rules.find_standing(memory, pod, self.handle.cluster.nodes, self.handle.now())
        if found.tie is not Tie.TIED:
            return found
        must_yield = self._must_yield(pod, found)
        if must_yield or self._still_runs(pod, found):
            return replace(found, tie=Tie.DRAWN, grace_ends=None, must_yield=must_yield)
        return found

    def _still_runs(self, pod: Pod, found: Standing) -> bool:
        """Whether the predecessor still runs there, as in a surge: the node may not have room for both."""
        nodes = self.handle.cluster.nodes
        row = nodes.row_of(found.node)
        return row is not None and any(
            other.uid != pod.uid
            and not other.is_terminating
            and self._memories.key_of(other) == found.memory.key
            for other in nodes.pods_on(row)
        )

    def _must_yield(self, pod: Pod, found: Standing) -> bool:
        """Whether pods that ran on the node more recently fill it, so that this pod may go elsewhere."""
        if found.domain:
            return False
        key, now, nodes = found.memory.key, self.handle.now(), self.handle.cluster.nodes
        claims = self._claims.setdefault(found.node, {})
        claims[key] = mine = Claim(pod, found.memory.place.last_bind_time, now)
        for other, claim in list(claims.items()):
            if now - claim.seen > CLAIM_SECONDS:
                del claims[other]
        before = [claim.pod for other, claim in claims.items() if (claim.since, other) > (mine.since, key)]
        row = nodes.row_of(found.node)
        return bool(before) and row is not None and not rules.fits_with(pod, before, row, nodes)

    def _is_place(self, memory: Memory, node: NodeObject) -> bool:
        policy, place = memory.policy, memory.place
        return node.name == place.last_node or (
            place.domain != "" and rules.domain_of(policy, node) == place.domain
        )


def _differs(key: Key, old: Any, new: Any) -> bool:
    """Whether the record changed in more than the history that the controller writes."""
    if old is None or new is None or key.kind == "StickyRecord":
        return True
    before, after = (
        [replace(slot, history=()) for slot in item.status.slots if str(slot.index) == key.part]
        for item in (old, new)
    )
    return old.spec != new.spec or before != after
