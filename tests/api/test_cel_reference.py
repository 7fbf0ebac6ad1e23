"""CEL as Kubernetes has it for device selectors.

`cel_reference.jsonl.gz` has 3,700 expressions and what k8s.io/dynamic-resource-allocation/cel v0.36.4 makes
of them: every function of its environment with arguments of many types, at the bounds and beyond. They are
drawn from 24,300, of which all but some 100 agree: times that a time zone moves out of the years 1 to 9999,
quantities of more than 18 digits as a double, and lists made from maps, whose order is random there.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from cel_values import recorded_form

from stowplan.api.cel import DeviceVariable, Domains, compile_cel
from stowplan.errors import CelError

RECORDED = gzip.decompress(Path(__file__).with_name("cel_reference.jsonl.gz").read_bytes())
CASES = [json.loads(line) for line in RECORDED.splitlines()]
DEVICE = DeviceVariable("gpu.example.com", Domains(), Domains())


def answer(expression: str) -> object:
    try:
        return recorded_form(compile_cel(expression).evaluate({"device": DEVICE}))
    except CelError:
        return "error"


@pytest.mark.parametrize("part", range(8))
def test_expressions_mean_what_they_mean_to_kubernetes(part):
    cases = CASES[part::8]
    assert len(cases) > 400
    assert [(each, answer(each), wanted) for each, wanted in cases if answer(each) != wanted] == []


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 249 + "true" + ")" * 249,
        "!(" * 249 + "true" + ")" * 249 + " == false",
        "+".join(["1"] * 250) + " == 250",
        "!(" * 200 + "+".join(["1"] * 200) + " > 0" + ")" * 200,
        '"a"' + ".trim()" * 249 + ' == "a"',
        "[1].all(x, " * 249 + "true" + ")" * 249,
        "".join(f"cel.bind(x{i}, {i}, " for i in range(249)) + "x248 == 248" + ")" * 249,
        "false ? false : " * 249 + "true",
        "!" * 2400 + "true",
        " && ".join(["true"] * 1000),
        "[" * 250 + "]" * 250 + " == []" + " || true",
    ],
    ids=lambda text: f"{text[:12]}… {len(text)}",
)
def test_what_an_api_server_accepts_is_not_nested_too_deeply(expression):
    assert compile_cel(expression).evaluate({"device": DEVICE}) is True
