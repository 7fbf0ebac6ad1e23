"""Volcano's queues: the tree they form, their limits, and the share of the cluster that each deserves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import msgspec
import numpy as np

from stowplan.api.faults import describe_faults
from stowplan.api.groups import DEFAULT_QUEUE
from stowplan.api.quantity import faults_of
from stowplan.api.queues import Queue
from stowplan.plugins.quotas import NOTHING, TOLERANCE, Amounts, amounts_of, lacking

ROOT = "root"
MAX_DEPTH = 32
"""Deeper trees of queues are rejected: they are not useful, and every pod is counted at each level."""


class QueueNode(msgspec.Struct):
    """A queue in the tree, with what follows from all queues together."""

    name: str
    item: Queue
    ancestors: tuple[str, ...] = ()
    """The queues above it, the nearest first; not the root."""
    capability: Amounts = NOTHING
    guarantee: Amounts = NOTHING
    given: Amounts = NOTHING
    """`spec.deserved`."""
    has_children: bool = False
    fault: str = ""
    """Why no pod of the queue is placed, and what to do about it; empty if nothing is wrong."""
    limit: Amounts = NOTHING
    """What it may use at most; a resource that is missing is not limited."""
    deserved: Amounts = NOTHING

    @property
    def state(self) -> str:
        return self.item.status.state or "Open"

    @property
    def is_reclaimable(self) -> bool:
        return self.item.spec.reclaimable is not False

    @property
    def priority(self) -> int:
        return self.item.spec.priority


def read_tree(items: Iterable[Queue]) -> dict[str, QueueNode]:
    """The queues by name. The queue `default` is always there; `root` stands for the cluster."""
    found = {item.name: _read(item) for item in items if item.name != ROOT}
    if DEFAULT_QUEUE not in found:
        found[DEFAULT_QUEUE] = QueueNode(DEFAULT_QUEUE, Queue())
    for node in found.values():
        node.ancestors, fault = _ancestors(node, found)
        node.fault = node.fault or fault
    for node in found.values():
        if node.ancestors:
            found[node.ancestors[0]].has_children = True
    return found


def queue_faults(node: QueueNode) -> list[str]:
    """What is wrong with a queue, for an event."""
    spec = node.item.spec
    found = [node.fault] if node.fault else []
    for field, given in (
        ("spec.capability", spec.capability),
        ("spec.deserved", spec.deserved),
        ("spec.guarantee.resource", spec.guarantee.resource),
    ):
        found += faults_of(field, given)
    found += describe_faults(
        lacking(node.guarantee, node.capability),
        lambda name: (
            f"spec.guarantee.resource.{name} is more than spec.capability.{name}, which is what counts; "
            "lower the guarantee or raise the capability"
        ),
    )
    if spec.weight < 1:
        found.append(f"spec.weight is {spec.weight}, which counts as 1; set it to 1 or more")
    return found


def _read(item: Queue) -> QueueNode:
    spec = item.spec
    return QueueNode(
        item.name,
        item,
        capability=amounts_of(spec.capability),
        guarantee=amounts_of(spec.guarantee.resource),
        given=amounts_of(spec.deserved),
    )


def _ancestors(node: QueueNode, queues: Mapping[str, QueueNode]) -> tuple[tuple[str, ...], str]:
    """The queues above a queue; none, with the fault, if they do not lead to the root."""
    way = [node.name]
    while (parent := queues[way[-1]].item.spec.parent) not in ("", ROOT):
        if parent in way:
            text = " -> ".join((*way, parent))
            return (), f'queue "{node.name}" is below itself ({text}); change spec.parent of one of them'
        if parent not in queues:
            return (), (
                f'queue "{way[-1]}" has the parent "{parent}", which does not exist; '
                "create that Queue, or change spec.parent"
            )
        if len(way) == MAX_DEPTH:
            return (
                (),
                f'queue "{node.name}" is more than {MAX_DEPTH} levels below the root; change spec.parent',
            )
        way.append(parent)
    return tuple(way[1:]), ""


def set_limits(queues: Mapping[str, QueueNode], total: Amounts) -> None:
    """What each queue may use: what the guarantees of its siblings leave of its parent's, and no more than
    its capability."""
    kept: dict[tuple[str, ...], dict[str, float]] = {}
    for node in queues.values():
        of_parent = kept.setdefault(node.ancestors[:1], {})
        for name, amount in node.guarantee.items():
            of_parent[name] = of_parent.get(name, 0) + amount
    for node in sorted(queues.values(), key=lambda each: len(each.ancestors)):
        limit = dict(total if not node.ancestors else queues[node.ancestors[0]].limit)
        for name, amount in kept[node.ancestors[:1]].items():
            if name in limit:
                limit[name] = max(limit[name] - amount, 0) + node.guarantee.get(name, 0)
        for name, amount in node.capability.items():
            limit[name] = min(limit.get(name, math.inf), amount)
        node.limit = limit


def set_deserved_by_weight(
    queues: Mapping[str, QueueNode], total: Amounts, request_of: Callable[[str], Amounts]
) -> None:
    """Volcano's plugin `proportion`: divide the cluster by weight, give no queue more than it requests."""
    nodes, names = list(queues.values()), sorted(total)
    if not names:
        return

    def matrix(of: Callable[[QueueNode], Amounts], missing: float) -> np.ndarray:
        return np.array([[amounts.get(name, missing) for name in names] for amounts in map(of, nodes)], float)

    wanted = matrix(lambda node: request_of(node.name), 0)
    limits = matrix(lambda node: node.limit, math.inf)
    guaranteed = matrix(lambda node: node.guarantee, 0)
    weights = np.array([max(node.item.spec.weight, 1) for node in nodes], float)
    remaining = np.array([float(total[name]) for name in names])
    deserved, is_unmet = np.zeros_like(wanted), np.ones(len(nodes), np.bool_)
    while is_unmet.any():
        rows = np.flatnonzero(is_unmet)
        before = deserved[rows]
        after = before + np.outer(weights[rows] / weights[rows].sum(), remaining)
        after = np.maximum(np.minimum(np.minimum(after, limits[rows]), wanted[rows]), guaranteed[rows])
        after = np.minimum(after, limits[rows])
        is_same = (np.abs(after - before) <= TOLERANCE).all(axis=1)
        deserved[rows] = after
        is_unmet[rows[is_same | (wanted[rows] <= after + TOLERANCE).all(axis=1)]] = False
        remaining = np.maximum(remaining - (after - before).sum(axis=0), 0)
        if is_same.all() or (remaining <= TOLERANCE).all():
            break
    for node, row in zip(nodes, deserved.tolist(), strict=True):
        node.deserved = dict(zip(names, row, strict=True))


def set_deserved_as_given(queues: Mapping[str, QueueNode]) -> None:
    """Volcano's plugin `capacity`: what the queue says, within its limit."""
    for node in queues.values():
        found = {name: min(amount, node.limit.get(name, math.inf)) for name, amount in node.given.items()}
        for name, amount in node.guarantee.items():
            found[name] = max(found.get(name, 0), min(amount, node.limit.get(name, math.inf)))
        node.deserved = found


def share(allocated: Amounts, deserved: Amounts) -> float:
    """How much of what it deserves a queue has, by the resource of which it has most."""
    found = 0.0
    for name, amount in deserved.items():
        used = allocated.get(name, 0)
        found = max(found, used / amount if amount > 0 else float(used > 0))
    return found
