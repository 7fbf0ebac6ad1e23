"""NodeResourceTopology objects that are out of date: both schedulers place and reject the same pods.

A scenario is a list of steps on a node with two NUMA nodes of four CPUs. There is no exporter here: steps
write the object as one would, sooner or later, with the fingerprint of the pods that it says it has.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from random_clusters import Json, container, pod
from real_scheduler import PATHS, Schedules, started

from controlplane.control_plane import ControlPlane
from controlplane.process import wait_until
from make import make_pod
from stowplan.plugins.pod_fingerprint import fingerprint

NODE = "numa-n"
TOPOLOGY = {"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology"}
PLACED, MISFIT, STALE = "placed", "1 cannot align container", "1 invalid node topology data"
ATTEMPTS = 5
"""Made in turn, with a second between them: resyncing is due each second."""


class NumaNode:
    """The node, its object and its pods, and the scheduler that is at work there."""

    def __init__(self, scheduler: Schedules) -> None:
        self.scheduler = scheduler

    def write(
        self,
        *cpus: int,
        pods: Iterable[str] | None = None,
        scope: str = "container",
        method: str = "",
        annotates: bool = False,
    ) -> None:
        """Write the object: CPUs available on each NUMA node, and the pods that it has, if it has a
        fingerprint."""
        attributes = {"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": scope}
        annotations = {}
        if pods is not None:
            found = fingerprint([make_pod(name) for name in pods])
            if annotates:
                annotations["topology.node.k8s.io/fingerprint"] = found
            else:
                attributes["nodeTopologyPodsFingerprint"] = found
        if method:
            attributes["nodeTopologyPodsFingerprintMethod"] = method
        item = {
            **TOPOLOGY,
            "metadata": {"name": NODE, "annotations": annotations},
            "attributes": [{"name": name, "value": value} for name, value in attributes.items()],
            "zones": [zone(number, cpu) for number, cpu in enumerate(cpus)],
        }
        if self.scheduler.items("NodeResourceTopology"):
            self.scheduler.request("PATCH", f"{PATHS['NodeResourceTopology']}/{NODE}", item)
        else:
            self.scheduler.create(item)

    def place(self, name: str, cpu: str = "3", attempts: int = ATTEMPTS, **spec: Any) -> str:
        """Create a pod, again if it is rejected, and say what became of the last one.

        Pods that are placed start at once: scheduler-plugins' fingerprints leave out those that did not. Pods
        that are rejected are deleted: it would not look at them again when it has resynced.
        """
        made = numa_pod(name, cpu, **spec)
        for _ in range(attempts):
            answer = self.scheduler.decide(made)
            if "chosen" in answer:
                self.start(name)
                return PLACED
            self.scheduler.delete(made)
            time.sleep(1)
        return re.sub(r"^0/\d+ nodes are available: |\. .*|\.$", "", answer["message"])

    def start(self, name: str, phase: str = "Running") -> None:
        path = f"{PATHS['Pod'].format('default')}/{name}/status"
        self.scheduler.request("PATCH", path, {"status": {"phase": phase}})

    def place_by_another(self, name: str, cpu: str = "3", **spec: Any) -> None:
        """A pod that another scheduler placed."""
        self.scheduler.create(numa_pod(name, cpu, schedulerName="another", nodeName=NODE, **spec))
        self.start(name)
        time.sleep(1)  # until the scheduler has seen it

    def delete(self, name: str) -> None:
        self.scheduler.delete(numa_pod(name, "1"))
        time.sleep(1)


def zone(number: int, cpu: int) -> Json:
    resources = [
        {"name": name, "capacity": size, "allocatable": size, "available": left}
        for name, size, left in (("cpu", "4", str(cpu)), ("memory", "64Gi", "64Gi"))
    ]
    return {"name": f"node-{number}", "type": "Node", "resources": resources}


def numa_pod(name: str, cpu: str, shared: bool = False, **spec: Any) -> Json:
    """A Guaranteed pod; a Burstable one if it shares its CPUs."""
    amounts = {"cpu": cpu, "memory": "1Gi"}
    return pod(name, container(amounts, {} if shared else amounts), **{"schedulerName": "numa", **spec})


Steps = Callable[[NumaNode], list[str]]


def outcomes(
    plane: ControlPlane, kind: str, args: Json, steps: Steps, before: Callable[[NumaNode], None]
) -> list[str]:
    cluster = Schedules(plane)
    cluster.empty()
    amounts = {"cpu": "64", "memory": "128Gi", "pods": "110"}
    status = {"capacity": amounts, "allocatable": amounts}
    cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "status": status})
    before(NumaNode(cluster))  # scheduler-plugins never sees objects that are created after it has started
    profile = {
        "schedulerName": "numa",
        "plugins": {"multiPoint": {"enabled": [{"name": "NodeResourceTopologyMatch"}]}},
        "pluginConfig": [{"name": "NodeResourceTopologyMatch", "args": args}],
    }
    with started(plane, kind, profiles=[profile]) as scheduler:
        return steps(NumaNode(scheduler))


def written(node: NumaNode) -> None:
    node.write(4, 4, pods=[])


def written_plainly(node: NumaNode) -> None:
    node.write(4, 4)


# Scenarios


def one_after_another(node: NumaNode) -> list[str]:
    """The object is late, then it has all pods."""
    found = [node.place("a"), node.place("b", attempts=1), node.place("c", "1", attempts=1)]
    node.write(4, 4, pods=[])  # written again, before the exporter has seen the pods
    found.append(node.place("d", attempts=2))
    node.write(1, 3, pods=[name for name, each in zip("abcd", found, strict=True) if each == PLACED])
    return [*found, node.place("e"), node.place("f", "2", attempts=2)]


def another_scheduler(node: NumaNode) -> list[str]:
    node.place_by_another("x")
    found = [node.place("a", attempts=2)]
    node.write(1, 4, pods=["x", *("a" for each in found if each == PLACED)])
    return [*found, node.place("b")]


def another_scheduler_sharing(node: NumaNode) -> list[str]:
    node.place_by_another("x", shared=True)
    return [node.place("a", attempts=2)]


def already_there(node: NumaNode) -> None:
    written(node)
    node.place_by_another("x")


def decide_beside_it(node: NumaNode) -> list[str]:
    found = [node.place("a", attempts=2)]
    node.write(1, 4, pods=["x"])
    return [*found, node.place("b")]


def fingerprint_of_some(method: str = "") -> Steps:
    def steps(node: NumaNode) -> list[str]:
        """The fingerprint is that of pods with CPUs of their own."""
        found = [node.place("a"), node.place("b", "500m", shared=True), node.place("c", attempts=1)]
        node.write(1, 4, pods=["a"], method=method)
        return [*found, node.place("d")]

    return steps


def fingerprint_in_an_annotation(node: NumaNode) -> list[str]:
    found = [node.place("a"), node.place("b", attempts=1)]
    node.write(1, 4, pods=["a"], annotates=True)
    return [*found, node.place("c")]


def kubelet_set_otherwise(node: NumaNode) -> list[str]:
    found = [node.place("a"), node.place("b", attempts=1)]
    node.write(4, 4, pods=[], scope="pod")
    return [*found, node.place("c")]


def while_it_is_being_bound(node: NumaNode) -> list[str]:
    """Binding waits for a volume, which nobody provides at first."""
    name, scheduler = f"late-{uuid.uuid4()}", node.scheduler
    kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    late = {"provisioner": "example.com/none", "volumeBindingMode": "WaitForFirstConsumer"}
    scheduler.request("POST", "/apis/storage.k8s.io/v1/storageclasses", kind | late)
    claims, size = "/api/v1/namespaces/default/persistentvolumeclaims", {"storage": "1Gi"}
    spec = {
        "storageClassName": name,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": size},
    }
    scheduler.request("POST", claims, {"metadata": {"name": name}, "spec": spec})
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": name}}
    waiting = scheduler.create(numa_pod("a", "1", volumes=[volume]))

    def claim() -> Json:
        return scheduler.request("GET", f"{claims}/{name}")

    selected = "volume.kubernetes.io/selected-node"
    wait_until(
        lambda: claim()["metadata"].get("annotations", {}).get(selected) == NODE,
        lambda: "no node is chosen",
        30,
    )
    found = [node.place("b", "1", attempts=2)]
    bound_to = {"namespace": "default", "name": name, "uid": claim()["metadata"]["uid"]}
    volume_spec = {key: spec[key] for key in ("storageClassName", "accessModes")}
    volume_spec |= {"capacity": size, "claimRef": bound_to, "hostPath": {"path": "/data"}}
    scheduler.request("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": volume_spec})
    done = {
        "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": name},
    }
    scheduler.request("PATCH", f"{claims}/{name}", done)
    scheduler.request("PATCH", f"{claims}/{name}/status", {"status": {"phase": "Bound"}})
    path = f"{PATHS['Pod'].format('default')}/{waiting['metadata']['name']}"
    wait_until(lambda: bool(scheduler.request("GET", path)["spec"].get("nodeName")), lambda: "not bound", 30)
    return [*found, node.place("c", "1")]


SUBTRACTS = {"cacheResyncPeriodSeconds": 1}
SCENARIOS = {
    "pods that are being bound": ({}, while_it_is_being_bound, [PLACED, PLACED]),
    "nodes with pods that are being bound are left out": (
        {"discardReservedNodes": True},
        while_it_is_being_bound,
        [STALE, PLACED],
    ),
    "as the object says": ({}, one_after_another, [PLACED, PLACED, PLACED, PLACED, PLACED, PLACED]),
    "pods are subtracted": (SUBTRACTS, one_after_another, [PLACED, MISFIT, PLACED, MISFIT, PLACED, MISFIT]),
    "pods of others": (SUBTRACTS, another_scheduler, [STALE, PLACED]),
    "pods of others with exclusive CPUs": (
        {**SUBTRACTS, "cache": {"foreignPodsDetect": "OnlyExclusiveResources"}},
        another_scheduler,
        [STALE, PLACED],
    ),
    "pods of others that share CPUs": (
        {**SUBTRACTS, "cache": {"foreignPodsDetect": "OnlyExclusiveResources"}},
        another_scheduler_sharing,
        [PLACED],
    ),
    "pods of others do not count": (
        {**SUBTRACTS, "cache": {"foreignPodsDetect": "None"}},
        another_scheduler_sharing,
        [PLACED],
    ),
    "fingerprint of exclusive CPUs": (
        SUBTRACTS,
        fingerprint_of_some("with-exclusive-resources"),
        [PLACED, PLACED, MISFIT, PLACED],
    ),
    "fingerprint is taken for that of all": (
        {**SUBTRACTS, "cache": {"resyncMethod": "All"}},
        fingerprint_of_some("with-exclusive-resources"),
        [PLACED, PLACED, MISFIT, MISFIT],
    ),
    "fingerprint is taken for that of exclusive CPUs": (
        {**SUBTRACTS, "cache": {"resyncMethod": "OnlyExclusiveResources"}},
        fingerprint_of_some(),
        [PLACED, PLACED, MISFIT, PLACED],
    ),
    "fingerprint in an annotation": (SUBTRACTS, fingerprint_in_an_annotation, [PLACED, MISFIT, PLACED]),
    "kubelet set otherwise": (SUBTRACTS, kubelet_set_otherwise, [PLACED, MISFIT, PLACED]),
    "kubelet set otherwise, with less trust": (
        {**SUBTRACTS, "cache": {"resyncScope": "OnlyResources"}},
        kubelet_set_otherwise,
        [PLACED, MISFIT, MISFIT],
    ),
}


@pytest.mark.parametrize("kind", ["scheduler-plugins", "stowplan"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_pods_that_an_object_does_not_have_yet(plane, name, kind):
    args, steps, expected = SCENARIOS[name]
    assert outcomes(plane, kind, args, steps, written) == expected


@pytest.mark.parametrize("kind", ["scheduler-plugins", "stowplan"])
def test_a_pod_of_another_scheduler_that_was_there_before_the_start(plane, kind):
    assert outcomes(plane, kind, SUBTRACTS, decide_beside_it, already_there) == [STALE, PLACED]


# What differs on purpose


def after_a_pod_is_deleted(node: NumaNode) -> list[str]:
    found = [node.place("a")]
    node.delete("a")
    found.append(node.place("b"))
    if found[-1] == PLACED:
        node.delete("b")
    node.write(4, 4, pods=[])
    return [*found, node.place("c")]


def without_fingerprints(node: NumaNode) -> list[str]:
    found = [node.place("a"), node.place("b", attempts=1)]
    time.sleep(1)
    node.write(1, 4)
    return [*found, node.place("c")]


def another_scheduler_without_fingerprints(node: NumaNode) -> list[str]:
    node.place_by_another("x")
    found = [node.place("a", attempts=2), node.place("b", "1", attempts=2)]
    time.sleep(1)
    node.write(1, 4)
    return [*found, node.place("c")]


def before_it_has_started(node: NumaNode) -> list[str]:
    """The exporter writes the object once more before the kubelet has started the pod."""
    node.scheduler.decide(numa_pod("a", "3"))
    found = [node.place("b", attempts=1)]
    node.place_by_another("x", "1", shared=True)
    node.write(4, 4, pods=["x"])
    return [*found, node.place("c")]


def after_a_pod_has_ended(node: NumaNode) -> list[str]:
    """Kubelets from 1.34 on tell exporters only of pods that have not ended."""
    found = [node.place("a"), node.place("b", "1")]
    node.start("a", phase="Succeeded")
    time.sleep(1)
    node.write(3, 4, pods=["b"])
    return [*found, node.place("c", "4")]


PURPOSE = {
    "a pod that has ended": (
        after_a_pod_has_ended,
        written,
        [PLACED, PLACED, MISFIT],
        [PLACED, PLACED, PLACED],
    ),
    "a deleted pod": (after_a_pod_is_deleted, written, [PLACED, MISFIT, MISFIT], [PLACED, PLACED, PLACED]),
    "no fingerprints": (
        without_fingerprints,
        written_plainly,
        [PLACED, MISFIT, MISFIT],
        [PLACED, MISFIT, PLACED],
    ),
    "no fingerprints, and pods of others": (
        another_scheduler_without_fingerprints,
        written_plainly,
        [STALE, STALE, STALE],
        [MISFIT, PLACED, PLACED],
    ),
    "a pod that has not started": (
        before_it_has_started,
        written,
        [MISFIT, PLACED],
        [MISFIT, STALE],
    ),
}


@pytest.mark.parametrize("name", PURPOSE)
def test_what_differs_on_purpose(plane, name):
    steps, before, theirs, ours = PURPOSE[name]
    assert outcomes(plane, "scheduler-plugins", SUBTRACTS, steps, before) == theirs
    assert outcomes(plane, "stowplan", SUBTRACTS, steps, before) == ours
