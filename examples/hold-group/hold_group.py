"""HoldGroup: binds the pods of a group only once all of them have a node."""

from stowplan import CycleState, Plugin, PluginArgs, Pod, Status, WaitingPod


class HoldGroupArgs(PluginArgs):
    label: str = "hold-group"
    size: int = 2
    timeout_seconds: float = 60


class HoldGroup(Plugin):
    args: HoldGroupArgs

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        return None  # needed for `unreserve`

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """One of the group was rejected: the others need not wait any longer."""
        for waiting in self._held(pod):
            waiting.reject(self.name, f"pod {pod.name} of the same group was rejected")

    def permit(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        group = pod.labels.get(self.args.label)
        if group is None:
            return None
        # The pods of the namespace that have a node, this one and those that wait included.
        placed = sum(self._is_in(group, each) for each in self.handle.cluster.pods(pod.namespace))
        if placed < self.args.size:
            self.handle.log.info("%s waits: %d of %d pods have a node", pod.key, placed, self.args.size)
            return Status.wait(self.args.timeout_seconds)
        for waiting in self._held(pod):
            waiting.allow()
        return None

    def _held(self, pod: Pod) -> list[WaitingPod]:
        """The pods of the same group that wait."""
        group = pod.labels.get(self.args.label)
        return [
            each
            for each in self.handle.waiting_pods
            if group is not None and each.pod.namespace == pod.namespace and self._is_in(group, each.pod)
        ]

    def _is_in(self, group: str, pod: Pod) -> bool:
        return pod.labels.get(self.args.label) == group
