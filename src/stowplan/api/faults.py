"""What is wrong with objects that users write, in few words: an object may have thousands of faults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
MAX_FAULTS, MAX_FAULT = 5, 300
"""How many faults of a kind are described, each in so many characters."""


def describe_faults(wrong: Collection[T], describe: Callable[[T], str] = str) -> Iterator[str]:
    """Describe the first things that are wrong, and say how many more are."""
    for each in islice(wrong, MAX_FAULTS):
        yield describe(each)[:MAX_FAULT]
    if len(wrong) > MAX_FAULTS:
        yield f"and {len(wrong) - MAX_FAULTS} more"
