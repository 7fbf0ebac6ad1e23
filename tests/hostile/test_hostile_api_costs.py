"""Definitions, policies and objects that are small to send and costly to handle: each has its limit."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest

from stowplan.api.cel import Program
from stowplan.apiserver import ApiServer, Request, Response

Json = dict[str, Any]

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
THINGS = "/apis/example.com/v1/namespaces/default/things"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
SECONDS = 4.0
"""Of CPU; without limits these take from ten seconds to minutes."""


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


async def ask(server: ApiServer, method: str, path: str, body: Any = None) -> tuple[int, Json]:
    answer = await server.handle(Request.of(method, path, body))
    assert isinstance(answer, Response)
    return answer.status, answer.json()


async def define(server: ApiServer, spec: Json) -> tuple[int, Json]:
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
    body = {
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    return await ask(server, "POST", DEFINITIONS, body)


def thing(spec: Any) -> Json:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "metadata": {"name": "a"},
        "spec": spec,
    }


async def test_defaults_do_not_multiply_an_object(server: ApiServer) -> None:
    item = {"type": "object", "properties": {"a": {"type": "string", "default": "x" * 2000}}}
    status, _ = await define(server, {"type": "array", "items": item})
    assert status == 201
    status, said = await ask(server, "POST", THINGS, thing([{}] * 20_000))
    assert (status, said["reason"]) == (413, "RequestEntityTooLarge")
    assert "default" in said["message"]
    assert (await ask(server, "POST", THINGS, thing([{}] * 100)))[0] == 201


@pytest.mark.parametrize("rule", [" || ".join(f"self.b == 'x{n}'" for n in range(100)), "1+" * 100 + "1 > 0"])
async def test_rules_of_a_schema_are_limited_in_size(server: ApiServer, rule: str) -> None:
    part = {
        "type": "object",
        "properties": {"b": {"type": "string", "maxLength": 9}},
        "x-kubernetes-validations": [{"rule": rule}],
    }
    began = time.process_time()
    many = {"type": "object", "properties": {f"f{number}": part for number in range(500)}}
    status, said = await define(server, many)
    assert time.process_time() - began < SECONDS
    assert status == 422
    assert "of x-kubernetes-validations" in said["message"]
    few = {"type": "object", "properties": {f"f{number}": part for number in range(30)}}
    status, said = await define(server, few)
    assert status == 201, said


async def test_alternatives_are_not_tried_without_end(server: ApiServer) -> None:
    nested: Json = {"required": ["z"]}
    for _ in range(11):
        nested = {"oneOf": [nested, nested]}
    item = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, **nested}
    assert (await define(server, {"type": "array", "items": item}))[0] == 201
    began = time.process_time()
    status, said = await ask(server, "POST", THINGS, thing([{}] * 5000))
    assert time.process_time() - began < SECONDS
    assert status == 422
    assert "too many alternatives" in said["message"]
    assert (await ask(server, "POST", THINGS, thing([{}])))[0] == 422


def policy(name: str, count: int, expression: str) -> Json:
    rules = [{"apiGroups": [""], "apiVersions": ["*"], "resources": ["configmaps"], "operations": ["*"]}]
    spec = {
        "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": f"{expression} && {number} >= 0"} for number in range(count)],
    }
    return {"metadata": {"name": name}, "spec": spec}


async def test_expressions_of_a_policy_are_limited_in_size(server: ApiServer) -> None:
    began = time.process_time()
    text = " || ".join(f"object.metadata.name == 'x{number}'" for number in range(100))
    path = f"{REGISTRATION}/validatingadmissionpolicies"
    status, said = await ask(server, "POST", path, policy("large", 500, text))
    assert time.process_time() - began < SECONDS
    assert status == 422
    assert "characters of CEL" in said["message"]
    hooks = [
        {
            "name": f"h{number}.example.com",
            "clientConfig": {"url": "https://127.0.0.1:1"},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "matchConditions": [{"name": "c", "expression": text}],
        }
        for number in range(300)
    ]
    path = f"{REGISTRATION}/validatingwebhookconfigurations"
    status, said = await ask(server, "POST", path, {"metadata": {"name": "large"}, "webhooks": hooks})
    assert status == 422
    assert "characters of CEL" in said["message"]


def programs() -> list[Program]:
    """All that are there, also those of servers that other tests have left behind."""
    return [each for each in gc.get_objects() if isinstance(each, Program)]


async def test_policies_are_compiled_once(server: ApiServer) -> None:
    for number in range(3):
        name = f"p{number}"
        made = policy(name, 100, f"{number} >= 0")
        assert (await ask(server, "POST", f"{REGISTRATION}/validatingadmissionpolicies", made))[0] == 201
        binding = {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
        path = f"{REGISTRATION}/validatingadmissionpolicybindings"
        assert (await ask(server, "POST", path, binding))[0] == 201
    maps = "/api/v1/namespaces/default/configmaps"
    assert (await ask(server, "POST", maps, {"metadata": {"name": "a"}}))[0] == 201
    before = programs()  # which keeps them, so that a new one cannot have the id of one that is gone
    assert (await ask(server, "POST", maps, {"metadata": {"name": "b"}}))[0] == 201
    known = set(map(id, before))
    assert [each for each in programs() if id(each) not in known] == []
