"""CEL, the expression language of device selectors, compiled to Python closures.

`compile_cel(text).evaluate({"device": …})` gives the value or raises CelError. Expressions are compiled
once and kept; nothing here reads files, clocks or the network.
"""

from __future__ import annotations

from stowplan.api.cel.compiler import Declarations, Program, compile_cel
from stowplan.api.cel.values import DeviceVariable, Domains, Optional, UInt, Version

__all__ = [
    "Declarations", "DeviceVariable", "Domains", "Optional", "Program", "UInt", "Version", "compile_cel"
]  # fmt: skip
