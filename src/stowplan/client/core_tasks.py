"""Tasks that must run as long as the process: if one of them ends, for whatever reason, all end.

A TaskGroup ends when a task raises, but says nothing when one returns or is cancelled by someone else. A
scheduler without one of its parts looks healthy and does nothing, so here that is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

from stowplan import log
from stowplan.errors import StowplanError
from stowplan.framework.answers import describe, stack_of


class CoreTaskError(StowplanError):
    """A core task has ended."""


class CoreTasks:
    """An async context that lasts until one of its tasks ends, or until it is cancelled."""

    def __init__(self) -> None:
        self.fault: str | None = None
        """Which task has ended and why; for /livez."""
        self.may_end = False
        """Set by a host that is stopping: from then on tasks may return."""
        self._group = asyncio.TaskGroup()
        self._owner: asyncio.Task[Any] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> CoreTasks:
        self._owner = asyncio.current_task()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        try:
            await self._group.__aexit__(kind, error, stack)
        except BaseExceptionGroup as group:
            raise first_of(group) from None

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._group.create_task(self._keep(name, work), name=name)

    def end(self, task: asyncio.Task[None]) -> None:
        """End a task that is no longer needed; the others continue."""
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.cancel()

    async def _keep(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        why, stacktrace = "it returned", ""
        try:
            await work
        except asyncio.CancelledError:
            if self._is_meant():
                raise
            why = "it was cancelled"
        except BaseException as error:
            error = first_of(error)
            why = str(error) if isinstance(error, CoreTaskError) else describe(error)
            stacktrace = stack_of(error)
        if self._is_meant():
            return
        self.fault = f"{name} has ended: {why}"
        log.error("A core task has ended", self.fault, stacktrace=stacktrace)
        raise CoreTaskError(self.fault)

    def _is_meant(self) -> bool:
        """Whether the current task was asked to end, alone or with all others."""
        assert self._owner is not None
        return (
            self.may_end
            or self.fault is not None
            or self._owner.cancelling() > 0
            or asyncio.current_task() in self._ending
        )


def first_of(error: BaseException) -> BaseException:
    """The first error of a group, or of groups within it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
