"""`stowplan crd` and `stowplan controllers` on the real control plane."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.error
from pathlib import Path

import pytest

from controlplane.process import wait_until

X_K8S = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default"
NAMES = ("podgroups.scheduling.x-k8s.io", "elasticquotas.scheduling.x-k8s.io", "queues.scheduling.volcano.sh")


@pytest.fixture
def controllers(control_plane, tmp_path):
    """Two replicas, of which one works."""
    command = [sys.executable, "-m", "stowplan.cli"]
    printed = subprocess.run([*command, "crd", *NAMES], capture_output=True, text=True, check=True).stdout
    definitions = tmp_path / "crds.yaml"
    definitions.write_text(printed)
    control_plane.kubectl("apply", "-f", str(definitions))
    control_plane.kubectl("wait", "--for=condition=Established", *(f"crd/{name}" for name in NAMES))
    with (tmp_path / "log").open("w") as log:
        replica = [*command, "controllers", "--leader-elect", "--kubeconfig", control_plane.kubeconfig()]
        running = [subprocess.Popen(replica, stderr=log) for _ in range(2)]
    try:
        for each in running:
            wait_until(lambda each=each: _handles_sigterm(each.pid), lambda: "not started", seconds=60)
        yield running
    finally:
        for each in running:
            each.terminate()
        assert [each.wait(20) for each in running] == [0, 0]


def _handles_sigterm(pid):
    """Whether it would end as it should; while Python imports, the signal kills it."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def _is_served(control_plane, plural):
    try:
        return "items" in control_plane.request("GET", f"{X_K8S}/{plural}")
    except urllib.error.HTTPError:
        return False


def test_status_is_kept_in_any_cluster(control_plane, controllers):
    def status(path):
        try:
            return control_plane.request("GET", path).get("status") or {}
        except urllib.error.HTTPError:  # not there yet
            return {}

    def pod(name):
        resources = {"requests": {"cpu": "200m"}}
        labels = {"scheduling.x-k8s.io/pod-group": "g"}
        spec = {"containers": [{"name": "c", "image": "x", "resources": resources}], "nodeName": "n"}
        return {"metadata": {"name": name, "labels": labels}, "spec": spec}

    version = "scheduling.x-k8s.io/v1alpha1"
    group = {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"minMember": 2}}
    quota = {
        "apiVersion": version,
        "kind": "ElasticQuota",
        "metadata": {"name": "q"},
        "spec": {"max": {"cpu": "1"}},
    }
    for plural in ("podgroups", "elasticquotas"):  # established is a moment before it is served
        wait_until(lambda plural=plural: _is_served(control_plane, plural), lambda: "not served", seconds=30)
    control_plane.request("POST", f"{X_K8S}/podgroups", group)
    control_plane.request("POST", f"{X_K8S}/elasticquotas", quota)
    for name in ("a", "b"):
        control_plane.request("POST", "/api/v1/namespaces/default/pods", pod(name))
        path = f"/api/v1/namespaces/default/pods/{name}/status"
        control_plane.request("PATCH", path, {"status": {"phase": "Running"}})
    wait_until(
        lambda: status(f"{X_K8S}/podgroups/g").get("phase") == "Running",
        lambda: f"the group is not Running: {status(f'{X_K8S}/podgroups/g')}",
        seconds=30,
    )
    wait_until(
        lambda: status(f"{X_K8S}/elasticquotas/q").get("used") == {"cpu": "400m"},
        lambda: f"the usage is wrong: {status(f'{X_K8S}/elasticquotas/q')}",
        seconds=30,
    )
    queue = "/apis/scheduling.volcano.sh/v1beta1/queues/default"
    wait_until(lambda: status(queue).get("state") == "Open", lambda: "there is no default queue", seconds=30)
