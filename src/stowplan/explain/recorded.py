"""Explains decisions that were kept, and what a pod waits for: as a scheduler or its journal tells them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from stowplan.api.names import there_is
from stowplan.errors import InputError
from stowplan.explain.changes import SHOWN, Changes
from stowplan.explain.layout import listed, time_text
from stowplan.explain.report import Explanation, Made, explanation_of, node_explanation_of
from stowplan.explain.weight_changes import vary_recorded_weights
from stowplan.journal.record import Record
from stowplan.journal.restoring import decision_of
from stowplan.journal.shown import Waiting

NO_LONGER_KEPT = (
    "That decision is no longer kept in memory; the journal has it, if there is one (--journal DIR)."
)
ASK_ELSEWHERE = "ask the scheduler (--server) or the cluster."


def explain_record(
    record: Record, node_name: str | None = None, waiting: Waiting | None = None
) -> Explanation:
    decision, attempt = decision_of(record), record.attempt
    found = explanation_of(decision, None, attempt.profile)._replace(
        made=Made(
            attempt.time,
            attempt.number,
            attempt.profile,
            attempt.seconds,
            attempt.outcome.value,
            record.node,
            attempt.message,
        ),
        wakes=attempt.wakes,
        waiting=() if waiting is None else tuple(sentences(waiting)),
    )
    if node_name is None:
        return found
    if node_name not in decision.names:
        raise InputError(
            f"there was no node {node_name} when it was decided; {there_is(node_name, decision.names)}"
        )
    return found._replace(node=node_explanation_of(found, None, node_name))


def with_weights(found: Explanation) -> Explanation:
    """With the changes that a decision tells by itself, without the cluster that it was made on."""
    decision = found.decision
    if decision.chosen is None or decision.not_looked_at is not None:  # a sample may leave out any node
        aim = "find it a node" if decision.chosen is None else "send it elsewhere"
        return found._replace(advice=f"For changes that would {aim}, {ASK_ELSEWHERE}")
    changes = Changes(tuple(islice(vary_recorded_weights(decision), SHOWN)), tried="change of a weight")
    return found._replace(changes=changes, advice=f"For changes of other kinds, {ASK_ELSEWHERE}")


def undecided_text(pod: str, waiting: Waiting) -> str:
    """For a pod that has no decision yet, or none that is kept."""
    said = [f"Pod {pod} {_tried(waiting)} (profile {waiting.scheduler})."]
    if waiting.attempts:
        said.append(NO_LONGER_KEPT)
    said += sentences(waiting)
    said += [f"  {plugin}: {events}" for plugin, events in waiting.wakes.items()]
    return "\n".join(said)


def _tried(waiting: Waiting) -> str:
    if not waiting.attempts:
        return "has not been decided yet"
    times, last = ("once", "") if waiting.attempts == 1 else (f"{waiting.attempts} times", "last ")
    if not waiting.plugins or waiting.place in ("gated", "permit"):  # these do not say who refused it
        return f"was tried {times} without success"
    return f"was tried {times} and {last}refused by {listed(waiting.plugins, None)}"


def sentences(waiting: Waiting) -> Iterator[str]:
    plugins = listed(waiting.plugins, None) if waiting.plugins else "nobody"
    match waiting.place:
        case "active":
            yield "It is in the queue now, to be tried as soon as those before it are."
        case "backoff":
            until = "" if waiting.until is None else f", until {time_text(waiting.until)}"
            yield f"It is in the queue now and pauses{until}, or until there is nothing else to try."
        case "gated":
            yield f"It is held back by {plugins} and not tried until that is over."
        case "permit":
            yield f"It has a node and waits for {plugins} to permit it."
        case "trying":
            yield "It is being decided or bound at this moment."
        case _:
            yield "It is in the queue now and waits for a change that may help."
