"""Interrupts calls into custom plugins that take longer than their budget.

A thread watches which call is running. Past its budget, the plugin's own code is interrupted with an
OverdueError, also while it sleeps or waits for a response. Our own code is never interrupted, since it may be
halfway through a change that others rely on: if the plugin has called it, the error is raised as soon as it
returns to the plugin. A call that continues in spite of that is stuck: it is logged with its stack and shows
in /livez. The plugins of the default profile are trusted.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Generator
from functools import cache
from importlib import metadata
from types import FrameType
from typing import Any

from stowplan import log
from stowplan.client.errors import ApiError
from stowplan.framework.answers import RaisedError, await_answer, awaitable_of
from stowplan.framework.observer import WATCHED, Observer, OverdueError, is_own_file
from stowplan.framework.plugin import Plugin, is_trusted, name_of
from stowplan.metrics import Metrics

TICK_SECONDS = 0.05
STUCK_SECONDS = 2.0
"""A call that continues for so long after its budget counts as stuck."""
METHODS = {
    "PreEnqueue": "pre_enqueue",
    "QueueSort": "queue_sort",
    "QueueingHint": "queueing_hint",
    "PreFilter": "pre_filter",
    "Filter": "filter",
    "PostFilter": "post_filter",
    "PreScore": "pre_score",
    "Score": "score",
    "ScoreExtensionNormalize": "normalize_score",
    "Reserve": "reserve",
    "Unreserve": "unreserve",
    "Permit": "permit",
    "PreBindPreFlight": "pre_bind_pre_flight",
    "PreBind": "pre_bind",
    "Bind": "bind",
    "PostBind": "post_bind",
}
"""The method that an overdue call is reported by, for each extension point."""


class Call:
    """A call into a plugin."""

    __slots__ = ("began", "budget", "has_ended", "is_overdue", "method", "outer", "plugin")

    def __init__(self, plugin: Plugin, method: str, deadline: float, outer: Call | None = None) -> None:
        self.plugin, self.method, self.outer, self.began = plugin, method, outer, time.monotonic()
        self.is_overdue = self.has_ended = False
        self.budget = min(plugin.budget, deadline - self.began)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def __str__(self) -> str:
        return f"plugin {name_of(self.plugin)}, {self.method}"


class Guard(Observer):
    """Works while inside its context, which the main thread enters; elsewhere nothing is interrupted."""

    def __init__(self, metrics: Metrics, *, stuck_seconds: float = STUCK_SECONDS) -> None:
        self._metrics, self._stuck_seconds = metrics, stuck_seconds
        self.call: Call | None = None
        """The innermost one that is running, if any: one thread calls plugins."""
        self.deadline = math.inf
        """When every call is overdue, whatever its budget, by the monotonic clock."""
        self._stuck: Call | None = None
        self._ignoring: dict[Call, None] = {}
        """Asynchronous calls that were cancelled and continue."""
        self.while_stuck: Callable[[], None] = lambda: None
        """Called repeatedly, in another thread, while the event loop hangs."""
        self._ended, self._has_calls = threading.Event(), threading.Event()
        self._pending: FrameType | None = None
        """Our own code that the plugin has called, and that is interrupted as soon as it returns."""

    def __enter__(self) -> Guard:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGALRM, self._interrupt)
            self._watcher = threading.Thread(target=self._watch, name="plugin guard", daemon=True)
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._has_calls.set()
        if threading.current_thread() is threading.main_thread():
            self._watcher.join()  # its next signal would end the process
            signal.signal(signal.SIGALRM, self._before)

    def check(self) -> str | None:
        """What is stuck, for /livez."""
        calls = [*self._ignoring, *((self._stuck,) if self._stuck is not None else ())]
        return "; ".join(f"{call} has not ended for {call.seconds:.0f}s" for call in calls) or None

    def start(self, point: str) -> Guard:
        return self

    def enter(self, point: str, plugin: Plugin) -> None:
        if not is_trusted(type(plugin)):
            self.call = Call(plugin, METHODS.get(point, point), self.deadline, self.call)
            if not self._has_calls.is_set():
                self._has_calls.set()

    def leave(self, point: str, plugin: Plugin) -> None:
        call = self.call
        if call is not None and call.plugin is plugin:
            self.call, call.has_ended = call.outer, True

    def call_async(
        self, point: str, plugin: Plugin, method: Callable[..., object], *args: object
    ) -> Awaitable[Any]:
        # The task within may be cancelled by the plugin itself, which is the plugin's error.
        return await_answer(self._call, point, plugin, method, *args)

    def run(self, plugin: Plugin) -> Awaitable[Any]:
        if is_trusted(type(plugin)):
            return plugin.run()
        return Stepwise(self, "run", plugin, awaitable_of(plugin.run()))

    async def _call(self, point: str, plugin: Plugin, method: Callable[..., object], *args: object) -> object:
        async def step_by_step() -> object:
            try:
                return await await_answer(lambda: Stepwise(self, point, plugin, awaitable_of(method(*args))))
            except ApiError:
                raise
            except Exception as error:
                with self.calling(point, plugin):  # its text is the plugin's code, too
                    raise RaisedError(error, (plugin, METHODS.get(point, point))) from None

        call, task = Call(plugin, METHODS.get(point, point), math.inf), asyncio.create_task(step_by_step())
        try:
            done, _ = await asyncio.wait((task,), timeout=plugin.bind_budget)
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task.result() if done else await self._give_up(call, task)

    async def _give_up(self, call: Call, task: asyncio.Task[object]) -> object:
        task.cancel()
        done, _ = await asyncio.wait((task,), timeout=self._stuck_seconds)
        if not done:
            self._ignoring[call] = None
            task.add_done_callback(lambda _: self._ignoring.pop(call, None))
            log.error(
                "Plugin continues past its budget and cannot be cancelled", None, plugin=name_of(call.plugin)
            )
        self._metrics.plugin_interrupted(name_of(call.plugin), call.method)
        raise OverdueError(overdue_message(call.plugin.bind_budget))

    def _watch(self) -> None:
        """Interrupt overdue calls; runs in a thread of its own."""
        thread = threading.main_thread().ident
        assert thread is not None
        self._has_calls.wait()  # without custom plugins it never wakes up
        while not self._ended.wait(TICK_SECONDS):
            call = self.call
            if call is None or call.seconds <= call.budget:
                self._stuck = None
                continue
            if not call.is_overdue:
                own_libraries()  # here, since it takes a while
                call.is_overdue = True
                self._metrics.plugin_interrupted(name_of(call.plugin), call.method)
            signal.pthread_kill(thread, signal.SIGALRM)
            if self._stuck is call:
                self.while_stuck()
            elif call.seconds > call.budget + self._stuck_seconds:
                self._stuck = call
                stack = "".join(traceback.format_stack(sys._current_frames()[thread]))
                log.error(
                    "Plugin cannot be interrupted; scheduling is blocked",
                    None,
                    plugin=name_of(call.plugin),
                    method=call.method,
                    stacktrace=stack,
                )

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal: runs in the main thread, between two instructions of whatever runs there."""
        call = self.call
        if call is None or not call.is_overdue:
            return
        plugin = type(call.plugin)
        caller: FrameType | None = None
        callee: FrameType | None = None
        while frame is not None:  # from the innermost frame outwards
            if not is_own_file(frame.f_code.co_filename):
                caller = frame if caller is None and is_of_plugin(frame, plugin) else caller
            elif caller is not None:
                break
            else:
                caller, callee = None, frame
            frame = frame.f_back
        if caller is None:
            return  # the plugin has returned, or was not called yet
        if callee is None:
            self._pending = None
            raise OverdueError(overdue_message(call.budget))
        self._raise_on_return(call, caller, callee)

    def _raise_on_return(self, call: Call, caller: FrameType, callee: FrameType) -> None:
        """Interrupt the plugin's `caller` as soon as our own `callee` returns.

        A signal that finds the plugin's code running may never come if nearly all the time goes into calls of
        ours, so the return is traced.
        """
        if self._pending is callee:
            return
        self._pending = callee
        # One that pauses is not done, and must not be left in the middle of what it awaits.
        may_pause = callee.f_code.co_flags & (
            inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
        )
        before = sys.gettrace()

        def is_over() -> bool:
            return call.has_ended or self._pending is not callee

        def trace_call(frame: FrameType, event: str, argument: object) -> None:
            """Called for every new frame, none of which matters."""
            if is_over():
                sys.settrace(before)

        def trace(frame: FrameType, event: str, argument: object) -> object:
            if is_over():
                sys.settrace(before)
                return None
            if event == "line" if frame is caller else event == "return" and not may_pause:
                self._pending = None
                sys.settrace(before)
                raise OverdueError(overdue_message(call.budget))
            return trace

        caller.f_trace = callee.f_trace = trace
        callee.f_trace_lines = False
        sys.settrace(trace_call)


class Stepwise:
    """Awaits a plugin's coroutine; each stretch that it runs without waiting is a call of its own."""

    def __init__(self, guard: Guard, point: str, plugin: Plugin, work: Awaitable[object]) -> None:
        self._guard, self._point, self._plugin, self._work = guard, point, plugin, work

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        value, error = None, None
        while True:
            try:
                with self._guard.calling(self._point, self._plugin):
                    waited = steps.throw(error) if error is not None else steps.send(value)
            except StopIteration as end:
                return end.value
            try:
                value, error = (yield waited), None
            except BaseException as thrown:
                value, error = None, thrown


STANDARD_LIBRARY = os.path.dirname(inspect.__file__) + os.sep
SITES = ("site-packages", "dist-packages")


def is_of_plugin(frame: FrameType, plugin: type[Plugin]) -> bool:
    """Whether it runs code of the plugin's author, rather than of a library that we use as well."""
    file, package = frame.f_code.co_filename, str(frame.f_globals.get("__name__")).partition(".")[0]
    if file.startswith(WATCHED) or package == plugin.__module__.partition(".")[0] != "stowplan":
        return True
    is_synthetic = not os.path.isabs(file)  # such as the __init__ that a dataclass gets
    is_standard = file.startswith(STANDARD_LIBRARY) and not any(site in file.split(os.sep) for site in SITES)
    return not (is_synthetic or is_standard or package in own_libraries())


@cache
def own_libraries() -> frozenset[str]:
    """The packages that Stowplan is installed with: one of their frames need not be a plugin's doing."""
    found: set[str] = set()
    wanted, seen = ["stowplan"], set()
    while wanted:
        name = wanted.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if distribution.metadata["Name"] not in seen:
            seen.add(distribution.metadata["Name"])
            needed = (each for each in distribution.requires or () if "extra ==" not in each)
            wanted += (re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in needed)
            found.update(file.parts[0].partition(".")[0] for file in distribution.files or ())
    return frozenset(found)


def overdue_message(seconds: float) -> str:
    return f"took longer than its budget of {max(round(seconds, 2), 0):g}s"
