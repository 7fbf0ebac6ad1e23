"""VolumeBinding: what it reserves, writes, and waits for."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace
from volume_objects import (
    BOUND,
    SELECTED,
    claim,
    cluster_of,
    node,
    pod,
    read,
    refusals,
    storage_class,
    uses,
    volume,
    with_meta,
)

from stowplan.api.meta import Object
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.errors import StowplanError
from stowplan.framework import CycleState, Handle, Status
from stowplan.plugins.args import VolumeBindingArgs
from stowplan.plugins.default.volume_binding import VolumeBinding

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
NODES = [
    node(name, topology_kubernetes_io__zone=zone) for name, zone in (("n1", "a"), ("n2", "b"), ("n3", "b"))
]
LOCAL = storage_class(provisioner="kubernetes.io/no-provisioner")


def refused(*names: str) -> dict[str, Any]:
    reason = "node(s) didn't find available persistent volumes to bind"
    return dict.fromkeys(names, ("UnschedulableAndUnresolvable", (reason,)))


def ours(uid: str = "uid-c") -> Any:
    return {"namespace": "default", "name": "c", "uid": uid}


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait: when nothing is to be done, its clock jumps to what comes next."""

    def __init__(self) -> None:
        self.now = 0.0
        loop = self

        class Selector(selectors.SelectSelector):
            def select(self, timeout: float | None = None) -> Any:
                loop.now += timeout or 0
                return super().select(0)

        super().__init__(Selector())

    def time(self) -> float:
        return self.now


class RecordingApi:
    """Writes into the cluster as an API server would, after which `react` may play the volume controller."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.written: list[Any] = []
        self.react: Callable[[Any], None] = lambda item: None
        self.delay = 0.0

    async def update(self, item: Any) -> Object:
        self.written.append(item)
        version = str(100 + len(self.written))
        stored = replace(item, metadata=replace(item.metadata, resource_version=version))
        asyncio.get_running_loop().call_later(self.delay, self._arrive, stored)
        return stored

    def _arrive(self, stored: Any) -> None:
        self.cluster.apply(stored)
        self.react(stored)

    def bind(self, name: str, volume_name: str) -> None:
        """What the controller does in the end."""
        self.cluster.apply(
            read(with_meta(claim(name, volume=volume_name, annotations=BOUND), resourceVersion="999"))
        )


class Attempt:
    """A pod with the claim c on its way to a node."""

    def __init__(self, *objects: Any, timeout: int = 600, node_name: str = "n1") -> None:
        self.cluster = cluster_of(*NODES, *objects)
        self.api = RecordingApi(self.cluster)
        self.plugin = VolumeBinding(
            VolumeBindingArgs(bind_timeout_seconds=timeout),
            Handle(self.cluster, api=self.api),  # type: ignore[arg-type]
        )
        self.pod, self.state, self.node_name = Pod.decode(pod(uses("c"))), CycleState(), node_name
        assert self.plugin.pre_filter(self.state, self.pod, self.cluster.nodes) is None
        self.placed = self.cluster.assume_pod(self.pod, node_name)
        assert self.plugin.reserve(self.state, self.pod, node_name) is None

    def pre_bind(self) -> tuple[Status | None, float]:
        """The answer, and after how many seconds it came."""
        loop = JumpingLoop()
        try:
            answer: Coroutine[Any, Any, Status | None] = self.plugin.pre_bind(
                self.state, self.placed, self.node_name
            )
            return loop.run_until_complete(answer), loop.time()
        finally:
            loop.close()

    def others(self, name: str = "d") -> Any:
        """Where another pod with a claim of its own could go now."""
        return refusals(self.plugin, pod(uses(name), name="other"))


def versioned(manifest: Any, version: str = "7") -> Any:
    return with_meta(manifest, resourceVersion=version)


STATIC = [
    versioned(claim()),
    claim("d"),
    LOCAL,
    versioned(volume("x", on={HOST: ["n1"]})),
    volume("y", on={ZONE: ["b"]}),
]
DYNAMIC = [versioned(claim()), storage_class()]
TAKEN = refused("n1")


def test_reserved_volumes_are_not_given_to_others():
    attempt = Attempt(*STATIC)
    assert attempt.others() == TAKEN
    attempt.plugin.unreserve(attempt.state, attempt.pod, "n1")
    assert attempt.others() == {}


def test_a_reservation_ends_when_the_volume_changes():
    attempt = Attempt(*STATIC)
    attempt.cluster.apply(read(versioned(volume("x", on={HOST: ["n1"]}), "8")))
    assert attempt.others() == {}


def test_a_volume_in_the_making_pins_other_users_of_the_claim():
    attempt = Attempt(*DYNAMIC)
    assert attempt.others("c") == refused("n2", "n3")
    attempt.plugin.unreserve(attempt.state, attempt.pod, "n1")
    assert attempt.others("c") == {}


def test_binding_a_volume():
    attempt = Attempt(*STATIC)
    attempt.api.react = lambda item: attempt.api.bind("c", "x")
    assert attempt.pre_bind() == (None, 1.0)
    (written,) = attempt.api.written
    assert (written.name, written.metadata.resource_version) == ("x", "7")
    assert written.metadata.annotations == {"pv.kubernetes.io/bound-by-controller": "yes"}
    reference = written.spec.claim_ref
    assert (reference.kind, reference.api_version) == ("PersistentVolumeClaim", "v1")
    assert (reference.namespace, reference.name, reference.uid) == ("default", "c", "uid-c")
    assert reference.resource_version == "7"


@pytest.mark.parametrize("uid", ["", "uid-c"])
def test_binding_a_volume_that_names_the_claim_already(uid):
    attempt = Attempt(claim(), LOCAL, volume("x", claimRef=ours(uid)))
    attempt.api.react = lambda item: attempt.api.bind("c", "x")
    assert attempt.pre_bind() == (None, 1.0)
    (written,) = attempt.api.written
    assert written.metadata.annotations == {}
    assert written.spec.claim_ref.uid == "uid-c"


def test_the_smallest_volume_on_the_node_is_bound():
    spare = [
        volume("large", size="9Gi"),
        volume("far", size="6Gi", on={HOST: ["n2"]}),
        volume("small", size="7Gi"),
    ]
    attempt = Attempt(claim(), LOCAL, *spare)
    attempt.api.react = lambda item: attempt.api.bind("c", "small")
    attempt.pre_bind()
    assert [item.name for item in attempt.api.written] == ["small"]


def test_having_a_volume_made():
    attempt = Attempt(*DYNAMIC)

    def react(item: Any) -> None:
        attempt.cluster.apply(read(volume("made", on={ZONE: ["a"]}, phase="Bound", claimRef=ours())))
        marks = BOUND | {SELECTED: "n1"}
        attempt.cluster.apply(read(versioned(claim(volume="made", annotations=marks), "999")))

    attempt.api.react = react
    assert attempt.pre_bind() == (None, 1.0)
    (written,) = attempt.api.written
    assert (written.key, written.metadata.annotations) == ("default/c", {SELECTED: "n1"})


def test_looks_every_second():
    attempt = Attempt(*STATIC)

    def react(item: Any) -> None:
        asyncio.get_running_loop().call_later(4.5, attempt.api.bind, "c", "x")

    attempt.api.react = react
    assert attempt.pre_bind() == (None, 5.0)


def test_waits_for_what_was_written_to_arrive():
    attempt = Attempt(*STATIC)
    attempt.api.bind("c", "x")
    attempt.api.delay = 2.5
    assert attempt.pre_bind() == (None, 3.0)


@pytest.mark.parametrize("objects", [STATIC, DYNAMIC], ids=["a volume", "a volume to be made"])
def test_gives_up_after_the_timeout(objects):
    expected = Status.error("binding volumes: context deadline exceeded")
    assert Attempt(*objects, timeout=30).pre_bind() == (expected, 30.0)


def test_an_api_failure_is_an_error():
    attempt = Attempt(*STATIC)

    async def refuse(item: Any) -> Object:
        raise StowplanError("the object has been modified")

    attempt.api.update = refuse  # type: ignore[method-assign]
    assert attempt.pre_bind() == (Status.error("the object has been modified"), 0.0)


def reset_claim_ref(attempt: Attempt) -> None:
    attempt.cluster.apply(read(versioned(volume("x", on={HOST: ["n1"]}), "999")))


def move_volume(attempt: Attempt) -> None:
    attempt.cluster.apply(read(versioned(volume("x", on={HOST: ["n2"]}, claimRef=ours()), "999")))


def make_volume_elsewhere(attempt: Attempt) -> None:
    attempt.cluster.apply(read(volume("made", on={ZONE: ["b"]})))
    marks = {SELECTED: "n1"}
    attempt.cluster.apply(read(versioned(claim(volume="made", annotations=marks), "999")))


def replace_claim(attempt: Attempt) -> None:
    new = claim()
    new["metadata"]["uid"] = "another"
    attempt.cluster.apply(read(versioned(new, "999")))


def bind_claim_elsewhere(attempt: Attempt) -> None:
    attempt.cluster.apply(read(versioned(claim(volume="y"), "999")))


@pytest.mark.parametrize(
    ("objects", "event", "text"),
    [
        pytest.param(
            STATIC,
            replace_claim,
            'persistentvolumeclaim "c" was replaced during binding',
            id="another claim of the same name",
        ),
        pytest.param(
            STATIC,
            bind_claim_elsewhere,
            'persistentvolumeclaim "c" was bound to persistentvolume "y" instead of "x"',
            id="the claim gets another volume",
        ),
        pytest.param(
            STATIC,
            lambda attempt: attempt.cluster.remove_pod(attempt.placed),
            'pod does not exist any more: pod "p" not found',
            id="the pod is deleted",
        ),
        pytest.param(
            STATIC,
            lambda attempt: attempt.cluster.remove_node("n1"),
            'failed to get node "n1": node "n1" not found',
            id="the node is gone",
        ),
        pytest.param(
            STATIC,
            lambda attempt: attempt.cluster.remove(read(volume("x"))),
            'failed to check binding: persistentvolume "x" not found',
            id="the volume is gone",
        ),
        pytest.param(
            STATIC,
            lambda attempt: attempt.cluster.remove(read(claim())),
            'failed to check binding: persistentvolumeclaim "c" not found',
            id="the claim is gone",
        ),
        pytest.param(STATIC, reset_claim_ref, 'ClaimRef got reset for pv "x"', id="the volume is given back"),
        pytest.param(
            STATIC,
            move_volume,
            'pv "x" node affinity doesn\'t match node "n1": no matching NodeSelectorTerms',
            id="the volume is elsewhere",
        ),
        pytest.param(
            DYNAMIC,
            lambda attempt: attempt.cluster.remove(read(claim())),
            'failed to check provisioning pvc: persistentvolumeclaim "c" not found',
            id="the claim is gone before a volume is made",
        ),
        pytest.param(
            DYNAMIC,
            lambda attempt: attempt.cluster.apply(read(versioned(claim(), "999"))),
            'provisioning failed for PVC "c"',
            id="the provisioner gives up",
        ),
        pytest.param(
            DYNAMIC,
            make_volume_elsewhere,
            'pv "made" node affinity doesn\'t match node "n1": no matching NodeSelectorTerms',
            id="the volume is made elsewhere",
        ),
    ],
)
def test_what_ends_the_wait(objects, event, text):
    attempt = Attempt(*objects)
    attempt.api.react = lambda item: event(attempt)
    assert attempt.pre_bind() == (Status.error(f"binding volumes: {text}"), 1.0)


def test_a_volume_that_is_not_seen_yet_is_waited_for():
    attempt = Attempt(*DYNAMIC)

    def react(item: Any) -> None:
        marks = BOUND | {SELECTED: "n1"}
        attempt.cluster.apply(read(versioned(claim(volume="made", annotations=marks), "999")))
        asyncio.get_running_loop().call_later(2.5, attempt.cluster.apply, read(volume("made")))

    attempt.api.react = react
    assert attempt.pre_bind() == (None, 3.0)


@pytest.mark.parametrize("volumes", [[], [uses("c")]], ids=["no claims", "bound claims"])
async def test_nothing_to_do_for_pods_whose_claims_are_bound(volumes):
    cluster = cluster_of(*NODES, claim(volume="pv"), volume())
    plugin = VolumeBinding(VolumeBindingArgs(), Handle(cluster))
    waiting, state = Pod.decode(pod(*volumes)), CycleState()
    plugin.pre_filter(state, waiting, cluster.nodes)
    assert plugin.reserve(state, waiting, "n1") is None
    assert await plugin.pre_bind(state, waiting, "n1") is None
    plugin.unreserve(state, waiting, "n1")
