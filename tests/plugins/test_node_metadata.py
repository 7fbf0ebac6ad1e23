"""NodeMetadata: nodes by a number or a time in a label or an annotation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from alone import planner as alone
from alone import plugin_of, scores
from hypothesis import given
from hypothesis import strategies as st

from make import make_pod
from stowplan.api.meta import decode
from stowplan.api.node import NodeObject
from stowplan.errors import ConfigError

NAME, KEY = "NodeMetadata", "example.com/value"
NUMBER = {
    "metadataKey": KEY, "metadataSource": "Label", "metadataType": "Number", "scoringStrategy": "Highest"
}  # fmt: skip
TIME = NUMBER | {"metadataSource": "Annotation", "metadataType": "Timestamp", "scoringStrategy": "Newest"}


def node(number, value):
    """A node that has the value as label and as annotation."""
    held = {} if value is None else {KEY: value}
    meta = {"name": f"n{number}", "labels": held, "annotations": held}
    return decode(NodeObject, {"metadata": meta, "status": {"allocatable": {"cpu": "4", "pods": "9"}}})


def world(*values, args):
    return alone(NAME, *(node(*each) for each in enumerate(values)), args=args)


def given_to(*values, **args):
    base = TIME if args.get("metadataType") == "Timestamp" else NUMBER
    return list(scores(world(*values, args=base | args).decide(make_pod())).values())


@pytest.mark.parametrize("source", ["Label", "Annotation"])
@pytest.mark.parametrize(
    ("strategy", "values", "expected"),
    [
        pytest.param("Highest", ["10", "20", "30"], [1, 50, 100], id="in proportion"),
        pytest.param("Lowest", ["10", "20", "30"], [100, 50, 1], id="lowest"),
        pytest.param("Highest", ["5", "5"], [1, 1], id="equal"),
        pytest.param("Highest", ["10", None, "30"], [1, 0, 100], id="missing"),
        pytest.param("Lowest", ["10", "many", "30"], [100, 0, 1], id="no number"),
        pytest.param("Highest", [None, "x"], [0, 0], id="nothing known"),
        pytest.param("Highest", ["-1.9", "1.9", "1e1"], [1, 19, 100], id="cut off"),
        pytest.param("Highest", ["0.2", "0.9", "-0.9"], [1, 1, 1], id="fractions do not count"),
        pytest.param("Highest", ["nan", "inf", "-inf", "1e400", "9" * 300, "", "1_0", "0x1", "7"],
                     [0, 0, 0, 0, 0, 0, 0, 0, 1], id="impossible values"),
        pytest.param("Highest", ["9.2e18", "-9.2e18", "0"], [100, 1, 50], id="as large as they can be"),
    ],
)  # fmt: skip
def test_numbers(source, strategy, values, expected):
    assert given_to(*values, metadataSource=source, scoringStrategy=strategy) == expected


@pytest.mark.parametrize(
    ("strategy", "values", "expected"),
    [
        pytest.param(
            "Newest",
            ["2026-01-01T00:00:00Z", "2026-01-01T00:00:10Z", "2026-01-01T01:00:05+01:00"],
            [1, 100, 50],
            id="newest",
        ),
        pytest.param("Oldest", ["2026-01-01T00:00:00Z", "2026-01-01T00:00:10Z"], [100, 1], id="oldest"),
        pytest.param(
            "Newest",
            ["2026-01-01T00:00:00Z", "2026-01-01", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "99", None],
            [1, 0, 0, 0, 0, 0],
            id="no times",
        ),
        pytest.param("Newest", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"], [1, 100], id="far apart"),
    ],
)
def test_times(strategy, values, expected):
    assert given_to(*values, metadataType="Timestamp", scoringStrategy=strategy) == expected


@pytest.mark.parametrize(
    ("layout", "value"),
    [
        ("2006-01-02", "2026-03-04"),
        ("20060102150405", "20260304000000"),
        ("Jan _2, 2006", "Mar 4, 2026"),
        ("Mon, 02 Jan 2006 15:04:05 MST", "Wed, 04 Mar 2026 00:00:00 UTC"),
        ("02/01/06 03:04 PM", "04/03/26 12:00 AM"),
        ("2006-01-02T15:04:05.000Z0700", "2026-03-04T02:00:00.000+0200"),
    ],
)
def test_layouts(layout, value):
    args = TIME | {"timestampFormat": layout}
    plugin = plugin_of(NAME, node(0, value), node(1, "yesterday"), args=args)
    found = plugin.score_nodes(None, make_pod(), plugin.handle.cluster.nodes).tolist()
    assert found == [datetime(2026, 3, 4, tzinfo=UTC).timestamp(), -(2**63)]


def test_nodes_without_a_value_are_counted():
    planner = world("1", None, "x", args=NUMBER)
    planner.decide(make_pod())
    plugin = planner.profiles["default-scheduler"].plugins[NAME]
    assert plugin.handle.counter("stowplan_node_metadata_nodes_without_value_total", "")[()] == 2


@pytest.mark.parametrize(
    ("args", "values", "notes"),
    [
        pytest.param(NUMBER, ["1", "2"], (), id="none"),
        pytest.param(
            NUMBER,
            ["1", None, "x"],
            (f"{NAME} finds no number in label {KEY} of n1, n2: such nodes get 0.",),
            id="some",
        ),
        pytest.param(
            TIME,
            [None, "x", "2026-01-01T00:00:00Z", "1", "2"],
            (f"{NAME} finds no time in annotation {KEY} of n0, n1, n3 and 1 more: such nodes get 0.",),
            id="many",
        ),
        pytest.param(
            TIME,
            [None, "x"],
            (f"{NAME} gives every node 0: it finds no time in annotation {KEY} of any node.",),
            id="all",
        ),
    ],
)
def test_a_decision_names_nodes_without_a_value(args, values, notes):
    planner = world(*values, args=args)
    assert planner.decide(make_pod()).notes == notes
    planner.cluster.apply(node(0, "2026-01-02T00:00:00Z" if args is TIME else "7"))
    planner.cluster.apply(node(1, "2026-01-02T00:00:00Z" if args is TIME else "7"))
    assert not any("n0" in note or "n1" in note for note in planner.decide(make_pod()).notes)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"metadataKey": ""}, "metadataKey: Required value"),
        ({"metadataSource": "Taint"}, 'metadataSource: Unsupported value: "Taint"'),
        ({"metadataType": "Text"}, 'metadataType: Unsupported value: "Text"'),
        (
            {"scoringStrategy": "Newest"},
            'Unsupported value: "Newest": supported values: "Highest", "Lowest"',
        ),
        ({"metadataType": "Timestamp"}, 'Unsupported value: "Highest": supported values: "Newest", "Oldest"'),
        ({"timestampFormat": "yyyy-MM-dd"}, "timestampFormat: Invalid value.*must be a Go time layout"),
    ],
)
def test_bad_arguments(args, text):
    with pytest.raises(ConfigError, match=text):
        plugin_of(NAME, args=NUMBER | args)


def test_arguments_are_required():
    with pytest.raises(ConfigError, match="metadataKey: Required value"):
        plugin_of(NAME)


VALUES = st.one_of(
    st.none(),
    st.integers(-50, 50).map(str),
    st.floats(-20, 20).map(str),
    st.integers(-(2**70), 2**70).map(str),
    st.text("019-+.eE_ ", max_size=5),
)


@given(st.lists(VALUES, min_size=2, max_size=6), st.sampled_from(["Highest", "Lowest"]), VALUES)
def test_numbers_as_a_slow_obvious_version_would(values, strategy, changed):
    planner = world(*values, args=NUMBER | {"metadataSource": "Annotation", "scoringStrategy": strategy})
    assert list(scores(planner.decide(make_pod())).values()) == slowly(values, strategy)
    values[0] = changed
    planner.cluster.apply(node(0, changed))
    assert list(scores(planner.decide(make_pod())).values()) == slowly(values, strategy)


@given(st.lists(st.none() | st.integers(-(10**9), 10**9), min_size=2, max_size=6), st.booleans())
def test_times_as_a_slow_obvious_version_would(ages, newest):
    start = datetime(2026, 1, 1, tzinfo=UTC)
    texts = [None if age is None else (start - timedelta(seconds=age)).isoformat() for age in ages]
    strategy = "Newest" if newest else "Oldest"
    found = given_to(*texts, metadataType="Timestamp", scoringStrategy=strategy)
    raw = [None if age is None else (-age if newest else age) for age in ages]
    assert found == spread(raw)


def slowly(values, strategy):
    raw = []
    for value in values:
        try:
            number = int(float(value)) if value and not set(value) & set("_ ") else None
        except ValueError:
            number = None
        if number is not None and not -(2**63) < number < 2**63:
            number = None
        raw.append(-number if number is not None and strategy == "Lowest" else number)
    return spread(raw)


def spread(raw):
    known = [each for each in raw if each is not None]
    if not known:
        return [0] * len(raw)
    low, span = min(known), max(known) - min(known)
    return [0 if each is None else (each - low) * 99 // span + 1 if span else 1 for each in raw]
