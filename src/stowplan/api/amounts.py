"""Amounts of resources as people write them, and a check that none is negative."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stowplan.api.meta import Object
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod, PodSpec, ResourceRequirements
from stowplan.api.quantity import Quantity, milli_units, units
from stowplan.errors import InputError

_BYTES = ("memory", "ephemeral-storage", "hugepages-")
_UNITS = (("Ei", 2**60), ("Pi", 2**50), ("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))
Amounts = tuple[str, Mapping[str, Quantity]]


def exact_text(resource: str, amount: int) -> str:
    """As `amount_text`, but never rounded: bytes that fill no unit are counted, too."""
    found = amount_text(resource, amount)
    for suffix, size in _UNITS:
        if found.endswith(suffix) and amount % size:
            return f"{amount} ({found})"
    return found


def amount_text(resource: str, amount: int) -> str:
    """cpu from thousandths, bytes in the largest unit they fill, to a tenth; anything else is a count."""
    if resource == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    if resource.startswith(_BYTES):
        for suffix, size in _UNITS:
            if abs(amount) >= size:
                return f"{amount / size:.1f}".removesuffix(".0") + suffix
    return str(amount)


def check_amounts(item: Pod | Object) -> None:
    """Raises InputError for what a pod asks for, or a node has."""
    if isinstance(item, Pod):
        check_spec(item.spec)
    elif isinstance(item, NodeObject):
        _check("status.allocatable", item.status.allocatable)


def check_spec(spec: PodSpec, at: str = "spec") -> None:
    for field, amounts in _asked(spec):
        _check(f"{at}.{field}", amounts)


def _asked(spec: PodSpec) -> Iterator[Amounts]:
    for group, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for index, each in enumerate(containers):
            yield from _required(f"{group}[{index}].resources", each.resources)
    yield "overhead", spec.overhead
    if spec.resources is not None:
        yield from _required("resources", spec.resources)


def _required(field: str, resources: ResourceRequirements) -> Iterator[Amounts]:
    yield f"{field}.limits", resources.limits  # first: requests that were left out are the same
    yield f"{field}.requests", resources.requests


def _check(field: str, amounts: Mapping[str, Quantity]) -> None:
    for resource, amount in amounts.items():
        if amount < 0:
            found = amount_text(resource, milli_units(amount) if resource == "cpu" else units(amount))
            raise InputError(f"{found} is below zero; write 0 or more", field=f"{field}.{resource}")
