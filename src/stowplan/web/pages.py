"""The pages by name: static files and JSON endpoints. All of them only read."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from stowplan.errors import InputError
from stowplan.explain.changes import Printed
from stowplan.explain.recorded import explain_record, undecided_text
from stowplan.explain.text import print_explanation
from stowplan.scheduler.decision_pages import Known, decision_pages, look_up
from stowplan.serving import aiohttp_web as web
from stowplan.serving.pages import Page
from stowplan.web.objects import describe_object, describe_pods, describe_profiles
from stowplan.web.source import RequestError, Source, json_response, running_scheduler
from stowplan.web.views import (
    Live,
    describe_cluster,
    describe_groups,
    describe_node,
    describe_pod,
    describe_queue,
)
from stowplan.web.whatif import Questions

if TYPE_CHECKING:
    from stowplan.replay.shadow import Shadow

PATH = "/page"
READ_METHODS = ("GET", "HEAD")
MAX_DISAGREEMENTS = 500
SHADOW_LINK = (
    b'<nav aria-label="Views">',
    b'<nav aria-label="Views">\n    <a href="#/shadow" data-view="shadow" aria-keyshortcuts="s">Shadow</a>',
)
"""What the page of a shadow has besides."""
Ask: TypeAlias = "Callable[[web.BaseRequest], object | Awaitable[object]]"
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Nothing from other origins, nothing inline, and text never becomes markup: pods may have any name."""
STATIC_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


def make_pages(source: Source, shadow: Shadow | None = None) -> dict[str, Page]:
    """Pages by name, to be served under any path that ends in a slash; with a view of a shadow's verdicts."""
    live, questions = Live(source, secrets.token_hex(4)), Questions(source)
    (decisions,) = decision_pages(source.decisions, source.scheduler, source.leader).values()

    async def what_if(request: web.BaseRequest) -> object:
        if request.method != "POST" or request.content_type != "application/json":
            raise RequestError("use POST with a JSON body", 405)
        return await questions.what_if(await request.read())

    read = _static_pages() | {
        "api/cluster": _json_endpoint(lambda _: describe_cluster(running_scheduler(source).cluster.nodes)),
        "api/live": _json_endpoint(lambda request: live.answer(request.query)),
        "api/queue": _json_endpoint(lambda request: describe_queue(source, request.query.get("search", ""))),
        "api/groups": _json_endpoint(
            lambda request: describe_groups(source, request.query.get("search", ""))
        ),
        "api/group": _json_endpoint(
            lambda request: questions.group(
                request.query.get("group", ""), changes=request.query.get("changes") == "true"
            )
        ),
        "api/decisions": decisions,
        "api/pod": _json_endpoint(lambda request: describe_pod(source, request.query.get("pod", ""))),
        "api/node": _json_endpoint(
            lambda request: describe_node(running_scheduler(source), request.query.get("name", ""))
        ),
        "api/pods": _json_endpoint(lambda request: describe_pods(source, request.query)),
        "api/profiles": _json_endpoint(lambda _: describe_profiles(source)),
        "api/object": _json_endpoint(
            lambda request: describe_object(
                source, request.query.get("kind", ""), request.query.get("name", "")
            )
        ),
        "api/explain": _json_endpoint(lambda request: explain(source, request.query)),
        "api/changes": _json_endpoint(lambda request: questions.changes(request.query.get("pod", ""))),
    }
    if shadow is not None:
        read[""] = _static_page("index.html", _static("index.html").replace(*SHADOW_LINK))
        read["api/shadow"] = _json_endpoint(lambda _: describe_shadow(shadow))
    return {name: _read_only(page) for name, page in read.items()} | {"api/what-if": _json_endpoint(what_if)}


def describe_shadow(shadow: Shadow) -> dict[str, object]:
    """The newest disagreements, and how many pods are of each class."""
    newest = islice(reversed(shadow.disagreements), MAX_DISAGREEMENTS)
    return {"summary": shadow.summary(), "disagreements": list(newest)}


def mount(pages: Mapping[str, Page], path: str = PATH) -> dict[str, Page]:
    """Pages by path, for a server that has other pages too."""

    def redirect(_: web.BaseRequest) -> web.Response:
        return web.Response(status=302, headers={"Location": f"{path}/"})

    return {path: redirect} | {f"{path}/{name}": page for name, page in pages.items()}


def _read_only(page: Page) -> Page:
    def answer(request: web.BaseRequest) -> web.Response | Awaitable[web.Response]:
        if request.method in READ_METHODS:
            return page(request)
        response = json_response({"message": f"{request.method} is not allowed here; use GET"}, 405)
        response.headers["Allow"] = ", ".join(READ_METHODS)
        return response

    return answer


def _json_endpoint(ask: Ask) -> Page:
    async def page(request: web.BaseRequest) -> web.Response:
        try:
            answer = ask(request)
            return json_response(await answer if isinstance(answer, Awaitable) else answer)
        except RequestError as error:
            return json_response({"message": str(error)}, error.status)
        except web.HTTPException as error:  # raised by aiohttp, such as for a body that is too large
            return json_response({"message": error.reason}, error.status)
        except ValueError as error:
            return json_response({"message": f"invalid request: {error}"}, 400)

    return page


def _static_pages() -> dict[str, Page]:
    """By name; the empty name is the page itself."""
    found = {}
    for each in files(__package__).joinpath("static").iterdir():
        found["" if each.name == "index.html" else each.name] = _static_page(each.name, each.read_bytes())
    return found


def _static(name: str) -> bytes:
    return files(__package__).joinpath("static", name).read_bytes()


def content_type(name: str) -> str:
    """The type of a file or an answer with this name."""
    return next((kind for suffix, kind in TYPES.items() if name.endswith(suffix)), "application/json")


def _static_page(name: str, body: bytes) -> Page:
    return lambda _: web.Response(
        body=body, content_type=content_type(name), charset="utf-8", headers=STATIC_HEADERS
    )


async def explain(source: Source, query: Mapping[str, str]) -> Printed:
    """What `stowplan explain --server` prints, rendered here, where everything needed is loaded already.

    Takes `pod`, optionally `node`, `output=json` for data and `allNodes=true` for complete lists. An unknown
    pod or node is answered with status 200 and a fault: a 404 means that the scheduler has no such page.
    """
    try:
        known = look_up(query.get("pod", ""), source.decisions, source.scheduler(), source.leader())
        return await asyncio.to_thread(_print_known, known, query)
    except (LookupError, InputError) as error:
        return Printed(fault=error.args[0])


def _print_known(known: Known, query: Mapping[str, str]) -> Printed:
    as_data = query.get("output") == "json"
    if known.attempts:
        found = explain_record(known.attempts[0], query.get("node"), known.waiting)
        return print_explanation(found, as_data=as_data, all_nodes=query.get("allNodes") == "true")
    assert known.waiting is not None
    text = undecided_text(known.pod, known.waiting)
    return Printed(data={"pod": known.pod, "waiting": text.splitlines()}) if as_data else Printed(text)
