"""An explanation as data: the Decision arranged to answer a person's questions.

Which node won and by how much, which were rejected and why, what is missing, what preemption would do. Pure
functions; `text.py` puts the result into words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stowplan.explain import reasons
from stowplan.explain.changes import Changes, plain_changes
from stowplan.framework.decision import Decision
from stowplan.framework.plugin import Plugin
from stowplan.framework.status import Code, Status

if TYPE_CHECKING:
    from stowplan.cluster import NodeTable
    from stowplan.journal.record import Attempt


class Column(NamedTuple):
    """The weighted points that one plugin gave to each node of the ranking."""

    plugin: str
    weight: int
    points: list[int]

    @property
    def is_flat(self) -> bool:
        return len(set(self.points)) <= 1


class Rejection(NamedTuple):
    """Nodes that the same plugin rejected for the same reasons."""

    status: Status
    nodes: list[str]
    detail: str = ""
    closest: reasons.Closest | None = None

    @property
    def is_final(self) -> bool:
        """Whether evicting pods would not help."""
        return self.status.code is not Code.UNSCHEDULABLE


class Margin(NamedTuple):
    """How far the winner is ahead of another node, and which plugins made the difference."""

    over: str
    by: int
    plugins: dict[str, int]


class Explanation(NamedTuple):
    decision: Decision
    profile: str
    ranking: list[str]
    """The nodes that fit, the winner first."""
    totals: list[int]
    """Empty if the only feasible node was chosen without scoring."""
    columns: list[Column]
    rejections: list[Rejection]
    not_looked_at: int
    """Nodes not evaluated because of sampling or a nomination."""
    held_back: Status | None
    """Set if a plugin keeps the pod out of the queue."""
    notes: tuple[str, ...] = ()
    seed: int | None = None
    """The seed that broke ties; None if the first node by name was chosen."""
    node: NodeExplanation | None = None
    """The node that was asked for."""
    attempt: Attempt | None = None
    """Set for a recorded decision."""
    bound_to: str = ""
    """The node that the pod was bound to in that attempt; empty if it was not bound."""
    wakes: Mapping[str, str] = {}
    """The events that would requeue the pod, by the plugin that rejected it."""
    waiting: tuple[str, ...] = ()
    """What the pod waits for now, in sentences."""
    changes: Changes | None = None
    """What would change the outcome; None if not requested."""
    advice: str = ""
    """Where to find what is not known here."""

    @property
    def outcome(self) -> str:
        if self.held_back:
            return "held back"
        if self.attempt is not None and (self.attempt.outcome.value == "error" or self.is_undone):
            return "failed"
        if self.decision.chosen is not None:
            return "placed"
        return "preempting" if self.decision.nominated is not None else "pending"

    @property
    def is_undone(self) -> bool:
        """Whether a node was chosen, but the pod was not bound to it."""
        return self.attempt is not None and self.decision.chosen is not None and not self.bound_to

    @property
    def message(self) -> str:
        """Why the pod is not placed, as its condition says it."""
        return self.decision.message if self.attempt is None else self.attempt.message

    @property
    def ties(self) -> list[str]:
        """Nodes tied with the winner."""
        return self.ranking[1 : self.totals.count(self.totals[0])] if self.totals else []

    def margin(self, place: int) -> Margin | None:
        """The winner's lead over the node at index `place` of the ranking."""
        if place >= len(self.totals):
            return None
        leads = {column.plugin: column.points[0] - column.points[place] for column in self.columns}
        return Margin(
            self.ranking[place],
            self.totals[0] - self.totals[place],
            {plugin: lead for plugin, lead in sorted(leads.items(), key=lambda item: -item[1]) if lead},
        )


def explain_decision(
    decision: Decision,
    nodes: NodeTable | None,
    profile: str,
    *,
    held_back: Status | None = None,
    notes: tuple[str, ...] = (),
    seed: int | None = None,
    plugins: Mapping[str, Plugin] = {},
) -> Explanation:
    """`nodes` must be as they were when the decision was made, and `plugins` those of the profile by name;
    without them, rejections lack details."""
    order = _order(decision, nodes)
    scores = decision.scores if decision.error is None else ()  # incomplete if scoring failed
    skipped = 0 if decision.not_looked_at is None else int(decision.not_looked_at.sum())
    if not decision.narrowed_by and decision.pre_filter is None:
        skipped += decision.node_count - len(decision.looked_at)
    return Explanation(
        decision=decision,
        profile=profile,
        ranking=[decision.names[row] for row in decision.feasible[order].tolist()],
        totals=[] if decision.totals is None else decision.totals[order].tolist(),
        columns=[Column(each.plugin, each.weight, each.weighted[order].tolist()) for each in scores],
        rejections=_rejections(decision, nodes, plugins),
        not_looked_at=skipped,
        held_back=held_back,
        notes=(*notes, *decision.notes),
        seed=seed,
    )


def _order(decision: Decision, nodes: NodeTable | None) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The order of the feasible nodes: by total, the chosen one before its ties, then by name."""
    ranks = nodes.live.name_ranks if nodes is not None else _ranks(decision.names)
    names = ranks[decision.feasible]
    if decision.totals is None:
        return np.argsort(names)
    chosen = decision.names.index(decision.chosen) if decision.chosen is not None else None
    return np.lexsort((names, decision.feasible != chosen, -decision.totals))


def _ranks(names: list[str]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    ranks = np.empty(len(names), np.intp)
    ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    return ranks


def _rejections(
    decision: Decision, nodes: NodeTable | None, plugins: Mapping[str, Plugin]
) -> list[Rejection]:
    """The most frequent first."""
    groups: dict[Status, list[str]] = {}
    for name, status in decision.rejected().items():
        groups.setdefault(status, []).append(name)
    if decision.narrowed_by and decision.pre_filter is None:
        status = Status(Code.UNRESOLVABLE, (decision.narrowed_reason,), " and ".join(decision.narrowed_by))
        kept = set(decision.looked_at.tolist())
        if apart := [name for row, name in enumerate(decision.names) if row not in kept]:
            groups[status] = apart
    found = [_rejection(decision, nodes, status, sorted(names), plugins) for status, names in groups.items()]
    return sorted(found, key=lambda each: (-len(each.nodes), each.status.plugin, each.status.reasons))


def _rejection(
    decision: Decision,
    nodes: NodeTable | None,
    status: Status,
    names: list[str],
    plugins: Mapping[str, Plugin],
) -> Rejection:
    if nodes is None:
        return Rejection(status, names)
    rows = [row for row in map(nodes.live.row_of, names) if row is not None]
    return Rejection(
        status,
        names,
        reasons.detail(decision.pod, status, nodes, rows, plugins),
        reasons.closest(decision.pod, status, nodes, rows, plugins),
    )


class NodeScore(NamedTuple):
    plugin: str
    weight: int
    points: int
    winner: int


class NodeExplanation(NamedTuple):
    """The explanation of one node."""

    name: str
    place: int | None
    """The rank from 1; None for a node that was rejected or not evaluated."""
    total: int | None
    behind: int
    scores: list[NodeScore]
    rejections: list[Rejection]
    """kube-scheduler reports only the first one."""
    room: list[reasons.Shortage]
    taints: list[str]
    is_cordoned: bool


def explain_node(
    explanation: Explanation, nodes: NodeTable | None, name: str, plugins: Mapping[str, Plugin] = {}
) -> NodeExplanation:
    decision = explanation.decision
    row = decision.names.index(name)
    place = explanation.ranking.index(name) if name in explanation.ranking else None
    margin = None if place is None else explanation.margin(place)
    resources = ["pods", *(resource for resource, amount in decision.pod.requests.items() if amount)]
    node = None if nodes is None else nodes.objects[row]
    return NodeExplanation(
        name=name,
        place=None if place is None else place + 1,
        total=None if place is None or not explanation.totals else explanation.totals[place],
        behind=margin.by if margin else 0,
        scores=[
            NodeScore(column.plugin, column.weight, column.points[place], column.points[0])
            for column in explanation.columns
            if place is not None
        ],
        rejections=[
            _rejection(decision, nodes, status, [name], plugins) for status in _statuses(decision, row)
        ],
        room=[] if nodes is None else list(reasons.shortages(decision.pod, resources, nodes, row)),
        taints=[] if node is None else [taint.text for taint in node.taints],
        is_cordoned=node is not None and node.unschedulable,
    )


def _statuses(decision: Decision, row: int) -> list[Status]:
    """The status of every filter that rejected the node."""
    if decision.pre_filter is not None:
        return [decision.pre_filter]
    places = np.flatnonzero(decision.looked_at == row).tolist()
    if not places:
        unlike = Status(Code.UNRESOLVABLE, (decision.narrowed_reason,), " and ".join(decision.narrowed_by))
        return [unlike] if decision.narrowed_by else []
    found = [decision.overruled[places[0]]] if places[0] in decision.overruled else []
    return found + [each.status(places[0]) for each in decision.filters if each.fails[places[0]]]


def as_json(explanation: Explanation) -> dict[str, object]:
    """The explanation as plain data. `decision` is as `stowplan decide` prints it."""
    decision, margin = explanation.decision, explanation.margin(1)
    totals: list[int | None] = [*explanation.totals] or [None] * len(explanation.ranking)
    found: dict[str, object] = {
        "pod": decision.pod.key,
        "profile": explanation.profile,
        "outcome": explanation.outcome,
        "node": None if explanation.held_back or explanation.is_undone else decision.chosen,
        "notes": list(explanation.notes),
        "heldBack": _plain(explanation.held_back) if explanation.held_back else None,
        "nodeCount": decision.node_count,
        "notLookedAt": explanation.not_looked_at,
        "ranking": [
            {"node": name, "total": total} for name, total in zip(explanation.ranking, totals, strict=True)
        ],
        "ties": explanation.ties,
        "margin": margin._asdict() if margin else None,
        "seed": explanation.seed,
        "refused": [_plain_rejection(each) for each in explanation.rejections],
        "message": explanation.message,
        "preemption": _plain_preemption(decision),
        "made": _plain_attempt(explanation.attempt, explanation.bound_to) if explanation.attempt else None,
        "wakes": dict(explanation.wakes),
        "waiting": list(explanation.waiting),
        "decision": decision.as_golden(),
    }
    if explanation.changes is not None:
        found["changes"] = plain_changes(explanation.changes)
    return found | {"explainedNode": _plain_node(explanation.node)} if explanation.node else found


def _plain(status: Status) -> dict[str, object]:
    return {"plugin": status.plugin, "code": status.code.wire_name, "reasons": list(status.reasons)}


def _plain_rejection(rejection: Rejection) -> dict[str, object]:
    found = rejection.closest
    return {
        **_plain(rejection.status),
        "nodes": rejection.nodes,
        "detail": rejection.detail,
        "closest": found and {"node": found.node, "lacks": [_plain_room(each) for each in found.shortages]},
    }


def _plain_room(room: reasons.Shortage) -> dict[str, object]:
    return {**room._asdict(), "lacking": max(room.lacking, 0)}


def _plain_preemption(decision: Decision) -> dict[str, object] | None:
    if decision.chosen is not None or decision.error is not None:
        return None
    victims = [{"pod": victim.key, "priority": victim.priority} for victim in decision.victims]
    helps = decision.nominated is not None
    why = "" if helps else reasons.preemption_text(decision)
    return {"helps": helps, "node": decision.nominated, "victims": victims, "why": why}


def _plain_node(node: NodeExplanation) -> dict[str, object]:
    return {
        "node": node.name,
        "place": node.place,
        "total": node.total,
        "behind": node.behind,
        "scores": [each._asdict() for each in node.scores],
        "refusals": [_plain_rejection(each) for each in node.rejections],
        "room": [_plain_room(each) for each in node.room],
        "taints": node.taints,
        "cordoned": node.is_cordoned,
    }


def _plain_attempt(attempt: Attempt, node: str) -> dict[str, object]:
    return {
        "time": attempt.time,
        "attempt": attempt.number,
        "profile": attempt.profile,
        "seconds": attempt.seconds,
        "outcome": attempt.outcome.value,
        "node": node,
        "message": attempt.message,
    }
