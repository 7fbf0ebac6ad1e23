"""ScoreByLabel: the node with the largest number in its label gets 100, the others in proportion."""

from __future__ import annotations

import inspect

import pytest
from alone import planner as alone
from alone import plugin_of, scores
from hypothesis import given
from hypothesis import strategies as st

import make
from make import make_node, make_pod
from stowplan.errors import ConfigError
from stowplan.plugins.community import score_by_label

NAME = "ScoreByLabel"
KEY = "score-by-label"


def nodes(*values: str | None, key: str = KEY) -> list[make.NodeObject]:
    """n0, n1 and so on, each with its label; None for a node without."""
    return [
        make_node(f"n{number}", labels={} if value is None else {key: value})
        for number, value in enumerate(values)
    ]


def given_to(*values: str | None) -> list[int]:
    return list(scores(alone(NAME, *nodes(*values)).decide(make_pod())).values())


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(["10", "5", "1"], [100, 50, 10], id="in proportion to the largest"),
        pytest.param(["3", "2"], [100, 66], id="cut off"),
        pytest.param(["7", None], [100, 0], id="no label"),
        pytest.param([None, None], [0, 0], id="no label anywhere"),
        pytest.param(["0", "0"], [0, 0], id="all zero"),
        pytest.param(["5", "5"], [100, 100], id="all equal"),
        pytest.param(
            ["7", "high", "", "1.5", "1_000", "0x10", "1e3"], [100, 0, 0, 0, 0, 0, 0], id="no number"
        ),
        pytest.param(["8", "-8"], [100, 0], id="a negative number"),
        pytest.param(["-8", "-1"], [0, 0], id="nothing but negative numbers"),
        pytest.param(["008", "4"], [100, 50], id="leading zeros"),
        pytest.param([str(2**63 - 1), str(2**62)], [100, 50], id="the largest number there is"),
        pytest.param([str(2**63), "2"], [0, 100], id="a number too large"),
        pytest.param(["9" * 5000, "0" * 5000, "2"], [0, 0, 100], id="no label value could be that long"),
    ],
)
def test_scores(values, expected):
    assert given_to(*values) == expected


def test_the_largest_number_wins():
    assert alone(NAME, *nodes("1", "5", "10")).decide(make_pod()).chosen == "n2"


def test_only_nodes_that_fit_are_compared():
    full = make_node("full", labels={KEY: "10"}, taints=["only:NoSchedule"])
    planner = alone(NAME, full, *nodes("4", "1"), also=["TaintToleration"])
    assert scores(planner.decide(make_pod())) == {"n0": 100, "n1": 25}


def test_two_profiles_have_keys_of_their_own():
    def profile(name, **args):
        return {
            "schedulerName": name,
            "plugins": {"score": {"disabled": [{"name": "*"}], "enabled": [{"name": NAME}]}},
            "pluginConfig": [{"name": NAME, "args": args}],
        }

    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    both = [make_node("a", labels={KEY: "2", "tier": "1"}), make_node("b", labels={KEY: "1", "tier": "2"})]
    planner = make.planner(
        both, kind | {"profiles": [profile("by-default"), profile("tier", labelKey="tier")]}
    )
    for _ in range(2):  # neither is confused by what the other has kept
        assert scores(planner.decide(make_pod(schedulerName="by-default"))) == {"a": 100, "b": 50}
        assert scores(planner.decide(make_pod(schedulerName="tier"))) == {"a": 50, "b": 100}


def test_a_changed_label_counts_for_the_next_pod():
    planner = alone(NAME, *nodes("10", "5", "1"))
    assert planner.decide(make_pod()).chosen == "n0"
    planner.cluster.apply(make_node("n2", labels={KEY: "40"}))
    assert scores(planner.decide(make_pod())) == {"n0": 25, "n1": 12, "n2": 100}
    planner.cluster.apply(make_node("n2"))
    assert scores(planner.decide(make_pod())) == {"n0": 100, "n1": 50, "n2": 0}


def test_arguments():
    assert plugin_of(NAME).args.label_key == KEY
    assert plugin_of(NAME, args={"labelKey": "example.com/tier"}).args.label_key == "example.com/tier"
    with pytest.raises(ConfigError, match=r'unknown field "label".*takes labelKey'):
        plugin_of(NAME, args={"label": "tier"})


label_values = st.one_of(
    st.none(),
    st.integers(-5, 200).map(str),
    st.integers(2**60, 2**65).map(str),
    st.text("019-_.ax ", max_size=4),
)


@given(st.lists(label_values, min_size=2, max_size=8), st.data())
def test_as_a_slow_obvious_version_would(values, data):
    planner = alone(NAME, *nodes(*values))
    assert list(scores(planner.decide(make_pod())).values()) == slowly(values)
    changed = data.draw(st.integers(0, len(values) - 1))
    values[changed] = data.draw(label_values)
    planner.cluster.apply(nodes(*values)[changed])
    assert list(scores(planner.decide(make_pod())).values()) == slowly(values)


def slowly(values: list[str | None]) -> list[int]:
    raw = []
    for value in values:
        digits = value is not None and value != "" and all(sign in "0123456789" for sign in value)
        number = int(value) if digits else 0
        raw.append(number if number <= 2**63 - 1 else 0)
    return [number * 100 // max(raw) if max(raw) > 0 else 0 for number in raw]


def test_it_is_short():
    assert len(inspect.getsource(score_by_label).splitlines()) <= 25
