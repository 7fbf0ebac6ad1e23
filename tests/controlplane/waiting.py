"""Waiting for what other processes do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(read: Callable[[], T], is_so: Callable[[T], bool], *, seconds: float = 60) -> T:
    """Read until what was read is as wanted, and answer it; our own tasks go on between two reads."""
    end = time.monotonic() + seconds
    while not is_so(found := read()):
        assert time.monotonic() < end, f"still not so after {seconds} s; the last answer was {found!r}"
        await asyncio.sleep(0.05)
    return found
