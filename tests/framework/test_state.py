"""What plugins remember during a cycle."""

from __future__ import annotations

import pytest

from stowplan.framework import CycleState, StateMissing


class Count:
    def __init__(self, number):
        self.number = number

    def clone(self):
        return Count(self.number)


class Shared:
    pass


def test_the_type_is_the_key():
    state = CycleState()
    state.write(Count(1))
    state.write(Count(2))
    assert state.read(Count).number == 2
    assert state.find(Shared) is None
    with pytest.raises(StateMissing, match=r"^not found$"):
        state.read(Shared)


def test_a_clone_has_what_can_be_cloned_to_itself():
    state, shared = CycleState(), Shared()
    state.write(Count(1))
    state.write(shared)
    state.skipped_filters.add("Skipping")
    clone = state.clone()
    clone.read(Count).number = 9
    clone.write(Count(7))
    assert state.read(Count).number == 1
    assert clone.read(Shared) is shared
    assert clone.skipped_filters == {"Skipping"}
