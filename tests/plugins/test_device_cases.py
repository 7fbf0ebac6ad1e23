"""What is found for nodes at once, and kept, is what a fresh search on each node finds, after any history."""

from __future__ import annotations

import gc
from random import Random
from typing import Any

import numpy as np
import pytest
from device_objects import (
    DRIVER,
    a_slice,
    allocate,
    ask,
    ask_all,
    ask_first,
    claim,
    cluster_of,
    details,
    device,
    device_class,
    held,
    node,
    pod,
    selects,
    uses,
)
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from example_share import examples
from stowplan.api.kinds import object_of
from stowplan.api.pod import Pod
from stowplan.api.resource import Allocation, ResourceClaim
from stowplan.cluster import Cluster, Node
from stowplan.framework import CycleState, Handle
from stowplan.framework.plugin import FilterError
from stowplan.plugins.args import DynamicResourcesArgs
from stowplan.plugins.default.dynamic_resources import DynamicResources
from stowplan.plugins.devices.cases import Answers
from stowplan.plugins.devices.claims import Usage, demand_of
from stowplan.plugins.devices.pools import AllocationError, Inventory

Json = dict[str, Any]
NAMES = [f"n{number}" for number in range(6)]
LARGE = f'device.attributes["{DRIVER}"].size > 1'
BROKEN = f'device.attributes["{DRIVER}"].color == "a"'  # not all devices have one
CLASSES = [device_class("gpu"), device_class("large", LARGE)]


class World:
    """A cluster in which things happen, with the plugin that has seen all of it."""

    def __init__(self, random: Random) -> None:
        self.random, self.count = random, 0
        self.cluster = cluster_of(*CLASSES)
        self.plugin = DynamicResources(DynamicResourcesArgs(), Handle(self.cluster))
        self.objects: dict[str, Any] = {}
        for name in NAMES[: random.randint(2, 6)]:
            self.put(f"node {name}", a_node(random, name))
        for _ in range(random.randint(3, 10)):
            self.change_slices()

    def put(self, key: str, plain: Json) -> None:
        self.objects[key] = object_of(plain)
        self.cluster.apply(self.objects[key])

    def drop(self, key: str) -> None:
        if (found := self.objects.pop(key, None)) is not None:
            self.cluster.remove(found)

    def happen(self) -> None:
        random = self.random
        happening = random.choice((self.change_slices, self.change_node, self.change_holder, self.place))
        happening()

    def change_node(self) -> None:
        name = self.random.choice(NAMES)
        if self.random.random() < 0.3:
            self.drop(f"node {name}")
        else:
            self.put(f"node {name}", a_node(self.random, name))

    def change_slices(self) -> None:
        random = self.random
        where: Json = random.choice((
            *({"nodeName": name} for name in NAMES),
            {"allNodes": True},
            {"nodeSelector": selects(zone="a")},
        ))  # fmt: skip
        pool = random.choice(("", "", "b"))
        pool = f"{where.get('nodeName', 'z')}{pool}"
        if random.random() < 0.2:
            for part in ("a", "b"):
                self.drop(f"slice {pool}-{part}")
            return
        devices = [a_device(random, number, where) for number in range(random.randint(1, 4))]
        if random.random() < 0.1:
            devices.append(devices[0])  # whose name is not unique then
        has_counters = any("consumesCounters" in each for each in devices) and random.random() < 0.9
        generation = random.choice((1, 1, 2))
        kinds = {"pool": pool, "generation": generation, "count": 2 if has_counters else 1}
        if random.random() < 0.1:
            kinds["count"] = 3
        scope = dict(where)
        if "nodeName" not in where and random.random() < 0.3:
            devices = [each | {"nodeName": random.choice(NAMES)} for each in devices]
            scope = {"perDeviceNodeSelection": True}
        self.put(f"slice {pool}-a", a_slice(f"{pool}-a", *devices, **kinds, **scope))
        self.drop(f"slice {pool}-b")
        if has_counters:
            sets = [{"name": "set", "counters": {"x": {"value": str(random.randint(1, 4))}}}]
            more = where if "nodeName" in where else {"allNodes": True}
            self.put(f"slice {pool}-b", a_slice(f"{pool}-b", **kinds, **more, sharedCounters=sets))

    def change_holder(self) -> None:
        """A claim appears that holds devices, or one of those is gone."""
        name = f"held{self.random.randint(0, 2)}"
        if self.random.random() < 0.4:
            self.drop(f"claim {name}")
            return
        slices = [each for key, each in self.objects.items() if key.startswith("slice")]
        if slices and (devices := self.random.choice(slices).spec):
            chosen = [each for each in devices.devices if self.random.random() < 0.4]
            more: Json = {}
            if chosen and chosen[0].allow_multiple_allocations:
                chosen = chosen[:1]
                more = {"shareID": f"share-{self.random.randint(0, 1)}", "consumedCapacity": {"m": "1"}}
            names = [each.name for each in chosen]
            self.put(f"claim {name}", held(*names, name=name, pool=devices.pool.name, **more))

    def place(self) -> None:
        """A pod with new claims is placed somewhere, and sometimes not bound after all."""
        waiting = self.new_pod()
        state, _ = self.outcome(waiting)
        for name in self.cluster.nodes.names:
            if self.plugin.reserve(state, waiting, name) is None:
                if self.random.random() < 0.4:
                    self.plugin.unreserve(state, waiting, name)
                return

    def new_pod(self) -> Pod:
        self.count += 1
        names = [f"c{self.count}-{number}" for number in range(self.random.randint(1, 2))]
        for name in names:
            self.put(f"claim {name}", a_claim(self.random, name))
        return pod(*map(uses, names), name=f"p{self.count}")

    def outcome(self, waiting: Pod) -> tuple[CycleState, dict[str, Any]]:
        """By node: allocations, a reason, or an error."""
        state, nodes = CycleState(), self.cluster.nodes
        assert self.plugin.pre_filter(state, waiting, nodes) is None
        found: dict[str, Any] = {}
        try:
            for reject in self.plugin.filter_nodes(state, waiting, nodes):
                found |= {nodes.names[row]: reject.reason for row in np.flatnonzero(reject.mask).tolist()}
        except FilterError as error:
            found |= {nodes.names[row]: f"error: {text}" for row, text in error.texts.items()}
        for name in nodes.names:
            if name not in found:
                found[name] = self.plugin.reservation(state, name)
        return state, found

    def slow_outcome(self, waiting: Pod) -> dict[str, Any]:
        return {each.name: slow(self, waiting, each) for each in self.cluster.nodes}


def a_node(random: Random, name: str) -> Json:
    return node(name, {"zone": random.choice("ab")})


def a_device(random: Random, number: int, where: Json) -> Json:
    more: Json = {"size": random.randint(1, 2)}
    if random.random() < 0.7:
        more["color"] = random.choice("ab")
    if random.random() < 0.3:
        more["consumesCounters"] = [{"counterSet": "set", "counters": {"x": {"value": "1"}}}]
    if random.random() < 0.1:
        more["taints"] = [{"key": "k", "effect": "NoSchedule"}]
    if random.random() < 0.2:
        more |= {"allowMultipleAllocations": True, "capacity": {"m": "2"}}
    if "nodeName" not in where and random.random() < 0.1:
        more["bindsToNode"] = True
    return device(f"d{number}", **more)


def a_claim(random: Random, name: str) -> Json:
    requests: list[Json] = []
    for letter in "rs"[: random.choice((1, 1, 2))]:
        more: Json = {"cls": random.choice(("gpu", "gpu", "large"))}
        if random.random() < 0.15:
            more["cel"] = BROKEN
        if random.random() < 0.1:
            more["adminAccess"] = True
        if random.random() < 0.2:
            more["capacity"] = {"requests": {"m": "1"}}
        shape = random.random()
        if shape < 0.1:
            requests.append(ask_all(letter, **more))
        elif shape < 0.3:
            more.pop("adminAccess", None)
            options = {key: details(random.choice((1, 1, 2, 3)), **more) for key in "xy"}
            requests.append(ask_first(letter, **options))
        else:
            requests.append(ask(letter, random.choice((1, 1, 1, 2, 3)), **more))
    constraints = []
    if random.random() < 0.3:
        constraints = [{random.choice(("matchAttribute", "distinctAttribute")): f"{DRIVER}/color"}]
    return claim(*requests, name=name, constraints=constraints)


def slow(world: World, waiting: Pod, there: Node) -> Any:
    """One node by itself, from nothing but the objects."""
    cluster = world.cluster
    claims = [cluster.resource_claims.get(f"default/{use.name}") for use in waiting.spec.resource_claims]
    demands = [demand_of(each, lambda name, _: cluster.device_classes.get(name)) for each in claims if each]
    allocations = [each.allocation for each in cluster.resource_claims if each.allocation]
    usage = Usage.of([*allocations, *world.plugin.ledger.in_flight.values()])
    try:
        found = allocate(demands, there, Inventory(cluster.resource_slices).pools_for(there), usage)
    except AllocationError as error:
        return f"error: {error}"
    return found if isinstance(found, str) else [readable(each) for each in found]


def readable(allocation: Allocation) -> list[str]:
    return [f"{each.request}: {each.driver}/{each.pool}/{each.device}" for each in allocation.devices.results]


def devices_in(outcome: dict[str, Any]) -> dict[str, Any]:
    return {
        name: each
        if isinstance(each, str)
        else [[f"{one['request']}: {one['device']}" for one in part["results"]] for part in each]
        for name, each in outcome.items()
    }


@given(seed=st.integers(0, 2**32))
@examples(150)
def test_a_search_for_many_nodes_finds_what_one_for_each_does(seed):
    world = World(Random(seed))
    for _ in range(12):
        world.happen()
        waiting = world.new_pod()
        assert devices_in(world.outcome(waiting)[1]) == world.slow_outcome(waiting)


def fleet(*more: Json, count: int = 40, **spec: Any) -> tuple[Cluster, DynamicResources]:
    """Nodes with two devices each."""
    names = [f"n{number}" for number in range(1, count + 1)]
    slices = [a_slice(name, "d0", "d1", nodeName=name, **spec) for name in names]
    cluster = cluster_of(*CLASSES, *map(node, names), *slices, *more)
    return cluster, DynamicResources(DynamicResourcesArgs(), Handle(cluster))


@pytest.fixture
def searches(monkeypatch):
    """The names of the nodes on which devices were searched."""
    import stowplan.plugins.devices.solver as module

    found, original = [], module.search

    def search(demands: Any, there: Node, *rest: Any, **more: Any) -> Any:
        found.append(there.name)
        return original(demands, there, *rest, **more)

    monkeypatch.setattr(module, "search", search)
    return found


def filtered(plugin: DynamicResources, cluster: Cluster, waiting: Pod) -> CycleState:
    state = CycleState()
    assert plugin.pre_filter(state, waiting, cluster.nodes) is None
    assert list(plugin.filter_nodes(state, waiting, cluster.nodes)) == []
    return state


def test_nodes_that_are_alike_are_searched_once(searches):
    claims = [claim(ask(), name=f"c{number}") for number in range(4)]
    cluster, plugin = fleet(*claims)
    for number, name in enumerate(("n7", "n9", "n9")):
        waiting = pod(uses(f"c{number}"), name=f"p{number}")
        state = filtered(plugin, cluster, waiting)
        assert plugin.reserve(state, waiting, name) is None
    # On n1 for all nodes, and on n7 with one device left, which n9 was like, later.
    assert searches == ["n1", "n7"]


def test_nodes_that_filters_before_have_rejected_are_not_searched(searches):
    cluster, plugin = fleet(claim(ask()), a_slice("more", "d2", "d3", pool="more", nodeName="n3"))
    state = CycleState()
    assert plugin.pre_filter(state, pod(uses()), cluster.nodes) is None
    state.passing = np.array([name == "n3" for name in cluster.nodes.names])
    assert list(plugin.filter_nodes(state, pod(uses()), cluster.nodes)) == []
    assert searches == ["n3"]


def test_a_claim_that_is_changed_by_others_counts_at_once():
    cluster, plugin = fleet(claim(ask(count=2)), count=2)
    filtered(plugin, cluster, pod(uses()))
    holder = object_of(held("d0", "d1"))
    assert isinstance(holder, ResourceClaim)
    cluster.apply(holder)
    state = CycleState()
    plugin.pre_filter(state, pod(uses()), cluster.nodes)
    (reject,) = (each for each in plugin.filter_nodes(state, pod(uses()), cluster.nodes) if each.mask.any())
    assert reject.mask.tolist() == [True, False]
    cluster.apply(replace(holder, status=replace(holder.status, allocation=None)))
    rejects = plugin.filter_nodes(state, pod(uses()), cluster.nodes)
    assert not any(each.mask.any() for each in rejects)


def test_a_device_class_that_is_changed_counts_at_once():
    cluster, plugin = fleet(claim(ask()))
    filtered(plugin, cluster, pod(uses()))
    found = object_of(device_class("gpu", "false"))
    assert found is not None
    cluster.apply(found)
    state = CycleState()
    plugin.pre_filter(state, pod(uses()), cluster.nodes)
    rejects = [each for each in plugin.filter_nodes(state, pod(uses()), cluster.nodes) if each.mask.any()]
    assert [each.reason for each in rejects] == ["cannot allocate all claims"]
    assert rejects[0].mask.all()


def test_there_are_no_more_cases_than_are_of_use(monkeypatch):
    monkeypatch.setattr("stowplan.plugins.devices.cases.MAX_CASES", 8)
    claims = [claim(ask(), name=f"c{number}") for number in range(60)]
    names, devices = ("n1", "n2", "n3"), [f"d{number}" for number in range(6)]
    slices = [a_slice(name, *devices, nodeName=name) for name in names]
    cluster = cluster_of(*CLASSES, *map(node, names), *slices, *claims)
    plugin = DynamicResources(DynamicResourcesArgs(), Handle(cluster))
    draw, taken, numbers = Random(1), [], []
    for number in range(60):
        waiting = pod(uses(f"c{number}"), name=f"p{number}")
        state = filtered(plugin, cluster, waiting)
        assert plugin.reserve(state, waiting, names[number % 3]) is None
        taken.append(f"uid-c{number}")
        if len(taken) > 10:
            plugin.ledger.release(taken.pop(draw.randrange(len(taken))))
        column = plugin.solver.cases.column(cluster.nodes)
        assert column is not None
        numbers.append(column.max())
    # Cases are numbered as they come up; the numbers start again when there are too many.
    assert 8 < max(numbers) < 3 * 4 + 2


def test_what_is_known_of_claims_is_not_kept_without_end():
    """Anyone who may make claims can make up as many different ones as they like."""
    claims = [
        claim(*(ask(f"r{part}", 1 + number) for part in range(3)), name=f"c{number}") for number in range(100)
    ]
    everywhere = a_slice("all", *(f"d{number}" for number in range(100)), allNodes=True)
    cluster, plugin = fleet(*claims, everywhere, count=3)
    cluster.apply(object_of(node("bare")))
    before = {id(each) for each in gc.get_objects() if isinstance(each, Answers)}
    for number in range(100):
        state = CycleState()
        waiting = pod(uses(f"c{number}"), name=f"p{number}")
        assert plugin.pre_filter(state, waiting, cluster.nodes) is None
        try:
            list(plugin.filter_nodes(state, waiting, cluster.nodes))
        except FilterError:
            assert 3 * (number + 1) > 32
    known = [each for each in gc.get_objects() if isinstance(each, Answers) and id(each) not in before]
    assert 0 < len(known) <= 64
    assert sum(bool(each.tables) for each in known) <= 4
