"""Explaining decisions that were made earlier: where and when, why, what the pod waits for."""

from __future__ import annotations

import json

import pytest

from make import make_node, make_pod, planner
from stowplan.errors import InputError
from stowplan.explain.kept import explain_answer, explain_record
from stowplan.explain.report import as_json
from stowplan.explain.text import render
from stowplan.framework.event_words import event_text, wakes
from stowplan.framework.events import Action, ClusterEvent, Resource
from stowplan.journal import Attempt, Outcome
from stowplan.journal.packing import RecordMaker
from stowplan.journal.shown import PodAnswer, Waiting, shown

NOON = 1_800_000_000.0


def record(pod, *nodes, **facts):
    deciding = planner(nodes)
    decision = deciding.decide(pod)
    outcome = Outcome.UNSCHEDULABLE if decision.chosen is None else Outcome.SCHEDULED
    (profile,) = deciding.profiles.values()
    given = {"profile": "default-scheduler", "number": 2, "time": NOON, "seconds": 0.1, "outcome": outcome}
    rejectors = decision.rejectors if decision.chosen is None else ()
    given |= {"message": decision.message, "wakes": wakes(profile, rejectors)}
    return RecordMaker(2**20).record_of(decision, Attempt(**given | facts))


def test_a_pod_that_was_placed():
    small = make_node("small", allocatable={"cpu": "2", "memory": "4Gi", "pods": "10"})
    found = explain_record(
        record(
            make_pod("p", requests={"cpu": "1", "memory": "1Gi"}),
            make_node("large"),
            small,
            make_node("taken", taints=["gpu:NoSchedule"]),
        )
    )
    assert (
        render(found)
        == """\
Pod default/p went to large, attempt 2 at 2027-01-15 08:00:00 UTC (profile default-scheduler).
It beats small by 22: NodeResourcesFit +19, NodeResourcesBalancedAllocation +3.

                             NodeResources
              NodeResources       Balanced
NODE   TOTAL            Fit     Allocation
large    452             81             71
small    430             62             68
The same for all of them: TaintToleration 300, ImageLocality 0.

Refused: 1 of 3 nodes
   1 TaintToleration: node(s) had untolerated taint(s)
     taken"""
    )
    assert as_json(found)["made"] == {
        "time": NOON,
        "attempt": 2,
        "profile": "default-scheduler",
        "seconds": 0.1,
        "outcome": "scheduled",
        "node": "large",
        "message": "",
    }
    assert as_json(found)["outcome"] == "placed"


def test_ties_were_drawn():
    text = render(explain_record(record(make_pod("p"), make_node("a"), make_node("b"))))
    assert "b is as good as a, with" in text
    assert "points. One of them was drawn." in text


def test_a_pod_that_found_no_node():
    text = render(explain_record(record(make_pod("p", requests={"cpu": "50"}), make_node("a"))))
    assert text.startswith(
        "Pod default/p found no node, attempt 2 at 2027-01-15 08:00:00 UTC (profile default-scheduler).\n"
        "  0/1 nodes are available: 1 Insufficient cpu."
    )
    assert text.endswith(
        """
What would have it tried again, by the plugin that refused it:
  NodeResourcesFit: a node comes or changes its allocatable resources or taints; a pod goes or asks
     for less; a DeviceClass comes or changes"""
    )


def test_a_pod_that_did_not_get_where_it_was_to_go():
    failed = record(make_pod("p"), make_node("a"), outcome=Outcome.ERROR, message="binding: etcd is away")
    found = explain_record(failed)
    assert render(found).startswith(
        "Pod default/p was to go to a, but did not get there, attempt 2 at 2027-01-15 08:00:00 UTC "
    )
    assert "\n  binding: etcd is away" in render(found)
    assert (as_json(found)["outcome"], as_json(found)["node"]) == ("failed", None)


def test_one_node_of_it():
    found = record(make_pod("p"), make_node("a"), make_node("b", taints=["gpu:NoSchedule"]))
    text = render(explain_record(found, "b"))
    assert "Node b is refused.\n  TaintToleration: node(s) had untolerated taint(s)" in text
    assert "RESOURCE" not in text
    assert "Node a fits: place 1 of 1" in render(explain_record(found, "a"))
    with pytest.raises(InputError, match="there was no node c when it was decided; there is a, b"):
        explain_record(found, "c")


@pytest.mark.parametrize(
    ("waiting", "sentence"),
    [
        (Waiting(place="active"), "It is in the queue now, to be tried as soon as those before it are."),
        (
            Waiting(place="backoff", until=NOON),
            "It is in the queue now and pauses, until 2027-01-15 08:00:00 UTC, or until there is nothing",
        ),
        (Waiting(place="unschedulable"), "It is in the queue now and waits for a change that may help."),
        (Waiting(place="permit", plugins=("A", "B")), "It has a node and waits for A and B to permit it."),
        (Waiting(place="trying"), "It is being decided or bound at this moment."),
        (Waiting(place="gated", plugins=("A",)), "It is held back by A and not tried until that is over."),
    ],
    ids=lambda value: value.place if isinstance(value, Waiting) else "",
)
def test_what_it_waits_for_now(waiting, sentence):
    decision = shown(record(make_pod("p", requests={"cpu": "50"}), make_node("a")))
    answer = PodAnswer(pod="default/p", waiting=waiting, decision=decision)
    assert f"\n\n{sentence}" in render(explain_answer(answer))
    assert sentence in as_json(explain_answer(answer))["waiting"][0] + "\n"


def test_a_pod_that_was_not_decided_yet():
    waiting = Waiting(place="gated", plugins=("G",), wakes={"G": "the pod itself changes"}, scheduler="s")
    assert explain_answer(PodAnswer(pod="default/p", waiting=waiting)) == (
        "Pod default/p has not been decided yet (profile s).\n"
        "It is held back by G and not tried until that is over.\n"
        "  G: the pod itself changes"
    )


def test_data_is_the_same_by_way_of_json():
    found = record(make_pod("p"), make_node("a"), make_node("b"), make_node("c", taints=["x:NoSchedule"]))
    answer = PodAnswer(pod="default/p", decision=shown(found))
    assert json.dumps(as_json(explain_answer(answer))) == json.dumps(as_json(explain_record(found)))


@pytest.mark.parametrize(
    ("events", "text"),
    [
        pytest.param([(Resource.NODE, Action.ADD)], "a node comes", id="one"),
        pytest.param(
            [
                (Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL),
                (Resource.NODE, Action.UPDATE_NODE_TAINT),
            ],
            "a node comes or changes its labels or taints",
            id="one resource twice",
        ),
        pytest.param(
            [(Resource.POD, Action.DELETE | Action.UPDATE_POD_TOLERATION)],
            "the pod itself changes its tolerations; a pod goes",
            id="what only happens to the pod itself",
        ),
        pytest.param([(Resource.CSI_NODE, Action.ALL)], "a CSINode comes, goes or changes", id="anything"),
        pytest.param([("example.com/Oven", Action.UPDATE)], "an Oven changes", id="a custom resource"),
        pytest.param([(Resource.WILDCARD, Action.ALL)], "anything comes, goes or changes", id="everything"),
    ],
)
def test_events_in_words(events, text):
    assert event_text(ClusterEvent(*event) for event in events) == text
