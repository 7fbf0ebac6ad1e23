"""The page on a port of this machine: plain HTTP, for those who have the link.

The token in the link's path is what lets one in; no cookie, so that no other page can ask in our name.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from aiohttp import web

from stowplan.errors import InputError
from stowplan.log import error as log_error
from stowplan.scheduler.main import Service
from stowplan.serving.pages import Page
from stowplan.web.pages import pages
from stowplan.web.source import source_of

HOST = "127.0.0.1"
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
CLOSING_SECONDS = 1.0
Answer = Callable[[str, web.BaseRequest], Awaitable[web.Response]]
"""What a request for a name under the link's path gets."""


def page_of(service: Service, port: int = 0, token: str = "") -> AbstractAsyncContextManager[str]:
    """The page of a scheduler in this process, while inside; gives the link to it."""
    return served_locally(by_name(pages(source_of(service))), port, token)


def by_name(found: Mapping[str, Page]) -> Answer:
    async def answer(name: str, request: web.BaseRequest) -> web.Response:
        page = found.get(name)
        if page is None:
            return web.Response(status=404, text="404 page not found\n")
        told = page(request)
        return told if isinstance(told, web.Response) else await told

    return answer


@asynccontextmanager
async def served_locally(answer: Answer, port: int = 0, token: str = "") -> AsyncIterator[str]:
    """Serves while inside, and gives the link. Port 0 is any free one; without a token, one is made up."""
    secret = token or secrets.token_urlsafe(16)

    async def handle(request: web.BaseRequest) -> web.Response:
        given, slash, name = request.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(given.encode(), secret.encode()):
            response = web.Response(status=403, text="the link to this page has a token, which is missing\n")
        elif not slash:
            response = web.Response(status=302, headers={"Location": f"/{secret}/"})
        else:
            response = await _answered(answer, name, request)
        response.headers.update(HEADERS)
        return response

    quiet = logging.getLogger("stowplan.web.connections")
    quiet.disabled = True
    runner = web.ServerRunner(
        web.Server(handle, logger=quiet, access_log=None), shutdown_timeout=CLOSING_SECONDS
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            raise InputError(
                f"cannot listen: {error.strerror or error}; choose another port", where=f"{HOST}:{port}"
            ) from error
        yield f"http://{HOST}:{runner.addresses[0][1]}/{secret}/"
    finally:
        await runner.cleanup()


async def _answered(answer: Answer, name: str, request: web.BaseRequest) -> web.Response:
    try:
        return await answer(name, request)
    except Exception as error:
        log_error("Page cannot be shown", error, path=name)
        return web.Response(status=500, text=f"Internal Server Error: {error}\n")
