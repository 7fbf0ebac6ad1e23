"""Decide a pod again with one thing changed, to see whether the outcome differs."""

from __future__ import annotations

from collections.abc import Callable

from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.cycle import Planner, first_by_name, schedule
from stowplan.explain.changes import Flip
from stowplan.framework.decision import Decision
from stowplan.framework.profile import Profile

GROWTH = 1.25


class OutOfTime(Exception):  # noqa: N818 (nothing went wrong)
    pass


class Trial:
    """Decides a pod again on a cluster, and leaves the cluster as it was.

    The outcome differs if a pod that fit nowhere now fits, or if its node is no longer among the best.
    """

    def __init__(
        self, planner: Planner, decision: Decision, seconds: float, now: Callable[[], float]
    ) -> None:
        self.cluster, self.profile = planner.cluster, planner.profile_of(decision.pod)
        self.pod, self.decision = decision.pod, decision
        self._ends, self._now = now() + seconds, now

    @property
    def winner(self) -> str | None:
        return self.decision.chosen

    def with_pod(self, pod: Pod) -> Flip | None:
        return self._flip(self._decide(self.profile, pod))

    def with_weight(self, plugin: str, weight: int) -> Flip | None:
        return self._flip(self._decide(self.profile.reweighted(plugin, weight), self.pod))

    def with_node(self, node: NodeObject) -> Flip | None:
        row = self.cluster.nodes.row_of(node.name)
        assert row is not None, f"no node {node.name}"
        known = self.cluster.nodes.objects[row]
        self.cluster.add_node(node)
        try:
            return self._flip(self._decide(self.profile, self.pod))
        finally:
            self.cluster.add_node(known)

    def with_preemption(self, pod: Pod) -> Flip | None:
        """Also counts as a different outcome if pods could be evicted for the pod."""
        self._check_time()
        decision = schedule(self.profile, pod, self.cluster.nodes, first_by_name)
        found = self._flip(decision)
        if found is None and self.winner is None and decision.nominated is not None:
            return Flip(decision.nominated, by_preemption=True)
        return found

    def _decide(self, profile: Profile, pod: Pod) -> Decision:
        """Decide without looking for pods to evict, which would take long."""
        self._check_time()
        return schedule(profile, pod, self.cluster.nodes, first_by_name, preempts=False)

    def _flip(self, decision: Decision) -> Flip | None:
        if decision.error is not None or decision.chosen is None:
            return None
        best = {decision.names[row] for row in decision.best.tolist()}
        return None if self.winner in best else Flip(decision.chosen)

    def _check_time(self) -> None:
        if self._now() > self._ends:
            raise OutOfTime


def find_least(flips: Callable[[int], Flip | None], most: int) -> tuple[int, Flip] | None:
    """The smallest number up to `most` that changes the outcome, if all greater ones do so too."""
    found = flips(most) if most > 0 else None
    return None if found is None else _between(flips, 0, most, found)


def find_nearest(flips: Callable[[int], Flip | None], most: int, step: int = 1) -> tuple[int, Flip] | None:
    """The same if greater ones may not do so: search in growing steps, then narrow down."""
    low = 0
    while low < most:
        high = min(low + step, most)
        found = flips(high)
        if found is not None:
            return _between(flips, low, high, found)
        low, step = high, max(int(high * (GROWTH - 1)), step)
    return None


def _between(flips: Callable[[int], Flip | None], low: int, high: int, found: Flip) -> tuple[int, Flip]:
    """`low` does not change the outcome, `high` does."""
    while high - low > 1:
        middle = (low + high) // 2
        flip = flips(middle)
        if flip is None:
            low = middle
        else:
            high, found = middle, flip
    return high, found
