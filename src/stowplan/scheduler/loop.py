"""The scheduling loop: one pod after another is decided, and handed on."""

from __future__ import annotations

import asyncio
import random
import time

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.cycle.sampling import Sampling
from stowplan.cycle.schedule import Cycle, draw_ties, schedule
from stowplan.framework.answers import describe, stack_of
from stowplan.framework.decision import Decision
from stowplan.framework.profile import Profile
from stowplan.framework.state import CycleState
from stowplan.framework.status import Code
from stowplan.queue.queued_pod import QueuedPod
from stowplan.scheduler import eviction
from stowplan.scheduler.attempt import Attempt, Failure, failure_of
from stowplan.scheduler.attempt_log import log_nodes
from stowplan.scheduler.binding import NOT_LEADING, binding_cycle, node_gone, reserve
from stowplan.scheduler.extenders import ExtenderCalls
from stowplan.scheduler.failure import NOBODY, UNCHANGED, handle_failure
from stowplan.scheduler.host import Host
from stowplan.scheduler.measuring import CycleObserver

TURN_SECONDS = 0.001
"""For so long pods are decided before others get their turn: each turn takes a call to the system."""


class SchedulingLoop:
    def __init__(self, host: Host, draw: random.Random) -> None:
        self.host = host
        self._tie_break = draw_ties(draw)
        self._observers: dict[str, CycleObserver] = {}
        self.take_profiles()
        host.metrics.before_render = self._hand_in

    def take_profiles(self) -> None:
        """Decides with the host's profiles from now on."""
        host = self.host
        self._hand_in()  # for those until now
        self._observers = dict(host.observers)
        self._sampling = Sampling.of(
            {name: profile.percentage_of_nodes_to_score for name, profile in host.profiles.items()}
        )

    async def run(self) -> None:
        turn_ends = 0.0
        while (queued := await self.host.queue.pop()) is not None:
            try:
                self.host.before_pod()
                if self.host.extended is None:
                    self.schedule_one(queued)
                else:
                    await self.schedule_extended(queued, self.host.extended)
            except BaseException as error:  # what nobody foresaw for one pod must not stop the others
                if isinstance(error, asyncio.CancelledError) and is_cancelled():
                    raise
                self._give_back(queued, error)
            if time.monotonic() >= turn_ends:
                await asyncio.sleep(0)  # a full queue would not let anyone else run
                await (
                    self.host.api.wait_for_capacity()
                )  # what is decided now is bound soon, on what is known by then
                turn_ends = time.monotonic() + TURN_SECONDS

    def _hand_in(self) -> None:
        for observer in self._observers.values():
            observer.hand_in()

    def schedule_one(self, queued: QueuedPod) -> None:
        """Decides one pod. Nothing here waits, so the cluster is the same from start to end."""
        host, pod = self.host, queued.pod
        profile = self._begin(queued)
        if profile is None:
            return
        began = host.clock()
        sampling = self._sampling.get(profile.scheduler_name)
        observer = self._observers[profile.scheduler_name]
        observer.begin()
        try:
            decision = schedule(profile, pod, host.cluster.nodes, self._tie_break, sampling)
            observer.end(profile, decision)
        except BaseException as error:  # such as a fault of our own: it concerns this pod alone
            decision = self._unforeseen(pod, error)
        self._hand_on(self._decided(queued, profile, decision, began))

    async def schedule_extended(self, queued: QueuedPod, extended: ExtenderCalls) -> None:
        """Decides one pod with extenders. The cluster is kept the same until they have answered."""
        host, pod = self.host, queued.pod
        profile = self._begin(queued)
        if profile is None:
            return
        began = host.clock()
        sampling = self._sampling.get(profile.scheduler_name)
        observer = self._observers[profile.scheduler_name]
        with host.stillness.kept():
            observer.begin()
            try:
                cycle = Cycle(profile, pod, host.cluster.nodes, sampling)
                decision = await extended.schedule(cycle, self._tie_break, observer.pause)
                observer.end(profile, decision)
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and is_cancelled():
                    raise
                decision = self._unforeseen(pod, error)
            attempt = self._decided(queued, profile, decision, began)
        if pod.uid not in host.handlers.pending:
            handle_failure(host, attempt, Failure("the pod is gone or has a node", is_moot=True), UNCHANGED)
        elif decision.chosen is not None and host.cluster.nodes.row_of(decision.chosen) is None:
            handle_failure(host, attempt, node_gone(decision.chosen), NOBODY)
        else:
            self._hand_on(attempt)

    def _begin(self, queued: QueuedPod) -> Profile | None:
        """The profile to decide the pod with; None if there is nothing to decide."""
        host, pod = self.host, queued.pod
        profile = host.profiles.get(pod.scheduler_name)
        if profile is None or host.cluster.is_assumed(pod):
            host.queue.done(pod.uid)
            return None
        if pod.is_terminating:
            note = f"skip schedule deleting pod: {pod.key}"
            host.recorders[profile.scheduler_name].record(
                pod, "Warning", "FailedScheduling", "Scheduling", note
            )
            host.queue.done(pod.uid)
            return None
        log.log(3, "Attempting to schedule pod", pod=pod)
        return profile

    def _unforeseen(self, pod: Pod, error: BaseException) -> Decision:
        decision = Decision(pod, self.host.cluster.nodes)
        decision.state, decision.error = CycleState(), f"deciding: {describe(error)}"
        decision.stack = stack_of(error)
        return decision

    def _give_back(self, queued: QueuedPod, error: BaseException) -> None:
        """Ends an attempt in which something failed that was not foreseen: the pod is tried again."""
        host, pod = self.host, queued.pod
        log.error("Attempt failed", describe(error), pod=pod, stacktrace=stack_of(error))
        profile = host.profiles.get(pod.scheduler_name)
        if pod.uid not in host.queue.in_flight or profile is None or host.cluster.is_assumed(pod):
            return  # it is where it belongs: in the queue, or on its way to a node
        attempt = Attempt(queued, profile, self._unforeseen(pod, error), host.clock())
        handle_failure(host, attempt, failure_of(attempt.decision), UNCHANGED)

    def _decided(self, queued: QueuedPod, profile: Profile, decision: Decision, began: float) -> Attempt:
        seconds = self.host.clock() - began
        self.host.metrics.algorithm(seconds)
        log_nodes(profile, decision)
        is_measuring = self._observers[profile.scheduler_name].is_measuring
        if self.host.extended is not None:
            seconds = 0.0  # what extenders take is not the pod's doing
        return Attempt(queued, profile, decision, began, seconds, is_measuring)

    def _hand_on(self, attempt: Attempt) -> None:
        host, decision = self.host, attempt.decision
        if decision.chosen is not None:
            if not host.is_leading():
                handle_failure(host, attempt, NOT_LEADING, UNCHANGED)
                return
            placed = reserve(host, attempt, decision.chosen)
            if placed is not None:
                work = binding_cycle(host, attempt, placed, decision.chosen)
                host.spawn(work, f"binding of pod {placed.key}")
            return
        promised = UNCHANGED if _keeps_promise(decision) else decision.nominated or NOBODY
        handle_failure(host, attempt, failure_of(decision), promised)
        if decision.nominated is not None:
            eviction.begin(host, attempt.profile, attempt.pod, decision.nominated, decision.victims)


def _keeps_promise(decision: Decision) -> bool:
    """Whether nobody looked for room, so that a node promised earlier stays promised."""
    status = decision.post_filter
    return status is not None and (status.code is Code.ERROR or status.keeps_nomination)


def is_cancelled() -> bool:
    """Whether the current task was told to end, as opposed to a CancelledError out of the blue."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
