"""One simulated node as its kubelet knows it: what is on it, and how much room that takes."""

from __future__ import annotations

from collections import Counter

from stowplan.api.node import NodeObject
from stowplan.api.pod import HostPort, Pod
from stowplan.kubelet.admission import Usage


class Machine:
    __slots__ = ("_numbers", "_ports", "_requests", "images", "is_dead", "node", "pods")

    def __init__(self) -> None:
        self.node: NodeObject | None = None
        self.is_dead = False
        self.pods: dict[str, int] = {}
        """By uid, those that were taken and have not ended, with how often they were restarted."""
        self.images: dict[str, int] = {}
        self._numbers = 0
        self._requests: Counter[str] = Counter()
        self._ports: list[HostPort] = []

    @property
    def usage(self) -> Usage:
        return Usage(len(self.pods), self._requests, self._ports)

    def take(self, pod: Pod) -> None:
        self.pods[pod.uid] = 0
        self._requests.update(pod.requests)
        self._ports += pod.shape.ports

    def release(self, pod: Pod) -> None:
        if self.pods.pop(pod.uid, None) is None:
            return
        self._requests.subtract(pod.requests)
        for port in pod.shape.ports:
            self._ports.remove(port)

    def clear(self) -> None:
        """What was on it is to be looked at anew."""
        self.pods, self._requests, self._ports = {}, Counter(), []

    def restart(self, pod: Pod) -> int:
        self.pods[pod.uid] += 1
        return self.pods[pod.uid]

    def number_of(self, pod: Pod) -> int:
        """For an address of its own."""
        self._numbers += 1
        return self._numbers
