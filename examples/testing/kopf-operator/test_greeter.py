"""Tests of the operator: it runs as `kopf run` would run it, on a cluster of its own."""

from __future__ import annotations

from pathlib import Path

import kopf.testing
import pytest

HERE = Path(__file__).parent


def greeting(name, namespace, who):
    return {
        "apiVersion": "example.com/v1",
        "kind": "Greeting",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"who": who},
    }


@pytest.fixture
def operator(kube_cluster, kube_namespace):
    """The operator at work in the test's namespace; it finds the cluster by KUBECONFIG."""
    kube_cluster.apply(HERE / "crd.yaml")
    command = ["run", "--standalone", f"--namespace={kube_namespace}", str(HERE / "greeter.py")]
    with kopf.testing.KopfRunner(command, timeout=30) as runner:
        yield runner
    assert runner.exit_code == 0, runner.output


def test_a_greeting_gets_its_config_map(operator, kube_cluster, kube_namespace):
    kube_cluster.create(greeting("hello", kube_namespace, "world"))
    kube_cluster.wait_for("greeting/hello", "status.greeted=world", kube_namespace, timeout=30)
    found = kube_cluster.get("ConfigMap", "hello", kube_namespace)
    assert found["data"] == {"text": "Hello, world!"}
    assert found["metadata"]["ownerReferences"][0]["name"] == "hello"


def test_a_changed_greeting(operator, kube_cluster, kube_namespace):
    kube_cluster.create(greeting("hello", kube_namespace, "world"))
    kube_cluster.wait_for("greeting/hello", "status.greeted=world", kube_namespace, timeout=30)
    kube_cluster.apply(greeting("hello", kube_namespace, "moon"))
    kube_cluster.wait_for("configmap/hello", "data.text=Hello, moon!", kube_namespace, timeout=30)


def test_it_tries_again_when_the_api_server_fails(operator, kube_cluster, kube_namespace):
    with kube_cluster.fault(500, verb="create", resource="configmaps", count=2) as fault:
        kube_cluster.create(greeting("hello", kube_namespace, "world"))
        kube_cluster.wait_for("configmap/hello", "exists", kube_namespace, timeout=30)
    assert fault.hits == 2


def test_it_survives_broken_watches(operator, kube_cluster, kube_namespace):
    kube_cluster.create(greeting("one", kube_namespace, "world"))
    kube_cluster.wait_for("configmap/one", "exists", kube_namespace, timeout=30)
    assert kube_cluster.drop_watches("greetings") == 1
    kube_cluster.create(greeting("two", kube_namespace, "world"))
    kube_cluster.wait_for("configmap/two", "exists", kube_namespace, timeout=30)


def test_a_deleted_greeting_takes_its_config_map_along(operator, kube_cluster, kube_namespace):
    kube_cluster.create(greeting("hello", kube_namespace, "world"))
    kube_cluster.wait_for("configmap/hello", "exists", kube_namespace, timeout=30)
    kube_cluster.delete("Greeting", "hello", kube_namespace)
    kube_cluster.wait_for("greeting/hello", "deleted", kube_namespace, timeout=30)
    kube_cluster.wait_for("configmap/hello", "deleted", kube_namespace, timeout=30)
