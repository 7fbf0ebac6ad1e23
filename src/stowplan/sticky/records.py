"""Keeps StickyRecords true to the pods that are there: what could not be written, and what has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.client.errors import ApiError, NotFound
from stowplan.framework import Handle
from stowplan.sticky.memory import Key, Memories, StickyArgs
from stowplan.sticky.places import bound, ended, seconds_of, wire_time, write_record
from stowplan.sticky.resources import Stay, StickyRecord
from stowplan.sticky.rules import domain_of

LOOK_SECONDS = 5.0
PODS_A_TURN = 2000
"""After so many others get their turn."""


class StickyRecords:
    def __init__(self, args: StickyArgs, handle: Handle) -> None:
        self._args, self._handle, self._memories = args, handle, Memories(args, handle)
        self._kind = self._memories.kinds.record
        self._records = handle.watched(self._kind)

    async def run(self) -> None:
        while True:
            if self._records.is_served:
                await self.look_at_all()
            await asyncio.sleep(LOOK_SECONDS)

    async def look_at_all(self) -> None:
        running: set[str] = set()
        for number, pod in enumerate(list(self._handle.cluster.pods())):
            running.add(pod.uid)
            if number % PODS_A_TURN == PODS_A_TURN - 1:
                await asyncio.sleep(0)
            key = self._memories.key_of(pod)
            if key is not None and key.kind == "StickyRecord" and not self._handle.cluster.is_assumed(pod):
                await self._note(key, pod)
        for record in list(self._records):
            if record.spec.pod_uid and record.spec.pod_uid not in running:
                await self._note_end(record)

    async def _note(self, key: Key, pod: Pod) -> None:
        """A bound pod that its record does not know, unless the one that it knows is still there."""
        memory, cluster = self._memories.of(pod), self._handle.cluster
        if memory is None or pod.is_terminating or cluster.pod(memory.place.pod_uid) is not None:
            return
        row = cluster.nodes.row_of(pod.node_name)
        node = None if row is None else cluster.nodes.objects[row]
        stay = Stay(
            node=pod.node_name,
            node_uid="" if node is None else node.metadata.uid,
            pod_uid=pod.uid,
            bound_at=wire_time(self._handle.now()),
        )
        domain, limit = domain_of(memory.policy, node), memory.policy.history_limit
        place = bound(memory.place, stay, domain=domain, pod_name=pod.name, limit=limit)
        owners = self._memories.owners_of_record(pod)
        await self._trying(write_record(self._handle, self._kind, key.namespace, key.part, owners, place))

    async def _note_end(self, record: StickyRecord) -> None:
        spec, now, limit = record.spec, self._handle.now(), self._args.forget_after_seconds
        finished = seconds_of(spec.finished_at)
        if finished is None and (place := ended(spec, spec.pod_uid, "Deleted", wire_time(now))) != spec:
            owners = record.metadata.owner_references
            await self._trying(
                write_record(self._handle, self._kind, record.namespace, spec.key, owners, place)
            )
        elif finished is not None and limit is not None and now - finished > limit:
            await self._trying(self._handle.api.delete(record))

    async def _trying(self, write: Awaitable[None]) -> None:
        try:
            await write
        except NotFound:
            return  # gone already
        except ApiError as error:  # the others go on, and this one is looked at again
            log.error("StickyRecord not written; trying again", error.explanation)
