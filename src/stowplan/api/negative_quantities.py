"""Amounts below zero, which no API server takes: they would count as room that is not there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stowplan.api.amounts import amount_text
from stowplan.api.meta import Object
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod, PodSpec, ResourceRequirements
from stowplan.api.quantity import Quantity, milli_units, units
from stowplan.errors import InputError

Amounts = tuple[str, Mapping[str, Quantity]]


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
