"""Garbage collection: what has lost its owners goes, and owners wait for what must go before them.

The API server only marks an object that was deleted with its dependents in the foreground, or whose
dependents are to stay: the finalizers it put there are taken off here, when that is done.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from stowplan.client.errors import NotFound
from stowplan.controllers.discovery import Discovered
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import NODES, PODS, Kind, Known, Owner, Plain, PodView, plain
from stowplan.controllers.node_lifecycle import by_node
from stowplan.controllers.owned_pods import without_owners
from stowplan.controllers.stores import Store, Stores

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
LOOK_SECONDS = 5.0
"""Between two looks for kinds that are new."""

MAX_ABSENT = 100_000
QUARANTINE_SECONDS = 40.0
"""A node that comes back so soon keeps its pods."""
MAX_ENDED_PODS = 12_500


class Node(NamedTuple):
    """An object in the graph of owner references."""

    store: Store[Known]
    item: Known


class Garbage(Controller):
    """Keys are uids."""

    workers = 8

    def __init__(self, stores: Stores, discovered: Discovered) -> None:
        super().__init__(stores)
        self._discovered = discovered
        self._watched: dict[str, Kind[Known]] = {}
        self._nodes: dict[str, Node] = {}
        self._dependents: dict[str, set[str]] = {}
        self._absent: set[str] = set()
        """Uids that the API server does not have; a uid is never given twice."""

    async def run(self) -> None:
        while not await self._discovered.look():
            await asyncio.sleep(LOOK_SECONDS)
        await self._watch_all()
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            group.create_task(self._follow_kinds())

    async def _follow_kinds(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if await self._discovered.look():
                await self._watch_all()

    async def _watch_all(self) -> None:
        served = {kind.path: kind for kind in self._discovered.kinds}
        for path in [path for path in self._watched if path not in served]:
            self.stores.drop(self._watched.pop(path))
            for node in list(self._nodes.values()):
                if node.store.kind.path == path:
                    self._remove(node.item)
        new = [kind for path, kind in served.items() if path not in self._watched]
        for kind in new:
            self._watched[kind.path] = kind
            self._listen(self.stores.of(kind))
        for path in served:
            await self.stores.of(served[path]).synced()
        names = {kind.name for kind in new}
        for uid, node in self._nodes.items():
            # As long as the kind of an owner was unknown, the owner was assumed to exist.
            if any(owner.kind in names for owner in node.item.metadata.owner_references):
                self.queue.add(uid)

    def _listen(self, store: Store[Known]) -> None:
        def on_change(old: Known | None, new: Known | None) -> None:
            if new is not None:
                self._put(store, old, new)
            elif old is not None:
                self._remove(old)

        store.listen(on_change)

    def _put(self, store: Store[Known], old: Known | None, new: Known) -> None:
        for owner in old.metadata.owner_references if old is not None else ():
            self._dependents.get(owner.uid, set()).discard(new.uid)
        self._nodes[new.uid] = Node(store, new)
        for owner in new.metadata.owner_references:
            self._dependents.setdefault(owner.uid, set()).add(new.uid)
        changed = old is None or old.metadata.owner_references != new.metadata.owner_references
        is_waiting = new.is_terminating and {FOREGROUND, ORPHAN} & set(new.metadata.finalizers)
        if is_waiting or (changed and new.metadata.owner_references):
            self.queue.add(new.uid)
        if changed and old is not None:  # owners may not have to wait for it any more
            for owner in old.metadata.owner_references:
                self.queue.add(owner.uid)
        if is_waiting and (old is None or not old.is_terminating):
            self._enqueue_dependents(new.uid)

    def _remove(self, item: Known) -> None:
        self._nodes.pop(item.uid, None)
        for owner in item.metadata.owner_references:
            held = self._dependents.get(owner.uid, set())
            held.discard(item.uid)
            if not held:
                self._dependents.pop(owner.uid, None)
            self.queue.add(owner.uid)
        self._enqueue_dependents(item.uid)

    def _enqueue_dependents(self, uid: str) -> None:
        for dependent in self._dependents.get(uid, ()):
            self.queue.add(dependent)

    async def reconcile(self, key: str) -> None:
        node = self._nodes.get(key)
        if node is None:
            return
        if node.item.is_terminating:
            await self._finish(node)
        if node.item.metadata.owner_references and not node.item.is_terminating:
            await self._judge(node)

    async def _finish(self, node: Node) -> None:
        """Remove the finalizers of a deleted owner once its dependents are gone."""
        store, item = node
        finalizers, dependents = item.metadata.finalizers, self._dependents_of(item)
        if ORPHAN in finalizers:
            for dependent in dependents:
                kept = without_owners(dependent.item, {item.uid})
                await dependent.store.patch(dependent.item, {"metadata": {"ownerReferences": kept}})
        elif FOREGROUND in finalizers and any(_blocks(each.item, item.uid) for each in dependents):
            for dependent in dependents:
                if not _waits_for_dependents(dependent.item):
                    self.queue.add(dependent.item.uid)
            return
        left = [each for each in finalizers if each not in (ORPHAN, FOREGROUND)]
        if len(left) < len(finalizers):
            await store.patch(item, {"metadata": {"finalizers": left}})

    async def _judge(self, node: Node) -> None:
        store, item = node
        owners = item.metadata.owner_references
        gone = {owner.uid for owner in owners if await self._is_gone(item, owner)}
        going = {owner.uid for owner in owners if owner.uid not in gone and self._waits_for(item, owner)}
        if len(gone | going) < len({owner.uid for owner in owners}):
            if gone | going:
                kept = without_owners(item, gone | going)
                await store.patch(item, {"metadata": {"ownerReferences": kept}})
            return
        finalizers = set(item.metadata.finalizers)
        if going and (dependents := self._dependents_of(item)):
            policy = "Foreground"
            if any(_waits_for_dependents(each.item) for each in dependents):
                # Perhaps a cycle of owners, in which each waits for the next: stop blocking them.
                item = await self._unblock(store, item)
        else:
            policy = (
                "Orphan"
                if ORPHAN in finalizers
                else "Foreground"
                if FOREGROUND in finalizers
                else "Background"
            )
        await store.delete(item, propagation=policy)

    async def _unblock(self, store: Store[Known], item: Known) -> Known:
        if not any(each.block_owner_deletion for each in item.metadata.owner_references):
            return item
        owners = [
            {**each, "blockOwnerDeletion": False} if each.get("blockOwnerDeletion") else each
            for each in plain(item.metadata.owner_references)
        ]
        return await store.patch(item, {"metadata": {"ownerReferences": owners}})

    def _waits_for(self, item: Known, owner: Owner) -> bool:
        """Whether the owner is on its way out and takes what it owns along."""
        node = self._nodes.get(owner.uid)
        return node is not None and _waits_for_dependents(node.item)

    async def _is_gone(self, item: Known, owner: Owner) -> bool:
        node = self._nodes.get(owner.uid)
        if node is not None:
            return node.item.namespace not in ("", item.namespace)
        if owner.uid in self._absent:
            return True
        kind = self._discovered.find(owner.api_version, owner.kind)
        if kind is None or (kind.namespaced and not item.namespace):
            return False  # an unknown kind: assume that the object exists
        try:
            found = await self.stores.of(kind).read(item.namespace, owner.name)
        except NotFound:
            found = None
        if found is None or found.uid != owner.uid:
            if len(self._absent) >= MAX_ABSENT:
                self._absent.clear()
            self._absent.add(owner.uid)
            return True
        return False

    def _dependents_of(self, item: Known) -> list[Node]:
        found = (self._nodes.get(uid) for uid in self._dependents.get(item.uid, ()))
        return [node for node in found if node is not None]


def _waits_for_dependents(item: Known) -> bool:
    return item.is_terminating and FOREGROUND in item.metadata.finalizers


def _blocks(item: Known, owner: str) -> bool:
    return any(each.uid == owner and each.block_owner_deletion for each in item.metadata.owner_references)


class PodCollector(Controller):
    def __init__(
        self, stores: Stores, quarantine_seconds: float = QUARANTINE_SECONDS, most_ended: int = MAX_ENDED_PODS
    ) -> None:
        super().__init__(stores)
        self._nodes, self._store = self.store(NODES), self.store(PODS)
        self._pods = self._store.index(by_node)
        self._quarantine = quarantine_seconds
        self._missed: dict[str, float] = {}
        self._most_ended = most_ended
        self._ended: dict[str, None] = {}
        """Keys of pods that have ended, the first first."""
        self._nodes.listen(self._on_node)
        self._store.listen(self._on_pod)

    def _on_node(self, old: Plain | None, new: Plain | None) -> None:
        if new is None and old is not None:
            for pod in self._pods.of(old.name):
                self.queue.add(pod.key)
        elif new is not None:
            self._missed.pop(new.name, None)

    def _on_pod(self, old: PodView | None, new: PodView | None) -> None:
        pod = new or old
        if pod is not None and (new is None or not new.is_finished):
            self._ended.pop(pod.key, None)
        elif pod is not None:
            self._ended.setdefault(pod.key)
            if len(self._ended) > self._most_ended:
                self.queue.add(next(iter(self._ended)))
        is_lost = new is not None and new.node and self._nodes.get(new.node) is None
        if new is not None and (is_lost or (new.is_terminating and not new.node)):
            self.queue.add(new.key)

    async def reconcile(self, key: str) -> None:
        pod = self._store.get(key)
        if pod is None:
            return
        if pod.is_finished and len(self._ended) > self._most_ended:
            await self._store.delete(pod, grace=0)
            return
        if not pod.node:
            if pod.is_terminating:
                await self._store.delete(pod, grace=0)
            return
        if self._nodes.get(pod.node) is not None:
            return
        since = self._missed.setdefault(pod.node, self.clock.now())
        left = since + self._quarantine - self.clock.now()
        if left > 0:
            self.queue.add_after(key, left)
        elif await self._is_gone(pod.node):
            await self._end(pod)

    async def _end(self, pod: PodView) -> None:
        if not pod.is_finished:
            pod = await self._store.patch_status(pod, {"phase": "Failed"})
        await self._store.delete(pod, grace=0)

    async def _is_gone(self, name: str) -> bool:
        try:
            await self._nodes.read("", name)
        except NotFound:
            return True
        return False
