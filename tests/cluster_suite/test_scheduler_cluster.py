"""`stowplan run`, a process of its own with kube-scheduler's rights and no more, on a real control plane."""

from __future__ import annotations

import json

from controlplane.objects import node, pod
from controlplane.pods import add_nodes, condition, create, placed
from controlplane.waiting import eventually


async def test_pods_are_bound_with_their_events(control_plane):
    add_nodes(control_plane, node("n1"), node("n2"))
    with control_plane.stowplan():
        create(control_plane, pod("a"), pod("b"))
        found = await eventually(lambda: placed(control_plane), lambda each: all(each.values()))
        assert set(found) == {"a", "b"}
        events = await eventually(
            lambda: control_plane.request("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"],
            lambda items: len(items) == 2,
        )
        assert {event["reason"] for event in events} == {"Scheduled"}
        assert {event["reportingController"] for event in events} == {"default-scheduler"}


async def test_a_pod_that_does_not_fit_says_why_and_goes_once_there_is_room(control_plane):
    add_nodes(control_plane, node("n1"))
    with control_plane.stowplan():
        create(control_plane, pod("big", requests={"cpu": "4"}))
        await eventually(lambda: placed(control_plane), lambda each: each["big"] == "n1")
        create(control_plane, pod("next", requests={"cpu": "1"}))
        found = await eventually(lambda: condition(control_plane, "next"), bool)
        assert found["reason"] == "Unschedulable"
        assert found["message"] == (
            "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: "
            "0/1 nodes are available: 1 No preemption victims found for incoming pod."
        )
        control_plane.kubectl("delete", "pod", "big", "--grace-period=0", "--force")
        await eventually(lambda: placed(control_plane), lambda each: each["next"] == "n1")


async def test_taints_affinity_and_spread_decide(control_plane):
    zone = "topology.kubernetes.io/zone"
    zones = [node(f"n{number}", labels={zone: f"z{number % 2}"}) for number in range(4)]
    tainted = node("tainted", labels={"disk": "ssd"}, taints=[{"key": "only", "effect": "NoSchedule"}])
    add_nodes(control_plane, *zones, tainted)
    spread = {
        "maxSkew": 1,
        "topologyKey": zone,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    with control_plane.stowplan():
        create(
            control_plane,
            *(pod(f"web{n}", labels={"app": "web"}, topologySpreadConstraints=[spread]) for n in range(4)),
            pod("ssd", nodeSelector={"disk": "ssd"}, tolerations=[{"key": "only", "operator": "Exists"}]),
        )
        found = await eventually(lambda: placed(control_plane), lambda each: all(each.values()))
        assert found.pop("ssd") == "tainted"
        assert sorted(int(name[1:]) % 2 for name in found.values()) == [0, 0, 1, 1]


async def test_a_higher_priority_evicts_a_lower_one(control_plane):
    add_nodes(control_plane, node("n1"))
    high = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 1000,
    }
    create(control_plane, high)
    with control_plane.stowplan():
        create(control_plane, pod("low", requests={"cpu": "4"}, terminationGracePeriodSeconds=0))
        await eventually(lambda: placed(control_plane), lambda each: each["low"] == "n1")
        create(control_plane, pod("urgent", requests={"cpu": "2"}, priorityClassName="high"))
        found = await eventually(lambda: placed(control_plane), lambda each: each.get("urgent") == "n1")
        assert "low" not in found


async def test_gated_pods_wait_for_their_gates(control_plane):
    add_nodes(control_plane, node("n1"))
    with control_plane.stowplan():
        create(control_plane, pod("gated", schedulingGates=[{"name": "example.com/wait"}]), pod("free"))
        await eventually(lambda: placed(control_plane), lambda each: each["free"] == "n1")
        assert placed(control_plane)["gated"] == ""
        patch = json.dumps([{"op": "remove", "path": "/spec/schedulingGates"}])
        control_plane.kubectl("patch", "pod", "gated", "--type=json", f"--patch={patch}")
        await eventually(lambda: placed(control_plane), lambda each: each["gated"] == "n1")
