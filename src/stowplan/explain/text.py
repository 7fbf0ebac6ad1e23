"""An explanation in words and tables: plain text for a terminal of 100 columns, or a pipe."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from stowplan.explain.amounts import amount_text
from stowplan.explain.reasons import preemption_text
from stowplan.explain.report import Column, Explanation, Margin, NodeExplanation, Refusal
from stowplan.framework.status import Status

WIDTH = 100
ROWS_SHOWN = 20
NAMES_SHOWN = 10
HEADER_WIDTH, NARROW_HEADER_WIDTH, FEW_COLUMNS = 13, 10, 3
"""Names of plugins are broken between their words to stand above a column, sooner where there are many."""


def render(explanation: Explanation, *, all_nodes: bool = False) -> str:
    """The whole answer, or all about the node that was asked about. `all_nodes` cuts no list short."""
    if explanation.node is not None:
        return "\n\n".join([_outcome(explanation), *_about_node(explanation, explanation.node)])
    shown = len(explanation.ranking) if all_nodes else ROWS_SHOWN
    paragraphs = [
        _outcome(explanation),
        "\n".join(_ranking(explanation, shown)),
        "\n".join(_refused(explanation, all_nodes)),
        _preemption(explanation),
    ]
    return "\n\n".join(filter(None, paragraphs))


def _outcome(explanation: Explanation) -> str:
    decision = explanation.decision
    pod = f"Pod {decision.pod.key}"
    match explanation.outcome:
        case "held back":
            headline = f"{pod} is held back"
        case "placed":
            headline = f"{pod} goes to {decision.chosen}"
        case "preempting":
            headline = f"{pod} fits nowhere, but could have {decision.nominated} by preemption"
        case _:
            headline = f"{pod} stays pending"
    lines = [f"{headline} (profile {explanation.profile})."]
    lines += explanation.notes
    if explanation.held_back:
        lines.append(f"{_reason(explanation.held_back)}. Until that is over, kube-scheduler does not try it.")
        lines.append(f"If it were tried now, it would {_would(explanation)}.")
    if explanation.ranking:
        lines += _lead(explanation)
    found = [_wrapped(line) for line in lines]
    if decision.message:
        found.append(f"  {decision.message}")  # to the letter: people search for it
    return "\n".join(found)


def _would(explanation: Explanation) -> str:
    decision = explanation.decision
    if decision.chosen is not None:
        return f"go to {decision.chosen}"
    return f"preempt pods on {decision.nominated}" if decision.nominated else "stay pending"


def _lead(explanation: Explanation) -> Iterator[str]:
    """By how much the winner won."""
    if not explanation.totals:
        yield "It is the only node that fits, so nothing is scored."
        return
    winner, ties = explanation.ranking[0], explanation.ties
    if ties:
        verb = "is" if len(ties) == 1 else "are"
        equal = f"{_names(ties)} {verb} as good as {winner}, with {explanation.totals[0]} points."
        yield f"{equal} {_tie_rule(explanation)}"
    margin = explanation.margin(len(ties) + 1)
    if margin is not None:
        start = (
            f"The next, {margin.over}, is {margin.by} behind"
            if ties
            else f"It beats {margin.over} by {margin.by}"
        )
        yield f"{start}: {_leads(margin)}."


def _tie_rule(explanation: Explanation) -> str:
    if explanation.seed is None:
        return "The first by name is taken; kube-scheduler draws one of them, as --seed N does."
    return f"Seed {explanation.seed} drew {explanation.ranking[0]}."


def _leads(margin: Margin) -> str:
    return ", ".join(f"{plugin} {_signed(lead)}" for plugin, lead in margin.plugins.items())


def _ranking(explanation: Explanation, shown: int) -> Iterator[str]:
    """The nodes that fit, with the points of the plugins that told them apart."""
    if not explanation.totals:
        return
    apart = [column for column in explanation.columns if not column.is_flat]
    points = [column.points[:shown] for column in apart]
    rows = zip(explanation.ranking[:shown], explanation.totals[:shown], *points, strict=True)
    yield from _table(_headers(apart), list(rows))
    if (left := len(explanation.ranking) - shown) > 0:
        yield f"… and {left} more that fit (--all-nodes lists them)"
    flat = [column for column in explanation.columns if column.is_flat]
    if flat:
        listed = ", ".join(f"{column.plugin} {column.points[0]}" for column in flat)
        yield _wrapped(f"The same for all of them: {listed}.")


def _headers(columns: Sequence[Column]) -> list[tuple[str, ...]]:
    """Lines of headers, the last words at the bottom."""
    width = HEADER_WIDTH if len(columns) <= FEW_COLUMNS else NARROW_HEADER_WIDTH
    stacks = [["NODE"], ["TOTAL"]]
    for column in columns:
        times = [f"×{column.weight}"] if column.weight != 1 else []
        stacks.append([*_broken(column.plugin, width), *times])
    lines = list(zip_longest(*(reversed(stack) for stack in stacks), fillvalue=""))
    return lines[::-1]


def _broken(name: str, width: int) -> list[str]:
    lines = [""]
    for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^A-Z]+", name):
        if lines[-1] and len(lines[-1] + word) > width:
            lines.append("")
        lines[-1] += word
    return lines


def _refused(explanation: Explanation, all_nodes: bool) -> Iterator[str]:
    decision, refusals = explanation.decision, explanation.refusals
    if decision.pre_filter is not None:
        yield f"Refused: the pod as a whole, for any node\n     {_reason(decision.pre_filter)}"
    if refusals:
        count = sum(len(each.nodes) for each in refusals)
        yield f"Refused: {count} of {decision.node_count} nodes"
        for each in refusals:
            yield from _refusal(each, all_nodes)
    if explanation.not_looked_at:
        why = "enough others fit (percentageOfNodesToScore)"
        if decision.not_looked_at is None:
            why = f"the pod is nominated to {decision.pod.nominated_node_name}, and fits there"
        yield f"Not looked at: {explanation.not_looked_at} nodes, since {why}"


def _refusal(refusal: Refusal, all_nodes: bool) -> Iterator[str]:
    yield _wrapped(_reason(refusal.status), indent=5, start=f"{len(refusal.nodes):4} ")
    yield _wrapped(_names(refusal.nodes, None if all_nodes else NAMES_SHOWN), indent=5)
    if refusal.detail:
        yield _wrapped(refusal.detail, indent=5)


def _about_node(explanation: Explanation, node: NodeExplanation) -> Iterator[str]:
    yield "\n".join(_verdict(explanation, node))
    if node.scores:
        rows = [
            (each.plugin, each.weight, each.points, each.winner, _signed(each.points - each.winner))
            for each in node.scores
        ]
        header = ("PLUGIN", "WEIGHT", "POINTS", "WINNER", "DIFFERENCE")
        yield "\n".join(_table([header], rows))
    room = [
        (
            each.resource,
            *(amount_text(each.resource, part) for part in (each.asked, each.free, each.allocatable)),
        )
        for each in node.room
    ]
    yield "\n".join(_table([("RESOURCE", "ASKED", "FREE", "ALLOCATABLE")], room))


def _verdict(explanation: Explanation, node: NodeExplanation) -> Iterator[str]:
    fitting = len(explanation.ranking)
    if node.place is not None:
        behind = f", {node.behind} points behind {explanation.ranking[0]}" if node.behind else ""
        total = "" if node.total is None else f" with {node.total} points{behind}"
        yield _wrapped(f"Node {node.name} fits: place {node.place} of {fitting}{total}.")
    elif node.refusals:
        yield f"Node {node.name} is refused."
        for number, each in enumerate(node.refusals):
            helps = "evicting pods would not help" if each.is_final else "evicting pods might help"
            yield _wrapped(_reason(each.status), indent=5, start="  also " if number else "  ")
            yield _wrapped(f"{each.detail}; {helps}" if each.detail else helps, indent=5)
    else:
        yield f"Node {node.name} was not looked at."
    if node.is_cordoned:
        yield "It is cordoned."
    if node.taints:
        yield _wrapped(f"Its taints: {', '.join(node.taints)}.")


def _preemption(explanation: Explanation) -> str:
    decision = explanation.decision
    if decision.chosen is not None:
        return ""
    if decision.nominated is None:
        return _wrapped(preemption_text(decision))
    if not decision.victims:
        return (
            f"Preemption: {decision.nominated} has room for the pod once the pods that are leaving are gone."
        )
    victims = [f"{victim.key} (priority {victim.priority})" for victim in decision.victims]
    return _wrapped(
        f"Preemption: evicting {_names(victims, None)} from {decision.nominated} makes room for the pod "
        f"(priority {decision.pod.priority})."
    )


def _reason(status: Status) -> str:
    return f"{status.plugin}: {status.message}" if status.plugin else status.message


def _signed(number: int) -> str:
    return f"{number:+}" if number else "0"


def _names(names: Sequence[str], shown: int | None = NAMES_SHOWN) -> str:
    if shown is not None and len(names) > shown:
        names = [*names[:shown], f"{len(names) - shown} more"]
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _wrapped(text: str, indent: int = 0, start: str | None = None) -> str:
    space = " " * indent
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=space if start is None else start,
        subsequent_indent=space,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(headers: Sequence[tuple[str, ...]], rows: Sequence[tuple[object, ...]]) -> Iterator[str]:
    """The first column to the left, all others to the right."""
    lines = [tuple(map(str, row)) for row in (*headers, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join(cells).rstrip()
