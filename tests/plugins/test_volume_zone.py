"""VolumeZone: zones and regions in the labels of volumes against those of nodes."""

from __future__ import annotations

import pytest
from volume_objects import (
    claim,
    cluster_of,
    node,
    plugin_in,
    pod,
    read,
    refusals,
    storage_class,
    uses,
    volume,
)

from stowplan.framework import QUEUE, SKIP_HINT, Action, ClusterEvent, Resource, Status
from stowplan.plugins.default.volume_zone import VolumeZone

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
WRONG = ("UnschedulableAndUnresolvable", ("node(s) had no available volume zone",))


def labelled(labels):
    made = node("n")
    made["metadata"]["labels"] = labels
    return made


@pytest.mark.parametrize(
    ("volume_labels", "node_labels", "fits"),
    [
        pytest.param({ZONE: "a"}, {ZONE: "a"}, True, id="the zone"),
        pytest.param({ZONE: "a"}, {ZONE: "b"}, False, id="another zone"),
        pytest.param({ZONE: "a__b"}, {ZONE: "b"}, True, id="one of several zones"),
        pytest.param({ZONE: "a__ b "}, {ZONE: "b"}, True, id="spaces do not count"),
        pytest.param({ZONE: "a"}, {"other": "x"}, True, id="a node without any topology"),
        pytest.param({ZONE: "a"}, {REGION: "r"}, False, id="a node with a region alone"),
        pytest.param({ZONE: "a", REGION: "r"}, {ZONE: "a", REGION: "s"}, False, id="another region"),
        pytest.param({ZONE: "a", REGION: "r"}, {ZONE: "a", REGION: "r"}, True, id="zone and region"),
        pytest.param(
            {BETA_ZONE: "a"}, {ZONE: "a"}, True, id="an old label on the volume, a new one on the node"
        ),
        pytest.param({BETA_ZONE: "a"}, {ZONE: "b"}, False, id="old and new differ"),
        pytest.param(
            {BETA_ZONE: "a"}, {BETA_ZONE: "a", ZONE: "b"}, True, id="the node's old label comes first"
        ),
        pytest.param({BETA_ZONE: "a"}, {BETA_ZONE: "b", ZONE: "a"}, False, id="and hides its new one"),
        pytest.param({ZONE: "a"}, {BETA_ZONE: "a"}, False, id="a new label is not held against an old one"),
        pytest.param({BETA_REGION: "r"}, {REGION: "r"}, True, id="regions too"),
        pytest.param({BETA_REGION: "r"}, {BETA_REGION: "s"}, False, id="another old region"),
    ],
)
def test_zones(volume_labels, node_labels, fits):
    cluster = cluster_of(labelled(node_labels), claim("c", volume="pv"), volume("pv", labels=volume_labels))
    assert refusals(plugin_in(VolumeZone, cluster), pod(uses("c"))) == ({} if fits else {"n": WRONG})


def test_all_volumes_must_agree():
    claims = [claim("a", volume="pv-a"), claim("b", volume="pv-b")]
    volumes = [volume("pv-a", labels={ZONE: "x__y"}), volume("pv-b", labels={ZONE: "y__z"})]
    nodes = [node(zone, topology_kubernetes_io__zone=zone) for zone in "xyz"]
    plugin = plugin_in(VolumeZone, cluster_of(*nodes, *claims, *volumes))
    assert refusals(plugin, pod(uses("a"), uses("b"))) == {"x": WRONG, "z": WRONG}


@pytest.mark.parametrize(
    ("volumes", "objects", "expected"),
    [
        pytest.param([], [], Status.skip(), id="no volumes"),
        pytest.param([{"ephemeral": {}}], [], Status.skip(), id="an ephemeral volume"),
        pytest.param(
            [uses("")],
            [],
            Status.unresolvable("PersistentVolumeClaim had no name"),
            id="a claim without a name",
        ),
        pytest.param(
            [uses("c")], [], Status.unresolvable('persistentvolumeclaim "c" not found'), id="no such claim"
        ),
        pytest.param(
            [uses("c")],
            [claim("c", None)],
            Status.unresolvable("PersistentVolumeClaim had no pv name and storageClass name"),
            id="neither volume nor class",
        ),
        pytest.param(
            [uses("c")],
            [claim("c")],
            Status.unresolvable('storageclass.storage.k8s.io "wait" not found'),
            id="no such class",
        ),
        pytest.param(
            [uses("c")],
            [claim("c"), storage_class(mode=None)],
            Status.unresolvable('VolumeBindingMode not set for StorageClass "wait"'),
            id="a class without a mode",
        ),
        pytest.param(
            [uses("c")],
            [claim("c"), storage_class(mode="Immediate")],
            Status.unresolvable("PersistentVolume had no name"),
            id="not bound yet",
        ),
        pytest.param([uses("c")], [claim("c"), storage_class()], Status.skip(), id="waits for a node"),
        pytest.param(
            [uses("c")],
            [claim("c", volume="pv")],
            Status.unresolvable('persistentvolume "pv" not found'),
            id="no such volume",
        ),
        pytest.param(
            [uses("c")], [claim("c", volume="pv"), volume()], Status.skip(), id="a volume without labels"
        ),
        pytest.param(
            [uses("c")],
            [claim("c", volume="pv"), volume(labels={ZONE: "a__"})],
            Status.skip(),
            id="a label with an empty part",
        ),
        pytest.param(
            [uses("c")],
            [claim("c", volume="pv", annotations={}), volume(labels={ZONE: "a"})],
            {"n": WRONG},
            id="a named volume counts before it is confirmed",
        ),
    ],
)
def test_before_nodes_are_looked_at(volumes, objects, expected):
    cluster = cluster_of(node("n", topology_kubernetes_io__zone="b"), *objects)
    assert refusals(plugin_in(VolumeZone, cluster), pod(*volumes)) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(None, storage_class(), QUEUE, id="a class that waits"),
        pytest.param(None, storage_class(mode="Immediate"), SKIP_HINT, id="a class that does not"),
        pytest.param(None, storage_class(mode=None), SKIP_HINT, id="a class without a mode"),
        pytest.param(None, claim("c"), QUEUE, id="the claim appears"),
        pytest.param(claim("c"), claim("c", volume="pv"), QUEUE, id="the claim changes"),
        pytest.param(claim("d"), claim("d", volume="pv"), SKIP_HINT, id="another claim changes"),
        pytest.param(None, claim("p-v1"), SKIP_HINT, id="the claim of an ephemeral volume"),
        pytest.param(None, volume(), QUEUE, id="a volume appears"),
        pytest.param(volume(), volume(labels={ZONE: "a"}), QUEUE, id="a volume gets a zone"),
        pytest.param(volume(labels={ZONE: "a"}), volume(labels={ZONE: "b"}), QUEUE, id="a volume moves"),
        pytest.param(volume(labels={"x": "a"}), volume(labels={"x": "b"}), SKIP_HINT, id="another label"),
        pytest.param(
            volume(labels={ZONE: "a__b"}),
            volume(labels={ZONE: "b__a"}),
            SKIP_HINT,
            id="the same zones in turn",
        ),
        pytest.param(None, node("n"), QUEUE, id="a node appears"),
        pytest.param(node("n"), node("n", x="y"), QUEUE, id="a node changes"),
    ],
)
def test_hints(old, new, expected):
    waiting, event = read(pod(uses("c"), {"ephemeral": {}})), ClusterEvent(Resource.WILDCARD, Action.ALL)
    before, after = (manifest and read(manifest) for manifest in (old, new))
    assert plugin_in(VolumeZone, cluster_of()).queueing_hint(waiting, event, before, after) == expected


def test_registers_for():
    assert set(plugin_in(VolumeZone, cluster_of()).events_to_register()) == {
        (Resource.STORAGE_CLASS, Action.ADD),
        (Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL),
        (Resource.PERSISTENT_VOLUME_CLAIM, Action.ADD | Action.UPDATE),
        (Resource.PERSISTENT_VOLUME, Action.ADD | Action.UPDATE),
    }
