"""A plugin that stops pods on their way: those with the label `hold` wait where it says."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stowplan import CycleState, Plugin, PluginArgs, Pod, Status


class HoldingArgs(PluginArgs):
    released: str
    """The file whose existence ends the waits before a bind."""


class Holding(Plugin):
    args: HoldingArgs

    def permit(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        return Status.wait(600.0) if pod.labels.get("hold") == "permit" else None

    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> None:
        while pod.labels.get("hold") == "preBind" and not Path(self.args.released).exists():
            await asyncio.sleep(0.05)
