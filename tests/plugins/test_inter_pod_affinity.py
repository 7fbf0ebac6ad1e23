"""InterPodAffinity: pods that want to be near others, and pods that do not."""

from __future__ import annotations

import pytest
from alone import UNRESOLVABLE, UNSCHEDULABLE, ask, planner, plugin_of, refusals, scores

from make import make_node, make_pod
from stowplan.api.kinds import object_of
from stowplan.framework import QUEUE, SKIP_HINT, Action, ClusterEvent, CycleState, Resource, Status

ZONE, HOSTNAME = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ALONE = (UNRESOLVABLE, "node(s) didn't match pod affinity rules")
UNWANTED = (UNSCHEDULABLE, "node(s) didn't match pod anti-affinity rules")
REFUSING = (UNSCHEDULABLE, "node(s) didn't satisfy existing pods anti-affinity rules")
DB, WEB = {"app": "db"}, {"app": "web"}


def to(labels, key=ZONE, **fields):
    selector = None if labels is None else {"matchLabels": labels}
    return {"labelSelector": selector, "topologyKey": key, **fields}


def weighing(weight, term):
    return {"weight": weight, "podAffinityTerm": term}


def pod(name="pod", labels=WEB, *, near=(), away=(), likes=(), dislikes=(), **fields):
    affinity = {
        "podAffinity": {REQUIRED: list(near), PREFERRED: list(likes)},
        "podAntiAffinity": {REQUIRED: list(away), PREFERRED: list(dislikes)},
    }
    return make_pod(name, labels=labels, affinity=affinity, **fields)


def db(node, name="db", **fields):
    return make_pod(name, labels=DB, node=node, **fields)


def namespace(name, **labels):
    return object_of({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})


A, B = make_node("a", labels={ZONE: "a"}), make_node("b", labels={ZONE: "b"})
PLAIN = make_node("plain")
TEAM_IS = {"namespaceSelector": {"matchLabels": {"team": "x"}}}
NO_TEAM = {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}}


# Filtering


@pytest.mark.parametrize(
    ("asking", "others", "refused"),
    [
        pytest.param(pod(near=[to(DB)]), [db("a")], {"b": ALONE, "plain": ALONE}, id="near one"),
        pytest.param(pod(near=[to(DB)]), [], {"a": ALONE, "b": ALONE, "plain": ALONE}, id="near nobody"),
        pytest.param(pod(near=[to(WEB)]), [], {"plain": ALONE}, id="the first of its kind"),
        pytest.param(
            pod(near=[to(WEB)]),
            [make_pod("web", labels=WEB, node="b")],
            {"a": ALONE, "plain": ALONE},
            id="not the first",
        ),
        pytest.param(
            pod(near=[to(WEB)], labels=DB), [], {"a": ALONE, "b": ALONE, "plain": ALONE}, id="of another kind"
        ),
        pytest.param(
            pod(near=[to(DB), to({"tier": "back"})]),
            [db("a"), make_pod("back", labels={"tier": "back"}, node="a")],
            {"a": ALONE, "b": ALONE, "plain": ALONE},
            id="one pod must match all terms",
        ),
        pytest.param(
            pod(near=[to(DB), to({"tier": "back"}, HOSTNAME)]),
            [make_pod("both", labels=DB | {"tier": "back"}, node="a")],
            {"b": ALONE, "plain": ALONE},
            id="one pod matches both",
        ),
        pytest.param(
            pod(near=[to(None)]), [db("a")], {"a": ALONE, "b": ALONE, "plain": ALONE}, id="no selector"
        ),
        pytest.param(
            pod(near=[to(DB)]),
            [db("a", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})],
            {"b": ALONE, "plain": ALONE},
            id="near one that is leaving",
        ),
        pytest.param(pod(away=[to(DB)]), [db("a")], {"a": UNWANTED}, id="away from one"),
        pytest.param(
            pod(away=[to(DB), to({"tier": "back"})]), [db("a")], {"a": UNWANTED}, id="one term is enough"
        ),
        pytest.param(pod(away=[to(DB)]), [db("plain")], {}, id="away from one that is nowhere"),
        pytest.param(
            make_pod(labels=WEB),
            [pod("q", DB, away=[to(WEB)], node="b")],
            {"b": REFUSING},
            id="one keeps away",
        ),
        pytest.param(
            pod(away=[to(DB)]),
            [db("a"), pod("q", DB, away=[to(WEB)], node="a"), pod("r", {}, away=[to(WEB)], node="b")],
            {"a": UNWANTED, "b": REFUSING},
            id="the pod's own terms are named first",
        ),
        pytest.param(
            pod(near=[to(DB)], away=[to(DB, HOSTNAME)]),
            [db("a")],
            {"a": UNWANTED, "b": ALONE, "plain": ALONE},
            id="near and away",
        ),
    ],
)
def test_required_terms(asking, others, refused):
    assert refusals(ask("InterPodAffinity", asking, A, B, PLAIN, *others)) == refused


@pytest.mark.parametrize(
    ("term", "where", "found"),
    [
        pytest.param({}, "default", True, id="the pod's own namespace is meant"),
        pytest.param({}, "team", False, id="not another"),
        pytest.param({"namespaces": ["team"]}, "team", True, id="another by name"),
        pytest.param({"namespaces": ["team"]}, "default", False, id="then not its own"),
        pytest.param(TEAM_IS, "team", True, id="by label"),
        pytest.param(TEAM_IS, "default", False, id="a namespace without the label"),
        pytest.param({**TEAM_IS, "namespaces": ["default"]}, "default", True, id="by name or by label"),
        pytest.param({"namespaceSelector": {}}, "team", True, id="all of them"),
        pytest.param(NO_TEAM, "default", True, id="by a label's absence"),
        # As kube-scheduler has it: what accepts no labels accepts every namespace.
        pytest.param(NO_TEAM, "team", True, id="by a label's absence, though it is there"),
    ],
)
@pytest.mark.parametrize("side", ["near", "away"])
def test_namespaces_of_the_pods_own_terms(side, term, where, found):
    spaces = [namespace("default"), namespace("team", team="x")]
    asking = pod(**{side: [to(DB, **term)]})
    decision = ask("InterPodAffinity", asking, A, B, *spaces, db("a", namespace=where))
    if side == "near":
        assert refusals(decision) == ({"b": ALONE} if found else {"a": ALONE, "b": ALONE})
    else:
        assert refusals(decision) == ({"a": UNWANTED} if found else {})


@pytest.mark.parametrize(
    ("term", "where", "refused"),
    [
        pytest.param({}, "default", False, id="of its own namespace"),
        pytest.param({}, "team", True, id="the same as the waiting pod's"),
        pytest.param(TEAM_IS, "default", True, id="by label"),
        pytest.param(NO_TEAM, "default", False, id="by a label's absence, which is there"),
    ],
)
def test_terms_of_others_look_at_the_pods_namespace(term, where, refused):
    other = pod("q", DB, away=[to(WEB, **term)], node="a", namespace=where)
    spaces = [namespace("default"), namespace("team", team="x")]
    asking = make_pod(labels=WEB, namespace="team")
    assert refusals(ask("InterPodAffinity", asking, A, B, *spaces, other)) == (
        {"a": REFUSING} if refused else {}
    )


BAD = {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "In"}]}, "topologyKey": ZONE}


@pytest.mark.parametrize(
    ("asking", "group"),
    [
        pytest.param(pod(near=[BAD]), "requiredAffinityTerms", id="near"),
        pytest.param(pod(away=[BAD]), "requiredAntiAffinityTerms", id="away"),
        pytest.param(pod(likes=[weighing(1, BAD)]), "preferredAffinityTerms", id="rather near"),
        pytest.param(pod(dislikes=[weighing(1, BAD)]), "preferredAntiAffinityTerms", id="rather away"),
    ],
)
def test_a_term_that_cannot_be_built_refuses_the_pod(asking, group):
    refusal = ask("InterPodAffinity", asking, A, B).pre_filter
    assert refusal.code.wire_name == UNRESOLVABLE
    assert refusal.message.startswith(f"parsing pod: {group}: ")


def test_a_term_of_another_pod_that_cannot_be_built_is_passed_over():
    other = pod("q", DB, away=[BAD, to(WEB)], node="a")
    assert refusals(ask("InterPodAffinity", make_pod(labels=WEB), A, B, other)) == {}


@pytest.mark.parametrize(
    ("asking", "others", "skips"),
    [
        pytest.param(make_pod(), [], True, id="no terms"),
        pytest.param(pod(likes=[weighing(1, to(DB))]), [], True, id="only preferred ones"),
        pytest.param(pod(away=[to(DB)]), [], False, id="a term"),
        pytest.param(
            make_pod(labels=WEB), [pod("q", DB, away=[to(WEB)], node="a")], False, id="a pod that objects"
        ),
        pytest.param(make_pod(labels=DB), [pod("q", DB, away=[to(WEB)], node="a")], True, id="to others"),
    ],
)
def test_when_there_is_nothing_to_filter(asking, others, skips):
    plugin = plugin_of("InterPodAffinity", A, B, *others)
    status = plugin.pre_filter(CycleState(), asking, plugin.handle.cluster.nodes)
    assert status == (Status.skip() if skips else None)


@pytest.mark.parametrize(
    ("asking", "promised", "refused"),
    [
        pytest.param(pod(away=[to(DB)]), {"labels": DB}, {"a": UNWANTED}, id="one to keep away from"),
        pytest.param(pod(away=[to(DB)]), {"labels": WEB}, {}, id="one that does not matter"),
        pytest.param(
            pod(away=[to({"app": "none"})]),
            {"labels": DB, "away": [to(WEB)]},
            {"a": REFUSING},
            id="one that objects",
        ),
        pytest.param(pod(near=[to(DB)]), {"labels": DB}, {"a": ALONE, "b": ALONE}, id="nobody is near yet"),
        # As kube-scheduler has it: a plugin that had nothing to do does not see who is promised a node.
        pytest.param(
            make_pod(labels=WEB), {"labels": DB, "away": [to(WEB)]}, {}, id="one that objects, unseen"
        ),
    ],
)
def test_pods_promised_a_node(asking, promised, refused):
    plan = planner("InterPodAffinity", A, B)
    nominations = plan.profiles["default-scheduler"].handle.nominations
    nominations.put(pod("promised", priority=9, **promised), "a")
    assert refusals(plan.decide(asking)) == refused


# Scoring


def raw(*numbers):
    """Nodes on which a pod with one term for each gets these scores before they are scaled."""
    objects, likes, dislikes = [], [], []
    for place, number in enumerate(numbers):
        objects.append(make_node(f"n{place}"))
        objects.append(make_pod(f"q{place}", labels={"at": str(place)}, node=f"n{place}"))
        if number:
            term = weighing(abs(number), to({"at": str(place)}, HOSTNAME))
            (likes if number > 0 else dislikes).append(term)
    return objects, pod(likes=likes, dislikes=dislikes)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        pytest.param([10, -5, 0, 39, 90], [15, 0, 5, 46, 100], id="scaled from the lowest to the highest"),
        pytest.param([0, 29, 100], [0, 28, 100], id="29 of 100 loses one"),
        pytest.param([0, 29, 50], [0, 57, 100], id="so does 29 of 50"),
        pytest.param([0, 57, 58, 100], [0, 56, 57, 100], id="and 57 and 58 of 100"),
        pytest.param([7, 7, 7], [0, 0, 0], id="all alike"),
    ],
)
def test_scores_are_scaled(numbers, expected):
    objects, asking = raw(*numbers)
    assert list(scores(ask("InterPodAffinity", asking, *objects)).values()) == expected


def test_terms_that_cancel_out_are_still_scored():
    asking = pod(likes=[weighing(5, to(DB))], dislikes=[weighing(5, to(DB))])
    assert scores(ask("InterPodAffinity", asking, A, B, db("a"))) == {"a": 0, "b": 0}


LIKED = pod("q", DB, likes=[weighing(9, to(WEB))], node="a")
NEEDED = pod("q", DB, near=[to(WEB)], node="a")


@pytest.mark.parametrize(
    ("others", "args", "expected"),
    [
        pytest.param([], None, {}, id="nobody around"),
        pytest.param([db("a")], None, {}, id="nobody who cares"),
        pytest.param([LIKED], None, {"a": 100, "b": 0}, id="one that likes it"),
        pytest.param(
            [pod("q", DB, dislikes=[weighing(9, to(WEB))], node="a")],
            None,
            {"a": 0, "b": 100},
            id="one that does not",
        ),
        pytest.param(
            [pod("q", DB, likes=[weighing(9, to(DB))], node="a")], None, {}, id="one that likes others"
        ),
        pytest.param([NEEDED], None, {"a": 100, "b": 0}, id="one that needs it"),
        pytest.param([NEEDED], {"hardPodAffinityWeight": 0}, {}, id="which need not count"),
        pytest.param(
            [NEEDED, pod("r", DB, likes=[weighing(2, to(WEB))], node="b")],
            {"hardPodAffinityWeight": 1},
            {"a": 0, "b": 100},
            id="which counts less than a like of two",
        ),
        pytest.param(
            [NEEDED, pod("r", DB, likes=[weighing(2, to(WEB))], node="b")],
            {"hardPodAffinityWeight": 3},
            {"a": 100, "b": 0},
            id="or more",
        ),
        pytest.param(
            [LIKED], {"ignorePreferredTermsOfExistingPods": True}, {}, id="likes of others left out"
        ),
    ],
)
def test_what_others_think_of_the_pod(others, args, expected):
    assert scores(ask("InterPodAffinity", make_pod(labels=WEB), A, B, *others, args=args)) == expected


# Waking

ADDED = ClusterEvent(Resource.ASSIGNED_POD, Action.ADD)
LABEL = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_LABEL)
GONE = ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE)
NODE_ADDED = ClusterEvent(Resource.NODE, Action.ADD)
NODE_LABEL = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_LABEL)
WANTS_DB, AVOIDS_DB = pod(near=[to(DB)]), pod(away=[to(DB)])


@pytest.mark.parametrize(
    ("waiting", "event", "old", "new", "hint"),
    [
        pytest.param(WANTS_DB, ADDED, None, db("n"), QUEUE, id="a partner came"),
        pytest.param(WANTS_DB, ADDED, None, make_pod("q", node="n"), SKIP_HINT, id="a stranger came"),
        pytest.param(WANTS_DB, ADDED, None, db(""), SKIP_HINT, id="a partner that has no node"),
        pytest.param(
            WANTS_DB, ADDED, None, db("n", namespace="else"), SKIP_HINT, id="one of another namespace"
        ),
        pytest.param(make_pod(), ADDED, None, db("n"), SKIP_HINT, id="a pod without terms"),
        pytest.param(WANTS_DB, LABEL, make_pod("db", node="n"), db("n"), QUEUE, id="one becomes a partner"),
        pytest.param(WANTS_DB, LABEL, db("n"), db("n"), SKIP_HINT, id="it was one before"),
        pytest.param(
            AVOIDS_DB, LABEL, db("n"), make_pod("db", node="n"), QUEUE, id="one is no longer in the way"
        ),
        pytest.param(AVOIDS_DB, GONE, db("n"), None, QUEUE, id="what was in the way is gone"),
        pytest.param(AVOIDS_DB, GONE, make_pod("q", node="n"), None, SKIP_HINT, id="a stranger is gone"),
        pytest.param(
            make_pod(labels=WEB),
            GONE,
            pod("q", DB, away=[to(WEB)], node="n"),
            None,
            QUEUE,
            id="who objected is gone",
        ),
        pytest.param(WANTS_DB, LABEL, WANTS_DB, WANTS_DB, QUEUE, id="its own labels"),
        pytest.param(WANTS_DB, NODE_ADDED, None, A, QUEUE, id="a node with the label"),
        pytest.param(WANTS_DB, NODE_ADDED, None, PLAIN, SKIP_HINT, id="a node without it"),
        pytest.param(WANTS_DB, NODE_LABEL, PLAIN, A, QUEUE, id="a node got the label"),
        pytest.param(WANTS_DB, NODE_LABEL, A, B, QUEUE, id="a node moved"),
        pytest.param(WANTS_DB, NODE_LABEL, A, PLAIN, SKIP_HINT, id="a node lost the label"),
        pytest.param(AVOIDS_DB, NODE_ADDED, None, PLAIN, QUEUE, id="any node is new to one that avoids"),
        pytest.param(AVOIDS_DB, NODE_LABEL, A, PLAIN, QUEUE, id="a node lost the label, to one that avoids"),
        pytest.param(AVOIDS_DB, NODE_LABEL, PLAIN, A, SKIP_HINT, id="a node got it, to one that avoids"),
        pytest.param(make_pod(), NODE_ADDED, None, A, SKIP_HINT, id="a node, to one without terms"),
    ],
)
def test_what_is_news(waiting, event, old, new, hint):
    assert plugin_of("InterPodAffinity").queueing_hint(waiting, event, old, new) is hint


@pytest.mark.parametrize(
    ("term", "where", "hint"),
    [
        pytest.param(TEAM_IS, "team", QUEUE, id="in a namespace with the label"),
        pytest.param(TEAM_IS, "default", SKIP_HINT, id="in one without it"),
        pytest.param(NO_TEAM, "default", QUEUE, id="in one that lacks a label"),
        pytest.param(NO_TEAM, "team", QUEUE, id="in one that has it, which filtering does not mind"),
    ],
)
def test_a_partner_is_known_by_its_namespaces_labels(term, where, hint):
    plugin = plugin_of("InterPodAffinity", namespace("default"), namespace("team", team="x"))
    waiting, came = pod(near=[to(DB, **term)]), db("n", namespace=where)
    assert plugin.queueing_hint(waiting, ADDED, None, came) is hint
