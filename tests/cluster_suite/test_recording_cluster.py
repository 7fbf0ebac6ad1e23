"""A busy cluster whose pods kube-scheduler places, recorded and replayed with the same configuration."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from controlplane.control_plane import ControlPlane
from controlplane.objects import node, pod
from controlplane.pods import PODS, add_nodes, placed
from controlplane.waiting import eventually
from stowplan.config import load
from stowplan.framework.registry import Registry
from stowplan.replay import ReplayOptions, read_trace, replay

Json = dict[str, Any]
V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
PACKING = {
    "schedulerName": "packing",
    "pluginConfig": [{"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}],
    "plugins": {"score": {"disabled": [{"name": "NodeResourcesBalancedAllocation"}]}},
}
CONFIG = {"percentageOfNodesToScore": 100, "profiles": [{"schedulerName": "default-scheduler"}, PACKING]}
ZONE = "topology.kubernetes.io/zone"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "late", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "",
        "volumeName": "v",
    },
}
NODES, PENDING, ARRIVING, URGENT = 12, 60, 140, 6


@contextlib.contextmanager
def recording(control_plane: ControlPlane, folder: Path) -> Any:
    command = [sys.executable, "-m", "stowplan.cli", "record", str(folder)]
    command += ["--kubeconfig", str(control_plane.kubeconfig())]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, "Traceback" in errors) == (0, False), errors
    finally:
        process.kill()
        process.wait()


def add_priority(control_plane: ControlPlane) -> None:
    """Of pods that preempt. All others have the same, so that only their start tells which give way."""
    item = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    control_plane.request("POST", path, item | {"metadata": {"name": "urgent"}})


def add_volume(control_plane: ControlPlane) -> None:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "hostPath": {"path": "/v"}}
    spec |= {"claimRef": {"namespace": "default", "name": "late"}, "storageClassName": ""}
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": spec}
    control_plane.request("POST", "/api/v1/persistentvolumes", volume)


def rejected(control_plane: ControlPlane) -> int:
    items = control_plane.request("GET", PODS)["items"]
    return sum("PodScheduled" in str(each["status"].get("conditions", "")) for each in items)


def drawn_pod(draw: random.Random, name: str, **spec: Any) -> Json:
    requests = {"cpu": f"{draw.choice([100, 200, 300, 500])}m", "memory": f"{draw.choice([64, 256, 512])}Mi"}
    app = draw.choice(["web", "api", "db"])
    spec["schedulerName"] = draw.choice(["default-scheduler", "default-scheduler", "packing"])
    if draw.random() < 0.3:
        rule = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "ScheduleAnyway"}
        spec["topologySpreadConstraints"] = [rule | {"labelSelector": {"matchLabels": {"app": app}}}]
    return pod(name, labels={"app": app}, requests=requests, **spec)


def count(folder: Path, verb: str, kind: str = "Pod") -> int:
    if not any(folder.glob("*")):  # the recorder has yet to begin
        return 0
    return sum(each.verb == verb and each.kind == kind for each in read_trace(folder).events)


async def test_a_replay_places_pods_where_kube_scheduler_did(control_plane, api, kubelets, tmp_path):
    """Two profiles, pods that are pending when the recording begins, deletions and preemption."""
    draw, folder = random.Random(17), tmp_path / "trace"
    add_nodes(
        control_plane, *(node(f"n{number}", labels={ZONE: f"z{number % 3}"}) for number in range(NODES))
    )
    add_priority(control_plane)
    add_volume(control_plane)
    names = [f"{draw.randrange(16**6):06x}" for _ in range(PENDING)]
    with control_plane.kube_scheduler(**CONFIG), contextlib.ExitStack() as running:
        for name in names:
            made = drawn_pod(
                draw, name, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "late"}}]
            )
            await api.request("POST", PODS, made)
        await eventually(lambda: rejected(control_plane), lambda found: found == PENDING)
        running.enter_context(recording(control_plane, folder))
        await eventually(lambda: count(folder, "add"), lambda found: found == PENDING)
        await asyncio.sleep(2)  # until their backoff is over
        control_plane.request("POST", CLAIMS, CLAIM)  # one event wakes them all
        await eventually(lambda: placed(control_plane), lambda found: all(found.values()))
        for number in range(ARRIVING):
            await api.request("POST", PODS, drawn_pod(draw, f"p{number}"))
            await asyncio.sleep(0.02)
            if number % 5 == 4:
                there = sorted(placed(control_plane))
                await api.request("DELETE", f"{PODS}/{draw.choice(there)}")
        for number in range(URGENT):  # there is no room for these
            made = pod(f"u{number}", requests={"cpu": "3"}, priorityClassName="urgent")
            await api.request("POST", PODS, made)
            await eventually(
                lambda: placed(control_plane), lambda found, name=f"u{number}": bool(found.get(name))
            )
        nodes = placed(control_plane)
        bound = sum(map(bool, nodes.values())) + count(folder, "delete")
        await eventually(lambda: count(folder, "bind"), lambda found: found >= bound - 5)
        await asyncio.sleep(1.5)
    trace = read_trace(folder)
    assert trace.faults == []
    config = load(V1 | CONFIG, Registry.installed()).config
    options = ReplayOptions(prefers_recorded=True, departures="recorded")
    found = await asyncio.to_thread(replay, trace, config, options=options)
    pods = {each.uid: each for each in found.pods if each.recorded_node}
    different = {uid: each for uid, each in pods.items() if each.node != each.recorded_node}
    assert len(pods) >= PENDING + ARRIVING
    assert count(folder, "delete") > ARRIVING // 5  # preempted ones, too
    assert {each.name[0] for each in different.values()} <= {"u"}, different  # only pods that preempt
    assert len(different) <= 0.01 * len(pods), different


async def test_a_scheduler_records_what_it_does(control_plane, tmp_path):
    folder = tmp_path / "trace"
    add_nodes(control_plane, node("n0"), node("n1"))
    with control_plane.stowplan(f"--record={folder}") as scheduler:
        for number in range(4):
            control_plane.request("POST", PODS, pod(f"p{number}", requests={"cpu": "500m"}))
        there = await eventually(
            lambda: placed(control_plane), lambda found: len(found) == 4 and all(found.values())
        )
        await eventually(lambda: count(folder, "bind"), lambda found: found == 4)
        scheduler.stop()
    trace = read_trace(folder)
    assert trace.faults == []
    assert {each.name: each.node for each in trace.events if each.verb == "bind"} == there
    options = ReplayOptions(prefers_recorded=True)
    found = await asyncio.to_thread(replay, trace, options=options)
    assert {each.name: each.node for each in found.pods} == there
