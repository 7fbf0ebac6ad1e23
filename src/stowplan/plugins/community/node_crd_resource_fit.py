"""NodeCRDResourceFit: places pods by what the ClusterScopedResource named like a node says of it.

`resourcesFilter` must allow every resource that the pod's containers request. `resourcesScore` says how good
the node is for each, from 0 to 100 (what is beyond counts as that); the mean, rounded up, is its score.
Init containers are not looked at.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, ClassVar

import numpy as np

from stowplan.framework import (
    MAX_SCORE,
    Action,
    ClusterEvent,
    Column,
    CustomResource,
    CycleState,
    Definition,
    Handle,
    Hint,
    NodeTable,
    Plugin,
    PluginArgs,
    Pod,
    Reads,
    Reject,
    Resource,
    Scores,
    Wire,
)


class ClusterScopedResourceSpec(Wire, frozen=True):
    resources_filter: dict[str, bool] = {}
    resources_score: dict[str, int] = {}


class ClusterScopedResource(CustomResource, frozen=True):
    """What the node with the same name offers, by resource."""

    definition: ClassVar = Definition(
        "scheduling.sigs.k8s.io",
        "v1alpha1",
        "clusterscopedresources",
        "ClusterScopedResource",
        namespaced=False,
        columns=(Column("Filter", ".spec.resourcesFilter"), Column("Score", ".spec.resourcesScore")),
    )
    describes_node = True
    spec: ClusterScopedResourceSpec = ClusterScopedResourceSpec()

    def enables(self, resource: str) -> bool:
        return self.spec.resources_filter.get(resource, False)

    def score(self, resources: tuple[str, ...]) -> int:
        """The mean over these resources, rounded up."""
        scores = self.spec.resources_score
        total = sum(min(max(scores.get(each, 0), 0), MAX_SCORE) for each in resources)
        return -(-total // len(resources)) if resources else 0


class NodeCRDResourceFit(Plugin):
    watches = (ClusterScopedResource,)
    reads = Reads.NODE

    def __init__(self, args: PluginArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._found = handle.watched(ClusterScopedResource)
        self._unknown = handle.counter(
            "stowplan_node_crd_resource_fit_unknown_nodes_total",
            "Nodes that scored 0 for want of a ClusterScopedResource, each time that scores were worked out.",
        )

    def sign_pod(self, pod: Pod) -> Hashable:
        return requested(pod), self._found.is_served

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        if not self._found.is_served:
            reason = "CRD clusterscopedresources.scheduling.sigs.k8s.io is not installed, or cannot be read"
            yield Reject(np.ones(len(nodes), np.bool_), reason)
            return
        found = [self._found.get(name) for name in nodes.names]
        yield Reject(np.array([each is None for each in found], np.bool_), "CRD for node not found")
        for resource in requested(pod):
            lacks = [each is not None and not each.enables(resource) for each in found]
            yield Reject(np.array(lacks, np.bool_), f"Node does not enable resource {resource}")

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        wanted = requested(pod)
        if not wanted or not self._found.is_served:
            return np.zeros(len(nodes), np.int64)
        found = [self._found.get(name) for name in nodes.names]
        self._unknown[()] += found.count(None)
        return np.array([each.score(wanted) if each is not None else 0 for each in found], np.int64)

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(ClusterScopedResource.definition.event_resource, Action.ALL),
            ClusterEvent(Resource.NODE, Action.ADD),
        )

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        if event.resource is Resource.NODE:
            old, new = None, self._found.get(new.name)
        helps = enables_all(new, pod) and not enables_all(old, pod)
        return Hint.QUEUE if helps else Hint.SKIP


def enables_all(found: ClusterScopedResource | None, pod: Pod) -> bool:
    return found is not None and all(map(found.enables, requested(pod)))


def requested(pod: Pod) -> tuple[str, ...]:
    """The resources that the pod's containers name in their requests."""
    found: tuple[str, ...] | None = pod.shape.memo.get(requested)
    if found is None:
        containers = pod.spec.containers
        found = tuple(sorted({name for container in containers for name in container.resources.requests}))
        pod.shape.memo[requested] = found
    return found
