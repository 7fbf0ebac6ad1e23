"""A what-if question, as the command and the page ask it: assumptions in order, and the pods they create."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from itertools import chain, count

import msgspec

from stowplan.api.defaults import Plain
from stowplan.api.groups import PodGroupV1alpha2, named_groups
from stowplan.api.kinds import describe
from stowplan.api.manifests import JOB_SET_NAME, Manifests
from stowplan.api.meta import (
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Object,
    Wire,
    decode,
)
from stowplan.api.names import POD
from stowplan.api.pod import Affinity, NodeAffinity, Pod, shape_of
from stowplan.api.templates import Target, find_target, next_pod
from stowplan.cycle import Planner
from stowplan.errors import InputError
from stowplan.explain.layout import join_names
from stowplan.framework.decision import Decision
from stowplan.simulator.outcome import Outcome
from stowplan.simulator.whatif import WhatIf

MAX_ADDED = 100_000
"""Pods and nodes that one question may add: more than any cluster has."""


class Several(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """So many like the pod, workload or node of that name."""

    name: str
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_ADDED:
            raise InputError(f"{self.name}: the count must be from 1 to {MAX_ADDED}, as in {self.name}=3")


class Question(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Nodes are added first, then drained and lost, then come the pods."""

    more_nodes: tuple[Several, ...] = ()
    drain: tuple[str, ...] = ()
    lose: tuple[str, ...] = ()
    afresh: bool = False
    more: tuple[Several, ...] = ()
    gang: bool = False
    """Whether the pods of each added Job or JobSet start together, or not at all."""


def ask(
    what_if: WhatIf,
    question: Question,
    manifests: Manifests,
    read_more: Callable[[Manifests], None],
    max_added: int = MAX_ADDED,
) -> Outcome:
    """`manifests` show the cluster of the what-if; `read_more` reads into them what would be added.

    Not more than `max_added` pods and nodes are made.
    """
    objects, workloads, ignored = dict(manifests.objects), dict(manifests.workloads), +manifests.ignored
    limit = PodLimit(max_added)
    read_more(manifests)
    if unseen := manifests.ignored - ignored:
        kinds = join_names([f"{number} {kind}" for kind, number in sorted(unseen.items())])
        what_if.changes.append(f"{kinds} not looked at")
    if question.gang:
        what_if.changes.append("pods of added Jobs start together")
    what_if.add([item for key, item in manifests.objects.items() if objects.get(key) is not item])
    for each in question.more_nodes:
        limit.add(each.count, each.name)
        what_if.add_nodes_like(each.name, each.count)
    for name in dict.fromkeys(question.drain):
        what_if.drain(name)
    for name in dict.fromkeys(question.lose):
        what_if.lose(name)
    if question.afresh:
        what_if.place_afresh()

    gangs = Gangs()

    def pods() -> Iterator[Pod | Object]:
        for key, workload in tuple(manifests.workloads.items()):
            if workloads.get(key) is not workload:
                made = pods_of(manifests, workload, what_if.planner, what_if.decide, limit)
                yield from gangs.join(workload, made) if question.gang else made
        yield from gangs.objects()
        for each in question.more:
            limit.add(each.count, each.name)
            yield from more_like(manifests, each.name, each.count)

    what_if.add(pods())
    return what_if.run()


class PodLimit:
    def __init__(self, max_added: int = MAX_ADDED) -> None:
        self._max_added, self._added = max_added, 0

    def add(self, number: int, what: str) -> None:
        """Count more of `what`; raise an InputError if that exceeds the limit."""
        self._added += number
        if self._added > self._max_added:
            elsewhere = f" here, {MAX_ADDED} by `stowplan whatif`" if self._max_added < MAX_ADDED else ""
            raise InputError(
                f"{number} more would make {self._added} pods and nodes; "
                f"not more than {self._max_added} can be added at once{elsewhere}",
                what=what,
            )


class Amounts(Wire, frozen=True):
    replicas: int = 1
    parallelism: int = 1
    completions: int | None = None


class Scaled(Object, frozen=True):
    spec: Amounts = Amounts()


Decide = Callable[[Pod], Decision]


def pods_of(
    manifests: Manifests, workload: Plain, planner: Planner, decide: Decide, limit: PodLimit
) -> Iterator[Pod | Object]:
    """As many pods as the workload asks for; for a DaemonSet, one per node that accepts them."""
    if workload["kind"] == "DaemonSet":
        target = next_pod(manifests, workload)
        plugins = planner.profile_of(target.pod).plugins.items()
        limiting = {name for name, plugin in plugins if plugin.limits_daemons}
        nodes = _nodes_of(target.pod, decide, limiting)
        limit.add(len(nodes), describe(workload))
        for name in nodes:
            own = msgspec.structs.replace(_only_on(target.pod, name), name=f"{target.pod.name}-{name}")
            yield from _copy(manifests, target._replace(pod=own))
        return
    size = _size(workload)
    limit.add(size, describe(workload))
    first_member = 0
    for number in range(size):
        target = next_pod(manifests, workload, first_member)
        yield from _copy(manifests, target, number)
        first_member = target.member + 1


def more_like(manifests: Manifests, wanted: str, number: int) -> Iterator[Pod | Object]:
    """So many more pods like one that exists, or that a workload would make next."""
    first_member = 0
    for each in range(number):
        target = find_target(manifests, wanted, first_member)
        yield from _copy(manifests, target, each)
        first_member = target.member + 1


class Gangs:
    """Makes a pod group of each Job, or of all Jobs of a JobSet, whose pods name none."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, str], int] = {}

    def join(self, workload: Plain, made: Iterator[Pod | Object]) -> Iterator[Pod | Object]:
        """The same objects, pods with their group."""
        meta = workload["metadata"]
        name = (meta.get("labels") or {}).get(JOB_SET_NAME) or meta["name"]
        for item in made:
            if isinstance(item, Pod) and workload["kind"] == "Job" and not any(named_groups(item)):
                key = (item.namespace, name)
                self._sizes[key] = self._sizes.get(key, 0) + 1
                item = msgspec.structs.replace(item, group_name=name)
            yield item

    def objects(self) -> Iterator[PodGroupV1alpha2]:
        """The groups: all pods of each are needed."""
        for (namespace, name), size in self._sizes.items():
            policy = {"gang": {"minCount": size}}
            meta = {"name": name, "namespace": namespace}
            yield decode(PodGroupV1alpha2, {"metadata": meta, "spec": {"schedulingPolicy": policy}})


def _size(workload: Plain) -> int:
    try:
        spec = decode(Scaled, {"spec": workload.get("spec") or {}}).spec
        for field in spec.__struct_fields__:
            if (getattr(spec, field) or 0) < 0:
                message = f"{getattr(spec, field)} is negative; must be 0 or greater"
                raise InputError(message, field=f"spec.{field}")
    except InputError as error:
        raise InputError(error.message, what=describe(workload), field=error.field) from None
    if workload["kind"] != "Job":
        return spec.replicas
    return spec.parallelism if spec.completions is None else min(spec.parallelism, spec.completions)


def _copy(manifests: Manifests, target: Target, number: int = 0) -> Iterator[Pod | Object]:
    """What comes with the pod, and the pod under a name that is free: members of a set have theirs."""
    yield from target.objects
    own = target.pod.name
    names = chain((own,), (f"{own}-{each}" for each in count(max(number, 1))))
    name = next(each for each in names if (POD, f"{target.pod.namespace}/{each}") not in manifests.objects)
    pod = msgspec.structs.replace(
        target.pod,
        name=name,
        uid=f"{target.pod.namespace}/{name}",
        node_name="",
        nominated_node_name="",
        creation_timestamp=None,
    )
    manifests.objects[POD, pod.key] = pod
    yield pod


def _nodes_of(daemon: Pod, decide: Decide, limiting: Container[str]) -> list[str]:
    decision = decide(daemon)
    unfit = {name for name, status in decision.rejected().items() if status.plugin in limiting}
    return sorted({decision.names[row] for row in decision.looked_at.tolist()} - unfit)


def _only_on(pod: Pod, node: str) -> Pod:
    """The node's name takes the place of the terms that made it one of several."""
    field = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node,))
    terms = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(field,)),))
    affinity = pod.spec.affinity or Affinity()
    of_nodes = msgspec.structs.replace(
        affinity.node_affinity or NodeAffinity(), required_during_scheduling_ignored_during_execution=terms
    )
    affinity = msgspec.structs.replace(affinity, node_affinity=of_nodes)
    return msgspec.structs.replace(pod, shape=shape_of(msgspec.structs.replace(pod.spec, affinity=affinity)))
