"""VolcanoQueue: Volcano's queues limit what their pod groups use, lend what is idle and take it back.

A pod belongs to the queue of its PodGroup; a pod without one to that of its annotation, or to `default`. A
PodGroup is admitted to its queue first (`Inqueue`), for which job controllers wait before they create pods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Literal

from stowplan.api.groups import DEFAULT_QUEUE, QUEUE_NAME, VOLCANO, GroupKey, VolcanoPodGroup
from stowplan.api.meta import parse_time
from stowplan.api.pod import Pod
from stowplan.api.queues import Queue, QueueSpec
from stowplan.config.field_errors import child, invalid
from stowplan.framework import (
    Action,
    ClusterEvent,
    CycleState,
    Decision,
    Handle,
    Hint,
    NodeTable,
    Nomination,
    PluginArgs,
    Queued,
    Resource,
    Right,
    SortKey,
    Status,
)
from stowplan.framework.handle import not_eligible, preemption_status
from stowplan.framework.plugin import SortingPlugin
from stowplan.plugins.priority_classes import PriorityClass
from stowplan.plugins.queue_shares import (
    QueueNode,
    queue_faults,
    read_tree,
    set_deserved_as_given,
    set_deserved_by_weight,
    set_limits,
    share,
)
from stowplan.plugins.quotas import (
    TOLERANCE,
    Amounts,
    added,
    amounts_of,
    choose_victims,
    exceeds,
    excess_text,
    lacking,
    request_of,
)

PREEMPTABLE = "volcano.sh/preemptable"
PROTECTED_CLASSES = ("system-cluster-critical", "system-node-critical")
PENDING = ("", "Pending")
MAX_REJECTED = 10_000
"""So many pods are remembered that wait for their queue."""


class VolcanoQueueArgs(PluginArgs):
    policy: Literal["proportion", "capacity"] = "proportion"
    """How the share of a queue is computed: by its weight, or from its `deserved` and `capability`."""
    overcommit_factor: float = 1.2
    """Groups are admitted until they need this many times what the cluster has."""
    reclaim: bool = False
    """Whether a queue takes back what it deserves by evicting pods of queues that have more."""

    def validate(self, path: str) -> Iterator[str]:
        if not math.isfinite(self.overcommit_factor) or self.overcommit_factor < 1:
            where = child(path, "overcommitFactor")
            yield invalid(where, self.overcommit_factor, "must be greater than or equal to 1")


class QueueBook:
    """The queues with what they use, up to date whenever it is asked."""

    def __init__(self, args: VolcanoQueueArgs, handle: Handle) -> None:
        self.args, self.handle = args, handle
        self.groups = handle.cluster.groups
        self._items = handle.watched(Queue)
        self._pod_groups = handle.watched(VolcanoPodGroup)
        self._tree: dict[str, QueueNode] = {}
        self._version = -1
        self._settings: list[tuple[str, QueueSpec, str]] = []
        self.revision = 0
        """Increases with each change of a queue, other than that of what it uses."""
        self.naming = 0
        """Increases when pods may be in other queues than before."""
        self._queue_names: dict[GroupKey, str] = {}
        """The queue of each PodGroup, as counted in `_totals`."""
        self._groups_version = -1
        self._totals = handle.cluster.totals(self._keys)
        self.total: dict[str, int] = {}
        """What all nodes together have."""

    @property
    def is_served(self) -> bool:
        return self._items.is_served or len(self._items) > 0

    def name_of(self, pod: Pod) -> str:
        """The name of the pod's queue."""
        key = self.groups.key_of(pod)
        if key is not None and key.family == VOLCANO and (group := self.groups.find(key)) is not None:
            return group.queue
        return pod.annotations.get(QUEUE_NAME) or DEFAULT_QUEUE

    def _keys(self, pod: Pod) -> tuple[Hashable, ...]:
        name, key = self.name_of(pod), self.groups.key_of(pod)
        node = self._tree.get(name)
        above = () if node is None else node.ancestors
        return (name, *above) if key is None else (name, *above, key)

    def tree(self) -> Mapping[str, QueueNode]:
        """The queues by name, with their limits."""
        is_new = self._read_queues() if self._version != self._items.version else False
        if self._groups_version != self._pod_groups.version:
            self._read_groups()
        nodes = self.handle.cluster.nodes
        total = {name: int(nodes.allocatable[name].sum()) for name in nodes.allocatable}
        if is_new or total != self.total:
            self.total = total
            set_limits(self._tree, total)
            if self.args.policy == "capacity":
                set_deserved_as_given(self._tree)
        return self._tree

    def _read_queues(self) -> bool:
        """Whether the queues are others than before; what they use changes all the time."""
        self._version = self._items.version
        settings = [(item.name, item.spec, item.status.state) for item in self._items]
        if settings == self._settings and self.revision:
            return False
        self._settings, self._tree = settings, read_tree(self._items)
        self.revision += 1
        self.naming += 1
        self._totals.recount()
        return True

    def _read_groups(self) -> None:
        self._groups_version = self._pod_groups.version
        names = {GroupKey(VOLCANO, item.namespace, item.name): item.spec.queue for item in self._pod_groups}
        changed = dict(names.items() ^ self._queue_names.items())
        self._queue_names = names
        # Most groups are created before their pods, so that none is counted elsewhere.
        if any(map(self.groups.members, changed)):
            self.naming += 1
            self._totals.recount()

    def allocated(self, key: Hashable) -> Mapping[str, int]:
        """What the placed pods of a queue and those below it use, or those of a group."""
        return self._totals.of(key)

    def share_of(self, node: QueueNode) -> float:
        if any(node.deserved.values()):
            return share(self.allocated(node.name), node.deserved)
        if self.args.policy == "capacity":
            return 1.0
        # What it deserves depends on all pending pods; its part of the cluster by weight is close to it.
        return share(self.allocated(node.name), node.limit) / max(node.item.spec.weight, 1)

    def priority_of(self, class_name: str) -> int:
        watched = self.handle.watched(PriorityClass).get(class_name) if class_name else None
        # What manifests describe is there as well, but nobody watches.
        found = watched or self.handle.cluster.priority_classes.get(class_name)
        return 0 if found is None else found.value

    def rank(self, name: str) -> tuple[int, float, str]:
        """Where a queue stands: by priority, then by how little it has of what it deserves."""
        node = self._tree.get(name)
        return (0, math.inf, "") if node is None else (-node.priority, self.share_of(node), node.name)

    def closed_text(self, name: str) -> str:
        """Why nothing can be placed through a queue; empty if it is open."""
        if not self.is_served:
            return ""
        node = self._tree.get(name)
        if node is None:
            known = sorted(self._tree)
            shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
            return f'queue "{name}" does not exist; create the Queue, or use one of: {shown}'
        if node.fault:
            return node.fault
        if node.state != "Open":
            return f'queue "{name}" is {node.state}; open it, or use another queue'
        return ""


class Commitments:
    """What admitted PodGroups will need, to decide which others can be admitted."""

    def __init__(self, book: QueueBook, items: Iterable[VolcanoPodGroup]) -> None:
        self._book, self._tree = book, book.tree()
        self._promised: dict[str, float] = {}
        """What they need of the cluster beyond what is used."""
        self._claimed: dict[str, dict[str, float]] = {}
        """What they need of each queue beyond what its pods use; less than nothing if those have more."""
        for item in items:
            if item.status.phase not in PENDING and item.spec.min_resources:
                self.add(item, is_waiting=item.status.phase == "Inqueue")

    def add(self, item: VolcanoPodGroup, *, is_waiting: bool = True) -> None:
        """Count a group that is admitted; `is_waiting` if it has not had all of its pods yet."""
        key = GroupKey(VOLCANO, item.namespace, item.name)
        has = self._book.allocated(key)
        needs: dict[str, float] = {**amounts_of(item.spec.min_resources or {})}
        for pod in self._book.groups.members(key).values():
            if pod.spec.scheduling_gates:
                for name, amount in request_of(pod).items():
                    needs[name] = max(needs.get(name, 0) - amount, 0)
        missing = {name: max(amount - has.get(name, 0), 0) for name, amount in needs.items()}
        is_complete = has.get("pods", 0) >= item.spec.min_member
        if is_waiting or is_complete:
            self._promised = added(self._promised, needs if is_waiting else missing)
        node = self._tree.get(item.spec.queue)
        for name in () if node is None else (node.name, *node.ancestors):
            change = {each: needs.get(each, 0) - has.get(each, 0) for each in (*needs, *has)}
            if not is_waiting and not is_complete:  # what it has beyond its minimum is elastic all the same
                change = {each: min(amount, 0) for each, amount in change.items()}
            self._claimed[name] = added(self._claimed.get(name, {}), change)

    def refusal(self, item: VolcanoPodGroup) -> str:
        """Why a group is not admitted to its queue; empty if it can be."""
        book, tree, name = self._book, self._tree, item.spec.queue
        is_usable = name in tree and not tree[name].fault  # one that is closed admits groups without sizes
        if (not is_usable or item.spec.min_resources) and (text := book.closed_text(name)):
            return text
        if not item.spec.min_resources or not book.is_served:
            return ""
        wanted, factor = amounts_of(item.spec.min_resources), book.args.overcommit_factor
        nodes = book.handle.cluster.nodes
        free = {
            name: book.total.get(name, 0) * factor
            - int((nodes.pod_count if name == "pods" else nodes.requested[name]).sum())
            for name in wanted
        }
        if names := lacking(added(wanted, self._promised), free, wanted):
            return _listed("resource in cluster is overused", "overused", names)
        for each in (tree[name], *(tree[above] for above in tree[name].ancestors)):
            # More is promised than the cluster has, but never more than a queue may use.
            room = {
                resource: amount + (factor - 1) * book.total.get(resource, 0)
                for resource, amount in each.limit.items()
            } | dict(each.capability)
            claimed = added(wanted, book.allocated(each.name), self._claimed.get(each.name, {}))
            if names := lacking(claimed, room, wanted):
                return _listed("queue resource quota insufficient", "insufficient", names)
        return ""


def _listed(text: str, word: str, names: list[str]) -> str:
    return f"{text}: {', '.join(f'{word} {name}' for name in names)}"


class VolcanoQueue(SortingPlugin):
    args: VolcanoQueueArgs
    hints_by_group = True
    reports_gate = True
    watches = (Queue, VolcanoPodGroup, PriorityClass)
    rights = (
        Right("pods", ("delete",)),  # which the host does for it
        Right("podgroups", ("get", "patch"), VOLCANO),
        Right("queues/status", ("patch",), VOLCANO),
        Right("queues", ("get",), VOLCANO),
    )
    controllers = ("stowplan.controllers.groups:QueueAdmission",)

    def __init__(self, args: VolcanoQueueArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.book = QueueBook(args, handle)
        self._known: dict[str, tuple[Pod, str]] = {}
        """Pods of our profile, and all with a node, each with its queue, by uid: what queues request."""
        self._requested: dict[str, dict[str, float]] = {}
        """The sum of it by queue."""
        self._naming = -1
        self._settled: object = None
        """What the shares were computed from; None if they must be computed anew."""
        self._leaving: dict[str, GroupKey | None] = {}
        """The groups of pods that are being deleted, by uid."""
        self._rejected: dict[str, Pod] = {}
        """Pods that wait for their queue, by uid."""
        self._reported: dict[str, str] = {}
        """What was reported of a queue."""
        self._reported_revision = 0

    # What queues want and deserve

    def tree(self) -> Mapping[str, QueueNode]:
        book = self.book
        tree = book.tree()
        if self.args.policy == "proportion":
            if self._naming != book.naming:
                self._naming, self._requested, pods = book.naming, {}, list(self._known.values())
                for pod, _ in pods:
                    self._count(pod)
            settled = (book.revision, book.total)
            if self._settled != settled:
                self._settled = settled
                set_deserved_by_weight(tree, book.total, lambda name: self._requested.get(name, {}))
        if self._reported_revision != book.revision:
            self._reported_revision = book.revision
            for node in tree.values():
                self._report(node)
        return tree

    def _report(self, node: QueueNode) -> None:
        text = "; ".join(queue_faults(node))
        if self._reported.get(node.name, "") != text:
            self._reported[node.name] = text
            if text:
                self.handle.record_event(node.item, "Warning", "InvalidQueue", text)

    def _count(self, pod: Pod) -> None:
        name = self.book.name_of(pod)
        self._known[pod.uid] = (pod, name)
        self._change(name, pod, 1)
        if pod.is_terminating and pod.node_name:
            self._leaving[pod.uid] = self.book.groups.key_of(pod)

    def _change(self, queue: str, pod: Pod, sign: int) -> None:
        total = self._requested.setdefault(queue, {})
        for name, amount in request_of(pod).items():
            total[name] = total.get(name, 0) + sign * amount
        self._settled = None

    def pod_added(self, pod: Pod) -> None:
        if pod.node_name or pod.scheduler_name == self.handle.scheduler_name:
            if pod.uid in self._known:
                self.pod_updated(pod, pod)
            else:
                self._count(pod)

    def pod_updated(self, old: Pod, new: Pod) -> None:
        known, queue = self._known.get(new.uid, (None, ""))
        if new.node_name:
            self._rejected.pop(new.uid, None)
        if known is None:
            self.pod_added(new)
        elif request_of(known) == request_of(new) and queue == self.book.name_of(new):
            self._known[new.uid] = (new, queue)
            if new.is_terminating and new.node_name:
                self._leaving[new.uid] = self.book.groups.key_of(new)
        else:
            self._change(queue, known, -1)
            self._count(new)

    def pod_deleted(self, pod: Pod) -> None:
        known, queue = self._known.pop(pod.uid, (None, ""))
        if known is None:
            return
        self._change(queue, known, -1)
        self._rejected.pop(pod.uid, None)
        self._leaving.pop(pod.uid, None)
        if not pod.node_name and self._rejected:
            # Its queue wants less now, so others deserve more: no event says so to the pods that wait.
            waiting, self._rejected = self._rejected, {}
            self.handle.activate(waiting.values())

    # Before a pod is attempted

    def queue_sort(self, queued: Queued) -> SortKey:
        """Queues by priority and share; in a queue, groups by priority, those that lack pods first, then by
        share and age."""
        pod, book = queued.pod, self.book
        book.tree()
        key = book.groups.key_of(pod)
        item = None if key is None else book.groups.object_of(key)
        since, priority = queued.timestamp, pod.priority
        is_ready, dominant_share = False, 0.0
        if key is not None and (used := book.allocated(key)):
            group = book.groups.find(key)
            least = 0 if group is None else group.min_count - book.groups.succeeded(key)
            is_ready, dominant_share = used.get("pods", 0) >= least, share(used, book.total)
        if item is not None and not queued.attempts and item.metadata.creation_timestamp:
            since = min(since, parse_time(item.metadata.creation_timestamp))
        if isinstance(item, VolcanoPodGroup):
            priority = max(priority, book.priority_of(item.spec.priority_class_name))
        own = (-priority, is_ready, dominant_share, since, "" if key is None else str(key), pod.key)
        return (*book.rank(book.name_of(pod)), *own)

    def pods_to_sort_again(self, old: Any, new: Any) -> Iterable[Pod] | None:
        item = old if new is None else new
        has_spec = isinstance(item, Queue | VolcanoPodGroup) and old is not None and new is not None
        if has_spec and old.spec == new.spec:
            return ()  # the status is written by ourselves, each time that something is placed
        return self.book.groups.members_of(item) if isinstance(item, VolcanoPodGroup) else None

    def pre_enqueue(self, pod: Pod) -> Status | None:
        groups = self.book.groups
        key = groups.key_of(pod)
        if key is None or key.family != VOLCANO or not self.book.is_served:
            return None
        item = groups.object_of(key)
        if not isinstance(item, VolcanoPodGroup) or item.status.phase not in PENDING:
            return None
        self.tree()
        why = (
            self.book.closed_text(item.spec.queue)
            or "it is not admitted yet, the events of the PodGroup say why"
        )
        return Status.unresolvable(f'pod group {key} waits for queue "{item.spec.queue}": {why}')

    # Whether a pod may be placed

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        if pod.uid in self._known:
            text = self._no_room(pod, self.tree())
        else:  # nobody has told of the pod: it is a question what would become of it
            queue = self.book.name_of(pod)
            self._change(queue, pod, 1)
            text = self._no_room(pod, self.tree())
            self._change(queue, pod, -1)
        if not text:
            return None
        if len(self._rejected) < MAX_REJECTED:
            self._rejected[pod.uid] = pod
        return Status.unresolvable(text)  # its own pods are not evicted for it, and others would not help

    def _no_room(self, pod: Pod, tree: Mapping[str, QueueNode]) -> str:
        name = self.book.name_of(pod)
        if not self.book.is_served or (text := self.book.closed_text(name)):
            return text if self.book.is_served else ""
        node, request = tree[name], request_of(pod)
        if self.args.policy == "proportion":
            total = self.book.total
            # Where a queue deserves all that there is, the nodes say better what is missing.
            limits = {
                each: deserved
                for each in request
                if (deserved := node.deserved.get(each, 0)) + TOLERANCE < total.get(each, 0)
            }
            return self._excess(node, request, limits, "deserved")
        if node.has_children:
            return f'queue "{name}" has queues below it; only queues without any take pods'
        key = self.book.groups.key_of(pod)
        rest = {} if key is None else self._rest_of(key)
        for each in (node, *(tree[above] for above in node.ancestors)):
            # A group that cannot have its minimum is rejected at once, not after most of it is placed.
            if rest and (text := self._excess(each, rest, each.limit, "limit", f" for pod group {key}")):
                return text
            if text := self._excess(each, request, each.limit, "limit"):
                return text
        return ""

    def _rest_of(self, key: GroupKey) -> Amounts:
        """What a group lacks of its `minResources`."""
        group = self.book.groups.find(key)
        if group is None or not group.min_resources:
            return {}
        has = self.book.allocated(key)
        wanted = amounts_of(group.min_resources)
        return {
            name: amount - has.get(name, 0) for name, amount in wanted.items() if amount > has.get(name, 0)
        }

    def _excess(self, node: QueueNode, request: Amounts, limits: Amounts, what: str, whom: str = "") -> str:
        used = self.book.allocated(node.name)
        name = exceeds(used, request, limits)
        if not name:
            return ""
        return f'queue "{node.name}" has no room{whom}; {excess_text(name, used, request, limits, what)}'

    # Whom a queue evicts to take back what it deserves

    def post_filter(self, state: CycleState, pod: Pod, decision: Decision) -> Nomination | Status | None:
        tree = self.tree()
        node = tree.get(self.book.name_of(pod))
        if not self.args.reclaim or node is None or pod.spec.preemption_policy == "Never":
            return None
        used, request = self.book.allocated(node.name), request_of(pod)
        if self.args.policy == "capacity" and not any(
            used.get(name, 0) + request.get(name, 0) <= amount + TOLERANCE
            for name, amount in node.deserved.items()
            if request.get(name, 0)
        ):
            return None
        victims = choose_victims(self.handle.cluster.nodes, pod, decision, self._victims(node, tree))
        if not victims:
            return not_eligible("no queue uses more than it deserves")
        answer = self.handle.preempt(state, pod, decision, 100, 0, victims)
        return answer if isinstance(answer, Nomination) else preemption_status(answer)

    def _victims(self, own: QueueNode, tree: Mapping[str, QueueNode]) -> Callable[[list[Pod]], Iterator[Pod]]:
        """Chooses pods that other queues can lose: beyond what these deserve, and what a group needs."""
        lenders = {
            node.name
            for node in tree.values()
            if node.name != own.name
            and node.is_reclaimable
            and self._is_over(node, self.book.allocated(node.name))
        }

        def choose(pods: list[Pod]) -> Iterator[Pod]:
            left: dict[str, dict[str, float]] = {}
            spare: dict[GroupKey, int] = {}
            for pod in pods:
                _, queue = self._known.get(pod.uid, (None, ""))
                if queue not in lenders or not _is_preemptable(pod):
                    continue
                key = self.book.groups.key_of(pod)
                if queue not in left:
                    left[queue] = {**self.book.allocated(queue)}
                if not self._can_lose(tree[queue], left[queue], pod):
                    continue
                if key is not None:
                    if key not in spare:
                        spare[key] = self._spare_members(key)
                    if spare[key] < 1:
                        continue
                    spare[key] -= 1
                for name, amount in request_of(pod).items():
                    left[queue][name] = left[queue].get(name, 0) - amount
                yield pod

        return choose

    def _spare_members(self, key: GroupKey) -> int:
        """How many members a group can lose and still has its minimum."""
        groups = self.book.groups
        group = groups.find(key)
        staying = self.book.allocated(key).get("pods", 0) - list(self._leaving.values()).count(key)
        return staying if group is None else staying + groups.succeeded(key) - group.min_count

    def _is_over(self, node: QueueNode, used: Amounts) -> list[str]:
        """The resources of which a queue has more than it deserves."""
        return [name for name, amount in used.items() if amount > node.deserved.get(name, 0) + TOLERANCE]

    def _can_lose(self, node: QueueNode, used: Amounts, pod: Pod) -> bool:
        over = self._is_over(node, used)
        if self.args.policy == "proportion" or not over:
            return bool(over)
        request = request_of(pod)
        if any(
            used.get(name, 0) - request.get(name, 0) < amount - TOLERANCE
            for name, amount in node.guarantee.items()
            if request.get(name, 0)
        ):
            return False
        is_named = any(request.get(name, 0) for name in node.deserved)
        return not is_named or any(name in node.deserved and request.get(name, 0) for name in over)

    # What wakes pods

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Queue.definition.event_resource, Action.ALL),
            ClusterEvent(VolcanoPodGroup.definition.event_resource, Action.ALL),
            ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE),
            ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE),
        )

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        item = old if new is None else new
        if isinstance(item, VolcanoPodGroup):
            key = self.book.groups.key_of(pod)
            is_own = key is not None and key == (VOLCANO, item.namespace, item.name)
            return Hint.QUEUE if is_own else Hint.SKIP
        if isinstance(old, Queue) and isinstance(new, Queue):
            is_same = old.spec == new.spec and old.status.state == new.status.state
            return Hint.SKIP if is_same else Hint.QUEUE
        return Hint.QUEUE


def _is_preemptable(pod: Pod) -> bool:
    said = pod.annotations.get(PREEMPTABLE) or pod.labels.get(PREEMPTABLE, "true")
    return (
        said != "false"
        and pod.phase == "Running"
        and not pod.is_terminating
        and pod.namespace != "kube-system"
        and pod.spec.priority_class_name not in PROTECTED_CLASSES
    )
