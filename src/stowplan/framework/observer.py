"""Observers: told which plugin runs, so that a host can measure plugins or interrupt them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stowplan.framework.answers import await_answer
from stowplan.framework.plugin import Plugin


class Observer:
    """Follows the calls into the plugins of a profile. The default does nothing.

    Extension points have the names of kube-scheduler's metrics, such as "PreFilter".
    """

    def start(self, point: str) -> Observer | None:
        """The cycle starts an extension point. Returns who observes each of its plugins; None saves the
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
        self, point: str, plugin: Plugin, method: Callable[..., Any], *args: Any
    ) -> Awaitable[Any]:
        """Await an asynchronous method of the plugin."""
        return await_answer(method, *args)

    def run(self, plugin: Plugin) -> Awaitable[Any]:
        """Run the plugin's background work."""
        return plugin.run()


UNOBSERVED = Observer()
