"""GroupReservation: nodes kept for a group that has waited long, and pods that may use them meanwhile."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from groups_staging import GANG, TOPOLOGY, last_text, members, pod_group

from scheduler_staging import node, pod, staged
from stowplan.config import load
from stowplan.errors import ConfigError
from stowplan.framework.registry import Registry

NOW = datetime(2026, 11, 16, 14, 0, tzinfo=UTC).timestamp()
PLUGIN = "stowplan.plugins.community.group_reservation:GroupReservation"
PLUGINS = {"multiPoint": {"enabled": [{"name": PLUGIN}]}}
RESERVED = "reserved for pod group default/g until 14:05 UTC"


def stamp(seconds):
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def aged(plain, seconds):
    plain["metadata"]["creationTimestamp"] = stamp(NOW - seconds)
    return plain


def running(name, on, *, cpu="4", ends_in=None):
    """A pod that has run for 100 s."""
    plain = pod(name, cpu=cpu, on=on)
    plain["status"] = {"phase": "Running", "startTime": stamp(NOW - 100)}
    if ends_in is not None:
        plain["spec"]["activeDeadlineSeconds"] = 100 + ends_in
    return plain


def waiting_group(least=2, waited=1000, **spec):
    return [pod_group(least=least, **spec), *(aged(each, waited) for each in members(least, cpu="4"))]


class Reserving:
    """A scheduler with the plugin, at a time that tests set."""

    def __init__(self, stage, now):
        self.stage, self.now, self.seen = stage, now, {}

    async def see(self, *objects):
        self.seen |= {each["metadata"]["name"]: each for each in objects}
        self.stage.see(*objects)
        await self.stage.settle()

    async def end(self, *names, after=10):
        """Pods are gone after some seconds, which end all backoffs."""
        self.now[0] += after
        for name in names:
            self.stage.change(self.seen[name], None)
        for profile in self.stage.scheduler.profiles.values():
            profile.plugins[PLUGIN].refresh()
        self.stage.scheduler.queue.flush_backoff()
        await self.stage.settle()

    @property
    def bound(self):
        return {key.removeprefix("default/"): node for key, node in self.stage.api.bound.items()}

    @property
    def reservation(self):
        return self.stage.scheduler.cluster.groups.reservation


@asynccontextmanager
async def reserving(now, gates=GANG, names=("default-scheduler",), **args):
    config = [{"name": PLUGIN, "args": {"afterSeconds": 600, **args}}]
    profiles = [{"schedulerName": name, "plugins": PLUGINS, "pluginConfig": config} for name in names]
    async with staged(
        {"profiles": profiles}, gates=gates, draw=random.Random(1), now=lambda: now[0]
    ) as stage:
        yield Reserving(stage, now)


@pytest.fixture
def now():
    return [NOW]


FULL = [node("n1"), node("n2"), node("n3")]
BUSY = [running("a", "n1", ends_in=300), running("b", "n2", ends_in=200), running("c", "n3", ends_in=9000)]


async def test_the_nodes_that_are_free_soonest_are_kept(now):
    async with reserving(now) as world:
        await world.see(*FULL, *BUSY, *waiting_group())
        assert (world.reservation.nodes, world.reservation.until) == (("n1", "n2"), NOW + 300)
        await world.end("b")
        await world.see(pod("small"))
        assert world.bound == {}
        text = last_text(world.stage, "small")
        assert text.startswith(f"0/3 nodes are available: 1 node(s) {RESERVED}, 2 Insufficient cpu.")


async def test_pods_that_end_in_time_may_use_them(now):
    async with reserving(now) as world:
        await world.see(*FULL, *BUSY, *waiting_group())
        await world.end("b", after=10)
        expected = pod("expected")
        expected["metadata"]["annotations"] = {"stowplan/expected-seconds": "250"}
        short, late = pod("short", activeDeadlineSeconds=290), pod("late", activeDeadlineSeconds=291)
        await world.see(short, late, expected)
        assert world.bound == {"short": "n2", "expected": "n2"}


async def test_pods_of_higher_priority_may_use_them(now):
    async with reserving(now) as world:
        await world.see(*FULL, *BUSY, *waiting_group())
        await world.end("b")
        await world.see(pod("urgent", priority=1))
        assert world.bound == {"urgent": "n2"}


async def test_the_group_starts_as_soon_as_it_fits_and_others_have_the_rest(now):
    async with reserving(now) as world:
        await world.see(*FULL, *BUSY, *waiting_group())
        await world.end("b")
        await world.see(pod("small"))
        await world.end("a")
        assert {world.bound.get("g0"), world.bound.get("g1")} == {"n1", "n2"}
        await world.end("c")
        assert world.bound["small"] == "n3"
        assert world.reservation is None


async def test_a_reservation_ends_when_its_time_is_over(now):
    """A pod that runs longer than it said keeps others away no longer than that."""
    async with reserving(now) as world:
        stays = [node("n1"), node("n2"), running("a", "n1", ends_in=300), running("b", "n2", ends_in=200)]
        await world.see(*stays, *waiting_group())
        await world.end("b")
        await world.see(pod("small"))
        assert world.bound == {}
        await world.end(after=NOW + 301 - now[0])
        assert world.reservation is None
        assert world.bound == {"small": "n2"}


async def test_nothing_is_kept_for_a_group_that_has_not_waited_long(now):
    async with reserving(now) as world:
        await world.see(*FULL, *BUSY, *waiting_group(waited=100))
        await world.end("b")
        await world.see(pod("small"))
        assert world.bound == {"small": "n2"}


async def test_nothing_is_kept_where_no_end_is_known(now):
    async with reserving(now) as world:
        await world.see(node("n1"), node("n2"), running("a", "n1"), running("b", "n2"), *waiting_group())
        assert world.reservation is None


async def test_a_group_that_needs_too_many_nodes_gets_none(now):
    async with reserving(now, maxNodes=1) as world:
        await world.see(*FULL, *BUSY, *waiting_group())
        assert world.reservation is None


async def test_a_deleted_group_gives_its_nodes_back(now):
    async with reserving(now) as world:
        await world.see(*FULL, *BUSY, *waiting_group())
        await world.end("b")
        await world.see(pod("small"))
        assert world.bound == {}
        await world.end("g0", "g1")
        assert world.bound == {"small": "n2"}


async def test_only_nodes_of_one_domain_are_kept(now):
    racks = [node("a1"), node("a2"), node("b1"), node("b2")]
    for each in racks:
        each["metadata"]["labels"] = {"rack": each["metadata"]["name"][0]}
    busy = [
        running("p", "a1", ends_in=100),
        running("q", "a2", ends_in=9000),
        running("r", "b1", ends_in=200),
        running("s", "b2", ends_in=300),
    ]
    topology = {"schedulingConstraints": {"topology": [{"key": "rack"}]}}
    async with reserving(now, gates=TOPOLOGY) as world:
        await world.see(*racks, *busy, *waiting_group(**topology))
        assert (world.reservation.nodes, world.reservation.until) == (("b1", "b2"), NOW + 300)


async def test_nodes_that_the_group_cannot_use_are_not_kept(now):
    tainted = node("n2", spec={"taints": [{"key": "k", "effect": "NoSchedule"}]})
    async with reserving(now) as world:
        await world.see(node("n1"), tainted, node("n3"), *BUSY, *waiting_group())
        assert (world.reservation.nodes, world.reservation.until) == (("n1", "n3"), NOW + 9000)


async def test_profiles_share_one_reservation(now):
    """Pods of each profile are attempted again when it ends."""
    async with reserving(now, names=("default-scheduler", "other")) as world:
        await world.see(*FULL, *BUSY, *waiting_group())
        await world.end("b")
        await world.see(pod("small"), pod("smaller", schedulerName="other"))
        assert world.bound == {}
        await world.end("g0", "g1")
        assert world.bound == {"small": "n2", "smaller": "n2"}


def test_arguments_are_checked():
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"plugins": PLUGINS, "pluginConfig": [{"name": PLUGIN, "args": {"afterSeconds": 0}}]}],
    }
    with pytest.raises(
        ConfigError, match="afterSeconds: Invalid value: 0: must be greater than or equal to 1"
    ):
        load(config, Registry.installed())
