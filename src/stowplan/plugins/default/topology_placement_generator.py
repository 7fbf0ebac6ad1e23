"""TopologyPlacementGenerator: the domains of a node label, one of which is to hold all pods of a group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.api.groups import Group
from stowplan.api.selectors import is_qualified_name
from stowplan.cluster.columns import Rows
from stowplan.config.field_errors import child, invalid
from stowplan.framework import Action, ClusterEvent, NodeTable, Plugin, PluginArgs, Pod, Resource, Status
from stowplan.framework.plugin import Placements

CANNOT_TELL = "cannot determine domain for already scheduled pods"


class TopologyPlacementGeneratorArgs(PluginArgs):
    levels: tuple[str, ...] = ()
    """Node labels, the widest domains first. A group whose key is one of them goes into the narrowest domain
    below it into which it fits."""

    def validate(self, path: str) -> Iterator[str]:
        for number, key in enumerate(self.levels):
            if not is_qualified_name(key):
                yield invalid(f"{child(path, 'levels')}[{number}]", key, "must be a label key")
            elif key in self.levels[:number]:
                yield invalid(f"{child(path, 'levels')}[{number}]", key, "must not be listed twice")


class TopologyPlacementGenerator(Plugin):
    args: TopologyPlacementGeneratorArgs
    hints_by_spec = True

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL),)

    def placement_generate(
        self, group: Group, placed: Sequence[Pod], nodes: NodeTable
    ) -> Placements | Sequence[Placements] | Status:
        if group.topology is None or not group.topology.keys:
            return {"": nodes.rows}
        key = group.topology.keys[-1]
        required = self._domains((key,), placed, nodes)
        if isinstance(required, Status) or key not in self.args.levels:
            return required
        levels: list[Placements] = [required]
        keys: tuple[str, ...] = (key,)
        for narrower in self.args.levels[self.args.levels.index(key) + 1 :]:
            keys = (*keys, narrower)
            found = self._domains(keys, placed, nodes)
            if not isinstance(found, Status):  # preferred alone: members that run may be apart
                levels.insert(0, found)
        return levels

    def _domains(
        self, keys: tuple[str, ...], placed: Sequence[Pod], nodes: NodeTable
    ) -> dict[str, Rows] | Status:
        """The domains that these labels make together, or the one of the members that run."""
        columns = [nodes.label(key) for key in keys]
        ids: NDArray[np.integer[Any]] = columns[0].ids
        values = columns[0].values
        for column in columns[1:]:  # a narrower domain is one inside of each wider one
            wide = len(column.values) + 1
            pairs = np.where((ids < 0) | (column.ids < 0), -1, ids.astype(np.int64) * wide + column.ids)
            numbers, ids = np.unique(pairs, return_inverse=True)
            names = [
                f"{values[each // wide]}/{column.values[each % wide]}"
                for each in numbers.tolist()
                if each >= 0
            ]
            if len(names) < len(numbers):  # the first is that of nodes without a label
                ids = ids - 1
            values = names
        required = _domains_of(placed, nodes, ids, values)
        if isinstance(required, Status):
            return required
        order = np.argsort(ids, kind="stable")
        numbers, starts = np.unique(ids[order], return_index=True)
        domains = {
            values[number]: rows
            for number, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True)
            if number >= 0 and (required is None or number == required)
        }
        if not domains:
            return Status.unschedulable("no feasible placements found")
        return dict(sorted(domains.items()))


def _domains_of(
    placed: Sequence[Pod], nodes: NodeTable, ids: np.ndarray, values: Sequence[str]
) -> int | Status | None:
    """The one domain of the members that have a node; None if there are none of them."""
    found: dict[int, None] = {}
    for pod in placed:
        row = nodes.row_of(pod.node_name)
        if row is None:
            missing = f'nodeinfo not found for node name "{pod.node_name}"'
            return Status.error(f"{CANNOT_TELL}: getting node for pod {pod.key}: {missing}")
        if ids[row] < 0:
            return Status.error(f"{CANNOT_TELL}: no topology domain found for pod {pod.key}")
        found[int(ids[row])] = None
    if len(found) > 1:
        names = ", ".join(values[number] for number in found)
        return Status.error(f"{CANNOT_TELL}: more than 1 domain found for pod group: {names}")
    return next(iter(found), None)
