"""Decoders get anything at all, and either read it or say what is wrong with it; they never raise."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_share import examples
from make import REGISTRY, make_node, make_pod
from mutated_objects import KINDS, POD, Mutator
from stowplan.api.meta import decode, decode_partly
from stowplan.api.pod import Pod, PodObject
from stowplan.api.resource import ResourceClaim
from stowplan.client.api import PODS, RESOURCES
from stowplan.client.watch import read_object
from stowplan.cluster import Cluster
from stowplan.cycle import Planner
from stowplan.errors import InputError

BY_KIND = {resource.kind: resource for resource in RESOURCES}

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


def with_value(plain, place, value):
    """The object with something else at the n-th place in it."""
    places = []

    def collect(holder):
        for key in list(holder if isinstance(holder, dict) else range(len(holder))):
            places.append((holder, key))
            if isinstance(holder[key], dict | list):
                collect(holder[key])

    changed = json.loads(json.dumps(plain))
    collect(changed)
    holder, key = places[place % len(places)]
    holder[key] = value
    return changed


@pytest.mark.parametrize("kind", sorted(BY_KIND))
@examples(40)
@given(place=st.integers(0, 10_000), value=values)
def test_any_value_at_any_place_of_an_object(kind, place, value):
    known = KINDS.get(kind)
    example = (
        {"metadata": {"name": "x"}} if known is None else {**known.example, "status": known.status or {}}
    )
    item, fault = read_object(BY_KIND[kind], json.dumps(with_value(example, place, value)).encode())
    assert item is not None or isinstance(fault, InputError)


@examples(300)
@given(place=st.integers(0, 10_000), value=values)
def test_a_bound_pod_is_read_in_part_whatever_is_wrong_with_it(place, value):
    """Only what says which pod it is, and where, cannot be wrong."""
    plain = with_value({"status": {}, **POD}, place, value)
    meta = plain.get("metadata") if isinstance(plain.get("metadata"), dict) else {}
    plain["metadata"] = {**meta, "name": "p", "namespace": "default", "uid": "u", "resourceVersion": "5"}
    if not isinstance(plain.get("spec"), dict):
        plain["spec"] = {}
    plain["spec"]["nodeName"] = "n1"
    item, fault = read_object(PODS, json.dumps(plain).encode())
    assert isinstance(item, Pod)
    assert (item.key, item.uid, item.node_name) == ("default/p", "u", "n1")
    assert bool(item.fault) == (fault is not None)
    cluster = Cluster.of([make_node("n1"), make_node("n2"), item])
    decision = Planner(cluster, registry=REGISTRY).decide(
        make_pod("canary", nodeSelector={"kubernetes.io/hostname": "n2"})
    )
    assert decision.chosen == "n2"


KNOWN_POD = {
    "metadata": {
        **POD["metadata"],
        "name": "p",
        "namespace": "default",
        "uid": "u",
        "generation": 1,
        "resourceVersion": "5",
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    },
    "spec": POD["spec"],
    "status": KINDS["Pod"].status,
}


@examples(300)
@given(place=st.integers(0, 10_000), value=values, bound=st.booleans())
def test_a_change_of_a_known_pod_is_read_as_any_pod_is(place, value, bound):
    parts = {name: KNOWN_POD[name] for name in ("metadata", "status")}
    spec = {**POD["spec"], "nodeName": "n1"} if bound else POD["spec"]
    data = json.dumps({**with_value(parts, place, value), "spec": spec}).encode()
    known = Pod.decode(KNOWN_POD)
    item, fault = read_object(PODS, data, {known.key: known})
    whole, its_fault = read_object(PODS, data)
    assert str(fault) == str(its_fault)
    assert (item is None) == (whole is None)
    for field in Pod.__struct_fields__ if item is not None else ():
        assert getattr(item, field) == getattr(whole, field), field


@examples(200)
@given(
    st.binary(max_size=200)
    | st.text(max_size=200).map(str.encode)
    | values.map(lambda each: json.dumps(each).encode())
)
def test_what_is_no_object_at_all(data):
    for resource in (PODS, BY_KIND["Node"], BY_KIND["ResourceClaim"]):
        item, fault = read_object(resource, data)
        assert item is not None or isinstance(fault, InputError)


@pytest.mark.parametrize("seed", range(4))
def test_objects_changed_at_random(seed):
    mutator = Mutator(seed)
    for number in range(400):
        name = mutator.draw.choice([kind for kind in KINDS if kind in BY_KIND])
        changed = mutator.mutated({**KINDS[name].example, "status": KINDS[name].status or {}}, number % 5)
        item, fault = read_object(BY_KIND[name], json.dumps(changed).encode())
        assert item is not None or isinstance(fault, InputError)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="half"),
        pytest.param(b'{"metadata": {"name": "\xff\xfe"}}', id="not UTF-8"),
        pytest.param(b'{"metadata": {"name": "\\ud800"}}', id="half a surrogate pair"),
        pytest.param(b"[" * 100_000, id="deep and open"),
        pytest.param(b"[" * 50_000 + b"]" * 50_000, id="a deep list"),
        pytest.param(b'{"spec":' * 20_000 + b"1" + b"}" * 20_000, id="a spec in a spec"),
        pytest.param(
            b'{"metadata":{"labels":' + b'{"a":' * 9000 + b"1" + b"}" * 9000 + b"}}", id="deep labels"
        ),
        pytest.param(b'{"spec":{"containers":' + b"[" * 9000 + b"]" * 9000 + b"}}", id="deep containers"),
        pytest.param(b'{"spec":{"priority":' + b"9" * 100_000 + b"}}", id="a number of 100,000 digits"),
        pytest.param(b'{"spec":{"priority":1e999999999}}', id="an exponent"),
        pytest.param(b'{"spec":{"overhead":{"cpu":1e999999999}}}', id="an exponent in a quantity"),
        pytest.param(
            b'{"spec":{"overhead":{"cpu":"1e999999999"}}}', id="an exponent in the text of a quantity"
        ),
        pytest.param(b'{"spec":null,"metadata":null,"status":null}', id="nulls"),
    ],
)
def test_texts_that_were_made_to_break_a_decoder(text):
    began = time.process_time()
    for resource in RESOURCES:
        item, fault = read_object(resource, text)
        assert item is not None or isinstance(fault, InputError)
        assert fault is None or len(str(fault)) < 1000
    assert time.process_time() - began < 10


def test_nulls_and_deep_parts_in_one_object():
    """Nulls need another way to decode, on which opaque parts stay as they are, too."""
    deep = b"[" * 4000 + b"null" + b"]" * 4000
    text = (
        b'{"metadata":{"name":"c","labels":null},"spec":{"devices":{"requests":null,"config":[null,{"requests":null,'
        b'"opaque":{"driver":"d","parameters":'
        + deep
        + b'}},{"opaque":{"driver":"e","parameters":{"n":1e400,"x":null}}}]}}}'
    )
    claim = decode(ResourceClaim, text)
    first, second = claim.spec.devices.config
    assert bytes(first.opaque.parameters) == deep
    assert bytes(second.opaque.parameters) == b'{"n":1e400,"x":null}'
    assert deep in msgspec.json.encode(claim)


def test_what_is_read_in_part_lacks_only_what_is_wrong():
    text = json.dumps(
        {
            "metadata": {"name": "p", "labels": {"good": "x", "bad": 5}},
            "spec": {
                "containers": [
                    {"name": "a", "resources": {"requests": {"cpu": "1", "memory": "lots"}}},
                    "no container",
                    {"name": "b", "resources": {"requests": {"cpu": "2"}}},
                ],
                "priority": "high",
            },
        }
    ).encode()
    found = decode_partly(PodObject, text)
    assert found.metadata.labels == {"good": "x"}
    assert [each.name for each in found.spec.containers] == ["a", "b"]
    assert dict(found.spec.containers[0].resources.requests) == {"cpu": 10**9}
    assert found.spec.priority is None
