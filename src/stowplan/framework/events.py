"""Cluster events: what can happen that makes a waiting pod worth another try."""

from __future__ import annotations

from enum import IntFlag, StrEnum
from typing import NamedTuple


class Action(IntFlag):
    ADD = 1
    DELETE = 2
    UPDATE_NODE_ALLOCATABLE = 4
    UPDATE_NODE_LABEL = 8
    UPDATE_NODE_TAINT = 16
    UPDATE_NODE_CONDITION = 32
    UPDATE_NODE_ANNOTATION = 64
    UPDATE_NODE_DECLARED_FEATURE = 128
    UPDATE_POD_LABEL = 256
    UPDATE_POD_SCALE_DOWN = 512
    UPDATE_POD_TOLERATION = 1024
    UPDATE_POD_SCHEDULING_GATES_ELIMINATED = 2048
    UPDATE_POD_GENERATED_RESOURCE_CLAIM = 4096
    UPDATE = 8188
    ALL = 8191


class Resource(StrEnum):
    POD = "Pod"
    ASSIGNED_POD = "AssignedPod"
    UNSCHEDULABLE_POD = "UnschedulablePod"
    NODE = "Node"
    PERSISTENT_VOLUME = "PersistentVolume"
    PERSISTENT_VOLUME_CLAIM = "PersistentVolumeClaim"
    CSI_NODE = "storage.k8s.io/CSINode"
    CSI_DRIVER = "storage.k8s.io/CSIDriver"
    CSI_STORAGE_CAPACITY = "storage.k8s.io/CSIStorageCapacity"
    STORAGE_CLASS = "storage.k8s.io/StorageClass"
    VOLUME_ATTACHMENT = "storage.k8s.io/VolumeAttachment"
    RESOURCE_CLAIM = "resource.k8s.io/ResourceClaim"
    RESOURCE_SLICE = "resource.k8s.io/ResourceSlice"
    DEVICE_CLASS = "resource.k8s.io/DeviceClass"
    WILDCARD = "*"


_PODS = (Resource.ASSIGNED_POD, Resource.UNSCHEDULABLE_POD)


class ClusterEvent(NamedTuple):
    """Something that happened, or, in a plugin's registration, all that it wants to hear of."""

    resource: str
    """One of Resource, or the `definition.event_resource` of a custom kind."""
    action: Action

    def covers(self, event: ClusterEvent) -> bool:
        """Whether this registration hears of that event."""
        if self == (Resource.WILDCARD, Action.ALL):
            return True
        same = self.resource in (event.resource, Resource.WILDCARD) or (
            self.resource is Resource.POD and event.resource in _PODS
        )
        # parity: a plain update has all update bits and so matches only those who registered all of them
        return same and bool(self.action & event.action) and event.action <= self.action


class Hint(StrEnum):
    QUEUE = "Queue"
    SKIP = "Skip"


QUEUE = Hint.QUEUE
"""Another attempt is worth it: shorthand for `Hint.QUEUE`."""
SKIP_HINT = Hint.SKIP
"""The event changes nothing for the pod: shorthand for `Hint.SKIP`."""
