"""The page's answers about single objects and about plugins with their arguments, over HTTP."""

from __future__ import annotations

import asyncio

import yaml
from test_doors import asking

from make import make_node
from page_world import page_world
from stowplan.api.kinds import object_of
from stowplan.framework.args import PluginArgs
from stowplan.web.objects import MAX_YAML, describe_object

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


def pod(**metadata):
    spec = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "250m", "memory": "1.5Gi"}}}],
        "nodeSelector": {CONTROL_PLANE: ""},
        "priority": 0,
    }
    metadata = {"name": "p", "namespace": "shop", "uid": "1", "labels": {"app": "web", "flag": ""}} | metadata
    found = object_of({"kind": "Pod", "metadata": metadata, "spec": spec | {"nodeName": "a"}})
    assert found is not None
    return found


async def test_a_pod_is_shown_as_the_api_writes_it():
    async with asking(make_node("a"), pod()) as page:
        answer = yaml.safe_load((await page.get("object", kind="pod", name="shop/p"))["yaml"])
    assert (answer["kind"], answer["metadata"]["name"], answer["metadata"]["namespace"]) == (
        "Pod",
        "p",
        "shop",
    )
    assert answer["metadata"]["labels"] == {"app": "web", "flag": ""}
    assert answer["spec"]["nodeName"] == "a"
    assert answer["spec"]["nodeSelector"] == {CONTROL_PLANE: ""}
    assert answer["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "250m", "memory": "1536Mi"}


async def test_a_node_is_shown_with_labels_that_have_no_value_and_readable_amounts():
    node = make_node("a", labels={CONTROL_PLANE: ""}, allocatable={"cpu": "4", "memory": "8Gi", "pods": "10"})
    async with asking(node) as page:
        answer = yaml.safe_load((await page.get("object", kind="node", name="a"))["yaml"])
    assert answer["metadata"]["labels"][CONTROL_PLANE] == ""
    assert answer["status"]["allocatable"] == {"cpu": "4", "memory": "8Gi", "pods": "10"}


async def test_a_pod_with_a_megabyte_of_labels_does_not_hold_up_scheduling():
    labels = {f"key-{number:05}": "v" * 40 for number in range(20_000)}
    turns = 0
    async with page_world([make_node("a"), pod(labels=labels)]) as world:
        asked = asyncio.ensure_future(describe_object(world.source, "pod", "shop/p"))
        while not asked.done():
            await asyncio.sleep(0.001)
            turns += 1
        answer = asked.result()
    assert answer.is_cut
    assert len(answer.yaml) == MAX_YAML
    assert turns > 5  # the loop, which schedules pods, went on meanwhile


class OddArgs(PluginArgs, frozen=True):
    names: dict[int, str] = {}
    limit: int = 0
    passwords: tuple[str, ...] = ()
    secret: dict[str, str] = {}
    pin_password: int = 0
    headers: dict[str, str] = {}
    api_key: str = ""
    address: str = ""
    token_file: str = ""
    other: object = None


class Unprintable:
    def __str__(self):
        raise RuntimeError("no text")


async def profile_args(args):
    async with asking(make_node("a")) as page:
        (profile,) = page.world.scheduler.profiles.values()
        profile.plugins["NodeName"].args = args
        (row,) = (await page.get("profiles"))["profiles"]
    return {each["plugin"]: each["args"] for each in row["plugins"]}["NodeName"]


async def test_profiles_are_shown_whatever_arguments_a_plugin_has():
    args = await profile_args(OddArgs(names={1: "one"}, limit=2**70, token_file="/run/token"))
    assert args["names"] == {"1": "one"}
    assert args["limit"] == str(2**70)
    assert args["tokenFile"] == "/run/token"
    assert "RuntimeError" in await profile_args(OddArgs(other=Unprintable()))
    assert "more than" in await profile_args(OddArgs(names=dict.fromkeys(range(200_000), "x")))


async def test_whatever_looks_like_a_password_in_arguments_is_hidden():
    args = await profile_args(
        OddArgs(
            passwords=("hunter2",),
            secret={"value": "hunter2"},
            pin_password=4711,
            headers={"Authorization": "Bearer hunter2"},
            api_key="hunter2",
            address="https://user:hunter2@metrics.example/path",
        )
    )
    assert "hunter2" not in str(args)
    assert "4711" not in str(args)
    assert args["address"] == "https://(hidden)@metrics.example/path"


async def test_the_password_in_the_address_of_an_extender_is_hidden():
    extender = {"urlPrefix": "http://user:hunter2@127.0.0.1:1/", "filterVerb": "filter"}
    async with asking(make_node("a"), config={"extenders": [extender]}) as page:
        assert (await page.get("profiles"))["extenders"] == ["http://(hidden)@127.0.0.1:1/"]
