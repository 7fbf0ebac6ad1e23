"""Which plugins keep a pod from being attempted, and which say whether a change is worth an attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.errors import PluginError
from stowplan.framework.answers import plugin_error, status_of
from stowplan.framework.events import Action, ClusterEvent, Hint, Resource
from stowplan.framework.hints import EVERYTHING, AskHint, ObjectChange, QueueingHints
from stowplan.framework.plugin import Plugin
from stowplan.framework.profile import EXTENDER, Profile
from stowplan.framework.status import Code
from stowplan.queue.queued_pod import QueuedPod, Recorder, label_of

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

    def of(self, profile: str, event: ClusterEvent) -> Mapping[str, AskHint]:
        """The plugins of a profile that registered for an event, each with how to ask it."""
        key = (profile, event)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._look_up(profile, event)
        return found

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


def _always_queue(pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
    return Hint.QUEUE


OnFault = Callable[[Pod, PluginError], None]


def log_fault(pod: Pod, error: PluginError) -> None:
    log.error("Plugin failed", error, pod=pod, stacktrace=error.stack)


class Gates:
    def __init__(self, profiles: Mapping[str, Profile], on_fault: OnFault) -> None:
        self._on_fault = on_fault
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

    def _passes(self, name: str, plugin: Plugin, pod: Pod) -> bool:
        """Whether the plugin lets the pod pass; one that fails does not."""
        observer = self._observers[pod.scheduler_name]
        observer.enter("PreEnqueue", plugin)
        fault: PluginError | None = None
        try:
            status = status_of("pre_enqueue", plugin.pre_enqueue(pod))
        except BaseException as error:
            fault = plugin_error(_doing(name), error, pod)
        finally:
            observer.leave("PreEnqueue", plugin)
        if fault is not None:
            self._on_fault(pod, fault)
            return False
        if status is not None and status.code is Code.ERROR:
            self._on_fault(pod, PluginError(f"{_doing(name)}: {status.message} (pod {pod.key})"))
        return status is None


def _doing(name: str) -> str:
    return f'running PreEnqueue plugin "{name}"'
