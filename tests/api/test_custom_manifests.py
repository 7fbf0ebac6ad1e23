"""Custom resources in manifests, as plugins declared them."""

from __future__ import annotations

import io
from typing import ClassVar

import pytest
import yaml

from plain_objects import node
from stowplan import CustomResource, Definition, Wire
from stowplan.api.manifests import read


class RackSpec(Wire, frozen=True):
    row: int = 0


class Rack(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "racks", "Rack", namespaced=False)
    spec: RackSpec = RackSpec()


class Shelf(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "shelves", "Shelf")


def read_objects(*objects, kinds=(Rack, Shelf)):
    return read(["-"], io.BytesIO(yaml.safe_dump_all(objects).encode()), "garage", kinds)


def plain(kind="Rack", version="example.com/v1", name="r", **fields):
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


def keys(found):
    return [item.key for item in found.objects.values()]


def test_what_plugins_watch_is_read():
    found = read_objects(plain(spec={"row": 3}), plain("Shelf", name="s"), node("n"))
    assert found.faults == []
    rack, shelf, _ = found.objects.values()
    assert (type(rack), rack.key, rack.spec.row) == (Rack, "r", 3)
    assert (type(shelf), shelf.key) == (Shelf, "garage/s")


def test_lists_of_a_kind_are_read():
    rows = {"apiVersion": "example.com/v1", "kind": "RackList", "items": [{"metadata": {"name": "r"}}]}
    assert keys(read_objects(rows)) == ["r"]


@pytest.mark.parametrize(
    ("item", "read_as"),
    [
        pytest.param(plain("Racks"), ["r"], id="the plural as the kind"),
        pytest.param(plain(version="example.com/v2"), [], id="another version"),
        pytest.param(plain(version="example.org/v1"), [], id="another group"),
        pytest.param(plain("Rock"), [], id="another kind"),
    ],
)
def test_apiversion_and_kind_decide(item, read_as):
    found = read_objects(item)
    assert keys(found) == read_as
    assert found.ignored.total() == 1 - len(read_as)


def test_what_nobody_watches_is_left_out():
    assert read_objects(plain(), kinds=()).ignored == {"Rack": 1}


@pytest.mark.parametrize(
    ("item", "fault"),
    [
        pytest.param(
            plain(spec={"row": "three"}),
            "standard input: Rack r: spec.row: Expected `int`, got `str`",
            id="a field of the wrong type",
        ),
        pytest.param(
            {"apiVersion": "example.com/v1", "kind": "Rack", "spec": {}},
            "standard input: Rack without a name: metadata.name: is required",
            id="no name",
        ),
    ],
)
def test_faults_say_where(item, fault):
    assert [str(each) for each in read_objects(item).faults] == [fault]
