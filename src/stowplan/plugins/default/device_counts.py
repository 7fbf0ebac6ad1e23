"""How many devices of a class each node can reach, and how many of them are taken: what nodes are scored by.

Unlike an allocation this looks at every slice, also at those of pools that are incomplete or out of date.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stowplan.api.meta import NodeSelector
from stowplan.api.resource import DeviceClass
from stowplan.api.selectors import node_terms_of
from stowplan.cluster.columns import Columns
from stowplan.errors import CelError
from stowplan.framework import Handle, NodeTable
from stowplan.plugins.default.device_claims import Usage
from stowplan.plugins.default.device_ledger import ClaimLedger
from stowplan.plugins.default.device_pools import OfferedDevice

Ints = NDArray[np.int64]
Selectors = tuple[str, ...]
Tally = list[int]
"""Devices of a class, those of them that are taken, and devices that a selector could not tell of."""
Tallies = tuple[dict[str, Tally], dict[NodeSelector | None, Tally]]
"""By the name of the one node that can reach the devices; by the selector of their nodes, None for all."""


class DeviceCounts:
    def __init__(self, handle: Handle) -> None:
        self._slices, self._ledger = handle.cluster.resource_slices, ClaimLedger.of(handle)
        self._seen: tuple[int, Usage] = -1, Usage.of(())
        self._version = 0
        self._devices: list[OfferedDevice] = []
        self._tallies: dict[Selectors, Tallies] = {}

    def follow(self) -> int:
        """Takes note of other devices and of other uses of them; the number grows where there are any."""
        now = self._slices.version, self._ledger.usage
        if self._seen != now:
            if self._seen[0] != now[0]:
                self._devices = [
                    OfferedDevice(device, each.spec) for each in self._slices for device in each.spec.devices
                ]
            self._seen = now
            self._tallies.clear()
            self._version += 1
        return self._version

    def columns(self, device_class: DeviceClass, nodes: NodeTable) -> tuple[Ints, Ints]:
        """For each node the devices of the class and those of them that are taken."""
        selectors = tuple(each.cel.expression for each in device_class.spec.selectors if each.cel is not None)
        key = self, self.follow(), selectors
        capacity, used = nodes.live.keep(key, lambda part: self._count(selectors, part))
        return capacity[nodes.rows], used[nodes.rows]

    def _count(self, selectors: Selectors, nodes: NodeTable) -> Columns:
        if selectors not in self._tallies:
            self._tallies[selectors] = self._tally(selectors)
        by_name, by_selector = self._tallies[selectors]
        counts = np.array([by_name.get(name, (0, 0, 0)) for name in nodes.names], np.int64).reshape(-1, 3)
        for selector, tally in by_selector.items():
            terms = () if selector is None else node_terms_of(selector)
            if any(term.error for term in terms):
                counts[:, 2] += 1
            else:
                counts[... if selector is None else nodes.match_terms(terms)] += tally
        capacity, used, unclear = counts.T
        return capacity * (unclear == 0), used * (unclear == 0)

    def _tally(self, selectors: Selectors) -> Tallies:
        by_name: dict[str, Tally] = {}
        by_selector: dict[NodeSelector | None, Tally] = {}
        for device in self._devices:
            scope = device.scope
            if scope.node_name:
                tally = by_name.setdefault(scope.node_name, [0, 0, 0])
            elif scope.is_given:
                tally = by_selector.setdefault(scope.node_selector, [0, 0, 0])
            else:
                continue
            try:
                if all(map(device.satisfies, selectors)):
                    tally[0] += 1
                    tally[1] += self._seen[1].includes(device.id)
            except CelError:
                tally[2] += 1
        return by_name, by_selector
