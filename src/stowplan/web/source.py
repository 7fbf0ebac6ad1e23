"""What the page looks at: a scheduler at work and the decisions that are kept of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from aiohttp import web

from stowplan.api.pod import Pod
from stowplan.config import KubeSchedulerConfiguration
from stowplan.framework.registry import Registry
from stowplan.journal import Decisions
from stowplan.scheduler.main import Service
from stowplan.scheduler.scheduler import Scheduler


class Source(NamedTuple):
    """Asked anew each time: a new configuration brings a new scheduler."""

    decisions: Decisions
    scheduler: Callable[[], Scheduler | None]
    """The one that runs now, if one does."""
    config: Callable[[], KubeSchedulerConfiguration]
    registry: Callable[[], Registry]
    leader: Callable[[], str | None] = lambda: None
    """As `Service.leader`."""


def source_of(service: Service) -> Source:
    return Source(
        service.decisions,
        lambda: service.scheduler,
        lambda: service.options.config,
        lambda: service.registry,
        lambda: service.leader,
    )


class Refused(Exception):  # noqa: N818 (nothing went wrong)
    """A question without an answer; the text is for the one who asked."""

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(message)
        self.status = status


def running(source: Source) -> Scheduler:
    found = source.scheduler()
    if found is None:
        raise Refused("the scheduler is starting: ask again in a moment", 503)
    return found


def pod_of(scheduler: Scheduler, key: str) -> Pod | None:
    """A pod that waits, or has a node."""
    waiting = next((each for each in scheduler.handlers.pending.values() if each.key == key), None)
    return next((each for each in scheduler.cluster.pods() if each.key == key), waiting)


def json_response(answer: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(answer), content_type="application/json")
