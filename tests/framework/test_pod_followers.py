"""Plugins follow pods: added, updated, deleted or ended, each change once, in every host."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from make import make_node, make_pod
from stowplan import Plugin, Pod
from stowplan.config import load
from stowplan.config.types import V1
from stowplan.embedded import embedded_cluster
from stowplan.framework.handle import PodFollowers
from stowplan.framework.registry import Registry
from stowplan.simulator import WhatIf
from stowplan.testing import a_cluster


class Follower(Plugin):
    """Writes down what it is told."""

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        self.told: list[tuple[str, ...]] = []

    def pod_added(self, pod):
        self.told.append(("added", pod.name, pod.node_name))

    def pod_updated(self, old, new):
        self.told.append(("updated", new.name, old.node_name, new.node_name))

    def pod_deleted(self, pod):
        self.told.append(("deleted", pod.name))

    def filter(self, state, pod, node):
        return None


def a_manifest(name: str) -> dict[str, Any]:
    container = {"name": "main", "image": "web:1"}
    spec = {"containers": [container], "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_each_change_is_told_once():
    plugin = Follower(None, None)
    pending = make_pod("web")
    placed, ended = pending.on("a"), replace(make_pod("batch", node="a"), phase="Succeeded")
    followers = PodFollowers()
    followers.take_plugins([plugin], lambda: [make_pod("old", node="b")])
    for pod in (pending, pending, placed):
        followers.tell(pod)
    followers.tell(ended)  # which nobody has heard of before
    followers.tell(placed, is_gone=True)
    followers.tell(placed, is_gone=True)
    assert plugin.told == [
        ("added", "old", "b"),
        ("added", "web", ""),
        ("updated", "web", "", "a"),
        ("deleted", "web"),
    ]


def test_a_method_that_cannot_be_looked_up_stops_nothing(caplog):
    class Broken(Follower):
        @property
        def pod_added(self):
            raise RuntimeError("no such method today")

    other = Follower(None, None)
    followers = PodFollowers()
    followers.take_plugins([Broken(None, None), other], lambda: [make_pod("old", node="b")])
    followers.tell(make_pod("web"))
    assert other.told == [("added", "old", "b"), ("added", "web", "")]
    failed = [record.fields for record in caplog.records if record.getMessage() == "Plugin failed"]
    assert [each["method"] for each in failed] == ["pod_added", "pod_added"]


def test_the_kit_tells_of_pods():
    cluster = a_cluster(Follower).node("a").pod("old", "a")
    follower = cluster.instance(Follower)
    cluster.place("web").lands_on("a")
    cluster.pod("new", "a").delete("old")
    assert follower.told == [
        ("added", "old", "a"),
        ("added", "web", ""),
        ("updated", "web", "", "a"),
        ("added", "new", "a"),
        ("deleted", "old"),
    ]
    handle = follower.handle
    assert sorted(pod.name for pod in handle.cluster.pods("default")) == ["new", "web"]
    assert not list(handle.cluster.pods("elsewhere"))
    cluster.place("giant", cpu="1000").stays_pending()
    assert [pod.name for pod in handle.pending_pods] == ["giant"]


def test_what_if_tells_of_pods():
    registry = Registry.installed(classes={"Follower": Follower})
    profile = {"plugins": {"multiPoint": {"enabled": [{"name": "Follower"}]}}}
    config = {"apiVersion": V1, "kind": "KubeSchedulerConfiguration", "profiles": [profile]}
    owner = [{"kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}]
    web = Pod.decode(a_manifest("web") | {"metadata": {"name": "web", "ownerReferences": owner}})
    found = WhatIf(
        [make_node("a"), make_node("b"), web.on("a")], load(config, registry).config, registry=registry
    )
    follower = found.planner.profiles["default-scheduler"].plugins["Follower"]
    found.drain("a")
    found.run()
    assert isinstance(follower, Follower)
    assert follower.told == [("added", "web", "a"), ("deleted", "web"), ("added", "web", "b")]


async def test_the_scheduler_tells_of_pods_that_come_change_go_and_end():
    async with embedded_cluster(plugins=[Follower], manifests=[a_manifest("before")]) as cluster:
        assert cluster.scheduler is not None
        follower = next(
            p
            for p in cluster.scheduler.profiles["default-scheduler"].plugins.values()
            if isinstance(p, Follower)
        )
        await cluster.create(a_manifest("web"))
        await cluster.bound("web")

        async def both_ended() -> bool:
            return {each[1] for each in follower.told if each[0] == "deleted"} == {"before", "web"}

        await cluster.until(both_ended)
    changes = [each for each in follower.told if each[1] == "web"]
    assert changes[0] == ("added", "web", "")
    assert ("updated", "web", "", "node-1") in changes
    assert changes[-1] == ("deleted", "web")
    assert [each[0] for each in changes].count("added") == 1
