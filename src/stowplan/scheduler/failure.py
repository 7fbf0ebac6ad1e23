"""An attempt that came to nothing: the pod goes back to the queue and says why."""

from __future__ import annotations

import asyncio
from typing import Any

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.client.errors import ApiError, Conflict, NotFound
from stowplan.framework.decision import NO_NODES
from stowplan.queue.queued_pod import QueuedPod
from stowplan.scheduler.attempt import Attempt, Failure
from stowplan.scheduler.host import Host
from stowplan.scheduler.pod_status import unscheduled_patch

UNCHANGED: None = None
NOBODY = ""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 10.0


def handle_failure(host: Host, attempt: Attempt, failure: Failure, nominated: str | None) -> None:
    """Puts the pod back, with its event and condition.

    `nominated` names the node it is promised from now on: NOBODY takes a promise back, UNCHANGED leaves it.
    """
    queued = attempt.queued
    host.metrics.attempt(
        attempt.profile.scheduler_name,
        "error" if failure.is_error else "unschedulable",
        host.now() - attempt.began,
    )
    pod = host.handlers.pending.get(queued.pod.uid)
    if pod is None or failure.is_moot:
        # It was deleted, or someone else has bound it: what we would say of it is no longer true.
        host.queue.done(queued.pod.uid)
        log.log(3, "Pod is gone or has a node; not queued again", pod=queued.pod, err=failure.message)
        return
    _log(pod, failure)
    queued.pod = pod
    host.queue.return_failed(queued, rejectors=failure.rejectors, pending=failure.pending)
    host.queue.nominate(pod, nominated)
    recorder = host.recorders[attempt.profile.scheduler_name]
    recorder.record(pod, "Warning", "FailedScheduling", "Scheduling", failure.message)
    patch = unscheduled_patch(pod, failure.reason, failure.message, nominated, host.now())
    if patch:
        host.spawn(_say_why(host, queued, patch), f"status of pod {pod.key}")


async def _say_why(host: Host, queued: QueuedPod, patch: dict[str, Any]) -> None:
    """Until it is written, or no longer what there is to say: it may be all that people see for minutes."""
    pod, attempts, pause = queued.pod, queued.attempts, FIRST_PAUSE
    while not await patch_status(host, pod, patch):
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
        if queued.attempts != attempts or pod.uid not in host.handlers.pending:
            return


async def patch_status(host: Host, pod: Pod, patch: dict[str, Any]) -> bool:
    """False if it was not written, but may be later."""
    log.log(3, "Updating pod condition and nominated node name", pod=pod)
    try:
        await host.api.patch_pod_status(pod, patch)
    except (NotFound, Conflict) as error:
        log.log(3, "Pod status not updated, the pod has changed or is gone", pod=pod, err=error)
    except ApiError as error:
        log.error("Error updating pod", error, pod=pod)
        return not error.may_pass
    return True


def _log(pod: Pod, failure: Failure) -> None:
    if failure.is_error:
        log.error("Error scheduling pod; retrying", failure.message, pod=pod)
    elif failure.message == NO_NODES:
        log.log(0, "Unable to schedule pod; no nodes are registered to the cluster; waiting", pod=pod)
    else:
        log.log(0, "Unable to schedule pod; no fit; waiting", pod=pod, err=failure.message)
