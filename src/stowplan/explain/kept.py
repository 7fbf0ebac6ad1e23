"""Explains decisions that were kept, and what a pod waits for: as a scheduler or its journal tells them."""

from __future__ import annotations

from collections.abc import Iterator

from stowplan.errors import InputError
from stowplan.explain.layout import listed, time_text
from stowplan.explain.report import Explanation, Made, explanation_of, node_explanation_of
from stowplan.explain.targets import there_is
from stowplan.journal.record import Record
from stowplan.journal.restoring import decision_of
from stowplan.journal.shown import PodAnswer, Waiting, record_of


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


def explain_answer(answer: PodAnswer, node_name: str | None = None) -> Explanation | str:
    """What a running scheduler said; text where it has not decided the pod yet."""
    if answer.decision is not None:
        return explain_record(record_of(answer.decision), node_name, answer.waiting)
    if answer.waiting is None:
        raise InputError(f"nothing is known of pod {answer.pod}")
    said = [f"Pod {answer.pod} has not been decided yet (profile {answer.waiting.scheduler})."]
    said += sentences(answer.waiting)
    said += [f"  {plugin}: {events}" for plugin, events in answer.waiting.wakes.items()]
    return "\n".join(said)


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
