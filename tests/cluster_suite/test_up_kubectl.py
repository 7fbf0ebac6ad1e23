"""The real kubectl and the real kube-scheduler on `stowplan up`."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from controlplane import objects
from controlplane.binaries import program
from controlplane.control_plane import ControlPlane
from controlplane.process import Process
from up_process import Up, running_up

KUBECTL = program("kubectl")
NODES = "{count: 3, cpu: 4, memory: 8Gi, zones: [a, b, c]}"


class Kubectl:
    def __init__(self, up: Up, namespace: str) -> None:
        self.up, self.namespace = up, namespace

    def __call__(self, *words: str, text: str = "", code: int = 0, **environment: str) -> str:
        """What it prints, if it ends as it should."""
        ended = subprocess.run(
            [KUBECTL, *self.up.config_flag, "-n", self.namespace, *words],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.up.kubeconfig.parent), **environment},
        )
        assert ended.returncode == code, f"{words}: {ended.returncode} {ended.stdout}{ended.stderr}"
        return ended.stdout + ended.stderr

    def json(self, *words: str) -> dict:
        return json.loads(self(*words, "-o", "json"))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running_up(tmp_path_factory.mktemp("up"), "--nodes", NODES) as running:
        yield running


@pytest.fixture
def kubectl(up: Up, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """In a namespace of its own."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[:60].strip("-")
    found = Kubectl(up, name)
    found("create", "namespace", name)
    yield found
    found("delete", "namespace", name, "--wait=false")
    for node in ("node-1", "node-2", "node-3"):
        found("uncordon", node)


def deployment(name: str = "web", replicas: int = 2, image: str = "web:1") -> str:
    labels = {"app": name}
    container = {"name": "main", "image": image, "resources": {"requests": {"cpu": "100m"}}}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return yaml.dump(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    )


def rolled_out(kubectl: Kubectl, text: str | None = None) -> None:
    kubectl("apply", "-f", "-", text=text or deployment())
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment/web", "--timeout=30s")


def test_get(kubectl):
    rolled_out(kubectl)
    assert kubectl("get", "nodes").splitlines()[0].split() == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert kubectl("get", "deploy").splitlines()[1].split()[:4] == ["web", "2/2", "2", "2"]
    assert "deployment.apps/web" in kubectl("get", "all")
    assert len(kubectl("get", "pods", "-l", "app=web", "--no-headers").splitlines()) == 2
    assert "No resources found" in kubectl("get", "pods", "--field-selector", "status.phase=Failed")
    assert "not found" in kubectl("get", "pod", "nobody", code=1)
    assert 'the server doesn\'t have a resource type "stars"' in kubectl("get", "stars", code=1)


def test_output_forms(kubectl):
    rolled_out(kubectl)
    wide = kubectl("get", "pods", "-o", "wide").splitlines()
    assert "NODE" in wide[0]
    assert "node-" in wide[1]
    assert yaml.safe_load(kubectl("get", "deploy", "web", "-o", "yaml"))["spec"]["replicas"] == 2
    names = kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}")
    assert names.split() == ["node-1", "node-2", "node-3"]
    columns = kubectl("get", "nodes", "-o", "custom-columns=N:.metadata.name,CPU:.status.capacity.cpu")
    assert [line.split() for line in columns.splitlines()][:2] == [["N", "CPU"], ["node-1", "4"]]
    assert kubectl("get", "deploy", "-o", "name") == "deployment.apps/web\n"


def test_describe(kubectl):
    rolled_out(kubectl)
    name = kubectl("get", "pods", "-o", "name").splitlines()[0]  # of several pods no events are shown
    said = kubectl("describe", name)
    assert "Successfully assigned" in said
    assert re.search(r"^Status: +Running", said, re.MULTILINE)
    node = kubectl("describe", "node", "node-1")
    assert "Allocated resources:" in node
    assert "Non-terminated Pods:" in node
    assert "2 desired | 2 updated | 2 total | 2 available" in kubectl("describe", "deployment", "web")


@pytest.mark.parametrize("flags", [[], ["--server-side"]], ids=["by the client", "by the server"])
def test_apply(kubectl, flags):
    assert "created" in kubectl("apply", *flags, "-f", "-", text=deployment()) or flags
    kubectl("apply", *flags, "-f", "-", text=deployment(replicas=3, image="web:2"))
    found = kubectl.json("get", "deploy", "web")["spec"]
    assert found["replicas"] == 3
    assert found["template"]["spec"]["containers"][0]["image"] == "web:2"
    if not flags:
        assert "unchanged" in kubectl("apply", "-f", "-", text=deployment(replicas=3, image="web:2"))
    unknown = deployment().replace("replicas:", "replicsa:")
    assert 'unknown field "spec.replicsa"' in kubectl("apply", "-f", "-", text=unknown, code=1) or flags


def test_conflicts_of_appliers(kubectl):
    kubectl("apply", "--server-side", "--field-manager=one", "-f", "-", text=deployment(replicas=1))
    again = ("apply", "--server-side", "--field-manager=two", "-f", "-")
    said = kubectl(*again, text=deployment(replicas=5), code=1)
    assert 'conflict with "one"' in said
    kubectl(*again, "--force-conflicts", text=deployment(replicas=5))
    assert kubectl.json("get", "deploy", "web")["spec"]["replicas"] == 5


def test_diff(kubectl):
    kubectl("apply", "-f", "-", text=deployment())
    said = kubectl("diff", "-f", "-", text=deployment(replicas=7), code=1)
    assert "-  replicas: 2" in said
    assert "+  replicas: 7" in said
    assert kubectl("diff", "-f", "-", text=deployment()) == ""


def test_edit(kubectl, tmp_path):
    kubectl("apply", "-f", "-", text=deployment())
    editor = tmp_path / "editor.sh"
    editor.write_text("#!/bin/sh\nsed -i 's/replicas: 2/replicas: 1/' \"$1\"\n")
    editor.chmod(0o755)
    assert "edited" in kubectl("edit", "deploy", "web", KUBE_EDITOR=str(editor))
    assert kubectl.json("get", "deploy", "web")["spec"]["replicas"] == 1


def test_label_and_annotate(kubectl):
    kubectl("label", "node", "node-1", "disk=ssd")
    assert "already has a value" in kubectl("label", "node", "node-1", "disk=hdd", code=1)
    assert kubectl("get", "nodes", "-l", "disk=ssd", "-o", "name") == "node/node-1\n"
    kubectl("annotate", "node", "node-1", "seen=yes")
    kubectl("label", "node", "node-1", "disk-")
    kubectl("annotate", "node", "node-1", "seen-")
    assert "disk" not in kubectl.json("get", "node", "node-1")["metadata"]["labels"]


def test_taint_keeps_pods_away(kubectl):
    try:
        for node in ("node-1", "node-2"):
            kubectl("taint", "node", node, "reserved=yes:NoSchedule")
        rolled_out(kubectl, deployment(replicas=4))
        nodes = kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}")
        assert set(nodes.split()) == {"node-3"}
    finally:
        for node in ("node-1", "node-2"):
            kubectl("taint", "node", node, "reserved-")


def test_cordon_and_drain(kubectl):
    rolled_out(kubectl, deployment(replicas=6))
    kubectl("cordon", "node-1")
    assert "SchedulingDisabled" in kubectl("get", "node", "node-1")
    said = kubectl("drain", "node-1", "--ignore-daemonsets", "--force", "--timeout=40s")
    assert "evicting pod" in said
    assert "node/node-1 drained" in said
    kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    nodes = kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}")
    assert "node-1" not in nodes


def test_scale_and_rollout(kubectl):
    rolled_out(kubectl)
    kubectl("scale", "deployment/web", "--replicas=4")
    kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    assert kubectl.json("get", "deploy", "web")["status"]["availableReplicas"] == 4
    kubectl("set", "image", "deployment/web", "main=web:2")
    kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    assert "REVISION" in kubectl("rollout", "history", "deployment/web")
    kubectl("rollout", "undo", "deployment/web")
    kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    found = kubectl.json("get", "deploy", "web")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert found == "web:1"
    kubectl("rollout", "restart", "deployment/web")
    kubectl("rollout", "status", "deployment/web", "--timeout=30s")


def test_wait_and_delete(kubectl):
    kubectl("run", "web", "--image=web:1")
    kubectl("wait", "pod/web", "--for=condition=Ready", "--timeout=20s")
    kubectl("delete", "pod", "web", "--timeout=20s")
    assert "not found" in kubectl("get", "pod", "web", code=1)
    rolled_out(kubectl)
    kubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=20s")
    assert "No resources found" in kubectl("get", "replicasets,pods")


def test_explain(kubectl):
    assert "FIELD: replicas <integer>" in kubectl("explain", "deployment.spec.replicas")
    assert "tolerations" in kubectl("explain", "pod.spec")
    assert "does not exist" in kubectl("explain", "pod.spec.nothing", code=1)


def test_api_resources_and_version(kubectl):
    assert "deployments" in kubectl("api-resources", "--api-group=apps")
    assert "batch/v1" in kubectl("api-versions")
    assert "Server Version: v1.36" in kubectl("version")
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"


def test_custom_resources(kubectl):
    folder = Path(__file__).parents[2] / "examples" / "node-crd-resource-fit"
    kubectl("apply", "-f", str(folder / "crd.yaml"))
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=10s")
    kubectl("apply", "-f", str(folder / "resources.yaml"))
    header, first, *_ = kubectl("get", "clusterscopedresources").splitlines()
    assert header.split() == ["NAME", "FILTER", "SCORE", "AGE"]
    assert first.startswith("worker-5")
    kubectl("delete", "-f", str(folder / "crd.yaml"), "--timeout=20s")


def test_a_pod_that_fits_nowhere_says_so(kubectl):
    kubectl("apply", "-f", "-", text=deployment(replicas=1).replace("100m", "100"))
    end = time.monotonic() + 20
    while "0/3 nodes are available: 3 Insufficient cpu" not in (said := kubectl("describe", "pods")):
        assert time.monotonic() < end, said
        time.sleep(0.2)


def test_the_real_kube_scheduler_schedules_on_it(kubectl, tmp_path):
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": str(kubectl.up.kubeconfig),
            "contentType": "application/json",
            "acceptContentTypes": "application/json",
        },
        "profiles": [{"schedulerName": "the-real-one"}],
    }
    (tmp_path / "scheduler.yaml").write_text(yaml.dump(config))
    flags = [f"--config={tmp_path / 'scheduler.yaml'}", "--secure-port=0"]
    scheduler = Process([program("kube-scheduler"), *flags], tmp_path / "scheduler.log", lambda: True)
    spec = yaml.safe_load(deployment(replicas=4))
    spec["spec"]["template"]["spec"]["schedulerName"] = "the-real-one"
    scheduler.start()
    try:
        rolled_out(kubectl, yaml.dump(spec))
        assert "Successfully assigned" in kubectl("get", "events")
        assert "the-real-one" in kubectl("get", "events", "-o", "jsonpath={.items[*].reportingComponent}")
        kubectl("apply", "-f", "-", text=yaml.dump(spec).replace("100m", "100").replace("web", "big"))
        end = time.monotonic() + 20
        while "3 Insufficient cpu" not in (said := kubectl("get", "events")):
            assert time.monotonic() < end, said
            time.sleep(0.2)
    finally:
        scheduler.stop()


def test_a_real_cluster_is_copied(control_plane: ControlPlane, tmp_path, monkeypatch):
    control_plane.request("POST", "/api/v1/nodes", objects.node("real-1"))
    control_plane.request("POST", "/api/v1/nodes", objects.node("real-2"))
    made = objects.pod("web", nodeName="real-2")
    control_plane.request("POST", "/api/v1/namespaces/default/pods", made)
    before = control_plane.request("GET", "/api/v1/pods")
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig()))
    with running_up(tmp_path, "--from-cluster") as copy:
        assert "2 nodes, 1 pods" in copy.said
        found = Kubectl(copy, "default").json("get", "pod", "web")
        assert found["spec"]["nodeName"] == "real-2"
        assert found["spec"]["containers"][0]["image"] == made["spec"]["containers"][0]["image"]
    after = control_plane.request("GET", "/api/v1/pods")
    assert after["items"] == before["items"]
