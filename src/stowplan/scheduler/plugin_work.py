"""The background work of plugins: their own `run`, and the controllers that the leader runs for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module

from stowplan import log
from stowplan.framework.answers import await_answer, describe, stack_of, where_text
from stowplan.framework.observer import Observer
from stowplan.framework.plugin import Plugin, overrides

RESTART_SECONDS = 5.0
"""Before background work of a plugin that failed is started over."""
RUN_END_SECONDS = 2.0
"""How long we wait for background work to end that was cancelled: a plugin may ignore that."""


class PluginWork:
    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._plugins: tuple[Plugin, ...] = ()
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[tuple[Plugin, str], asyncio.Task[None]] = {}
        """The work of plugins: their own, and their controllers by name."""
        self._is_leading = asyncio.Event()

    def run_in(self, tasks: asyncio.TaskGroup) -> None:
        """Run the work in these tasks from now on."""
        self._tasks = tasks
        self._update()

    def take_plugins(self, plugins: Iterable[Plugin]) -> None:
        """Start the work of plugins that are new, and end that of plugins that are no more."""
        self._plugins = tuple(plugins)
        self._update()

    def run_controllers(self) -> None:
        """We lead and know the cluster, which the controllers of plugins wait for."""
        self._is_leading.set()

    def _update(self) -> None:
        wanted: dict[tuple[Plugin, str], Callable[[], object]] = {}
        controllers: set[tuple[object, ...]] = set()
        for plugin in self._plugins:
            if overrides(plugin, "run"):
                wanted[plugin, ""] = partial(self._observer.run, plugin)
            for reference in plugin.controllers:
                # Profiles that have the plugin for the same kinds share its controllers.
                if (reference, plugin.watches) not in controllers:
                    controllers.add((reference, plugin.watches))
                    wanted[plugin, reference] = partial(self._control, plugin, reference)
        for gone in self._running.keys() - wanted.keys():
            self._running.pop(gone).cancel()
        for key, run in wanted.items():
            if self._tasks is not None and key not in self._running:
                name = key[1] or f"plugin {key[0].name}"
                self._running[key] = self._tasks.create_task(keep_running(name, run), name=name)

    async def _control(self, plugin: Plugin, reference: str) -> None:
        """Run a plugin's controller, once we lead and know the cluster."""
        await self._is_leading.wait()
        module, _, attribute = reference.partition(":")
        await getattr(import_module(module), attribute)(plugin.args, plugin.handle).run()


async def keep_running(name: str, run: Callable[[], object]) -> None:
    """Run a plugin's background work, and start it over if it fails.

    It has a task of its own, which it may cancel, or go on in although we cancel it.
    """
    while True:
        work = asyncio.create_task(await_answer(run), name=name)
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError:
            work.cancel()
            if not (await asyncio.wait((work,), timeout=RUN_END_SECONDS))[0]:
                log.error("Background work of a plugin did not stop", None, work=name)
            raise
        error = asyncio.CancelledError() if work.cancelled() else work.exception()
        if error is None:
            return
        log.error(
            "Background work of a plugin failed; starting it over",
            f"{describe(error)}{where_text(error)}",
            work=name,
            stacktrace=stack_of(error),
        )
        await asyncio.sleep(RESTART_SECONDS)
