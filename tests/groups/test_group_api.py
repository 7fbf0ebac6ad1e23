"""The API side of pod groups in the embedded cluster: gates, protection, and groups of Jobs."""

from __future__ import annotations

import pytest

from stowplan.client.errors import ApiError, NotFound
from stowplan.embedded import embedded_cluster
from stowplan.errors import InputError

GATES = dict.fromkeys(("GenericWorkload", "GangScheduling", "WorkloadWithJob"), True)
V1ALPHA2 = "scheduling.k8s.io/v1alpha2"


@pytest.fixture
async def cluster():
    async with embedded_cluster(nodes=2, feature_gates=GATES) as made:
        yield made


def group(name, **policy):
    spec = {"schedulingPolicy": policy or {"gang": {"minCount": 2}}}
    return {"apiVersion": V1ALPHA2, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def member(name, group):
    spec = {"containers": [{"name": "c", "image": "x"}], "schedulingGroup": {"podGroupName": group}}
    # Nobody schedules it: this is about the API alone.
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {**spec, "schedulerName": "none"},
    }


def job(name="train", **spec):
    template = {
        "spec": {
            "restartPolicy": "Never",
            "schedulerName": "none",
            "containers": [{"name": "c", "image": "x"}],
        }
    }
    whole = {
        "parallelism": 2,
        "completions": 2,
        "completionMode": "Indexed",
        "template": template,
        **spec,
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": whole}


async def pods_of(cluster, name, count=2):
    async def found():
        pods = [
            pod for pod in await cluster.list("Pod") if pod["metadata"]["ownerReferences"][0]["name"] == name
        ]
        return pods if len(pods) == count else None

    return await cluster.until(found, f"{count} pods of {name}")


@pytest.mark.parametrize(
    ("gates", "text"),
    [
        (
            {"GangScheduling": True},
            "GangScheduling is enabled, but depends on features that are disabled: [GenericWorkload]",
        ),
        (
            {"GenericWorkload": True, "WorkloadAwarePreemption": True},
            "WorkloadAwarePreemption is enabled, but depends on features that are disabled: [GangScheduling]",
        ),
        ({"GenericWorkloads": True}, 'unknown feature gate "GenericWorkloads"'),
    ],
)
async def test_gates_that_cannot_be_on_are_an_error(gates, text):
    with pytest.raises(InputError, match=text.replace("[", r"\[").replace("]", r"\]")):
        async with embedded_cluster(nodes=1, feature_gates=gates):
            pass


async def test_without_gates_there_are_no_groups():
    async with embedded_cluster(nodes=1) as cluster:
        (pod,) = await cluster.create(member("a", "g"))
        assert "schedulingGroup" not in pod["spec"]
        with pytest.raises(NotFound):
            await cluster.api.get_json(f"/apis/{V1ALPHA2}/podgroups")


async def test_29_a_deleted_group_stays_until_its_members_are_gone(cluster):
    await cluster.create(group("g"), member("a", "g"), member("b", "g"))
    await cluster.delete("PodGroup", "g")
    assert (await cluster.get("PodGroup", "g"))["metadata"]["deletionTimestamp"]
    await cluster.delete("Pod", "a")
    finished = {"status": {"phase": "Succeeded"}}
    path = "/api/v1/namespaces/default/pods/b"
    assert (await cluster.get("PodGroup", "g"))["metadata"]["finalizers"]
    await cluster.api.request(
        "PATCH", f"{path}/status", finished, content_type="application/merge-patch+json"
    )

    async def gone():
        try:
            await cluster.get("PodGroup", "g")
        except NotFound:
            return True

    await cluster.until(gone, "the group is gone")


async def test_a_deleted_group_without_members_goes_at_once(cluster):
    await cluster.create(group("g"))
    await cluster.delete("PodGroup", "g")

    async def gone():
        return not await cluster.list("PodGroup")

    await cluster.until(gone, "the group is gone")


async def test_an_indexed_job_gets_a_workload_and_a_group(cluster):
    (made,) = await cluster.create(job())
    pods = await pods_of(cluster, "train")
    (workload,), (found,) = await cluster.list("Workload"), await cluster.list("PodGroup")
    uid, name = made["metadata"]["uid"], workload["metadata"]["name"]
    controller = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "train",
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert name.startswith("train-")
    assert len(name) == len("train-") + 10
    assert workload["metadata"]["ownerReferences"] == [controller]
    assert workload["spec"] == {
        "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "train"},
        "podGroupTemplates": [
            {
                "name": "train-pgt-0",
                "schedulingPolicy": {"gang": {"minCount": 2}},
                "schedulingConstraints": None,
            }
        ],
    }
    assert found["metadata"]["name"].startswith(f"{name}-train-pgt-0-")
    assert found["metadata"]["ownerReferences"] == [
        controller,
        {
            "apiVersion": V1ALPHA2,
            "kind": "Workload",
            "name": name,
            "uid": workload["metadata"]["uid"],
        },
    ]
    reference = {"workloadName": name, "podGroupTemplateName": "train-pgt-0"}
    assert found["spec"]["podGroupTemplateRef"] == {"workload": reference}
    assert found["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods} == {found["metadata"]["name"]}
    events = [each["message"] for each in await cluster.list("Event") if each["reason"] == "WorkloadCreated"]
    assert events == [f"Created Workload {name} for Job train"]
    with pytest.raises(ApiError, match="cannot change parallelism for a Job referencing gang-scheduled"):
        await cluster.api.request(
            "PATCH",
            "/apis/batch/v1/namespaces/default/jobs/train",
            {"spec": {"parallelism": 3, "completions": 3}},
            content_type="application/merge-patch+json",
        )


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"completionMode": "NonIndexed"}, id="not indexed"),
        pytest.param({"completions": 4}, id="more completions than pods at once"),
    ],
)
async def test_other_jobs_get_none(cluster, spec):
    await cluster.create(job("other", **spec))
    for pod in await pods_of(cluster, "other"):
        assert "schedulingGroup" not in pod["spec"]
    assert not await cluster.list("Workload")


async def test_a_job_with_a_long_name_runs_too(cluster):
    """kube-controller-manager 1.36.4 makes a template name that is too long, and no pod."""
    name = "a" * 60
    await cluster.create(job(name))
    await pods_of(cluster, name)
    (workload,) = await cluster.list("Workload")
    assert len(workload["spec"]["podGroupTemplates"][0]["name"]) <= 63


async def test_a_workload_that_names_the_job_but_is_not_its_own_is_left_alone(cluster):
    reference = {"apiGroup": "batch", "kind": "Job", "name": "train"}
    templates = [{"name": "t", "schedulingPolicy": {"basic": {}}}]
    await cluster.create(
        {
            "apiVersion": V1ALPHA2,
            "kind": "Workload",
            "metadata": {"name": "mine"},
            "spec": {"controllerRef": reference, "podGroupTemplates": templates},
        },
        job(),
    )
    for pod in await pods_of(cluster, "train"):
        assert "schedulingGroup" not in pod["spec"]
    assert not await cluster.list("PodGroup")


async def test_groups_go_with_their_job(cluster):
    await cluster.create(job())
    await pods_of(cluster, "train")
    path = "/apis/batch/v1/namespaces/default/jobs/train"
    await cluster.api.request("DELETE", path, {"propagationPolicy": "Foreground"})

    async def gone():
        return not await cluster.list("PodGroup") and not await cluster.list("Workload")

    await cluster.until(gone, "group and workload are gone")
