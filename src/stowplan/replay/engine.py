"""The replay: the scheduler itself, on a virtual clock and without an API server.

Time jumps from one event to the next, and deciding takes no time of that clock. The `Scheduler` is the one
of `stowplan run`: its queue, its cycle, its binder. Only the API client is another one (`ReplayApi`), which
makes each write happen at once, and shows it to the scheduler as a watch would."""

from __future__ import annotations

import asyncio
import gc
import heapq
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from random import Random
from time import perf_counter
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from stowplan import log
from stowplan.api.kinds import KINDS
from stowplan.api.manifests import GROUP_OF
from stowplan.api.meta import Condition, Object, decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.api.storage import BIND_COMPLETED, SELECTED_NODE, PersistentVolume, PersistentVolumeClaim
from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection
from stowplan.client.errors import NotFound
from stowplan.client.events import EventRecorder, Regarding
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.cycle.planner import DEFAULT_CONFIG
from stowplan.cycle.schedule import TieBreak, draw_ties, first_by_name
from stowplan.errors import InputError
from stowplan.explain.report import explain_decision
from stowplan.explain.text import render
from stowplan.framework.decision import Decision
from stowplan.framework.observer import OFFLINE_GUARD
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import watched_kinds
from stowplan.http11.client import Reply
from stowplan.journal import Attempt, Decisions, Outcome
from stowplan.metrics import Metrics
from stowplan.queue.waiting import Place, QueuedPod
from stowplan.replay.order import RecordedOrder, in_queue_order, recorded_nodes
from stowplan.replay.results import PodResult, Results, Samples
from stowplan.replay.trace import Event, Trace
from stowplan.scheduler.guard import Guard
from stowplan.scheduler.scheduler import FLUSH_UNSCHEDULABLE_SECONDS, Scheduler, Settings

Departures = Literal["run-time", "recorded", "never"]
Progress = Callable[[int, int], None]
MAX_IN_UNSCHEDULABLE = 300.0
PROGRESS_EVENTS = 500
NEVER = math.inf
T = TypeVar("T", bound=Object)


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    seed: int | None = None
    """Draws among equally good nodes; without one the first by name is taken."""
    departures: Departures = "run-time"
    """When pods leave: after the time that they ran when recorded, at the recorded time, or never."""
    retry: bool = True
    """Without it, a pod that does not fit is dropped."""
    prefers_recorded: bool = False
    """Whether the recorded node wins where it is among the best."""
    as_recorded: bool = False
    """Decide nothing: bind pods as recorded."""
    eviction_seconds: float = 0.0
    """How long an evicted pod takes to end."""
    samples: int = 200
    """How many times, evenly spread, the state of the cluster is measured."""
    explained: frozenset[str] = frozenset()
    """Pods, by id, whose decisions are explained in the results."""


def replay(
    trace: Trace,
    config: KubeSchedulerConfiguration | None = None,
    *,
    registry: Registry | None = None,
    options: ReplayOptions | None = None,
    on_progress: Progress = lambda done, total: None,
) -> Results:
    """Run a trace through a configuration. The same arguments give the same results."""
    if not trace.events:
        raise InputError("has no events", where=trace.source)
    registry = registry or Registry.installed()
    config = config or load(DEFAULT_CONFIG, registry).config
    found: list[Results] = []
    with collect_rarely(), asyncio.Runner(loop_factory=partial(VirtualLoop, trace.start)) as runner:
        runner.run(_run(trace, config, registry, options or ReplayOptions(), on_progress, found.append))
    return found[0]


@contextmanager
def collect_rarely() -> Iterator[None]:
    """A replay makes many objects that stay and few cycles, so the garbage collector finds little."""
    before = gc.get_threshold()
    gc.set_threshold(20_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def _run(
    trace: Trace,
    config: KubeSchedulerConfiguration,
    registry: Registry,
    options: ReplayOptions,
    on_progress: Progress,
    on_results: Callable[[Results], None],
) -> None:
    """Returns nothing: at the end `asyncio.Runner` makes a text of what its task has returned."""
    replaying = Replay(trace, config, registry, options)
    with log.only_warnings(errors=False):  # a line for each attempt would be too many; results have them
        on_results(await replaying.run(on_progress))


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time jumps to the next timer as soon as nothing is left to do. It has no
    sockets."""

    _scheduled: list[asyncio.TimerHandle]  # private to asyncio, which offers no clock to replace
    _ready: Any

    def __init__(self, start: float) -> None:
        super().__init__()
        self._now = start
        self._selector = self

    def time(self) -> float:
        return self._now

    @property
    def is_idle(self) -> bool:
        """Whether nothing else is to be done at this time."""
        return not self._ready

    def jump(self, time: float) -> bool:
        """Move on to a time at once; False if something is to be done before."""
        if self._ready or self.next_timer <= time:
            return False
        self._now = time
        return True

    @property
    def next_timer(self) -> float:
        while self._scheduled and self._scheduled[0].cancelled():
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
        return self._scheduled[0].when() if self._scheduled else NEVER

    def select(self, timeout: float | None) -> tuple[()]:
        """Called by asyncio in the place of a selector's method."""
        if timeout is None:
            raise RuntimeError("the replay cannot continue: no event or timer is left that could unblock it")
        if timeout > 0:
            self._now = max(self._now, self.next_timer)
        return ()

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class ReplayApi(ApiClient):
    """An API server as far as the scheduler writes to one: each write is done at once."""

    def __init__(self) -> None:
        super().__init__(Connection("http://replay.invalid"))
        self.host: Replay

    async def create_binding(self, pod: Pod, node_name: str) -> None:
        self.host.bind(pod.uid, node_name)

    async def patch_pod_status(self, pod: Pod, patch: dict[str, Any]) -> None:
        self.host.patch_status(pod, patch.get("status") or {})

    async def delete(self, item: Pod | Object, *, grace_seconds: int | None = None) -> None:
        if isinstance(item, Pod):
            self.host.evict(item.uid)
        else:
            self.host.put(item, None)

    async def create(self, item: T) -> T:
        return self.host.write(item)

    async def apply(self, item: T, *, field_manager: str, subresource: str = "") -> T:
        return self.host.write(item)

    async def update(self, item: T) -> T:
        return self.host.write(item)

    async def update_status(self, item: T) -> T:
        return self.host.write(item)

    async def request(self, method: str, path: str, body: object = None, **_: object) -> Reply:
        """Accept writes that nothing here reads, such as the status of pod groups."""
        if method == "GET":
            raise NotFound(404, "NotFound", f"{path} is not part of the replay")
        return Reply(200, b"{}")


class _NoMetrics(Metrics):
    """Does not count what is counted for every pod: it is not read."""

    are_read = False


def _ignore(metrics: Metrics, *_: object, **__: object) -> None:
    pass


for _name in (
    *("algorithm", "attempt", "event_handled", "extension_point", "extension_point_at_once"),
    *("hint_asked", "inflight_events", "plugin_evaluated", "plugin_executed", "pod_queued", "pod_scheduled"),
    *("running", "unschedulable"),
):
    setattr(_NoMetrics, _name, _ignore)


class _OfflineGuard(Guard):
    """Interrupts plugins that loop, without signals, which belong to whoever replays."""

    enter = staticmethod(OFFLINE_GUARD.enter)
    leave = staticmethod(OFFLINE_GUARD.leave)


class _NoEvents(EventRecorder):
    def record(self, item: Pod | Object | Regarding, kind: str, reason: str, action: str, note: str) -> None:
        pass


class _Attempts(Decisions):
    """Hands each decision on instead of keeping it."""

    def __init__(self, on_attempt: Callable[[Decision, Attempt], None]) -> None:
        super().__init__(0)
        self._on_attempt = on_attempt

    def keep(self, decision: Decision, attempt: Attempt) -> None:
        self._on_attempt(decision, attempt)


class Replay:
    """One run of one trace, inside a VirtualLoop."""

    def __init__(
        self,
        trace: Trace,
        config: KubeSchedulerConfiguration,
        registry: Registry,
        options: ReplayOptions,
    ) -> None:
        self.trace, self.options = trace, options
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        api = ReplayApi()
        api.host = self
        metrics = _NoMetrics()
        self._order = RecordedOrder(trace, loop.time) if options.prefers_recorded else None
        settings = Settings(
            registry=registry,
            metrics=metrics,
            guard=_OfflineGuard(metrics),
            now=loop.time,
            clock=loop.time,
            tie_break=self._tie_break(),
            decisions=_Attempts(self._on_attempt),
            event_recorder=_NoEvents,
            takes_pods=not options.as_recorded,
            owns_process=False,
            max_in_unschedulable=MAX_IN_UNSCHEDULABLE,
        )
        config = msgspec.structs.replace(config, extenders=())
        self.scheduler = Scheduler(config, api, api, settings)
        if self._order is not None:
            self._order.follow(self.scheduler)
        self._queue, self._cluster = self.scheduler.queue, self.scheduler.cluster
        self._tasks = self.scheduler.shared.tasks
        self._tasks.defers_plain = True
        self.scheduler.binder.write_at_once = lambda pod, node_name: self.bind(pod.uid, node_name)
        self._names = frozenset(self.scheduler.profiles)
        self._kinds = self._decoders()
        self._objects: dict[tuple[type[Object], str], Object] = {}
        self._pods: dict[str, Pod] = {}
        """Pods that are there, as an API server would have them, by uid."""
        self._run_times = trace.run_times() if options.departures == "run-time" else {}
        self._preempted, self._replacements = trace.preempted(), trace.replacements()
        self._victims = {made: victim for victim, made in self._replacements.items()}
        self._continued: dict[str, str] = {}
        """Pods that did not arrive, because the pod that they were made for was not evicted in the replay."""
        self._starts = trace.starts()
        self._recorded = recorded_nodes(trace)
        self._departures: list[tuple[float, int, str]] = []
        self._numbers = count()
        self._versions = count(1)
        self._interrupts = 0
        """How many calls were interrupted before the last decision, as of `pod_added`."""
        self._overdue = ""
        """Which plugin was interrupted in a decision, if one was."""
        self._dropped: list[str] = []
        self._changed_at = trace.start
        self._flushed_at = trace.start
        self.results = Results(source=trace.source, start=trace.start, end=trace.end)
        self._by_id: dict[str, PodResult] = {}
        self.samples = Samples(self.results, trace, self._cluster.nodes, options.samples)

    def _decoders(self) -> dict[tuple[str, str], type[Object]]:
        """The kinds that plugins watch, by API version and kind; those that the trace has are served."""
        found: dict[tuple[str, str], type[Object]] = {}
        plugins = [each for profile in self.scheduler.profiles.values() for each in profile.plugins.values()]
        present = {(event.api_version, event.kind) for event in self.trace.events}
        for kind in watched_kinds(plugins):
            definition = kind.definition
            found[definition.api_version, definition.kind] = kind
            if (definition.api_version, definition.kind) in present:
                self._cluster.watched(kind).is_served = True
        return found

    def _tie_break(self) -> TieBreak:
        seed = self.options.seed
        plain = first_by_name if seed is None else draw_ties(Random(seed), by_name=True)
        return plain if self._order is None else self._order.tie_break(plain)

    async def run(self, on_progress: Progress) -> Results:
        events, position, total = in_queue_order(self.trace.events), 0, len(self.trace.events)
        while True:
            due = events[position].time if position < total else NEVER
            due = min(due, self._departures[0][0] if self._departures else NEVER, self._next_tick())
            if due == NEVER:
                break
            if due > self._loop.time():
                self.samples.advance(due)
                if not self._loop.jump(due):
                    await self._sleep_until(due)
            now = self._loop.time()
            while self._departures and self._departures[0][0] <= now:
                self._remove(heapq.heappop(self._departures)[2])
            while position < total and events[position].time <= now:
                self._apply(events[position])
                position += 1
                if position % PROGRESS_EVENTS == 0:
                    on_progress(position, total)
            self._flush(now)
            await self._schedule()
        on_progress(total, total)
        await self.scheduler.stop(0)
        return self.samples.finish(self._changed_at, self._by_id.values())

    # Time

    async def _sleep_until(self, time: float) -> None:
        over = self._loop.create_future()
        self._loop.call_at(time, over.set_result, None)
        await over

    def _next_tick(self) -> float:
        """When something is due that is in no trace: backoffs, permits, pods that waited too long."""
        now, due = self._loop.time(), NEVER
        if self._tasks:  # such as a pod that a permit plugin holds
            due = max(self._loop.next_timer, now)
        count_in, unchanged = self._queue.count_in, now - self._changed_at
        # Not for ever: a plugin may always fail.
        if count_in(Place.BACKOFF) and unchanged <= MAX_IN_UNSCHEDULABLE:
            due = min(due, math.floor(now) + 1)
        elif (
            count_in(Place.UNSCHEDULABLE) and unchanged <= MAX_IN_UNSCHEDULABLE + FLUSH_UNSCHEDULABLE_SECONDS
        ):
            # If nothing has changed since, another attempt would end as the last one did.
            step = FLUSH_UNSCHEDULABLE_SECONDS
            due = min(due, (math.floor(now / step) + 1) * step)
        return due

    def _flush(self, now: float) -> None:
        self._queue.flush_backoff()
        if now - self._flushed_at >= FLUSH_UNSCHEDULABLE_SECONDS:
            self._flushed_at = now
            self._queue.flush_unschedulable()

    async def _schedule(self) -> None:
        """Decide pods until none is left that could be attempted now."""
        loop, tasks = self.scheduler.loop, self._tasks
        if tasks:
            await self._settle()
        pop = self._queue.pop_nowait
        if self._order is not None:
            self._order.begin()
            pop = self._order.pop
        while (queued := pop()) is not None:
            await self.before_decision(queued)
            self._interrupts = OFFLINE_GUARD.count_interrupts()
            began = perf_counter()
            loop.schedule_one(queued)
            self.results.decision_seconds.append(perf_counter() - began)
            if tasks:
                await self._settle()
            if self._overdue:  # it would loop with the next pod as well
                raise InputError(self._overdue, where=self.trace.source, what=f"Pod {queued.pod.key}")
            while self._dropped:
                self._remove(self._dropped.pop(), is_dropped=True)

    async def before_decision(self, queued: QueuedPod) -> None:
        """Called before each decision; `stowplan.gym` pauses here."""

    async def _settle(self) -> None:
        """Let bindings, evictions and status updates end that need no time."""
        self._tasks.run_deferred()
        if self._tasks:
            await asyncio.sleep(0)
            while not self._loop.is_idle:
                await asyncio.sleep(0)

    # What the trace says

    def _apply(self, event: Event) -> None:
        self._changed_at = event.time
        if event.kind == "Pod":
            self._apply_pod(event)
            return
        kind = self._kinds.get((event.api_version, event.kind))
        if kind is None and event.api_version.rpartition("/")[0] == GROUP_OF.get(event.kind, ""):
            kind = KINDS.get(event.kind)
        if kind is None:
            ignored = self.results.ignored
            ignored[event.kind] = ignored.get(event.kind, 0) + 1
            return
        if event.verb == "delete":
            key = f"{event.namespace}/{event.name}" if event.namespace else event.name
            known = self._objects.get((kind, key))
            if known is not None:
                self.put(known, None)
        else:
            self.put(None, self._decoded(partial(decode, kind, bytes(event.object)), event))

    def _decoded(self, read: Callable[[], T], event: Event) -> T:
        try:
            return read()
        except InputError as error:
            what = f"{event.kind} {event.namespace}/{event.name} at {event.time:.6f}"
            raise InputError(error.message, where=self.trace.source, what=what, field=error.field) from None

    def _apply_pod(self, event: Event) -> None:
        match event.verb:
            case "add" if self._is_continued(event.id):
                self._continued[event.id] = self._victims[event.id]
            case "add":
                pod: Pod = self._decoded(partial(Pod.decode, bytes(event.object)), event)  # type: ignore[type-var]
                if not pod.is_finished:
                    self._add(pod if pod.uid == event.id else msgspec.structs.replace(pod, uid=event.id))
            case "update":
                known = self._pods.get(event.id)
                if known is not None:
                    new: Pod = self._decoded(partial(Pod.decode, bytes(event.object)), event)  # type: ignore[type-var]
                    kept = {
                        name: getattr(known, name) for name in ("uid", "node_name", "nominated_node_name")
                    }
                    kept |= {
                        "conditions": known.conditions,
                        "phase": known.phase,
                        "start_time": known.start_time,
                    }
                    ends_otherwise = event.id in self._run_times and not self._is_of_others(known)
                    if ends_otherwise or self._runs_on(event.id):
                        kept["deletion_timestamp"] = known.deletion_timestamp
                    self._put_pod(msgspec.structs.replace(new, **kept))
            case "bind":
                known = self._pods.get(event.id)
                if known is not None and not known.node_name and self._is_of_others(known):
                    self.bind(event.id, event.node)
            case "delete" if self._runs_on(event.id):
                pass  # here it ends if this scheduler evicts it
            case "delete" | "finish":
                self._end(self._continued.get(event.id, event.id))

    def _is_continued(self, uid: str) -> bool:
        """Whether a pod was made for one that was preempted when recorded, and is not evicted here."""
        victim = self._victims.get(uid, "")
        return self._runs_on(victim) and not self._pods[victim].is_terminating

    def _runs_on(self, uid: str) -> bool:
        """Whether a pod was preempted when recorded, and has a node here: it does not end as recorded."""
        pod = self._pods.get(uid) if uid in self._preempted else None
        return pod is not None and bool(pod.node_name) and not self._is_of_others(pod)

    def _is_of_others(self, pod: Pod) -> bool:
        """Whether the replay binds the pod as it was recorded."""
        return self.options.as_recorded or pod.scheduler_name not in self._names

    def _end(self, uid: str) -> None:
        """A recorded pod ended; with departures by run time, the end comes that long after its binding."""
        pod = self._pods.get(uid)
        if pod is None or self.options.departures == "never":
            return
        if uid not in self._run_times or self._is_of_others(pod):
            self._remove(uid)

    def _add(self, pod: Pod) -> None:
        found = PodResult(
            pod.uid, pod.namespace, pod.name, self._loop.time(), self._recorded.get(pod.uid, "")
        )
        self._by_id[pod.uid] = found
        if pod.node_name:
            self._start(pod, found)
        else:
            self.samples.pending += 1
        self._pods[pod.uid] = pod
        self.scheduler.handlers.on_event("added", None, pod)

    def _put_pod(self, new: Pod) -> None:
        old, self._pods[new.uid] = self._pods[new.uid], new
        if old.node_name and old.requests is not new.requests:
            self.samples.count(old, -1)
            self.samples.count(new, 1)
        self.scheduler.handlers.on_event("modified", old, new)

    def _start(self, pod: Pod, found: PodResult) -> None:
        now = self._loop.time()
        found.bound, found.node = now, pod.node_name
        self.samples.count(pod, 1)
        if (seconds := self._run_times.get(pod.uid)) is not None:
            heapq.heappush(self._departures, (now + seconds, next(self._numbers), pod.uid))

    def _remove(self, uid: str, *, is_dropped: bool = False) -> None:
        pod = self._pods.pop(uid, None)
        if pod is None:  # evicted before its time was over
            return
        found = self._by_id[uid]
        if pod.node_name:
            self.samples.count(pod, -1)
        else:
            self.samples.pending -= 1
        found.ended, found.is_dropped = self._loop.time(), is_dropped
        self._changed_at = self._loop.time()
        self.scheduler.handlers.on_event("deleted", pod, None)

    # What the scheduler writes

    def bind(self, uid: str, node_name: str) -> None:
        old = self._pods.get(uid)
        if old is None:
            raise NotFound(404, "NotFound", f"pod {uid} is gone")
        now = self._loop.time()
        start = float(math.floor(now))  # as kubelets give it
        if (recorded := self._starts.get(uid)) is not None:
            started, delay = recorded
            start = started if self.options.departures == "recorded" else float(round(now + delay))
        new = msgspec.structs.replace(
            old, node_name=node_name, nominated_node_name="", phase="Running", start_time=start, conditions=()
        )
        self._pods[uid] = new
        self.samples.pending -= 1
        self._start(new, self._by_id[uid])
        self._changed_at = now
        self.scheduler.handlers.on_event("modified", old, new)

    def evict(self, uid: str) -> None:
        """A pod that is preempted, or whose node is gone; its controller makes another one in its place."""
        pod = self._pods.get(uid)
        if pod is None or pod.is_terminating:
            return
        found = self._by_id[uid]
        found.is_evicted = True
        if self.options.eviction_seconds:
            due = self._loop.time() + self.options.eviction_seconds
            heapq.heappush(self._departures, (due, next(self._numbers), uid))
            self._put_pod(msgspec.structs.replace(pod, deletion_timestamp="1970-01-01T00:00:00Z"))
        else:
            self._remove(uid)
        replacement = self._replacements.get(uid)
        if pod.controller is not None and (replacement is None or replacement in self._continued):
            number = next(self._numbers)
            again = {"uid": f"{uid}~{number}", "name": f"{pod.name}-{number}"}
            if uid in self._run_times:
                self._run_times[again["uid"]] = self._run_times[uid]
            fresh = {"node_name": "", "phase": "", "start_time": None, "conditions": ()}
            self._add(msgspec.structs.replace(pod, **again, **fresh))

    def patch_status(self, pod: Pod, status: dict[str, Any]) -> None:
        old = self._pods.get(pod.uid)
        if old is None:
            raise NotFound(404, "NotFound", f"pod {pod.key} is gone")
        changes: dict[str, Any] = {}
        if "nominatedNodeName" in status:
            changes["nominated_node_name"] = status["nominatedNodeName"] or ""
        if "conditions" in status:
            patched = [msgspec.convert(_without_nulls(each), Condition) for each in status["conditions"]]
            types = {each.type for each in patched}
            kept = [each for each in old.conditions if each.type not in types]
            changes["conditions"] = (*kept, *patched)
        self._put_pod(msgspec.structs.replace(old, **changes))

    def write(self, item: T) -> T:
        """Store an object that a plugin wrote, and do what controllers would do about it."""
        meta = msgspec.structs.replace(item.metadata, resource_version=f"replay-{next(self._versions)}")
        item = msgspec.structs.replace(item, metadata=meta)
        self.put(None, item)
        if isinstance(item, PersistentVolume) and (claim := item.spec.claim_ref) is not None:
            self._bind_claim(f"{claim.namespace}/{claim.name}", item.name)
        elif isinstance(item, PersistentVolumeClaim) and SELECTED_NODE in item.metadata.annotations:
            self._provision(item)
        return item

    def _provision(self, claim: PersistentVolumeClaim) -> None:
        name = f"pvc-{claim.metadata.uid or claim.name}"
        spec = {
            "accessModes": list(claim.spec.access_modes),
            "storageClassName": claim.class_name,
            "claimRef": {"namespace": claim.namespace, "name": claim.name, "uid": claim.metadata.uid},
        }
        volume = decode(
            PersistentVolume, {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Bound"}}
        )
        self.put(None, volume)
        self._bind_claim(claim.key, name)

    def _bind_claim(self, key: str, volume: str) -> None:
        claim = self._objects.get((PersistentVolumeClaim, key))
        if isinstance(claim, PersistentVolumeClaim) and not claim.is_fully_bound:
            annotations = {**claim.metadata.annotations, BIND_COMPLETED: "yes"}
            meta = msgspec.structs.replace(claim.metadata, annotations=annotations)
            spec = msgspec.structs.replace(claim.spec, volume_name=volume)
            self.put(None, msgspec.structs.replace(claim, metadata=meta, spec=spec))

    def put(self, old: Object | None, new: Object | None) -> None:
        """Store an object, or remove it if `new` is None, and tell the scheduler."""
        item = new if new is not None else old
        assert item is not None
        place = (type(item), item.key)
        old = self._objects.get(place)
        if new is None:
            self._objects.pop(place, None)
            self.scheduler.handlers.on_event("deleted", old or item, None)
        else:
            self._objects[place] = new
            self.scheduler.handlers.on_event("added" if old is None else "modified", old, new)
        if isinstance(item, NodeObject):
            self.samples.take_nodes()
            if new is None:
                for uid in [uid for uid, pod in self._pods.items() if pod.node_name == item.name]:
                    self.evict(uid)

    def _on_attempt(self, decision: Decision, attempt: Attempt) -> None:
        pod = decision.pod
        found = self._by_id.get(pod.uid)
        if found is None:
            return
        found.attempts += 1
        if attempt.outcome is Outcome.SCHEDULED:
            totals, found.feasible = decision.relative_totals, len(decision.feasible)
            found.ties = 0 if totals is None else int(np.count_nonzero(totals == totals[totals.argmax()]))
        else:
            found.message = attempt.message
            found.is_error = attempt.outcome is Outcome.ERROR
            if found.is_error and OFFLINE_GUARD.count_interrupts() > self._interrupts:
                self._overdue = attempt.message
            if not self.options.retry:
                self._dropped.append(pod.uid)
        if pod.uid in self.options.explained:
            nodes = (
                None if attempt.outcome is Outcome.SCHEDULED else self._cluster.nodes
            )  # it is on one of them
            explained = explain_decision(
                decision,
                nodes,
                attempt.profile,
                seed=self.options.seed,
                plugins=self.scheduler.profiles[attempt.profile].plugins,
            )
            self.results.explanations[pod.uid] = render(explained)


def _without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in value.items() if each is not None}
