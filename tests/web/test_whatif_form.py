"""What-if from the form: what it may ask of a scheduler at work, and what it may not."""

from __future__ import annotations

import asyncio
import json
import threading

import msgspec
import pytest

from make import make_node, make_pod
from page_world import page_world
from stowplan import Plugin
from stowplan.web.source import RequestError
from stowplan.web.whatif import Questions

NODES = [make_node(name, allocatable={"cpu": "8", "memory": "8Gi", "pods": "10"}) for name in "ab"]
OWNED = {"ownerReferences": [{"kind": "ReplicaSet", "name": "web-1", "controller": True, "uid": "u"}]}
WEB = make_pod("web-1-x", node="a", metadata=OWNED)
CONFIG = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n"


def deployment(replicas, name="web"):
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    return json.dumps(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    )


def asked_of(questions, **asked):
    return questions.what_if(msgspec.json.encode(asked))


async def refusal(questions, **asked):
    with pytest.raises(RequestError) as refused:
        await asked_of(questions, **asked)
    return refused.value.status, str(refused.value)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        pytest.param(
            {"manifests": deployment(2_000_000_000)},
            "Deployment default/web: 2000000000 more would make 2000000000 pods and nodes; "
            "not more than 10000 can be added at once here, 100000 by `stowplan whatif`",
            id="a large workload",
        ),
        pytest.param(
            {"manifests": "".join(f"---\n{deployment(4_000, name)}\n" for name in ("a", "b", "c"))},
            "Deployment default/c: 4000 more would make 12000 pods and nodes",
            id="several workloads",
        ),
        pytest.param(
            {"more": [{"name": "default/web-1-x", "count": 6_000}] * 2},
            "default/web-1-x: 6000 more would make 12000 pods",
            id="more twice",
        ),
        pytest.param(
            {"moreNodes": [{"name": "a", "count": 6_000}] * 2},
            "a: 6000 more would make 12000 pods and nodes",
            id="more nodes twice",
        ),
    ],
)
async def test_not_more_than_a_scheduler_can_work_out_beside_its_work(asked, said):
    async with page_world((*NODES, WEB)) as world:
        status, text = await refusal(Questions(world.source), **asked)
        assert status == 400
        assert said in text


def bomb(levels=8):
    lists = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lists += [f"a{each}: &a{each} [{', '.join([f'*a{each - 1}'] * 10)}]" for each in range(1, levels)]
    return "\n".join(lists) + "\n"


@pytest.mark.parametrize(
    ("added", "said"),
    [
        pytest.param(
            bomb(), "anchors and aliases, such as a0, are not supported here", id="aliases of aliases"
        ),
        pytest.param("profiles: &a [*a]\n", "anchors and aliases, such as a,", id="a list within itself"),
        pytest.param("labels: " + "[" * 200_000, "is nested more than 100 deep", id="too deep, unfinished"),
        pytest.param("labels: " + "[" * 200 + "]" * 200, "is nested more than 100 deep", id="too deep"),
        pytest.param("labels: [" + "1," * 200_000 + "]", " values", id="too much"),
        pytest.param("labels: 1" + ":59" * 100_000, "more than 10000 characters", id="a long number"),
    ],
)
@pytest.mark.parametrize(
    ("field", "start"), [("config", CONFIG), ("manifests", POD.replace("metadata", "status: {}\nmetadata"))]
)
async def test_yaml_that_would_take_too_long_to_read(field, start, added, said):
    async with page_world(NODES) as world:
        status, text = await refusal(Questions(world.source), **{field: start + added})
        assert status == 400
        assert said in text


@pytest.mark.parametrize(
    ("field", "name"),
    [
        pytest.param("config", "x", id="configuration"),
        pytest.param("manifests", "x", id="manifests"),
        pytest.param("manifests", "\\ud83d\\ude00", id="JSON that is no YAML"),
    ],
)
async def test_json_that_is_too_deep(field, name):
    inner = '{"labels":' * 900 + "1" + "}" * 900
    start = f'"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "{name}", "labels": {inner}}}'
    async with page_world(NODES) as world:
        status, text = await refusal(Questions(world.source), **{field: f"{{{start}}}"})
        assert (status, "nested" in text) == (400, True)


@pytest.mark.parametrize("name", ["deployment/web", "rs/web-1", "sts/web"])
async def test_workloads_are_not_known_to_a_scheduler(name):
    async with page_world((*NODES, WEB)) as world:
        status, text = await refusal(Questions(world.source), more=[{"name": name}])
        assert status == 400
        assert text.startswith(f"{name}: ")
        assert "name one of its pods as namespace/name, or paste its manifest" in text


async def test_a_workload_that_is_pasted_is_known():
    async with page_world(NODES) as world:
        found = await asked_of(
            Questions(world.source), manifests=deployment(1), more=[{"name": "deployment/web"}]
        )
        assert [each["pod"] for each in found["pods"]] == ["default/web-new", "default/web-new-1"]


async def test_what_is_pasted_and_not_looked_at_is_told():
    async with page_world(NODES) as world:
        found = await asked_of(
            Questions(world.source), manifests="apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: c}"
        )
        assert found["changes"] == ["1 CronJob not looked at"]


async def test_a_question_that_takes_too_long_is_refused_and_does_not_block_the_next():
    async with page_world((*NODES, WEB)) as world:
        questions = Questions(world.source, seconds=0)
        for _ in range(2):
            status, text = await refusal(questions, more=[{"name": "default/web-1-x"}])
            assert status == 400
            assert text == "not finished within 0 seconds; reduce the request, or use `stowplan whatif`"


class Slow(Plugin):
    """Waits for the test in every filter that runs in a thread."""

    def pre_filter(self, state, pod, nodes):
        if threading.current_thread() is not threading.main_thread():
            SEEN.append(threading.current_thread())
            ENTERED.set()
            GO_ON.wait(30)


SEEN: list[threading.Thread] = []
ENTERED, GO_ON = threading.Event(), threading.Event()


async def test_a_question_that_nobody_waits_for_ends_early_and_holds_up_nobody():
    plugin = {"name": f"{__name__}:Slow"}
    config = {"profiles": [{"plugins": {"multiPoint": {"enabled": [plugin]}}}]}
    async with page_world((*NODES, WEB), config) as world:
        questions = Questions(world.source)
        asked = {"more": [{"name": "default/web-1-x", "count": 5}]}
        task = asyncio.create_task(asked_of(questions, **asked))
        try:
            await asyncio.to_thread(ENTERED.wait, 30)
            assert SEEN[0].daemon  # so that a process can end before the question does
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            status, text = await refusal(questions, **asked)
            assert (status, "another request" in text) == (429, True)
        finally:
            GO_ON.set()
        await asyncio.to_thread(SEEN[0].join, 30)
        assert len(SEEN) == 1  # the other four were not decided
        found = await asked_of(questions, **asked)
        assert found["counts"] == {"placed": 5}


class Endless(Plugin):
    """Never returns where it runs in a thread."""

    def filter(self, state, pod, node):
        while threading.current_thread() is not threading.main_thread():
            pass


async def test_a_plugin_that_never_returns_is_interrupted():
    config = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": f"{__name__}:Endless"}]}}}]}
    async with page_world((*NODES, WEB), config) as world:
        questions = Questions(world.source, seconds=0.2)
        for _ in range(2):  # the first must not block the second
            async with asyncio.timeout(20):
                found = await asked_of(questions, more=[{"name": "default/web-1-x"}])
            assert found["counts"] == {"failed": 1}
            assert "took longer than the request may take" in str(found)
            assert "Endless" in str(found)
