"""Cluster events: what can happen that makes a waiting pod worth another attempt."""

from __future__ import annotations

from enum import IntFlag, StrEnum
from typing import NamedTuple


class Action(IntFlag):
    """What happened to an object. Combine them with `|`; `covers` has the rules."""

    ADD = 1
    """It was created. For ASSIGNED_POD: it was bound to a node."""
    DELETE = 2
    """It was deleted. For ASSIGNED_POD also: it ended (Succeeded or Failed)."""
    UPDATE_NODE_ALLOCATABLE = 4
    UPDATE_NODE_LABEL = 8
    UPDATE_NODE_TAINT = 16
    UPDATE_NODE_CONDITION = 32
    UPDATE_NODE_ANNOTATION = 64
    UPDATE_NODE_DECLARED_FEATURE = 128
    UPDATE_POD_LABEL = 256
    UPDATE_POD_SCALE_DOWN = 512
    """It requests less than before."""
    UPDATE_POD_TOLERATION = 1024
    UPDATE_POD_SCHEDULING_GATES_ELIMINATED = 2048
    UPDATE_POD_GENERATED_RESOURCE_CLAIM = 4096
    UPDATE = 8188
    """Any change: for changes that none of the above names, and for kinds other than Pod and Node."""
    ALL = 8191
    """ADD, DELETE and UPDATE."""


class Resource(StrEnum):
    """The kinds of objects in events. For a custom resource use its `definition.event_resource`."""

    POD = "Pod"
    """Both of the following."""
    ASSIGNED_POD = "AssignedPod"
    """A pod with a node, of any scheduler."""
    UNSCHEDULABLE_POD = "UnschedulablePod"
    """The waiting pod itself."""
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
    """All of them."""


_PODS = (Resource.ASSIGNED_POD, Resource.UNSCHEDULABLE_POD)


class ClusterEvent(NamedTuple):
    """Something that happened; in `events_to_register`, what the plugin wants to hear of."""

    resource: str
    """One of Resource, or the `definition.event_resource` of a custom kind."""
    action: Action

    def covers(self, event: ClusterEvent) -> bool:
        """Whether this registration matches the event."""
        if self == (Resource.WILDCARD, Action.ALL):
            return True
        same = self.resource in (event.resource, Resource.WILDCARD) or (
            self.resource is Resource.POD and event.resource in _PODS
        )
        # parity: a plain update has all update bits and so matches only those who registered all of them
        return same and bool(self.action & event.action) and event.action <= self.action


class Hint(StrEnum):
    """What `queueing_hint` answers."""

    QUEUE = "Queue"
    """Attempt the pod again."""
    SKIP = "Skip"
    """Leave it waiting."""


QUEUE = Hint.QUEUE
"""Another attempt is worth it: shorthand for `Hint.QUEUE`."""
SKIP_HINT = Hint.SKIP
"""The event changes nothing for the pod: shorthand for `Hint.SKIP`."""
