"""A plugin that holds back every binding until told otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

from stowplan import Plugin


class SlowToBind(Plugin):
    release = True

    async def pre_bind(self, state, pod, node_name):
        while not SlowToBind.release:
            await asyncio.sleep(0)


def with_slow() -> dict[str, Any]:
    return {
        "config": {"profiles": [{"plugins": {"preBind": {"enabled": [{"name": "SlowToBind"}]}}}]},
    }
