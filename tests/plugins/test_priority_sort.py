"""PrioritySort: who is tried first."""

from __future__ import annotations

from typing import NamedTuple

from alone import plugin_of

from make import make_pod
from stowplan.api.pod import Pod


class Queued(NamedTuple):
    pod: Pod
    timestamp: float


def test_higher_priority_first_then_who_waits_longer():
    waiting = [
        Queued(make_pod("late", priority=5), 9.0),
        Queued(make_pod("unset"), 1.0),
        Queued(make_pod("negative", priority=-1), 0.0),
        Queued(make_pod("early", priority=5), 3.0),
        Queued(make_pod("high", priority=10), 8.0),
    ]
    in_order = sorted(waiting, key=plugin_of("PrioritySort").queue_sort)
    assert [each.pod.name for each in in_order] == ["high", "early", "late", "unset", "negative"]
