"""The controller of StickyJobs: makes their pods, and keeps their status, from what the API shows alone.

Every pass looks at whole jobs: what was missed, by a crash or a lost write, the next pass makes up for. What
has ended is written down before its pod is replaced, so that nothing is counted twice or not at all.
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
from stowplan.sticky.job_status import Note, next_pod_at, slot_now, slots_of, status_of
from stowplan.sticky.memory import (
    Key,
    Memories,
    StickyArgs,
    bound,
    ended,
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
LOOK_AGAIN_SECONDS = 5.0
"""For changes of nodes, for what failed, and for pods that should have shown by then."""
LONGEST_LABEL = 63
LOOK_SECONDS = 5.0
PODS_A_TURN = 2000
"""After so many others get their turn."""


class Answer(NamedTuple):
    """What the API server made of a status that we wrote."""

    over: str
    """The version before."""
    job: StickyJob

    @property
    def is_unchanged(self) -> bool:
        """Whether it has kept nothing of it."""
        return self.job.metadata.resource_version == self.over


class StickyJobs:
    def __init__(self, args: StickyArgs, handle: Handle) -> None:
        self._handle, self._kind = handle, kinds_in(args.group, args.version).job
        self._jobs, self._pods = handle.watched(self._kind), handle.watched(JobPod)
        self._seen = (-1, -1)
        self._look_at = 0.0
        self._answers: dict[str, Answer] = {}
        self._created: dict[str, float] = {}
        """Pods that a watch need not show yet, and since when."""
        self._faults: dict[str, Note] = {}
        """By job: why the API server did not take its pods."""
        self._told: dict[str, tuple[str, Note]] = {}

    async def run(self) -> None:
        while True:
            seen = (self._jobs.version, self._pods.version)
            if seen != self._seen or self._handle.now() >= self._look_at:
                self._seen = seen
                await self.look_at_all()
            await asyncio.sleep(TICK_SECONDS)

    async def look_at_all(self) -> None:
        self._look_at = self._handle.now() + LOOK_AGAIN_SECONDS
        pods = self._pods_by_owner()
        for job in list(self._jobs):
            try:
                await self._look_at_one(job, pods.get(job.metadata.uid, {}))
            except Conflict:
                continue  # changed by others meanwhile, which the watch is about to show
            except ApiError as error:
                log.error("StickyJob not reconciled; trying again", error.explanation, stickyJob=job.key)
            except Exception as error:  # whatever is wrong with one job, the others go on
                log.error("StickyJob not understood; trying again", error, stickyJob=job.key)
            await asyncio.sleep(0)
        for key in {*self._answers, *self._faults, *self._told}:
            if self._jobs.get(key) is None:
                for known in (self._answers, self._faults, self._told):
                    known.pop(key, None)

    def _pods_by_owner(self) -> dict[str, dict[int, JobPod]]:
        found: dict[str, dict[int, JobPod]] = {}
        for pod in self._pods:
            self._created.pop(pod.key, None)
            owner, index = pod.metadata.controller(), pod.metadata.labels.get(INDEX_LABEL, "")
            if owner is not None and index.isdecimal():
                found.setdefault(owner.uid, {})[int(index)] = pod
        return found

    async def _look_at_one(self, job: StickyJob, pods: Mapping[int, JobPod]) -> None:
        job = self._newest(job)
        if job.metadata.deletion_timestamp is not None:
            return
        cluster, now = self._handle.cluster, self._handle.now()
        known, slots = slots_of(job), dict[int, Slot]()
        notes: list[Note] = []
        for index in sorted(known.keys() | pods.keys() | set(range(job.spec.replicas))):
            news = slot_now(job, known.get(index, Slot(index=index)), pods.get(index), cluster, now)
            slots[index] = news.slot
            notes += news.notes
        lost = _lost_template(job)
        status = status_of(job, slots, pods, cluster.nodes, lost or self._faults.get(job.key), now)
        if status != job.status and (lost is not None or not self._is_futile(job)):
            job = await self._write(job, status)
            lost = _lost_template(job)
        for note in notes:
            self._handle.record_event(job, note.type, note.reason, note.text)
        if lost is not None:
            self._tell_once(job, lost)
        else:
            await self._keep_pods(job, slots, pods, now)

    def _newest(self, job: StickyJob) -> StickyJob:
        """The watch may be a moment behind our own write.

        It may also show less than there is: one that began before a CustomResourceDefinition was replaced
        goes on for minutes without the fields that only the new one has.
        """
        answer, version = self._answers.get(job.key), job.metadata.resource_version
        is_ours = answer is not None and version in (answer.over, answer.job.metadata.resource_version)
        return answer.job if answer is not None and is_ours else job

    def _is_futile(self, job: StickyJob) -> bool:
        """Whether this version was written already, and the API server dropped what it does not know."""
        answer = self._answers.get(job.key)
        return answer is not None and answer.job is job and answer.is_unchanged

    async def _write(self, job: StickyJob, status: StickyJobStatus) -> StickyJob:
        fresh = await self._handle.api.update_status(msgspec.structs.replace(job, status=status))
        assert isinstance(fresh, StickyJob)
        self._answers[job.key] = Answer(job.metadata.resource_version, fresh)
        return fresh

    async def _keep_pods(
        self, job: StickyJob, slots: Mapping[int, Slot], pods: Mapping[int, JobPod], now: float
    ) -> None:
        """Makes the pods that are missing, and takes away those that are too many or to be replaced."""
        fault: Note | None = None
        for index, slot in slots.items():
            pod = pods.get(index)
            if index >= job.spec.replicas:
                await self._delete(pod)
                continue
            due = next_pod_at(job, slot) if pod is None or pod.is_finished else None
            if due is not None and due > now:
                self._look_at = min(self._look_at, due)
            elif due is not None and pod is None:
                fault = await self._create(job, index, now) or fault
            elif due is not None:
                await self._delete(pod)
        if fault is None:
            self._faults.pop(job.key, None)
        else:
            self._faults[job.key] = fault
            self._tell_once(job, fault)

    async def _create(self, job: StickyJob, index: int, now: float) -> Note | None:
        """What kept the pod from being made, if something did."""
        pod = pod_of(job, index, self._handle.scheduler_name)
        if now - self._created.get(pod.key, -LOOK_AGAIN_SECONDS) < LOOK_AGAIN_SECONDS:
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
            return  # gone already

    def _tell_once(self, job: StickyJob, note: Note) -> None:
        """An event, unless it is the last thing that was said of this version of the job's spec."""
        said = (f"{job.metadata.uid} {job.metadata.generation}", note)
        if self._told.get(job.key) != said:
            self._told[job.key] = said
            self._handle.record_event(job, note.type, note.reason, note.text)


def _lost_template(job: StickyJob) -> Note | None:
    if job.spec.template.get("spec"):
        return None
    where = job.definition
    return Note(
        "Warning",
        "TemplateMissing",
        "spec.template is empty: most likely the CustomResourceDefinition "
        f"{where.plural}.{where.group} of this cluster drops it; `stowplan crd Sticky | kubectl apply -f -`, "
        "then apply this StickyJob again",
    )


def pod_of(job: StickyJob, index: int, scheduler_name: str) -> JobPod:
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
    # A pod that is to run once must be able to end.
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
    """A name as the value of a label, which may be shorter than names are."""
    if len(name) <= LONGEST_LABEL:
        return name
    return f"{name[: LONGEST_LABEL - 11]}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"


class StickyRecords:
    def __init__(self, args: StickyArgs, handle: Handle) -> None:
        self._args, self._handle, self._memories = args, handle, Memories(args, handle)
        self._kind = self._memories.kinds.record
        self._records = handle.watched(self._kind)

    async def run(self) -> None:
        while True:
            if self._records.is_served:
                await self.look_at_all()
            await asyncio.sleep(LOOK_SECONDS)

    async def look_at_all(self) -> None:
        running: set[str] = set()
        for number, pod in enumerate(list(self._handle.cluster.pods())):
            running.add(pod.uid)
            if number % PODS_A_TURN == PODS_A_TURN - 1:
                await asyncio.sleep(0)
            key = self._memories.key_of(pod)
            if key is not None and key.kind == "StickyRecord" and not self._handle.cluster.is_assumed(pod):
                await self._note(key, pod)
        for record in list(self._records):
            if record.spec.pod_uid and record.spec.pod_uid not in running:
                await self._note_end(record)

    async def _note(self, key: Key, pod: Pod) -> None:
        """A bound pod that its record does not know, unless the one that it knows is still there."""
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
        place = bound(memory.place, stay, domain=domain, pod_name=pod.name, limit=limit)
        owners = self._memories.owners_of_record(pod)
        await self._trying(write_record(self._handle, self._kind, key.namespace, key.part, owners, place))

    async def _note_end(self, record: StickyRecord) -> None:
        spec, now, limit = record.spec, self._handle.now(), self._args.forget_after_seconds
        finished = seconds_of(spec.finished_at)
        if finished is None and (place := ended(spec, spec.pod_uid, "Deleted", wire_time(now))) != spec:
            owners = record.metadata.owner_references
            await self._trying(
                write_record(self._handle, self._kind, record.namespace, spec.key, owners, place)
            )
        elif finished is not None and limit is not None and now - finished > limit:
            await self._trying(self._handle.api.delete(record))

    async def _trying(self, write: Awaitable[None]) -> None:
        try:
            await write
        except NotFound:
            return  # gone already
        except ApiError as error:  # the others go on, and this one is looked at again
            log.error("StickyRecord not written; trying again", error.explanation)
