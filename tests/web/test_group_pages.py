"""Pod groups over the page's HTTP: the list, one group, and `stowplan explain group --server`."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from click.testing import CliRunner

from make import make_node, make_pod
from page_world import page_world
from stowplan.api.groups import CoschedulingPodGroup
from stowplan.api.meta import decode
from stowplan.cli import stowplan
from stowplan.web import answer_by_name, mount, serve_locally

LABEL = "scheduling.x-k8s.io/pod-group"
PROFILE = {
    "plugins": {
        "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
        "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "Coscheduling"}]},
    }
}
NODE = make_node("n1", allocatable={"cpu": "4", "memory": "8Gi", "pods": "10"})


def group(name, least):
    meta = {"name": name, "namespace": "default"}
    return decode(CoschedulingPodGroup, {"metadata": meta, "spec": {"minMember": least}})


def members(name, count, **more):
    return [
        make_pod(f"{name}-{number}", labels={LABEL: name}, requests={"cpu": "1"}, **more)
        for number in range(count)
    ]


@asynccontextmanager
async def asking(*objects, config=None):
    async with (
        page_world(objects, {"profiles": [PROFILE]} if config is None else config) as world,
        serve_locally(answer_by_name(world.pages | mount(world.pages, "page"))) as link,
        aiohttp.ClientSession() as session,
    ):
        await world.settle()
        world.decisions.flush()

        async def get(door, status=200, **query):
            async with session.get(f"{link}api/{door}", params=query) as response:
                assert response.status == status, await response.text()
                return await response.json()

        get.link = link  # type: ignore[attr-defined]
        yield get


async def test_lists_groups_with_their_state_and_why_they_wait():
    objects = [
        NODE,
        group("big", 5),
        *members("big", 5),
        group("few", 4),
        *members("few", 2),
        group("fits", 2),
        *members("fits", 2),
        group("none", 1),
        *members("lost", 1),
    ]
    async with asking(*objects) as get:
        found = await get("groups")
        rows = {each["group"].removeprefix("default/"): each for each in found["groups"]}
        states = {name: row["state"] for name, row in rows.items()}
        assert states == {
            "big": "waits",
            "few": "gated",
            "fits": "placed",
            "none": "empty",
            "lost": "missing",
        }
        assert found["counts"] == {"waits": 1, "gated": 1, "placed": 1, "empty": 1, "missing": 1}
        assert found["isReading"] is True
        assert "pods fit, at least 5 were needed." in rows["big"]["why"][0]
        assert rows["few"]["why"] == ["2 of at least 4 pods exist; it is attempted once 2 more are created."]
        assert (rows["fits"]["placed"], rows["fits"]["minCount"]) == (2, 2)
        assert rows["big"]["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
        assert [each["group"] for each in (await get("groups", search="fit"))["groups"]] == ["default/fits"]


async def test_describes_one_group_with_its_members_and_what_would_help():
    async with asking(NODE, group("big", 5), *members("big", 5)) as get:
        found = await get("group", group="default/big", changes="true")
        assert (found["fitting"], found["needed"], found["state"]) == (4, 5, "waits")
        assert "minMember 4 instead of 5" in [each["text"] for each in found["changes"]]
        assert [each["pod"] for each in found["pods"]] == [f"default/big-{number}" for number in range(5)]
        assert (await get("group", group="default/big"))["changes"] is None


async def test_an_unknown_group_names_those_like_it():
    async with asking(NODE, group("big", 5)) as get:
        found = await get("group", status=404, group="default/bug")
        assert found["message"].startswith('pod group default/bug not found; did you mean "default/big"?')


async def test_a_scheduler_that_reads_no_groups_says_how_to_change_that():
    async with asking(NODE, config={}) as get:
        assert await get("groups") == {"counts": {}, "groups": [], "leftOut": False, "isReading": False}
        found = await get("group", status=404, group="default/g")
        assert "start it with --groups" in found["message"]


async def test_the_command_asks_a_running_scheduler(tmp_path):
    (tmp_path / "token").write_text("t")
    async with asking(NODE, group("big", 5), *members("big", 5)) as get:

        def run(*words):
            server = get.link.rstrip("/")
            return CliRunner().invoke(
                stowplan,
                ["explain", "group", *words, "--server", server, "--token-file", str(tmp_path / "token")],
            )

        done = await asyncio.to_thread(run, "big", "--members")
        assert done.exit_code == 0, done.output
        assert "4 of 5 pending pods fit, at least 5 are needed." in done.output
        assert "minMember 4 instead of 5" in done.output
        done = await asyncio.to_thread(run, "default/bug")
        assert done.exit_code == 1
        assert 'did you mean "default/big"?' in done.output


def job_set(replicas):
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    job = {"parallelism": 1, "completions": 1, "template": {"spec": {"containers": [container]}}}
    part = {"name": "w", "replicas": replicas, "template": {"spec": job}}
    meta, spec = {"name": "train"}, {"replicatedJobs": [part]}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta, "spec": spec}


@pytest.mark.parametrize(("gang", "placed"), [(False, 4), (True, 0)])
async def test_the_form_takes_job_sets_and_gangs(gang, placed):
    async with asking(NODE) as get:
        asked = {"manifests": json.dumps(job_set(5)), "gang": gang}
        async with aiohttp.ClientSession() as session:
            response = await session.post(f"{get.link}api/what-if", json=asked)
            found = await response.json()
        assert found["counts"].get("placed", 0) == placed
        assert [each["starts"] for each in found.get("groups", ())] == [False] * gang


async def test_the_form_rejects_a_job_set_of_too_many_jobs():
    async with asking(NODE) as get, aiohttp.ClientSession() as session:
        response = await session.post(
            f"{get.link}api/what-if", json={"manifests": json.dumps(job_set(10**12))}
        )
        assert response.status == 400
        assert "more than 10000 Jobs" in (await response.json())["message"]
