"""CEL, the expression language of device selectors, compiled to Python closures.

`compile_cel(text).evaluate({"device": …})` gives the value or raises CelError. Expressions are compiled
once and kept; nothing here reads files, clocks or the network.
"""

from __future__ import annotations

from stowplan.api.cel.compiler import Program, compile_cel
from stowplan.api.cel.values import DeviceVariable, Domains, Version

__all__ = ["DeviceVariable", "Domains", "Program", "Version", "compile_cel"]
