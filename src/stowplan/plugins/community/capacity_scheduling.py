"""CapacityScheduling: ElasticQuotas guarantee namespaces an amount, and lend what is not used of it.

A namespace with a quota uses at most its `max`; all of them together use at most the sum of their `min`. A
namespace that stays within its `min` takes back what others have borrowed, by evicting their pods.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from stowplan.api.faults import describe_faults
from stowplan.api.quantity import faults_of
from stowplan.api.queues import ElasticQuota
from stowplan.cluster.cluster import ClusterView, Totals
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
    PluginArgs,
    Pod,
    Reject,
    Resource,
    Right,
    Status,
)
from stowplan.framework.handle import not_eligible, preemption_status
from stowplan.framework.plugin import ExplainingPlugin
from stowplan.plugins.group_members import not_alone
from stowplan.plugins.quotas import (
    amounts_of,
    choose_victims,
    exceeds,
    excess_text,
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
    least: dict[str, int] = {}
    """What is guaranteed: the minimum, and zero of what only others are guaranteed."""


class Quotas(msgspec.Struct):
    """The quotas by namespace, and the sum of what they guarantee."""

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


class Waiting:
    """The nominated pods of a namespace, and what those of them request together that have no node yet."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._placed: set[str] = set()
        self._by_priority: dict[int, dict[str, int]] = {}
        self.request: dict[str, int] = {}

    def add(self, pod: Pod) -> None:
        self._pods[pod.uid] = pod
        self._change(pod, 1)

    def remove(self, pod: Pod) -> None:
        del self._pods[pod.uid]
        if pod.uid in self._placed:
            self._placed.remove(pod.uid)
        else:
            self._change(pod, -1)

    def check(self, cluster: ClusterView) -> None:
        """Count no pods that have a node by now, but those that have lost theirs."""
        find = cluster.pod
        placed = {uid for uid in self._pods if find(uid) is not None}
        for uid in placed ^ self._placed:
            self._change(self._pods[uid], -1 if uid in placed else 1)
        self._placed = placed

    def _change(self, pod: Pod, sign: int) -> None:
        request = request_of(pod)
        self.request = _sum(self.request, request, sign)
        found = self._by_priority[pod.priority] = _sum(self._by_priority.get(pod.priority, {}), request, sign)
        if not found["pods"]:
            del self._by_priority[pod.priority]

    def of_others(self, pod: Pod) -> dict[str, int]:
        """What others of at least this pod's priority request."""
        found: dict[str, int] = {}
        for priority, request in self._by_priority.items():
            if priority >= pod.priority:
                found = _sum(found, request)
        itself = self._pods.get(pod.uid)
        if itself is None or itself.uid in self._placed or itself.priority < pod.priority:
            return found
        return _sum(found, request_of(itself), -1)


class Nominated:
    """What nominated pods of quotas request. Only what changed since the last decision is counted again: many
    pods of many namespaces may wait."""

    def __init__(self, handle: Handle, totals: Totals) -> None:
        self._handle, self._totals = handle, totals
        self._quotas: Quotas | None = None
        self._position = 0
        """How far the changes of nominations were followed."""
        self._on: dict[str, tuple[Pod, ...]] = {}
        """Pods of quotas by the name of their node."""
        self._waiting: dict[str, Waiting] = {}
        """By namespace."""
        self._counted: dict[str, dict[str, int]] = {}
        """How much of each namespace `_total` counts: nothing if it is over its minimum."""
        self._total: dict[str, int] = {}

    def with_request(self, pod: Pod, quotas: Quotas) -> tuple[dict[str, int], dict[str, int]]:
        """What the pod requests, with pods of its namespace that wait for evictions, and so are as good as
        placed; and the same with those of other namespaces that are within their minimum."""
        self._follow(quotas)
        own, waiting = request_of(pod), self._waiting.get(pod.namespace)
        if waiting is not None:
            own = _sum(own, waiting.of_others(pod))
        elsewhere = _sum(self._total, self._counted.get(pod.namespace, {}), -1)
        return own, _sum(own, elsewhere)

    def _follow(self, quotas: Quotas) -> None:
        nominations, changed = self._handle.nominations, self._totals.take_changed()
        nodes = nominations.changes.since(self._position)
        if changed is None or nodes is None or quotas is not self._quotas:
            self._quotas, self._on, self._waiting, self._counted, self._total = quotas, {}, {}, {}, {}
            changed, nodes = set(), [nominations.node_of(pod) or "" for pod in nominations]
        self._position = nominations.changes.position
        dirty = self._waiting.keys() & changed
        for pod in [pod for name in set(nodes) for pod in self._on.pop(name, ())]:
            self._waiting[pod.namespace].remove(pod)
            dirty.add(pod.namespace)
        for name in set(nodes):
            of_quotas = [pod for pod in nominations.on(name) if pod.namespace in quotas.by_namespace]
            for pod in of_quotas:
                self._waiting.setdefault(pod.namespace, Waiting()).add(pod)
                dirty.add(pod.namespace)
            self._on[name] = tuple(of_quotas)
        for namespace in dirty:
            known, before = self._waiting[namespace], self._counted.get(namespace, {})
            known.check(self._handle.cluster)
            is_over = is_over_min(quotas.by_namespace[namespace], self._totals.of(namespace))
            counted = self._counted[namespace] = {} if is_over else known.request
            self._total = _sum(_sum(self._total, before, -1), counted)


def _sum(one: Mapping[str, int], other: Mapping[str, int], sign: int = 1) -> dict[str, int]:
    found = dict(one)
    for name, amount in other.items():
        found[name] = found.get(name, 0) + sign * amount
    return found


def is_over_min(quota: Quota, used: Mapping[str, int]) -> bool:
    return any(used.get(name, 0) > least for name, least in quota.least.items())


class CapacityScheduling(ExplainingPlugin):
    enables = {"preFilter": ("filter",), "reserve": ()}
    watches = (ElasticQuota,)
    preempts = True
    rights = (Right("pods", ("delete",)),)  # which the host does for it

    def __init__(self, args: PluginArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._items = handle.watched(ElasticQuota)
        self._items.follow(self._follow)
        self._known = Quotas()
        self._is_outdated = True
        self._totals = handle.cluster.totals(self._keys)
        self._nominated = Nominated(handle, self._totals)
        self._reported: dict[str, str] = {}
        """What was reported of a quota, by its uid."""

    # The quotas

    def _keys(self, pod: Pod) -> tuple[Hashable, ...]:
        return (pod.namespace, ALL) if pod.namespace in self._known.by_namespace else ()

    def _follow(self, old: ElasticQuota | None, new: ElasticQuota | None) -> None:
        # The status changes with every pod that starts or ends.
        if old is None or new is None or old.spec != new.spec:
            self._is_outdated = True
        if old is not None and new is None:
            self._reported.pop(old.metadata.uid, None)

    def _quotas(self) -> Quotas:
        if self._is_outdated:
            self._is_outdated = False
            before = self._known.by_namespace
            self._known = Quotas()
            for item in sorted(self._items, key=lambda each: (each.namespace, each.name)):
                self._add(item)
            for quota in self._known.by_namespace.values():
                quota.least = {name: quota.min.get(name, 0) for name in self._known.min}
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
            above = [name for name, amount in least.items() if amount > most.get(name, amount)]
            faults += describe_faults(
                above,
                lambda name: (
                    f"spec.min.{name} is more than spec.max.{name}, which counts for both; "
                    "raise max or lower min"
                ),
            )
            least |= {name: most[name] for name in above}
            for name, amount in least.items():
                known.min[name] = known.min.get(name, 0) + amount
            known.by_namespace[item.namespace] = Quota(item, least, most)
        text = "; ".join(faults)
        if self._reported.get(item.metadata.uid, "") != text:
            self._reported[item.metadata.uid] = text
            if text:
                self.handle.record_event(item, "Warning", "InvalidElasticQuota", text)

    def explain_pod(self, pod: Pod) -> Iterator[str]:
        quota = self._quotas().by_namespace.get(pod.namespace)
        if quota is not None and (text := self._reported.get(quota.item.metadata.uid)):
            yield f"ElasticQuota {quota.item.key}: {text}."

    # Whether a pod may be placed

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        quotas = self._quotas()
        quota = quotas.by_namespace.get(pod.namespace)
        if quota is None:
            return Status.skip()
        used, used_by_all = self._totals.of(pod.namespace), self._totals.of(ALL)
        own, total = self._with_nominated(pod)
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

    def _with_nominated(self, pod: Pod) -> tuple[dict[str, int], dict[str, int]]:
        if self.handle.nominations:
            return self._nominated.with_request(pod, self._quotas())
        request = request_of(pod)
        return request, request

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
            return not_eligible(refusal)
        if pod.spec.preemption_policy == "Never":
            return not_eligible("not eligible due to preemptionPolicy=Never.")
        if any(decision.victims_leaving(self.handle.cluster.nodes, pod.nominated_node_name)):
            text = "not eligible due to a terminating pod on the nominated node."
            return not_eligible(text, keeps_nomination=True)
        groups = self.handle.cluster.groups
        victims = choose_victims(self.handle.cluster.nodes, pod, decision, self._victims(pod))
        answer = self.handle.preempt(state, pod, decision, 100, 0, victims)
        if isinstance(answer, Status):
            return preemption_status(answer)
        return Nomination(answer.node_name, with_broken_gangs(groups, answer.victims))

    def _victims(self, pod: Pod) -> Callable[[list[Pod]], Iterator[Pod]]:
        """Chooses the pods of a node that may be evicted for this one."""
        quotas, groups = self._quotas().by_namespace, self.handle.cluster.groups
        quota, group = quotas.get(pod.namespace), groups.key_of(pod)
        spared = groups.members(group) if group is not None else {}
        own, _ = self._with_nominated(pod)
        borrows = quota is not None and exceeds(self._totals.of(pod.namespace), own, quota.least)
        lenders = {
            name
            for name, each in quotas.items()
            if name != pod.namespace and is_over_min(each, self._totals.of(name))
        }

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
                    if is_over_min(quotas[name], left[name]):
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
