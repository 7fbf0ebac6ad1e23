"""DefaultPreemption: evicts pods of lower priority if that makes the pod fit."""

from __future__ import annotations

from typing import Any

from stowplan.config.gates import PREEMPTION
from stowplan.errors import PluginError
from stowplan.framework import (
    Action,
    ClusterEvent,
    CycleState,
    Decision,
    Hint,
    Nomination,
    Pod,
    Resource,
    Right,
    Status,
)
from stowplan.framework.handle import not_eligible, preemption_status
from stowplan.framework.plugin import GroupPreemptingPlugin
from stowplan.plugins.args import DefaultPreemptionArgs
from stowplan.plugins.group_members import not_alone


class DefaultPreemption(GroupPreemptingPlugin):
    args: DefaultPreemptionArgs
    preempts = True
    hints_by_spec = True
    rights = (Right("pods", ("delete",)),)  # which the host does for it

    def pre_enqueue(self, pod: Pod) -> Status | None:
        last_victim = self.handle.nominations.evicting.get(pod.uid)
        if last_victim is None:
            return None
        victim = self.handle.cluster.pod(last_victim)
        if victim is None or victim.is_terminating:
            return None
        what = "pod group" if pod.group_name and PREEMPTION in self.handle.gates else "pod"
        return Status.unresolvable(f"waiting for the preemption for this {what} to be finished")

    def post_filter(self, state: CycleState, pod: Pod, decision: Decision) -> Status | Nomination:
        rejection = self._not_eligible(pod, decision)
        if rejection:
            return not_eligible(rejection, keeps_nomination=True)
        try:
            answer = self.handle.preempt(
                state,
                pod,
                decision,
                self.args.min_candidate_nodes_percentage,
                self.args.min_candidate_nodes_absolute,
                self.may_evict(pod, decision),
            )
        except PluginError as error:
            return preemption_status(Status.error(str(error), error.stack))
        if isinstance(answer, Nomination):
            return answer
        return preemption_status(answer)

    def preempt_for_group(self, state: CycleState, pod: Pod, decision: Decision) -> Nomination | Status:
        args = self.args
        return self.handle.preempt(
            state, pod, decision, args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute
        )

    def may_evict(self, pod: Pod, decision: Decision) -> frozenset[str] | None:
        """The uids of the pods that may be evicted; None for all pods of a lower priority."""
        return None

    def _not_eligible(self, pod: Pod, decision: Decision) -> str:
        if pod.group_name and (rejection := not_alone(self.handle, pod)):
            return rejection
        if pod.spec.preemption_policy == "Never":
            return "not eligible due to preemptionPolicy=Never."
        leaving = decision.victims_leaving(self.handle.cluster.nodes, pod.nominated_node_name)
        if any(other.priority < pod.priority for other in leaving):
            return "not eligible due to a terminating pod on the nominated node."
        return ""

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (ClusterEvent(Resource.POD, Action.DELETE),)

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        return Hint.SKIP  # the plugins that rejected the pod know what helps
