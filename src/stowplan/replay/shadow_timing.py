"""When the live scheduler decided a pod that it bound: a shadow sees only the bindings.

A live scheduler counts pods that it has decided and not bound yet, takes pending pods in an order of its own,
and binds several at once. So a disagreement is tried again on the cluster as it may have been."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

import msgspec

from stowplan.api.pod import Pod
from stowplan.cycle.sampling import Sampling
from stowplan.framework.decision import Decision
from stowplan.framework.profile import Profile
from stowplan.scheduler.scheduler import Scheduler

SETTLE_SECONDS, MAX_SETTLE_SECONDS, MAX_BURST_SECONDS = 1.0, 5.0, 30.0
"""A binding is judged after SETTLE_SECONDS: those of pods that were decided before it may follow. While pods
that were pending then are not bound, it waits until there was no binding for MAX_SETTLE_SECONDS, and at most
MAX_BURST_SECONDS."""
IN_FLIGHT = 256
"""How many bindings before and after one may have been decided in another order."""
FEW = (1, 4)
"""How many bindings just before or after one are tried in the opposite order."""
MIN_BURST, NEAR, MIN_EXPLAINED, MAX_ORDER_SECONDS = 8, 32, 0.85, 2.0
"""If at least MIN_BURST pods were pending at once, an order of decisions is searched for, in which a pod is
at most NEAR places away from its binding. It must explain the share MIN_EXPLAINED of them, and the search
takes at most MAX_ORDER_SECONDS of CPU time."""
MAX_COMPARED, DEVIATIONS = 64, 2.0
"""How many pods of a burst are tried at other times to find out what happens by chance, and how many
standard deviations above that the number of explained pods must be."""
Decide = Callable[[Profile, Pod, Sampling | None, str], Decision]
"""Decides a pod on the cluster as it is now. The text is the node that it is compared with."""


class Tracked(msgspec.Struct):
    """A pod that the live scheduler has not bound yet."""

    seen: float
    placed_before: int
    """How many pods had been bound when it was first seen."""
    turn: tuple[int, int]
    """By which queues sort: by priority, and then in order of arrival."""
    is_decided: bool = False
    decided_at: int = 0
    """How many pods had been bound when it was decided."""
    version: tuple[int, ...] = ()
    """The state of the cluster that it was decided on."""
    chosen: str | None = None
    error: str | None = None
    is_gated: bool = False
    is_rejected: bool = False
    """Whether the live scheduler has found no node for it."""


class Placement(NamedTuple):
    """A pod that was bound."""

    number: int
    """Counts bindings."""
    placed_before: int
    """How many pods had been bound when it arrived."""
    turn: tuple[int, int]
    uid: str


class OpenCase(msgspec.Struct):
    """A disagreement that the bindings around it may explain."""

    pod: Pod
    live: str
    tracked: Tracked
    decision: Decision
    """Made on the cluster just before the live scheduler's binding was seen."""
    agreed: bool
    """Whether the choice was the same shortly before, when the pod arrived."""
    changed: str
    """Which of the two nodes has changed since the pod arrived, if that was shortly before."""
    placement: int
    time: float
    due: float


class _Around(NamedTuple):
    """Bindings of other pods, seen from that of one."""

    before: list[Placement]
    """Bindings since it arrived."""
    after: list[Placement]
    in_flight: list[Placement]
    """The placements in `after` whose pods had arrived by then."""


class Timing:
    """The last bindings, and what they tell about the order of decisions."""

    def __init__(self) -> None:
        self.placements: deque[Placement] = deque(maxlen=2 * IN_FLIGHT + 1)
        self.placed_at = 0.0
        """When a pod was bound last, by the monotonic clock."""
        self._ordered: dict[str, bool] = {}
        """Pods, by uid, in an order of decisions that would explain their bindings; whether it does."""
        self._tried: dict[tuple[str, str], tuple[str, float]] = {}
        """What `_try_times` found, by uid and node: a pod may be rejected first, and bound later."""

    def explain(
        self,
        scheduler: Scheduler,
        profile: Profile,
        case: OpenCase,
        others: Iterable[OpenCase],
        decide: Decide,
    ) -> str:
        """How the order of decisions explains it; empty if it does not. `others` are open as well."""
        recent = {each.uid for each in self.placements}
        self._tried = {key: each for key, each in self._tried.items() if key[0] in recent}
        around = self._around(case)
        is_burst = bool(case.live) and len(around.before) + len(around.in_flight) >= MIN_BURST
        if is_burst:
            near = [each for each in self.placements if each.number > case.tracked.placed_before]
            if why := self._explain_by_order(scheduler, case, near, decide):
                return why
        why = self._try_times(scheduler, profile, case, decide)[0]
        is_doubtful = is_burst and not self._is_most_ordered
        if why and not (is_doubtful and self._is_by_chance(scheduler, [case, *others], decide)):
            return f"the choice is the same if, of other pods, {why} are counted"
        if case.changed:
            return f"{case.changed} changed between the arrival of the pod and its binding"
        if case.agreed:
            return "the choice was the same when the pod arrived, and the cluster changed since"
        return ""

    @property
    def _is_most_ordered(self) -> bool:
        """Whether an order of decisions explains most bindings: then the policy is the same."""
        return bool(self._ordered) and sum(self._ordered.values()) >= MIN_EXPLAINED * len(self._ordered)

    def _around(self, case: OpenCase) -> _Around:
        others = [each for each in self.placements if each.uid != case.pod.uid]
        before = [each for each in others if case.tracked.placed_before < each.number < case.placement]
        after = [each for each in others if each.number >= case.placement]
        return _Around(before, after, [each for each in after if each.placed_before < case.placement])

    def _try_times(
        self, scheduler: Scheduler, profile: Profile, case: OpenCase, decide: Decide
    ) -> tuple[str, float]:
        """Which of the other pods lead to the same choice if only they are counted, and how likely that is
        with any other policy.

        Pods are decided in the order of the queue, mostly. Besides, it is tried whether a few that were bound
        just before it or after it were decided the other way round. A watch shows changes in their order, so
        a pod that was bound before this one was created was decided before it, too.
        """
        key = (case.pod.uid, case.live)
        if (known := self._tried.get(key)) is not None:
            return known
        before, after, in_flight = self._around(case)
        trials = {
            "those before it in the queue": [
                each for each in (*before, *after) if each.turn > case.tracked.turn
            ],
        }
        for number in FEW:
            counted = in_flight[:number]
            trials[f"the first {number} bound after it"] = [each for each in after if each not in counted]
            trials[f"all but the last {number} bound before it"] = [*before[-number:], *after]
        tried = [{each.uid for each in after}]  # as when its binding was seen
        found, misses = "", 1.0
        for what, without in trials.items():
            uids = {each.uid for each in without}
            if uids in tried:
                continue
            tried.append(uids)
            aside = [pod for uid in uids if (pod := scheduler.cluster.pod(uid)) is not None]
            with set_aside(scheduler, [case.pod, *aside]):
                decision = decide(profile, case.pod, None, case.live)
            misses *= 1 - len(decision.best) / max(len(decision.feasible), 1)
            if not found and decision.error is None and agrees(decision, case.live):
                found = what
        self._tried[key] = (found, 1 - misses)
        return self._tried[key]

    def _is_by_chance(self, scheduler: Scheduler, cases: Iterable[OpenCase], decide: Decide) -> bool:
        """Whether the trials explain no more of a burst than they would if the policy were another one.

        With few nodes, one of several trials often leads to the same node. A single pod does not show that,
        but many do.
        """
        ends = time.thread_time() + MAX_ORDER_SECONDS
        for each in islice(cases, MAX_COMPARED):
            if time.thread_time() >= ends:
                break
            profile = scheduler.profiles.get(each.pod.scheduler_name)
            if profile is not None and each.live in each.decision.names:
                self._try_times(scheduler, profile, each, decide)
        hits = sum(bool(why) for why, _ in self._tried.values())
        expected = sum(chance for _, chance in self._tried.values())
        variance = sum(chance * (1 - chance) for _, chance in self._tried.values())
        return hits <= expected + DEVIATIONS * math.sqrt(variance)

    def _explain_by_order(
        self, scheduler: Scheduler, case: OpenCase, around: list[Placement], decide: Decide
    ) -> str:
        """Whether an order of decisions explains most of the bindings around this one, and this one, too."""
        if case.pod.uid not in self._ordered:
            self._extend_order(scheduler, around, decide)
        if not self._ordered.get(case.pod.uid) or not self._is_most_ordered:
            return ""
        number, total = sum(self._ordered.values()), len(self._ordered)
        return f"in another order of decisions, {number} of {total} choices at that time are the same"

    def _extend_order(self, scheduler: Scheduler, around: list[Placement], decide: Decide) -> None:
        """Decide pods once more that were bound at about the same time, each when its node is the best.

        A scheduler that starts with many pending pods may take them in any order, and it binds several at
        once, so bindings come nearly in the order of decisions. With another policy, few of their nodes would
        be the best.
        """
        known = {each.uid for each in self.placements}
        self._ordered = {uid: is_best for uid, is_best in self._ordered.items() if uid in known}
        uids = [each.uid for each in around if each.uid not in self._ordered]
        pods = [pod for uid in uids if (pod := scheduler.cluster.pod(uid)) is not None]
        left = scheduler.cluster.set_aside(each for each in pods if each.scheduler_name in scheduler.profiles)
        ends = time.thread_time() + MAX_ORDER_SECONDS
        is_over = time.monotonic() - self.placed_at >= SETTLE_SECONDS
        try:
            while len(left) > (0 if is_over else NEAR) and time.thread_time() < ends:
                found = next(
                    (each for each in left[:NEAR] if self._is_best_now(scheduler, each[0], decide)), None
                )
                placed = found or left[0]
                self._ordered[placed[0].uid] = found is not None
                scheduler.cluster.bring_back([placed])
                left.remove(placed)
        finally:
            scheduler.cluster.bring_back(left)

    def _is_best_now(self, scheduler: Scheduler, placed: Pod, decide: Decide) -> bool:
        pending = msgspec.structs.replace(placed, node_name="")
        decision = decide(scheduler.profiles[placed.scheduler_name], pending, None, placed.node_name)
        return decision.error is None and agrees(decision, placed.node_name)


@contextmanager
def set_aside(scheduler: Scheduler, pods: Iterable[Pod]) -> Iterator[None]:
    found = scheduler.cluster.set_aside(pods)
    try:
        yield
    finally:
        scheduler.cluster.bring_back(found)


def _is_best(decision: Decision, node: str) -> bool:
    return any(decision.names[row] == node for row in decision.best.tolist())


def agrees(decision: Decision, live: str) -> bool:
    return _is_best(decision, live) if live else decision.chosen is None
