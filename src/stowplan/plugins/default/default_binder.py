"""DefaultBinder: tells the API server which node the pod goes to."""

from __future__ import annotations

from stowplan.framework import CycleState, Plugin, Pod, Status


class DefaultBinder(Plugin):
    async def bind(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        await self.handle.api.create_binding(pod, node_name)
        return None
