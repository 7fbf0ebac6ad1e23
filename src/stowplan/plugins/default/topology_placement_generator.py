"""TopologyPlacementGenerator: the domains of a node label, one of which is to hold all pods of a group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stowplan.api.groups import Group
from stowplan.framework import Action, ClusterEvent, NodeTable, Plugin, Pod, Resource, Status
from stowplan.framework.plugin import Placements

CANNOT_TELL = "cannot determine domain for already scheduled pods"


class TopologyPlacementGenerator(Plugin):
    hints_by_spec = True

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL),)

    def placement_generate(
        self, group: Group, placed: Sequence[Pod], nodes: NodeTable
    ) -> Placements | Status:
        if group.topology is None or not group.topology.keys:
            return {"": nodes.rows}
        column = nodes.label(group.topology.keys[-1])
        required = _domains_of(placed, nodes, column.ids, column.values)
        if isinstance(required, Status):
            return required
        order = np.argsort(column.ids, kind="stable")
        ids, starts = np.unique(column.ids[order], return_index=True)
        domains = {
            column.values[number]: rows
            for number, rows in zip(ids.tolist(), np.split(order, starts[1:]), strict=True)
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
