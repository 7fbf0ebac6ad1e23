"""NodeVolumeLimits: how many volumes of a driver a node has, and whether more fit."""

from __future__ import annotations

import pytest
from volume_objects import (
    attachment,
    claim,
    cluster_of,
    csi_node,
    node,
    plugin_in,
    pod,
    read,
    refusals,
    storage_class,
    uses,
    volume,
)

from stowplan.framework import QUEUE, SKIP_HINT, Action, ClusterEvent, FilterError, Resource, Status
from stowplan.plugins.default.node_volume_limits import NodeVolumeLimits

CSI, EBS = "csi.example.com", "ebs.csi.aws.com"
FULL = {"n": ("Unschedulable", ("node(s) exceed max volume count",))}
EPHEMERAL = {"ephemeral": {}}
IN_TREE = {"awsElasticBlockStore": {"volumeID": "aws://zone/vol-1"}}


def bound(name, **spec):
    """A claim, and the volume it is bound to."""
    return [claim(name, volume=f"pv-{name}"), volume(f"pv-{name}", **spec)]


def owned(name, uid):
    made = claim(name, volume="pv-a")
    made["metadata"]["ownerReferences"] = [{"kind": "Pod", "uid": uid, "controller": True}]
    return made


BOUND = [*bound("a"), *bound("b"), *bound("c")]


@pytest.mark.parametrize(
    ("limits", "objects", "running", "expected"),
    [
        pytest.param({CSI: 1}, BOUND, [], {}, id="the first volume"),
        pytest.param({CSI: 0}, BOUND, [], FULL, id="a driver that takes none"),
        pytest.param({CSI: 1}, BOUND, [[uses("b")]], FULL, id="one is there already"),
        pytest.param({CSI: 2}, BOUND, [[uses("b")]], {}, id="two fit"),
        pytest.param({CSI: 1}, BOUND, [[uses("a")]], {}, id="the same volume counts once"),
        pytest.param({CSI: 2}, BOUND, [[uses("b")], [uses("b")]], {}, id="shared by pods on the node"),
        pytest.param({CSI: 2}, BOUND, [[uses("b"), uses("c")]], FULL, id="two volumes of one pod"),
        pytest.param({CSI: 1}, BOUND, [[uses("gone")]], {}, id="a claim that is gone does not count"),
        pytest.param({"other": 0}, BOUND, [[uses("b")]], {}, id="limits of other drivers"),
        pytest.param({CSI: None}, BOUND, [[uses("b")]], {}, id="no limit given"),
        pytest.param({}, BOUND, [[uses("b")]], {}, id="no drivers"),
        pytest.param(None, BOUND, [[uses("b")]], {}, id="no CSINode"),
    ],
)
def test_bound_claims(limits, objects, running, expected):
    here = [csi_node("n", limits)] if limits is not None else []
    others = [pod(*volumes, name=f"r{place}", node="n") for place, volumes in enumerate(running)]
    plugin = plugin_in(NodeVolumeLimits, cluster_of(node("n"), *here, *objects, *others))
    assert refusals(plugin, pod(uses("a"))) == expected


@pytest.mark.parametrize(
    ("objects", "running", "driver", "counted"),
    [
        pytest.param([claim("a")], [], CSI, False, id="unbound, its class is missing"),
        pytest.param([claim("a", None)], [], CSI, False, id="unbound, no class"),
        pytest.param([claim("a"), storage_class()], [], CSI, True, id="unbound: the driver of its class"),
        pytest.param([claim("a"), storage_class()], [uses("a")], CSI, False, id="unbound, used on the node"),
        pytest.param(
            [claim("a", volume="gone"), storage_class()], [], CSI, True, id="its volume is gone: as unbound"
        ),
        pytest.param(
            [claim("a"), storage_class(provisioner="kubernetes.io/aws-ebs")],
            [],
            EBS,
            True,
            id="in-tree class",
        ),
        pytest.param(
            [claim("a"), storage_class(provisioner="kubernetes.io/vsphere-volume")],
            [],
            "csi.vsphere.vmware.com",
            False,
            id="in-tree class that is not migrated",
        ),
        pytest.param(bound("a", **IN_TREE), [], EBS, True, id="in-tree volume"),
        pytest.param(bound("a", **IN_TREE), [IN_TREE], EBS, False, id="the same volume inline on the node"),
        pytest.param(bound("a", azureFile={}), [], "file.csi.azure.com", False, id="not migrated"),
        pytest.param(bound("a", local={"path": "/"}), [], CSI, False, id="a volume without a driver"),
        pytest.param(
            bound("a", awsElasticBlockStore={"volumeID": "aws://bad"}), [], EBS, False, id="a malformed id"
        ),
    ],
)
def test_drivers_behind_claims(objects, running, driver, counted):
    here = [csi_node("n", {driver: 0}), pod(*running, name="r", node="n")]
    plugin = plugin_in(NodeVolumeLimits, cluster_of(node("n"), *objects, *here))
    assert refusals(plugin, pod(uses("a"))) == (FULL if counted else {})


@pytest.mark.parametrize(
    ("source", "driver"),
    [
        (IN_TREE, EBS),
        ({"gcePersistentDisk": {"pdName": "d"}}, "pd.csi.storage.gke.io"),
        ({"azureDisk": {"diskURI": "d"}}, "disk.csi.azure.com"),
        ({"cinder": {"volumeID": "v"}}, "cinder.csi.openstack.org"),
        ({"portworxVolume": {"volumeID": "v"}}, "pxd.portworx.com"),
    ],
)
def test_inline_volumes_count_for_their_driver(source, driver):
    def asked(limit, *running):
        others = [pod(volume, name="r", node="n") for volume in running]
        return refusals(
            plugin_in(NodeVolumeLimits, cluster_of(node("n"), csi_node("n", {driver: limit}), *others)),
            pod(source),
        )

    assert asked(1) == {}
    assert asked(0) == FULL
    assert asked(1, source) == {}, "the same disk counts once"


@pytest.mark.parametrize("source", [{"azureFile": {}}, {"vsphereVolume": {}}], ids=str)
def test_inline_volumes_of_plugins_that_are_not_migrated(source):
    limits = {"file.csi.azure.com": 0, "csi.vsphere.vmware.com": 0}
    assert (
        refusals(plugin_in(NodeVolumeLimits, cluster_of(node("n"), csi_node("n", limits))), pod(source)) == {}
    )


@pytest.mark.parametrize(
    ("attachments", "running", "limit", "expected"),
    [
        pytest.param([attachment("pv-b", "n")], [], 2, {}, id="attached and unused: counts"),
        pytest.param([attachment("pv-b", "n")], [], 1, FULL, id="attached and unused: leaves no room"),
        pytest.param([attachment("pv-b", "n")], [uses("b")], 2, {}, id="attached and used: counts once"),
        pytest.param([attachment("pv-a", "n")], [], 1, FULL, id="the pod's own volume counts twice"),
        pytest.param([attachment("pv-a", "n")], [uses("a")], 1, {}, id="its own, used on the node"),
        pytest.param([attachment("pv-b", "m")], [], 1, {}, id="attached to another node"),
        pytest.param([attachment("pv-b", "n", "other")], [], 1, {}, id="attached by another driver"),
        pytest.param([attachment("pv-b", "n", "")], [], 1, {}, id="no attacher"),
        pytest.param([attachment(None, "n")], [], 1, {}, id="no volume"),
        pytest.param([attachment("gone", "n")], [], 1, {}, id="a volume that is gone"),
        pytest.param([attachment("pv-tree", "n", EBS)], [], 1, {}, id="an in-tree volume does not count"),
        pytest.param(
            [attachment("pv-b", "n"), attachment("pv-c", "n")], [], 2, FULL, id="two attached leave no room"
        ),
    ],
)
def test_volume_attachments(attachments, running, limit, expected):
    objects = [*BOUND, *bound("tree", **IN_TREE), *attachments, csi_node("n", {CSI: limit, EBS: 0})]
    cluster = cluster_of(node("n"), *objects, pod(*running, name="r", node="n"))
    assert refusals(plugin_in(NodeVolumeLimits, cluster), pod(uses("a"))) == expected


@pytest.mark.parametrize(
    ("volumes", "skipped"),
    [
        pytest.param([], True, id="none"),
        pytest.param([{"csi": {"driver": CSI}}], True, id="inline csi"),
        pytest.param([{"iscsi": {"iqn": "q"}}], True, id="iscsi"),
        pytest.param([uses("a")], False, id="a claim"),
        pytest.param([EPHEMERAL], False, id="ephemeral"),
        pytest.param([{"vsphereVolume": {}}], False, id="in-tree, even if not migrated"),
    ],
)
def test_skips_pods_that_attach_nothing(volumes, skipped):
    plugin = plugin_in(NodeVolumeLimits, cluster_of(node("n"), *BOUND))
    assert (refusals(plugin, pod(*volumes)) == Status.skip()) is skipped


def test_an_ephemeral_volume_counts_as_the_claim_made_for_the_pod():
    objects = [owned("p-v0", "uid-default-p"), *bound("a"), csi_node("n", {CSI: 0})]
    assert refusals(plugin_in(NodeVolumeLimits, cluster_of(node("n"), *objects)), pod(EPHEMERAL)) == FULL


def test_a_missing_claim_refuses_every_node():
    plugin = plugin_in(NodeVolumeLimits, cluster_of(node("n"), csi_node("n", {CSI: 9})))
    reason = 'looking up PVC default/a: persistentvolumeclaim "a" not found'
    assert refusals(plugin, pod(uses("a"))) == {"n": ("UnschedulableAndUnresolvable", (reason,))}


@pytest.mark.parametrize(
    ("volumes", "running", "text"),
    [
        pytest.param(
            [EPHEMERAL], [], r"PVC default/p-v0 was not created for pod default/p \(pod is not", id="new"
        ),
        pytest.param(
            [uses("a")], [EPHEMERAL], "PVC default/r-v0 was not created for pod default/r", id="there"
        ),
        pytest.param([uses("")], [], "PersistentVolumeClaim had no name", id="no name"),
        pytest.param(
            [{"awsElasticBlockStore": {"volumeID": "aws://bad"}}], [], r"converting volume\(v0\)", id="bad id"
        ),
        pytest.param(
            [uses("a")],
            [{"awsElasticBlockStore": {"volumeID": "aws://bad"}}],
            r"converting",
            id="bad id there",
        ),
    ],
)
def test_what_ends_the_attempt(volumes, running, text):
    objects = [owned("p-v0", "stranger"), owned("r-v0", "stranger"), *bound("a"), csi_node("n", {CSI: 9})]
    cluster = cluster_of(node("n"), *objects, pod(*running, name="r", node="n"))
    with pytest.raises(FilterError, match=text):
        refusals(plugin_in(NodeVolumeLimits, cluster), pod(*volumes))


def test_follows_what_changes():
    cluster = cluster_of(node("n"), node("m"), *BOUND, csi_node("n", {CSI: 1}), csi_node("m", {CSI: 1}))
    plugin = plugin_in(NodeVolumeLimits, cluster)
    assert refusals(plugin, pod(uses("a"))) == {}
    other = read(pod(uses("b"), name="r", node="n"))
    cluster.apply(other)
    assert refusals(plugin, pod(uses("a"))) == FULL
    cluster.remove(other)
    cluster.apply(read(attachment("pv-b", "n")))
    assert refusals(plugin, pod(uses("a"))) == FULL
    cluster.apply(read(csi_node("n", {CSI: 2})))
    assert refusals(plugin, pod(uses("a"))) == {}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(None, csi_node("n"), QUEUE, id="a CSINode appears"),
        pytest.param(csi_node("n", {CSI: 1}), csi_node("n", {CSI: 2}), QUEUE, id="a limit grew"),
        pytest.param(csi_node("n"), csi_node("n", {"new": 1}), QUEUE, id="a driver appears with a limit"),
        pytest.param(csi_node("n", {CSI: 2}), csi_node("n", {CSI: 1}), SKIP_HINT, id="a limit shrank"),
        pytest.param(csi_node("n", {CSI: 1}), csi_node("n"), SKIP_HINT, id="a limit is gone"),
        pytest.param(csi_node("n"), csi_node("n", {"new": 0}), SKIP_HINT, id="a driver that takes none"),
        pytest.param(pod(uses("x"), node="n"), None, QUEUE, id="a pod with a claim leaves"),
        pytest.param(pod(EPHEMERAL, node="n"), None, QUEUE, id="with an ephemeral volume"),
        pytest.param(pod({"azureFile": {}}, node="n"), None, QUEUE, id="with an in-tree volume"),
        pytest.param(
            pod({"csi": {"driver": CSI}}, node="n"), None, SKIP_HINT, id="with an inline CSI volume"
        ),
        pytest.param(pod(node="n"), None, SKIP_HINT, id="without volumes"),
        pytest.param(pod(uses("x")), None, SKIP_HINT, id="that had no node"),
        pytest.param(
            pod(uses("x")) | {"status": {"nominatedNodeName": "n"}}, None, QUEUE, id="that had one nominated"
        ),
        pytest.param(None, claim("a"), QUEUE, id="the claim appears"),
        pytest.param(None, claim("w-v1"), QUEUE, id="the claim of the ephemeral volume appears"),
        pytest.param(None, claim("x"), SKIP_HINT, id="another claim appears"),
        pytest.param(attachment("pv", "n", "any"), None, QUEUE, id="detached: the pod has a claim"),
    ],
)
def test_hints(old, new, expected):
    waiting = read(pod(uses("a"), EPHEMERAL, name="w"))
    before, after = (manifest and read(manifest) for manifest in (old, new))
    event = ClusterEvent(Resource.WILDCARD, Action.ALL)
    plugin = plugin_in(NodeVolumeLimits, cluster_of())
    assert plugin.queueing_hint(waiting, event, before, after) == expected


@pytest.mark.parametrize(
    ("source", "attacher", "expected"),
    [
        pytest.param(IN_TREE, EBS, QUEUE, id="its driver"),
        pytest.param({"vsphereVolume": {}}, "csi.vsphere.vmware.com", QUEUE, id="its driver, not migrated"),
        pytest.param(IN_TREE, CSI, SKIP_HINT, id="another driver"),
        pytest.param(EPHEMERAL, CSI, SKIP_HINT, id="an ephemeral volume"),
    ],
)
def test_hint_when_a_volume_is_detached(source, attacher, expected):
    plugin, event = plugin_in(NodeVolumeLimits, cluster_of()), ClusterEvent(Resource.WILDCARD, Action.ALL)
    detached = read(attachment("pv", "n", attacher))
    assert plugin.queueing_hint(read(pod(source)), event, detached, None) == expected


def test_registers_for():
    assert set(plugin_in(NodeVolumeLimits, cluster_of()).events_to_register()) == {
        (Resource.CSI_NODE, Action.ADD),
        (Resource.CSI_NODE, Action.UPDATE),
        (Resource.POD, Action.DELETE),
        (Resource.PERSISTENT_VOLUME_CLAIM, Action.ADD),
        (Resource.VOLUME_ATTACHMENT, Action.DELETE),
    }
