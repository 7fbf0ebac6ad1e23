"""The fixtures `kube_cluster` and `kube_namespace`, as a project that installed Stowplan uses them."""

from __future__ import annotations

from pytest_process import run_pytest

FIRST = """
import json
import os
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path


def get(cluster, path):
    context = ssl.create_default_context(cafile=cluster.certificate_file)
    request = urllib.request.Request(cluster.url + path, headers={"Authorization": f"Bearer {cluster.token}"})
    with urllib.request.urlopen(request, context=context) as answer:
        return json.load(answer)


def test_nodes(kube_cluster):
    assert len(get(kube_cluster, "/api/v1/nodes")["items"]) == 3


def test_namespace(kube_cluster, kube_namespace):
    assert kube_namespace.startswith("test-namespace-")
    assert type(kube_namespace) is str
    assert get(kube_cluster, f"/api/v1/namespaces/{kube_namespace}")["status"]["phase"] == "Active"
    assert f"namespace: {kube_namespace}" in Path(os.environ["KUBECONFIG"]).read_text()
    script = "import os, pathlib; print(pathlib.Path(os.environ['KUBECONFIG']).read_text())"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert kube_cluster.url in said


def test_namespaces_are_removed(kube_cluster):
    names = [each["metadata"]["name"] for each in get(kube_cluster, "/api/v1/namespaces")["items"]]
    assert sorted(names) == ["default", "kube-node-lease", "kube-public", "kube-system"]
    assert "KUBECONFIG" not in os.environ
"""
MARKED = """
import pytest

SEEN = []


@pytest.mark.kube_cluster(nodes=5, rbac=True)
def test_own(kube_cluster, kube_namespace):
    assert len(kube_cluster.list("Node")) == 5
    assert kube_cluster.list("ClusterRole")
    SEEN.append(kube_cluster)


def test_default(kube_cluster):
    assert len(kube_cluster.list("Node")) == 2
    assert not kube_cluster.list("ClusterRole")


@pytest.mark.kube_cluster(nodes=5, rbac=True)
class TestAgain:
    def test_same(self, kube_cluster):
        assert SEEN == [kube_cluster]
"""
SCHEDULER = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins: {multiPoint: {enabled: [{name: OnlyTwo}]}}
"""
PLUGIN = """
from stowplan import Plugin, Status


class OnlyTwo(Plugin):
    def filter(self, state, pod, node):
        return None if node.name == "node-2" else Status.unschedulable("node is not the second")
"""
INI = """[pytest]
pythonpath = .
kube_config = scheduler.yaml
kube_plugins = only_two:OnlyTwo
kube_manifests = manifests
"""
CONFIGURED = """
def test_it(kube_cluster):
    assert kube_cluster.wait_for("pod/web", "Ready")["spec"]["nodeName"] == "node-2"
    assert "node is not the second" in kube_cluster.explain("web")
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: main, image: web}]}
"""
WRONG = """
import pytest


@pytest.mark.kube_cluster(node=5)
def test_it(kube_cluster):
    pass
"""
FAULTS = """
def test_one(kube_cluster):
    kube_cluster.fault(500)
    assert list(kube_cluster.embedded.server.faults)


def test_two(kube_cluster):
    assert not list(kube_cluster.embedded.server.faults)
"""
UNUSED = """
import sys
import threading


def test_nothing_is_loaded():
    heavy = {"numpy", "aiohttp", "cryptography", "msgspec", "stowplan.embedded"} & set(sys.modules)
    assert not heavy
    assert threading.active_count() == 1
"""


def run(folder, *options, text=FIRST):
    (folder / "test_it.py").write_text(text)
    done = run_pytest(folder, "-p", "no:asyncio", "-W", "error", *options)
    return done.stdout + done.stderr


def test_fixtures(tmp_path):
    said = run(tmp_path, "-p", "no:xdist")
    assert "3 passed" in said, said


def test_with_xdist(tmp_path):
    said = run(tmp_path, "-n", "2")
    assert "3 passed" in said, said


def test_markers_and_ini(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nkube_nodes = 2\naddopts = --strict-markers\n")
    said = run(tmp_path, "-p", "no:xdist", text=MARKED)
    assert "3 passed" in said, said


def test_plugins_and_manifests_of_the_ini_file(tmp_path):
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "pod.yaml").write_text(POD)
    (tmp_path / "only_two.py").write_text(PLUGIN)
    (tmp_path / "scheduler.yaml").write_text(SCHEDULER)
    (tmp_path / "pytest.ini").write_text(INI)
    said = run(tmp_path, "-p", "no:xdist", text=CONFIGURED)
    assert "1 passed" in said, said
    (tmp_path / "pytest.ini").write_text(INI.replace("only_two:OnlyTwo", "only_two:Three"))
    said = run(tmp_path, "-p", "no:xdist", text=CONFIGURED)
    assert "kube_plugins: cannot load 'only_two:Three', expected module:Class" in said, said


def test_a_wrong_option_is_named(tmp_path):
    said = run(tmp_path, "-p", "no:xdist", text=WRONG)
    assert "the marker kube_cluster takes keyword arguments: nodes, rbac" in said, said


def test_faults_end_with_the_test(tmp_path):
    said = run(tmp_path, "-p", "no:xdist", text=FAULTS)
    assert "2 passed" in said, said


FAILING = """
from stowplan.embedded import embedded_cluster

POD = {"metadata": {"name": "big"}, "spec": {"containers": [{"name": "m", "image": "x"}], "nodeName": "none"}}


def is_started(pod):
    assert "startTime" in pod["status"], "of the condition itself"


def test_waits(kube_cluster):
    kube_cluster.wait_for("pod/big", timeout=0.1)


async def test_waits_in_the_loop():
    async with embedded_cluster() as cluster:
        await cluster.wait_for("pod/big", timeout=0.1)


def test_waits_by_function(kube_cluster):
    kube_cluster.create({"apiVersion": "v1", "kind": "Pod", **POD})
    kube_cluster.wait_for("pod/big", is_started, timeout=0.1)
"""


def test_a_failure_shows_the_line_that_waits_alone(tmp_path):
    (tmp_path / "test_them.py").write_text(FAILING)
    said = run_pytest(tmp_path, "--tb=short").stdout
    assert "3 failed" in said
    assert said.count("Pod default/big is not Ready after 0.1 s") >= 2
    first, _, by_function = said.partition("test_waits_by_function")
    assert "concurrent" not in first
    assert "stowplan/embedded" not in first
    assert 'assert "startTime" in pod["status"]' in by_function


def test_runs_that_do_not_use_it_load_nothing(tmp_path):
    said = run(
        tmp_path,
        "-p",
        "no:xdist",
        "-p",
        "no:hypothesispytest",
        "-p",
        "no:cov",
        text=UNUSED,
    )
    assert "1 passed" in said, said
