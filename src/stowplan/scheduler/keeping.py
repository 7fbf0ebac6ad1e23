"""Hands attempts to those who keep decisions, once their outcome is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

from stowplan.framework.event_words import wakes
from stowplan.framework.profile import Profile
from stowplan.journal import Attempt as Kept
from stowplan.journal import Decisions, Outcome
from stowplan.scheduler.attempt import Attempt, Failure

NOTHING: Mapping[str, str] = {}


class Keeping:
    def __init__(self, decisions: Decisions, now: Callable[[], float], clock: Callable[[], float]) -> None:
        self.decisions, self._now, self._clock = decisions, now, clock
        self._wakes: WeakKeyDictionary[Profile, dict[frozenset[str], Mapping[str, str]]] = WeakKeyDictionary()

    def bound(self, attempt: Attempt) -> None:
        self._keep(attempt, Outcome.SCHEDULED)

    def failed(self, attempt: Attempt, failure: Failure) -> None:
        outcome = Outcome.ERROR if failure.is_error else Outcome.UNSCHEDULABLE
        plugins = failure.rejectors | failure.pending
        self._keep(attempt, outcome, failure.message, self.wakes(attempt.profile, plugins))

    def wakes(self, profile: Profile, plugins: frozenset[str]) -> Mapping[str, str]:
        """By plugin, what would make a pod that it refused worth another try."""
        known = self._wakes.setdefault(profile, {})
        if plugins not in known:
            known[plugins] = wakes(profile, plugins)
        return known[plugins]

    def _keep(
        self, attempt: Attempt, outcome: Outcome, message: str = "", woken: Mapping[str, str] = NOTHING
    ) -> None:
        queued, lasted = attempt.queued, self._clock() - attempt.began
        self.decisions.keep(
            attempt.decision,
            Kept(
                attempt.profile.scheduler_name,
                queued.attempts,
                self._now() - lasted,
                lasted,
                outcome,
                message,
                woken,
            ),
        )
