"""PersistentVolumes for claims: one that fits is bound, or one is made, whatever provisioner the class names.

A claim of a class that waits for its first consumer gets a volume once a scheduler has chosen the node, or
has set a volume aside for the claim.
"""

from __future__ import annotations

from stowplan.api.meta import Json
from stowplan.api.quantity import parse
from stowplan.api.selectors import EVERYTHING
from stowplan.api.storage import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    CLASS_ANNOTATION,
    NO_PROVISIONER,
    SELECTED_NODE,
)
from stowplan.client.errors import Conflict, NotFound
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import CLAIMS, CLASSES, NODES, PODS, VOLUMES, Plain, PodView, StorageClassView
from stowplan.controllers.owned_pods import differs, selector_in
from stowplan.controllers.stores import Index, Store, Stores

PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
IS_DEFAULT = "storageclass.kubernetes.io/is-default-class"
ZONE = "topology.kubernetes.io/zone"
IN_USE = {
    "PersistentVolumeClaim": "kubernetes.io/pvc-protection",
    "PersistentVolume": "kubernetes.io/pv-protection",
}
WAITS = "WaitForFirstConsumer"


class Volumes(Controller):
    """Keys are those of claims, and of volumes with a slash before them."""

    workers = 1  # two claims must not take the same volume

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._claims, self._volumes = self.store(CLAIMS), self.store(VOLUMES)
        self._classes, self._nodes, pods = self.store(CLASSES), self.store(NODES), self.store(PODS)
        self._users = Index(pods, lambda pod: [f"{pod.namespace}/{name}" for name in pod.claim_names])
        self._claims.listen(self._on_claim)
        self._volumes.listen(self._on_volume)
        self._classes.listen(lambda old, new: self._look_at_open_claims())
        pods.listen(self._on_pod)

    def _on_claim(self, old: Plain | None, new: Plain | None) -> None:
        claim = new or old
        assert claim is not None
        self.queue.add(claim.key)
        if name := claim.spec.get("volumeName"):
            self.queue.add(f"/{name}")

    def _on_volume(self, old: Plain | None, new: Plain | None) -> None:
        volume = new or old
        assert volume is not None
        self.queue.add(f"/{volume.name}")
        if reference := volume.spec.get("claimRef"):
            self.queue.add(f"{reference.get('namespace')}/{reference.get('name')}")
        elif old is None:
            self._look_at_open_claims()

    def _on_pod(self, old: PodView | None, new: PodView | None) -> None:
        pod = new if new is not None else old
        if pod is not None and (new is None or new.is_finished):
            for name in pod.claim_names:
                self.queue.add(f"{pod.namespace}/{name}")

    def _look_at_open_claims(self) -> None:
        for claim in self._claims:
            if not claim.spec.get("volumeName"):
                self.queue.add(claim.key)

    async def reconcile(self, key: str) -> None:
        if key.startswith("/"):
            volume = self._volumes.get(key[1:])
            if volume is not None:
                await self._keep_volume(volume)
        elif (claim := self._claims.get(key)) is not None:
            await self._keep_claim(claim)

    async def _keep_claim(self, claim: Plain) -> None:
        if claim.is_terminating:
            await self._unprotect_claim(claim)
            return
        name = claim.spec.get("volumeName")
        volume = self._volumes.get(name) if name else self._find(claim)
        if volume is not None and _is_of(volume, claim):
            await self._bind(claim, volume)
        elif name:
            await self._say(claim, "Lost" if BIND_COMPLETED in claim.metadata.annotations else "Pending")
        else:
            await self._say(claim, "Pending")
            if not await self._gave_default_class(claim):
                await self._provision(claim)

    async def _gave_default_class(self, claim: Plain) -> bool:
        """Give a claim that names no class the default one, which may be newer than the claim."""
        has_class = claim.spec.get("storageClassName") is not None
        if has_class or CLASS_ANNOTATION in claim.metadata.annotations:
            return False
        marked = [each for each in self._classes if each.metadata.annotations.get(IS_DEFAULT) == "true"]
        if not marked:
            return False
        marked.sort(key=lambda each: each.name)
        newest = max(marked, key=lambda each: str(each.metadata.creation_timestamp))
        await self._claims.patch(claim, {"spec": {"storageClassName": newest.name}})
        return True

    def _find(self, claim: Plain) -> Plain | None:
        """The volume that was set aside for the claim, or the smallest that fits, if it need not wait."""
        set_aside = [each for each in self._volumes if each.spec.get("claimRef") and _is_of(each, claim)]
        if set_aside or self._waits(claim):
            return set_aside[0] if set_aside else None
        free = [each for each in self._volumes if not each.spec.get("claimRef") and fits(each, claim)]
        return min(free, key=_size, default=None)

    def _waits(self, claim: Plain) -> bool:
        found = self._classes.get(class_of(claim))
        return found is not None and found.volume_binding_mode == WAITS

    async def _bind(self, claim: Plain, volume: Plain) -> None:
        """Both sides name each other, then both say that they are bound."""
        reference = _reference_to(claim)
        if differs(volume.spec.get("claimRef") or {}, reference):
            chosen: Json = (
                {} if volume.spec.get("claimRef") else {"annotations": {BOUND_BY_CONTROLLER: "yes"}}
            )
            change = {"metadata": chosen, "spec": {"claimRef": reference}}
            volume = await self._volumes.patch(volume, change)
        if volume.status.get("phase") != "Bound":
            await self._volumes.patch_status(volume, {"phase": "Bound"})
        if claim.spec.get("volumeName") != volume.name or BIND_COMPLETED not in claim.metadata.annotations:
            marks = {BIND_COMPLETED: "yes"}
            if not claim.spec.get("volumeName"):
                marks[BOUND_BY_CONTROLLER] = "yes"
            filled = {"metadata": {"annotations": marks}, "spec": {"volumeName": volume.name}}
            claim = await self._claims.patch(claim, filled)
        status = {
            "phase": "Bound",
            "accessModes": volume.spec.get("accessModes"),
            "capacity": {"storage": volume.spec["capacity"]["storage"]},
        }
        if differs(claim.status, status):
            await self._claims.patch_status(claim, status)

    async def _provision(self, claim: Plain) -> None:
        found = self._classes.get(class_of(claim))
        if found is None or found.provisioner == NO_PROVISIONER or claim.spec.get("selector"):
            return
        chosen = claim.metadata.annotations.get(SELECTED_NODE)
        node = self._nodes.get(chosen) if chosen else None
        if found.volume_binding_mode == WAITS and node is None:
            if chosen:  # the node is gone: the scheduler is to choose again
                await self._claims.patch(claim, {"metadata": {"annotations": {SELECTED_NODE: None}}})
            return
        try:
            await self._volumes.create("", volume_for(claim, found, node))
        except Conflict:  # made before, which the watch is about to show
            return

    async def _keep_volume(self, volume: Plain) -> None:
        reference = volume.spec.get("claimRef")
        claim = self._claims.get(f"{reference['namespace']}/{reference['name']}") if reference else None
        if volume.is_terminating:
            if claim is None:
                await self._without_finalizer(self._volumes, volume)
            return
        if reference is None or not reference.get("uid"):
            if volume.status.get("phase") != "Available":
                await self._volumes.patch_status(volume, {"phase": "Available"})
        elif claim is None or claim.uid != reference["uid"]:
            if await self._is_there(reference):
                self.queue.add_after(f"/{volume.name}", 1.0)  # the watch is about to show the claim
            elif volume.spec.get("persistentVolumeReclaimPolicy") == "Delete":
                await self._volumes.delete(volume)
            elif volume.status.get("phase") != "Released":
                await self._volumes.patch_status(volume, {"phase": "Released"})

    async def _is_there(self, reference: Json) -> bool:
        try:
            found = await self._claims.read(reference["namespace"], reference["name"])
        except NotFound:
            return False
        return bool(found.uid == reference["uid"])

    async def _say(self, claim: Plain, phase: str) -> None:
        if claim.status.get("phase") != phase:
            await self._claims.patch_status(claim, {"phase": phase})

    async def _unprotect_claim(self, claim: Plain) -> None:
        if all(pod.is_finished for pod in self._users.of(claim.key)):
            await self._without_finalizer(self._claims, claim)

    async def _without_finalizer(self, store: Store[Plain], item: Plain) -> None:
        held = item.metadata.finalizers
        left = [each for each in held if each != IN_USE[store.kind.name]]
        if len(left) < len(held):
            await store.patch(item, {"metadata": {"finalizers": left}})


def class_of(item: Plain) -> str:
    found = item.metadata.annotations.get(CLASS_ANNOTATION, item.spec.get("storageClassName"))
    return found or ""


def fits(volume: Plain, claim: Plain) -> bool:
    wanted = (claim.spec.get("resources") or {}).get("requests", {}).get("storage", "0")
    selector = selector_in(claim.spec) if claim.spec.get("selector") else EVERYTHING
    return (
        not volume.is_terminating
        and class_of(volume) == class_of(claim)
        and _size(volume) >= parse(wanted)
        and set(claim.spec.get("accessModes") or ()) <= set(volume.spec.get("accessModes") or ())
        and volume.spec.get("volumeMode", "Filesystem") == claim.spec.get("volumeMode", "Filesystem")
        and selector.matches(volume.labels)
    )


def volume_for(claim: Plain, found: StorageClassView, node: Plain | None) -> Json:
    """What a CSI driver would make: reachable from the chosen node's zone, or from where the class allows."""
    name = f"pvc-{claim.uid}"
    spec: Json = {
        "capacity": {"storage": claim.spec["resources"]["requests"]["storage"]},
        "accessModes": claim.spec.get("accessModes"),
        "volumeMode": claim.spec.get("volumeMode", "Filesystem"),
        "persistentVolumeReclaimPolicy": found.reclaim_policy,
        "storageClassName": found.name,
        "mountOptions": list(found.mount_options),
        "claimRef": _reference_to(claim),
        "csi": {"driver": found.provisioner.replace("/", "."), "volumeHandle": name},
    }
    terms = [{"matchExpressions": each} for each in _topologies(found, node)]
    if terms:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    return {"metadata": {"name": name, "annotations": {PROVISIONED_BY: found.provisioner}}, "spec": spec}


def _reference_to(claim: Plain) -> Json:
    identity = {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid}
    return {"apiVersion": "v1", "kind": CLAIMS.name, **identity}


def _topologies(found: StorageClassView, node: Plain | None) -> list[list[Json]]:
    if node is not None and ZONE in node.labels:
        return [[{"key": ZONE, "operator": "In", "values": [node.labels[ZONE]]}]]
    return [
        [
            {"key": each["key"], "operator": "In", "values": each["values"]}
            for each in term.get("matchLabelExpressions", ())
        ]
        for term in found.allowed_topologies
    ]


def _size(volume: Plain) -> int:
    return parse(volume.spec.get("capacity", {}).get("storage", "0"))


def _is_of(volume: Plain, claim: Plain) -> bool:
    """Whether the volume is free, or set aside for this claim."""
    reference = volume.spec.get("claimRef")
    if reference is None:
        return True
    same = (reference.get("namespace"), reference.get("name")) == (claim.namespace, claim.name)
    return same and reference.get("uid") in (None, "", claim.uid)
