"""Errors of plugins that end an attempt."""

from __future__ import annotations

from stowplan.api.pod import Pod
from stowplan.errors import PluginError
from stowplan.framework.answers import Method, plugin_error


class CycleError(PluginError):
    """A plugin failed: the attempt is over, its text goes into the decision.

    A filter may fail on some nodes only and be asked about others, unless the error `is_final`.
    """

    def __init__(self, text: str, stack: str = "", *, is_final: bool = False) -> None:
        super().__init__(text, stack)
        self.is_final = is_final


def failure(
    doing: str,
    error: BaseException,
    method: Method,
    pod: Pod,
    node_name: str = "",
    *,
    with_stack: bool = True,
) -> CycleError:
    """The error of a plugin's method that failed while `doing` something; a CycleError stays as it is."""
    if type(error) is CycleError:  # not what a plugin may have derived from it
        return error
    found = plugin_error(doing, error, pod, node_name, method=method, with_stack=with_stack)
    # What the framework itself raises, such as for a call past its budget, would only happen again.
    return CycleError(str(found), found.stack, is_final=isinstance(error, PluginError))
