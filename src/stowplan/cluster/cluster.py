"""The cluster: objects by kind, nodes and pods as columns, and pods placed but not yet seen on their node."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from inspect import ismethod
from typing import Any, Generic, TypeVar
from weakref import ReferenceType, WeakMethod, ref

from stowplan.api.custom import CustomResource
from stowplan.api.groups import GroupKey
from stowplan.api.meta import EMPTY, Object, UnreadableObject, freeze
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.api.resource import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from stowplan.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from stowplan.api.workloads import (
    Namespace,
    PodDisruptionBudget,
    PriorityClass,
    ReplicaSet,
    ReplicationController,
    Service,
    StatefulSet,
)
from stowplan.cluster.groups import Groups
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.errors import StowplanError

T = TypeVar("T", bound=Object)


class ObjectStore(Generic[T]):
    def __init__(self) -> None:
        self._objects: dict[str, T] = {}
        self._followers: list[Callable[[], Callable[[T | None, T | None], None] | None]] = []
        """References to them."""
        self.version = 0
        self.is_served = True
        """False as long as the API server is not known to have the kind, as with a CRD not yet installed."""
        self.unreadable: Mapping[str, UnreadableObject] = {}
        """Objects of the API server that are not here because they cannot be read, by key."""

    def get(self, key: str) -> T | None:
        return self._objects.get(key)

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def __len__(self) -> int:
        return len(self._objects)

    def follow(self, follower: Callable[[T | None, T | None], None]) -> None:
        """Call `follower(old, new)` after each change; None for an object that does not exist.

        A method is called as long as its object exists: plugins are replaced while the scheduler runs.
        """
        self._followers = [each for each in self._followers if each() is not None]
        self._followers.append(WeakMethod(follower) if ismethod(follower) else lambda: follower)

    def put(self, item: T) -> None:
        old = self._objects.get(item.key)
        self._objects[item.key] = item
        self.version += 1
        for each in self._followers:
            if (follower := each()) is not None:
                follower(old, item)

    def remove(self, key: str) -> None:
        old = self._objects.pop(key, None)
        if old is not None:
            self.version += 1
            for each in self._followers:
                if (follower := each()) is not None:
                    follower(old, None)


Kind = TypeVar("Kind", bound=CustomResource)


class Totals:
    """What the pods with a node request together, by keys of the caller's choice; see `ClusterView.totals`.

    Pods that are placed on trial, or set aside as victims, count as what they are at that moment.
    """

    def __init__(self, keys: Callable[[Pod], Iterable[Hashable]], pods: Callable[[], Iterable[Pod]]) -> None:
        self._keys, self._pods = keys, pods
        self._sums: dict[Hashable, dict[str, int]] = {}
        self._counted: dict[str, tuple[tuple[Hashable, ...], Mapping[str, int]]] = {}
        self._changes: list[tuple[Pod, bool]] = []
        """What has happened since a sum was asked for: `keys` is called only while its owner asks."""
        self._is_outdated = True
        self._changed: set[Hashable] | None = None

    def of(self, key: Hashable) -> Mapping[str, int]:
        """The amounts by resource, as in `Pod.requests`, and the number of pods as `pods`. Do not keep it."""
        if self._is_outdated or self._changes:
            self._catch_up()
        found: Mapping[str, int] = self._sums.get(key, EMPTY)
        return found

    def take_changed(self) -> set[Hashable] | None:
        """The keys whose sums changed since the last call; None if all may have."""
        if self._is_outdated or self._changes:
            self._catch_up()
        found, self._changed = self._changed, set()
        return found

    def recount(self) -> None:
        """Count all pods anew: their keys are others now."""
        self._is_outdated = True

    def note(self, pod: Pod, *, is_there: bool) -> None:
        """Called by the cluster."""
        if self._is_outdated:
            return
        self._changes.append((pod, is_there))
        if len(self._changes) > MAX_CHANGES:
            self._is_outdated = True
            self._changes.clear()

    def _catch_up(self) -> None:
        changes: Iterable[tuple[Pod, bool]] = self._changes
        self._changes = []
        if self._is_outdated:
            self._sums.clear()
            self._counted.clear()
            self._changed = None
            changes = [(pod, True) for pod in self._pods()]
        self._is_outdated = True  # should `keys` fail: then all are counted the next time
        for pod, is_there in changes:
            keys, amounts = self._counted.pop(pod.uid, ((), EMPTY))
            self._add(keys, amounts, -1)
            if is_there:
                keys = tuple(self._keys(pod))
                if keys:
                    amounts = pod_amounts(pod)
                    self._counted[pod.uid] = (keys, amounts)
                    self._add(keys, amounts, 1)
        self._is_outdated = False

    def _add(self, keys: Iterable[Hashable], amounts: Mapping[str, int], sign: int) -> None:
        if self._changed is not None:
            self._changed.update(keys)
        for key in keys:
            total = self._sums.setdefault(key, {})
            total["pods"] = total.get("pods", 0) + sign
            for name, amount in amounts.items():
                total[name] = total.get(name, 0) + sign * amount
            if not total["pods"]:
                del self._sums[key]


MAX_CHANGES = 10_000
"""So many changes are remembered for the owner of Totals; if it does not ask, all pods are counted again."""


def pod_amounts(pod: Pod) -> Mapping[str, int]:
    """What a pod holds on its node, or would hold there."""
    return (pod.assigned or pod.shape.assigned).requests


class ClusterView:
    """What the scheduler knows of the cluster, read-only: stores of objects by kind, each with `get(key)` and
    iteration, and the nodes and pods."""

    def __init__(self) -> None:
        self.nodes = LiveNodeTable()
        self.namespaces: ObjectStore[Namespace] = ObjectStore()
        self.services: ObjectStore[Service] = ObjectStore()
        self.replication_controllers: ObjectStore[ReplicationController] = ObjectStore()
        self.replica_sets: ObjectStore[ReplicaSet] = ObjectStore()
        self.stateful_sets: ObjectStore[StatefulSet] = ObjectStore()
        self.pvs: ObjectStore[PersistentVolume] = ObjectStore()
        self.pvcs: ObjectStore[PersistentVolumeClaim] = ObjectStore()
        self.storage_classes: ObjectStore[StorageClass] = ObjectStore()
        self.csi_nodes: ObjectStore[CSINode] = ObjectStore()
        self.csi_drivers: ObjectStore[CSIDriver] = ObjectStore()
        self.csi_storage_capacities: ObjectStore[CSIStorageCapacity] = ObjectStore()
        self.volume_attachments: ObjectStore[VolumeAttachment] = ObjectStore()
        self.pdbs: ObjectStore[PodDisruptionBudget] = ObjectStore()
        self.priority_classes: ObjectStore[PriorityClass] = ObjectStore()
        self.resource_claims: ObjectStore[ResourceClaim] = ObjectStore()
        self.resource_claim_templates: ObjectStore[ResourceClaimTemplate] = ObjectStore()
        self.resource_slices: ObjectStore[ResourceSlice] = ObjectStore()
        self.device_classes: ObjectStore[DeviceClass] = ObjectStore()
        self._custom: dict[type[CustomResource], ObjectStore[Any]] = {}
        self._pods: dict[str, Pod] = {}
        self._by_namespace: dict[str, dict[str, Pod]] | None = None
        """The same pods by namespace and uid; None until someone asks."""
        self._assumed: set[str] = set()
        self._totals: list[ReferenceType[Totals]] = []
        self.groups = Groups(self.watched, self._pods)
        """Pod groups and their members; empty unless a plugin of the profiles reads groups."""

    def watched(self, kind: type[Kind]) -> ObjectStore[Kind]:
        """The objects of a kind that a plugin has declared in `watches`."""
        return self._custom.setdefault(kind, ObjectStore())

    def pod(self, uid: str) -> Pod | None:
        """The pod with this uid if it has a node, or was placed on one by us."""
        return self._pods.get(uid)

    def pods(self, namespace: str | None = None) -> Iterable[Pod]:
        """The pods with a node, also those placed by us and not bound yet; or only those of a namespace."""
        if namespace is None:
            return self._pods.values()
        if (
            self._by_namespace is None
        ):  # followed from now on: a scan would take milliseconds in large clusters
            self._by_namespace = {}
            for pod in self._pods.values():
                self._by_namespace.setdefault(pod.namespace, {})[pod.uid] = pod
        return self._by_namespace.get(namespace, {}).values()

    def totals(self, keys: Callable[[Pod], Iterable[Hashable]]) -> Totals:
        """Sums of what pods with a node request, by keys that `keys` returns for each of them.

        For quotas: `totals(lambda pod: (pod.namespace,)).of("default")`. Each placed or removed pod changes
        the sums, also one that is only tried out, so nothing need be counted in `reserve`.
        """
        found = Totals(keys, self._pods.values)
        self._totals.append(ref(found, self._totals.remove))
        return found

    def is_assumed(self, pod: Pod) -> bool:
        """Whether we placed it on its node and the API server has not confirmed that yet."""
        return pod.uid in self._assumed


class Cluster(ClusterView):
    """The view, and what changes it: a pod is known from `add_pod` or `assume_pod` until it is removed."""

    def __init__(self) -> None:
        super().__init__()
        self._homeless: dict[str, dict[str, Pod]] = {}
        """Pods whose node is not (or no longer) known, by the node's name."""
        self._illegible: dict[str, set[str]] = {}
        """Pods of which nothing can be read, by the node that is closed because of them."""
        self._closed: dict[str, NodeObject] = {}
        """The closed nodes, as the API server has them."""
        self._stores: dict[type[Object], ObjectStore[Any]] = {
            Namespace: self.namespaces,
            Service: self.services,
            ReplicationController: self.replication_controllers,
            ReplicaSet: self.replica_sets,
            StatefulSet: self.stateful_sets,
            PersistentVolume: self.pvs,
            PersistentVolumeClaim: self.pvcs,
            StorageClass: self.storage_classes,
            CSINode: self.csi_nodes,
            CSIDriver: self.csi_drivers,
            CSIStorageCapacity: self.csi_storage_capacities,
            VolumeAttachment: self.volume_attachments,
            PodDisruptionBudget: self.pdbs,
            PriorityClass: self.priority_classes,
            ResourceClaim: self.resource_claims,
            ResourceClaimTemplate: self.resource_claim_templates,
            ResourceSlice: self.resource_slices,
            DeviceClass: self.device_classes,
        }

    def group_of(self, pod: Pod) -> GroupKey | None:
        """The group that the pod belongs to, if any plugin reads groups; None for a pod by itself."""
        return self.groups.key_of(pod) if self.groups.families else None

    @classmethod
    def of(cls, objects: Iterable[Pod | Object]) -> Cluster:
        """A cluster of these objects; pods without a node, or finished, are left out."""
        cluster = cls()
        for item in objects:
            cluster.apply(item)
        return cluster

    def stored(self, item: Object) -> Object | None:
        """The object of this kind and key, as last seen."""
        found: Object | None = self._store_of(item).get(item.key)
        return found

    def forget_kind(self, kind: type[CustomResource]) -> None:
        """Drop the objects of a kind that is no longer watched."""
        self._custom.pop(kind, None)

    def objects(self) -> Iterator[Pod | Object]:
        """Every object of the cluster; pass them to `Cluster.of` to make a copy."""
        yield from (self._closed.get(node.name, node) for node in self.nodes.objects)
        for store in (*self._stores.values(), *self._custom.values()):
            yield from store
        yield from self._pods.values()

    def _store_of(self, item: Object) -> ObjectStore[Any]:
        return self.watched(type(item)) if isinstance(item, CustomResource) else self._stores[type(item)]

    def apply(self, item: Pod | Object) -> None:
        """Add or replace an object, which is read-only from then on."""
        if isinstance(item, Pod):
            if item.node_name and not item.is_finished:
                self.update_pod(item)
            elif item.uid not in self._assumed:
                self.remove_pod(item)
        elif isinstance(item, NodeObject):
            self.add_node(item)
        else:
            self._store_of(item).put(freeze(item))
            self._touch(item)

    def remove(self, item: Pod | Object) -> None:
        if isinstance(item, Pod):
            self.remove_pod(item)
        elif isinstance(item, NodeObject):
            self.remove_node(item.name)
        else:
            self._store_of(item).remove(item.key)
            self._touch(item)

    def _touch(self, item: Object) -> None:
        if isinstance(item, CustomResource) and item.describes_node:
            self.nodes.touch(item.name)

    def add_node(self, node: NodeObject) -> None:
        is_new = self.nodes.row_of(node.name) is None
        node = freeze(node)
        self._closed.pop(node.name, None)
        if node.name in self._illegible:
            self._closed[node.name], node = node, freeze(node.closed())
        row = self.nodes.add_node(node)
        if is_new:
            for pod in self._homeless.pop(node.name, {}).values():
                self.nodes.add_pod(row, pod)

    def remove_node(self, name: str) -> None:
        if self.nodes.row_of(name) is not None:
            self._closed.pop(name, None)
            orphans = self.nodes.remove_node(name)
            if orphans:
                self._homeless[name] = {pod.uid: pod for pod in orphans}

    def add_pod(self, pod: Pod) -> None:
        """A pod seen on a node. If we placed it there ourselves, this confirms it."""
        if pod.uid in self._assumed:
            self.update_pod(pod)
        elif pod.uid in self._pods:
            raise StowplanError(f"pod {pod.uid}({pod.key}) was already in added state")
        else:
            self._put_in(pod)

    def update_pod(self, pod: Pod) -> None:
        """Update a pod. If its usage is unchanged, nothing is recounted."""
        known, row = self._pods.get(pod.uid), self.nodes.row_of(pod.node_name)
        if known is not None and row is not None and _takes_the_same(known, pod):
            self._pods[pod.uid] = pod
            if self._totals:  # its labels may be others, and so its keys
                self._note(pod, is_there=True)
            if self._by_namespace is not None:
                self._by_namespace[pod.namespace][pod.uid] = pod
            self._assumed.discard(pod.uid)
            self.nodes.replace_pod(row, known, pod)
        else:
            self.remove_pod(pod)
            self._put_in(pod)

    def remove_pod(self, pod: Pod) -> None:
        known = self._pods.get(pod.uid)
        if known is not None:
            self._take_out(known)
            self._assumed.discard(pod.uid)

    def assume_pod(self, pod: Pod, node_name: str) -> Pod:
        """Count a pod as running on the node chosen for it, before the API server confirms it."""
        if pod.uid in self._pods:
            raise StowplanError(f"pod {pod.uid}({pod.key}) is in the cache, so can't be assumed")
        placed = pod.on(node_name)
        self._put_in(placed)
        self._assumed.add(pod.uid)
        return placed

    def forget_pod(self, pod: Pod) -> None:
        """Undo `assume_pod`."""
        if pod.uid in self._pods and pod.uid not in self._assumed:
            raise StowplanError(f"pod {pod.uid}({pod.key}) wasn't assumed so cannot be forgotten")
        self.remove_pod(pod)

    def set_aside(self, pods: Iterable[Pod]) -> list[tuple[Pod, bool]]:
        """Count pods as gone, for a trial that ends with `bring_back` of what this returns."""
        found = []
        for pod in pods:
            known = self._pods.get(pod.uid)
            if known is not None:
                found.append((known, pod.uid in self._assumed))
                self.remove_pod(known)
        return found

    def bring_back(self, pods: Iterable[tuple[Pod, bool]]) -> None:
        """Undo `set_aside`."""
        for pod, is_assumed in pods:
            self._put_in(pod)
            if is_assumed:
                self._assumed.add(pod.uid)

    @property
    def assumed_count(self) -> int:
        return len(self._assumed)

    def _put_in(self, pod: Pod) -> None:
        self._pods[pod.uid] = pod
        if self._totals:
            self._note(pod, is_there=True)
        if self._by_namespace is not None:
            self._by_namespace.setdefault(pod.namespace, {})[pod.uid] = pod
        if pod.is_illegible:
            self._illegible.setdefault(pod.node_name, set()).add(pod.uid)
            self._renew(pod.node_name)
        row = self.nodes.row_of(pod.node_name)
        if row is None:
            self._homeless.setdefault(pod.node_name, {})[pod.uid] = pod
        else:
            self.nodes.add_pod(row, pod)

    def _note(self, pod: Pod, *, is_there: bool) -> None:
        for reference in tuple(self._totals):
            if (totals := reference()) is not None:
                totals.note(pod, is_there=is_there)

    def _take_out(self, pod: Pod) -> None:
        del self._pods[pod.uid]
        if self._totals:
            self._note(pod, is_there=False)
        if self._by_namespace is not None:
            del self._by_namespace[pod.namespace][pod.uid]
            if not self._by_namespace[pod.namespace]:
                del self._by_namespace[pod.namespace]
        if pod.is_illegible:
            self._illegible[pod.node_name].discard(pod.uid)
            if not self._illegible[pod.node_name]:
                del self._illegible[pod.node_name]
            self._renew(pod.node_name)
        row = self.nodes.row_of(pod.node_name)
        if row is not None:
            self.nodes.remove_pod(row, pod)
        elif pod.node_name in self._homeless:
            self._homeless[pod.node_name].pop(pod.uid, None)
            if not self._homeless[pod.node_name]:
                del self._homeless[pod.node_name]

    def _renew(self, name: str) -> None:
        """Close a node that has unreadable pods, or reopen it once it has none."""
        row = self.nodes.row_of(name)
        if row is not None:
            self.add_node(self._closed.get(name, self.nodes.objects[row]))


def _takes_the_same(known: Pod, pod: Pod) -> bool:
    return (
        known.shape is pod.shape
        and known.node_name == pod.node_name
        and known.assigned == pod.assigned
        and known.is_illegible == pod.is_illegible
    )
