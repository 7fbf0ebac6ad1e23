"""Observers: notified which plugin runs, so that a host can measure plugins or interrupt them."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stowplan.errors import PluginError
from stowplan.framework.answers import await_answer
from stowplan.framework.plugin import Plugin, is_trusted


class Observer:
    """Follows the calls into the plugins of a profile. The default does nothing.

    Extension points have the names of kube-scheduler's metrics, such as "PreFilter".
    """

    def start(self, point: str) -> Observer | None:
        """The cycle starts an extension point. Returns the observer of each of its plugins; None saves the
        calls of `enter` and `leave`."""
        return None

    def enter(self, point: str, plugin: Plugin) -> None:
        """A call into the plugin starts. Calls may be nested."""

    def leave(self, point: str, plugin: Plugin) -> None:
        """The call has ended, and so has the handling of what it returned or raised."""

    @contextmanager
    def calling(self, point: str, plugin: Plugin) -> Iterator[None]:
        self.enter(point, plugin)
        try:
            yield
        finally:
            self.leave(point, plugin)

    def call_async(
        self, point: str, plugin: Plugin, method: Callable[..., object], *args: object
    ) -> Awaitable[Any]:
        """Await an asynchronous method of the plugin."""
        return await_answer(method, *args)

    def run(self, plugin: Plugin) -> Awaitable[Any]:
        """Run the plugin's background work."""
        return plugin.run()


UNOBSERVED = Observer()


# Interrupting a plugin in its thread


class OverdueError(PluginError):
    """Raised within a plugin's code that took longer than its budget."""


class AbandonedError(OverdueError):
    """Raised in a thread whose result is no longer needed."""

    def __init__(self) -> None:
        super().__init__("took longer than the request may take")


class OfflineOverdueError(OverdueError):
    """Raised within a plugin that loops in an offline command or a test."""

    def __init__(self) -> None:
        super().__init__(f"took more than {OFFLINE_FACTOR} times its budget, in CPU time")


OFFLINE_FACTOR = 10
"""How many times its budget a call may take offline, where no other pod is delayed."""
OFFLINE_TICK_SECONDS = 0.1
PACKAGE = os.path.dirname(os.path.dirname(Observer.enter.__code__.co_filename)) + os.sep
WATCHED = tuple(os.path.join(PACKAGE, *path, "") for path in (("plugins", "community"), ("sticky",)))
"""Plugins that come with Stowplan and have a budget, too."""


def is_own_file(file: str) -> bool:
    """Whether it is Stowplan's, other than of a plugin that is watched."""
    return file.startswith(PACKAGE) and not file.startswith(WATCHED)


def interrupt_thread(thread: int, error: type[OverdueError] = AbandonedError) -> bool:
    """Raise an error in another thread that works on a copy of the cluster, if it runs others' code.

    Returns whether it was raised.
    """
    frame = sys._current_frames().get(thread)
    if frame is None or is_own_file(frame.f_code.co_filename):
        return False
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
    return True


class _Call:
    __slots__ = ("clock", "limit", "outer", "plugin")

    def __init__(self, plugin: Plugin, thread: int, outer: _Call | None) -> None:
        self.plugin, self.outer = plugin, outer
        self.clock = time.pthread_getcpuclockid(thread)
        self.limit: float | None = None
        """Set when the guard first sees the call: reading the clock in each call would be slow."""

    def is_overdue(self) -> bool:
        now = time.clock_gettime(self.clock)
        if self.limit is None:
            self.limit = now + OFFLINE_FACTOR * self.plugin.budget
        return now > self.limit


class OfflineGuard(Observer):
    """Interrupts calls that loop, for commands and tests without a scheduler, in whatever thread they run.

    Only CPU time counts, so that a breakpoint in a plugin and a busy machine do no harm. Code that waits is
    not interrupted: signals, which could do that, belong to whoever runs the command or the tests.
    """

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        """The innermost one by thread."""
        self._interrupts: Counter[int] = Counter()
        """How many calls were interrupted, by thread."""
        self._is_watching = False

    def start(self, point: str) -> OfflineGuard:
        return self

    def enter(self, point: str, plugin: Plugin) -> None:
        if not is_trusted(type(plugin)):
            thread = threading.get_ident()
            self._calls[thread] = _Call(plugin, thread, self._calls.get(thread))
            if not self._is_watching:
                self._is_watching = True
                threading.Thread(target=self._watch, name="offline guard", daemon=True).start()

    def leave(self, point: str, plugin: Plugin) -> None:
        thread = threading.get_ident()
        call = self._calls.get(thread)
        if call is not None and call.plugin is plugin:
            if call.outer is None:
                del self._calls[thread]
            else:
                self._calls[thread] = call.outer

    def plugin_in(self, thread: int) -> Plugin | None:
        """The plugin that a thread is in, unless it is one of ours."""
        call = self._calls.get(thread)
        return None if call is None else call.plugin

    def count_interrupts(self) -> int:
        """How many calls in this thread were interrupted so far."""
        return self._interrupts[threading.get_ident()]

    def _watch(self) -> None:
        while True:
            time.sleep(OFFLINE_TICK_SECONDS)
            for thread, call in tuple(self._calls.items()):
                try:
                    if call.is_overdue() and interrupt_thread(thread, OfflineOverdueError):
                        self._interrupts[thread] += 1
                except OSError:  # the thread has ended
                    self._calls.pop(thread, None)


OFFLINE_GUARD = OfflineGuard()
