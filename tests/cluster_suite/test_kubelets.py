"""Simulated kubelets make a cluster of a real control plane."""

from __future__ import annotations

from controlplane.control_plane import SCHEDULER
from controlplane.objects import NODE_TEMPLATE, pod
from controlplane.waiting import eventually
from stowplan.api.pod import Pod

PODS_PATH = "/api/v1/namespaces/default/pods"
LEASES_PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def names(control_plane, path):
    return [item["metadata"]["name"] for item in control_plane.request("GET", path)["items"]]


def phase(control_plane, name):
    return control_plane.request("GET", f"{PODS_PATH}/{name}")["status"]["phase"]


async def test_registered_nodes_are_ready_and_registering_again_changes_nothing(control_plane, kubelets):
    await kubelets.register(NODE_TEMPLATE, ["n1", "n2"])
    await kubelets.register({}, ["n2"])
    for item in control_plane.request("GET", "/api/v1/nodes")["items"]:
        assert item["status"]["allocatable"] == NODE_TEMPLATE["status"]["capacity"]
        ready = [entry["status"] for entry in item["status"]["conditions"] if entry["type"] == "Ready"]
        assert ready == ["True"]


async def test_nodes_beat_until_they_are_deleted(control_plane, kubelets):
    await kubelets.register(NODE_TEMPLATE, ["n1", "n2"])
    await eventually(lambda: names(control_plane, LEASES_PATH), lambda found: found == ["n1", "n2"])

    def renewed():
        return {
            item["metadata"]["name"]: item["spec"]["renewTime"]
            for item in control_plane.request("GET", LEASES_PATH)["items"]
        }

    control_plane.request("DELETE", "/api/v1/nodes/n2")
    before = renewed()
    known = await eventually(renewed, lambda found: found["n1"] > before["n1"])  # by now the deletion is
    last = await eventually(renewed, lambda found: found["n1"] > known["n1"])
    assert last["n2"] == known["n2"]


async def test_a_bound_pod_runs_and_an_unbound_one_does_not(control_plane, connect, kubelets):
    await kubelets.register(NODE_TEMPLATE, ["n1"])
    for name in ("bound", "waiting"):
        control_plane.request("POST", PODS_PATH, pod(name))
    api = await connect(SCHEDULER)
    await api.create_binding(Pod.decode(control_plane.request("GET", f"{PODS_PATH}/bound")), "n1")
    await eventually(lambda: phase(control_plane, "bound"), lambda found: found == "Running")
    assert phase(control_plane, "waiting") == "Pending"

    status = control_plane.request("GET", f"{PODS_PATH}/bound")["status"]
    assert status["startTime"]
    assert {entry["type"]: entry["status"] for entry in status["conditions"]} == {
        "PodScheduled": "True",  # the API server's own, from the binding
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "ContainersReady": "True",
        "Ready": "True",
    }
    ready = control_plane.kubectl("wait", "pod/bound", "--for=condition=Ready", "--timeout=30s")
    assert ready.strip() == "pod/bound condition met"


async def test_a_deleted_pod_goes_away_whatever_time_it_was_given(control_plane, kubelets):
    await kubelets.register(NODE_TEMPLATE, ["n1"])
    control_plane.request("POST", PODS_PATH, pod("p", nodeName="n1", terminationGracePeriodSeconds=3600))
    await eventually(lambda: phase(control_plane, "p"), lambda found: found == "Running")
    control_plane.request("DELETE", f"{PODS_PATH}/p")
    await eventually(lambda: names(control_plane, PODS_PATH), lambda found: found == [])


async def test_kubelets_go_on_after_the_api_server_was_down(control_plane, kubelets):
    await kubelets.register(NODE_TEMPLATE, ["n1"])
    control_plane.request("POST", PODS_PATH, pod("before", nodeName="n1"))
    await eventually(lambda: phase(control_plane, "before"), lambda found: found == "Running")
    control_plane.api_server.kill()
    control_plane.api_server.start()
    control_plane.request("POST", PODS_PATH, pod("after", nodeName="n1"))
    await eventually(lambda: phase(control_plane, "after"), lambda found: found == "Running", seconds=60)


async def test_kube_scheduler_and_kubelets_make_a_cluster(control_plane, kubelets):
    await kubelets.register(NODE_TEMPLATE, ["n1"])
    with control_plane.kube_scheduler():
        control_plane.kubectl("create", "-f", "-", objects=[pod("p", requests={"cpu": "1"})])
        await eventually(lambda: phase(control_plane, "p"), lambda found: found == "Running")


async def test_a_wiped_control_plane_is_as_good_as_new(control_plane, kubelets):
    control_plane.kubectl("create", "namespace", "shop")
    await kubelets.register(NODE_TEMPLATE, ["n1"])
    stuck = pod("stuck", namespace="shop", nodeName="n1")
    stuck["metadata"]["finalizers"] = ["example.com/never"]
    control_plane.request("POST", "/api/v1/namespaces/shop/pods", stuck)
    control_plane.wipe()
    assert names(control_plane, "/api/v1/nodes") == []
    assert names(control_plane, "/api/v1/pods") == []
    assert "shop" not in names(control_plane, "/api/v1/namespaces")
    assert "system-node-critical" in names(control_plane, "/apis/scheduling.k8s.io/v1/priorityclasses")
