"""Records the decision of every attempt once its outcome is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

from stowplan.framework.event_words import wakes
from stowplan.framework.profile import Profile
from stowplan.journal import Attempt as RecordedAttempt
from stowplan.journal import Decisions, Outcome
from stowplan.scheduler.attempt import Attempt, Failure

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
