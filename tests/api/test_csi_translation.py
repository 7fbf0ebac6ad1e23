"""In-tree volumes as CSI volumes: handles, and node affinity in the driver's words."""

from __future__ import annotations

import pytest

from stowplan.api.csi_translation import inline_to_csi, plugin_of, volume_to_csi, zones_of_label
from stowplan.api.meta import decode
from stowplan.api.pod import Volume
from stowplan.api.storage import PersistentVolume
from stowplan.errors import InputError

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
EBS_ZONE = "topology.ebs.csi.aws.com/zone"
EBS = {"awsElasticBlockStore": {"volumeID": "vol-1"}}


@pytest.mark.parametrize(
    ("source", "driver", "handle"),
    [
        pytest.param(EBS, "ebs.csi.aws.com", "vol-1", id="ebs"),
        pytest.param(
            {"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-2"}},
            "ebs.csi.aws.com",
            "vol-2",
            id="ebs with a zone",
        ),
        pytest.param(
            {"awsElasticBlockStore": {"volumeID": "aws:///vol-3"}},
            "ebs.csi.aws.com",
            "vol-3",
            id="ebs with an empty zone",
        ),
        pytest.param(
            {"gcePersistentDisk": {"pdName": "d"}},
            "pd.csi.storage.gke.io",
            "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
            id="gce",
        ),
        pytest.param(
            {"azureDisk": {"diskName": "d", "diskURI": "/subscriptions/d"}},
            "disk.csi.azure.com",
            "/subscriptions/d",
            id="azure disk",
        ),
        pytest.param({"cinder": {"volumeID": "id"}}, "cinder.csi.openstack.org", "id", id="cinder"),
        pytest.param({"portworxVolume": {"volumeID": "id"}}, "pxd.portworx.com", "id", id="portworx"),
    ],
)
def test_source_of_migrated_volumes(source, driver, handle):
    inline, volume = decode(Volume, source), decode(PersistentVolume, {"spec": source})
    plugin = plugin_of(inline)
    assert plugin is not None
    assert plugin.is_migrated
    assert plugin == plugin_of(volume.spec)
    for csi in (inline_to_csi(plugin, inline), volume_to_csi(plugin, volume).spec.csi):
        assert csi is not None
        assert (csi.driver, csi.volume_handle) == (driver, handle)


@pytest.mark.parametrize("source", [{"azureFile": {}}, {"vsphereVolume": {"volumePath": "p"}}], ids=str)
def test_known_but_not_migrated(source):
    plugin = plugin_of(decode(Volume, source))
    assert plugin is not None
    assert not plugin.is_migrated


@pytest.mark.parametrize("source", [{"csi": {"driver": "d"}}, {"iscsi": {"iqn": "i"}}, {"rbd": {}}], ids=str)
def test_not_known(source):
    assert plugin_of(decode(Volume, source)) is None


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        pytest.param({ZONE: "us-west1-a"}, "zones/us-west1-a", id="a zone"),
        pytest.param(
            {ZONE: "us-west1-a", BETA_ZONE: "us-east1-b"}, "zones/us-east1-b", id="the old label first"
        ),
        pytest.param({ZONE: "us-west1-a__us-west1-b"}, "regions/us-west1", id="several zones of a region"),
        pytest.param({}, "zones/UNSPECIFIED", id="no label"),
    ],
)
def test_handle_of_a_google_volume(labels, place):
    volume = decode(
        PersistentVolume, {"metadata": {"labels": labels}, "spec": {"gcePersistentDisk": {"pdName": "d"}}}
    )
    plugin = plugin_of(volume.spec)
    assert plugin is not None
    csi = volume_to_csi(plugin, volume).spec.csi
    assert csi is not None
    assert csi.volume_handle == f"projects/UNSPECIFIED/{place}/disks/d"


def affinity(*terms):
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": list(term)} for term in terms]}}


def within(key, *values, operator="In"):
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("labels", "before", "after"),
    [
        pytest.param({}, None, None, id="neither label nor affinity"),
        pytest.param({}, affinity([within(ZONE, "a")]), affinity([within(EBS_ZONE, "a")]), id="renamed"),
        pytest.param(
            {},
            affinity([within(ZONE, "a"), within("disk", "ssd")], [within(ZONE, "b", operator="NotIn")]),
            affinity(
                [within(EBS_ZONE, "a"), within("disk", "ssd")], [within(EBS_ZONE, "b", operator="NotIn")]
            ),
            id="renamed in all terms, the rest kept",
        ),
        pytest.param(
            {},
            affinity([within(BETA_ZONE, "a"), within(BETA_REGION, "r")]),
            affinity([within(EBS_ZONE, "a"), within(REGION, "r")]),
            id="old labels: the region gets its new name",
        ),
        pytest.param(
            {},
            affinity([within(ZONE, "a"), within(BETA_ZONE, "b")]),
            affinity([within(EBS_ZONE, "a"), within(BETA_ZONE, "b")]),
            id="both: the old zone stays",
        ),
        pytest.param(
            {},
            affinity([within(ZONE, "a", operator="NotIn")]),
            affinity([within(EBS_ZONE, "a", operator="NotIn")]),
            id="renamed whatever the operator",
        ),
        pytest.param({ZONE: "b__a"}, None, affinity([within(EBS_ZONE, "a", "b")]), id="from the label"),
        pytest.param({ZONE: "b____ __a"}, None, affinity([within(EBS_ZONE, "a", "b")]), id="empty zones"),
        pytest.param({ZONE: ""}, None, None, id="a label without a zone"),
        pytest.param(
            {BETA_ZONE: "a"},
            affinity([within("disk", "ssd")], [within("disk", "hdd")]),
            affinity(
                [within("disk", "ssd"), within(EBS_ZONE, "a")], [within("disk", "hdd"), within(EBS_ZONE, "a")]
            ),
            id="from the old label, added to every term",
        ),
        pytest.param(
            {ZONE: "a"},
            affinity([within(ZONE, operator="Exists")]),
            affinity([within(ZONE, operator="Exists"), within(EBS_ZONE, "a")]),
            id="an affinity without values: the label counts",
        ),
    ],
)
def test_affinity_in_the_words_of_the_driver(labels, before, after):
    def volume(terms):
        spec = dict(EBS) if terms is None else EBS | {"nodeAffinity": terms}
        return decode(PersistentVolume, {"metadata": {"labels": labels}, "spec": spec})

    plugin = plugin_of(volume(None).spec)
    assert plugin is not None
    assert volume_to_csi(plugin, volume(before)).node_terms == volume(after).node_terms


def test_azure_disks_keep_their_affinity():
    spec = {"azureDisk": {"diskURI": "d"}, "nodeAffinity": affinity([within(ZONE, "a")])}
    volume = decode(PersistentVolume, {"spec": spec})
    plugin = plugin_of(volume.spec)
    assert plugin is not None
    assert volume_to_csi(plugin, volume).node_terms == volume.node_terms


@pytest.mark.parametrize(
    ("labels", "source", "text"),
    [
        pytest.param(
            {}, {"awsElasticBlockStore": {"volumeID": "aws://a/b/vol-1"}}, "AWS volume", id="ebs id"
        ),
        pytest.param({}, {"awsElasticBlockStore": {"volumeID": "aws://a/disk"}}, "AWS volume", id="no vol-"),
        pytest.param(
            {ZONE: "us-west1-a__mars"},
            {"gcePersistentDisk": {"pdName": "d"}},
            "unexpected form",
            id="zone form",
        ),
        pytest.param(
            {ZONE: "us-west1-a__us-east1-a"},
            {"gcePersistentDisk": {"pdName": "d"}},
            "multiple or no regions",
            id="two regions",
        ),
    ],
)
def test_what_cannot_be_translated(labels, source, text):
    volume = decode(PersistentVolume, {"metadata": {"labels": labels}, "spec": source})
    plugin = plugin_of(volume.spec)
    assert plugin is not None
    with pytest.raises(InputError, match=text):
        volume_to_csi(plugin, volume)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a", {"a"}), ("a__b", {"a", "b"}), (" a __b", {"a", "b"}), ("", None), ("a__", None), ("__", None)],
)
def test_zones_of_a_label(value, expected):
    assert zones_of_label(value) == expected
