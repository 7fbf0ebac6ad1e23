"""The controller of StickyJobs: makes their pods, and keeps their status, from what the API shows alone.

Every pass looks at whole jobs: what was missed, by a crash or a lost write, the next pass makes up for. What
has ended is written down before its pod is replaced, so that nothing is counted twice or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from stowplan import log
from stowplan.client.errors import ApiError, Conflict, NotFound
from stowplan.framework import Handle
from stowplan.sticky.job_status import Note, next_pod_at, slot_now, slots_of
from stowplan.sticky.memory import StickyArgs
from stowplan.sticky.pods import pod_of
from stowplan.sticky.resources import (
    INDEX_LABEL,
    JobPod,
    Slot,
    StickyJob,
    StickyJobStatus,
    kinds_in,
)
from stowplan.sticky.status import status_of

TICK_SECONDS = 0.2
LOOK_AGAIN_SECONDS = 5.0
"""For changes of nodes, for what failed, and for pods that should have shown by then."""


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
