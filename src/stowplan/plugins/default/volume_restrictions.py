"""VolumeRestrictions: keeps pods apart that cannot share a disk or a ReadWriteOncePod claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stowplan.api.meta import Object
from stowplan.api.pod import AwsElasticBlockStore, GcePersistentDisk, Iscsi, Pod, Rbd
from stowplan.api.storage import READ_WRITE_ONCE_POD, PersistentVolumeClaim
from stowplan.framework import (
    QUEUE,
    SKIP_HINT,
    Action,
    ClusterEvent,
    CycleState,
    Hint,
    Node,
    NodeTable,
    Plugin,
    Resource,
    Status,
)
from stowplan.plugins.volumes import claim_not_found, named_claims, names_claim

Disk = GcePersistentDisk | AwsElasticBlockStore | Rbd | Iscsi

DISK_CONFLICT = "node(s) had no available disk"
IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode "
    "already in-use by another pod"
)


@dataclass
class ExclusiveClaims:
    """The pod's ReadWriteOncePod claims, and how many uses by other pods conflict with it."""

    names: frozenset[str]
    conflicts: int

    def clone(self) -> ExclusiveClaims:
        return ExclusiveClaims(self.names, self.conflicts)

    def uses_by(self, pod: Pod) -> int:
        # parity: the namespace of the other pod is ignored
        return sum(name in self.names for name in named_claims(pod))


class VolumeRestrictions(Plugin):
    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        if not pod.spec.volumes:
            return Status.skip()
        exclusive = set()
        for name in named_claims(pod):
            claim = self.handle.cluster.pvcs.get(f"{pod.namespace}/{name}")
            if claim is None:
                return Status.unresolvable(claim_not_found(name))
            if READ_WRITE_ONCE_POD in claim.spec.access_modes:
                exclusive.add(name)
        conflicts = self._count_used(pod.namespace, exclusive)
        if not conflicts and not _disks(pod):
            return Status.skip()
        state.write(ExclusiveClaims(frozenset(exclusive), conflicts))
        return None

    def add_pod(self, state: CycleState, pod: Pod, added: Pod, node: Node) -> None:
        claims = state.read(ExclusiveClaims)
        claims.conflicts += claims.uses_by(added)

    def remove_pod(self, state: CycleState, pod: Pod, removed: Pod, node: Node) -> None:
        claims = state.read(ExclusiveClaims)
        claims.conflicts -= claims.uses_by(removed)

    def filter(self, state: CycleState, pod: Pod, node: Node) -> Status | None:
        if _shares_disk(pod, node.pods):
            return Status.unschedulable(DISK_CONFLICT)
        if state.read(ExclusiveClaims).conflicts > 0:
            return Status.unschedulable(IN_USE)
        return None

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.POD, Action.DELETE),
            ClusterEvent(Resource.NODE, Action.ADD),
            ClusterEvent(Resource.PERSISTENT_VOLUME_CLAIM, Action.ADD),
        )

    def queueing_hint(
        self, pod: Pod, event: ClusterEvent, old: Pod | Object | None, new: Pod | Object | None
    ) -> Hint:
        match old or new:
            case Pod() as deleted:
                # parity: a pod of another namespace frees its disk too, but is not waited for
                frees = deleted.namespace == pod.namespace and (
                    _shares_disk(pod, (deleted,))
                    or not set(named_claims(deleted)).isdisjoint(named_claims(pod))
                )
                return QUEUE if frees else SKIP_HINT
            case PersistentVolumeClaim() as claim:
                return QUEUE if names_claim(pod, claim) else SKIP_HINT
        return QUEUE

    def _count_used(self, namespace: str, names: set[str]) -> int:
        """How many of these claims some pod on some node uses."""
        if not names:
            return 0
        used = {
            name
            for other in self.handle.cluster.nodes.pods.pods
            if other.spec.volumes and other.namespace == namespace
            for name in named_claims(other)
        }
        return len(names & used)


def _shares_disk(pod: Pod, others: Sequence[Pod]) -> bool:
    """The pod has a disk in common with another that cannot be mounted by both."""
    wanted = _disks(pod)
    return any(_conflict(mine, theirs) for other in others for theirs in _disks(other) for mine in wanted)


def _disks(pod: Pod) -> tuple[Disk, ...]:
    """Volumes that only one pod can mount, or several that only read."""
    memo = pod.shape.memo
    if _disks not in memo:
        sources = (
            volume.gce_persistent_disk or volume.aws_elastic_block_store or volume.rbd or volume.iscsi
            for volume in pod.spec.volumes
        )
        memo[_disks] = tuple(source for source in sources if source is not None)
    found: tuple[Disk, ...] = memo[_disks]
    return found


def _conflict(mine: Disk, theirs: Disk) -> bool:
    match mine, theirs:
        case AwsElasticBlockStore(), AwsElasticBlockStore():
            return mine.volume_id == theirs.volume_id
        case GcePersistentDisk(), GcePersistentDisk():
            is_same = mine.pd_name == theirs.pd_name
        case Iscsi(), Iscsi():
            is_same = mine.iqn == theirs.iqn
        case Rbd(), Rbd():
            shared = set(mine.monitors) & set(theirs.monitors)
            is_same = bool(shared) and (mine.pool, mine.image) == (theirs.pool, theirs.image)
        case _:
            return False
    return is_same and not (mine.read_only and theirs.read_only)
