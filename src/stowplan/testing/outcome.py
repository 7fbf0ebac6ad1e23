"""What became of a pod, and checks of it. A check that fails shows the whole explanation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stowplan.api.pod import Pod
from stowplan.cycle.planner import error_in
from stowplan.explain.report import Explanation
from stowplan.explain.text import render
from stowplan.framework.answers import reason_of
from stowplan.framework.decision import Decision, fit_message
from stowplan.framework.status import Code, Status


class HeldPod:
    """A pod with a node that waits for permit plugins, as `handle.waiting_pods` has it."""

    def __init__(
        self,
        pod: Pod,
        deadlines: Mapping[str, float],
        on_end: Callable[[Status | None], None],
        began: float,
    ) -> None:
        self.pod, self._on_end, self._began = pod, on_end, began
        self._deadlines = dict(deadlines)
        self._waits = True
        self.rejection: Status | None = None

    @property
    def waits(self) -> bool:
        """Whether it is held still."""
        return self._waits

    @property
    def plugins(self) -> tuple[str, ...]:
        """The plugins that have not allowed it yet."""
        return tuple(sorted(self._deadlines))

    def allow(self, plugin: str = "") -> None:
        self._deadlines.pop(plugin, None)
        if not self._deadlines:
            self._end(None)

    def reject(self, plugin: str, message: str) -> None:
        self._end(Status(Code.UNSCHEDULABLE, (reason_of(message),), plugin))

    def check_time(self, now: float) -> None:
        """Reject the pod if a plugin has held it for as long as it wanted to."""
        for plugin, deadline in sorted(self._deadlines.items(), key=lambda item: item[1]):
            if now >= deadline:
                waited = f"{deadline - self._began:g}s at plugin {plugin}"
                self.reject(plugin, f"rejected due to timeout after waiting {waited}")

    def _end(self, rejection: Status | None) -> None:
        if self._waits:
            self._waits, self.rejection = False, rejection
            self._on_end(rejection)


class Outcome:
    """Each check returns the outcome, so that checks can be chained."""

    def __init__(self, explanation: Explanation) -> None:
        self.decision: Decision = explanation.decision
        self.held_back: Status | None = explanation.held_back
        """Set where a `pre_enqueue` keeps the pod from being attempted."""
        self.stopped: Status | None = None
        """Set by `place` where a `reserve` or `permit` rejected the pod, or failed."""
        self.held: HeldPod | None = None
        """Set by `place` where a `permit` holds the pod, or held it."""
        self._explanation = explanation

    @property
    def node(self) -> str | None:
        """Where the pod lands; None while a `permit` holds it."""
        is_held = self.held is not None and self.held.waits
        return None if self.held_back or self._rejection or is_held else self.decision.chosen

    @property
    def message(self) -> str:
        """Why it stays pending, as `kubectl describe` shows it."""
        rejection = self._rejection
        if rejection is None or rejection.code is Code.ERROR:
            return self.decision.message
        return fit_message(1, "", dict.fromkeys(rejection.reasons, 1))

    @property
    def error(self) -> str:
        """What a plugin raised or answered wrongly, with file and line; empty if none did."""
        failed = self._failed_status
        return failed.message if failed is not None else error_in(self.decision)

    @property
    def explanation(self) -> str:
        """What `stowplan explain` would say; the traceback, if a plugin failed."""
        pod, chosen = f"Pod {self.decision.pod.key}", self.decision.chosen
        if self.error:
            stack = self._failed_status.stack if self._failed_status else self.decision.stack
            return f"{self.error}\n\n{stack}" if stack else self.error
        lines = [render(self._explanation, all_nodes=True)]
        if self.held is not None and self.held.waits:
            plugins = ", ".join(self.held.plugins)
            lines.insert(0, f"{pod} has the node {chosen} and waits for a permit from {plugins}.")
        elif (rejection := self._rejection) is not None:
            by = f" by {rejection.plugin}" if rejection.plugin else ""
            lines.insert(0, f"{pod} had the node {chosen}, but was rejected{by}: {rejection.message}")
        return "\n\n".join(lines)

    @property
    def _failed_status(self) -> Status | None:
        """What a `pre_enqueue`, `reserve` or `permit` raised or answered wrongly."""
        found = self.held_back or self.stopped
        return found if found is not None and found.code is Code.ERROR else None

    @property
    def _rejection(self) -> Status | None:
        return self.stopped or (self.held.rejection if self.held else None)

    @property
    def rejections(self) -> dict[str, Status]:
        """The nodes that filters rejected, with the first plugin that did and its reasons."""
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
        raise self._failure(f"{plugin} gave no scores; plugins with scores: {known}")

    def lands_on(self, *nodes: str) -> Outcome:
        """The pod gets one of these nodes."""
        return self._check(self.node in nodes, f"to land on {' or '.join(nodes)}")

    def stays_pending(self, message: str = "") -> Outcome:
        """No node takes it, and nothing fails; `message` is a part of what is said about that."""
        said = f" with {message!r}" if message else ""
        pending = self.node is None and not self.error
        reasons = self.held_back.message if self.held_back else self.message
        return self._check(pending and message in reasons, f"to stay pending{said}")

    def is_rejected(self, node: str, *, by: str = "", reason: str = "") -> Outcome:
        """The node was rejected: by that plugin, with that text in its reasons."""
        status = self.rejections.get(node) or self.decision.pre_filter
        fits = status is not None and by in ("", status.plugin) and reason in status.message
        author = f" by {by}" if by else ""
        return self._check(fits, f"to be rejected on {node}{author}{f' for {reason!r}' if reason else ''}")

    def fits_on(self, *nodes: str) -> Outcome:
        """The pod fits on all of these nodes."""
        feasible = {self.decision.names[row] for row in self.decision.feasible.tolist()}
        return self._check(feasible.issuperset(nodes), f"to fit on {', '.join(nodes)}")

    def has_scores(self, plugin: str, expected: Mapping[str, int]) -> Outcome:
        """The plugin gave these nodes these scores, from 0 to 100."""
        found = self.scores(plugin)
        given = {name: found.get(name) for name in expected}
        return self._check(given == dict(expected), f"{plugin} to give {dict(expected)}, not {given}")

    def fails(self, text: str = "") -> Outcome:
        """A plugin raised or answered nonsense; `text` is a part of the error."""
        is_so = bool(self.error) and text in self.error
        return self._check(is_so, f"an error{f' with {text!r}' if text else ''}")

    def is_held(self, by: str = "") -> Outcome:
        """The pod has a node, and the `permit` of this plugin holds it."""
        waits = self.held is not None and self.held.waits and by in ("", *self.held.plugins)
        return self._check(waits, f"to be held at permit{f' by {by}' if by else ''}")

    def preempts(self, node: str, *victims: str) -> Outcome:
        """The pod would get that node by evicting pods; `victims` are their names, if given."""
        names = {victim.name for victim in self.decision.victims}
        right = self.decision.nominated == node and (not victims or names == set(victims))
        return self._check(right, f"to preempt {', '.join(victims) or 'pods'} on {node}")

    def _check(self, is_so: bool, expected: str) -> Outcome:
        if not is_so:
            raise self._failure(f"expected {expected}")
        return self

    def _failure(self, text: str) -> AssertionError:
        return AssertionError(f"pod {self.decision.pod.key}: {text}\n\n{self.explanation}")
