"""Decide pods on a given cluster and explain the decisions; and what prevents binding a pod by hand."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from stowplan.api.groups import named_groups
from stowplan.api.manifests import Manifests
from stowplan.api.names import suggest_names
from stowplan.api.pod import Pod
from stowplan.api.templates import Target
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration
from stowplan.cycle import Planner, first_by_name
from stowplan.cycle.planner import build_cluster, error_in, run_pre_enqueue
from stowplan.cycle.schedule import draw_ties, schedule
from stowplan.errors import InputError, PluginError
from stowplan.explain.group_report import GroupReport
from stowplan.explain.groups import explain_group, find_key
from stowplan.explain.layout import reason_text
from stowplan.explain.report import Explanation, explain_decision, explain_node
from stowplan.explain.smallest_changes import smallest_changes
from stowplan.framework.answers import describe, where_text
from stowplan.framework.decision import Decision
from stowplan.framework.hints import wakes
from stowplan.framework.plugin import ExplainingPlugin
from stowplan.framework.profile import Profile
from stowplan.framework.registry import Registry
from stowplan.framework.status import Code


class Explainer:
    """Decides, explains and places one pod after another.

    With a seed, ties are broken at random; without one, the first node by name wins.
    """

    def __init__(
        self,
        manifests: Manifests,
        config: KubeSchedulerConfiguration | None = None,
        *,
        registry: Registry | None = None,
        seed: int | None = None,
    ) -> None:
        self.seed = seed
        self.cluster = build_cluster(manifests)
        tie_break = first_by_name if seed is None else draw_ties(random.Random(seed), by_name=True)
        self.planner = Planner(self.cluster, config, registry=registry, tie_break=tie_break)
        pods = manifests.pods.values()
        self.planner.keep_nominations(pods)
        self._pending = [pod for pod in pods if not (pod.node_name or pod.is_finished or pod.is_terminating)]

    def explain_group(self, wanted: str, *, changes: bool = False) -> GroupReport:
        """Decide a pod group, `namespace/name`, and say why it waits. Nothing is placed."""
        self.planner.expect(self._pending)
        groups = self.cluster.groups
        return explain_group(self.planner, find_key(groups, wanted), self._pending, changes=changes)

    def explain(self, target: Target, node_name: str | None = None, *, changes: bool = False) -> Explanation:
        """Decide the pod and count it as placed for the next ones; a running pod stays on its node."""
        if node_name is not None and self.cluster.nodes.row_of(node_name) is None:
            raise InputError(
                f"node {node_name} not found{suggest_names(node_name, self.cluster.nodes.names)}"
            )
        for item in target.objects:
            self.cluster.apply(item)
        placed = self.cluster.pod(target.pod.uid)
        if placed is not None:
            self.cluster.remove_pod(placed)
        pod = target.pod.on("")
        profile = self._profile_of(pod)
        decision, held_back = self._decide(pod), run_pre_enqueue(profile, pod)
        if held_back is not None and held_back.code is Code.ERROR:
            raise PluginError(held_back.message)
        found = explain_decision(
            decision,
            self.cluster.nodes,
            profile.scheduler_name,
            held_back=held_back,
            notes=(*target.notes, *self._notes(target.pod, placed), *rejection_notes(profile, decision)),
            seed=self.seed,
            plugins=profile.plugins,
        )
        if decision.chosen is None:
            found = found._replace(wakes=wakes(profile, decision.rejectors))
        if node_name is not None:
            found = found._replace(node=explain_node(found, self.cluster.nodes, node_name, profile.plugins))
        if changes:
            found = found._replace(changes=smallest_changes(self.planner, decision))
        if placed is not None:
            self.cluster.add_pod(placed)
        elif not (found.held_back or pod.is_finished or pod.is_terminating):
            self.planner.carry_out(decision)
        return found

    def _profile_of(self, pod: Pod) -> Profile:
        try:
            return self.planner.profile_of(pod)
        except InputError as error:
            advice = "pass the configuration of that scheduler with --config FILE"
            raise InputError(f"{error.message}; {advice}", what=error.what, field=error.field) from None

    def _decide(self, pod: Pod) -> Decision:
        decision = self.planner.decide(pod)
        if fault := error_in(decision):
            raise PluginError(fault)
        return decision

    def _notes(self, pod: Pod, placed: Pod | None) -> Iterator[str]:
        if not len(self.cluster.nodes):
            yield "The cluster has no nodes."
        if placed is not None:
            known = self.cluster.nodes.row_of(placed.node_name) is not None
            where = placed.node_name if known else f"{placed.node_name}, which does not exist"
            yield f"It runs on {where}; this is what would be decided if it were pending."
        elif pod.is_finished:
            yield f"It has finished ({pod.phase}); this is what would be decided if it were pending."
        elif pod.node_name:
            yield f"It was evicted from {pod.node_name} for an earlier pod."
        if (group := next(named_groups(pod), None)) is not None:
            yield f"It names pod group {group}; `stowplan explain group {group}` decides the group as one."
        if pod.is_terminating:
            yield "It is being deleted, so kube-scheduler would not place it."


def rejection_notes(profile: Profile, decision: Decision) -> Iterator[str]:
    """What plugins say about nodes that they rejected, beyond the reason that all such nodes share."""
    for name, plugin in profile.plugins.items():
        if decision.chosen is None and isinstance(plugin, ExplainingPlugin):
            rejected = [node for node, status in decision.rejected().items() if status.plugin == name]
            try:
                yield from map(str, plugin.explain_rejections(decision.pod, rejected[:MAX_EXPLAINED_NODES]))
            except Exception as error:
                yield f"{name} cannot explain what it rejected: {describe(error)}{where_text(error)}."


MAX_EXPLAINED_NODES = 5


def find_objections(
    cluster: Cluster, pod: Pod, node_name: str, registry: Registry | None = None
) -> list[str]:
    """Why the pod does not fit the node, by the filters of the default profile; empty if it fits.

    The default profile is used whatever scheduler the pod names.
    """
    nodes = cluster.nodes
    if nodes.row_of(node_name) is None:
        return [f"node {node_name} not found{suggest_names(node_name, nodes.names)}"]
    (profile,) = Planner(cluster, registry=registry).profiles.values()
    pending = msgspec.structs.replace(pod, nominated_node_name="", node_name="")
    decision = schedule(profile, pending, nodes)
    if decision.error is not None:
        return [decision.error]
    explained = explain_decision(decision, nodes, profile.scheduler_name)
    found = explain_node(explained, nodes, node_name, profile.plugins)
    if found.place is not None:
        return list(_missing_preparations(cluster, pod))
    found_reasons = [
        f"{reason_text(each.status)}: {each.detail}" if each.detail else reason_text(each.status)
        for each in found.rejections
    ]
    return found_reasons or [decision.message]


def _missing_preparations(cluster: Cluster, pod: Pod) -> Iterator[str]:
    """What a scheduler prepares between its decision and the binding, and this command does not."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            name = volume.persistent_volume_claim.claim_name
            claim = cluster.pvcs.get(f"{pod.namespace}/{name}")
            if claim is None or not claim.spec.volume_name:
                yield f"its PersistentVolumeClaim {name} is not bound; a scheduler binds it first"
    for use in pod.spec.resource_claims:
        name = use.resource_claim_name or pod.resource_claim_statuses.get(use.name) or use.name
        found = cluster.resource_claims.get(f"{pod.namespace}/{name}")
        if found is None or found.allocation is None:
            yield f"its ResourceClaim {name} is not allocated; a scheduler allocates it first"
