"""What goes on: decisions as they come, how fast, how full the nodes are. The page asks again and again.

An answer waits until there is something new, and then tells all of it at once, but never more than a page can
show: a thousand decisions a second are a few hundred lines and some numbers.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from stowplan.journal.wire import WireStruct, summarize_record
from stowplan.scheduler.scheduler import Scheduler
from stowplan.web.nodes import fill_of, layout_of
from stowplan.web.source import Source

LISTED = 200
MEASURED = 5_000
"""Of so many new decisions at most it is said how long they took."""
WAIT_SECONDS = 10.0
LOOK_SECONDS = 0.1


class LiveAnswer(WireStruct):
    run: str
    """Another one after a restart, when decisions are numbered from 1 again."""
    time: float
    number: int
    """Of the last decision."""
    kept: int
    is_keeping: bool
    decisions: list[dict[str, Any]]
    """Since the last question, the newest first."""
    missed: int
    """Decisions since then that are not listed."""
    outcomes: Mapping[str, int]
    median: float | None
    slowest: float | None
    """Only one in a hundred took longer."""
    state: str = "starting"
    """To be sent with the next question: as long as it is the same, there is nothing new."""
    queue: dict[str, int] = {}
    pods: int = 0
    """With a node."""
    layout: str = ""
    fill: str = ""
    is_synced: bool = False
    is_leading: bool = False


class Live:
    """`run` tells one life of the process from the next."""

    def __init__(self, source: Source, run: str) -> None:
        self._source, self._run = source, run

    async def answer(self, query: Mapping[str, str]) -> LiveAnswer:
        after = int(query.get("after", 0)) if query.get("run", self._run) == self._run else 0
        resource, seen = query.get("resource", "cpu"), query.get("state", "")
        deadline = time.monotonic() + WAIT_SECONDS
        while (found := self._now(after, resource)).state == seen and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_SECONDS)
        return found

    def _now(self, after: int, resource: str) -> LiveAnswer:
        decisions = self._source.decisions
        new = list(decisions.recent.newest(MEASURED, after))
        number = new[0].number if new else after
        seconds = [record.attempt.seconds for record in new]
        found = LiveAnswer(
            run=self._run,
            time=time.time(),
            number=number,
            kept=len(decisions.recent),
            is_keeping=decisions.budget > 0,
            decisions=[summarize_record(record) for record in new[:LISTED]],
            missed=max(number - after - LISTED, 0) if after else 0,
            outcomes=Counter(record.attempt.outcome for record in new),
            median=float(np.percentile(seconds, 50)) if seconds else None,
            slowest=float(np.percentile(seconds, 99)) if seconds else None,
        )
        if (scheduler := self._source.scheduler()) is not None:
            _describe(found, scheduler, resource)
        return found


def _describe(found: LiveAnswer, scheduler: Scheduler, resource: str) -> None:
    nodes = scheduler.cluster.nodes
    found.fill, found.layout = fill_of(nodes, resource), layout_of(nodes)
    found.queue = scheduler.queue.counts()
    found.pods = len(nodes.pods)
    found.is_synced, found.is_leading = scheduler.is_synced, scheduler.is_leading
    shown = (found.layout, zlib.crc32(found.fill.encode()), *found.queue.values(), found.is_synced)
    found.state = "-".join(map(str, (found.number, *shown, found.is_leading)))
