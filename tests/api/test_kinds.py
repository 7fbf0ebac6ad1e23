"""Objects by their kind, and messages that name the object."""

from __future__ import annotations

import pytest

from stowplan.api.kinds import KINDS, describe, object_of
from stowplan.api.pod import Pod
from stowplan.errors import InputError


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_is_read_from_its_name_alone(kind):
    found = object_of({"apiVersion": "any/v1", "kind": kind, "metadata": {"name": "a"}})
    assert type(found) is KINDS[kind]
    assert found.name == "a"


def test_pods_are_folded():
    assert isinstance(object_of({"kind": "Pod", "metadata": {"name": "a"}}), Pod)


@pytest.mark.parametrize("kind", ["Deployment", "ConfigMap", "Whatever"])
def test_other_kinds_do_not_concern_us(kind):
    assert object_of({"kind": kind, "metadata": {"name": "a"}}) is None


@pytest.mark.parametrize("data", [None, [], "text", {}, {"kind": 5}, {"metadata": {"name": "a"}}])
def test_what_is_no_object(data):
    with pytest.raises(
        InputError, match="is not a Kubernetes object: it needs at least apiVersion, kind and metadata"
    ):
        object_of(data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        pytest.param(
            {
                "kind": "Pod",
                "metadata": {"name": "a", "namespace": "b"},
                "spec": {"overhead": {"cpu": "1.5.3"}},
            },
            "Pod b/a: spec.overhead.cpu: '1.5.3' is not a quantity",
            id="object and field",
        ),
        pytest.param(
            {"kind": "Node", "metadata": {}}, "Node without a name: metadata.name: is required", id="nameless"
        ),
        pytest.param(
            {"kind": "Node"}, "Node without a name: metadata.name: is required", id="without metadata"
        ),
        pytest.param(
            {"kind": "Node", "metadata": {"name": "n"}, "spec": 5},
            "Node n: spec: Expected `object`",
            id="a number",
        ),
        pytest.param(
            {"kind": "Node", "metadata": 5}, "Node without a name: metadata: Expected `object`", id="odd"
        ),
    ],
)
def test_errors_name_the_object(data, text):
    with pytest.raises(InputError) as caught:
        object_of(data)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ({"name": "a", "namespace": "b"}, "Pod b/a"),
        ({"name": "a"}, "Pod a"),
        ({"generateName": "web-"}, "Pod web-"),
        (None, "Pod without a name"),
    ],
)
def test_how_objects_are_called(meta, text):
    assert describe({"kind": "Pod", "metadata": meta}) == text
