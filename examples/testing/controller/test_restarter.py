"""Tests of the controller, with the official client."""

from __future__ import annotations

import datetime

import pytest
from kubernetes import client, config
from restarter import Restarter


@pytest.fixture
def api(kube_namespace):
    """A client as the controller has it in production: it reads KUBECONFIG."""
    with config.new_client_from_config() as connection:
        yield client.CoreV1Api(connection)


@pytest.fixture
def restarter(api, kube_namespace):
    return Restarter(api, kube_namespace)


def pod(name, **annotations):
    container = client.V1Container(name="main", image="web:1")
    meta = client.V1ObjectMeta(name=name, annotations=annotations)
    return client.V1Pod(metadata=meta, spec=client.V1PodSpec(containers=[container]))


def cluster_time(kube_cluster):
    return datetime.datetime.fromtimestamp(kube_cluster.now, datetime.UTC)


def test_a_stuck_pod_is_restarted(restarter, api, kube_cluster, kube_namespace):
    made = api.create_namespaced_pod(kube_namespace, pod("stuck", **{"kubelet.stowplan/ready": "false"}))
    api.create_namespaced_pod(kube_namespace, pod("well"))
    kube_cluster.wait_for(made, "Running")
    kube_cluster.wait_for("pod/well", "Ready", kube_namespace)
    restarter.follow(1)
    restarter.restart(cluster_time(kube_cluster))
    assert restarter.restarted == []

    kube_cluster.tick("6m")
    restarter.restart(cluster_time(kube_cluster))
    assert restarter.restarted == ["stuck"]
    kube_cluster.wait_for(made, "deleted")


@pytest.mark.parametrize("status", [410, 429, 500])
def test_it_lists_again_after_an_error(restarter, api, kube_cluster, kube_namespace, status):
    api.create_namespaced_pod(kube_namespace, pod("web"))
    with kube_cluster.fault(status, verb="watch", resource="pods", count=2) as fault:
        restarter.follow(1)
    assert fault.hits == 2
    assert [each.metadata.name for each in restarter.seen.values()] == ["web"]


def test_an_expired_token_is_rejected(kube_cluster, kube_namespace):
    path = kube_cluster.kubeconfig_for(kube_namespace, "default")
    with config.new_client_from_config(str(path)) as connection:
        api = client.CoreV1Api(connection)
        assert api.list_namespaced_pod(kube_namespace).items == []
        kube_cluster.tick("2h")
        with pytest.raises(client.ApiException) as failure:
            api.list_namespaced_pod(kube_namespace)
        assert failure.value.status == 401


@pytest.mark.kube_cluster(rbac=True)
def test_its_role_is_enough(kube_cluster, kube_namespace):
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "delete"]}]
    meta = {"name": "restarter", "namespace": kube_namespace}
    rbac = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": kube_namespace}
    reference = {"apiGroup": rbac, "kind": "Role", "name": "restarter"}
    kube_cluster.create(
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "subjects": [subject],
            "roleRef": reference,
        },
    )
    path = kube_cluster.kubeconfig_for(kube_namespace, "default")
    with config.new_client_from_config(str(path)) as connection:
        api = client.CoreV1Api(connection)
        Restarter(api, kube_namespace).follow(1)
        with pytest.raises(client.ApiException) as failure:
            api.create_namespaced_pod(kube_namespace, pod("web"))
        assert failure.value.status == 403
