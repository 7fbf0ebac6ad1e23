"""Pods that were promised a node which is not free yet."""

from __future__ import annotations

from collections.abc import Iterator

from stowplan.api.pod import Pod
from stowplan.framework.status import Status

NO_CANDIDATE = "no candidate node for preemption"
"""Extenders have dropped all that there were."""


def preemption_status(status: Status) -> Status:
    """Why preemption found no node, as the pod's condition says it."""
    return Status(
        status.code,
        (f"preemption: {status.message}",),
        stack=status.stack,
        keeps_nomination=status.keeps_nomination,
    )


class Nominations:
    def __init__(self) -> None:
        self._by_node: dict[str, dict[str, Pod]] = {}
        self._node_of: dict[str, str] = {}
        self.evicting: dict[str, str] = {}
        """Pods whose victims are being evicted, by uid, each with the uid of its last victim."""

    def __bool__(self) -> bool:
        return bool(self._node_of)

    def put(self, pod: Pod, node_name: str) -> None:
        if not isinstance(pod, Pod) or type(node_name) is not str:  # from a plugin: all pods would fail of it
            raise TypeError("expected a Pod and the name of a node to nominate it to")
        self.remove(pod)
        self._by_node.setdefault(node_name, {})[pod.uid] = pod
        self._node_of[pod.uid] = node_name

    def remove(self, pod: Pod) -> None:
        node_name = self._node_of.pop(pod.uid, None)
        if node_name is not None:
            del self._by_node[node_name][pod.uid]
            if not self._by_node[node_name]:
                del self._by_node[node_name]

    def on(self, node_name: str) -> tuple[Pod, ...]:
        return tuple(self._by_node.get(node_name, {}).values())

    def before(self, pod: Pod) -> Iterator[tuple[str, tuple[Pod, ...]]]:
        """Nodes with the pods nominated to them that must not lose their room to `pod`."""
        for node_name, nominated in self._by_node.items():
            ahead = tuple(
                other
                for other in nominated.values()
                if other.priority >= pod.priority and other.uid != pod.uid
            )
            if ahead:
                yield node_name, ahead
