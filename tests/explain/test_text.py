"""Explanations in words and tables."""

from __future__ import annotations

import re

import pytest

from plain_objects import explain, node, pod, priority_class
from stowplan.api.amounts import amount_text
from stowplan.explain import layout
from stowplan.explain.explainer import rejection_notes
from stowplan.explain.text import render
from stowplan.framework import CycleState, Node, Pod, Status
from stowplan.framework.plugin import ExplainingPlugin
from stowplan.testing import a_cluster

GPU = {"key": "gpu", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        pytest.param("cpu", 1500, "1500m", id="part of a cpu"),
        pytest.param("cpu", 2000, "2", id="whole cpus"),
        pytest.param("memory", 3 * 2**30, "3Gi", id="whole gibibytes"),
        pytest.param("memory", 3 * 2**29, "1.5Gi", id="part of one"),
        pytest.param("hugepages-2Mi", 2**21, "2Mi", id="huge pages"),
        pytest.param("ephemeral-storage", 1000, "1000", id="a few bytes"),
        pytest.param("memory", -(2**20), "-1Mi", id="more used than there is"),
        pytest.param("nvidia.com/gpu", 4096, "4096", id="things to count"),
        pytest.param("nvidia.com/gpu", 10**9 - 1, "999999999", id="many of them"),
        pytest.param("nvidia.com/gpu", 2**63 - 1, "9.2E", id="more than anyone reads"),
        pytest.param("cpu", 2**63 - 1, "9.2P", id="more cpus than there are"),
        pytest.param("cpu", -(10**15), "-1T", id="fewer cpus than none"),
    ],
)
def test_amounts(resource, amount, text):
    assert amount_text(resource, amount) == text


def test_a_pod_that_is_placed():
    affinity = {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    preferred = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [affinity]}}
    nodes = [
        node("a", cpu="8"),
        node("b", labels={"disk": "ssd"}),
        node("c", taints=[GPU]),
        node("d", taints=[GPU]),
    ]
    text = render(explain("p", *nodes, pod("p", affinity=preferred)))
    assert (
        text
        == """\
Pod default/p goes to b (profile default-scheduler).
It beats a by 190 points: NodeAffinity +200, NodeResourcesBalancedAllocation -4, NodeResourcesFit
-6.

                                          NodeResources
             NodeAffinity  NodeResources       Balanced
NODE  TOTAL            ×2            Fit     Allocation
b       652           200             81             71
a       462             0             87             75
Equal for all of them: TaintToleration 300, ImageLocality 0.

Rejected: 2 of 4 nodes
   2 TaintToleration: node(s) had untolerated taint(s)
     c and d
     the pod does not tolerate gpu:NoSchedule (2 nodes)"""
    )


def test_a_pod_that_fits_nowhere():
    objects = [node("a", cpu="1"), node("b", cpu="500m"), priority_class("high", 7)]
    text = render(explain("p", *objects, pod("x", on="a"), pod("p", cpu="2", priorityClassName="high")))
    assert (
        text
        == """\
Pod default/p stays pending (profile default-scheduler).
  0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: 0/2 nodes are \
available: 2 Preemption is not helpful for scheduling.

Rejected: 2 of 2 nodes
   2 NodeResourcesFit: Insufficient cpu
     a and b
     b comes closest: it lacks 1500m of cpu (2 requested, 500m of 500m free), and no node is large
     enough

Preemption cannot help: no node was rejected for a reason that evicting pods would resolve.

Events that would requeue it, by the plugin that rejected it:
  NodeResourcesFit: a node is added or changes its allocatable resources or taints; a pod is deleted
     or lowers its requests; a DeviceClass is added or changed"""
    )


def test_a_pod_that_preempts():
    objects = [node("a", cpu="1"), priority_class("high", 7), pod("x", on="a")]
    text = render(explain("p", *objects, pod("p", priorityClassName="high")))
    assert text.startswith(
        "Pod default/p fits nowhere, but could run on a after preemption (profile default-scheduler).\n"
    )
    assert (
        "\n\nPreemption: evicting default/x (priority 0) from a makes room for the pod (priority 7).\n\n"
        in text
    )


def test_a_pod_that_waits_for_victims_to_leave():
    leaving = pod("x", on="a", metadata={"deletionTimestamp": "2026-01-31T12:00:00Z"})
    text = render(explain("p", node("a", cpu="1"), priority_class("high", 7), leaving, pod("p", priority=7)))
    assert "\nPreemption: a has room for the pod once its terminating pods are gone.\n" in text


def test_one_point_is_singular():
    nodes = [node("a", cpu="4200m"), node("b", cpu="4")]
    decided = explain("p", *nodes, pod("p"))
    assert decided.margin(1).by == 1
    assert "It beats b by 1 point: " in render(decided)
    assert ", 1 point behind a." in render(explain("p", *nodes, pod("p"), node_name="b"))


def test_one_node():
    nodes = [node("a", cpu="8"), node("b")]
    text = render(explain("p", *nodes, pod("p"), node_name="b"))
    assert (
        text
        == """\
Pod default/p goes to a (profile default-scheduler).
It beats b by 10 points: NodeResourcesFit +6, NodeResourcesBalancedAllocation +4.

Node b fits: rank 2 of 2 with 452 points, 10 points behind a.

PLUGIN                           WEIGHT  POINTS  WINNER  DIFFERENCE
TaintToleration                       3     300     300           0
NodeResourcesFit                      1      81      87          -6
NodeResourcesBalancedAllocation       1      71      75          -4
ImageLocality                         1       0       0           0

RESOURCE  REQUESTED  FREE  ALLOCATABLE
pods              1   110          110
cpu               1     4            4
memory          1Gi   8Gi          8Gi"""
    )


@pytest.mark.parametrize(
    ("objects", "node_name", "line"),
    [
        pytest.param(
            [node("a"), node("b")],
            None,
            "a is tied with b at 452 points. The first by name is chosen; "
            "kube-scheduler chooses at random, as",
            id="a tie",
        ),
        pytest.param(
            [node("a")], None, "It is the only node that fits, so no scores were computed.", id="alone"
        ),
        pytest.param([], None, "  no nodes available to schedule pods", id="no nodes"),
        pytest.param([node("a"), node("b", unschedulable=True)], "b", "It is cordoned.", id="cordoned"),
        pytest.param([node("a"), node("b", taints=[GPU])], "b", "Taints: gpu:NoSchedule.", id="tainted"),
        pytest.param(
            [node("a"), node("b", cpu="500m")],
            "b",
            "     it lacks 500m of cpu (1 requested, 500m of 500m free); evicting pods would not help",
            id="refused",
        ),
    ],
)
def test_says(objects, node_name, line):
    assert line in render(explain("p", *objects, pod("p"), node_name=node_name)).split("\n")


def test_a_gated_pod():
    text = render(explain("p", node("a"), pod("p", schedulingGates=[{"name": "quota"}])))
    assert text.startswith(
        "Pod default/p is gated (profile default-scheduler).\n"
        "SchedulingGates: waiting for scheduling gates: [quota]. Until then, kube-scheduler does not attempt"
        "\nit.\nIf it were attempted now, it would go to a.\n"
    )


def test_a_search_that_ends_early():
    text = render(explain("p", *(node(f"n{number}") for number in range(200)), pod("p"),
                          config={"percentageOfNodesToScore": 60}))  # fmt: skip
    assert text.endswith("Not evaluated: 80 nodes, because enough other nodes fit (percentageOfNodesToScore)")


def test_a_pod_refused_as_a_whole():
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "missing"}}
    text = render(explain("p", node("a"), node("b"), pod("p", volumes=[volume])))
    assert (
        'Rejected: the pod itself, for every node\n     VolumeRestrictions: persistentvolumeclaim "missing"'
        in text
    )


def many(count):
    fitting = [node(f"fits-{number:04}", cpu=str(4 + number)) for number in range(count)]
    return [*fitting, *(node(f"refuses-{number:04}", cpu="500m") for number in range(count))]


def rows(lines):
    return sum(re.match(r"fits-\d+ +\d", line) is not None for line in lines)


def test_long_lists_are_cut_short():
    found = explain("p", *many(50), pod("p"))
    short, long = render(found).split("\n"), render(found, all_nodes=True).split("\n")
    assert "… and 30 more nodes that fit (use --all-nodes to list them)" in short
    assert [rows(lines) for lines in (short, long)] == [20, 50]
    assert "refuses-0009 and 40 more" in " ".join(line.strip() for line in short)
    assert "refuses-0049" in long[-2]
    assert max(map(len, short + long)) <= layout.width


class Quarantine(ExplainingPlugin):
    """Rejects all nodes, and says about each group of them what it misses."""

    def filter(self, state: CycleState, pod: Pod, node: Node) -> Status | None:
        return Status.unresolvable("node(s) were in quarantine")

    def explain_reasons(self, pod, reasons, nodes):
        return f"{pod.name} waits for {', '.join(sorted(each.name for each in nodes))} to leave it"


def test_a_plugin_explains_its_own_reasons():
    outcome = a_cluster(Quarantine).node("a").node("b").decide("web")
    assert "web waits for a, b to leave it" in str(outcome.explanation)


class Broken(Quarantine):
    def explain_reasons(self, pod, reasons, nodes):
        raise LookupError("no such ward")

    def explain_rejections(self, pod, node_names):
        yield from node_names[5]

    def insufficient_resources(self, reasons):
        raise ZeroDivisionError


def test_a_plugin_that_fails_to_explain_does_not_end_the_explanation():
    cluster = a_cluster(Broken).node("a")
    outcome = cluster.decide("web")
    found = " ".join(str(outcome.explanation).split())
    assert "node(s) were in quarantine" in found
    assert re.search(
        r"Broken cannot say what they lack: LookupError: no such ward \(at .*text.py:\d+\)", found
    )
    [note] = rejection_notes(cluster.planner.profile_of(outcome.decision.pod), outcome.decision)
    assert note.startswith("Broken cannot explain what it rejected: IndexError: list index out of range (at ")
