"""Asks extenders where the cycle says so, and keeps what they are sent.

All of a decision sees one cluster: changes are deferred until it is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

from stowplan import log
from stowplan.api.extender import MetaPod, MetaVictims
from stowplan.api.nesting import members
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.client.api import Watched, WatchedResource
from stowplan.client.extenders import Extender, ExtenderError, shorten
from stowplan.client.watch import EventKind, OnEvent
from stowplan.cluster.columns import distinct
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cycle.errors import CycleError
from stowplan.cycle.preempt import Victims
from stowplan.cycle.schedule import (
    AskFilters,
    AskScores,
    AskVictims,
    Cycle,
    ExtenderQuestion,
    TieBreak,
    drop_nodes,
)
from stowplan.framework.decision import Decision, ScoreColumn
from stowplan.framework.profile import EXTENDER
from stowplan.framework.scores import MAX_SCORE
from stowplan.framework.status import Status
from stowplan.metrics import Metrics
from stowplan.scheduler.shared import DeferredChanges

MAX_EXTENDER_SCORE = 10
"""Counts as much as a plugin's highest score; higher scores are not rejected."""


class ExtenderCalls:
    """Drives the cycle of a pod, and answers its questions by asking the extenders that manage the pod."""

    def __init__(self, extenders: Sequence[Extender], objects: WholeObjects, metrics: Metrics) -> None:
        self.extenders, self._objects, self._metrics = tuple(extenders), objects, metrics

    def is_any_interested(self, pods: Iterable[Pod]) -> bool:
        """Whether an extender manages one of these pods."""
        return any(extender.is_interested(pod) for pod in pods for extender in self.extenders)

    async def schedule(self, cycle: Cycle, tie_break: TieBreak, pause: Callable[[], None]) -> Decision:
        """As `cycle.schedule`. `pause` is called when plugins are left for extenders."""
        pod = cycle.decision.pod
        extenders = [extender for extender in self.extenders if extender.is_interested(pod)]
        asking = _Asking(extenders, self._objects, self._objects.pod(pod.uid), self._metrics)
        steps = cycle.decide(tie_break, asks_extenders=True)
        answer: object = None
        error: CycleError | None = None
        while True:
            try:
                question = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                decision: Decision = end.value
                return decision
            pause()
            answer, error = None, None
            try:
                answer = await asking.ask(question, cycle.nodes)
            except ExtenderError as rejection:
                error = CycleError(str(rejection))
                if isinstance(question, AskFilters) and question.is_nominated:
                    log.error("Evaluation failed on nominated node", rejection, pod=pod)


class _Asking:
    """The extenders that manage a pod."""

    def __init__(
        self, extenders: Sequence[Extender], objects: WholeObjects, pod: Raw, metrics: Metrics
    ) -> None:
        self._extenders, self._objects, self._pod, self._metrics = extenders, objects, pod, metrics

    async def ask(self, question: ExtenderQuestion, nodes: LiveNodeTable) -> Any:
        if isinstance(question, AskFilters):
            return await self._filter(question.decision)
        if isinstance(question, AskScores):
            return await self._score(question.decision)
        return await self._preempt(question, nodes)

    async def _filter(self, decision: Decision) -> None:
        """All of them, one after another, may drop nodes; what they reject goes into the decision."""
        for extender in self._extenders:
            if not extender.filters or not len(decision.feasible):
                continue
            names = [decision.names[row] for row in decision.feasible.tolist()]
            try:
                left, result = await extender.filter(self._pod, names, self._objects.node)
            except ExtenderError as error:
                _skip_if_ignorable(extender, decision.pod, error)
                continue
            if len(kept := set(left)) == len(names):
                continue
            why = {name: Status.unschedulable(shorten(text)) for name, text in result.failed_nodes.items()}
            for name, text in result.failed_and_unresolvable_nodes.items():
                why[name] = Status.unresolvable(shorten(text))
            drop_nodes(decision, extender.url, np.array([name in kept for name in names], np.bool_), why)

    async def _score(self, decision: Decision) -> list[ScoreColumn]:
        """The scores of each extender that answers; one that fails gives none."""
        asked = [extender for extender in self._extenders if extender.prioritizes]
        self._metrics.running("prioritizing_extender", len(asked))
        try:
            found = await asyncio.gather(*(self._score_by(extender, decision) for extender in asked))
        finally:
            self._metrics.running("prioritizing_extender", -len(asked))
        return [column for column in found if column is not None]

    async def _score_by(self, extender: Extender, decision: Decision) -> ScoreColumn | None:
        names = [decision.names[row] for row in decision.feasible.tolist()]
        try:
            given = await extender.prioritize(self._pod, names, self._objects.node)
        except ExtenderError as error:
            log.log(
                5,
                "Failed to run extender's priority function. No score given by this extender.",
                pod=decision.pod,
                extender=extender.url,
                err=error,
            )
            return None
        scores = np.array([given.get(name, 0) for name in names], np.int64)
        points = scores * (MAX_SCORE // MAX_EXTENDER_SCORE)
        return ScoreColumn(f"{EXTENDER} {extender.url}", extender.config.weight, points, None)

    async def _preempt(self, question: AskVictims, nodes: LiveNodeTable) -> Victims | None:
        """The victims by node that the extenders agree to; None if no extender was asked."""
        found, is_asked = _victims_by_node(nodes, question.candidates), False
        for extender in self._extenders:
            if not extender.preempts:
                continue
            try:
                answer = dict(await extender.preempt(self._pod, found, self._objects.pod))
                _check_victims(extender, nodes, answer)
            except ExtenderError as error:
                _skip_if_ignorable(extender, question.decision.pod, error)
                continue
            found, is_asked = answer, True
            if not found:
                break
        return _victims_of(nodes, found) if is_asked else None


def _skip_if_ignorable(extender: Extender, pod: Pod, error: ExtenderError) -> None:
    if not extender.config.ignorable:
        raise error
    log.log(
        2,
        "Skipping extender as it returned error and has ignorable flag set",
        pod=pod,
        extender=extender.url,
        err=error,
    )


def _victims_by_node(nodes: LiveNodeTable, victims: Victims) -> dict[str, MetaVictims]:
    found: dict[str, MetaVictims] = {}
    for row in distinct(victims.rows).tolist():
        mine = victims.rows == row
        pods = [MetaPod(uid=nodes.pods.pods[slot].uid) for slot in victims.slots[mine].tolist()]
        violations = int(np.sum(victims.violating[mine]))
        found[nodes.names[row]] = MetaVictims(pods=pods, num_pdb_violations=violations)
    return found


def _check_victims(extender: Extender, nodes: LiveNodeTable, answer: dict[str, MetaVictims]) -> None:
    """Every node must be there and hold its victims. Nodes without any are dropped, or a fault."""
    for name, victims in tuple(answer.items()):
        row = nodes.row_of(name)
        if row is None:
            raise ExtenderError(
                f'extender: {extender.url} claims to preempt on node "{name}", which is unknown'
            )
        there = {pod.uid for pod in nodes.pods_on(row)}
        for each in victims.pods:
            if each.uid not in there:
                raise ExtenderError(
                    f"extender: {extender.url} claims to preempt pod (UID: {each.uid}) on node: {name}, but "
                    "the pod is not found on that node"
                )
        if not victims.pods:
            if not extender.config.ignorable:
                raise ExtenderError(
                    f'extender: {extender.url}: expected at least one victim pod on node "{name}"'
                )
            del answer[name]


def _victims_of(nodes: LiveNodeTable, found: dict[str, MetaVictims]) -> Victims:
    rows, slots, violating = [], [], []
    for name, victims in found.items():
        row = nodes.row_of(name)
        assert row is not None
        by_uid = {pod.uid: pod for pod in nodes.pods_on(row)}
        for number, uid in enumerate(dict.fromkeys(each.uid for each in victims.pods)):
            rows.append(row)
            slots.append(nodes.pods.slot_of(by_uid[uid]))
            violating.append(0 if number else victims.num_pdb_violations)
    return Victims(np.array(rows, np.intp), np.array(slots, np.intp), np.array(violating, np.int64))


class WholeObjects:
    """Pods and nodes as the API server wrote them: extenders may read what no struct of ours holds.

    Only what some configured extender may be sent is kept.
    """

    def __init__(self, extenders: Iterable[Extender], changes: DeferredChanges) -> None:
        extenders = tuple(extenders)
        self._keeps_nodes = any(extender.wants_whole_nodes for extender in extenders)
        self._keeps_placed = any(extender.wants_whole_victims for extender in extenders)
        self._is_asked = bool(extenders)
        self._changes = changes
        self._nodes: dict[str, Raw] = {}
        self._pods: dict[str, Raw] = {}

    def node(self, name: str) -> Raw:
        return self._nodes[name]

    def pod(self, uid: str) -> Raw:
        return self._pods[uid]

    def following(self, resource: WatchedResource, on_event: OnEvent) -> tuple[WatchedResource, OnEvent]:
        """The same watch, listened to on the way."""
        if not self._is_asked or resource.kind not in ("Pod", "Node"):
            return resource, on_event
        last: list[bytes] = [b""]

        def decode(data: bytes) -> Watched:
            last[0] = data
            return resource.decode(data)

        def on_watched(kind: EventKind, old: Watched | None, new: Watched | None) -> None:
            form = None if new is None or not self._is_wanted(new) else _as_sent(new, last[0])
            item = old if new is None else new
            if item is not None:
                self._changes.make(partial(self._take_in, item, form))
            on_event(kind, old, new)

        return msgspec.structs.replace(resource, decode=decode, decode_change=None), on_watched

    def _is_wanted(self, item: Watched) -> bool:
        if isinstance(item, Pod):
            return self._keeps_placed or not item.node_name
        return self._keeps_nodes and isinstance(item, NodeObject)

    def _take_in(self, item: Watched, form: Raw | None) -> None:
        forms, key = (self._pods, item.uid) if isinstance(item, Pod) else (self._nodes, item.name)
        if form is None:
            forms.pop(key, None)
        else:
            forms[key] = form


def _as_sent(item: Watched, data: bytes) -> Raw:
    """As kube-scheduler sends it: without kind and apiVersion, and of pods without managedFields."""
    parts = members(data)
    parts.pop("kind", None)
    parts.pop("apiVersion", None)
    if isinstance(item, Pod):
        meta = members(parts["metadata"])
        meta.pop("managedFields", None)
        parts["metadata"] = Raw(msgspec.json.encode(meta))
    return Raw(msgspec.json.encode(parts))
