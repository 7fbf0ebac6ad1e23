"""NodeAffinity: nodeSelector, required and preferred terms, and the affinity a profile adds."""

from __future__ import annotations

import pytest
from alone import UNRESOLVABLE, ask, plugin_of, refusals, scores

from make import make_node, make_pod
from stowplan.framework import QUEUE, SKIP_HINT, Action, ClusterEvent, Resource, Status

ADDED = ClusterEvent(Resource.NODE, Action.ADD)
LABEL = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_LABEL)
UNMATCHED = (UNRESOLVABLE, "node(s) didn't match Pod's node affinity/selector")
ENFORCED = (UNRESOLVABLE, "node(s) didn't match scheduler-enforced node affinity")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SSD, HDD = {"disk": "ssd", "gen": "7"}, {"disk": "hdd", "gen": "-7"}


def rule(key, operator, *values):
    return {"key": key, "operator": operator, "values": list(values)}


def term(*rules, fields=()):
    return {"matchExpressions": list(rules), "matchFields": list(fields)}


def named(*names, operator="In"):
    return term(fields=[rule("metadata.name", operator, name) for name in names])


def requiring(*terms, **spec):
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}
    return make_pod(affinity=affinity, **spec)


def preferring(*weighted):
    terms = [{"weight": weight, "preference": each} for weight, each in weighted]
    return make_pod(affinity={"nodeAffinity": {PREFERRED: terms}})


@pytest.mark.parametrize(
    ("pod", "fits"),
    [
        pytest.param(make_pod(), "sh", id="nothing asked"),
        pytest.param(make_pod(nodeSelector={}), "sh", id="an empty nodeSelector"),
        pytest.param(make_pod(nodeSelector={"disk": "ssd"}), "s", id="nodeSelector"),
        pytest.param(
            make_pod(nodeSelector={"disk": "ssd", "x": ""}), "", id="an empty value needs the label"
        ),
        pytest.param(requiring(term(rule("disk", "In", "ssd", "nvme"))), "s", id="In"),
        pytest.param(requiring(term(rule("disk", "NotIn", "ssd"))), "h", id="NotIn"),
        pytest.param(requiring(term(rule("x", "NotIn", "ssd"))), "sh", id="NotIn without the label"),
        pytest.param(requiring(term(rule("disk", "Exists"))), "sh", id="Exists"),
        pytest.param(requiring(term(rule("x", "DoesNotExist"))), "sh", id="DoesNotExist"),
        pytest.param(requiring(term(rule("gen", "Gt", "6"))), "s", id="Gt"),
        pytest.param(requiring(term(rule("gen", "Lt", "7"))), "h", id="Lt, strictly, and below zero"),
        pytest.param(requiring(term(rule("disk", "Gt", "6"))), "", id="Gt of a word"),
        pytest.param(requiring(term(rule("gen", "Gt", "-9"))), "", id="Gt with a sign cannot be built"),
        pytest.param(
            requiring(term(rule("gen", "Gt", "-9")), term(rule("disk", "In", "ssd"))),
            "s",
            id="a term that cannot be built does not spoil the others",
        ),
        pytest.param(
            requiring(term(rule("disk", "In", "ssd"), rule("gen", "Lt", "5"))), "", id="all rules of a term"
        ),
        pytest.param(
            requiring(term(rule("disk", "In", "ssd")), term(rule("gen", "Lt", "5"))),
            "sh",
            id="any of the terms",
        ),
        pytest.param(requiring(term()), "", id="an empty term matches nothing"),
        pytest.param(requiring(), "", id="nor do no terms"),
        pytest.param(requiring(named("h", operator="NotIn")), "s", id="any name but one"),
        pytest.param(
            requiring(term(fields=[rule("spec.other", "In", "s")])), "", id="a field that nodes do not have"
        ),
        pytest.param(
            requiring(term(rule("disk", "Exists")), nodeSelector={"disk": "hdd"}),
            "h",
            id="selector and terms",
        ),
    ],
)
def test_what_a_pod_requires(pod, fits):
    found = refusals(ask("NodeAffinity", pod, make_node("s", labels=SSD), make_node("h", labels=HDD)))
    assert found == {name: UNMATCHED for name in "sh" if name not in fits}


NARROWED = "node(s) didn't satisfy plugin(s) [NodeAffinity]"


@pytest.mark.parametrize(
    ("pod", "looked_at", "message"),
    [
        pytest.param(requiring(named("s")), ["s"], None, id="a name"),
        pytest.param(requiring(named("s"), named("h")), ["s", "h"], None, id="two names"),
        pytest.param(
            requiring(named("s"), term(rule("disk", "Exists"))), ["s", "h"], None, id="or any other"
        ),
        pytest.param(
            requiring(named("elsewhere")),
            [],
            f"0/2 nodes are available: 2 {NARROWED}.",
            id="a name nobody has",
        ),
        pytest.param(
            requiring(named("s", "h")),
            ["s", "h"],
            "0/2 nodes are available: pod affinity terms conflict.",
            id="two names at once",
        ),
        pytest.param(
            requiring(term(rule("disk", "In", "hdd"), fields=[rule("metadata.name", "In", "s")])),
            ["s"],
            f"0/2 nodes are available: 1 {UNMATCHED[1]}, 1 {NARROWED}.",
            id="a name and a label it lacks",
        ),
    ],
)
def test_names_narrow_the_search(pod, looked_at, message):
    decision = ask("NodeAffinity", pod, make_node("s", labels=SSD), make_node("h", labels=HDD))
    assert [decision.names[row] for row in decision.looked_at] == looked_at
    assert decision.message == (message or "")
    assert (decision.chosen is None) == (message is not None)


@pytest.mark.parametrize(
    ("pod", "status"),
    [
        pytest.param(make_pod(), Status.skip(), id="nothing asked"),
        pytest.param(make_pod(nodeSelector={}), None, id="an empty nodeSelector is one"),
        pytest.param(preferring((1, term(rule("disk", "Exists")))), Status.skip(), id="only preferred"),
        pytest.param(requiring(named("s")), frozenset("s"), id="a name"),
        pytest.param(
            requiring(named("s", "h")),
            Status.unresolvable("pod affinity terms conflict"),
            id="names that exclude each other",
        ),
    ],
)
def test_pre_filter(pod, status):
    plugin = plugin_of("NodeAffinity", make_node("s", labels=SSD))
    assert plugin.pre_filter(None, pod, plugin.handle.cluster.nodes) == status


BIG = [make_node(f"n{gen}", labels={"gen": str(gen)}) for gen in range(4)]


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(make_pod(), {}, id="nothing preferred"),
        pytest.param(
            preferring((30, term(rule("gen", "In", "1", "3"))), (50, term(rule("gen", "In", "2", "3")))),
            {"n0": 0, "n1": 37, "n2": 62, "n3": 100},
            id="weights add up, and are cut off when scaled",
        ),
        pytest.param(
            preferring((0, term(rule("gen", "Gt", "-1")))),
            {"n0": 0, "n1": 0, "n2": 0, "n3": 0},
            id="no weight, not looked at",
        ),
        pytest.param(
            preferring((5, term()), (1, term(rule("gen", "In", "0")))),
            {"n0": 100, "n1": 0, "n2": 0, "n3": 0},
            id="an empty term counts for nothing",
        ),
    ],
)
def test_what_a_pod_prefers(pod, expected):
    assert scores(ask("NodeAffinity", pod, *BIG)) == expected


def test_a_preferred_term_that_cannot_be_built_fails_the_attempt():
    decision = ask("NodeAffinity", preferring((1, term(rule("gen", "Gt", "-1")))), *BIG)
    assert decision.error.startswith('running PreScore plugin "NodeAffinity": ')


def adding(required=None, preferred=None):
    added = {}
    if required:
        added[REQUIRED] = {"nodeSelectorTerms": [required]}
    if preferred:
        added[PREFERRED] = [{"weight": 10, "preference": preferred}]
    return {"addedAffinity": added}


def test_what_the_profile_adds_comes_first():
    args = adding(required=term(rule("disk", "In", "ssd")))
    pod = make_pod(nodeSelector={"gen": "9"})
    found = refusals(
        ask("NodeAffinity", pod, make_node("s", labels=SSD), make_node("h", labels=HDD), args=args)
    )
    assert found == {"s": UNMATCHED, "h": ENFORCED}


def test_what_the_profile_prefers_adds_up_with_the_pod():
    args = adding(preferred=term(rule("gen", "In", "3")))
    found = scores(ask("NodeAffinity", preferring((10, term(rule("gen", "In", "2", "3")))), *BIG, args=args))
    assert found == {"n0": 0, "n1": 0, "n2": 50, "n3": 100}


@pytest.mark.parametrize(
    ("pod", "old", "new", "hint"),
    [
        pytest.param(make_pod(nodeSelector={"disk": "ssd"}), None, SSD, QUEUE, id="a new node that matches"),
        pytest.param(make_pod(nodeSelector={"disk": "ssd"}), None, HDD, SKIP_HINT, id="one that does not"),
        pytest.param(make_pod(nodeSelector={"disk": "ssd"}), HDD, SSD, QUEUE, id="matches now"),
        pytest.param(make_pod(nodeSelector={"disk": "ssd"}), SSD, SSD, SKIP_HINT, id="matched before"),
        pytest.param(make_pod(nodeSelector={"disk": "ssd"}), SSD, HDD, SKIP_HINT, id="matches no more"),
        pytest.param(
            requiring(term(rule("gen", "Gt", "-9"))), HDD, SSD, QUEUE, id="a term that cannot be built"
        ),
        pytest.param(
            requiring(term(rule("gen", "Gt", "-9")), nodeSelector={"disk": "hdd"}),
            HDD,
            SSD,
            SKIP_HINT,
            id="a term that cannot be built, and a selector that does not match",
        ),
    ],
)
def test_nodes_that_come_to_match_are_news(pod, old, new, hint):
    event = ADDED if old is None else LABEL
    before = None if old is None else make_node("n", labels=old)
    assert plugin_of("NodeAffinity").queueing_hint(pod, event, before, make_node("n", labels=new)) is hint


def test_nodes_the_profile_refuses_are_no_news():
    plugin = plugin_of("NodeAffinity", args=adding(required=term(rule("disk", "In", "hdd"))))
    assert plugin.queueing_hint(make_pod(), ADDED, None, make_node("n", labels=SSD)) is SKIP_HINT
