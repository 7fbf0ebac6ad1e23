"""Selectors: every operator, what empty and absent ones select, and what cannot be built."""

from __future__ import annotations

import pytest

from stowplan.api.meta import LabelSelector, NodeSelector, NodeSelectorTerm, decode
from stowplan.api.selectors import (
    NOTHING,
    Selector,
    as_int64,
    equals,
    is_label_value,
    is_qualified_name,
    node_terms_of,
    selector_of,
    selector_of_map,
)
from stowplan.errors import SelectorError


def selector(*expressions, **labels):
    return selector_of(decode(LabelSelector, {"matchLabels": labels, "matchExpressions": list(expressions)}))


def expression(key, operator, *values):
    return {"key": key, "operator": operator} | ({"values": list(values)} if values else {})


@pytest.mark.parametrize(
    ("operator", "values", "matching"),
    [
        ("In", ("a", "b"), {"a"}),
        ("In", ("",), {""}),
        ("NotIn", ("a", "b"), {"x", "", None}),
        ("Exists", (), {"a", "x", ""}),
        ("DoesNotExist", (), {None}),
    ],
)
def test_operators(operator, values, matching):
    built = selector(expression("app", operator, *values))
    for value in ("a", "x", "", None):
        labels = {} if value is None else {"app": value}
        assert built.matches(labels) is (value in matching), value


def test_all_requirements_must_hold():
    built = selector(expression("tier", "NotIn", "x"), app="web")
    assert built.matches({"app": "web"})
    assert built.matches({"app": "web", "tier": "y"})
    assert not built.matches({"app": "web", "tier": "x"})
    assert not built.matches({"tier": "y"})


def test_an_absent_selector_selects_nothing_and_an_empty_one_everything():
    assert not selector_of(None).matches({})
    assert selector().matches({})
    assert selector().everything
    assert not selector_of(None).everything


def test_equal_selectors_are_one_however_they_are_written():
    assert selector(expression("b", "In", "1"), a="1") == selector(expression("a", "In", "1"), b="1")
    assert hash(selector(a="1")) == hash(selector(expression("a", "In", "1")))


def test_more_requirements_do_not_bring_nothing_to_life():
    assert selector(a="1").also([equals("b", "2")]).matches({"a": "1", "b": "2"})
    assert not selector(a="1").also([equals("b", "2")]).matches({"a": "1"})
    assert NOTHING.also([equals("b", "2")]) == NOTHING


def test_plain_maps_are_not_checked():
    assert selector_of_map({"not a key!": "not a value!"}).matches({"not a key!": "not a value!"})
    assert selector_of_map({}) == Selector()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param(expression("app", "In"), "values set can't be empty", id="In nothing"),
        pytest.param(expression("app", "NotIn"), "values set can't be empty", id="NotIn nothing"),
        pytest.param(expression("app", "Exists", "a"), "values set must be empty", id="Exists with values"),
        pytest.param(expression("app", "DoesNotExist", "a"), "values set must be empty", id="nor that"),
        pytest.param(expression("not a key", "Exists"), "key: Invalid value: \"not a key\"", id="key"),
        pytest.param(expression("Upper/app", "Exists"), "key: Invalid value", id="prefix in capitals"),
        pytest.param(expression("app", "In", "no value!"), "Invalid value: \"no value!\"", id="value"),
        pytest.param(expression("app", "In", "x" * 64), "at most 63 characters", id="long value"),
    ],
)  # fmt: skip
def test_what_cannot_be_built(wrong, message):
    with pytest.raises(SelectorError) as caught:
        selector(wrong)
    assert message in str(caught.value)


@pytest.mark.parametrize("labels", [{"not a key": "x"}, {"app": "no value!"}])
def test_labels_to_match_are_checked_too(labels):
    with pytest.raises(SelectorError):
        selector(**labels)


def terms(*plain):
    return node_terms_of(decode(NodeSelector, {"nodeSelectorTerms": list(plain)}))


@pytest.mark.parametrize(
    ("operator", "bound", "matching"),
    [
        ("Gt", "4", {"5", "+5", "9223372036854775807"}),
        ("Lt", "4", {"3", "-7", "0"}),
        ("Gt", "+4", {"5", "+5", "9223372036854775807"}),
    ],
)
def test_numbers(operator, bound, matching):
    (term,) = terms({"matchExpressions": [expression("size", operator, bound)]})
    if bound.startswith("+"):
        assert term.error, "not a label value, so not a bound"
        return
    for value in (
        "3",
        "4",
        "5",
        "+5",
        "-7",
        "0",
        "x",
        "",
        "4.5",
        "9223372036854775807",
        "9223372036854775808",
    ):
        assert term.matches({"size": value}, "n") is (value in matching), value
    assert not term.matches({}, "n")


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"matchExpressions": [expression("size", "Gt", "x")]}, id="no number"),
        pytest.param({"matchExpressions": [expression("size", "Gt", "-5")]}, id="no label value"),
        pytest.param({"matchExpressions": [expression("size", "Lt", "1", "2")]}, id="two numbers"),
        pytest.param({"matchExpressions": [expression("size", "Lt")]}, id="no bound"),
        pytest.param({"matchExpressions": [expression("a", "In")]}, id="no values"),
        pytest.param({"matchFields": [expression("metadata.name", "Exists")]}, id="a field that exists"),
        pytest.param(
            {"matchFields": [expression("metadata.name", "In", "a", "b")]}, id="a field, two values"
        ),
        pytest.param({}, id="an empty term"),
    ],
)
def test_a_term_that_cannot_be_built_matches_no_node_and_harms_no_other(wrong):
    bad, good = terms(wrong, {"matchExpressions": [expression("a", "Exists")]})
    assert not bad.matches({"a": "1", "size": "1"}, "a")
    assert good.matches({"a": "1"}, "n")


@pytest.mark.parametrize(
    ("field", "name", "matches"),
    [
        pytest.param(expression("metadata.name", "In", "n1"), "n1", True, id="its name"),
        pytest.param(expression("metadata.name", "In", "n1"), "n2", False, id="another name"),
        pytest.param(expression("metadata.name", "NotIn", "n1"), "n2", True, id="not that name"),
        pytest.param(expression("metadata.uid", "In", "n1"), "n1", False, id="another field is empty"),
        pytest.param(expression("metadata.uid", "NotIn", "n1"), "n1", True, id="so it is not that"),
        pytest.param(expression("metadata.name", "In", "n1"), "", True, id="labels alone have no fields"),
    ],
)
def test_fields(field, name, matches):
    (term,) = terms({"matchFields": [field]})
    assert term.matches({}, name) is matches


def test_labels_and_fields_of_a_term_must_both_match():
    (term,) = terms(
        {
            "matchExpressions": [expression("a", "Exists")],
            "matchFields": [expression("metadata.name", "In", "n")],
        }
    )
    assert term.matches({"a": ""}, "n")
    assert not term.matches({"a": ""}, "m")
    assert not term.matches({}, "n")
    assert decode(NodeSelectorTerm, {}) == NodeSelectorTerm()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("-7", -7), ("+7", 7), ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)), ("9223372036854775808", None), ("1.0", None), ("", None),
        (" 1", None), ("1_000", None), ("٣", None), ("0" * 5000 + "7", 7), ("-" + "9" * 5000, None),
    ],
)  # fmt: skip
def test_numbers_of_64_bits(text, number):
    assert as_int64(text) == number


@pytest.mark.parametrize(
    ("text", "is_name"),
    [
        ("app", True), ("example.com/app", True), ("A-b_c.d", True), ("a" * 63, True), ("a" * 64, False),
        ("", False), ("-a", False), ("a-", False), ("a b", False), ("/a", False), ("a/", False),
        ("Example.com/a", False), ("ex_ample/a", False), (f"{'a.' * 126}a/b", True),
        (f"{'a.' * 127}a/b", False), ("a/b/c", False), ("é", False),
    ],
)  # fmt: skip
def test_qualified_names(text, is_name):
    assert is_qualified_name(text) is is_name


@pytest.mark.parametrize(
    ("text", "is_value"),
    [
        ("", True),
        ("a", True),
        ("a" * 63, True),
        ("a" * 64, False),
        ("-5", False),
        ("a b", False),
        ("a\n", False),
    ],
)
def test_label_values(text, is_value):
    assert is_label_value(text) is is_value
