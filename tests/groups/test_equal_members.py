"""Equal members share what cannot differ between them: with the same outcome as deciding each by itself."""

from __future__ import annotations

import random
from typing import Any

import pytest
from groups_staging import GANG, TOPOLOGY, members, pod_group
from test_elastic_quotas import cpus, quota
from test_volcano_queues import V1, queue

from make import REGISTRY
from scheduler_staging import node, pod, staged
from stowplan import Plugin
from stowplan.api.groups import IN_TREE, GroupKey
from stowplan.api.kinds import object_of
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.config.types import with_gates
from stowplan.cycle import Planner
from stowplan.cycle.group import GroupDecision, Result, decide_group, in_order, needed_count
from stowplan.cycle.group_trial import GroupHost
from stowplan.cycle.schedule import draw_ties

Json = dict[str, Any]
KEY = GroupKey(IN_TREE, "default", "g")
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


class Counting(GroupHost):
    """Counts the members that were decided with what was known from an equal one."""

    repeated = 0

    def decide(self, pod, within, *, preempts, equal=None):
        self.repeated += equal is not None
        return super().decide(pod, within, preempts=preempts, equal=equal)


class OneByOne(GroupHost):
    """Decides every member from scratch."""

    def decide(self, pod, within, *, preempts, equal=None):
        return super().decide(pod, within, preempts=preempts)


def random_node(draw: random.Random, name: str) -> Json:
    found = node(name, cpu=str(draw.randint(1, 8)), pods=str(draw.randint(2, 12)))
    found["metadata"]["labels"] = {
        HOST: name,
        ZONE: draw.choice("ab"),
        "rack": draw.choice("rs"),
        "disk": draw.choice("xy"),
    }
    found["status"]["allocatable"]["memory"] = draw.choice(("2Gi", "8Gi"))
    if draw.random() < 0.3:
        found["status"]["allocatable"]["example.com/gpu"] = str(draw.randint(1, 3))
    taints = [{"key": "t", "value": "", "effect": draw.choice(("PreferNoSchedule", "NoSchedule"))}]
    found["spec"] = {"unschedulable": draw.random() < 0.1, "taints": taints if draw.random() < 0.3 else []}
    return found


def pod_term(draw: random.Random) -> Json:
    labels = {"app": draw.choice(("one", "two"))}
    return {"labelSelector": {"matchLabels": labels}, "topologyKey": draw.choice((HOST, ZONE))}


def random_affinity(draw: random.Random) -> Json:
    kind = draw.choice(("podAffinity", "podAntiAffinity", "nodeAffinity"))
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    if kind == "nodeAffinity":
        wanted = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["x"]}]}
        return {kind: {preferred: [{"weight": draw.randint(1, 100), "preference": wanted}]}}
    if draw.random() < 0.5:
        weighted = {"weight": draw.randint(1, 100), "podAffinityTerm": pod_term(draw)}
        return {kind: {preferred: [weighted]}}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [pod_term(draw)]}}


def random_spec(draw: random.Random) -> Json:
    """What a kind of members asks for; most ask for nothing but CPU."""
    spec: Json = {"cpu": draw.choice(("500m", "1", "2"))}
    if draw.random() < 0.25:
        spec["affinity"] = random_affinity(draw)
    if draw.random() < 0.1:
        constraint = {
            "maxSkew": 1,
            "topologyKey": ZONE,
            "whenUnsatisfiable": draw.choice(("DoNotSchedule", "ScheduleAnyway")),
            "labelSelector": {"matchLabels": {"app": "one"}},
        }
        spec["topologySpreadConstraints"] = [constraint]
    if draw.random() < 0.2:
        spec["nodeSelector"] = {"disk": "x"}
    if draw.random() < 0.2:
        spec["tolerations"] = [{"key": "t", "operator": "Exists"}]
    if draw.random() < 0.1:
        claim = draw.choice(("data", "missing"))
        spec["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
    return spec


def shaped(name: str, draw: random.Random, spec: Json, labels: Json, **more: Any) -> Json:
    found = pod(name, **spec, **more)
    found["metadata"]["labels"] = labels
    (container,) = found["spec"]["containers"]
    if "ports" in labels.get("with", ""):
        container["ports"] = [{"hostPort": 80, "containerPort": 80}]
    if "gpu" in labels.get("with", ""):
        container["resources"]["requests"]["example.com/gpu"] = "1"
    return found


def random_labels(draw: random.Random) -> Json:
    found = {"app": draw.choice(("one", "two"))}
    if draw.random() < 0.2:
        found["with"] = draw.choice(("ports", "gpu"))
    return found


def random_world(draw: random.Random, *, topology: bool) -> tuple[list[Json], list[Json]]:
    """The objects of a cluster, and the members of a group."""
    names = [f"n{number}" for number in range(draw.randint(2, 12))]
    objects: list[Json] = [random_node(draw, name) for name in names]
    for number in range(draw.randint(0, 10)):
        spec, labels = random_spec(draw), random_labels(draw)
        spec.pop("volumes", None)
        objects.append(shaped(f"old{number}", draw, spec, labels, on=draw.choice(names)))
    if draw.random() < 0.3:  # pods of a service are spread by default
        service = {"selector": {"app": "one"}}
        objects.append(
            {"kind": "Service", "metadata": {"name": "s", "namespace": "default"}, "spec": service}
        )
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    mode = [draw.choice(("ReadWriteOncePod", "ReadWriteMany"))]
    objects += [
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "default", "annotations": bound},
            "spec": {"accessModes": mode, "volumeName": "pv"},
        },
        {"kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": {"accessModes": mode}},
    ]
    kinds = [(random_spec(draw), random_labels(draw)) for _ in range(draw.choice((1, 1, 2, 3)))]
    count = draw.randint(2, 14)
    constraints = {"schedulingConstraints": {"topology": [{"key": "rack"}]}} if topology else {}
    objects.append(pod_group("g", least=draw.randint(1, count), **constraints))
    group = {"schedulingGroup": {"podGroupName": "g"}}
    if draw.random() < 0.2:
        group["priority"] = 5
    pods = [shaped(f"g{number:02}", draw, *draw.choice(kinds), **group) for number in range(count)]
    if draw.random() < 0.3:  # as Jobs do
        for number, plain in enumerate(pods):
            index = {"batch.kubernetes.io/job-completion-index": str(number)}
            plain["metadata"]["labels"] = {**plain["metadata"]["labels"], **index}
            if draw.random() < 0.3:  # which others may look at
                plain["metadata"]["labels"]["app"] = draw.choice(("one", "two"))
    return objects, pods


def decided(
    kind: type[GroupHost],
    objects: list[Json],
    plain: list[Json],
    gates: Any,
    seed: int,
    config: KubeSchedulerConfiguration | None = None,
) -> tuple[GroupDecision, Any]:
    config = with_gates(config or KubeSchedulerConfiguration(), frozenset(gates))
    tie_break = draw_ties(random.Random(seed))
    planner = Planner(Cluster.of(map(object_of, objects)), config, tie_break=tie_break)
    pods = [object_of(each) for each in plain]
    planner.expect(pods)
    groups = planner.cluster.groups
    group = groups.find(KEY)
    host = kind(planner.profiles["default-scheduler"], group, planner.cluster, tie_break, None)
    needed = needed_count(group, 0, 0, len(pods))
    return decide_group(host, group, in_order(pods), [], needed), host


def evidence(found: GroupDecision) -> list[Any]:
    return [(member.pod.name, member.node_name, member.decision.as_golden()) for member in found.members]


@pytest.mark.parametrize("gates", [GANG, TOPOLOGY], ids=["any node", "racks"])
def test_the_outcome_is_the_same_as_for_one_member_after_another(gates):
    repeated = scheduled = 0
    for seed in range(150):
        draw = random.Random(f"{seed} {gates}")
        objects, plain = random_world(draw, topology=gates is TOPOLOGY and draw.random() < 0.7)
        fast, host = decided(Counting, objects, plain, gates, seed)
        slow, _ = decided(OneByOne, objects, plain, gates, seed)
        assert (fast.result, fast.message, fast.placement) == (slow.result, slow.message, slow.placement)
        assert evidence(fast) == evidence(slow), seed
        repeated += host.repeated
        scheduled += fast.result is Result.SCHEDULED
    assert repeated > 200  # or nothing was compared
    assert 20 < scheduled < 140


def profile_with(plugin: str) -> KubeSchedulerConfiguration:
    sorts = {"disabled": [{"name": "*"}], "enabled": [{"name": "Coscheduling"}]}
    plugins = {"multiPoint": {"enabled": [{"name": "Coscheduling"}, {"name": plugin}]}, "queueSort": sorts}
    return load({**V1, "profiles": [{"plugins": plugins}]}, REGISTRY).config


@pytest.mark.parametrize("plugin", ["CapacityScheduling", "VolcanoQueue"])
def test_limits_count_equal_members_that_are_placed(plugin):
    repeated, rejected, config = 0, 0, profile_with(plugin)
    for seed in range(60):
        draw = random.Random(f"{seed} {plugin}")
        objects, plain = random_world(draw, topology=False)
        cpu = str(draw.randint(1, 8))
        objects += [quota(**cpus(cpu, cpu)), queue("default", capability={"cpu": cpu}), queue("other")]
        fast, host = decided(Counting, objects, plain, GANG, seed, config)
        slow, _ = decided(OneByOne, objects, plain, GANG, seed, config)
        assert (fast.result, fast.message) == (slow.result, slow.message)
        assert evidence(fast) == evidence(slow), seed
        repeated += host.repeated
        rejected += any(member.decision.pre_filter is not None for member in fast.members)
    assert repeated > 40
    assert 10 < rejected < 60


def test_members_of_several_kinds_in_turn_are_known_from_equal_ones():
    objects = [node(f"n{number}", cpu="8") for number in range(4)]
    objects.append(pod_group("g", least=9))
    group = {"schedulingGroup": {"podGroupName": "g"}}
    plain = [pod(f"g{number}", cpu=("1", "500m", "250m")[number % 3], **group) for number in range(9)]
    found, host = decided(Counting, objects, plain, GANG, 1)
    assert found.result is Result.SCHEDULED
    assert host.repeated == 6


def test_members_that_differ_in_labels_are_known_from_equal_ones():
    objects = [node(f"n{number}", cpu="8") for number in range(4)]
    objects.append(pod_group("g", least=9))
    group = {"schedulingGroup": {"podGroupName": "g"}}
    plain = [pod(f"g{number}", cpu="1", **group) for number in range(9)]
    for number, each in enumerate(plain):
        each["metadata"]["labels"] = {"batch.kubernetes.io/job-completion-index": str(number)}
    found, host = decided(Counting, objects, plain, GANG, 1)
    assert found.result is Result.SCHEDULED
    assert host.repeated == 8


class Remembers(Plugin):
    """Notes in the state of each member that it was reserved, which must be news each time."""

    seen: list[bool] = []

    def reserve(self, state, pod, node_name):
        Remembers.seen.append(state.find(Note) is None)
        state.write(Note())


class Note:
    pass


async def test_members_have_a_state_of_their_own():
    Remembers.seen = []
    profile = {"plugins": {"reserve": {"enabled": [{"name": "Remembers"}]}}}
    options = {"config": {"profiles": [profile]}, "plugins": {"Remembers": Remembers}}
    async with staged(gates=GANG, **options) as stage:
        stage.see(node("n1"), node("n2"), pod_group(least=5), *members(5))
        await stage.settle()
        assert len(stage.api.bound) == 5
    assert Remembers.seen == [True] * 5
