"""PreemptionToleration: DefaultPreemption, but PriorityClasses say from whom their pods are safe, how long.

    kind: PriorityClass
    metadata:
      annotations:
        preemption-toleration.scheduling.x-k8s.io/minimum-preemptable-priority: "10000"
        preemption-toleration.scheduling.x-k8s.io/toleration-seconds: "3600"

A pod of this class is not evicted for a pod of a priority below 10000 until it has run for an hour.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from stowplan.framework import (
    Code,
    CycleState,
    Decision,
    Handle,
    Nomination,
    Pod,
    Status,
)
from stowplan.framework.status import Preemption
from stowplan.plugins.args import DefaultPreemptionArgs
from stowplan.plugins.default.default_preemption import DefaultPreemption
from stowplan.plugins.priority_classes import PriorityClass

PREFIX = "preemption-toleration.scheduling.x-k8s.io/"
MINIMUM, SECONDS = f"{PREFIX}minimum-preemptable-priority", f"{PREFIX}toleration-seconds"
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


class PreemptionTolerationArgs(DefaultPreemptionArgs):
    """The same as those of DefaultPreemption."""


class Toleration(NamedTuple):
    """A pod is safe from pods of a priority below `minimum` for so many seconds; forever if negative."""

    minimum: int
    seconds: int


class PreemptionToleration(DefaultPreemption):
    args: PreemptionTolerationArgs
    # parity: groups preempt only with DefaultPreemption itself
    preempts_for_groups = False
    enables = {"postFilter": ("preEnqueue",)}
    watches = (PriorityClass,)

    def __init__(self, args: PreemptionTolerationArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._classes = handle.watched(PriorityClass)
        self._known: dict[str, Toleration] = {}
        self._version = -1
        self._reported: dict[str, str] = {}
        """What was reported of a class, by its name."""
        self._safe: dict[str, int] = {}
        """How many pods of a lower priority the last search found to be safe, by their class."""
        self._classes.follow(self._follow)

    def _follow(self, old: PriorityClass | None, new: PriorityClass | None) -> None:
        """Report what cannot be read at once: after the first eviction it would be too late."""
        if new is not None:
            self._read(new)
        elif old is not None:
            self._reported.pop(old.name, None)

    def post_filter(self, state: CycleState, pod: Pod, decision: Decision) -> Status | Nomination:
        self._safe = {}
        answer = super().post_filter(state, pod, decision)
        if isinstance(answer, Nomination) or answer.code == Code.ERROR or not self._safe:
            return answer
        texts = (
            f"{count} of PriorityClass {name} (priority {self._known[name].minimum} or more may)"
            for name, count in sorted(self._safe.items())
        )
        protected = f"Pods that priority {pod.priority} may not evict: {', '.join(texts)}."
        found = replace(answer.preemption or Preemption(), protected=protected)
        return replace(answer, reasons=(f"{answer.message} {protected}",), preemption=found)

    def may_evict(self, pod: Pod, decision: Decision) -> frozenset[str] | None:
        minimums = self._tolerations()
        if not any(pod.priority < each.minimum for each in minimums.values()):
            return None
        nodes, groups = self.handle.cluster.nodes, self.handle.cluster.groups
        ranks = groups.ranks(pod) if groups.families else {}
        found: set[str] = set()
        for row in np.flatnonzero(decision.codes() == Code.UNSCHEDULABLE).tolist():
            for other in nodes.pods_on(row):
                if ranks.get(other.uid, other.priority) >= pod.priority:
                    continue
                if self._is_safe(other, pod):
                    name = other.spec.priority_class_name
                    self._safe[name] = self._safe.get(name, 0) + 1
                else:
                    found.add(other.uid)
        return frozenset(found)

    def _is_safe(self, other: Pod, pod: Pod) -> bool:
        toleration = self._known.get(other.spec.priority_class_name)
        if toleration is None or pod.priority >= toleration.minimum:
            return False
        if toleration.seconds < 0 or other.start_time is None:
            return True
        return other.start_time + toleration.seconds > self.handle.now()

    def _tolerations(self) -> dict[str, Toleration]:
        """What each PriorityClass asks for, by its name; classes that ask for nothing are left out."""
        if self._version != self._classes.version:
            self._version, self._known = self._classes.version, {}
            for item in self._classes:
                self._read(item)
        return self._known

    def _read(self, item: PriorityClass) -> None:
        minimum, seconds = (item.metadata.annotations.get(key) for key in (MINIMUM, SECONDS))
        faults = []
        if minimum is not None and not _is_integer(minimum, 32):
            faults.append(f"annotation {MINIMUM} is {minimum[:64]!r}, but must be a whole number of 32 bits")
        if seconds is not None and not _is_integer(seconds, 64):
            faults.append(f"annotation {SECONDS} is {seconds[:64]!r}, but must be a whole number of 64 bits")
        text = "; ".join(faults)
        if text:
            text += "; until then pods of this class tolerate no preemption"
        elif minimum is not None:  # without it, only pods of a lower priority could not evict them
            self._known[item.name] = Toleration(int(minimum), int(seconds or 0))
        if self._reported.get(item.name, "") != text:
            self._reported[item.name] = text
            if text:
                self.handle.record_event(item, "Warning", "InvalidPreemptionToleration", text)


def _is_integer(text: str, bits: int) -> bool:
    return bool(_INTEGER.fullmatch(text)) and -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1)
