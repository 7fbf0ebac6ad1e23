"""The journal of a scheduler in a pod, whose own file system is read-only: its flags and its volume."""

from __future__ import annotations

from typing import Any

from stowplan.deploy.options import JOURNAL_SIZE, DeployOptions

Json = dict[str, Any]

FOLDER = "/var/lib/stowplan"
MEBIBYTE = 2**20
HEADROOM = 256 * MEBIBYTE
"""Files that are being merged are there twice, and beyond the volume's limit the kubelet evicts the pod."""


def flags(options: DeployOptions) -> list[str]:
    size = options.journal_size or JOURNAL_SIZE
    return [f"--journal={FOLDER}", f"--journal-size={size}"] if options.has_journal else []


def mounts(options: DeployOptions) -> list[Json]:
    return [{"name": "journal", "mountPath": FOLDER}] if options.has_journal else []


def pod_volumes(options: DeployOptions) -> list[Json]:
    """The claim's, or one of each pod's own that goes with it."""
    if options.journal_claim:
        return [{"name": "journal", "persistentVolumeClaim": {"claimName": options.journal_claim}}]
    limit = f"{-(-(options.journal_bytes + HEADROOM) // MEBIBYTE)}Mi"
    return [{"name": "journal", "emptyDir": {"sizeLimit": limit}}] if options.has_journal else []


def host_volumes(options: DeployOptions) -> list[Json]:
    folder = {"path": FOLDER, "type": "DirectoryOrCreate"}
    return [{"name": "journal", "hostPath": folder}] if options.has_journal else []
