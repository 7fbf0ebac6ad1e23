"""TopologicalSort, NetworkOverhead and SySched on a real API server, with objects as their users have."""

from __future__ import annotations

import subprocess

import pytest
from custom_objects import install_kind, readable

from controlplane.control_plane import ControlPlane
from controlplane.objects import node, pod
from controlplane.pods import add_nodes, condition, create, placed
from controlplane.waiting import eventually
from stowplan.plugins.app_groups import GROUP_LABEL, WORKLOAD_LABEL, AppGroup
from stowplan.plugins.community.network_overhead import REGION, ZONE, NetworkTopology
from stowplan.plugins.community.sysched import SeccompProfile

SORT = {"enabled": [{"name": "TopologicalSort"}], "disabled": [{"name": "*"}]}
NETWORK = {"plugins": {"queueSort": SORT, "multiPoint": {"enabled": [{"name": "NetworkOverhead"}]}}}
SYSCALLS = {"plugins": {"score": {"enabled": [{"name": "SySched", "weight": 100}]}}}


def app_group(limit):
    def workload(name):
        kind = {"kind": "Deployment", "apiVersion": "apps/v1", "namespace": "default"}
        return kind | {"name": f"{name}-deployment", "selector": name}

    needs = [{"workload": workload("cart"), "minBandwidth": "100Mi", "maxNetworkCost": limit}]
    return {
        "apiVersion": "appgroup.diktyo.x-k8s.io/v1alpha1",
        "kind": "AppGroup",
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {
            "numMembers": 2,
            "topologySortingAlgorithm": "KahnSort",
            "workloads": [
                {"workload": workload("front"), "dependencies": needs},
                {"workload": workload("cart")},
            ],
        },
        "status": {
            "runningWorkloads": 0,
            "topologyCalculationTime": "2026-01-01T00:00:00Z",
            "topologyOrder": [{"workload": workload("front"), "index": 1}],
        },
    }


def network(cost):
    costs = [{"destination": "z1", "bandwidthCapacity": "1Gi", "networkCost": cost}]
    zones = {"topologyKey": ZONE, "originList": [{"origin": "z2", "costList": costs}]}
    return {
        "apiVersion": "networktopology.diktyo.x-k8s.io/v1alpha1",
        "kind": "NetworkTopology",
        "metadata": {"name": "nt-default", "namespace": "default"},
        "spec": {"configmapName": "netperf", "weights": [{"name": "UserDefined", "topologyList": [zones]}]},
    }


def member(name, workload, **spec):
    made = pod(name, **spec)
    made["metadata"]["labels"] = {GROUP_LABEL: "shop", WORKLOAD_LABEL: workload}
    return made


async def test_pods_go_near_what_they_depend_on(control_plane: ControlPlane):
    for kind in (AppGroup, NetworkTopology):
        install_kind(control_plane, kind)
    add_nodes(
        control_plane,
        *(node(f"n{zone}", labels={REGION: "r", ZONE: f"z{zone}"}) for zone in (1, 2)),
    )
    create(control_plane, network(9), app_group(5))
    kept = control_plane.request(
        "GET", "/apis/appgroup.diktyo.x-k8s.io/v1alpha1/namespaces/default/appgroups/shop"
    )
    assert (kept["spec"], kept["status"]) == (app_group(5)["spec"], app_group(5)["status"])
    with (
        readable(control_plane, AppGroup, NetworkTopology),
        control_plane.stowplan(profiles=[NETWORK]),
    ):
        create(control_plane, member("cart", "cart", nodeSelector={ZONE: "z1"}))
        await eventually(lambda: placed(control_plane), lambda each: each["cart"] == "n1")
        create(control_plane, member("front", "front"), member("far", "front", nodeSelector={ZONE: "z2"}))
        await eventually(lambda: placed(control_plane), lambda each: each["front"] == "n1")
        found = await eventually(lambda: condition(control_plane, "far"), bool)
        assert (
            "network requirements of most workload dependencies: satisfied: 0, violated: 1"
            in found["message"]
        )
        path = "/apis/appgroup.diktyo.x-k8s.io/v1alpha1/namespaces/default/appgroups/shop"
        control_plane.request("PATCH", path, {"spec": app_group(9)["spec"]})
        await eventually(lambda: placed(control_plane), lambda each: each["far"] == "n2", seconds=20)


@pytest.mark.parametrize("made", [app_group(-1), app_group(10_001), network(-1)])
def test_the_definitions_reject_impossible_numbers(control_plane: ControlPlane, made):
    for kind in (AppGroup, NetworkTopology):
        install_kind(control_plane, kind)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        create(control_plane, made)
    assert "Invalid value" in failed.value.stderr


async def test_pods_go_where_the_same_system_calls_are_used(control_plane: ControlPlane):
    install_kind(control_plane, SeccompProfile)
    add_nodes(control_plane, node("n1"), node("n2"))
    for name, calls in (("web", ["read", "accept4"]), ("db", ["read", "fsync"])):
        spec = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"action": "SCMP_ACT_ALLOW", "names": calls}]}
        meta = {"name": name, "namespace": "default"}
        kind = {"apiVersion": SeccompProfile.definition.api_version, "kind": "SeccompProfile"}
        create(control_plane, kind | {"metadata": meta, "spec": spec})

    def using(name, profile):
        path = f"operator/default/{profile}.json"
        return pod(name, securityContext={"seccompProfile": {"type": "Localhost", "localhostProfile": path}})

    with readable(control_plane, SeccompProfile), control_plane.stowplan(profiles=[SYSCALLS]):
        create(control_plane, using("web-1", "web"))
        first = (await eventually(lambda: placed(control_plane), lambda each: each["web-1"]))["web-1"]
        create(control_plane, using("db-1", "db"))
        found = await eventually(lambda: placed(control_plane), lambda each: each["db-1"])
        assert found["db-1"] != first
        create(control_plane, using("web-2", "web"))
        assert (await eventually(lambda: placed(control_plane), lambda each: each["web-2"]))["web-2"] == first
