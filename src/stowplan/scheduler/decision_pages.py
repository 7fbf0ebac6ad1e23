"""/debug/decisions: the decisions that are kept, and what is known of one pod."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import msgspec
from aiohttp import web

from stowplan.journal import Decisions
from stowplan.journal.shown import ListAnswer, PodAnswer, Waiting, shown, summary_of
from stowplan.queue.queued_pod import Place, QueuedPod
from stowplan.scheduler.scheduler import Scheduler
from stowplan.serving.health import Page
from stowplan.serving.server import status_response

PATH = "/debug/decisions"
LISTED, MOST_LISTED = 100, 10_000
ATTEMPTS_LISTED = 20
NAMES_SHOWN = 5


def decision_pages(decisions: Decisions, scheduler: Callable[[], Scheduler | None]) -> dict[str, Page]:
    """`scheduler` is the one that runs now, if one does."""

    def page(request: web.BaseRequest) -> web.Response:
        query = request.query
        try:
            if "pod" in query:
                number = int(query["number"]) if "number" in query else None
                return _json(_about(query["pod"], number, decisions, scheduler()))
            limit = min(max(int(query.get("limit", LISTED)), 0), MOST_LISTED)
            return _json(_list(decisions, limit, int(query.get("after", 0))))
        except ValueError:
            return status_response(400, "BadRequest", "limit, after and number are whole numbers")
        except LookupError as error:
            return status_response(404, "NotFound", error.args[0])

    return {PATH: page}


def _list(decisions: Decisions, limit: int, after: int) -> ListAnswer:
    recent = decisions.recent
    return ListAnswer(
        kept=len(recent),
        bytes=recent.bytes,
        budget=decisions.budget,
        decisions=[summary_of(record) for record in recent.newest(limit, after)],
    )


def _about(pod: str, number: int | None, decisions: Decisions, scheduler: Scheduler | None) -> PodAnswer:
    key = pod if "/" in pod else f"default/{pod}"
    attempts = decisions.recent.of(key)
    answer = PodAnswer(
        pod=key,
        waiting=None if scheduler is None else _waiting(key, scheduler),
        attempts=[summary_of(record) for record in attempts[:ATTEMPTS_LISTED]],
    )
    chosen = [record for record in attempts if number in (None, record.number)]
    if chosen:
        answer.decision = shown(chosen[0])
    elif attempts:
        raise LookupError(f"decision {number} on pod {key} is not kept, but {attempts[0].number} is")
    elif answer.waiting is None:
        raise LookupError(_why_unknown(key, decisions, scheduler))
    return answer


def _waiting(key: str, scheduler: Scheduler) -> Waiting | None:
    """None for a pod that has a node, and for one that is not ours."""
    pod = next((each for each in scheduler.handlers.pending.values() if each.key == key), None)
    if pod is None:
        return None
    queued = next((each for each in scheduler.queue if each.pod.uid == pod.uid), None)
    if queued is not None:
        return _queued(queued, scheduler)
    held = scheduler.host.waiting.find(pod.uid)
    if held is not None:
        return Waiting(place="permit", plugins=held.plugins, scheduler=pod.scheduler_name)
    return Waiting(place="trying", scheduler=pod.scheduler_name)


def _queued(queued: QueuedPod, scheduler: Scheduler) -> Waiting:
    keeping, profile = scheduler.host.keeping, scheduler.profiles.get(queued.pod.scheduler_name)
    is_gated = queued.place is Place.GATED
    plugins = frozenset((queued.gating_plugin,)) if is_gated else queued.rejectors
    waits = queued.place in (Place.GATED, Place.UNSCHEDULABLE)
    return Waiting(
        place=str(queued.place),
        plugins=tuple(sorted(plugins)),
        wakes=dict(keeping.wakes(profile, plugins)) if waits and keeping and profile else {},
        until=queued.backoff_expiration if queued.place is Place.BACKOFF else None,
        scheduler=queued.pod.scheduler_name,
    )


def _why_unknown(key: str, decisions: Decisions, scheduler: Scheduler | None) -> str:
    names = () if scheduler is None else tuple(scheduler.profiles)
    placed = [] if scheduler is None else [each for each in scheduler.cluster.pods() if each.key == key]
    if placed and placed[0].scheduler_name not in names:
        return (
            f"pod {key} is of scheduler {placed[0].scheduler_name!r}, and this one has "
            f"{', '.join(names)}: it is on {placed[0].node_name}, why is not known here"
        )
    if placed:
        return (
            f"pod {key} is on {placed[0].node_name}, but the decision is no longer kept in memory, or was "
            "made before this scheduler started"
        )
    name = key.rpartition("/")[2]
    namesakes = islice((each for each in decisions.recent.pods() if each.endswith(f"/{name}")), NAMES_SHOWN)
    near = f"; there is {', '.join(found)}" if (found := list(namesakes)) else ""
    return f"no pod {key} is known here, neither with a node nor waiting for this scheduler{near}"


def _json(answer: PodAnswer | ListAnswer) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer) + b"\n", content_type="application/json")
