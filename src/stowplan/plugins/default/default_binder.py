"""DefaultBinder: creates the Binding that assigns the pod to its node."""

from __future__ import annotations

from stowplan import log
from stowplan.framework import CycleState, Plugin, Pod, Right, Status


class DefaultBinder(Plugin):
    only_creates_binding = True
    rights = (Right("pods/binding", ("create",)),)

    async def bind(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        if log.is_verbose(3):
            log.log(3, "Attempting to bind pod to node", logger="Bind.DefaultBinder", pod=pod, node=node_name)
        await self.handle.api.create_binding(pod, node_name)
        return None
