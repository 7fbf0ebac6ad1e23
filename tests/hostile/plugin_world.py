"""A scheduler with a plugin of others, a small cluster and waiting pods; and a check that all is intact."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from make import make_node, make_pod
from scheduler_staging import RecordingApi
from stowplan.api.kinds import object_of
from stowplan.api.meta import decode
from stowplan.api.pod import HostPort, Pod
from stowplan.api.workloads import Namespace
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.cycle import Planner
from stowplan.cycle.schedule import schedule
from stowplan.framework import CustomResource, Definition, Plugin, Wire
from stowplan.framework.registry import ENTRY_POINTS, Registry, replacing
from stowplan.scheduler.guard import Guard
from stowplan.scheduler.scheduler import Scheduler, Settings

V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
INSTALLED = {entry.name: entry.load() for entry in entry_points(group=ENTRY_POINTS)}
WAITING = ("waits", "waits-too", "backs-off")


class RackSpec(Wire, frozen=True):
    weights: dict[str, int] = {}
    rows: list[str] = []


class Rack(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "racks", "Rack", namespaced=False)
    spec: RackSpec = RackSpec()


def spread_over(key: str) -> dict[str, Any]:
    selector = {"matchLabels": {"app": "web"}}
    constraint = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**constraint, "labelSelector": selector}]}


def apart(app: str) -> dict[str, Any]:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def in_zones(*zones: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": list(zones)}]}
    required = {"nodeSelectorTerms": [term]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def port(number: int) -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "web", "ports": [{"hostPort": number}]}]}


def objects() -> Iterator[Any]:
    for row, zone in enumerate("aabbc"):
        yield make_node(
            f"n{row}",
            labels={"zone": zone, f"only-{row}": "yes"},
            taints=["gpu=yes:NoSchedule"] if row == 4 else [],
            allocatable={
                "cpu": "1" if row == 3 else "8",
                "memory": "8Gi",
                "pods": "10",
                "example.com/gpu": row,
                "example.com/spare": 9,
            },
            images={"docker.io/library/web:latest": 500_000_000} if row < 2 else {},
            features=["Fast"] if row == 1 else [],
        )
    yield decode(Namespace, {"metadata": {"name": "default", "labels": {"team": "one"}}})
    yield make_pod("web-1", node="n0", labels={"app": "web"}, requests={"cpu": "1"}, priority=1)
    yield make_pod("web-2", node="n2", labels={"app": "web"}, requests={"cpu": "2"}, priority=1)
    yield make_pod("db", node="n1", labels={"app": "db"}, **apart("db"))
    yield make_pod("gpu", node="n2", requests={"example.com/gpu": "1"}, **port(80))
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    yield object_of(
        {"kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "default"}, "spec": claim}
    )
    volume = {"capacity": {"storage": "1Gi"}, "csi": {"driver": "d", "volumeHandle": "h"}}
    yield object_of(
        {"kind": "PersistentVolume", "metadata": {"name": "v", "labels": {"zone": "a"}}, "spec": volume}
    )
    yield decode(Rack, {"metadata": {"name": "r"}, "spec": {"weights": {"n0": 1}, "rows": ["x"]}})


PROBES = [
    make_pod("probe-small", requests={"cpu": "500m"}),
    make_pod("probe-large", requests={"cpu": "7"}),
    make_pod("probe-zone", **in_zones("b", "c")),
    make_pod("probe-spread", labels={"app": "web"}, **spread_over("zone")),
    make_pod("probe-apart", labels={"app": "db"}, **apart("web")),
    make_pod("probe-port", **port(80)),
    make_pod("probe-gpu", requests={"example.com/gpu": "2"}, tolerations=["gpu"]),
    make_pod("probe-hopeless", requests={"cpu": "100"}, priority=5),
    make_pod("probe-preempts", requests={"cpu": "8"}, priority=9, **in_zones("a")),
]


class World:
    def __init__(self, plugin: type[Plugin], guard: Guard | None = None, sort: str = "PrioritySort") -> None:
        self.api = RecordingApi()
        registry, config = configuration_with(plugin, sort)
        self.scheduler = Scheduler(
            config,
            self.api,  # type: ignore[arg-type]
            self.api,  # type: ignore[arg-type]
            Settings(registry=registry, guard=guard, draw=random.Random(0), now=lambda: 1000.25),
        )
        self.cluster, self.queue = self.scheduler.cluster, self.scheduler.queue
        self.profile = self.scheduler.profiles["default-scheduler"]
        self.plugin: Any = self.profile.plugins[plugin.__name__]
        for item in objects():
            self.cluster.apply(item)
        for probe in PROBES:
            self.decide(probe)  # so that there are kept columns and counts to damage
        self.waiting = {name: make_pod(name, requests={"cpu": "1"}) for name in WAITING}
        for name, pod in self.waiting.items():
            self.queue.add(pod)
            queued = self.queue.pop_nowait()
            assert queued is not None
            self.queue.return_failed(queued, rejectors=() if name == "backs-off" else ("NodeResourcesFit",))
        self.queue.nominate(self.waiting["waits"], "n3")

    def decide(self, pod: Pod) -> dict[str, Any]:
        found = schedule(self.profile, pod, self.cluster.nodes).as_golden()
        found.get("scores", {}).pop(type(self.plugin).__name__, None)
        return found

    def schedule(self, pod: Pod) -> None:
        """Has the scheduler decide a new pod, as its loop does."""
        self.queue.add(pod)
        while (queued := self.queue.pop_nowait()) is not None and queued.pod.name in WAITING:
            self.queue.return_failed(queued, rejectors=("NodeResourcesFit",))  # a plugin has activated it
        assert queued is not None
        assert queued.pod.uid == pod.uid
        self.scheduler.loop.schedule_one(queued)

    def check(self) -> None:
        """All that is known equals what a scheduler that starts now would know, and no pod is lost."""
        expected, decisions = anew()
        passing_by = make_node("passing-by")  # has all columns laid out anew
        self.cluster.apply(passing_by)
        self.cluster.remove(passing_by)
        assert described(self.cluster) == expected
        self.check_queue()
        self.queue.nominate(self.waiting["waits"], "")
        for probe, decision in zip(PROBES, decisions, strict=True):
            assert self.decide(probe) == decision

    def check_queue(self) -> None:
        known = {queued.pod.uid: queued.place for queued in self.queue}
        assert set(known) >= {pod.uid for pod in self.waiting.values()}
        counts = self.queue.counts()
        assert counts == {place: list(known.values()).count(place) for place in counts}
        nominated = self.profile.handle.nominations.on("n3")
        assert [pod.uid for pod in nominated] == [self.waiting["waits"].uid]
        self.queue.activate(self.waiting.values())
        popped = []
        while (queued := self.queue.pop_nowait()) is not None:
            popped.append(queued.pod.uid)
            self.queue.done(queued.pod.uid)
        assert set(popped) >= {pod.uid for pod in self.waiting.values()}
        assert len(set(popped)) == len(popped)


@cache
def configuration_with(plugin: type[Plugin], sort: str) -> tuple[Registry, KubeSchedulerConfiguration]:
    registry = Registry(INSTALLED | {plugin.__name__: plugin})
    profile = {
        "plugins": {
            "multiPoint": {"enabled": [{"name": plugin.__name__}]},
            "queueSort": {"enabled": [{"name": sort}], "disabled": [{"name": "*"}]},
        }
    }
    return registry, load({**V1, "profiles": [profile]}, registry).config


@cache
def anew() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What is known of a cluster built from scratch, and what is decided there."""
    cluster = Cluster.of(objects())
    planner = Planner(cluster, registry=Registry(INSTALLED))
    return described(cluster), [planner.decide(probe).as_golden() for probe in PROBES]


def described(cluster: Cluster) -> dict[str, Any]:
    """All that the tables say, by the names of nodes."""
    nodes = cluster.nodes
    keys = sorted({key for item in nodes.objects for key in item.labels})
    resources = ("cpu", "memory", "ephemeral-storage", "pods", "example.com/gpu", "not-there")
    plain = {item.key: fields_of(item) if isinstance(item, Pod) else item for item in cluster.objects()}
    found: dict[str, Any] = {"objects": {key: repr(item) for key, item in plain.items()}}
    for row, name in enumerate(nodes.names):
        labels = {key: nodes.label(key).ids[row] for key in keys}
        found[name] = {
            "row": nodes.row_of(name),
            "labels": {key: nodes.label(key).values[i] for key, i in labels.items() if i >= 0},
            "allocatable": {each: int(nodes.allocatable[each][row]) for each in resources},
            "requested": {each: int(nodes.requested[each][row]) for each in resources},
            "nonzero": {each: int(nodes.nonzero_requested[each][row]) for each in ("cpu", "memory")},
            "pods": sorted(repr(fields_of(pod)) for pod in nodes.pods_on(row)),
            "count": int(nodes.pod_count[row]),
            "unschedulable": bool(nodes.unschedulable[row]),
            "taints": int(nodes.by_taints(len, int)[row]),
            "features": bool(nodes.by_features(bool)[row]),
            "image": bool(nodes.has_image("docker.io/library/web:latest")[row]),
            "port": bool(nodes.ports_taken([HostPort("0.0.0.0", "TCP", 80)])[row]),
        }
    return found


def fields_of(pod: Pod) -> dict[str, Any]:
    """What a pod says; its own repr has addresses, which differ between equal pods."""
    return {
        "key": pod.key,
        "node": pod.node_name,
        "labels": pod.labels,
        "annotations": pod.annotations,
        "spec": pod.spec,
        "requests": pod.requests,
        "assigned": pod.shape.assigned,
        "ports": pod.shape.ports,
    }


@contextmanager
def loaded_from(folder: Path, sources: dict[str, str]) -> Iterator[dict[str, ModuleType]]:
    """Modules with plugins as --plugin-dir loads them, from a folder of their own."""
    folder.mkdir(exist_ok=True)
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    with replacing({name: folder / f"{name}.py" for name in sources}):
        yield {name: sys.modules[name] for name in sources}
