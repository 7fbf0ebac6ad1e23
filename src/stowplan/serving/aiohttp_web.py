"""`aiohttp.web`, imported when it is first used.

The import takes a fifth of a second, half of it for the system's certificate authorities, and a test cluster
whose pages nobody opens does not need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest as BaseRequest
    from aiohttp.web import HTTPException as HTTPException
    from aiohttp.web import RequestHandler as RequestHandler
    from aiohttp.web import Response as Response
    from aiohttp.web import Server as Server
    from aiohttp.web import ServerRunner as ServerRunner
    from aiohttp.web import TCPSite as TCPSite
else:

    def __getattr__(name: str) -> Any:
        if name.startswith("_"):  # which Python itself looks for when this module is imported
            raise AttributeError(name)
        from aiohttp import web

        found = globals()[name] = getattr(web, name)
        return found


class LazyServer:
    """A factory of protocols that makes its server with the first connection."""

    def __init__(self, make: Callable[[], Server]) -> None:
        self._make = make
        self._server: Server | None = None

    def __call__(self) -> asyncio.BaseProtocol:
        if self._server is None:
            self._server = self._make()
        return self._server()

    async def shutdown(self, seconds: float) -> None:
        if self._server is not None:
            self._server.pre_shutdown()
            await self._server.shutdown(seconds)
