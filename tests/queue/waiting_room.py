"""A scheduling queue with a clock that tests set, and plugins that refuse and listen as tests want."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

from make import make_node, make_pod
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.framework import QUEUE, SKIP_HINT, Action, ClusterEvent, Hint, Plugin, Resource, Status
from stowplan.framework.hints import ObjectChange, QueueingHints
from stowplan.framework.registry import ENTRY_POINTS, Registry
from stowplan.queue import QueuedPod, SchedulingQueue

INSTALLED = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
NODE_ADD = ClusterEvent(Resource.NODE, Action.ADD)
NODE_LABEL = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_LABEL)
NODE_DELETE = ClusterEvent(Resource.NODE, Action.DELETE)
POD_ADD = ClusterEvent(Resource.ASSIGNED_POD, Action.ADD)
POD_DELETE = ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE)
EVERYTHING = ClusterEvent(Resource.WILDCARD, Action.ALL)
GOOD = ObjectChange(NODE_ADD, None, make_node("good"))
BAD = ObjectChange(NODE_ADD, None, make_node("bad"))
LABELLED = ObjectChange(NODE_LABEL, make_node("n"), make_node("n"))
UNHEARD = ObjectChange(ClusterEvent(Resource.VOLUME_ATTACHMENT, Action.ADD), None, None)
START = 1000.25


class Fit(Plugin):
    """Thinks that good nodes help, and counts how often it was asked."""

    asked = 0

    def filter(self, state: Any, pod: Pod, node: Any) -> Status | None:
        return None

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT),
            ClusterEvent(Resource.POD, Action.DELETE | Action.UPDATE_POD_TOLERATION),
        )

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        self.asked += 1
        return SKIP_HINT if new is not None and new.name == "bad" else QUEUE


class Other(Plugin):
    """Hears of labels of nodes and of pods, and always thinks that they help."""

    def filter(self, state: Any, pod: Pod, node: Any) -> Status | None:
        return None

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (NODE_LABEL, ClusterEvent(Resource.POD, Action.UPDATE_POD_LABEL))


class Raising(Other):
    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        raise OSError("no idea")


class Silent(Plugin):
    """Does not say what it wants to hear of."""

    def filter(self, state: Any, pod: Pod, node: Any) -> Status | None:
        return None


class Door(Plugin):
    """Holds back the pods whose names are in `shut`; hears of nodes that go."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.shut: set[str] = set()
        self.answer: Any = Status.unresolvable("shut")
        self.asked = 0

    def pre_enqueue(self, pod: Pod) -> Status | None:
        self.asked += 1
        if pod.name not in self.shut:
            return None
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (NODE_DELETE,)


class Gate(Door):
    """Another one, that is asked after the first."""


class Ledger:
    """Counts all that the queue reports."""

    def __init__(self) -> None:
        self.incoming: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()
        self.kept: Counter[str] = Counter()
        self.hints: Counter[tuple[str, str, str]] = Counter()
        self.points: Counter[tuple[str, str, str]] = Counter()

    def pod_queued(self, event: str, queue: str) -> None:
        self.incoming[queue, event] += 1

    def unschedulable(self, plugin: str, profile: str, change: int) -> None:
        self.refused[plugin, profile] += change

    def inflight_events(self, event: str, change: int) -> None:
        self.kept[event] += change

    def hint_asked(self, event: str, hint: str, plugin: str, seconds: float) -> None:
        self.hints[event, hint, plugin] += 1

    def extension_point(self, point: str, profile: str, status: str, seconds: float) -> None:
        self.points[point, profile, status] += 1


class Room:
    """A queue, what it runs on, and shorter ways to say what tests say often."""

    def __init__(
        self, *plugins: type[Plugin], sort: str = "PrioritySort", keeps_faults: bool = True, **options: Any
    ) -> None:
        plugins = plugins or (Fit, Other, Raising, Silent, Door, Gate)
        self.now = START
        self.ledger = Ledger()
        self.faults: list[tuple[str, str]] = []
        self.profiles = profiles_of(plugins, sort)
        options = {"recorder": self.ledger, **options}
        if keeps_faults:
            options["on_fault"] = self._on_fault
        hints = {name: QueueingHints(profile) for name, profile in self.profiles.items()}
        self.queue = SchedulingQueue(clock=lambda: self.now, **options)
        self.queue.take_profiles(hints, self.profiles)

    def _on_fault(self, pod: Pod, error: Exception) -> None:
        self.faults.append((pod.name, str(error)))

    def plugin(self, name: str) -> Any:
        return self.profiles["default-scheduler"].plugins[name]

    def add(self, *names: str, **fields: Any) -> list[Pod]:
        pods = [make_pod(name, **fields) for name in names]
        for pod in pods:
            self.queue.add(pod)
        return pods

    def take(self) -> QueuedPod:
        queued = self.queue.pop_nowait()
        assert queued is not None
        return queued

    def names(self) -> list[str]:
        """All that can be taken out now, in order."""
        found = []
        while (queued := self.queue.pop_nowait()) is not None:
            found.append(queued.pod.name)
        return found

    def refused(self, name: str = "pod", *rejectors: str, pending: Iterable[str] = (), **fields: Any) -> Pod:
        """A pod that has been tried and refused."""
        (pod,) = self.add(name, **fields)
        queued = self.take()
        assert queued.pod is pod
        self.queue.return_failed(queued, rejectors=rejectors, pending=pending)
        return pod

    def failed(self, name: str = "pod", **fields: Any) -> Pod:
        """A pod whose attempt went wrong."""
        return self.refused(name, **fields)

    def gated(self, name: str = "pod", door: str = "Door", **fields: Any) -> Pod:
        self.plugin(door).shut.add(name)
        return self.add(name, **fields)[0]

    def find(self, pod: Pod) -> QueuedPod:
        (found,) = (queued for queued in self.queue if queued.pod.uid == pod.uid)
        return found

    def place(self, pod: Pod) -> str | None:
        """Where the pod is; None if the queue does not have it."""
        return next((queued.place for queued in self.queue if queued.pod.uid == pod.uid), None)


def profiles_of(plugins: Iterable[type[Plugin]], sort: str) -> Any:
    classes = {plugin.__name__: plugin for plugin in plugins}
    registry = Registry(classes, INSTALLED)
    names = [*{sort: None, "DefaultBinder": None, **dict.fromkeys(classes)}]
    multi_point = {"disabled": [{"name": "*"}], "enabled": [{"name": name} for name in names]}
    profiles = [
        {"schedulerName": name, "plugins": {"multiPoint": multi_point}}
        for name in ("default-scheduler", "second")
    ]
    config = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    loaded = load({**config, "profiles": profiles}, registry)
    return Planner(Cluster(), loaded.config, registry=registry).profiles
