"""The scenarios of the specification that were seen on a real control plane, once more: kube-scheduler with
its gates, then ours. Where ours differs, that is one of kube-scheduler's faults, and named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from urllib.error import HTTPError

import pytest

from controlplane.control_plane import ADMIN, ControlPlane, token_of
from controlplane.objects import node, pod
from controlplane.pages import ask
from controlplane.pod_groups import (
    GATES,
    GROUPS,
    SCHEDULED,
    TOPOLOGY,
    UNSCHEDULABLE,
    WAIT,
    WHOLE,
    add_members,
    create_class,
    create_group,
    group_condition,
    nominated,
    plane_with_groups,
    remove_group,
    victims,
    wipe,
)
from controlplane.pods import PODS, add_nodes, condition, create, placed
from controlplane.process import Process, ProgramError
from controlplane.waiting import eventually

Json = dict[str, Any]
QUIET_SECONDS = 1.5
"""How long nothing must happen where nothing should."""
RACK = {"topology": [{"key": "rack"}]}
SETS = {"G": GATES, "T": TOPOLOGY, "W": WHOLE, "TW": f"{TOPOLOGY},WorkloadAwarePreemption=true"}
SETS["generic"] = "--feature-gates=GenericWorkload=true"
SETS["no pop"] = f"{GATES},SchedulerPopFromBackoffQ=false"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
POLICY_BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


class Cluster:
    """A control plane with one of the schedulers at work."""

    def __init__(self, plane: ControlPlane, process: Process, *, is_ours: bool) -> None:
        self.plane, self.process, self.is_ours = plane, process, is_ours

    def nodes(self, *cpus: str, rack: str = "", prefix: str = "n") -> None:
        for number, cpu in enumerate(cpus, 1):
            labels = {"rack": rack} if rack else {}
            made = node(f"{prefix}{number}", labels=labels)
            amounts = {**made["status"]["capacity"], "cpu": cpu}
            made["status"] = {"capacity": amounts, "allocatable": amounts}
            add_nodes(self.plane, made)

    def racks(self) -> None:
        """Rack a has 4 CPUs, rack b 8."""
        self.nodes("2", "2", rack="ra", prefix="a")
        self.nodes("4", "4", rack="rb", prefix="b")

    def group(self, count: int, least: int | None, name: str = "g", **options: Any) -> None:
        create_group(self.plane, count, least, name, **options)

    def pods(self, *made: Json) -> None:
        create(self.plane, *made)

    def low(self, *names: str, on: str, **options: Any) -> None:
        self.pods(*(pod(name, requests={"cpu": "1"}, nodeName=on, **options) for name in names))

    @property
    def bound(self) -> dict[str, str]:
        return {name: on for name, on in placed(self.plane).items() if on}

    def texts(self, *names: str) -> list[str]:
        return [condition(self.plane, name).get("message", "") for name in names]

    async def until(self, read: Callable[[], Any], expected: Any) -> None:
        await eventually(read, lambda found: found == expected)

    async def all_bound(self, count: int) -> None:
        await eventually(lambda: self.bound, lambda found: len(found) == count)

    async def verdict(self, expected: Any, name: str = "g") -> None:
        await self.until(lambda: group_condition(self.plane, name), expected)

    def attempts(self) -> int:
        """How often a pod was found unschedulable so far."""
        _, page = ask(self.process.server, "/metrics", token_of(ADMIN))
        lines = (line for line in page.splitlines() if line.startswith("scheduler_schedule_attempts_total{"))
        return sum(int(float(line.split()[-1])) for line in lines if 'result="unschedulable"' in line)

    def end(self, *names: str) -> None:
        """Let pods that are being deleted go, as their kubelet would."""
        for name in names:
            self.plane.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")

    async def quiet(self) -> None:
        await asyncio.sleep(QUIET_SECONDS)


@pytest.fixture(scope="module")
def running_plane(tmp_path_factory) -> Iterator[ControlPlane]:
    with plane_with_groups(tmp_path_factory.mktemp("groups")) as running:
        yield running


@pytest.fixture(scope="module")
def running(request, running_plane: ControlPlane) -> Iterator[Cluster]:
    """One scheduler for all tests that follow with the same gates."""
    gates, kind = request.param
    wipe(running_plane)
    with getattr(running_plane, kind)(SETS[gates], **PROFILES.get(gates, {})) as process:
        yield Cluster(running_plane, process, is_ours=kind == "stowplan")


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    wipe(running.plane)
    return running


PROFILES = {"two": {"profiles": [{"schedulerName": "default-scheduler"}, {"schedulerName": "two"}]}}
SETS["two"] = GATES


def beside(gates: str) -> pytest.MarkDecorator:
    kinds = [(gates, "kube_scheduler"), (gates, "stowplan")]
    ids = [f"{gates}-{kind}" for _, kind in kinds]
    return pytest.mark.parametrize("running", kinds, indirect=True, ids=ids, scope="module")


@beside("G")
async def test_scenario_1_a_group_that_does_not_exist(cluster):
    cluster.nodes("4")
    add_members(cluster.plane, range(1))
    if cluster.is_ours:  # F10: kube-scheduler says nothing
        text = 'waiting for pods\'s pod group "g" to appear in scheduling queue'
        await cluster.until(lambda: cluster.texts("g0"), [text])
    else:
        await cluster.quiet()
        assert cluster.texts("g0") == [""]
    assert cluster.bound == {}


@beside("G")
async def test_scenarios_2_to_4_members_come_one_by_one(cluster):
    cluster.nodes("4", "4")
    cluster.group(2, 3)
    await cluster.quiet()
    assert (cluster.bound, group_condition(cluster.plane)) == ({}, [])
    add_members(cluster.plane, range(2, 3))
    await cluster.all_bound(3)
    await cluster.verdict(SCHEDULED)
    add_members(cluster.plane, range(3, 4))
    await cluster.all_bound(4)
    assert group_condition(cluster.plane) == SCHEDULED


@beside("G")
@pytest.mark.parametrize("least", [3, None], ids=["scenario 7", "scenario 8"])
async def test_more_pods_than_fit(cluster, least):
    cluster.nodes("4")
    add_members(cluster.plane, range(5))  # all are there when the group is attempted first
    cluster.group(0, least)
    await cluster.all_bound(4)
    await cluster.verdict(SCHEDULED)
    (left,) = {f"g{number}" for number in range(5)} - cluster.bound.keys()
    await eventually(
        lambda: cluster.texts(left)[0],
        lambda text: text.startswith("0/1 nodes are available: 1 Insufficient cpu."),
    )


@beside("G")
async def test_scenario_9_a_group_of_one(cluster):
    cluster.nodes("4")
    cluster.group(1, 1)
    await cluster.all_bound(1)


@beside("G")
async def test_scenarios_10_and_11_too_few_pods(cluster):
    cluster.nodes("4")
    cluster.group(0, 3, "empty")
    cluster.group(3, 5)
    await cluster.quiet()
    assert cluster.bound == {}
    assert group_condition(cluster.plane, "empty") == group_condition(cluster.plane) == []


@beside("G")
async def test_scenarios_12_and_13_two_groups_and_room_for_one(cluster):
    cluster.nodes("4")
    cluster.group(3, 3, "a")
    await cluster.all_bound(3)
    cluster.group(3, 3, "b")
    await cluster.verdict(UNSCHEDULABLE, "b")
    texts = sorted(cluster.texts("b0", "b1", "b2"))
    assert [text.startswith("0/1 nodes are available: 1 Insufficient cpu.") for text in texts[:2]] == [
        True
    ] * 2
    assert texts[2] == WAIT
    for number in range(3):
        cluster.plane.request("DELETE", f"{PODS}/a{number}")
    await cluster.until(lambda: {name[0] for name in cluster.bound}, {"b"})
    await cluster.all_bound(3)


@beside("G")
async def test_scenario_14_a_group_that_shrinks_below_its_minimum(cluster):
    cluster.nodes("4")
    cluster.group(5, 5)
    await cluster.verdict(UNSCHEDULABLE)
    cluster.plane.request("DELETE", f"{PODS}/g4")
    cluster.nodes("4", prefix="m")
    await cluster.quiet()
    assert cluster.bound == {}


@beside("G")
async def test_scenario_16_a_member_that_no_node_takes(cluster):
    cluster.nodes("4")
    cluster.group(2, 3)
    add_members(cluster.plane, range(9, 10), nodeSelector={"no": "where"})
    text = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    await eventually(lambda: cluster.texts("g9")[0], lambda found: found.startswith(text))
    await cluster.until(lambda: cluster.texts("g0", "g1"), [WAIT, WAIT])


@beside("G")
async def test_scenario_18_a_member_with_scheduling_gates(cluster):
    cluster.nodes("4")
    cluster.group(1, 2)
    add_members(cluster.plane, range(1, 2), schedulingGates=[{"name": "example.com/later"}])
    await cluster.until(lambda: cluster.texts("g0"), [WAIT])
    cluster.plane.request("PATCH", f"{PODS}/g1", {"spec": {"schedulingGates": []}})
    await cluster.all_bound(2)


@beside("G")
async def test_scenarios_19_and_20_a_member_of_another_scheduler(cluster):
    cluster.nodes("4")
    cluster.group(1, 2)
    add_members(cluster.plane, range(1, 2), schedulerName="other")
    await cluster.quiet()
    assert cluster.bound == {}
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "g1"}, "target": target}
    cluster.plane.request("POST", f"{PODS}/g1/binding", binding)
    await cluster.all_bound(2)


@beside("two")
async def test_scenario_21_members_of_two_profiles(cluster):
    cluster.nodes("4")
    cluster.group(1, 2)
    add_members(cluster.plane, range(1, 2), schedulerName="two")
    text = "all pods in a single pod group should have the same .spec.schedulerName set, got: "
    for name in ("g0", "g1"):
        found = await eventually(
            lambda name=name: condition(cluster.plane, name), lambda each: text in each.get("message", "")
        )
        assert found["reason"] == "SchedulerError"
    assert group_condition(cluster.plane) == []


@beside("G")
async def test_scenario_22_priorities_differ(cluster):
    cluster.nodes("1")
    create_class(cluster.plane)
    cluster.group(1, 2)
    add_members(cluster.plane, range(1, 2), priorityClassName="high")
    await cluster.until(lambda: cluster.texts("g1"), [WAIT])
    await eventually(lambda: cluster.texts("g0")[0], lambda text: "Insufficient cpu" in text)
    assert cluster.bound == {}


def follow(kind: str, role: str) -> Json:
    term = {"labelSelector": {"matchLabels": {"role": role}}, "topologyKey": "kubernetes.io/hostname"}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


@beside("G")
@pytest.mark.parametrize("is_first", [False, True], ids=["scenario 23", "scenario 24"])
async def test_a_member_that_follows_another(cluster, is_first):
    cluster.nodes("4", "4")
    create_class(cluster.plane)
    first = {"priorityClassName": "high"}
    cluster.group(0, 2)
    wants = follow("podAffinity", "leader")
    add_members(cluster.plane, range(1), labels={"role": "leader"}, **({} if is_first else first))
    add_members(cluster.plane, range(1, 2), affinity=wants, **(first if is_first else {}))
    if is_first and not cluster.is_ours:  # F5: the order decides
        await cluster.verdict(UNSCHEDULABLE)
        await cluster.quiet()
        assert cluster.bound == {}
    else:
        await cluster.all_bound(2)
        assert len(set(cluster.bound.values())) == 1


@beside("G")
async def test_scenario_25_anti_affinity_against_a_later_member(cluster):
    cluster.nodes("4")
    create_class(cluster.plane)
    cluster.group(0, 2)
    apart = follow("podAntiAffinity", "follower")
    add_members(cluster.plane, range(1), affinity=apart, priorityClassName="high")
    add_members(cluster.plane, range(1, 2), labels={"role": "follower"})
    if cluster.is_ours:
        await cluster.verdict(UNSCHEDULABLE)
        assert cluster.bound == {}
    else:  # F3: later members are not seen
        await cluster.all_bound(2)


@beside("G")
async def test_scenario_26_mutual_anti_affinity(cluster):
    cluster.nodes("4")
    apart = follow("podAntiAffinity", "same")
    cluster.group(2, 2, pods={"labels": {"role": "same"}, "affinity": apart})
    await cluster.verdict(UNSCHEDULABLE)
    texts = sorted(cluster.texts("g0", "g1"))
    assert "didn't match pod anti-affinity rules" in texts[0]
    assert texts[1] == WAIT


@beside("G")
async def test_scenario_28_the_group_is_removed_while_it_waits(cluster):
    cluster.nodes("1")
    cluster.group(2, 2)
    await cluster.verdict(UNSCHEDULABLE)
    remove_group(cluster.plane)
    cluster.nodes("4", prefix="m")
    await cluster.quiet()  # kube-scheduler may report an error first, depending on when it looks
    assert cluster.bound == {}


@beside("G")
async def test_scenario_29_a_group_that_is_being_deleted(cluster):
    cluster.nodes("4")
    cluster.group(1, 2)
    cluster.plane.request("DELETE", f"{GROUPS}/g")  # its finalizer keeps it
    add_members(cluster.plane, range(1, 2))
    await cluster.all_bound(2)


def reject_bindings(plane: ControlPlane, *names: str) -> None:
    """Make the API server reject the bindings of these pods."""
    rules = [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    ]
    checks = [{"expression": f"!(request.name in {list(names)})", "message": "not today"}]
    version = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "bindings"}}
    policy = {"matchConstraints": {"resourceRules": rules}, "validations": checks}
    use = {"policyName": "bindings", "validationActions": ["Deny"]}
    create(
        plane,
        {**version, "kind": "ValidatingAdmissionPolicy", "spec": policy},
        {**version, "kind": "ValidatingAdmissionPolicyBinding", "spec": use},
    )


def is_binding_rejected(plane: ControlPlane, name: str) -> bool:
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    try:
        plane.request("POST", f"{PODS}/{name}/binding?dryRun=All", binding)
    except HTTPError:
        return True
    return False


@beside("G")
async def test_scenario_30_the_binding_of_one_member_is_rejected(cluster):
    cluster.nodes("4")
    cluster.pods(pod("probe", schedulerName="nobody"))
    reject_bindings(cluster.plane, "g0", "probe")
    try:
        await eventually(lambda: is_binding_rejected(cluster.plane, "probe"), bool)
        cluster.group(3, 3)
        await cluster.until(lambda: set(cluster.bound), {"g1", "g2"})
        text = 'running Bind plugin "DefaultBinder": '
        await eventually(lambda: cluster.texts("g0")[0], lambda found: text in found and "not today" in found)
        await cluster.verdict(SCHEDULED)
    finally:
        cluster.plane.request("DELETE", f"{POLICIES}/bindings")
        cluster.plane.request("DELETE", f"{POLICY_BINDINGS}/bindings")
    await cluster.until(lambda: set(cluster.bound), {"g0", "g1", "g2"})
    assert group_condition(cluster.plane) == SCHEDULED


@beside("G")
async def test_scenario_34_members_may_show_their_node_before_they_have_it(cluster):
    cluster.nodes("3", "2")
    cluster.group(5, 5)
    await cluster.all_bound(5)
    items = cluster.plane.request("GET", PODS)["items"]
    managers = [[each.get("subresource") for each in item["metadata"]["managedFields"]] for item in items]
    shown = sum("status" in each for each in managers)
    if cluster.is_ours:  # all are permitted before the first is bound, so that nobody waits
        assert shown == 0
    else:
        assert 0 < shown < 5


@beside("G")
async def test_scenario_35_members_that_succeeded(cluster):
    cluster.nodes("4")
    cluster.group(2, 2)
    await cluster.all_bound(2)
    await cluster.verdict(SCHEDULED)
    for name in ("g0", "g1"):
        cluster.plane.request("PATCH", f"{PODS}/{name}/status", {"status": {"phase": "Succeeded"}})
    await cluster.quiet()
    add_members(cluster.plane, range(2, 3))
    if cluster.is_ours:
        await cluster.all_bound(3)
    else:  # F9
        await cluster.quiet()
        assert "g2" not in cluster.bound


@beside("G")
async def test_scenario_36_no_nodes(cluster):
    cluster.group(2, 2)
    await cluster.verdict(UNSCHEDULABLE)
    await cluster.until(lambda: set(cluster.texts("g0", "g1")), {"no nodes available to schedule pods"})


@beside("G")
async def test_scenario_39_members_preempt(cluster):
    cluster.nodes("2", "2")
    create_class(cluster.plane)
    cluster.low("a", "b", on="n1")
    cluster.low("c", "d", on="n2")
    cluster.group(2, 2, cpu="2", pods={"priorityClassName": "high"})
    await cluster.until(lambda: victims(cluster.plane), {"a", "b", "c", "d"})
    await cluster.until(lambda: sorted(nominated(cluster.plane).values()), ["n1", "n2"])
    await cluster.verdict(
        [
            (
                "PodGroupScheduled",
                "False",
                "Unschedulable",
                "pod group is unschedulable, pod group is waiting for preemption to complete",
            )
        ]
    )


@beside("G")
async def test_scenario_40_nobody_is_evicted_in_vain(cluster):
    cluster.nodes("2", "2")
    create_class(cluster.plane)
    cluster.low("a", "b", on="n1")
    cluster.low("c", "d", on="n2")
    cluster.group(3, 3, cpu="2", pods={"priorityClassName": "high"})
    await cluster.verdict(UNSCHEDULABLE)
    if cluster.is_ours:
        await cluster.quiet()
        assert victims(cluster.plane) == set()
    else:  # F2
        await cluster.until(lambda: victims(cluster.plane), {"a", "b", "c", "d"})


@beside("generic")
async def test_scenarios_42_and_43_the_gate_of_groups_alone(cluster):
    cluster.nodes("4")
    cluster.group(2, 3)
    add_members(cluster.plane, range(2), "missing")
    await cluster.all_bound(4)


@pytest.fixture(scope="module")
def plane_without_groups(tmp_path_factory) -> Iterator[ControlPlane]:
    plane = ControlPlane(tmp_path_factory.mktemp("no-groups"))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.mark.parametrize("kind", ["kube_scheduler", "stowplan"])
async def test_scenario_44_the_api_is_not_served(plane_without_groups, kind):
    plane = plane_without_groups
    plane.wipe()
    add_nodes(plane, node("n1"))
    create(plane, pod("plain"))
    if kind == "stowplan":
        with plane.stowplan(GATES):
            await eventually(lambda: placed(plane), lambda found: found == {"plain": "n1"})
        return
    plane.start_seconds = 20.0
    try:
        with pytest.raises(ProgramError, match="is not ready"), plane.kube_scheduler(GATES):
            pass
    finally:
        plane.start_seconds = ControlPlane.start_seconds
    assert placed(plane) == {"plain": ""}  # F17


@beside("no pop")
async def test_scenario_45_a_gang_that_cannot_fit_without_popping_from_backoff(cluster):
    cluster.nodes("4")
    before = cluster.attempts()
    cluster.group(5, 5)
    await cluster.verdict(UNSCHEDULABLE)
    await eventually(cluster.attempts, lambda found: found >= before + 5)
    if cluster.is_ours:
        for _ in range(5):
            await cluster.quiet()
        assert cluster.attempts() == before + 5
    else:  # again after each backoff, but not in a loop
        await eventually(cluster.attempts, lambda found: found >= before + 15)
        assert cluster.attempts() < before + 100


@beside("T")
async def test_scenario_47_no_rack_takes_all(cluster):
    cluster.racks()
    cluster.group(9, 9, schedulingConstraints=RACK)
    text = "0/2 placements are available, first placement status: pod group is unschedulable"
    await cluster.verdict([("PodGroupScheduled", "False", "Unschedulable", text)])


@beside("T")
async def test_scenario_48_a_label_that_no_node_has(cluster):
    cluster.nodes("4")
    cluster.group(2, 2, schedulingConstraints=RACK)
    text = "no feasible placements found"
    await cluster.verdict([("PodGroupScheduled", "False", "Unschedulable", text)])
    await cluster.until(lambda: set(cluster.texts("g0", "g1")), {text})


@beside("T")
async def test_scenario_49_the_rack_of_members_that_run(cluster):
    cluster.racks()
    cluster.group(0, 3, schedulingConstraints=RACK)
    add_members(cluster.plane, range(9, 10), nodeName="b1")
    add_members(cluster.plane, range(2))
    await cluster.all_bound(3)
    assert {on[0] for on in cluster.bound.values()} == {"b"}


@beside("T")
async def test_scenario_50_members_run_in_two_racks(cluster):
    cluster.racks()
    cluster.group(0, 3, schedulingConstraints=RACK)
    add_members(cluster.plane, range(8, 9), nodeName="a1")
    add_members(cluster.plane, range(9, 10), nodeName="b1")
    add_members(cluster.plane, range(1))
    text = "more than 1 domain found for pod group: "
    found = await eventually(
        lambda: condition(cluster.plane, "g0"), lambda each: text in each.get("message", "")
    )
    assert found["reason"] == "SchedulerError"


@beside("T")
async def test_scenario_51_a_member_runs_on_a_node_without_the_label(cluster):
    cluster.racks()
    cluster.nodes("4")
    cluster.group(0, 2, schedulingConstraints=RACK)
    add_members(cluster.plane, range(9, 10), nodeName="n1")
    add_members(cluster.plane, range(1))
    text = "no topology domain found for pod default/g9"
    await eventually(lambda: cluster.texts("g0")[0], lambda found: text in found)


@beside("T")
async def test_scenario_52_a_basic_group_and_its_first_pod(cluster):
    cluster.racks()
    if cluster.is_ours:  # all pods that are known count
        add_members(cluster.plane, range(5))
        cluster.group(0, None, schedulingConstraints=RACK)
        await cluster.all_bound(5)
        assert {on[0] for on in cluster.bound.values()} == {"b"}
        return
    cluster.group(1, None, schedulingConstraints=RACK)
    await cluster.all_bound(1)
    add_members(cluster.plane, range(1, 5))
    await cluster.all_bound(4)
    await cluster.quiet()
    assert [on[0] for on in cluster.bound.values()] == ["a"] * 4  # F18: the first pod decides the rack


@beside("T")
async def test_scenario_53_empty_constraints(cluster):
    cluster.nodes("2", "2")
    cluster.group(4, 4, schedulingConstraints={})
    await cluster.all_bound(4)


@beside("W")
async def test_scenario_57_one_fits_and_one_needs_room(cluster):
    cluster.nodes("1", "1")
    create_class(cluster.plane)
    cluster.low("a", on="n1")
    cluster.group(2, 2, priorityClassName="high")
    await cluster.until(lambda: victims(cluster.plane), {"a"})
    shown = {"n1", "n2"} if cluster.is_ours else {"n2"}  # F7
    await cluster.until(lambda: set(nominated(cluster.plane).values()), shown)


@beside("W")
async def test_scenario_58_a_class_of_the_pods_does_not_count(cluster):
    cluster.nodes("2")
    create_class(cluster.plane)
    cluster.low("a", "b", on="n1")
    cluster.group(2, 2, pods={"priorityClassName": "high"})
    text = "pod group is unschedulable, No preemption victims found for incoming preemptor"
    await cluster.verdict([("PodGroupScheduled", "False", "Unschedulable", text)])
    assert victims(cluster.plane) == set()


@beside("W")
async def test_scenario_59_members_that_never_preempt(cluster):
    cluster.nodes("2")
    create_class(cluster.plane)
    create_class(cluster.plane, "never", 5, preemptionPolicy="Never")
    cluster.low("a", "b", on="n1")
    cluster.group(2, 2, pods={"priorityClassName": "never"}, priorityClassName="high")
    text = "pod group is unschedulable, not eligible due to preemptionPolicy=Never."
    await cluster.verdict([("PodGroupScheduled", "False", "Unschedulable", text)])
    assert victims(cluster.plane) == set()


@beside("W")
async def test_scenario_60_a_group_that_is_evicted_as_a_whole(cluster):
    cluster.nodes("3")
    create_class(cluster.plane)
    cluster.group(0, 1, "v", disruptionMode="PodGroup")
    add_members(cluster.plane, range(3), "v", nodeName="n1", terminationGracePeriodSeconds=30)
    cluster.group(1, 1, priorityClassName="high")
    await cluster.until(lambda: victims(cluster.plane), {"v0", "v1", "v2"})
    disrupted = {each[0] for each in group_condition(cluster.plane, "v")}
    if cluster.is_ours:  # F11
        await cluster.until(
            lambda: {each[0] for each in group_condition(cluster.plane, "v")}, {"DisruptionTarget"}
        )
    else:
        assert disrupted == set()


@beside("W")
async def test_scenario_61_own_members_are_never_victims(cluster):
    cluster.nodes("2")
    create_class(cluster.plane)
    cluster.group(0, 1, priorityClassName="high")
    add_members(cluster.plane, range(2), nodeName="n1", terminationGracePeriodSeconds=30)
    add_members(cluster.plane, range(2, 3))
    if cluster.is_ours:
        text = "pod group is unschedulable, No preemption victims found for incoming preemptor"
        await cluster.verdict([("PodGroupScheduled", "False", "Unschedulable", text)])
        assert victims(cluster.plane) == set()
    else:  # F6
        await eventually(lambda: victims(cluster.plane), lambda found: len(found) == 1)


@beside("W")
async def test_scenario_62_a_group_that_the_cluster_cannot_hold(cluster):
    cluster.nodes("2")
    create_class(cluster.plane)
    cluster.low("a", "b", on="n1")
    cluster.group(3, 3, priorityClassName="high")
    text = "pod group is unschedulable, pod group is unschedulable"
    await cluster.verdict([("PodGroupScheduled", "False", "Unschedulable", text)])
    assert victims(cluster.plane) == set()


@beside("W")
async def test_scenario_63_a_budget_covers_half_of_the_victims(cluster):
    cluster.nodes("2", "2")
    create_class(cluster.plane)
    cluster.low("a", "b", on="n1", labels={"app": "safe"})
    cluster.low("c", "d", on="n2")
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "safe"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "safe"}}},
    }
    cluster.pods(budget)
    cluster.group(2, 2, priorityClassName="high")
    await cluster.until(lambda: victims(cluster.plane), {"c", "d"})


@beside("TW")
async def test_scenario_65_groups_with_a_key_do_not_preempt_as_a_whole(cluster):
    cluster.nodes("1", rack="ra")
    create_class(cluster.plane)
    cluster.low("a", on="n1")
    cluster.group(1, 1, priorityClassName="high", schedulingConstraints=RACK)
    text = "workload aware preemption is not supported for pod groups with scheduling constraints"
    await eventually(
        lambda: group_condition(cluster.plane), lambda found: bool(found) and found[0][3].endswith(text)
    )
    assert victims(cluster.plane) == set()


@beside("W")
async def test_scenario_66_a_lone_pod_and_a_group_that_goes_as_a_whole(cluster):
    cluster.nodes("2")
    create_class(cluster.plane)
    cluster.group(0, 1, "v", disruptionMode="PodGroup")
    add_members(cluster.plane, range(2), "v", nodeName="n1", terminationGracePeriodSeconds=30)
    cluster.pods(pod("high", requests={"cpu": "1"}, priorityClassName="high"))
    count = 2 if cluster.is_ours else 1  # F14
    await eventually(lambda: victims(cluster.plane), lambda found: len(found) == count)


@beside("G")
async def test_scenario_67b_a_surplus_member_that_could_preempt(cluster):
    cluster.nodes("2", "1")
    create_class(cluster.plane)
    cluster.low("a", on="n2")
    add_members(cluster.plane, range(3), priorityClassName="high")
    cluster.group(0, 2)
    await cluster.all_bound(3)  # the victim counts: it ends only with a kubelet
    await cluster.until(lambda: victims(cluster.plane), {"a"})
    await cluster.verdict(SCHEDULED)


@beside("W")
async def test_scenario_67_the_room_of_victims_that_end_slowly(cluster):
    cluster.nodes("2")
    create_class(cluster.plane)
    create_class(cluster.plane, "middle", 500)
    cluster.low("a", "b", on="n1")
    cluster.group(2, 2, priorityClassName="high")
    await cluster.until(lambda: victims(cluster.plane), {"a", "b"})
    middle = ("middle0", "middle1")
    cluster.pods(*(pod(name, requests={"cpu": "1"}, priorityClassName="middle") for name in middle))
    await eventually(lambda: cluster.texts(*middle), all)
    cluster.end("a", "b")
    if cluster.is_ours:  # F7: it is kept for the group
        await cluster.until(lambda: set(cluster.bound), {"g0", "g1"})
        await cluster.quiet()
        assert set(cluster.bound) == {"g0", "g1"}
    else:
        await eventually(lambda: set(cluster.bound), lambda found: bool(found & {*middle}))


@beside("W")
async def test_scenario_67a_a_member_arrives_while_victims_end(cluster):
    cluster.nodes("2", "2")
    create_class(cluster.plane)
    cluster.low("a", "b", on="n1")
    cluster.low("c", "d", on="n2")
    cluster.group(2, 2, priorityClassName="high")
    leaving = await eventually(lambda: victims(cluster.plane), lambda found: len(found) == 2)
    before = cluster.attempts()
    add_members(cluster.plane, range(2, 3))
    await cluster.quiet()
    assert victims(cluster.plane) == leaving
    if cluster.is_ours:
        assert cluster.attempts() - before < 20  # no loop until they are gone
    cluster.end(*leaving)
    await eventually(lambda: set(cluster.bound), lambda found: {"g0", "g1"} <= found)
