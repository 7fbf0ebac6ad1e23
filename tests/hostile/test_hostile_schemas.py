"""Patterns in CustomResourceDefinitions cannot keep the embedded API server busy."""

from __future__ import annotations

import pytest

from stowplan.apiserver.failures import FieldError
from stowplan.apiserver.strategies.definitions import DefinitionStrategy
from stowplan.apiserver.structural import Validator


def definition(schema: dict) -> dict:
    names = {"plural": "things", "kind": "Thing"}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions}
    return {"metadata": {"name": "things.example.com"}, "spec": spec}


def errors_of_definition(schema: dict) -> list[FieldError]:
    made, strategy = definition(schema), DefinitionStrategy()
    strategy.default(made)
    strategy.prepare_create(made)
    return list(strategy.errors(made))


def errors_of_name(pattern: str, name: str) -> list[FieldError]:
    spec = {"type": "object", "properties": {"name": {"type": "string", "pattern": pattern}}}
    return list(Validator({"type": "object", "properties": {"spec": spec}}).errors({"spec": {"name": name}}))


def test_an_evil_pattern_is_matched_in_linear_time():
    (error,) = errors_of_name("^(a+)+$", "a" * 100_000 + "!")
    assert error.field == "spec.name"
    assert "should match '^(a+)+$'" in error.body


def test_a_pattern_that_is_too_complex_for_a_text_is_an_error_of_the_field():
    (error,) = errors_of_name("(.{1,500}){2}$", "ab" * 500_000)
    assert "too complex for a string of 1000000 bytes" in error.body


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({"type": "string", "pattern": "("}, "pattern"),
        (
            {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)"}}},
            "properties[a].pattern",
        ),
        ({"type": "array", "items": {"type": "string", "pattern": "a**"}}, "items.pattern"),
        ({"type": "object", "additionalProperties": {"pattern": "[z-a]"}}, "additionalProperties.pattern"),
        ({"allOf": [{}, {"not": {"pattern": r"\C"}}]}, "allOf[1].not.pattern"),
    ],
)
def test_a_definition_with_an_invalid_pattern_is_rejected(schema, field):
    (error,) = errors_of_definition(schema)
    assert error.field == f"spec.validation.openAPIV3Schema.{field}"
    assert "must be a valid regular expression, but isn't: error parsing regexp: " in error.body


def test_a_property_may_be_called_pattern():
    schema = {"type": "object", "properties": {"pattern": {"type": "string"}}, "default": {"pattern": "("}}
    assert errors_of_definition(schema) == []


def test_a_deeply_nested_schema_is_walked_without_recursion():
    schema: dict = {"type": "string", "pattern": "("}
    for _ in range(20_000):
        schema = {"items": schema}
    (error,) = errors_of_definition(schema)
    assert error.field.endswith(".items.pattern")
