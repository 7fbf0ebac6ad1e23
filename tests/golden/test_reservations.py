"""Decides scenarios with devices, volumes, nominated pods and samples as kube-scheduler did.

What would be reserved on each feasible node is compared, too, as `stowplan decide --reserve` prints it.
"""

from __future__ import annotations

import json
from functools import cache

import pytest
from click.testing import CliRunner

from golden import MORE_CASES, MORE_DECISIONS, cases, comparable, comparable_reservations
from stowplan.cli import stowplan


@cache
def answers(family: str) -> dict[str, dict]:
    asked = [{key: value for key, value in case.items() if key != "expected"} for case in of(family).values()]
    lines = "".join(json.dumps(case) + "\n" for case in asked)
    result = CliRunner().invoke(stowplan, ["decide", "--reserve"], input=lines, catch_exceptions=False)
    assert result.exit_code == 0
    return {answer["name"]: answer for answer in map(json.loads, result.stdout.splitlines())}


def of(family: str) -> dict[str, dict]:
    return cases(family, MORE_CASES)


def params():
    for family in MORE_DECISIONS:
        for name in of(family):
            yield pytest.param(family, name, id=f"{family}: {name}")


@pytest.mark.parametrize(("family", "name"), list(params()))
def test_reserves_as_kube_scheduler_did(family, name):
    expected, found = of(family)[name]["expected"], answers(family)[name]
    assert "error" not in found
    for ours, theirs in zip(found["decisions"], expected, strict=True):
        assert comparable(ours) == comparable(theirs)
        assert comparable_reservations(ours) == comparable_reservations(theirs)
