"""Extended resources that devices stand behind: who fits, and what NodeResourcesFit scores nodes by."""

from __future__ import annotations

from typing import Any

import pytest
from alone import UNRESOLVABLE, UNSCHEDULABLE, planner, refusals, scores
from device_objects import (
    a_slice,
    cluster_of,
    device,
    device_class,
    held,
    node,
    pod,
    read_claim,
    selects,
)
from hypothesis import given
from hypothesis import strategies as st

from make import Json, make_pod
from stowplan.api.kinds import object_of
from stowplan.api.resource import Allocation, DeviceClassIndex
from stowplan.cycle import Planner
from stowplan.framework import Handle
from stowplan.plugins.devices.ledger import ClaimLedger, DeviceCounts

GPU = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"
CLASS = device_class("gpu", extendedResourceName=GPU)
LARGE = device_class("gpu", "device.attributes['gpu.example.com'].size > 1", extendedResourceName=GPU)
NO_DEVICES = (UNRESOLVABLE, "cannot allocate all claims")
EAST = {"zone": "east"}


def strategy(kind: str = "LeastAllocated", *shape: tuple[int, int], **resources: int) -> Json:
    weights = resources or {"cpu": 1, GPU: 1}
    found: Json = {
        "type": kind,
        "resources": [{"name": key, "weight": value} for key, value in weights.items()],
    }
    if shape:
        points = [{"utilization": use, "score": score} for use, score in shape]
        found["requestedToCapacityRatio"] = {"shape": points}
    return {"scoringStrategy": found}


def fit(*objects: Json, args: Json | None = None) -> Planner:
    return planner("NodeResourcesFit", *objects, args=args or strategy())


def asking(count: int = 1, name: str = "p", resource: str = GPU) -> Any:
    return pod(name=name, requests={"cpu": "2", resource: str(count)})


# Filtering


@pytest.mark.parametrize("resource", [GPU, IMPLICIT])
@pytest.mark.parametrize(
    ("own", "devices", "expected"),
    [
        pytest.param(None, 2, None, id="devices for a node that does not list it"),
        pytest.param("0", 2, None, id="devices for a node that has none of its own"),
        pytest.param(None, 1, NO_DEVICES, id="too few devices"),
        pytest.param(None, 0, NO_DEVICES, id="no devices"),
        pytest.param("2", 0, None, id="a node that has its own"),
        pytest.param(
            "1", 2, (UNRESOLVABLE, "Insufficient {}"), id="too few of its own, which is what counts"
        ),
    ],
)
def test_devices_serve_where_the_node_has_none_of_its_own(resource, own, devices, expected):
    here = node("n1", **({} if own is None else {resource: own}))
    offered = a_slice("s", *(f"d{number}" for number in range(devices)))
    found = planner("NodeResourcesFit", here, offered, CLASS, also=["DynamicResources"])
    expected = {} if expected is None else {"n1": tuple(each.format(resource) for each in expected)}
    assert refusals(found.decide(asking(2, resource=resource))) == expected


def test_pods_do_not_use_up_devices_but_they_use_up_what_a_node_has_itself():
    nodes = (node("n1"), node("own", **{GPU: "1"}))
    pods = [make_pod(f"on-{name}", node=name, requests={GPU: "1"}) for name in ("n1", "own")]
    found = planner("NodeResourcesFit", *nodes, a_slice("s", "d"), CLASS, *pods, also=["DynamicResources"])
    assert refusals(found.decide(asking())) == {"own": (UNSCHEDULABLE, f"Insufficient {GPU}")}


# Counting


def counts(*objects: Json) -> dict[str, tuple[int, int]]:
    """By node: devices of the class, and those that are taken."""
    cluster = cluster_of(*objects)
    found = DeviceClassIndex.of(cluster.device_classes).class_for(GPU)
    assert found is not None
    columns = DeviceCounts(Handle(cluster)).columns(found, cluster.nodes)
    pairs = zip(*(column.tolist() for column in columns), strict=True)
    return dict(zip(cluster.nodes.names, pairs, strict=True))


TWO = (node("n1"), node("n2", EAST))
SIZES = a_slice("s", device("d0", size=1), device("d1", size=2), device("d2", size=3))
SHARED = "3fa85f64-5717-4562-b3fc-2c963f66afa6"


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param([CLASS], {"n1": (0, 0), "n2": (0, 0)}, id="no slices"),
        pytest.param([CLASS, a_slice("s", "d0", "d1")], {"n1": (2, 0), "n2": (0, 0)}, id="a node's own"),
        pytest.param(
            [CLASS, a_slice("s", "d0", allNodes=True), a_slice("t", "d0")],
            {"n1": (2, 0), "n2": (1, 0)},
            id="of all nodes",
        ),
        pytest.param(
            [CLASS, a_slice("s", "d0", "d1", nodeSelector=selects(**EAST))],
            {"n1": (0, 0), "n2": (2, 0)},
            id="of selected nodes",
        ),
        pytest.param(
            [
                CLASS,
                a_slice(
                    "s",
                    device("d0", nodeName="n1"),
                    device("d1", nodeSelector=selects(**EAST)),
                    device("d2", allNodes=True),
                    device("d3", nodeName="elsewhere"),
                    device("d4"),
                    perDeviceNodeSelection=True,
                ),
            ],
            {"n1": (2, 0), "n2": (2, 0)},
            id="each device of nodes of its own",
        ),
        pytest.param([LARGE, SIZES], {"n1": (2, 0), "n2": (0, 0)}, id="those that the class selects"),
        pytest.param(
            [
                device_class(
                    "gpu",
                    "device.attributes['gpu.example.com'].size > 1",
                    "device.driver == 'gpu.example.com' && device.attributes['gpu.example.com'].size < 3",
                    extendedResourceName=GPU,
                ),
                SIZES,
            ],
            {"n1": (1, 0), "n2": (0, 0)},
            id="by all of its selectors",
        ),
        pytest.param(
            [CLASS, a_slice("s", "d0", "d1", count=3), a_slice("t", "d0", generation=2)],
            {"n1": (3, 0), "n2": (0, 0)},
            id="also of old generations and incomplete pools",
        ),
        pytest.param(
            [LARGE, SIZES, held("d0", "d1"), held("d9", name="gone"), held("d2", name="far", pool="n2")],
            {"n1": (2, 1), "n2": (0, 0)},
            id="taken ones of the class",
        ),
        pytest.param(
            [CLASS, a_slice("s", "d0", "d1"), held("d0", shareID=SHARED)],
            {"n1": (2, 1), "n2": (0, 0)},
            id="a share is enough to be taken",
        ),
        pytest.param(
            [CLASS, a_slice("s", "d0", "d1"), held("d0", adminAccess=True)],
            {"n1": (2, 0), "n2": (0, 0)},
            id="looking on does not take it",
        ),
        pytest.param(
            [LARGE, SIZES, a_slice("t", "d0", pool="odd"), a_slice("u", device("d", size=9), nodeName="n2")],
            {"n1": (0, 0), "n2": (1, 0)},
            id="none where a selector fails for one",
        ),
        pytest.param(
            [CLASS, a_slice("s", "d0"), a_slice("t", "d0", nodeSelector=selects(**{"bad key": "x"}))],
            {"n1": (0, 0), "n2": (0, 0)},
            id="none where it is unclear whose they are",
        ),
    ],
)
def test_devices_of_a_class(objects, expected):
    assert counts(*TWO, *objects) == expected


def test_without_nodes_there_is_nothing_to_count():
    assert counts(CLASS, a_slice("s", "d0", allNodes=True)) == {}


# Scoring: 75 for the cpu, with 2 of 8 asked for


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param(
            strategy(), {"n1": (75 + 50) // 2, "own": (75 + 80) // 2, "n3": 75}, id="least allocated"
        ),
        pytest.param(
            strategy("MostAllocated"),
            {"n1": (25 + 50) // 2, "own": (25 + 20) // 2, "n3": 25},
            id="most allocated",
        ),
        pytest.param(
            strategy("RequestedToCapacityRatio", (0, 0), (100, 10)),
            {"n1": 38, "own": 23, "n3": 25},
            id="along a line, rounded",
        ),
        pytest.param(strategy(cpu=1), {"n1": 75, "own": 75, "n3": 75}, id="not among the scored resources"),
    ],
)
def test_scores(args, expected):
    found = fit(
        *(node("n1"), node("own", **{GPU: "5"}), node("n3"), CLASS),
        *(a_slice("s", "d0", "d1", "d2", "d3"), a_slice("t", "d0", nodeName="own"), held("d2")),
        args=args,
    )
    assert scores(found.decide(asking())) == expected


def test_a_class_by_its_own_name():
    found = fit(*TWO, CLASS, a_slice("s", "d0", "d1", "d2", "d3"), args=strategy(cpu=1, **{IMPLICIT: 1}))
    assert scores(found.decide(asking(2, resource=IMPLICIT))) == {"n1": (75 + 50) // 2, "n2": 75}


def test_a_pod_that_does_not_ask_for_it_is_not_scored_by_it():
    found = fit(*TWO, CLASS, a_slice("s", "d0"))
    assert scores(found.decide(pod(requests={"cpu": "2"}))) == {"n1": 75, "n2": 75}


def test_more_than_there_is_scores_nothing():
    found = fit(*TWO, CLASS, a_slice("s", "d0", "d1"))
    assert scores(found.decide(asking(3))) == {"n1": 37, "n2": 75}


# Changes

HALF = (*TWO, CLASS, a_slice("s", "d0", "d1"))
"""Two devices, one wanted: (75 + 50) // 2 for n1."""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(held("d0"), {"n1": 37, "n2": 75}, id="a claim is allocated"),
        pytest.param(a_slice("t", "d2", "d3", pool="more"), {"n1": 75, "n2": 75}, id="a slice is added"),
        pytest.param(a_slice("s", "d0"), {"n1": 37, "n2": 75}, id="a slice changes"),
        pytest.param(a_slice("s", "d0", nodeName="n2"), {"n1": 75, "n2": 37}, id="a slice changes its node"),
        pytest.param(
            device_class("gpu", "device.driver == 'other'", extendedResourceName=GPU),
            {"n1": 75, "n2": 75},
            id="the class selects others",
        ),
        pytest.param(node("n1", **{GPU: "4"}), {"n1": 75, "n2": 75}, id="the node gets its own"),
        pytest.param(node("n3"), {"n1": 62, "n2": 75, "n3": 75}, id="a node arrives"),
    ],
)
def test_changes_are_followed(change, expected):
    found = fit(*HALF)
    assert scores(found.decide(asking())) == {"n1": 62, "n2": 75}
    found.cluster.apply(object_of(change))
    assert scores(found.decide(asking())) == expected


def test_a_class_that_comes_to_stand_for_something_else():
    found = fit(*HALF)
    assert scores(found.decide(asking())) == {"n1": 62, "n2": 75}
    found.cluster.apply(object_of(device_class("gpu", extendedResourceName="example.com/other")))
    assert refusals(found.decide(asking())) == dict.fromkeys(
        ("n1", "n2"), (UNRESOLVABLE, f"Insufficient {GPU}")
    )


def test_a_node_that_becomes_selected():
    found = fit(*TWO, CLASS, a_slice("s", "d0", "d1", nodeSelector=selects(**EAST)))
    assert scores(found.decide(asking())) == {"n1": 75, "n2": 62}
    found.cluster.apply(object_of(node("n1", EAST)))
    found.cluster.apply(object_of(node("n2")))
    assert scores(found.decide(asking())) == {"n1": 62, "n2": 75}


def test_what_is_removed_is_no_longer_counted():
    found = fit(*HALF, held("d0"), a_slice("t", "d0", nodeName="n2"))
    assert scores(found.decide(asking())) == {"n1": 37, "n2": 37}
    found.cluster.remove(object_of(held("d0")))
    assert scores(found.decide(asking())) == {"n1": 62, "n2": 37}
    found.cluster.remove(object_of(a_slice("t", "d0", nodeName="n2")))
    assert scores(found.decide(asking())) == {"n1": 62, "n2": 75}


def test_an_allocation_counts_from_when_it_is_reserved():
    found = fit(*HALF)
    assert scores(found.decide(asking())) == {"n1": 62, "n2": 75}
    ledger = ClaimLedger.of(found.profiles["default-scheduler"].handle)
    claim = read_claim(held("d0"))
    ledger.reserve(claim, claim.allocation or Allocation(), asking())
    assert scores(found.decide(asking())) == {"n1": 37, "n2": 75}
    ledger.release(claim.metadata.uid)
    assert scores(found.decide(asking())) == {"n1": 62, "n2": 75}


# Against an obvious count

NAMES = ("n1", "n2", "n3", "n4")
SCOPES: st.SearchStrategy[Json] = st.one_of(
    st.sampled_from(NAMES).map(lambda name: {"nodeName": name}),
    st.just({"allNodes": True}),
    st.sampled_from(["east", "west"]).map(lambda zone: {"nodeSelector": selects(zone=zone)}),
)
DEVICES = st.integers(0, 3).flatmap(
    lambda count: st.tuples(
        *(st.builds(device, st.just(f"d{at}"), size=st.integers(1, 3)) for at in range(count))
    )
)


@st.composite
def slices(draw: st.DrawFn) -> Json:
    found = draw(DEVICES)
    if draw(st.booleans()):
        return a_slice(draw(st.sampled_from("st")), *found, pool="n1", **draw(SCOPES))
    own = [each | draw(SCOPES) for each in found]
    return a_slice(draw(st.sampled_from("uv")), *own, pool="n1", perDeviceNodeSelection=True)


@st.composite
def nodes(draw: st.DrawFn) -> Json:
    labels = draw(st.sampled_from([{}, {"zone": "east"}, {"zone": "west"}]))
    return node(draw(st.sampled_from(NAMES)), labels, **draw(st.sampled_from([{}, {}, {GPU: "5"}])))


FAILING = device_class("gpu", "device.attributes['gpu.example.com'].none == 1", extendedResourceName=GPU)
CLASSES = st.sampled_from([CLASS, LARGE, FAILING])
CLAIMS = st.builds(held, st.sampled_from(["d0", "d1", "d2"]), name=st.sampled_from("cd"))


Manifests = dict[tuple[str, str], Json]
"""By kind and name."""


def slow_score(known: Manifests, here: Json, placed: list[int], asked: int) -> int:
    """What a node scores by least allocation; `placed` is what each pod on it asks for."""
    points = [(8 - 2 * len(placed) - 2) * 100 // 8]
    own = int(here["status"]["allocatable"].get(GPU, 0))
    capacity, used = (own, sum(placed)) if own else slow_counts(known, here)
    if capacity:
        points.append(max(capacity - used - asked, 0) * 100 // capacity)
    return sum(points) // len(points)


def slow_counts(known: Manifests, here: Json) -> tuple[int, int]:
    def reaches(scope: Json) -> bool:
        terms = scope.get("nodeSelector", {"nodeSelectorTerms": []})["nodeSelectorTerms"]
        zones = [term["matchExpressions"][0]["values"][0] for term in terms]
        name, labels = here["metadata"]["name"], here["metadata"]["labels"]
        return scope.get("nodeName") == name or "allNodes" in scope or labels.get("zone") in zones

    spec = known["DeviceClass", "gpu"]["spec"]
    expressions = [selector["cel"]["expression"] for selector in spec["selectors"]]
    claims = [each for (kind, _), each in known.items() if kind == "ResourceClaim"]
    taken = {each["status"]["allocation"]["devices"]["results"][0]["device"] for each in claims}
    capacity = used = 0
    for found in (each["spec"] for (kind, _), each in known.items() if kind == "ResourceSlice"):
        for each in found["devices"]:
            if not reaches(each if "perDeviceNodeSelection" in found else found):
                continue
            if any(".none " in expression for expression in expressions):
                return 0, 0
            if not expressions or each["attributes"]["size"]["int"] > 1:
                capacity, used = capacity + 1, used + (each["name"] in taken)
    return capacity, used


@given(
    st.lists(st.one_of(slices(), slices(), nodes(), CLASSES, CLAIMS, st.integers(1, 2)), max_size=25),
    st.integers(1, 2),
)
def test_after_any_history_scores_are_those_of_an_obvious_count(history, asked):
    """A history is of objects that come or change, and of pods, given by how many devices they ask for."""
    start = [CLASS, *map(node, NAMES[:3])]
    known = {(each["kind"], each["metadata"]["name"]): each for each in start}
    placed: dict[str, list[int]] = {name: [] for name in NAMES}
    found = fit(*start)
    for number, step in enumerate(history):
        if isinstance(step, int):
            decision = found.decide(asking(step, name=f"p{number}"))
            found.carry_out(decision)
            placed.get(decision.chosen or "", []).append(step)
        else:
            known[step["kind"], step["metadata"]["name"]] = step
            found.cluster.apply(object_of(step))
        actual = scores(found.decide(asking(asked)))
        assert actual == {
            name: slow_score(known, known["Node", name], placed[name], asked) for name in actual
        }
