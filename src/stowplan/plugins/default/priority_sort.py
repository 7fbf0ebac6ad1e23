"""PrioritySort: schedules pods with higher priority first, and older pods first within a priority."""

from __future__ import annotations

from stowplan.framework import Plugin, Queued


class PrioritySort(Plugin):
    def queue_sort(self, queued: Queued) -> tuple[int, float]:
        return (-queued.pod.priority, queued.timestamp)
