"""Failed attempts: the pod is requeued with a condition and an event, and pods may be evicted for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Literal

from stowplan import log
from stowplan.api.custom import CustomResource
from stowplan.api.meta import Object, UnreadableObject
from stowplan.api.pod import Pod
from stowplan.client.errors import ApiError, Conflict, NotFound
from stowplan.client.events import EventRecorder, Regarding, truncate
from stowplan.errors import PluginError
from stowplan.framework.answers import stack_of
from stowplan.framework.decision import Decision
from stowplan.framework.plugin import Plugin
from stowplan.framework.profile import Profile
from stowplan.framework.status import Code
from stowplan.queue.scheduling_queue import SchedulingQueue
from stowplan.queue.waiting import QueuedPod
from stowplan.scheduler.shared import Attempt, Failure, RetryDelay, Shared, failure_of

UNCHANGED: None = None
NOBODY = ""
GATED_SECONDS = 2.0
"""A pod that waits for the rest of its group says so after this time."""
MAX_KEPT = 1000
"""So many events of plugins are kept by a scheduler that does not lead."""
MAX_MESSAGE_BYTES = 2**18
"""kube-scheduler writes any message, but an API server rejects a pod that grows past about 1.5 MB by it."""

PluginEvent = tuple[str, Pod | CustomResource, Literal["Normal", "Warning"], str, str]
"""Profile, object, type, reason and note."""


class PodReporter:
    """Writes events, and the status of pods."""

    def __init__(self, shared: Shared, recorders: Mapping[str, EventRecorder]) -> None:
        self._shared, self.recorders = shared, recorders
        self._kept: dict[tuple[str, str], PluginEvent] = {}
        """Events of plugins, kept until this instance leads: the last of each object and reason."""
        self.gated: dict[str, float] = {}
        """Since when pods of groups are held back, by uid."""

    def record(
        self,
        profile: str,
        item: Pod | Object,
        kind: Literal["Normal", "Warning"],
        reason: str,
        note: str,
        action: str = "Scheduling",
    ) -> None:
        self.recorders[profile].record(item, kind, reason, action, note)

    def record_for_plugin(
        self, profile: str, item: Pod | Object, kind: Literal["Normal", "Warning"], reason: str, note: str
    ) -> None:
        """Record an event of a plugin, which every scheduler runs but only the leader reports.

        A plugin reports an object once, when it sees it, so that a standby must keep what is reported.
        """
        if self._shared.is_leading():
            self.record(profile, item, kind, reason, note)
        elif isinstance(item, Pod | CustomResource):
            key = (item.uid if isinstance(item, Pod) else item.metadata.uid, reason)
            self._kept.pop(key, None)
            if len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = (profile, item, kind, reason, truncate(note))

    def record_kept(self) -> None:
        """Record what plugins have reported before we led, as far as it can still be true."""
        kept, self._kept = self._kept, {}
        for event in kept.values():
            if self._is_as_reported(event[1]):
                self.record(*event)

    def _is_as_reported(self, item: Pod | CustomResource) -> bool:
        if isinstance(item, Pod):
            return item.uid in self._shared.pending
        known = self._shared.cluster.stored(item)
        return isinstance(known, CustomResource) and _content(known) == _content(item)

    def report_fault(self, pod: Pod, error: PluginError) -> None:
        """Report that a plugin failed while the pod was put into the queue, so that it is not attempted."""
        log.error("Plugin failed", error, pod=pod, stacktrace=error.stack)
        if self._shared.is_leading():
            self._report(pod, Failure(str(error)))

    def report_unreadable(self, pod: Pod) -> None:
        """Report a pod that cannot be read, or only in part, and the node that is closed because of it."""
        if not self._shared.is_leading():
            return  # the leader reports it
        if not pod.node_name:
            self._report(pod, Failure(f"the pod cannot be read: {pod.fault}"))
            return
        recorder = self.recorders.get(pod.scheduler_name) or next(iter(self.recorders.values()))
        if pod.is_illegible:
            counted = "nothing can be read of what it takes, so no more pods are scheduled to its node"
        else:
            counted = "what can be read of it counts"
        recorder.record(pod, "Warning", "UnreadablePod", "Scheduling", f"{pod.fault}; {counted}")
        nodes = self._shared.cluster.nodes
        row = nodes.row_of(pod.node_name)
        if pod.is_illegible and row is not None:
            note = f"no pods are scheduled to this node, because pod {pod.key} cannot be read: {pod.fault}"
            recorder.record(nodes.objects[row], "Warning", "UnreadablePod", "Scheduling", note)

    def report_unreadable_object(self, kind: type[CustomResource], found: UnreadableObject) -> None:
        """Report an object that plugins do without, since it cannot be read."""
        if not self._shared.is_leading():
            return  # the leader reports it
        item = Regarding(*found[:4], kind.definition.kind, kind.definition.api_version)
        note = f"{found.fault}; plugins that watch it act as if it did not exist"
        next(iter(self.recorders.values())).record(item, "Warning", "UnreadableObject", "Scheduling", note)

    def _report(self, pod: Pod, failure: Failure) -> None:
        """Write the event and the condition of a pod that is not attempted."""
        self.record(pod.scheduler_name, pod, "Warning", "FailedScheduling", failure.message)
        patch = unscheduled_patch(pod, failure.reason, failure.message, UNCHANGED, self._shared.now())
        if patch:
            self._shared.tasks.start(self._patch_once(pod, patch), f"status of pod {pod.key}")

    async def _patch_once(self, pod: Pod, patch: dict[str, object]) -> None:
        await self.patch_status(pod, patch)

    async def patch_status(self, pod: Pod, patch: dict[str, object]) -> ApiError | None:
        """Why it was not written; None also if the pod has changed or is gone, with no more to write."""
        log.log(3, "Updating pod condition and nominated node name", pod=pod)
        try:
            await self._shared.api.patch_pod_status(pod, patch)
        except (NotFound, Conflict) as error:
            log.log(3, "Pod status not updated, the pod has changed or is gone", pod=pod, err=error)
        except ApiError as error:
            log.error("Error updating pod", error.explanation, pod=pod)
            return error
        return None

    def note_gated(self, pod: Pod, plugin: Plugin) -> None:
        """Remember a pod that is not attempted, unless its status gives a reason already."""
        if type(plugin).reports_gate is True and pod.condition("PodScheduled") is None:
            self.gated.setdefault(pod.uid, self._shared.clock())

    def report_gated(self, gate_message: Callable[[str], str]) -> None:
        """Report why pods are still held back after a while; before that, the rest of the group may
        arrive."""
        before = self._shared.clock() - GATED_SECONDS
        for uid in [uid for uid, since in self.gated.items() if since <= before]:
            del self.gated[uid]
            pod, message = self._shared.pending.get(uid), gate_message(uid)
            if pod is not None and message and self._shared.is_leading():
                self._report(pod, Failure(message, is_error=False))


class FailureHandler:
    """Ends attempts that failed. `pending` has the pods without a node, as last seen, by uid."""

    def __init__(
        self,
        shared: Shared,
        queue: SchedulingQueue,
        pending: Mapping[str, Pod],
        reporter: PodReporter,
    ) -> None:
        self._shared, self._queue, self._pending, self._reporter = shared, queue, pending, reporter
        self.evictor = Evictor(shared, queue, reporter)

    def is_pending(self, pod: Pod) -> bool:
        """Whether the pod is still there, and has no node."""
        return pod.uid in self._pending

    def handle_decision(
        self, attempt: Attempt, failure: Failure | None = None, *, also: Iterable[str] = ()
    ) -> None:
        """Requeue a pod for which no node was chosen, and evict others if that makes it fit.

        `failure` is that of the decision, if known. `also` names plugins that limited the search, so that
        their events can help, too.
        """
        decision = attempt.decision
        nominated = UNCHANGED if _keeps_nomination(decision) else decision.nominated or NOBODY
        failure = failure or failure_of(decision)
        if also:
            failure = failure._replace(rejectors=failure.rejectors.union(also))
        self.handle(attempt, failure, nominated)
        if decision.nominated is not None:
            self.evictor.start(attempt.profile, attempt.pod, decision.nominated, decision.victims)

    def handle(self, attempt: Attempt, failure: Failure, nominated: str | None) -> None:
        """Requeue the pod, with its event and condition.

        `nominated` names the node it is nominated to from now on: NOBODY clears it, UNCHANGED keeps it.
        """
        queued, queue = attempt.queued, self._queue
        pod = self._pending.get(queued.pod.uid)
        try:
            self._count_and_keep(attempt, failure, None if failure.is_moot else pod)
        except Exception as error:  # whatever cannot be reported, the pod must not be lost
            log.error("Failed attempt not recorded", error, pod=queued.pod, stacktrace=stack_of(error))
        if pod is None or failure.is_moot:
            # It was deleted, or someone else has bound it: what we would report is no longer true.
            queue.done(queued.pod.uid)
            log.log(3, "Pod is gone or has a node; not requeued", pod=queued.pod, err=failure.message)
            return
        queued.pod = pod
        queue.return_failed(
            queued,
            rejectors=failure.rejectors,
            pending=failure.pending,
            seconds=attempt.seconds,
            waits_out_backoff=failure.is_of_group,
        )
        queue.nominate(pod, nominated)
        profile = attempt.profile.scheduler_name
        self._reporter.record(profile, pod, "Warning", "FailedScheduling", failure.message)
        patch = unscheduled_patch(pod, failure.reason, failure.message, nominated, self._shared.now())
        if patch:
            work = self._write_status(queued, patch)
            self._shared.tasks.start(work, f"status of pod {pod.key}", is_plain=True)

    def report_skipped(self, profile: Profile, pod: Pod) -> None:
        """Report that a pod is not attempted, since it is being deleted."""
        note = f"skip schedule deleting pod: {pod.key}"
        self._reporter.record(profile.scheduler_name, pod, "Warning", "FailedScheduling", note)

    def _count_and_keep(self, attempt: Attempt, failure: Failure, pod: Pod | None) -> None:
        self._shared.metrics.attempt(
            attempt.profile.scheduler_name,
            "error" if failure.is_error else "unschedulable",
            self._shared.clock() - attempt.began,
        )
        if pod is not None:
            _log(pod, failure, has_nodes=bool(attempt.decision.names))
            if self._shared.recorder is not None:
                self._shared.recorder.record_failed(attempt, failure)

    async def _write_status(self, queued: QueuedPod, patch: dict[str, object]) -> None:
        """Retry until it is written or outdated: it may be all that people see for minutes."""
        pod, attempts, delay = queued.pod, queued.attempts, RetryDelay()
        while (error := await self._reporter.patch_status(pod, patch)) is not None:
            if not await delay.pause(error) or queued.attempts != attempts or pod.uid not in self._pending:
                return


class Evictor:
    """Carries out preemption: victims are evicted, and the pod waits for the capacity that they free."""

    def __init__(self, shared: Shared, queue: SchedulingQueue, reporter: PodReporter) -> None:
        self._shared, self._queue, self._reporter = shared, queue, reporter

    def start(self, profile: Profile, pod: Pod, node_name: str, victims: tuple[Pod, ...]) -> None:
        """Start the evictions; until they are sent, the pod is held back."""
        shared = self._shared
        shared.metrics.preempted(len(victims))
        log.log(
            2,
            "the target node for the preemption is determined",
            pod=pod,
            node=node_name,
            victims=len(victims),
        )
        if victims:
            shared.nominations.evicting[pod.uid] = victims[-1].uid
            work = self._evict_all(profile, pod, node_name, victims)
            shared.tasks.start(work, f"preemption for pod {pod.key}")

    async def _evict_all(self, profile: Profile, pod: Pod, node_name: str, victims: tuple[Pod, ...]) -> None:
        shared = self._shared
        began, has_failed = shared.clock(), True
        try:
            await self._clear_nominations(pod, node_name)
            await asyncio.gather(*(self._evict(profile, pod, node_name, each) for each in victims[:-1]))
            await self._evict(profile, pod, node_name, victims[-1])
            has_failed = False
        except ApiError as error:
            log.error("Error occurred during async preemption", error.explanation, pod=pod, node=node_name)
        finally:
            shared.nominations.evicting.pop(pod.uid, None)
            shared.metrics.victims_evicted("error" if has_failed else "success", shared.clock() - began)
            if has_failed:
                # parity: kube-scheduler retries at once, and so spins as long as the eviction is rejected
                self._queue.activate([pod], backoff=True)

    def start_group(
        self,
        profile: Profile,
        pods: Sequence[Pod],
        evictions: Sequence[tuple[Pod, str, tuple[Pod, ...]]],
        group_uid: str = "",
    ) -> None:
        """Start the evictions for a pod group: a pod, its node and its victims each.

        Until all of them are sent, all of these pods are held back. With `group_uid` the group is said to
        have preempted the victims.
        """
        shared = self._shared
        last = [victims[-1].uid for _, _, victims in evictions if victims][-1:]
        for pod in pods:
            shared.nominations.evicting.update((pod.uid, uid) for uid in last)
        shared.metrics.preempted(sum(len(victims) for _, _, victims in evictions))
        if last:
            work = self._evict_for_group(profile, pods, evictions, group_uid)
            shared.tasks.start(work, f"preemption for the group of pod {pods[0].key}")

    async def _evict_for_group(
        self,
        profile: Profile,
        pods: Sequence[Pod],
        evictions: Sequence[tuple[Pod, str, tuple[Pod, ...]]],
        group_uid: str,
    ) -> None:
        shared = self._shared
        began, has_failed = shared.clock(), True
        try:
            for pod, node_name, victims in evictions:
                await self._clear_nominations(pod, node_name, spared=pods)
                work = (self._evict(profile, pod, node_name, each, group_uid) for each in victims)
                await asyncio.gather(*work)
            has_failed = False
        except ApiError as error:
            log.error("Error occurred during async preemption", error.explanation, pod=pods[0])
        finally:
            for pod in pods:
                shared.nominations.evicting.pop(pod.uid, None)
            shared.metrics.victims_evicted("error" if has_failed else "success", shared.clock() - began)
            if has_failed:
                self._queue.activate(pods, backoff=True)

    async def _clear_nominations(self, pod: Pod, node_name: str, spared: Sequence[Pod] = ()) -> None:
        """Pods of lower priority that were nominated to the node must look again."""
        nominations, uids = self._shared.nominations, {each.uid for each in spared}
        for other in nominations.on(node_name):
            if other.priority < pod.priority and other.uid not in uids:
                self._shared.changes.make(partial(nominations.remove, other))
                await self._reporter.patch_status(other, {"status": {"nominatedNodeName": None}})

    async def _evict(
        self, profile: Profile, pod: Pod, node_name: str, victim: Pod, group_uid: str = ""
    ) -> None:
        api, name = self._shared.api, profile.scheduler_name
        waiting = self._shared.waiting.find(victim.uid)
        if waiting is None or not waiting.preempt("preempted"):
            try:
                what = "podgroup" if group_uid else "pod"
                await api.patch_pod_status(victim, disrupted_patch(victim, name, self._shared.now(), what))
                await api.delete(victim)
            except NotFound:
                return
        note = f"Preempted by pod {pod.uid} on node {node_name}"
        if group_uid:
            note = f"Preempted by podgroup {group_uid} on node cluster"
        self._reporter.record(name, victim, "Normal", "Preempted", note, "Preempting")


def _content(item: CustomResource) -> tuple[object, ...]:
    """What people write into an object: not its status, if that is a subresource."""
    left_out = ("metadata", "status") if item.definition.has_status else ("metadata",)
    fields = [getattr(item, name) for name in item.__struct_fields__ if name not in left_out]
    return (item.metadata.uid, item.metadata.annotations, *fields)


def _keeps_nomination(decision: Decision) -> bool:
    """Whether no other node was looked for, so that the pod stays nominated."""
    status = decision.post_filter
    return status is not None and (status.code is Code.ERROR or status.keeps_nomination)


def _log(pod: Pod, failure: Failure, *, has_nodes: bool) -> None:
    if failure.is_error:
        said = f"{failure.message}: {failure.advice}" if failure.advice else failure.message
        stack = {"stacktrace": failure.stack} if failure.stack else {}
        log.error("Error scheduling pod; retrying", said, pod=pod, **stack)
    elif not has_nodes:
        log.log(0, "Unable to schedule pod; no nodes are registered to the cluster; waiting", pod=pod)
    else:
        log.log(0, "Unable to schedule pod; no fit; waiting", pod=pod, err=failure.message)
        if failure.stack:
            log.error("Plugin failed", failure.message, pod=pod, stacktrace=failure.stack)


def unscheduled_patch(
    pod: Pod, reason: str, message: str, nominated: str | None, now: float
) -> dict[str, object]:
    """A strategic merge patch; empty if the pod says so already. `nominated` None leaves that as it is."""
    status: dict[str, object] = {}
    message = truncate(message, MAX_MESSAGE_BYTES)
    known = pod.condition("PodScheduled")
    if known is None or (known.status, known.reason, known.message) != ("False", reason, message):
        condition: dict[str, object] = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "observedGeneration": pod.generation,
        }
        if known is None or known.status != "False":
            condition |= {"lastProbeTime": None, "lastTransitionTime": timestamp(now)}
        status["conditions"] = [condition]
    if nominated is not None and nominated != pod.nominated_node_name:
        status["nominatedNodeName"] = nominated or None
    return {"status": status} if status else {}


def disrupted_patch(pod: Pod, scheduler_name: str, now: float, what: str = "pod") -> dict[str, object]:
    """Says on a victim why it goes."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": f"{scheduler_name}: preempting to accommodate a higher priority {what}",
        "observedGeneration": pod.generation,
        "lastProbeTime": None,
        "lastTransitionTime": timestamp(now),
    }
    return {"status": {"conditions": [condition]}}


def timestamp(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
