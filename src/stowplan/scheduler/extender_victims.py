"""Victims of a preemption as extenders are told of them, and what they answer."""

from __future__ import annotations

import numpy as np

from stowplan.api.extender import MetaPod, MetaVictims
from stowplan.client.extenders import Extender, ExtenderError
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cycle.preempt import Victims


def by_node(nodes: LiveNodeTable, victims: Victims) -> dict[str, MetaVictims]:
    found: dict[str, MetaVictims] = {}
    for row in np.unique(victims.rows).tolist():
        mine = victims.rows == row
        pods = [MetaPod(uid=nodes.pods.pods[slot].uid) for slot in victims.slots[mine].tolist()]
        violations = int(np.sum(victims.violating[mine]))
        found[nodes.names[row]] = MetaVictims(pods=pods, num_pdb_violations=violations)
    return found


def check(extender: Extender, nodes: LiveNodeTable, answer: dict[str, MetaVictims]) -> None:
    """Every node must be there and hold its victims. Nodes without any are dropped, or a fault."""
    for name, victims in tuple(answer.items()):
        row = nodes.row_of(name)
        if row is None:
            raise ExtenderError(
                f'extender: {extender.url} claims to preempt on node "{name}", which is unknown'
            )
        there = {pod.uid for pod in nodes.pods_on(row)}
        for each in victims.pods:
            if each.uid not in there:
                raise ExtenderError(
                    f"extender: {extender.url} claims to preempt pod (UID: {each.uid}) on node: {name}, but "
                    "the pod is not found on that node"
                )
        if not victims.pods:
            if not extender.config.ignorable:
                raise ExtenderError(
                    f'extender: {extender.url}: expected at least one victim pod on node "{name}"'
                )
            del answer[name]


def as_victims(nodes: LiveNodeTable, found: dict[str, MetaVictims]) -> Victims:
    rows, slots, violating = [], [], []
    for name, victims in found.items():
        row = nodes.row_of(name)
        assert row is not None
        by_uid = {pod.uid: pod for pod in nodes.pods_on(row)}
        for number, uid in enumerate(dict.fromkeys(each.uid for each in victims.pods)):
            rows.append(row)
            slots.append(nodes.pods.slot_of(by_uid[uid]))
            violating.append(0 if number else victims.num_pdb_violations)
    return Victims(np.array(rows, np.intp), np.array(slots, np.intp), np.array(violating, np.int64))
