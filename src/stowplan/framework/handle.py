"""What a plugin may reach of the world around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, TypeVar

from stowplan.api.custom import CustomResource
from stowplan.api.meta import Object
from stowplan.api.pod import Pod
from stowplan.cluster import ClusterView
from stowplan.cluster.store import ObjectStore
from stowplan.errors import StowplanError
from stowplan.framework.decision import Decision
from stowplan.framework.nominations import Nominations
from stowplan.framework.plugin import Nomination
from stowplan.framework.state import CycleState
from stowplan.framework.status import Status
from stowplan.metrics import Numbers, Page

Kind = TypeVar("Kind", bound=CustomResource)


class Preempt(Protocol):
    """Looks for pods to evict so that `pod` fits, on that percentage of nodes, but at least on so many."""

    def __call__(
        self, state: CycleState, pod: Pod, decision: Decision, percentage: int, absolute: int
    ) -> Status | Nomination: ...


class Api(Protocol):
    """Writes to the Kubernetes API, for the points after a node was chosen."""

    async def create_binding(self, pod: Pod, node_name: str) -> None: ...
    async def create(self, item: Object) -> Object: ...
    async def apply(self, item: Object, *, field_manager: str, subresource: str = "") -> Object: ...
    async def update(self, item: Object) -> Object: ...
    async def update_status(self, item: Object) -> Object: ...
    async def delete(self, item: Object) -> None: ...
    async def patch_pod_status(self, pod: Pod, patch: dict[str, Any]) -> None: ...


class WaitingPod(Protocol):
    """A pod held back by permit plugins, each of which may let it go on; one refusal is enough."""

    @property
    def pod(self) -> Pod: ...
    @property
    def plugins(self) -> tuple[str, ...]: ...
    def allow(self, plugin: str) -> None: ...
    def reject(self, plugin: str, message: str) -> None: ...


RecordEvent = Callable[[Pod | Object, Literal["Normal", "Warning"], str, str], None]


class Handle:
    """Handed to every plugin. Hosts fill in what they have; the offline commands have no API."""

    def __init__(
        self,
        cluster: ClusterView,
        *,
        now: Callable[[], float] = time.time,
        api: Api | None = None,
        activate: Callable[[Iterable[Pod]], None] = lambda pods: None,
        nominations: Nominations | None = None,
        metrics: Page | None = None,
        record_event: RecordEvent = lambda pod, kind, reason, note: None,
        waiting_pods: Iterable[WaitingPod] = (),
        record_device_wait: Callable[
            [str, str, str, float], None
        ] = lambda driver, profile, result, seconds: None,
    ) -> None:
        self.cluster, self.now, self.activate = cluster, now, activate
        self.nominations = Nominations() if nominations is None else nominations
        """Those of all profiles of a host."""
        self.record_event = record_event
        """Tells of a pod or another object in an event that `kubectl describe` shows: type, reason, text."""
        self.waiting_pods = waiting_pods
        """Pods that a `permit` holds back."""
        self.record_device_wait = record_device_wait
        """Counts how long the devices of a driver took to be ready: driver, profile, result, seconds."""
        self._api, self._metrics = api, metrics or Page()
        self.preempt: Preempt = _no_preemption
        self.scheduler_name = ""
        """Of the profile."""

    @property
    def api(self) -> Api:
        if self._api is None:
            raise StowplanError("there is no Kubernetes API to write to")
        return self._api

    def watched(self, kind: type[Kind]) -> ObjectStore[Kind]:
        """All objects of a kind that the plugin names in `watches`, kept up to date by the host."""
        return self.cluster.watched(kind)

    def counter(self, name: str, text: str, *labels: str) -> Numbers:
        """A counter on /metrics: `counter[label values] += 1`. The same name is the same counter."""
        return self._metrics.shared_counter(name, text, *labels)


def _no_preemption(
    state: CycleState, pod: Pod, decision: Decision, percentage: int, absolute: int
) -> Status | Nomination:
    raise StowplanError("this host does not preempt")
