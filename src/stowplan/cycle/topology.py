"""Domains of nodes that are close to each other in the network, from Volcano's HyperNodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from stowplan.api.groups import Topology
from stowplan.api.patterns import Pattern
from stowplan.api.pod import Pod
from stowplan.api.queues import HyperNode, HyperNodeMember
from stowplan.api.selectors import selector_of
from stowplan.cluster.columns import Columns, Mask, Rows
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cluster.node_table import NodeTable
from stowplan.errors import PatternError, SelectorError
from stowplan.framework.plugin import Placements
from stowplan.framework.status import Status

CLUSTER = "cluster"
"""The name of the domain above all HyperNodes."""
NODE, HYPER_NODE = "Node", "HyperNode"


def hyper_node_levels(
    topology: Topology, placed: Sequence[Pod], nodes: LiveNodeTable, items: Iterable[HyperNode]
) -> Sequence[Placements] | Status:
    """The domains that may hold a group, tier by tier and the narrowest first.

    Each of them has the members that run already. Without a required tier, the whole cluster comes last.
    """
    known = {item.name: item for item in items}
    if not known:
        return Status.unschedulable(
            "spec.networkTopology needs HyperNodes, and there are none; create them, or remove the field"
        )
    highest = _highest_tier(topology, known)
    if isinstance(highest, Status):
        return highest
    masks = _HyperNodes(known, nodes).masks
    taken = [nodes.row_of(pod.node_name) for pod in placed]
    levels: list[dict[str, Rows]] = []
    for tier in sorted({item.spec.tier for item in known.values()}):
        if not topology.is_required or tier <= highest:
            found = {
                name: np.flatnonzero(masks[name])
                for name, item in sorted(known.items())
                if item.spec.tier == tier and all(row is not None and masks[name][row] for row in taken)
            }
            levels.append({name: rows for name, rows in found.items() if len(rows)})
    if not topology.is_required:
        levels.append({CLUSTER: nodes.rows})
    levels = [level for level in levels if level]
    if not levels and taken:
        return Status.unschedulable(
            f"no HyperNode up to tier {highest} has all nodes of the members that run; "
            "raise highestTierAllowed, or delete these members"
        )
    return levels or Status.unschedulable(f"no HyperNode up to tier {highest} has nodes")


def _highest_tier(topology: Topology, known: dict[str, HyperNode]) -> int | Status:
    if topology.highest_tier is not None:
        return topology.highest_tier
    tiers = [item.spec.tier for item in known.values()]
    if topology.tier_name:
        tiers = [each.spec.tier for each in known.values() if each.spec.tier_name == topology.tier_name]
        if not tiers and topology.is_required:
            names = ", ".join(sorted({each.spec.tier_name for each in known.values()} - {""})) or "none"
            return Status.unschedulable(
                f'no HyperNode has the tier name "{topology.tier_name}"; '
                f"set highestTierName to one of: {names}"
            )
    return max(tiers, default=0)


class _HyperNodes:
    """The nodes of every HyperNode, those of the HyperNodes in it included."""

    def __init__(self, known: dict[str, HyperNode], nodes: LiveNodeTable) -> None:
        self._known, self._nodes = known, nodes
        self.masks: dict[str, Mask] = {}
        for name in known:
            self._find(name)

    def _find(self, start: str) -> None:
        """Fill in a HyperNode after all in it; one that is in itself adds nothing to itself."""
        way: list[str] = [start]
        entered = {start}
        while way:
            name = way[-1]
            inside = [each for each in self._members(name) if each not in self.masks and each not in entered]
            if inside:
                way.append(inside[0])
                entered.add(inside[0])
                continue
            mask = self._own(self._known[name])
            for each in self._members(name):
                if each in self.masks:
                    mask = mask | self.masks[each]
            self.masks[name] = mask
            way.pop()

    def _members(self, name: str) -> list[str]:
        found: dict[str, None] = {}
        for member in self._known[name].spec.members:
            if member.type == HYPER_NODE:
                found.update(dict.fromkeys(_chosen(member, self._known)))
        return list(found)

    def _own(self, item: HyperNode) -> Mask:
        """The nodes that it names itself."""
        nodes, mask = self._nodes, np.zeros(len(self._nodes), np.bool_)
        for number, member in enumerate(item.spec.members):
            exact = member.selector.exact_match
            if member.type != NODE:
                continue
            if exact is not None:
                if (row := nodes.row_of(exact.name)) is not None:
                    mask[row] = True
                continue
            # Kept for each node until it changes: patterns and selectors take a while for all nodes.
            version = item.metadata.resource_version
            key = ("hypernode", item.name, item.metadata.uid, version, number)
            (column,) = nodes.keep(key, partial(_columns, member))
            mask = mask | column.astype(np.bool_)
        return mask


def _chosen(member: HyperNodeMember, names: Iterable[str]) -> list[str]:
    selector = member.selector
    if selector.exact_match is not None:
        return [selector.exact_match.name] if selector.exact_match.name in set(names) else []
    if selector.regex_match is None:
        return []
    try:
        pattern = Pattern.of(selector.regex_match.pattern)
        return [name for name in names if pattern.matches(name)]
    except PatternError:
        return []  # a pattern with a mistake chooses nobody


def _columns(member: HyperNodeMember, nodes: NodeTable) -> Columns:
    return (_member_rows(member, nodes),)


def _member_rows(member: HyperNodeMember, nodes: NodeTable) -> Mask:
    if member.selector.regex_match is not None:
        chosen = set(_chosen(member, nodes.names))
        return np.fromiter((name in chosen for name in nodes.names), np.bool_, len(nodes))
    try:
        selector = selector_of(member.selector.label_match)
    except SelectorError:
        return np.zeros(len(nodes), np.bool_)
    return np.fromiter((selector.matches(each.labels) for each in nodes.objects), np.bool_, len(nodes))
