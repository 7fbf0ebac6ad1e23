"""Volcano's queues: shares, limits, admission and reclaim. Numbers are rows of the specification."""

from __future__ import annotations

import random

import pytest
from groups_staging import last_text
from test_coscheduling import report_gated, task, volcano_group

from make import planner
from scheduler_staging import node, pod, staged
from stowplan.api.group_crds import PUBLISHED
from stowplan.api.kinds import object_of
from stowplan.client.api import MERGE_PATCH
from stowplan.cluster import Cluster
from stowplan.controllers.groups import QueueAdmission
from stowplan.cycle.group import Result
from stowplan.embedded import embedded_cluster
from stowplan.framework.handle import Handle
from stowplan.kubelet import NodeTemplate
from stowplan.plugins.community.volcano_queue import VolcanoQueueArgs
from stowplan.plugins.queue_shares import read_tree, set_deserved_by_weight, set_limits

VOLCANO = "scheduling.volcano.sh/v1beta1"
V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def profile(**args):
    return {
        "plugins": {
            "multiPoint": {"enabled": [{"name": "Coscheduling"}, {"name": "VolcanoQueue"}]},
            "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "VolcanoQueue"}]},
        },
        "pluginConfig": [{"name": "VolcanoQueue", "args": args}],
    }


def config(**args):
    return {**V1, "profiles": [profile(**args)]}


def queue(name, state="", **spec):
    return {
        "apiVersion": VOLCANO,
        "kind": "Queue",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": spec,
        "status": {"state": state} if state else {},
    }


def admitted(name="g", phase="Inqueue", **spec):
    return {**volcano_group(name, **spec), "status": {"phase": phase}}


def running(name, group="g", on="n1", **options):
    return {**task(name, group=group, on=on, **options), "status": {"phase": "Running"}}


def queue_stage(args=None, **options):
    return staged(config={"profiles": [profile(**(args or {}))]}, draw=random.Random(1), **options)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param([(queue("b"), queue("b", priority=5))], ["b", "a"], id="a queue gets another priority"),
        pytest.param([(queue("b"), queue("b", state="Open"))], ["a", "b"], id="its status is written"),
        pytest.param(
            [
                (queue("b"), queue("b", priority=5)),
                (admitted("ga", queue="a"), admitted("ga", queue="b")),
                (admitted("gb", queue="b"), admitted("gb", queue="a")),
            ],
            ["a", "b"],
            id="groups change to other queues",
        ),
    ],
)
async def test_waiting_pods_are_sorted_again_when_their_queue_changes(changes, expected):
    async with queue_stage() as stage:
        stage.see(node("n1"), queue("a"), queue("b"), admitted("ga", queue="a"), admitted("gb", queue="b"))
        stage.see(task("a", group="ga"), task("b", group="gb"))
        for old, new in changes:
            stage.change(old, new)
        await stage.settle()
        assert list(stage.api.bound) == [f"default/{name}" for name in expected]


# Arithmetic


def shares(total, *queues, requests):
    tree = read_tree(object_of(each) for each in queues)
    set_limits(tree, {"cpu": total})
    set_deserved_by_weight(tree, {"cpu": total}, lambda name: {"cpu": requests.get(name, 0)})
    return [tree[each["metadata"]["name"]].deserved["cpu"] for each in queues]


@pytest.mark.parametrize(
    ("weights", "requests", "expected"),
    [
        pytest.param((1, 3), (10000, 2000), [8000, 2000], id="scenario 82"),
        pytest.param((1, 1, 1), (10000, 10000, 1000), [4500, 4500, 1000], id="three queues"),
        pytest.param((1, 1), (0, 0), [0, 0], id="nobody wants anything"),
        pytest.param((65535, 1), (10000, 10000), [10000 * 65535 / 65536, 10000 / 65536], id="weights"),
    ],
)
def test_the_cluster_is_divided_by_weight(weights, requests, expected):
    queues = [queue(f"q{number}", weight=weight) for number, weight in enumerate(weights)]
    wanted = {f"q{number}": amount for number, amount in enumerate(requests)}
    assert shares(10000, *queues, requests=wanted) == pytest.approx(expected, abs=0.2)


def test_capability_caps_and_guarantee_raises_a_share():
    capped = queue("capped", weight=3, capability={"cpu": 2})
    sure = queue("sure", guarantee={"resource": {"cpu": 4}})
    found = shares(10000, capped, sure, queue("rest"), requests={"capped": 9000, "rest": 9000})
    assert found == pytest.approx([2000, 4000, 4000], abs=0.2)


def test_guarantees_of_others_limit_a_queue():
    tree = read_tree(map(object_of, (queue("a", guarantee={"resource": {"cpu": 3}}), queue("b"))))
    set_limits(tree, {"cpu": 10000})
    assert (tree["a"].limit["cpu"], tree["b"].limit["cpu"]) == (10000, 7000)


def test_limits_follow_the_tree():
    tree = read_tree(
        map(object_of, (queue("org", capability={"cpu": 6}), queue("team", parent="org"), queue("x")))
    )
    set_limits(tree, {"cpu": 10000})
    assert (tree["team"].limit["cpu"], tree["x"].limit["cpu"]) == (6000, 10000)


# Placement


def decided(objects, pending, **args):
    found = planner(objects, config(**args))
    pods = [object_of(each) for each in pending]
    found.expect(pods)
    return found, pods


@pytest.mark.parametrize(("policy", "fits"), [("proportion", 2), ("capacity", 3)])
def test_scenario_83_a_queue_at_what_it_deserves(policy, fits):
    queues = [queue("a", deserved={"cpu": 2}), queue("b", deserved={"cpu": 2})]
    objects = [
        node("n1"),
        *queues,
        admitted("ga", minMember=1, queue="a"),
        admitted("gb", minMember=9, queue="b"),
    ]
    wanted = [task(f"b{number}", group="gb") for number in range(4)]  # they wait, and want their share
    pending = [task(f"a{number}", group="ga") for number in range(3)]
    found, pods = decided(objects, [*pending, *wanted], policy=policy)
    decision = found.decide_group(found.group_of(pods[0]), pods[:3])
    assert (decision.result, decision.fitting) == (Result.SCHEDULED, fits)
    if policy == "proportion":
        (short,) = (each for each in decision.members if not each.node_name)
        assert short.decision.message.startswith(
            '0/1 nodes are available: queue "a" has no room; cpu: used 2, requested 1, deserved 2.'
        )


def test_a_queue_and_all_above_it_keep_their_capability():
    objects = [
        node("n1"),
        queue("org", capability={"cpu": 2}),
        queue("team", parent="org"),
        queue("else", parent="org"),
        admitted(minMember=1, queue="team"),
        admitted("h", minMember=1, queue="else"),
        running("old", "h"),
    ]
    found, pods = decided(objects, [task(f"p{number}") for number in range(2)], policy="capacity")
    decision = found.decide_group(found.group_of(pods[0]), pods)
    assert decision.fitting == 1
    assert (
        'queue "org" has no room; cpu: used 2, requested 1, limit 2' in decision.members[1].decision.message
    )


def test_a_group_that_its_queue_can_never_hold_is_not_tried():
    objects = [
        node("n1"),
        queue("q", capability={"cpu": 2}),
        admitted(minMember=3, queue="q", minResources={"cpu": 3}),
    ]
    found, pods = decided(objects, [task(f"p{number}") for number in range(3)], policy="capacity")
    decision = found.decide_group(found.group_of(pods[0]), pods)
    assert decision.fitting == 0
    text = 'queue "q" has no room for pod group default/g; cpu: used 0, requested 3, limit 2'
    assert text in decision.members[0].decision.message


def test_only_leaves_take_pods_with_capacity():
    objects = [node("n1"), queue("org"), queue("team", parent="org"), admitted(minMember=1, queue="org")]
    found, pods = decided(objects, [task("p")], policy="capacity")
    assert "only queues without any take pods" in found.decide(pods[0]).message


def test_scenario_91_a_pod_without_a_group_is_one_by_itself():
    objects = [node("n1"), queue("small", capability={"cpu": 1}), queue("default", capability={"cpu": 2})]
    pending = [pod(f"p{number}") for number in range(3)]
    pending += [pod(f"s{number}") for number in range(2)]
    for plain in pending[3:]:
        plain["metadata"]["annotations"] = {"scheduling.volcano.sh/queue-name": "small"}
    found, pods = decided(objects, pending, policy="capacity")
    chosen = []
    for each in pods:
        decision = found.decide(each)
        found.carry_out(decision)
        chosen.append(decision.chosen)
    assert chosen == ["n1", "n1", None, "n1", None]


async def test_scenario_87_a_queue_that_does_not_exist():
    now = [1000.0]
    async with queue_stage(now=lambda: now[0]) as stage:
        stage.see(queue("default"), node("n1"), admitted(minMember=1, queue="research"), task("p"))
        await stage.settle()
        assert stage.api.bound == {}
        text = 'queue "research" does not exist; create the Queue, or use one of: default'
        assert text in last_text(stage, "p")
        now[0] += 20
        stage.see(queue("research"))
        await stage.settle()
        assert stage.api.bound == {"default/p": "n1"}


async def test_members_of_a_group_that_is_not_admitted_wait():
    now = [1000.0]
    async with queue_stage(now=lambda: now[0]) as stage:
        waiting, ready = admitted(phase="Pending", minMember=1), admitted(minMember=1)
        stage.see(queue("default"), node("n1"), waiting, task("p"))
        await stage.settle()
        await report_gated(stage, now)
        assert last_text(stage, "p") == (
            'pod group default/g waits for queue "default": it is not admitted yet, '
            "the events of the PodGroup say why"
        )
        stage.change(waiting, ready)
        await stage.settle()
        assert stage.api.bound == {"default/p": "n1"}


async def test_without_queues_in_the_cluster_nothing_is_limited():
    async with queue_stage() as stage:
        stage.see(node("n1"), admitted(minMember=1, queue="research"), task("p"), pod("plain"))
        await stage.settle()
        assert len(stage.api.bound) == 2


async def test_queues_take_turns_by_priority_and_share():
    async with queue_stage({"policy": "capacity"}) as stage:
        stage.see(queue("low"), queue("high", priority=5), queue("default"))
        stage.see(admitted("l", minMember=1, queue="low"), admitted("h", minMember=1, queue="high"))
        stage.see(node("n1", cpu="1"), task("l0", group="l"), task("h0", group="h"))
        await stage.settle()
        assert stage.api.bound == {"default/h0": "n1"}


@pytest.mark.parametrize(
    ("least", "own"),
    [
        pytest.param(2, 0, id="it has no minimum yet"),
        pytest.param(1, 1, id="it has less of the cluster"),
    ],
)
async def test_in_a_queue_the_group_goes_first_that_has_less(least, own):
    """Volcano's order of jobs: by priority, by gang and by dominant share, then by age."""
    async with queue_stage({"policy": "capacity"}) as stage:
        stage.see(queue("default"), node("n1", cpu="4"), node("n2", cpu=str(own or 1)))
        stage.see(admitted("old", minMember=1), admitted("new", minMember=least))
        stage.see(*(running(f"old{number}", "old") for number in range(3)))
        stage.see(*(running(f"new{number}", "new", on="n2") for number in range(own)))
        stage.see(task("old9", group="old"), task("new8", group="new"))
        if not own:
            stage.see(task("new9", group="new"))
        await stage.settle()
        assert {name[8:11] for name in stage.api.bound} == {"new"}


# Reclaim


def lending_cluster(**spec):
    """Queue b has all of the cluster, of which queue a deserves half."""
    return [
        node("n1"),
        queue("a", deserved={"cpu": 2}),
        queue("b", deserved={"cpu": 2}, **spec),
        admitted("ga", minMember=2, queue="a"),
    ]


@pytest.mark.parametrize("policy", ["proportion", "capacity"])
async def test_a_queue_takes_back_what_it_deserves(policy):
    now = [1000.0]
    async with queue_stage({"reclaim": True, "policy": policy}, now=lambda: now[0]) as stage:
        lent = [running(f"b{number}", "gb") for number in range(4)]
        stage.see(*lending_cluster(), admitted("gb", minMember=1, queue="b"), *lent)
        stage.see(task("a0", group="ga"), task("a1", group="ga"))
        await stage.settle()
        assert len(stage.api.deleted) == 2
        now[0] += 20
        for plain in lent:
            if f"default/{plain['metadata']['name']}" in stage.api.deleted:
                stage.change(plain, None)
        await stage.settle()
        assert set(stage.api.bound) == {"default/a0", "default/a1"}
        assert len(stage.api.deleted) == 2


async def test_scenario_84_a_group_at_its_minimum_loses_nobody():
    async with queue_stage({"reclaim": True}) as stage:
        lent = [running(f"b{number}", "gb") for number in range(4)]
        stage.see(*lending_cluster(), admitted("gb", minMember=4, queue="b"), *lent)
        stage.see(task("a0", group="ga"), task("a1", group="ga"))
        await stage.settle()
        assert (stage.api.deleted, stage.api.bound) == ([], {})


async def test_a_group_loses_only_members_beyond_its_minimum():
    """One can go, two are needed: so none goes."""
    async with queue_stage({"reclaim": True}) as stage:
        lent = [running(f"b{number}", "gb") for number in range(4)]
        stage.see(*lending_cluster(), admitted("gb", minMember=3, queue="b"), *lent)
        stage.see(task("a0", group="ga"), task("a1", group="ga"))
        await stage.settle()
        assert stage.api.deleted == []


async def test_a_queue_keeps_what_it_deserves():
    """It has one CPU more, two are needed: so none is taken."""
    async with queue_stage({"reclaim": True, "policy": "capacity"}) as stage:
        lent = [running(f"b{number}", "gb") for number in range(4)]
        stage.see(node("n1"), queue("a", deserved={"cpu": 3}), queue("b", deserved={"cpu": 3}))
        stage.see(admitted("ga", minMember=2, queue="a"), admitted("gb", minMember=1, queue="b"), *lent)
        stage.see(task("a0", group="ga"), task("a1", group="ga"))
        await stage.settle()
        assert stage.api.deleted == []


async def test_scenario_85_a_queue_that_is_not_reclaimable():
    async with queue_stage({"reclaim": True}) as stage:
        lent = [running(f"b{number}", "gb") for number in range(4)]
        stage.see(*lending_cluster(reclaimable=False), admitted("gb", minMember=1, queue="b"), *lent)
        stage.see(task("a0", group="ga"), task("a1", group="ga"))
        await stage.settle()
        assert stage.api.deleted == []


@pytest.mark.parametrize("protected", ["annotation", "class", "args"])
async def test_pods_that_are_not_reclaimed(protected):
    async with queue_stage({"reclaim": protected != "args"}) as stage:
        spec = {"priorityClassName": "system-node-critical"} if protected == "class" else {}
        lent = [running(f"b{number}", "gb", **spec) for number in range(4)]
        if protected == "annotation":
            for plain in lent:
                plain["metadata"]["annotations"]["volcano.sh/preemptable"] = "false"
        stage.see(*lending_cluster(), admitted("gb", minMember=1, queue="b"), *lent)
        stage.see(task("a0", group="ga"), task("a1", group="ga"))
        await stage.settle()
        assert stage.api.deleted == []


@pytest.mark.parametrize("policy", ["proportion", "capacity"])
@pytest.mark.parametrize("seed", range(8))
def test_random_groups_keep_to_queues_and_minimums(seed, policy):
    """No queue, nor one above it, gets past its capability; no group is left with fewer than it needs."""
    draw = random.Random(seed)
    queues = {
        "top": queue("top", capability={"cpu": draw.randint(4, 9)}, deserved={"cpu": 4}),
        "a": queue("a", parent="top", deserved={"cpu": draw.randint(0, 5)}),
        "b": queue("b", parent="top", capability={"cpu": draw.randint(2, 6)}, deserved={"cpu": 2}),
        "c": queue("c", deserved={"cpu": draw.randint(0, 6)}, reclaimable=draw.random() < 0.7),
    }
    if policy == "proportion":  # has no tree
        queues = {name: {**each, "spec": {**each["spec"], "parent": ""}} for name, each in queues.items()}
    nodes = [node(f"n{number}", cpu=str(draw.randint(2, 5))) for number in range(4)]
    minimums = {f"g{number}": draw.randint(1, 4) for number in range(12)}
    homes = {name: draw.choice("abc") for name in minimums}
    groups = [admitted(name, minMember=least, queue=homes[name]) for name, least in minimums.items()]
    found = planner([*nodes, *queues.values(), *groups], config(policy=policy, reclaim=True))
    for name, least in minimums.items():
        sizes = [str(draw.randint(1, 2)) for _ in range(least + draw.randint(0, 2))]
        plain = [running(f"{name}-{each}", name, on="", cpu=cpu) for each, cpu in enumerate(sizes)]
        pods = [object_of(each) for each in plain]
        found.expect(pods)
        found.carry_out_group(found.decide_group(found.group_of(pods[0]), pods))
        placed = list(found.cluster.pods())
        for each, least_here in minimums.items():
            count = sum(1 for pod in placed if pod.name.startswith(f"{each}-"))
            assert count == 0 or count >= least_here
        for each, plain_queue in queues.items():
            below = ("a", "b") if each == "top" and policy == "capacity" else (each,)
            used = sum(pod.requests["cpu"] for pod in placed if homes[pod.name.partition("-")[0]] in below)
            most = plain_queue["spec"].get("capability", {}).get("cpu", 99)
            assert used <= most * 1000
        assert all(row.requested["cpu"] <= row.allocatable["cpu"] for row in found.cluster.nodes)


async def test_a_surplus_member_that_does_not_fit_leaves_its_group_scheduled():
    now = [1000.0]
    async with queue_stage(now=lambda: now[0]) as stage:
        stage.see(node("n1", cpu="2"), queue("default"), admitted(minMember=2))
        stage.see(*(task(f"p{number}") for number in range(3)))
        await stage.settle()
        now[0] += 20
        tainted = {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}
        stage.see(node("n2", spec=tainted))  # the third member is attempted again
        await stage.settle()
        written = [body["status"]["conditions"] for _, body in stage.api.group_patches]
        assert {(each["type"], each["status"]) for each in written[-1]} == {("Scheduled", "True")}


# Admission


class RecordingApi:
    def __init__(self):
        self.admitted = []

    async def update_status(self, item):
        self.admitted.append((item.name, item.status.phase))


async def admitted_first(*objects):
    """The groups that are admitted at once, in their order."""
    cluster, api = Cluster.of(map(object_of, objects)), RecordingApi()
    cluster.groups.use(("scheduling.volcano.sh",), "default-scheduler")
    await QueueAdmission(VolcanoQueueArgs(), Handle(cluster, api=api)).admit_all()
    assert {phase for _, phase in api.admitted} <= {"Inqueue"}
    return [name for name, _ in api.admitted]


def sized(name, home, cpu="3", **spec):
    return volcano_group(name, minMember=1, queue=home, minResources={"cpu": cpu}, **spec)


async def test_the_queue_that_has_least_comes_first():
    busy = [admitted("old", minMember=1, queue="a"), running("p", "old", cpu="2")]
    queues = [queue("a"), queue("b")]
    assert await admitted_first(node("n1"), *queues, *busy, sized("x", "a", "2"), sized("y", "b", "2")) == [
        "y"
    ]
    weighted = [queue("a", weight=100), queue("b")]
    more = running("q", "of-b", cpu="1")
    objects = (node("n1", cpu="5"), *weighted, *busy, admitted("of-b", minMember=1, queue="b"), more)
    assert await admitted_first(*objects, sized("x", "a"), sized("y", "b")) == ["x"]


async def test_a_queue_of_higher_priority_and_a_class_come_first():
    queues = [queue("a"), queue("b", priority=1)]
    assert await admitted_first(node("n1"), *queues, sized("x", "a"), sized("y", "b")) == ["y"]
    high = {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 10}
    groups = [sized("x", "a"), sized("y", "a", priorityClassName="high")]
    assert await admitted_first(node("n1"), *queues, high, *groups) == ["y"]


async def test_what_is_admitted_counts_for_the_next():
    groups = [sized(f"g{number}", "default", "1") for number in range(8)]
    assert len(await admitted_first(node("n1"), queue("default"), *groups)) == 4  # 4.8 CPUs are promised
    waiting = [sized(f"g{number}", "default", "1") for number in range(4)]
    known = {**sized("known", "default", "2"), "status": {"phase": "Inqueue"}}
    assert len(await admitted_first(node("n1"), queue("default"), known, *waiting)) == 2


# Phases, on a whole cluster


@pytest.fixture
async def cluster():
    template = NodeTemplate(count=1, cpu="8")
    async with embedded_cluster(nodes=template, config=config(), manifests=PUBLISHED.values()) as made:
        yield made


def created(plain, **annotations):
    kept = {key: plain["metadata"][key] for key in ("name", "namespace") if key in plain["metadata"]}
    found = {**plain, "metadata": kept}
    if plain["kind"] == "Pod":
        known = plain["metadata"].get("annotations") or {}
        found["metadata"]["annotations"] = {**known, **annotations}
        containers = [{**each, "image": "web"} for each in plain["spec"]["containers"]]
        spec = {"containers": containers, "restartPolicy": "Never"}
        if "nodeSelector" in plain["spec"]:
            spec["nodeSelector"] = plain["spec"]["nodeSelector"]
        found |= {"apiVersion": "v1", "spec": spec}
    return found


async def phase_of(cluster, wanted, name="g"):
    path = f"/apis/{VOLCANO}/namespaces/default/podgroups/{name}"

    async def found():
        status = (await cluster.api.get_json(path)).get("status") or {}
        return status if status.get("phase") == wanted else None

    return await cluster.until(found, f"phase of {name} is {wanted}")


async def event_of(cluster, text, name="g"):
    async def found():
        for each in await cluster.list("Event"):
            about = each.get("regarding") or each.get("involvedObject")
            if about["name"] == name and text in (each.get("note") or each.get("message") or ""):
                return each
        return None

    return await cluster.until(found, f"event of {name}: {text}")


async def test_a_group_of_a_higher_class_is_admitted_first(cluster):
    high = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 10,
    }
    await cluster.create(high)
    await cluster.create(created(sized("hold", "default", "9")))
    await phase_of(cluster, "Inqueue", "hold")
    for group in (sized("x", "default", "9"), sized("y", "default", "9", priorityClassName="high")):
        await cluster.create(created(group))
        await event_of(cluster, "overused", group["metadata"]["name"])
    await cluster.api.request("DELETE", f"/apis/{VOLCANO}/namespaces/default/podgroups/hold")
    await phase_of(cluster, "Inqueue", "y")


async def test_scenario_76_a_group_without_resources_is_admitted_without_pods(cluster):
    await cluster.create(created(volcano_group(minMember=3)))
    assert (await phase_of(cluster, "Inqueue"))["phase"] == "Inqueue"


async def test_scenario_77_the_cluster_is_overcommitted_by_a_fifth(cluster):
    await cluster.create(created(volcano_group(minMember=1, minResources={"cpu": "10"})))
    event = await event_of(cluster, "resource in cluster is overused: overused cpu")
    assert (event["type"], event["reason"]) == ("Normal", "Unschedulable")
    await phase_of(cluster, "Pending")
    await cluster.create(created(volcano_group("h", minMember=1, minResources={"cpu": "9600m"})))
    await phase_of(cluster, "Inqueue", "h")
    await phase_of(cluster, "Pending")


async def test_scenario_78_a_queue_is_not_promised_more_than_its_capability(cluster):
    await cluster.create(
        created(queue("small", capability={"cpu": 4})),
        created(volcano_group("h", minMember=1, queue="small")),
        created(task("p", group="h", cpu="3")),
    )
    await cluster.bound("p")
    await cluster.create(created(volcano_group(minMember=1, queue="small", minResources={"cpu": "2"})))
    await event_of(cluster, "queue resource quota insufficient: insufficient cpu")
    await phase_of(cluster, "Pending")
    await cluster.delete("Pod", "p")
    await phase_of(cluster, "Inqueue")


async def test_scenario_79_a_group_runs_once_enough_members_are_bound(cluster):
    await cluster.create(created(volcano_group(minMember=3)))
    await phase_of(cluster, "Inqueue")
    await cluster.create(*(created(task(f"p{number}")) for number in range(2)))
    await cluster.create(created(task("p2")))
    found = await phase_of(cluster, "Running")
    conditions = {each["type"]: each for each in found["conditions"]}
    assert conditions["Scheduled"]["reason"] == "tasks in gang are ready to be scheduled"
    assert conditions["Scheduled"]["transitionID"]
    queues = f"/apis/{VOLCANO}/queues/default"

    async def counted():
        status = (await cluster.api.get_json(queues)).get("status") or {}
        return status.get("allocated") == {"cpu": "3", "pods": "3"} or None

    assert await cluster.until(counted, "the queue says what its pods use")


async def test_scenario_80_the_group_says_that_a_task_is_missing(cluster):
    group = volcano_group(minMember=3, minTaskMember={"ps": 1, "worker": 2})
    await cluster.create(created(group), *(created(task(f"p{each}", "worker")) for each in range(3)))

    async def short():
        path = f"/apis/{VOLCANO}/namespaces/default/podgroups/g"
        found = ((await cluster.api.get_json(path)).get("status") or {}).get("conditions") or [{}]
        return found[0].get("reason") == "NotEnoughPodsOfTask" or None

    assert await cluster.until(short, "the condition says which pods are missing")


async def test_scenario_86_a_closed_queue(cluster):
    await cluster.create(created(queue("shut")))
    path = f"/apis/{VOLCANO}/queues/shut/status"
    await cluster.api.request("PATCH", path, {"status": {"state": "Closed"}}, content_type=MERGE_PATCH)
    sized = volcano_group("sized", minMember=1, queue="shut", minResources={"cpu": "1"})
    await cluster.create(created(sized), created(volcano_group(minMember=1, queue="shut")))
    await phase_of(cluster, "Inqueue")
    await event_of(cluster, 'queue "shut" is Closed', "sized")
    await cluster.create(created(task("p")))
    assert 'queue "shut" is Closed' in await cluster.rejected("p")
    await phase_of(cluster, "Pending", "sized")


async def test_scenario_88_a_group_that_lost_its_quorum_is_unknown(cluster):
    await cluster.create(created(volcano_group(minMember=2)))
    await cluster.create(*(created(task(f"p{number}", cpu="4")) for number in range(2)))
    await phase_of(cluster, "Running")
    await cluster.delete("Pod", "p0")

    async def gone():
        return [each["metadata"]["name"] for each in await cluster.list("Pod")] == ["p1"] or None

    await cluster.until(gone, "the pod is gone")
    await cluster.create(created(task("p2", nodeSelector={"gpu": "yes"})))

    async def is_tried():
        found = await phase_of(cluster, "Unknown")
        return found if "NotEnoughResources" in str(found) else None

    found = await cluster.until(is_tried, "the group is short")
    (short,) = (each for each in found["conditions"] if each["type"] == "Unschedulable")
    assert (short["status"], short["reason"]) == ("True", "NotEnoughResources")
    assert short["message"].startswith(
        "1/2 tasks in gang unschedulable: pod group is not ready, 1 Pending, 1 Running, 2 minAvailable; "
        "Pending: 1 Unschedulable. Origin reason is p2: 0/1 nodes are available: "
        "1 node(s) didn't match Pod's node affinity/selector."
    )


async def test_scenario_89_a_group_whose_pods_have_ended(cluster):
    await cluster.create(created(volcano_group(minMember=2)))
    seconds = {"kubelet.stowplan/run-seconds": "0.1"}
    await cluster.create(*(created(task(f"p{number}"), **seconds) for number in range(2)))
    found = await phase_of(cluster, "Completed")
    assert found["succeeded"] == 2
