"""Runs `async def` tests that use Stowplan where no pytest plugin for asyncio is configured.

pytest loads it by its entry point. It leaves alone the tests of modules that import nothing of Stowplan, and
those that pytest-asyncio or anyio runs. Async fixtures need pytest-asyncio, with `asyncio_mode = "auto"`.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

PACKAGE = "stowplan"


def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    """Run the test in an event loop of its own; None leaves it to others."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test) or not _uses_stowplan(pyfuncitem.module):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(test(**given))
    return True


def _uses_stowplan(module: Any) -> bool:
    modules = (
        getattr(value, "__module__", None) or getattr(value, "__name__", "")
        for value in vars(module).values()
    )
    return any(str(each).partition(".")[0] == PACKAGE for each in modules)
