"""Who is asked about those who come to the scheduler: the API server of a kubeconfig, or that of the pod."""

from __future__ import annotations

import json

import pytest

from stowplan.apiserver.http import make_certificate
from stowplan.scheduler.main import reviewer

IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def kubeconfig(tmp_path):
    path = tmp_path / "kubeconfig"
    clusters = [{"name": "c", "cluster": {"server": "http://named:8080"}}]
    contexts = [{"name": "c", "context": {"cluster": "c"}}]
    path.write_text(json.dumps({"clusters": clusters, "contexts": contexts, "current-context": "c"}))
    return path


@pytest.fixture
def account(tmp_path):
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "ca.crt").write_bytes(make_certificate().certificate)
    (folder / "token").write_text("abc")
    return folder


@pytest.mark.parametrize("environ", [IN_A_POD, {}], ids=["in a pod", "outside"])
def test_a_kubeconfig_goes_first(kubeconfig, account, environ):
    found = reviewer(str(kubeconfig), environ=environ, account=account)
    assert found is not None
    assert found.server == "http://named:8080"


async def test_in_a_pod_its_account_asks(account):
    found = reviewer("", environ=IN_A_POD, account=account)
    assert found is not None
    assert found.server == "https://10.0.0.1:443"
    assert dict(await found.headers())["Authorization"] == "Bearer abc"


def test_outside_of_a_cluster_nobody_is_asked(account):
    assert reviewer("", environ={}, account=account) is None


def test_a_pod_without_a_token_asks_nobody(tmp_path):
    assert reviewer("", environ=IN_A_POD, account=tmp_path) is None
