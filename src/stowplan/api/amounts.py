"""Amounts of resources as people write them, and a check that none is negative."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stowplan.api.meta import Object
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod, PodSpec, ResourceRequirements
from stowplan.api.quantity import Quantity, milli_units, units
from stowplan.errors import InputError

_BYTES = ("memory", "ephemeral-storage", "hugepages-")
_UNITS = (("Ei", 2**60), ("Pi", 2**50), ("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))
_DECIMAL_UNITS = (("E", 10**18), ("P", 10**15), ("T", 10**12), ("G", 10**9))
MAX_EXACT = 10**9
"""Counts and cores below this are shown to the last digit."""
_ENDLESS = re.compile(r"[+-]?[0-9.]+[eE][+-]?0*[0-9]{6,}")
_OF_QUANTITIES = frozenset(("requests", "limits", "overhead", "podFixed", "capacity", "allocatable"))
_OPAQUE = ("metadata", "parameters")
"""What schedulers do not look into."""
Amounts = tuple[str, Mapping[str, Quantity]]


def exact_text(resource: str, amount: int) -> str:
    """Like `amount_text`, with the exact number of bytes where that is rounded."""
    found = amount_text(resource, amount)
    for suffix, size in _UNITS:
        if found.endswith(suffix) and amount % size:
            return f"{amount} ({found})"
    return found


def amount_text(resource: str, amount: int) -> str:
    """Format millicores of cpu, bytes in their largest unit to one decimal, or a count.

    Long numbers are rounded to a decimal unit.
    """
    if resource == "cpu":
        if abs(amount) < 1000 * MAX_EXACT:
            return f"{amount}m" if amount % 1000 else str(amount // 1000)
        amount //= 1000
    if resource.startswith(_BYTES):
        return _in_units(amount, _UNITS)
    return str(amount) if abs(amount) < MAX_EXACT else _in_units(amount, _DECIMAL_UNITS)


def _in_units(amount: int, units: Iterable[tuple[str, int]]) -> str:
    for suffix, size in units:
        if abs(amount) >= size:
            return f"{amount / size:.1f}".removesuffix(".0") + suffix
    return str(amount)


def reject_unserved_values(data: Mapping[str, object]) -> None:
    """Raise an InputError for what no API server returns: null in a list, and endless quantities.

    A decoder would ignore the one and calculate with the other modulo 2^32, as Go does.
    """
    waiting: list[tuple[str, str, Any]] = [("", "", data)]
    while waiting:
        at, within, value = waiting.pop()
        if isinstance(value, dict):
            name = at.rpartition(".")[2]
            waiting += [(f"{at}.{key}", name, each) for key, each in value.items() if key not in _OPAQUE]
        elif isinstance(value, list):
            if None in value:
                field = f"{at}[{value.index(None)}]".removeprefix(".")
                raise InputError("is null; remove it, or say what it is", field=field)
            waiting += [(f"{at}[{index}]", "", each) for index, each in enumerate(value)]
        elif within in _OF_QUANTITIES and _ENDLESS.fullmatch(str(value)):
            said = f"{str(value)[:40]!r} is not a quantity that can be stored: its exponent is too large"
            raise InputError(said, field=at.removeprefix("."))


def reject_negative_amounts(item: Pod | Object) -> None:
    """Raise an InputError if a request of the pod or a capacity of the node is negative.

    No API server accepts these, and they would count as room that does not exist.
    """
    if isinstance(item, Pod):
        reject_negative_requests(item.spec)
    elif isinstance(item, NodeObject):
        _check("status.allocatable", item.status.allocatable)


def reject_negative_requests(spec: PodSpec, at: str = "spec") -> None:
    for field, amounts in _read_requested(spec):
        _check(f"{at}.{field}", amounts)


def _read_requested(spec: PodSpec) -> Iterator[Amounts]:
    for group, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for index, each in enumerate(containers):
            yield from _require_not_negative(f"{group}[{index}].resources", each.resources)
    yield "overhead", spec.overhead
    if spec.resources is not None:
        yield from _require_not_negative("resources", spec.resources)


def _require_not_negative(field: str, resources: ResourceRequirements) -> Iterator[Amounts]:
    yield f"{field}.limits", resources.limits  # first, because they are the default of requests
    yield f"{field}.requests", resources.requests


def _check(field: str, amounts: Mapping[str, Quantity]) -> None:
    for resource, amount in amounts.items():
        if amount < 0:
            found = amount_text(resource, milli_units(amount) if resource == "cpu" else units(amount))
            raise InputError(f"{found} is negative; must be 0 or greater", field=f"{field}.{resource}")
