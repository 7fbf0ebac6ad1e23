"""What speaks against binding a pod to a node by hand: what a scheduler would have looked at first."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stowplan.api.names import there_is
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.cycle import Planner
from stowplan.cycle.schedule import schedule
from stowplan.explain.layout import reason_text
from stowplan.explain.report import explanation_of, node_explanation_of
from stowplan.framework.registry import Registry


def objections(cluster: Cluster, pod: Pod, node_name: str, registry: Registry | None = None) -> list[str]:
    """By the filters of the default profile, whichever scheduler the pod names; none if it fits."""
    nodes = cluster.nodes
    if nodes.row_of(node_name) is None:
        return [f"there is no node {node_name}; {there_is(node_name, nodes.names)}"]
    (profile,) = Planner(cluster, registry=registry).profiles.values()
    asked = msgspec.structs.replace(pod, nominated_node_name="", node_name="")
    decision = schedule(profile, asked, nodes)
    if decision.error is not None:
        return [decision.error]
    found = node_explanation_of(explanation_of(decision, nodes, profile.scheduler_name), nodes, node_name)
    if found.place is not None:
        return list(_unprepared(cluster, pod))
    told = [
        f"{reason_text(each.status)}: {each.detail}" if each.detail else reason_text(each.status)
        for each in found.refusals
    ]
    return told or [decision.message]


def _unprepared(cluster: Cluster, pod: Pod) -> Iterator[str]:
    """What a scheduler does between its choice and the binding, and nobody does here."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            name = volume.persistent_volume_claim.claim_name
            claim = cluster.pvcs.get(f"{pod.namespace}/{name}")
            if claim is None or not claim.spec.volume_name:
                yield f"its PersistentVolumeClaim {name} is not bound, which a scheduler sees to first"
    for use in pod.spec.resource_claims:
        name = use.resource_claim_name or pod.resource_claim_statuses.get(use.name) or use.name
        found = cluster.resource_claims.get(f"{pod.namespace}/{name}")
        if found is None or found.allocation is None:
            yield f"its ResourceClaim {name} is not allocated, which a scheduler sees to first"
