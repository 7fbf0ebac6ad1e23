"""Plugins that change while the scheduler runs: the next pod is decided by the new one."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from scheduler_staging import Stage, node, pod, staged
from stowplan.config import load
from stowplan.errors import ConfigError
from stowplan.framework.registry import Registry
from stowplan.plugins.node_resource_topologies import Topologies

FAVOURITE = """
import asyncio

from stowplan import Plugin, PluginArgs


class FavouriteArgs(PluginArgs):
    {args}


class Favourite(Plugin):
    args: FavouriteArgs
    log = []

    async def run(self):
        try:
            await asyncio.Event().wait()
        finally:
            self.log.append("ended")

    def pre_enqueue(self, pod):
        return {gate}

    def score(self, state, pod, node):
        return 100 if node.name == {node} else 0

    async def pre_bind(self, state, pod, node_name):
        self.log.append(("pre_bind", pod.name, {node}))
"""
CONFIG = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Favourite", "weight": 100}]}}}],
}


def write(folder: Path, node: str, *, args: str = "pass", gate: str = "None") -> None:
    (folder / "favourite.py").write_text(FAVOURITE.format(node=node, args=args, gate=gate))


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, '"n1"')
    yield tmp_path
    sys.modules.pop("favourite", None)


def reload(stage: Stage, registry: Registry, config: dict[str, Any] = CONFIG) -> None:
    with registry.reloading() as fresh:
        stage.scheduler.take_profiles(load(config, fresh).config, fresh)


@asynccontextmanager
async def running_plugins(stage: Stage) -> AsyncIterator[None]:
    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            stage.scheduler.run_plugins_in(tasks)
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    try:
        await stage.settle()
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_the_next_pod_is_decided_by_the_new_one(folder):
    registry = Registry.installed([folder])
    async with staged(CONFIG, registry=registry) as stage:
        stage.see(node("n1"), node("n2"), pod("first"))
        await stage.settle()
        write(folder, '"n2"')
        reload(stage, registry)
        stage.see(pod("second"))
        await stage.settle()
        assert stage.api.bound == {"default/first": "n1", "default/second": "n2"}


async def test_arguments_may_change_with_it(folder):
    registry = Registry.installed([folder])
    async with staged(CONFIG, registry=registry) as stage:
        stage.see(node("n1"), node("n2"))
        write(folder, "self.args.node", args='node: str = "n2"')
        reload(stage, registry)
        stage.see(pod("first"))
        await stage.settle()
        assert stage.api.bound == {"default/first": "n2"}


async def test_plugins_that_did_not_change_stay(folder):
    registry = Registry.installed([folder])
    async with staged(CONFIG, registry=registry) as stage:
        (profile,) = stage.scheduler.profiles.values()
        before = dict(profile.plugins)
        write(folder, '"n2"')
        reload(stage, registry)
        (profile,) = stage.scheduler.profiles.values()
        assert [name for name, plugin in profile.plugins.items() if plugin is not before[name]] == [
            "Favourite"
        ]


async def test_a_decision_under_way_finishes_with_the_old_one(folder):
    registry = Registry.installed([folder])
    async with staged(CONFIG, registry=registry) as stage:
        stage.see(node("n1"), node("n2"), pod("first"))
        old: Any = next(iter(stage.scheduler.profiles.values())).plugins["Favourite"]
        stage.scheduler.loop.schedule_one(await stage.scheduler.queue.pop())
        write(folder, '"n2"')
        reload(stage, registry)
        await stage.settle()
        assert stage.api.bound == {"default/first": "n1"}
        assert old.log == [("pre_bind", "first", "n1")]


async def test_the_background_work_of_the_old_one_ends(folder):
    registry = Registry.installed([folder])
    async with staged(CONFIG, registry=registry) as stage, running_plugins(stage):
        old: Any = next(iter(stage.scheduler.profiles.values())).plugins["Favourite"]
        await stage.settle()
        write(folder, '"n2"')
        reload(stage, registry)
        await stage.settle()
        new: Any = next(iter(stage.scheduler.profiles.values())).plugins["Favourite"]
        assert (old.log, new.log) == (["ended"], [])
        write(folder, '"n3"', gate="1 / 0")
        reload(stage, registry, CONFIG | {"profiles": [{}]})
        await stage.settle()
        assert new.log == ["ended"]


async def test_what_cannot_be_built_is_refused_and_the_old_one_stays(folder):
    registry = Registry.installed([folder])
    async with staged(CONFIG, registry=registry) as stage:
        stage.see(node("n1"), node("n2"))
        before = next(iter(stage.scheduler.profiles.values())).plugins["Favourite"]
        write(folder, '"n2"', args="node: str")
        with pytest.raises(ConfigError, match=r'initializing plugin "Favourite": .*node'):
            reload(stage, registry)
        assert next(iter(stage.scheduler.profiles.values())).plugins["Favourite"] is before
        stage.see(pod("first"))
        await stage.settle()
        assert stage.api.bound == {"default/first": "n1"}


async def test_pods_that_wait_are_tried_again(folder):
    write(folder, '"n1"', gate='__import__("stowplan").Status.unresolvable("not yet")')
    registry = Registry.installed([folder])
    async with staged(CONFIG, registry=registry) as stage:
        stage.see(node("n1"), pod("first"))
        await stage.settle()
        assert stage.api.bound == {}
        write(folder, '"n1"')
        reload(stage, registry)
        await stage.settle()
        assert stage.api.bound == {"default/first": "n1"}


def with_args(plugin: str, sort: str = "PrioritySort", **args: Any) -> dict[str, Any]:
    order = {"disabled": [{"name": "*"}], "enabled": [{"name": sort}]}
    plugins = {"multiPoint": {"enabled": [{"name": plugin}]}, "queueSort": order}
    profile = {"plugins": plugins, "pluginConfig": [{"name": plugin, "args": args}]}
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    return kind | {"profiles": [profile]}


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("Coscheduling", {}, {"permitWaitingTimeSeconds": 7}),
        ("NodeResourceTopologyMatch", {"cacheResyncPeriodSeconds": 5}, {"cacheResyncPeriodSeconds": 6}),
        ("SySched", {}, {"defaultProfileName": "other"}),
        ("TopologicalSort", {}, {"namespaces": ["other"]}),
        ("NetworkOverhead", {}, {"namespaces": ["other"]}),
        ("PreemptionToleration", {}, {"minCandidateNodesAbsolute": 7}),
    ],
)
async def test_a_plugin_that_was_replaced_is_gone(name, before, after):
    """At once: the garbage collector leaves alone what was there when the scheduler started."""
    sorts = ("Coscheduling", "TopologicalSort")
    registry, sort = Registry.installed(), name if name in sorts else "PrioritySort"
    async with staged(with_args(name, sort, **before), registry=registry) as stage:
        stage.see(node("n1"), pod("p1"))
        await stage.settle()
        assert stage.api.bound == {"default/p1": "n1"}
        old = ref(next(iter(stage.scheduler.profiles.values())).plugins[name])
        reload(stage, registry, with_args(name, sort, **after))
        stage.see(pod("p2"))
        await stage.settle()
        assert len(stage.api.bound) == 2
        assert old() is None


async def test_what_is_left_on_numa_nodes_is_not_counted_for_a_plugin_that_was_replaced():
    def count() -> int:
        return sum(type(each) is Topologies for each in gc.get_objects())

    registry, name = Registry.installed(), "NodeResourceTopologyMatch"
    gc.collect()
    before = count()
    async with staged(with_args(name), registry=registry) as stage:
        for seconds in (5, 6, 7):
            reload(stage, registry, with_args(name, cacheResyncPeriodSeconds=seconds))
        assert count() == before + 1
