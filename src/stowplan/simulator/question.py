"""A whole question, as the command and the page ask it: all that is supposed, in the order it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from stowplan.api.manifests import Manifests
from stowplan.api.meta import Object
from stowplan.api.pod import Pod
from stowplan.errors import InputError
from stowplan.explain.layout import join_names
from stowplan.simulator.outcome import Outcome
from stowplan.simulator.whatif import WhatIf
from stowplan.simulator.workloads import MAX_ADDED, Gangs, PodLimit, more_like, pods_of


class Several(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """So many like the pod, workload or node of that name."""

    name: str
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_ADDED:
            raise InputError(
                f"{self.name}: how many comes after it, from 1 to {MAX_ADDED}, as in {self.name}=3"
            )


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
