"""The pods that wait to be scheduled: active, backing off, or waiting for an event."""

from stowplan.queue.scheduling_queue import SchedulingQueue
from stowplan.queue.waiting import Place, QueuedPod, Recorder

__all__ = ["Place", "QueuedPod", "Recorder", "SchedulingQueue"]
