"""VolumeZone: keeps a pod in the zones and regions that the labels of its volumes name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stowplan.api.csi_translation import BETA_REGION, BETA_ZONE, REGION, ZONE, zones_of_label
from stowplan.api.meta import Object
from stowplan.api.pod import Pod
from stowplan.api.selectors import Requirement
from stowplan.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from stowplan.framework import (
    QUEUE,
    SKIP_HINT,
    Action,
    ClusterEvent,
    CycleState,
    Hint,
    NodeTable,
    Plugin,
    Reads,
    Reject,
    Resource,
    Status,
)
from stowplan.plugins.volumes import claim_not_found, mode_not_set, named_claims, names_claim

ZONE_CONFLICT = "node(s) had no available volume zone"
TOPOLOGY_LABELS = (BETA_ZONE, BETA_REGION, ZONE, REGION)
SUCCESSOR = {BETA_ZONE: ZONE, BETA_REGION: REGION}


class VolumeTopologies(tuple[Requirement, ...]):
    """What the labels of the pod's volumes require of those of its node."""


class VolumeZone(Plugin):
    reads = Reads.OBJECTS

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        if not pod.spec.volumes:
            return Status.skip()
        required: list[Requirement] = []
        for name in named_claims(pod):
            volume = self._volume_of(pod, name)
            if isinstance(volume, Status):
                return volume
            if volume is not None:
                required += _topologies(volume)
        if not required:
            return Status.skip()
        state.write(VolumeTopologies(required))
        return None

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        fits = np.ones(len(nodes), np.bool_)
        for required in state.read(VolumeTopologies):
            column = nodes.label(required.key)
            found = column.matches(required)
            if successor := SUCCESSOR.get(required.key):
                newer = nodes.label(successor).matches(required._replace(key=successor))
                found = np.where(column.present, found, newer)
            fits &= found
        has_topology = np.logical_or.reduce([nodes.label(key).present for key in TOPOLOGY_LABELS])
        yield Reject(has_topology & ~fits, ZONE_CONFLICT, unresolvable=True)

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.STORAGE_CLASS, Action.ADD),
            ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL),
            ClusterEvent(Resource.PERSISTENT_VOLUME_CLAIM, Action.ADD | Action.UPDATE),
            ClusterEvent(Resource.PERSISTENT_VOLUME, Action.ADD | Action.UPDATE),
        )

    def queueing_hint(
        self, pod: Pod, event: ClusterEvent, old: Pod | Object | None, new: Pod | Object | None
    ) -> Hint:
        match old, new:
            case _, StorageClass():
                return QUEUE if new.waits_for_consumer else SKIP_HINT
            case _, PersistentVolumeClaim():
                return QUEUE if names_claim(pod, new) else SKIP_HINT
            case PersistentVolume(), PersistentVolume():
                return QUEUE if list(_topologies(old)) != list(_topologies(new)) else SKIP_HINT
        return QUEUE

    def _volume_of(self, pod: Pod, name: str) -> PersistentVolume | Status | None:
        """The volume behind a claim; none yet if its class waits for a node to be chosen first."""
        cluster = self.handle.cluster
        if not name:
            return Status.unresolvable("PersistentVolumeClaim had no name")
        claim = cluster.pvcs.get(f"{pod.namespace}/{name}")
        if claim is None:
            return Status.unresolvable(claim_not_found(name))
        if volume_name := claim.spec.volume_name:
            volume = cluster.pvs.get(volume_name)
            return volume or Status.unresolvable(f'persistentvolume "{volume_name}" not found')
        if not claim.class_name:
            return Status.unresolvable("PersistentVolumeClaim had no pv name and storageClass name")
        storage_class = cluster.storage_classes.get(claim.class_name)
        if storage_class is None:
            return Status.unresolvable(f'storageclass.storage.k8s.io "{claim.class_name}" not found')
        if storage_class.volume_binding_mode is None:
            return Status.unresolvable(mode_not_set(claim.class_name))
        return (
            None if storage_class.waits_for_consumer else Status.unresolvable("PersistentVolume had no name")
        )


def _topologies(volume: PersistentVolume) -> Iterator[Requirement]:
    for key in TOPOLOGY_LABELS:
        if key in volume.metadata.labels and (zones := zones_of_label(volume.metadata.labels[key])):
            yield Requirement(key, "In", zones)
