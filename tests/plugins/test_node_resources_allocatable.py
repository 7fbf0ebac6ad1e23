"""NodeResourcesAllocatable: small nodes first, or large ones."""

from __future__ import annotations

import pytest
from alone import planner as alone
from alone import plugin_of, scores
from hypothesis import given
from hypothesis import strategies as st

from make import make_node, make_pod, planner
from stowplan.errors import ConfigError

NAME = "NodeResourcesAllocatable"
GPU = "example.com/gpu"


def node(name, cpu="4", memory="8Gi", **others):
    return make_node(name, allocatable={"cpu": cpu, "memory": memory, "pods": "9"} | others)


SIZES = (node("a", "4", "16Gi"), node("b", "8", "32Gi"), node("c", "2", "64Gi"))


def given_to(*nodes, **args):
    return list(scores(alone(NAME, *nodes, args=args).decide(make_pod())).values())


@pytest.mark.parametrize(("mode", "expected"), [("Least", [100, 56, 0]), ("Most", [0, 43, 100])])
def test_modes(mode, expected):
    assert given_to(*SIZES, mode=mode) == expected


def test_least_is_the_default():
    assert given_to(*SIZES) == [100, 56, 0]
    assert given_to(*SIZES, mode="", resources=[]) == [100, 56, 0]


def test_the_weighted_mean_is_cut_off():
    plugin = plugin_of(NAME, *SIZES)
    found = plugin.score_nodes(None, make_pod(), plugin.handle.cluster.nodes).tolist()
    assert found == [-20383, -40767, -67535]


def test_other_resources():
    nodes = [node("a", **{GPU: "1"}), node("b", **{GPU: "4"}), node("c")]
    assert given_to(*nodes, mode="Most", resources=[{"name": GPU, "weight": 1}]) == [25, 100, 0]
    nodes = [
        make_node("a", allocatable={"pods": "9", "ephemeral-storage": "1Gi"}),
        make_node("b", allocatable={"pods": "8", "ephemeral-storage": "2Gi"}),
    ]
    resources = [{"name": name, "weight": 1} for name in ("pods", "ephemeral-storage", "nonsense")]
    assert given_to(*nodes, mode="Most", resources=resources) == [0, 100]
    assert given_to(*nodes, mode="Most", resources=resources[:1]) == [0, 0]


def test_equal_nodes_score_nothing():
    assert given_to(node("a"), node("b")) == [0, 0]


def test_neither_the_pod_nor_usage_counts():
    found = alone(NAME, node("a", "1"), node("b", "2"), node("c", "3"), make_pod("used", node="a"))
    for requests in ({}, {"cpu": "1"}, {GPU: "8"}):
        assert list(scores(found.decide(make_pod(requests=requests))).values()) == [100, 50, 0]


def test_a_changed_node_counts_for_the_next_pod():
    found = alone(NAME, *SIZES)
    assert found.decide(make_pod()).chosen == "a"
    found.cluster.apply(node("c", "1", "1Gi"))
    assert found.decide(make_pod()).chosen == "c"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"mode": "Middle"}, r'mode: Unsupported value: "Middle": supported values: "Least", "Most"'),
        ({"resources": [{"name": "cpu", "weight": 0}]}, r"resources\[0\].weight: Invalid value: 0"),
        (
            {"resources": [{"name": "cpu", "weight": -1}]},
            r"resource weight of cpu should be a positive value",
        ),
        ({"resources": [{"name": "cpu", "weight": float("nan")}]}, r"weight"),
        ({"sizes": []}, r'unknown field "sizes".*takes resources, mode'),
    ],
)
def test_bad_arguments(args, text):
    with pytest.raises(ConfigError, match=text):
        plugin_of(NAME, args=args)


SIZE = st.tuples(st.integers(0, 2**50), st.integers(0, 2**62), st.integers(0, 9))
WEIGHT = st.integers(1, 5) | st.integers(2**40, 2**62)


@given(st.lists(SIZE, min_size=2, max_size=6), st.tuples(WEIGHT, WEIGHT, WEIGHT), st.booleans(), SIZE)
def test_as_a_slow_obvious_version_would(sizes, weights, most, changed):
    def made(number, size):
        return node(f"n{number}", f"{size[0]}m", str(size[1]), **{GPU: str(size[2])})

    names = ("cpu", "memory", GPU)
    resources = [{"name": name, "weight": weight} for name, weight in zip(names, weights, strict=True)]
    args = {"mode": "Most" if most else "Least", "resources": resources}
    found = alone(NAME, *(made(*each) for each in enumerate(sizes)), args=args)
    assert list(scores(found.decide(make_pod())).values()) == slowly(sizes, weights, most)
    found.cluster.apply(made(1, changed))
    sizes[1] = changed
    assert list(scores(found.decide(make_pod())).values()) == slowly(sizes, weights, most)


def slowly(sizes, weights, most):
    raw = []
    for size in sizes:
        mean = sum(amount * weight for amount, weight in zip(size, weights, strict=True)) // sum(weights)
        raw.append(mean if most else -mean)
    span = max(raw) - min(raw)
    return [(each - min(raw)) * 100 // span if span else 0 for each in raw]


@pytest.mark.parametrize("version", ["v1", "v1beta3", "v1beta2"])
def test_arguments_of_older_versions(version):
    api_version = f"kubescheduler.config.k8s.io/{version}"
    args = {"apiVersion": api_version, "kind": "NodeResourcesAllocatableArgs", "mode": "Most"}
    config = {
        "apiVersion": api_version,
        "kind": "KubeSchedulerConfiguration",
        "profiles": [
            {
                "schedulerName": "default-scheduler",
                "plugins": {"score": {"enabled": [{"name": NAME}]}},
                "pluginConfig": [{"name": NAME, "args": args}],
            }
        ],
    }
    assert planner([], config).profiles["default-scheduler"].plugins[NAME].args.mode == "Most"  # type: ignore[attr-defined]
