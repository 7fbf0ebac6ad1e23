"""What a plugin may reach of the world around it: its Handle, nominated pods, and changes of pods."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from stowplan import log
from stowplan.api.custom import CustomResource
from stowplan.api.meta import Object
from stowplan.api.pod import Pod
from stowplan.cluster import ClusterView, PodTable
from stowplan.cluster.cluster import ObjectStore
from stowplan.cluster.columns import ChangeLog, Rows
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.config.gates import NO_GATES, FeatureGates
from stowplan.errors import StowplanError
from stowplan.framework.answers import (
    RaisedError,
    describe,
    format_value,
    plain_text,
    raise_interrupt,
    stack_of,
    where_text,
)
from stowplan.framework.decision import Decision
from stowplan.framework.observer import UNOBSERVED, Observer
from stowplan.framework.plugin import Nomination, Plugin, name_of, overrides
from stowplan.framework.state import CycleState
from stowplan.framework.status import Code, Preemption, Status
from stowplan.log import logger_of
from stowplan.metrics import Numbers, Page

NO_CANDIDATE = "no candidate node for preemption"
"""Extenders have dropped all that there were."""


def preemption_status(status: Status) -> Status:
    """Why preemption found no node, as the pod's condition says it."""
    return Status(
        status.code,
        (f"preemption: {status.message}",),
        stack=status.stack,
        keeps_nomination=status.keeps_nomination,
        preemption=status.preemption or Preemption(),
    )


def not_eligible(reason: str, *, keeps_nomination: bool = False) -> Status:
    """Why pods to evict are not searched, as the pod's condition says it."""
    found = Preemption(not_eligible=reason)
    return preemption_status(
        Status(Code.UNSCHEDULABLE, (reason,), keeps_nomination=keeps_nomination, preemption=found)
    )


class Nominations:
    """Pods that wait for a node to be cleared for them, with the name of that node."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[str, Pod]] = {}
        self._node_of: dict[str, str] = {}
        self.evicting: dict[str, str] = {}
        """Pods whose victims are being evicted, by uid, each with the uid of its last victim."""
        self.pods = PodTable()
        """The nominated pods as columns. `row` is the number of the node's name; `place` grows with each."""
        self.changes: ChangeLog[str] = ChangeLog()
        """Nodes whose nominated pods changed."""
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._live: LiveNodeTable | None = None
        self._layout = -1
        self._rows = np.full(8, -1, np.intp)
        """The row in `_live` of the node with each number."""
        self._unplaced: set[str] = set()
        """Nodes that `_rows` does not have yet."""
        self.rank: Callable[[Pod], Pod] | None = None
        """The pod with the priority that its nomination has, if not its own: that of its group."""

    def __bool__(self) -> bool:
        return bool(self._node_of)

    def put(self, pod: Pod, node_name: str) -> None:
        if not isinstance(pod, Pod) or type(node_name) is not str:  # from a plugin: all pods would fail of it
            raise TypeError("expected a Pod and the name of a node to nominate it to")
        self.remove(pod)
        if self.rank is not None:
            pod = self.rank(pod)
        number = self._numbers.get(node_name)
        if number is None:
            number = self._numbers[node_name] = self._free.pop() if self._free else len(self._numbers)
            self._unplaced.add(node_name)
        self.pods.add(number, self.changes.position, pod)
        self._by_node.setdefault(node_name, {})[pod.uid] = pod
        self._node_of[pod.uid] = node_name
        self.changes.mark(node_name)

    def remove(self, pod: Pod) -> None:
        node_name = self._node_of.pop(pod.uid, None)
        if node_name is not None:
            known = self._by_node[node_name].pop(pod.uid)
            self.pods.remove(known)
            if not self._by_node[node_name]:
                del self._by_node[node_name]
                self._free.append(self._numbers.pop(node_name))
                self._unplaced.discard(node_name)
            self.changes.mark(node_name)

    def __iter__(self) -> Iterator[Pod]:
        """All nominated pods."""
        return (pod for pods in self._by_node.values() for pod in pods.values())

    def on(self, node_name: str) -> tuple[Pod, ...]:
        return tuple(self._by_node.get(node_name, {}).values())

    def node_of(self, pod: Pod) -> str | None:
        """The name of the node that the pod is nominated to."""
        return self._node_of.get(pod.uid)

    def before(self, pod: Pod) -> Iterator[tuple[str, tuple[Pod, ...]]]:
        """Nodes with the pods nominated to them that must not lose their room to `pod`."""
        for node_name in self._by_node:
            if ahead := self.ahead_on(node_name, pod):
                yield node_name, ahead

    def ahead_on(self, node_name: str, pod: Pod) -> tuple[Pod, ...]:
        """The pods nominated to a node that must not lose their room to `pod`."""
        return tuple(
            other
            for other in self._by_node.get(node_name, {}).values()
            if other.priority >= pod.priority and other.uid != pod.uid
        )

    def ahead_of(self, pod: Pod, live: LiveNodeTable) -> tuple[Rows, Rows]:
        """The same for all nodes of the cluster: slots in `pods`, and the rows of their nodes."""
        self._follow(live)
        rows = self._rows[self.pods.row]
        is_ahead = (self.pods.priority >= pod.priority) & (rows >= 0)
        own = self.pods.find(pod.uid)
        if own is not None:
            is_ahead[own] = False
        slots = np.flatnonzero(is_ahead)
        return slots, rows[slots]

    def counts(self, live: LiveNodeTable) -> NDArray[np.int64]:
        """How many pods are nominated to each node of the cluster."""
        self._follow(live)
        rows = self._rows[self.pods.row]
        return np.bincount(rows[rows >= 0], minlength=len(live))

    def _follow(self, live: LiveNodeTable) -> None:
        """Renew `_rows`, and count what nodes offer by now."""
        if self._live is not live or self._layout != live.layout:
            self._live, self._layout = live, live.layout
            self._unplaced = set(self._numbers)
        if self._unplaced:
            if len(self._numbers) + len(self._free) > len(self._rows):
                self._rows = np.resize(self._rows, 2 * (len(self._numbers) + len(self._free)))
            for name in self._unplaced:
                row = live.row_of(name)
                self._rows[self._numbers[name]] = -1 if row is None else row
            self._unplaced.clear()
        for resource in live.requested.index.keys() - self.pods.followed:
            self.pods.follow(resource)


_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
Kind = TypeVar("Kind", bound=CustomResource)


class Preempt(Protocol):
    """Looks for pods to evict so that `pod` fits, on that percentage of nodes, but at least on so many.

    With `may_evict`, only pods with these uids are evicted, whatever their priority; otherwise all of lower
    priority may be. As few as possible are, those that budgets protect and the more important ones last.
    """

    def __call__(
        self,
        state: CycleState,
        pod: Pod,
        decision: Decision,
        percentage: int,
        absolute: int,
        may_evict: frozenset[str] | None = None,
    ) -> Status | Nomination: ...


class PreemptAcross(Protocol):
    """Looks for pods to evict on several nodes so that `pod` fits, in one of the pools at a time.

    As few of the pool are evicted as possible; if that alone does not help, so are pods of one node. The
    filters run at most `max_trials` times.
    """

    def __call__(self, pod: Pod, pools: Iterable[Sequence[Pod]], max_trials: int) -> Status | Nomination: ...


class Api(Protocol):
    """Access to the Kubernetes API, for `run`, `pre_bind`, `bind` and `post_bind`; declared in `rights`."""

    async def get_json(self, path: str) -> Any:
        """Read a path of the API, such as `/apis/metrics.k8s.io/v1beta1/nodes`, as plain data."""

    async def create_binding(self, pod: Pod, node_name: str) -> None:
        """Bind the pod to the node."""

    async def create(self, item: Object) -> Object:
        """Create the object; the answer is as it was stored."""

    async def apply(self, item: Object, *, field_manager: str, subresource: str = "") -> Object:
        """Apply the object server-side, taking over fields of other managers."""

    async def update(self, item: Object) -> Object:
        """Write what changed since the object was read; a Conflict if someone else has written it since."""

    async def update_status(self, item: Object) -> Object:
        """Do the same for its status subresource."""

    async def delete(self, item: Object) -> None:
        """Delete the object."""

    async def patch_pod(self, pod: Pod, patch: dict[str, Any]) -> None:
        """Apply a strategic merge patch to the pod, such as new annotations."""

    async def patch_pod_status(self, pod: Pod, patch: dict[str, Any]) -> None:
        """Apply a strategic merge patch to the pod's status subresource."""


class WaitingPod(Protocol):
    """A pod with a node that permit plugins hold: an entry of `handle.waiting_pods`."""

    @property
    def pod(self) -> Pod:
        """The pod; its `node_name` is the node that was chosen."""

    @property
    def plugins(self) -> tuple[str, ...]:
        """The names of the plugins that have not allowed it yet."""

    def allow(self, plugin: str = "") -> None:
        """Let the pod go on as far as this plugin is concerned; it is bound once every plugin has."""

    def reject(self, plugin: str, message: str) -> None:
        """End the wait: the pod is unreserved and goes back to the queue, with `message` as the reason."""


RecordEvent = Callable[[Pod | Object, Literal["Normal", "Warning"], str, str], None]


class Handle:
    """What a plugin can reach beyond the arguments of its methods, as `self.handle`.

    `now()` is the time in seconds since 1970, which tests can set. `cluster` is a `ClusterView`.
    `activate(pods)` has waiting pods attempted again at once.
    """

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
        pending_pods: Callable[[], Iterable[Pod]] = tuple,
    ) -> None:
        self.cluster, self.now, self.activate = cluster, now, activate
        self.nominations = Nominations() if nominations is None else nominations
        """The pods that preemption is making room for, of all profiles."""
        self.record_event = record_event
        """Record an event about a pod or another object: `record_event(item, "Warning", reason, note)`."""
        self.waiting_pods = waiting_pods
        """The pods that a `permit` holds, of all profiles; each can be allowed or rejected."""
        self.record_device_wait = record_device_wait
        """Counts how long the devices of a driver took to be ready: driver, profile, result, seconds."""
        self._pending_pods = pending_pods
        self.log: logging.Logger = logger_of("stowplan")
        """A logger whose lines name the plugin; `logging.getLogger(__name__)` works as well."""
        self._api, self._metrics = api, metrics or Page()
        self.preempt: Preempt = _no_preemption
        """Search for pods to evict, as DefaultPreemption does."""
        self.preempt_across: PreemptAcross = _no_preemption_across
        """Search for pods to evict on several nodes, as CrossNodePreemption does."""
        self.scheduler_name = ""
        """The name of the profile."""
        self.scheduler_names: Collection[str] = ()
        """The names of all profiles of the scheduler."""
        self.gates: FeatureGates = NO_GATES
        """The feature gates of pod groups that are on."""
        self.disabled_gates: FeatureGates = NO_GATES
        """The feature gates that are off, though kube-scheduler 1.36 has them on by default."""

    @property
    def api(self) -> Api:
        """Access to the Kubernetes API. Raises StowplanError in the offline commands, which have none."""
        if self._api is None:
            raise StowplanError("there is no Kubernetes API to write to")
        return self._api

    @property
    def pending_pods(self) -> Iterable[Pod]:
        """The pods of this scheduler's profiles that have no node yet, as last seen.

        They are in the queue, being decided, or held by a `permit`.
        """
        return tuple(self._pending_pods())

    def watched(self, kind: type[Kind]) -> ObjectStore[Kind]:
        """The objects of a kind that the plugin names in `watches`, kept up to date.

        `.get("name")` or `.get("namespace/name")` is one of them or None; iterate for all. `.is_served` says
        whether the API server has the kind.
        """
        return self.cluster.watched(kind)

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """A counter on /metrics: `counter[()] += 1`, or `counter["a",] += 1` with one label.

        The same name is the same counter. Raises ValueError for a name or label that Prometheus does not
        accept, and for a name that is taken by another metric.
        """
        if type(name) is not str or not _METRIC_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a metric name; use letters, digits and underscores")
        for label in labels:
            if type(label) is not str or not _LABEL_NAME.fullmatch(label) or labels.count(label) > 1:
                raise ValueError(f"{name}: {label!r} is not a label name, or given twice")
        known = self._metrics.families.get(name)
        if known is not None and (known.kind, known.labels) != ("counter", labels):
            has = f"a {known.kind} with the labels ({', '.join(known.labels)})"
            raise ValueError(f"{name} is already {has}; choose another name")
        plain = " ".join(str(text).split())  # a line break would start another metric
        return Counter(name, self._metrics.shared_counter(name, plain, *labels))


class Counter:
    """A number for each combination of label values, given as a tuple in the order of the labels."""

    def __init__(self, name: str, numbers: Numbers) -> None:
        self._name, self._numbers = name, numbers

    def __getitem__(self, values: tuple[str, ...]) -> float:
        return self._numbers.get(self._check_labels(values), 0.0)

    def __setitem__(self, values: tuple[str, ...], number: float) -> None:
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise ValueError(f"{self._name}: expected a number, got {format_value(number)}")
        self._numbers[self._check_labels(values)] = float(number)

    def _check_labels(self, values: tuple[str, ...]) -> tuple[str, ...]:
        labels = self._numbers.labels
        if (
            type(values) is not tuple
            or len(values) != len(labels)
            or any(type(each) is not str for each in values)
        ):
            expected = f"({', '.join(labels)})" if labels else "()"
            raise ValueError(
                f"{self._name}: expected a tuple of text for {expected}, got {format_value(values)}"
            )
        return tuple(map(plain_text, values))


def _no_preemption(
    state: CycleState,
    pod: Pod,
    decision: Decision,
    percentage: int,
    absolute: int,
    may_evict: frozenset[str] | None = None,
) -> Status | Nomination:
    raise StowplanError("this host does not preempt")


def _no_preemption_across(pod: Pod, pools: Iterable[Sequence[Pod]], max_trials: int) -> Status | Nomination:
    raise StowplanError("this host does not preempt")


METHODS = ("pod_added", "pod_updated", "pod_deleted")


class PodFollowers:
    """The plugins that override `pod_added`, `pod_updated` or `pod_deleted`.

    Each is called once for each pod and change: hosts may report the same change twice, or not know what they
    reported before. `observer` observes every call, so that its budget applies.
    """

    def __init__(self, observer: Observer = UNOBSERVED) -> None:
        self._observer = observer
        self._plugins: tuple[Plugin, ...] = ()
        self._by_method: dict[str, tuple[Plugin, ...]] = {}
        self._pods: dict[str, Pod] = {}
        """The pods as they were last reported, by uid; empty while there are no followers."""

    def take_plugins(self, plugins: Iterable[Plugin], known: Callable[[], Iterable[Pod]]) -> None:
        """Call these plugins from now on. New ones are called for all pods that are `known` already."""
        before, found = self._plugins, dict.fromkeys(each for each in plugins if overrides(each, *METHODS))
        self._plugins = tuple(found)
        self._by_method = {
            method: tuple(each for each in found if overrides(each, method)) for method in METHODS
        }
        if found and not before:
            self._pods = {pod.uid: pod for pod in known() if not pod.is_finished}
        elif not found:
            self._pods = {}
        for plugin in self._by_method["pod_added"]:
            if plugin not in before:
                for pod in tuple(self._pods.values()):
                    self._call(plugin, "pod_added", _call_pod_added(pod), pod)

    def tell(self, pod: Pod, *, is_gone: bool = False) -> None:
        """Tell of a pod as it is now, or that it is gone. A pod that has ended is gone, too."""
        if not self._plugins:
            return
        old = self._pods.get(pod.uid)
        if is_gone or pod.is_finished:
            if self._pods.pop(pod.uid, None) is not None:
                self._call_all("pod_deleted", lambda plugin: plugin.pod_deleted(pod), pod)
            return
        self._pods[pod.uid] = pod
        if old is None:
            self._call_all("pod_added", _call_pod_added(pod), pod)
        elif old is not pod:
            self._call_all("pod_updated", lambda plugin: plugin.pod_updated(old, pod), pod)

    def _call_all(self, method: str, call: Callable[[Plugin], None], pod: Pod) -> None:
        for plugin in self._by_method[method]:
            self._call(plugin, method, call, pod)

    def _call(self, plugin: Plugin, method: str, call: Callable[[Plugin], None], pod: Pod) -> None:
        """Only `call` looks up the method: a plugin may have a property there that raises."""
        try:
            self._observer.enter(method, plugin)
            try:
                call(plugin)
            except BaseException as error:  # its text is the plugin's code, too
                raise RaisedError(error, (plugin, method)) from None
            finally:
                self._observer.leave(method, plugin)
        except BaseException as error:
            raise_interrupt(error)
            said = f"{describe(error)}{where_text(error)}"
            name = name_of(plugin)
            log.error("Plugin failed", said, plugin=name, method=method, pod=pod, stacktrace=stack_of(error))


def _call_pod_added(pod: Pod) -> Callable[[Plugin], None]:
    return lambda plugin: plugin.pod_added(pod)
