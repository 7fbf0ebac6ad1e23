"""What pods and pod groups bring along: ResourceClaims made from templates, and claims for ephemeral volumes.

Also lets go of what pods that have ended still hold, so that others can have it.
"""

from __future__ import annotations

from typing import Any

from stowplan.api.meta import Json
from stowplan.client.errors import Conflict
from stowplan.controllers.engine import Controller
from stowplan.controllers.groups import POD_GROUPS, named_group
from stowplan.controllers.kinds import (
    CLAIM_TEMPLATES,
    CLAIMS,
    PODS,
    RESOURCE_CLAIMS,
    Kind,
    Known,
    Plain,
    PodView,
)
from stowplan.controllers.owned_pods import owner_of
from stowplan.controllers.stores import Index, Stores, owner_keys

CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
HELD = "resource.kubernetes.io/delete-protection"


class ClaimMaker(Controller):
    """Creates ResourceClaims from templates for the objects that own them."""

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._templates = self.store(CLAIM_TEMPLATES)
        self._owned = self.store(RESOURCE_CLAIMS).index(owner_keys)

    async def _claim_for(self, kind: Kind[Any], owner: Known, use: str, template_name: str) -> str | None:
        """The name of the claim, made if need be; None without the template."""
        for claim in self._owned.of(owner.uid):
            if claim.metadata.annotations.get(CLAIM_NAME) == use:
                return claim.name
        template = self._templates.get(f"{owner.namespace}/{template_name}")
        if template is None:
            return None
        meta = template.spec.get("metadata") or {}
        body = {
            "metadata": {
                "generateName": f"{owner.name}-{use}-",
                "labels": meta.get("labels") or {},
                "annotations": {**(meta.get("annotations") or {}), CLAIM_NAME: use},
                "ownerReferences": [owner_of(kind, owner)],
            },
            "spec": template.spec["spec"],
        }
        made = await self.stores.of(RESOURCE_CLAIMS).create(owner.namespace, body)
        return made.name


class GroupClaims(ClaimMaker):
    """The claims that all pods of a PodGroup share: one for each template that the group names."""

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._groups = self.store(POD_GROUPS)
        self._groups.listen(self._on_group)
        self._templates.listen(self._on_template)

    def _on_group(self, old: Plain | None, new: Plain | None) -> None:
        if new is not None and new.spec.get("resourceClaims"):
            self.queue.add(new.key)

    def _on_template(self, old: Plain | None, new: Plain | None) -> None:
        for group in self._groups if new is not None else ():
            self._on_group(None, group)

    async def reconcile(self, key: str) -> None:
        group = self._groups.get(key)
        if group is None or group.is_terminating:
            return
        known = group_claims(group)
        wanted = dict(known)
        for use in group.spec.get("resourceClaims") or ():
            if (template := use.get("resourceClaimTemplateName")) and use["name"] not in known:
                name = await self._claim_for(POD_GROUPS, group, use["name"], template)
                if name is None:
                    return  # until the template is there
                wanted[use["name"]] = name
        if wanted != known:
            entries = [{"name": name, "resourceClaimName": claim} for name, claim in wanted.items()]
            await self._groups.patch_status(group, {"resourceClaimStatuses": entries})


def group_claims(group: Plain) -> dict[str, str]:
    """The claims that were made for a group, by the name of its entry."""
    statuses = group.status.get("resourceClaimStatuses") or ()
    return {each["name"]: each.get("resourceClaimName", "") for each in statuses}


class PodClaims(ClaimMaker):
    def __init__(self, stores: Stores, *, with_groups: bool = False) -> None:
        super().__init__(stores)
        self._pods = self.store(PODS)
        self._volume_claims = self.store(CLAIMS)
        self._pods.listen(self._on_pod)
        self._templates.listen(self._on_template)
        self._groups = self.store(POD_GROUPS) if with_groups else None
        if self._groups is not None:
            self._members = self._pods.index(named_group)
            self._groups.listen(self._on_group)

    def _on_pod(self, old: PodView | None, new: PodView | None) -> None:
        if new is not None and (new.spec.resource_claims or any(each.ephemeral for each in new.spec.volumes)):
            self.queue.add(new.key)

    def _on_template(self, old: Plain | None, new: Plain | None) -> None:
        for pod in self._pods if new is not None else ():
            if pod.spec.resource_claims:
                self.queue.add(pod.key)

    def _on_group(self, old: Plain | None, new: Plain | None) -> None:
        if new is not None and (old is None or new.spec.get("resourceClaims")):
            for pod in self._members.of(new.key):
                self._on_pod(None, pod)

    async def reconcile(self, key: str) -> None:
        pod = self._pods.get(key)
        if pod is None or not pod.is_active:
            return
        await self._make_volume_claims(pod)
        known = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
        wanted = dict(known)
        for use in pod.spec.resource_claims:
            if use.resource_claim_template_name and use.name not in known:
                name = await self._name_for(pod, use.name, use.resource_claim_template_name)
                if not name:
                    return  # until the template is there, or the group and its claim
                wanted[use.name] = name
        if wanted != known:
            entries = [{"name": name, "resourceClaimName": claim} for name, claim in wanted.items()]
            await self._pods.patch_status(pod, {"resourceClaimStatuses": entries})

    async def _name_for(self, pod: PodView, use: str, template: str) -> str | None:
        """The pod's own claim, or that of its group if the group names the same use and template."""
        for key in named_group(pod) if self._groups is not None else ():
            group = self._groups.get(key) if self._groups is not None else None
            if group is None:
                return None  # whether it shares the claim is not known yet
            if {"name": use, "resourceClaimTemplateName": template} in (
                group.spec.get("resourceClaims") or ()
            ):
                return group_claims(group).get(use)
        return await self._claim_for(PODS, pod, use, template)

    async def _make_volume_claims(self, pod: PodView) -> None:
        for volume in pod.spec.volumes:
            name = f"{pod.name}-{volume.name}"
            if volume.ephemeral is None or self._volume_claims.get(f"{pod.namespace}/{name}") is not None:
                continue
            template = volume.ephemeral.volume_claim_template
            meta = {
                **(template.get("metadata") or {}),
                "name": name,
                "ownerReferences": [owner_of(PODS, pod)],
            }
            try:
                await self._volume_claims.create(pod.namespace, {"metadata": meta, "spec": template["spec"]})
            except Conflict:  # there already, which the watch is about to show
                continue


class ClaimHolders(Controller):
    """Pods hold ResourceClaims until they have ended; when none is left, the devices are free."""

    def __init__(self, stores: Stores, *, with_groups: bool = False) -> None:
        super().__init__(stores)
        self._pods, self._claims = self.store(PODS), self.store(RESOURCE_CLAIMS)
        self._by_holder = Index(self._claims, lambda claim: [each["uid"] for each in _holders(claim)])
        self._groups = self.store(POD_GROUPS) if with_groups else None
        if self._groups is not None:
            self._groups.listen(self._on_group)
        self._claims.listen_keys(self.queue.add)
        self._pods.listen(self._on_pod)

    def _on_pod(self, old: PodView | None, new: PodView | None) -> None:
        pod = new or old
        if pod is not None and (new is None or new.is_finished):
            for claim in self._by_holder.of(pod.uid):
                self.queue.add(claim.key)

    def _on_group(self, old: Plain | None, new: Plain | None) -> None:
        if new is None and old is not None:
            for claim in self._by_holder.of(old.uid):
                self.queue.add(claim.key)

    async def reconcile(self, key: str) -> None:
        claim = self._claims.get(key)
        if claim is None:
            return
        holders = _holders(claim)
        left = [each for each in holders if self._still_holds(claim.namespace, each)]
        status: Json = {"reservedFor": left or None}
        ends = not left and claim.status.get("allocation") and (holders or claim.is_terminating)
        if ends:
            status["allocation"] = None
        if len(left) < len(holders) or ends:
            claim = await self._claims.patch_status(claim, status)
        # A scheduler writes the finalizer before the allocation: one that was never allocated keeps it.
        is_over = ends or claim.is_terminating
        if is_over and HELD in claim.metadata.finalizers and not claim.status.get("allocation"):
            others = [each for each in claim.metadata.finalizers if each != HELD]
            claim = await self._claims.patch(claim, {"metadata": {"finalizers": others}})
        await self._delete_with_pod(claim)

    async def _delete_with_pod(self, claim: Plain) -> None:
        """A claim that was made for a pod ends with it."""
        owner = claim.metadata.controller()
        if owner is None or owner.kind != PODS.name or claim.is_terminating:
            return
        pod = self._pods.get(f"{claim.namespace}/{owner.name}")
        if pod is not None and pod.uid == owner.uid and pod.is_finished:
            await self._claims.delete(claim)

    def _still_holds(self, namespace: str, holder: Json) -> bool:
        if holder.get("resource") == POD_GROUPS.plural and self._groups is not None:
            group = self._groups.get(f"{namespace}/{holder['name']}")
            return group is not None and group.uid == holder["uid"]
        if holder.get("resource") != PODS.plural:
            return True
        pod = self._pods.get(f"{namespace}/{holder['name']}")
        return pod is not None and pod.uid == holder["uid"] and not pod.is_finished


def _holders(claim: Plain) -> list[Json]:
    return claim.status.get("reservedFor") or []
