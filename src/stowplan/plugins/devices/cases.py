"""Groups nodes with equal devices: claims are allocated once for all of them.

Each node has the number of its case. Nodes of one case offer devices that are the same in all but their
names, and the same of them are in use. So what a search has found for one of them holds for all, and for
good: if a device is taken, the node becomes another case.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from stowplan.api.meta import NodeSelector
from stowplan.api.resource import Allocation, NodeScope
from stowplan.api.selectors import NodeTerm, node_terms_of
from stowplan.cluster import ClusterView, Node
from stowplan.cluster.columns import Mask
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cluster.sealed import unseal
from stowplan.framework import Handle
from stowplan.plugins.devices.allocator import INVALID_POOLS, NO_SOLUTION, Tables
from stowplan.plugins.devices.claims import Demand, Held, Usage, allocation_of
from stowplan.plugins.devices.ledger import ClaimLedger
from stowplan.plugins.devices.pools import (
    Inventory,
    Offer,
    ReachablePool,
    sort_pools,
)

MAX_DEMANDS = 64
"""Different demands whose answers are kept. Anyone who may make claims can make up new ones."""
MAX_FOUND = 16
"""Cases kept for each demand, with the devices that were found."""
MAX_TABLES = 4
"""Demands for which tables of devices that many nodes can reach are kept."""
MAX_CASES = 16384
"""Cases kept before those that no node is in any more are forgotten; at least four for each node."""

UNKNOWN, FITS = 0, 1
REASONS = {2: NO_SOLUTION, 3: INVALID_POOLS}
"""What can be said of a case: numbers other than these stand for no rejection."""
CODES = {reason: code for code, reason in REASONS.items()}

Numbers = NDArray[np.int32]
Codes = NDArray[np.int8]


class Answers:
    """Results of searches for the same demands, by case."""

    def __init__(self, size: int = 64) -> None:
        self.codes: Codes = np.zeros(size, np.int8)
        self.points: NDArray[np.int64] = np.zeros(size, np.int64)
        """Scores of the alternatives that were chosen."""
        self.found: dict[int, list[list[Held]]] = {}
        """The last of them: on most nodes, nothing is ever allocated."""
        self.tables: dict[Offer, Tables] = {}
        """For devices that many nodes can reach; a search among them continues from the previous one."""
        self.epoch = -1

    def put(self, case: int, found: list[list[Held]] | str, points: int = 0) -> None:
        self.found.pop(case, None)
        if isinstance(found, str):
            self.codes[case] = CODES[found]
            return
        if len(self.found) >= MAX_FOUND:
            del self.found[next(iter(self.found))]
        self.codes[case], self.points[case], self.found[case] = FITS, points, found


class _Site:
    """The pools that belong to a node."""

    __slots__ = ("case", "layout", "pools")

    def __init__(self, pools: list[ReachablePool], layout: int) -> None:
        self.pools, self.layout = pools, layout
        self.case = -1
        """The node's case; -1 if it is not known."""


class _Scopes(NamedTuple):
    """From which nodes parts of the pools that belong to no node can be reached."""

    selectors: dict[NodeSelector, tuple[NodeTerm, ...]]
    names: frozenset[str]

    @property
    def is_broken(self) -> bool:
        return any(term.error for terms in self.selectors.values() for term in terms)


class NodeCases:
    """One for each cluster: the profiles of a scheduler share it."""

    _known: WeakKeyDictionary[ClusterView, NodeCases] = WeakKeyDictionary()

    @classmethod
    def of(cls, handle: Handle) -> NodeCases:
        cluster = unseal(handle.cluster)
        found = cls._known.get(cluster)
        if found is None:
            found = cls._known[cluster] = cls(cluster, ClaimLedger.of(handle))
        return found

    def __init__(self, cluster: ClusterView, ledger: ClaimLedger) -> None:
        self._ledger, self._classes = ledger, cluster.device_classes
        self.inventory = Inventory(cluster.resource_slices)
        cluster.resource_slices.follow(self.inventory.follow)
        self._scopes = _Scopes({}, frozenset())
        self._masks: tuple[Mask, ...] = ()
        self._layout = -1
        """The layout of the node table when the column was made."""
        self._usage_version = 0
        self._epoch = 0
        """Grows when a device is taken or given back that many nodes can reach."""
        self._column: Numbers = np.zeros(0, np.int32)
        self._reach: Numbers = np.zeros(0, np.int32)
        """By row, which of the pools that belong to no node can be reached."""
        self._shared: dict[int, list[ReachablePool]] = {}
        self._offers: dict[int, Offer] = {}
        """By such a number; for nodes that have nothing else."""
        self._sites: dict[str, _Site] = {}
        self._layouts: dict[Hashable, int] = {}
        self._cases: dict[Hashable, int] = {}
        self._is_shared: list[bool] = []
        """By case, whether devices of other nodes play a part in it."""
        self._answers: dict[Hashable, Answers] = {}
        self._with_tables: list[Answers] = []
        self._class_version = -1

    def column(self, live: LiveNodeTable) -> Numbers | None:
        """The case of each node; None if it is unknown because a slice has a broken selector."""
        usage = self._ledger.usage
        names, concerns_all = self.inventory.renew()
        if concerns_all:
            self._scopes = _scopes_of(self.inventory)
        for name in names:
            self._sites.pop(name, None)
        if self._scopes.is_broken:
            return None
        masks = tuple(self._mask(live, selector) for selector in self._scopes.selectors)
        is_new = self._layout != live.layout
        if concerns_all or not _are_same(masks, self._masks) or (is_new and self.inventory.everywhere):
            self._masks, is_new = masks, True
            for each in (self._sites, self._shared, self._offers, self._layouts, self._cases):
                each.clear()
        if len(self._cases) > max(MAX_CASES, 4 * len(live)):
            self._cases.clear()
        names |= self._note_changes(usage)
        if is_new or not self._cases:
            self._make_column(live, usage)
        else:
            for name in names:
                if (row := live.row_of(name)) is not None:
                    self._column[row] = self._case(live, row, usage)
        return self._column

    def answers(self, demands: Sequence[Hashable]) -> Answers:
        """What is known for these demands. Call `column` first."""
        if self._class_version != self._classes.version:
            self._class_version = self._classes.version
            self._answers.clear()
            self._with_tables.clear()
        key = tuple(demands)
        found = self._answers.pop(key, None)
        if found is None:
            found = Answers()
            if len(self._answers) >= MAX_DEMANDS:
                del self._answers[next(iter(self._answers))]
        self._answers[key] = found  # the last of them are those used last
        known, needed = len(found.codes), len(self._is_shared)
        if known < needed:
            found.codes = np.concatenate((found.codes, np.zeros(2 * needed - known, np.int8)))
            found.points = np.concatenate((found.points, np.zeros(2 * needed - known, np.int64)))
        if found.epoch != self._epoch:
            found.epoch = self._epoch
            found.codes[: len(self._is_shared)][self._is_shared] = UNKNOWN
            found.found.clear()
        return found

    def offer(self, live: LiveNodeTable, row: int) -> Offer:
        """The devices that the node of a row can reach. Call `column` first."""
        if self._scopes.is_broken:
            return Offer(self.inventory.pools_for(live.node(row)))
        reach = int(self._reach[row])
        site = self._site(live, row)
        if site is not None:
            return Offer(sort_pools((*site.pools, *self._shared_pools(live.node(row), reach))))
        if reach not in self._offers:
            self._offers[reach] = Offer(self._shared_pools(live.node(row), reach))
        return self._offers[reach]

    def tables(self, answers: Answers, offer: Offer) -> Tables:
        """The tables of an earlier search for the same demands, if they are worth keeping."""
        if not any(offer is each for each in self._offers.values()):
            return {}
        if answers in self._with_tables:
            self._with_tables.remove(answers)
        elif len(self._with_tables) >= MAX_TABLES:
            self._with_tables.pop(0).tables.clear()
        self._with_tables.append(answers)
        return answers.tables.setdefault(offer, {})

    def _mask(self, live: LiveNodeTable, selector: NodeSelector) -> Mask:
        terms = self._scopes.selectors[selector]
        (mask,) = live.keep(("nodes of devices", selector), lambda part: (part.match_terms(terms),))
        return mask  # type: ignore[no-any-return]

    def _note_changes(self, usage: Usage) -> set[str]:
        """The names of the nodes whose devices were taken or given back."""
        changed = usage.changed_since(self._usage_version)
        self._usage_version = usage.version
        names: set[str] = set()
        if changed is None:
            self._epoch += 1
            names.update(self._sites)
        for device in changed or ():
            pool = self.inventory.pools.get(device[:2])
            if pool is not None and pool.nodes is None:
                self._epoch += 1
            elif pool is not None:
                names |= pool.nodes or set()
        for name in names:
            if (site := self._sites.get(name)) is not None:
                site.case = -1
        return names

    def _make_column(self, live: LiveNodeTable, usage: Usage) -> None:
        if not self._cases:  # no answer of before applies to any of the new numbers
            self._is_shared.clear()
            self._answers.clear()
            self._with_tables.clear()
            for site in self._sites.values():
                site.case = -1
        self._layout = live.layout
        self._reach = self._reaches(live)
        cases = (self._case(live, row, usage) for row in range(len(live)))
        self._column = np.fromiter(cases, np.int32, len(live))

    def _reaches(self, live: LiveNodeTable) -> Numbers:
        found = np.zeros(len(live), np.int64)
        if not self.inventory.everywhere:
            return found.astype(np.int32)
        for mask in self._masks:
            # The numbers stay small, however many selectors there are.
            found = np.unique(found * 2 + mask, return_inverse=True)[1]
        count = len(live)
        for name in self._scopes.names:  # such a node is like no other
            if (row := live.row_of(name)) is not None:
                found[row] = count = count + 1
        return (found + 1).astype(np.int32)

    def _site(self, live: LiveNodeTable, row: int) -> _Site | None:
        """What belongs to the node of a row; None if nothing does."""
        name = live.names[row]
        if name not in self.inventory.on_node:
            return None
        site = self._sites.get(name)
        if site is None:
            node = live.node(row)
            seen = (pool.seen_from(node) for pool in self.inventory.on_node[name].values())
            pools = sort_pools(pool for pool in seen if pool is not None)
            shared = [pool.order for pool in self._shared_pools(node, int(self._reach[row]))]
            key = tuple((bisect_left(shared, pool.order), pool.layout) for pool in pools)
            layout = self._layouts.setdefault(key, len(self._layouts))
            site = self._sites[name] = _Site(pools, layout)
        return site

    def _shared_pools(self, node: Node, reach: int) -> list[ReachablePool]:
        if not reach:
            return []
        found = self._shared.get(reach)
        if found is None:
            seen = (pool.seen_from(node) for pool in self.inventory.everywhere.values())
            found = self._shared[reach] = sort_pools(pool for pool in seen if pool is not None)
        return found

    def _case(self, live: LiveNodeTable, row: int, usage: Usage) -> int:
        site, reach = self._site(live, row), int(self._reach[row])
        if site is None:
            return self._number(reach, reach)
        if site.case < 0:
            states = (_state(pool, usage) for pool in site.pools)
            site.case = self._number(reach, (reach, site.layout, *states))
        return site.case

    def _number(self, reach: int, key: Hashable) -> int:
        case = self._cases.get(key)
        if case is None:
            case = self._cases[key] = len(self._cases)
            self._is_shared.append(reach > 0)
        return case


def allocations_on(
    node: Node, offer: Offer, demands: Sequence[Demand], found: Sequence[Sequence[Held]]
) -> list[Allocation]:
    """What was found for a node of the same case, with the devices of this one."""
    allocations = []
    for demand, held in zip(demands, found, strict=True):
        asks = {ask.name: ask for request in demand.requests for ask in request}
        here = [each._replace(ask=asks[each.ask.name], device=offer.devices[each.place][1]) for each in held]
        allocations.append(allocation_of(demand, here, node))
    return allocations


def _state(seen: ReachablePool, usage: Usage) -> Hashable:
    """Which devices of a pool are in use, and how much of those that are shared."""
    taken, shared = usage.taken, usage.shared
    state: Hashable = bytes([device.id in taken for device in seen.devices])
    if shared:
        parts = (shared.get(device.id) for device in seen.devices)
        state = state, tuple(None if part is None else tuple(sorted(part.items())) for part in parts)
    if seen.pool.counters:
        state = state, bytes([usage.includes(device.id) for device in seen.pool.counting_devices])
    return state


def _scopes_of(inventory: Inventory) -> _Scopes:
    selectors: dict[NodeSelector, tuple[NodeTerm, ...]] = {}
    names: set[str] = set()
    for pool in inventory.everywhere.values():
        for spec in pool.specs:
            scopes: list[NodeScope] = [] if spec.shared_counters else [spec]
            if spec.per_device_node_selection:
                scopes += spec.devices
            for scope in scopes:
                if scope.node_name:
                    names.add(scope.node_name)
                elif scope.node_selector is not None and not scope.all_nodes:
                    selectors.setdefault(scope.node_selector, node_terms_of(scope.node_selector))
    return _Scopes(selectors, frozenset(names))


def _are_same(masks: Sequence[Mask], others: Sequence[Mask]) -> bool:
    return len(masks) == len(others) and all(
        mask is other or np.array_equal(mask, other) for mask, other in zip(masks, others, strict=True)
    )
