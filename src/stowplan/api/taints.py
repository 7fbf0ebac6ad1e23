"""Tolerations: which taints a pod puts up with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stowplan.api.node import Taint
from stowplan.api.pod import Toleration


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"


def is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)


def first_untolerated(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint that keeps pods away and is not tolerated."""
    return next((taint for taint in taints if taint.is_hard and not is_tolerated(taint, tolerations)), None)
