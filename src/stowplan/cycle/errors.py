"""How an attempt ends that neither chose nor refused."""

from __future__ import annotations

from typing import Any

from stowplan.api.pod import Pod
from stowplan.errors import PluginError


class CycleError(PluginError):
    """A plugin failed: the attempt is over, its text goes into the decision.

    A filter may fail on some nodes only and be asked about others, unless the error `is_final`.
    """

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


def failure(doing: str, error: Exception, pod: Pod, node_name: str = "") -> CycleError:
    if isinstance(error, CycleError):
        return error
    where = f"pod {pod.key}" + (f", node {node_name}" if node_name else "")
    # What the framework itself raises, such as for a call past its budget, would only happen again.
    is_final = isinstance(error, PluginError)
    return CycleError(f"{doing}: {type(error).__name__}: {error} ({where})", is_final=is_final)


def no_status(answer: Any) -> TypeError:
    return TypeError(f"expected a Status or None, got {answer!r}")
