"""Explaining pods on what files show: what is decided, in which order, and what is said of it."""

from __future__ import annotations

import pytest

from plain_objects import ZONE, explain, node, pod, priority_class
from stowplan.errors import InputError
from stowplan.explain.report import as_json

ROOMY, FULL = node("roomy", cpu="8"), node("full", cpu="1")
HIGH = priority_class("high", 100)
RUNNING = {"phase": "Running"}


def test_ranks_nodes_and_says_what_made_the_difference():
    labels = {"disk": "ssd"}
    term = {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    found = explain("p", node("plain", cpu="8"), node("ssd", labels=labels), node("tiny", cpu="500m"),
                    pod("p", affinity=affinity))  # fmt: skip
    assert (found.outcome, found.ranking) == ("placed", ["ssd", "plain"])
    margin = found.margin(1)
    assert margin.over == "plain"
    assert margin.by == found.totals[0] - found.totals[1] == sum(margin.plugins.values())
    assert margin.plugins["NodeAffinity"] == 200
    assert margin.plugins["NodeResourcesFit"] < 0
    (refusal,) = found.rejections
    assert (refusal.status.plugin, refusal.nodes) == ("NodeResourcesFit", ["tiny"])


def test_points_may_be_huge():
    weights = {"score": {"enabled": [{"name": "NodeResourcesFit", "weight": 100_000}]}}
    found = explain("p", node("a", cpu="8"), node("b"), pod("p"), config={"profiles": [{"plugins": weights}]})
    assert found.margin(1).plugins["NodeResourcesFit"] == 600_000
    assert found.margin(1).by == sum(found.margin(1).plugins.values())


def test_each_pod_is_placed_before_the_next():
    found = explain("first second third", node("n", cpu="2"), pod("first"), pod("second"), pod("third"))
    assert found.outcome == "pending"


@pytest.mark.parametrize(
    ("seed", "chosen"),
    [
        pytest.param(None, "a", id="the first by name"),
        pytest.param(1, "a", id="drawn: 0.13 of the way"),
        pytest.param(2, "c", id="drawn: 0.96 of the way"),
    ],
)
def test_ties(seed, chosen):
    found = explain("p", node("c"), node("a"), node("b"), pod("p"), seed=seed)
    assert found.ranking[0] == found.decision.chosen == chosen
    assert found.ties == sorted({"a", "b", "c"} - {chosen})
    assert found.margin(1).by == 0


@pytest.mark.parametrize(
    ("objects", "outcome", "note"),
    [
        pytest.param(
            [pod("p", on="full", status=RUNNING)],
            "roomy",
            "It runs on full; this is what would be decided if it were pending.",
            id="it runs",
        ),
        pytest.param(
            [pod("p", on="gone", status=RUNNING)],
            "roomy",
            "It runs on gone, which does not exist; this is what would be decided if it were pending.",
            id="it runs elsewhere",
        ),
        pytest.param(
            [pod("p", on="full", status={"phase": "Succeeded"})],
            "roomy",
            "It has finished (Succeeded); this is what would be decided if it were pending.",
            id="it has finished",
        ),
        pytest.param(
            [pod("p", metadata={"deletionTimestamp": "2026-01-31T12:00:00Z"})],
            "roomy",
            "It is being deleted, so kube-scheduler would not place it.",
            id="it is being deleted",
        ),
    ],
)
def test_says_in_which_state_the_pod_is(objects, outcome, note):
    found = explain("p", ROOMY, FULL, *objects)
    assert (found.decision.chosen, found.notes) == (outcome, (note,))


def test_a_running_pod_stays_where_it_is_for_those_after_it():
    """It would go to the roomy node now, but leaves no room on the full one."""
    after = pod("after", nodeSelector={"kubernetes.io/hostname": "full"})
    found = explain("running after", ROOMY, FULL, pod("running", on="full", status=RUNNING), after)
    assert found.outcome == "pending"


def test_a_gated_pod_is_held_back_and_not_placed():
    gated, other = pod("gated", schedulingGates=[{"name": "quota"}]), pod("other")
    found = explain("gated", FULL, gated, other)
    assert (found.outcome, found.decision.chosen) == ("held back", "full")
    assert found.held_back.message == "waiting for scheduling gates: [quota]"
    assert as_json(found)["node"] is None
    assert explain("gated other", FULL, gated, other).decision.chosen == "full"


def test_says_how_much_the_closest_node_lacks():
    nodes = [
        node("a", cpu="2", memory="4Gi"),
        node("b", cpu="2", memory="4Gi"),
        node("c", cpu="2", memory="2Gi"),
    ]
    found = explain("p", *nodes, pod("x", on="a", cpu="1500m"), pod("p", cpu="2500m", memory="3Gi"))
    both, cpu = sorted(found.rejections, key=lambda each: len(each.nodes))
    assert (both.nodes, cpu.nodes) == (["c"], ["a", "b"])
    assert cpu.closest.node == "b"
    assert [shortage.lacking for shortage in cpu.closest.shortages] == [500]
    assert cpu.detail == (
        "b comes closest: it lacks 500m of cpu (2500m requested, 2 of 2 free), and no node is large enough"
    )
    assert both.detail == (
        "it lacks 500m of cpu (2500m requested, 2 of 2 free), and no node is large enough; "
        "lacks 1Gi of memory (3Gi requested, 2Gi of 2Gi free)"
    )


IN_ZONE = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "db"}}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERM = {"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": ["hdd", "ssd"]}]}
DB = pod("db", on="n", labels={"app": "db"})


AFFINITY = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM]}}}
NEAR, APART = {"podAffinity": {REQUIRED: [IN_ZONE]}}, {"podAntiAffinity": {REQUIRED: [IN_ZONE]}}
EVENLY = IN_ZONE | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Ignore"}
WEB = {"hostNetwork": True, "containers": [{"ports": [{"containerPort": 80}]}]}


@pytest.mark.parametrize(
    ("objects", "spec", "detail"),
    [
        pytest.param(
            [node("n", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])],
            {},
            "the pod does not tolerate gpu=yes:NoSchedule (1 node)",
            id="taints",
        ),
        pytest.param(
            [node("n")],
            {"nodeSelector": {"disk": "ssd"}},
            "the pod requires nodes with disk=ssd",
            id="a node selector",
        ),
        pytest.param(
            [node("n", labels={"disk": "hdd"})],
            {"affinity": AFFINITY},
            "the pod requires nodes with disk not in (hdd, ssd)",
            id="node affinity",
        ),
        pytest.param(
            [node("n")],
            {"affinity": NEAR},
            f"the pod requires a pod with app=db in its {ZONE}",
            id="pod affinity",
        ),
        pytest.param(
            [node("n"), DB],
            {"affinity": APART},
            f"the pod requires no pod with app=db in its {ZONE}",
            id="pod anti-affinity",
        ),
        pytest.param(
            [node("n"), pod("x", on="n", affinity=APART)],
            {"labels": {"app": "db"}},
            "pods that run there or nearby have anti-affinity to its labels",
            id="another's anti-affinity",
        ),
        pytest.param(
            [node("n"), node("m", zone="b", unschedulable=True), DB],
            {"labels": {"app": "db"}, "topologySpreadConstraints": [EVENLY]},
            f"the pod requires pods with app=db spread over {ZONE}, at most 1 apart",
            id="spread",
        ),
        pytest.param(
            [node("n"), pod("x", on="n", **WEB)], WEB, "the pod requires host port 80/TCP", id="ports"
        ),
        pytest.param([node("n", unschedulable=True)], {}, "", id="reasons that say it all"),
    ],
)
def test_says_what_is_missing(objects, spec, detail):
    found = explain("p", *objects, pod("p", **spec))
    assert found.outcome == "pending"
    assert next(each.detail for each in found.rejections if each.nodes == ["n"]) == detail


def test_preemption_names_its_victims():
    objects = [FULL, HIGH, pod("low", on="full", status=RUNNING), pod("p", priorityClassName="high")]
    found = explain("p", *objects)
    assert found.outcome == "preempting"
    assert as_json(found)["preemption"] == {
        "helps": True,
        "node": "full",
        "victims": [{"pod": "default/low", "priority": 0}],
        "why": "",
    }
    evicted = explain("p low", *objects, ROOMY | {"spec": {"unschedulable": True}})
    assert evicted.notes == ("It was evicted from full for an earlier pod.",)
    assert evicted.outcome == "pending"


@pytest.mark.parametrize(
    ("objects", "spec", "why"),
    [
        pytest.param(
            [],
            {},
            "Preemption cannot help. The pod does not fit on 1 node where no pod has a priority below 0.",
            id="no lower priority",
        ),
        pytest.param(
            [HIGH, node("cordoned", unschedulable=True)],
            {"priorityClassName": "high"},
            "Preemption cannot help. The pod does not fit on 1 node for reasons that evicting pods would not "
            "resolve; on 1 node even without all pods of lower priority.",
            id="not even then",
        ),
        pytest.param(
            [],
            {"nodeSelector": {"disk": "ssd"}},
            "Preemption cannot help: no node was rejected for a reason that evicting pods would resolve.",
            id="no use",
        ),
        pytest.param(
            [HIGH],
            {"priorityClassName": "high", "preemptionPolicy": "Never"},
            "Preemption was not attempted: not eligible due to preemptionPolicy=Never.",
            id="not allowed",
        ),
    ],
)
def test_says_why_preemption_cannot_help(objects, spec, why):
    running = [pod("low", on="full", cpu="500m"), pod("high", on="full", cpu="500m", priority=100)]
    found = explain("p", FULL, *running, *objects, pod("p", **spec))
    assert as_json(found)["preemption"] == {"helps": False, "node": None, "victims": [], "why": why}


def test_a_profile_in_which_nobody_evicts_pods():
    off = {"multiPoint": {"disabled": [{"name": "DefaultPreemption"}]}}
    running = pod("low", on="full")
    config = {"profiles": [{"plugins": off}]}
    found = explain("p", FULL, HIGH, running, pod("p", priorityClassName="high"), config=config)
    assert as_json(found)["preemption"]["why"] == "No plugin of this profile preempts pods."


def test_pods_nominated_to_a_node_keep_their_room():
    nominated = pod("nominated", priority=10, status={"nominatedNodeName": "full"})
    found = explain("p", FULL, nominated, pod("p"))
    assert found.outcome == "pending"
    assert found.rejections[0].detail == "it has enough room only without the pods nominated to it"
    assert explain("nominated", FULL, ROOMY, nominated).not_looked_at == 1


def test_a_node_that_runs_as_many_pods_as_it_may():
    small = node("n") | {"status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "1"}}}
    found = explain("p", small, pod("x", on="n"), pod("p"))
    assert found.rejections[0].detail == "it already runs 1 of at most 1 pods"


def test_a_sample_of_the_nodes():
    nodes = [node(f"n{number:03}") for number in range(200)]
    found = explain("p", *nodes, pod("p"), config={"percentageOfNodesToScore": 60})
    assert (len(found.ranking), found.not_looked_at) == (120, 80)


def test_one_node_in_full():
    tainted = node("n", cpu="2", taints=[{"key": "gpu", "effect": "NoSchedule"}])
    found = explain(
        "p", tainted, ROOMY, FULL, pod("x", on="n", memory="2Gi"), pod("p", cpu="1500m"), node_name="n"
    ).node
    assert (found.place, found.scores, found.taints) == (None, [], ["gpu:NoSchedule"])
    assert [each.status.plugin for each in found.rejections] == ["TaintToleration", "NodeResourcesFit"]
    assert [(each.resource, each.asked, each.free, each.allocatable) for each in found.room] == [
        ("pods", 1, 109, 110),
        ("cpu", 1500, 1000, 2000),
        ("memory", 2**30, 6 * 2**30, 8 * 2**30),
    ]


def test_one_node_that_fits():
    found = explain("p", node("a", cpu="8"), node("b"), pod("p"), node_name="b")
    b = found.node
    assert (b.place, b.total, b.behind) == (2, found.totals[1], found.totals[0] - found.totals[1])
    assert sum(score.points for score in b.scores) == b.total
    assert sum(score.winner for score in b.scores) == found.totals[0]


def test_a_node_that_is_not_there():
    with pytest.raises(InputError, match=r'node ful not found; did you mean "full"\? \(known: full, roomy\)'):
        explain("p", ROOMY, FULL, pod("p"), node_name="ful")


def test_a_scheduler_of_another_name():
    with pytest.raises(
        InputError,
        match=r"Pod default/p: spec\.schedulerName: no profile has the name 'mine', there is "
        r"default-scheduler; pass the configuration of that scheduler with --config FILE$",
    ):
        explain("p", ROOMY, pod("p", schedulerName="mine"))


def test_json_has_the_decision_and_the_same_keys_always():
    placed, pending = explain("p", ROOMY, pod("p")), explain("p", FULL, pod("p", cpu="2"))
    assert as_json(placed)["decision"] == placed.decision.as_golden()
    keys = "pod profile outcome node notes heldBack nodeCount notLookedAt ranking ties margin seed refused"
    keys += " message preemption made wakes waiting decision"
    assert list(as_json(placed)) == list(as_json(pending)) == keys.split()
