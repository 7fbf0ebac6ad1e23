"""Shared by plugins with quotas and queues: amounts, limits, and which pods they may evict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from stowplan.api import requests
from stowplan.api.pod import Pod
from stowplan.api.quantity import NANO, Quantity, canonical
from stowplan.cluster.cluster import pod_amounts
from stowplan.cluster.groups import Groups
from stowplan.framework import Code, Decision, NodeTable

Amounts = Mapping[str, float]
"""By resource; cpu in thousandths, all else in units."""
NOTHING: Amounts = {}
TOLERANCE = 0.1
"""Amounts that differ by no more are equal; shares of queues are not whole numbers."""


def amounts_of(given: Mapping[str, Quantity]) -> dict[str, int]:
    """The amounts of a field; a negative one counts as zero."""
    return {name: max(requests.amount_of(name, int(quantity)), 0) for name, quantity in given.items()}


def request_of(pod: Pod) -> dict[str, int]:
    """What the pod takes of a quota: its requests, and one of `pods`."""
    return {**pod_amounts(pod), "pods": 1}


def added(*parts: Amounts) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            found[name] = found.get(name, 0) + amount
    return found


def lacking(wanted: Amounts, limits: Amounts, names: Iterable[str] | None = None) -> list[str]:
    """The resources, of these names or of all limited ones, of which more is wanted than the limit."""
    names = limits if names is None else names
    return [
        name
        for name in names
        if wanted.get(name, 0) > limits.get(name, math.inf) + TOLERANCE  # no limit is none of zero
    ]


def exceeds(used: Amounts, request: Amounts, limits: Amounts) -> str:
    """The first resource for which a request exceeds a limit; empty if there is none."""
    for name, limit in limits.items():
        wanted = request.get(name, 0)
        if wanted and used.get(name, 0) + wanted > limit + TOLERANCE:
            return name
    return ""


def amount_text(name: str, amount: float) -> str:
    """As people write it: `1500` of cpu is 1.5, bytes have a suffix."""
    if math.isinf(amount):
        return "unlimited"
    if name == "cpu":
        return f"{amount / 1000:g}"
    whole = round(amount)
    if name in ("memory", "ephemeral-storage") or name.startswith("hugepages-"):
        return canonical(Quantity.binary(whole * NANO))
    return str(whole)


def excess_text(name: str, used: Amounts, request: Amounts, limits: Amounts, what: str) -> str:
    """Such as `cpu: used 3, requested 2, max 4`."""
    parts = (("used", used.get(name, 0)), ("requested", request.get(name, 0)), (what, limits[name]))
    return f"{name}: {', '.join(f'{word} {amount_text(name, amount)}' for word, amount in parts)}"


def by_harm(pods: Iterable[Pod]) -> list[Pod]:
    """The pods in the order in which they are evicted: low priorities first, then those that began last."""
    return sorted(pods, key=lambda pod: (pod.priority, -(pod.start_time or math.inf), pod.key))


def choose_victims(
    nodes: NodeTable, pod: Pod, decision: Decision, choose: Callable[[list[Pod]], Iterable[Pod]]
) -> frozenset[str]:
    """The uids of pods that may be evicted, from nodes that could take the pod without them.

    `choose` is given the pods of a node in the order in which they are evicted. A pod that preempts evicts
    from one node only, so limits on evictions hold for each node by itself. A hundred such nodes are enough.
    """
    found: set[str] = set()
    count = 0
    wanted = [(name, amount) for name, amount in pod.requests.items() if name in nodes.allocatable.index]
    room = [(nodes.allocatable[name] - nodes.requested[name], name, amount) for name, amount in wanted]
    for row in np.flatnonzero(decision.codes() == Code.UNSCHEDULABLE).tolist():
        chosen = list(choose(by_harm(nodes.pods_on(row))))
        freed = added(*map(pod_amounts, chosen))
        if chosen and all(free[row] + freed.get(name, 0) >= amount for free, name, amount in room):
            found.update(other.uid for other in chosen)
            count += 1
            if count == MAX_NODES:
                break
    return frozenset(found)


MAX_NODES = 100
"""So many nodes are looked at for victims, as DefaultPreemption does in large clusters."""


def with_broken_gangs(groups: Groups, victims: Iterable[Pod]) -> tuple[Pod, ...]:
    """The victims, and all other placed members of gangs that would be left with fewer than they need."""
    found = {pod.uid: pod for pod in victims}
    lost = Counter(key for pod in found.values() if (key := groups.key_of(pod)) is not None)
    for key, count in lost.items():
        group, placed = groups.find(key), groups.placed(key)
        if group is not None and group.policy == "gang" and len(placed) - count < group.min_count:
            found.update((pod.uid, pod) for pod in placed if not pod.is_terminating)
    return tuple(found.values())
