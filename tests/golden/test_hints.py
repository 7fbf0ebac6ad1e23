"""Answers every recorded event as kube-scheduler did: what happened, and who wants another try."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from golden import cases
from stowplan.api.kinds import object_of
from stowplan.cli.debug import debug
from stowplan.framework.events import Action
from stowplan.framework.hints import object_changes

CASES = cases("hints")
SPELT = {Action.ADD: "Add", Action.DELETE: "Delete", Action.UPDATE: "Update"}


@pytest.fixture(scope="module")
def answers():
    lines = "".join(json.dumps(case) + "\n" for case in CASES.values())
    result = CliRunner().invoke(debug, ["hints"], input=lines, catch_exceptions=False)
    assert result.exit_code == 0
    return {answer["name"]: answer for answer in map(json.loads, result.output.splitlines())}


@pytest.mark.parametrize("name", CASES)
def test_the_same_plugins_want_another_try(name, answers):
    assert answers[name]["hints"] == CASES[name]["expected"]["hints"]


@pytest.mark.parametrize("name", CASES)
def test_the_change_means_the_same_events(name):
    case = CASES[name]
    old, new = (object_of(case[field]) if case.get(field) else None for field in ("old", "new"))
    assert sorted(map(spelt, object_changes(old, new))) == sorted(case["expected"]["events"])


def spelt(happening):
    resource, action = happening.event
    words = SPELT.get(action) or "".join(word.capitalize() for word in action.name.split("_"))
    return f"{resource.value}{words}"
