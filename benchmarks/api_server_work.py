"""What pods make the API server do, from its own metrics and from what its process reads and writes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

NOISE = 0.05
"""Calls a pod that are fewer have nothing to do with pods: the API server renews leases."""

_LINE = re.compile(r"(\w+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_SHOWN = ("apiserver_request_total{", "apiserver_watch_events_", "apiserver_request_body_size_bytes_sum{")


class Reading(NamedTuple):
    """What was done so far, either by the API server or by ourselves."""

    calls: Counter[str]
    body_bytes: float = 0
    watch_events: float = 0
    watch_bytes: float = 0


class Work(msgspec.Struct):
    """For one pod; KB are those of the bodies of calls and of watch events."""

    calls: dict[str, float]
    """By verb and resource."""
    watch_events: float
    kb: float

    @property
    def call_count(self) -> float:
        return sum(self.calls.values())


def read(metrics: str) -> Reading:
    sums: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for name, labels, value in _samples(metrics):
        if name != "apiserver_request_total":
            sums[name] += value
        elif _is_for_a_pod(labels):
            resource = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            calls[f"{labels['verb']} {resource}"] += int(value)
    return Reading(
        calls,
        sums["apiserver_request_body_size_bytes_sum"],
        sums["apiserver_watch_events_total"],
        sums["apiserver_watch_events_sizes_sum"],
    )


def difference(before: Reading, after: Reading) -> Reading:
    calls = after.calls.copy()
    calls.subtract(before.calls)
    return Reading(calls, *(late - early for early, late in zip(before[1:], after[1:], strict=True)))


def work(total: Reading, pods: int) -> Work:
    calls = {name: round(count / pods, 2) for name, count in sorted(total.calls.items())}
    return Work(
        calls={name: count for name, count in calls.items() if count > NOISE},
        watch_events=round(total.watch_events / pods, 2),
        kb=round((total.body_bytes + total.watch_bytes) / pods / 1000, 2),
    )


def moved_bytes(pid: int) -> int:
    """All that a process has read and written so far, by sockets too."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["rchar"]) + int(fields["wchar"])


def _is_for_a_pod(labels: dict[str, str]) -> bool:
    """Neither of lists and watches, with which a scheduler starts, nor of pages that are no resource."""
    return bool(labels["resource"]) and labels["verb"] not in ("LIST", "WATCH")


def _samples(metrics: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in metrics.splitlines():
        if line.startswith(_SHOWN) and (found := _LINE.fullmatch(line)):
            yield found[1], dict(_LABEL.findall(found[2])), float(found[3])
