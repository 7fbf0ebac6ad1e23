"""Objects around pods: namespaces, services, owners, budgets, priorities."""

from __future__ import annotations

import msgspec

from stowplan.api.meta import EMPTY, LabelSelector, Object, Wire


class Namespace(Object, frozen=True):
    pass


class SelectorMap(Wire, frozen=True):
    selector: dict[str, str] | None = None


class SelectorSpec(Wire, frozen=True):
    selector: LabelSelector | None = None


class Service(Object, frozen=True):
    spec: SelectorMap = msgspec.field(default_factory=SelectorMap)


class ReplicationController(Object, frozen=True):
    spec: SelectorMap = msgspec.field(default_factory=SelectorMap)


class ReplicaSet(Object, frozen=True):
    spec: SelectorSpec = msgspec.field(default_factory=SelectorSpec)


class StatefulSet(Object, frozen=True):
    spec: SelectorSpec = msgspec.field(default_factory=SelectorSpec)


class PodDisruptionBudgetStatus(Wire, frozen=True):
    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str | None] = EMPTY


class PodDisruptionBudget(Object, frozen=True):
    spec: SelectorSpec = msgspec.field(default_factory=SelectorSpec)
    status: PodDisruptionBudgetStatus = msgspec.field(default_factory=PodDisruptionBudgetStatus)


class PriorityClass(Object, frozen=True):
    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None
