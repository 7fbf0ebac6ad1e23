"""`stowplan debug hints`: every line gets its answer, also those that make no sense."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from stowplan.cli.debug import debug

POD = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
NODE = {"kind": "Node", "metadata": {"name": "n"}}
V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def answers(*lines):
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    result = CliRunner().invoke(debug, ["hints"], input=text, catch_exceptions=False)
    return result.exit_code, [json.loads(line) for line in result.output.splitlines()]


def test_plugins_that_want_another_try():
    status, (answer,) = answers({"name": "a", "pod": POD, "new": NODE | {"spec": {"unschedulable": True}}})
    assert status == 0
    assert answer["name"] == "a"
    assert (answer["hints"]["NodeName"], answer["hints"]["NodeUnschedulable"]) == ("Queue", "Skip")


def test_where_several_events_make_up_a_change_one_is_enough():
    tainted = {"spec": {"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}}
    labelled = {"metadata": {"name": "n", "labels": {"x": "y"}}}
    selective = POD | {"spec": POD["spec"] | {"nodeSelector": {"x": "z"}}}
    _, (answer,) = answers({"pod": selective, "old": NODE, "new": NODE | labelled | tainted})
    assert answer["hints"]["NodeAffinity"] == "Queue"  # Skip for the label, Queue for the taint


def test_a_change_that_means_nothing():
    assert answers({"name": "a", "pod": POD, "old": NODE, "new": NODE}) == (0, [{"name": "a", "hints": {}}])


def test_a_profile_of_ones_own():
    only = {"multiPoint": {"disabled": [{"name": "*"}], "enabled": [{"name": "PrioritySort"}]}}
    plugins = only | {
        "bind": {"enabled": [{"name": "DefaultBinder"}]},
        "filter": {"enabled": [{"name": "NodeName"}]},
    }
    _, (answer,) = answers({"pod": POD, "new": NODE, "config": V1 | {"profiles": [{"plugins": plugins}]}})
    assert answer["hints"] == {"NodeName": "Queue"}


@pytest.mark.parametrize(
    ("case", "text"),
    [
        pytest.param({"pod": NODE, "new": NODE}, "pod: expected a pod", id="a node that waits"),
        pytest.param({"new": NODE}, "pod: expected a pod", id="nobody waits"),
        pytest.param({"pod": POD, "new": {"kind": 3}}, "new: is not a Kubernetes object", id="no object"),
        pytest.param(
            {"pod": POD, "objects": [NODE, {"kind": "Node"}]},
            "objects[1]: Node without a name",
            id="an object unnamed",
        ),
        pytest.param(
            {
                "pod": POD,
                "old": {
                    "kind": "Node",
                    "metadata": {"name": "n"},
                    "status": {"allocatable": {"cpu": "1.5.3"}},
                },
            },
            "old: Node n: status.allocatable.cpu: ",
            id="a quantity that is none",
        ),
        pytest.param(
            {"pod": POD | {"spec": POD["spec"] | {"schedulerName": "other"}}, "new": NODE},
            "Pod default/p: spec.schedulerName: no profile has the name 'other'",
            id="a pod of nobody's",
        ),
        pytest.param(
            {"pod": POD, "new": NODE, "config": V1 | {"parallelism": 0}}, "parallelism: ", id="a bad profile"
        ),
    ],
)
def test_lines_that_make_no_sense_are_answered_and_the_others_too(case, text):
    status, (bad, good) = answers(case, {"name": "good", "pod": POD, "new": NODE})
    assert status == 0
    assert bad["error"].startswith(text)
    assert good["hints"]


@pytest.mark.parametrize("line", ["{", "[]", "null"])
def test_lines_that_are_no_json_object(line):
    status, (bad, good) = answers(line, {"name": "good", "pod": POD, "new": NODE})
    assert status == 1
    assert bad["name"] is None
    assert bad["error"].startswith("not an event: ")
    assert good["hints"]
