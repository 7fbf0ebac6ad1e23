"""Explains pods on what files show: each is decided, explained and placed before the next."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import Pod
from stowplan.cluster.columns import Rows
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.config import KubeSchedulerConfiguration
from stowplan.cycle import Planner, first_by_name
from stowplan.cycle.schedule import TieBreak
from stowplan.errors import InputError, PluginError
from stowplan.explain.changes import smallest_changes
from stowplan.explain.manifests import Manifests
from stowplan.explain.names import there_is
from stowplan.explain.report import Explanation, explanation_of, node_explanation_of
from stowplan.explain.templates import Target
from stowplan.framework.decision import Decision
from stowplan.framework.event_words import wakes
from stowplan.framework.profile import Profile
from stowplan.framework.registry import Registry
from stowplan.framework.status import Code, Status


class Explainer:
    """With a seed, ties are drawn at random; without one, the first by name wins."""

    def __init__(
        self,
        manifests: Manifests,
        config: KubeSchedulerConfiguration | None = None,
        *,
        registry: Registry | None = None,
        seed: int | None = None,
    ) -> None:
        self.seed = seed
        self.cluster = manifests.cluster()
        tie_break = first_by_name if seed is None else drawn_by(random.Random(seed))
        self.planner = Planner(self.cluster, config, registry=registry, tie_break=tie_break)
        self.planner.keep_nominations(manifests.pods.values())

    def explain(self, target: Target, node_name: str | None = None, *, changes: bool = False) -> Explanation:
        """Decides the pod and places it for those after it; one that runs already stays where it is."""
        if node_name is not None and self.cluster.nodes.row_of(node_name) is None:
            raise InputError(f"there is no node {node_name}; {there_is(node_name, self.cluster.nodes.names)}")
        for item in target.objects:
            self.cluster.apply(item)
        placed = self.cluster.pod(target.pod.uid)
        if placed is not None:
            self.cluster.remove_pod(placed)
        pod = target.pod.on("")
        profile = self._profile_of(pod)
        decision = self._decide(pod)
        found = explanation_of(
            decision,
            self.cluster.nodes,
            profile.scheduler_name,
            held_back=held_back_by(profile, pod),
            notes=(*target.notes, *self._notes(target.pod, placed)),
            seed=self.seed,
        )
        if decision.chosen is None:
            found = found._replace(wakes=wakes(profile, decision.rejectors))
        if node_name is not None:
            found = found._replace(node=node_explanation_of(found, self.cluster.nodes, node_name))
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
            advice = "--config FILE takes the configuration of the scheduler that has it"
            raise InputError(f"{error.message}; {advice}", what=error.what, field=error.field) from None

    def _decide(self, pod: Pod) -> Decision:
        decision = self.planner.decide(pod)
        if fault := fault_of(decision):
            raise PluginError(fault)
        return decision

    def _notes(self, pod: Pod, placed: Pod | None) -> Iterator[str]:
        if not len(self.cluster.nodes):
            yield "There are no nodes."
        if placed is not None:
            known = self.cluster.nodes.row_of(placed.node_name) is not None
            where = placed.node_name if known else f"{placed.node_name}, which is not there"
            yield f"Now it is on {where}; this is what would be decided if it were not."
        elif pod.is_finished:
            yield f"It has finished ({pod.phase}); this is what would be decided if it were new."
        elif pod.node_name:
            yield f"It was evicted from {pod.node_name} for a pod before it."
        if pod.is_terminating:
            yield "It is being deleted, so kube-scheduler would not place it any more."


def drawn_by(generator: random.Random) -> TieBreak:
    """Draws one of the best nodes; in which order the files name them does not matter."""

    def draw(nodes: LiveNodeTable, feasible: Rows, totals: NDArray[Any]) -> int:
        best = np.flatnonzero(totals == totals.max())
        by_name = best[np.argsort(nodes.name_ranks[feasible[best]])]
        # Of all draws only random() is promised to be the same in every version of Python.
        return int(by_name[int(generator.random() * len(by_name))])

    return draw


def fault_of(decision: Decision) -> str:
    """What a plugin raised; empty where nothing went wrong."""
    after = decision.post_filter
    # parity: an error that a post_filter returns is part of the answer; one that it raises is not
    if after is not None and after.message.startswith("running PostFilter plugin"):
        return after.message
    return decision.error or ""


def held_back_by(profile: Profile, pod: Pod) -> Status | None:
    """Who keeps the pod out of the queue, if someone does."""
    for name, plugin in profile.at("preEnqueue"):
        status: Status | None = plugin.pre_enqueue(pod)
        if status is not None and status.code is not Code.SUCCESS:
            return status.by(name)
    return None
