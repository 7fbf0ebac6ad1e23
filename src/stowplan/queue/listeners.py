"""Who listens to an event, and what it means to a pod that was refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

from stowplan.api.pod import Pod
from stowplan.framework.events import Action, ClusterEvent, Hint, Resource
from stowplan.framework.hints import EVERYTHING, AskHint, Happening, QueueingHints
from stowplan.framework.profile import EXTENDER
from stowplan.queue.queued_pod import QueuedPod
from stowplan.queue.recorder import Recorder, label_of

WILDCARD = ClusterEvent(Resource.WILDCARD, Action.ALL)
GIVEN_UP = ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE)


class Strategy(IntEnum):
    """What to do with a pod that waits, the better the higher."""

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
        """The plugins of a profile that hear of an event, each with how to ask it."""
        key = (profile, event)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._look_up(profile, event)
        return found

    def strategy(self, queued: QueuedPod, happening: Happening) -> Strategy:
        """Whether what happened makes the pod worth another try."""
        event, old, new = happening
        uid = queued.pod.uid
        if event == WILDCARD:
            return Strategy.SKIP if isinstance(new, Pod) and new.uid != uid else Strategy.AFTER_BACKOFF
        if event.resource is Resource.UNSCHEDULABLE_POD and new.uid != uid:
            return Strategy.SKIP
        if event == GIVEN_UP and not old.node_name and (old.uid == uid or old.priority < queued.pod.priority):
            # Room that was only promised is no news to those from whom it was not kept.
            return Strategy.SKIP
        return self.answer(queued, happening)

    def answer(self, queued: QueuedPod, happening: Happening) -> Strategy:
        """What those who refused the pod say."""
        listeners = self.of(queued.pod.scheduler_name, happening.event)
        best = Strategy.SKIP
        for name in queued.rejectors:
            ask = listeners.get(name)
            if ask is not None and self._ask(name, ask, queued.pod, happening) is Hint.QUEUE:
                if name in queued.pending_plugins:
                    return Strategy.IMMEDIATELY
                best = Strategy.AFTER_BACKOFF
                if not queued.pending_plugins:
                    break
        return best

    def _look_up(self, profile: str, event: ClusterEvent) -> Mapping[str, AskHint]:
        found = dict(self._hints[profile].listeners(event)) if profile in self._hints else {}
        if any(wanted.covers(event) for wanted in EVERYTHING):
            found[EXTENDER] = _try_again
        return found

    def _ask(self, name: str, ask: AskHint, pod: Pod, happening: Happening) -> Hint:
        event, old, new = happening
        if self._recorder is None:
            return ask(pod, event, old, new)
        started = self._clock()
        hint = ask(pod, event, old, new)
        seconds = self._clock() - started
        self._recorder.hint_asked(
            label_of(event), "Queue" if hint is Hint.QUEUE else "QueueSkip", name, seconds
        )
        return hint


def _try_again(pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
    return Hint.QUEUE
