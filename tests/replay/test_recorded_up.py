"""A busy `stowplan up`, recorded and replayed with the same configuration."""

from __future__ import annotations

import asyncio
import json

from stowplan.client import kubeconfig
from stowplan.client.api import ApiClient
from stowplan.config import load
from stowplan.framework.registry import Registry
from stowplan.replay import ReplayOptions, read_trace, replay
from up_process import running_up

REPLICAS = 40
URGENT = 6
CONFIG = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [
        {"schedulerName": "default-scheduler"},
        {
            "schedulerName": "packing",
            "pluginConfig": [
                {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}
            ],
        },
    ],
}
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
MERGE = "application/merge-patch+json"


def deployment(name, cpu, replicas=REPLICAS, **spec):
    resources = {"requests": {"cpu": cpu, "memory": "256Mi"}}
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": name, "resources": resources}], **spec},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def count(folder, verb, name=""):
    if not any(folder.glob("*")):  # the recorder has yet to begin
        return 0
    events = read_trace(folder).events
    return sum(each.kind == "Pod" and each.verb == verb and each.name.startswith(name) for each in events)


async def wait_for(folder, verb, number, name=""):
    async with asyncio.timeout(60):
        while count(folder, verb, name) < number:
            await asyncio.sleep(0.5)


async def keep_busy(kubeconfig_file, folder):
    """Three deployments of two profiles, one of which shrinks; then pods that preempt others."""
    async with ApiClient(kubeconfig.load(str(kubeconfig_file)), qps=0) as api:
        classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
        urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
        await api.request("POST", classes, urgent | {"metadata": {"name": "urgent"}})
        for item in (
            deployment("web", "300m"),
            deployment("api", "700m", schedulerName="packing"),
            deployment("job", "1"),
        ):
            await api.request("POST", DEPLOYMENTS, item)
        await wait_for(folder, "bind", 3 * REPLICAS)
        await api.request("PATCH", f"{DEPLOYMENTS}/web", {"spec": {"replicas": 20}}, content_type=MERGE)
        await wait_for(folder, "delete", 20)
        more = deployment("more", "700m", 20, schedulerName="packing")
        await api.request("POST", DEPLOYMENTS, more)
        await wait_for(folder, "add", 20, "more")
        await asyncio.sleep(2)
        await api.request("POST", DEPLOYMENTS, deployment("top", "3", URGENT, priorityClassName="urgent"))
        await wait_for(folder, "bind", URGENT, "top")
        await asyncio.sleep(1)


def test_a_replay_of_a_recording_places_pods_as_recorded(tmp_path):
    folder, file = tmp_path / "trace", tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    flags = ["--config", str(file), "--record", str(folder)]
    with running_up(tmp_path, "--nodes", "12", *flags) as up:
        asyncio.run(keep_busy(up.kubeconfig, folder))
    assert f"The trace is in {folder}: stowplan replay {folder}" in up.said
    trace = read_trace(folder)
    assert trace.faults == []
    assert any(event.by == "preemption" for event in trace.events)
    found = replay(
        trace,
        load(CONFIG, Registry.installed()).config,
        options=ReplayOptions(prefers_recorded=True, departures="recorded"),
    )
    pods = [each for each in found.pods if each.recorded_node]
    different = [each for each in pods if each.node != each.recorded_node]
    assert len(pods) >= 3 * REPLICAS + URGENT
    assert len(different) <= 0.01 * len(pods), different
