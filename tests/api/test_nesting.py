"""JSON of any depth: what is too deep is skipped or kept as it is, and never fails what stands beside it."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stowplan.api.nesting import MAX_DEPTH, decode_deep, members
from stowplan.errors import InputError

DEEP = 300_000


class Item(msgspec.Struct):
    name: str = ""
    kept: msgspec.Raw = msgspec.Raw(b"null")
    inner: dict[str, list[msgspec.Raw]] = {}
    plain: dict[str, msgspec.Raw] | None = None


def lists(depth, core=b""):
    return b"[" * depth + core + b"]" * depth


def objects(depth, core=b"1"):
    return b'{"a":' * depth + core + b"}" * depth


decode = msgspec.json.Decoder(Item).decode


# Deeper than the recursion limit of any Python: from 3.14 on it depends on the size of the stack.
@pytest.mark.parametrize("deep", [lists(DEEP), objects(DEEP), lists(DEEP, objects(DEEP, lists(9)))])
def test_deep_values_are_skipped_and_kept_as_text(deep):
    with pytest.raises(RecursionError):
        decode(b'{"unknown":' + deep + b"}")
    found = decode_deep(
        decode,
        b'{"unknown":' + deep + b', "name": "x", "kept": ' + deep + b', "inner": {"k": [1,' + deep + b"]}}",
    )
    assert found.name == "x"
    assert bytes(found.kept) == deep
    assert [bytes(each) for each in found.inner["k"]] == [b"1", deep]


@pytest.mark.parametrize(
    "text",
    [
        b'{"name": ' + lists(5000) + b"}",
        b'{"inner": {"k": ' + objects(5000) + b"}}",
        b'{"inner": ' + lists(5000) + b"}",
    ],
)
def test_what_would_have_to_be_parsed_is_an_error(text):
    with pytest.raises((InputError, msgspec.ValidationError)) as found:
        decode_deep(decode, text)
    assert "nested more than" in str(found.value) or "Expected" in str(found.value)


def test_brackets_and_quotes_in_strings_do_not_count():
    tricky = json.dumps('[[{{ \\" ]]}} \\\\')
    text = '{"name": ' + tricky + ', "kept": [' + tricky + "," + lists(3000).decode() + "]}"
    found = decode_deep(decode, text.encode())
    assert found.name == json.loads(tricky)
    assert bytes(found.kept).startswith(f"[{tricky},[[[".encode())


def test_text_that_is_not_json_stays_an_error():
    with pytest.raises(msgspec.DecodeError):
        decode_deep(decode, b'{"kept": ' + lists(5000)[:-1] + b"}")


def test_nobody_can_forge_what_stands_in_for_a_part(monkeypatch):
    seen = []

    def spy(data):
        seen.append(bytes(data))
        return decode(data)

    text = b'{"kept": ' + lists(DEEP) + b"}"
    decode_deep(spy, text)
    decode_deep(spy, text)
    assert seen[1] != seen[3]


@pytest.mark.parametrize(
    "text",
    [
        b'{"unknown":' + lists(9000, b",".join([b"[]"] * 300_000)) + b"}",
        b'{"unknown":' + lists(9000, b'"' + b'\\"[{' * 300_000 + b'"') + b"}",
        b'{"unknown":[' + b",".join([lists(2000)] * 300) + b"]}",
        b'{"unknown":[' + b",".join([objects(2000)] * 80) + b"]}",
    ],
    ids=["wide", "quoted", "lists", "objects"],
)
def test_an_object_of_the_largest_size_takes_a_fraction_of_a_second(text):
    assert len(text) > 900_000
    began = time.process_time()
    decode_deep(decode, text)
    assert time.process_time() - began < 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=60)
@given(st.lists(st.tuples(json_values, st.integers(0, 1500)), max_size=4))
def test_kept_text_is_exactly_what_was_sent(values):
    raws = [b"[" * depth + json.dumps(value).encode() + b"]" * depth for value, depth in values]
    text = b'{"name":"n","inner":{"k":[' + b",".join(raws) + b"]}}"
    found = decode_deep(decode, text)
    assert [bytes(each) for each in found.inner.get("k", [])] == raws
    assert found.name == "n"


def test_members_of_what_is_kept_as_text():
    outer = members(b'{"a": {"b": ' + lists(3000) + b"}}")
    assert {name: bytes(value) for name, value in members(outer["a"]).items()} == {"b": lists(3000)}


def test_shallow_text_is_decoded_as_it_is():
    assert decode_deep(decode, b'{"name": "x", "kept": ' + lists(MAX_DEPTH * 2) + b"}").name == "x"
