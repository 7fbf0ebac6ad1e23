"""Counters, gauges and histograms, and the page that shows them in Prometheus' text format.

Our own instead of prometheus-client, which locks for each count and we have one thread: docs/architecture.md
has the comparison.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
Labels = tuple[str, ...]
"""Label values, in the order of the family's label names."""


def exponential(start: float, factor: float, count: int) -> tuple[float, ...]:
    """Bounds of buckets, multiplied one by one: kube-scheduler's page shows the rounding errors too."""
    return tuple(accumulate([start] + [factor] * (count - 1), lambda bound, by: bound * by))


class Numbers(defaultdict[Labels, float]):
    """A counter or a gauge: a number for each combination of label values; the empty one without labels."""

    def __init__(self, kind: Literal["counter", "gauge"], labels: Labels) -> None:
        super().__init__(float)
        self.kind, self.labels = kind, labels
        if not labels:
            self[()] = 0

    def lines(self, name: str) -> Iterator[str]:
        for values, number in sorted(self.items()):
            yield sample(name, self.labels, values, number)


class Distribution:
    """The observations of one series: how many fell into each bucket, the last being all above the bounds."""

    __slots__ = ("_bounds", "_fresh", "counts", "observe", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0
        self._fresh: list[float] = []
        self.observe: Callable[[float], None] = self._fresh.append
        """Takes a value; sorting it in is left to `settle`, for many at once."""

    def observe_alike(self, value: float, times: int) -> None:
        self.counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    def settle(self) -> None:
        counts, bounds, fresh = self.counts, self._bounds, self._fresh
        if len(fresh) <= len(bounds):
            for value in fresh:
                counts[bisect_left(bounds, value)] += 1
        else:  # sorted, they are counted faster by bucket than one by one
            fresh.sort()
            below = 0
            for bucket, bound in enumerate(bounds):
                up_to = bisect_right(fresh, bound, below)
                counts[bucket] += up_to - below
                below = up_to
            counts[-1] += len(fresh) - below
        self.total += sum(fresh)
        fresh.clear()


class Distributions(dict[Labels, Distribution]):
    """A histogram: a distribution for each combination of label values."""

    kind = "histogram"

    def __init__(self, labels: Labels, bounds: tuple[float, ...]) -> None:
        self.labels, self.bounds = labels, bounds
        self._bound_names = [*map(_bound, bounds), "+Inf"]
        if not labels:
            self[()] = Distribution(bounds)

    def __missing__(self, values: Labels) -> Distribution:
        series = self[values] = Distribution(self.bounds)
        return series

    def settle(self) -> None:
        for series in self.values():
            series.settle()

    def lines(self, name: str) -> Iterator[str]:
        for values, series in sorted(self.items(), key=lambda item: item[0]):
            series.settle()
            for bound, count in zip(self._bound_names, accumulate(series.counts), strict=True):
                yield sample(f"{name}_bucket", (*self.labels, "le"), (*values, bound), count)
            yield sample(f"{name}_sum", self.labels, values, series.total)
            yield sample(f"{name}_count", self.labels, values, sum(series.counts))


class Page:
    """Families that are shown together, in Prometheus' text format."""

    def __init__(self) -> None:
        self.families: dict[str, Numbers | Distributions] = {}
        self._texts: dict[str, str] = {}

    def counter(self, name: str, text: str, *labels: str) -> Numbers:
        return self._numbers("counter", name, text, labels)

    def shared_counter(self, name: str, text: str, *labels: str) -> Numbers:
        """A counter that several parts share."""
        found = self.families.get(name)
        return found if isinstance(found, Numbers) else self.counter(name, text, *labels)

    def shared_gauge(self, name: str, text: str, *labels: str) -> Numbers:
        found = self.families.get(name)
        return found if isinstance(found, Numbers) else self.gauge(name, text, *labels)

    def gauge(self, name: str, text: str, *labels: str) -> Numbers:
        return self._numbers("gauge", name, text, labels)

    def histogram(self, name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Distributions:
        family = self.families[name] = Distributions(labels, bounds)
        self._texts[name] = text
        return family

    def _numbers(self, kind: Literal["counter", "gauge"], name: str, text: str, labels: Labels) -> Numbers:
        family = self.families[name] = Numbers(kind, labels)
        self._texts[name] = text
        return family

    def text_of(self, name: str) -> str:
        """What a family means, in a sentence."""
        return self._texts[name]

    def render(self) -> bytes:
        """Families by name; one without series is not shown."""
        lines: list[str] = []
        for name, family in sorted(self.families.items()):
            if family:
                lines += (f"# HELP {name} {self._texts[name]}", f"# TYPE {name} {family.kind}")
                lines += family.lines(name)
        return "".join(f"{line}\n" for line in lines).encode()


def sample(name: str, labels: Labels, values: Labels, number: float) -> str:
    """One line of a page; labels in alphabetical order, but `le` last."""
    pairs = ",".join(f'{label}="{_escape(value)}"' for label, value in zip(labels, values, strict=True))
    return f"{name}{{{pairs}}} {_number(number)}" if pairs else f"{name} {_number(number)}"


def _bound(value: float) -> str:
    """As Go writes it, with an exponent from a million on: a label is compared as text."""
    if value < 1e6:
        return _number(value)
    return f"{value:.{len(str(int(value)).rstrip('0')) - 1}e}"


def _number(value: float) -> str:
    shown = repr(value).removesuffix(".0")
    return f"{'' if value < 0 else '+'}{shown.replace('inf', 'Inf')}" if shown.endswith("inf") else shown


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
