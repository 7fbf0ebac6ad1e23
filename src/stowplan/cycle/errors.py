"""How an attempt ends that neither chose nor refused."""

from __future__ import annotations

from typing import Any

from stowplan.api.pod import Pod
from stowplan.errors import PluginError


class CycleError(PluginError):
    """A plugin failed: the attempt is over, its text goes into the decision."""


def failure(doing: str, error: Exception, pod: Pod, node_name: str = "") -> CycleError:
    if isinstance(error, CycleError):
        return error
    where = f"pod {pod.key}" + (f", node {node_name}" if node_name else "")
    return CycleError(f"{doing}: {type(error).__name__}: {error} ({where})")


def no_status(answer: Any) -> TypeError:
    return TypeError(f"expected a Status or None, got {answer!r}")
