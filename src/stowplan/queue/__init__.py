"""The pods that wait to be scheduled: whose turn it is, who backs off, who waits for something to happen."""

from stowplan.queue.scheduling_queue import SchedulingQueue
from stowplan.queue.waiting import Place, QueuedPod, Recorder

__all__ = ["Place", "QueuedPod", "Recorder", "SchedulingQueue"]
