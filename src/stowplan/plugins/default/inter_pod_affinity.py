"""InterPodAffinity: places pods near those that they have affinity to, and away from the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from stowplan.api.node import NodeObject
from stowplan.api.pod import Affinity, LabelSet, Pod
from stowplan.api.selectors import NOTHING, Selector, selector_text
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cluster.node_table import NodeTable
from stowplan.cluster.pod_table import GROUPS, AffinityTerm, PodQuery, PodTerms, TermEntry, terms_of
from stowplan.cluster.trial_table import TrialTable
from stowplan.framework import (
    MAX_SCORE,
    Action,
    ClusterEvent,
    CycleState,
    Handle,
    Hint,
    Mask,
    Node,
    Reject,
    Resource,
    Scores,
    Status,
)
from stowplan.framework.plugin import AwaitingPlugin, ExplainingPlugin
from stowplan.plugins.args import InterPodAffinityArgs
from stowplan.plugins.node_matching import required_text

Ints = NDArray[np.int64]
Counts = dict[str, Ints]
"""Pods by topology key and, in the column, by domain."""
NO_AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"
NOBODY: Ints = np.zeros(0, np.int64)


class OwnTerm(NamedTuple):
    """A term of the pod to place, with the namespaces it reaches looked up."""

    key: str
    query: PodQuery


class HardState:
    def __init__(self, affinity: tuple[OwnTerm, ...], anti: tuple[OwnTerm, ...]) -> None:
        self.affinity, self.anti = affinity, anti
        self.all_of = _all_of(affinity) if affinity else None
        """The pods that satisfy every required term at once: only those count."""
        self.partners: Counts = {}
        self.unwanted: list[tuple[str, Ints]] = []
        self.rejecting: Counts = {}
        """Pods on nodes that do not want this one near them."""

    def clone(self) -> HardState:
        copy = HardState(self.affinity, self.anti)
        copy.partners = {key: counts.copy() for key, counts in self.partners.items()}
        copy.unwanted = [(key, counts.copy()) for key, counts in self.unwanted]
        copy.rejecting = {key: counts.copy() for key, counts in self.rejecting.items()}
        return copy


class SoftState(NamedTuple):
    points: Counts


class InterPodAffinity(AwaitingPlugin, ExplainingPlugin):
    args: InterPodAffinityArgs
    takes_trials = True
    hints_by_spec = True

    def __init__(self, args: InterPodAffinityArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        # Not cached with the labels: terms refer to the cluster and would keep it alive.
        self._kept: WeakKeyDictionary[LabelSet, tuple[object, Mapping[str, list[TermEntry]]]]
        self._kept = WeakKeyDictionary()

    # Filtering

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        terms, live = terms_of(pod), nodes.live
        if terms.errors:
            return Status.unresolvable(f"parsing pod: {', '.join(terms.errors)}")
        rejecting = self._rejecting(pod, live)
        if not (rejecting or terms.required or terms.required_anti):
            return Status.skip()
        hard = HardState(
            tuple(map(self._resolve, terms.required)), tuple(map(self._resolve, terms.required_anti))
        )
        hard.rejecting = rejecting
        if hard.all_of is not None:
            tally = live.tallies.of_pods(hard.all_of)
            hard.partners = {term.key: tally.by_domain(term.key) for term in hard.affinity}
        hard.unwanted = [
            (term.key, live.tallies.of_pods(term.query).by_domain(term.key)) for term in hard.anti
        ]
        state.write(hard)
        return None

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        hard = state.read(HardState)
        trial = nodes if isinstance(nodes, TrialTable) else None
        undecided: Mask | None = None  # all
        if hard.affinity:
            undecided = self._with_partners(hard, pod, nodes, trial)
            yield Reject(~undecided, NO_AFFINITY, unresolvable=True)
        if hard.unwanted:
            if trial is None:
                near = _any_in(hard.unwanted, nodes)
            else:
                changes = [trial.change_of(term.query) for term in hard.anti]
                near = _any_tried(zip(hard.unwanted, changes, strict=True), trial)
            if undecided is not None:
                near &= undecided
            yield Reject(near, ANTI_AFFINITY)
            undecided = ~near if undecided is None else undecided & ~near
        rejecting = hard.rejecting
        by_key: dict[str, Ints] = {}
        if trial is not None:
            by_key = trial.change_by_terms(lambda terms: self._rejecting_terms(terms, pod))
            rejecting = dict.fromkeys(by_key, NOBODY) | rejecting
        if rejecting:
            if trial is None:
                rejected = _any_in(rejecting.items(), nodes)
            else:
                changed = ((item, by_key.get(item[0], 0)) for item in rejecting.items())
                rejected = _any_tried(changed, trial)
            if undecided is not None:
                rejected &= undecided
            yield Reject(rejected, EXISTING_ANTI_AFFINITY)

    def explain_reasons(self, pod: Pod, reasons: Sequence[str], nodes: Sequence[NodeObject]) -> str:
        if EXISTING_ANTI_AFFINITY in reasons:
            return "pods that run there or nearby have anti-affinity to its labels"
        affinity, is_anti = pod.spec.affinity or Affinity(), ANTI_AFFINITY in reasons
        side = affinity.pod_anti_affinity if is_anti else affinity.pod_affinity
        terms = side.required_during_scheduling_ignored_during_execution if side else ()
        which = "no pod" if is_anti else "a pod"
        return required_text(
            f"{which} with {selector_text(each.label_selector)} in its {each.topology_key}" for each in terms
        )

    def _with_partners(
        self, hard: HardState, pod: Pod, nodes: NodeTable, trial: TrialTable | None = None
    ) -> Mask:
        labelled, satisfied = np.ones(len(nodes), np.bool_), np.ones(len(nodes), np.bool_)
        change: Ints | int = 0
        if trial is not None and hard.all_of is not None:
            change = trial.change_of(hard.all_of)
        nobody: Any = True
        for key, counts in hard.partners.items():
            ids = nodes.label(key).ids
            labelled &= ids >= 0
            occupied = np.count_nonzero(counts)
            if trial is not None:
                before = _counts_at(counts, ids)
                here = before + change * (ids >= 0)
                satisfied &= here > 0
                nobody = nobody & (occupied - (before != 0) + (here != 0) == 0)
            else:
                if len(counts):
                    satisfied &= (counts > 0).take(ids)
                nobody = nobody and not occupied
        if np.any(nobody) and all(term.query.matches(pod.label_set) for term in hard.affinity):
            satisfied |= nobody  # the first pod of its group has no pod to be near
        return labelled & satisfied

    def add_pod(self, state: CycleState, pod: Pod, added: Pod, node: Node) -> None:
        self._follow(state.read(HardState), pod, added, node, 1)

    def remove_pod(self, state: CycleState, pod: Pod, removed: Pod, node: Node) -> None:
        self._follow(state.read(HardState), pod, removed, node, -1)

    def _follow(self, hard: HardState, pod: Pod, other: Pod, node: Node, amount: int) -> None:
        live = self.handle.cluster.nodes
        for key, times in self._rejecting_terms(terms_of(other), pod).items():
            counts = hard.rejecting.get(key)
            if counts is None:
                counts = hard.rejecting[key] = np.zeros(len(live.label(key).values), np.int64)
            _bump(counts, live, key, node, times * amount)
        if hard.all_of is not None and hard.all_of.matches(other.label_set):
            for key, counts in hard.partners.items():
                _bump(counts, live, key, node, amount)
        for own, (key, counts) in zip(hard.anti, hard.unwanted, strict=True):
            if own.query.matches(other.label_set):
                _bump(counts, live, key, node, amount)

    def _rejecting_terms(self, terms: PodTerms, pod: Pod) -> Counter[str]:
        """How many terms of another pod reject this one near it, by topology key."""
        namespace = self._namespace_labels(pod.namespace)
        return Counter(term.topology_key for term in terms.required_anti if term.matches(pod, namespace))

    def _rejecting(self, pod: Pod, live: LiveNodeTable) -> Counts:
        found: Counts = {}
        if live.tallies.terms["required_anti"]:
            for entry in self._matching(pod, live)["required_anti"]:
                counts = live.tallies.of_term(entry).by_domain(entry.term.topology_key)
                if np.count_nonzero(counts):
                    _sum_up(found, entry.term.topology_key, counts)
        return found

    # Scoring

    def pre_score(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        terms, live = terms_of(pod), nodes.live
        has_own = bool(terms.preferred or terms.preferred_anti)
        others = live.tallies.has_terms and not self.args.ignore_preferred_terms_of_existing_pods
        if not (has_own or others):
            return Status.skip()
        points: Counts = {}
        for key, weight, counts in self._contributions(terms, pod, live):
            if np.count_nonzero(counts):
                _sum_up(points, key, counts if weight == 1 else counts * weight)
        if not points:
            return Status.skip()
        state.write(SoftState(points))
        return None

    def _contributions(
        self, terms: PodTerms, pod: Pod, live: LiveNodeTable
    ) -> Iterator[tuple[str, int, Ints]]:
        """Topology key, weight and pods by domain, for every term on either side that matches."""
        for sign, group in ((1, terms.preferred), (-1, terms.preferred_anti)):
            for weight, term in group:
                own = self._resolve(term)
                yield own.key, sign * weight, live.tallies.of_pods(own.query).by_domain(own.key)
        if not live.tallies.has_terms:
            return
        matching = self._matching(pod, live)
        hard = self.args.hard_pod_affinity_weight
        for sign, name in ((hard, "required"), (1, "preferred"), (-1, "preferred_anti")):
            for entry in matching[name] if sign else ():
                key = entry.term.topology_key
                yield key, sign * entry.weight, live.tallies.of_term(entry).by_domain(key)

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        total: Scores | None = None
        for key, points in state.read(SoftState).points.items():
            padded = np.zeros(len(points) + 1, np.int64)
            padded[:-1] = points
            part = padded.take(nodes.label(key).ids)  # nodes without the label have the id -1: nothing
            total = part if total is None else total + part
        return np.zeros(len(nodes), np.int64) if total is None else total

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        lowest, highest = int(scores.min()), int(scores.max())
        if highest == lowest:
            return np.zeros(len(scores), np.int64)
        # parity: divided first, then scaled, then cut off: 29 of 100 gives 28
        return (float(MAX_SCORE) * ((scores - lowest) / float(highest - lowest))).astype(np.int64)

    # What both need

    def _resolve(self, term: AffinityTerm) -> OwnTerm:
        # parity: a namespace selector that accepts no labels at all accepts every namespace
        if term.namespace_selector.matches({}):
            return OwnTerm(term.topology_key, PodQuery(None, term.selector))
        namespaces = term.namespaces
        if term.namespace_selector is not NOTHING and not term.namespace_selector.nothing:
            namespaces |= {
                each.name
                for each in self.handle.cluster.namespaces
                if term.namespace_selector.matches(each.metadata.labels)
            }
        return OwnTerm(term.topology_key, PodQuery(namespaces, term.selector))

    def _matching(self, pod: Pod, live: LiveNodeTable) -> Mapping[str, list[TermEntry]]:
        """The terms of pods on nodes that are about this pod, kept while no term or namespace changes."""
        versions = (live.tallies.terms_version, self.handle.cluster.namespaces.version)
        kept = self._kept.get(pod.label_set)
        if kept is None or kept[0] != versions:
            namespace = self._namespace_labels(pod.namespace)
            found = {
                group: [
                    entry
                    for entry in live.tallies.terms_for(group, pod.label_set)
                    if entry.term.matches(pod, namespace)
                ]
                for group in GROUPS
            }
            kept = self._kept[pod.label_set] = (versions, found)
        return kept[1]

    def _namespace_labels(self, name: str) -> Mapping[str, str]:
        namespace = self.handle.cluster.namespaces.get(name)
        return {} if namespace is None else namespace.metadata.labels

    # Waking

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.POD, Action.ADD | Action.UPDATE_POD_LABEL | Action.DELETE),
            ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL),
        )

    def awaited_pods(self, pod: Pod) -> Iterable[PodQuery]:
        # All terms of a kind must match, so the first is enough to rule others out.
        terms = terms_of(pod)
        for term in (*terms.required[:1], *terms.required_anti[:1]):
            is_named = term.namespace_selector.nothing
            yield PodQuery(term.namespaces if is_named else None, term.selector)

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        terms = terms_of(pod)
        if event.resource is Resource.NODE:
            helps = _node_helps(terms, old, new)
        else:
            helps = self._pod_helps(pod, terms, old, new)
        return Hint.QUEUE if helps else Hint.SKIP

    def _pod_helps(self, pod: Pod, terms: PodTerms, old: Pod | None, new: Pod | None) -> bool:
        if old is not None and new is not None and new.uid == pod.uid:
            return True
        if any(each is not None and not (each.node_name or each.nominated_node_name) for each in (old, new)):
            return False
        if new is not None:
            came = self._matches_all(terms.required, new)
            if old is None:
                return came
            left = self._matches_all(terms.required_anti, old) and not self._matches_all(
                terms.required_anti, new
            )
            return (came and not self._matches_all(terms.required, old)) or left
        assert old is not None
        rejected_us = terms_of(old).required_anti
        return self._matches_all(terms.required_anti, old) or self._matches_all(rejected_us, pod)

    def _matches_all(self, terms: tuple[AffinityTerm, ...], pod: Pod) -> bool:
        """Whether there are terms and all match.

        Unlike kube-scheduler, which asks namespace selectors about a namespace without labels, we also ask
        them about the labels it has: a pod that waits for one in such a namespace is woken when it comes.
        """
        labels, name = pod.labels, pod.namespace
        for term in terms:
            if not term.selector.matches(labels):
                return False
            if not (term.covers(name, {}) or term.covers(name, self._namespace_labels(name))):
                return False
        return bool(terms)


def _all_of(terms: tuple[OwnTerm, ...]) -> PodQuery:
    namespaces: frozenset[str] | None = None
    selector = Selector()
    for _, query in terms:
        if query.namespaces is not None:
            namespaces = query.namespaces if namespaces is None else namespaces & query.namespaces
        selector = NOTHING if query.selector.nothing else selector.also(query.selector.requirements)
    return PodQuery(namespaces, selector)


def _any_in(counts: Iterable[tuple[str, Ints]], nodes: NodeTable) -> Mask:
    """Nodes in a domain where some pod was counted."""
    found = np.zeros(len(nodes), np.bool_)
    for key, by_domain in counts:
        if len(by_domain):
            occupied = np.zeros(len(by_domain) + 1, np.bool_)
            np.greater(by_domain, 0, out=occupied[:-1])
            # Nodes without the label have the id -1, which is the last. An index would take thrice the time.
            found |= occupied.take(nodes.label(key).ids)
    return found


def _any_tried(counts: Iterable[tuple[tuple[str, Ints], Ints | int]], trial: TrialTable) -> Mask:
    """The same for nodes with changes of their own, which add to the count of their domain."""
    found = np.zeros(len(trial), np.bool_)
    for (key, by_domain), change in counts:
        ids = trial.label(key).ids
        found |= (_counts_at(by_domain, ids) + change > 0) & (ids >= 0)
    return found


def _counts_at(by_domain: Ints, ids: NDArray[np.int32]) -> Ints:
    """The count of each node's domain; 0 for nodes without the label."""
    padded = np.zeros(len(by_domain) + 1, np.int64)
    padded[:-1] = by_domain
    return padded.take(ids) if len(by_domain) else np.zeros(len(ids), np.int64)


def _sum_up(found: Counts, key: str, counts: Ints) -> None:
    found[key] = found[key] + counts if key in found else counts


def _bump(counts: Ints, live: LiveNodeTable, key: str, node: Node, amount: int) -> None:
    domain = live.label(key).index.get(node.labels.get(key, ""), -1) if key in node.labels else -1
    if domain >= 0:
        counts[domain] += amount


def _node_helps(terms: PodTerms, old: Any, new: Any) -> bool:
    for term in terms.required:
        key = term.topology_key
        if key in new.labels and (old is None or old.labels.get(key) != new.labels[key]):
            return True
    for term in terms.required_anti:
        key = term.topology_key
        if old is None or (key in old.labels and old.labels[key] != new.labels.get(key)):
            return True
    return False
