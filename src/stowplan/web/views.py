"""What the page shows of the scheduler: live figures, nodes, the queue and single pods.

The page polls `Live`: an answer is sent as soon as there is something new, and has never more than a page can
show. A thousand decisions per second are a few hundred rows and some figures.
"""

from __future__ import annotations

import asyncio
import base64
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.api.amounts import amount_text
from stowplan.api.groups import GroupKey
from stowplan.api.meta import parse_time
from stowplan.api.names import suggest_names
from stowplan.api.node import Taint
from stowplan.api.pod import Pod
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.explain.group_report import GroupReport
from stowplan.explain.groups import outline
from stowplan.journal.wire import WireStruct, summarize_record
from stowplan.queue.waiting import Place, QueuedPod
from stowplan.scheduler.scheduler import Scheduler
from stowplan.web.source import RequestError, Source, find_pod, running_scheduler

MAX_DECISIONS = 200
MAX_MEASURED = 5_000
"""Durations are computed from at most this many new decisions."""
WAIT_SECONDS = 10.0
POLL_SECONDS = 0.1


class LiveAnswer(WireStruct):
    run: str
    """Changes when the scheduler restarts and counts decisions from 1 again."""
    time: float
    number: int
    """The number of the last decision."""
    kept: int
    is_keeping: bool
    decisions: list[dict[str, object]]
    """New since the last request, the newest first."""
    missed: int
    """How many new decisions are not listed."""
    outcomes: Mapping[str, int]
    median: float | None
    slowest: float | None
    """The 99th percentile."""
    state: str = "starting"
    """Sent back with the next request: as long as it is the same, there is nothing new."""
    queue: dict[str, int] = {}
    pods: int = 0
    """The number of pods with a node."""
    layout: str = ""
    fill: str = ""
    is_synced: bool = False
    is_leading: bool = False


class Live:
    """`run` identifies this run of the scheduler."""

    def __init__(self, source: Source, run: str) -> None:
        self._source, self._run = source, run

    async def answer(self, query: Mapping[str, str]) -> LiveAnswer:
        after = int(query.get("after", 0)) if query.get("run", self._run) == self._run else 0
        resource, seen = query.get("resource", "cpu"), query.get("state", "")
        deadline = time.monotonic() + WAIT_SECONDS
        while (found := self._now(after, resource)).state == seen and time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)
        return found

    def _now(self, after: int, resource: str) -> LiveAnswer:
        decisions = self._source.decisions
        new = list(decisions.recent.newest(MAX_MEASURED, after))
        number = new[0].number if new else after
        seconds = [record.attempt.seconds for record in new]
        found = LiveAnswer(
            run=self._run,
            time=time.time(),
            number=number,
            kept=len(decisions.recent),
            is_keeping=decisions.budget > 0,
            decisions=[summarize_record(record) for record in new[:MAX_DECISIONS]],
            missed=max(number - after - MAX_DECISIONS, 0) if after else 0,
            outcomes=Counter(record.attempt.outcome for record in new),
            median=float(np.percentile(seconds, 50)) if seconds else None,
            slowest=float(np.percentile(seconds, 99)) if seconds else None,
        )
        if (scheduler := self._source.scheduler()) is not None:
            _add_cluster(found, scheduler, resource)
        return found


def _add_cluster(found: LiveAnswer, scheduler: Scheduler, resource: str) -> None:
    nodes = scheduler.cluster.nodes
    found.fill, found.layout = encode_fill(nodes, resource), layout_version(nodes)
    found.queue = scheduler.queue.counts()
    found.pods = len(nodes.pods)
    found.is_synced, found.is_leading = scheduler.is_synced, scheduler.is_leading
    state = (found.layout, zlib.crc32(found.fill.encode()), *found.queue.values(), found.is_synced)
    found.state = "-".join(map(str, (found.number, *state, found.is_leading)))


ZONE = "topology.kubernetes.io/zone"
FULLEST = "fullest"
"""Not a resource: the one of EVERYWHERE that is used most."""
EVERYWHERE = ("cpu", "memory", "pods")
FULL, NONE = 250, 255
"""How full a node is, as a byte: 0 to FULL, or NONE if it does not have the resource."""
MAX_NODE_PODS = 500


class ClusterAnswer(WireStruct):
    layout: str
    nodes: list[str]
    zones: list[str]
    zone_of: list[int]
    """Indexes in `zones`; -1 for a node without a zone."""
    cordoned: list[int]
    tainted: list[int]
    resources: list[str]


class AmountRow(WireStruct):
    resource: str
    allocatable: str
    requested: str
    filled: float
    """From 0 to 1."""


class PodRow(WireStruct):
    pod: str
    priority: int
    cpu: str
    cpu_thousandths: int
    memory: str
    memory_bytes: int


class ConditionRow(WireStruct):
    type: str
    status: str
    reason: str
    message: str
    since: float | None
    is_bad: bool


class NodeAnswer(WireStruct):
    name: str
    zone: str
    created: float | None
    conditions: list[ConditionRow]
    labels: dict[str, str]
    taints: list[str]
    is_cordoned: bool
    amounts: list[AmountRow]
    pod_count: int
    pods: list[PodRow]
    """At most MAX_NODE_PODS."""


def layout_version(nodes: LiveNodeTable) -> str:
    """A version that changes when a node is added, deleted, cordoned or tainted, or changes its zone."""
    columns = (nodes.label(ZONE).ids, nodes.unschedulable, _is_tainted(nodes))
    check = 0
    for column in columns:
        check = zlib.crc32(column[: len(nodes)].tobytes(), check)
    return f"{nodes.layout}-{len(nodes)}-{check}"


def describe_cluster(nodes: LiveNodeTable) -> ClusterAnswer:
    zone = nodes.label(ZONE)
    return ClusterAnswer(
        layout=layout_version(nodes),
        nodes=list(nodes.names),
        zones=list(zone.values),
        zone_of=zone.ids[: len(nodes)].tolist(),
        cordoned=np.flatnonzero(nodes.unschedulable).tolist(),
        tainted=np.flatnonzero(_is_tainted(nodes)).tolist(),
        resources=[*EVERYWHERE, *(name for name in _resources(nodes) if name not in EVERYWHERE)],
    )


def encode_fill(nodes: LiveNodeTable, resource: str) -> str:
    """How full each node is, a byte for each, in base64."""
    asked = EVERYWHERE if resource == FULLEST else (resource,)
    columns = [_used_share(nodes, each) for each in asked]
    filled = np.max(columns, axis=0)
    return base64.b64encode(np.where(filled < 0, NONE, filled * FULL).astype(np.uint8).tobytes()).decode()


def describe_node(scheduler: Scheduler, name: str) -> NodeAnswer:
    nodes = scheduler.cluster.nodes
    row = nodes.row_of(name)
    if row is None:
        raise RequestError(f"node {name} not found{suggest_names(name, nodes.names)}")
    node, pods = nodes.objects[row], nodes.pods_on(row)
    return NodeAnswer(
        name=name,
        zone=node.labels.get(ZONE, ""),
        created=read_time(node.metadata.creation_timestamp),
        conditions=[
            ConditionRow(
                type=each.type,
                status=each.status,
                reason=each.reason,
                message=each.message,
                since=read_time(each.last_transition_time),
                is_bad=each.status != ("True" if each.type == "Ready" else "False"),
            )
            for each in node.status.conditions
        ],
        labels=node.labels,
        taints=[taint.text for taint in node.taints],
        is_cordoned=node.unschedulable,
        amounts=[_amount(nodes, resource, row) for resource in _resources(nodes, row)],
        pod_count=len(pods),
        pods=[_pod_row(pod) for pod in pods[:MAX_NODE_PODS]],
    )


def read_time(text: str | None) -> float | None:
    """Seconds since 1970, if the object has the time."""
    return parse_time(text) if text else None


def _amount(nodes: LiveNodeTable, resource: str, row: int) -> AmountRow:
    has, taken = int(nodes.allocatable[resource][row]), int(_used_amount(nodes, resource)[row])
    return AmountRow(
        resource=resource,
        allocatable=amount_text(resource, has),
        requested=amount_text(resource, taken),
        filled=taken / has if has else 0.0,
    )


def _pod_row(pod: Pod) -> PodRow:
    cpu, memory = (pod.requests.get(name, 0) for name in ("cpu", "memory"))
    return PodRow(
        pod=pod.key,
        priority=pod.priority,
        cpu=amount_text("cpu", cpu),
        cpu_thousandths=cpu,
        memory=amount_text("memory", memory),
        memory_bytes=memory,
    )


def _resources(nodes: LiveNodeTable, row: int | None = None) -> list[str]:
    """The resources of the node, or of all nodes."""
    rows: Any = slice(None) if row is None else row
    return [name for name in nodes.allocatable if np.any(nodes.allocatable[name][rows] > 0)]


def _used_share(nodes: LiveNodeTable, resource: str) -> NDArray[np.float64]:
    """From 0 to 1; -1 if a node does not have the resource."""
    has = nodes.allocatable[resource]
    part = np.clip(_used_amount(nodes, resource) / np.maximum(has, 1), 0, 1)
    return np.where(has > 0, part, -1.0)


def _used_amount(nodes: LiveNodeTable, resource: str) -> NDArray[np.int64]:
    return nodes.pod_count if resource == "pods" else nodes.requested[resource]


def _is_tainted(nodes: LiveNodeTable) -> NDArray[np.bool_]:
    def is_hard(taints: tuple[Taint, ...]) -> bool:
        return any(taint.is_hard for taint in taints)

    found: NDArray[np.bool_] = nodes.by_taints(is_hard)
    return found


MAX_QUEUED = 1_000


class QueuedRow(WireStruct):
    pod: str
    place: str
    priority: int
    attempts: int
    since: float
    """When it was queued, or requeued."""
    until: float | None
    """When its backoff ends."""
    plugins: list[str]
    message: str
    """The message of its last attempt."""
    nominated: str


class QueueAnswer(WireStruct):
    counts: dict[str, int]
    pods: list[QueuedRow]
    """The pods whose name contains the search text."""
    left_out: bool


class PodFacts(WireStruct):
    pod: str
    scheduler: str
    created: float | None
    priority: int
    requests: dict[str, str]
    labels: dict[str, str]
    owner: str
    node: str
    is_assumed: bool
    """Assigned to the node, but not confirmed by the API server yet."""
    phase: str
    nominated: str
    queued: QueuedRow | None
    first_tried: float | None
    group: str = ""
    """The pod group that it is decided with."""


def describe_queue(source: Source, search: str) -> QueueAnswer:
    scheduler = running_scheduler(source)
    rows = list(islice(_waiting_rows(source, scheduler, search), MAX_QUEUED + 1))
    counts = scheduler.queue.counts() | {"permit": sum(1 for _ in scheduler.waiting)}
    return QueueAnswer(counts=counts, pods=rows[:MAX_QUEUED], left_out=len(rows) > MAX_QUEUED)


def describe_pod(source: Source, key: str) -> PodFacts | None:
    """None for a pod that is deleted, or that has no node and another scheduler."""
    scheduler = running_scheduler(source)
    pod = find_pod(scheduler, key)
    if pod is None:
        return None
    queued = next((each for each in scheduler.queue if each.pod.uid == pod.uid), None)
    owner, group = pod.controller, scheduler.cluster.group_of(pod)
    return PodFacts(
        pod=key,
        scheduler=pod.scheduler_name,
        created=read_time(pod.creation_timestamp),
        priority=pod.priority,
        requests={name: amount_text(name, amount) for name, amount in pod.requests.items() if amount},
        labels=dict(pod.labels),
        owner=f"{owner.kind} {owner.name}" if owner else "",
        node=pod.node_name,
        is_assumed=scheduler.cluster.is_assumed(pod),
        phase=pod.phase,
        nominated=pod.nominated_node_name,
        queued=None if queued is None else _queued_row(source, queued),
        first_tried=None if queued is None else queued.initial_attempt_timestamp,
        group="" if group is None else str(group),
    )


def _waiting_rows(source: Source, scheduler: Scheduler, search: str) -> Iterator[QueuedRow]:
    for queued in scheduler.queue:
        if search in queued.pod.key:
            yield _queued_row(source, queued)
    for held in scheduler.waiting:
        if search in held.pod.key:
            yield _row(source, held.pod, "permit", plugins=list(held.plugins))


def _queued_row(source: Source, queued: QueuedPod) -> QueuedRow:
    is_gated = queued.place is Place.GATED
    row = _row(
        source,
        queued.pod,
        str(queued.place),
        plugins=[queued.gating_plugin] if is_gated else sorted(queued.rejectors),
    )
    row.attempts, row.since = queued.attempts, queued.timestamp
    row.until = queued.backoff_expiration if queued.place is Place.BACKOFF else None
    row.nominated = queued.nominated_node
    return row


def _row(source: Source, pod: Pod, place: str, plugins: list[str]) -> QueuedRow:
    attempts = source.decisions.recent.of(pod.key)
    last = attempts[0].attempt if attempts else None
    return QueuedRow(
        pod=pod.key,
        place=place,
        priority=pod.priority,
        attempts=last.number if last else 0,
        since=last.time if last else 0.0,
        until=None,
        plugins=plugins,
        message=last.message if last else "",
        nominated=pod.nominated_node_name,
    )


MAX_GROUPS, GROUPS_AT_ONCE = 1_000, 50


class GroupsAnswer(WireStruct):
    counts: dict[str, int]
    """How many groups are in which state."""
    groups: list[GroupReport]
    """The groups whose name contains the search text, without members and domains."""
    left_out: bool
    is_reading: bool
    """Whether a plugin of the scheduler reads pod groups."""


async def describe_groups(source: Source, search: str) -> GroupsAnswer:
    scheduler = running_scheduler(source)
    groups, pending = scheduler.cluster.groups, _pending_by_group(scheduler)
    rows = []
    for number, key in enumerate(groups.known_keys(), 1):
        rows.append(_group_row(source, scheduler, key, pending.get(key, ())))
        if number % GROUPS_AT_ONCE == 0:
            await asyncio.sleep(0)  # thousands of groups must not delay scheduling
    found = [row for row in rows if search in row.group]
    return GroupsAnswer(
        counts=Counter(row.state for row in rows),
        groups=found[:MAX_GROUPS],
        left_out=len(found) > MAX_GROUPS,
        is_reading=bool(groups.families),
    )


def _pending_by_group(scheduler: Scheduler) -> dict[GroupKey, list[Pod]]:
    groups, found = scheduler.cluster.groups, dict[GroupKey, list[Pod]]()
    for pod in scheduler.handlers.pending.values() if groups.families else ():
        key = groups.key_of(pod)
        if key is not None and scheduler.cluster.pod(pod.uid) is None:
            found.setdefault(key, []).append(pod)
    return found


def _group_row(source: Source, scheduler: Scheduler, key: GroupKey, pending: Sequence[Pod]) -> GroupReport:
    """A group with the reason of its last attempt, or of the plugins that keep it from being attempted."""
    row = outline(scheduler.cluster.groups, key, pending, time.time())
    if not pending or row.state == "missing":
        return row
    gate = scheduler.queue.gate_message(pending[0].uid)
    if gate:
        return msgspec.structs.replace(row, state="gated", message=gate)
    records = (source.decisions.recent.of(pod.key) for pod in pending)
    last = next((attempts[0] for attempts in records if attempts and attempts[0].group), None)
    if last is None:
        return row
    return msgspec.structs.replace(row, why=(*row.why, last.group.partition(": ")[2]))
