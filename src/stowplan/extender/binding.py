"""The bind verb: reserve, permit, pre_bind and bind for a pod that kube-scheduler has chosen a node for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from stowplan import log
from stowplan.api.extender import ExtenderBindingArgs
from stowplan.api.pod import Pod
from stowplan.client.errors import ApiError
from stowplan.client.resources import PODS
from stowplan.errors import InputError, PluginError
from stowplan.extender.verbs import ProfileVerbs
from stowplan.queue.waiting import QueuedPod
from stowplan.scheduler.binding import PodBinder
from stowplan.scheduler.shared import Attempt, Failure, Shared

PODS_KEPT = 1024
CONFIRMED_SECONDS = 60.0
"""If the watch has not shown a pod on its node by then, it was gone before we could see it there."""


class ExtenderBinder:
    """Binds for one profile. Pods that were asked about are remembered, so as not to read them again."""

    def __init__(
        self,
        shared: Shared,
        binder: PodBinder,
        verbs: ProfileVerbs,
        *,
        confirmed_seconds: float = CONFIRMED_SECONDS,
    ) -> None:
        self._shared, self._binder, self._verbs = shared, binder, verbs
        self._confirmed_seconds = confirmed_seconds
        self._seen: OrderedDict[str, Pod] = OrderedDict()

    def remember(self, pod: Pod) -> None:
        self._seen[pod.uid] = pod
        self._seen.move_to_end(pod.uid)
        if len(self._seen) > PODS_KEPT:
            self._seen.popitem(last=False)

    async def bind(self, args: ExtenderBindingArgs) -> str:
        """What went wrong; empty if nothing did."""
        try:
            pod = await self._pod(args)
            decision, refusal = self._verbs.look_at(pod, args.node)
        except (ApiError, InputError, PluginError) as error:
            return str(error)
        if refusal is not None:
            return f"node {args.node} rejects the pod: {refusal.message}"
        shared, binder = self._shared, self._binder
        attempt = Attempt(QueuedPod(pod, shared.now()), self._verbs.profile, decision, shared.clock())
        placed = binder.place(attempt, args.node)
        if isinstance(placed, Failure):
            return placed.message
        try:
            failure = await binder.bind(attempt, placed, args.node)
        except BaseException:  # given up, since it took too long
            binder.undo(attempt, placed, args.node)
            raise
        if failure is not None:
            binder.undo(attempt, placed, args.node)
            return failure.message
        log.log(0, "Bound pod to node", pod=placed, node=args.node)
        asyncio.get_running_loop().call_later(self._confirmed_seconds, self._forget_unconfirmed, placed)
        work = binder.run_post_binds(attempt, placed, args.node)
        shared.tasks.start(work, f"post_bind of pod {placed.key}")
        return ""

    def _forget_unconfirmed(self, placed: Pod) -> None:
        if self._shared.cluster.is_assumed(placed):
            self._shared.cluster.forget_pod(placed)

    async def _pod(self, args: ExtenderBindingArgs) -> Pod:
        pod = self._seen.pop(args.pod_uid, None)
        if pod is not None:
            return pod
        path = PODS.item(args.pod_namespace, args.pod_name)
        pod = Pod.decode((await self._shared.api.request("GET", path)).data)
        if args.pod_uid and pod.uid != args.pod_uid:
            raise InputError(f"pod {pod.key} has the UID {pod.uid}, not {args.pod_uid}: it is another pod")
        if pod.node_name:
            raise InputError(f"pod {pod.key} is already on node {pod.node_name}")
        return pod
