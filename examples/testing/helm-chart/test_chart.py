"""Tests of the chart: installed, upgraded and removed by the real helm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHART = Path(__file__).parent / "chart"
HELM = os.environ.get("HELM") or shutil.which("helm")

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not on PATH, and HELM does not name it")


def helm(*arguments):
    """Helm finds cluster and namespace by KUBECONFIG, which `kube_namespace` sets."""
    done = subprocess.run([HELM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_installed_and_removed(kube_cluster, kube_namespace):
    helm("install", "shop", str(CHART), "--wait", "--timeout=60s")
    found = kube_cluster.wait_for("deployment/shop", "Available", kube_namespace)
    assert found["status"]["readyReplicas"] == 2
    assert kube_cluster.wait_for("job/shop-prepare", "Complete", kube_namespace)
    (slices,) = kube_cluster.list("EndpointSlice", kube_namespace)
    assert len(slices["endpoints"]) == 2

    helm("uninstall", "shop", "--wait", "--timeout=60s")
    kube_cluster.wait_for("deployment/shop", "deleted", kube_namespace)
    kube_cluster.wait_for("service/shop", "deleted", kube_namespace)


def test_an_upgrade_rolls_out_and_can_be_rolled_back(kube_cluster, kube_namespace):
    helm("install", "shop", str(CHART), "--wait", "--timeout=60s")
    helm("upgrade", "shop", str(CHART), "--set=greeting=Moin,replicas=3", "--wait", "--timeout=60s")
    assert kube_cluster.get("ConfigMap", "shop", kube_namespace)["data"] == {"greeting": "Moin"}
    kube_cluster.wait_for("deployment/shop", "status.updatedReplicas=3", kube_namespace)

    helm("rollback", "shop", "1", "--wait", "--timeout=60s")
    assert kube_cluster.get("ConfigMap", "shop", kube_namespace)["data"] == {"greeting": "Hello"}
    history = json.loads(helm("history", "shop", "--output=json"))
    assert [each["status"] for each in history] == ["superseded", "superseded", "deployed"]


def test_pods_that_do_not_fit_are_explained(kube_cluster, kube_namespace):
    helm("install", "shop", str(CHART), "--set=cpu=1000")
    with pytest.raises(AssertionError, match="Insufficient cpu"):
        kube_cluster.wait_for("deployment/shop", "Available", kube_namespace, timeout=1)
