"""StatefulSets: pods that have a number, a name and volumes of their own, in order."""

from __future__ import annotations

from stowplan.api.meta import Json
from stowplan.client.errors import ApiError, Conflict
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import CLAIMS, PODS, REVISIONS, STATEFUL_SETS, Plain, PodView
from stowplan.controllers.owned_pods import OwnedPods, available_in, differs, owner_of, pod_from
from stowplan.controllers.revisions import HASH_LABEL, Revisions, Templates
from stowplan.controllers.stores import Stores, by_namespace

NAME_LABEL, INDEX_LABEL = "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"


class StatefulSets(Controller):
    component = "statefulset-controller"

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._sets, self._claims = self.store(STATEFUL_SETS), self.store(CLAIMS)
        self._of_namespace = self._claims.index(by_namespace)
        self._pods = OwnedPods(self, self._sets, self.store(PODS))
        self._revisions = Revisions(STATEFUL_SETS, self.store(REVISIONS))

    async def reconcile(self, key: str) -> None:
        owner = self._sets.get(key)
        if owner is None:
            return
        found = await self._pods.claim(owner)
        pods = {number: pod for pod in found if (number := ordinal_of(owner, pod)) is not None}
        if owner.is_terminating:
            return
        used = {pod.labels.get(HASH_LABEL, "") for pod in pods.values()}
        templates = await self._revisions.sync(owner, {*used, owner.status.get("currentRevision", "")})
        current = owner.status.get("currentRevision") or templates.update
        if current not in templates.by_name:
            current = templates.update
        if await self._keep_numbers(owner, pods, templates, current):
            await self._update(owner, pods, templates.update)
        await self._delete_claims(owner, pods)
        await self._pods.store.settled()
        fresh = {
            number: pod for pod in self._pods.of(owner) if (number := ordinal_of(owner, pod)) is not None
        }
        await self._write_status(owner, fresh, current, templates.update)

    async def _keep_numbers(
        self, owner: Plain, pods: dict[int, PodView], templates: Templates, current: str
    ) -> bool:
        """Makes what is missing and takes away what is too much; whether all of it was there already."""
        one_by_one = owner.spec.get("podManagementPolicy", "OrderedReady") == "OrderedReady"
        numbers = numbers_of(owner)
        for number in numbers:
            pod = pods.get(number)
            if pod is not None and pod.is_finished and not pod.is_terminating:
                await self._delete(owner, pod)
                return False
            if pod is None:
                await self._create(owner, number, templates, current)
            if one_by_one and (pod is None or self._wait_of(owner, pod) != 0):
                return False
        surplus = sorted((number for number in pods if number not in numbers), reverse=True)
        for number in surplus:
            if not pods[number].is_terminating:
                await self._delete(owner, pods[number])
            if one_by_one:
                return False
        return not surplus and all(number in pods for number in numbers)

    def _wait_of(self, owner: Plain, pod: PodView) -> float | None:
        wait = available_in(pod, owner.spec.get("minReadySeconds", 0), self.clock.now())
        if wait:
            self.queue.add_after(owner.key, wait)
        return wait

    async def _create(self, owner: Plain, number: int, templates: Templates, current: str) -> None:
        await self._create_claims(owner, number)
        revision = templates.update if number >= first_updated(owner, current, templates.update) else current
        name = f"{owner.name}-{number}"
        pod = pod_from(templates.by_name[revision], STATEFUL_SETS, owner, name=name)
        own = {HASH_LABEL: revision, NAME_LABEL: name, INDEX_LABEL: str(number)}
        pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), **own}
        volumes = [
            {
                "name": template["metadata"]["name"],
                "persistentVolumeClaim": {"claimName": claim_of(template, name)},
            }
            for template in owner.spec.get("volumeClaimTemplates") or ()
        ]
        replaced = {each["name"] for each in volumes}
        others = [each for each in pod["spec"].get("volumes") or () if each["name"] not in replaced]
        pod["spec"] = {
            **pod["spec"],
            "hostname": name,
            "subdomain": owner.spec.get("serviceName", ""),
            "volumes": others + volumes,
        }
        try:
            await self._pods.store.create(owner.namespace, pod)
        except ApiError as error:
            text = f"create Pod {name} in StatefulSet {owner.name} failed error: {error.message}"
            self.record(STATEFUL_SETS, owner, "FailedCreate", text, "Warning")
            raise
        text = f"create Pod {name} in StatefulSet {owner.name} successful"
        self.record(STATEFUL_SETS, owner, "SuccessfulCreate", text)

    async def _delete(self, owner: Plain, pod: PodView) -> None:
        await self._pods.store.delete(pod)
        text = f"delete Pod {pod.name} in StatefulSet {owner.name} successful"
        self.record(STATEFUL_SETS, owner, "SuccessfulDelete", text)

    async def _create_claims(self, owner: Plain, number: int) -> None:
        for template in owner.spec.get("volumeClaimTemplates") or ():
            name, meta = claim_of(template, f"{owner.name}-{number}"), template["metadata"]
            if self._claims.get(f"{owner.namespace}/{name}") is not None:
                continue
            policy = owner.spec.get("persistentVolumeClaimRetentionPolicy") or {}
            labels = {**(meta.get("labels") or {}), **((owner.spec["selector"].get("matchLabels")) or {})}
            body: Json = {
                "metadata": {"name": name, "labels": labels, "annotations": meta.get("annotations") or {}},
                "spec": template["spec"],
            }
            if policy.get("whenDeleted") == "Delete":
                reference = owner_of(STATEFUL_SETS, owner)
                body["metadata"]["ownerReferences"] = [
                    {field: reference[field] for field in ("apiVersion", "kind", "name", "uid")}
                ]
            try:
                await self._claims.create(owner.namespace, body)
            except Conflict:  # there already, which the watch is about to show
                continue

    async def _delete_claims(self, owner: Plain, pods: dict[int, PodView]) -> None:
        """Claims of ordinals that are no longer wanted, if the set's policy deletes them."""
        policy = owner.spec.get("persistentVolumeClaimRetentionPolicy") or {}
        if policy.get("whenScaled") != "Delete":
            return
        for template in owner.spec.get("volumeClaimTemplates") or ():
            prefix = claim_of(template, f"{owner.name}-")
            for claim in self._of_namespace.of(owner.namespace):
                number = claim.name.removeprefix(prefix)
                if number == claim.name or not number.isdecimal() or claim.is_terminating:
                    continue
                if int(number) not in numbers_of(owner) and int(number) not in pods:
                    await self._claims.delete(claim)

    async def _update(self, owner: Plain, pods: dict[int, PodView], update: str) -> None:
        """Deletes the last pod that is of another revision, once all after it are as they should be."""
        strategy = owner.spec.get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return
        partition = (strategy.get("rollingUpdate") or {}).get("partition", 0)
        for number in sorted(numbers_of(owner), reverse=True):
            if number < partition:
                return
            pod = pods[number]
            if pod.labels.get(HASH_LABEL) != update and not pod.is_terminating:
                await self._delete(owner, pod)
                return
            if self._wait_of(owner, pod) != 0:
                return

    async def _write_status(self, owner: Plain, pods: dict[int, PodView], current: str, update: str) -> None:
        live = [pod for number, pod in pods.items() if pod.is_active]
        updated = [pod for pod in live if pod.labels.get(HASH_LABEL) == update]
        ready = [pod for pod in live if pod.is_ready]
        waits = [self._wait_of(owner, pod) for pod in ready]
        if len(updated) == len(ready) == len(live) == owner.replicas:
            current = update  # the roll-out is complete
        status = {
            "observedGeneration": owner.metadata.generation,
            "replicas": len(live),
            "readyReplicas": len(ready),
            "availableReplicas": waits.count(0.0),
            "currentReplicas": sum(pod.labels.get(HASH_LABEL) == current for pod in live),
            "updatedReplicas": len(updated),
            "currentRevision": current,
            "updateRevision": update,
        }
        if differs(owner.status, status):
            await self._sets.patch_status(owner, status)


def numbers_of(owner: Plain) -> range:
    first = (owner.spec.get("ordinals") or {}).get("start", 0)
    return range(first, first + owner.replicas)


def ordinal_of(owner: Plain, pod: PodView) -> int | None:
    number = pod.name.removeprefix(f"{owner.name}-")
    return int(number) if number.isdecimal() and pod.name != number else None


def claim_of(template: Json, pod_name: str) -> str:
    return f"{template['metadata']['name']}-{pod_name}"


def first_updated(owner: Plain, current: str, update: str) -> int:
    """The first number whose pod is made from the newest template."""
    strategy = owner.spec.get("updateStrategy") or {}
    partition: int = (strategy.get("rollingUpdate") or {}).get("partition", 0)
    return partition if current != update else 0
