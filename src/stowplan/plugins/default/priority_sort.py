"""PrioritySort: pods of higher priority are tried first, among equals the one that has waited longer."""

from __future__ import annotations

from stowplan.framework import Plugin, Queued


class PrioritySort(Plugin):
    def queue_sort(self, queued: Queued) -> tuple[int, float]:
        return (-queued.pod.priority, queued.timestamp)
