"""Nominated pods and evictions tried on many nodes at once: the same as one node after another."""

from __future__ import annotations

import random
from importlib.metadata import entry_points

import numpy as np
import pytest

from example_share import share_of
from make import make_node, make_pod
from stowplan.api.kinds import object_of
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.framework import Plugin, Reject
from stowplan.framework.registry import ENTRY_POINTS, Registry

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
DRIVER = "csi.example.com"
NODES = 9
INSTALLED = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


class OneByOne(Plugin):
    """Rejects nothing, but might look at other nodes, so that nodes are tried one by one."""

    def filter_nodes(self, state, pod, nodes):
        yield Reject(np.zeros(len(nodes), np.bool_), "never")


def planner_on(cluster, *plugins):
    registry = Registry({each.__name__: each for each in plugins}, INSTALLED)
    enabled = [{"name": each.__name__} for each in plugins]
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"plugins": {"multiPoint": {"enabled": enabled}}}],
    }
    return Planner(cluster, load(config, registry).config, registry=registry)


class Scene:
    """A crowded cluster, with pods that keep apart, spread, take ports and attach volumes."""

    def __init__(self, seed):
        self.draw, self.cluster = random.Random(seed), Cluster()
        for kind in ("PersistentVolume", "PersistentVolumeClaim"):
            for number in range(6):
                self.cluster.apply(object_of(volume_object(kind, number, self.draw.random() < 0.3)))
        for number in range(NODES):
            name, zone = f"n{number}", self.draw.choice(["a", "b", "c", None])
            labels = {} if zone is None else {ZONE: zone}
            taints = ["dedicated:NoSchedule"] if self.draw.random() < 0.1 else []
            room = {"cpu": self.draw.choice(["2", "3", "4"]), "memory": "8Gi", "pods": "6"}
            self.cluster.apply(make_node(name, labels=labels, taints=taints, allocatable=room))
            if self.draw.random() < 0.7:
                self.cluster.apply(object_of(csi_node(name, self.draw.choice([1, 2, 3]))))
        for number in range(3 * NODES):
            where = f"n{self.draw.randrange(NODES)}"
            self.cluster.apply(self.pod(f"p{number}", node=where, priorities=[0, 0, 1, 9]))
        self.nominated = [
            (self.pod(f"nominated{number}", priorities=[4, 5, 5, 6]), f"n{self.draw.randrange(NODES + 1)}")
            for number in range(self.draw.randrange(2 * NODES))
        ]
        self.pending = [self.pod(f"new{number}", priorities=[5]) for number in range(6)]
        self.pending += [pod for pod, _ in self.nominated[:1]]

    def pod(self, name, priorities, node=""):
        draw = self.draw
        labels, spec = {"app": draw.choice(["web", "db", "x"])}, {}
        ports = [{"containerPort": 80, "hostPort": draw.choice([80, 81])}] if draw.random() < 0.2 else []
        resources = {"requests": {"cpu": draw.choice(["500m", "1", "2"])}}
        spec["containers"] = [{"name": "main", "image": "web", "resources": resources, "ports": ports}]
        affinity = {}
        for kind, likely in (("podAffinity", 0.1), ("podAntiAffinity", 0.3)):
            if draw.random() < likely:
                affinity[kind] = {REQUIRED: [self.term() for _ in range(draw.choice([1, 1, 2]))]}
        if affinity:
            spec["affinity"] = affinity
        if draw.random() < 0.3:
            spec["topologySpreadConstraints"] = [self.constraint() for _ in range(draw.choice([1, 2]))]
        if draw.random() < 0.3:
            claim = {"claimName": f"claim{draw.randrange(6)}"}
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": claim}]
        return make_pod(name, labels=labels, node=node, priority=draw.choice(priorities), **spec)

    def term(self):
        app = self.draw.choice(["web", "db", "x"])
        key = self.draw.choice([HOSTNAME, ZONE])
        return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}

    def constraint(self):
        found = {"maxSkew": self.draw.choice([1, 2]), "whenUnsatisfiable": "DoNotSchedule"}
        if self.draw.random() < 0.3:
            found["minDomains"] = self.draw.choice([2, 4])
        return found | self.term()


def volume_object(kind, number, in_zone):
    if kind == "PersistentVolumeClaim":
        meta = {
            "name": f"claim{number}",
            "namespace": "default",
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
        }
        spec = {"volumeName": f"volume{number}", "accessModes": ["ReadWriteMany"]}
        return {
            "kind": kind,
            "apiVersion": "v1",
            "metadata": meta,
            "spec": spec,
            "status": {"phase": "Bound"},
        }
    labels = {ZONE: "a"} if in_zone else {}
    spec = {"csi": {"driver": DRIVER, "volumeHandle": f"volume{number}"}}
    return {
        "kind": kind,
        "apiVersion": "v1",
        "metadata": {"name": f"volume{number}", "labels": labels},
        "spec": spec,
    }


def csi_node(name, count):
    driver = {"name": DRIVER, "nodeID": name, "allocatable": {"count": count}}
    meta, spec = {"name": name}, {"drivers": [driver]}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": meta, "spec": spec}


@pytest.mark.parametrize("seed", share_of(range(60)))
def test_many_nodes_at_once_and_one_by_one(seed):
    scene = Scene(seed)
    together, one_by_one = planner_on(scene.cluster), planner_on(scene.cluster, OneByOne)
    for planner in (together, one_by_one):
        for pod, node_name in scene.nominated:
            planner.nominations.put(pod, node_name)
    for pod in scene.pending:
        found, expected = together.decide(pod).as_golden(), one_by_one.decide(pod).as_golden()
        assert found == expected
        scene.draw.shuffle(scene.nominated)
        for other, node_name in scene.nominated[:2]:
            moved = scene.draw.choice([node_name, node_name, "n0"])
            for planner in (together, one_by_one):
                planner.nominations.remove(other)
                planner.nominations.put(other, moved)


def test_a_victim_does_not_free_the_port_of_a_nominated_pod():
    cluster, ports = Cluster(), [{"containerPort": 80, "hostPort": 80}]
    containers = [{"name": "main", "image": "web", "ports": ports}]
    cluster.apply(make_node("n0", allocatable={"cpu": "4", "memory": "8Gi", "pods": "10"}))
    cluster.apply(make_pod("victim", node="n0", priority=0, containers=containers))
    planner = planner_on(cluster)
    planner.nominations.put(make_pod("nominated", priority=5, containers=containers), "n0")
    decision = planner.decide(make_pod("new", priority=5, containers=containers)).as_golden()
    assert "victims" not in decision
    assert decision["message"].endswith(
        "preemption: 0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
    )
