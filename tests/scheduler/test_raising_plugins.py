"""A plugin that raises, at whatever point: its pod says so, and all others go on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from scheduler_staging import node, pod, staged
from stowplan import Plugin


def raising(*points: str, awaited: bool = False) -> type[Plugin]:
    """A plugin that fails at these points for the pod called cursed, and has nothing to say otherwise."""

    def fail_if_cursed(*words: Any) -> Any:
        if any(getattr(word, "name", "") == "cursed" for word in words):
            raise RuntimeError("broken")
        return 0 if "score" in points else None

    async def fail_later(*words: Any) -> Any:
        fail_if_cursed(*words)

    def method(self: Plugin, *words: Any) -> Any:
        return fail_later(*words) if awaited else fail_if_cursed(*words)

    return type("Raising", (Plugin,), dict.fromkeys(points, method))


def normalizing() -> type[Plugin]:
    def normalize_score(self: Plugin, state: Any, pod: Any, scores: Any) -> Any:
        if pod.name == "cursed":
            raise RuntimeError("broken")
        return scores

    def score(self: Plugin, state: Any, pod: Any, node: Any) -> int:
        return 0

    return type("Raising", (Plugin,), {"score": score, "normalize_score": normalize_score})


PLACE = re.compile(r", at tests/scheduler/test_raising_plugins\.py:\d+\)")
WHERE = "RuntimeError: broken (pod default/cursed"
ROWS = [
    pytest.param(raising("pre_filter"), f'running PreFilter plugin "Raising": {WHERE})', id="preFilter"),
    pytest.param(raising("filter"), f'running "Raising" filter plugin: {WHERE}, node n1)', id="filter"),
    pytest.param(raising("pre_score"), f'running PreScore plugin "Raising": {WHERE})', id="preScore"),
    pytest.param(
        raising("score"),
        f'running Score plugins: plugin "Raising" failed with: {WHERE}, node n1)',
        id="score",
    ),
    pytest.param(
        normalizing(),
        f'running Normalize on Score plugins: plugin "Raising" failed with: {WHERE})',
        id="normalizeScore",
    ),
    pytest.param(
        raising("reserve", "unreserve"),
        f'running Reserve plugin "Raising": {WHERE}, node NODE)',
        id="reserve",
    ),
    pytest.param(raising("permit"), f'running Permit plugin "Raising": {WHERE}, node NODE)', id="permit"),
    pytest.param(
        raising("pre_bind", awaited=True),
        f'running PreBind plugin "Raising": {WHERE}, node NODE)',
        id="preBind",
    ),
    pytest.param(raising("pre_enqueue"), f'running PreEnqueue plugin "Raising": {WHERE})', id="preEnqueue"),
]
MULTI_POINT = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Raising"}]}}}]}
BEFORE_ALL_BINDERS = {
    "profiles": [
        {
            "plugins": {
                "bind": {
                    "enabled": [{"name": "Raising"}, {"name": "DefaultBinder"}],
                    "disabled": [{"name": "DefaultBinder"}],
                }
            }
        }
    ]
}


@pytest.mark.parametrize(("plugin", "message"), ROWS)
async def test_the_pod_says_which_plugin_failed_and_the_next_one_is_placed(plugin, message):
    async with staged(MULTI_POINT, {"Raising": plugin}) as stage:
        stage.see(node("n1"), node("n2"), pod("cursed"))
        await stage.settle()
        (note,) = stage.notes("FailedScheduling")
        said, places = PLACE.subn(")", note)
        assert places == 1
        assert message in (said, said.replace("n1)", "NODE)").replace("n2)", "NODE)"))
        (condition,) = stage.api.conditions("default/cursed")
        assert (condition["reason"], condition["message"]) == ("SchedulerError", note)
        assert stage.scheduler.cluster.assumed_count == 0
        stage.see(pod("next"))
        await stage.settle()
        assert list(stage.api.bound) == ["default/next"]


async def test_a_binder_that_fails():
    async with staged(BEFORE_ALL_BINDERS, {"Raising": raising("bind", awaited=True)}) as stage:
        stage.see(node("n1"), pod("cursed"))
        await stage.settle()
        (note,) = stage.notes("FailedScheduling")
        assert PLACE.sub(")", note) == f'running Bind plugin "Raising": {WHERE}, node n1)'
        assert stage.scheduler.cluster.assumed_count == 0


async def test_one_that_reserves_need_not_unreserve(caplog):
    async with staged(MULTI_POINT, {"Raising": raising("reserve")}) as stage:
        stage.see(node("n1"), pod("cursed"))
        await stage.settle()
        assert stage.notes("FailedScheduling")
        assert "Unreserve plugin failed" not in caplog.text


async def test_what_fails_after_the_bind_is_only_logged(caplog):
    async with staged(MULTI_POINT, {"Raising": raising("post_bind", awaited=True)}) as stage:
        stage.see(node("n1"), pod("cursed"))
        await stage.settle()
        assert stage.api.bound == {"default/cursed": "n1"}
        assert stage.notes("FailedScheduling") == []
        assert "PostBind plugin failed" in caplog.text


async def test_a_filter_after_which_nothing_is_left_and_a_post_filter_that_fails():
    async with staged(MULTI_POINT, {"Raising": raising("post_filter")}) as stage:
        stage.see(node("n1", cpu="1"), pod("cursed", cpu="2"))
        await stage.settle()
        note = PLACE.sub(")", stage.notes("FailedScheduling")[0])
        assert f'running PostFilter plugin "Raising": {WHERE})' in note
