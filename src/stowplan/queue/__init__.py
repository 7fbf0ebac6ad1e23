"""The pods that wait to be scheduled: whose turn it is, who backs off, who waits for something to happen."""

from stowplan.queue.queued_pod import Place, QueuedPod, Recorder
from stowplan.queue.scheduling_queue import SchedulingQueue

__all__ = ["Place", "QueuedPod", "Recorder", "SchedulingQueue"]
