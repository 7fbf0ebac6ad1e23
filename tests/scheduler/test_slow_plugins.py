"""A plugin that is slow or hangs: it is interrupted, its pod says so, and all others go on."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from scheduler_staging import node, pod, staged
from stowplan import Plugin
from stowplan.metrics import Metrics
from stowplan.scheduler import guard as guard_module
from stowplan.scheduler.guard import Guard

LONG = 20.0
WHERE = "OverdueError: took longer than its budget of 0.1s (pod default/cursed"


def sleeping() -> None:
    time.sleep(LONG)


def computing() -> None:
    ends = time.monotonic() + LONG
    while time.monotonic() < ends:
        pass


def swallowing() -> None:
    """Goes on whatever is raised, but not for ever."""
    ends = time.monotonic() + 1
    while time.monotonic() < ends:
        try:
            time.sleep(0.2)
        except Exception:
            continue


async def waiting() -> None:
    await asyncio.sleep(LONG)


def slow(point: str, hang: Any, answer: Any = None) -> type[Plugin]:
    """A plugin that hangs at this point for the pod called cursed."""

    def method(self: Plugin, *words: Any) -> Any:
        if any(getattr(word, "name", "") == "cursed" for word in words):
            hang()
        return answer(*words) if callable(answer) else answer

    others = {"unreserve": lambda self, *words: None} if point == "reserve" else {}
    return type("Slow", (Plugin,), {point: method, "budget": 0.1, "bind_budget": 0.1, **others})


def slow_async(point: str, hang: Any) -> type[Plugin]:
    async def method(self: Plugin, state: Any, pod: Any, node_name: str) -> None:
        if pod.name == "cursed":
            found = hang()
            if found is not None:
                await found

    return type("Slow", (Plugin,), {point: method, "budget": 0.1, "bind_budget": 0.1})


def zeros(state: Any, pod: Any, nodes: Any) -> Any:
    return np.zeros(len(nodes), np.int64)


ROWS = [
    pytest.param(slow("pre_filter", sleeping), f'running PreFilter plugin "Slow": {WHERE})', id="preFilter"),
    pytest.param(slow("filter", sleeping), f'running "Slow" filter plugin: {WHERE}, node n1)', id="filter"),
    pytest.param(
        slow("filter", computing), f'running "Slow" filter plugin: {WHERE}, node n1)', id="computing"
    ),
    pytest.param(
        slow("filter_nodes", sleeping, ()), f'running "Slow" filter plugin: {WHERE})', id="filter_nodes"
    ),
    pytest.param(
        slow("score", sleeping, 0),
        f'running Score plugins: plugin "Slow" failed with: {WHERE}, node n1)',
        id="score",
    ),
    pytest.param(
        slow("score_nodes", computing, zeros),
        f'running Score plugins: plugin "Slow" failed with: {WHERE})',
        id="score_nodes",
    ),
    pytest.param(
        slow("reserve", sleeping), f'running Reserve plugin "Slow": {WHERE}, node NODE)', id="reserve"
    ),
    pytest.param(slow("permit", sleeping), f'running Permit plugin "Slow": {WHERE}, node NODE)', id="permit"),
    pytest.param(
        slow("pre_enqueue", sleeping), f'running PreEnqueue plugin "Slow": {WHERE})', id="preEnqueue"
    ),
    pytest.param(
        slow_async("pre_bind", sleeping), f'running PreBind plugin "Slow": {WHERE}, node NODE)', id="preBind"
    ),
    pytest.param(
        slow_async("pre_bind", waiting),
        f'running PreBind plugin "Slow": {WHERE}, node NODE)',
        id="preBind that waits",
    ),
]


async def until(is_so: Any, seconds: float = 10.0) -> None:
    ends = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < ends, "it took too long"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(("plugin", "note"), ROWS)
async def test_it_is_interrupted_and_its_pod_says_so(plugin, note):
    metrics = Metrics()
    with Guard(metrics) as guard:
        config = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Slow"}]}}}]}
        async with staged(config, {"Slow": plugin}, guard=guard) as stage:
            began = time.monotonic()
            stage.see(node("n1"), node("n2"), pod("cursed", priority=5), pod("fine"))
            await until(lambda: stage.api.bound and stage.notes("FailedScheduling"))
            assert time.monotonic() - began < LONG / 2
            assert list(stage.api.bound) == ["default/fine"]
            (told,) = stage.notes("FailedScheduling")[:1]
            told = re.sub(r", at tests/scheduler/test_slow_plugins\.py:\d+\)", ")", told)
            assert told in (note, note.replace("NODE", "n1"), note.replace("NODE", "n2"))
    assert b'stowplan_plugin_interruptions_total{method="' in metrics.render()


async def test_one_that_waits_in_vain_for_its_own_end_shows_in_livez():
    async def stubborn() -> None:
        ends = time.monotonic() + 1
        while time.monotonic() < ends:
            try:
                await asyncio.sleep(0.2)
            except asyncio.CancelledError:
                continue

    plugin = slow_async("pre_bind", stubborn)
    with Guard(Metrics(), stuck_seconds=0.1) as guard:
        config = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Slow"}]}}}]}
        async with staged(config, {"Slow": plugin}, guard=guard) as stage:
            stage.see(node("n1"), pod("cursed"), pod("fine"))
            await until(lambda: guard.check() is not None)
            assert guard.check() == "plugin Slow, pre_bind has not ended for 0s"
            await until(lambda: "default/fine" in stage.api.bound)
            await until(lambda: guard.check() is None)


async def test_one_that_cannot_be_interrupted_is_told_of_while_it_hangs():
    seen: list[str | None] = []
    plugin = slow("filter", swallowing)
    with Guard(Metrics(), stuck_seconds=0.1) as guard:
        guard.while_stuck = lambda: seen.append(guard.check())
        config = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Slow"}]}}}]}
        async with staged(config, {"Slow": plugin}, guard=guard) as stage:
            stage.see(node("n1"), pod("cursed"))
            await until(lambda: "default/cursed" in stage.api.bound)
            assert seen
            assert seen[0] == "plugin Slow, filter has not ended for 0s"
            await until(lambda: guard.check() is None)


async def test_background_work_that_blocks_is_interrupted_too():
    tries: list[float] = []

    async def run(self: Plugin) -> None:
        tries.append(time.monotonic())
        time.sleep(LONG)

    plugin = type("Slow", (Plugin,), {"run": run, "filter": lambda self, *words: None, "budget": 0.1})
    with Guard(Metrics()) as guard:
        config = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Slow"}]}}}]}
        async with staged(config, {"Slow": plugin}, guard=guard) as stage:
            (slow_one,) = [
                found
                for profile in stage.scheduler.profiles.values()
                for name, found in profile.plugins.items()
                if name == "Slow"
            ]
            began = time.monotonic()
            with pytest.raises(Exception, match=r"took longer than its budget of 0\.1s"):
                await guard.run(slow_one)
            assert time.monotonic() - began < LONG / 2


def test_the_thread_ends_with_the_guard():
    with Guard(Metrics()):
        (thread,) = [each for each in threading.enumerate() if each.name == "plugin guard"]
    thread.join(5)
    assert not thread.is_alive()


def test_no_signal_arrives_after_the_guard_ended(monkeypatch):
    """The default action of SIGALRM is to end the process."""
    late = []
    before = signal.signal(signal.SIGALRM, lambda *_: late.append(time.monotonic()))
    find = guard_module.own_libraries

    def find_slowly():
        time.sleep(0.3)
        return find()

    monkeypatch.setattr(guard_module, "own_libraries", find_slowly)
    plugin = object.__new__(slow("filter", sleeping))
    try:
        with Guard(Metrics()) as guard:
            guard.enter("Filter", plugin)
            time.sleep(0.2)
            guard.leave("Filter", plugin)
        time.sleep(0.5)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not late
