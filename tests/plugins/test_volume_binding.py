"""VolumeBinding: where a pod's claims have, get or could be made volumes, and how they are bound."""

from __future__ import annotations

from typing import Any

import pytest
from volume_objects import (
    SELECTED,
    capacity,
    claim,
    cluster_of,
    csi_driver,
    csi_node,
    node,
    plugin_in,
    pod,
    refusals,
    storage_class,
    uses,
    volume,
    with_meta,
)

from stowplan.api.pod import Pod
from stowplan.errors import SelectorError
from stowplan.framework import (
    CycleState,
    FilterError,
    Handle,
    Status,
)
from stowplan.plugins.args import VolumeBindingArgs
from stowplan.plugins.default.volume_binding import VolumeBinding

UNRESOLVABLE = "UnschedulableAndUnresolvable"
CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
UNBINDABLE = "node(s) didn't find available persistent volumes to bind"
TOO_FULL = "node(s) did not have enough free storage"
MISSING = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
EBS = {"awsElasticBlockStore": {"volumeID": "vol-1"}}
EPHEMERAL = {"ephemeral": {}}
NODES = [
    node(name, topology_kubernetes_io__zone=zone) for name, zone in (("n1", "a"), ("n2", "b"), ("n3", "b"))
]
LOCAL = storage_class(provisioner="kubernetes.io/no-provisioner")


def refused(**reasons: str | tuple[str, ...]) -> dict[str, Any]:
    return {
        name: (UNRESOLVABLE, texts if isinstance(texts, tuple) else (texts,))
        for name, texts in reasons.items()
    }


def asked(objects: list[Any], *volumes: Any) -> Any:
    """What the plugin says of three nodes, one in zone a and two in zone b."""
    cluster = cluster_of(*NODES, *objects)
    return refusals(plugin_in(VolumeBinding, cluster, VolumeBindingArgs()), pod(*volumes))


def owned(manifest: Any, uid: str = "uid-default-p") -> Any:
    manifest["metadata"]["ownerReferences"] = [{"kind": "Pod", "uid": uid, "controller": True}]
    return manifest


def lost(manifest: Any) -> Any:
    return manifest | {"status": {"phase": "Lost"}}


def ours(uid: str = "uid-c", name: str = "c") -> Any:
    return {"namespace": "default", "name": name, "uid": uid}


# Before nodes are looked at


@pytest.mark.parametrize(
    ("objects", "volumes", "expected"),
    [
        pytest.param([], [], Status.skip(), id="no volumes"),
        pytest.param([], [EBS], Status.skip(), id="no claims"),
        pytest.param(
            [], [uses("c")], Status.unresolvable('persistentvolumeclaim "c" not found'), id="no such claim"
        ),
        pytest.param(
            [],
            [EPHEMERAL],
            Status.unresolvable(
                'waiting for ephemeral volume controller to create the persistentvolumeclaim "p-v0"'
            ),
            id="not made yet",
        ),
        pytest.param(
            [lost(claim(volume="pv"))],
            [uses("c")],
            Status.unresolvable('persistentvolumeclaim "c" bound to non-existent persistentvolume "pv"'),
            id="lost",
        ),
        pytest.param(
            [with_meta(claim(volume="pv"), deletionTimestamp="2026-01-01T00:00:00Z")],
            [uses("c")],
            Status.unresolvable('persistentvolumeclaim "c" is being deleted'),
            id="being deleted",
        ),
        pytest.param(
            [claim("p-v0", volume="pv")],
            [EPHEMERAL],
            Status.unresolvable("PVC default/p-v0 was not created for pod default/p (pod is not owner)"),
            id="made for nobody",
        ),
        pytest.param(
            [owned(claim("p-v0", volume="pv"), "other")],
            [EPHEMERAL],
            Status.unresolvable("PVC default/p-v0 was not created for pod default/p (pod is not owner)"),
            id="made for another pod",
        ),
        pytest.param([owned(claim("p-v0", volume="pv")), volume()], [EPHEMERAL], {}, id="made for the pod"),
        pytest.param(
            [claim(), storage_class(mode="Immediate")],
            [uses("c")],
            Status.unresolvable("pod has unbound immediate PersistentVolumeClaims"),
            id="immediate and unbound",
        ),
        pytest.param(
            [claim()],
            [uses("c")],
            Status.unresolvable("pod has unbound immediate PersistentVolumeClaims"),
            id="no such class",
        ),
        pytest.param(
            [claim(storage_class=None)],
            [uses("c")],
            Status.unresolvable("pod has unbound immediate PersistentVolumeClaims"),
            id="no class",
        ),
        pytest.param(
            [claim(volume="pv", annotations={}), storage_class(), volume()],
            [uses("c")],
            Status.unresolvable("pod has unbound immediate PersistentVolumeClaims"),
            id="a volume is named but not confirmed",
        ),
        pytest.param(
            [claim(), storage_class(mode=None)],
            [uses("c")],
            Status.error('VolumeBindingMode not set for StorageClass "wait"'),
            id="a class without a mode",
        ),
    ],
)
def test_before_nodes_are_looked_at(objects, volumes, expected):
    assert asked(objects, *volumes) == expected


# Claims that have their volume


def terms(*matches: Any) -> Any:
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": list(matches)}}, "csi": {"driver": "d"}}


def expression(key: str, operator: str, *values: str) -> Any:
    return {"key": key, "operator": operator, "values": list(values)}


NOWHERE = refused(n1=CONFLICT, n2=CONFLICT, n3=CONFLICT)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, {}, id="no affinity"),
        pytest.param({"nodeAffinity": {}, "csi": {}}, {}, id="an affinity that requires nothing"),
        pytest.param({"on": {ZONE: ["a"]}}, refused(n2=CONFLICT, n3=CONFLICT), id="one zone"),
        pytest.param(
            {"on": {ZONE: ["b"], HOST: ["n3"]}}, refused(n1=CONFLICT, n2=CONFLICT), id="zone and host"
        ),
        pytest.param(terms(), NOWHERE, id="no terms"),
        pytest.param(terms({}), NOWHERE, id="an empty term"),
        pytest.param(
            terms({"matchFields": [expression("metadata.name", "In", "n1")]}),
            {},
            id="a name is not looked at",
        ),
        pytest.param(
            terms(
                {
                    "matchExpressions": [expression(ZONE, "In", "b")],
                    "matchFields": [expression("metadata.name", "In", "n1")],
                }
            ),
            refused(n1=CONFLICT),
            id="labels beside a name are",
        ),
        pytest.param(
            terms(
                {"matchExpressions": [expression(ZONE, "In")]},
                {"matchExpressions": [expression(HOST, "Exists")]},
            ),
            {},
            id="one of two terms is malformed",
        ),
    ],
)
def test_bound_claims(spec, expected):
    assert asked([claim(volume="pv"), volume(phase="Bound", **spec)], uses("c")) == expected


def test_a_missing_volume_refuses_the_nodes_not_refused_before():
    first, second = claim("a", volume="pv-a"), claim("b", volume="gone")
    here = volume("pv-a", on={ZONE: ["a"]})
    expected = refused(n1=MISSING, n2=CONFLICT, n3=CONFLICT)
    assert asked([first, second, here], uses("a"), uses("b")) == expected
    assert asked([first, second, here], uses("b"), uses("a")) == refused(n1=MISSING, n2=MISSING, n3=MISSING)


@pytest.mark.parametrize(
    ("migrated", "expected"),
    [
        pytest.param(None, refused(n2=CONFLICT, n3=CONFLICT), id="no CSINode: by its own labels"),
        pytest.param(
            "kubernetes.io/gce-pd", refused(n2=CONFLICT, n3=CONFLICT), id="another plugin is migrated"
        ),
        pytest.param(
            "kubernetes.io/gce-pd,kubernetes.io/aws-ebs",
            refused(n2=CONFLICT, n3=CONFLICT) | refused(n1=CONFLICT),
            id="migrated: by the driver's label, which n1 lacks",
        ),
    ],
)
def test_in_tree_volumes_on_migrated_nodes(migrated, expected):
    here = [csi_node("n1", migrated=migrated)] if migrated else []
    assert asked([claim(volume="pv"), volume(on={ZONE: ["a"]}, **EBS), *here], uses("c")) == expected


def test_in_tree_volumes_where_the_node_has_the_label_of_the_driver():
    nodes = [
        node("old", topology_kubernetes_io__zone="a"),
        node("new", topology_ebs_csi_aws_com__zone="a"),
        node("far", topology_ebs_csi_aws_com__zone="b"),
    ]
    migrated = [csi_node(name, migrated="kubernetes.io/aws-ebs") for name in ("new", "far")]
    objects = [*nodes, *migrated, claim(volume="pv"), volume(labels={ZONE: "a"}, on={ZONE: ["a"]}, **EBS)]
    plugin = plugin_in(VolumeBinding, cluster_of(*objects), VolumeBindingArgs())
    assert refusals(plugin, pod(uses("c"))) == refused(far=CONFLICT)


def test_an_in_tree_volume_that_cannot_be_translated_ends_the_attempt():
    bad = volume(awsElasticBlockStore={"volumeID": "aws://bad"})
    with pytest.raises(FilterError, match="could not translate pv: invalid format for AWS volume"):
        asked([claim(volume="pv"), bad, csi_node("n1", migrated="kubernetes.io/aws-ebs")], uses("c"))
    assert asked([claim(volume="pv"), bad], uses("c")) == {}, "no node needs the translation"


# Claims that wait for a node


@pytest.mark.parametrize(
    ("wanted", "offered", "fits"),
    [
        pytest.param({}, {}, True, id="suits"),
        pytest.param({"size": "10Gi"}, {"size": "10Gi"}, True, id="just large enough"),
        pytest.param({"size": "10000000001m"}, {"size": "10M"}, False, id="too small by a thousandth"),
        pytest.param({"size": None}, {"size": "0"}, True, id="asks for nothing"),
        pytest.param({"volumeMode": "Block"}, {}, False, id="a block device is asked for"),
        pytest.param({"volumeMode": "Filesystem"}, {}, True, id="a file system is the default"),
        pytest.param({}, {"volumeMode": "Block"}, False, id="a block device is offered"),
        pytest.param({"volumeAttributesClassName": "gold"}, {}, False, id="an attributes class is asked for"),
        pytest.param({}, {"volumeAttributesClassName": "gold"}, False, id="an attributes class is offered"),
        pytest.param({"volumeAttributesClassName": ""}, {}, True, id="an empty attributes class"),
        pytest.param({}, {"meta": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, False, id="being deleted"),
        pytest.param({}, {"phase": "Released"}, False, id="not available"),
        pytest.param({}, {"storage_class": "other"}, False, id="of another class"),
        pytest.param({"accessModes": ["ReadWriteMany"]}, {}, False, id="an access mode it lacks"),
        pytest.param(
            {}, {"accessModes": ["ReadOnlyMany", "ReadWriteOnce"]}, True, id="more modes than needed"
        ),
        pytest.param({"selector": {}}, {}, True, id="an empty selector"),
        pytest.param({"selector": {"matchLabels": {"disk": "ssd"}}}, {}, False, id="a label it lacks"),
        pytest.param(
            {"selector": {"matchLabels": {"disk": "ssd"}}},
            {"labels": {"disk": "ssd"}},
            True,
            id="a label it has",
        ),
        pytest.param({}, {"claimRef": ours()}, True, id="reserved for the claim"),
        pytest.param(
            {}, {"claimRef": ours(), "phase": "Bound"}, True, id="for the claim, whatever its phase"
        ),
        pytest.param({}, {"claimRef": ours("")}, True, id="for a claim of that name"),
        pytest.param({}, {"claimRef": ours("old")}, False, id="for an earlier claim"),
        pytest.param({}, {"claimRef": ours(name="d")}, False, id="for another claim"),
        pytest.param({}, {"claimRef": ours(), "size": "1Gi"}, False, id="for the claim, but too small"),
    ],
)
def test_volumes_that_suit_a_claim(wanted, offered, fits):
    found = asked([claim(**wanted), volume(**offered), LOCAL], uses("c"))
    assert found == ({} if fits else refused(n1=UNBINDABLE, n2=UNBINDABLE, n3=UNBINDABLE))


def on_host(name: str, host: str, **more: Any) -> Any:
    return volume(name, on={HOST: [host]}, **more)


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param([on_host("x", "n1")], refused(n2=UNBINDABLE, n3=UNBINDABLE), id="where the volume is"),
        pytest.param(
            [on_host("x", "n1"), on_host("y", "n2")], refused(n3=UNBINDABLE), id="one here, one there"
        ),
        pytest.param(
            [on_host("x", "n1", claimRef=ours()), volume("y")],
            refused(n2=UNBINDABLE, n3=UNBINDABLE),
            id="a volume reserved for the claim hides all others",
        ),
        pytest.param(
            [on_host("x", "n1", claimRef=ours(), size="1Gi"), volume("y")], {}, id="unless it does not suit"
        ),
        pytest.param(
            [on_host("x", "n1", claimRef=ours()), volume("y", claimRef=ours())],
            refused(n2=UNBINDABLE, n3=UNBINDABLE),
            id="the first of two reserved ones decides",
        ),
    ],
)
def test_volumes_here_and_there(objects, expected):
    assert asked([claim(), LOCAL, *objects], uses("c")) == expected


@pytest.mark.parametrize(
    ("claims", "volumes", "fits"),
    [
        pytest.param([claim("a"), claim("b")], [volume("x")], False, id="one volume for two claims"),
        pytest.param(
            [claim("a"), claim("b")], [volume("x"), volume("y")], True, id="two volumes for two claims"
        ),
        pytest.param(
            [claim("a", size="8Gi"), claim("b", size="1Gi")],
            [volume("x", size="10Gi"), volume("y", size="2Gi")],
            True,
            id="the smaller claim gets the smaller volume",
        ),
        pytest.param(
            [claim("a", size="2Gi"), claim("b", size="1Gi")],
            [volume("x", size="3Gi"), volume("y", size="1Gi", accessModes=["ReadOnlyMany"])],
            False,
            id="the smaller claim is served first",
        ),
        pytest.param(
            [claim("a"), claim("b", "other")],
            [volume("x"), volume("y", "other")],
            True,
            id="claims of two classes",
        ),
    ],
)
def test_several_claims(claims, volumes, fits):
    other = storage_class("other", provisioner="")
    names = [made["metadata"]["name"] for made in claims]
    found = asked([*claims, *volumes, LOCAL, other], *map(uses, names))
    assert found == ({} if fits else refused(n1=UNBINDABLE, n2=UNBINDABLE, n3=UNBINDABLE))


def test_a_claim_named_by_two_volumes_asks_twice():
    assert asked([claim(), volume("x"), LOCAL], uses("c"), uses("c")) == refused(
        n1=UNBINDABLE, n2=UNBINDABLE, n3=UNBINDABLE
    )
    assert asked([claim(), volume("x"), volume("y"), LOCAL], uses("c"), uses("c")) == {}


def test_a_selector_that_cannot_be_built_ends_the_attempt():
    bad = claim(selector={"matchLabels": {"not a key": "x"}})
    with pytest.raises(SelectorError, match="not a key"):
        asked([bad, volume(), LOCAL], uses("c"))


# Volumes that would have to be made


@pytest.mark.parametrize(
    ("made_by", "expected"),
    [
        pytest.param(storage_class(), {}, id="anywhere"),
        pytest.param(LOCAL, refused(n1=UNBINDABLE, n2=UNBINDABLE, n3=UNBINDABLE), id="by nobody"),
        pytest.param(
            storage_class(provisioner=""),
            refused(n1=UNBINDABLE, n2=UNBINDABLE, n3=UNBINDABLE),
            id="by no name",
        ),
        pytest.param(
            storage_class(topologies=[{ZONE: ["a", "x"]}]),
            refused(n2=UNBINDABLE, n3=UNBINDABLE),
            id="in a zone",
        ),
        pytest.param(
            storage_class(topologies=[{ZONE: ["a"]}, {ZONE: ["b"], HOST: ["n2"]}]),
            refused(n3=UNBINDABLE),
            id="in any of two places",
        ),
        pytest.param(
            storage_class(topologies=[{}]),
            refused(n1=UNBINDABLE, n2=UNBINDABLE, n3=UNBINDABLE),
            id="an empty place is nowhere",
        ),
        pytest.param(
            storage_class(topologies=[{"not a key": ["a"]}, {ZONE: ["a"]}]),
            refused(n2=UNBINDABLE, n3=UNBINDABLE),
            id="a malformed place is nowhere",
        ),
    ],
)
def test_where_volumes_can_be_made(made_by, expected):
    assert asked([claim(), made_by], uses("c")) == expected


FULL = refused(n1=TOO_FULL, n2=TOO_FULL, n3=TOO_FULL)


@pytest.mark.parametrize(
    ("size", "objects", "expected"),
    [
        pytest.param("5Gi", [], {}, id="a driver that is not known"),
        pytest.param("5Gi", [csi_driver(storage_capacity=False)], {}, id="a driver that does not tell"),
        pytest.param("5Gi", [csi_driver(storage_capacity=None)], {}, id="a driver that says nothing of it"),
        pytest.param("5Gi", [csi_driver()], FULL, id="no capacity reported"),
        pytest.param(None, [csi_driver()], {}, id="nothing asked for"),
        pytest.param(
            "5Gi", [csi_driver(), capacity(topology={}, capacity="5Gi")], {}, id="just enough, everywhere"
        ),
        pytest.param("5Gi", [csi_driver(), capacity(topology={}, capacity="4Gi")], FULL, id="too little"),
        pytest.param(
            "1500m", [csi_driver(), capacity(topology={}, capacity="1001m")], {}, id="compared in whole bytes"
        ),
        pytest.param("5Gi", [csi_driver(), capacity(capacity="9Gi")], FULL, id="no topology: nowhere"),
        pytest.param("5Gi", [csi_driver(), capacity(topology={})], FULL, id="no amount"),
        pytest.param(
            "5Gi",
            [csi_driver(), capacity(topology={}, capacity="9Gi", maximumVolumeSize="4Gi")],
            FULL,
            id="no volume may be that large",
        ),
        pytest.param(
            "5Gi",
            [csi_driver(), capacity(topology={}, capacity="1Gi", maximumVolumeSize="9Gi")],
            {},
            id="the largest volume counts, not what is free",
        ),
        pytest.param(
            "5Gi",
            [csi_driver(), capacity(storage_class="x", topology={}, capacity="9Gi")],
            FULL,
            id="other class",
        ),
        pytest.param(
            "5Gi",
            [csi_driver(), capacity(topology={"matchLabels": {ZONE: "a"}}, capacity="9Gi")],
            refused(n2=TOO_FULL, n3=TOO_FULL),
            id="in one zone",
        ),
        pytest.param(
            "5Gi",
            [
                csi_driver(),
                capacity("x", topology={"matchLabels": {ZONE: "a"}}, capacity="9Gi"),
                capacity(
                    "y",
                    topology={"matchExpressions": [expression(HOST, "NotIn", "n1", "n2")]},
                    capacity="9Gi",
                ),
                capacity("z", topology={"matchLabels": {HOST: "n2"}}, capacity="1Gi"),
            ],
            refused(n2=TOO_FULL),
            id="here and there",
        ),
        pytest.param(
            "5Gi",
            [csi_driver(), capacity(topology={"matchLabels": {"not a key": "a"}}, capacity="9Gi")],
            FULL,
            id="a malformed topology: nowhere",
        ),
    ],
)
def test_storage_capacity(size, objects, expected):
    assert asked([claim(size=size), storage_class(), *objects], uses("c")) == expected


def test_storage_capacity_is_not_summed_up():
    objects = [claim("a"), claim("b"), storage_class(), csi_driver(), capacity(topology={}, capacity="5Gi")]
    assert asked(objects, uses("a"), uses("b")) == {}


def test_the_first_claim_that_cannot_be_served_gives_the_reason():
    objects = [
        claim("big", "full", size="9Gi"),
        claim("small", "zoned", size="1Gi"),
        storage_class("full", provisioner="full"),
        csi_driver("full"),
        storage_class("zoned", topologies=[{ZONE: ["a"]}]),
    ]
    expected = refused(n1=TOO_FULL, n2=UNBINDABLE, n3=UNBINDABLE)
    assert asked(objects, uses("big"), uses("small")) == expected, "the smaller is served first"


def test_several_reasons_in_order():
    objects = [
        claim("here", volume="pv"),
        volume(on={ZONE: ["a"]}),
        claim("gone", volume="nowhere"),
        claim("new", "full"),
        storage_class("full", topologies=[{HOST: ["n1", "n2"]}]),
        csi_driver(),
    ]
    assert asked(objects, uses("here"), uses("gone"), uses("new")) == refused(
        n1=(TOO_FULL, MISSING), n2=(CONFLICT, TOO_FULL), n3=(CONFLICT, UNBINDABLE)
    )


@pytest.mark.parametrize(
    ("objects", "volumes", "expected"),
    [
        pytest.param(
            [claim(annotations={SELECTED: "n2"}), storage_class()],
            ["c"],
            refused(n1=UNBINDABLE, n3=UNBINDABLE),
            id="pins the pod",
        ),
        pytest.param(
            [claim(annotations={SELECTED: "n2"}), volume(), LOCAL],
            ["c"],
            refused(n1=UNBINDABLE, n2=UNBINDABLE, n3=UNBINDABLE),
            id="existing volumes are no longer looked at",
        ),
        pytest.param(
            [claim(annotations={SELECTED: "gone"}), storage_class()],
            ["c"],
            refused(n1=UNBINDABLE, n2=UNBINDABLE, n3=UNBINDABLE),
            id="a node that is gone",
        ),
        pytest.param(
            [claim(annotations={SELECTED: "n2"}), storage_class(), csi_driver()],
            ["c"],
            refused(n1=UNBINDABLE, n2=TOO_FULL, n3=UNBINDABLE),
            id="capacity counts there, nothing else elsewhere",
        ),
        pytest.param(
            [claim(annotations={SELECTED: "n1"}), claim("d", annotations={SELECTED: "n2"}), storage_class()],
            ["c", "d"],
            refused(n1=UNBINDABLE, n2=UNBINDABLE, n3=UNBINDABLE),
            id="two claims on two nodes",
        ),
        pytest.param(
            [
                claim("big", "full", annotations={SELECTED: "n1"}, size="9Gi"),
                claim("small", size="1Gi"),
                storage_class("full", provisioner="full"),
                csi_driver("full"),
                LOCAL,
            ],
            ["small", "big"],
            refused(n1=TOO_FULL, n2=UNBINDABLE, n3=UNBINDABLE),
            id="those with a node are served first",
        ),
    ],
)
def test_selected_node(objects, volumes, expected):
    assert asked(objects, *map(uses, volumes)) == expected


def test_does_not_score():
    cluster = cluster_of(*NODES)
    plugin = VolumeBinding(VolumeBindingArgs(), Handle(cluster))
    waiting, state = Pod.decode(pod(uses("c"))), CycleState()
    assert plugin.pre_score(state, waiting, cluster.nodes) == Status.skip()
    assert plugin.score(state, waiting, cluster.nodes.node(0)) == 0
