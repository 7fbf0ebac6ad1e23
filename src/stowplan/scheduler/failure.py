"""An attempt that came to nothing: the pod goes back to the queue and says why."""

from __future__ import annotations

from typing import Any

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.client.errors import ApiError, Conflict, NotFound
from stowplan.errors import PluginError
from stowplan.framework.answers import stack_of
from stowplan.queue.queued_pod import QueuedPod
from stowplan.scheduler.attempt import Attempt, Failure
from stowplan.scheduler.host import Host
from stowplan.scheduler.patience import Patience
from stowplan.scheduler.pod_status import unscheduled_patch

UNCHANGED: None = None
NOBODY = ""


def handle_failure(host: Host, attempt: Attempt, failure: Failure, nominated: str | None) -> None:
    """Puts the pod back, with its event and condition.

    `nominated` names the node it is promised from now on: NOBODY takes a promise back, UNCHANGED leaves it.
    """
    queued = attempt.queued
    pod = host.handlers.pending.get(queued.pod.uid)
    try:
        _count_and_keep(host, attempt, failure, None if failure.is_moot else pod)
    except Exception as error:  # whatever cannot be told of it, the pod must not be lost
        log.error("Failed attempt not recorded", error, pod=queued.pod, stacktrace=stack_of(error))
    if pod is None or failure.is_moot:
        # It was deleted, or someone else has bound it: what we would say of it is no longer true.
        host.queue.done(queued.pod.uid)
        log.log(3, "Pod is gone or has a node; not queued again", pod=queued.pod, err=failure.message)
        return
    queued.pod = pod
    host.queue.return_failed(
        queued, rejectors=failure.rejectors, pending=failure.pending, seconds=attempt.seconds
    )
    host.queue.nominate(pod, nominated)
    recorder = host.recorders[attempt.profile.scheduler_name]
    recorder.record(pod, "Warning", "FailedScheduling", "Scheduling", failure.message)
    patch = unscheduled_patch(pod, failure.reason, failure.message, nominated, host.now())
    if patch:
        host.spawn(_say_why(host, queued, patch), f"status of pod {pod.key}")


def _count_and_keep(host: Host, attempt: Attempt, failure: Failure, pod: Pod | None) -> None:
    host.metrics.attempt(
        attempt.profile.scheduler_name,
        "error" if failure.is_error else "unschedulable",
        host.clock() - attempt.began,
    )
    if pod is not None:
        _log(pod, failure, has_nodes=bool(attempt.decision.names))
        if host.keeping is not None:
            host.keeping.failed(attempt, failure)


def report_fault(host: Host, pod: Pod, error: PluginError) -> None:
    """A plugin failed while the pod was put into the queue, so that it is not even tried: the pod says so."""
    log.error("Plugin failed", error, pod=pod, stacktrace=error.stack)
    if not host.is_leading():
        return
    _report(host, pod, Failure(str(error)))


def report_unreadable(host: Host, pod: Pod) -> None:
    """Tells of a pod that cannot be read, or only in part, and of the node that is closed because of it."""
    if not host.is_leading():
        return  # whoever leads says it
    if not pod.node_name:
        _report(host, pod, Failure(f"the pod cannot be read: {pod.fault}"))
        return
    recorder = host.recorders.get(pod.scheduler_name) or next(iter(host.recorders.values()))
    if pod.is_illegible:
        counted = "nothing can be read of what it takes, so no more pods are scheduled to its node"
    else:
        counted = "what can be read of it counts"
    recorder.record(pod, "Warning", "UnreadablePod", "Scheduling", f"{pod.fault}; {counted}")
    row = host.cluster.nodes.row_of(pod.node_name)
    if pod.is_illegible and row is not None:
        note = f"no pods are scheduled to this node, because pod {pod.key} cannot be read: {pod.fault}"
        recorder.record(host.cluster.nodes.objects[row], "Warning", "UnreadablePod", "Scheduling", note)


def _report(host: Host, pod: Pod, failure: Failure) -> None:
    """The event and the condition of a pod that is not even tried."""
    recorder = host.recorders[pod.scheduler_name]
    recorder.record(pod, "Warning", "FailedScheduling", "Scheduling", failure.message)
    patch = unscheduled_patch(pod, failure.reason, failure.message, UNCHANGED, host.now())
    if patch:
        host.spawn(_patched(host, pod, patch), f"status of pod {pod.key}")


async def _patched(host: Host, pod: Pod, patch: dict[str, Any]) -> None:
    await patch_status(host, pod, patch)


async def _say_why(host: Host, queued: QueuedPod, patch: dict[str, Any]) -> None:
    """Until it is written, or no longer what there is to say: it may be all that people see for minutes."""
    pod, attempts, patience = queued.pod, queued.attempts, Patience()
    while (error := await patch_status(host, pod, patch)) is not None and await patience.pause(error):
        if queued.attempts != attempts or pod.uid not in host.handlers.pending:
            return


async def patch_status(host: Host, pod: Pod, patch: dict[str, Any]) -> ApiError | None:
    """Why it was not written; None also if the pod has changed or is gone, and there is no more to write."""
    log.log(3, "Updating pod condition and nominated node name", pod=pod)
    try:
        await host.api.patch_pod_status(pod, patch)
    except (NotFound, Conflict) as error:
        log.log(3, "Pod status not updated, the pod has changed or is gone", pod=pod, err=error)
    except ApiError as error:
        log.error("Error updating pod", error.explanation, pod=pod)
        return error
    return None


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
