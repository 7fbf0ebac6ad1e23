"""Serves the page on a local port over plain HTTP, to clients that have the link: its own page, or that of
a remote scheduler.

The token in the link's path grants access. There is no cookie, so that other pages cannot use it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias
from urllib.parse import quote

import msgspec

from stowplan.client.connection import Connection, Pool
from stowplan.client.errors import Unreachable, unreachable_scheduler
from stowplan.errors import InputError, describe_os_error
from stowplan.http11.client import Reply
from stowplan.http11.messages import Request, Response
from stowplan.log import error as log_error
from stowplan.metrics import CONTENT_TYPE
from stowplan.scheduler.main import Service
from stowplan.serving import aiohttp_web as web
from stowplan.serving.pages import Page
from stowplan.web.pages import PATH, STATIC_HEADERS, content_type, make_pages
from stowplan.web.source import json_response, make_source

HOST = "127.0.0.1"
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
CLOSING_SECONDS = 1.0
Answer: TypeAlias = "Callable[[str, web.BaseRequest], Awaitable[web.Response]]"
"""Answers a request for a name under the link's path."""


def serve_page(service: Service, port: int = 0, token: str = "") -> AbstractAsyncContextManager[str]:
    """Serve the page of a scheduler in this process; yields the link."""
    return serve_locally(answer_by_name(make_pages(make_source(service))), port, token)


def answer_by_name(pages: Mapping[str, Page]) -> Answer:
    async def answer(name: str, request: web.BaseRequest) -> web.Response:
        page = pages.get(name)
        if page is None:
            return web.Response(status=404, text="404 page not found\n")
        response = page(request)
        return response if isinstance(response, web.Response) else await response

    return answer


def make_page_server(answer: Answer, secret: str) -> web.Server:
    """Serves the page under a path that is the secret."""

    async def handle(request: web.BaseRequest) -> web.Response:
        given, slash, name = request.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(given.encode(), secret.encode()):
            response = web.Response(status=403, text="the token of the link is missing or wrong\n")
        elif not slash:
            response = web.Response(status=302, headers={"Location": f"/{secret}/"})
        else:
            response = await _answer_safely(answer, name, request)
        response.headers.update(HEADERS)
        return response

    quiet = logging.getLogger("stowplan.web.connections")
    quiet.disabled = True
    return web.Server(handle, logger=quiet, access_log=None)


@asynccontextmanager
async def serve_locally(answer: Answer, port: int = 0, token: str = "") -> AsyncIterator[str]:
    """Serve inside the block and yield the link. Port 0 is a free port; without a token, one is generated."""
    secret = token or secrets.token_urlsafe(16)
    runner = web.ServerRunner(make_page_server(answer, secret), shutdown_timeout=CLOSING_SECONDS)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            raise InputError(
                f"cannot listen: {describe_os_error(error)}; choose another port", where=f"{HOST}:{port}"
            ) from error
        yield f"http://{HOST}:{runner.addresses[0][1]}/{secret}/"
    finally:
        await runner.cleanup()


async def _answer_safely(answer: Answer, name: str, request: web.BaseRequest) -> web.Response:
    try:
        return await answer(name, request)
    except Exception as error:
        log_error("Page failed", error, path=name)
        return web.Response(status=500, text=f"Internal Server Error: {error}\n")


TIMEOUT_SECONDS = 60.0


class Status(msgspec.Struct):
    """The part that is needed of the Status of a failed request."""

    message: str = ""


@asynccontextmanager
async def forward_to(connection: Connection) -> AsyncIterator[Answer]:
    """Forward requests to the page of a scheduler elsewhere, with the credentials of the connection.

    Only paths under that of the page are requested. An InputError says why there is no page.
    """
    pool = connection.open()
    try:
        await _check_page(pool, connection)

        async def answer(name: str, request: web.BaseRequest) -> web.Response:
            return await _forward(pool, connection, name, request)

        yield answer
    finally:
        await pool.close()


async def _check_page(pool: Pool, connection: Connection) -> None:
    try:
        reply = await _request(pool, connection, "GET", f"{PATH}/")
    except Unreachable as error:
        raise InputError(unreachable_scheduler(error), where=connection.server) from None
    if reply.status != 200:
        raise InputError(_explain_status(reply), where=connection.server)


def _explain_status(reply: Reply) -> str:
    if reply.status == 404:
        return "page not found; is this a Stowplan scheduler, and not another one?"
    try:
        found = msgspec.json.decode(reply.data, type=Status).message
    except msgspec.DecodeError:
        found = f"the scheduler answered with status {reply.status}"
    return f'{found}; the page requires a role with nonResourceURLs "{PATH}/*" and the verbs get and post'


async def _forward(pool: Pool, connection: Connection, name: str, request: web.BaseRequest) -> web.Response:
    url = request.rel_url
    target = f"{PATH}/{url.raw_path.lstrip('/').partition('/')[2]}"
    if url.raw_query_string:
        target += f"?{url.raw_query_string}"
    body = await request.read() if request.method == "POST" else None
    try:
        reply = await _request(pool, connection, request.method, target, body)
    except Unreachable as error:
        return json_response({"message": str(error)}, 502)
    return web.Response(
        status=reply.status,
        body=reply.data,
        content_type=content_type(name or ".html") if reply.status == 200 else "application/json",
        charset="utf-8",
        headers=STATIC_HEADERS,
    )


async def relay(pool: Pool, request: Request) -> Response:
    """Answer with what a scheduler's own server answers, to the credentials of the request."""
    target = quote(request.path) + (f"?{request.query}" if request.query else "")
    named = ("authorization", "content-type")
    headers = [(name, request.headers[name]) for name in named if name in request.headers]
    try:
        # The server starts to answer without a task, and timeouts need one.
        reply = await asyncio.ensure_future(
            pool.request(request.method, target, headers, request.body or None, timeout=TIMEOUT_SECONDS)
        )
    except Unreachable as error:
        return Response.of(502, {"message": str(error)})
    kind = "application/json"
    if request.path.startswith("/metrics"):
        kind = CONTENT_TYPE
    elif request.path.startswith(f"{PATH}/"):
        kind = f"{content_type(request.path.removeprefix(f'{PATH}/') or '.html')}; charset=utf-8"
    redirect = (("Location", f"{PATH}/"),) if reply.status == 302 else ()
    more = (*HEADERS.items(), *STATIC_HEADERS.items(), *redirect)
    return Response(reply.status, reply.data, kind if reply.status == 200 else "text/plain", more)


async def _request(
    pool: Pool, connection: Connection, method: str, target: str, body: bytes | None = None
) -> Reply:
    kind = [] if body is None else [("Content-Type", "application/json")]
    headers = [*await connection.headers(), *kind]
    return await pool.request(method, target, headers, body, timeout=TIMEOUT_SECONDS)
