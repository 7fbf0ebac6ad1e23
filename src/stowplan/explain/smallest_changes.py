"""The smallest changes that would alter a decision. Each is decided again before it is suggested.

Only one thing is changed at a time: a weight, a request, a label, a toleration, a priority, an affinity or
spread term, a cordon. For amounts, the smallest change is found to the last unit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from stowplan.api.amounts import exact_text
from stowplan.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from stowplan.api.node import NodeObject, Taint, is_tolerated
from stowplan.api.pod import (
    Affinity,
    Container,
    NodeAffinity,
    Pod,
    PodAffinity,
    PodSpec,
    Toleration,
    label_set_of,
    shape_of,
)
from stowplan.api.quantity import Quantity
from stowplan.api.selectors import requirement_text, selector_text
from stowplan.cluster import Cluster
from stowplan.cluster.columns import distinct
from stowplan.cycle import Planner, first_by_name, schedule
from stowplan.explain.changes import MAX_PER_KIND, Change, Changes, Flip
from stowplan.explain.weight_changes import weight_change, weight_steps
from stowplan.framework.decision import Decision
from stowplan.framework.plugin import ExplainingPlugin
from stowplan.framework.profile import Profile

SECONDS = 0.15
"""CPU time, so that a busy machine gives the same answer."""
replace = msgspec.structs.replace
TAINTS_TRIED = 10
SEARCH_STEPS = 2**16
"""The first step of a search is this fraction of the largest node: scores do not resolve smaller ones."""
MILLI, WHOLE = 10**6, 10**9
"""The units of cpu and of other resources, in nano-units."""
T = TypeVar("T")
REQUIRED, PREFERRED = (
    "required_during_scheduling_ignored_during_execution",
    "preferred_during_scheduling_ignored_during_execution",
)
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
NODES_TRIED = 5


def smallest_changes(
    planner: Planner,
    decision: Decision,
    *,
    seconds: float | None = None,
    now: Callable[[], float] = time.process_time,
) -> Changes:
    """The cluster must be as it was when the decision was made, and is left so.

    The search ends after `seconds` by `now`; by default after SECONDS of CPU time.
    """
    if decision.error is not None or decision.not_looked_at is not None:  # a sample may leave out any node
        return Changes()
    trial = Trial(planner, decision, SECONDS if seconds is None else seconds, now)
    found: list[Change] = []
    try:
        for kind in _kinds(trial):
            found.extend(islice(kind(trial), MAX_PER_KIND))
    except OutOfTime:
        return Changes(tuple(found), is_complete=False)
    return Changes(tuple(found))


def _kinds(trial: Trial) -> Sequence[Callable[[Trial], Iterator[Change]]]:
    """Requests come first for a pod without a node: they are the likeliest cause, and quick to search."""
    others = (
        vary_weights,
        add_tolerations,
        drop_terms,
        drop_pod_labels,
        raise_priority,
        vary_node_labels,
        uncordon_nodes,
    )
    return (vary_requests, *others) if trial.winner is None else (*others, vary_requests)


def vary_weights(trial: Trial) -> Iterator[Change]:
    """The smallest change first."""
    known = {step.name for step in trial.profile.scores}
    for column, step in weight_steps(trial.decision):
        weight = column.weight + step
        if column.plugin in known and (flip := trial.with_weight(column.plugin, weight)) is not None:
            yield weight_change(column, step, flip)


class Requester(NamedTuple):
    """A part of a pod that requests resources, and the pod's spec with other requests."""

    name: str
    requests: Mapping[str, Quantity]
    spec_with: Callable[[dict[str, Quantity]], PodSpec]


def vary_requests(trial: Trial) -> Iterator[Change]:
    """For each resource, the smallest decrease; for a pod with a node, also the smallest increase."""
    for resource, amount in trial.pod.requests.items():
        if amount:
            found = [
                each
                for requester in _requesters(trial.pod.spec)
                for each in _vary_request(trial, requester, resource)
            ]
            yield from sorted(found, key=lambda each: abs(each.now - each.was))[:1]


def _vary_request(trial: Trial, requester: Requester, resource: str) -> Iterator[Change]:
    unit = MILLI if resource == "cpu" else WHOLE
    was = -(-requester.requests.get(resource, 0) // unit)
    if was <= 0:
        return

    def pod_with(amount: int) -> Pod:
        asks = {**requester.requests, resource: Quantity(amount * unit)}
        return replace(trial.pod, shape=shape_of(requester.spec_with(asks)))

    def change(sign: int, search: Any, most: int) -> Iterator[Change]:
        found: tuple[int, Flip] | None = search(
            lambda step: trial.with_pod(pod_with(was + sign * step)), most
        )
        if found is not None:
            amount = was + sign * found[0]
            before, after = exact_text(resource, was), exact_text(resource, amount)
            yield Change(
                kind="request",
                text=f"{resource} request {after} of the {requester.name} instead of {before}",
                flip=found[1],
                was=was,
                now=amount,
                pod=pod_with(amount),
                less=pod_with(amount - sign),
            )

    if trial.winner is None:
        yield from change(-1, find_least, was)  # the less it requests, the more nodes have room
    else:
        largest = int(trial.cluster.nodes.allocatable[resource].max(initial=0))
        search = partial(find_nearest, step=max(largest // SEARCH_STEPS, 1))
        yield from change(-1, search, was)
        yield from change(1, search, largest - was)


def _requesters(spec: PodSpec) -> Iterator[Requester]:
    own = spec.resources
    if own is not None and own.requests:
        yield Requester(
            "the pod", own.requests, lambda requests: replace(spec, resources=replace(own, requests=requests))
        )
    for field in ("containers", "init_containers"):
        group: tuple[Container, ...] = getattr(spec, field)
        for place, each in enumerate(group):
            if each.resources.requests:
                yield Requester(
                    f"container {each.name}", each.resources.requests, _in_group(spec, field, place)
                )


def _in_group(spec: PodSpec, field: str, place: int) -> Callable[[dict[str, Quantity]], PodSpec]:
    def spec_with(asks: dict[str, Quantity]) -> PodSpec:
        group: list[Container] = list(getattr(spec, field))
        group[place] = replace(group[place], resources=replace(group[place].resources, requests=asks))
        return replace(spec, **{field: tuple(group)})

    return spec_with


def add_tolerations(trial: Trial) -> Iterator[Change]:
    """Tolerate one more taint, the most frequent first."""
    own = trial.pod.spec.tolerations
    counts: Counter[Taint] = Counter()
    for node in trial.cluster.nodes.objects:
        if node.spec.taints:
            counts.update(taint for taint in node.taints if not is_tolerated(taint, own))
    for taint, _ in counts.most_common(TAINTS_TRIED):
        added = Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)
        pod = _with_spec(trial.pod, tolerations=(*own, added))
        if (flip := trial.with_pod(pod)) is not None:
            text = f"a toleration of {taint.text}"
            yield Change(kind="toleration", text=text, flip=flip, now=taint.text, pod=pod)


def drop_terms(trial: Trial) -> Iterator[Change]:
    """Remove one requirement on nodes or on nearby pods."""
    for text, spec in specs_without_terms(trial.pod.spec):
        pod = replace(trial.pod, shape=shape_of(spec))
        if (flip := trial.with_pod(pod)) is not None:
            yield Change(kind="term", text=f"without {text}", flip=flip, was=text, pod=pod)


def drop_pod_labels(trial: Trial) -> Iterator[Change]:
    """Remove a label, such as one that other pods repel."""
    pod = trial.pod
    for key, value in pod.labels.items():
        left = {name: each for name, each in pod.labels.items() if name != key}
        changed = replace(pod, label_set=label_set_of(pod.namespace, left))
        if (flip := trial.with_pod(changed)) is not None:
            text = f"without the pod's label {key}={value}"
            yield Change(kind="pod label", text=text, flip=flip, was=f"{key}={value}", pod=changed)


def raise_priority(trial: Trial) -> Iterator[Change]:
    """The lowest priority with which pods could be evicted for the pod."""
    pod = trial.pod
    if trial.winner is not None or trial.decision.nominated is not None:
        return
    # The outcome can only differ on either side of another pod's priority.
    others = distinct(trial.cluster.nodes.pods.priority)
    steps = [int(each) + 1 - pod.priority for each in others.tolist() if each >= pod.priority]

    def pod_with(priority: int) -> Pod:
        return _with_spec(pod, priority=priority)

    found = find_least(
        lambda count: trial.with_preemption(pod_with(pod.priority + steps[count - 1])), len(steps)
    )
    if found is not None:
        priority = pod.priority + steps[found[0] - 1]
        yield Change(
            kind="priority",
            text=f"priority {priority} instead of {pod.priority}",
            flip=found[1],
            was=pod.priority,
            now=priority,
            pod=pod_with(priority),
            less=pod_with(priority - 1),
        )


def _with_spec(pod: Pod, **fields: object) -> Pod:
    return replace(pod, shape=shape_of(replace(pod.spec, **fields)))


def specs_without_terms(spec: PodSpec) -> Iterator[tuple[str, PodSpec]]:
    """Each term as text, with the spec without it."""
    selector = spec.node_selector or {}
    for key, value in selector.items():
        left = {name: each for name, each in selector.items() if name != key}
        yield f"the node selector {key}={value}", replace(spec, node_selector=left)
    for text, affinity in _affinities(spec.affinity or Affinity()):
        yield text, replace(spec, affinity=affinity)
    for constraint, others in _each(spec.topology_spread_constraints):
        text = f"the spread over {constraint.topology_key} ({constraint.when_unsatisfiable})"
        yield text, replace(spec, topology_spread_constraints=others)


def _affinities(affinity: Affinity) -> Iterator[tuple[str, Affinity]]:
    for text, of_nodes in _node_affinities(affinity.node_affinity or NodeAffinity()):
        yield text, replace(affinity, node_affinity=of_nodes)
    for field, name in (("pod_affinity", "affinity"), ("pod_anti_affinity", "anti-affinity")):
        for text, of_pods in _pod_affinities(getattr(affinity, field) or PodAffinity(), name):
            yield text, replace(affinity, **{field: of_pods})


def _node_affinities(affinity: NodeAffinity) -> Iterator[tuple[str, NodeAffinity]]:
    required = affinity.required_during_scheduling_ignored_during_execution or NodeSelector()
    for number, term in enumerate(required.node_selector_terms):
        for text, left in _expressions(term):
            terms = list(required.node_selector_terms)
            terms[number] = left
            kept = replace(required, node_selector_terms=tuple(terms)) if _asks(left) else None
            yield f"the required node affinity {text}", replace(affinity, **{REQUIRED: kept})
    for preferred, others in _each(affinity.preferred_during_scheduling_ignored_during_execution or ()):
        text = " and ".join(text for text, _ in _expressions(preferred.preference))
        yield f"the preferred node affinity {text}", replace(affinity, **{PREFERRED: others})


def _expressions(term: NodeSelectorTerm) -> Iterator[tuple[str, NodeSelectorTerm]]:
    for field in ("match_expressions", "match_fields"):
        for each, others in _each(getattr(term, field)):
            yield requirement_text(each), replace(term, **{field: others})


def _asks(term: NodeSelectorTerm) -> bool:
    """A term without requirements matches no node, so the whole selector is removed with the last one."""
    return bool(term.match_expressions or term.match_fields)


def _pod_affinities(affinity: PodAffinity, name: str) -> Iterator[tuple[str, PodAffinity]]:
    for term, others in _each(affinity.required_during_scheduling_ignored_during_execution):
        text = f"the required {name} to pods with {selector_text(term.label_selector)}"
        yield text, replace(affinity, **{REQUIRED: others})
    for entry, left in _each(affinity.preferred_during_scheduling_ignored_during_execution):
        text = f"the preferred {name} to pods with {selector_text(entry.pod_affinity_term.label_selector)}"
        yield text, replace(affinity, **{PREFERRED: left})


def _each(items: Sequence[T]) -> Iterator[tuple[T, tuple[object, ...]]]:
    """Every item, with the others."""
    for place, item in enumerate(items):
        yield item, (*items[:place], *items[place + 1 :])


def vary_node_labels(trial: Trial) -> Iterator[Change]:
    """Set or remove a label on a node as the pod requires or prefers."""
    for key, value in dict.fromkeys(_preferred_labels(trial.pod)):
        for node in _candidates(trial):
            changed = _set_label(node, key, value)
            if changed is not None and (flip := trial.with_node(changed)) is not None:
                text = f"label {key}={value} on node" if value is not None else f"no label {key} on node"
                yield Change(
                    kind="node label",
                    text=f"{text} {node.name}",
                    flip=flip,
                    was=node.labels.get(key),
                    now=value,
                    node=changed,
                )
                break


def uncordon_nodes(trial: Trial) -> Iterator[Change]:
    cordoned = sorted((node for node in trial.cluster.nodes.objects if node.unschedulable), key=_name)
    for node in cordoned[:NODES_TRIED]:
        taints = tuple(taint for taint in node.spec.taints if taint.key != UNSCHEDULABLE)
        changed = replace(node, spec=replace(node.spec, unschedulable=False, taints=taints))
        if (flip := trial.with_node(changed)) is not None:
            text = f"node {node.name} no longer cordoned"
            yield Change(kind="cordon", text=text, flip=flip, now=node.name, node=changed)


def _preferred_labels(pod: Pod) -> Iterator[tuple[str, str | None]]:
    """Labels that would make a node suit the pod better; None for a label that must be absent."""
    yield from (pod.spec.node_selector or {}).items()
    affinity = (pod.spec.affinity or Affinity()).node_affinity or NodeAffinity()
    required = affinity.required_during_scheduling_ignored_during_execution
    terms = [*required.node_selector_terms] if required else []
    terms += [each.preference for each in affinity.preferred_during_scheduling_ignored_during_execution or ()]
    for term in terms:
        for requirement in term.match_expressions:
            yield requirement.key, _matching_value(requirement)


def _matching_value(requirement: NodeSelectorRequirement) -> str | None:
    match requirement.operator:
        case "In":
            return requirement.values[0] if requirement.values else None
        case "Exists":
            return "true"
        case "Gt" | "Lt" if requirement.values and requirement.values[0].lstrip("-").isdecimal():
            return str(int(requirement.values[0]) + (1 if requirement.operator == "Gt" else -1))
    return None


def _candidates(trial: Trial) -> Iterator[NodeObject]:
    """Nodes that lack nothing but a label, by name, and the best nodes after the winner."""
    decision, nodes = trial.decision, trial.cluster.nodes
    rejections = np.zeros(len(decision.looked_at), np.int64)
    alone = np.zeros(len(decision.looked_at), np.bool_)
    for verdicts in decision.filters:
        rejections += verdicts.fails
        plugin = trial.profile.plugins.get(verdicts.plugin)
        if isinstance(plugin, ExplainingPlugin) and plugin.reads_node_labels:
            alone |= verdicts.fails
    rows = decision.looked_at[alone & (rejections == 1)]
    yield from sorted((nodes.objects[row] for row in rows.tolist()), key=_name)[:NODES_TRIED]
    totals = decision.totals
    if totals is not None:
        order = decision.feasible[np.argsort(-totals, kind="stable")].tolist()
        behind = [row for row in order[: NODES_TRIED + 1] if decision.names[row] != trial.winner]
        yield from (nodes.objects[row] for row in behind)


def _set_label(node: NodeObject, key: str, value: str | None) -> NodeObject | None:
    """None if the node has that label already."""
    if node.labels.get(key) == value:
        return None
    left = {name: each for name, each in node.labels.items() if name != key}
    meta = replace(node.metadata, labels=left if value is None else {**left, key: value})
    return replace(node, metadata=meta)


def _name(node: NodeObject) -> str:
    return node.name


GROWTH = 1.25


class OutOfTime(Exception):  # noqa: N818 (nothing went wrong)
    pass


class Trial:
    """Decides a pod again on a cluster, and leaves the cluster as it was.

    The outcome differs if a pod that fit nowhere now fits, or if its node is no longer among the best.
    """

    def __init__(
        self, planner: Planner, decision: Decision, seconds: float, now: Callable[[], float]
    ) -> None:
        self.cluster, self.profile = planner.cluster, planner.profile_of(decision.pod)
        self.pod, self.decision = decision.pod, decision
        self._ends, self._now = now() + seconds, now

    @property
    def winner(self) -> str | None:
        return self.decision.chosen

    def with_pod(self, pod: Pod) -> Flip | None:
        return self._flip(self._decide(self.profile, pod))

    def with_weight(self, plugin: str, weight: int) -> Flip | None:
        return self._flip(self._decide(self.profile.with_weight(plugin, weight), self.pod))

    def with_node(self, node: NodeObject) -> Flip | None:
        with replaced_node(self.cluster, node):
            return self._flip(self._decide(self.profile, self.pod))

    def with_preemption(self, pod: Pod) -> Flip | None:
        """Also counts as a different outcome if pods could be evicted for the pod."""
        self._check_time()
        decision = schedule(self.profile, pod, self.cluster.nodes, first_by_name)
        found = self._flip(decision)
        if found is None and self.winner is None and decision.nominated is not None:
            return Flip(decision.nominated, by_preemption=True)
        return found

    def _decide(self, profile: Profile, pod: Pod) -> Decision:
        """Decide without looking for pods to evict, which would take long."""
        self._check_time()
        return schedule(profile, pod, self.cluster.nodes, first_by_name, preempts=False)

    def _flip(self, decision: Decision) -> Flip | None:
        if decision.error is not None or decision.chosen is None:
            return None
        best = {decision.names[row] for row in decision.best.tolist()}
        return None if self.winner in best else Flip(decision.chosen)

    def _check_time(self) -> None:
        if self._now() > self._ends:
            raise OutOfTime


def find_least(flips: Callable[[int], Flip | None], most: int) -> tuple[int, Flip] | None:
    """The smallest number up to `most` that changes the outcome, if all greater ones do so too."""
    found = flips(most) if most > 0 else None
    return None if found is None else _between(flips, 0, most, found)


def find_nearest(flips: Callable[[int], Flip | None], most: int, step: int = 1) -> tuple[int, Flip] | None:
    """The same if greater ones may not do so: search in growing steps, then narrow down."""
    low = 0
    while low < most:
        high = min(low + step, most)
        found = flips(high)
        if found is not None:
            return _between(flips, low, high, found)
        low, step = high, max(int(high * (GROWTH - 1)), step)
    return None


def _between(flips: Callable[[int], Flip | None], low: int, high: int, found: Flip) -> tuple[int, Flip]:
    """`low` does not change the outcome, `high` does."""
    while high - low > 1:
        middle = (low + high) // 2
        flip = flips(middle)
        if flip is None:
            low = middle
        else:
            high, found = middle, flip
    return high, found


@contextmanager
def replaced_node(cluster: Cluster, node: NodeObject) -> Iterator[None]:
    """Replace a node of the cluster by another of the same name for the time of the context."""
    row = cluster.nodes.row_of(node.name)
    assert row is not None, f"no node {node.name}"
    known = cluster.nodes.objects[row]
    cluster.add_node(node)
    try:
        yield
    finally:
        cluster.add_node(known)
