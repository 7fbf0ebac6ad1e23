"""A verb at a path: reads the request, keeps to the time budget, and answers what the protocol foresees.

filter and bind have a field for what went wrong, and kube-scheduler shows it in the pod's event. prioritize
has none: kube-scheduler goes on without the scores of an extender that fails, so ours are zeros then.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

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
from stowplan.extender.http import text
from stowplan.extender.requests import SHOWN, ExtenderRequest, Scored
from stowplan.http11.messages import Response
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
            "stowplan_extender_duration_seconds", "Time for an answer, by path.", MILLISECONDS, "path"
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
        """For the plugins' work: what takes longer than the budget fails."""
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
