"""Code of a plugin that runs after its method returned: the text of an error, the comparison of keys."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from scheduler_staging import node, pod, staged
from stowplan import Plugin
from stowplan.metrics import Metrics
from stowplan.scheduler.guard import Guard

LONG = 30.0


class Endless(Exception):  # noqa: N818
    def __str__(self) -> str:
        time.sleep(LONG)
        return "never"


class EndlessKey:
    def __lt__(self, other: object) -> bool:
        time.sleep(LONG)
        return False


class Hanging(Plugin):
    budget = bind_budget = 0.1
    where = ""

    def _act(self, where: str, pod: Any) -> None:
        if where == self.where and pod.name == "cursed":
            raise Endless

    def pre_enqueue(self, pod: Any) -> None:
        self._act("pre_enqueue", pod)

    def pre_filter(self, state: Any, pod: Any, nodes: Any) -> None:
        self._act("pre_filter", pod)

    def filter(self, state: Any, pod: Any, node: Any) -> None:
        self._act("filter", pod)

    def reserve(self, state: Any, pod: Any, node_name: str) -> None:
        self._act("reserve", pod)

    def permit(self, state: Any, pod: Any, node_name: str) -> None:
        self._act("permit", pod)

    async def pre_bind(self, state: Any, pod: Any, node_name: str) -> None:
        self._act("pre_bind", pod)


class HangingSort(Plugin):
    budget = 0.1

    def queue_sort(self, queued: Any) -> Any:
        return EndlessKey() if queued.pod.name == "cursed" else (-queued.pod.priority, queued.timestamp)


async def until(is_so: Any) -> None:
    ends = time.monotonic() + LONG / 2
    while not is_so():
        assert time.monotonic() < ends, "it took too long"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("where", ["pre_enqueue", "pre_filter", "filter", "reserve", "permit", "pre_bind"])
async def test_the_text_of_an_error_that_takes_for_ever(where):
    plugin = type("Hanging", (Hanging,), {"where": where})
    config = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Hanging"}]}}}]}
    with Guard(Metrics()) as guard:
        async with staged(config, {"Hanging": plugin}, guard=guard) as stage:
            stage.see(node("n1"), pod("cursed", priority=5), pod("fine"))
            await until(lambda: "default/fine" in stage.api.bound and stage.notes("FailedScheduling"))
            assert '"Hanging"' in stage.notes("FailedScheduling")[0]


async def test_a_key_that_takes_for_ever_to_compare():
    sort = {"enabled": [{"name": "HangingSort"}], "disabled": [{"name": "*"}]}
    with Guard(Metrics()) as guard:
        config = {"profiles": [{"plugins": {"queueSort": sort}}]}
        async with staged(config, {"HangingSort": HangingSort}, guard=guard) as stage:
            stage.see(node("n1"), pod("first"), pod("cursed"), pod("fine"))
            await until(lambda: len(stage.api.bound) == 3)
            assert any('"HangingSort"' in each for each in stage.notes("FailedScheduling"))
