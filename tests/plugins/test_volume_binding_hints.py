"""VolumeBinding: which events make it worth to try a pod again."""

from __future__ import annotations

from typing import Any

import pytest
from volume_objects import (
    capacity,
    claim,
    cluster_of,
    csi_driver,
    csi_node,
    node,
    pod,
    read,
    storage_class,
    uses,
    volume,
    with_meta,
)

from stowplan.framework import QUEUE, SKIP_HINT, Action, ClusterEvent, Handle, Resource
from stowplan.plugins.args import VolumeBindingArgs
from stowplan.plugins.default.volume_binding import VolumeBinding

ZONE = "topology.kubernetes.io/zone"


def inline(driver: str) -> Any:
    return pod({"csi": {"driver": driver}})


CLAIMS = pod(uses("c"), {"ephemeral": {}})


@pytest.mark.parametrize(
    ("waiting", "old", "new", "expected"),
    [
        pytest.param(CLAIMS, None, storage_class(), QUEUE, id="a class appears"),
        pytest.param(
            CLAIMS, storage_class(), storage_class(topologies=[{ZONE: ["a"]}]), QUEUE, id="its places change"
        ),
        pytest.param(CLAIMS, storage_class(), storage_class(provisioner="x"), SKIP_HINT, id="all else of it"),
        pytest.param(CLAIMS, None, claim(), QUEUE, id="the claim appears"),
        pytest.param(CLAIMS, claim(), claim(volume="pv"), QUEUE, id="the claim changes"),
        pytest.param(CLAIMS, None, claim("p-v1"), QUEUE, id="the claim of the ephemeral volume"),
        pytest.param(CLAIMS, None, claim("d"), SKIP_HINT, id="another claim"),
        pytest.param(
            CLAIMS, None, with_meta(claim(), namespace="far"), SKIP_HINT, id="a claim of another namespace"
        ),
        pytest.param(CLAIMS, None, volume(), QUEUE, id="a volume appears"),
        pytest.param(CLAIMS, volume(), volume(size="11Gi"), QUEUE, id="a volume changes"),
        pytest.param(CLAIMS, None, node("n"), QUEUE, id="a node appears"),
        pytest.param(CLAIMS, node("n"), node("n", x="y"), QUEUE, id="a node changes"),
        pytest.param(CLAIMS, None, csi_node("n"), QUEUE, id="a CSINode appears"),
        pytest.param(CLAIMS, csi_node("n"), csi_node("n", migrated="a"), QUEUE, id="plugins are migrated"),
        pytest.param(CLAIMS, csi_node("n"), csi_node("n", {"d": 1}), SKIP_HINT, id="a driver on a CSINode"),
        pytest.param(
            inline("d"), csi_driver("d"), csi_driver("d", False), QUEUE, id="capacity no longer counts"
        ),
        pytest.param(
            inline("d"), csi_driver("d"), csi_driver("d", None), QUEUE, id="capacity is not mentioned"
        ),
        pytest.param(
            inline("d"), csi_driver("d", False), csi_driver("d", True), SKIP_HINT, id="capacity counts"
        ),
        pytest.param(inline("e"), csi_driver("d"), csi_driver("d", False), SKIP_HINT, id="another driver"),
        pytest.param(
            CLAIMS, csi_driver("d"), csi_driver("d", False), SKIP_HINT, id="a pod with claims alone"
        ),
        pytest.param(CLAIMS, None, capacity(), QUEUE, id="capacity appears"),
        pytest.param(CLAIMS, capacity(capacity="1Gi"), capacity(capacity="2Gi"), QUEUE, id="capacity grows"),
        pytest.param(CLAIMS, capacity(), capacity(capacity="2Gi"), QUEUE, id="capacity becomes known"),
        pytest.param(CLAIMS, capacity(capacity="2Gi"), capacity(), SKIP_HINT, id="capacity becomes unknown"),
        pytest.param(
            CLAIMS, capacity(capacity="2Gi"), capacity(capacity="2Gi"), SKIP_HINT, id="as much as before"
        ),
        pytest.param(
            CLAIMS,
            capacity(capacity="1001m"),
            capacity(capacity="1999m"),
            SKIP_HINT,
            id="as much in whole bytes",
        ),
        pytest.param(
            CLAIMS,
            capacity(capacity="1Gi", maximumVolumeSize="1Gi"),
            capacity(capacity="9Gi", maximumVolumeSize="1Gi"),
            SKIP_HINT,
            id="room for no larger volume",
        ),
    ],
)
def test_hints(waiting, old, new, expected):
    plugin = VolumeBinding(VolumeBindingArgs(), Handle(cluster_of()))
    before, after = (manifest and read(manifest) for manifest in (old, new))
    event = ClusterEvent(Resource.WILDCARD, Action.ALL)
    assert plugin.queueing_hint(read(waiting), event, before, after) == expected


def test_registers_for():
    assert set(VolumeBinding(VolumeBindingArgs(), Handle(cluster_of())).events_to_register()) == {
        (Resource.STORAGE_CLASS, Action.ADD | Action.UPDATE),
        (Resource.PERSISTENT_VOLUME_CLAIM, Action.ADD | Action.UPDATE),
        (Resource.PERSISTENT_VOLUME, Action.ADD | Action.UPDATE),
        (Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL),
        (Resource.CSI_NODE, Action.ADD | Action.UPDATE),
        (Resource.CSI_DRIVER, Action.UPDATE),
        (Resource.CSI_STORAGE_CAPACITY, Action.ADD | Action.UPDATE),
    }
