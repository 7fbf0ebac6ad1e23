"""Sees to it that a plugin of others that is slow or hangs harms nobody else.

A thread looks at which call into a plugin is under way. Past its budget, the plugin's own code is interrupted
with an OverdueError, also while it sleeps or waits for an answer. What goes on in spite of that is stuck: it
is logged with its stack and shows in /livez. The plugins that Stowplan brings along are trusted.
"""

from __future__ import annotations

import asyncio
import math
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any
from weakref import WeakSet

from stowplan import log
from stowplan.client.errors import ApiError
from stowplan.errors import PluginError
from stowplan.framework.answers import RaisedError, await_answer, awaitable_of
from stowplan.framework.plugin import Plugin, is_trusted
from stowplan.framework.profile import Profile
from stowplan.metrics import Metrics

TICK_SECONDS = 0.05
STUCK_SECONDS = 2.0
"""So long after its budget a call that was interrupted again and again counts as stuck."""
SYNC_METHODS = ("pre_enqueue", "queue_sort", "queueing_hint", "reserve", "unreserve", "permit")
ASYNC_METHODS = ("pre_bind", "bind", "post_bind")


class OverdueError(PluginError):
    """Raised within a plugin's code that took longer than its budget."""


class Call:
    """A call into a plugin, from its begin on."""

    __slots__ = ("began", "budget", "is_overdue", "method", "plugin")

    def __init__(self, plugin: Plugin, method: str, deadline: float) -> None:
        self.plugin, self.method, self.began, self.is_overdue = plugin, method, time.monotonic(), False
        self.budget = min(plugin.budget, deadline - self.began)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def __str__(self) -> str:
        return f"plugin {self.plugin.name}, {self.method}"


class Guard:
    """Works while inside its context, which the main thread enters; elsewhere nothing is interrupted."""

    def __init__(self, metrics: Metrics, *, patience: float = STUCK_SECONDS) -> None:
        self._metrics, self._patience = metrics, patience
        self.call: Call | None = None
        """The one under way, if any: there is one thread that calls plugins."""
        self.deadline = math.inf
        """When calls are overdue whatever their own budgets, by the monotonic clock."""
        self._stuck: Call | None = None
        self._ignoring: dict[Call, None] = {}
        """Asynchronous calls that were cancelled and go on."""
        self.while_stuck: Callable[[], None] = lambda: None
        """Called again and again, in another thread, while the event loop hangs."""
        self._covered: WeakSet[Plugin] = WeakSet()
        self._ended = threading.Event()

    def __enter__(self) -> Guard:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGALRM, self._interrupt)
            watch = threading.Thread(target=self._watch, name="plugin guard", daemon=True)
            watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGALRM, self._before)

    def check(self) -> str | None:
        """What is stuck, for /livez."""
        calls = [*self._ignoring, *((self._stuck,) if self._stuck is not None else ())]
        return "; ".join(f"{call} has not ended for {call.seconds:.0f}s" for call in calls) or None

    def cover(self, profile: Profile) -> None:
        """From now on calls into the plugins of this profile are watched."""
        for plugin in profile.plugins.values():
            if not is_trusted(type(plugin)):
                self._cover_plugin(plugin)
        profile.pre_filters = self._steps(profile.pre_filters, "pre_filter")
        profile.filters = self._steps(profile.filters, "filter")
        profile.post_filters = self._steps(profile.post_filters, "post_filter")
        profile.pre_scores = self._steps(profile.pre_scores, "pre_score")
        profile.scores = self._steps(profile.scores, "score")

    @contextmanager
    def calling(self, plugin: Plugin, method: str) -> Iterator[None]:
        outer, self.call = self.call, Call(plugin, method, self.deadline)
        try:
            yield
        finally:
            self.call = outer

    def _steps(self, steps: Sequence[Any], method: str) -> Any:
        plugins = [step[1] if isinstance(step, tuple) else step.plugin for step in steps]
        if all(is_trusted(type(plugin)) for plugin in plugins):
            return steps
        watched = [None if is_trusted(type(plugin)) else plugin for plugin in plugins]
        return GuardedSteps(self, steps, watched, method)

    def _cover_plugin(self, plugin: Any) -> None:
        if plugin in self._covered:
            return  # it was kept from a profile before this one
        self._covered.add(plugin)
        for method in SYNC_METHODS:
            if hasattr(plugin, method):
                setattr(plugin, method, self._guarded(plugin, method, getattr(plugin, method)))
        for method in ASYNC_METHODS:
            if hasattr(plugin, method):
                setattr(plugin, method, self._guarded_async(plugin, method, getattr(plugin, method)))
        if hasattr(plugin, "run"):
            run = plugin.run
            plugin.run = lambda: Stepwise(self, plugin, "run", awaitable_of(run()))

    def _guarded(self, plugin: Plugin, method: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with self.calling(plugin, method):
                try:
                    return ask(*args)
                except BaseException as error:  # its text is the plugin's code, too
                    raise RaisedError(error) from None

        return call

    def _guarded_async(
        self, plugin: Plugin, method: str, ask: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any) -> Any:
            async def step_by_step() -> Any:
                try:
                    return await await_answer(
                        lambda: Stepwise(self, plugin, method, awaitable_of(ask(*args)))
                    )
                except ApiError:
                    raise
                except Exception as error:
                    with self.calling(plugin, method):
                        raise RaisedError(error) from None

            under_way, task = Call(plugin, method, math.inf), asyncio.create_task(step_by_step())
            try:
                done, _ = await asyncio.wait((task,), timeout=plugin.bind_budget)
            except asyncio.CancelledError:
                task.cancel()
                raise
            return task.result() if done else await self._give_up(under_way, task)

        return call

    async def _give_up(self, call: Call, task: asyncio.Task[Any]) -> Any:
        task.cancel()
        done, _ = await asyncio.wait((task,), timeout=self._patience)
        if not done:
            self._ignoring[call] = None
            task.add_done_callback(lambda _: self._ignoring.pop(call, None))
            log.error("Plugin goes on past its budget and cannot be stopped", None, plugin=call.plugin.name)
        self._metrics.plugin_interrupted(call.plugin.name, call.method)
        raise OverdueError(_overdue(call.plugin.bind_budget))

    def _watch(self) -> None:
        """In a thread of its own: interrupts what is overdue."""
        thread = threading.main_thread().ident
        assert thread is not None
        while not self._ended.wait(TICK_SECONDS):
            call = self.call
            if call is None or call.seconds <= call.budget:
                self._stuck = None
                continue
            if not call.is_overdue:
                call.is_overdue = True
                self._metrics.plugin_interrupted(call.plugin.name, call.method)
            signal.pthread_kill(thread, signal.SIGALRM)
            if self._stuck is call:
                self.while_stuck()
            elif call.seconds > call.budget + self._patience:
                self._stuck = call
                stack = "".join(traceback.format_stack(sys._current_frames()[thread]))
                log.error(
                    "Plugin cannot be interrupted, and all pods wait for it",
                    None,
                    plugin=call.plugin.name,
                    method=call.method,
                    stacktrace=stack,
                )

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """In the main thread. Only the plugin's own code is interrupted, never ours after it."""
        call = self.call
        if call is not None and call.is_overdue and _is_running(call.plugin, frame):
            raise OverdueError(_overdue(call.budget))


class GuardedSteps(Sequence[Any]):
    """The plugins of an extension point; whoever goes through them is in a call of the one he is at."""

    def __init__(
        self, guard: Guard, steps: Sequence[Any], plugins: Sequence[Plugin | None], method: str
    ) -> None:
        self._guard, self._steps, self._plugins, self._method = guard, steps, plugins, method

    def changed(self, change: Callable[[Any], Any]) -> GuardedSteps:
        steps = [change(step) for step in self._steps]
        return GuardedSteps(self._guard, steps, self._plugins, self._method)

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, place: Any) -> Any:
        return self._steps[place]

    def __iter__(self) -> Iterator[Any]:
        guard, outer = self._guard, self._guard.call
        try:
            for step, plugin in zip(self._steps, self._plugins, strict=True):
                guard.call = outer if plugin is None else Call(plugin, self._method, guard.deadline)
                yield step
        finally:
            guard.call = outer


def changed(steps: Sequence[Any], change: Callable[[Any], Any]) -> Sequence[Any]:
    """The steps changed one by one; those under a guard stay under it."""
    if isinstance(steps, GuardedSteps):
        return steps.changed(change)
    return [change(step) for step in steps]


class Stepwise:
    """Awaits a plugin's coroutine; each stretch that it runs without waiting is a call of its own."""

    def __init__(self, guard: Guard, plugin: Plugin, method: str, work: Awaitable[Any]) -> None:
        self._guard, self._plugin, self._method, self._work = guard, plugin, method, work

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        value, error = None, None
        while True:
            try:
                with self._guard.calling(self._plugin, self._method):
                    waited = steps.throw(error) if error is not None else steps.send(value)
            except StopIteration as end:
                return end.value
            try:
                value, error = (yield waited), None
            except BaseException as thrown:
                value, error = None, thrown


def _is_running(plugin: Plugin, frame: FrameType | None) -> bool:
    """Whether the code of the plugin's module is among what is running."""
    while frame is not None:
        if frame.f_globals.get("__name__") == type(plugin).__module__:
            return True
        frame = frame.f_back
    return False


def _overdue(seconds: float) -> str:
    return f"took longer than its budget of {max(round(seconds, 2), 0):g}s"
