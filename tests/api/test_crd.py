"""CustomResourceDefinitions from structs."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import pytest

from stowplan import Column, CustomResource, Definition, Wire, keyed_by
from stowplan.api.crd import crd_of, needs_crd
from stowplan.api.meta import LabelSelector, ObjectMeta, decode
from stowplan.api.quantity import Quantity, parse
from stowplan.cluster import Cluster
from stowplan.errors import InputError


class Policy(Enum):
    SPREAD = "Spread"
    PACK = "Pack"


class Zone(Wire, frozen=True):
    name: str
    weight: Annotated[int, msgspec.Meta(ge=0, le=100, description="How much it counts.")] = 10


class GardenStatus(Wire, frozen=True):
    last_watered: datetime | None = None


class GardenSpec(Wire, frozen=True):
    """What grows where."""

    owner: str
    zones: Annotated[tuple[Zone, ...], keyed_by("name"), msgspec.Meta(max_length=8)] = ()


class Garden(CustomResource, frozen=True, kw_only=True):
    """A garden."""

    definition: ClassVar = Definition(
        "example.com",
        "v1",
        "gardens",
        "Garden",
        short_names=("gd",),
        columns=(Column("Owner", ".spec.owner"),),
    )
    spec: GardenSpec
    status: GardenStatus = GardenStatus()


def schema_of(annotation: Any, **default: Any) -> dict[str, Any]:
    """The schema of a field of that type, alone in its struct."""
    spec = msgspec.defstruct("Spec", [("field", annotation, *default.values())], bases=(Wire,), frozen=True)
    where = {"definition": Definition("example.com", "v1", "things", "Thing")}
    thing = msgspec.defstruct(
        "Thing", [("spec", spec)], bases=(CustomResource,), namespace=where, frozen=True, kw_only=True
    )
    version = crd_of(thing)["spec"]["versions"][0]
    return version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["field"]


def test_a_whole_definition():
    text = {"type": "string"}
    weight = {"type": "integer", "format": "int64", "minimum": 0, "maximum": 100}
    zone = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": text,
            "weight": weight | {"description": "How much it counts.", "default": 10},
        },
    }
    assert crd_of(Garden) == {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gardens.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {
                "kind": "Garden",
                "listKind": "GardenList",
                "plural": "gardens",
                "singular": "garden",
                "shortNames": ["gd"],
            },
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": "A garden.",
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": text,
                                "kind": text,
                                "metadata": {"type": "object"},
                                "spec": {
                                    "type": "object",
                                    "description": "What grows where.",
                                    "required": ["owner"],
                                    "properties": {
                                        "owner": text,
                                        "zones": {
                                            "type": "array",
                                            "items": zone,
                                            "maxItems": 8,
                                            "x-kubernetes-list-type": "map",
                                            "x-kubernetes-list-map-keys": ["name"],
                                        },
                                    },
                                },
                                "status": {
                                    "type": "object",
                                    "properties": {
                                        "lastWatered": text | {"format": "date-time", "nullable": True}
                                    },
                                },
                            },
                        }
                    },
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": "Owner", "type": "string", "jsonPath": ".spec.owner"},
                        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                    ],
                }
            ],
        },
    }


INTEGER = {"type": "integer", "format": "int64"}
ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}
INT_OR_STRING = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        pytest.param(bool, {"type": "boolean"}, id="bool"),
        pytest.param(float, {"type": "number"}, id="float"),
        pytest.param(int | None, INTEGER | {"nullable": True}, id="optional"),
        pytest.param(
            Annotated[int, msgspec.Meta(gt=0, lt=5)],
            INTEGER | {"minimum": 0, "exclusiveMinimum": True, "maximum": 5, "exclusiveMaximum": True},
            id="exclusive bounds",
        ),
        pytest.param(
            Annotated[str, msgspec.Meta(pattern="^a", max_length=3, examples=["abc"])],
            {"type": "string", "pattern": "^a", "maxLength": 3},
            id="text with rules, without what Kubernetes does not know",
        ),
        pytest.param(Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, id="literals"),
        pytest.param(Literal[1, 2], {"type": "integer", "enum": [1, 2]}, id="literal numbers"),
        pytest.param(Policy, {"type": "string", "enum": ["Spread", "Pack"]}, id="enum"),
        pytest.param(list[int], {"type": "array", "items": INTEGER}, id="list"),
        pytest.param(
            tuple[int, int], {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 2}, id="pair"
        ),
        pytest.param(
            frozenset[str],
            {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            id="set",
        ),
        pytest.param(dict[str, int], {"type": "object", "additionalProperties": INTEGER}, id="map"),
        pytest.param(dict[str, Any], {"type": "object"} | ANYTHING, id="free-form object"),
        pytest.param(Any, ANYTHING, id="anything"),
        pytest.param(int | str, INT_OR_STRING, id="number or text"),
        pytest.param(bytes, {"type": "string", "format": "byte"}, id="bytes"),
    ],
)
def test_types(annotation, schema):
    assert schema_of(annotation) == schema


def test_a_quantity_is_a_number_or_text_of_its_form():
    found = schema_of(Quantity, default=parse("500m"))
    pattern = found.pop("pattern")
    assert found == INT_OR_STRING | {"default": "500000000n"}
    assert pattern.startswith("^")


@pytest.mark.parametrize(
    ("default", "shown"),
    [
        pytest.param("a", {"default": "a"}, id="text"),
        pytest.param("", {}, id="what an absent field counts as anyway"),
    ],
)
def test_defaults(default, shown):
    assert schema_of(str, default=default) == {"type": "string"} | shown


def test_what_kubernetes_knows_more_of_is_kept():
    assert schema_of(ObjectMeta)["x-kubernetes-preserve-unknown-fields"] is True
    assert schema_of(LabelSelector)["properties"]["matchLabels"]["type"] == "object"


class Tree(Wire, frozen=True):
    children: tuple[Tree, ...] = ()


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        pytest.param(int | list[int], "Thing.spec.field: is a union of types; only", id="union"),
        pytest.param(dict[int, str], "Thing.spec.field: has keys that are not strings", id="keys"),
        pytest.param(
            Tree,
            "Thing.spec.field.children[]: Tree contains itself, which a schema cannot express",
            id="recursion",
        ),
        pytest.param(
            list[complex], "Thing.spec.field[]: has a type that a schema cannot express (complex)", id="type"
        ),
    ],
)
def test_what_no_schema_can_say_is_refused_by_name(annotation, message):
    with pytest.raises(InputError) as error:
        schema_of(annotation)
    assert str(error.value).startswith(message)


def named(group: str, **more: Any) -> type[CustomResource]:
    where = {"definition": Definition(group, "v1", "things", "Thing", **more)}
    return msgspec.defstruct("Thing", [], bases=(CustomResource,), namespace=where, frozen=True, kw_only=True)


@pytest.mark.parametrize(
    ("kind", "annotations"),
    [
        pytest.param(named("example.com"), None, id="nobody's business"),
        pytest.param(named("notk8s.io"), None, id="only looks like it"),
        pytest.param(
            named("scheduling.sigs.k8s.io"),
            {"api-approved.kubernetes.io": "unapproved, experimental-only"},
            id="protected",
        ),
        pytest.param(
            named("x.kubernetes.io", approval="https://github.com/o/r/pull/1"),
            {"api-approved.kubernetes.io": "https://github.com/o/r/pull/1"},
            id="approved",
        ),
    ],
)
def test_protected_groups_carry_their_approval(kind, annotations):
    assert crd_of(kind)["metadata"].get("annotations") == annotations


@pytest.mark.parametrize("group", ["", "batch", "networking.k8s.io"])
def test_kinds_of_kubernetes_own_need_none(group):
    assert not needs_crd(named(group))
    with pytest.raises(InputError, match="built into Kubernetes"):
        crd_of(named(group))


def test_a_kind_without_a_namespace():
    assert crd_of(named("example.com", namespaced=False))["spec"]["scope"] == "Cluster"


class RackSpec(Wire, frozen=True):
    weights: dict[str, int] = {}


class Rack(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "racks", "Rack", namespaced=False)
    spec: RackSpec = RackSpec()


def test_a_default_that_objects_share_is_no_part_of_the_schema_once_it_is_read_only():
    before = crd_of(Rack)
    Cluster.of([decode(Rack, {"metadata": {"name": "without a spec"}})])
    assert crd_of(Rack) == before


def test_a_kind_that_another_project_specifies_has_all_its_fields():
    """A plugin declares only the fields that it reads; the others must not be lost."""

    class Group(CustomResource, frozen=True):
        definition: ClassVar = Definition("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")

    spec = crd_of(Group)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert {"minMember", "minResources", "scheduleTimeoutSeconds"} == set(spec["properties"])
