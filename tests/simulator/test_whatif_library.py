"""What-if as a library: pods and nodes added, nodes drained and lost, everything placed afresh."""

from __future__ import annotations

import pytest

from make import REGISTRY, make_node, make_pod
from stowplan.api.kinds import object_of
from stowplan.config import load
from stowplan.errors import InputError
from stowplan.framework.plugin import Plugin
from stowplan.framework.registry import Registry
from stowplan.simulator import Cause, Ending, WhatIf

V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
MOST_ALLOCATED = {"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}]}}


def owned(name, *, by="ReplicaSet", **fields):
    owner = {"apiVersion": "apps/v1", "kind": by, "name": "owner", "uid": "u", "controller": True}
    metadata = {"ownerReferences": [owner], **fields.pop("metadata", {})}
    return make_pod(name, metadata=metadata, **fields)


def cpu(amount):
    return {"cpu": amount}


def small(name, amount="2", **fields):
    return make_node(name, allocatable={"cpu": amount, "memory": "8Gi", "pods": "10"}, **fields)


def budget(allowed):
    spec = {"selector": {"matchLabels": {"app": "web"}}}
    meta = {"name": "b", "namespace": "default"}
    return object_of(
        {
            "kind": "PodDisruptionBudget",
            "metadata": meta,
            "spec": spec,
            "status": {"disruptionsAllowed": allowed},
        }
    )


def what_if(*objects, config=None, **settings):
    loaded = load(V1 | config, REGISTRY).config if config else None
    return WhatIf(objects, loaded, registry=REGISTRY, **settings)


def told(outcome):
    return {each.pod.name: (str(each.cause), str(each.ending), each.node) for each in outcome.fates}


def test_new_pods_land_and_take_their_room():
    asked = what_if(small("n1"), small("n2"))
    asked.add([make_pod(name, requests=cpu("1500m")) for name in ("a", "b", "c")])
    outcome = asked.run()
    assert told(outcome) == {
        "a": ("new", "placed", "n1"),
        "b": ("new", "placed", "n2"),
        "c": ("new", "pending", ""),
    }
    (pending,) = outcome.pending
    assert pending.message.startswith("0/2 nodes are available: 2 Insufficient cpu.")
    assert [each.detail for each in pending.rejections] == [
        "n1 comes closest: it lacks 1 of cpu (1500m requested, 500m of 2 free)"
    ]
    assert outcome.changes == ("3 pods added",)


def test_pods_that_wait_are_decided_too_the_most_important_first():
    asked = what_if(small("n1"), make_pod("low", requests=cpu("2")))
    asked.add([make_pod("high", requests=cpu("2"), priority=10)])
    assert told(asked.run()) == {"high": ("new", "placed", "n1"), "low": ("pending", "pending", "")}


def test_pods_that_have_waited_longer_come_first():
    waiting = [
        make_pod(name, requests=cpu("2"), metadata={"creationTimestamp": f"2026-01-01T00:00:0{second}Z"})
        for name, second in (("young", 5), ("old", 1))
    ]
    assert told(what_if(small("n1"), *waiting).run())["old"] == ("pending", "placed", "n1")


def test_a_node_like_another_takes_what_waited():
    daemon = owned("log-1", by="DaemonSet", node="n1", requests=cpu("500m"))
    asked = what_if(small("n1", unschedulable=True), daemon, make_pod("p", requests=cpu("1500m")))
    asked.add_nodes_like("n1", 2)
    assert told(asked.run()) == {"p": ("pending", "placed", "n1-new-1")}
    assert {pod.node_name for pod in asked.cluster.pods()} == {"n1", "n1-new-1", "n1-new-2"}
    labels = asked.cluster.nodes.objects[asked.cluster.nodes.row_of("n1-new-2")].labels
    assert labels["kubernetes.io/hostname"] == "n1-new-2"


def test_names_of_new_nodes_are_free():
    asked = what_if(small("n1"), small("n1-new-1"))
    asked.add_nodes_like("n1")
    assert sorted(asked.cluster.nodes.names) == ["n1", "n1-new-1", "n1-new-2"]


def test_a_node_of_a_known_name_is_replaced():
    asked = what_if(small("n1"), make_pod("p", requests=cpu("3")))
    asked.add([small("n1", "4")])
    assert told(asked.run()) == {"p": ("pending", "placed", "n1")}
    assert asked.changes == ["n1 added or changed"]


def test_draining_moves_what_is_made_again_and_leaves_what_belongs_to_the_node():
    asked = what_if(
        small("n1"),
        small("n2"),
        owned("web", node="n1", requests=cpu("1")),
        owned("log", by="DaemonSet", node="n1"),
        make_pod("static", node="n1", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}),
        make_pod("bare", node="n1"),
        owned("leaving", node="n1", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
    )
    asked.drain("n1")
    outcome = asked.run()
    assert told(outcome) == {"bare": ("drained", "gone", ""), "web": ("drained", "placed", "n2")}
    assert outcome.placed[0].is_moved
    assert {pod.name for pod in asked.cluster.pods() if pod.node_name == "n1"} == {"log", "static"}


@pytest.mark.parametrize(
    ("allowed", "ending"), [(0, Ending.STAYS), (1, Ending.PLACED)], ids=["not allowed", "allowed"]
)
def test_draining_heeds_disruption_budgets(allowed, ending):
    web = owned("web", node="n1", labels={"app": "web"})
    asked = what_if(small("n1"), small("n2"), web, budget(allowed))
    asked.drain("n1")
    (fate,) = asked.run().fates
    assert (fate.ending, fate.node) == (ending, "n1" if ending is Ending.STAYS else "n2")


def test_losing_a_node_asks_no_budget():
    web = owned("web", node="n1", labels={"app": "web"})
    asked = what_if(small("n1"), small("n2"), web, owned("log", by="DaemonSet", node="n1"), budget(0))
    asked.lose("n1")
    assert told(asked.run()) == {"web": ("lost", "placed", "n2")}
    assert [pod.name for pod in asked.cluster.pods()] == ["web"]


def test_victims_are_made_again_and_land_elsewhere_or_wait():
    low = [owned(name, node=node, requests=cpu("2")) for name, node in (("low-1", "n1"), ("low-2", "n2"))]
    asked = what_if(small("n1"), small("n2"), small("n3", "2", taints=["gpu:NoSchedule"]), *low)
    asked.add([make_pod("high", requests=cpu("2"), priority=10)])
    outcome = asked.run()
    (high, evicted) = outcome.fates
    assert (high.node, high.victims) == (evicted.before, (evicted.pod.key,))
    assert (evicted.cause, evicted.ending, evicted.evicted_by) == (
        Cause.EVICTED,
        Ending.PENDING,
        "default/high",
    )
    assert outcome.evicted == [evicted]


def test_a_victim_without_a_controller_is_gone():
    asked = what_if(small("n1"), make_pod("low", node="n1", requests=cpu("2")))
    asked.add([make_pod("high", requests=cpu("2"), priority=10)])
    assert told(asked.run()) == {"low": ("evicted", "gone", ""), "high": ("new", "placed", "n1")}


def test_everything_afresh_under_another_configuration_packs_the_pods():
    pods = [owned(f"p{number}", node=f"n{number}", requests=cpu("500m")) for number in (1, 2)]
    args = [{"name": "NodeResourcesFit", "args": MOST_ALLOCATED}]
    config = {"profiles": [{"pluginConfig": args}]}
    asked = what_if(small("n1"), small("n2"), *pods, owned("log", by="DaemonSet", node="n2"), config=config)
    asked.place_afresh()
    outcome = asked.run()
    assert told(outcome) == {"p1": ("afresh", "placed", "n2"), "p2": ("afresh", "placed", "n2")}
    assert [each.pod.name for each in outcome.fates if each.is_moved] == ["p1"]


def test_pods_of_other_schedulers_stay_out_of_it():
    theirs = make_pod("theirs", node="n1", schedulerName="theirs")
    asked = what_if(small("n1"), theirs, make_pod("waits", schedulerName="theirs"))
    asked.place_afresh()
    assert told(asked.run()) == {"waits": ("pending", "other scheduler", "")}


def test_a_pod_with_gates_is_held_back():
    asked = what_if(small("n1"))
    asked.add([make_pod("p", schedulingGates=[{"name": "g"}])])
    (fate,) = asked.run().fates
    assert (fate.ending, fate.message) == (Ending.HELD_BACK, "waiting for scheduling gates: [g]")


def test_a_pod_of_the_same_name_is_replaced():
    asked = what_if(small("n1"), make_pod("p", node="n1", requests=cpu("2")))
    asked.add([make_pod("p", requests=cpu("1"), metadata={"uid": "another"})])
    assert told(asked.run()) == {"p": ("new", "placed", "n1")}
    assert len(list(asked.cluster.pods())) == 1


def test_a_promised_node_keeps_its_room():
    promised = make_pod("promised", requests=cpu("2"), priority=5, status={"nominatedNodeName": "n1"})
    asked = what_if(small("n1"), promised)
    asked.add([make_pod("p", requests=cpu("2"), priority=5)])
    assert told(asked.run())["promised"] == ("pending", "placed", "n1")


GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("metadata", "priority", "ending", "message"),
    [
        pytest.param(GOING, 0, "placed", "once default/victim is gone", id="a victim that is going"),
        pytest.param({}, 5, "pending", None, id="a pod that stays"),
        pytest.param(GOING, 5, "pending", None, id="a pod that goes for other reasons"),
    ],
)
def test_a_promised_node_whose_victims_are_still_there(metadata, priority, ending, message):
    promised = make_pod("vip", requests=cpu("2"), priority=5, status={"nominatedNodeName": "n1"})
    victim = owned("victim", node="n1", requests=cpu("2"), priority=priority, metadata=metadata)
    stays = make_pod("other", node="n2", requests=cpu("2"), priority=9)
    (fate,) = what_if(small("n1"), small("n2"), victim, stays, promised).run().fates
    assert str(fate.ending) == ending
    assert fate.message == message or (message is None and "2 Insufficient cpu" in fate.message)


@pytest.mark.parametrize("method", ["drain", "lose", "add_nodes_like"])
def test_a_node_that_is_not_there_is_named_with_those_that_are(method):
    with pytest.raises(InputError, match=r'node n11 not found; did you mean "n1"\? \(known: n1, other'):
        getattr(what_if(small("n1"), small("other")), method)("n11")


def test_volumes_are_taken_only_once():
    claims = [
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {
                "storageClassName": "local",
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        for name in ("c1", "c2")
    ]
    volume = {
        "kind": "PersistentVolume",
        "metadata": {"name": "v"},
        "status": {"phase": "Available"},
        "spec": {
            "storageClassName": "local",
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
        },
    }
    wait = {
        "kind": "StorageClass",
        "metadata": {"name": "local"},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    asked = what_if(small("n1"), *(object_of(each) for each in (*claims, volume, wait)))
    asked.add(
        make_pod(f"p-{name}", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": name}}])
        for name in ("c1", "c2")
    )
    assert [str(each.ending) for each in asked.run().fates] == ["placed", "pending"]


def test_pods_may_share_a_claim_for_devices():
    """The second of them is decided once the claim is allocated for the first."""
    devices = {
        "driver": "gpu.example.com",
        "nodeName": "n2",
        "pool": {"name": "n2", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d0"}],
    }
    request = {"name": "one", "exactly": {"deviceClassName": "gpu"}}
    objects = [
        {"kind": "DeviceClass", "metadata": {"name": "gpu"}},
        {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": devices},
        *(
            {
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": [request]}},
            }
            for name in ("shared", "other")
        ),
    ]
    asked = what_if(small("n1"), small("n2"), *map(object_of, objects))
    asked.add(
        make_pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": claim}])
        for name, claim in (("a", "shared"), ("b", "shared"), ("c", "other"))
    )
    assert told(asked.run()) == {
        "a": ("new", "placed", "n2"),
        "b": ("new", "placed", "n2"),
        "c": ("new", "pending", ""),
    }


TO_QUEUE = {"labelSelector": {"matchLabels": {"app": "queue"}}, "topologyKey": "kubernetes.io/hostname"}
NEAR_QUEUE = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TO_QUEUE]}}


def test_a_pod_that_waited_for_another_is_tried_again_once_it_is_placed():
    asked = what_if(small("n1"), small("n2"))
    first = [make_pod(name, affinity=NEAR_QUEUE, requests=cpu("1")) for name in ("w1", "w2")]
    asked.add([*first, make_pod("queue", labels={"app": "queue"})])
    assert told(asked.run()) == {
        "queue": ("new", "placed", "n1"),
        "w1": ("new", "placed", "n1"),
        "w2": ("new", "placed", "n1"),
    }


def test_pods_alike_are_told_the_same():
    asked = what_if(small("n1"))
    asked.add(make_pod(f"p{number}", requests=cpu("3")) for number in range(3))
    fates = asked.run().pending
    assert len({each.message for each in fates}) == 1
    assert [len(each.rejections) for each in fates] == [1, 1, 1]


def test_a_plugin_that_raises_is_named():
    class Broken(Plugin):
        def filter(self, state, pod, node):
            raise RuntimeError("boom")

    registry = Registry.installed((), {"Broken": Broken})
    config = load(
        V1 | {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Broken"}]}}}]}, registry
    ).config
    asked = WhatIf([small("n1"), make_pod("p")], config, registry=registry)
    (fate,) = asked.run().fates
    assert fate.ending is Ending.FAILED
    assert "Broken" in fate.message
    assert "boom" in fate.message
