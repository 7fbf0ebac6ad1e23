"""`stowplan whatif` with pod groups: placed as one, or not at all."""

from __future__ import annotations

import json
from functools import partial

import pytest
import yaml

ROOM = """---
apiVersion: v1
kind: Node
metadata: {{name: {}}}
status: {{capacity: {{cpu: {}, memory: 8Gi, pods: 110}}}}
"""
LABELLED = """---
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: g}
spec: {minMember: 3}
"""
POD = """---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{{labels}}}}}
spec: {{containers: [{{name: c, resources: {{requests: {{cpu: {cpu}}}}}}}]{more}}}
"""
LABEL = "scheduling.x-k8s.io/pod-group"


@pytest.fixture
def whatif(run_stowplan):
    return partial(run_stowplan, "whatif")


def gang(name, least):
    return (
        f"---\napiVersion: scheduling.k8s.io/v1alpha2\nkind: PodGroup\nmetadata: {{name: {name}}}\n"
        f"spec: {{schedulingPolicy: {{gang: {{minCount: {least}}}}}}}\n"
    )


def members(group, count, cpu=1, more=""):
    named = f", schedulingGroup: {{podGroupName: {group}}}{more}"
    return "".join(POD.format(name=f"{group}-{at}", labels="", cpu=cpu, more=named) for at in range(count))


def job(name, parallelism, cpu=1, **meta):
    template = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}
    spec = {"parallelism": parallelism, "completions": parallelism, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, **meta}, "spec": spec}


def landed(run):
    assert (run.status, run.err) == (0, "")
    found = json.loads(run.out)
    return {each["pod"]: each["node"] or each["outcome"] for each in found["pods"]}, found.get("groups", [])


def test_a_group_that_does_not_fit_whole_is_not_placed_in_part(whatif, file):
    cluster = file(ROOM.format("n1", 4))
    run = whatif("-f", cluster, "--add", file(gang("g", 5) + members("g", 5), "add.yaml"), "-o", "json")
    pods, groups = landed(run)
    assert set(pods.values()) == {"pending"}
    assert [(each["group"], each["starts"]) for each in groups] == [("default/g", False)]
    assert groups[0]["text"].startswith("4 of 5 pods fit, at least 5 were needed.")


def test_a_group_that_fits_is_placed(whatif, file):
    run = whatif("-f", file(ROOM.format("n1", 4) + gang("g", 3) + members("g", 4)), "-o", "json")
    pods, groups = landed(run)
    assert pods == {f"default/g-{at}": "n1" for at in range(4)}
    assert [each["starts"] for each in groups] == [True]


def test_text_says_which_groups_start(whatif, file):
    objects = ROOM.format("n1", 4) + gang("a", 3) + members("a", 3) + gang("b", 3) + members("b", 3)
    text = whatif("-f", file(objects)).out
    assert "Pod group default/b would wait: 1 of 3 pods fit, at least 3 were needed." in text
    assert "Pod group default/a would start: 3 of 3 pods fit" in text
    assert text.index("default/b would wait") < text.index("default/a would start")


def test_more_nodes_let_a_pending_group_start(whatif, file):
    objects = file(ROOM.format("n1", 4) + gang("g", 8) + members("g", 8))
    pods, _ = landed(whatif("-f", objects, "-o", "json"))
    assert set(pods.values()) == {"pending"}
    pods, _ = landed(whatif("-f", objects, "--more-nodes", "n1", "-o", "json"))
    assert set(pods.values()) == {"n1", "n1-new-1"}


def test_draining_a_node_moves_its_group_as_one(whatif, file):
    """Two of three members run; without the node there is room for one of them only."""
    owner = "metadata: {{name: g-{0}, ownerReferences: [{{kind: Job, name: j, controller: true}}]}}"
    running = "".join(
        POD.format(
            name=f"g-{at}", labels="", cpu=2, more=", schedulingGroup: {podGroupName: g}, nodeName: n1"
        ).replace(f"metadata: {{name: g-{at}, labels: {{}}}}", owner.format(at))
        for at in range(2)
    )
    objects = file(ROOM.format("n1", 4) + ROOM.format("n2", 2) + gang("g", 2) + running)
    pods, groups = landed(whatif("-f", objects, "--drain", "n1", "-o", "json"))
    assert pods == {"default/g-0": "pending", "default/g-1": "pending"}
    assert [each["starts"] for each in groups] == [False]


def test_groups_of_scheduler_plugins(whatif, file):
    pods = "".join(POD.format(name=f"p{at}", labels=f"{LABEL}: g", cpu=2, more="") for at in range(3))
    landing, groups = landed(whatif("-f", file(ROOM.format("n1", 4) + LABELLED + pods), "-o", "json"))
    assert set(landing.values()) == {"pending"}
    assert [each["group"] for each in groups] == ["default/g"]


def test_a_group_evicts_only_if_all_of_it_fits_then(whatif, file):
    low = POD.format(name="low", labels="", cpu=4, more=", nodeName: n1, priority: 1")
    high = partial(members, "g", cpu=2, more=", priority: 10")
    pods, _ = landed(whatif("-f", file(ROOM.format("n1", 4) + low + gang("g", 2) + high(2)), "-o", "json"))
    assert pods == {"default/g-0": "n1", "default/g-1": "n1", "default/low": "gone"}
    pods, _ = landed(whatif("-f", file(ROOM.format("n1", 4) + low + gang("g", 3) + high(3)), "-o", "json"))
    assert set(pods.values()) == {"pending"}
    assert "default/low" not in pods


def test_a_job_as_a_gang(whatif, file):
    cluster, add = file(ROOM.format("n1", 4)), file(yaml.safe_dump(job("train", 5)), "add.yaml")
    pods, groups = landed(whatif("-f", cluster, "--add", add, "-o", "json"))
    assert sorted(pods.values()) == ["n1"] * 4 + ["pending"]
    assert groups == []
    pods, groups = landed(whatif("-f", cluster, "--add", add, "--gang", "-o", "json"))
    assert list(pods.values()) == ["pending"] * 5
    assert [each["group"] for each in groups] == ["default/train"]


def test_a_job_set_is_its_jobs(whatif, file):
    def part(name, replicas, parallelism):
        template = {"spec": job("", parallelism)["spec"]}
        return {"name": name, "replicas": replicas, "template": template}

    parts = [part("driver", 1, 1), part("workers", 2, 2)]
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train"},
        "spec": {"replicatedJobs": parts},
    }
    cluster, add = file(ROOM.format("n1", 4)), file(yaml.safe_dump(job_set), "add.yaml")
    pods, _ = landed(whatif("-f", cluster, "--add", add, "-o", "json"))
    assert sorted(pods.values()) == ["n1"] * 4 + ["pending"]
    pods, groups = landed(whatif("-f", cluster, "--add", add, "--gang", "-o", "json"))
    assert list(pods.values()) == ["pending"] * 5
    assert [(each["group"], each["starts"]) for each in groups] == [("default/train", False)]
    cluster = file(ROOM.format("n1", 5), "five.yaml")
    pods, groups = landed(whatif("-f", cluster, "--add", add, "--gang", "-o", "json"))
    assert set(pods.values()) == {"n1"}


def test_an_unreadable_job_set_is_left_out(whatif, file):
    wrong = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "x"},
        "spec": {"replicatedJobs": 3},
    }
    run = whatif("-f", file(ROOM.format("n1", 4)), "--add", file(yaml.safe_dump(wrong), "add.yaml"))
    assert run.status == 0
    assert "1 JobSet not looked at" in run.out


def test_a_job_set_of_too_many_jobs_is_rejected(whatif, file):
    part = {"name": "w", "replicas": 10**12, "template": {"spec": job("", 1)["spec"]}}
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train"},
        "spec": {"replicatedJobs": [part]},
    }
    add = file(yaml.safe_dump(job_set), "add.yaml")
    run = whatif("-f", file(ROOM.format("n1", 4)), "--add", add)
    assert run.status == 1
    assert "JobSet train: more than 10000 Jobs of JobSets" in run.err
