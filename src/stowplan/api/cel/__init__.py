"""CEL, the expression language of device selectors, compiled to Python closures.

`compile_cel(text).evaluate({"device": …})` gives the value or raises CelError. Expressions are compiled
once and kept. What an evaluation does is bounded by its cost (see overloads.py): a new function
charges for all work that depends on the size of a value.
"""

from __future__ import annotations

from stowplan.api.cel.compiler import Program, compilations, compile_cel
from stowplan.api.cel.overloads import COST_EXCEEDED, MAX_COST, Meter
from stowplan.api.cel.values import Amount, DeviceVariable, Domains, Message, Version

__all__ = [
    "COST_EXCEEDED",
    "MAX_COST",
    "Amount",
    "DeviceVariable",
    "Domains",
    "Message",
    "Meter",
    "Program",
    "Version",
    "compilations",
    "compile_cel",
]
