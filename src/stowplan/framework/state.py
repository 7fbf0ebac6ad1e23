"""What plugins remember during one cycle. The type of a remembered thing is its key."""

from __future__ import annotations

from typing import Any, TypeVar

from stowplan.errors import StowplanError
from stowplan.framework.answers import plugin_error

T = TypeVar("T")


class StateMissing(StowplanError):  # noqa: N818
    """Nothing of that type was written in this cycle."""


class CycleState:
    __slots__ = ("_kept", "_view", "skipped_filters", "skipped_scores")

    def __init__(self) -> None:
        self._kept: dict[type, Any] = {}
        self._view: CycleState | None = None
        """What plugins of others see of it."""
        self.skipped_filters: set[str] = set()
        """Plugins whose pre_filter said Skip: their filter, add_pod and remove_pod are not called."""
        self.skipped_scores: set[str] = set()

    def write(self, thing: object) -> None:
        self._kept[type(thing)] = thing

    def read(self, kind: type[T]) -> T:
        found = self._kept.get(kind)
        if found is None:
            raise StateMissing("not found")
        return found  # type: ignore[no-any-return]

    def find(self, kind: type[T]) -> T | None:
        return self._kept.get(kind)

    def clone(self) -> CycleState:
        """A copy to try things on: what has a `clone` method is cloned, the rest is shared."""
        copy = CycleState()
        copy.skipped_filters, copy.skipped_scores = self.skipped_filters, self.skipped_scores
        for kind, thing in self._kept.items():
            try:
                copy._kept[kind] = thing.clone() if hasattr(thing, "clone") else thing
            except BaseException as error:
                raise plugin_error(f"copying {kind.__name__} of the cycle state", error) from error
        return copy
