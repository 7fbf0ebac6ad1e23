"""What the page reads: a running scheduler and its recorded decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from stowplan.api.pod import Pod
from stowplan.config import KubeSchedulerConfiguration
from stowplan.framework.registry import Registry
from stowplan.journal import Decisions
from stowplan.scheduler.main import Service
from stowplan.scheduler.scheduler import Scheduler
from stowplan.serving import aiohttp_web as web


class Source(NamedTuple):
    """Functions, because a new configuration creates a new scheduler."""

    decisions: Decisions
    scheduler: Callable[[], Scheduler | None]
    """The running scheduler, if there is one."""
    config: Callable[[], KubeSchedulerConfiguration]
    registry: Callable[[], Registry]
    leader: Callable[[], str | None] = lambda: None
    """See `Service.leader`."""


def make_source(service: Service) -> Source:
    return Source(
        service.decisions,
        lambda: service.scheduler,
        lambda: service.options.config,
        lambda: service.registry,
        lambda: service.leader,
    )


class RequestError(Exception):
    """A request that cannot be answered; the message is for the client."""

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(message)
        self.status = status


def running_scheduler(source: Source) -> Scheduler:
    found = source.scheduler()
    if found is None:
        raise RequestError("the scheduler is starting; try again in a moment", 503)
    return found


def find_pod(scheduler: Scheduler, key: str) -> Pod | None:
    """A pod that is pending or has a node."""
    waiting = next((each for each in scheduler.handlers.pending.values() if each.key == key), None)
    return next((each for each in scheduler.cluster.pods() if each.key == key), waiting)


def json_response(answer: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(answer), content_type="application/json")
