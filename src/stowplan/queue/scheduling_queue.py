"""The scheduling queue: every pod without a node that is not being attempted waits here, in one place.

Active pods are attempted in order. Pods in backoff wait for a time, unschedulable ones for an event that a
plugin which rejected them says helps, gated ones until no plugin holds them back. Only `pop` waits, and
nothing here keeps time: the host calls the flushes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from time import perf_counter
from typing import Any

from stowplan import log
from stowplan.api.pod import LabelSet, Pod
from stowplan.cluster.pod_table import PodQuery, terms_of
from stowplan.errors import PluginError
from stowplan.framework.answers import NO_KEY, SortKey, check_key, plugin_error
from stowplan.framework.events import Action, Resource
from stowplan.framework.handle import Nominations
from stowplan.framework.hints import ObjectChange, QueueingHints, object_changes
from stowplan.framework.plugin import SortingPlugin, is_own, is_trusted
from stowplan.framework.profile import Profile
from stowplan.framework.sealed import seal_queued
from stowplan.queue.waiting import (
    ATTEMPT_FAILED,
    BACKOFF_COMPLETE,
    FORCE_ACTIVATE,
    NOBODY,
    POD_ADDED,
    POD_UPDATED,
    POPPED_FROM_BACKOFF,
    TIMED_OUT,
    TURNS,
    WILDCARD,
    BackoffQueue,
    Gates,
    Heap,
    InFlight,
    Listeners,
    OnFault,
    OnGated,
    Place,
    QueuedPod,
    Recorder,
    Strategy,
    UnschedulablePods,
    ignore_gate,
    label_of,
    log_fault,
)

_READY = (Place.ACTIVE, Place.BACKOFF)
_HELD = (Place.UNSCHEDULABLE, Place.GATED)

SLOW_SECONDS = 0.5
"""A failed attempt that takes longer counts against its namespace."""
SLOW_SHARE = 10
"""Such attempts may take one part in this many of the time, for each namespace."""
MAX_HELD_NAMESPACES = 1000
KEYS_A_POD, MAX_KEYS = 50, 20_000
"""Each pod that is taken out allows so many keys to be renewed, and unused ones add up to a maximum. So users
who change objects that the order depends on cannot keep the scheduler busy."""


class SchedulingQueue:
    """All profiles share it; `clock` tells the time of day, since backoffs end on whole seconds."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        initial_backoff: float = 1,
        max_backoff: float = 10,
        max_in_unschedulable: float = 300,
        nominations: Nominations | None = None,
        recorder: Recorder | None = None,
        on_fault: OnFault = log_fault,
        on_gated: OnGated = ignore_gate,
    ) -> None:
        self._clock, self._recorder, self._on_fault, self._on_gated = clock, recorder, on_fault, on_gated
        self._max_in_unschedulable = max_in_unschedulable
        self.nominations = Nominations() if nominations is None else nominations
        self.in_flight = InFlight(recorder)
        self._active = Heap(self._order)
        self._held: dict[str, float] = {}
        """Until when the slow pods of a namespace are held back."""
        self._backoff = BackoffQueue(self._order, clock=clock, initial=initial_backoff, longest=max_backoff)
        self._unschedulable = UnschedulablePods(self._awaited_pods)
        self._stores: dict[Place, Heap | BackoffQueue | UnschedulablePods] = {
            Place.ACTIVE: self._active,
            Place.BACKOFF: self._backoff,
            Place.UNSCHEDULABLE: self._unschedulable,
            Place.GATED: self._unschedulable,
        }
        self._pods: dict[str, QueuedPod] = {}
        self._counts = dict.fromkeys(Place, 0)
        self._is_outdated = False
        """Whether all keys are to be renewed before the next pod is taken out."""
        self._moved: set[str] = set()
        """The uids of pods whose keys are to be renewed then."""
        self._keys_left = MAX_KEYS
        """How many keys may be renewed."""
        self._changed = asyncio.Event()
        self._closed = False

    def take_profiles(self, hints: Mapping[str, QueueingHints], profiles: Mapping[str, Profile]) -> None:
        """Use these plugins, which must be called before the first pod: they sort what is ready, and what
        waits is attempted again."""
        self._profile_names = tuple(hints)
        self._gates = Gates(profiles, self._on_fault, self._on_gated)
        self._listeners = Listeners(hints, clock=self._clock, recorder=self._recorder)
        # All profiles sort alike: the configuration was checked for that.
        self._sorter, self._sort_plugin, observer = next(
            (name, plugin, profile.observer)
            for profile in profiles.values()
            for name, plugin in profile.at("queueSort")
        )
        plugin = self._sort_plugin
        self._queue_sort, self._sorts_plainly = seal_queued(plugin), is_trusted(type(plugin))
        self._has_own_keys = is_own(type(plugin))
        """Whether the order depends on no code of others."""
        self._comparing = partial(observer.calling, "QueueSort", plugin)
        """Keys are compared in it, too: that runs code of the plugin."""
        self._known_key: object = NO_KEY
        self._sort_kinds = frozenset(plugin.watches)
        self._sort_all()
        self.wake_all()

    def wake_all(self) -> None:
        """Attempt all pods again that wait for something to happen."""
        self.on_change(ObjectChange(WILDCARD, None, None))

    def __iter__(self) -> Iterator[QueuedPod]:
        """Every pod that waits; `place` says where."""
        return iter(self._pods.values())

    def counts(self) -> dict[str, int]:
        return {place.value: count for place, count in self._counts.items()}

    def count_in(self, place: Place) -> int:
        return self._counts[place]

    def gate_message(self, uid: str) -> str:
        """Why a plugin keeps the pod out of the queue; empty if none does."""
        queued = self._pods.get(uid)
        if queued is None or queued.place is not Place.GATED:
            return ""
        return self._gates.message(queued.pod, queued.gating_plugin)

    # Changes seen by the watch

    def add(self, pod: Pod) -> None:
        known = self._pods.get(pod.uid)
        if known is not None:
            self.update(known.pod, pod)
        elif pod.uid not in self.in_flight:
            self._enter(pod, POD_ADDED)

    def update(self, old: Pod, new: Pod) -> None:
        """Update a pod that has changed and still has no node."""
        if old.uid != new.uid:
            self.delete(old)
            self.add(new)
            return
        queued = self._pods.get(new.uid)
        if new.uid in self.in_flight:
            for change in _own_changes(old, new):
                self.in_flight.record(change, label_of(change.event))
        elif queued is None:
            self._enter(new, POD_UPDATED)
        else:
            self._replace(queued, old, new)

    def delete(self, pod: Pod) -> None:
        """A pod is gone, or has got a node."""
        self.nominations.remove(pod)
        queued = self._pods.get(pod.uid)
        if queued is not None:
            self._take_out(queued)
            self._forget_rejectors(queued)

    @property
    def listens(self) -> bool:
        """Whether a change can matter: a pod waits for one, or is being attempted."""
        return len(self._unschedulable) > 0 or len(self.in_flight) > 0

    def on_change(self, change: ObjectChange, *, only: Callable[[Pod], bool] | None = None) -> None:
        """Something changed in the cluster: requeue the pods that it may help, if `only` lets them."""
        event = change.event
        if event.resource is Resource.UNSCHEDULABLE_POD:
            return  # concerns that pod alone, and `update` has handled it
        waiting: dict[QueuedPod, None] = {}
        if event == WILDCARD:
            waiting.update(dict.fromkeys(self._unschedulable))
        else:
            is_heard, changed = False, _changed_labels(change)
            for profile in self._profile_names:
                is_heard = is_heard or bool(self._listeners.of(profile, event))
                plugins, pods = self._listeners.helped_by(profile, change)
                if by_claim := self._listeners.by_claim(profile, change):
                    plugins = [plugin for plugin in plugins if plugin not in by_claim]
                    naming = self._unschedulable.naming_claim(profile, by_claim, change.new.key)
                    waiting.update(dict.fromkeys(naming))
                waiting.update(dict.fromkeys(self._unschedulable.waiting_for(profile, plugins, changed)))
                found = (self._pods.get(pod.uid) for pod in pods)
                waiting.update(dict.fromkeys(each for each in found if each and each.place in _HELD))
            if not is_heard:
                return
        if only is not None:
            waiting = {queued: None for queued in waiting if only(queued.pod)}
        self._notify(waiting, change, label_of(event))

    def resort(self, old: object, new: object) -> None:
        """An object has changed: renew the keys of the pods whose order depends on it."""
        if type(old if new is None else new) not in self._sort_kinds:
            return
        plugin, moved = self._sort_plugin, None
        if isinstance(plugin, SortingPlugin) and self._has_own_keys:  # nothing would guard the call
            moved = plugin.pods_to_sort_again(old, new)
        # Done when the next pod is taken out: more objects may change before that.
        if moved is None:
            self._is_outdated = True
            return
        self._moved.update(pod.uid for pod in moved)
        if len(self._moved) > len(self._pods):
            self._moved.intersection_update(self._pods)

    def _renew_keys(self) -> None:
        self._keys_left = min(self._keys_left + KEYS_A_POD, MAX_KEYS)
        if self._keys_left < KEYS_A_POD:
            return
        if self._is_outdated:
            self._keys_left -= self._counts[Place.ACTIVE] + self._counts[Place.BACKOFF]
            self._sort_all()
            return
        found = [queued for uid in self._moved if (queued := self._pods.get(uid)) and queued.place in _READY]
        self._keys_left -= len(found)
        self._moved.clear()
        # In the order in which they came, which plugins may keep for those that belong together.
        for queued in sorted(found, key=lambda each: (each.timestamp, each.turn)):
            assert queued.place is not None
            self._stores[queued.place].push(queued)

    def _sort_all(self) -> None:
        self._is_outdated = False
        self._moved.clear()
        self._active.reorder()
        self._backoff.reorder()

    # Attempts

    async def pop(self) -> QueuedPod | None:
        """The next pod to attempt, as soon as there is one; None once the queue is closed."""
        while not self._closed:
            queued = self.pop_nowait()
            if queued is not None:
                return queued
            self._changed.clear()
            await self._changed.wait()
        return None

    def pop_nowait(self) -> QueuedPod | None:
        """The next pod to attempt, if any: an active one, or one in backoff that was rejected."""
        if self._is_outdated or self._moved:
            self._renew_keys()
        elif self._keys_left < MAX_KEYS:
            self._keys_left += KEYS_A_POD
        queued = self._active.first()
        if queued is None:
            queued = self._backoff.first_rejected() if self._counts[Place.BACKOFF] else None
            if queued is None:
                return None
            if self._recorder is not None:
                self._recorder.pod_queued(POPPED_FROM_BACKOFF, "active")
        self._start_attempt(queued)
        return queued

    def _start_attempt(self, queued: QueuedPod) -> None:
        self._take_out(queued)
        self._forget_rejectors(queued)
        queued.waits_out_backoff = False
        queued.attempts += 1
        self.in_flight.start(queued)

    def take_members(self, pods: Iterable[Pod]) -> list[QueuedPod]:
        """Take pods out to be attempted together with one that was popped, except for gated ones."""
        taken = []
        for pod in pods:
            queued = self._pods.get(pod.uid)
            if queued is None or queued.place is Place.GATED:
                continue
            if queued.place is Place.UNSCHEDULABLE and self._is_gated(queued):
                self._put(queued, Place.GATED, FORCE_ACTIVATE)
                continue
            if self._recorder is not None and queued.place is not Place.ACTIVE:
                self._recorder.pod_queued(FORCE_ACTIVATE, "active")
            if queued.initial_attempt_timestamp is None:
                queued.initial_attempt_timestamp = self._clock()
            self._start_attempt(queued)
            taken.append(queued)
        return taken

    def wake(self, pods: Iterable[Pod], event: str = POD_ADDED) -> None:
        """Attempt these pods again, after their backoff, if they wait for something to happen."""
        for pod in pods:
            queued = self._pods.get(pod.uid)
            if queued is not None and queued.place in _HELD:
                self._requeue(queued, Strategy.AFTER_BACKOFF, event)

    def give_back(self, queued: QueuedPod) -> None:
        """Take back a pod that was popped and not attempted: what it needs is gone, so a gate holds it."""
        queued.attempts -= 1
        self.in_flight.end(queued.pod.uid)
        self._to_active(queued, FORCE_ACTIVATE)

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    def done(self, uid: str) -> None:
        """End the pod's attempt: changes from now on are not kept for it."""
        self.in_flight.end(uid)

    def return_failed(
        self,
        queued: QueuedPod,
        *,
        rejectors: Iterable[str] = (),
        pending: Iterable[str] = (),
        seconds: float = 0.0,
        waits_out_backoff: bool = False,
    ) -> None:
        """Take back a pod that plugins rejected or, without any, failed; deciding it took `seconds`.

        With `waits_out_backoff` it is not attempted before its backoff is over, even if nothing else is.
        """
        changes = self.in_flight.end(queued.pod.uid)
        present = self._pods.get(queued.pod.uid)
        if present is not None:
            where = "unschedulable queue" if present.place in _HELD else f"the {present.place} queue"
            log.error("Error occurred", f"Pod {queued.pod.key} is already present in {where}")
            return
        queued.unschedulable_plugins, queued.pending_plugins = frozenset(rejectors), frozenset(pending)
        self._count_rejectors(queued, 1)
        if queued.rejectors:
            queued.unschedulable_count += 1
            queued.consecutive_errors = 0
        else:
            queued.consecutive_errors += 1
        queued.flush_timestamp, queued.was_flushed = 0.0, False
        self._start_backoff(queued)
        if seconds > SLOW_SECONDS:
            self._hold_back(queued, seconds)
        strategy = self._strategy_after(queued, changes)
        queued.waits_out_backoff = queued.waits_out_backoff or waits_out_backoff
        self._requeue(queued, strategy, ATTEMPT_FAILED)

    def activate(self, pods: Iterable[Pod], *, backoff: bool = False) -> None:
        """Attempt pods again at once or, if something failed for them, after a backoff from now on."""
        for pod in pods:
            queued = self._pods.get(pod.uid)
            if queued is None:
                self._activate_later(pod, backoff)
            elif queued.place is not Place.ACTIVE and backoff:
                queued.waits_out_backoff = True
                self._start_backoff(queued)
                self._requeue(queued, Strategy.AFTER_BACKOFF, FORCE_ACTIVATE)
            elif queued.place is not Place.ACTIVE:
                self._to_active(queued, FORCE_ACTIVATE)

    def nominate(self, pod: Pod, node_name: str | None = None) -> None:
        """Nominate the pod to a node, by default to the one in its status; "" clears it."""
        node_name = pod.nominated_node_name if node_name is None else node_name
        queued = self._pods.get(pod.uid)
        if queued is not None:
            queued.nominated_node = node_name
        if node_name and not pod.node_name:
            self.nominations.put(pod, node_name)
        else:
            self.nominations.remove(pod)

    # Timers

    def flush_backoff(self) -> None:
        """Call this every second, on the second."""
        if self._counts[Place.BACKOFF]:
            for queued in self._backoff.over():
                self._to_active(queued, BACKOFF_COMPLETE)

    def flush_unschedulable(self) -> None:
        """Due every half minute: attempt pods that waited too long, in case an event was missed."""
        now = self._clock()
        overdue = [
            queued
            for queued in self._unschedulable
            if now - max(queued.timestamp, queued.flush_timestamp) > self._max_in_unschedulable
        ]
        for queued in overdue:
            queued.was_flushed, queued.flush_timestamp = True, now
        if overdue:
            self._notify(overdue, ObjectChange(WILDCARD, None, None), TIMED_OUT)

    # Entering

    def _enter(self, pod: Pod, event: str) -> None:
        queued = QueuedPod(pod, self._clock())
        self._to_active(queued, event)
        if queued.place is Place.ACTIVE:
            self.nominate(pod)

    def _replace(self, queued: QueuedPod, old: Pod, new: Pod) -> None:
        news = list(_own_changes(old, new))
        if old.nominated_node_name == queued.nominated_node:
            # If someone else cleared the nomination, the pod may find another node.
            news += (
                each for each in object_changes(old, new) if each.event.resource is Resource.ASSIGNED_POD
            )
        self._renominate(queued, old, new)
        queued.pod = new
        if queued.place in _READY:
            self._stores[queued.place].push(queued)
            return
        if (
            old.shape is not new.shape
            or old.label_set is not new.label_set
            or old.resource_claim_statuses != new.resource_claim_statuses
        ):
            # It may wait for other pods or claims now.
            self._unschedulable.remove(queued)
            self._unschedulable.push(queued)
        for change in news:
            strategy = self._listeners.answer(queued, change)
            if strategy is not Strategy.SKIP:
                self._requeue(queued, strategy, label_of(change.event))
            if queued.place in _READY:
                break

    def _renominate(self, queued: QueuedPod, old: Pod, new: Pod) -> None:
        if old.nominated_node_name or new.nominated_node_name:
            self.nominate(new)
        elif any(pod.uid == old.uid for pod in self.nominations.on(queued.nominated_node)):
            # A nomination that the API server does not know of yet stays.
            self.nominations.put(new, queued.nominated_node)

    def _notify(self, waiting: Iterable[QueuedPod], change: ObjectChange, label: str) -> None:
        listeners = self._listeners
        changed = tuple(each.uid for each in (change.old, change.new) if isinstance(each, Pod))
        decided: dict[Hashable, Strategy] = {}  # thousands of pods may wait, most of them from few templates
        for queued in waiting:
            pod, unschedulable, pending = queued.pod, queued.unschedulable_plugins, queued.pending_plugins
            alike = (pod.shape, pod.label_set, id(pod.controller), unschedulable, pending)
            strategy = decided.get(alike)
            if strategy is None or pod.uid in changed:
                strategy = listeners.strategy(queued, change)
                if pod.uid not in changed and listeners.is_by_spec(queued):
                    decided[alike] = strategy
            if strategy is not Strategy.SKIP:
                self._requeue(queued, strategy, label)
        self.in_flight.record(change, label)

    def _strategy_after(self, queued: QueuedPod, changes: list[ObjectChange] | None) -> Strategy:
        """Apply the changes during a pod's attempt, now that the plugins that rejected it are known."""
        if queued.waits_out_backoff or not queued.rejectors or changes is None:
            return Strategy.AFTER_BACKOFF
        best = Strategy.SKIP
        for change in changes:
            best = max(best, self._listeners.strategy(queued, change))
            if best is Strategy.IMMEDIATELY:
                break
        return best

    def _activate_later(self, pod: Pod, backoff: bool) -> None:
        """A pod that is being attempted is activated when it is back."""
        queued = self.in_flight.find(pod.uid)
        if queued is not None and backoff:
            queued.waits_out_backoff = True
        elif queued is not None:
            self.in_flight.record(ObjectChange(WILDCARD, None, pod), FORCE_ACTIVATE)

    # From place to place

    def _requeue(self, queued: QueuedPod, strategy: Strategy, event: str) -> None:
        if strategy is Strategy.SKIP:
            self._put(queued, Place.UNSCHEDULABLE, event)
        elif strategy is Strategy.AFTER_BACKOFF and self._backoff.is_backing_off(queued):
            self._put(queued, Place.GATED if self._is_gated(queued) else Place.BACKOFF, event)
        else:
            self._to_active(queued, event)

    def _to_active(self, queued: QueuedPod, event: str) -> None:
        # A pod in backoff has passed the gates already.
        if queued.place is not Place.BACKOFF and self._is_gated(queued):
            self._put(queued, Place.GATED, event)
            return
        if queued.initial_attempt_timestamp is None:
            queued.initial_attempt_timestamp = self._clock()
        self._put(queued, Place.ACTIVE, event)

    def _put(self, queued: QueuedPod, place: Place, event: str) -> None:
        if self._recorder is not None and not (queued.place in _HELD and place in _HELD):
            self._recorder.pod_queued(event, "unschedulable" if place in _HELD else place.value)
        if queued.place is not None and self._stores[queued.place] is not self._stores[place]:
            # A plugin is asked for its order: if that fails, the pod is still where it was.
            self._stores[place].push(queued)
            self._take_out(queued)
        else:
            self._take_out(queued)
            self._stores[place].push(queued)
        self._pods[queued.pod.uid] = queued
        self._counts[place] += 1
        queued.place = place
        if log.is_verbose(3):
            log.log(
                3 if event == ATTEMPT_FAILED else 5,
                "Pod moved to an internal scheduling queue",
                pod=queued.pod,
                event=event,
                queue="Unschedulable" if place in _HELD else place.value.capitalize(),
            )
        if place not in _HELD:
            self._changed.set()

    def _take_out(self, queued: QueuedPod) -> None:
        if queued.place is not None:
            self._stores[queued.place].remove(queued)
            del self._pods[queued.pod.uid]
            self._counts[queued.place] -= 1
            queued.place = None

    # Plugins

    def _awaited_pods(self, profile: str, plugin: str, pod: Pod) -> tuple[PodQuery, ...] | None:
        return self._listeners.awaited_pods(profile, plugin, pod)

    def _order(self, queued: QueuedPod) -> tuple[bool, Any]:
        if self._sorts_plainly:
            return (False, self._queue_sort(queued))
        pod, key, fault = queued.pod, NO_KEY, None
        with self._comparing():
            try:
                key = self._queue_sort(queued)
                if not self._has_own_keys:
                    check_key(key, self._known_key)
            except BaseException as error:
                fault = self._sorting_error(pod, error)
        if fault is not None:
            self._on_fault(pod, fault)
            return (True, ())  # after all others
        if self._has_own_keys:
            return (False, key)
        self._known_key = key
        return (False, SortKey(key, self._comparing, lambda error: self._report_sorting(pod, error)))

    def _report_sorting(self, pod: Pod, error: BaseException) -> None:
        self._on_fault(pod, self._sorting_error(pod, error))

    def _sorting_error(self, pod: Pod, error: BaseException) -> PluginError:
        doing = f'running QueueSort plugin "{self._sorter}"'
        return plugin_error(doing, error, pod, method=(self._sort_plugin, "queue_sort"))

    def _is_gated(self, queued: QueuedPod) -> bool:
        began = perf_counter()
        holder = queued.gating_plugin = self._gates.find_gate(queued.pod, queued.gating_plugin)
        if self._recorder is not None:
            # parity: whatever came of it, it counts as a success
            name = queued.pod.scheduler_name
            self._recorder.extension_point("PreEnqueue", name, "Success", perf_counter() - began)
        if holder and holder not in queued.unschedulable_plugins:
            if self._recorder is not None and holder not in queued.pending_plugins:
                self._recorder.unschedulable(holder, queued.pod.scheduler_name, 1)
            queued.unschedulable_plugins |= {holder}
        return holder != ""

    # Bookkeeping

    def _hold_back(self, queued: QueuedPod, seconds: float) -> None:
        """Limit the slow pods of a namespace, all together, to a share of the time.

        Nobody else is scheduled during an attempt, and anyone may create pods that take long to decide.
        """
        now, namespace = self._clock(), queued.pod.namespace
        if len(self._held) > MAX_HELD_NAMESPACES:
            self._held = {name: until for name, until in self._held.items() if until > now}
        until = max(now, self._held.get(namespace, now)) + seconds * SLOW_SHARE
        queued.held_until = self._held[namespace] = until
        queued.waits_out_backoff = True

    def _start_backoff(self, queued: QueuedPod) -> None:
        queued.timestamp, queued.backoff_expiration, queued.turn = self._clock(), None, next(TURNS)

    def _forget_rejectors(self, queued: QueuedPod) -> None:
        self._count_rejectors(queued, -1)
        queued.unschedulable_plugins = queued.pending_plugins = NOBODY
        queued.gating_plugin = ""

    def _count_rejectors(self, queued: QueuedPod, change: int) -> None:
        if self._recorder is not None:
            for plugin in queued.rejectors:
                self._recorder.unschedulable(plugin, queued.pod.scheduler_name, change)


def _changed_labels(change: ObjectChange) -> set[LabelSet] | None:
    """The labels of the pod that changed, before and after; None if pods may be helped that do not ask for
    such a pod."""
    event, old, new = change
    if event.resource is not Resource.ASSIGNED_POD or (new is None and terms_of(old).required_anti):
        return None
    return {each.label_set for each in (old, new) if each is not None}


def _own_changes(old: Pod, new: Pod) -> Iterator[ObjectChange]:
    """The events of a waiting pod's own change. Conditions in its status are written by us: no event."""
    for change in object_changes(old, new):
        event = change.event
        if event.resource is Resource.UNSCHEDULABLE_POD and not (
            event.action == Action.UPDATE and _only_status_differs(old, new)
        ):
            yield change


def _only_status_differs(old: Pod, new: Pod) -> bool:
    return (
        old.shape is new.shape
        and old.annotations == new.annotations
        and old.controller == new.controller
        and old.deletion_timestamp == new.deletion_timestamp
        and old.generation == new.generation
        and old.assigned == new.assigned
    )
