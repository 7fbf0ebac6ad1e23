"""Explain recorded decisions of a scheduler or its journal, and what a pod waits for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from stowplan.api.names import suggest_names
from stowplan.errors import InputError
from stowplan.explain.changes import MAX_PER_KIND, Changes
from stowplan.explain.layout import join_names, time_text
from stowplan.explain.report import Explanation, explain_decision, explain_node
from stowplan.explain.weight_changes import vary_recorded_weights
from stowplan.journal.record import Record
from stowplan.journal.wire import Waiting

NOT_IN_MEMORY = (
    "That decision is no longer in memory; look it up in the journal, if there is one (--journal DIR)."
)
ASK_ELSEWHERE = "use --server, or explain the pod on the cluster."


def explain_record(
    record: Record, node_name: str | None = None, waiting: Waiting | None = None
) -> Explanation:
    decision, attempt = record.decision(), record.attempt
    found = explain_decision(decision, None, attempt.profile)._replace(
        attempt=attempt,
        bound_to=record.node or "",
        wakes=attempt.wakes,
        waiting=() if waiting is None else tuple(sentences(waiting)),
    )
    if node_name is None:
        return found
    if node_name not in decision.names:
        raise InputError(
            f"node {node_name} did not exist at the time of the decision"
            f"{suggest_names(node_name, decision.names)}"
        )
    return found._replace(node=explain_node(found, None, node_name))


def add_weight_changes(found: Explanation) -> Explanation:
    """Add the changes of weights, which can be found without the cluster."""
    decision = found.decision
    if decision.chosen is None or decision.not_looked_at is not None:  # a sample may leave out any node
        aim = "let it fit" if decision.chosen is None else "move it to another node"
        return found._replace(advice=f"For changes that would {aim}, {ASK_ELSEWHERE}")
    changes = Changes(
        tuple(islice(vary_recorded_weights(decision), MAX_PER_KIND)), tried="change of a weight"
    )
    return found._replace(changes=changes, advice=f"For changes of other kinds, {ASK_ELSEWHERE}")


def undecided_text(pod: str, waiting: Waiting) -> str:
    """For a pod without a recorded decision."""
    lines = [f"Pod {pod} {_attempts_text(waiting)} (profile {waiting.scheduler})."]
    if waiting.attempts:
        lines.append(NOT_IN_MEMORY)
    lines += sentences(waiting)
    lines += [f"  {plugin}: {events}" for plugin, events in waiting.wakes.items()]
    return "\n".join(lines)


def _attempts_text(waiting: Waiting) -> str:
    if not waiting.attempts:
        return "is held at permit" if waiting.place == "permit" else "has not been decided yet"
    times, last = ("once", "") if waiting.attempts == 1 else (f"{waiting.attempts} times", "last ")
    if not waiting.plugins or waiting.place in ("gated", "permit"):  # these name other plugins
        return f"was attempted {times} without success"
    return f"was attempted {times} and {last}rejected by {join_names(waiting.plugins, None)}"


def sentences(waiting: Waiting) -> Iterator[str]:
    plugins = join_names(waiting.plugins, None) if waiting.plugins else "no plugin"
    match waiting.place:
        case "active":
            yield "It is in the active queue and will be attempted after the pods before it."
        case "backoff":
            until = "" if waiting.until is None else f" until {time_text(waiting.until)}"
            yield f"It is in the backoff queue{until}, or until the active queue is empty."
        case "gated":
            yield f"It is gated by {plugins} and not attempted until the gate is removed."
            if waiting.message:
                yield f"{plugins} says: {waiting.message}."
        case "permit":
            yield f"It has a node and waits for a permit from {plugins}."
        case "trying":
            yield "It is being decided or bound right now."
        case _:
            yield "It is unschedulable and waits for a change in the cluster that may help."
