"""The claims behind a pod's volumes, and the words for what is wrong with them, for all volume plugins."""

from __future__ import annotations

from collections.abc import Iterator

from stowplan.api.pod import Pod, Volume
from stowplan.api.storage import PersistentVolumeClaim


def claim_name(pod: Pod, volume: Volume) -> str | None:
    """The claim a volume stands for: the one it names, or for an ephemeral volume the one made for it."""
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return f"{pod.name}-{volume.name}" if volume.ephemeral is not None else None


def named_claims(pod: Pod) -> Iterator[str]:
    """The claims a pod names itself, in the order of its volumes."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name


def names_claim(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    return claim.namespace == pod.namespace and claim.name in named_claims(pod)


def uses_claim(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    """The pod names the claim, or has an ephemeral volume of its name."""
    return claim.namespace == pod.namespace and any(
        claim_name(pod, volume) == claim.name for volume in pod.spec.volumes
    )


def is_made_for(claim: PersistentVolumeClaim, pod: Pod) -> bool:
    owner = claim.metadata.controller()
    return owner is not None and owner.uid == pod.uid


def not_made_for(claim: PersistentVolumeClaim, pod: Pod) -> str:
    return f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)"


def claim_not_found(name: str) -> str:
    return f'persistentvolumeclaim "{name}" not found'


def mode_not_set(class_name: str) -> str:
    return f'VolumeBindingMode not set for StorageClass "{class_name}"'
