"""What OpenAPI says of the resources; the schemas that it publishes were compared with kube-apiserver's."""

from __future__ import annotations

from typing import Any

import pytest
from api_staging import Staged

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
NAME = "com.example.v1.Waldo"
SPEC = {
    "text": {"type": "string", "description": "Some text.", "default": "x", "enum": ["x", "y"]},
    "nothing": {"type": "object", "nullable": True, "properties": {"a": {"type": "string"}}},
    "any": {"type": "object", "anyOf": [{"required": ["a"]}], "properties": {"a": {"type": "string"}}},
    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "description": "Anything."},
    "either": {"x-kubernetes-int-or-string": True},
    "embedded": {
        "type": "object",
        "x-kubernetes-embedded-resource": True,
        "properties": {"spec": {"type": "object"}},
    },
}
DEFINITION = {
    "metadata": {"name": "waldos.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "waldos", "kind": "Waldo"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "description": "A Waldo.",
                        "properties": {
                            "spec": {"type": "object", "required": ["nothing", "text"], "properties": SPEC}
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture
async def api(api: Staged) -> Staged:
    assert (await api("POST", DEFINITIONS, DEFINITION))[0] == 201
    return api


def bare(schema: Any, is_map: bool = False) -> Any:
    """A schema without the descriptions."""
    if not isinstance(schema, dict):
        return schema
    return {
        key: bare(value, key == "properties" and not is_map)
        for key, value in schema.items()
        if is_map or key != "description"
    }


async def test_version_3_has_all_of_a_definition(api: Staged) -> None:
    _, found = await api("GET", "/openapi/v3/apis/example.com/v1")
    schema = found["components"]["schemas"][NAME]
    assert schema["description"] == "A Waldo."
    assert schema["x-kubernetes-group-version-kind"] == [
        {"group": "example.com", "version": "v1", "kind": "Waldo"}
    ]
    spec = schema["properties"]["spec"]["properties"]
    assert {key: spec[key] for key in ("text", "nothing", "any", "free")} == {
        key: SPEC[key] for key in ("text", "nothing", "any", "free")
    }
    assert spec["either"]["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    embedded = spec["embedded"]
    assert set(embedded["properties"]) == {"apiVersion", "kind", "metadata", "spec"}
    assert embedded["required"] == ["kind", "apiVersion"]
    assert f"{NAME}List" in found["components"]["schemas"]
    paths = "/apis/example.com/v1/namespaces/{namespace}/waldos"
    assert {paths, f"{paths}/{{name}}", f"{paths}/{{name}}/status"} <= set(found["paths"])


async def test_strategic_merge_is_offered_for_built_in_kinds_only(api: Staged) -> None:
    strategic = "application/strategic-merge-patch+json"
    for group_version, resource, is_offered in (
        ("apis/example.com/v1", "waldos", False),
        ("apis/apps/v1", "deployments", True),
    ):
        _, found = await api("GET", f"/openapi/v3/{group_version}")
        patch = found["paths"][f"/{group_version}/namespaces/{{namespace}}/{resource}/{{name}}"]["patch"]
        assert (strategic in patch["requestBody"]["content"]) is is_offered


async def test_version_2_is_json_and_whole(api: Staged) -> None:
    status, found = await api("GET", "/openapi/v2", accept="application/json")
    assert (status, found["swagger"]) == (200, "2.0")
    definitions = found["definitions"]
    spec = bare(definitions[NAME]["properties"]["spec"])
    assert spec == {
        "type": "object",
        "required": ["text"],
        "properties": {
            "text": {"type": "string", "enum": ["x", "y"]},
            "nothing": {},
            "any": {"type": "object", "properties": {"a": {"type": "string"}}},
            "free": {"x-kubernetes-preserve-unknown-fields": True},
            "either": {"x-kubernetes-int-or-string": True},
            "embedded": {
                "type": "object",
                "required": ["kind", "apiVersion"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"$ref": f"#/definitions/{OBJECT_META}"},
                    "spec": {"type": "object"},
                },
                "x-kubernetes-embedded-resource": True,
            },
        },
    }
    pod = definitions["io.k8s.api.core.v1.Pod"]["properties"]
    assert pod["spec"] == {"$ref": "#/definitions/io.k8s.api.core.v1.PodSpec"}
    named = {ref for ref in str(found).split("'") if ref.startswith("#/definitions/")}
    assert {ref.removeprefix("#/definitions/") for ref in named} <= set(definitions)
    assert "patch" in found["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]


async def test_documents_follow_the_definitions(api: Staged) -> None:
    _, index = await api("GET", "/openapi/v3")
    before = index["paths"]["apis/example.com/v1"]["serverRelativeURL"]
    patch = [
        {"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/description", "value": "Changed."}
    ]
    await api("PATCH", f"{DEFINITIONS}/waldos.example.com", patch, content_type="application/json-patch+json")
    _, index = await api("GET", "/openapi/v3")
    assert index["paths"]["apis/example.com/v1"]["serverRelativeURL"] != before
    _, found = await api("GET", "/openapi/v2")
    assert found["definitions"][NAME]["description"] == "Changed."
    await api("DELETE", f"{DEFINITIONS}/waldos.example.com")
    _, found = await api("GET", "/openapi/v2")
    assert NAME not in found["definitions"]
