"""Custom objects are validated as kube-apiserver does it; its messages were recorded with these schemas."""

from __future__ import annotations

import pytest
from api_staging import Staged

from stowplan.apiserver import ApiServer, Request
from stowplan.apiserver.rules import rule_errors

AB = {"a": {"type": "string"}, "b": {"type": "string"}}
NEEDS_A, NEEDS_B = {"required": ["a"]}, {"required": ["b"]}
SPEC = {
    "any": {"type": "object", "properties": AB, "anyOf": [NEEDS_A, NEEDS_B]},
    "one": {"type": "object", "properties": AB, "oneOf": [NEEDS_A, NEEDS_B]},
    "all": {"type": "object", "properties": AB, "allOf": [NEEDS_A, NEEDS_B]},
    "no": {"type": "object", "properties": AB, "not": NEEDS_A},
    "ios": {"x-kubernetes-int-or-string": True, "pattern": "^[0-9]+$"},
    "en": {"type": "string", "enum": ["x", "y"]},
    "num": {"type": "integer", "minimum": 2, "maximum": 5},
    "two": {"type": "object", "required": ["p", "q"], "properties": {"p": {"type": "string"}}},
    "nul": {"type": "string", "nullable": True, "minLength": 3},
    "pat": {"type": "string", "pattern": "^a+$", "minLength": 3},
    "map": {"type": "object", "maxProperties": 1, "minProperties": 1, "additionalProperties": AB["a"]},
    "list": {"type": "array", "minItems": 2, "items": {"type": "string"}},
    "text": {"type": "string", "anyOf": [{"pattern": "^a"}, {"maxLength": 2}]},
}
DEFINITION = {
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "properties": SPEC}},
                    }
                },
            }
        ],
    },
}


@pytest.fixture
async def api() -> Staged:
    api = Staged()
    status, _ = await api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
    assert status == 201
    return api


async def create(api: Staged, spec: dict) -> tuple[int, str]:
    thing = {"metadata": {"name": "t"}, "spec": spec}
    status, body = await api("POST", "/apis/example.com/v1/namespaces/default/things", thing)
    return status, body.get("message", "").removeprefix('Thing.example.com "t" is invalid: ')


@pytest.mark.parametrize(
    "spec",
    [
        {"any": {"b": "1"}, "one": {"a": "1"}, "all": {"a": "1", "b": "2"}, "no": {"b": "1"}},
        {"ios": 7, "num": 2.0, "nul": None, "pat": "aaa", "map": {"x": "1"}, "list": ["a", "b"]},
        {"text": "bb"},
        {},
    ],
)
async def test_valid_objects(api: Staged, spec: dict) -> None:
    assert await create(api, spec) == (201, "")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"any": {}},
            '[<nil>: Invalid value: "": "spec.any" must validate at least one schema (anyOf), '
            "spec.any.a: Required value]",
        ),
        (
            {"one": {}},
            '[<nil>: Invalid value: "": "spec.one" must validate one and only one schema (oneOf). '
            "Found none valid, spec.one.a: Required value]",
        ),
        (
            {"one": {"a": "1", "b": "2"}},
            '<nil>: Invalid value: "": "spec.one" must validate one and only one schema (oneOf). '
            "Found 2 valid alternatives",
        ),
        (
            {"all": {}},
            "[spec.all.a: Required value, spec.all.b: Required value, "
            '<nil>: Invalid value: "": "spec.all" must validate all the schemas (allOf). None validated]',
        ),
        ({"no": {"a": "x"}}, '<nil>: Invalid value: "": "spec.no" must not validate the schema (not)'),
        ({"ios": "abc"}, "spec.ios: Invalid value: \"abc\": spec.ios in body should match '^[0-9]+$'"),
        (
            {"ios": True},
            'spec.ios: Invalid value: "boolean": spec.ios in body must be of type integer,string: "boolean"',
        ),
        (
            {"en": 3},
            '[spec.en: Invalid value: "integer": spec.en in body must be of type string: "integer", '
            'spec.en: Unsupported value: 3: supported values: "x", "y"]',
        ),
        ({"num": 9}, "spec.num: Invalid value: 9: spec.num in body should be less than or equal to 5"),
        ({"two": {}}, "[spec.two.p: Required value, spec.two.q: Required value]"),
        ({"nul": "a"}, 'spec.nul: Invalid value: "a": spec.nul in body should be at least 3 chars long'),
        ({"pat": "b"}, 'spec.pat: Invalid value: "b": spec.pat in body should be at least 3 chars long'),
        ({"map": {}}, "spec.map: Invalid value: 0: spec.map in body should have at least 1 properties"),
        ({"map": {"a": "1", "b": "2"}}, "spec.map: Too many: 2: must have at most 1 item"),
        ({"list": ["a"]}, "spec.list: Invalid value: 1: spec.list in body should have at least 2 items"),
        (
            {"text": "bbb"},
            '[<nil>: Invalid value: "": "spec.text" must validate at least one schema (anyOf), '
            "spec.text: Invalid value: \"bbb\": spec.text in body should match '^a']",
        ),
    ],
)
async def test_messages_of_invalid_objects(api: Staged, spec: dict, message: str) -> None:
    assert await create(api, spec) == (422, message)


def ruled(rule: str, **more: str) -> dict:
    spec = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "list": {"type": "array", "items": {"type": "integer"}}},
        "x-kubernetes-validations": [{"rule": rule, **more}],
    }
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": schema}]
    return {**DEFINITION, "spec": {**DEFINITION["spec"], "versions": versions}}


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("self.z == 1", "undefined field 'z'"),
        ("has(self.z)", "undefined field 'z'"),
        ("self.a == 'x'", "applied to '(int, string)'"),
        ("other.a", "undeclared reference to 'other'"),
        ("self.list.all(x, x.y)", "type 'int' does not support field selection"),
        ("nonsense(self.a)", "undeclared reference to 'nonsense'"),
        ("self.a ==", "Syntax error: "),
    ],
)
async def test_rules_are_checked_against_the_schema(rule: str, problem: str) -> None:
    target = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    status, body = await Staged()("POST", target, ruled(rule))
    assert status == 422
    at = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule: Invalid value: "
    assert at in body["message"]
    assert "compilation failed: ERROR: " in body["message"]
    assert problem in body["message"]


async def test_what_was_invalid_before_may_stay() -> None:
    """A schema that becomes stricter does not lock the objects that are there."""
    api, target = Staged(), "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    things, patch = (
        "/apis/example.com/v1/namespaces/default/things",
        {"content_type": "application/merge-patch+json"},
    )
    await api("POST", target, ruled("true"))
    await api("POST", things, {"metadata": {"name": "t"}, "spec": {"a": 1, "list": [1]}})
    assert (await api("PUT", f"{target}/things.example.com", ruled("self.a > 5")))[0] == 200
    assert (await api("PATCH", f"{things}/t", {"metadata": {"labels": {"a": "b"}}}, **patch))[0] == 200
    assert (await api("PATCH", f"{things}/t", {"spec": {"list": [2]}}, **patch))[0] == 422
    assert (await api("PATCH", f"{things}/t", {"spec": {"a": 6}}, **patch))[0] == 200


async def test_a_conversion_webhook_that_is_never_called_is_warned_of() -> None:
    client = {"url": "https://127.0.0.1:1/"}
    webhook = {"conversionReviewVersions": ["v1"], "clientConfig": client}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object"}},
    }
    spec = {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
        "conversion": {"strategy": "Webhook", "webhook": webhook},
        "versions": [version],
    }
    body = {"metadata": {"name": "things.example.com"}, "spec": spec}
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    answer = await ApiServer().handle(Request.of("POST", path, body))
    assert answer.status == 201
    ((name, text),) = answer.headers
    assert name == "Warning"
    assert "does not call conversion webhooks" in text


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("self.x > 1", "ERROR: <input>:1:5: undefined field 'x'\n | self.x > 1\n | ....^"),
        (
            "self.n == 'a'",
            "ERROR: <input>:1:8: found no matching overload for '_==_' applied to '(int, string)'\n"
            " | self.n == 'a'\n | .......^",
        ),
        (
            "foo(self)",
            "ERROR: <input>:1:4: undeclared reference to 'foo' (in container '')\n | foo(self)\n | ...^",
        ),
        (
            "self.s.size() > 1 && nope",
            "ERROR: <input>:1:22: undeclared reference to 'nope' (in container '')\n"
            " | self.s.size() > 1 && nope\n | .....................^",
        ),
    ],
)
async def test_a_rule_that_does_not_compile_is_marked_as_kube_apiserver_does(rule: str, said: str) -> None:
    spec = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}
    schema = {"type": "object", "properties": {"spec": spec | {"x-kubernetes-validations": [{"rule": rule}]}}}
    (found,) = rule_errors(schema, "at")
    assert found.body.endswith(f"compilation failed: {said}")
