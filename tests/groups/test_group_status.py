"""The status of pod groups, quotas and queues that are installed as CustomResourceDefinitions.

Tests with a number are rows of the specification's scenarios, as far as they are about the status alone.
"""

from __future__ import annotations

import pytest

from stowplan.api.group_crds import PUBLISHED
from stowplan.api.meta import decode
from stowplan.client.api import MERGE_PATCH
from stowplan.controllers.groups import phase_status
from stowplan.controllers.kinds import Plain, PodView
from stowplan.embedded import embedded_cluster
from stowplan.embedded.cluster import EmbeddedCluster

X_K8S, VOLCANO = "scheduling.x-k8s.io/v1alpha1", "scheduling.volcano.sh/v1beta1"
LABEL = "scheduling.x-k8s.io/pod-group"


@pytest.fixture
async def cluster():
    async with embedded_cluster(nodes=1, manifests=PUBLISHED.values()) as made:
        yield made


def group(name, least, namespace="default"):
    return {
        "apiVersion": X_K8S,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"minMember": least},
    }


def pod(name, group="", namespace="default", cpu="100m", **spec):
    requests = {"requests": {"cpu": cpu}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {LABEL: group} if group else {}},
        "spec": {"containers": [{"name": "c", "image": "x", "resources": requests}], **spec},
    }


async def status_of(cluster, path, **wanted):
    """Wait until the status has these fields."""

    async def found():
        status = (await cluster.api.get_json(path)).get("status") or {}
        return status if all(status.get(key) == value for key, value in wanted.items()) else None

    return await cluster.until(found, f"status of {path} has {wanted}")


def path_of(api_version, plural, name, namespace="default"):
    scope = f"namespaces/{namespace}/" if namespace else ""
    return f"/apis/{api_version}/{scope}{plural}/{name}"


async def test_68_a_group_whose_pods_wait_is_scheduling(cluster):
    await cluster.create(group("g", 3))
    await status_of(cluster, path_of(X_K8S, "podgroups", "g"), phase="Pending")
    await cluster.create(*(pod(f"p{each}", "g", schedulerName="none") for each in range(3)))
    found = await status_of(cluster, path_of(X_K8S, "podgroups", "g"), phase="Scheduling")
    assert found == {"phase": "Scheduling", "running": 0, "succeeded": 0, "failed": 0}


async def test_72_a_group_runs_once_enough_members_run(cluster):
    await cluster.create(group("g", 3), *(pod(f"p{each}", "g") for each in range(3)))
    found = await status_of(cluster, path_of(X_K8S, "podgroups", "g"), phase="Running")
    assert found["running"] == 3
    await cluster.delete("Pod", "p0")
    await status_of(cluster, path_of(X_K8S, "podgroups", "g"), phase="Pending", running=2)


async def test_73_groups_of_one_name_in_two_namespaces_are_independent(cluster):
    await cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    await cluster.create(group("g", 1), group("g", 1, "other"), pod("p", "g", "other"))
    await status_of(cluster, path_of(X_K8S, "podgroups", "g", "other"), phase="Running", running=1)
    assert await status_of(cluster, path_of(X_K8S, "podgroups", "g")) == {"phase": "Pending"}


async def test_74_a_failed_group_stays_failed(cluster):
    await cluster.create(group("g", 1), pod("p", "g", schedulerName="none"))
    await cluster.api.request(
        "PATCH",
        "/api/v1/namespaces/default/pods/p/status",
        {"status": {"phase": "Failed"}},
        content_type=MERGE_PATCH,
    )
    await status_of(cluster, path_of(X_K8S, "podgroups", "g"), phase="Failed", failed=1)
    await cluster.delete("Pod", "p")
    await cluster.create(pod("q", "g"))
    await cluster.bound("q")
    assert (await status_of(cluster, path_of(X_K8S, "podgroups", "g")))["phase"] == "Failed"


@pytest.mark.parametrize(
    ("phase", "phases", "becomes"),
    [
        ("", [], "Pending"),
        ("Pending", ["Pending"], "Pending"),
        ("Pending", ["Pending", "Pending"], "Scheduling"),
        ("Scheduling", ["Running", "Pending"], "Scheduling"),
        ("Scheduling", ["Running", "Running"], "Running"),
        ("Running", ["Running", "Succeeded"], "Running"),
        ("Running", ["Running"], "Pending"),
        ("Running", ["Running", "Pending"], "Scheduling"),
        ("Running", ["Succeeded", "Succeeded"], "Finished"),
        ("Running", ["Running", "Failed"], "Failed"),
        ("Running", ["Succeeded", "Succeeded", "Failed"], "Finished"),
        ("Finished", [], "Finished"),
        ("Failed", ["Running", "Running"], "Failed"),
    ],
)
def test_phases(phase, phases, becomes):
    item = decode(Plain, {"spec": {"minMember": 2}, "status": {"phase": phase}})
    pods = [decode(PodView, {"status": {"phase": each}}) for each in phases]
    assert phase_status(item, pods)["phase"] == becomes


def test_a_group_says_whose_it_is():
    owner = {"apiVersion": "batch/v1", "kind": "Job", "uid": "u"}
    owners = [{**owner, "name": name} for name in ("b", "a")]
    pod = decode(PodView, {"metadata": {"name": "p", "namespace": "n", "ownerReferences": owners}})
    item = decode(Plain, {"spec": {"minMember": 1}})
    assert phase_status(item, [pod])["occupiedBy"] == "n/a,n/b"


@pytest.mark.parametrize("least", [0, -(2**31), None])
def test_a_minimum_below_one_counts_as_one(least):
    item = decode(Plain, {"spec": {"minMember": least}, "status": {"phase": "Scheduling"}})
    assert phase_status(item, [])["phase"] == "Pending"
    assert phase_status(item, [decode(PodView, {"status": {"phase": "Running"}})])["phase"] == "Running"


def lenient(kind, plural):
    """A definition without a schema, as someone may have written it."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.scheduling.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved"},
        },
        "spec": {
            "group": "scheduling.x-k8s.io",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Namespaced",
            "versions": [version | {"subresources": {"status": {}}}],
        },
    }


async def test_what_cannot_be_read_is_left_alone_and_does_not_hold_up_others(caplog):
    manifests = [lenient("PodGroup", "podgroups"), lenient("ElasticQuota", "elasticquotas")]
    async with embedded_cluster(nodes=1, manifests=manifests) as cluster:
        quota = {
            "apiVersion": X_K8S,
            "kind": "ElasticQuota",
            "metadata": {"name": "q", "namespace": "default"},
        }
        await cluster.create(group("bad", "many"), {**quota, "spec": {"min": "none"}})
        await cluster.create(group("g", 1), pod("p", "g"), pod("q", "bad"))
        await status_of(cluster, path_of(X_K8S, "podgroups", "g"), phase="Running")
        for path in (path_of(X_K8S, "podgroups", "bad"), path_of(X_K8S, "elasticquotas", "q")):
            assert "status" not in await cluster.api.get_json(path)
    assert not [each for each in caplog.records if each.getMessage() == "Controller failed; retrying"]


async def test_elastic_quotas_count_running_pods(cluster):
    quota = {
        "apiVersion": X_K8S,
        "kind": "ElasticQuota",
        "metadata": {"name": "q", "namespace": "default"},
        "spec": {"min": {"cpu": "1"}, "max": {"cpu": "2", "memory": "1Gi", "pods": 5}},
    }
    await cluster.create(quota, pod("a", cpu="300m"), pod("b", cpu="200m"), pod("c", schedulerName="none"))
    path = path_of(X_K8S, "elasticquotas", "q")
    await status_of(cluster, path, used={"cpu": "500m", "memory": "0", "pods": "2"})
    await cluster.delete("Pod", "b")
    await status_of(cluster, path, used={"cpu": "300m", "memory": "0", "pods": "1"})

    async def synced():
        events = (await cluster.api.get_json("/apis/events.k8s.io/v1/namespaces/default/events"))["items"]
        return [each for each in events if each["reason"] == "Synced"]

    (event, *_) = await cluster.until(synced, "an event says that the quota is counted")
    assert event["note"] == "Elastic Quota default/q synced successfully"
    assert (event["type"], event["regarding"]["kind"], event["regarding"]["name"]) == (
        "Normal",
        "ElasticQuota",
        "q",
    )


async def test_elastic_quotas_count_the_overhead_of_pods(cluster):
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}}
    await cluster.create(runtime | {"handler": "kata", "overhead": {"podFixed": {"cpu": "50m"}}})
    quota = {
        "apiVersion": X_K8S,
        "kind": "ElasticQuota",
        "metadata": {"name": "q", "namespace": "default"},
        "spec": {"max": {"cpu": "2"}},
    }
    await cluster.create(quota, pod("a", runtimeClassName="kata"))
    await status_of(cluster, path_of(X_K8S, "elasticquotas", "q"), used={"cpu": "150m"})


async def test_queues_count_their_groups(cluster):
    await status_of(cluster, path_of(VOLCANO, "queues", "default", ""), state="Open")
    queue = {"apiVersion": VOLCANO, "kind": "Queue", "metadata": {"name": "q"}, "spec": {}}
    await cluster.create(queue)

    def waiting(name, queue, phase):
        return {
            "apiVersion": VOLCANO,
            "kind": "PodGroup",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"queue": queue, "minMember": 1},
            "status": {"phase": phase},
        }

    await cluster.create(waiting("a", "q", "Pending"), waiting("b", "q", "Inqueue"))
    path = path_of(VOLCANO, "queues", "q", "")
    assert await status_of(cluster, path, pending=1, inqueue=1) == {
        "state": "Open",
        "pending": 1,
        "inqueue": 1,
        "running": 0,
        "unknown": 0,
        "completed": 0,
    }
    member = pod("p")
    member["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "a"}
    await cluster.create(member)
    await status_of(cluster, path, pending=0, running=1)
    closing = {"status": {"state": "Closing"}}
    await cluster.api.request("PATCH", f"{path}/status", closing, content_type=MERGE_PATCH)
    for name in ("a", "b"):
        await cluster.api.request("DELETE", path_of(VOLCANO, "podgroups", name))
    await status_of(cluster, path, state="Closed", running=0)


async def test_kinds_that_come_and_go(cluster):
    """Definitions may be deleted and installed again: the controllers follow."""
    name = "podgroups.scheduling.x-k8s.io"
    await cluster.create(group("g", 1))
    await status_of(cluster, path_of(X_K8S, "podgroups", "g"), phase="Pending")
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await cluster.api.request("DELETE", f"{crds}/{name}")

    async def gone():
        items = (await cluster.api.get_json(crds))["items"]
        return name not in [each["metadata"]["name"] for each in items]

    await cluster.until(gone, "the definition is gone")
    await cluster.create(PUBLISHED[name])
    await cluster.create(group("h", 1), pod("p", "h"))
    await status_of(cluster, path_of(X_K8S, "podgroups", "h"), phase="Running")


async def test_kinds_that_are_there_from_the_start():
    """The garbage collector watches them, too, and may be the first."""
    async with EmbeddedCluster() as first:
        await first.apply(*PUBLISHED.values())
    async with EmbeddedCluster(first.server.store) as cluster:
        await cluster.create(group("g", 1))
        await status_of(cluster, path_of(X_K8S, "podgroups", "g"), phase="Pending")
        await status_of(cluster, path_of(VOLCANO, "queues", "default", ""), state="Open")
