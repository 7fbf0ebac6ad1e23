"""What plugins store during one attempt. The type of what is stored is its key."""

from __future__ import annotations

from typing import Any, TypeVar

from stowplan.api.meta import ReadOnly
from stowplan.cluster.sealed import sealed_array
from stowplan.errors import PluginError, StowplanError
from stowplan.framework.answers import plugin_error
from stowplan.framework.plugin import OWN, Mask, Plugin

T = TypeVar("T")


class StateMissing(StowplanError):  # noqa: N818
    """Nothing of that type was written in this cycle."""


class CycleState:
    """What plugins store during one attempt, from `pre_filter` to `post_bind`, by its type."""

    __slots__ = ("_kept", "_view", "passing", "skipped_filters", "skipped_scores")

    def __init__(self) -> None:
        self._kept: dict[type, Any] = {}
        self._view: CycleState | None = None
        """What plugins of others see of it."""
        self.passing: Mask | None = None
        """For `filter_nodes` of a plugin whose answers are not kept: the rows that no filter before it has
        rejected, None for all. What it says of others does not matter."""
        self.skipped_filters: set[str] = set()
        """The plugins whose `pre_filter` returned Skip: their filters are not called."""
        self.skipped_scores: set[str] = set()
        """The plugins whose `pre_score` returned Skip."""

    def write(self, thing: object) -> None:
        """Store an object under its type, replacing one of the same type."""
        self._kept[type(thing)] = thing

    def read(self, kind: type[T]) -> T:
        """The object of this type; StateMissing if none was written in this attempt."""
        found = self._kept.get(kind)
        if found is None:
            raise StateMissing("not found")
        return found  # type: ignore[no-any-return]

    def find(self, kind: type[T]) -> T | None:
        """The object of this type, or None."""
        return self._kept.get(kind)

    def clone(self) -> CycleState:
        """A copy for trying out changes: objects with a `clone` method are cloned, the others are shared."""
        copy = CycleState()
        copy.skipped_filters, copy.skipped_scores = self.skipped_filters, self.skipped_scores
        for kind, thing in self._kept.items():
            try:
                copy._kept[kind] = thing.clone() if hasattr(thing, "clone") else thing
            except BaseException as error:
                raise plugin_error(f"copying {kind.__name__} of the cycle state", error) from error
        return copy


def seal_state(plugin: Plugin, state: CycleState) -> CycleState:
    """The state to pass to a method of the plugin: plugins of others get a view of it."""
    return state if plugin.comes_with_stowplan else sealed_state(state)


class SealedState(ReadOnly, CycleState):
    """The state as plugins of others see it: they cannot read or replace what ours have stored."""

    __slots__ = ("_state",)
    _state: CycleState

    def __init__(self, state: CycleState) -> None:
        object.__setattr__(self, "_state", state)

    @property
    def passing(self) -> Mask | None:  # type: ignore[override]
        passing = self._state.passing
        return None if passing is None else sealed_array(passing)

    @property
    def skipped_filters(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(self._state.skipped_filters)

    @property
    def skipped_scores(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(self._state.skipped_scores)

    def write(self, thing: object) -> None:
        _check_owner(type(thing))
        self._state.write(thing)

    def read(self, kind: type[T]) -> T:
        _check_owner(kind)
        return self._state.read(kind)

    def find(self, kind: type[T]) -> T | None:
        _check_owner(kind)
        return self._state.find(kind)

    def clone(self) -> CycleState:
        return sealed_state(self._state.clone())


def _check_owner(kind: type) -> None:
    if kind.__module__.startswith(OWN):
        raise PluginError(
            f"{kind.__name__} is the state of a plugin of Stowplan's own: write a type of yours"
        )


def sealed_state(state: CycleState) -> CycleState:
    if isinstance(state, SealedState):
        return state
    if state._view is None:
        state._view = SealedState(state)
    return state._view
