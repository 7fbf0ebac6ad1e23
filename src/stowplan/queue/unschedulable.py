"""Pods that wait for something to happen, by the plugins that would have to hear of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from stowplan.queue.queued_pod import QueuedPod


class UnschedulablePods:
    def __init__(self) -> None:
        self._waits_for: dict[QueuedPod, tuple[tuple[str, str], ...]] = {}
        self._waiting: defaultdict[tuple[str, str], dict[QueuedPod, None]] = defaultdict(dict)
        """By profile and plugin, in order of arrival."""

    def __iter__(self) -> Iterator[QueuedPod]:
        return iter(self._waits_for)

    def push(self, queued: QueuedPod) -> None:
        """A gated pod waits for its gating plugin alone, any other for all who refused it."""
        plugins = (queued.gating_plugin,) if queued.gating_plugin else queued.rejectors
        keys = tuple((queued.pod.scheduler_name, plugin) for plugin in plugins)
        self._waits_for[queued] = keys
        for key in keys:
            self._waiting[key][queued] = None

    def remove(self, queued: QueuedPod) -> None:
        for key in self._waits_for.pop(queued):
            del self._waiting[key][queued]

    def waiting_for(self, profile: str, plugins: Iterable[str]) -> Iterator[QueuedPod]:
        """Pods that wait for any of these, those that wait for several more than once."""
        if self._waits_for:
            for plugin in plugins:
                yield from self._waiting.get((profile, plugin), ())
