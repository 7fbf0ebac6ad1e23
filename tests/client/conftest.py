"""A scripted API server and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from api_server import ScriptedServer, serving

from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with serving(ScriptedServer()) as started:
        yield started


@pytest.fixture
async def api(server: ScriptedServer) -> AsyncIterator[ApiClient]:
    async with ApiClient(Connection(server.url)) as client:
        yield client
