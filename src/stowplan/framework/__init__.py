"""All that a plugin author imports, and the profile that puts plugins in order.

What `exports` has is loaded when first asked for, so that one module of this room can be had alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stowplan.framework.exports import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(import_module("stowplan.framework.exports"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("stowplan.framework.exports").__all__})
