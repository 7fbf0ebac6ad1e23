"""The real kubectl and the real kube-scheduler on our own API server."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.binaries import program
from controlplane.waiting import eventually
from stowplan.apiserver import ApiServer
from stowplan.apiserver.http import make_certificate, serve

Json = dict[str, Any]
Kubectl = Callable[..., Awaitable[str]]
TOKEN = "secret"
DEPLOYMENT: Json = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "registry.example/app:1"}]},
        },
    },
}


def node(name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {
            "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, cpu: str = "1") -> Json:
    container = {"name": "c", "image": "registry.example/app:1", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container]},
    }


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
async def kubeconfig(server: ApiServer, tmp_path: Path) -> AsyncIterator[Path]:
    async with serve(server, tls=make_certificate(), token=TOKEN) as front:
        certificate = base64.b64encode(front.certificate).decode()
        cluster = {"server": f"https://{front.host}:{front.port}", "certificate-authority-data": certificate}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
            "current-context": "x",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(document))
        yield path


@pytest.fixture
def kubectl(kubeconfig: Path, tmp_path: Path) -> Kubectl:
    """Runs kubectl beside the loop that serves it; objects go to it as a file would with `-f -`."""

    def run(arguments: tuple[str, ...], objects: tuple[Json, ...]) -> str:
        done = subprocess.run(
            [program("kubectl"), "--kubeconfig", kubeconfig, *arguments],
            input="\n---\n".join(map(json.dumps, objects)),
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def kubectl(*arguments: str, objects: tuple[Json, ...] = ()) -> str:
        return await asyncio.to_thread(run, arguments, objects)

    return kubectl


async def test_objects_are_applied_changed_and_shown(kubectl: Kubectl) -> None:
    assert "created" in await kubectl("apply", "-f", "-", objects=(DEPLOYMENT,))
    assert "unchanged" in await kubectl("apply", "-f", "-", objects=(DEPLOYMENT,))
    assert await kubectl("diff", "-f", "-", objects=(DEPLOYMENT,)) == ""
    assert "scaled" in await kubectl("scale", "deployment/web", "--replicas=3")
    assert await kubectl("get", "deployment", "web", "-o", "jsonpath={.spec.replicas}") == "3"
    assert "labeled" in await kubectl("label", "deployment", "web", "tier=front")
    assert "annotated" in await kubectl("annotate", "deployment", "web", "note=yes")
    assert "tier=front" in await kubectl("get", "deployment", "web", "--show-labels")
    assert "0/3" in await kubectl("get", "deployments", "-o", "wide")
    assert "kind: Deployment" in await kubectl("get", "deployment", "web", "-o", "yaml")
    assert "web" in await kubectl("get", "deployments", "-o", "custom-columns=N:.metadata.name")
    assert "3 desired" in await kubectl("describe", "deployment", "web")
    applied = await kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", objects=(DEPLOYMENT,))
    assert "serverside-applied" in applied
    assert "deleted" in await kubectl("delete", "deployment", "web")
    assert "No resources" not in await kubectl("get", "all", "-A")


async def test_nodes_are_cordoned_tainted_and_drained(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", objects=(node("n1"),))
    assert "cordoned" in await kubectl("cordon", "n1")
    assert "Ready,SchedulingDisabled" in await kubectl("get", "nodes")
    assert "tainted" in await kubectl("taint", "node", "n1", "a=b:NoSchedule")
    assert "a=b:NoSchedule" in await kubectl("describe", "node", "n1")
    assert "drained" in await kubectl("drain", "n1", "--force")
    assert "uncordoned" in await kubectl("uncordon", "n1")
    assert "condition met" in await kubectl("wait", "--for=condition=Ready", "node/n1", "--timeout=30s")


async def test_what_kubectl_knows_of_the_server(kubectl: Kubectl) -> None:
    assert "nodeName <string>" in await kubectl("explain", "pod.spec.nodeName")
    assert "deployments" in await kubectl("api-resources")
    assert "apps/v1" in await kubectl("api-versions")
    assert "v1.36" in await kubectl("version")
    assert (await kubectl("auth", "can-i", "create", "pods")).strip() == "yes"
    assert "created" in await kubectl("create", "namespace", "other")
    assert "created" in await kubectl("create", "configmap", "m", "--from-literal=a=b")
    assert "created" in await kubectl("run", "p", "--image=registry.example/app:1")


async def test_kube_scheduler_schedules(
    server: ApiServer, kubectl: Kubectl, kubeconfig: Path, tmp_path: Path
) -> None:
    await kubectl(
        "create", "-f", "-", objects=(node("n1"), node("n2"), pod("a"), pod("b"), pod("big", "100"))
    )
    config = tmp_path / "scheduler.json"
    connection = {
        "kubeconfig": str(kubeconfig),
        "contentType": "application/json",
        "acceptContentTypes": "application/json",
    }
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    config.write_text(json.dumps({**kind, "clientConnection": connection}))
    command = [program("kube-scheduler"), f"--config={config}", "--secure-port=0"]
    with (tmp_path / "scheduler.log").open("w") as log:
        scheduler = subprocess.Popen(command, stdout=log, stderr=log)
        try:

            def nodes() -> list[str]:
                return sorted(record.fields["spec.nodeName"] for record in server.objects.all("pods"))

            await eventually(nodes, lambda found: found == ["", "n1", "n2"])
            assert "2 Insufficient cpu" in await kubectl("get", "events")
        finally:
            scheduler.terminate()
            scheduler.wait()
