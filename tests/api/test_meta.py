"""Decoding: what is skipped, what a null means, and errors that say where."""

from __future__ import annotations

import pytest

from stowplan.api.meta import Object, ObjectMeta, decode, parse_time
from stowplan.api.node import NodeObject
from stowplan.api.workloads import PodDisruptionBudget, ReplicaSet, Service
from stowplan.errors import InputError


def test_unknown_fields_are_skipped():
    node = decode(NodeObject, {"metadata": {"name": "n", "managedFields": [{}]}, "more": {"x": 1}})
    assert node == NodeObject(metadata=ObjectMeta(name="n"))


@pytest.mark.parametrize("form", [bytes, str, dict])
def test_text_and_plain_data_are_alike(form):
    plain = {"metadata": {"name": "n", "labels": {"a": "b"}}, "status": {"allocatable": {"cpu": "2"}}}
    text = '{"metadata": {"name": "n", "labels": {"a": "b"}}, "status": {"allocatable": {"cpu": "2"}}}'
    given = {bytes: text.encode(), str: text, dict: plain}[form]
    node = decode(NodeObject, given)
    assert (node.name, node.labels, node.allocatable) == ("n", {"a": "b"}, {"cpu": 2000})


@pytest.mark.parametrize("form", [bytes, dict])
def test_a_null_counts_as_absent(form):
    plain = {
        "metadata": {"name": "n", "labels": None},
        "spec": None,
        "status": {"allocatable": {"cpu": None}},
    }
    text = (
        b'{"metadata": {"name": "n", "labels": null}, "spec": null, "status": {"allocatable": {"cpu": null}}}'
    )
    assert decode(NodeObject, plain if form is dict else text) == NodeObject(metadata=ObjectMeta(name="n"))


def test_an_absent_selector_is_not_an_empty_one():
    assert decode(ReplicaSet, {"spec": {}}).spec.selector is None
    assert decode(ReplicaSet, {"spec": {"selector": {}}}).spec.selector is not None
    assert decode(Service, {"spec": {"selector": {}}}).spec.selector == {}
    assert decode(Service, {"spec": {"selector": None}}).spec.selector is None


@pytest.mark.parametrize(
    ("kind", "plain", "field", "message"),
    [
        pytest.param(
            NodeObject,
            {"status": {"allocatable": {"cpu": "4", "memory": "1.5.3"}}},
            "status.allocatable.memory",
            "'1.5.3' is not a quantity",
            id="a quantity",
        ),
        pytest.param(
            NodeObject, {"spec": {"taints": [{"key": 7}]}}, "spec.taints[0].key", "got `int`", id="in a list"
        ),
        pytest.param(
            NodeObject,
            {"metadata": {"labels": {"a": "b", "c": 5}}},
            "metadata.labels.c",
            "got `int`",
            id="in a map",
        ),
        pytest.param(
            ReplicaSet,
            {"spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}},
            "spec.selector.matchExpressions[0].operator",
            "'Near'",
            id="an unknown operator",
        ),
        pytest.param(
            ReplicaSet,
            {"spec": {"selector": {"matchExpressions": [{"operator": "In"}]}}},
            "spec.selector.matchExpressions[0]",
            "`key`",
            id="a field that is missing",
        ),
        pytest.param(
            PodDisruptionBudget,
            {"status": {"disruptionsAllowed": "1"}},
            "status.disruptionsAllowed",
            "Expected `int`",
            id="text",
        ),
        pytest.param(NodeObject, {"metadata": []}, "metadata", "Expected `object`", id="a list"),
    ],
)
def test_errors_say_where_and_what(kind, plain, field, message):
    with pytest.raises(InputError) as caught:
        decode(kind, plain)
    assert caught.value.field == field
    assert message in caught.value.message


def test_an_unknown_operator_gets_the_known_ones_told():
    with pytest.raises(InputError, match="it is one of DoesNotExist, Exists, In, NotIn"):
        decode(ReplicaSet, {"spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}})


@pytest.mark.parametrize("text", [b"", b"{", b"[1, 2", b"nonsense"])
def test_what_is_not_json(text):
    with pytest.raises(InputError, match="is not JSON"):
        decode(NodeObject, text)


@pytest.mark.parametrize(
    ("meta", "key"),
    [({"name": "a", "namespace": "b"}, "b/a"), ({"name": "a"}, "a")],
)
def test_keys(meta, key):
    assert decode(Object, {"metadata": meta}).key == key


@pytest.mark.parametrize(
    ("owners", "name"),
    [
        pytest.param([], None, id="no owner"),
        pytest.param([{"name": "a"}, {"name": "b", "controller": False}], None, id="none that controls"),
        pytest.param([{"name": "a"}, {"name": "b", "controller": True}], "b", id="the one that does"),
    ],
)
def test_controller(owners, name):
    found = decode(Object, {"metadata": {"ownerReferences": owners}}).metadata.controller()
    assert (found and found.name) == name


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1970-01-01T00:00:10Z", 10), ("1970-01-01T01:00:10+01:00", 10), ("1970-01-01T00:00:10.5Z", 10.5)],
)
def test_times(text, seconds):
    assert parse_time(text) == seconds


def test_what_is_no_time():
    with pytest.raises(InputError, match="'noon' is not a valid time"):
        parse_time("noon")
