"""`stowplan explain --server`: the smallest changes, which a running scheduler looks for when it is asked."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager
from functools import partial

import pytest
from decisions_served import served

from make import make_node, make_pod
from page_world import page_world
from stowplan import Plugin
from stowplan.web import mount

EXPLAIN, CHANGES = "/page/api/explain", "/page/api/changes"
OBJECTS = (
    make_node("a"),
    make_node("b", taints=["gpu:NoSchedule"], allocatable={"cpu": "64", "memory": "8Gi", "pods": "10"}),
    make_pod("p", requests={"cpu": "1"}),
    make_pod("big", requests={"cpu": "9"}),
    make_pod("gated", requests={"cpu": "9"}, schedulingGates=[{"name": "quota"}]),
)
NOW = "\n\nComputed for the cluster as it is now, where the pod would "


@asynccontextmanager
async def scheduling(*gone, config=None):
    """A scheduler at work, and the pages that `stowplan run` and `stowplan up` serve of it."""
    async with page_world(OBJECTS, config) as world:
        await world.settle()
        for uid in gone:
            world.scheduler.handlers.on_event("deleted", world.scheduler.cluster.pod(uid), None)
        yield mount(world.pages)


GO_ON = threading.Event()


class Slow(Plugin):
    """Lets questions, which have a thread of their own, wait for the test."""

    def pre_filter(self, state, pod, nodes):
        if threading.current_thread().name == "question":
            GO_ON.wait(30)


@asynccontextmanager
async def with_another_question():
    """Whenever it is requested, someone else has asked just before."""
    plugins = {"multiPoint": {"enabled": [{"name": f"{__name__}:Slow"}]}}
    async with scheduling(config={"profiles": [{"plugins": plugins}]}) as pages:

        async def page(request):
            other = asyncio.create_task(pages[CHANGES](request))
            await asyncio.sleep(0)
            try:
                return await pages[CHANGES](request)
            finally:
                GO_ON.set()
                await other

        yield {**pages, CHANGES: page}


@pytest.fixture
def explain(run_stowplan, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.setenv("HOME", "/nowhere")
    return partial(run_stowplan, "explain")


@pytest.fixture
def scheduler(tmp_path):
    with served(tmp_path, scheduling(), EXPLAIN, CHANGES) as found:
        yield found


@pytest.mark.parametrize(
    ("pod", "begins", "ends"),
    [
        pytest.param(
            "p",
            "Pod default/p went to a, attempt 1 at ",
            "go to a.\nEach of these changes alone would move it to another node; "
            "no smaller one of its kind would:\n"
            "   - a toleration of gpu:NoSchedule: b\n",
            id="one that has a node",
        ),
        pytest.param(
            "big",
            "Pod default/big fit nowhere, attempt 1 at ",
            "fit nowhere.\nEach of these changes alone would let it fit; no smaller one of its kind would:\n"
            "   - cpu request 3 of the container main instead of 9: a\n"
            "   - a toleration of gpu:NoSchedule: b\n",
            id="one that waits",
        ),
        pytest.param(
            "gated",
            "Pod default/gated has not been decided yet (profile default-scheduler).\n"
            "It is gated by SchedulingGates and not attempted until the gate is removed.\n",
            "fit nowhere.\nEach of these changes alone would let it fit; no smaller one of its kind would:\n"
            "   - cpu request 3 of the container main instead of 9: a\n"
            "   - a toleration of gpu:NoSchedule: b\n",
            id="one that is held back",
        ),
    ],
)
def test_they_follow_what_was_decided(explain, scheduler, pod, begins, ends):
    run = explain(pod, *scheduler.flags)
    assert (run.status, run.err) == (0, "")
    assert run.out.startswith(begins)
    assert run.out.endswith(NOW + ends)


def test_as_data(explain, scheduler):
    run = explain("big", "gated", *scheduler.flags, "-o", "json")
    big, gated = map(json.loads, run.out.splitlines())
    assert [each["kind"] for each in big["changes"]] == ["request", "toleration"]
    assert big["changes"][0] == {
        "kind": "request",
        "text": "cpu request 3 of the container main instead of 9",
        "was": 9000,
        "now": 3000,
        "node": "a",
        "byPreemption": False,
    }
    assert gated == {
        "pod": "default/gated",
        "waiting": [
            "Pod default/gated has not been decided yet (profile default-scheduler).",
            "It is gated by SchedulingGates and not attempted until the gate is removed.",
            "SchedulingGates says: waiting for scheduling gates: [quota].",
            "  SchedulingGates: the pod itself loses its scheduling gates",
        ],
        "changes": big["changes"],
    }


@pytest.mark.parametrize("flags", [["--no-changes"], ["--node", "a"]], ids=" ".join)
@pytest.mark.parametrize("output", ["text", "json"])
def test_they_are_not_asked_for(explain, scheduler, flags, output):
    run = explain("p", *scheduler.flags, *flags, "-o", output)
    assert (run.status, run.err) == (0, "")
    assert "changes" not in run.out
    assert set(scheduler.reviewer.asked) == {EXPLAIN}


def test_who_may_not_ask_gets_the_rest(explain, tmp_path):
    with served(tmp_path, scheduling(), EXPLAIN) as found:
        run = explain("p", *found.flags)
    assert run.status == 0
    assert run.out.startswith("Pod default/p went to a")
    assert "changes" not in run.out
    assert run.err == (
        f'{found.url}: cannot compute alternative changes: forbidden: User "me" cannot get path "{CHANGES}"\n'
    )


def test_a_pod_that_is_gone_by_now(explain, tmp_path):
    with served(tmp_path, scheduling("uid-p"), EXPLAIN, CHANGES) as found:
        run = explain("p", *found.flags, "-o", "json")
    assert run.status == 0
    assert "changes" not in json.loads(run.out)
    assert run.err.endswith("cannot compute alternative changes: pod default/p not found in this cluster\n")


def test_while_another_question_is_under_way(explain, tmp_path):
    with served(tmp_path, with_another_question(), EXPLAIN, CHANGES) as found:
        run = explain("p", *found.flags)
    assert run.status == 0
    assert run.out.startswith("Pod default/p went to a")
    assert run.err == (
        f"{found.url}: cannot compute alternative changes: "
        "another request of this kind is running; try again in a moment\n"
    )
