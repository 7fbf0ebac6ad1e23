"""Where pods wait, and which plugins keep them there: gates, backoff, hints, attempts under way."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import cache
from itertools import count, islice
from typing import Any, Literal, NamedTuple, Protocol

from stowplan import log
from stowplan.api.pod import LabelSet, Pod
from stowplan.api.selectors import Selector
from stowplan.cluster.pod_table import PodQuery, SelectorIndex
from stowplan.errors import PluginError
from stowplan.framework.answers import plugin_error, status_of
from stowplan.framework.events import Action, ClusterEvent, Hint, Resource
from stowplan.framework.hints import EVERYTHING, AskHint, ObjectChange, QueueingHints
from stowplan.framework.plugin import Plugin
from stowplan.framework.profile import EXTENDER, Profile
from stowplan.framework.status import Code

NOBODY: frozenset[str] = frozenset()
TURNS = count()


class Place(StrEnum):
    """Where a pod waits; pending pods are counted by it."""

    ACTIVE = "active"
    BACKOFF = "backoff"
    UNSCHEDULABLE = "unschedulable"
    GATED = "gated"


@dataclass(slots=True, eq=False)
class QueuedPod:
    pod: Pod
    timestamp: float
    """When it was added, or requeued after a failed attempt."""
    place: Place | None = None
    """None while it is being attempted, and once it is removed."""
    attempts: int = 0
    initial_attempt_timestamp: float | None = None
    """When it could be attempted for the first time."""
    unschedulable_plugins: frozenset[str] = NOBODY
    pending_plugins: frozenset[str] = NOBODY
    """Plugins that wait for something of their own: after that, the pod skips its backoff."""
    gating_plugin: str = ""
    unschedulable_count: int = 0
    consecutive_errors: int = 0
    backoff_expiration: int | None = None
    held_until: float = 0.0
    """The earliest end of its backoff, since its attempts delay other pods."""
    waits_out_backoff: bool = False
    """Whether even an idle scheduler must wait until its backoff is over."""
    nominated_node: str = ""
    """The node it was last nominated to."""
    was_flushed: bool = False
    flush_timestamp: float = 0.0
    turn: int = field(default_factory=TURNS.__next__)
    """Orders pods with the same timestamp, as all have that a replay attempts at one moment."""

    @property
    def rejectors(self) -> frozenset[str]:
        return self.unschedulable_plugins | self.pending_plugins


POD_ADDED = "UnschedulablePodAdd"
POD_UPDATED = "UnschedulablePodUpdate"
ATTEMPT_FAILED = "ScheduleAttemptFailure"
BACKOFF_COMPLETE = "BackoffComplete"
POPPED_FROM_BACKOFF = "PopFromBackoffQ"
FORCE_ACTIVATE = "ForceActivate"
TIMED_OUT = "UnschedulableTimeout"
POD_POPPED = "PodPopped"


class Recorder(Protocol):
    """Counts what the queue does. For the number of pending pods, ask the queue for `counts()`."""

    def pod_queued(self, event: str, queue: str) -> None: ...
    def unschedulable(self, plugin: str, profile: str, change: int) -> None: ...
    def inflight_events(self, event: str, change: int) -> None: ...
    def hint_asked(
        self, event: str, hint: Literal["Queue", "QueueSkip"], plugin: str, seconds: float
    ) -> None: ...
    def extension_point(self, point: str, profile: str, status: str, seconds: float) -> None: ...


@cache
def label_of(event: ClusterEvent) -> str:
    """`NodeAdd`, `AssignedPodUpdatePodLabel`."""
    words = (event.action.name or "").split("_")
    return str(event.resource) + "".join(word.capitalize() for word in words)


Entry = tuple[Any, int, int, QueuedPod]
SLACK = 100
"""Fewer entries of removed pods than this are not worth cleaning up."""


class Heap:
    """A heap of pods from which any can be removed; equal ones come in the order of their turns."""

    def __init__(self, order: Callable[[QueuedPod], Any]) -> None:
        self._order = order
        self._heap: list[Entry] = []
        self._entries: dict[QueuedPod, Entry] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, queued: QueuedPod) -> bool:
        return queued in self._entries

    def push(self, queued: QueuedPod) -> None:
        """Add a pod, or move it if its order has changed."""
        order = self._order(queued)
        known = self._entries.get(queued)
        if known is None or known[0] != order:
            entry = (order, queued.turn, next(self._numbers), queued)
            heapq.heappush(self._heap, entry)  # which compares orders that plugins made, and may fail
            self._entries[queued] = entry
            self._tidy()

    def remove(self, queued: QueuedPod) -> None:
        """Remove a pod; its entry stays until it is the first, and is dropped then."""
        del self._entries[queued]
        self._tidy()

    def reorder(self) -> None:
        """Ask for the order of every pod again: old and new keys may not be comparable."""
        pods, self._heap, self._entries = list(self._entries), [], {}
        for queued in pods:
            self.push(queued)

    def first(self) -> QueuedPod | None:
        while self._heap:
            entry = self._heap[0]
            if self._entries.get(entry[3]) is entry:
                return entry[3]
            heapq.heappop(self._heap)
        return None

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + SLACK:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)


class BackoffQueue:
    def __init__(
        self,
        order: Callable[[QueuedPod], Any],
        *,
        clock: Callable[[], float],
        initial: float,
        longest: float,
    ) -> None:
        self._clock, self._initial, self._longest = clock, initial, longest
        self._rejected = Heap(lambda queued: (self._expiration(queued), order(queued)))
        self._failed = Heap(self._expiration)

    def push(self, queued: QueuedPod) -> None:
        must_wait = queued.waits_out_backoff or not queued.rejectors
        (self._failed if must_wait else self._rejected).push(queued)

    def remove(self, queued: QueuedPod) -> None:
        (self._failed if queued in self._failed else self._rejected).remove(queued)

    def reorder(self) -> None:
        self._rejected.reorder()

    def first_rejected(self) -> QueuedPod | None:
        """The next pod that may be attempted before its backoff is over."""
        return self._rejected.first()

    def over(self) -> Iterator[QueuedPod]:
        """Pods whose backoff is over; remove each before asking for the next."""
        for heap in (self._rejected, self._failed):
            while (queued := heap.first()) is not None and not self.is_backing_off(queued):
                yield queued

    def is_backing_off(self, queued: QueuedPod) -> bool:
        # parity: whole seconds, and the second in which the backoff ends still counts
        return self._expiration(queued) >= math.floor(self._clock())

    def _expiration(self, queued: QueuedPod) -> float:
        count = queued.consecutive_errors or queued.unschedulable_count
        if count == 0 or self._longest == 0:
            return -math.inf
        if queued.backoff_expiration is None:
            ends = max(queued.timestamp + self._duration(count), queued.held_until)
            queued.backoff_expiration = math.floor(ends)
        return queued.backoff_expiration

    def _duration(self, count: int) -> float:
        """The backoff doubles with every attempt, up to the longest."""
        doublings = count - 1
        if self._initial > math.ldexp(self._longest, -doublings):
            return self._longest
        return math.ldexp(self._initial, doublings)


AwaitedPods = Callable[[str, str, Pod], tuple[PodQuery, ...] | None]
"""The pods that can help one that a plugin of a profile rejected; None for any."""
ANY_POD = PodQuery(None, Selector())


class Awaiting(NamedTuple):
    """A pod that waits, and pods that can help it."""

    queued: QueuedPod
    query: PodQuery


class UnschedulablePods:
    def __init__(self, awaited_pods: AwaitedPods) -> None:
        self._awaited_pods = awaited_pods
        self._waits_for: dict[QueuedPod, tuple[tuple[str, str], ...]] = {}
        self._waiting: defaultdict[tuple[str, str], dict[QueuedPod, None]] = defaultdict(dict)
        """By profile and plugin, in order of arrival."""
        self._by_labels: dict[tuple[str, str], SelectorIndex[Awaiting]] = {}
        """The same for plugins that say which pods can help, by the labels of these."""
        self._indexed: dict[QueuedPod, list[tuple[SelectorIndex[Awaiting], Awaiting]]] = {}
        self._by_claim: defaultdict[str, dict[QueuedPod, None]] = defaultdict(dict)
        """Those that name a claim, by its key."""
        self._claims: dict[QueuedPod, tuple[str, ...]] = {}

    def __iter__(self) -> Iterator[QueuedPod]:
        return iter(self._waits_for)

    def __len__(self) -> int:
        return len(self._waits_for)

    def push(self, queued: QueuedPod) -> None:
        """A gated pod waits for its gating plugin alone, any other for all plugins that rejected it."""
        plugins = (queued.gating_plugin,) if queued.gating_plugin else queued.rejectors
        keys = tuple((queued.pod.scheduler_name, plugin) for plugin in plugins)
        self._waits_for[queued] = keys
        if names := tuple(name for name in queued.pod.claim_names if name):
            self._claims[queued] = tuple(f"{queued.pod.namespace}/{name}" for name in names)
            for claim in self._claims[queued]:
                self._by_claim[claim][queued] = None
        for key in keys:
            self._waiting[key][queued] = None
            queries = self._awaited_pods(*key, queued.pod)
            if queries is not None or key in self._by_labels:
                self._index(key, queued, (ANY_POD,) if queries is None else queries)

    def _index(self, key: tuple[str, str], queued: QueuedPod, queries: Iterable[PodQuery]) -> None:
        index = self._by_labels.get(key)
        if index is None:
            index = self._by_labels[key] = SelectorIndex()
            for other in self._waiting[key]:
                if other is not queued:
                    self._index(key, other, (ANY_POD,))
        for query in queries:
            entry = Awaiting(queued, query)
            index.add(query.selector, query.namespaces, entry)
            self._indexed.setdefault(queued, []).append((index, entry))

    def remove(self, queued: QueuedPod) -> None:
        for key in self._waits_for.pop(queued):
            del self._waiting[key][queued]
        for index, entry in self._indexed.pop(queued, ()):
            index.remove(entry)
        for claim in self._claims.pop(queued, ()):
            self._by_claim[claim].pop(queued, None)
            if not self._by_claim[claim]:
                del self._by_claim[claim]

    def waiting_for(
        self, profile: str, plugins: Iterable[str], changed: Collection[LabelSet] | None
    ) -> Iterator[QueuedPod]:
        """Pods that wait for any of these plugins; those that wait for several come more than once.

        `changed` has the labels of the pod that changed, before and after; None if something else did.
        """
        if self._waits_for:
            for plugin in plugins:
                index = None if changed is None else self._by_labels.get((profile, plugin))
                if index is None or changed is None:
                    yield from self._waiting.get((profile, plugin), ())
                else:
                    for labels in changed:
                        for queued, query in index.candidates(labels):
                            if query.matches(labels):
                                yield queued

    def naming_claim(self, profile: str, plugins: Collection[str], claim: str) -> Iterator[QueuedPod]:
        """Pods that wait for any of these plugins and name the claim with this key."""
        for queued in self._by_claim.get(claim, ()):
            if any(name == profile and plugin in plugins for name, plugin in self._waits_for[queued]):
                yield queued


class Flight(NamedTuple):
    queued: QueuedPod
    start: int
    """The number of the first change after the pod was popped."""


class InFlight:
    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        self._flights: OrderedDict[str, Flight] = OrderedDict()
        self._events: deque[tuple[ObjectChange, str]] = deque()
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, uid: str) -> bool:
        return uid in self._flights

    def find(self, uid: str) -> QueuedPod | None:
        flight = self._flights.get(uid)
        return flight and flight.queued

    def start(self, queued: QueuedPod) -> None:
        self._flights[queued.pod.uid] = Flight(queued, self._dropped + len(self._events))
        self._count(POD_POPPED, 1)

    def record(self, change: ObjectChange, label: str) -> None:
        """Keep a change for the pods that are being attempted now."""
        if self._flights:
            self._events.append((change, label))
            self._count(label, 1)

    def end(self, uid: str) -> list[ObjectChange] | None:
        """The changes since the pod was popped; None if they are not kept for it any more."""
        flight = self._flights.pop(uid, None)
        if flight is None:
            return None
        self._count(POD_POPPED, -1)
        changes = [each for each, _ in islice(self._events, flight.start - self._dropped, None)]
        self._drop_events()
        return changes

    def _drop_events(self) -> None:
        oldest = next(iter(self._flights.values()), None)
        while self._events and (oldest is None or self._dropped < oldest.start):
            _, label = self._events.popleft()
            self._dropped += 1
            self._count(label, -1)

    def _count(self, event: str, change: int) -> None:
        if self._recorder is not None:
            self._recorder.inflight_events(event, change)


WILDCARD = ClusterEvent(Resource.WILDCARD, Action.ALL)
GIVEN_UP = ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE)


class Strategy(IntEnum):
    """What to do with a waiting pod; higher is better."""

    SKIP = 0
    AFTER_BACKOFF = 1
    IMMEDIATELY = 2


class Listeners:
    def __init__(
        self,
        hints: Mapping[str, QueueingHints],
        *,
        clock: Callable[[], float],
        recorder: Recorder | None,
    ) -> None:
        self._hints, self._clock, self._recorder = hints, clock, recorder
        self._found: dict[tuple[str, ClusterEvent], Mapping[str, AskHint]] = {}
        self._by_spec: dict[tuple[frozenset[str], frozenset[str]], bool] = {}

    def of(self, profile: str, event: ClusterEvent) -> Mapping[str, AskHint]:
        """The plugins of a profile that registered for an event, each with how to ask it."""
        key = (profile, event)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._look_up(profile, event)
        return found

    def helped_by(self, profile: str, change: ObjectChange) -> tuple[Iterable[str], Iterable[Pod]]:
        """The plugins to ask about all pods that they rejected, and the pods to ask the others about."""
        plugins, pods = self._hints[profile].helped_by(change)
        return (*plugins, *self.of(profile, change.event).keys() & {EXTENDER}), pods

    def by_claim(self, profile: str, change: ObjectChange) -> frozenset[str]:
        """The plugins of the profile to ask only about pods that name the claim that has changed."""
        return self._hints[profile].by_claim(change)

    def awaited_pods(self, profile: str, plugin: str, pod: Pod) -> tuple[PodQuery, ...] | None:
        """The pods that can help one that a plugin of the profile rejected; None for any."""
        hints = self._hints.get(profile)
        return None if hints is None else hints.awaited_pods(plugin, pod)

    def strategy(self, queued: QueuedPod, change: ObjectChange) -> Strategy:
        """Whether the change makes the pod worth another attempt."""
        event, old, new = change
        uid = queued.pod.uid
        if event == WILDCARD:
            return Strategy.SKIP if isinstance(new, Pod) and new.uid != uid else Strategy.AFTER_BACKOFF
        if event.resource is Resource.UNSCHEDULABLE_POD and new.uid != uid:
            return Strategy.SKIP
        if event == GIVEN_UP and not old.node_name and (old.uid == uid or old.priority < queued.pod.priority):
            # Nominated capacity was already visible to higher-priority pods.
            return Strategy.SKIP
        return self.answer(queued, change)

    def is_by_spec(self, queued: QueuedPod) -> bool:
        """Whether what is decided for the pod holds for all that are alike."""
        key = (queued.unschedulable_plugins, queued.pending_plugins)
        found = self._by_spec.get(key)
        if found is None:
            rejectors = queued.rejectors - {EXTENDER}
            found = self._by_spec[key] = all(rejectors <= each.by_spec for each in self._hints.values())
        return found

    def answer(self, queued: QueuedPod, change: ObjectChange) -> Strategy:
        """What the plugins that rejected the pod say."""
        listeners = self.of(queued.pod.scheduler_name, change.event)
        best = Strategy.SKIP
        for name in queued.rejectors:
            ask = listeners.get(name)
            if ask is not None and self._ask(name, ask, queued.pod, change) is Hint.QUEUE:
                if name in queued.pending_plugins:
                    return Strategy.IMMEDIATELY
                best = Strategy.AFTER_BACKOFF
                if not queued.pending_plugins:
                    break
        return best

    def _look_up(self, profile: str, event: ClusterEvent) -> Mapping[str, AskHint]:
        found = dict(self._hints[profile].listeners(event)) if profile in self._hints else {}
        if any(wanted.covers(event) for wanted in EVERYTHING):
            found[EXTENDER] = _always_queue
        return found

    def _ask(self, name: str, ask: AskHint, pod: Pod, change: ObjectChange) -> Hint:
        event, old, new = change
        if self._recorder is None:
            return ask(pod, event, old, new)
        started = self._clock()
        hint = ask(pod, event, old, new)
        seconds = self._clock() - started
        self._recorder.hint_asked(
            label_of(event), "Queue" if hint is Hint.QUEUE else "QueueSkip", name, seconds
        )
        return hint


def _always_queue(pod: Pod, event: ClusterEvent, old: object, new: object) -> Hint:
    return Hint.QUEUE


OnFault = Callable[[Pod, PluginError], None]


OnGated = Callable[[Pod, Plugin], None]
"""Called with a pod that a plugin holds back, and the plugin."""


def ignore_gate(pod: Pod, plugin: Plugin) -> None:
    pass


def log_fault(pod: Pod, error: PluginError) -> None:
    log.error("Plugin failed", error, pod=pod, stacktrace=error.stack)


class Gates:
    def __init__(self, profiles: Mapping[str, Profile], on_fault: OnFault, on_gated: OnGated) -> None:
        self._on_fault, self._on_gated = on_fault, on_gated
        self._observers = {name: profile.observer for name, profile in profiles.items()}
        self._gates = {name: dict(profile.at("preEnqueue")) for name, profile in profiles.items()}

    def find_gate(self, pod: Pod, previous: str) -> str:
        """The plugin that holds the pod back, if any; the previous one is asked first."""
        gates = self._gates.get(pod.scheduler_name, {})
        if previous in gates and not self._passes(previous, gates[previous], pod):
            return previous
        for name, plugin in gates.items():
            if name != previous and not self._passes(name, plugin, pod):
                return name
        return ""

    def message(self, pod: Pod, name: str) -> str:
        """What a plugin says of a pod that it holds back."""
        plugin = self._gates.get(pod.scheduler_name, {}).get(name)
        if plugin is None:
            return ""
        try:
            with self._observers[pod.scheduler_name].calling("PreEnqueue", plugin):
                status = status_of("pre_enqueue", plugin.pre_enqueue(pod))
        except BaseException as error:
            return str(plugin_error(_call_text(name), error, pod, method=(plugin, "pre_enqueue")))
        return "" if status is None else status.message

    def _passes(self, name: str, plugin: Plugin, pod: Pod) -> bool:
        """Whether the plugin lets the pod pass; one that fails does not."""
        observer = self._observers[pod.scheduler_name]
        observer.enter("PreEnqueue", plugin)
        fault: PluginError | None = None
        try:
            status = status_of("pre_enqueue", plugin.pre_enqueue(pod))
        except BaseException as error:
            fault = plugin_error(_call_text(name), error, pod, method=(plugin, "pre_enqueue"))
        finally:
            observer.leave("PreEnqueue", plugin)
        if fault is not None:
            self._on_fault(pod, fault)
            return False
        if status is not None and status.code is Code.ERROR:
            self._on_fault(pod, PluginError(f"{_call_text(name)}: {status.message} (pod {pod.key})"))
        elif status is not None:
            self._on_gated(pod, plugin)
        return status is None


def _call_text(name: str) -> str:
    return f'running PreEnqueue plugin "{name}"'
