"""A verb at a path: reads the request, keeps to the time budget, and answers what the protocol foresees.

filter and bind have a field for what went wrong, and kube-scheduler shows it in the pod's event. prioritize
has none: kube-scheduler goes on without the scores of an extender that fails, so ours are zeros then.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from stowplan import log
from stowplan.api.extender import (
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    read,
    write,
)
from stowplan.api.pod import Pod
from stowplan.errors import InputError, PluginError
from stowplan.extender.requests import SHOWN, ExtenderRequest, Scored
from stowplan.http11.messages import TEXT, Request, Response
from stowplan.http11.server import Limits
from stowplan.metrics import MILLISECONDS, Page
from stowplan.scheduler.guard import Guard


class NodeVerbs(Protocol):
    """What answers a verb: the plugins of a profile, or a function."""

    def filter(self, request: ExtenderRequest) -> ExtenderFilterResult: ...
    def prioritize(self, request: ExtenderRequest) -> Scored: ...


class Counting:
    """What /metrics says of the requests."""

    def __init__(self, page: Page) -> None:
        self._requests = page.counter(
            "stowplan_extender_requests_total", "Requests, by path and result.", "path", "result"
        )
        self._seconds = page.histogram(
            "stowplan_extender_duration_seconds", "Time to answer a request, by path.", MILLISECONDS, "path"
        )

    def count_answer(self, path: str, result: str, seconds: float) -> None:
        self._requests[path, result] += 1
        self._seconds[path,].observe_alike(seconds, 1)


class RouteContext:
    """What all routes of an extender share. `unready` says what keeps us from answering, if anything does."""

    def __init__(
        self, guard: Guard, counting: Counting, budget: float, unready: Callable[[], str | None]
    ) -> None:
        self.guard, self.counting, self.budget, self.unready = guard, counting, budget, unready

    @contextmanager
    def answering(self) -> Iterator[None]:
        """The time budget for plugins: what takes longer fails."""
        problem = self.unready()
        if problem is not None:
            raise InputError(problem)
        began = time.monotonic()
        self.guard.deadline = began + self.budget
        try:
            yield
        finally:
            self.guard.deadline = math.inf
        if time.monotonic() - began > self.budget:
            raise PluginError(f"took longer than the time budget of {self.budget:g}s")


class VerbRoutes:
    """The verbs of one profile or function, at their paths."""

    def __init__(
        self, context: RouteContext, verbs: NodeVerbs, on_pod: Callable[[Pod], None] = lambda pod: None
    ) -> None:
        self._context, self._verbs, self._on_pod = context, verbs, on_pod

    def filter(self, path: str, body: bytes) -> Response:
        began = time.perf_counter()
        try:
            request = ExtenderRequest.read(body)
            self._on_pod(request.pod)
            with self._context.answering():
                result = self._verbs.filter(request)
        except (InputError, PluginError) as error:
            return self._fail(
                path, began, error, write(ExtenderFilterResult(error=_prefix_path(path, error)))
            )
        self._count(path, "success", began)
        if log.is_verbose(4):
            _log_filter(path, request, result)
        return Response(200, write(result))

    def prioritize(self, path: str, body: bytes) -> Response:
        began = time.perf_counter()
        try:
            request = ExtenderRequest.read(body)
        except InputError as error:
            return self._reject(path, began, error)
        try:
            with self._context.answering():
                found = self._verbs.prioritize(request)
        except (InputError, PluginError) as error:
            zeros = Scored.of(request.names, [0] * len(request.names))
            return self._fail(path, began, error, zeros.answer)
        self._count(path, "success", began)
        log.log(
            4, "Prioritized nodes", path=path, pod=request.pod, nodes=len(request.names), scores=found.shown
        )
        return Response(200, found.answer)

    def preempt(
        self,
        path: str,
        answer: Callable[[ExtenderPreemptionArgs], ExtenderPreemptionResult],
        body: bytes,
    ) -> Response:
        began = time.perf_counter()
        try:
            args = read(ExtenderPreemptionArgs, body)
            with self._context.answering():
                result = answer(args)
        except InputError as error:
            return self._reject(path, began, error)
        except PluginError as error:
            return self._fail(path, began, error, _prefix_path(path, error).encode(), 500)
        self._count(path, "success", began)
        return Response(200, write(result))

    async def bind(
        self, path: str, bind: Callable[[ExtenderBindingArgs], Awaitable[str]], body: bytes
    ) -> Response:
        began = time.perf_counter()
        try:
            args = read(ExtenderBindingArgs, body)
            if (problem := self._context.unready()) is not None:
                raise InputError(problem)
            async with asyncio.timeout(self._context.budget):
                failure = await bind(args)
        except InputError as error:
            failure = str(error)
        except TimeoutError:
            failure = f"took longer than the time budget of {self._context.budget:g}s"
        if failure:
            answer = write(ExtenderBindingResult(error=_prefix_path(path, failure)))
            return self._fail(path, began, failure, answer)
        self._count(path, "success", began)
        return Response(200, write(ExtenderBindingResult()))

    def _count(self, path: str, result: str, began: float) -> None:
        self._context.counting.count_answer(path, result, time.perf_counter() - began)

    def _fail(
        self, path: str, began: float, error: Exception | str, answer: bytes, status: int = 200
    ) -> Response:
        stack = {"stacktrace": error.stack} if isinstance(error, PluginError) and error.stack else {}
        log.error("Request failed", error, path=path, **stack)
        self._count(path, "error", began)
        return Response(status, answer)

    def _reject(self, path: str, began: float, error: InputError) -> Response:
        """For a verb whose answer has no place to say what is wrong with the request."""
        log.error("Request rejected", error, path=path)
        self._count(path, "error", began)
        return text(400, str(error))


def _prefix_path(path: str, error: object) -> str:
    return f"Stowplan extender {path}: {error}"


def _log_filter(path: str, request: ExtenderRequest, result: ExtenderFilterResult) -> None:
    dropped = {**result.failed_nodes, **result.failed_and_unresolvable_nodes}
    log.log(
        4,
        "Filtered nodes",
        path=path,
        pod=request.pod,
        nodes=len(request.names),
        dropped=len(dropped),
        reasons=dict(list(dropped.items())[:SHOWN]),
    )


LIMITS = Limits(connections=512, body_seconds=30, idle_seconds=150)
"""Idle for longer than a Go client keeps a connection, so that it is the one to close it."""


class Route(NamedTuple):
    """What a path does with a body; while a response is awaited, others are answered."""

    handle: Callable[[bytes], Response | Awaitable[Response]]
    method: str = "POST"


class Routes:
    """Serves each path by its route, to everybody that TLS lets in."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = routes

    def authenticates(self, authorization: bytes) -> bool:
        return True

    def is_public(self, url: bytes) -> bool:
        return True

    async def handle(self, request: Request) -> Response:
        path = request.path
        route = self._routes.get(path)
        if route is None:
            return text(404, f"no such path: {path} (known: {', '.join(self._routes)})")
        if request.method != route.method:
            return text(405, f"{path} takes {route.method}, not {request.method}")
        try:
            response = route.handle(request.body)
            if isinstance(response, Response):
                return response
            return await asyncio.ensure_future(response)  # what waits may need a task, for its time-outs
        except Exception as error:
            log.error("Request failed", error, path=path)
            return text(500, f"{type(error).__name__}: {error}")

    def reject(self, status: int, limits: Limits) -> Response:
        match status:
            case 400:
                return text(400, "the request is not HTTP/1.1")
            case 413:
                return text(413, f"the body is larger than {limits.body // 2**20} MiB; see --max-body")
            case 431:
                return text(431, f"the headers are larger than {limits.headers} bytes")
        return text(status, "too many large responses have not been read yet: try again")


def text(status: int, message: str) -> Response:
    return Response(status, f"{message}\n".encode(), TEXT)
