"""ResourceClaims that the pods of a group share, as kube-controller-manager v1.36.4 makes them."""

from __future__ import annotations

import pytest

from stowplan.client.api import MERGE_PATCH
from stowplan.client.errors import NotFound
from stowplan.embedded import embedded_cluster

GATES = dict.fromkeys(("GenericWorkload", "DRAWorkloadResourceClaims"), True)
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
USE = {"name": "gpu", "resourceClaimTemplateName": "t"}


def group():
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "resourceClaims": [USE]}
    metadata = {"name": "g"}
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": metadata,
        "spec": spec,
    }


def template():
    request = {"name": "r", "exactly": {"deviceClassName": "d"}}
    spec = {"metadata": {"labels": {"x": "y"}}, "spec": {"devices": {"requests": [request]}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t"},
        "spec": spec,
    }


def pod(name, use, group="g"):
    spec = {"containers": [{"name": "c", "image": "x"}], "resourceClaims": [use], "schedulerName": "none"}
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
async def cluster():
    async with embedded_cluster(nodes=1, feature_gates=GATES) as made:
        yield made


async def claim_of(cluster, kind, name):
    async def found():
        status = (await cluster.get(kind, name)).get("status") or {}
        return next((each["resourceClaimName"] for each in status.get("resourceClaimStatuses") or ()), None)

    return await cluster.until(found, f"{kind} {name} has a claim")


@pytest.mark.parametrize("order", ["group first", "group last"])
async def test_38_members_share_the_claim_of_their_group(cluster, order):
    made = [pod("a", USE), pod("b", USE), template()]
    await cluster.create(*([group(), *made] if order == "group first" else [*made, group()]))
    shared = await claim_of(cluster, "PodGroup", "g")
    assert {await claim_of(cluster, "Pod", name) for name in "ab"} == {shared}
    (claim,) = await cluster.list("ResourceClaim")
    owner = claim["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("PodGroup", "g", True)
    assert claim["metadata"]["labels"] == {"x": "y"}


async def test_other_pods_have_claims_of_their_own(cluster):
    await cluster.create(template(), group())
    shared = await claim_of(cluster, "PodGroup", "g")
    await cluster.create(pod("other", {**USE, "name": "mine"}), pod("alone", USE, ""))
    own = {await claim_of(cluster, "Pod", name) for name in ("other", "alone")}
    assert len(own) == 2
    assert shared not in own


async def test_the_claim_ends_with_the_group(cluster):
    await cluster.create(template(), group(), pod("a", USE))
    shared = await claim_of(cluster, "PodGroup", "g")
    uid = (await cluster.get("PodGroup", "g"))["metadata"]["uid"]
    holder = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": uid}
    result = {"request": "r", "driver": "x", "pool": "p", "device": "d"}
    protected = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
    await cluster.api.request("PATCH", f"{CLAIMS}/{shared}", protected, content_type=MERGE_PATCH)
    status = {"status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [holder]}}
    await cluster.api.request("PATCH", f"{CLAIMS}/{shared}/status", status, content_type=MERGE_PATCH)
    await cluster.delete("Pod", "a")
    assert (await cluster.get("ResourceClaim", shared))["status"]["reservedFor"] == [holder]
    await cluster.delete("PodGroup", "g")

    async def gone():
        try:
            await cluster.get("ResourceClaim", shared)
        except NotFound:
            return True

    await cluster.until(gone, "the claim is gone")


def devices(node_name, count=1):
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
    found = [{"name": f"gpu-{number}"} for number in range(count)]
    spec = {"driver": "gpu.example", "nodeName": node_name, "pool": pool, "devices": found}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": node_name},
        "spec": spec,
    }


def device_class():
    spec = {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example"'}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "d"},
        "spec": spec,
    }


def named_claim():
    return {
        **template(),
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": template()["spec"]["spec"],
    }


def scheduled(plain):
    return {**plain, "spec": {**plain["spec"], "schedulerName": "default-scheduler"}}


@pytest.fixture
async def scheduling():
    gates = {**GATES, "GangScheduling": True}
    async with embedded_cluster(nodes=2, feature_gates=gates) as made:
        names = [each["metadata"]["name"] for each in await made.list("Node")]
        await made.create(device_class(), devices(names[1]))
        yield made, names[1]


async def test_38_one_allocation_serves_the_whole_group(scheduling):
    cluster, with_device = scheduling
    pods = [scheduled(pod(name, USE)) for name in "ab"]
    await cluster.create(template(), group(), *pods)
    nodes = {await cluster.bound(name) for name in "ab"}
    assert nodes == {with_device}
    (claim,) = await cluster.list("ResourceClaim")
    uid = (await cluster.get("PodGroup", "g"))["metadata"]["uid"]
    holder = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": uid}
    assert claim["status"]["reservedFor"] == [holder]
    await cluster.create(scheduled(pod("late", USE)))
    assert await cluster.bound("late") == with_device
    (claim,) = await cluster.list("ResourceClaim")
    assert claim["status"]["reservedFor"] == [holder]


async def test_members_share_a_claim_that_is_not_their_groups(scheduling):
    """It is reserved for each of them, and allocated once."""
    cluster, with_device = scheduling
    use = {"name": "gpu", "resourceClaimName": "c"}
    plain = group()
    del plain["spec"]["resourceClaims"]
    await cluster.create(named_claim(), plain, *(scheduled(pod(name, use)) for name in "ab"))
    nodes = {await cluster.bound(name) for name in "ab"}
    assert nodes == {with_device}
    claim = await cluster.get("ResourceClaim", "c")
    assert {each["name"] for each in claim["status"]["reservedFor"]} == {"a", "b"}
