"""SchedulingGates: holds a pod back until all of its scheduling gates are removed."""

from __future__ import annotations

from typing import Any

from stowplan.framework import Action, ClusterEvent, Hint, Plugin, Pod, Resource, Status


class SchedulingGates(Plugin):
    hints_by_spec = True

    def pre_enqueue(self, pod: Pod) -> Status | None:
        gates = pod.spec.scheduling_gates
        if not gates:
            return None
        return Status.unresolvable(f"waiting for scheduling gates: [{' '.join(gate.name for gate in gates)}]")

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (ClusterEvent(Resource.POD, Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED),)

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        return Hint.QUEUE if new.uid == pod.uid else Hint.SKIP
