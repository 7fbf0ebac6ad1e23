"""QOSSort: schedules pods with higher priority first, then by quality of service, then older ones first."""

from __future__ import annotations

from stowplan.api.requests import quality_of
from stowplan.framework import Plugin, Queued

RANKS = {"Guaranteed": 0, "Burstable": 1, "BestEffort": 2}


class QOSSort(Plugin):
    def queue_sort(self, queued: Queued) -> tuple[int, int, float]:
        return (-queued.pod.priority, RANKS[quality_of(queued.pod.shape)], queued.timestamp)
