"""VolumeRestrictions: disks that two pods cannot share, and claims for one pod alone."""

from __future__ import annotations

import pytest
from volume_objects import claim, cluster_of, filtered, node, plugin_in, pod, read, refusals, uses

from stowplan.api.pod import Pod
from stowplan.framework import QUEUE, SKIP_HINT, Action, ClusterEvent, CycleState, Resource, Status
from stowplan.plugins.default.volume_restrictions import VolumeRestrictions

NO_DISK = ("Unschedulable", ("node(s) had no available disk",))
IN_USE = (
    "Unschedulable",
    (
        "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode "
        "already in-use by another pod",
    ),
)
ONE_POD = {"accessModes": ["ReadWriteOncePod"]}


def gce(name, read_only=False):
    return {"gcePersistentDisk": {"pdName": name, "readOnly": read_only}}


def ebs(name):
    return {"awsElasticBlockStore": {"volumeID": name, "readOnly": True}}


def iscsi(iqn, read_only=False, portal="1.2.3.4"):
    return {"iscsi": {"targetPortal": portal, "iqn": iqn, "lun": 0, "readOnly": read_only}}


def rbd(monitors, image="i", pool=None, read_only=False):
    spec = {"monitors": monitors, "image": image, "readOnly": read_only}
    return {"rbd": spec | ({"pool": pool} if pool else {})}


DISKS = [
    pytest.param(gce("d"), gce("d"), True, id="gce: the same disk"),
    pytest.param(gce("d"), gce("e"), False, id="gce: another disk"),
    pytest.param(gce("d", True), gce("d", True), False, id="gce: both only read"),
    pytest.param(gce("d", True), gce("d"), True, id="gce: the other writes"),
    pytest.param(ebs("v"), ebs("v"), True, id="ebs: the same volume, even to read"),
    pytest.param(ebs("v"), ebs("w"), False, id="ebs: another volume"),
    pytest.param(iscsi("q"), iscsi("q", portal="5.6.7.8"), True, id="iscsi: the same name, wherever it is"),
    pytest.param(iscsi("q", True), iscsi("q", True), False, id="iscsi: both only read"),
    pytest.param(iscsi("q"), iscsi("r"), False, id="iscsi: another name"),
    pytest.param(rbd(["a", "b"]), rbd(["b", "c"]), True, id="rbd: a monitor in common"),
    pytest.param(rbd(["a"]), rbd(["a"], pool="rbd"), True, id="rbd: the pool has a default"),
    pytest.param(rbd(["a"]), rbd(["b"]), False, id="rbd: no monitor in common"),
    pytest.param(rbd(["a"]), rbd(["a"], image="j"), False, id="rbd: another image"),
    pytest.param(rbd(["a"]), rbd(["a"], pool="p"), False, id="rbd: another pool"),
    pytest.param(rbd(["a"], read_only=True), rbd(["a"], read_only=True), False, id="rbd: both only read"),
    pytest.param(gce("d"), ebs("d"), False, id="disks of different kinds"),
]


@pytest.mark.parametrize(("wanted", "taken", "conflict"), DISKS)
def test_disks(wanted, taken, conflict):
    cluster = cluster_of(node("free"), node("taken"), pod(taken, name="other", node="taken", namespace="far"))
    expected = {"taken": NO_DISK} if conflict else {}
    assert refusals(plugin_in(VolumeRestrictions, cluster), pod(wanted)) == expected


@pytest.mark.parametrize(
    ("volumes", "others", "expected"),
    [
        pytest.param([], [], Status.skip(), id="no volumes"),
        pytest.param([{"emptyDir": {}}], [], Status.skip(), id="a volume that does not matter"),
        pytest.param(
            [uses("lost")],
            [],
            Status.unresolvable('persistentvolumeclaim "lost" not found'),
            id="no such claim",
        ),
        pytest.param([{"ephemeral": {}}], [], Status.skip(), id="an ephemeral volume is not looked up"),
        pytest.param([uses("shared")], [uses("shared")], Status.skip(), id="a claim that may be shared"),
        pytest.param([uses("own")], [uses("shared")], Status.skip(), id="a claim for one pod, unused"),
        pytest.param([uses("own")], [uses("own")], {"n1": IN_USE, "n2": IN_USE}, id="in use on any node"),
        pytest.param(
            [gce("d"), uses("own")],
            [gce("d"), uses("own")],
            {"n1": NO_DISK, "n2": IN_USE},
            id="the disk is looked at first",
        ),
    ],
)
def test_claims(volumes, others, expected):
    cluster = cluster_of(
        node("n1"),
        node("n2"),
        claim("shared"),
        claim("own", **ONE_POD),
        pod(*others, name="other", node="n1"),
    )
    assert refusals(plugin_in(VolumeRestrictions, cluster), pod(*volumes)) == expected


def test_a_claim_of_another_namespace_is_another_claim():
    cluster = cluster_of(
        node("n1"), claim("own", **ONE_POD), pod(uses("own"), name="other", node="n1", namespace="far")
    )
    assert refusals(plugin_in(VolumeRestrictions, cluster), pod(uses("own"))) == Status.skip()


def test_a_use_by_a_pod_without_a_known_node_does_not_count():
    cluster = cluster_of(node("n1"), claim("own", **ONE_POD), pod(uses("own"), name="other", node="gone"))
    assert refusals(plugin_in(VolumeRestrictions, cluster), pod(uses("own"))) == Status.skip()


def test_pods_that_come_and_go_in_a_trial():
    using = pod(uses("own"), name="using", node="n1")
    cluster = cluster_of(node("n1"), claim("own", **ONE_POD), using)
    plugin, state, waiting = (
        plugin_in(VolumeRestrictions, cluster),
        CycleState(),
        Pod.decode(pod(uses("own"))),
    )
    assert plugin.pre_filter(state, waiting, cluster.nodes) is None
    trial = state.clone()
    plugin.remove_pod(trial, waiting, read(using), cluster.nodes.node(0))
    assert filtered(plugin, trial, waiting, cluster.nodes) == {}
    assert filtered(plugin, state, waiting, cluster.nodes) == {"n1": IN_USE}
    elsewhere = Pod.decode(pod(uses("own"), name="elsewhere", namespace="far"))
    plugin.add_pod(trial, waiting, elsewhere, cluster.nodes.node(0))
    assert filtered(plugin, trial, waiting, cluster.nodes) == {"n1": IN_USE}, "namespaces are not compared"


@pytest.mark.parametrize(("wanted", "freed", "helps"), DISKS)
def test_hint_when_a_pod_with_a_disk_leaves(wanted, freed, helps):
    plugin = plugin_in(VolumeRestrictions, cluster_of())
    event = ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE)
    near, far = (read(pod(freed, name="other", node="n", namespace=where)) for where in ("default", "far"))
    waiting = read(pod(wanted))
    assert plugin.queueing_hint(waiting, event, near, None) == (QUEUE if helps else SKIP_HINT)
    assert plugin.queueing_hint(waiting, event, far, None) == SKIP_HINT


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(pod(uses("own"), name="o", node="n"), None, QUEUE, id="a user of the claim leaves"),
        pytest.param(pod(uses("other"), name="o", node="n"), None, SKIP_HINT, id="a user of another claim"),
        pytest.param(
            pod(uses("own"), name="o", node="n", namespace="far"), None, SKIP_HINT, id="of another namespace"
        ),
        pytest.param(None, claim("own"), QUEUE, id="the claim appears"),
        pytest.param(None, claim("p-v1"), SKIP_HINT, id="the claim of an ephemeral volume"),
        pytest.param(None, claim("other"), SKIP_HINT, id="another claim"),
        pytest.param(None, node("n"), QUEUE, id="a node appears"),
    ],
)
def test_hints(old, new, expected):
    waiting = read(pod(uses("own"), {"ephemeral": {}}))
    event = ClusterEvent(Resource.POD if old else Resource.NODE, Action.DELETE if old else Action.ADD)
    before, after = (manifest and read(manifest) for manifest in (old, new))
    plugin = plugin_in(VolumeRestrictions, cluster_of())
    assert plugin.queueing_hint(waiting, event, before, after) == expected


def test_registers_for():
    assert set(plugin_in(VolumeRestrictions, cluster_of()).events_to_register()) == {
        (Resource.POD, Action.DELETE),
        (Resource.NODE, Action.ADD),
        (Resource.PERSISTENT_VOLUME_CLAIM, Action.ADD),
    }
