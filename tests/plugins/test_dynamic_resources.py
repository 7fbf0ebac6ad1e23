"""DynamicResources: every extension point, and what it writes to the API."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import numpy as np
import pytest
from device_objects import (
    DRIVER,
    GPU,
    a_slice,
    ask,
    ask_first,
    claim,
    cluster_of,
    details,
    device,
    device_class,
    held,
    node,
    pod,
    read_claim,
    uses,
)
from msgspec.structs import replace

from example_share import SHARE
from stowplan.api.groups import IN_TREE
from stowplan.api.meta import Object
from stowplan.api.pod import Pod
from stowplan.api.resource import FINALIZER, ResourceClaim
from stowplan.cluster import Cluster
from stowplan.errors import StowplanError
from stowplan.framework import (
    QUEUE,
    SKIP_HINT,
    Action,
    ClusterEvent,
    CycleState,
    Decision,
    Handle,
    Resource,
    Status,
)
from stowplan.framework.plugin import FilterError
from stowplan.plugins.args import DynamicResourcesArgs
from stowplan.plugins.default.dynamic_resources import DynamicResources
from stowplan.plugins.devices.pools import MAX_ATTEMPT_COST, DeviceBudget, DeviceKind
from stowplan.scheduler.shared import WaitingPod

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z
NO_SOLUTION = ("UnschedulableAndUnresolvable", "cannot allocate all claims")
NOT_HERE = ("UnschedulableAndUnresolvable", "resourceclaim not available on the node")
TEMPLATE = {"name": "t", "resourceClaimTemplateName": "template"}
OWNED = {"ownerReferences": [{"kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}]}
TWO_NODES = (GPU, node("n1"), node("n2"), a_slice("s1", "d0", "d1"), a_slice("s2", "d0", nodeName="n2"))


class Server:
    """An API server of claims: versions grow, stale writes are refused; the watch may be held up."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.calls, self.version = cluster, [], 100
        self.claims: dict[str, ResourceClaim] = {each.key: each for each in cluster.resource_claims}
        self.is_watched = True
        self.is_slow = False
        self.rejects_status = False
        self.patches: list[dict[str, Any]] = []

    async def update(self, item: Object) -> Object:
        return self.store("update", item)

    async def update_status(self, item: Object) -> Object:
        if self.is_slow:  # others run in the meantime
            for _ in range(10):
                await asyncio.sleep(0)
        if self.rejects_status:
            raise StowplanError("not today")
        return self.store("update status", item)

    async def create(self, item: Object) -> Object:
        name = f"{item.metadata.generate_name}x1"
        metadata = replace(item.metadata, name=name, uid=f"uid-{name}")
        self.claims[f"{metadata.namespace}/{name}"] = replace(item, metadata=metadata)
        return self.store("create", self.claims[f"{metadata.namespace}/{name}"])

    async def delete(self, item: Object) -> None:
        self.calls.append(f"delete {item.name}")
        del self.claims[item.key]
        self.cluster.remove(item)

    async def create_binding(self, pod: Pod, node_name: str) -> None:
        self.calls.append(f"bind {pod.name}")

    async def patch_pod_status(self, pod: Pod, patch: dict[str, Any]) -> None:
        self.calls.append(f"patch {pod.name}")
        self.patches.append(patch)

    def store(self, verb: str, item: Object) -> Object:
        assert isinstance(item, ResourceClaim)
        self.calls.append(f"{verb} {item.name}")
        if self.claims[item.key].metadata.resource_version != item.metadata.resource_version:
            raise StowplanError(f"{item.key} has been modified")
        self.version += 1
        written = replace(item, metadata=replace(item.metadata, resource_version=str(self.version)))
        self.claims[item.key] = written
        if self.is_watched:
            self.cluster.apply(written)
        return written


class World:
    """A cluster with an API server, a clock, and the plugin in it."""

    def __init__(self, *objects: dict[str, Any], **args: float) -> None:
        self.cluster = cluster_of(*objects)
        self.server, self.now = Server(self.cluster), NOW
        self.activated: list[str] = []
        self.handle = Handle(
            self.cluster,
            now=lambda: self.now,
            api=self.server,
            activate=lambda pods: self.activated.extend(each.name for each in pods),
        )
        self.plugin = DynamicResources(DynamicResourcesArgs(**args), self.handle)
        self.plugin.writer.poll_seconds = 0.0

    def filtered(self, pod: Pod) -> tuple[CycleState, Any]:
        """The state and what the plugin said: a code and reasons for the pod, or for each refused node."""
        state = CycleState()
        status = self.plugin.pre_filter(state, pod, self.cluster.nodes)
        if status is not None:
            return state, said(status)
        found: dict[str, tuple[str, ...]] = {}
        names = self.cluster.nodes.names
        try:
            for reject in self.plugin.filter_nodes(state, pod, self.cluster.nodes):
                assert reject.unresolvable is True
                for row in np.flatnonzero(reject.mask).tolist():
                    assert names[row] not in found
                    found[names[row]] = "UnschedulableAndUnresolvable", reject.reason
        except FilterError as error:
            found |= {names[row]: ("Error", text) for row, text in error.texts.items()}
        return state, found

    def placed(self, pod: Pod, node_name: str = "n1") -> CycleState:
        state, refused = self.filtered(pod)
        assert node_name not in refused
        assert self.plugin.reserve(state, pod, node_name) is None
        return state

    def after(self, state: CycleState, pod: Pod) -> Status:
        return self.plugin.post_filter(state, pod, Decision(pod, self.cluster.nodes))

    async def settle(self) -> None:
        """Lets the plugin carry out what it has put off."""
        task = asyncio.create_task(self.plugin.run())
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()

    def known(self, name: str) -> ResourceClaim:
        return self.server.claims[f"default/{name}"]


def said(status: Status) -> tuple[str, ...]:
    return status.code.wire_name, *status.reasons


@pytest.mark.parametrize(
    ("use", "statuses", "claims", "text"),
    [
        pytest.param(uses(), [], [claim()], None, id="a claim that is there"),
        pytest.param(uses(), [], [], 'could not find ResourceClaim "default/c"', id="one that is not"),
        pytest.param(
            uses(),
            [],
            [claim(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})],
            'resourceclaim "c" is being deleted',
            id="one that is going",
        ),
        pytest.param(
            TEMPLATE,
            [],
            [],
            'pod "default/p": ResourceClaim not created yet',
            id="a template without claim yet",
        ),
        pytest.param(
            TEMPLATE,
            [{"name": "t", "resourceClaimName": "c"}],
            [claim(metadata=OWNED)],
            None,
            id="a template with a claim",
        ),
        pytest.param(TEMPLATE, [{"name": "t"}], [], None, id="a template that needs no claim"),
        pytest.param(
            TEMPLATE,
            [{"name": "t", "resourceClaimName": "c"}],
            [claim()],
            "ResourceClaim default/c was not created for Pod default/p (Pod is not owner)",
            id="a claim made for another pod",
        ),
        pytest.param(
            TEMPLATE,
            [{"name": "t", "resourceClaimName": "c"}],
            [],
            'could not find ResourceClaim "default/c"',
            id="a claim made from a template that is gone",
        ),
    ],
)
def test_claims_of_a_pod(use, statuses, claims, text):
    world = World(*claims)
    waiting = pod(use, status={"resourceClaimStatuses": statuses})
    expected = None if text is None else ("UnschedulableAndUnresolvable", text)
    found = world.plugin.pre_enqueue(waiting)
    assert (found and said(found)) == expected
    if text is not None:
        assert world.filtered(waiting)[1] == expected


@pytest.mark.parametrize(
    ("claims", "uses_", "expected"),
    [
        pytest.param([], [], ("Skip",), id="no claims"),
        pytest.param([claim(ask())], [uses()], {}, id="a claim to allocate"),
        pytest.param(
            [claim(ask(cls="tpu"))],
            [uses()],
            ("UnschedulableAndUnresolvable", "request r: device class tpu does not exist"),
            id="a class that does not exist",
        ),
        pytest.param(
            [claim(ask_first("r", x=details(), y=details(cls="tpu")))],
            [uses()],
            ("UnschedulableAndUnresolvable", "request r/y: device class tpu does not exist"),
            id="the class of an alternative",
        ),
        pytest.param(
            [claim({"name": "r"})],
            [uses()],
            ("UnschedulableAndUnresolvable", "resource claim default/c, request r: unknown request type"),
            id="a request of the future",
        ),
        pytest.param(
            [claim(status={"allocation": {"nodeSelector": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "a b", "operator": "Exists"}]}]}}})],
            [uses()],
            ("Error", 'key: Invalid value: "a b": name part must consist of alphanumeric characters'),
            id="an allocation for nodes that cannot be told",
        ),
    ],
)  # fmt: skip
def test_pre_filter(claims, uses_, expected):
    assert World(*TWO_NODES, *claims).filtered(pod(*uses_))[1] == expected


def on_n2(**more: Any) -> dict[str, Any]:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]
    results = [{"request": "r", "driver": DRIVER, "pool": "n2", "device": "d0", **more}]
    return {"allocation": {"nodeSelector": {"nodeSelectorTerms": terms}, "devices": {"results": results}}}


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param([claim(ask())], {}, id="devices on both nodes"),
        pytest.param([claim(ask(count=2))], {"n2": NO_SOLUTION}, id="enough devices on one node"),
        pytest.param([claim(ask()), held("d0", "d1")], {"n1": NO_SOLUTION}, id="devices that others hold"),
        pytest.param([claim(ask(), status=on_n2())], {"n1": NOT_HERE}, id="allocated on one node"),
        pytest.param([claim(ask(), status={"allocation": {}})], {}, id="allocated for all nodes"),
        pytest.param(
            [claim(ask()), a_slice("s3", "d0", "d0", pool="bad"), held("d0", "d1")],
            {"n1": ("UnschedulableAndUnresolvable", "invalid resource pools were encountered")},
            id="an invalid pool and nothing else",
        ),
        pytest.param(
            [claim(ask(cel="device.nothing"))],
            dict.fromkeys(
                ("n1", "n2"),
                ("Error", "claim default/c: selector #0: CEL compile error: undefined field 'nothing'"),
            ),
            id="a selector that makes no sense",
        ),
    ],
)
def test_filter(objects, expected):
    assert World(*TWO_NODES, *objects).filtered(pod(uses()))[1] == expected


def test_claims_that_exclude_each_other():
    objects = [claim(ask(), status=on_n2()), claim(ask(count=2), name="c2")]
    found = World(*TWO_NODES, *objects).filtered(pod(uses(), uses("c2")))[1]
    assert found == {"n1": NOT_HERE, "n2": NO_SOLUTION}


CONDITIONS = {"bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"]}


def reported(*conditions: tuple[str, str], age: str = "2025-12-31T23:59:00Z", **more: Any) -> dict[str, Any]:
    """The status of a claim on n2 whose driver reports these conditions."""
    status = on_n2(**CONDITIONS)
    status["allocation"]["allocationTimestamp"] = age
    listed = [{"type": kind, "status": value} for kind, value in conditions]
    of = {"driver": DRIVER, "pool": "n2", "device": "d0", "conditions": listed}
    return status | {"devices": [of], **more}


OLD = "2025-12-31T23:00:00Z"


@pytest.mark.parametrize(
    ("status", "fits"),
    [
        pytest.param(reported(("Ready", "True")), True, id="ready"),
        pytest.param(reported(("Ready", "True"), age=OLD), True, id="ready for long"),
        pytest.param(reported(), True, id="not ready yet"),
        pytest.param(reported(("Ready", "False"), age=OLD), False, id="not ready for too long"),
        pytest.param(reported(("Broken", "True")), False, id="broken"),
        pytest.param(reported(("Ready", "True"), ("Broken", "True")), False, id="ready and broken"),
        pytest.param(reported(("Broken", "False")), True, id="not broken"),
    ],
)
def test_binding_conditions_of_an_allocated_claim(status, fits):
    found = World(*TWO_NODES, claim(ask(), status=status)).filtered(pod(uses()))[1]
    assert ("n2" not in found) is fits


@pytest.mark.parametrize(
    ("status", "text", "calls"),
    [
        pytest.param({}, "still not schedulable", [], id="a claim that cannot be allocated"),
        pytest.param(
            on_n2(), "deallocation of ResourceClaim completed", ["update status c"], id="a claim nobody uses"
        ),
        pytest.param(
            on_n2() | {"reservedFor": [{"resource": "pods", "name": "p", "uid": "uid-p"}]},
            "deallocation of ResourceClaim completed",
            ["update status c"],
            id="a claim the pod alone uses",
        ),
        pytest.param(
            on_n2() | {"reservedFor": [{"resource": "pods", "name": "q", "uid": "uid-q"}]},
            "still not schedulable",
            [],
            id="a claim another pod uses",
        ),
    ],
)
async def test_post_filter(status, text, calls):
    world = World(GPU, node("n1"), claim(ask(), status=status))
    state, refused = world.filtered(pod(uses()))
    assert refused
    assert said(world.after(state, pod(uses()))) == ("Unschedulable", text)
    await world.settle()
    assert world.server.calls == calls
    if calls:
        assert world.known("c").status == read_claim(claim()).status


def test_post_filter_without_claims():
    world = World(node())
    state, _ = world.filtered(pod())
    assert said(world.after(state, pod())) == ("Unschedulable", "no new claims to deallocate")
    refused, _ = world.filtered(pod(uses("missing")))
    assert said(world.after(refused, pod())) == ("Unschedulable", "no new claims to deallocate")
    assert said(world.after(CycleState(), pod())) == ("Error", "not found")


RED = f'device.attributes["{DRIVER}"].color == "red"'


@pytest.mark.parametrize(
    ("colors", "expected"),
    [
        pytest.param(["red", "blue"], [100, 75], id="the first alternative is better than the third"),
        pytest.param(["blue", "blue"], [100, 100], id="the same everywhere"),
    ],
)
def test_scores_by_alternative(colors, expected):
    alternatives = {"x": details(cel=RED), "y": details(count=3), "z": details()}
    slices = [
        a_slice(f"s{i}", device("d0", color=color), nodeName=f"n{i}")
        for i, color in enumerate(colors, start=1)
    ]
    world = World(GPU, node("n1"), node("n2"), *slices, claim(ask_first("r", **alternatives)))
    waiting = pod(uses())
    state, refused = world.filtered(waiting)
    assert refused == {}
    scores = world.plugin.score_nodes(state, waiting, world.cluster.nodes)
    assert world.plugin.normalize_score(state, waiting, scores).tolist() == expected


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param([claim(ask())], id="a plain request"),
        pytest.param([claim(ask(), status={"allocation": {}})], id="a claim that is allocated"),
        pytest.param(
            [
                claim(
                    ask_first("r", x=details(), y=details()),
                    status={"allocation": {"devices": {"results": [{"request": "r/x"}]}}},
                )
            ],
            id="the better alternative, but allocated already",
        ),
    ],
)
def test_without_alternatives_all_nodes_are_worth_the_same(objects):
    world = World(*TWO_NODES, *objects)
    state, _ = world.filtered(pod(uses()))
    assert not np.any(world.plugin.score_nodes(state, pod(uses()), world.cluster.nodes))


def test_pods_without_claims_are_not_scored():
    world = World(*TWO_NODES)
    state, _ = world.filtered(pod())
    assert state.skipped_scores == {"DynamicResources"}


def test_what_is_reserved_is_not_given_to_others():
    world = World(GPU, node(), a_slice("s", "d0", "d1"), claim(ask(count=2)), claim(ask(), name="other"))
    first, second = pod(uses(), name="first"), pod(uses("other"), name="second")
    state = world.placed(first)
    assert world.filtered(second)[1] == {"n1": NO_SOLUTION}
    assert world.filtered(first)[1] == (
        "UnschedulableAndUnresolvable",
        "resource claim default/c is in the process of being allocated",
    )
    world.plugin.unreserve(state, first, "n1")
    assert world.filtered(second)[1] == {}


@pytest.mark.parametrize("is_written", [True, False])
async def test_a_pod_is_held_back_while_its_claim_is_allocated_for_another(is_written):
    world = World(GPU, node(), a_slice("s", "d0"), claim(ask()))
    first, second = pod(uses(), name="first"), pod(uses(), name="second")
    assert world.plugin.pre_enqueue(second) is None
    state = world.placed(first)
    assert said(world.plugin.pre_enqueue(second)) == (
        "UnschedulableAndUnresolvable",
        "resource claim default/c is in the process of being allocated",
    )
    assert world.plugin.awaits_write(second)
    if is_written:
        assert await world.plugin.pre_bind(state, first, "n1") is None
    else:
        world.plugin.unreserve(state, first, "n1")
    assert world.activated == ["second"]
    assert world.plugin.pre_enqueue(second) is None
    assert not world.plugin.awaits_write(second)


def test_members_of_a_group_are_not_held_back():
    """They may share an allocation before it is written."""
    world = World(GPU, node(), a_slice("s", "d0"), claim(ask()))
    world.cluster.groups.families = frozenset({IN_TREE})
    first, second = (
        pod(uses(), name=name, spec={"schedulingGroup": {"podGroupName": "g"}})
        for name in ("first", "second")
    )
    world.placed(first)
    assert world.plugin.pre_enqueue(second) is None
    assert not world.plugin.awaits_write(second)
    assert world.filtered(second)[1] == {}


CLAIM_VOLUME = {"name": "v", "persistentVolumeClaim": {"claimName": "disk"}}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"schedulingGroup": {"podGroupName": "g"}}, id="a member of a group"),
        pytest.param({"volumes": [CLAIM_VOLUME]}, id="with a volume that may have to be bound first"),
        pytest.param({"volumes": [{"name": "v", "ephemeral": {}}]}, id="with an ephemeral volume"),
    ],
)
def test_nobody_waits_for_a_pod_that_may_take_minutes(spec):
    """As in kube-scheduler, the attempt says what the others wait for."""
    world = World(GPU, node(), a_slice("s", "d0"), claim(ask()))
    world.cluster.groups.families = frozenset({IN_TREE})
    world.placed(pod(uses(), name="first", spec=spec))
    second = pod(uses(), name="second")
    assert world.plugin.pre_enqueue(second) is None
    assert not world.plugin.awaits_write(second)
    assert world.filtered(second)[1] == (
        "UnschedulableAndUnresolvable",
        "resource claim default/c is in the process of being allocated",
    )


def test_a_volume_without_claim_takes_no_time():
    world = World(GPU, node(), a_slice("s", "d0"), claim(ask()))
    world.placed(pod(uses(), name="first", spec={"volumes": [{"name": "v", "emptyDir": {}}]}))
    assert world.plugin.awaits_write(pod(uses(), name="second"))


@pytest.mark.parametrize("until", ["it is written", "it is deleted"])
async def test_nobody_waits_for_a_claim_that_could_not_be_written(until):
    """Each failure would otherwise wake all pods that wait, for one of them to fail next."""
    world = World(GPU, node(), a_slice("s", "d0"), claim(ask()))
    first, second, third = (pod(uses(), name=name) for name in ("first", "second", "third"))
    state = world.placed(first)
    world.server.rejects_status = True
    assert said(await world.plugin.pre_bind(state, first, "n1")) == ("Error", "not today")
    world.plugin.unreserve(state, first, "n1")
    state = world.placed(second)
    assert world.plugin.pre_enqueue(third) is None
    assert not world.plugin.awaits_write(third)
    world.server.rejects_status = False
    if until == "it is written":
        assert await world.plugin.pre_bind(state, second, "n1") is None
        world.plugin.unreserve(state, second, "n1")
    else:
        world.plugin.unreserve(state, second, "n1")
        world.cluster.remove(world.known("c"))
    again = read_claim(claim(ask(), metadata={"resourceVersion": "999"}))
    world.server.claims[again.key] = again
    world.cluster.apply(again)
    world.placed(first)
    assert world.plugin.awaits_write(third)


def test_an_attempt_says_what_is_wrong_with_a_claim():
    assert not World(GPU, node()).plugin.awaits_write(pod(uses("missing")))


def test_profiles_of_one_cluster_know_of_each_other():
    world = World(GPU, node(), a_slice("s", "d0"), claim(ask()), claim(ask(), name="other"))
    world.placed(pod(uses()))
    world.plugin = DynamicResources(DynamicResourcesArgs(), world.handle)
    assert world.filtered(pod(uses("other"), name="q"))[1] == {"n1": NO_SOLUTION}


async def test_pre_bind_writes_finalizer_allocation_and_reservation():
    world = World(GPU, node(), a_slice("s", "d0"), claim(ask()))
    state = world.placed(pod(uses()))
    assert await world.plugin.pre_bind(state, pod(uses()), "n1") is None
    assert world.server.calls == ["update c", "update status c"]
    written = world.known("c")
    assert written.metadata.finalizers == (FINALIZER,)
    assert [each.device for each in written.allocation.devices.results] == ["d0"]
    assert written.allocation.allocation_timestamp == "2026-01-01T00:00:00Z"
    assert [(each.resource, each.name, each.uid) for each in written.status.reserved_for] == [
        ("pods", "p", "uid-p")
    ]
    assert not world.plugin.ledger.in_flight


async def test_pre_bind_of_an_allocated_claim_only_reserves_it():
    world = World(*TWO_NODES, claim(ask(), status=on_n2()))
    state = world.placed(pod(uses()), "n2")
    assert await world.plugin.pre_bind(state, pod(uses()), "n2") is None
    assert world.server.calls == ["update status c"]
    again = world.placed(pod(uses()), "n2")
    assert await world.plugin.pre_bind(again, pod(uses()), "n2") is None
    assert world.server.calls == ["update status c"]


async def test_pods_that_share_a_claim_are_named_in_one_write():
    world = World(*TWO_NODES, claim(ask(), status=on_n2()))
    world.server.is_watched, world.server.is_slow = False, True
    pods = [pod(uses(), name=f"p{number}") for number in range(5)]
    states = [world.placed(each, "n2") for each in pods]
    bindings = [world.plugin.pre_bind(state, each, "n2") for state, each in zip(states, pods, strict=True)]
    assert await asyncio.gather(*bindings) == [None] * 5
    assert world.server.calls == ["update status c"]
    assert sorted(each.name for each in world.known("c").status.reserved_for) == [each.name for each in pods]
    world.plugin.unreserve(states[3], pods[3], "n2")  # which was named by another
    await world.settle()
    assert not world.known("c").is_reserved_for("uid-p3")


async def test_pods_that_come_during_a_write_wait_for_it():
    world = World(*TWO_NODES, claim(ask(), status=on_n2()))
    world.server.is_watched, world.server.is_slow = False, True
    pods = [pod(uses(), name=f"p{number}") for number in range(3)]
    state = world.placed(pods[0], "n2")
    first = asyncio.create_task(world.plugin.pre_bind(state, pods[0], "n2"))
    await asyncio.sleep(0)
    others = [world.plugin.pre_bind(world.placed(each, "n2"), each, "n2") for each in pods[1:]]
    assert await asyncio.gather(first, *others) == [None] * 3
    assert world.server.calls == ["update status c"] * 2
    assert len(world.known("c").status.reserved_for) == 3


@pytest.mark.parametrize("why", ["it waits on permit", "it is not bound after all"])
async def test_a_pod_that_may_not_be_bound_is_not_named_by_others(why):
    world = World(*TWO_NODES, claim(ask(), status=on_n2()))
    first, second = pod(uses(), name="first"), pod(uses(), name="second")
    states = [world.placed(each, "n2") for each in (first, second)]
    if why == "it waits on permit":
        world.handle.waiting_pods = [WaitingPod(second, {"Holding": 60.0})]
    else:
        world.plugin.unreserve(states[1], second, "n2")
    assert await world.plugin.pre_bind(states[0], first, "n2") is None
    assert [each.name for each in world.known("c").status.reserved_for] == ["first"]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        pytest.param({}, "claim default/c got deallocated in the meantime", id="deallocated"),
        pytest.param(
            on_n2() | {"allocation": {"nodeSelector": None}},
            "claim default/c got allocated elsewhere in the meantime",
            id="allocated elsewhere",
        ),
        pytest.param(
            {"allocation": {"nodeSelector": None}, "reservedFor": [{"resource": "pods", "uid": "uid-p"}]},
            "claim default/c got allocated elsewhere in the meantime",
            id="allocated elsewhere, where it names the pod",
        ),
    ],
)
async def test_an_allocation_that_is_gone_when_the_pod_is_bound(status, text):
    world = World(*TWO_NODES, claim(ask(), status=on_n2()))
    state = world.placed(pod(uses()), "n2")
    changed = read_claim(claim(ask(), metadata={"resourceVersion": "5"}, status=status))
    world.server.claims["default/c"] = changed
    world.cluster.apply(changed)
    assert said(await world.plugin.pre_bind(state, pod(uses()), "n2")) == ("Error", text)
    assert world.server.calls == []


async def test_a_claim_that_was_made_again_is_another_one():
    world = World(*TWO_NODES, claim(ask(), status=on_n2()))
    state = world.placed(pod(uses()), "n2")
    status = on_n2() | {"reservedFor": [{"resource": "pods", "name": "p", "uid": "uid-p"}]}
    world.cluster.apply(read_claim(claim(ask(), metadata={"uid": "other"}, status=status)))
    assert said(await world.plugin.pre_bind(state, pod(uses()), "n2")) == (
        "Error",
        "claim default/c got deleted in the meantime",
    )


async def test_a_pod_is_not_bound_where_its_claim_was_allocated_before():
    """Whoever writes a claim names only pods that have chosen a node for the same allocation."""
    world = World(*TWO_NODES, claim(ask(), status=on_n2()))
    slow, away, third = (pod(uses(), name=name) for name in ("slow", "away", "third"))
    early = world.placed(slow, "n2")  # an earlier pre_bind takes its time
    world.after(world.filtered(away)[0], away)  # n2 has no room for it
    await world.settle()
    assert world.known("c").allocation is None
    assert await world.plugin.pre_bind(world.placed(third), third, "n1") is None
    assert [each.name for each in world.known("c").status.reserved_for] == ["third"]
    assert said(await world.plugin.pre_bind(early, slow, "n2")) == (
        "Error",
        "claim default/c got allocated elsewhere in the meantime",
    )


async def test_pods_are_not_named_in_a_claim_that_was_made_again():
    world = World(*TWO_NODES, claim(ask(), status=on_n2()))
    early = pod(uses(), name="early")
    world.placed(early, "n2")
    again = read_claim(claim(ask(), metadata={"uid": "other", "resourceVersion": "50"}, status=on_n2()))
    world.server.claims[again.key] = again
    world.cluster.apply(again)
    assert await world.plugin.pre_bind(world.placed(pod(uses()), "n2"), pod(uses()), "n2") is None
    assert [each.name for each in world.known("c").status.reserved_for] == ["p"]


async def test_a_pod_that_is_unreserved_while_another_names_it_is_taken_out():
    world = World(*TWO_NODES, claim(ask(), status=on_n2()))
    world.server.is_slow = True
    first, second = pod(uses(), name="first"), pod(uses(), name="second")
    states = [world.placed(each, "n2") for each in (first, second)]
    writing = asyncio.create_task(world.plugin.pre_bind(states[0], first, "n2"))
    await asyncio.sleep(0)
    world.plugin.unreserve(states[1], second, "n2")
    assert await writing is None
    await world.settle()
    assert [each.name for each in world.known("c").status.reserved_for] == ["first"]


async def test_a_pod_that_no_claim_names_need_not_be_taken_out():
    world = World(*TWO_NODES, claim(ask(), status=on_n2()))
    world.server.is_slow = True
    first, second = pod(uses(), name="first"), pod(uses(), name="second")
    state = world.placed(first, "n2")
    writing = asyncio.create_task(world.plugin.pre_bind(state, first, "n2"))
    await asyncio.sleep(0)
    world.plugin.unreserve(world.placed(second, "n2"), second, "n2")
    assert await writing is None
    await world.settle()
    assert world.server.calls == ["update status c"]


async def test_a_claim_allocated_without_a_timestamp_is_reserved_as_it_is():
    """kube-scheduler adds a timestamp, which the API server refuses: an allocation does not change."""
    world = World(*TWO_NODES, claim(ask(), status=on_n2()))
    before = world.cluster.resource_claims.get("default/c").allocation
    assert before.allocation_timestamp is None
    state = world.placed(pod(uses()), "n2")
    assert await world.plugin.pre_bind(state, pod(uses()), "n2") is None
    written = world.server.claims["default/c"]
    assert (written.allocation, written.is_reserved_for("uid-p")) == (before, True)


async def test_pods_without_claims_have_nothing_to_bind():
    world = World(*TWO_NODES)
    state = world.filtered(pod())[0]
    assert world.plugin.reserve(state, pod(), "n1") is None
    assert await world.plugin.pre_bind(state, pod(), "n1") is None
    world.plugin.unreserve(state, pod(), "n1")
    assert world.server.calls == []


async def test_what_was_written_counts_before_the_watch_shows_it():
    world = World(GPU, node(), a_slice("s", "d0"), claim(ask()), claim(ask(), name="other"))
    world.server.is_watched = False
    state = world.placed(pod(uses()))
    assert await world.plugin.pre_bind(state, pod(uses()), "n1") is None
    other = pod(uses("other"), name="other")
    assert world.filtered(other)[1] == {"n1": NO_SOLUTION}
    assert world.filtered(pod(uses(), name="sharing"))[1] == {}
    world.cluster.apply(world.known("c"))
    assert world.filtered(other)[1] == {"n1": NO_SOLUTION}
    world.cluster.apply(read_claim(claim(ask(), metadata={"resourceVersion": "999"})))
    assert world.filtered(other)[1] == {}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        pytest.param(
            claim(ask(), metadata={"resourceVersion": "5", "labels": {"a": "b"}}), None, id="a label"
        ),
        pytest.param(
            claim(ask(), metadata={"resourceVersion": "5"}, status={"allocation": {}}),
            ("Error", "claim default/c got allocated elsewhere in the meantime"),
            id="an allocation",
        ),
        pytest.param(
            claim(ask(), metadata={"resourceVersion": "5", "deletionTimestamp": "2026-01-01T00:00:00Z"}),
            ("Error", "claim default/c got deleted in the meantime"),
            id="its deletion",
        ),
    ],
)
async def test_a_claim_that_changed_in_the_meantime(changed, expected):
    world = World(GPU, node(), a_slice("s", "d0"), claim(ask()))
    state = world.placed(pod(uses()))
    world.server.claims["default/c"] = read_claim(changed)
    world.cluster.apply(read_claim(changed))
    found = await world.plugin.pre_bind(state, pod(uses()), "n1")
    assert (found and said(found)) == expected
    if expected is None:
        assert world.known("c").metadata.labels == {"a": "b"}
        assert world.known("c").allocation is not None


async def test_a_write_that_is_refused_fails_the_binding():
    world = World(GPU, node(), a_slice("s", "d0"), claim(ask()))
    state = world.placed(pod(uses()))
    world.server.claims["default/c"] = read_claim(claim(metadata={"resourceVersion": "5"}))
    found = await world.plugin.pre_bind(state, pod(uses()), "n1")
    assert said(found) == ("Error", "default/c has been modified")


async def test_unreserve_takes_back_what_was_written():
    world = World(GPU, node(), a_slice("s", "d0"), claim(ask()))
    state = world.placed(pod(uses()))
    assert await world.plugin.pre_bind(state, pod(uses()), "n1") is None
    world.plugin.unreserve(state, pod(uses()), "n1")
    await world.settle()
    assert world.known("c").status.reserved_for == ()
    assert world.known("c").allocation is not None


@pytest.mark.parametrize("when", ["before it is bound", "while it is bound", "after it is bound"])
async def test_a_pod_that_comes_back_is_named(when):
    """What unreserve takes back is written later, when the pod may have a node again."""
    world = World(*TWO_NODES, claim(ask(), status=on_n2()))
    state = world.placed(pod(uses()), "n2")
    assert await world.plugin.pre_bind(state, pod(uses()), "n2") is None
    world.plugin.unreserve(state, pod(uses()), "n2")
    if when == "while it is bound":
        world.server.is_slow = True
        writing = asyncio.create_task(world.settle())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    again = world.placed(pod(uses()), "n2")
    if when == "before it is bound":
        await world.settle()
    assert await world.plugin.pre_bind(again, pod(uses()), "n2") is None
    await (writing if when == "while it is bound" else world.settle())
    assert world.known("c").is_reserved_for("uid-p")


WAITING = a_slice("s", device("d0", **CONDITIONS))


@pytest.mark.parametrize(
    ("condition", "expected", "outcome"),
    [
        pytest.param("Ready", None, "success", id="ready"),
        pytest.param(
            "Broken", ("Error", "claim default/c: a device cannot be bound"), "failure", id="broken"
        ),
        pytest.param(None, ("Error", "device binding timeout"), "timeout", id="nothing happens"),
    ],
)
async def test_pre_bind_waits_for_binding_conditions(condition, expected, outcome):
    world, waits = World(GPU, node(), WAITING, claim(ask()), binding_timeout=1.0), []
    world.plugin.writer.poll_seconds = 0.01
    world.plugin.handle.record_device_wait = lambda *told: waits.append(told)
    state = world.placed(pod(uses()))
    binding = asyncio.create_task(world.plugin.pre_bind(state, pod(uses()), "n1"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not binding.done()
    world.now += 3  # the time of day, which says nothing about how long it has waited
    if condition is not None:
        written = world.known("c")
        of = {"driver": DRIVER, "pool": "n1", "device": "d0"}
        status = {"devices": [of | {"conditions": [{"type": condition, "status": "True"}]}]}
        metadata = replace(written.metadata, resource_version="999")
        devices = read_claim(claim(status=status)).status.devices
        world.cluster.apply(
            replace(written, metadata=metadata, status=replace(written.status, devices=devices))
        )
    found = await binding
    assert (found and said(found)) == expected
    assert waits == [(DRIVER, "default-scheduler", outcome, world.now - NOW)]


async def test_nobody_is_told_of_devices_that_need_no_waiting():
    world, waits = World(GPU, node(), a_slice("s", "d0"), claim(ask())), []
    world.plugin.handle.record_device_wait = lambda *told: waits.append(told)
    state = world.placed(pod(uses()))
    assert await world.plugin.pre_bind(state, pod(uses()), "n1") is None
    assert waits == []


def hard_search(filter_timeout):
    """Two nodes with devices whose counters make the search try very many combinations."""
    devices = [
        device(f"d{i}", consumesCounters=[{"counterSet": "set", "counters": {"x": {"value": str(100 + i)}}}])
        for i in range(24)
    ]
    counters = [{"name": "set", "counters": {"x": {"value": "1200"}}}]
    slices = [
        part
        for name in ("n1", "n2")
        for part in (
            a_slice(f"{name}-a", *devices, nodeName=name, count=2),
            a_slice(f"{name}-b", nodeName=name, count=2, sharedCounters=counters),
        )
    ]
    return World(GPU, node("n1"), node("n2"), *slices, claim(ask(count=12)), filter_timeout=filter_timeout)


def test_a_search_is_given_up_after_the_filter_timeout():
    """And no other is begun for the pod, also on other nodes: nobody else is served meanwhile."""
    world = hard_search(filter_timeout=2.0)
    ticks = itertools.count()
    world.handle.now = lambda: NOW + next(ticks)
    found = world.filtered(pod(uses()))[1]
    late = ("Error", "node n1: timed out trying to allocate devices")
    assert found == {"n1": late, "n2": late}
    assert next(ticks) < 10


def test_searches_of_one_attempt_are_given_up_in_time_to_renew_the_lease(monkeypatch):
    if SHARE < 1:
        monkeypatch.setattr("stowplan.plugins.devices.solver.MAX_SEARCH_SECONDS", 0.3)
    world = hard_search(filter_timeout=0.0)  # no limit of its own
    began = time.thread_time()
    late = ("Error", "node n1: timed out trying to allocate devices")
    assert world.filtered(pod(uses()))[1] == {"n1": late, "n2": late}
    assert time.thread_time() - began < 9


def test_devices_that_are_alike_are_not_all_tried():
    """kube-scheduler tries all combinations until its limit of ten seconds; that is an error then."""
    alike = [device(f"d{i}", index=i, color=str(i % 2)) for i in range(40)]
    same_color = [{"matchAttribute": f"{DRIVER}/color"}]
    hard = claim(ask("a", 11), ask("b", 10), constraints=same_color)
    world = World(GPU, node(), a_slice("s", *alike), hard)
    began = time.monotonic()
    assert world.filtered(pod(uses()))[1] == {"n1": NO_SOLUTION}
    assert time.monotonic() - began < 5


def test_a_request_for_more_devices_than_have_an_attribute_in_common():
    devices = [device(f"d{i}", color=str(i % 15)) for i in range(30)]
    constraints = [{"matchAttribute": f"{DRIVER}/color", "requests": ["b"]}]
    hard = claim(ask("a", 14), ask("b", 3), constraints=constraints)
    world = World(GPU, node(), a_slice("s", *devices), hard)
    began = time.monotonic()
    assert world.filtered(pod(uses()))[1] == {"n1": NO_SOLUTION}
    assert time.monotonic() - began < 5


GPU_FOR = device_class("gpu", extendedResourceName="x.io/gpu")
EXTENDED = (GPU_FOR, a_slice("s", "d0", "d1"))
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"


@pytest.mark.parametrize(
    ("objects", "requests", "expected"),
    [
        pytest.param([*EXTENDED, node()], {"x.io/gpu": "2"}, {}, id="from devices"),
        pytest.param([*EXTENDED, node()], {IMPLICIT: "2"}, {}, id="from devices, by the class"),
        pytest.param([*EXTENDED, node()], {"x.io/gpu": "3"}, {"n1": NO_SOLUTION}, id="more than there are"),
        pytest.param([*EXTENDED, node()], {"x.io/gpu": "0"}, ("Skip",), id="none"),
        pytest.param([*EXTENDED, node()], {"x.io/tpu": "1"}, ("Skip",), id="a resource without class"),
        pytest.param(
            [*EXTENDED, node(**{"x.io/gpu": "8"})],
            {"x.io/gpu": "3"},
            {},
            id="from the node, which has it itself",
        ),
        pytest.param(
            [*EXTENDED, node(**{"x.io/gpu": "0"})], {"x.io/gpu": "2"}, {}, id="the node has had it once"
        ),
        pytest.param(
            [*EXTENDED, node()],
            {"x.io/gpu": "1", "x.io/tpu": "1"},
            {"n1": ("UnschedulableAndUnresolvable", "cannot fit resource")},
            id="one from devices, one from nowhere",
        ),
    ],
)
def test_extended_resources(objects, requests, expected):
    assert World(*objects).filtered(pod(requests=requests))[1] == expected


def stale_claim() -> dict[str, Any]:
    metadata = OWNED | {"annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}}
    return claim(ask(), name="p-extended-resources-x1", metadata=metadata | {"finalizers": [FINALIZER]})


async def test_a_claim_left_by_an_earlier_attempt_is_deleted():
    world = World(*EXTENDED, node(), stale_claim())
    waiting = pod(requests={"x.io/gpu": "1"})
    state, refused = world.filtered(waiting)
    assert refused == {"n1": ("UnschedulableAndUnresolvable", "cannot schedule extended resource claim")}
    assert said(world.after(state, waiting)) == ("Unschedulable", "deletion of ResourceClaim completed")
    await world.settle()
    assert world.server.calls == ["update p-extended-resources-x1", "delete p-extended-resources-x1"]
    assert world.filtered(waiting)[1] == {}


async def test_the_claim_for_extended_resources_is_written_when_the_pod_is_bound():
    world = World(*EXTENDED, node())
    waiting = pod(requests={"cpu": "1", "x.io/gpu": "2"})
    state = world.placed(waiting)
    assert world.filtered(pod(requests={"x.io/gpu": "1"}, name="q"))[1] == {"n1": NO_SOLUTION}
    assert await world.plugin.pre_bind(state, waiting, "n1") is None
    name = "p-extended-resources-x1"
    assert world.server.calls == [f"create {name}", f"update status {name}", "patch p"]
    assert not world.plugin.ledger.in_flight
    written = world.known(name)
    assert written.metadata.finalizers == (FINALIZER,)
    assert written.metadata.annotations == {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert [(each.name, each.uid, each.controller) for each in written.metadata.owner_references] == [
        ("p", "uid-p", True)
    ]
    (request,) = written.spec.devices.requests
    assert (request.name, request.exactly.device_class_name, request.exactly.count) == (
        "container-0-request-1", "gpu", 2,
    )  # fmt: skip
    assert [each.device for each in written.allocation.devices.results] == ["d0", "d1"]
    mapping = {"containerName": "main", "resourceName": "x.io/gpu", "requestName": "container-0-request-1"}
    assert world.server.patches == [
        {"status": {"extendedResourceClaimStatus": {"requestMappings": [mapping], "resourceClaimName": name}}}
    ]
    assert world.filtered(pod(requests={"x.io/gpu": "1"}, name="q"))[1] == {"n1": NO_SOLUTION}
    world.plugin.unreserve(state, waiting, "n1")
    await world.settle()
    assert world.server.calls[-2:] == [f"update {name}", f"delete {name}"]
    assert world.filtered(pod(requests={"x.io/gpu": "1"}, name="q"))[1] == {}


async def test_a_claim_we_created_counts_until_it_is_clear_that_it_does_not_come():
    world = World(*EXTENDED, node())
    world.server.is_watched = False
    state = world.placed(pod(requests={"x.io/gpu": "2"}))
    assert await world.plugin.pre_bind(state, pod(requests={"x.io/gpu": "2"}), "n1") is None
    assert world.filtered(pod(requests={"x.io/gpu": "1"}, name="q"))[1] == {"n1": NO_SOLUTION}
    world.now += 121
    assert world.filtered(pod(requests={"x.io/gpu": "1"}, name="q"))[1] == {}


def test_extended_resources_beside_claims():
    world = World(*EXTENDED, node(), claim(ask()))
    both = pod(uses(), requests={"x.io/gpu": "1"})
    assert world.filtered(both)[1] == {}
    assert world.filtered(pod(uses(), requests={"x.io/gpu": "2"}))[1] == {"n1": NO_SOLUTION}


def container(name: str, count: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {"x.io/gpu": str(count)}}, **more}


SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("init", "main", "requests", "mappings"),
    [
        pytest.param(
            [],
            [container("a", 1), container("b", 2)],
            {"container-0-request-0": 1, "container-1-request-0": 2},
            ["a: 0", "b: 1"],
            id="a request for each container",
        ),
        pytest.param(
            [container("i", 2)],
            [container("a", 1), container("b", 1)],
            {"container-1-request-0": 1, "container-2-request-0": 1},
            ["a: 1", "b: 2", "i: 1", "i: 2"],
            id="an init container uses the devices of those that run later",
        ),
        pytest.param(
            [container("i", 3), container("j", 5)],
            [container("a", 2)],
            {"container-1-request-0": 3, "container-2-request-0": 2},
            ["a: 2", "i: 2", "i: 1", "j: 2", "j: 1"],
            id="init containers share what they need beyond that",
        ),
        pytest.param(
            [container("s", 1, **SIDECAR), container("i", 1)],
            [container("a", 0)],
            {"container-0-request-0": 1, "container-1-request-0": 1},
            ["s: 0", "i: 1"],
            id="not the devices of a sidecar that runs already",
        ),
        pytest.param(
            [container("i", 1), container("s", 1, **SIDECAR)],
            [container("a", 0)],
            {"container-1-request-0": 1},
            ["s: 1", "i: 1"],
            id="the devices of a sidecar that runs later",
        ),
    ],
)
def test_requests_for_extended_resources(init, main, requests, mappings):
    world = World(GPU_FOR, a_slice("s", *(f"d{i}" for i in range(9))), node())
    state = world.placed(pod(containers=main, spec={"initContainers": init}))
    waiting = pod(containers=main, spec={"initContainers": init})
    assert asyncio.run(world.plugin.pre_bind(state, waiting, "n1")) is None
    written = world.known("p-extended-resources-x1").spec.devices.requests
    assert {each.name: each.exactly.count for each in written} == requests
    found = world.server.patches[0]["status"]["extendedResourceClaimStatus"]["requestMappings"]
    assert [f"{each['containerName']}: {each['requestName'].split('-')[1]}" for each in found] == mappings


def event(resource: Resource, action: Action = Action.UPDATE) -> ClusterEvent:
    return ClusterEvent(resource, action)


FREE, TAKEN = claim(name="x"), held("d0", name="x")


@pytest.mark.parametrize(
    ("known", "old", "new", "hint"),
    [
        pytest.param([claim()], None, claim(), QUEUE, id="a claim of the pod appears"),
        pytest.param([claim()], None, FREE, SKIP_HINT, id="another claim appears"),
        pytest.param([claim()], TAKEN, FREE, QUEUE, id="another claim gives back its devices"),
        pytest.param([claim()], FREE, TAKEN, SKIP_HINT, id="another claim takes devices"),
        pytest.param(
            [claim()], claim(), claim(status={"allocation": {}}), QUEUE, id="the claim is allocated"
        ),
        pytest.param(
            [claim()], claim(), claim(metadata={"labels": {"a": "b"}}), SKIP_HINT, id="the claim gets a label"
        ),
        pytest.param([], TAKEN, FREE, SKIP_HINT, id="devices come free, but the pod's claim is missing"),
    ],
)
def test_queueing_hint_for_claims(known, old, new, hint):
    plugin = World(*known).plugin
    before, after = (read_claim(each) if each else None for each in (old, new))
    assert plugin.queueing_hint(pod(uses()), event(Resource.RESOURCE_CLAIM), before, after) is hint


@pytest.mark.parametrize(
    ("new", "hint"),
    [
        pytest.param(
            pod(TEMPLATE, status={"resourceClaimStatuses": [{"name": "t", "resourceClaimName": "c"}]}),
            QUEUE,
            id="made",
        ),
        pytest.param(pod(TEMPLATE), SKIP_HINT, id="still not made"),
        pytest.param(pod(uses(), name="q"), SKIP_HINT, id="another pod"),
    ],
)
def test_queueing_hint_for_claims_made_for_the_pod(new, hint):
    plugin = World(claim(metadata=OWNED)).plugin
    happened = event(Resource.UNSCHEDULABLE_POD, Action.UPDATE_POD_GENERATED_RESOURCE_CLAIM)
    assert plugin.queueing_hint(pod(TEMPLATE), happened, pod(TEMPLATE), new) is hint


@pytest.mark.parametrize("resource", [Resource.NODE, Resource.DEVICE_CLASS, Resource.RESOURCE_SLICE])
def test_other_events_are_worth_a_try(resource):
    plugin = World().plugin
    assert any(each.covers(event(resource, Action.ADD)) for each in plugin.events_to_register())
    assert plugin.queueing_hint(pod(uses()), event(resource, Action.ADD), None, None) is QUEUE


COSTLY = "lists.range(50000).all(x, x >= 0) && device.driver != ''"
"""About 300,000 units for each device."""


def selected_by(*expressions: str, **fields: Any) -> dict[str, Any]:
    return ask(selectors=[{"cel": {"expression": each}} for each in expressions], **fields)


TIMES = 5 if SHARE >= 1 else 1


def different_devices(count: int) -> list[Any]:
    """Nodes, each with a device unlike all others."""
    pairs = [(node(f"n{i}"), a_slice(f"s{i}", device("d0", index=i), nodeName=f"n{i}")) for i in range(count)]
    return [each for pair in pairs for each in pair]


@pytest.fixture
def small_budget(monkeypatch):
    """A fifth of what selectors may cost in an attempt, so that fewer nodes use it up. In CI, all of it."""
    limit = MAX_ATTEMPT_COST * TIMES // 5
    monkeypatch.setattr("stowplan.plugins.devices.pools.MAX_ATTEMPT_COST", limit)


@pytest.mark.usefixtures("small_budget")
def test_selectors_that_cost_much_are_evaluated_over_several_attempts():
    devices = [
        (node(f"n{i}"), a_slice(f"s{i}", device("d0", index=i), nodeName=f"n{i}")) for i in range(9 * TIMES)
    ]
    world = World(GPU, *(each for pair in devices for each in pair), claim(selected_by(COSTLY)))
    late = [len(world.filtered(pod(uses()))[1]) for _ in range(4)]
    # Nodes for which there was no time; what was found out is kept.
    assert late[0] > late[1] > 0
    assert late[-1] == 0


@pytest.mark.usefixtures("small_budget")
def test_devices_that_differ_only_by_name_cost_as_much_as_one():
    devices = [(node(f"n{i}"), a_slice(f"s{i}", f"d{i}", nodeName=f"n{i}")) for i in range(45 * TIMES)]
    world = World(GPU, *(each for pair in devices for each in pair), claim(selected_by(COSTLY)))
    assert world.filtered(pod(uses()))[1] == {}


@pytest.mark.usefixtures("small_budget")
def test_an_attempt_in_which_selectors_cost_too_much_says_so():
    devices = [
        (node(f"n{i}"), a_slice(f"s{i}", device("d0", index=i), nodeName=f"n{i}")) for i in range(6 * TIMES)
    ]
    world = World(GPU, *(each for pair in devices for each in pair), claim(selected_by(COSTLY)))
    found, last = world.filtered(pod(uses()))[1], f"n{6 * TIMES - 1}"
    assert found[last] == ("Error", f"node {last}: timed out trying to allocate devices")


def test_a_selector_over_the_cost_limit_is_an_error_of_the_claim():
    world = World(GPU, node(), a_slice("s", "d0"), claim(selected_by("lists.range(2000000).size() > 0")))
    said = "CEL runtime error: operation cancelled: actual cost limit exceeded"
    assert world.filtered(pod(uses()))[1] == {"n1": ("Error", f"claim default/c: selector #0: {said}")}


def test_answers_of_selectors_are_not_kept_without_end():
    world = World(GPU, node(), a_slice("s", "d0"))
    (offer,) = world.cluster.resource_slices
    offered = DeviceKind(DRIVER, offer.spec.devices[0])
    for number in range(200):
        assert offered.satisfies(f"device.driver != '{number}'")
    known = 0
    for number in reversed(range(200)):  # an answer that is kept costs nothing
        budget = DeviceBudget()
        whole = budget.left
        assert offered.satisfies(f"device.driver != '{number}'", budget)
        known += budget.left == whole
    assert 0 < known <= 32
