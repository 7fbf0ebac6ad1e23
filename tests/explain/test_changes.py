"""The smallest changes that would change a decision."""

from __future__ import annotations

import pytest

from plain_objects import REGISTRY, V1, ZONE, manifests_of, node, pod
from stowplan.api.templates import find_target
from stowplan.config import load
from stowplan.explain.explainer import Explainer
from stowplan.explain.report import as_json
from stowplan.explain.smallest_changes import smallest_changes
from stowplan.explain.text import render

GPU = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
SOFT = {"key": "spot", "effect": "PreferNoSchedule"}
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
REQUIRED, PREFERRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("required", "preferred"))
WEB = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": ZONE}
SSD = {"key": "disk", "operator": "In", "values": ["ssd"]}
SPREAD = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
SPREAD |= {"labelSelector": WEB["labelSelector"]}


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """On a busy machine the caches are cold, and a search takes more CPU time than it may."""
    monkeypatch.setattr("stowplan.explain.smallest_changes.SECONDS", 60.0)


def explained(*objects, config=None, wanted="p"):
    manifests = manifests_of(*objects)
    loaded = load(V1 | config, REGISTRY).config if config else None
    explainer = Explainer(manifests, loaded, registry=REGISTRY)
    return explainer.explain(find_target(manifests, wanted), changes=True)


def changes(*objects, config=None):
    found = explained(*objects, config=config).changes
    assert found.is_complete
    return {each.text: each.flip.node for each in found.found}


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param(
            [node("a", cpu="2"), pod("p", cpu="2001m")],
            {"cpu request 2 of the container c instead of 2001m": "a"},
            id="one thousandth of a cpu",
        ),
        pytest.param(
            [node("a", memory="1Gi"), node("b", memory="3Gi"), pod("p", memory="4Gi")],
            {"memory request 3Gi of the container c instead of 4Gi": "b"},
            id="as little memory less as the largest node lacks",
        ),
        pytest.param(
            [node("a", cpu="2", memory="1Gi"), pod("p", cpu="3", memory="2Gi")], {}, id="two at once"
        ),
        pytest.param(
            [node("a", taints=[GPU]), pod("p")],
            {"a toleration of gpu=yes:NoSchedule": "a"},
            id="a toleration",
        ),
        pytest.param(
            [node("a", taints=[GPU, {"key": "other", "effect": "NoExecute"}]), pod("p")], {}, id="two taints"
        ),
        pytest.param(
            [node("a"), node("b"), pod("p", nodeSelector={"disk": "ssd"})],
            {"without the node selector disk=ssd": "a", "label disk=ssd on node a": "a"},
            id="a node selector",
        ),
        pytest.param(
            [
                node("a", labels={"cpu": "8"}),
                pod(
                    "p",
                    affinity={
                        "nodeAffinity": {
                            REQUIRED: {
                                "nodeSelectorTerms": [
                                    {"matchExpressions": [{"key": "cpu", "operator": "Gt", "values": ["8"]}]}
                                ]
                            }
                        }
                    },
                ),
            ],
            {"without the required node affinity cpu > (8)": "a", "label cpu=9 on node a": "a"},
            id="a required node affinity",
        ),
        pytest.param(
            [
                node("a"),
                pod("w", on="a", labels={"app": "web"}),
                pod("p", affinity={"podAntiAffinity": {REQUIRED: [WEB]}}),
            ],
            {"without the required anti-affinity to pods with app=web": "a", "priority 1 instead of 0": "a"},
            id="an anti-affinity of its own",
        ),
        pytest.param(
            [
                node("a"),
                pod("w", on="a", affinity={"podAntiAffinity": {REQUIRED: [WEB]}}),
                pod("p", labels={"app": "web", "tier": "front"}),
            ],
            {"without the pod's label app=web": "a", "priority 1 instead of 0": "a"},
            id="a label by which others keep it away",
        ),
        pytest.param(
            [
                node("a"),
                node("b", zone="b", cpu="1"),
                pod("w", on="a", labels={"app": "web"}),
                pod("v", on="b"),
                pod("p", labels={"app": "web"}, topologySpreadConstraints=[SPREAD]),
            ],
            {
                f"without the spread over {ZONE} (DoNotSchedule)": "a",
                "without the pod's label app=web": "a",
                "cpu request 0 of the container c instead of 1": "b",
                "priority 1 instead of 0": "a",
            },
            id="a spread",
        ),
        pytest.param(
            [node("a", unschedulable=True, taints=[CORDON]), pod("p")],
            {
                "node a no longer cordoned": "a",
                "a toleration of node.kubernetes.io/unschedulable:NoSchedule": "a",
            },
            id="a cordon, with its taint",
        ),
        pytest.param(
            [node("a", cpu="2"), pod("low", on="a", cpu="1", priority=7), pod("p", cpu="2", priority=3)],
            {"cpu request 1 of the container c instead of 2": "a", "priority 8 instead of 3": "a"},
            id="the least priority that may evict",
        ),
    ],
)
def test_what_would_find_a_pod_a_node(objects, expected):
    assert changes(*objects) == expected


def test_of_a_container_among_several_it_is_the_least_change_that_counts():
    two = [
        {"name": name, "resources": {"requests": {"cpu": cpu}}}
        for name, cpu in (("small", "100m"), ("big", "3"))
    ]
    found = changes(node("a", cpu="3"), pod("p", containers=two))
    assert found == {"cpu request 0 of the container small instead of 100m": "a"}


NEARER = {
    "affinity": {
        "nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [SSD]}}]},
    }
}


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param(
            [node("a", taints=[SOFT]), node("b", labels={"disk": "hdd"}), pod("p")],
            {"a toleration of spot:PreferNoSchedule": None},
            id="a soft taint keeps it away, but without it they tie",
        ),
        pytest.param(
            [node("a", cpu="8", taints=[SOFT]), node("b"), pod("p")],
            {"a toleration of spot:PreferNoSchedule": "a"},
            id="a soft taint",
        ),
        pytest.param(
            [node("a", cpu="8", memory="16Gi"), node("b", labels={"disk": "ssd"}), pod("p", **NEARER)],
            {"without the preferred node affinity disk=ssd": "a", "label disk=ssd on node a": "a"},
            id="a preferred label",
        ),
        pytest.param(
            [node("a", cpu="16", memory="32Gi", unschedulable=True), node("b"), node("c", cpu="2"), pod("p")],
            {"node a no longer cordoned": "a"},
            id="a cordon",
        ),
    ],
)
def test_what_would_send_a_pod_elsewhere(objects, expected):
    found = changes(*objects)
    assert {text: found.get(text) for text in expected} == expected


def test_the_weight_that_tips_the_scales():
    """ImageLocality prefers a, NodeResourcesFit b; the weight is the first that makes up for it."""
    objects = [node("a", cpu="4"), node("b", cpu="40"), pod("w", on="b", cpu="20"), pod("p", cpu="1")]
    found = explained(*objects)
    assert found.ranking[0] == "a"
    (change,) = [each for each in found.changes.found if each.kind == "weight"][:1]
    name, weight = change.weight
    for tried, winner in ((weight, "b"), (change.less, "a")):
        entry = {"enabled": [{"name": name, "weight": tried}], "disabled": [{"name": name}]}
        config = {"profiles": [{"plugins": {"score": entry}}]}
        assert explained(*objects, config=config).ranking[0] == winner, (name, tried)


def test_a_sample_of_the_nodes_has_no_smallest_change():
    objects = [node(f"n{number}") for number in range(200)]
    found = explained(*objects, pod("p"), config={"percentageOfNodesToScore": 10})
    assert found.changes.found == ()


def test_says_that_time_ran_out():
    manifests = manifests_of(node("a", taints=[GPU]), pod("p"))
    explainer = Explainer(manifests, registry=REGISTRY)
    clock = iter(range(100))
    decision = explainer.planner.decide(manifests.pods["default/p"])
    found = smallest_changes(explainer.planner, decision, seconds=1, now=lambda: next(clock))
    assert not found.is_complete
    told = explainer.explain(find_target(manifests, "p"))._replace(changes=found)
    assert render(told).endswith("would let it fit; time ran out before all changes were tried.")


def test_in_words_and_as_data():
    found = explained(node("a", taints=[GPU]), pod("p"))
    assert render(found).endswith(
        "Each of these changes alone would let it fit; no smaller one of its kind would:\n"
        "   - a toleration of gpu=yes:NoSchedule: a"
    )
    assert as_json(found)["changes"] == [
        {
            "kind": "toleration",
            "text": "a toleration of gpu=yes:NoSchedule",
            "was": None,
            "now": "gpu=yes:NoSchedule",
            "node": "a",
            "byPreemption": False,
        }
    ]


def test_a_running_pod_is_decided_without_itself():
    found = explained(node("a", cpu="1"), node("b", cpu="2", taints=[GPU]), pod("p", on="a"))
    assert "a toleration of gpu=yes:NoSchedule" in [each.text for each in found.changes.found]
