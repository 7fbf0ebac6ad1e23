"""Preemption on several nodes, where pods on other nodes keep the pod out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.cycle.preempt import preempt
from stowplan.cycle.schedule import schedule
from stowplan.cycle.victims import Budgets
from stowplan.framework.decision import Decision
from stowplan.framework.plugin import Nomination
from stowplan.framework.profile import Profile
from stowplan.framework.status import Status

MAX_SINGLE_NODES = 100
"""How many nodes are searched for victims on the same node, in addition to those on others."""


def preempt_across(
    profile: Profile, pod: Pod, pools: Iterable[Sequence[Pod]], max_trials: int
) -> Nomination | Status:
    """The node and the victims that do the least harm, if evicting pods of one of the pools helps.

    All pods of a pool are counted as gone; then as many as possible come back, those that budgets protect
    and the more important ones first. If the pod needs more room, pods of its node are evicted as well. Each
    trial runs all filters on all nodes, so their number is limited.
    """
    search = _Search(profile, pod, max_trials)
    best: _Outcome | None = None
    for pool in pools:
        try:
            found = search.look_at(pool)
        except _OutOfTrialsError:
            break
        if isinstance(found, Status):
            return found
        if found is not None and (best is None or found.harm < best.harm):
            best = found
    if best is not None:
        return best.nomination
    limit = f", and the search ended after {max_trials} trials" if search.left <= 0 else ""
    return Status.unschedulable(f"evicting pods of several nodes does not help{limit}.")


class _OutOfTrialsError(Exception):
    pass


class _Outcome(NamedTuple):
    harm: tuple[float, ...]
    nomination: Nomination


class _Search:
    def __init__(self, profile: Profile, pod: Pod, max_trials: int) -> None:
        self._profile, self._pod, self.left = profile, pod, max_trials
        self._cluster = cast(Cluster, profile.handle.cluster)
        self._budgets = Budgets(self._cluster.pdbs)
        self._aside: dict[str, tuple[Pod, bool]] = {}

    def look_at(self, pool: Sequence[Pod]) -> _Outcome | Status | None:
        """What evicting pods of the pool would do; None if it does not help, a status for an error."""
        more: tuple[Pod, ...] = ()
        try:
            self._remove(pool)
            decision = self._decide()
            if decision.error:
                return Status.error(decision.error, decision.stack)
            if decision.chosen is None:
                more = self._find_on_one_node(decision)
                if not more:
                    return None
                self._remove(more)
            victims = self._reprieve([*self._by_importance(pool)])
            chosen = self._decide().chosen
            if chosen is None or not (victims or more):
                return None
            found = (*victims, *more)
        finally:
            self._bring_back(list(self._aside))
        leaving = tuple(each for each in found if not each.is_terminating)
        return _Outcome(self._harm(found), Nomination(chosen, leaving))

    def _decide(self) -> Decision:
        if self.left <= 0:
            raise _OutOfTrialsError
        self.left -= 1
        return schedule(self._profile, self._pod, self._cluster.nodes, preempts=False)

    def _find_on_one_node(self, decision: Decision) -> tuple[Pod, ...]:
        """The pods of a node that must be evicted in addition; empty if that does not help."""
        if decision.state is None or decision.pre_filter is not None:
            return ()
        answer = preempt(self._profile, decision.state, self._pod, decision, 0, MAX_SINGLE_NODES)
        return answer.victims if isinstance(answer, Nomination) else ()

    def _reprieve(self, pods: list[Pod]) -> list[Pod]:
        """Bring back as many of the pods as possible, the first ones first; returns the others."""
        self._bring_back([each.uid for each in pods])
        if not pods or self._decide().chosen is not None:
            return []
        self._remove(pods)
        if len(pods) == 1:
            return pods
        half = len(pods) // 2
        return [*self._reprieve(pods[:half]), *self._reprieve(pods[half:])]

    def _remove(self, pods: Iterable[Pod]) -> None:
        for pod, is_assumed in self._cluster.set_aside(pods):
            self._aside[pod.uid] = pod, is_assumed

    def _bring_back(self, uids: Iterable[str]) -> None:
        self._cluster.bring_back([self._aside.pop(uid) for uid in uids if uid in self._aside])

    def _by_importance(self, pods: Iterable[Pod]) -> list[Pod]:
        """Pods that budgets protect first, then those of higher priority, then those that run longest."""
        ordered = sorted(pods, key=_importance)
        is_protected = self._budgets.protect(ordered)
        return [
            pod
            for wanted in (True, False)
            for pod, flag in zip(ordered, is_protected, strict=True)
            if flag is wanted
        ]

    def _harm(self, victims: Sequence[Pod]) -> tuple[float, ...]:
        """What victims are compared by, as those of a single node are."""
        highest = max(each.priority for each in victims)
        return (
            sum(self._budgets.protect(sorted(victims, key=_importance))),
            highest,
            sum(each.priority + 2**31 for each in victims),
            len(victims),
            -min(each.start_time or math.inf for each in victims if each.priority == highest),
        )


def _importance(pod: Pod) -> tuple[float, float, str]:
    return -pod.priority, pod.start_time or math.inf, pod.key
