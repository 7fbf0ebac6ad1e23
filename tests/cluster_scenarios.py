"""What a cluster of API server, controllers and kubelets does: scenarios for ours and for the real one.

Each gets a `cluster_in_process.Cluster` with three nodes in two zones, whose time runs ten times as fast.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from cluster_in_process import Cluster
from node_operations import cordon, drain, uncordon
from stowplan.kubelet import NodeTemplate

Json = dict[str, Any]
Scenario = Callable[[Cluster], Awaitable[None]]

NODES = NodeTemplate(count=3, cpu="4", memory="8Gi", zones=("a", "b"))
SPEED = 10.0
SCENARIOS: list[Scenario] = []

APPS, BATCH, CORE = (f"{root}/namespaces/default" for root in ("/apis/apps/v1", "/apis/batch/v1", "/api/v1"))
PODS, CLAIMS = f"{CORE}/pods", f"{CORE}/persistentvolumeclaims"
ENDLESS = {"containers": [{"name": "main", "image": "web:1", "command": ["sleep", "1000000"]}]}
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"


def scenario(run: Scenario) -> Scenario:
    SCENARIOS.append(run)
    return run


def template(app: str, image: str = "web:1", **spec: Any) -> Json:
    container = {"name": "main", "image": image}
    meta = {"labels": {"app": app}}
    return {
        "metadata": meta,
        "spec": {"containers": [container], "automountServiceAccountToken": False, **spec},
    }


def workload(kind: str, name: str, *, image: str = "web:1", pod: Json | None = None, **spec: Any) -> Json:
    selector = {"selector": {"matchLabels": {"app": name}}}
    whole = {**selector, "template": template(name, image, **(pod or {})), **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": whole}


def job(name: str, *, pod: Json | None = None, annotations: Json | None = None, **spec: Any) -> Json:
    made = template(name, **{"restartPolicy": "Never", **(pod or {})})
    made["metadata"]["annotations"] = annotations or {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": made, **spec},
    }


def pod(name: str, *, requests: Json | None = None, **spec: Any) -> Json:
    made = template(name, **spec)
    made["spec"]["containers"][0]["resources"] = {"requests": requests or {}}
    return {"apiVersion": "v1", "kind": "Pod", **made, "metadata": {"name": name, "labels": {"app": name}}}


def with_image(image: str) -> Json:
    return {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}}


def is_rolled_out(replicas: int) -> Callable[[Json], bool]:
    """As `kubectl rollout status` judges a Deployment."""

    def judge(item: Json) -> bool:
        status = item.get("status", {})
        counts = [status.get(f"{what}eplicas", 0) for what in ("r", "updatedR", "availableR", "readyR")]
        return counts == [replicas] * 4 and status["observedGeneration"] == item["metadata"]["generation"]

    return judge


def conditions(item: Json) -> dict[str, tuple[str, str]]:
    found = item.get("status", {}).get("conditions") or ()
    return {each["type"]: (each["status"], each.get("reason", "")) for each in found}


def is_phase(phase: str) -> Callable[[Json], bool]:
    return lambda item: item.get("status", {}).get("phase") == phase


def images(items: Json) -> list[str]:
    return sorted(each["spec"]["containers"][0]["image"] for each in items["items"])


@scenario
async def a_deployment_rolls_out_scales_and_goes_back(cluster: Cluster) -> None:
    path = f"{APPS}/deployments/web"
    await cluster.create(f"{APPS}/deployments", workload("Deployment", "web", replicas=3))
    first = await cluster.until(path, is_rolled_out(3))
    assert conditions(first) == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "NewReplicaSetAvailable"),
    }
    await cluster.patch(path, {"spec": {"replicas": 5}})
    await cluster.until(path, is_rolled_out(5))
    await cluster.patch(path, with_image("web:2"))
    second = await cluster.until(path, is_rolled_out(5))
    assert images(await cluster.until(PODS, lambda found: len(found["items"]) == 5)) == ["web:2"] * 5
    assert second["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"
    await cluster.patch(path, with_image("web:1"))
    back = await cluster.until(path, is_rolled_out(5))
    assert back["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3"
    assert len(await cluster.names(f"{APPS}/replicasets")) == 2, "the first version's set serves again"


@scenario
async def a_roll_out_keeps_to_its_limits(cluster: Cluster) -> None:
    path = f"{APPS}/deployments/web"
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    await cluster.create(f"{APPS}/deployments", workload("Deployment", "web", replicas=3, strategy=rolling))
    await cluster.until(path, is_rolled_out(3))
    await cluster.patch(path, with_image("web:2"))
    done = is_rolled_out(3)
    for _ in range(1000):
        pods = [each for each in await cluster.items(PODS) if "deletionTimestamp" not in each["metadata"]]
        ready = [each for each in pods if conditions(each).get("Ready", ("",))[0] == "True"]
        assert len(ready) >= 3, "none may be missing"
        sets = await cluster.items(f"{APPS}/replicasets")
        assert sum(each["spec"]["replicas"] for each in sets) <= 4, "one more is allowed"
        if done(await cluster.get(path)):
            break
        await asyncio.sleep(0.01)
    assert images(await cluster.until(PODS, lambda found: len(found["items"]) == 3)) == ["web:2"] * 3


@scenario
async def a_deployment_that_cannot_progress_says_so(cluster: Cluster) -> None:
    path = f"{APPS}/deployments/web"
    stuck = workload("Deployment", "web", pod={"nodeSelector": {"no": "where"}}, progressDeadlineSeconds=20)
    stuck["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    await cluster.create(f"{APPS}/deployments", stuck)
    late = ("False", "ProgressDeadlineExceeded")
    found = await cluster.until(path, lambda item: conditions(item).get("Progressing") == late)
    assert conditions(found)["Available"] == ("False", "MinimumReplicasUnavailable")


@scenario
async def recreate_has_no_two_versions_at_once(cluster: Cluster) -> None:
    path = f"{APPS}/deployments/web"
    recreate = workload("Deployment", "web", replicas=2, strategy={"type": "Recreate"})
    await cluster.create(f"{APPS}/deployments", recreate)
    await cluster.until(path, is_rolled_out(2))
    await cluster.patch(path, with_image("web:2"))
    done, seen = is_rolled_out(2), set()
    while not done(await cluster.get(path)) or "web:2" not in seen:
        found = set(images(await cluster.get(PODS)))
        assert len(found) < 2
        seen |= found
        await asyncio.sleep(0.01)


@scenario
async def a_replica_set_adopts_and_lets_go(cluster: Cluster) -> None:
    await cluster.create(PODS, pod("web"))
    await cluster.create(f"{APPS}/replicasets", workload("ReplicaSet", "web", replicas=2))
    ready = lambda item: item.get("status", {}).get("readyReplicas") == 2  # noqa: E731
    await cluster.until(f"{APPS}/replicasets/web", ready)
    assert len(await cluster.names(PODS)) == 2
    assert (await cluster.get(f"{PODS}/web"))["metadata"]["ownerReferences"][0]["name"] == "web"
    await cluster.patch(f"{PODS}/web", {"metadata": {"labels": {"app": "other"}}})
    await cluster.until(f"{PODS}/web", lambda item: not item["metadata"].get("ownerReferences"))
    await cluster.until(PODS, lambda found: len(found["items"]) == 3)


@scenario
async def a_replica_set_never_makes_a_pod_too_many(cluster: Cluster) -> None:
    path, seen = f"{APPS}/replicasets/web", set()
    await cluster.create(f"{APPS}/replicasets", workload("ReplicaSet", "web", replicas=30))
    while (await cluster.get(path)).get("status", {}).get("readyReplicas") != 30:
        seen |= set(await cluster.names(PODS))
        await asyncio.sleep(0.01)
    seen |= set(await cluster.names(PODS))
    assert len(seen) == 30
    await cluster.patch(path, {"spec": {"replicas": 7}})
    await cluster.until(PODS, lambda found: len(found["items"]) == 7)
    await asyncio.sleep(0.2)
    left = set(await cluster.names(PODS))
    assert len(left) == 7
    assert left < seen


@scenario
async def a_stateful_set_keeps_order(cluster: Cluster) -> None:
    path = f"{APPS}/statefulsets/db"
    await cluster.create(CLASSES, storage_class("fast"))
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "fast",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    await cluster.create(
        f"{APPS}/statefulsets",
        workload("StatefulSet", "db", replicas=3, serviceName="db", volumeClaimTemplates=[claim]),
    )
    ready = lambda count: lambda item: item.get("status", {}).get("availableReplicas", 0) == count  # noqa: E731
    await cluster.until(path, ready(3))
    pods = sorted(await cluster.items(PODS), key=lambda each: int(each["metadata"]["resourceVersion"]))
    assert [each["metadata"]["name"] for each in pods] == ["db-0", "db-1", "db-2"]
    assert await cluster.names(CLAIMS) == ["data-db-0", "data-db-1", "data-db-2"]
    await cluster.patch(path, with_image("web:2"))
    is_done = lambda item: (  # noqa: E731
        item["status"].get("currentRevision") == item["status"]["updateRevision"]
        and item["status"]["observedGeneration"] == item["metadata"]["generation"]
        and item["status"].get("updatedReplicas") == 3
    )
    await cluster.until(path, is_done)
    pods = sorted(await cluster.items(PODS), key=lambda each: int(each["metadata"]["resourceVersion"]))
    assert [each["metadata"]["name"] for each in pods] == ["db-2", "db-1", "db-0"], (
        "the last is updated first"
    )
    assert len(await cluster.names(f"{APPS}/controllerrevisions")) == 2
    await cluster.patch(path, {"spec": {"replicas": 1}})
    await cluster.until(PODS, lambda found: [each["metadata"]["name"] for each in found["items"]] == ["db-0"])
    assert len(await cluster.names(CLAIMS)) == 3, "what was stored stays"


@scenario
async def claims_go_with_a_stateful_sets_pods_where_it_says_so(cluster: Cluster) -> None:
    path = f"{APPS}/statefulsets/db"
    await cluster.create(CLASSES, storage_class("fast"))
    made = {"metadata": {"name": "data"}, "spec": claim("", "fast")["spec"]}
    policy = {"whenScaled": "Delete", "whenDeleted": "Delete"}
    kept = {"volumeClaimTemplates": [made], "persistentVolumeClaimRetentionPolicy": policy}
    await cluster.create(
        f"{APPS}/statefulsets", workload("StatefulSet", "db", replicas=2, serviceName="db", **kept)
    )
    await cluster.until(path, lambda item: item.get("status", {}).get("readyReplicas") == 2)
    await cluster.patch(path, {"spec": {"replicas": 1}})
    await cluster.until(
        CLAIMS, lambda found: [each["metadata"]["name"] for each in found["items"]] == ["data-db-0"]
    )
    await cluster.delete(path)
    await cluster.until(CLAIMS, lambda found: not found["items"])


@scenario
async def a_partition_keeps_the_first_pods_as_they_are(cluster: Cluster) -> None:
    path = f"{APPS}/statefulsets/db"
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    made = workload("StatefulSet", "db", replicas=2, serviceName="db", updateStrategy=strategy)
    await cluster.create(f"{APPS}/statefulsets", made)
    await cluster.until(path, lambda item: item.get("status", {}).get("readyReplicas") == 2)
    await cluster.patch(path, with_image("web:2"))
    await cluster.until(path, lambda item: item["status"].get("updatedReplicas") == 1)
    await cluster.delete(f"{PODS}/db-0")
    await cluster.until(path, lambda item: item["status"].get("readyReplicas") == 2)
    assert images(await cluster.get(PODS)) == ["web:1", "web:2"], (
        "a pod before the partition is made as it was"
    )


@scenario
async def a_daemon_set_follows_nodes(cluster: Cluster) -> None:
    path = f"{APPS}/daemonsets/agent"
    await cluster.create(f"{APPS}/daemonsets", workload("DaemonSet", "agent"))

    def ready(count: int) -> Callable[[Json], bool]:
        names = ("numberAvailable", "desiredNumberScheduled", "updatedNumberScheduled")
        return lambda item: (
            [item.get("status", {}).get(name) for name in names] == [count] * 3
            and item["status"]["observedGeneration"] == item["metadata"]["generation"]
        )

    await cluster.until(path, ready(3))
    await cluster.kubelets.add(NodeTemplate(name="late").nodes(cluster.clock.now()))
    await cluster.until(path, ready(4))
    await cluster.patch("/api/v1/nodes/late", {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}})
    await cluster.until(path, ready(3))
    places = sorted(each["spec"]["nodeName"] for each in await cluster.items(PODS))
    assert places == ["node-1", "node-2", "node-3"]
    await cluster.patch(path, with_image("web:2"))
    await cluster.until(path, ready(3))
    assert images(await cluster.until(PODS, lambda found: len(found["items"]) == 3)) == ["web:2"] * 3


@scenario
async def a_job_completes(cluster: Cluster) -> None:
    await cluster.create(f"{BATCH}/jobs", job("sum", completions=4, parallelism=2))
    done = await cluster.until(f"{BATCH}/jobs/sum", lambda item: "Complete" in conditions(item))
    status = done["status"]
    assert (status["succeeded"], status.get("failed", 0), status.get("active", 0)) == (4, 0, 0)
    assert status["completionTime"] >= status["startTime"]
    assert conditions(done)["SuccessCriteriaMet"] == ("True", "CompletionsReached")
    pods = await cluster.until(
        PODS, lambda found: not any("finalizers" in each["metadata"] for each in found["items"])
    )
    assert [each["status"]["phase"] for each in pods["items"]] == ["Succeeded"] * 4


@scenario
async def an_indexed_job_does_each_part_once(cluster: Cluster) -> None:
    await cluster.create(
        f"{BATCH}/jobs", job("parts", completions=3, parallelism=3, completionMode="Indexed")
    )
    done = await cluster.until(f"{BATCH}/jobs/parts", lambda item: "Complete" in conditions(item))
    assert done["status"]["completedIndexes"] == "0-2"
    key = "batch.kubernetes.io/job-completion-index"
    assert sorted(each["metadata"]["annotations"][key] for each in await cluster.items(PODS)) == [
        "0",
        "1",
        "2",
    ]


@scenario
async def a_job_that_fails_too_often_gives_up_and_goes_after_its_time(cluster: Cluster) -> None:
    fails = {"kubelet.stowplan/exit-code": "3"}
    await cluster.create(
        f"{BATCH}/jobs", job("bad", annotations=fails, backoffLimit=1, ttlSecondsAfterFinished=10)
    )
    failed = await cluster.until(f"{BATCH}/jobs/bad", lambda item: "Failed" in conditions(item))
    assert conditions(failed)["Failed"] == ("True", "BackoffLimitExceeded")
    assert failed["status"]["failed"] == 2
    await cluster.until(f"{BATCH}/jobs", lambda found: not found["items"])
    await cluster.until(PODS, lambda found: not found["items"])


@scenario
async def a_suspended_job_waits(cluster: Cluster) -> None:
    path = f"{BATCH}/jobs/later"
    await cluster.create(f"{BATCH}/jobs", job("later", suspend=True))
    await cluster.until(path, lambda item: conditions(item).get("Suspended") == ("True", "JobSuspended"))
    assert await cluster.names(PODS) == []
    await cluster.patch(path, {"spec": {"suspend": False}})
    await cluster.until(path, lambda item: "Complete" in conditions(item))


@scenario
async def what_is_owned_goes_with_its_owner(cluster: Cluster) -> None:
    path = f"{APPS}/deployments/web"
    await cluster.create(f"{APPS}/deployments", workload("Deployment", "web", replicas=2))
    await cluster.until(path, is_rolled_out(2))
    await cluster.delete(path, propagationPolicy="Background")
    await cluster.until(f"{APPS}/replicasets", lambda found: not found["items"])
    await cluster.until(PODS, lambda found: not found["items"])


@scenario
async def an_owner_in_the_foreground_goes_last(cluster: Cluster) -> None:
    path = f"{APPS}/deployments/web"
    await cluster.create(f"{APPS}/deployments", workload("Deployment", "web", replicas=2))
    await cluster.until(path, is_rolled_out(2))
    await cluster.delete(path, propagationPolicy="Foreground")
    await cluster.until(f"{APPS}/deployments", lambda found: not found["items"])
    assert await cluster.names(f"{APPS}/replicasets") == []
    assert await cluster.names(PODS) == []


@scenario
async def pods_that_own_one_another_go(cluster: Cluster) -> None:
    names = ("first", "second", "third")
    await cluster.create(PODS, *(pod(name) for name in names))
    for name in names:
        await cluster.until(f"{PODS}/{name}", lambda item: item["status"].get("phase") == "Running")
    for name, owner in zip(names, (*names[1:], names[0]), strict=True):
        uid = (await cluster.get(f"{PODS}/{owner}"))["metadata"]["uid"]
        reference = {"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": uid}
        reference |= {"controller": True, "blockOwnerDeletion": True}
        await cluster.patch(f"{PODS}/{name}", {"metadata": {"ownerReferences": [reference]}})
    await cluster.delete(f"{PODS}/first", propagationPolicy="Foreground")
    await cluster.until(PODS, lambda found: not found["items"])


@scenario
async def config_maps_that_own_one_another_go(cluster: Cluster) -> None:
    """Nobody else changes them while they wait for one another."""
    path, names = f"{CORE}/configmaps", ("first", "second", "third")
    await cluster.create(path, *({"metadata": {"name": name}} for name in names))
    for name, owner in zip(names, (*names[1:], names[0]), strict=True):
        uid = (await cluster.get(f"{path}/{owner}"))["metadata"]["uid"]
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid}
        reference |= {"controller": True, "blockOwnerDeletion": True}
        await cluster.patch(f"{path}/{name}", {"metadata": {"ownerReferences": [reference]}})
    await cluster.delete(f"{path}/first", propagationPolicy="Foreground")
    await cluster.until(lambda: cluster.names(path), lambda found: not set(names) & set(found))


@scenario
async def orphans_stay(cluster: Cluster) -> None:
    await cluster.create(f"{APPS}/replicasets", workload("ReplicaSet", "web", replicas=2))
    await cluster.until(
        f"{APPS}/replicasets/web", lambda item: item.get("status", {}).get("readyReplicas") == 2
    )
    await cluster.delete(f"{APPS}/replicasets/web", propagationPolicy="Orphan")
    await cluster.until(f"{APPS}/replicasets", lambda found: not found["items"])
    pods = await cluster.items(PODS)
    assert len(pods) == 2
    assert not any(each["metadata"].get("ownerReferences") for each in pods)


@scenario
async def one_of_two_owners_is_enough(cluster: Cluster) -> None:
    maps = f"{CORE}/configmaps"
    for name in ("one", "two"):
        await cluster.create(maps, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
    uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in await cluster.items(maps)}
    owners = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uids[name]} for name in ("one", "two")
    ]
    owned = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "owned", "ownerReferences": owners},
    }
    await cluster.create(maps, owned)
    await cluster.delete(f"{maps}/one")
    await cluster.until(f"{maps}/owned", lambda item: item["metadata"]["ownerReferences"] == owners[1:])
    await cluster.delete(f"{maps}/two")
    await cluster.until(
        maps, lambda found: "owned" not in [each["metadata"]["name"] for each in found["items"]]
    )


@scenario
async def a_namespace_is_emptied(cluster: Cluster) -> None:
    await cluster.create(
        "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
    )
    await cluster.create(
        "/apis/apps/v1/namespaces/shop/deployments", workload("Deployment", "web", replicas=2)
    )
    await cluster.until("/apis/apps/v1/namespaces/shop/deployments/web", is_rolled_out(2))
    await cluster.delete("/api/v1/namespaces/shop")
    gone = lambda found: "shop" not in [each["metadata"]["name"] for each in found["items"]]  # noqa: E731
    await cluster.until("/api/v1/namespaces", gone)


def storage_class(name: str, mode: str = "Immediate", provisioner: str = "disk.example.com") -> Json:
    kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    return {**kind, "provisioner": provisioner, "volumeBindingMode": mode}


def claim(name: str, storage_class_name: str, size: str = "1Gi") -> Json:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class_name,
        "resources": {"requests": {"storage": size}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


@scenario
async def a_claim_gets_a_volume_and_leaves_none_behind(cluster: Cluster) -> None:
    await cluster.create(CLASSES, storage_class("fast"))
    await cluster.create(CLAIMS, claim("data", "fast", "3Gi"))
    bound = await cluster.until(f"{CLAIMS}/data", is_phase("Bound"))
    volume = await cluster.until(
        f"/api/v1/persistentvolumes/{bound['spec']['volumeName']}", is_phase("Bound")
    )
    assert volume["spec"]["claimRef"]["uid"] == bound["metadata"]["uid"]
    assert bound["status"]["capacity"] == volume["spec"]["capacity"] == {"storage": "3Gi"}
    assert "nodeAffinity" not in volume["spec"]
    await cluster.delete(f"{CLAIMS}/data")
    await cluster.until("/api/v1/persistentvolumes", lambda found: not found["items"])


@scenario
async def a_claim_that_waits_gets_its_volume_where_its_pod_goes(cluster: Cluster) -> None:
    await cluster.create(CLASSES, storage_class("late", "WaitForFirstConsumer"))
    await cluster.create(CLAIMS, claim("data", "late"))
    await asyncio.sleep(0.3)
    assert (await cluster.get(f"{CLAIMS}/data"))["status"]["phase"] == "Pending"
    chosen = {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "node-2"}}}
    await cluster.patch(f"{CLAIMS}/data", chosen)
    bound = await cluster.until(f"{CLAIMS}/data", is_phase("Bound"))
    volume = await cluster.get(f"/api/v1/persistentvolumes/{bound['spec']['volumeName']}")
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["b"]}
    assert term["matchExpressions"] == [zone]


@scenario
async def the_smallest_volume_that_fits_is_taken_and_kept(cluster: Cluster) -> None:
    for name, size in (("small", "1Gi"), ("right", "5Gi"), ("large", "50Gi")):
        spec = {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "manual",
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": "/data"},
        }
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
        await cluster.create("/api/v1/persistentvolumes", volume)
    await cluster.until("/api/v1/persistentvolumes/right", is_phase("Available"))
    await cluster.create(CLAIMS, claim("data", "manual", "2Gi"))
    bound = await cluster.until(f"{CLAIMS}/data", is_phase("Bound"))
    assert bound["spec"]["volumeName"] == "right"
    await cluster.delete(f"{CLAIMS}/data")
    await cluster.until("/api/v1/persistentvolumes/right", is_phase("Released"))


@scenario
async def a_volume_that_the_scheduler_set_aside_is_bound(cluster: Cluster) -> None:
    await cluster.create(
        CLASSES, storage_class("local", "WaitForFirstConsumer", "kubernetes.io/no-provisioner")
    )
    await cluster.create(CLAIMS, claim("data", "local"))
    wanted = (await cluster.get(f"{CLAIMS}/data"))["metadata"]
    reference = {
        "kind": "PersistentVolumeClaim",
        "namespace": "default",
        "name": "data",
        "uid": wanted["uid"],
    }
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "hostPath": {"path": "/data"},
        "claimRef": {"apiVersion": "v1", **reference},
    }
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"}, "spec": spec}
    await cluster.create("/api/v1/persistentvolumes", volume)
    bound = await cluster.until(f"{CLAIMS}/data", is_phase("Bound"))
    assert bound["spec"]["volumeName"] == "disk"


@scenario
async def a_budget_counts_its_pods_and_a_drain_heeds_it(cluster: Cluster) -> None:
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    spec = {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": "50%"}
    await cluster.create(
        path,
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}, "spec": spec},
    )
    await cluster.create(f"{APPS}/deployments", workload("Deployment", "web", replicas=4))
    found = await cluster.until(f"{path}/web", lambda item: item.get("status", {}).get("currentHealthy") == 4)
    names = ("expectedPods", "desiredHealthy", "disruptionsAllowed")
    assert [found["status"][name] for name in names] == [4, 2, 2]
    assert conditions(found) == {"DisruptionAllowed": ("True", "SufficientPods")}
    node = (await cluster.items(PODS))[0]["spec"]["nodeName"]
    await asyncio.wait_for(drain(cluster.api, node), 20)
    assert node not in [each["spec"].get("nodeName") for each in await cluster.items(PODS)]
    await cluster.until(f"{path}/web", lambda item: item["status"]["currentHealthy"] == 4)
    await uncordon(cluster.api, node)
    await cluster.until(f"/api/v1/nodes/{node}", lambda item: not item["spec"].get("taints"))


@scenario
async def a_dead_nodes_pods_go_and_it_can_come_back(cluster: Cluster) -> None:
    await cordon(cluster.api, "node-2")
    await cordon(cluster.api, "node-3")
    limits = [
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 20,
        }
        for key in ("unreachable", "not-ready")
    ]
    await cluster.until("/api/v1/nodes/node-3", lambda item: item["spec"].get("taints"))
    await cluster.until("/api/v1/nodes/node-2", lambda item: item["spec"].get("taints"))
    await cluster.create(
        f"{APPS}/deployments", workload("Deployment", "web", replicas=2, pod={"tolerations": limits})
    )
    await cluster.until(f"{APPS}/deployments/web", is_rolled_out(2))
    cluster.kubelets.kill("node-1")
    await uncordon(cluster.api, "node-2")
    dead = await cluster.until(
        "/api/v1/nodes/node-1", lambda item: len(item["spec"].get("taints", ())) == 2, 30
    )
    assert conditions(dead)["Ready"] == ("Unknown", "NodeStatusUnknown")

    def has_moved(found: Json) -> bool:
        places = [(each["spec"].get("nodeName"), each["status"]["phase"]) for each in found["items"]]
        is_going = [each for each in found["items"] if "deletionTimestamp" in each["metadata"]]
        return len(is_going) == 2 and places.count(("node-2", "Running")) == 2

    await cluster.until(PODS, has_moved, 30)
    on_dead = [each for each in await cluster.items(PODS) if each["spec"]["nodeName"] == "node-1"]
    assert len(on_dead) == 2
    for each in on_dead:
        assert conditions(each)["DisruptionTarget"] == ("True", "DeletionByTaintManager")
        assert conditions(each)["Ready"][0] == "False"
    cluster.kubelets.revive("node-1")
    await cluster.until("/api/v1/nodes/node-1", lambda item: not item["spec"].get("taints"))
    await cluster.until(
        PODS, lambda found: [each["spec"]["nodeName"] for each in found["items"]] == ["node-2"] * 2
    )


@scenario
async def pods_of_a_node_that_is_deleted_go_too(cluster: Cluster) -> None:
    await cluster.create(PODS, pod("lone", nodeName="node-1"))
    await cluster.until(f"{PODS}/lone", is_phase("Running"))
    await cluster.delete("/api/v1/nodes/node-1")
    await cluster.until(PODS, lambda found: not found["items"], 30)


@scenario
async def a_pod_gets_claims_from_templates(cluster: Cluster) -> None:
    devices = "/apis/resource.k8s.io/v1/namespaces/default"
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}
    template_of = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpu"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    await cluster.create(PODS, pod("p", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpu"}]))
    await cluster.create(f"{devices}/resourceclaimtemplates", template_of)
    found = await cluster.until(f"{PODS}/p", lambda item: item["status"].get("resourceClaimStatuses"))
    name = found["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    made = await cluster.get(f"{devices}/resourceclaims/{name}")
    assert made["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "gpu.example.com"
    await cluster.delete(f"{PODS}/p")
    await cluster.until(f"{devices}/resourceclaims", lambda items: not items["items"])


@scenario
async def an_ephemeral_volume_has_a_claim_of_its_pod(cluster: Cluster) -> None:
    await cluster.create(CLASSES, storage_class("fast"))
    volume = {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {"spec": claim("", "fast")["spec"]}}}
    await cluster.create(PODS, pod("p", volumes=[volume]))
    await cluster.until(f"{CLAIMS}/p-tmp", is_phase("Bound"))
    await cluster.delete(f"{PODS}/p")
    await cluster.until(CLAIMS, lambda found: not found["items"])


@scenario
async def a_node_without_room_refuses(cluster: Cluster) -> None:
    await cluster.create(PODS, pod("first", requests={"cpu": "3"}, nodeName="node-1"))
    await cluster.until(f"{PODS}/first", is_phase("Running"))
    await cluster.create(PODS, pod("second", requests={"cpu": "1500m"}, nodeName="node-1"))
    refused = (await cluster.until(f"{PODS}/second", is_phase("Failed")))["status"]
    text = "Node didn't have enough resource: cpu, requested: 1500, used: 3000, capacity: 4000"
    assert (refused["reason"], refused["message"]) == ("OutOfcpu", f"Pod was rejected: {text}")
    unknown = {"example.com/gpu": "1"}
    strange = pod("third", nodeName="node-1")
    strange["spec"]["containers"][0]["resources"] = {"requests": unknown, "limits": unknown}
    await cluster.create(PODS, strange)
    await cluster.until(f"{PODS}/third", is_phase("Running"))


@scenario
async def images_come_to_nodes_with_pods(cluster: Cluster) -> None:
    await cluster.create(PODS, pod("p", nodeName="node-1"))
    node = await cluster.until("/api/v1/nodes/node-1", lambda item: item["status"].get("images"))
    assert [each["names"] for each in node["status"]["images"]] == [["docker.io/library/web:1"]]
    assert node["status"]["images"][0]["sizeBytes"] > 0


@scenario
async def what_a_dead_node_was_at_goes_on_when_it_is_back(cluster: Cluster) -> None:
    stays = [{"operator": "Exists"}]
    await cluster.create(PODS, pod("server", nodeName="node-1", tolerations=stays))
    lasting = pod("worker", nodeName="node-1", tolerations=stays, restartPolicy="Never")
    lasting["metadata"]["annotations"] = {"kubelet.stowplan/run-seconds": "40"}
    await cluster.create(PODS, lasting)
    await cluster.until(f"{PODS}/worker", is_phase("Running"))
    await cluster.until(f"{PODS}/server", is_phase("Running"))
    cluster.kubelets.kill("node-1")
    lost = lambda item: conditions(item)["Ready"] == ("False", "NodeNotReady")  # noqa: E731
    await cluster.until(f"{PODS}/server", lost, 30)
    assert is_phase("Running")(await cluster.get(f"{PODS}/worker")), "nobody says that it has ended"
    cluster.kubelets.revive("node-1")
    await cluster.until(f"{PODS}/server", lambda item: conditions(item)["Ready"][0] == "True")
    await cluster.until(f"{PODS}/worker", is_phase("Succeeded"))


@scenario
async def containers_that_fail_are_started_again_where_the_pod_says_so(cluster: Cluster) -> None:
    fails = {"kubelet.stowplan/exit-code": "1", "kubelet.stowplan/run-seconds": "2"}
    for name, policy in (("keeps-on", "OnFailure"), ("gives-up", "Never")):
        made = pod(name, nodeName="node-1", restartPolicy=policy)
        made["metadata"]["annotations"] = fails
        await cluster.create(PODS, made)
    failed = await cluster.until(f"{PODS}/gives-up", is_phase("Failed"))
    assert failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 1
    restarts = lambda item: item["status"]["containerStatuses"][0]["restartCount"]  # noqa: E731
    running = await cluster.until(
        f"{PODS}/keeps-on", lambda item: is_phase("Running")(item) and restarts(item) > 1
    )
    assert running["status"]["podIP"], "its address stays"


RCS, SERVICES, ENDPOINTS = (
    f"{CORE}/{plural}" for plural in ("replicationcontrollers", "services", "endpoints")
)
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


def reasons_of(events: Json, name: str) -> dict[str, str]:
    """The messages of an object's events by their reasons."""
    return {
        each["reason"]: each["message"] for each in events["items"] if each["involvedObject"]["name"] == name
    }


@scenario
async def a_replication_controller_keeps_its_pods(cluster: Cluster) -> None:
    body = {"metadata": {"name": "rc"}, "spec": {"replicas": 2, "template": template("rc")}}
    await cluster.create(RCS, {"apiVersion": "v1", "kind": "ReplicationController", **body})
    await cluster.until(f"{RCS}/rc", lambda item: item["status"].get("readyReplicas") == 2)
    name = (await cluster.names(PODS))[0]
    reasons = await cluster.until(
        f"{CORE}/events", lambda found: "SuccessfulCreate" in reasons_of(found, "rc")
    )
    assert reasons_of(reasons, "rc")["SuccessfulCreate"].startswith("Created pod: rc-")
    await cluster.patch(f"{PODS}/{name}", {"metadata": {"labels": {"app": "other"}}})
    await cluster.until(f"{PODS}/{name}", lambda item: not item["metadata"].get("ownerReferences"))
    await cluster.until(PODS, lambda found: len(found["items"]) == 3)
    await cluster.patch(f"{RCS}/rc", {"spec": {"replicas": 0}})
    await cluster.until(PODS, lambda found: [each["metadata"]["name"] for each in found["items"]] == [name])


@scenario
async def a_service_knows_the_addresses_of_its_pods(cluster: Cluster) -> None:
    spec = {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "main"}]}
    await cluster.create(
        SERVICES, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}
    )
    await cluster.until(SLICES, lambda found: any(not each["endpoints"] for each in found["items"]))
    made = pod("web")
    made["spec"]["containers"][0]["ports"] = [{"name": "main", "containerPort": 8080}]
    await cluster.create(PODS, made)
    address = (await cluster.until(f"{PODS}/web", lambda item: item["status"].get("podIP")))["status"][
        "podIP"
    ]
    found = await cluster.until(f"{ENDPOINTS}/web", lambda item: item.get("subsets"))
    subset = found["subsets"][0]
    assert [each["ip"] for each in subset["addresses"]] == [address]
    assert subset["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
    slices = await cluster.until(f"{SLICES}?labelSelector=kubernetes.io/service-name=web", is_sliced(address))
    assert slices["items"][0]["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
    assert slices["items"][0]["endpoints"][0]["conditions"]["ready"]
    await cluster.delete(f"{SERVICES}/web")
    await cluster.until(
        f"{SLICES}?labelSelector=kubernetes.io/service-name=web", lambda found: not found["items"]
    )


def is_sliced(address: str) -> Callable[[Json], bool]:
    return lambda found: (
        [
            each["addresses"]
            for item in found["items"]
            for each in item["endpoints"] or ()
            if each["conditions"]["ready"]
        ]
        == [[address]]
    )


@scenario
async def endpoints_of_a_service_without_selector_are_mirrored(cluster: Cluster) -> None:
    await cluster.create(
        SERVICES,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "db"},
            "spec": {"ports": [{"port": 5432}]},
        },
    )
    subset = {"addresses": [{"ip": "10.1.2.3"}], "ports": [{"port": 5432}]}
    await cluster.create(
        ENDPOINTS, {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "db"}, "subsets": [subset]}
    )
    path = f"{SLICES}?labelSelector=kubernetes.io/service-name=db"
    await cluster.until(path, is_sliced("10.1.2.3"))
    await cluster.delete(f"{ENDPOINTS}/db")
    await cluster.until(path, lambda found: not found["items"])


@scenario
async def a_namespace_has_an_account_and_certificates(cluster: Cluster) -> None:
    await cluster.create(
        "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    )
    await cluster.until("/api/v1/namespaces/team/serviceaccounts/default", bool)
    await cluster.until(
        "/api/v1/namespaces/team/configmaps/kube-root-ca.crt", lambda item: "ca.crt" in item["data"]
    )
    await cluster.delete("/api/v1/namespaces/team/serviceaccounts/default")
    await cluster.until("/api/v1/namespaces/team/serviceaccounts/default", bool)


@scenario
async def a_cron_job_starts_jobs(cluster: Cluster) -> None:
    spec = {
        "schedule": "*/1 * * * *",
        "jobTemplate": {"spec": job("tick")["spec"]},
        "successfulJobsHistoryLimit": 1,
    }
    await cluster.create(
        f"{BATCH}/cronjobs",
        {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "tick"}, "spec": spec},
    )
    first = await cluster.until(f"{BATCH}/jobs", lambda found: found["items"])
    meta = first["items"][0]["metadata"]
    assert meta["ownerReferences"][0]["kind"] == "CronJob"
    assert "batch.kubernetes.io/cronjob-scheduled-timestamp" in meta["annotations"]
    item = await cluster.until(
        f"{BATCH}/cronjobs/tick", lambda item: item["status"].get("lastSuccessfulTime")
    )
    assert item["status"]["lastScheduleTime"] <= item["status"]["lastSuccessfulTime"]
    await cluster.patch(f"{BATCH}/cronjobs/tick", {"spec": {"suspend": True}})
    await cluster.until(f"{CORE}/events", lambda found: "SawCompletedJob" in reasons_of(found, "tick"))


@scenario
async def a_job_fails_at_once_where_its_failure_policy_says_so(cluster: Cluster) -> None:
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
        {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [42]}},
    ]
    asked = job("strict", annotations={"kubelet.stowplan/exit-code": "42"}, podFailurePolicy={"rules": rules})
    await cluster.create(f"{BATCH}/jobs", asked)
    done = await cluster.until(f"{BATCH}/jobs/strict", lambda item: "Failed" in conditions(item))
    failed = next(each for each in done["status"]["conditions"] if each["type"] == "Failed")
    assert failed["reason"] == "PodFailurePolicy"
    assert failed["message"].endswith("failed with exit code 42 matching FailJob rule at index 1")
    assert done["status"]["failed"] == 1


@scenario
async def a_job_counts_failures_by_index(cluster: Cluster) -> None:
    asked = job(
        "parts",
        annotations={"kubelet.stowplan/exit-code": "1"},
        completions=2,
        parallelism=2,
        completionMode="Indexed",
        backoffLimitPerIndex=0,
    )
    await cluster.create(f"{BATCH}/jobs", asked)
    done = await cluster.until(f"{BATCH}/jobs/parts", lambda item: "Failed" in conditions(item))
    assert done["status"]["failedIndexes"] == "0,1"
    assert conditions(done)["Failed"] == ("True", "FailedIndexes")


@scenario
async def a_job_succeeds_early_where_its_success_policy_says_so(cluster: Cluster) -> None:
    asked = job(
        "early",
        completions=3,
        parallelism=1,
        completionMode="Indexed",
        successPolicy={"rules": [{"succeededIndexes": "0", "succeededCount": 1}]},
    )
    await cluster.create(f"{BATCH}/jobs", asked)
    done = await cluster.until(f"{BATCH}/jobs/early", lambda item: "Complete" in conditions(item))
    assert conditions(done)["SuccessCriteriaMet"] == ("True", "SuccessPolicy")
    assert done["status"]["succeeded"] < 3


@scenario
async def a_daemon_set_surges(cluster: Cluster) -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    await cluster.create(f"{APPS}/daemonsets", workload("DaemonSet", "agent", updateStrategy=rolling))
    await cluster.until(f"{APPS}/daemonsets/agent", lambda item: item["status"].get("numberAvailable") == 3)
    fewest = 3

    async def is_updated() -> Json:
        nonlocal fewest
        ready = [each for each in await cluster.items(PODS) if "deletionTimestamp" not in each["metadata"]]
        fewest = min(fewest, len(ready))
        return await cluster.get(f"{APPS}/daemonsets/agent")

    await cluster.patch(f"{APPS}/daemonsets/agent", with_image("web:2"))
    await cluster.until(
        is_updated,
        lambda item: (
            item["status"].get("updatedNumberScheduled") == 3
            and item["status"]["observedGeneration"] == item["metadata"]["generation"]
        ),
    )
    await cluster.until(
        PODS,
        lambda found: [each["spec"]["containers"][0]["image"] for each in found["items"]] == ["web:2"] * 3,
    )
    assert fewest == 3


@scenario
async def a_deleted_pod_terminates_as_long_as_its_containers_take(cluster: Cluster) -> None:
    asked = pod("slow", terminationGracePeriodSeconds=600)
    asked["spec"]["containers"][0]["lifecycle"] = {"preStop": {"sleep": {"seconds": 60}}}
    await cluster.create(PODS, asked)
    await cluster.until(f"{PODS}/slow", lambda item: item["status"]["phase"] == "Running")
    began = cluster.clock.now()
    await cluster.delete(f"{PODS}/slow")
    found = await cluster.get(f"{PODS}/slow")
    assert found["metadata"]["deletionTimestamp"]
    assert found["status"]["phase"] == "Running"
    await cluster.until(PODS, lambda found: not found["items"], 30)
    assert cluster.clock.now() - began >= 60
    events = await cluster.until(f"{CORE}/events", lambda found: "Killing" in reasons_of(found, "slow"))
    reasons = reasons_of(events, "slow")
    assert reasons["Started"] == "Container started"
    assert reasons["Killing"] == "Stopping container main"


@scenario
async def resources_added_to_a_nodes_capacity_can_be_used(cluster: Cluster) -> None:
    path = "/api/v1/nodes/node-1"
    await cluster.patch(f"{path}/status", {"status": {"capacity": {"example.com/fake": "5"}}})
    await cluster.until(path, lambda item: item["status"]["allocatable"].get("example.com/fake") == "5")


@scenario
async def containers_fail_and_become_ready_as_annotations_say(cluster: Cluster) -> None:
    broken, shy = pod("broken"), pod("shy")
    broken["metadata"]["annotations"] = {"kubelet.stowplan/start-error": "ImagePullBackOff: no such image"}
    shy["metadata"]["annotations"] = {"kubelet.stowplan/ready": "false"}
    await cluster.create(PODS, broken, shy)
    found = await cluster.until(f"{PODS}/broken", lambda item: item["status"].get("containerStatuses"))
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    assert found["status"]["phase"] == "Pending"
    assert found["status"]["containerStatuses"][0]["state"] == {"waiting": waiting}
    await cluster.patch(
        f"{PODS}/broken", {"metadata": {"annotations": {"kubelet.stowplan/start-error": None}}}
    )
    await cluster.until(f"{PODS}/broken", lambda item: item["status"]["phase"] == "Running")
    await cluster.until(f"{PODS}/shy", lambda item: conditions(item).get("Ready", ("",))[0] == "False")
    await cluster.patch(f"{PODS}/shy", {"metadata": {"annotations": {"kubelet.stowplan/ready": "true"}}})
    await cluster.until(f"{PODS}/shy", lambda item: conditions(item)["Ready"][0] == "True")


@scenario
async def a_completed_pod_is_not_ready(cluster: Cluster) -> None:
    asked = pod("done", restartPolicy="Never")
    asked["spec"]["containers"][0]["command"] = ["sh", "-c", "echo hello; exit 3"]
    await cluster.create(PODS, asked)
    found = await cluster.until(f"{PODS}/done", lambda item: item["status"]["phase"] == "Failed")
    status = found["status"]["containerStatuses"][0]
    assert status["state"]["terminated"]["exitCode"] == 3
    assert not status["ready"]


@scenario
async def a_namespace_says_what_keeps_it(cluster: Cluster) -> None:
    await cluster.create(
        "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kept"}}
    )
    held = {"metadata": {"name": "held", "finalizers": ["example.com/hold"]}}
    path = "/api/v1/namespaces/kept/configmaps"
    await cluster.create(path, {"apiVersion": "v1", "kind": "ConfigMap", **held})
    await cluster.delete("/api/v1/namespaces/kept")
    found = await cluster.until(
        "/api/v1/namespaces/kept",
        lambda item: conditions(item).get("NamespaceFinalizersRemaining", ("",))[0] == "True",
    )
    texts = {each["type"]: each["message"] for each in found["status"]["conditions"]}
    assert texts["NamespaceFinalizersRemaining"] == (
        "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
    )
    assert "configmaps. has 1 resource instances" in texts["NamespaceContentRemaining"]
    await cluster.patch(f"{path}/held", {"metadata": {"finalizers": None}})
    await cluster.until("/api/v1/namespaces", lambda found: "kept" not in str(found))


@scenario
async def a_revision_keeps_its_template_in_order(cluster: Cluster) -> None:
    await cluster.create(f"{APPS}/daemonsets", workload("DaemonSet", "agent"))
    found = await cluster.until(f"{APPS}/controllerrevisions", lambda found: found["items"])
    template = found["items"][0]["data"]["spec"]["template"]
    assert list(template) == sorted(template)
    assert list(template["spec"]) == sorted(template["spec"])


@scenario
async def a_quota_counts_what_comes_and_goes(cluster: Cluster) -> None:
    path = f"{CORE}/resourcequotas/q"

    def uses(**amounts: str) -> Callable[[Json], bool]:
        wanted = {name.replace("_", "."): amount for name, amount in amounts.items()}
        return lambda item: item.get("status", {}).get("used") == wanted

    await cluster.create(PODS, pod("before", requests={"cpu": "500m"}))
    hard = {"pods": "4", "requests.cpu": "2", "count/jobs.batch": "1", "secrets": "9"}
    quota = {"metadata": {"name": "q"}, "spec": {"hard": hard}}
    await cluster.create(f"{CORE}/resourcequotas", quota)
    counted = {"secrets": "0", "count/jobs.batch": "0"}
    await cluster.until(path, uses(pods="1", requests_cpu="500m", **counted))
    await cluster.create(PODS, pod("more", requests={"cpu": "1"}))
    now = (await cluster.get(path))["status"]["used"]
    assert (now["pods"], now["requests.cpu"]) == ("2", "1500m"), "charged before the answer"
    asked = workload("ReplicaSet", "web", replicas=3)
    asked["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "250m"}}
    await cluster.create(f"{APPS}/replicasets", asked)
    await cluster.until(path, uses(pods="4", requests_cpu="2", **counted))
    await cluster.delete(f"{PODS}/more")
    await cluster.until(f"{APPS}/replicasets/web", lambda found: found["status"].get("readyReplicas") == 3)
    await cluster.until(path, uses(pods="4", requests_cpu="1250m", **counted))
    quick = job("quick")
    quick["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1m"}}
    await cluster.create(f"{BATCH}/jobs", quick)
    await cluster.until(path, uses(pods="4", requests_cpu="1250m", **{**counted, "count/jobs.batch": "1"}))
    await cluster.patch(path, {"spec": {"hard": {"secrets": None}}})
    await cluster.until(path, lambda found: "secrets" not in found["status"]["used"])
    await cluster.delete(f"{BATCH}/jobs/quick", propagationPolicy="Background")
    await cluster.until(path, uses(pods="4", requests_cpu="1250m", **{"count/jobs.batch": "0"}))


@scenario
async def a_claim_gets_the_default_class_that_comes_later(cluster: Cluster) -> None:
    asked = claim("data", "")
    del asked["spec"]["storageClassName"]
    await cluster.create(CLAIMS, asked)
    await cluster.until(f"{CLAIMS}/data", is_phase("Pending"))
    made = storage_class("late")
    made["metadata"]["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
    await cluster.create(CLASSES, made)
    bound = await cluster.until(f"{CLAIMS}/data", is_phase("Bound"))
    assert bound["spec"]["storageClassName"] == "late"


@scenario
async def a_deployment_scales_all_its_versions_in_proportion(cluster: Cluster) -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 3, "maxUnavailable": 2}}
    await cluster.create(f"{APPS}/deployments", workload("Deployment", "web", replicas=10, strategy=rolling))
    path = f"{APPS}/deployments/web"
    await cluster.until(path, is_rolled_out(10))
    stuck = {"metadata": {"annotations": {"kubelet.stowplan/ready": "false"}}}
    await cluster.patch(path, {"spec": {"template": stuck}})

    async def sizes() -> list[int]:
        return sorted(each["spec"]["replicas"] for each in await cluster.items(f"{APPS}/replicasets"))

    await cluster.until(sizes, lambda found: found == [5, 8])
    await cluster.patch(path, {"spec": {"replicas": 30}})
    await cluster.until(sizes, lambda found: found == [13, 20])


@scenario
async def pods_of_a_deleted_job_go(cluster: Cluster) -> None:
    await cluster.create(f"{BATCH}/jobs", job("work", parallelism=2, completions=2, pod=ENDLESS))
    await cluster.until(
        PODS, lambda found: [is_phase("Running")(each) for each in found["items"]] == [True] * 2
    )
    await cluster.delete(f"{BATCH}/jobs/work", propagationPolicy="Background")
    await cluster.until(PODS, lambda found: not found["items"])


@scenario
async def a_job_counts_pods_that_ended_while_no_others_can_be_made(cluster: Cluster) -> None:
    quota = {"metadata": {"name": "one"}, "spec": {"hard": {"count/pods": "1"}}}
    await cluster.create(f"{CORE}/resourcequotas", quota)
    await cluster.until(f"{CORE}/resourcequotas/one", lambda item: item.get("status", {}).get("used"))
    await cluster.create(f"{BATCH}/jobs", job("work", completions=2))
    await cluster.until(f"{BATCH}/jobs/work", lambda item: item.get("status", {}).get("succeeded") == 1)
    await cluster.until(PODS, lambda found: "finalizers" not in found["items"][0]["metadata"])


@scenario
async def endpoints_go_with_their_service(cluster: Cluster) -> None:
    service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "none"}, "ports": [{"port": 80}]}}
    await cluster.create(f"{CORE}/services", service)
    await cluster.create(f"{CORE}/endpoints", {"metadata": {"name": "alone"}})
    await cluster.until(f"{CORE}/endpoints/web", lambda item: True)
    await cluster.delete(f"{CORE}/services/web")
    await cluster.until(lambda: cluster.names(f"{CORE}/endpoints"), lambda names: "web" not in names)
    assert "alone" in await cluster.names(f"{CORE}/endpoints")
