"""NodeVolumeLimits: keeps a node from getting more volumes of a CSI driver than it can attach."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stowplan.api.csi_translation import PLUGIN_BY_NAME, inline_to_csi, plugin_of, volume_to_csi
from stowplan.api.meta import Object
from stowplan.api.pod import Pod, Volume
from stowplan.api.storage import (
    CSINode,
    CsiSource,
    PersistentVolume,
    PersistentVolumeClaim,
    VolumeAttachment,
)
from stowplan.cluster.trial_table import TrialTable
from stowplan.errors import InputError
from stowplan.framework import (
    QUEUE,
    SKIP_HINT,
    Action,
    ClusterEvent,
    CycleState,
    FilterError,
    Handle,
    Hint,
    NodeTable,
    Plugin,
    PluginArgs,
    Reject,
    Resource,
    Status,
)
from stowplan.plugins.volumes import (
    claim_name,
    claim_not_found,
    is_made_for,
    not_made_for,
    uses_claim,
)

TOO_MANY = "node(s) exceed max volume count"
MUST_LOOK = 1 << 40
"""Marks a pod whose volumes must be counted one by one."""
NO_LIMITS = 1 << 62


@dataclass(frozen=True)
class NewVolumes:
    """What the pod would attach: drivers by `driver/handle`, or an error."""

    drivers: dict[str, str] = field(default_factory=dict)
    missing: str = ""
    error: str = ""


class NodeVolumeLimits(Plugin):
    takes_trials = True

    def __init__(self, args: PluginArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        # A claim without a volume counts under a made-up handle, the same in all its pods.
        self._handle_prefix = secrets.token_hex(16)
        self._attachments: tuple[int, dict[str, list[VolumeAttachment]]] = (-1, {})

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        if not pod.spec.volumes or not any(_may_attach(volume) for volume in pod.spec.volumes):
            return Status.skip()
        for name in filter(None, (claim_name(pod, volume) for volume in pod.spec.volumes)):
            if self.handle.cluster.pvcs.get(f"{pod.namespace}/{name}") is None:
                missing = f"looking up PVC {pod.namespace}/{name}: {claim_not_found(name)}"
                state.write(NewVolumes(missing=missing))
                return None
        try:
            new = NewVolumes(self._volumes_of(pod))
        except InputError as error:
            new = NewVolumes(error=str(error))
        state.write(new)
        if not new.error and not (self._limits_of(new, nodes) < NO_LIMITS).any():
            # Without limits none can be exceeded, whatever pods preemption tries to evict.
            state.skipped_filters.add(self.name)
        return None

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        new = state.read(NewVolumes)
        if new.missing:
            yield Reject(np.ones(len(nodes), np.bool_), new.missing, unresolvable=True)
        if new.error:
            raise FilterError(dict.fromkeys(range(len(nodes)), new.error))
        mask = np.zeros(len(nodes), np.bool_)
        errors: dict[int, str] = {}
        for row in self._in_doubt(new, nodes) if new.drivers else ():
            try:
                mask[row] = self._exceeds(new, nodes, row)
            except InputError as error:  # something is wrong with a volume of a pod on this node
                errors[row] = str(error)
        yield Reject(mask, TOO_MANY)
        if errors:
            raise FilterError(errors)

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.CSI_NODE, Action.ADD),
            ClusterEvent(Resource.CSI_NODE, Action.UPDATE),
            ClusterEvent(Resource.POD, Action.DELETE),
            ClusterEvent(Resource.PERSISTENT_VOLUME_CLAIM, Action.ADD),
            ClusterEvent(Resource.VOLUME_ATTACHMENT, Action.DELETE),
        )

    def queueing_hint(
        self, pod: Pod, event: ClusterEvent, old: Pod | Object | None, new: Pod | Object | None
    ) -> Hint:
        match old, new:
            case CSINode(), CSINode():
                before = old.limits
                helps = any(count > before.get(driver, 0) for driver, count in new.limits.items())
            case Pod(), None:
                had_node = bool(old.node_name or old.nominated_node_name)
                helps = had_node and any(_may_attach(volume) for volume in old.spec.volumes)
            case None, PersistentVolumeClaim():
                helps = uses_claim(pod, new)
            case VolumeAttachment(), None:
                helps = any(_attached_by(old.spec.attacher, volume) for volume in pod.spec.volumes)
            case _:
                helps = True
        return QUEUE if helps else SKIP_HINT

    def _in_doubt(self, new: NewVolumes, nodes: NodeTable) -> list[int]:
        """Rows that would exceed a limit if no two volumes on them were the same; no others can."""
        limits = self._limits_of(new, nodes)
        if isinstance(nodes, TrialTable):  # evicted pods are counted as well, to look at fewer pods
            (volumes,) = nodes.live.keep((self.name, "volumes"), _most_volumes, usage=True)
            volumes = volumes[nodes.rows] + nodes.sum_added(_most_of)
        else:
            (volumes,) = nodes.keep((self.name, "volumes"), _most_volumes, usage=True)
        (attached,) = nodes.live.keep(
            (self.name, "attached", self.handle.cluster.volume_attachments.version),
            lambda part: (np.array([len(self._attached_to(name)) for name in part.names], np.int64),),
        )
        return np.flatnonzero(volumes + attached[nodes.rows] + len(new.drivers) > limits).tolist()

    def _limits_of(self, new: NewVolumes, nodes: NodeTable) -> NDArray[np.int64]:
        """The lowest limit of each row for the drivers of the new volumes."""
        drivers = frozenset(new.drivers.values())
        (limits,) = nodes.live.keep(
            (self.name, "limits", self.handle.cluster.csi_nodes.version, drivers),
            lambda part: (np.array([self._lowest_limit(name, drivers) for name in part.names], np.int64),),
        )
        found: NDArray[np.int64] = limits[nodes.rows]
        return found

    def _lowest_limit(self, node_name: str, drivers: frozenset[str]) -> int:
        limits = self._limits(node_name)
        if not limits:
            return NO_LIMITS
        return min((limits[driver] for driver in drivers if driver in limits), default=MUST_LOOK - 1)

    def _limits(self, node_name: str) -> dict[str, int]:
        csi_node = self.handle.cluster.csi_nodes.get(node_name)
        return csi_node.limits if csi_node is not None else {}

    def _exceeds(self, new: NewVolumes, nodes: NodeTable, row: int) -> bool:
        limits, counts = self._limits(nodes.names[row]), self._counts_with(new, nodes, row)
        return any(count > limits[driver] for driver, count in counts.items() if driver in limits)

    def _counts_with(self, new: NewVolumes, nodes: NodeTable, row: int) -> dict[str, int]:
        """Volumes by driver with the new ones on the node, for the drivers of the new ones."""
        attached: dict[str, str] = {}
        for pod in nodes.pods_on(row):
            attached |= self._volumes_of(pod)
        counts = Counter(attached.values())
        counts.update(self._only_attached(nodes.names[row], attached).values())
        # parity: a volume that no pod on the node uses but that is still attached is counted twice
        added = Counter(driver for volume, driver in new.drivers.items() if volume not in attached)
        return {driver: counts[driver] + count for driver, count in added.items()}

    def _only_attached(self, node_name: str, known: dict[str, str]) -> dict[str, str]:
        """Volumes attached to the node that are not among those known."""
        found = {}
        for attachment in self._attached_to(node_name):
            volume = self.handle.cluster.pvs.get(attachment.spec.source.persistent_volume_name or "")
            if volume is not None and volume.spec.csi is not None:
                found[f"{attachment.spec.attacher}/{volume.spec.csi.volume_handle}"] = (
                    attachment.spec.attacher
                )
        return {volume: driver for volume, driver in found.items() if volume not in known}

    def _attached_to(self, node_name: str) -> list[VolumeAttachment]:
        store = self.handle.cluster.volume_attachments
        if self._attachments[0] != store.version:
            by_node: dict[str, list[VolumeAttachment]] = {}
            for attachment in store:
                if attachment.spec.attacher:
                    by_node.setdefault(attachment.spec.node_name, []).append(attachment)
            self._attachments = (store.version, by_node)
        return self._attachments[1].get(node_name, [])

    def _volumes_of(self, pod: Pod) -> dict[str, str]:
        """Drivers by `driver/handle` of the volumes a pod has attached, on a node that has a CSINode.

        On others in-tree volumes do not count, but those have no limits either.
        """
        found = {}
        for volume in pod.spec.volumes:
            name = claim_name(pod, volume)
            source = _inline_source(volume) if name is None else self._claim_source(pod, volume, name)
            if source is not None and source.driver and source.volume_handle:
                found[f"{source.driver}/{source.volume_handle}"] = source.driver
        return found

    def _claim_source(self, pod: Pod, volume: Volume, name: str) -> CsiSource | None:
        if not name:
            raise InputError("PersistentVolumeClaim had no name")
        claim = self.handle.cluster.pvcs.get(f"{pod.namespace}/{name}")
        if claim is None:
            return None
        if volume.ephemeral is not None and not is_made_for(claim, pod):
            raise InputError(not_made_for(claim, pod))
        return self._source_behind(claim)

    def _source_behind(self, claim: PersistentVolumeClaim) -> CsiSource | None:
        """The driver and handle of a claim's volume, or those that its storage class will provision."""
        volume = self.handle.cluster.pvs.get(claim.spec.volume_name)
        if volume is not None:
            return volume.spec.csi or _translated_source(volume)
        storage_class = self.handle.cluster.storage_classes.get(claim.class_name)
        if storage_class is None:
            return None
        driver = storage_class.provisioner
        if plugin := PLUGIN_BY_NAME.get(driver):
            driver = plugin.driver if plugin.is_migrated else ""
        return CsiSource(driver=driver, volume_handle=f"{self._handle_prefix}-{claim.key}")


def _may_attach(volume: Volume) -> bool:
    return bool(volume.persistent_volume_claim or volume.ephemeral or plugin_of(volume))


def _attached_by(attacher: str, volume: Volume) -> bool:
    """Whether a volume attached by this driver might be the pod's."""
    if volume.persistent_volume_claim is not None:
        return True
    plugin = plugin_of(volume)
    return plugin is not None and plugin.driver == attacher


def _most_volumes(nodes: NodeTable) -> tuple[NDArray[np.int64]]:
    """No fewer than are attached on each row."""
    return (np.array([sum(map(_most_of, nodes.pods_on(row))) for row in range(len(nodes))], np.int64),)


def _most_of(pod: Pod) -> int:
    volumes = pod.spec.volumes
    # A malformed EBS id, or an ephemeral volume's claim of another owner, ends the attempt: look at these.
    if volumes and any(volume.ephemeral or volume.aws_elastic_block_store for volume in volumes):
        return MUST_LOOK
    return len(volumes)


def _inline_source(volume: Volume) -> CsiSource | None:
    plugin = plugin_of(volume)
    if plugin is None or not plugin.is_migrated:
        return None
    try:
        return inline_to_csi(plugin, volume)
    except InputError as error:
        raise InputError(f"converting volume({volume.name}) from inline to csi: {error}") from None


def _translated_source(volume: PersistentVolume) -> CsiSource | None:
    plugin = plugin_of(volume.spec)
    if plugin is None or not plugin.is_migrated:
        return None
    try:
        return volume_to_csi(plugin, volume).spec.csi
    except InputError:
        return None
