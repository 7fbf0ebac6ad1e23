"""What the parts of the running scheduler share. It is created before any of them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import coroutine
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.client.api import ApiClient
from stowplan.client.errors import ApiError
from stowplan.cluster import Cluster
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.framework.answers import describe, format_value, reason_of, stack_of
from stowplan.framework.decision import Decision, fit_message
from stowplan.framework.handle import Nominations
from stowplan.framework.hints import wakes
from stowplan.framework.profile import Profile
from stowplan.framework.state import CycleState
from stowplan.framework.status import Code, Status
from stowplan.journal import Attempt as RecordedAttempt
from stowplan.journal import Decisions, Outcome
from stowplan.metrics import Metrics
from stowplan.queue.waiting import QueuedPod


class GroupStep(Protocol):
    """What the binding of a pod group's member waits for; see `binding.GroupBinding`."""

    async def permitted(self, pod: Pod) -> Failure | None: ...
    def drop(self, pod: Pod, failure: Failure) -> None: ...
    def check_nodes(self, nodes: LiveNodeTable) -> Failure | None: ...


class Attempt(NamedTuple):
    queued: QueuedPod
    profile: Profile
    decision: Decision
    began: float
    """When the attempt began, by the host's clock."""
    seconds: float = 0.0
    """How long deciding took, during which no other pod was decided."""
    is_measured: bool = False
    """Whether the time of each plugin is measured, as in every tenth decision."""
    group: GroupStep | None = None
    """The members of a pod group that are bound together with the pod."""

    @property
    def pod(self) -> Pod:
        return self.queued.pod

    @property
    def state(self) -> CycleState:
        assert self.decision.state is not None
        return self.decision.state


class Failure(NamedTuple):
    """Why an attempt failed. Without rejectors the pod is requeued after its backoff."""

    message: str
    is_error: bool = True
    rejectors: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    is_moot: bool = False
    """Whether there is nothing to report: the pod is gone, has a node, or is not ours any more."""
    advice: str = ""
    """What an administrator can do about it, for the log only."""
    stack: str = ""
    """The traceback of what a plugin raised, for the log."""
    is_of_group: bool = False
    """Whether the pod's group failed: it waits out its backoff, even if nothing else is to be done."""

    @property
    def reason(self) -> str:
        return "SchedulerError" if self.is_error else "Unschedulable"


def failure_of(decision: Decision) -> Failure:
    if decision.error is not None:
        return Failure(decision.error, stack=decision.stack)
    # parity: without any node the pod is Unschedulable, but as nobody rejected it, it backs off like an error
    return Failure(
        decision.message, False, decision.rejectors, decision.pending_plugins, stack=decision.stack
    )


def failure_at(status: Status, plugin: str, doing: str, stack: str = "") -> Failure:
    """The failure of a pod that a plugin rejected after its node was chosen."""
    if status.code.is_rejection:
        message = fit_message(1, "", dict.fromkeys(status.reasons, 1))
        return Failure(message, False, frozenset((plugin,)) if plugin else frozenset())
    text = f'{doing} "{plugin}": {status.message}' if plugin else f"{doing}: {status.message}"
    return Failure(text, stack=stack)


NO_WAKES: Mapping[str, str] = {}


class DecisionRecorder:
    def __init__(self, decisions: Decisions, now: Callable[[], float], clock: Callable[[], float]) -> None:
        self.decisions, self._now, self._clock = decisions, now, clock
        self._wakes: WeakKeyDictionary[Profile, dict[frozenset[str], Mapping[str, str]]] = WeakKeyDictionary()

    def record_bound(self, attempt: Attempt) -> None:
        self._record(attempt, Outcome.SCHEDULED)

    def record_failed(self, attempt: Attempt, failure: Failure) -> None:
        outcome = Outcome.ERROR if failure.is_error else Outcome.UNSCHEDULABLE
        plugins = failure.rejectors | failure.pending
        self._record(attempt, outcome, failure.message, self.describe_wakes(attempt.profile, plugins))

    def describe_wakes(self, profile: Profile, plugins: frozenset[str]) -> Mapping[str, str]:
        """By plugin, the events that would requeue a pod that it rejected."""
        known = self._wakes.setdefault(profile, {})
        if plugins not in known:
            known[plugins] = wakes(profile, plugins)
        return known[plugins]

    def _record(
        self, attempt: Attempt, outcome: Outcome, message: str = "", woken_by: Mapping[str, str] = NO_WAKES
    ) -> None:
        seconds = self._clock() - attempt.began
        recorded = RecordedAttempt(
            attempt.profile.scheduler_name,
            attempt.queued.attempts,
            self._now() - seconds,
            seconds,
            outcome,
            message,
            woken_by,
        )
        self.decisions.keep(attempt.decision, recorded)


FIRST_PAUSE, LONGEST_PAUSE = 1.0, 10.0
MAX_REJECTIONS = 5
"""A server that has just started rejects, for lack of roles, what it allows a moment later."""
LONGEST_WAIT = 15 * 60.0


@dataclass(slots=True, kw_only=True)
class Shared:
    """One event loop, no locks: state changes between two awaits, never across one."""

    api: ApiClient
    metrics: Metrics
    now: Callable[[], float] = time.time
    """The time of day, for what people and other programs read."""
    clock: Callable[[], float] = time.time
    """What is measured and waited by: it does not jump when someone sets the time of day."""
    is_leading: Callable[[], bool] = lambda: True
    recorder: DecisionRecorder | None = None
    """Records decisions; None if they are not kept."""
    cluster: Cluster = field(default_factory=Cluster)
    pending: dict[str, Pod] = field(default_factory=dict)
    """Pods of ours without a node, as last seen, by uid."""
    nominations: Nominations = field(default_factory=Nominations)
    waiting: WaitingPods = field(default_factory=lambda: WaitingPods())
    changes: DeferredChanges = field(default_factory=lambda: DeferredChanges())
    tasks: BackgroundTasks = field(default_factory=lambda: BackgroundTasks())


class BackgroundTasks:
    """Background work: bindings, evictions, status updates. Failures are logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_ending = False
        """Whether work may be cancelled because the process, or this configuration, is ending."""
        self.defers_plain = False
        """Whether plain work waits for `run_deferred`: a replay, where writes take no time, saves tasks."""
        self._deferred: deque[tuple[Coroutine[Any, Any, None], str]] = deque()

    def __len__(self) -> int:
        return len(self._tasks) + len(self._deferred)

    def start(self, work: Coroutine[Any, Any, None], what: str, *, is_plain: bool = False) -> None:
        """Plain work waits for nothing but the API client, and does not look at its task."""
        if is_plain and self.defers_plain:
            self._deferred.append((work, what))
            return
        task = asyncio.create_task(work, name=what)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    def run_deferred(self) -> None:
        while self._deferred:
            work, what = self._deferred.popleft()
            try:
                waited = work.send(None)
            except StopIteration:
                continue
            except Exception as error:
                _report_failed(error, what)
            else:
                self.start(_resume(work, waited), what)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            if not self.is_ending:
                log.error("Background work was cancelled", None, work=task.get_name())
        elif (error := task.exception()) is not None:
            _report_failed(error, task.get_name())

    async def finish(self, seconds: float) -> None:
        """Wait for the work, but not longer than this, then cancel the rest."""
        if self._tasks and seconds > 0:
            await asyncio.wait(tuple(self._tasks), timeout=seconds)
        self.is_ending = True
        for task in tuple(self._tasks):
            task.cancel()
        while self._deferred:
            self._deferred.pop()[0].close()


def _report_failed(error: BaseException, what: str) -> None:
    log.error("Background work failed", describe(error), work=what, stacktrace=stack_of(error))


@coroutine
def _resume(work: Coroutine[Any, Any, None], waited: object) -> Generator[Any, Any, None]:
    """The rest of a coroutine that waits for something."""
    while True:
        try:
            value = yield waited
        except BaseException as error:
            step = partial(work.throw, error)
        else:
            step = partial(work.send, value)
        try:
            waited = step()
        except StopIteration:
            return


class DeferredChanges:
    """Changes of the cluster and the nominations, deferred while a decision waits for extenders."""

    def __init__(self) -> None:
        self.is_deferring = False
        self._later: deque[Callable[[], None]] = deque()

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Changes wait until the end of it, and are then made in their order."""
        self.is_deferring = True
        try:
            yield
        finally:
            self.is_deferring = False
            while self._later:
                self._make(self._later.popleft())

    def make(self, change: Callable[[], None]) -> None:
        """Make a change now, unless changes are deferred."""
        if self.is_deferring:
            self._later.append(change)
        else:
            change()

    def _make(self, change: Callable[[], None]) -> None:
        try:
            change()
        except Exception as error:  # it would fail again, and those after it matter too
            log.error("Deferred change failed; continuing with the next", error)


class RetryDelay:
    """When to retry what the API server rejected or did not answer: after pauses that grow."""

    def __init__(self) -> None:
        self._next_pause, self._rejections = FIRST_PAUSE, 0

    async def pause(self, error: ApiError) -> bool:
        """Wait before the next attempt; False if another one is pointless."""
        self._rejections += not error.may_pass
        if self._rejections > MAX_REJECTIONS:
            return False
        await asyncio.sleep(self._next_pause)
        self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)
        return True


class WaitingPod:
    """A pod that permit plugins hold back between the choice of its node and its binding.

    The first outcome counts.
    """

    def __init__(self, pod: Pod, timeouts: Mapping[str, float]) -> None:
        self.pod = pod
        self._plugins = set(timeouts)
        self._outcome: asyncio.Future[Status | None] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        self._timers = [
            loop.call_later(min(seconds, LONGEST_WAIT), self._time_out, plugin, min(seconds, LONGEST_WAIT))
            for plugin, seconds in timeouts.items()
        ]

    @property
    def plugins(self) -> tuple[str, ...]:
        """The plugins that have not allowed it yet."""
        return tuple(sorted(self._plugins))

    def allow(self, plugin: str = "") -> None:
        self._plugins.discard(plugin)
        if not self._plugins:
            self._end(None)

    def reject(self, plugin: str, message: str) -> None:
        """Rejects the pod. Raises TypeError, in the plugin that calls it, for anything but text."""
        if type(plugin) is not str:
            raise TypeError(f"expected the name of a plugin, got {format_value(plugin)}")
        self._end(Status(Code.UNSCHEDULABLE, (reason_of(message),), plugin))

    def preempt(self, message: str) -> bool:
        """Ends the wait with an error; whether it was still waiting."""
        return self._end(Status.error(message))

    async def outcome(self) -> Status | None:
        """None once all plugins allow it."""
        return await self._outcome

    def _time_out(self, plugin: str, seconds: float) -> None:
        self.reject(plugin, f"rejected due to timeout after waiting {seconds:g}s at plugin {plugin}")

    def _end(self, status: Status | None) -> bool:
        if self._outcome.done():
            return False
        for timer in self._timers:
            timer.cancel()
        self._outcome.set_result(status)
        return True


class WaitingPods:
    """All waiting pods of all profiles, by uid."""

    def __init__(self) -> None:
        self._pods: dict[str, WaitingPod] = {}

    def __iter__(self) -> Iterator[WaitingPod]:
        return iter(tuple(self._pods.values()))

    def find(self, uid: str) -> WaitingPod | None:
        return self._pods.get(uid)

    def put(self, waiting: WaitingPod) -> None:
        self._pods[waiting.pod.uid] = waiting

    def remove(self, uid: str) -> None:
        self._pods.pop(uid, None)
