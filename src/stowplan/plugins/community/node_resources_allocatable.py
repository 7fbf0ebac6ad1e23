"""NodeResourcesAllocatable: prefers small nodes (mode Least) or large ones (mode Most).

Only the size of a node counts: neither the pod nor what is in use on the node.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from stowplan.api.requests import NATIVE, is_scalar
from stowplan.config.field_errors import child, invalid, unsupported
from stowplan.framework import CycleState, NodeTable, Plugin, PluginArgs, Pod, Reads, Scores
from stowplan.framework.scores import scale_to_range

LEAST, MOST = "Least", "Most"


class WeightedResource(msgspec.Struct, frozen=True, rename="camel"):
    """A resource and how much one unit of it counts: a thousandth of a CPU, a byte, or one of all else."""

    name: str = ""
    weight: int = 0


CPU_AND_MEMORY = (WeightedResource("cpu", 2**20), WeightedResource("memory", 1))
"""A thousandth of a CPU counts as much as a MiB."""


class NodeResourcesAllocatableArgs(PluginArgs):
    resources: tuple[WeightedResource, ...] = CPU_AND_MEMORY
    mode: str = LEAST

    def __post_init__(self) -> None:
        self.resources = self.resources or CPU_AND_MEMORY
        self.mode = self.mode or LEAST

    def validate(self, path: str) -> Iterator[str]:
        for index, resource in enumerate(self.resources):
            if resource.weight <= 0:
                where = f"{child(path, 'resources')}[{index}].weight"
                detail = f"resource weight of {resource.name} should be a positive value"
                yield invalid(where, resource.weight, detail)
        if self.mode not in (LEAST, MOST):
            yield unsupported(child(path, "mode"), self.mode, (LEAST, MOST))


class NodeResourcesAllocatable(Plugin):
    args: NodeResourcesAllocatableArgs
    reads = Reads.NODE

    def sign_pod(self, pod: Pod) -> str:
        return ""  # all pods are alike

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        # What is no resource of nodes, such as pods, counts as 0.
        counted = [each for each in self.args.resources if each.name in NATIVE or is_scalar(each.name)]
        columns = [(nodes.allocatable[each.name], each.weight) for each in counted]
        largest = sum(int(column.max(initial=0)) * weight for column, weight in columns)
        total = np.zeros(len(nodes), np.int64 if largest < 2**63 else object)
        for column, weight in columns:
            total += column.astype(total.dtype) * weight
        weights = sum(each.weight for each in self.args.resources)
        mean = total // weights if weights < 2**63 else total.astype(object) // weights
        return (mean if self.args.mode == MOST else -mean).astype(np.int64)

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        return scale_to_range(scores)
