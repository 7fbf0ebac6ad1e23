"""Hands questions to the page of a scheduler elsewhere, in the name of the one who runs us."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from stowplan.client.connection import Connection
from stowplan.client.errors import Unreachable, unreachable_scheduler
from stowplan.client.http import Pool
from stowplan.errors import InputError
from stowplan.http11.client import Reply
from stowplan.web.files import HEADERS, content_type
from stowplan.web.local import Answer
from stowplan.web.pages import PATH
from stowplan.web.source import json_response

TIMEOUT_SECONDS = 60.0


class Status(msgspec.Struct):
    """As much as is needed of the object that says why a request was refused."""

    message: str = ""


@asynccontextmanager
async def forwarded_to(connection: Connection) -> AsyncIterator[Answer]:
    """Only what is under the page's path is ever asked for. InputError says why there is no page."""
    pool = connection.open()
    try:
        await _check(pool, connection)

        async def answer(name: str, request: web.BaseRequest) -> web.Response:
            return await _forward(pool, connection, name, request)

        yield answer
    finally:
        await pool.close()


async def _check(pool: Pool, connection: Connection) -> None:
    try:
        reply = await _request(pool, connection, "GET", f"{PATH}/")
    except Unreachable as error:
        raise InputError(unreachable_scheduler(error), where=connection.server) from None
    if reply.status != 200:
        raise InputError(_why(reply), where=connection.server)


def _why(reply: Reply) -> str:
    if reply.status == 404:
        return "there is no page; is it Stowplan's scheduler, and not another one?"
    try:
        found = msgspec.json.decode(reply.data, type=Status).message
    except msgspec.DecodeError:
        found = f"it answered with status {reply.status}"
    return f'{found}; the page needs a role with nonResourceURLs "{PATH}/*" and the verbs get and post'


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
        headers=HEADERS,
    )


async def _request(
    pool: Pool, connection: Connection, method: str, target: str, body: bytes | None = None
) -> Reply:
    kind = [] if body is None else [("Content-Type", "application/json")]
    headers = [*await connection.headers(), *kind]
    return await pool.request(method, target, headers, body, timeout=TIMEOUT_SECONDS)
