"""What pods ask for and take: init containers, sidecars, overhead, pod-level requests, resizes, defaults."""

from __future__ import annotations

import pytest

from make import make_pod
from stowplan.api import requests

MI = 2**20
FILL = {"cpu": 100, "memory": 200 * MI}


def container(cpu=None, memory=None, *, name="c", sidecar=False, **others):
    wanted = {"cpu": cpu, "memory": memory} | others
    wanted = {
        key.replace("__", "/").replace("_", "-"): value for key, value in wanted.items() if value is not None
    }
    return {"name": name, "resources": {"requests": wanted}} | (
        {"restartPolicy": "Always"} if sidecar else {}
    )


def asked(*containers, init=(), **spec):
    return dict(make_pod(containers=list(containers), initContainers=list(init), **spec).requests)


@pytest.mark.parametrize(
    ("containers", "init", "cpu"),
    [
        pytest.param([container("100m"), container("200m")], [], 300, id="containers add up"),
        pytest.param([container("100m")], [container("500m")], 500, id="a larger init container"),
        pytest.param([container("300m")], [container("100m"), container("200m")], 300, id="smaller ones"),
        pytest.param([container("100m")], [container("200m", sidecar=True)], 300, id="a sidecar adds up"),
        pytest.param(
            [container("100m")],
            [container("200m", sidecar=True), container("500m")],
            700,
            id="a sidecar runs beside the init containers after it",
        ),
        pytest.param(
            [container("100m")],
            [container("500m"), container("200m", sidecar=True)],
            500,
            id="but not beside those before it",
        ),
        pytest.param(
            [container("100m")],
            [container("1", sidecar=True), container("1", sidecar=True), container("50m")],
            2100,
            id="several sidecars",
        ),
        pytest.param([container("0.5m"), container("0.5m")], [], 1, id="rounded once, at the end"),
        pytest.param([container("1.2m"), container("1.2m")], [], 3, id="and up"),
        pytest.param([container("0")], [], 0, id="zero is asked for, too"),
    ],
)
def test_cpu(containers, init, cpu):
    assert asked(*containers, init=init) == {"cpu": cpu}


def test_every_resource_is_reckoned_by_itself():
    found = asked(
        container("100m", "1Gi", ephemeral_storage="1Gi"),
        init=[container("2", "10Mi", hugepages_2Mi="4Mi", example_com__gpu="1")],
    )
    assert found == {
        "cpu": 2000,
        "memory": 2**30,
        "ephemeral-storage": 2**30,
        "hugepages-2Mi": 4 * MI,
        "example-com/gpu": 1,
    }


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("cpu", True), ("memory", True), ("ephemeral-storage", True), ("hugepages-1Gi", True),
        ("example.com/gpu", True), ("attachable-volumes-aws-ebs", True), ("kubernetes.io/anything", True),
        ("deviceclass.resource.kubernetes.io/gpu", True), ("storage", False), ("pods", False), ("gpu", False),
        ("requests.example.com/gpu", False), ("Example.com/gpu", False), ("example.com/", False),
    ],
)  # fmt: skip
def test_names_that_count(name, counts):
    assert asked({"name": "c", "resources": {"requests": {name: "3"}}}) == (
        {name: 3000 if name == "cpu" else 3} if counts else {}
    )


def test_memory_in_thousandths_is_rounded_up_once():
    assert asked(container(memory="100m"), container(memory="100m")) == {"memory": 1}


@pytest.mark.parametrize(
    ("whole", "overhead", "found"),
    [
        pytest.param({"cpu": "2"}, {}, {"cpu": 2000, "memory": 5}, id="replaces the sum"),
        pytest.param({"cpu": "100m"}, {}, {"cpu": 100, "memory": 5}, id="also by less"),
        pytest.param(
            {"cpu": "2"}, {"cpu": "1", "memory": "7"}, {"cpu": 3000, "memory": 12}, id="then overhead"
        ),
        pytest.param(
            {"hugepages-2Mi": "4Mi"}, {}, {"cpu": 1000, "memory": 5, "hugepages-2Mi": 4 * MI}, id="pages"
        ),
        pytest.param(
            {"example.com/gpu": "1", "storage": "1"}, {}, {"cpu": 1000, "memory": 5}, id="nothing else"
        ),
        pytest.param({}, {"cpu": "1"}, {"cpu": 2000, "memory": 5}, id="overhead alone"),
    ],
)
def test_pod_level_requests_and_overhead(whole, overhead, found):
    spec = {"resources": {"requests": whole}, "overhead": overhead}
    assert asked(container("1", "5"), **spec) == found


def taken(status, *containers, init=(), **spec):
    pod = make_pod(containers=list(containers), initContainers=list(init), status=status, **spec)
    return (pod.assigned or pod.shape.assigned).requests


def given(name, cpu=None, allocated=None):
    found = {"name": name}
    if cpu is not None:
        found["resources"] = {"requests": {"cpu": cpu}}
    if allocated is not None:
        found["allocatedResources"] = {"cpu": allocated}
    return found


INFEASIBLE = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
DEFERRED = [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]


@pytest.mark.parametrize(
    ("status", "cpu"),
    [
        pytest.param({}, 1000, id="no status"),
        pytest.param({"containerStatuses": [given("c", "2")]}, 2000, id="it has more"),
        pytest.param({"containerStatuses": [given("c", "500m")]}, 1000, id="it asks for more"),
        pytest.param({"containerStatuses": [given("c", "500m", "3")]}, 3000, id="it was allotted more"),
        pytest.param({"containerStatuses": [given("c", None, "3")]}, 1000, id="no resources in the status"),
        pytest.param({"containerStatuses": [given("other", "2")]}, 1000, id="another container"),
        pytest.param(
            {"containerStatuses": [given("c", "500m", "700m")], "conditions": INFEASIBLE},
            700,
            id="infeasible",
        ),
        pytest.param(
            {"containerStatuses": [given("c", "500m", "700m")], "conditions": DEFERRED}, 1000, id="deferred"
        ),
        pytest.param({"conditions": INFEASIBLE}, 1000, id="infeasible, but nothing given"),
    ],
)
def test_a_resize_counts_on_the_node(status, cpu):
    assert taken(status, container("1")) == {"cpu": cpu}
    assert make_pod(containers=[container("1")], status=status).requests == {"cpu": 1000}, "asked for as ever"


@pytest.mark.parametrize(("sidecar", "cpu"), [(True, 4000), (False, 2000)])
def test_of_init_containers_only_sidecars_are_resized(sidecar, cpu):
    status = {"initContainerStatuses": [given("i", "3")]}
    assert taken(status, container("1"), init=[container("2", name="i", sidecar=sidecar)])["cpu"] == cpu


@pytest.mark.parametrize(
    ("conditions", "cpu"),
    [pytest.param([], 5000, id="asked"), pytest.param(INFEASIBLE, 4000, id="infeasible")],
)
def test_a_resize_of_the_pod_as_a_whole(conditions, cpu):
    status = {
        "resources": {"requests": {"cpu": "3", "memory": "9"}},
        "allocatedResources": {"cpu": "4"},
        "conditions": conditions,
    }
    found = taken(status, container("1", "5"), resources={"requests": {"cpu": "5"}})
    assert found == {"cpu": cpu, "memory": 5}


def nonzero(*containers, init=(), **spec):
    found = make_pod(containers=list(containers), initContainers=list(init), **spec).shape.assigned
    return found.nonzero_cpu, found.nonzero_memory


@pytest.mark.parametrize(
    ("containers", "init", "spec", "found"),
    [
        pytest.param([container()], [], {}, (100, 200 * MI), id="one that names nothing"),
        pytest.param([container("0", "0")], [], {}, (0, 0), id="zero is not nothing"),
        pytest.param([container("1"), container()], [], {}, (1100, 400 * MI), id="container by container"),
        pytest.param(
            [container("50m", "1Mi")], [container()], {}, (100, 200 * MI), id="init containers, too"
        ),
        pytest.param([container()], [container(sidecar=True)], {}, (200, 400 * MI), id="and sidecars"),
        pytest.param(
            [container(), container()],
            [],
            {"resources": {"requests": {"cpu": "3"}}},
            (3000, 400 * MI),
            id="pod-level cpu: memory alone is filled",
        ),
        pytest.param(
            [container(memory="7"), container()],
            [],
            {"resources": {"requests": {"cpu": "3"}}},
            (3000, 7),
            id="pod-level cpu, and someone names memory: nothing is",
        ),
        pytest.param(
            [container()], [], {"overhead": {"cpu": "1"}}, (1100, 200 * MI), id="overhead comes on top"
        ),
    ],
)
def test_defaults_for_scoring(containers, init, spec, found):
    assert nonzero(*containers, init=init, **spec) == found


def test_what_a_pending_pod_is_scored_by_overlooks_pod_level_requests():
    pod = make_pod(containers=[container()], resources={"requests": {"cpu": "3", "memory": "1Gi"}})
    nanos = requests.of_spec(pod.spec, pod_level=False, fill=requests.DEFAULTS)
    assert {name: requests.amount_of(name, amount) for name, amount in nanos.items()} == FILL
