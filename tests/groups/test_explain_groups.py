"""`stowplan explain group`: why a group waits, from files, from a running scheduler and from the journal."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from group_manifests import (
    GPU,
    as_text,
    gang,
    labelled_gang,
    labelled_members,
    members,
    node,
    pod,
)
from groups_staging import GANG
from groups_staging import members as staged_members
from groups_staging import pod_group as staged_group

from scheduler_staging import node as staged_node
from scheduler_staging import staged
from stowplan.cli import stowplan as command
from stowplan.journal import Decisions
from stowplan.journal.writer import writing

RACKS = [
    node(f"r{rack}-n{number}", cpu="32", gpus=8 if rack != 3 else 7, labels={"rack": f"r{rack}"})
    for rack, count in ((1, 1), (2, 1), (3, 2))
    for number in range(count)
]


@pytest.fixture
def explain(tmp_path):
    """Runs `stowplan explain group` on manifests; gives what it prints."""
    from click.testing import CliRunner

    def run(*items, name="default/g", options=()):
        file = tmp_path / "objects.yaml"
        file.write_text(as_text(*items))
        done = CliRunner().invoke(command, ["explain", "group", name, "-f", str(file), *options])
        return done.output if done.exit_code == 0 else f"{done.output}{done.exception}"

    return run


def lines(text):
    return " ".join(text.split())


def test_says_how_many_fit_and_what_the_best_domain_lacks(explain):
    text = lines(explain(RACKS, gang("g", 16, topology="rack"), members("g", 16, gpus=1)))
    assert "Pod group default/g waits (scheduling.k8s.io/v1alpha2, at least 16 together)." in text
    assert "16 pods: 0 placed, 16 pending for" in text
    assert f"The best rack of 3, r3, takes 14 and lacks 2 {GPU}." in text
    assert "14 of 16 pending pods fit, at least 16 are needed." in text


def test_lists_domains_and_members_on_request(explain):
    items = (RACKS, gang("g", 16, topology="rack"), members("g", 16, gpus=1))
    text = explain(*items, options=["--domains", "--members", "--no-changes"])
    assert f"r1    1      8    8 {GPU}" in text
    assert f"r3    2      14   2 {GPU}" in text
    assert "default/g-0   fits   r3-n" in text
    assert text.count(" waits  -") == 2
    assert "RACK" in text
    plain = explain(*items, options=["--no-changes"])
    assert "RACK" not in plain
    assert "default/g-0 " not in plain


def test_finds_the_smallest_changes_that_let_it_start(explain):
    text = explain(RACKS, gang("g", 16, topology="rack"), members("g", 16, gpus=1))
    assert "   - minCount 14 instead of 16\n" in text
    assert "   - without the topology constraint on rack\n" in text
    assert "   - 1 more node like r3-n0\n" in text


def test_changes_are_the_smallest(explain):
    """Two nodes of four cpus; five pods of two cpus: one does not fit."""
    items = (node("n1"), node("n2"), gang("g", 5), members("g", 5, cpu="2"))
    found = json.loads(explain(*items, options=["-o", "json"]))
    changes = {each["kind"]: each for each in found["changes"]}
    assert (changes["minimum"]["was"], changes["minimum"]["now"]) == (5, 4)
    assert changes["nodes"]["text"] == "1 more node like n1"
    assert (changes["request"]["was"], changes["request"]["now"]) == (2000, 1333)
    assert found["fitting"] == 4
    assert found["needed"] == 5
    # The next smaller one of each kind does not help.
    assert (
        json.loads(explain(*items[:3], members("g", 5, cpu="1334m"), options=["-o", "json"]))["fitting"] == 4
    )


def test_tolerations_and_cordons_can_let_it_start(explain):
    taint = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    text = explain(node("n1", taints=[taint]), gang("g", 2), members("g", 2))
    assert "a toleration of gpu=yes:NoSchedule" in text
    text = explain(node("n1", unschedulable=True), gang("g", 2), members("g", 2))
    assert "node n1 no longer cordoned" in text


def test_a_higher_priority_can_let_it_start(explain):
    low = pod("low", cpu="4", on="n1", priority=5)
    text = explain(node("n1"), low, gang("g", 2), members("g", 2, cpu="2"))
    assert "priority 6 instead of 0 (evicts other pods)" in text


def test_a_group_that_evicts_others(explain):
    low = pod("low", cpu="4", on="n1", priority=1)
    text = explain(node("n1"), low, gang("g", 2), members("g", 2, cpu="2", priority=10))
    assert "Pod group default/g waits until evicted pods are gone" in text
    assert "2 of 2 pending pods fit once default/low is evicted." in text


def test_a_group_with_too_few_pods(explain):
    text = lines(explain(node("n1"), gang("g", 5), members("g", 3)))
    assert "Pod group default/g is not attempted yet" in text
    assert "3 of at least 5 pods exist; it is attempted once 2 more are created." in text
    assert "waiting for minCount pods from a gang to appear in scheduling queue" in text


def test_a_group_without_pods(explain):
    assert "Create at least 5 pods that name it." in explain(node("n1"), gang("g", 5))


def test_a_group_whose_pods_are_gone(explain):
    group = gang("g", 5)
    group["status"] = {"conditions": [{"type": "PodGroupScheduled", "status": "True", "reason": "Scheduled"}]}
    text = lines(explain(node("n1"), group))
    assert "Pod group default/g is placed" in text
    assert "It was scheduled before; its pods have finished or are deleted." in text


def test_a_group_without_its_object(explain):
    text = lines(explain(node("n1"), gang("other", 1), members("g", 3)))
    assert "3 pods name it, but no PodGroup default/g exists in scheduling.k8s.io; create it." in text


def test_an_unknown_group_names_those_like_it(explain):
    text = explain(node("n1"), gang("train-a", 2), gang("serve", 2), name="default/train-b")
    assert 'pod group default/train-b not found; did you mean "default/train-a"?' in text
    assert "(known: default/train-a, default/serve)" in text


def test_a_cluster_without_groups(explain):
    assert "pod group default/g not found (there are none)" in explain(node("n1"), pod("p"))


def test_a_group_that_fits(explain):
    text = explain(node("n1"), gang("g", 3), members("g", 4))
    assert "4 of 4 pending pods fit, 3 are needed: it can start now." in text


def test_a_group_behind_another_one(explain):
    """Each fits alone; the older one is attempted first."""
    older = gang("a", 3, created="2026-11-16T07:00:00Z")
    text = lines(explain(node("n1"), older, gang("g", 3), members("a", 3), members("g", 3)))
    assert "It waits behind group default/a, which is attempted first and would take the room." in text
    text = explain(node("n1"), older, gang("g", 3), members("a", 3), members("g", 3), name="default/a")
    assert "behind" not in text


def test_a_group_that_is_placed(explain):
    text = explain(node("n1"), gang("g", 2), members("g", 2, on="n1"), options=["--members"])
    assert "Pod group default/g is placed" in text
    assert "2 pods: 2 placed, 0 pending." in text
    assert "default/g-0  placed  n1" in text


def test_a_group_that_has_started(explain):
    running, waiting = members("g", 3, on="n1", cpu="1"), members("h", 3, cpu="2")
    for each in waiting:
        each["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    text = explain(node("n1"), gang("g", 3), running, waiting)
    assert "Pod group default/g has started, and more of its pods wait" in text
    assert "6 pods: 3 placed, 3 pending for" in text
    assert "0 of 3 pending pods fit.\n" in text
    assert "Each of these changes alone would place another of its pods" in text
    assert "cpu request 1 of the container c instead of 2" in text


def test_groups_of_scheduler_plugins_need_no_configuration(explain):
    text = lines(explain(node("n1"), labelled_gang("g", 5), labelled_members("g", 5)))
    assert "waits (scheduling.x-k8s.io/v1alpha1, at least 5 together)" in text
    assert "4 of 5 pending pods fit, at least 5 are needed. The nodes that it may use lack 1 cpu." in text
    assert "minMember 4 instead of 5" in text


def volcano(kind, name, api="scheduling.volcano.sh/v1beta1", **more):
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, **more}


def volcano_gang(name, least, **spec):
    return volcano("PodGroup", name, spec={"minMember": least, **spec}, status={"phase": "Inqueue"})


def tasks(group, count, **more):
    found = [pod(f"{group}-{number}", **more) for number in range(count)]
    for each in found:
        each["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": group}
    return found


def test_domains_of_hyper_nodes(explain):
    def switch(name, *nodes):
        chosen = [{"type": "Node", "selector": {"exactMatch": {"name": each}}} for each in nodes]
        return volcano("HyperNode", name, "topology.volcano.sh/v1alpha1", spec={"tier": 1, "members": chosen})

    nodes = [node("a0", cpu="2"), node("a1", cpu="2"), node("b0", cpu="3")]
    group = volcano_gang("g", 5, networkTopology={"mode": "hard", "highestTierAllowed": 1})
    items = (nodes, switch("s-a", "a0", "a1"), switch("s-b", "b0"), group, tasks("g", 5))
    text = explain(*items, options=["--domains", "--no-changes"])
    assert "The best HyperNode of 2, s-a, takes 4 and lacks 1 cpu." in text
    assert "s-b        1      3    2 cpu" in text


QUEUES = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    multiPoint: {enabled: [{name: Coscheduling}, {name: VolcanoQueue}]}
    queueSort: {disabled: [{name: "*"}], enabled: [{name: VolcanoQueue}]}
  pluginConfig: [{name: VolcanoQueue, args: {policy: capacity}}]
"""


def test_a_group_behind_another_one_of_its_queue(explain, tmp_path):
    config = tmp_path / "queues.yaml"
    config.write_text(QUEUES)
    queue = volcano("Queue", "q", spec={"capability": {"cpu": "4"}})
    before, own = volcano_gang("b", 3, queue="q"), volcano_gang("g", 2, queue="q")
    items = (node("n1", cpu="16"), queue, before, tasks("b", 3, on="n1"), own, tasks("g", 2))
    text = lines(explain(*items, options=["--config", str(config), "--no-changes"]))
    assert "It waits behind group default/b (3 pods placed) for queue q: " in text


def test_a_pod_of_a_group_says_so(tmp_path, run_words):
    file = tmp_path / "objects.yaml"
    file.write_text(as_text(node("n1"), gang("g", 3), members("g", 3)))
    text = lines(run_words("g-0", "-f", str(file), "--no-changes"))
    assert (
        "It names pod group default/g; `stowplan explain group default/g` decides the group as one." in text
    )


def test_options_of_pods_and_groups_are_told_apart(run_words):
    assert "--members and --domains are for groups" in run_words("p", "--members", "-f", "x")
    assert "--node is for pods" in run_words("group", "g", "--node", "n1", "-f", "x")


@pytest.fixture
def run_words():
    from click.testing import CliRunner

    return lambda *words: CliRunner().invoke(command, ["explain", *words]).output


# From the journal


async def test_the_last_attempt_is_in_the_journal(tmp_path, run_words):
    decisions = Decisions()
    with writing(decisions, tmp_path, size=2**20, age=3600):
        async with staged(gates=GANG, draw=random.Random(1), decisions=decisions) as stage:
            stage.see(staged_node("n1"), staged_group(least=5), *staged_members(5))
            await stage.settle()
    text = await asyncio.to_thread(run_words, "group", "g", "--journal", str(tmp_path), "--members")
    assert "Pod group default/g, attempted at " in text
    assert "4 of 5 pods fit, at least 5 were needed." in text
    assert "default/g4" in text
    text = await asyncio.to_thread(run_words, "group", "default/h", "--journal", str(tmp_path))
    assert "no decision for pod group default/h; the journal has decisions written from" in text
