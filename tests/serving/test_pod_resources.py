"""/metrics/resources: what pods ask for and are limited to, as kube-scheduler shows it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asking import ask, serving

from make import make_pod
from stowplan.api.pod import Pod
from stowplan.serving.pages import render_resources


def pod_of(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **spec: Any) -> Pod:
    named = [{"name": f"c{number}", **container} for number, container in enumerate(containers)]
    initial = [{"name": f"i{number}", **container} for number, container in enumerate(init)]
    return make_pod("web", containers=named, initContainers=initial, **spec)


def asks(**requests: str) -> dict[str, Any]:
    return {"resources": {"requests": requests}}


def limited(**limits: str) -> dict[str, Any]:
    return {"resources": {"limits": limits}}


async def amounts(*pods: Pod) -> dict[tuple[str, str], str]:
    """By family and resource: unit and amount."""
    lines = (await render_resources(pods)).decode().splitlines()
    found = {}
    for line in lines:
        if not line.startswith("#"):
            name, _, labels = line.removeprefix("kube_pod_resource_").partition("{")
            parts = labels.split('"')
            found[name, parts[9]] = f"{parts[13]} {line.rpartition(' ')[2]}"
    return found


async def test_a_whole_line():
    pod = make_pod(
        "web", namespace="prod", node="n1", requests={"cpu": "250m"}, priority=7, schedulerName="mine"
    )
    assert (await render_resources([pod])).decode().splitlines() == [
        "# HELP kube_pod_resource_request [STABLE] Resources that a pod asks for.",
        "# TYPE kube_pod_resource_request gauge",
        'kube_pod_resource_request{namespace="prod",node="n1",pod="web",priority="7",resource="cpu",'
        'scheduler="mine",unit="cores"} 0.25',
    ]


async def test_a_pod_without_node_and_priority():
    page = (await render_resources([make_pod("web", requests={"cpu": "1"})])).decode()
    assert 'node="",pod="web",priority="",' in page


@pytest.mark.parametrize(
    ("resource", "amount", "shown"),
    [
        pytest.param("cpu", "1500m", "cores 1.5", id="cpu"),
        pytest.param("memory", "1Gi", "bytes 1073741824", id="memory"),
        pytest.param("ephemeral-storage", "1k", "bytes 1000", id="storage"),
        pytest.param("hugepages-2Mi", "4Mi", "bytes 4194304", id="huge pages"),
        pytest.param("attachable-volumes-ebs", "2", "integer 2", id="volumes"),
        pytest.param("example.com/gpu", "3", "integer 3", id="an extended resource"),
        pytest.param("kubernetes.io/odd", "3", " 3", id="any other"),
    ],
)
async def test_units(resource: str, amount: str, shown: str):
    found = await amounts(
        pod_of({"resources": {"requests": {resource: amount}, "limits": {resource: amount}}})
    )
    assert found == {("request", resource): shown, ("limit", resource): shown}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(pod_of(asks(cpu="0")), {}, id="zero is not shown"),
        pytest.param(
            pod_of(asks(cpu="1"), asks(cpu="2")), {("request", "cpu"): "cores 3"}, id="containers add up"
        ),
        pytest.param(
            pod_of(asks(cpu="1"), init=(asks(cpu="5"),)),
            {("request", "cpu"): "cores 5"},
            id="an init container",
        ),
        pytest.param(
            pod_of(limited(cpu="1"), limited(cpu="2"), init=(limited(cpu="2"),)),
            {("limit", "cpu"): "cores 3"},
            id="limits add up in the same way",
        ),
        pytest.param(
            pod_of(limited(cpu="1"), init=({**limited(cpu="2"), "restartPolicy": "Always"},)),
            {("limit", "cpu"): "cores 3"},
            id="a sidecar's limit",
        ),
        pytest.param(
            pod_of(limited(cpu="1"), overhead={"cpu": "1", "memory": "1k"}),
            {("request", "cpu"): "cores 1", ("request", "memory"): "bytes 1000", ("limit", "cpu"): "cores 2"},
            id="overhead is no limit of its own",
        ),
        pytest.param(
            pod_of(limited(cpu="1"), resources={"limits": {"cpu": "4"}}),
            {("limit", "cpu"): "cores 4"},
            id="a limit of the whole pod",
        ),
    ],
)
async def test_amounts(pod: Pod, expected: dict[tuple[str, str], str]):
    assert await amounts(pod) == expected


@pytest.mark.parametrize(
    ("node", "phase", "is_shown"),
    [
        pytest.param("n1", "Running", True, id="running"),
        pytest.param("n1", "Succeeded", False, id="done"),
        pytest.param("n1", "Failed", False, id="failed"),
        pytest.param("", "Failed", True, id="without a node nothing has ended"),
    ],
)
async def test_pods_that_have_ended(node: str, phase: str, is_shown: bool):
    pod = make_pod("web", node=node, requests={"cpu": "1"}, status={"phase": phase})
    assert bool(await render_resources([pod])) is is_shown


async def test_others_have_their_turn_meanwhile():
    pods = [make_pod(f"p{number}", requests={"cpu": "1"}) for number in range(2000)]
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    page = (await render_resources(pods)).decode()
    beside.cancel()
    assert turns > 4
    assert page.count("# TYPE") == 1
    assert page.count("\nkube_pod_resource_request{") == 2000


async def test_over_https():
    options = {"authorization_always_allow_paths": ("/metrics/resources",)}
    async with serving(pods=lambda: [make_pod("web", requests={"cpu": "1"})], **options) as running:
        leading = await ask(running.port, "/metrics/resources")
    async with serving(**options) as running:
        other = await ask(running.port, "/metrics/resources")
    assert leading.text.endswith('unit="cores"} 1\n')
    assert (other.status, other.text) == (200, "")


async def test_amounts_beyond_floats_do_not_spoil_the_page():
    found = await amounts(pod_of(limited(cpu="1e5000", memory="1e-5000")))
    assert found["limit", "cpu"] == "cores +Inf"
    assert found["limit", "memory"] == "bytes 1e-09"
