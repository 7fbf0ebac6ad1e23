"""Preemption carried out: the victims are told and deleted, and the pod waits for the room they leave."""

from __future__ import annotations

import asyncio
from functools import partial

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.client.errors import ApiError, NotFound
from stowplan.framework.profile import Profile
from stowplan.scheduler.failure import patch_status
from stowplan.scheduler.host import Host
from stowplan.scheduler.pod_status import disrupted_patch


def begin(host: Host, profile: Profile, pod: Pod, node_name: str, victims: tuple[Pod, ...]) -> None:
    """Starts the evictions; until they are sent the pod is held back."""
    host.metrics.preempted(len(victims))
    log.log(
        2, "the target node for the preemption is determined", pod=pod, node=node_name, victims=len(victims)
    )
    if not victims:
        return
    host.nominations.evicting[pod.uid] = victims[-1].uid
    host.spawn(_evict_all(host, profile, pod, node_name, victims), f"preemption for pod {pod.key}")


async def _evict_all(
    host: Host, profile: Profile, pod: Pod, node_name: str, victims: tuple[Pod, ...]
) -> None:
    began = host.clock()
    result = "error"
    try:
        await _free_promises(host, pod, node_name)
        await asyncio.gather(*(_evict(host, profile, pod, node_name, victim) for victim in victims[:-1]))
        await _evict(host, profile, pod, node_name, victims[-1])
        result = "success"
    except ApiError as error:
        log.error("Error occurred during async preemption", error.explanation, pod=pod, node=node_name)
    finally:
        host.nominations.evicting.pop(pod.uid, None)
        host.metrics.victims_evicted("success" if result == "success" else "error", host.clock() - began)
        if result == "error":
            # parity: kube-scheduler tries again at once, and so spins as long as the eviction is refused
            host.queue.activate([pod], backoff=True)


async def _free_promises(host: Host, pod: Pod, node_name: str) -> None:
    """Pods of lower priority that were promised the node must look again."""
    for other in host.nominations.on(node_name):
        if other.priority < pod.priority:
            host.stillness.after(partial(host.nominations.remove, other))
            await patch_status(host, other, {"status": {"nominatedNodeName": None}})


async def _evict(host: Host, profile: Profile, pod: Pod, node_name: str, victim: Pod) -> None:
    waiting = host.waiting.find(victim.uid)
    if waiting is not None and waiting.preempt("preempted"):
        _record(host, profile, pod, node_name, victim)
        return
    try:
        await host.api.patch_pod_status(victim, disrupted_patch(victim, profile.scheduler_name, host.now()))
        await host.api.delete(victim)
    except NotFound:
        return
    _record(host, profile, pod, node_name, victim)


def _record(host: Host, profile: Profile, pod: Pod, node_name: str, victim: Pod) -> None:
    note = f"Preempted by pod {pod.uid} on node {node_name}"
    host.recorders[profile.scheduler_name].record(victim, "Normal", "Preempted", "Preempting", note)
