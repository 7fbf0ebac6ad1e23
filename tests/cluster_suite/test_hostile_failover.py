"""Connections that break without a word, on a real control plane: no pod is placed on outdated knowledge."""

from __future__ import annotations

import re
import ssl
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress

import pytest
from checking import QUICK_LEASE, through

from controlplane.control_plane import ControlPlane
from controlplane.objects import node, pod
from controlplane.pods import add_nodes, create, placed
from controlplane.process import Process
from controlplane.proxy import Proxy
from controlplane.waiting import eventually

FOUND_SECONDS = 42
"""In which a half-open watch is found and its changes are here: 35 s of silence, and a busy machine."""


def on_node(control_plane: ControlPlane) -> list[str]:
    return [name for name, at in placed(control_plane).items() if at]


def says(scheduler: Process, text: str) -> bool:
    return text in scheduler.output


async def until_said(scheduler: Process, text: str, seconds: float = 60) -> None:
    await eventually(lambda: says(scheduler, text), bool, seconds=seconds)


@pytest.mark.parametrize("way", ["watch of pods", "both", "down", "up"])
async def test_a_standby_with_half_open_connections_takes_over(control_plane, start, tcp_proxy, proxy, way):
    """It knows two pods that wait, and does not hear of two others that take their room."""
    add_nodes(control_plane, node("n0"))
    with ExitStack() as stack:
        stalling = stack.enter_context(Proxy(control_plane, "stalling"))
        proxy.open_gate.clear()
        first = stack.enter_context(start("-first", leaderElection=QUICK_LEASE, **through(proxy)))
        via = stalling if way == "watch of pods" else tcp_proxy
        second = stack.enter_context(start("-second", leaderElection=QUICK_LEASE, **through(via)))
        create(control_plane, *(pod(name, requests={"cpu": "1450m"}) for name in "ab"))
        await eventually(lambda: proxy.binds, lambda binds: len(binds) == 2)
        time.sleep(1)  # until the standby has them, too
        if via is stalling:
            began = time.monotonic()  # what is opened later works
            stalling.stalls = lambda path: path.endswith("/pods") and time.monotonic() < began + 5
        else:
            assert tcp_proxy.make_half_open(way) > 15
        create(control_plane, *(pod(name, requests={"cpu": "1450m"}, nodeName="n0") for name in "cd"))
        first.kill()
        await until_said(second, "Starting to schedule")
        await until_said(second, "Unable to schedule pod")
        time.sleep(2)  # for what should not happen
    assert on_node(control_plane) == ["c", "d"]  # 2.9 of 4 CPUs


@pytest.mark.parametrize("way", ["both", "down", "up"])
async def test_a_half_open_watch_is_found_while_scheduling(control_plane, start, tcp_proxy, way):
    add_nodes(control_plane, node("n0"))
    with start(**through(tcp_proxy)) as scheduler:
        await until_said(scheduler, "Starting to schedule")
        assert tcp_proxy.make_half_open(way) > 15
        create(control_plane, pod("p"))
        await eventually(lambda: placed(control_plane)["p"], bool, seconds=FOUND_SECONDS)


async def test_a_replica_that_can_reach_nothing_does_not_lead(control_plane, start, tcp_proxy):
    """Nothing that it can prove, so it decides nothing; it cannot renew its lease either, and ends."""
    add_nodes(control_plane, node("n0"))
    with (
        start("-first", leaderElection=QUICK_LEASE) as first,
        start("-second", leaderElection=QUICK_LEASE, **through(tcp_proxy)) as second,
    ):
        tcp_proxy.make_half_open(new_ones_too=True)
        first.kill()
        create(control_plane, pod("p"))
        time.sleep(10)
        assert not says(second, "Starting to schedule")
        assert placed(control_plane) == {"p": ""}
        tcp_proxy.heal_new_ones()
        await eventually(lambda: placed(control_plane)["p"], bool, seconds=60)


def lists(control_plane: ControlPlane) -> dict[str, int]:
    """Requests of each verb that the API server has counted so far, by resource."""
    text = control_plane.request("GET", "/metrics")["text"]
    found: dict[str, int] = {}
    for line in text.splitlines():
        if line.startswith("apiserver_request_total{") and 'verb="LIST"' in line:
            resource = re.search(r'resource="(\w+)"', line)
            if resource:
                found[resource[1]] = found.get(resource[1], 0) + int(float(line.split()[-1]))
    return found


async def test_taking_over_does_not_list_large_collections_again(control_plane, start):
    """A checkpoint is asked for instead: the version of a list of one object."""
    for number in range(12):
        bulk = [pod(f"p{number}-{at}", nodeName="elsewhere", requests={"cpu": "1m"}) for at in range(50)]
        create(control_plane, *bulk)
    add_nodes(control_plane, node("n0"))
    with (
        start("-first", leaderElection=QUICK_LEASE) as first,
        start("-second", leaderElection=QUICK_LEASE) as second,
    ):
        first.kill()
        before = lists(control_plane)["pods"]
        await until_said(second, "Starting to schedule")
        assert lists(control_plane)["pods"] - before == 1
        create(control_plane, pod("p"))
        await eventually(lambda: placed(control_plane)["p"], bool)


ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:kube-scheduler"


def readiness(scheduler: Process) -> str:
    with suppress(OSError):
        careless = ssl.create_default_context()
        careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
        asked = urllib.request.Request(f"{scheduler.server}/readyz?verbose")
        try:
            with urllib.request.urlopen(asked, context=careless, timeout=5) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()
    return ""


async def test_a_new_leader_that_may_not_read_a_kind_waits_and_says_so(control_plane, start):
    add_nodes(control_plane, node("n0"))
    role = control_plane.request("GET", ROLE)
    rules = [rule for rule in role["rules"] if "resourceslices" not in rule.get("resources", ())]
    with (
        start("-first", leaderElection=QUICK_LEASE) as first,
        start("-second", leaderElection=QUICK_LEASE) as second,
    ):
        try:
            control_plane.request("PATCH", ROLE, {"rules": rules})
            first.kill()
            create(control_plane, pod("p"))
            await until_said(second, "Not scheduling yet: caches are not known to be current")
            assert "waiting for resourceslices" in second.output or '["resourceslices"]' in second.output
            assert "ok" not in readiness(second).splitlines()
            assert "[-]sched-handler-sync" in readiness(second)
            assert placed(control_plane) == {"p": ""}
            lease = control_plane.request(
                "GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
            )
            time.sleep(6)  # longer than the lease lasts
            assert not says(second, "Stopped leading")
            assert lease["spec"]["holderIdentity"]
        finally:
            control_plane.request("PATCH", ROLE, {"rules": role["rules"]})
        await eventually(lambda: placed(control_plane)["p"], bool, seconds=60)
