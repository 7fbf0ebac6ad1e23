"""Stowplan: a Kubernetes scheduler you extend in Python.

Plugins import what they need from here; names are loaded on first use, so that a command that needs
none of it starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stowplan.framework import *  # noqa: F403


_MODULES = ("errors", "log", "metrics")
"""What `from stowplan import log` asks for here first, and then finds by itself."""


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name in _MODULES:
        raise AttributeError(name)
    try:
        return getattr(import_module("stowplan.framework"), name)
    except AttributeError:
        raise AttributeError(f"stowplan has no {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*_MODULES, *import_module("stowplan.framework.exports").__all__})
