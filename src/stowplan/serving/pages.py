"""The pages of a scheduler, by path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from stowplan.api.pod import Pod
from stowplan.metrics import CONTENT_TYPE, Metrics
from stowplan.serving.health import Check, Page, health_pages, ping
from stowplan.serving.pod_resources import render_resources


def scheduler_pages(
    metrics: Metrics,
    configuration: Callable[[], Mapping[str, Any]],
    *,
    leader_election: Check | None,
    shutdown: Check,
    handlers_synced: Check,
    pods: Callable[[], Iterable[Pod]] = tuple,
    plugins: Check | None = None,
    core_tasks: Check | None = None,
) -> dict[str, Page]:
    """`configuration` is in the shape of v1, with its kind; `leader_election` is None where there is none.

    `pods` are those whose resources are shown: all while leading, else none. `plugins` says which of them
    hang, where that is watched, `core_tasks` which part of the scheduler has ended that must not.
    """
    election = {} if leader_election is None else {"leaderElection": leader_election}
    ready = {**election, "shutdown": shutdown, "sched-handler-sync": handlers_synced}
    more = {"plugins": plugins, "core-tasks": core_tasks}
    alive = {"ping": ping} | {name: check for name, check in more.items() if check is not None}
    record = metrics.health_checked
    return {
        **dict(health_pages("healthz", election or {"ping": ping}, record)),
        **dict(health_pages("livez", alive, record)),
        **dict(health_pages("readyz", ready, record)),
        "/metrics": _text_page(metrics.render),
        "/metrics/slis": _text_page(metrics.render_slis),
        "/metrics/resources": lambda _: _resources(pods()),
        "/configz": lambda _: _json({"componentconfig": configuration()}),
    }


def _text_page(render: Callable[[], bytes]) -> Page:
    return lambda _: web.Response(body=render(), headers={"Content-Type": CONTENT_TYPE})


async def _resources(pods: Iterable[Pod]) -> web.Response:
    return web.Response(body=await render_resources(pods), headers={"Content-Type": CONTENT_TYPE})


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
