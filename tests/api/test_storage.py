"""Storage objects: what decoding keeps, and the rules that follow from one object alone."""

from __future__ import annotations

import pytest

from stowplan.api.meta import decode
from stowplan.api.quantity import parse
from stowplan.api.storage import (
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from stowplan.errors import InputError

BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"


@pytest.mark.parametrize(
    ("annotations", "spec", "expected"),
    [
        pytest.param({}, {}, "", id="no class"),
        pytest.param({}, {"storageClassName": "fast"}, "fast", id="by the spec"),
        pytest.param({BETA_CLASS: "old"}, {"storageClassName": "fast"}, "old", id="the annotation wins"),
        pytest.param({BETA_CLASS: ""}, {"storageClassName": "fast"}, "", id="even an empty one"),
    ],
)
@pytest.mark.parametrize("kind", [PersistentVolume, PersistentVolumeClaim])
def test_class_of_claims_and_volumes(kind, annotations, spec, expected):
    assert decode(kind, {"metadata": {"annotations": annotations}, "spec": spec}).class_name == expected


@pytest.mark.parametrize(
    ("annotations", "volume", "expected"),
    [
        pytest.param({}, "", False, id="pending"),
        pytest.param({}, "pv", False, id="a volume is named but not confirmed"),
        pytest.param({"pv.kubernetes.io/bind-completed": "yes"}, "", False, id="confirmed without a volume"),
        pytest.param({"pv.kubernetes.io/bind-completed": "no"}, "pv", True, id="the value does not matter"),
    ],
)
def test_claim_is_fully_bound(annotations, volume, expected):
    claim = decode(
        PersistentVolumeClaim, {"metadata": {"annotations": annotations}, "spec": {"volumeName": volume}}
    )
    assert claim.is_fully_bound is expected


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        pytest.param(None, False, id="of nobody"),
        pytest.param({"namespace": "ns", "name": "c", "uid": "u"}, True, id="of the claim"),
        pytest.param({"namespace": "ns", "name": "c"}, True, id="by name, without a uid"),
        pytest.param(
            {"namespace": "ns", "name": "c", "uid": "old"}, False, id="of an earlier claim of the name"
        ),
        pytest.param({"namespace": "other", "name": "c", "uid": "u"}, False, id="of another namespace"),
        pytest.param({"namespace": "ns", "name": "d", "uid": "u"}, False, id="of another claim"),
    ],
)
def test_volume_belongs_to_claim(reference, expected):
    claim = decode(PersistentVolumeClaim, {"metadata": {"name": "c", "namespace": "ns", "uid": "u"}})
    volume = decode(PersistentVolume, {"spec": {"claimRef": reference} if reference else {}})
    assert volume.belongs_to(claim) is expected


def test_sizes_are_exact():
    claim = decode(PersistentVolumeClaim, {"spec": {"resources": {"requests": {"storage": "1500m"}}}})
    volume = decode(PersistentVolume, {"spec": {"capacity": {"storage": "1.5"}}})
    assert claim.requested == volume.capacity == parse("1500m")
    assert decode(PersistentVolumeClaim, {}).requested is None
    assert decode(PersistentVolume, {}).capacity == 0


def test_a_malformed_size_is_named():
    with pytest.raises(InputError, match=r"spec\.capacity.*1\.5\.3"):
        decode(PersistentVolume, {"spec": {"capacity": {"storage": "1.5.3"}}})


def test_node_terms_of_a_volume():
    assert decode(PersistentVolume, {"spec": {"nodeAffinity": {}}}).node_terms is None
    required = {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    }
    (term,) = decode(PersistentVolume, {"spec": {"nodeAffinity": {"required": required}}}).node_terms or ()
    assert term.matches({"zone": "a"}, "")
    assert not term.matches({"zone": "b"}, "")


def test_csi_node():
    node = decode(
        CSINode,
        {
            "metadata": {"annotations": {MIGRATED: "kubernetes.io/aws-ebs,kubernetes.io/cinder"}},
            "spec": {
                "drivers": [
                    {"name": "limited", "nodeID": "i", "topologyKeys": ["zone"], "allocatable": {"count": 3}},
                    {"name": "full", "allocatable": {"count": 0}},
                    {"name": "unlimited", "allocatable": {}},
                    {"name": "silent"},
                ]
            },
        },
    )
    assert node.limits == {"limited": 3, "full": 0}
    assert node.migrated_plugins == {"kubernetes.io/aws-ebs", "kubernetes.io/cinder"}


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        pytest.param({}, None, id="unknown"),
        pytest.param({"capacity": "5Gi"}, parse("5Gi"), id="what is free"),
        pytest.param({"capacity": "5Gi", "maximumVolumeSize": "2Gi"}, parse("2Gi"), id="the largest volume"),
        pytest.param({"maximumVolumeSize": "0"}, 0, id="no volume at all"),
    ],
)
def test_limit_of_a_storage_capacity(amounts, expected):
    assert decode(CSIStorageCapacity, amounts).limit == expected


def test_other_fields_keep_their_wire_names():
    attachment = decode(
        VolumeAttachment,
        {"spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "pv"}}},
    )
    assert (attachment.spec.attacher, attachment.spec.node_name) == ("d", "n")
    assert attachment.spec.source.persistent_volume_name == "pv"
    found = decode(
        StorageClass,
        {
            "provisioner": "d",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}],
        },
    )
    assert found.waits_for_consumer
    assert found.allowed_topologies[0].match_label_expressions[0].values == ("a", "b")
    assert not decode(StorageClass, {"volumeBindingMode": "Immediate"}).waits_for_consumer
