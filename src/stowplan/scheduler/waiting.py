"""Pods that a permit plugin holds back between the choice of their node and their binding."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from stowplan.api.pod import Pod
from stowplan.framework.answers import reason_of, shown
from stowplan.framework.status import Code, Status

LONGEST_WAIT = 15 * 60.0


class WaitingPod:
    """A pod and the plugins it waits for; the first word that ends the wait counts."""

    def __init__(self, pod: Pod, timeouts: Mapping[str, float]) -> None:
        self.pod = pod
        self._plugins = set(timeouts)
        self._outcome: asyncio.Future[Status | None] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        self._timers = [
            loop.call_later(min(seconds, LONGEST_WAIT), self._time_out, plugin, min(seconds, LONGEST_WAIT))
            for plugin, seconds in timeouts.items()
        ]

    @property
    def plugins(self) -> tuple[str, ...]:
        """Those that have not allowed it yet."""
        return tuple(sorted(self._plugins))

    def allow(self, plugin: str) -> None:
        self._plugins.discard(plugin)
        if not self._plugins:
            self._end(None)

    def reject(self, plugin: str, message: str) -> None:
        """Rejects the pod. Raises TypeError, in the plugin that calls it, for anything but text."""
        if type(plugin) is not str:
            raise TypeError(f"expected the name of a plugin, got {shown(plugin)}")
        self._end(Status(Code.UNSCHEDULABLE, (reason_of(message),), plugin))

    def preempt(self, message: str) -> bool:
        """Ends the wait with an error; whether it was still waiting."""
        return self._end(Status.error(message))

    async def outcome(self) -> Status | None:
        """None once all plugins allow it."""
        return await self._outcome

    def _time_out(self, plugin: str, seconds: float) -> None:
        self.reject(plugin, f"rejected due to timeout after waiting {seconds:g}s at plugin {plugin}")

    def _end(self, status: Status | None) -> bool:
        if self._outcome.done():
            return False
        for timer in self._timers:
            timer.cancel()
        self._outcome.set_result(status)
        return True


class WaitingPods:
    """All waiting pods of all profiles, by uid."""

    def __init__(self) -> None:
        self._pods: dict[str, WaitingPod] = {}

    def __iter__(self) -> Iterator[WaitingPod]:
        return iter(tuple(self._pods.values()))

    def find(self, uid: str) -> WaitingPod | None:
        return self._pods.get(uid)

    def put(self, waiting: WaitingPod) -> None:
        self._pods[waiting.pod.uid] = waiting

    def remove(self, uid: str) -> None:
        self._pods.pop(uid, None)
