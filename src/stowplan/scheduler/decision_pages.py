"""/debug/decisions: recorded decisions, and what is known about one pod."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from stowplan.api.pod import Pod
from stowplan.client.api import PODS
from stowplan.journal import Decisions, Record
from stowplan.journal.wire import ListAnswer, PodAnswer, Waiting, plain_record, summarize_record
from stowplan.queue.waiting import Place, QueuedPod
from stowplan.scheduler.scheduler import Scheduler
from stowplan.serving import aiohttp_web as web
from stowplan.serving.pages import Page
from stowplan.serving.server import status_response

PATH = "/debug/decisions"
DEFAULT_LIMIT, MAX_LIMIT = 100, 10_000
MAX_ATTEMPTS = 20
MAX_SUGGESTIONS = 5


def decision_pages(
    decisions: Decisions, scheduler: Callable[[], Scheduler | None], leader: Callable[[], str | None]
) -> dict[str, Page]:
    """`scheduler` returns the running scheduler, if there is one; `leader` is described at `look_up`."""

    def page(request: web.BaseRequest) -> web.Response:
        query = request.query
        try:
            if "pod" in query:
                number = int(query["number"]) if "number" in query else None
                return _json(_describe_pod(query["pod"], number, decisions, scheduler(), leader()))
            limit = min(max(int(query.get("limit", DEFAULT_LIMIT)), 0), MAX_LIMIT)
            return _json(_list_decisions(decisions, limit, int(query.get("after", 0))))
        except ValueError:
            return status_response(400, "BadRequest", "limit, after and number must be integers")
        except LookupError as error:
            return status_response(404, "NotFound", error.args[0])

    return {PATH: page}


def _list_decisions(decisions: Decisions, limit: int, after: int) -> ListAnswer:
    recent = decisions.recent
    return ListAnswer(
        kept=len(recent),
        bytes=recent.bytes,
        budget=decisions.budget,
        decisions=[summarize_record(record) for record in recent.newest(limit, after)],
    )


def _describe_pod(
    pod: str, number: int | None, decisions: Decisions, scheduler: Scheduler | None, leader: str | None
) -> PodAnswer:
    known = look_up(pod, decisions, scheduler, leader)
    chosen = [record for record in known.attempts if number in (None, record.number)]
    if known.attempts and not chosen:
        kept = known.attempts[0].number
        raise LookupError(f"decision {number} for pod {known.pod} not found; the newest is {kept}")
    return PodAnswer(
        pod=known.pod,
        waiting=known.waiting,
        attempts=[summarize_record(record) for record in known.attempts[:MAX_ATTEMPTS]],
        decision=plain_record(chosen[0]) if chosen else None,
    )


class Known(NamedTuple):
    """What is known about a pod: decisions, or what it waits for, or both."""

    pod: str
    attempts: Sequence[Record]
    """The newest first."""
    waiting: Waiting | None


def look_up(pod: str, decisions: Decisions, scheduler: Scheduler | None, leader: str | None) -> Known:
    """`leader` is the replica that leads instead of this one; empty if unknown, None if this one leads.

    A LookupError says why nothing is known about the pod.
    """
    key = pod if "/" in pod else f"default/{pod}"
    found = Known(key, decisions.recent.of(key), None if scheduler is None else _find_waiting(key, scheduler))
    if not found.attempts and leader is not None:  # a standby does not schedule the pods in its queue
        raise LookupError(
            f"this replica is on standby; ask the leader, {leader}"
            if leader
            else "this replica is on standby and no leader is known yet; try again"
        )
    if not found.attempts and found.waiting is None:
        raise LookupError(_explain_unknown(key, decisions, scheduler))
    return found


def _find_waiting(key: str, scheduler: Scheduler) -> Waiting | None:
    """None for a pod that has a node or another scheduler."""
    pod = next((each for each in scheduler.handlers.pending.values() if each.key == key), None)
    if pod is None:
        return None
    queued = next((each for each in scheduler.queue if each.pod.uid == pod.uid), None)
    if queued is not None:
        return _describe_queued(queued, scheduler)
    held, tried = scheduler.waiting.find(pod.uid), scheduler.queue.in_flight.find(pod.uid)
    return Waiting(
        place="trying" if held is None else "permit",
        plugins=() if held is None else held.plugins,
        attempts=0 if tried is None else tried.attempts - 1,
        scheduler=pod.scheduler_name,
    )


def _describe_queued(queued: QueuedPod, scheduler: Scheduler) -> Waiting:
    recorder, profile = scheduler.recorder, scheduler.profiles.get(queued.pod.scheduler_name)
    is_gated = queued.place is Place.GATED
    plugins = frozenset((queued.gating_plugin,)) if is_gated else queued.rejectors
    waits = queued.place in (Place.GATED, Place.UNSCHEDULABLE)
    return Waiting(
        place=str(queued.place),
        plugins=tuple(sorted(plugins)),
        message=scheduler.queue.gate_message(queued.pod.uid),
        wakes=dict(recorder.describe_wakes(profile, plugins)) if waits and recorder and profile else {},
        attempts=queued.attempts,
        until=queued.backoff_expiration if queued.place is Place.BACKOFF else None,
        scheduler=queued.pod.scheduler_name,
    )


def _explain_unknown(key: str, decisions: Decisions, scheduler: Scheduler | None) -> str:
    pod = None if scheduler is None else _pod(key, scheduler)
    if scheduler is not None and pod is not None and pod.scheduler_name not in scheduler.profiles:
        where = f"is on {pod.node_name}" if pod.node_name else "has no node yet"
        return (
            f"pod {key} uses scheduler {pod.scheduler_name!r}, which is not a profile of this one "
            f"({', '.join(scheduler.profiles)}); it {where}"
        )
    if pod is not None and pod.node_name:
        return (
            f"pod {key} is on {pod.node_name}, but its decision is no longer in memory or was made "
            "before this scheduler started"
        )
    name = key.rpartition("/")[2]
    namesakes = islice(
        (each for each in decisions.recent.pods() if each.endswith(f"/{name}")), MAX_SUGGESTIONS
    )
    near = f"; did you mean {' or '.join(found)}?" if (found := list(namesakes)) else ""
    return f"pod {key} not found: it has no node and is not pending for this scheduler{near}"


def _pod(key: str, scheduler: Scheduler) -> Pod | None:
    """A pod of any scheduler."""
    placed = next((each for each in scheduler.cluster.pods() if each.key == key), None)
    if placed is not None:
        return placed
    watched = next((each.objects for each in scheduler.reflectors if each.resource.kind == PODS.kind), {})
    found = watched.get(key)
    return found if isinstance(found, Pod) else None


def _json(answer: PodAnswer | ListAnswer) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer) + b"\n", content_type="application/json")
