"""Decisions of a shadow: a member of a pod group is decided with its group, and extenders are asked.

Nothing stays placed. Extenders are asked once, when the pod arrives; when it is decided again to compare it
with what the live scheduler did, their answers are used again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import msgspec
import numpy as np

from stowplan.api.groups import GroupKey
from stowplan.api.pod import Pod
from stowplan.cluster.columns import Rows
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cycle.group import GroupDecision, Result, in_order, needed_count, try_group
from stowplan.cycle.group_trial import GroupHost, Member, kind_of
from stowplan.cycle.sampling import Sampling
from stowplan.cycle.schedule import (
    AskFilters,
    AskScores,
    EqualPods,
    ExtenderQuestion,
    drop_nodes,
    first_by_name,
)
from stowplan.framework.decision import Decision, ScoreColumn, Statuses
from stowplan.framework.profile import EXTENDER, Profile
from stowplan.scheduler.scheduler import Scheduler


class ShadowCycle:
    """Decides with one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._cluster = scheduler, scheduler.cluster
        self._together: dict[str, tuple[str, ...]] = {}
        """For each member of a group that was decided, by uid, the members that it was decided with."""
        self._answers: dict[str, _Answers] = {}
        """What extenders said of each pod, by uid."""

    def forget(self, uid: str) -> None:
        """A pod is compared, or gone."""
        self._together.pop(uid, None)
        self._answers.pop(uid, None)

    def group_of(self, pod: Pod) -> GroupKey | None:
        """The group with which the pod is decided."""
        key = self._cluster.group_of(pod)
        return None if key is None or self._cluster.groups.find(key) is None else key

    def is_unanswered(self, pod: Pod) -> bool:
        """Whether extenders manage the pod and have not been asked about it."""
        is_asking = self._scheduler.loop.asks_extenders(pod) and self.group_of(pod) is None
        return is_asking and pod.uid not in self._answers

    def decide(self, profile: Profile, pod: Pod, sampling: Sampling | None, live: str = "") -> Decision:
        """Decide a pod on the cluster as it is. A member of a group is decided with the members that it was
        decided with first, wherever they are by now; of equal members, it is the one that goes to `live`."""
        key = self.group_of(pod)
        if key is None:
            return self._scheduler.loop.decide(profile, pod, sampling, self._answers.get(pod.uid))
        groups, pending = self._cluster.groups, self._scheduler.shared.pending
        uids = self._together.get(pod.uid, (pod.uid,))
        placed = {each.uid: each for uid in uids if (each := self._cluster.pod(uid)) is not None}
        known = {uid: each for uid, each in groups.members(key).items() if uid in uids and uid in pending}
        others = {**known, **placed}
        others.pop(pod.uid, None)
        pods = [msgspec.structs.replace(each, node_name="") for each in (*others.values(), pod)]
        aside = self._cluster.set_aside(placed.values())
        try:
            nodes = {uid: each.node_name for uid, each in placed.items()}
            found = self.decide_group(profile, key, pods, sampling, nodes)
        finally:
            self._cluster.bring_back(aside)
        return self._decision_of(found, pod, live, [each for each in placed.values() if each.uid != pod.uid])

    def _decision_of(self, found: GroupDecision, pod: Pod, live: str, others: Sequence[Pod]) -> Decision:
        """The decision for a member, or for an equal one that goes to `live` where no other member is."""
        chosen = next((each for each in found.members if each.pod.uid == pod.uid), None)
        if chosen is not None and chosen.node_name != live and found.result is Result.SCHEDULED:
            equal = [each for each in found.members if kind_of(each.pod) == kind_of(pod) and each.node_name]
            taken = Counter(each.node_name for each in others if kind_of(each) == kind_of(pod))
            if (Counter(each.node_name for each in equal) - taken)[live]:
                chosen = next(each for each in equal if each.node_name == live)
        return self.settle(found, pod, chosen)

    def settle(self, found: GroupDecision, pod: Pod, member: Member | None) -> Decision:
        """The decision for a pod as that for a member; without a node if the group does not go ahead."""
        decision = Decision(pod, self._cluster.nodes) if member is None else copy(member.decision)
        decision.pod, decision.group = pod, found.summary
        if found.result is Result.ERROR:
            decision.error = decision.error or found.message
        is_placed = member is not None and found.result is Result.SCHEDULED
        decision.chosen = (member.node_name or None) if member is not None and is_placed else None
        return decision

    def decide_group(
        self,
        profile: Profile,
        key: GroupKey,
        pods: Iterable[Pod],
        sampling: Sampling | None,
        nodes: Mapping[str, str] | None = None,
    ) -> GroupDecision:
        """Decide members as one. Among equally good nodes, those that `nodes` has by uid are taken."""
        groups, pods = self._cluster.groups, in_order(pods)
        group = groups.find(key)
        assert group is not None
        uids = tuple(pod.uid for pod in pods)
        if nodes is None:  # an attempt of the queue: before that, the group may not have all of its members
            for uid in uids:
                self._together.setdefault(uid, uids)
        placed = [each for each in groups.placed(key) if each.uid not in uids]
        needed = needed_count(group, len(placed), groups.succeeded(key), len(pods))
        host = _Host(profile, group, self._cluster, first_by_name, sampling)
        host.known_nodes = nodes or {}
        return try_group(host, group, pods, placed, needed)

    async def ask(self, profile: Profile, pod: Pod, sampling: Sampling | None) -> Decision:
        """Decide a pod, and ask extenders about it."""
        with self._scheduler.shared.changes.deferring():
            decision = await self._scheduler.loop.decide_extended(profile, pod, sampling)
            # Before changes that were deferred are made: the pod may be bound by one of them, or gone.
            self._answers[pod.uid] = _Answers(decision)
        return decision


class _Host(GroupHost):
    """Places members on trial."""

    known_nodes: Mapping[str, str]
    """Where members are, by uid: these nodes win among the best."""
    _current = ""

    def decide(
        self, pod: Pod, within: Rows | None, *, preempts: bool, equal: EqualPods | None = None
    ) -> Decision:
        self._current, self._tie_break = pod.uid, self._prefer_known
        return super().decide(pod, within, preempts=preempts, equal=equal)

    def _prefer_known(self, nodes: LiveNodeTable, feasible: Rows, totals: Any) -> int:
        row = nodes.row_of(self.known_nodes.get(self._current, ""))
        if row is not None:
            (places,) = (feasible == row).nonzero()
            if len(places) and totals[places[0]] == totals.max():
                return int(places[0])
        return first_by_name(nodes, feasible, totals)


class _Answers:
    """What extenders said of a pod, to be said again."""

    def __init__(self, decision: Decision) -> None:
        names, looked_at = decision.names, decision.looked_at
        self._rejected = {
            names[looked_at[place]]: status
            for each in decision.filters
            if isinstance(each, Statuses) and each.plugin == EXTENDER
            for place, status in each.by_row.items()
        }
        feasible = [names[row] for row in decision.feasible.tolist()]
        self._scores = [
            (each, dict(zip(feasible, each.scores.tolist(), strict=True)))
            for each in decision.scores
            if each.plugin.startswith(EXTENDER)
        ]

    def __call__(self, question: ExtenderQuestion) -> list[ScoreColumn] | None:
        """Answer a request of the cycle; extenders are not asked about victims again."""
        decision = question.decision
        names = [decision.names[row] for row in decision.feasible.tolist()]
        if isinstance(question, AskFilters):
            kept = np.array([name not in self._rejected for name in names], np.bool_)
            if not kept.all():
                drop_nodes(decision, "", kept, self._rejected)
        elif isinstance(question, AskScores):
            return [
                ScoreColumn(
                    each.plugin, each.weight, np.array([given.get(name, 0) for name in names], np.int64), None
                )
                for each, given in self._scores
            ]
        return None
