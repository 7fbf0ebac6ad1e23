"""A busy `stowplan up`, recorded and replayed with the same configuration."""

from __future__ import annotations

import asyncio
import time

from stowplan.client import kubeconfig
from stowplan.client.api import ApiClient
from stowplan.replay import ReplayOptions, read_trace, replay
from up_process import running_up

REPLICAS = 40


def deployment(name, cpu):
    resources = {"requests": {"cpu": cpu, "memory": "256Mi"}}
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": name, "resources": resources}]},
    }
    spec = {"replicas": REPLICAS, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def bindings(folder):
    return [event for event in read_trace(folder).events if event.verb == "bind"]


async def create(kubeconfig_file, items):
    async with ApiClient(kubeconfig.load(str(kubeconfig_file)), qps=0) as api:
        for item in items:
            await api.request("POST", "/apis/apps/v1/namespaces/default/deployments", item)


def test_a_replay_of_a_recording_places_pods_as_recorded(tmp_path):
    folder, ends = tmp_path / "trace", time.monotonic() + 120
    items = [deployment("web", "300m"), deployment("api", "700m"), deployment("job", "1")]
    with running_up(tmp_path, "--nodes", "15", "--record", str(folder)) as up:
        asyncio.run(create(up.kubeconfig, items))
        while len(bindings(folder)) < 3 * REPLICAS:
            assert time.monotonic() < ends
            time.sleep(0.5)
    assert f"The trace is in {folder}: stowplan replay {folder}" in up.said
    trace = read_trace(folder)
    assert trace.faults == []
    found = replay(trace, options=ReplayOptions(prefers_recorded=True))
    pods = [each for each in found.pods if each.recorded_node]
    equal = [each for each in pods if each.node == each.recorded_node]
    assert len(pods) == 3 * REPLICAS
    assert len(equal) >= 0.99 * len(pods)
