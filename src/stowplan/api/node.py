"""Nodes as the API has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from stowplan.api.meta import EMPTY, Condition, Object, Wire
from stowplan.api.pod import Toleration
from stowplan.api.quantity import Quantity, units
from stowplan.api.requests import amounts


class Taint(NamedTuple):
    key: str
    value: str
    effect: str

    @property
    def is_hard(self) -> bool:
        return self.effect in ("NoSchedule", "NoExecute")

    @property
    def text(self) -> str:
        """As `kubectl taint` takes it."""
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class TaintWire(Wire, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Wire, frozen=True):
    unschedulable: bool = False
    taints: tuple[TaintWire, ...] = ()


class ContainerImage(Wire, frozen=True):
    names: tuple[str, ...] = ()
    size_bytes: int = 0


MAX_IMAGES = 50_000
_images: dict[ContainerImage, ContainerImage] = {}
"""Images that nodes have, each once: the list of them is most of a node, and many nodes have the same."""


class NodeAddress(Wire, frozen=True):
    type: str = ""
    address: str = ""


class NodeStatus(Wire, frozen=True):
    capacity: dict[str, Quantity] = EMPTY
    """Few plugins read it; everywhere else what is allocatable counts."""
    allocatable: dict[str, Quantity] = EMPTY
    addresses: tuple[NodeAddress, ...] = ()
    images: tuple[ContainerImage, ...] = ()
    conditions: tuple[Condition, ...] = ()
    declared_features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.images:
            if len(_images) > MAX_IMAGES:
                _images.clear()
            shared = tuple([_images.setdefault(image, image) for image in self.images])
            msgspec.structs.force_setattr(self, "images", shared)


UNREADABLE_POD = "stowplan.dev/unreadable-pod"


class NodeObject(Object, frozen=True):
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations

    @property
    def unschedulable(self) -> bool:
        return self.spec.unschedulable

    @property
    def taints(self) -> tuple[Taint, ...]:
        return tuple(Taint(taint.key, taint.value, taint.effect) for taint in self.spec.taints)

    @property
    def allocatable(self) -> dict[str, int]:
        """Amounts by resource, `pods` among them: cpu in thousandths, all else in units."""
        found = amounts(self.status.allocatable)
        if "pods" in self.status.allocatable:
            found["pods"] = units(self.status.allocatable["pods"])
        return found

    @property
    def images(self) -> tuple[ContainerImage, ...]:
        return self.status.images

    @property
    def declared_features(self) -> tuple[str, ...]:
        return self.status.declared_features

    @property
    def is_closed(self) -> bool:
        return any(taint.key == UNREADABLE_POD for taint in self.spec.taints)

    def closed(self) -> NodeObject:
        """The node as it counts while it has a pod of which nothing can be read: nothing more fits there."""
        taints = (*self.spec.taints, TaintWire(key=UNREADABLE_POD, effect="NoSchedule"))
        spec = msgspec.structs.replace(self.spec, taints=taints)
        status = msgspec.structs.replace(self.status, allocatable={})
        return msgspec.structs.replace(self, spec=spec, status=status)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"


def is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)


def first_untolerated(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint that keeps pods away and is not tolerated."""
    return next((taint for taint in taints if taint.is_hard and not is_tolerated(taint, tolerations)), None)
