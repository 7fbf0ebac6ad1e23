"""PriorityClasses as plugins watch them."""

from __future__ import annotations

from typing import ClassVar

from stowplan.api.custom import CustomResource, Definition


class PriorityClass(CustomResource, frozen=True):
    """A running scheduler watches PriorityClasses only for plugins: pods have a priority of their own."""

    definition: ClassVar = Definition(
        "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False, has_status=False
    )
    value: int = 0
