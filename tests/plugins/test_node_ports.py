"""NodePorts: ports of the node, taken and free."""

from __future__ import annotations

import pytest
from alone import UNSCHEDULABLE, ask, plugin_of, refusals

from make import make_node, make_pod
from stowplan.framework import QUEUE, SKIP_HINT, Action, ClusterEvent, Resource, Status

DELETED = ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE)
REFUSED = {"n": (UNSCHEDULABLE, "node(s) didn't have free ports for the requested pod ports")}


def port(number, protocol="", ip=""):
    return {"hostPort": number, "protocol": protocol, "hostIP": ip}


def holding(name, *ports, **fields):
    return make_pod(name, containers=[{"name": "c", "ports": list(ports)}], **fields)


@pytest.mark.parametrize(
    ("wanted", "taken", "fits"),
    [
        pytest.param(port(80), port(81), True, id="another port"),
        pytest.param(port(80), port(80), False, id="the same port"),
        pytest.param(port(80, "UDP"), port(80), True, id="another protocol, TCP being meant"),
        pytest.param(port(80, "TCP"), port(80), False, id="the protocol that is meant"),
        pytest.param(port(80, ip="10.0.0.1"), port(80, ip="10.0.0.2"), True, id="another address"),
        pytest.param(port(80, ip="10.0.0.1"), port(80, ip="10.0.0.1"), False, id="the same address"),
        pytest.param(port(80, ip="10.0.0.1"), port(80), False, id="an address, where all are taken"),
        pytest.param(port(80, ip="0.0.0.0"), port(80, ip="10.0.0.2"), False, id="all, where one is taken"),
        pytest.param(port(80, ip="::"), port(80, ip="10.0.0.1"), True, id=":: is but an address"),
        pytest.param(port(80), {"containerPort": 80}, True, id="a port of the container alone"),
    ],
)
def test_a_port_is_for_one_pod(wanted, taken, fits):
    decision = ask("NodePorts", holding("pod", wanted), make_node("n"), holding("other", taken, node="n"))
    assert refusals(decision) == ({} if fits else REFUSED)


@pytest.mark.parametrize(
    ("restart_policy", "fits"),
    [pytest.param("Always", False, id="a sidecar"), pytest.param("", True, id="a plain init container")],
)
def test_init_containers(restart_policy, fits):
    container = {"name": "i", "ports": [port(80)], "restartPolicy": restart_policy}
    pod = make_pod(initContainers=[container])
    assert refusals(ask("NodePorts", pod, make_node("n"), holding("other", port(80), node="n"))) == (
        {} if fits else REFUSED
    )


def test_own_ports_do_not_conflict_with_each_other():
    assert ask("NodePorts", holding("pod", port(80), port(80)), make_node("n")).chosen == "n"


def test_a_pod_without_host_ports_is_of_no_interest():
    plugin = plugin_of("NodePorts", make_node("n"))
    assert plugin.pre_filter(None, make_pod(), plugin.handle.cluster.nodes) == Status.skip()


@pytest.mark.parametrize(
    ("gone", "hint"),
    [
        pytest.param(holding("q", port(80), node="n"), QUEUE, id="the port is free"),
        pytest.param(holding("q", port(81), node="n"), SKIP_HINT, id="another port"),
        pytest.param(make_pod("q", node="n"), SKIP_HINT, id="no port at all"),
        pytest.param(holding("q", port(80)), SKIP_HINT, id="it never had a node"),
        pytest.param(
            holding("q", port(80), status={"nominatedNodeName": "n"}), QUEUE, id="it was promised one"
        ),
    ],
)
def test_pods_that_leave_are_news(gone, hint):
    plugin = plugin_of("NodePorts")
    assert plugin.queueing_hint(holding("pod", port(80)), DELETED, gone, None) is hint


def test_every_new_node_is_news():
    added = ClusterEvent(Resource.NODE, Action.ADD)
    assert (
        plugin_of("NodePorts").queueing_hint(holding("pod", port(80)), added, None, make_node("n")) is QUEUE
    )
