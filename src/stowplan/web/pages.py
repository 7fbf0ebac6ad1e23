"""The page and its doors, by name. All of them only read."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from stowplan.scheduler.decision_pages import decision_pages
from stowplan.serving.pages import Page
from stowplan.web.explained import explained
from stowplan.web.files import file_pages
from stowplan.web.live import Live
from stowplan.web.nodes import cluster_answer, node_answer
from stowplan.web.pods import pod_facts, queue_answer
from stowplan.web.source import Refused, Source, json_response, running
from stowplan.web.whatif import Questions

PATH = "/page"
READING = ("GET", "HEAD")
Ask = Callable[[web.BaseRequest], object | Awaitable[object]]


def pages(source: Source) -> dict[str, Page]:
    """By name, to be served under any path that ends in a slash."""
    live, questions = Live(source, secrets.token_hex(4)), Questions(source)
    (decisions,) = decision_pages(source.decisions, source.scheduler, source.leader).values()

    async def what_if(request: web.BaseRequest) -> object:
        if request.method != "POST" or request.content_type != "application/json":
            raise Refused("ask with POST, in JSON", 405)
        return await questions.what_if(await request.read())

    read = file_pages() | {
        "api/cluster": _door(lambda _: cluster_answer(running(source).cluster.nodes)),
        "api/live": _door(lambda request: live.answer(request.query)),
        "api/queue": _door(lambda request: queue_answer(source, request.query.get("search", ""))),
        "api/decisions": decisions,
        "api/pod": _door(lambda request: pod_facts(source, request.query.get("pod", ""))),
        "api/node": _door(lambda request: node_answer(running(source), request.query.get("name", ""))),
        "api/explain": _door(lambda request: explained(source, request.query)),
        "api/changes": _door(lambda request: questions.changes(request.query.get("pod", ""))),
    }
    return {name: _only_read(page) for name, page in read.items()} | {"api/what-if": _door(what_if)}


def mounted(found: Mapping[str, Page], path: str = PATH) -> dict[str, Page]:
    """By path, for a server that has other pages too."""

    def to_page(_: web.BaseRequest) -> web.Response:
        return web.Response(status=302, headers={"Location": f"{path}/"})

    return {path: to_page} | {f"{path}/{name}": page for name, page in found.items()}


def _only_read(page: Page) -> Page:
    def answer(request: web.BaseRequest) -> web.Response | Awaitable[web.Response]:
        if request.method in READING:
            return page(request)
        refusal = json_response({"message": f"{request.method} is not for this path: ask with GET"}, 405)
        refusal.headers["Allow"] = ", ".join(READING)
        return refusal

    return answer


def _door(ask: Ask) -> Page:
    async def page(request: web.BaseRequest) -> web.Response:
        try:
            answer = ask(request)
            return json_response(await answer if isinstance(answer, Awaitable) else answer)
        except Refused as refused:
            return json_response({"message": str(refused)}, refused.status)
        except web.HTTPException as error:  # what aiohttp refuses: a body that is too large
            return json_response({"message": error.reason}, error.status)
        except ValueError as error:
            return json_response({"message": f"the question cannot be read: {error}"}, 400)

    return page
