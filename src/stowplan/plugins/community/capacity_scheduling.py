"""CapacityScheduling: ElasticQuotas guarantee namespaces an amount, and lend what is not used of it.

A namespace with a quota uses at most its `max`; all of them together use at most the sum of their `min`. A
namespace that stays within its `min` takes back what others have borrowed, by evicting their pods.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from stowplan.api.queues import ElasticQuota
from stowplan.framework import (
    Action,
    ClusterEvent,
    CycleState,
    Decision,
    Handle,
    Hint,
    Node,
    NodeTable,
    Nomination,
    Plugin,
    PluginArgs,
    Pod,
    Reject,
    Resource,
    Right,
    Status,
)
from stowplan.framework.handle import preemption_status
from stowplan.plugins.group_members import not_alone
from stowplan.plugins.quotas import (
    amounts_of,
    choose_victims,
    exceeds,
    excess_text,
    faults_of,
    request_of,
    with_broken_gangs,
)

ALL = ("all namespaces with a quota",)
"""The key of what they use together."""


class Quota(msgspec.Struct):
    """The quota of a namespace."""

    item: ElasticQuota
    min: dict[str, int]
    max: dict[str, int]


class Quotas(msgspec.Struct):
    """The quotas by namespace, and the sum of what they guarantee."""

    version: int = -1
    by_namespace: dict[str, Quota] = {}
    min: dict[str, int] = {}


class Demand(msgspec.Struct):
    """What a pod that is over a limit wants, and what others use, while evictions are tried out."""

    namespace: str
    own: dict[str, int]
    """What the pod requests, with pods of its namespace that wait for evictions."""
    total: dict[str, int]
    """The same with those of other namespaces that are within their minimum."""
    used: dict[str, int]
    used_by_all: dict[str, int]

    def clone(self) -> Demand:
        return Demand(self.namespace, self.own, self.total, dict(self.used), dict(self.used_by_all))

    def change(self, pod: Pod, sign: int) -> None:
        for name, amount in request_of(pod).items():
            self.used_by_all[name] = self.used_by_all.get(name, 0) + sign * amount
            if pod.namespace == self.namespace:
                self.used[name] = self.used.get(name, 0) + sign * amount


class CapacityScheduling(Plugin):
    watches = (ElasticQuota,)
    preempts = True
    rights = (Right("pods", ("delete",)),)  # which the host does for it

    def __init__(self, args: PluginArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._items = handle.watched(ElasticQuota)
        self._known = Quotas()
        self._totals = handle.cluster.totals(self._keys)
        self._reported: dict[str, str] = {}
        """What was reported of a quota, by its uid."""

    # The quotas

    def _keys(self, pod: Pod) -> tuple[Hashable, ...]:
        return (pod.namespace, ALL) if pod.namespace in self._known.by_namespace else ()

    def _quotas(self) -> Quotas:
        if self._known.version != self._items.version:
            before = self._known.by_namespace
            self._known = Quotas(self._items.version)
            for item in sorted(self._items, key=lambda each: (each.namespace, each.name)):
                self._add(item)
            if before.keys() != self._known.by_namespace.keys():
                self._totals.recount()
        return self._known

    def _add(self, item: ElasticQuota) -> None:
        known = self._known
        faults = [*faults_of("spec.min", item.spec.min), *faults_of("spec.max", item.spec.max)]
        if other := known.by_namespace.get(item.namespace):
            faults = [f"ElasticQuota {other.item.name} counts in this namespace; delete one of them"]
        else:
            least, most = amounts_of(item.spec.min), amounts_of(item.spec.max)
            for name, amount in least.items():
                if amount > most.get(name, amount):
                    least[name] = most[name]
                    faults.append(
                        f"spec.min.{name} is more than spec.max.{name}, which counts for both; "
                        "raise max or lower min"
                    )
                known.min[name] = known.min.get(name, 0) + least[name]
            known.by_namespace[item.namespace] = Quota(item, least, most)
        text = "; ".join(faults)
        if self._reported.get(item.metadata.uid, "") != text:
            self._reported[item.metadata.uid] = text
            if text:
                self.handle.record_event(item, "Warning", "InvalidElasticQuota", text)

    def _least(self, quota: Quota) -> dict[str, int]:
        """What is guaranteed to a namespace: zero of what only others are guaranteed."""
        return {name: quota.min.get(name, 0) for name in self._known.min}

    # Whether a pod may be placed

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        quotas = self._quotas()
        quota = quotas.by_namespace.get(pod.namespace)
        if quota is None:
            return Status.skip()
        used, used_by_all = self._totals.of(pod.namespace), self._totals.of(ALL)
        own = total = request_of(pod)
        if self.handle.nominations:
            own, total = self._with_nominated(pod, own)
        where = f"Pod {pod.key} is rejected in PreFilter because"
        if name := exceeds(used, own, quota.max):
            text = f"{where} ElasticQuota {pod.namespace} is more than Max"
            text += f"; {excess_text(name, used, own, quota.max, 'max')}"
        elif name := exceeds(used_by_all, total, quotas.min):
            text = f"{where} total ElasticQuota used is more than min"
            text += f"; {excess_text(name, used_by_all, total, quotas.min, 'sum of min')}"
        else:
            return Status.skip()  # evicting pods frees more of every quota
        state.write(Demand(pod.namespace, own, total, dict(used), dict(used_by_all)))
        return Status.unschedulable(text)

    def _with_nominated(self, pod: Pod, request: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
        """The request with those of pods that wait for evictions, and so are as good as placed."""
        own, total = dict(request), dict(request)
        for other in self.handle.nominations:
            quota = self._known.by_namespace.get(other.namespace)
            if quota is None or other.uid == pod.uid or self.handle.cluster.pod(other.uid) is not None:
                continue
            is_own = other.namespace == pod.namespace
            if other.priority < pod.priority if is_own else self._is_over_min(quota):
                continue
            for name, amount in request_of(other).items():
                total[name] = total.get(name, 0) + amount
                if is_own:
                    own[name] = own.get(name, 0) + amount
        return own, total

    def _is_over_min(self, quota: Quota, used: Mapping[str, int] | None = None) -> bool:
        used = self._totals.of(quota.item.namespace) if used is None else used
        return any(used.get(name, 0) > least for name, least in self._least(quota).items())

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        """Only asked while evictions are tried out for a pod that is over a limit."""
        demand, quotas = state.read(Demand), self._quotas()
        quota = quotas.by_namespace[pod.namespace]
        if exceeds(demand.used, demand.own, quota.max):
            yield Reject(np.ones(len(nodes), np.bool_), f"ElasticQuota {pod.namespace} is more than Max")
        elif exceeds(demand.used_by_all, demand.total, quotas.min):
            yield Reject(np.ones(len(nodes), np.bool_), "total ElasticQuota used is more than min")

    def add_pod(self, state: CycleState, pod: Pod, other: Pod, node: Node) -> None:
        if (demand := state.find(Demand)) is not None and other.namespace in self._known.by_namespace:
            demand.change(other, 1)

    def remove_pod(self, state: CycleState, pod: Pod, other: Pod, node: Node) -> None:
        if (demand := state.find(Demand)) is not None and other.namespace in self._known.by_namespace:
            demand.change(other, -1)

    # Whom it evicts

    def post_filter(self, state: CycleState, pod: Pod, decision: Decision) -> Nomination | Status:
        if refusal := not_alone(self.handle, pod):
            return preemption_status(Status.unschedulable(refusal))
        if pod.spec.preemption_policy == "Never":
            return preemption_status(Status.unschedulable("not eligible due to preemptionPolicy=Never."))
        if self._is_clearing(pod):
            text = "not eligible due to a terminating pod on the nominated node."
            return preemption_status(
                msgspec.structs.replace(Status.unschedulable(text), keeps_nomination=True)
            )
        groups = self.handle.cluster.groups
        victims = choose_victims(self.handle.cluster.nodes, pod, decision, self._victims(pod))
        answer = self.handle.preempt(state, pod, decision, 100, 0, victims)
        if isinstance(answer, Status):
            return preemption_status(answer)
        return Nomination(answer.node_name, with_broken_gangs(groups, answer.victims))

    def _is_clearing(self, pod: Pod) -> bool:
        """Whether pods that were evicted for this one are still on their way out."""
        row = self.handle.cluster.nodes.row_of(pod.nominated_node_name)
        if row is None:
            return False
        leaving = (each for each in self.handle.cluster.nodes.pods_on(row) if each.is_terminating)
        reasons = (each.condition("DisruptionTarget") for each in leaving)
        return any(each is not None and each.reason == "PreemptionByScheduler" for each in reasons)

    def _victims(self, pod: Pod) -> Callable[[list[Pod]], Iterator[Pod]]:
        """Chooses the pods of a node that may be evicted for this one."""
        quotas, groups = self._quotas().by_namespace, self.handle.cluster.groups
        quota, group = quotas.get(pod.namespace), groups.key_of(pod)
        spared = groups.members(group) if group is not None else {}
        own, _ = self._with_nominated(pod, request_of(pod))
        borrows = quota is not None and exceeds(self._totals.of(pod.namespace), own, self._least(quota))
        lenders = {name for name, each in quotas.items() if name != pod.namespace and self._is_over_min(each)}

        def choose(pods: list[Pod]) -> Iterator[Pod]:
            left: dict[str, dict[str, int]] = {}
            for other in pods:
                name = other.namespace
                if other.uid in spared:
                    continue
                if quota is None:
                    if name not in quotas and other.priority < pod.priority:
                        yield other
                elif borrows:
                    if name == pod.namespace and other.priority < pod.priority:
                        yield other
                elif name in lenders:
                    if name not in left:
                        left[name] = dict(self._totals.of(name))
                    if self._is_over_min(quotas[name], left[name]):
                        for resource, amount in request_of(other).items():
                            left[name][resource] = left[name].get(resource, 0) - amount
                        yield other

        return choose

    # What wakes pods

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE),
            ClusterEvent(ElasticQuota.definition.event_resource, Action.ALL),
        )

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        if isinstance(old, Pod) and old.namespace not in self._quotas().by_namespace:
            return Hint.SKIP
        return Hint.QUEUE
