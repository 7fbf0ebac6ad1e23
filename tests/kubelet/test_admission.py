"""Which pods a kubelet takes, and what it says to the others."""

from __future__ import annotations

import pytest

from stowplan.api.meta import decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import HostPort, Pod
from stowplan.kubelet.admission import Usage, judge

NODE = {
    "metadata": {"name": "n1", "labels": {"zone": "a"}},
    "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "3", "example.com/gpu": "1"}},
}
BUSY = Usage(2, {"cpu": 1500, "memory": 2**29, "example.com/gpu": 1}, [HostPort("0.0.0.0", "TCP", 80)])


def pod(requests=None, ports=(), **spec):
    container = {"name": "c", "resources": {"requests": requests or {}}, "ports": list(ports)}
    return Pod.decode({"metadata": {"name": "p"}, "spec": {"containers": [container], **spec}})


def on_nodes(key, value):
    expression = {"key": key, "operator": "In", "values": [value]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        pytest.param(pod({"cpu": "500m", "memory": "512Mi"}), None, id="all that is left"),
        pytest.param(pod({"cpu": "501m"}), "OutOfcpu", id="a bit more cpu"),
        pytest.param(pod({"memory": "513Mi"}), "OutOfmemory", id="a bit more memory"),
        pytest.param(pod({"cpu": "9", "memory": "9Gi"}), "OutOfcpu", id="the first of several is told"),
        pytest.param(
            pod({"example.com/gpu": "1"}), "OutOfexample.com/gpu", id="an extended resource it lists"
        ),
        pytest.param(pod({"example.com/fpga": "1"}), None, id="an extended resource it does not list"),
        pytest.param(pod(ports=[{"containerPort": 1, "hostPort": 80}]), "NodePorts", id="a port in use"),
        pytest.param(
            pod(ports=[{"containerPort": 1, "hostPort": 80, "protocol": "UDP"}]), None, id="another protocol"
        ),
        pytest.param(pod(nodeSelector={"zone": "b"}), "NodeAffinity", id="a selector that does not match"),
        pytest.param(
            pod(affinity=on_nodes("zone", "b")), "NodeAffinity", id="an affinity that does not match"
        ),
        pytest.param(pod(affinity=on_nodes("zone", "a")), None, id="an affinity that matches"),
    ],
)
def test_what_a_kubelet_takes(asked, reason):
    refusal = judge(asked, decode(NodeObject, NODE), BUSY)
    assert (refusal.reason if refusal is not None else None) == reason


def test_a_full_node_takes_no_pod():
    refusal = judge(pod(), decode(NodeObject, NODE), Usage(3, {}, ()))
    text = "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
    assert refusal == ("OutOfpods", text)


@pytest.mark.parametrize(
    ("effect", "tolerations", "is_taken"),
    [
        pytest.param("NoExecute", [], False, id="a taint that drives pods out"),
        pytest.param("NoExecute", [{"operator": "Exists"}], True, id="one that is tolerated"),
        pytest.param("NoSchedule", [], True, id="one for schedulers alone"),
    ],
)
def test_taints(effect, tolerations, is_taken):
    node = decode(NodeObject, NODE | {"spec": {"taints": [{"key": "k", "effect": effect}]}})
    refusal = judge(pod(tolerations=tolerations), node, Usage(0, {}, ()))
    assert (refusal is None) is is_taken
    if refusal is not None:
        why = "node(s) had taints that the pod didn't tolerate"
        assert refusal == ("TaintToleration", f"Predicate TaintToleration failed: {why}")
