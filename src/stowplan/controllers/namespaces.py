"""Namespaces that are deleted are emptied first."""

from __future__ import annotations

from stowplan.controllers.discovery import Discovered
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import NAMESPACES, Kind, Known, Plain
from stowplan.controllers.stores import Stores

LOOK_SECONDS = 1.0


class Namespaces(Controller):
    def __init__(self, stores: Stores, discovered: Discovered) -> None:
        super().__init__(stores)
        self._discovered, self._namespaces = discovered, self.store(NAMESPACES)
        self._namespaces.listen(self._on_change)

    def _on_change(self, old: Plain | None, new: Plain | None) -> None:
        if new is not None and new.is_terminating:
            self.queue.add(new.key)

    async def reconcile(self, key: str) -> None:
        namespace = self._namespaces.get(key)
        if namespace is None or not namespace.is_terminating or not await self._discovered.look():
            return
        left = [
            kind for kind in self._discovered.kinds if kind.namespaced and not await self._empty(kind, key)
        ]
        if left:
            self.queue.add_after(key, LOOK_SECONDS)
            return
        body = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": key, "uid": namespace.uid},
            "spec": {"finalizers": []},
        }
        await self.stores.api.request("PUT", f"{NAMESPACES.path}/{key}/finalize", body)

    async def _empty(self, kind: Kind[Known], namespace: str) -> bool:
        """Deletes all of a kind; whether there was nothing left to delete."""
        store = self.stores.of(kind)
        await store.synced()
        items = [item for item in store if item.namespace == namespace]
        for item in items:
            if not item.is_terminating:
                await store.delete(item, propagation="Background")
        return not items
