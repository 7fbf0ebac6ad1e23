"""`stowplan shadow` beside the real kube-scheduler, with the rights of `stowplan manifests --shadow`."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from controlplane.control_plane import ADMIN, NOBODY, ControlPlane, token_of
from controlplane.objects import node, pod
from controlplane.pages import ask
from controlplane.pods import PODS, add_nodes, placed
from controlplane.process import Process
from controlplane.waiting import eventually
from stowplan.cli import stowplan

Json = dict[str, Any]
ALL_NODES = {"percentageOfNodesToScore": 100}
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def verdicts(shadow: Process) -> list[Json]:
    lines = [line for line in shadow.output.splitlines() if line.startswith('{"pod"')]
    return [json.loads(line) for line in lines]


def summary(shadow: Process) -> Json:
    """What it prints at its end."""
    (line,) = re.findall(r'^\{"summary":.*$', shadow.output, re.MULTILINE)
    found: Json = json.loads(line)["summary"]
    return found


def allow_reading(control_plane: ControlPlane, folder: Path) -> str:
    """Give a user the rights of a shadow and no others; the kubeconfig."""
    config = folder / "config.yaml"
    config.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n")
    done = CliRunner().invoke(stowplan, ["manifests", "--shadow", f"--config={config}", "--image=x"])
    assert done.exit_code == 0, done.output
    objects = list(yaml.safe_load_all(done.stdout))
    (role,) = [each for each in objects if each["kind"] == "ClusterRole" and "resources" in each["rules"][0]]
    (binding,) = [each for each in objects if each["kind"] == "ClusterRoleBinding"]
    user = {"kind": "User", "name": NOBODY, "apiGroup": "rbac.authorization.k8s.io"}
    control_plane.request("POST", f"{RBAC}/clusterroles", role)
    control_plane.request("POST", f"{RBAC}/clusterrolebindings", binding | {"subjects": [user]})
    return str(control_plane.kubeconfig(NOBODY))


def drawn_node(draw: random.Random, number: int) -> Json:
    labels = {ZONE: f"zone-{number % 3}", "disk": draw.choice(["ssd", "hdd"])}
    made = node(f"n{number}", labels=labels)
    room = {"cpu": str(draw.choice([4, 8, 16])), "memory": f"{draw.choice([8, 16, 32])}Gi", "pods": "50"}
    made["status"] = {"capacity": room, "allocatable": room}
    if draw.random() < 0.2:
        made["spec"]["taints"] = [{"key": "soft", "effect": "PreferNoSchedule"}]
    return made


def drawn_pod(draw: random.Random, name: str) -> Json:
    requests = {"cpu": f"{draw.choice([50, 100, 250, 700])}m", "memory": f"{draw.choice([64, 256, 900])}Mi"}
    app = draw.choice(["web", "api", "db"])
    selector = {"labelSelector": {"matchLabels": {"app": app}}}
    spec: Json = {}
    if draw.random() < 0.3:
        rule = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "ScheduleAnyway", **selector}
        spec["topologySpreadConstraints"] = [rule]
    if draw.random() < 0.2:
        term = {"weight": 10, "podAffinityTerm": {"topologyKey": HOST, **selector}}
        spec["affinity"] = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    if draw.random() < 0.2:
        spec["nodeSelector"] = {"disk": "ssd"}
    return pod(name, labels={"app": app}, requests=requests, **spec)


@pytest.fixture
def reading(control_plane, tmp_path):
    kubeconfig = allow_reading(control_plane, tmp_path)
    yield kubeconfig
    control_plane.request("DELETE", f"{RBAC}/clusterroles/stowplan:stowplan-shadow")
    control_plane.request("DELETE", f"{RBAC}/clusterrolebindings/stowplan:stowplan-shadow")


async def test_kube_scheduler_chooses_among_our_best_nodes(control_plane, reading):
    draw = random.Random(17)
    add_nodes(control_plane, *(drawn_node(draw, number) for number in range(12)))
    with (
        control_plane.kube_scheduler(**ALL_NODES),
        control_plane.shadow(f"--kubeconfig={reading}", **ALL_NODES) as shadow,
    ):
        for number in range(30):  # each alone: the next one comes when this one is bound and compared
            control_plane.request("POST", PODS, drawn_pod(draw, f"p{number}"))
            await eventually(lambda: verdicts(shadow), lambda found, wanted=number + 1: len(found) == wanted)
        results = {each["pod"]: each for each in verdicts(shadow)}
        assert {each["result"] for each in results.values()} <= {"same", "tie"}, results
        for name, where in placed(control_plane).items():
            assert results[f"default/{name}"]["live"] == where
        status, page = ask(shadow.server, "/metrics", token_of(ADMIN))
        assert status == 200
        assert "stowplan_shadow_agreement_ratio 1\n" in page
        assert ask(shadow.server, "/page/api/shadow", token_of(ADMIN))[0] == 200
        events = control_plane.request("GET", "/apis/events.k8s.io/v1/events")["items"]
        assert {each.get("reportingController") for each in events} <= {"default-scheduler"}
    assert summary(shadow)["agreement"] == 1.0


async def test_under_load_every_disagreement_has_its_class(control_plane, reading, api):
    """200 pods at once: kube-scheduler decides many before their bindings are seen, and in another order."""
    draw = random.Random(18)
    add_nodes(control_plane, *(drawn_node(draw, number) for number in range(20)))
    pods = [drawn_pod(draw, f"q{number}") for number in range(200)]
    with (
        control_plane.kube_scheduler(**ALL_NODES),
        control_plane.shadow(f"--kubeconfig={reading}", **ALL_NODES) as shadow,
    ):
        await asyncio.gather(*(api.request("POST", PODS, each) for each in pods))
        await eventually(lambda: placed(control_plane), lambda found: all(found.values()))
        await eventually(lambda: verdicts(shadow), lambda found: len(found) >= len(pods))
    for each in verdicts(shadow):
        assert each["result"] in ("same", "tie", "timing", "policy"), each
        assert each["reason"] or each["result"] == "same", each
    found = summary(shadow)
    assert found["judged"] == len(verdicts(shadow))
    # The configurations are equal; an order of decisions that is not tried may still look like a policy.
    assert found["results"]["policy"] <= len(pods) // 20, found


async def test_pods_that_were_pending_when_the_scheduler_started(control_plane, reading, api):
    """kube-scheduler takes them in an order of its own, and binds several at once."""
    draw = random.Random(19)
    add_nodes(control_plane, *(drawn_node(draw, number) for number in range(20)))
    pods = [drawn_pod(draw, f"s{number}") for number in range(200)]
    await asyncio.gather(*(api.request("POST", PODS, each) for each in pods))
    with (
        control_plane.shadow(f"--kubeconfig={reading}", **ALL_NODES) as shadow,
        control_plane.kube_scheduler(**ALL_NODES),
    ):
        await eventually(lambda: placed(control_plane), lambda found: all(found.values()))
        await eventually(lambda: verdicts(shadow), lambda found: len(found) >= len(pods))
    found = summary(shadow)["results"]
    policy = [each for each in verdicts(shadow) if each["result"] == "policy"]
    assert len(policy) <= len(pods) // 20, (found, policy)


async def test_another_policy_beside_kube_scheduler_is_named(control_plane, reading):
    """One packs pods, the other spreads them."""
    packing = {
        "schedulerName": "default-scheduler",
        "pluginConfig": [
            {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}
        ],
        "plugins": {"score": {"disabled": [{"name": "NodeResourcesBalancedAllocation"}]}},
    }
    add_nodes(control_plane, *(node(f"n{number}") for number in range(4)))
    with (
        control_plane.kube_scheduler(**ALL_NODES),
        control_plane.shadow(f"--kubeconfig={reading}", **ALL_NODES, profiles=[packing]) as shadow,
    ):
        for number in range(4):
            control_plane.request("POST", PODS, pod(f"r{number}", requests={"cpu": "1", "memory": "1Gi"}))
            await eventually(lambda: verdicts(shadow), lambda found, wanted=number + 1: len(found) == wanted)
        first, *others = verdicts(shadow)
        assert first["result"] in ("same", "tie")
        for each in others:
            assert (each["result"], each["cause"]) == ("policy", "NodeResourcesFit"), each
            assert each["scores"][0]["live"] < each["scores"][0]["chosen"]
