"""The controllers of StickyJobs and StickyRecords.

Each pass reconciles whole jobs, and so makes up for what a crash or a lost write left undone. A pod's end
is stored before the pod is replaced, so that it is counted exactly once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple

import msgspec

from stowplan import log
from stowplan.api.meta import OwnerReference
from stowplan.api.pod import Pod
from stowplan.client.errors import ApiError, Conflict, NotFound
from stowplan.framework import Handle
from stowplan.sticky.job_status import Note, compute_status, next_pod_at, slots_of, update_slot
from stowplan.sticky.memory import (
    Key,
    Memories,
    StickyArgs,
    record_binding,
    record_end,
    seconds_of,
    wire_time,
    write_record,
)
from stowplan.sticky.resources import (
    INDEX_LABEL,
    JOB_LABEL,
    JobPod,
    PodMeta,
    Slot,
    Stay,
    StickyJob,
    StickyJobStatus,
    StickyRecord,
    kinds_in,
)
from stowplan.sticky.rules import domain_of

TICK_SECONDS = 0.2
RESYNC_SECONDS = 5.0
"""How often to reconcile without a change: for nodes, failed writes and pods that the watch should show."""
MAX_LABEL_LENGTH = 63
RECORDS_RESYNC_SECONDS = 5.0
PODS_PER_TURN = 2000
"""After so many pods the event loop runs other tasks."""


class WrittenStatus(NamedTuple):
    """The API server's answer to a status update."""

    replaced_version: str
    job: StickyJob

    @property
    def is_unchanged(self) -> bool:
        """Whether the API server stored nothing of it."""
        return self.job.metadata.resource_version == self.replaced_version


class StickyJobs:
    def __init__(self, args: StickyArgs, handle: Handle) -> None:
        self._handle, self._kind = handle, kinds_in(args.group, args.version).job
        self._jobs, self._pods = handle.watched(self._kind), handle.watched(JobPod)
        self._seen = (-1, -1)
        self._next_pass = 0.0
        self._written: dict[str, WrittenStatus] = {}
        self._created: dict[str, float] = {}
        """Pods created, by time, that the watch may not show yet."""
        self._faults: dict[str, Note] = {}
        """Why the API server rejected the pods of each job."""
        self._reported: dict[str, tuple[str, Note]] = {}

    async def run(self) -> None:
        while True:
            seen = (self._jobs.version, self._pods.version)
            if seen != self._seen or self._handle.now() >= self._next_pass:
                self._seen = seen
                await self.reconcile_all()
            await asyncio.sleep(TICK_SECONDS)

    async def reconcile_all(self) -> None:
        self._next_pass = self._handle.now() + RESYNC_SECONDS
        pods = self._pods_by_owner()
        for job in list(self._jobs):
            try:
                await self._reconcile(job, pods.get(job.metadata.uid, {}))
            except Conflict:
                continue  # someone else changed it; the watch will show how
            except ApiError as error:
                log.error("Failed to reconcile StickyJob, will retry", error.explanation, stickyJob=job.key)
            except Exception as error:  # one broken job must not stop the others
                log.error("Failed to process StickyJob, will retry", error, stickyJob=job.key)
            await asyncio.sleep(0)
        for key in {*self._written, *self._faults, *self._reported}:
            if self._jobs.get(key) is None:
                for known in (self._written, self._faults, self._reported):
                    known.pop(key, None)

    def _pods_by_owner(self) -> dict[str, dict[int, JobPod]]:
        found: dict[str, dict[int, JobPod]] = {}
        for pod in self._pods:
            self._created.pop(pod.key, None)
            owner, index = pod.metadata.controller(), pod.metadata.labels.get(INDEX_LABEL, "")
            if owner is not None and index.isdecimal():
                found.setdefault(owner.uid, {})[int(index)] = pod
        return found

    async def _reconcile(self, job: StickyJob, pods: Mapping[int, JobPod]) -> None:
        job = self._newest(job)
        if job.metadata.deletion_timestamp is not None:
            return
        cluster, now = self._handle.cluster, self._handle.now()
        known, slots = slots_of(job), dict[int, Slot]()
        notes: list[Note] = []
        for index in sorted(known.keys() | pods.keys() | set(range(job.spec.replicas))):
            news = update_slot(job, known.get(index, Slot(index=index)), pods.get(index), cluster, now)
            slots[index] = news.slot
            notes += news.notes
        lost = _missing_template(job)
        status = compute_status(job, slots, pods, self._handle, lost or self._faults.get(job.key))
        if status != job.status and (lost is not None or not self._is_futile(job)):
            job = await self._write(job, status)
            lost = _missing_template(job)
        for note in notes:
            self._handle.record_event(job, note.type, note.reason, note.text)
        if lost is not None:
            self._report_once(job, lost)
        else:
            await self._keep_pods(job, slots, pods, now)

    def _newest(self, job: StickyJob) -> StickyJob:
        """The job as last written, if the watch does not show a newer one.

        The watch may lag behind our own write. It may also drop fields: a watch that began before the CRD was
        replaced lacks the new CRD's fields for minutes.
        """
        answer, version = self._written.get(job.key), job.metadata.resource_version
        is_ours = answer is not None and version in (
            answer.replaced_version,
            answer.job.metadata.resource_version,
        )
        return answer.job if answer is not None and is_ours else job

    def _is_futile(self, job: StickyJob) -> bool:
        """Whether this status was written before and the API server dropped its unknown fields."""
        answer = self._written.get(job.key)
        return answer is not None and answer.job is job and answer.is_unchanged

    async def _write(self, job: StickyJob, status: StickyJobStatus) -> StickyJob:
        fresh = await self._handle.api.update_status(msgspec.structs.replace(job, status=status))
        assert isinstance(fresh, StickyJob)
        self._written[job.key] = WrittenStatus(job.metadata.resource_version, fresh)
        return fresh

    async def _keep_pods(
        self, job: StickyJob, slots: Mapping[int, Slot], pods: Mapping[int, JobPod], now: float
    ) -> None:
        """Create missing pods and delete surplus or finished ones."""
        fault: Note | None = None
        for index, slot in slots.items():
            pod = pods.get(index)
            if index >= job.spec.replicas:
                await self._delete(pod)
                continue
            due = next_pod_at(job, slot) if pod is None or pod.is_finished else None
            if due is not None and due > now:
                self._next_pass = min(self._next_pass, due)
            elif due is not None and pod is None:
                fault = await self._create(job, index, now) or fault
            elif due is not None:
                await self._delete(pod)
        if fault is None:
            self._faults.pop(job.key, None)
        else:
            self._faults[job.key] = fault
            self._report_once(job, fault)

    async def _create(self, job: StickyJob, index: int, now: float) -> Note | None:
        """Return why the pod could not be created, if so."""
        pod = make_pod(job, index, self._handle.scheduler_name)
        if now - self._created.get(pod.key, -RESYNC_SECONDS) < RESYNC_SECONDS:
            return None
        is_ours = pod.key in self._created
        try:
            await self._handle.api.create(pod)
        except Conflict as error:
            return None if is_ours else Note("Warning", "FailedCreate", f"pod {pod.name}: {error.message}")
        except ApiError as error:
            if error.may_pass:
                raise
            return Note("Warning", "FailedCreate", f"pod {pod.name}: {error.message}")
        self._created[pod.key] = now
        self._handle.record_event(job, "Normal", "SuccessfulCreate", f"created pod {pod.name}")
        return None

    async def _delete(self, pod: JobPod | None) -> None:
        if pod is None or pod.metadata.deletion_timestamp is not None:
            return
        try:
            await self._handle.api.delete(pod)
        except NotFound:
            return  # already deleted

    def _report_once(self, job: StickyJob, note: Note) -> None:
        """Record an event unless it repeats the last one for this version of the job's spec."""
        report = (f"{job.metadata.uid} {job.metadata.generation}", note)
        if self._reported.get(job.key) != report:
            self._reported[job.key] = report
            self._handle.record_event(job, note.type, note.reason, note.text)


def _missing_template(job: StickyJob) -> Note | None:
    if job.spec.template.get("spec"):
        return None
    where = job.definition
    return Note(
        "Warning",
        "TemplateMissing",
        "spec.template is empty: the CustomResourceDefinition "
        f"{where.plural}.{where.group} of this cluster probably drops it; run "
        "`stowplan crd Sticky | kubectl apply -f -`, then apply this StickyJob again",
    )


def make_pod(job: StickyJob, index: int, scheduler_name: str) -> JobPod:
    template = job.spec.template
    meta: dict[str, Any] = template.get("metadata") or {}
    where = job.definition
    owner = OwnerReference(
        api_version=where.api_version,
        kind=where.kind,
        name=job.name,
        uid=job.metadata.uid,
        controller=True,
    )
    ours = {JOB_LABEL: label_value(job.name), INDEX_LABEL: str(index)}
    # A pod that runs once must be able to finish.
    defaults = {"schedulerName": scheduler_name}
    if job.spec.run_policy == "Once":
        defaults["restartPolicy"] = "Never"
    return JobPod(
        metadata=PodMeta(
            name=f"{job.name}-{index}",
            namespace=job.namespace,
            labels={**(meta.get("labels") or {}), **ours},
            annotations=dict(meta.get("annotations") or {}),
            finalizers=tuple(meta.get("finalizers") or ()),
            owner_references=(owner,),
        ),
        spec=defaults | template["spec"],
    )


def label_value(name: str) -> str:
    """Shorten a name to fit a label value."""
    if len(name) <= MAX_LABEL_LENGTH:
        return name
    return f"{name[: MAX_LABEL_LENGTH - 11]}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"


class StickyRecords:
    def __init__(self, args: StickyArgs, handle: Handle) -> None:
        self._args, self._handle, self._memories = args, handle, Memories(args, handle)
        self._kind = self._memories.kinds.record
        self._records = handle.watched(self._kind)

    async def run(self) -> None:
        while True:
            if self._records.is_served:
                await self.reconcile_all()
            await asyncio.sleep(RECORDS_RESYNC_SECONDS)

    async def reconcile_all(self) -> None:
        running: set[str] = set()
        for number, pod in enumerate(list(self._handle.cluster.pods())):
            running.add(pod.uid)
            if number % PODS_PER_TURN == PODS_PER_TURN - 1:
                await asyncio.sleep(0)
            key = self._memories.key_of(pod)
            if key is not None and key.kind == "StickyRecord" and not self._handle.cluster.is_assumed(pod):
                await self._record_pod(key, pod)
        for record in list(self._records):
            if record.spec.pod_uid and record.spec.pod_uid not in running:
                await self._record_end(record)

    async def _record_pod(self, key: Key, pod: Pod) -> None:
        """Store a bound pod that its record lacks, unless the stored pod still exists."""
        memory, cluster = self._memories.of(pod), self._handle.cluster
        if memory is None or pod.is_terminating or cluster.pod(memory.place.pod_uid) is not None:
            return
        row = cluster.nodes.row_of(pod.node_name)
        node = None if row is None else cluster.nodes.objects[row]
        stay = Stay(
            node=pod.node_name,
            node_uid="" if node is None else node.metadata.uid,
            pod_uid=pod.uid,
            bound_at=wire_time(self._handle.now()),
        )
        domain, limit = domain_of(memory.policy, node), memory.policy.history_limit
        place = record_binding(memory.place, stay, domain=domain, pod_name=pod.name, limit=limit)
        owners = self._memories.owners_of_record(pod)
        await self._write(write_record(self._handle, self._kind, key.namespace, key.part, owners, place))

    async def _record_end(self, record: StickyRecord) -> None:
        spec, now, limit = record.spec, self._handle.now(), self._args.forget_after_seconds
        finished = seconds_of(spec.finished_at)
        if finished is None and (place := record_end(spec, spec.pod_uid, "Deleted", wire_time(now))) != spec:
            owners = record.metadata.owner_references
            await self._write(
                write_record(self._handle, self._kind, record.namespace, spec.key, owners, place)
            )
        elif finished is not None and limit is not None and now - finished > limit:
            await self._write(self._handle.api.delete(record))

    async def _write(self, write: Awaitable[None]) -> None:
        try:
            await write
        except NotFound:
            return  # already deleted
        except ApiError as error:  # the next pass tries this one again
            log.error("Failed to write StickyRecord, will retry", error.explanation)
