"""VolumeBinding: keeps a pod where its volumes can be reached or provisioned, and binds them before the pod.

What is promised to a pod is remembered until the API server shows it, so that no other pod gets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from msgspec.structs import replace

from stowplan.api.csi_translation import plugin_of, volume_to_csi
from stowplan.api.meta import Object
from stowplan.api.pod import Pod, Volume
from stowplan.api.quantity import units
from stowplan.api.storage import (
    BOUND_BY_CONTROLLER,
    MIGRATED_PLUGINS,
    SELECTED_NODE,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from stowplan.cluster import ObjectStore
from stowplan.errors import InputError, StowplanError
from stowplan.framework import (
    QUEUE,
    SKIP_HINT,
    Action,
    ClusterEvent,
    CycleState,
    FilterError,
    Handle,
    Hint,
    Mask,
    Node,
    NodeTable,
    Reads,
    Reject,
    Resource,
    Right,
    Status,
)
from stowplan.framework.plugin import ReservingPlugin
from stowplan.plugins.args import VolumeBindingArgs
from stowplan.plugins.volumes import (
    Unbound,
    claim_name,
    claim_not_found,
    in_turn,
    is_made_for,
    mode_not_set,
    not_made_for,
    plan_volumes,
    reached_from,
    uses_claim,
    with_volumes,
)

NODE_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
BIND_CONFLICT = "node(s) didn't find available persistent volumes to bind"
NOT_ENOUGH_SPACE = "node(s) did not have enough free storage"
VOLUME_MISSING = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
STAGE_ERRORS = (
    "scheduler_volume_scheduling_stage_error_total",
    "[ALPHA] Volume stages that failed.",
    "operation",
)
POLL_SECONDS = 1.0

T = TypeVar("T", bound=Object)


class Assumed(Generic[T]):
    """A store seen through what we are about to write: that counts until the store shows another version."""

    def __init__(self, store: ObjectStore[T]) -> None:
        self._store = store
        self._assumed: dict[str, T] = {}

    def get(self, key: str) -> T | None:
        stored, assumed = self._store.get(key), self._assumed.get(key)
        if assumed is None:
            return stored
        if stored is None or stored.metadata.resource_version != assumed.metadata.resource_version:
            del self._assumed[key]
            return stored
        return assumed

    def __iter__(self) -> Iterator[T]:
        for stored in self._store:
            yield (self.get(stored.key) or stored) if self._assumed else stored

    def assume(self, item: T) -> None:
        self._assumed[item.key] = item

    def restore(self, item: T) -> None:
        self._assumed.pop(item.key, None)


@dataclass
class PodClaims:
    """The claims of a pod, and what a node was reserved with."""

    bound: Sequence[PersistentVolumeClaim]
    waiting: Sequence[Unbound]
    bindings: Sequence[tuple[PersistentVolume, PersistentVolumeClaim]] = ()
    provisions: Sequence[PersistentVolumeClaim] = ()


class VolumeBinding(ReservingPlugin):
    args: VolumeBindingArgs
    reservation_name = "bindings"
    reads = Reads.OBJECTS
    rights = tuple(
        Right(resource, ("get", "patch")) for resource in ("persistentvolumes", "persistentvolumeclaims")
    )

    def __init__(self, args: VolumeBindingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._volumes = Assumed(handle.cluster.pvs)
        self._claims = Assumed(handle.cluster.pvcs)

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        if not pod.spec.volumes:
            return Status.skip()
        found: list[PersistentVolumeClaim] = []
        for volume in pod.spec.volumes:
            claim = self._claim_of(pod, volume)
            if isinstance(claim, str):
                return Status.unresolvable(claim)
            if claim is not None:
                found.append(claim)
        return self._sort_out(state, found) if found else Status.skip()

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        claims = state.read(PodClaims)
        errors: dict[int, str] = {}
        conflict, missing = self._check_bound(claims.bound, nodes, errors)
        plan = plan_volumes(claims.waiting, nodes, self.handle.cluster)
        yield Reject(conflict, NODE_CONFLICT, unresolvable=True)
        yield Reject(plan.unbindable, BIND_CONFLICT, unresolvable=True)
        yield Reject(plan.too_full, NOT_ENOUGH_SPACE, unresolvable=True)
        yield Reject(missing, VOLUME_MISSING, unresolvable=True)
        if errors:
            raise FilterError(errors)

    def pre_score(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        return Status.skip()  # parity: scoring by storage capacity is an alpha feature, and off

    def score(self, state: CycleState, pod: Pod, node: Node) -> int:
        return 0

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        claims = state.find(PodClaims)
        if claims is None or not claims.waiting:
            return None
        static, provisions = self._plan_volumes(claims, node_name)
        claims.bindings = [(_bind_volume(claim, volume), claim) for claim, volume in static]
        claims.provisions = [_for_node(claim, node_name) for claim in provisions]
        for volume, _ in claims.bindings:
            self._volumes.assume(volume)
        for claim in claims.provisions:
            self._claims.assume(claim)
        return None

    def reservation(self, state: CycleState, node_name: str) -> dict[str, object]:
        """What `reserve` would do on a node, for people to read."""
        claims = state.find(PodClaims)
        if claims is None or not claims.waiting:
            return {}
        static, provisions = self._plan_volumes(claims, node_name)
        found = {
            "static": {claim.key: volume.name for claim, volume in static},
            "provision": sorted(claim.key for claim in provisions),
        }
        return {kind: planned for kind, planned in found.items() if planned}

    def _plan_volumes(
        self, claims: PodClaims, node_name: str
    ) -> tuple[list[tuple[PersistentVolumeClaim, PersistentVolume]], list[PersistentVolumeClaim]]:
        """Claims with the volumes they would get on a node, and those that need new ones made."""
        plan = plan_volumes(claims.waiting, self._node(node_name), self.handle.cluster)
        static = [
            (match.unbound.claim, match.volumes[match.chosen[0]])
            for match in plan.matches
            if match.chosen[0] >= 0
        ]
        return static, [each.claim for each, rows in plan.provisions if rows[0]]

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        claims = state.find(PodClaims)
        if claims is not None:
            for volume, _ in claims.bindings:
                self._volumes.restore(volume)
            for claim in claims.provisions:
                self._claims.restore(claim)

    def pre_bind_pre_flight(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        claims = state.find(PodClaims)
        return None if claims is not None and claims.waiting else Status.skip()

    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        claims = state.find(PodClaims)
        if claims is None or not claims.waiting:
            return None
        status = await self._bind_claims(claims, pod, node_name)
        if status is not None:
            self.handle.counter(*STAGE_ERRORS)["bind",] += 1
        return status

    async def _bind_claims(self, claims: PodClaims, pod: Pod, node_name: str) -> Status | None:
        api = self.handle.api
        try:
            bindings = [(await api.update(volume), claim) for volume, claim in claims.bindings]
            provisions = [await api.update(claim) for claim in claims.provisions]
        except StowplanError as error:
            return Status.error(str(error))
        try:
            async with asyncio.timeout(self.args.bind_timeout_seconds):
                await asyncio.sleep(POLL_SECONDS)
                while not self._is_done(pod, node_name, bindings, provisions):
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            return Status.error("binding volumes: context deadline exceeded")
        except StowplanError as error:
            return Status.error(f"binding volumes: {error}")
        return None

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.STORAGE_CLASS, Action.ADD | Action.UPDATE),
            ClusterEvent(Resource.PERSISTENT_VOLUME_CLAIM, Action.ADD | Action.UPDATE),
            ClusterEvent(Resource.PERSISTENT_VOLUME, Action.ADD | Action.UPDATE),
            ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL),
            ClusterEvent(Resource.CSI_NODE, Action.ADD | Action.UPDATE),
            ClusterEvent(Resource.CSI_DRIVER, Action.UPDATE),
            ClusterEvent(Resource.CSI_STORAGE_CAPACITY, Action.ADD | Action.UPDATE),
        )

    def queueing_hint(
        self, pod: Pod, event: ClusterEvent, old: Pod | Object | None, new: Pod | Object | None
    ) -> Hint:
        match old, new:
            case StorageClass(), StorageClass():
                helps = old.allowed_topologies != new.allowed_topologies
            case _, PersistentVolumeClaim():
                helps = uses_claim(pod, new)
            case CSINode(), CSINode():
                before, after = (each.metadata.annotations.get(MIGRATED_PLUGINS, "") for each in (old, new))
                helps = before != after
            case CSIDriver(), CSIDriver():
                # parity: checks the pod's inline CSI volumes, although capacity only concerns claims
                helps = any(volume.csi and volume.csi.driver == new.name for volume in pod.spec.volumes) and (
                    bool(old.spec.storage_capacity) and not new.spec.storage_capacity
                )
            case CSIStorageCapacity(), CSIStorageCapacity():
                helps = new.limit is not None and (old.limit is None or units(new.limit) > units(old.limit))
            case _:
                helps = True
        return QUEUE if helps else SKIP_HINT

    def _claim_of(self, pod: Pod, volume: Volume) -> PersistentVolumeClaim | str | None:
        """The claim behind a volume, if it is of that kind, or what is wrong with it."""
        name = claim_name(pod, volume)
        if name is None:
            return None
        claim = self._claims.get(f"{pod.namespace}/{name}")
        if claim is None and volume.ephemeral is not None:
            return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
        if claim is None:
            return claim_not_found(name)
        if claim.status.phase == "Lost":
            lost = claim.spec.volume_name
            return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{lost}"'
        if claim.metadata.deletion_timestamp is not None:
            return f'persistentvolumeclaim "{name}" is being deleted'
        if volume.ephemeral is not None and not is_made_for(claim, pod):
            return not_made_for(claim, pod)
        return claim

    def _sort_out(self, state: CycleState, claims: Sequence[PersistentVolumeClaim]) -> Status | None:
        """Tells claims that have their volume from those that wait for a node; no others are let through."""
        bound: list[PersistentVolumeClaim] = []
        waiting: list[Unbound] = []
        has_immediate = False
        for claim in claims:
            if claim.is_fully_bound:
                bound.append(claim)
                continue
            storage_class = self.handle.cluster.storage_classes.get(claim.class_name)
            if storage_class is not None and storage_class.volume_binding_mode is None:
                return Status.error(mode_not_set(claim.class_name))
            if storage_class is None or not storage_class.waits_for_consumer or claim.spec.volume_name:
                has_immediate = True
            else:
                waiting.append(Unbound(claim, storage_class))
        if has_immediate:
            return Status.unresolvable("pod has unbound immediate PersistentVolumeClaims")
        state.write(PodClaims(bound, self._with_volumes(in_turn(waiting))))
        return None

    def _with_volumes(self, waiting: Sequence[Unbound]) -> Sequence[Unbound]:
        by_class: dict[str, list[PersistentVolume]] = {each.claim.class_name: [] for each in waiting}
        names = {each.claim.name for each in waiting}
        for volume in self._volumes if waiting else ():
            reference = volume.spec.claim_ref
            if (reference is None or reference.name in names) and volume.class_name in by_class:
                by_class[volume.class_name].append(volume)
        return [with_volumes(each, by_class[each.claim.class_name]) for each in waiting]

    def _check_bound(
        self, claims: Sequence[PersistentVolumeClaim], nodes: NodeTable, errors: dict[int, str]
    ) -> tuple[Mask, Mask]:
        """Rows that cannot reach the volume of some claim, and the others if some volume does not exist.

        Rows for which this is unknown go into `errors`.
        """
        fits = np.ones(len(nodes), np.bool_)
        for claim in claims:
            volume = self._volumes.get(claim.spec.volume_name)
            if volume is None:
                return ~fits, fits
            try:
                fits &= self._reached_from(volume, nodes)
            except FilterError as failed:
                errors.update({row: text for row, text in failed.texts.items() if fits[row]})
                fits &= reached_from(volume, nodes)
                fits[list(failed.texts)] = False
        return ~fits, np.zeros(len(nodes), np.bool_)

    def _reached_from(self, volume: PersistentVolume, nodes: NodeTable) -> Mask:
        """Rows from which a volume is reached; migrated nodes know in-tree ones by their CSI topology.

        FilterError for the migrated nodes if the volume cannot be translated.
        """
        mask = reached_from(volume, nodes)
        plugin = plugin_of(volume.spec)
        if plugin is None or not plugin.is_migrated:
            return mask
        csi_nodes = (self.handle.cluster.csi_nodes.get(name) for name in nodes.names)
        migrated = np.fromiter(
            (node is not None and plugin.name in node.migrated_plugins for node in csi_nodes),
            np.bool_,
            len(nodes),
        )
        if not migrated.any():
            return mask
        try:
            return np.where(migrated, reached_from(volume_to_csi(plugin, volume), nodes), mask)
        except InputError as error:
            text = f"could not translate pv: {error}"
            raise FilterError(dict.fromkeys(np.flatnonzero(migrated).tolist(), text)) from None

    def _is_done(
        self,
        pod: Pod,
        node_name: str,
        bindings: Sequence[tuple[Object, PersistentVolumeClaim]],
        provisions: Sequence[Object],
    ) -> bool:
        """Whether all that was written has led to bound claims; StowplanError says why it never will."""
        node = self._node(node_name)
        if self.handle.cluster.pod(pod.uid) is None:
            raise StowplanError(f'pod does not exist any more: pod "{pod.name}" not found')
        return all(self._is_bound(volume, claim, node) for volume, claim in bindings) and all(
            self._is_provisioned(claim, node) for claim in provisions
        )

    def _node(self, name: str) -> NodeTable:
        """A table of this node alone."""
        nodes = self.handle.cluster.nodes
        row = nodes.row_of(name)
        if row is None:
            raise StowplanError(f'failed to get node "{name}": node "{name}" not found')
        return nodes.take([row])

    def _is_bound(self, written: Object, claim: PersistentVolumeClaim, node: NodeTable) -> bool:
        volume = self.handle.cluster.pvs.get(written.key)
        seen = self.handle.cluster.pvcs.get(claim.key)
        if volume is None:
            raise StowplanError(f'failed to check binding: persistentvolume "{written.name}" not found')
        if seen is None:
            raise StowplanError(f"failed to check binding: {claim_not_found(claim.name)}")
        if seen.metadata.uid != claim.metadata.uid:
            raise StowplanError(f'persistentvolumeclaim "{claim.name}" was replaced during binding')
        if seen.is_fully_bound and seen.spec.volume_name != written.name:
            raise StowplanError(
                f'persistentvolumeclaim "{claim.name}" was bound to persistentvolume '
                f'"{seen.spec.volume_name}" instead of "{written.name}"'
            )
        if _is_older(volume, written):
            return False
        self._check_reach(volume, node)
        if volume.spec.claim_ref is None or not volume.spec.claim_ref.uid:
            raise StowplanError(f'ClaimRef got reset for pv "{volume.name}"')
        return seen.is_fully_bound

    def _is_provisioned(self, written: Object, node: NodeTable) -> bool:
        claim = self.handle.cluster.pvcs.get(written.key)
        if claim is None:
            raise StowplanError(f"failed to check provisioning pvc: {claim_not_found(written.name)}")
        if _is_older(claim, written):
            return False
        if claim.metadata.annotations.get(SELECTED_NODE) != node.names[0]:
            raise StowplanError(f'provisioning failed for PVC "{claim.name}"')
        if claim.spec.volume_name:
            volume = self.handle.cluster.pvs.get(claim.spec.volume_name)
            if volume is None:
                return False
            self._check_reach(volume, node)
        return claim.is_fully_bound

    def _check_reach(self, volume: PersistentVolume, node: NodeTable) -> None:
        if not self._reached_from(volume, node)[0]:
            raise StowplanError(
                f'pv "{volume.name}" node affinity doesn\'t match node "{node.names[0]}": '
                "no matching NodeSelectorTerms"
            )


def _bind_volume(claim: PersistentVolumeClaim, volume: PersistentVolume) -> PersistentVolume:
    """The volume with the claim written into it; we sign what we chose ourselves."""
    annotations = volume.metadata.annotations
    if not volume.belongs_to(claim):
        annotations = {BOUND_BY_CONTROLLER: "yes"} | annotations
    reference = volume.spec.claim_ref
    if reference is None or reference.uid != claim.metadata.uid:
        reference = ObjectReference(
            kind="PersistentVolumeClaim",
            api_version="v1",
            namespace=claim.namespace,
            name=claim.name,
            uid=claim.metadata.uid,
            resource_version=claim.metadata.resource_version,
        )
    return replace(
        volume,
        metadata=replace(volume.metadata, annotations=annotations),
        spec=replace(volume.spec, claim_ref=reference),
    )


def _for_node(claim: PersistentVolumeClaim, node_name: str) -> PersistentVolumeClaim:
    annotations = claim.metadata.annotations | {SELECTED_NODE: node_name}
    return replace(claim, metadata=replace(claim.metadata, annotations=annotations))


def _is_older(seen: Object, written: Object) -> bool:
    return _version(seen) < _version(written)


def _version(item: Object) -> int:
    text = item.metadata.resource_version
    return int(text) if text.isdecimal() else 0
