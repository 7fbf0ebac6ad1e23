"""CrossNodePreemption: DefaultPreemption, and where that finds nothing, evictions on several nodes.

Pods on other nodes can keep a pod out: by anti-affinity or spreading over zones, or because they use a
ReadWriteOncePod volume. Evicting pods of one node does not help then. Only pods that stand in the way are
considered, in the domains with the fewest of them, and the number of trials is limited.

Until the pod is bound, pods of lower priority that would stand in its way again are kept out of the domain:
otherwise the controllers of the victims would fill it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import LabelSet
from stowplan.api.selectors import Selector, selector_of
from stowplan.api.storage import READ_WRITE_ONCE_POD
from stowplan.cluster.pod_table import AffinityTerm, terms_of
from stowplan.config.field_errors import child, invalid
from stowplan.errors import SelectorError
from stowplan.framework import (
    Action,
    ClusterEvent,
    Code,
    CycleState,
    Decision,
    Handle,
    Hint,
    NodeTable,
    Nomination,
    Pod,
    Reject,
    Resource,
    Status,
)
from stowplan.framework.handle import not_eligible, preemption_status
from stowplan.plugins.args import DefaultPreemptionArgs
from stowplan.plugins.default.default_preemption import DefaultPreemption
from stowplan.plugins.quotas import with_broken_gangs
from stowplan.plugins.volumes import named_claims

MAX_POOLS = 16
"""In so many domains, or combinations of them, evictions are tried."""
MAX_POOL = 1024
"""A domain in which more pods stand in the way is not tried."""
Slots = NDArray[np.intp]


CLEARED = "node(s) were in a domain that is being cleared for a pod of higher priority"


class ClearedDomains(NamedTuple):
    """Domains that the pod must stay out of: a topology key, and a node in the domain; no key for all."""

    domains: tuple[tuple[str, str], ...]


class CrossNodePreemptionArgs(DefaultPreemptionArgs):
    max_trials: int = 400
    """How often the filters may run for one pod."""

    def validate(self, path: str) -> Iterator[str]:
        yield from super().validate(path)
        if not 1 <= self.max_trials <= 10_000:
            yield invalid(child(path, "maxTrials"), self.max_trials, "must be from 1 to 10000")


class CrossNodePreemption(DefaultPreemption):
    args: CrossNodePreemptionArgs
    enables = {"postFilter": ("preEnqueue", "preFilter", "filter")}

    def __init__(self, args: CrossNodePreemptionArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._promised: dict[str, Pod] = {}
        """Pods for which other nodes than their own are cleared as well, by uid."""

    # Who may not go where room is being made

    def pod_added(self, pod: Pod) -> None:
        if pod.nominated_node_name and not pod.node_name:  # perhaps by us, before a restart
            self._promised[pod.uid] = pod

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        if not self._promised:
            return Status.skip()
        nominations = self.handle.nominations
        for uid, other in tuple(self._promised.items()):
            if nominations.node_of(other) is None:
                del self._promised[uid]
        ahead = [each for each in self._promised.values() if each.priority > pod.priority]
        domains = {
            (key, nominations.node_of(other) or "")
            for other in ahead
            for key in self._keys_between(other, pod)
        }
        if not domains:
            return Status.skip()
        state.write(ClearedDomains(tuple(sorted(domains))))
        return None

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        cleared = np.zeros(len(nodes), np.bool_)
        for key, node_name in state.read(ClearedDomains).domains:
            if not key:
                cleared[:] = True
                break
            column, row = nodes.live.label(key), nodes.live.row_of(node_name)
            if row is not None and (domain := column.ids[row]) >= 0:
                cleared |= column.ids[nodes.rows] == domain
        yield Reject(cleared, CLEARED, unresolvable=True)

    def _keys_between(self, first: Pod, pod: Pod) -> Iterator[str]:
        """The topology keys for which `pod` would keep `first` from its own domain, empty for all nodes."""
        if first.namespace == pod.namespace and not self._exclusive_claims(first).isdisjoint(
            named_claims(pod)
        ):
            yield ""
        for key, matches in self._matchers(first):
            if matches(pod.label_set):
                yield key
        labels = self._namespace_labels(first.namespace)
        for term in terms_of(pod).required_anti:
            if term.matches(first, labels):
                yield term.topology_key

    # Whom to evict

    def post_filter(self, state: CycleState, pod: Pod, decision: Decision) -> Status | Nomination:
        answer = super().post_filter(state, pod, decision)
        if isinstance(answer, Nomination) or answer.code is Code.ERROR or answer.keeps_nomination:
            return answer
        everywhere, by_key = self._conflicts(pod)
        pods = self.handle.cluster.nodes.pods.pods
        if not len(everywhere) and not by_key:
            return answer
        conflicting = [pods[slot] for slot in np.concatenate([everywhere, *by_key.values()])]
        if any(other.priority < pod.priority and other.is_preempted for other in conflicting):
            text = "not eligible due to terminating pods that stand in the way on other nodes."
            return not_eligible(text, keeps_nomination=True)
        pools = [[pods[slot] for slot in pool] for pool in self._pools(decision, everywhere, by_key)]
        found = self.handle.preempt_across(pod, pools, self.args.max_trials)
        if isinstance(found, Nomination):
            self._promised[pod.uid] = pod
            groups = self.handle.cluster.groups
            return Nomination(found.node_name, with_broken_gangs(groups, found.victims))
        if found.code is Code.ERROR:
            return preemption_status(found)
        text = f"{answer.message} {found.message.capitalize()}"
        return Status(answer.code, (text,), preemption=answer.preemption)

    def _conflicts(self, pod: Pod) -> tuple[Slots, dict[str, Slots]]:
        """Pods of lower priority that may keep this one from all nodes, and by topology key those that keep
        it from their domain; as slots of the pod table."""
        nodes, table = self.handle.cluster.nodes, self.handle.cluster.nodes.pods
        lower = np.flatnonzero(table.priority < pod.priority)
        found: dict[str, list[Slots]] = {}
        for key, matches in self._matchers(pod):
            labels = table.labels[lower]
            ids = [each for each in np.unique(labels).tolist() if matches(table.label_sets.values[each])]
            found.setdefault(key, []).append(lower[np.isin(labels, ids)])
        own_labels = self._namespace_labels(pod.namespace)
        terms = table.terms[lower]
        for each in np.unique(terms[terms >= 0]).tolist():
            for term in table.term_sets.values[each].required_anti:
                if term.matches(pod, own_labels):
                    found.setdefault(term.topology_key, []).append(lower[terms == each])
        by_key = {
            key: slots
            for key, parts in sorted(found.items())
            if len(slots := np.unique(np.concatenate(parts))) and nodes.label(key).present.any()
        }
        return self._users_of_claims(pod, lower), by_key

    def _matchers(self, pod: Pod) -> Iterator[tuple[str, Callable[[LabelSet], bool]]]:
        """The topology keys of the pod's own constraints, each with what says whether a pod counts for it."""
        for term in terms_of(pod).required_anti:
            yield term.topology_key, partial(self._covers, term)
        for constraint in pod.spec.topology_spread_constraints:
            if constraint.when_unsatisfiable == "DoNotSchedule":
                try:
                    selector = selector_of(constraint.label_selector)
                except SelectorError:  # PodTopologySpread rejects the pod for it
                    continue
                yield constraint.topology_key, _in_namespace(pod.namespace, selector)

    def _covers(self, term: AffinityTerm, labels: LabelSet) -> bool:
        namespace = labels.namespace
        return term.covers(namespace, self._namespace_labels(namespace)) and term.selector.matches(
            labels.labels
        )

    def _namespace_labels(self, name: str) -> dict[str, str]:
        found = self.handle.cluster.namespaces.get(name)
        return {} if found is None else dict(found.metadata.labels)

    def _users_of_claims(self, pod: Pod, lower: Slots) -> Slots:
        """Pods that use a ReadWriteOncePod claim of this pod."""
        wanted = self._exclusive_claims(pod)
        if not wanted:
            return lower[:0]
        pods = self.handle.cluster.nodes.pods.pods
        return np.array(
            [
                slot
                for slot in lower.tolist()
                if pods[slot].namespace == pod.namespace and not wanted.isdisjoint(named_claims(pods[slot]))
            ],
            np.intp,
        )

    def _exclusive_claims(self, pod: Pod) -> set[str]:
        """The names of the pod's ReadWriteOncePod claims."""
        claims = {name: self.handle.cluster.pvcs.get(f"{pod.namespace}/{name}") for name in named_claims(pod)}
        return {
            name for name, claim in claims.items() if claim and READ_WRITE_ONCE_POD in claim.spec.access_modes
        }

    def _pools(self, decision: Decision, everywhere: Slots, by_key: dict[str, Slots]) -> Iterator[list[int]]:
        """Sets of pods to evict: for each combination of domains that nodes are in, all that stand in the way
        there. Those with low priorities and few pods come first."""
        nodes = self.handle.cluster.nodes
        rows = np.flatnonzero(decision.codes() == Code.UNSCHEDULABLE)
        if not len(rows):
            return
        domains = {key: nodes.label(key).ids for key in by_key}
        combinations = (
            np.unique(np.stack([ids[rows] for ids in domains.values()]), axis=1).T.tolist()
            if domains
            else [[]]
        )
        rank = self._rank_domains(by_key, domains)
        combinations.sort(key=lambda each: _joint(rank, each))
        seen: set[frozenset[int]] = set()
        for combination in combinations:
            parts = [everywhere]
            for (key, slots), value in zip(by_key.items(), combination, strict=True):
                if value >= 0:
                    parts.append(slots[domains[key][nodes.pods.row[slots]] == value])
            pool = frozenset(np.concatenate(parts).tolist())
            if pool and pool not in seen and len(pool) <= MAX_POOL:
                seen.add(pool)
                yield sorted(pool)
                if len(seen) == MAX_POOLS:
                    return

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.POD, Action.DELETE),
            ClusterEvent(Resource.ASSIGNED_POD, Action.ADD),
        )

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        """A pod for which a domain was cleared is bound, or gone."""
        changed = old if new is None else new
        return Hint.QUEUE if changed.uid in self._promised else Hint.SKIP

    def _rank_domains(
        self, by_key: dict[str, Slots], domains: dict[str, NDArray[np.int32]]
    ) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """By key and domain: the highest priority of the pods there that stand in the way, and how many."""
        nodes, found = self.handle.cluster.nodes, []
        for key, slots in by_key.items():
            ids = domains[key][nodes.pods.row[slots]]
            slots, ids = slots[ids >= 0], ids[ids >= 0]
            length = len(nodes.label(key).values) + 1
            highest = np.full(length, np.iinfo(np.int64).min, np.int64)
            np.maximum.at(highest, ids, nodes.pods.priority[slots])
            found.append((highest, np.bincount(ids, minlength=length)))
        return found


def _in_namespace(namespace: str, selector: Selector) -> Callable[[LabelSet], bool]:
    return lambda labels: labels.namespace == namespace and selector.matches(labels.labels)


def _joint(
    rank: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], domains: Sequence[int]
) -> tuple[int, int]:
    pairs = [
        (int(highest[each]), int(count[each])) for (highest, count), each in zip(rank, domains, strict=True)
    ]
    return max((highest for highest, _ in pairs), default=0), sum(count for _, count in pairs)
