"""Every exception Stowplan raises on purpose.

StowplanError
├── InputError            something a user gave us is wrong: file, object and field are named
│   └── ConfigError       … in a scheduler configuration; `stage` says how far it got
├── QuantityError         text that is no Kubernetes quantity
├── SelectorError         a selector that cannot be built
├── PatternError          a regular expression that RE2 rejects, or that is too complex for a text
├── CelError              a CEL expression that does not compile or fails on a value
├── ApiError              an error of the API server; see client/errors.py
├── ExtenderError         an HTTP extender failed or talked nonsense; in client/extenders.py
└── PluginError           a plugin raised or answered nonsense; plugin, pod and node are named
"""

from __future__ import annotations

import os


class StowplanError(Exception):
    """Root of the tree; `str()` gives a message for users."""


class InputError(StowplanError):
    """Wrong input. `where` is the file or stream, `what` the object, `field` the path inside it."""

    def __init__(self, message: str, *, where: str = "", what: str = "", field: str = "") -> None:
        self.message, self.where, self.what, self.field = message, where, what, field
        super().__init__(": ".join(part for part in (where, what, field, message) if part))


def describe_os_error(error: OSError) -> str:
    """The system's words alone: asyncio puts the address before them."""
    number = error.errno or 0  # negative where a host name is not found
    return os.strerror(number) if number > 0 else error.strerror or str(error)


def missing_extra(what: str, library: str, extra: str) -> InputError:
    """Something needs a library that only one of our extras installs."""
    return InputError(
        f"needs {library}, which is not installed; "
        f"in a checkout of Stowplan, install it with: pip install '.[{extra}]'",
        what=what,
    )


class ConfigError(InputError):
    """An invalid configuration; `stage` is decode, validate or framework."""

    def __init__(self, message: str, *, stage: str = "decode", where: str = "") -> None:
        super().__init__(message, where=where)
        self.stage = stage


class QuantityError(StowplanError, ValueError):
    pass


class SelectorError(StowplanError, ValueError):
    pass


class PatternError(StowplanError, ValueError):
    pass


class CelError(StowplanError):
    offset: int | None = None
    """The character of the expression that is at fault, where that is known."""


class PluginError(StowplanError):
    """`stack` is the traceback of what the plugin raised, for the log."""

    def __init__(self, message: str = "", stack: str = "") -> None:
        super().__init__(message)
        self.stack = stack
