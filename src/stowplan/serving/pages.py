"""The pages of a scheduler, by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from stowplan.metrics import CONTENT_TYPE, Metrics
from stowplan.serving.health import Check, Page, health_pages, ping


def scheduler_pages(
    metrics: Metrics,
    configuration: Callable[[], Mapping[str, Any]],
    *,
    leader_election: Check | None,
    shutdown: Check,
    handlers_synced: Check,
) -> dict[str, Page]:
    """`configuration` is in the shape of v1, with its kind; `leader_election` is None where there is none."""
    election = {} if leader_election is None else {"leaderElection": leader_election}
    ready = {**election, "shutdown": shutdown, "sched-handler-sync": handlers_synced}
    record = metrics.health_checked
    return {
        **dict(health_pages("healthz", election or {"ping": ping}, record)),
        **dict(health_pages("livez", {"ping": ping}, record)),
        **dict(health_pages("readyz", ready, record)),
        "/metrics": _text_page(metrics.render),
        "/metrics/slis": _text_page(metrics.render_slis),
        "/configz": lambda _: _json({"componentconfig": configuration()}),
    }


def _text_page(render: Callable[[], bytes]) -> Page:
    return lambda _: web.Response(body=render(), headers={"Content-Type": CONTENT_TYPE})


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
