"""`stowplan whatif` on a real control plane: what it foresees is what kube-scheduler then does."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import pytest
from test_beside_kube_scheduler import drawn_node, drawn_pod

from controlplane.control_plane import ADMIN, NOBODY, SCHEDULER
from controlplane.objects import node, pod
from controlplane.pods import PODS, add_nodes, condition, create, placed, words_of
from controlplane.waiting import eventually
from stowplan.api.manifests import Found, Manifests
from stowplan.cli.cluster_source import with_features_of
from stowplan.client.watch import read_cluster
from stowplan.framework.registry import Registry
from stowplan.simulator import Ending, WhatIf

Json = dict[str, Any]

PODS_FORESEEN = 30
REGISTRY = Registry.installed()


@pytest.fixture
def whatif(control_plane):
    """The command, on this control plane."""

    def run(*arguments: str, objects: tuple[Json, ...] = (), user: str = ADMIN) -> Any:
        command = [sys.executable, "-m", "stowplan.cli", "whatif", "-o", "json", *arguments]
        environment = os.environ | {"KUBECONFIG": str(control_plane.kubeconfig(user))}
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        done = subprocess.run(
            [*command, *(("--add", "-") if objects else ())],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=environment,
        )
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr

    return run


def landed(answer: Json) -> dict[str, str]:
    return {each["pod"].rpartition("/")[2]: each["node"] or each["outcome"] for each in answer["pods"]}


def versions(control_plane) -> dict[str, str]:
    found = (
        control_plane.request("GET", PODS)["items"] + control_plane.request("GET", "/api/v1/nodes")["items"]
    )
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in found}


def with_a_controller(made: Json) -> Json:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "u", "controller": True}
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [owner]}}


async def test_kube_scheduler_chooses_among_the_nodes_that_we_foresee(control_plane, api):
    draw = random.Random(11)
    add_nodes(control_plane, *(drawn_node(draw, number) for number in range(12)))
    endings = set()
    with control_plane.kube_scheduler():
        for number in range(PODS_FORESEEN):
            made = drawn_pod(draw, number)
            manifests = Manifests()
            manifests.take((await read_cluster(api)).objects)
            manifests.server_minor = int(control_plane.request("GET", "/version")["minor"])
            config = with_features_of(manifests, None, REGISTRY)
            what_if = WhatIf(manifests.objects.values(), config)
            manifests.add([Found("", "", made)])
            new = manifests.pods[f"default/{made['metadata']['name']}"]
            decision = what_if.planner.decide(new)
            best = {decision.names[row] for row in decision.best.tolist()}
            what_if.add([new])
            fate = what_if.run().fates[-1]
            endings.add(fate.ending)
            create(control_plane, made)
            await eventually(lambda name=new.name: is_decided(control_plane, name), bool)
            if fate.ending is Ending.PLACED:
                assert fate.node in best
                assert placed(control_plane)[new.name] in best
            else:
                said = condition(control_plane, new.name)["message"]
                assert words_of(said, control_plane) == words_of(fate.message, control_plane)
                control_plane.request("DELETE", f"{PODS}/{new.name}")
    assert endings == {Ending.PLACED, Ending.PENDING}


def is_decided(control_plane, name: str) -> bool:
    return bool(placed(control_plane)[name] or condition(control_plane, name).get("message"))


async def test_a_pod_that_would_evict_another_does(control_plane, whatif, kubelets):
    create(
        control_plane,
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "high"},
            "value": 100,
        },
    )
    add_nodes(control_plane, node("n1"), node("n2", unschedulable=True))
    low = pod("low", requests={"cpu": "3"})
    high = pod("high", requests={"cpu": "3"}, priorityClassName="high")
    with control_plane.kube_scheduler():
        create(control_plane, low)
        await eventually(lambda: placed(control_plane)["low"], bool)
        before = versions(control_plane)
        answer = whatif(objects=(high,))
        assert landed(answer) == {"low": "gone", "high": "n1"}
        assert answer["pods"][-1]["victims"] == ["default/low"]
        assert versions(control_plane)["n2"] == before["n2"]
        assert set(versions(control_plane)) == set(before)
        create(control_plane, high)
        await eventually(lambda: placed(control_plane), lambda pods: pods == {"high": "n1"})


def test_a_drained_node_and_one_more_like_it(control_plane, whatif):
    add_nodes(control_plane, node("n1"), node("n2"))
    create(control_plane, with_a_controller(pod("web", requests={"cpu": "3"}, nodeName="n1")))
    create(control_plane, pod("full", requests={"cpu": "3"}, nodeName="n2"))
    before = versions(control_plane)
    assert landed(whatif("--drain", "n1")) == {"web": "pending"}
    assert landed(whatif("--drain", "n1", "--more-nodes", "n2")) == {"web": "n2-new-1"}
    assert landed(whatif("--lose", "n2")) == {"full": "gone"}
    assert sorted(landed(whatif("--all")).values()) == ["n1", "n2"]
    assert versions(control_plane) == before


def test_more_pods_of_a_deployment(control_plane, whatif):
    add_nodes(control_plane, node("n1"))
    create(
        control_plane,
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": pod("x", requests={"cpu": "2"})["spec"],
                },
            },
        },
    )
    found = landed(whatif("--more", "deployment/web=3"))
    assert found == {"web-new": "n1", "web-new-1": "n1", "web-new-2": "pending"}


def test_the_rights_of_a_scheduler_are_enough_and_none_are_said(control_plane, whatif):
    add_nodes(control_plane, node("n1"))
    assert landed(whatif(objects=(pod("p"),), user=SCHEDULER)) == {"p": "n1"}
    assert whatif(user=NOBODY).startswith("stowplan: ")
    assert "forbidden" in whatif(user=NOBODY)
