"""How many examples are tried of what draws them at random or goes through all records: all only in CI."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import settings

SHARE = float(os.environ.get("EXAMPLES_TIMES", "0.15"))
"""`EXAMPLES_TIMES=1 make test`, as in CI, tries all examples; 20 finds rare faults."""
T = TypeVar("T")


def share_of(examples: Sequence[T]) -> Sequence[T]:
    """Some of these examples, evenly spread."""
    return examples[:: max(1, round(1 / SHARE))]


def examples(number: int, **more: Any) -> settings:
    """Hypothesis' settings for a share of this number of examples."""
    return settings(max_examples=max(5, int(number * SHARE)), **more)
