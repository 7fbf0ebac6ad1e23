"""What became of a pod, and checks of it. A check that fails shows the whole explanation."""

from __future__ import annotations

from collections.abc import Mapping

from stowplan.explain.report import Explanation
from stowplan.explain.text import render
from stowplan.framework.decision import Decision
from stowplan.framework.status import Status


class Outcome:
    """Its checks return it, so that they can be strung together."""

    def __init__(self, explanation: Explanation) -> None:
        self.decision: Decision = explanation.decision
        self.held_back: Status | None = explanation.held_back
        """Set where a `pre_enqueue` keeps the pod from being tried."""
        self.explanation: str = self.decision.error or render(explanation, all_nodes=True)

    @property
    def node(self) -> str | None:
        """Where the pod lands."""
        return None if self.held_back else self.decision.chosen

    @property
    def message(self) -> str:
        """Why it stays pending, as `kubectl describe` shows it."""
        return self.decision.message

    @property
    def refusals(self) -> dict[str, Status]:
        """Nodes that were refused one by one, with who refused them first, and why."""
        return self.decision.rejected()

    def scores(self, plugin: str) -> dict[str, int]:
        """What the plugin gave each node that fits: 0 to 100, before its weight."""
        for column in self.decision.scores:
            if column.plugin == plugin:
                names = (self.decision.names[row] for row in self.decision.feasible.tolist())
                return dict(zip(names, column.scores.tolist(), strict=True))
        known = (
            ", ".join(column.plugin for column in self.decision.scores) or "none: one node needs no scores"
        )
        raise self._failure(f"{plugin} gave no scores; of those that did there is {known}")

    def lands_on(self, *nodes: str) -> Outcome:
        """On one of these."""
        return self._check(self.node in nodes, f"to land on {' or '.join(nodes)}")

    def stays_pending(self, message: str = "") -> Outcome:
        """No node takes it, and nothing fails; `message` is a part of what is said about that."""
        said = f" with {message!r}" if message else ""
        pending = self.node is None and self.decision.error is None
        reasons = self.held_back.message if self.held_back else self.message
        return self._check(pending and message in reasons, f"to stay pending{said}")

    def is_refused(self, node: str, *, by: str = "", reason: str = "") -> Outcome:
        """The node does not take it: by that plugin, with that text in its reasons."""
        status = self.refusals.get(node) or self.decision.pre_filter
        fits = status is not None and by in ("", status.plugin) and reason in status.message
        author = f" by {by}" if by else ""
        return self._check(fits, f"to be refused on {node}{author}{f' for {reason!r}' if reason else ''}")

    def fits_on(self, *nodes: str) -> Outcome:
        """All of these would take it."""
        feasible = {self.decision.names[row] for row in self.decision.feasible.tolist()}
        return self._check(feasible.issuperset(nodes), f"to fit on {', '.join(nodes)}")

    def has_scores(self, plugin: str, expected: Mapping[str, int]) -> Outcome:
        """The plugin gave these nodes these scores, from 0 to 100."""
        found = self.scores(plugin)
        given = {name: found.get(name) for name in expected}
        return self._check(given == dict(expected), f"{plugin} to give {dict(expected)}, not {given}")

    def fails(self, text: str = "") -> Outcome:
        """A plugin raised or answered nonsense; `text` is a part of the error."""
        error = self.decision.error
        return self._check(
            error is not None and text in error, f"an error{f' with {text!r}' if text else ''}"
        )

    def preempts(self, node: str, *victims: str) -> Outcome:
        """It would have that node by evicting pods; `victims` are their names, if they matter."""
        names = {victim.name for victim in self.decision.victims}
        right = self.decision.nominated == node and (not victims or names == set(victims))
        return self._check(right, f"to preempt {', '.join(victims) or 'pods'} on {node}")

    def _check(self, is_so: bool, expected: str) -> Outcome:
        if not is_so:
            raise self._failure(f"expected {expected}")
        return self

    def _failure(self, text: str) -> AssertionError:
        return AssertionError(f"pod {self.decision.pod.key}: {text}\n\n{self.explanation}")
