"""Namespaces: what each has from the start, and how they are emptied when they are deleted."""

from __future__ import annotations

import asyncio

from stowplan.api.meta import Json
from stowplan.client.errors import ApiError, Conflict
from stowplan.controllers.discovery import Discovered
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import ACCOUNTS, CONFIG_MAPS, NAMESPACES, PODS, Kind, Known, Plain
from stowplan.controllers.owned_pods import differs, with_condition
from stowplan.controllers.stores import Stores, by_namespace

RETRY_SECONDS = 0.2
"""How often a namespace that is not empty yet is looked at again."""
ROOT_CA = "kube-root-ca.crt"
ABOUT_ROOT_CA = "kubernetes.io/description"
ROOT_CA_TEXT = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such "
    "as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions "
    "of Kubernetes clusters."
)


class NamespaceContents(Controller):
    """The `default` ServiceAccount and the ConfigMap with the certificate of the API server's authority."""

    component = "service-account-controller"

    def __init__(self, stores: Stores, certificate: str = "") -> None:
        super().__init__(stores)
        self._certificate = certificate
        self._namespaces = self.store(NAMESPACES)
        self._accounts, self._config_maps = self.store(ACCOUNTS), self.store(CONFIG_MAPS)
        self._namespaces.listen_keys(self.queue.add)
        self._accounts.listen(lambda old, new: self._on_item("default", old, new))
        self._config_maps.listen(lambda old, new: self._on_item(ROOT_CA, old, new))

    def _on_item(self, name: str, old: Known | None, new: Known | None) -> None:
        item = new or old
        if item is not None and item.name == name and old is not None:
            self.queue.add(item.namespace)

    async def reconcile(self, key: str) -> None:
        namespace = self._namespaces.get(key)
        if namespace is None or namespace.is_terminating:
            return
        if self._accounts.get(f"{key}/default") is None:
            await self._accounts.create(key, {"metadata": {"name": "default", "namespace": key}})
        wanted = {"ca.crt": self._certificate}
        known = self._config_maps.get(f"{key}/{ROOT_CA}")
        if known is None:
            meta = {"name": ROOT_CA, "namespace": key, "annotations": {ABOUT_ROOT_CA: ROOT_CA_TEXT}}
            await self._config_maps.create(key, {"metadata": meta, "data": wanted})
        elif known.data != wanted:
            others: Json = dict.fromkeys(name for name in known.data if name not in wanted)
            await self._config_maps.patch(known, {"data": {**others, **wanted}})


class Namespaces(Controller):
    """Deletes what is in a deleted namespace, pods first, and says in its conditions what is left."""

    def __init__(self, stores: Stores, discovered: Discovered) -> None:
        super().__init__(stores)
        self._discovered, self._namespaces = discovered, self.store(NAMESPACES)
        self._namespaces.listen(self._on_change)

    def _on_change(self, old: Plain | None, new: Plain | None) -> None:
        if new is not None and new.is_terminating and (old is None or not old.is_terminating):
            self.queue.add(new.key)

    async def reconcile(self, key: str) -> None:
        namespace = self._namespaces.get(key)
        if namespace is None or not namespace.is_terminating:
            return
        found = await self._discovered.look()
        kinds = [kind for kind in self._discovered.kinds if kind.namespaced]
        failure = ""
        left: dict[str, list[Known]] = {}
        # Pods go first, so that what they need, such as their service account, outlives them.
        for is_pod in (True, False):
            for kind in (each for each in kinds if (each.path == PODS.path) is is_pod):
                try:
                    items = await self._empty(kind, key)
                except ApiError as error:
                    failure = failure or error.message
                    continue
                if items:
                    left[_resource(kind)] = items
            if left:
                break
        conditions = conditions_of(namespace, left, self.clock.stamp(), failure, is_discovered=found)
        if differs(namespace.status, {"conditions": conditions}):
            namespace = await self._namespaces.patch_status(namespace, {"conditions": conditions})
        if left or failure or not found:
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self.queue.add, key)
            return
        await self.stores.api.request("DELETE", f"/api/v1/namespaces/{key}/events")  # not among the stores
        finalizers = [each for each in namespace.spec.get("finalizers") or () if each != "kubernetes"]
        body = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": key, "uid": namespace.uid},
            "spec": {"finalizers": finalizers},
        }
        try:
            await self.stores.api.request("PUT", f"{NAMESPACES.path}/{key}/finalize", body)
        except Conflict:  # changed meanwhile
            self.queue.add_after(key, RETRY_SECONDS)

    async def _empty(self, kind: Kind[Known], namespace: str) -> list[Known]:
        """Delete all of a kind; return what is left of it."""
        store = self.stores.of(kind)
        await store.synced()
        here = store.index(by_namespace)
        for item in here.of(namespace):
            if not item.is_terminating:
                await store.delete(item, propagation="Background")
        await store.settled()
        return here.of(namespace)


def _resource(kind: Kind[Known]) -> str:
    group = kind.api_version.rpartition("/")[0]
    return f"{kind.plural}.{group}"


def conditions_of(
    namespace: Plain, left: dict[str, list[Known]], at: str, failure: str = "", *, is_discovered: bool = True
) -> list[Json]:
    """The conditions of a namespace that is being deleted, in Kubernetes' words."""
    remaining = ", ".join(
        f"{name} has {len(items)} resource instances" for name, items in sorted(left.items())
    )
    held: dict[str, int] = {}
    for items in left.values():
        for item in items:
            for finalizer in item.metadata.finalizers:
                held[finalizer] = held.get(finalizer, 0) + 1
    holders = ", ".join(f"{name} in {number} resource instances" for name, number in sorted(held.items()))
    discovered = ("ResourcesDiscovered", "All resources successfully discovered")
    if not is_discovered:
        discovered = ("DiscoveryFailed", "Discovery failed for some groups")
    deleted = ("ContentDeleted", "All content successfully deleted, may be waiting on finalization")
    if failure:
        deleted = ("ContentDeletionFailed", f"Failed to delete all resource types, 1 remaining: {failure}")
    removed = ("ContentRemoved", "All content successfully removed")
    if left:
        removed = ("SomeResourcesRemain", f"Some resources are remaining: {remaining}")
    finalized = ("ContentHasNoFinalizers", "All content-preserving finalizers finished")
    if held:
        text = f"Some content in the namespace has finalizers remaining: {holders}"
        finalized = ("SomeFinalizersRemain", text)
    conditions: list[Json] = list(namespace.status.get("conditions") or ())
    for kind, is_true, said in (
        ("NamespaceDeletionDiscoveryFailure", not is_discovered, discovered),
        ("NamespaceDeletionGroupVersionParsingFailure", False, ("ParsedGroupVersions", PARSED)),
        ("NamespaceDeletionContentFailure", bool(failure), deleted),
        ("NamespaceContentRemaining", bool(left), removed),
        ("NamespaceFinalizersRemaining", bool(held), finalized),
    ):
        conditions = with_condition(conditions, kind, "True" if is_true else "False", *said, at)
    return conditions


PARSED = "All legacy kube types successfully parsed"
