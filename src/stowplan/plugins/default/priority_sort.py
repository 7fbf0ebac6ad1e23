"""PrioritySort: pods of higher priority are tried first, among equals the one that has waited longer."""

from __future__ import annotations

from typing import Protocol

from stowplan.framework import Plugin, Pod


class Queued(Protocol):
    """A pod in the queue and when it came there."""

    pod: Pod
    timestamp: float


class PrioritySort(Plugin):
    def queue_sort(self, queued: Queued) -> tuple[int, float]:
        return (-queued.pod.priority, queued.timestamp)
