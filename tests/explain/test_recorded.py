"""Explaining decisions that were made earlier: where and when, why, what the pod waits for."""

from __future__ import annotations

import pytest

from make import make_node, make_pod, planner
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.errors import InputError
from stowplan.explain.recorded import add_weight_changes, explain_record, undecided_text
from stowplan.explain.report import as_json
from stowplan.explain.smallest_changes import smallest_changes
from stowplan.explain.text import render
from stowplan.framework.events import Action, ClusterEvent, Resource
from stowplan.framework.hints import event_text, wakes
from stowplan.framework.plugin import Plugin
from stowplan.framework.registry import Registry
from stowplan.journal import Attempt, Outcome
from stowplan.journal.record import RecordMaker
from stowplan.journal.wire import Waiting

NOON = 1_800_000_000.0
SAMPLED = {"percentageOfNodesToScore": 10}
ATTEMPT = Attempt("default-scheduler", 1, NOON, 0.1, Outcome.SCHEDULED)


def record(pod, *nodes, **facts):
    deciding = planner(nodes)
    decision = deciding.decide(pod)
    outcome = Outcome.UNSCHEDULABLE if decision.chosen is None else Outcome.SCHEDULED
    (profile,) = deciding.profiles.values()
    given = {"profile": "default-scheduler", "number": 2, "time": NOON, "seconds": 0.1, "outcome": outcome}
    rejectors = decision.rejectors if decision.chosen is None else ()
    given |= {"message": decision.message, "wakes": wakes(profile, rejectors)}
    return RecordMaker(2**20).make_record(decision, Attempt(**given | facts))


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
It beats small by 22 points: NodeResourcesFit +19, NodeResourcesBalancedAllocation +3.

                             NodeResources
              NodeResources       Balanced
NODE   TOTAL            Fit     Allocation
large    452             81             71
small    430             62             68
Equal for all of them: TaintToleration 300, ImageLocality 0.

Rejected: 1 of 3 nodes
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


def test_weights_can_be_decided_again_from_what_is_kept():
    """They are those that are found where there is a cluster, decided anew."""
    nodes = make_node("a"), make_node("b", allocatable={"cpu": "40", "memory": "8Gi", "pods": "110"})
    pod = make_pod("p", requests={"cpu": "1", "memory": "3Gi"})
    deciding = planner(nodes)
    tried = smallest_changes(deciding, deciding.decide(pod), seconds=60).found
    expected = [(each.text, each.flip.node) for each in tried if each.kind == "weight"]
    assert expected
    found = add_weight_changes(explain_record(record(pod, *nodes)))
    assert [(each.text, each.flip.node) for each in found.changes.found] == expected
    assert render(found).endswith(
        "would move it to another node; no smaller one of its kind would:\n"
        + "".join(f"   - {text}: {node}\n" for text, node in expected)
        + "\nFor changes of other kinds, use --server, or explain the pod on the cluster."
    )


def test_a_sample_says_nothing_of_weights():
    config = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    deciding = planner([make_node(f"n{number}") for number in range(200)], config | SAMPLED)
    kept = RecordMaker(2**20).make_record(deciding.decide(make_pod("p")), ATTEMPT)
    found = add_weight_changes(explain_record(kept))
    assert found.changes is None
    assert render(found).endswith(
        "For changes that would move it to another node, use --server, or explain the pod on the cluster."
    )


def test_ties_were_drawn():
    text = render(explain_record(record(make_pod("p"), make_node("a"), make_node("b"))))
    assert "a is tied with b at" in text
    assert "points. It was chosen at random." in text


def test_a_pod_that_found_no_node():
    text = render(explain_record(record(make_pod("p", requests={"cpu": "50"}), make_node("a"))))
    assert text.startswith(
        "Pod default/p fit nowhere, attempt 2 at 2027-01-15 08:00:00 UTC (profile default-scheduler).\n"
        "  0/1 nodes are available: 1 Insufficient cpu."
    )
    assert text.endswith(
        """
Events that would requeue it, by the plugin that rejected it:
  NodeResourcesFit: a node is added or changes its allocatable resources or taints; a pod is deleted
     or lowers its requests; a DeviceClass is added or changed"""
    )


def test_a_pod_that_did_not_get_where_it_was_to_go():
    failed = record(make_pod("p"), make_node("a"), outcome=Outcome.ERROR, message="binding: etcd is away")
    found = explain_record(failed)
    assert render(found).startswith(
        "Pod default/p was assigned to a, but not bound, attempt 2 at 2027-01-15 08:00:00 UTC "
    )
    assert "\n  binding: etcd is away" in render(found)
    assert (as_json(found)["outcome"], as_json(found)["node"]) == ("failed", None)


def test_one_node_of_it():
    found = record(make_pod("p"), make_node("a"), make_node("b", taints=["gpu:NoSchedule"]))
    text = render(explain_record(found, "b"))
    assert "Node b is rejected.\n  TaintToleration: node(s) had untolerated taint(s)" in text
    assert "RESOURCE" not in text
    assert "Node a fits: rank 1 of 1" in render(explain_record(found, "a"))
    with pytest.raises(InputError, match=r"node c did not exist at the time of the decision \(known: a, b\)"):
        explain_record(found, "c")


@pytest.mark.parametrize(
    ("waiting", "sentence"),
    [
        (
            Waiting(place="active"),
            "It is in the active queue and will be attempted after the pods before it.",
        ),
        (
            Waiting(place="backoff", until=NOON),
            "It is in the backoff queue until 2027-01-15 08:00:00 UTC, or until the active queue is",
        ),
        (
            Waiting(place="unschedulable"),
            "It is unschedulable and waits for a change in the cluster that may help.",
        ),
        (Waiting(place="permit", plugins=("A", "B")), "It has a node and waits for a permit from A and B."),
        (Waiting(place="trying"), "It is being decided or bound right now."),
        (
            Waiting(place="gated", plugins=("A",)),
            "It is gated by A and not attempted until the gate is removed.",
        ),
    ],
    ids=lambda value: value.place if isinstance(value, Waiting) else "",
)
def test_what_it_waits_for_now(waiting, sentence):
    kept = record(make_pod("p", requests={"cpu": "50"}), make_node("a"))
    found = explain_record(kept, waiting=waiting)
    assert f"\n\n{sentence}" in render(found)
    assert sentence in as_json(found)["waiting"][0] + "\n"


def test_a_pod_that_was_not_decided_yet():
    waiting = Waiting(
        place="gated", plugins=("G",), message="wait", wakes={"G": "the pod itself changes"}, scheduler="s"
    )
    assert undecided_text("default/p", waiting) == (
        "Pod default/p has not been decided yet (profile s).\n"
        "It is gated by G and not attempted until the gate is removed.\n"
        "G says: wait.\n"
        "  G: the pod itself changes"
    )


@pytest.mark.parametrize(
    ("waiting", "begins"),
    [
        pytest.param(
            Waiting(place="unschedulable", attempts=1, plugins=("NodeAffinity",), scheduler="s"),
            "Pod default/p was attempted once and rejected by NodeAffinity (profile s).",
            id="once",
        ),
        pytest.param(
            Waiting(place="active", attempts=3, plugins=("A", "B"), scheduler="s"),
            "Pod default/p was attempted 3 times and last rejected by A and B (profile s).",
            id="often",
        ),
        pytest.param(
            Waiting(place="backoff", attempts=2, scheduler="s"),
            "Pod default/p was attempted 2 times without success (profile s).",
            id="refused by nobody",
        ),
        pytest.param(
            Waiting(place="gated", attempts=1, plugins=("Gate",), scheduler="s"),
            "Pod default/p was attempted once without success (profile s).",
            id="held back since",
        ),
    ],
)
def test_a_pod_whose_decisions_are_no_longer_kept(waiting, begins):
    assert undecided_text("default/p", waiting).splitlines()[:2] == [
        begins,
        "That decision is no longer in memory; look it up in the journal, if there is one (--journal DIR).",
    ]


class Careless(Plugin):
    def score(self, state, pod, node):
        raise ValueError("boom")


class Careful(Plugin):
    def filter(self, state, pod, node):
        raise ValueError("boom")


@pytest.mark.parametrize(
    ("plugin", "says"),
    [
        pytest.param(Careless, "5 nodes fit, but could not be scored.", id="a score plugin raises"),
        pytest.param(Careful, "", id="a filter raises"),
    ],
)
def test_a_decision_that_failed_makes_nothing_up(plugin, says):
    registry = Registry.installed(classes={"Own": plugin})
    profile = {"plugins": {"multiPoint": {"enabled": [{"name": "Own"}]}}}
    version = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    cluster = Cluster.of(make_node(f"n{number}") for number in range(5))
    deciding = Planner(cluster, load(version | {"profiles": [profile]}, registry).config, registry=registry)
    decision = deciding.decide(make_pod("p"))
    assert decision.error
    attempt = Attempt("default-scheduler", 1, NOON, 0.1, Outcome.ERROR, decision.error)
    found = explain_record(RecordMaker(2**20).make_record(decision, attempt))
    lines = [says] if says else []
    assert render(found).splitlines() == [
        "Pod default/p could not be decided, attempt 1 at 2027-01-15 08:00:00 UTC (profile",
        "default-scheduler).",
        *lines,
        f"  {decision.error}",
    ]
    assert as_json(found)["preemption"] is None
    about = render(explain_record(RecordMaker(2**20).make_record(decision, attempt), "n3"))
    assert about.endswith("\n\nNode n3 fits." if says else "\n\nNode n3 was not evaluated.")


@pytest.mark.parametrize(
    ("events", "text"),
    [
        pytest.param([(Resource.NODE, Action.ADD)], "a node is added", id="one"),
        pytest.param(
            [
                (Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL),
                (Resource.NODE, Action.UPDATE_NODE_TAINT),
            ],
            "a node is added or changes its labels or taints",
            id="one resource twice",
        ),
        pytest.param(
            [(Resource.POD, Action.DELETE | Action.UPDATE_POD_TOLERATION)],
            "the pod itself changes its tolerations; a pod is deleted",
            id="what only happens to the pod itself",
        ),
        pytest.param(
            [(Resource.CSI_NODE, Action.ALL)], "a CSINode is added, deleted or changed", id="anything"
        ),
        pytest.param([("example.com/Oven", Action.UPDATE)], "an Oven is changed", id="a custom resource"),
        pytest.param(
            [(Resource.WILDCARD, Action.ALL)], "any object is added, deleted or changed", id="everything"
        ),
        (
            [("appgroups.v1alpha1.appgroup.diktyo.x-k8s.io", Action.ADD | Action.DELETE)],
            "one of appgroups.appgroup.diktyo.x-k8s.io is added or deleted",
        ),
    ],
)
def test_events_in_words(events, text):
    assert event_text(ClusterEvent(*event) for event in events) == text
