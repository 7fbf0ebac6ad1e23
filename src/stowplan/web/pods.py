"""Pods for the page: those that wait and for what, and what is known of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from stowplan.api.amounts import amount_text
from stowplan.api.meta import parse_time
from stowplan.api.pod import Pod
from stowplan.journal.wire import WireStruct
from stowplan.queue.waiting import Place, QueuedPod
from stowplan.scheduler.scheduler import Scheduler
from stowplan.web.source import Source, pod_of, running

LISTED = 1_000


class QueuedRow(WireStruct):
    pod: str
    place: str
    priority: int
    attempts: int
    since: float
    """When it came, or came back."""
    until: float | None
    """When its backoff ends."""
    plugins: list[str]
    message: str
    """Of its last attempt."""
    nominated: str


class QueueAnswer(WireStruct):
    counts: dict[str, int]
    pods: list[QueuedRow]
    """Those whose name has the text that was searched for."""
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
    """Placed by us, and nobody has confirmed it yet."""
    phase: str
    nominated: str
    queued: QueuedRow | None
    first_tried: float | None


def queue_answer(source: Source, search: str) -> QueueAnswer:
    scheduler = running(source)
    rows = list(islice(_waiting(source, scheduler, search), LISTED + 1))
    counts = scheduler.queue.counts() | {"permit": sum(1 for _ in scheduler.waiting)}
    return QueueAnswer(counts=counts, pods=rows[:LISTED], left_out=len(rows) > LISTED)


def pod_facts(source: Source, key: str) -> PodFacts | None:
    """None for a pod that is gone, or of another scheduler and without a node."""
    scheduler = running(source)
    pod = pod_of(scheduler, key)
    if pod is None:
        return None
    queued = next((each for each in scheduler.queue if each.pod.uid == pod.uid), None)
    owner = pod.controller
    return PodFacts(
        pod=key,
        scheduler=pod.scheduler_name,
        created=parse_time(pod.creation_timestamp) if pod.creation_timestamp else None,
        priority=pod.priority,
        requests={name: amount_text(name, amount) for name, amount in pod.requests.items() if amount},
        labels=dict(pod.labels),
        owner=f"{owner.kind} {owner.name}" if owner else "",
        node=pod.node_name,
        is_assumed=scheduler.cluster.is_assumed(pod),
        phase=pod.phase,
        nominated=pod.nominated_node_name,
        queued=None if queued is None else _queued(source, queued),
        first_tried=None if queued is None else queued.initial_attempt_timestamp,
    )


def _waiting(source: Source, scheduler: Scheduler, search: str) -> Iterator[QueuedRow]:
    for queued in scheduler.queue:
        if search in queued.pod.key:
            yield _queued(source, queued)
    for held in scheduler.waiting:
        if search in held.pod.key:
            yield _row(source, held.pod, "permit", plugins=list(held.plugins))


def _queued(source: Source, queued: QueuedPod) -> QueuedRow:
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
