"""HorizontalPodAutoscalers on the made usage of simulated pods."""

from __future__ import annotations

import pytest

from stowplan.embedded import embedded_cluster

AUTOSCALERS = "/apis/autoscaling/{}/namespaces/default/horizontalpodautoscalers"
DEPLOYMENT = "/apis/apps/v1/namespaces/default/deployments/web"
MERGE = "application/merge-patch+json"


def deployment(cpu_usage, requests):
    container = {"name": "main", "image": "web:1", "resources": {"requests": requests}}
    annotations = {"kubelet.stowplan/cpu-usage": cpu_usage}
    meta = {"labels": {"app": "web"}, "annotations": annotations}
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": meta, "spec": {"containers": [container]}},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}


def autoscaler(**spec):
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    metric = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}
    whole = {
        "scaleTargetRef": target,
        "minReplicas": 1,
        "maxReplicas": 5,
        "metrics": [{"type": "Resource", "resource": metric}],
        **spec,
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web"},
        "spec": whole,
    }


@pytest.mark.parametrize(
    ("usage", "behavior", "replicas"),
    [
        pytest.param("100m", {}, 4, id="twice the target"),
        pytest.param("400m", {}, 5, id="never more than the limit"),
        pytest.param("52m", {}, 2, id="close enough"),
        pytest.param("10m", {"scaleDown": {"stabilizationWindowSeconds": 0}}, 1, id="fewer"),
    ],
)
async def test_replicas_follow_usage(usage, behavior, replicas):
    async with embedded_cluster(2, speed=60) as cluster:
        await cluster.create(deployment(usage, {"cpu": "100m"}))

        async def is_ready():
            return (await cluster.get("Deployment", "web"))["status"].get("readyReplicas") == 2

        await cluster.until(is_ready)
        await cluster.create(autoscaler(behavior=behavior) if behavior else autoscaler())

        async def is_scaled():
            item = await cluster.api.get_json(f"{AUTOSCALERS.format('v2')}/web")
            found = item.get("status", {})
            active = [each for each in found.get("conditions") or () if each["type"] == "ScalingActive"]
            return bool(active) and active[0]["status"] == "True" and found["desiredReplicas"] == replicas

        await cluster.until(is_scaled)
        assert (await cluster.api.get_json(DEPLOYMENT))["spec"]["replicas"] == replicas


async def test_a_new_autoscaler_need_not_wait_for_the_next_period():
    """It is often created together with its target, whose pods have not started yet."""
    async with embedded_cluster(2, speed=0) as cluster:
        await cluster.create(autoscaler(), deployment("52m", {"cpu": "100m"}))
        await cluster.tick("5s")
        status = (await cluster.api.get_json(f"{AUTOSCALERS.format('v2')}/web"))["status"]
        assert [each["resource"]["current"] for each in status["currentMetrics"]] == [
            {"averageUtilization": 52, "averageValue": "52m"}
        ]


async def test_a_missing_request_is_told():
    async with embedded_cluster(1, speed=60) as cluster:
        await cluster.create(deployment("10m", {}), autoscaler())

        async def says_so():
            item = await cluster.api.get_json(f"{AUTOSCALERS.format('v2')}/web")
            conditions = item.get("status", {}).get("conditions") or ()
            return "missing request for cpu in container main" in str(conditions)

        await cluster.until(says_so)


async def test_version_1_is_another_view_of_the_same_object():
    async with embedded_cluster(1) as cluster:
        await cluster.create(autoscaler())
        old = await cluster.api.get_json(f"{AUTOSCALERS.format('v1')}/web")
        assert old["spec"]["targetCPUUtilizationPercentage"] == 50
        assert "metrics" not in old["spec"]
        change = {"spec": {"targetCPUUtilizationPercentage": 70}}
        await cluster.api.request("PATCH", f"{AUTOSCALERS.format('v1')}/web", change, content_type=MERGE)
        new = await cluster.api.get_json(f"{AUTOSCALERS.format('v2')}/web")
        assert new["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] == 70
