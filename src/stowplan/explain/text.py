"""An explanation as plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from stowplan.api.amounts import amount_text
from stowplan.explain.changes import Printed, changes_text
from stowplan.explain.layout import NAMES_SHOWN, count_text, join_names, reason_text, table, time_text, wrap
from stowplan.explain.reasons import preemption_text
from stowplan.explain.report import Column, Explanation, Margin, NodeExplanation, Rejection, as_json

if TYPE_CHECKING:
    from stowplan.journal.record import Attempt

ROWS_SHOWN = 20
HEADER_WIDTH, NARROW_HEADER_WIDTH, FEW_COLUMNS = 13, 10, 3
"""Names of plugins are split between words to fit above a column, at a lower width if there are many."""


def render(explanation: Explanation, *, all_nodes: bool = False) -> str:
    """The whole explanation, or all about the node that was asked for. `all_nodes` shortens no list."""
    if explanation.node is not None:
        return "\n\n".join([_outcome(explanation), *_about_node(explanation, explanation.node)])
    shown = len(explanation.ranking) if all_nodes else ROWS_SHOWN
    paragraphs = [
        _outcome(explanation),
        "\n".join(_ranking(explanation, shown)),
        "\n".join(_rejections(explanation, all_nodes)),
        _preemption(explanation),
        "\n".join(_waiting_lines(explanation)),
        _changes(explanation),
        wrap(explanation.advice),
    ]
    return "\n\n".join(filter(None, paragraphs))


def _outcome(explanation: Explanation) -> str:
    decision = explanation.decision
    pod = f"Pod {decision.pod.key}"
    match explanation.outcome:
        case _ if explanation.attempt is not None:
            headline = f"{pod} {_outcome_of_attempt(explanation, explanation.attempt)}"
        case "held back":
            headline = f"{pod} is gated"
        case "placed":
            headline = f"{pod} goes to {decision.chosen}"
        case "preempting":
            headline = f"{pod} fits nowhere, but could run on {decision.nominated} after preemption"
        case _:
            headline = f"{pod} stays pending"
    lines = [f"{headline} (profile {explanation.profile})."]
    lines += explanation.notes
    if decision.group:
        lines.append(decision.group)
    if explanation.held_back:
        lines.append(f"{reason_text(explanation.held_back)}. Until then, kube-scheduler does not attempt it.")
        lines.append(f"If it were attempted now, it would {_would(explanation)}.")
    if explanation.ranking:
        lines += _lead(explanation)
    found = [wrap(line) for line in lines]
    message = explanation.message
    if message:
        found.append(f"  {message}")  # unchanged, because people search for it
    return "\n".join(found)


def _outcome_of_attempt(explanation: Explanation, attempt: Attempt) -> str:
    decision = explanation.decision
    if explanation.bound_to:
        what = f"went to {explanation.bound_to}"
    elif explanation.is_undone:
        what = f"was assigned to {decision.chosen}, but not bound"
    elif explanation.outcome == "failed":
        what = "could not be decided"
    else:
        what = "fit nowhere" + (f", but was nominated to {decision.nominated}" if decision.nominated else "")
    return f"{what}, attempt {attempt.number} at {time_text(attempt.time)}"


def _waiting_lines(explanation: Explanation) -> Iterator[str]:
    for sentence in explanation.waiting:
        yield wrap(sentence)
    if explanation.wakes:
        yield "Events that would requeue it, by the plugin that rejected it:"
        for plugin, events in explanation.wakes.items():
            yield wrap(f"{plugin}: {events}", indent=5, start="  ")


def _would(explanation: Explanation) -> str:
    decision = explanation.decision
    if decision.chosen is not None:
        return f"go to {decision.chosen}"
    return f"preempt pods on {decision.nominated}" if decision.nominated else "stay pending"


def _lead(explanation: Explanation) -> Iterator[str]:
    """How far the winner is ahead."""
    if explanation.decision.error is not None:
        yield f"{count_text(len(explanation.ranking), 'node')} fit, but could not be scored."
        return
    if not explanation.totals:
        yield "It is the only node that fits, so no scores were computed."
        return
    winner, ties = explanation.ranking[0], explanation.ties
    if ties:
        tied = f"{winner} is tied with {join_names(ties)} at {explanation.totals[0]} points."
        yield f"{tied} {_tie_rule(explanation)}"
    margin = explanation.margin(len(ties) + 1)
    if margin is not None:
        start = (
            f"The next node, {margin.over}, is {count_text(margin.by, 'point')} behind"
            if ties
            else f"It beats {margin.over} by {count_text(margin.by, 'point')}"
        )
        yield f"{start}: {_leads(margin)}."


def _tie_rule(explanation: Explanation) -> str:
    if explanation.attempt is not None:
        return "It was chosen at random."
    if explanation.seed is None:
        return "The first by name is chosen; kube-scheduler chooses at random, as --seed N does."
    return f"Seed {explanation.seed} chose {explanation.ranking[0]}."


def _leads(margin: Margin) -> str:
    return ", ".join(f"{plugin} {_format_signed(lead)}" for plugin, lead in margin.plugins.items())


def _ranking(explanation: Explanation, shown: int) -> Iterator[str]:
    """The nodes that fit, with the points of the plugins that differ between them."""
    if not explanation.totals:
        return
    apart = [column for column in explanation.columns if not column.is_flat]
    points = [column.points[:shown] for column in apart]
    rows = zip(explanation.ranking[:shown], explanation.totals[:shown], *points, strict=True)
    yield from table(_headers(apart), list(rows))
    if (left := len(explanation.ranking) - shown) > 0:
        yield f"… and {left} more nodes that fit (use --all-nodes to list them)"
    flat = [column for column in explanation.columns if column.is_flat]
    if flat:
        shared = ", ".join(f"{column.plugin} {column.points[0]}" for column in flat)
        yield wrap(f"Equal for all of them: {shared}.")


def _headers(columns: Sequence[Column]) -> list[tuple[str, ...]]:
    """The lines of the header, aligned at the bottom."""
    width = HEADER_WIDTH if len(columns) <= FEW_COLUMNS else NARROW_HEADER_WIDTH
    stacks = [["NODE"], ["TOTAL"]]
    for column in columns:
        times = [f"×{column.weight}"] if column.weight != 1 else []
        stacks.append([*_split_name(column.plugin, width), *times])
    lines = list(zip_longest(*(reversed(stack) for stack in stacks), fillvalue=""))
    return lines[::-1]


def _split_name(name: str, width: int) -> list[str]:
    lines = [""]
    for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^A-Z]+", name):
        if lines[-1] and len(lines[-1] + word) > width:
            lines.append("")
        lines[-1] += word
    return lines


def _rejections(explanation: Explanation, all_nodes: bool) -> Iterator[str]:
    decision, rejections = explanation.decision, explanation.rejections
    if decision.pre_filter is not None:
        yield f"Rejected: the pod itself, for every node\n     {reason_text(decision.pre_filter)}"
    if rejections:
        count = sum(len(each.nodes) for each in rejections)
        yield f"Rejected: {count} of {decision.node_count} nodes"
        for each in rejections:
            yield from _rejection(each, all_nodes)
    if explanation.not_looked_at:
        why = "enough other nodes fit (percentageOfNodesToScore)"
        if decision.not_looked_at is None:
            why = f"the pod is nominated to {decision.pod.nominated_node_name} and fits there"
        yield f"Not evaluated: {explanation.not_looked_at} nodes, because {why}"


def _rejection(rejection: Rejection, all_nodes: bool) -> Iterator[str]:
    yield wrap(reason_text(rejection.status), indent=5, start=f"{len(rejection.nodes):4} ")
    yield wrap(join_names(rejection.nodes, None if all_nodes else NAMES_SHOWN), indent=5)
    if rejection.detail:
        yield wrap(rejection.detail, indent=5)


def _about_node(explanation: Explanation, node: NodeExplanation) -> Iterator[str]:
    yield "\n".join(_verdict(explanation, node))
    if node.scores:
        rows = [
            (each.plugin, each.weight, each.points, each.winner, _format_signed(each.points - each.winner))
            for each in node.scores
        ]
        header = ("PLUGIN", "WEIGHT", "POINTS", "WINNER", "DIFFERENCE")
        yield "\n".join(table([header], rows))
    room = [
        (
            each.resource,
            *(amount_text(each.resource, part) for part in (each.asked, each.free, each.allocatable)),
        )
        for each in node.room
    ]
    if room:
        yield "\n".join(table([("RESOURCE", "REQUESTED", "FREE", "ALLOCATABLE")], room))


def _verdict(explanation: Explanation, node: NodeExplanation) -> Iterator[str]:
    fitting = len(explanation.ranking)
    if node.place is not None and explanation.decision.error is not None:
        yield f"Node {node.name} fits."
    elif node.place is not None:
        behind = (
            f", {count_text(node.behind, 'point')} behind {explanation.ranking[0]}" if node.behind else ""
        )
        total = "" if node.total is None else f" with {node.total} points{behind}"
        yield wrap(f"Node {node.name} fits: rank {node.place} of {fitting}{total}.")
    elif node.rejections:
        yield f"Node {node.name} is rejected."
        for number, each in enumerate(node.rejections):
            helps = "evicting pods would not help" if each.is_final else "evicting pods might help"
            yield wrap(reason_text(each.status), indent=5, start="  also " if number else "  ")
            yield wrap(f"{each.detail}; {helps}" if each.detail else helps, indent=5)
    else:
        yield f"Node {node.name} was not evaluated."
    if node.is_cordoned:
        yield "It is cordoned."
    if node.taints:
        yield wrap(f"Taints: {', '.join(node.taints)}.")


def _preemption(explanation: Explanation) -> str:
    decision = explanation.decision
    if decision.chosen is not None:
        return ""
    if decision.nominated is None:
        return wrap(preemption_text(decision))
    if not decision.victims:
        return f"Preemption: {decision.nominated} has room for the pod once its terminating pods are gone."
    victims = [f"{victim.key} (priority {victim.priority})" for victim in decision.victims]
    return wrap(
        f"Preemption: evicting {join_names(victims, None)} from {decision.nominated} makes room for the pod "
        f"(priority {decision.pod.priority})."
    )


def _changes(explanation: Explanation) -> str:
    if explanation.changes is None:
        return ""
    return changes_text(explanation.changes, is_placed=explanation.decision.chosen is not None)


def _format_signed(number: int) -> str:
    return f"{number:+}" if number else "0"


def print_explanation(found: Explanation, *, as_data: bool, all_nodes: bool) -> Printed:
    return Printed(data=as_json(found)) if as_data else Printed(render(found, all_nodes=all_nodes))
