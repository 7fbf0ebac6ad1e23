"""PodTopologySpread: how pods of a kind are spread over domains."""

from __future__ import annotations

import pytest
from alone import UNRESOLVABLE, UNSCHEDULABLE, ask, manifest, planner, plugin_of, refusals, scores, tolerating

from make import make_node, make_pod
from stowplan.framework import QUEUE, SKIP_HINT, Action, ClusterEvent, CycleState, Resource, Status

ZONE, HOSTNAME = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
WEB = {"app": "web"}
SELECTS_WEB = {"matchLabels": WEB}
SKEWED = (UNSCHEDULABLE, "node(s) didn't match pod topology spread constraints")
UNLABELLED = (
    UNRESOLVABLE,
    "node(s) didn't match pod topology spread constraints (missing required label)",
)


def hard(key=ZONE, **fields):
    found = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", **fields}
    return {"labelSelector": SELECTS_WEB, **found}


def soft(key=ZONE, **fields):
    return hard(key, whenUnsatisfiable="ScheduleAnyway", **fields)


def spreading(*constraints, labels=WEB, **fields):
    return make_pod(labels=labels, topologySpreadConstraints=list(constraints), **fields)


def zones(**counts):
    """A node for each zone, with so many pods on it."""
    nodes = [make_node(zone, labels={ZONE: zone}) for zone in counts]
    return nodes + [
        make_pod(f"{zone}-{number}", labels=WEB, node=zone)
        for zone, count in counts.items()
        for number in range(count)
    ]


# Hard constraints


@pytest.mark.parametrize(
    ("constraint", "counts", "refused"),
    [
        pytest.param(hard(), {"a": 2, "b": 1, "c": 0}, "ab", id="only the emptiest"),
        pytest.param(hard(minDomains=5), {"a": 2, "b": 1, "c": 0}, "ab", id="too few domains, one empty"),
        pytest.param(hard(), {"a": 2, "b": 1}, "a", id="the emptiest has one"),
        pytest.param(
            hard(minDomains=3), {"a": 2, "b": 1}, "ab", id="which does not count with too few domains"
        ),
        pytest.param(hard(minDomains=2), {"a": 2, "b": 1}, "a", id="enough domains"),
        pytest.param(hard(maxSkew=2), {"a": 2, "b": 1, "c": 0}, "a", id="more skew"),
        pytest.param(hard(maxSkew=3), {"a": 2, "b": 1, "c": 0}, "", id="enough skew for all"),
        pytest.param(hard(labelSelector=None), {"a": 9, "b": 0}, "", id="no selector: nobody counts"),
        pytest.param(hard(labelSelector={}), {"a": 9, "b": 0}, "", id="the empty one: only the pod itself"),
        pytest.param(
            hard(labelSelector={"matchLabels": {"app": "other"}}),
            {"a": 9, "b": 0},
            "",
            id="pods of another kind",
        ),
    ],
)
def test_hard_constraints(constraint, counts, refused):
    assert refusals(ask("PodTopologySpread", spreading(constraint), *zones(**counts))) == dict.fromkeys(
        refused, SKEWED
    )


def test_a_pod_that_its_own_selector_passes_over_does_not_count():
    pod = spreading(hard(), labels={"app": "other"})
    assert refusals(ask("PodTopologySpread", pod, *zones(a=2, b=1, c=0))) == {"a": SKEWED}


LEAVING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("labels", "fields", "counts"),
    [
        pytest.param({"v": "1"}, {}, True, id="a pod of the kind"),
        pytest.param({"v": "1"}, {"namespace": "else"}, False, id="in another namespace"),
        pytest.param({"v": "1"}, {"metadata": LEAVING}, False, id="that is leaving"),
        pytest.param({"v": "2"}, {}, False, id="of another version"),
    ],
)
def test_who_counts(labels, fields, counts):
    pod = spreading(hard(matchLabelKeys=["v", "absent"]), labels=WEB | {"v": "1"})
    other = make_pod("other", labels=WEB | labels, node="a", **fields)
    assert refusals(ask("PodTopologySpread", pod, *zones(a=0, b=0), other)) == (
        {"a": SKEWED} if counts else {}
    )


def test_nodes_without_the_label():
    nodes = [*zones(a=0, b=1), make_node("plain")]
    found = refusals(ask("PodTopologySpread", spreading(hard()), *nodes))
    assert found == {"b": SKEWED, "plain": UNLABELLED}


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        pytest.param({}, "", id="by default, nodes where the pod cannot go do not count"),
        pytest.param({"nodeAffinityPolicy": "Honor"}, "", id="as said"),
        pytest.param({"nodeAffinityPolicy": "Ignore"}, "a", id="unless they shall"),
    ],
)
def test_node_affinity_policy(policy, refused):
    pod = spreading(hard(**policy), nodeSelector={"disk": "ssd"})
    nodes = [
        make_node("a", labels={ZONE: "a", "disk": "ssd"}),
        make_node("b", labels={ZONE: "b"}),
        make_pod("q", labels=WEB, node="a"),
    ]
    found = refusals(ask("PodTopologySpread", pod, *nodes))
    assert found == dict.fromkeys(refused, SKEWED)


@pytest.mark.parametrize(
    ("policy", "tolerations", "refused"),
    [
        pytest.param({}, [], "a", id="by default, taints do not matter"),
        pytest.param({"nodeTaintsPolicy": "Ignore"}, [], "a", id="as said"),
        pytest.param({"nodeTaintsPolicy": "Honor"}, [], "", id="unless they shall"),
        pytest.param({"nodeTaintsPolicy": "Honor"}, ["gpu"], "a", id="and are not tolerated"),
    ],
)
def test_node_taints_policy(policy, tolerations, refused):
    pod = spreading(hard(**policy), tolerations=tolerations)
    nodes = [
        make_node("a", labels={ZONE: "a"}),
        make_node("b", labels={ZONE: "b"}, taints=["gpu:NoSchedule"]),
    ]
    found = refusals(ask("PodTopologySpread", pod, *nodes, make_pod("q", labels=WEB, node="a")))
    assert found == dict.fromkeys(refused, SKEWED)


def test_a_node_counts_only_with_the_labels_of_all_constraints():
    pod = spreading(hard(), hard("rack"))
    nodes = [
        make_node("a", labels={ZONE: "a", "rack": "1"}),
        make_node("b", labels={ZONE: "b"}),  # would be the emptiest zone, but has no rack
        make_pod("q", labels=WEB, node="a"),
    ]
    assert refusals(ask("PodTopologySpread", pod, *nodes)) == {"b": UNLABELLED}


def test_the_first_constraint_that_fails_is_the_one_named():
    pod = spreading(hard(), hard("rack"))
    nodes = [make_node("a", labels={ZONE: "a"}), make_node("b", labels={ZONE: "b", "rack": "1"})]
    counted = make_node("c", labels={ZONE: "c", "rack": "2"})
    pods = [make_pod(f"q{number}", labels=WEB, node="b") for number in range(2)]
    found = refusals(ask("PodTopologySpread", pod, *nodes, counted, *pods))
    assert found == {"a": UNLABELLED, "b": SKEWED}


@pytest.mark.parametrize(
    ("constraint", "nominated", "refused"),
    [
        pytest.param(hard(), {"labels": WEB}, True, id="a pod of the kind"),
        pytest.param(hard(), {"labels": {"app": "other"}}, False, id="of another kind"),
        pytest.param(hard(), {"labels": WEB, "namespace": "else"}, False, id="of another namespace"),
        pytest.param(
            hard(),
            {"labels": WEB, "metadata": LEAVING},
            True,
            id="one that is leaving counts here",
        ),
        pytest.param(hard(labelSelector={}), {}, True, id="the empty selector counts here"),
    ],
)
def test_pods_promised_a_node_count_there(constraint, nominated, refused):
    plan = planner("PodTopologySpread", *zones(a=0, b=0), make_node("b2", labels={ZONE: "b"}))
    plan.profiles["default-scheduler"].handle.nominations.put(make_pod("other", priority=5, **nominated), "b")
    assert refusals(plan.decide(spreading(constraint))) == ({"b": SKEWED} if refused else {})


# Soft constraints


def test_soft_constraints_prefer_emptier_domains():
    found = scores(ask("PodTopologySpread", spreading(soft()), *zones(a=4, b=1, c=0)))
    assert found == {"a": 0, "b": 66, "c": 100}


SERVICE = manifest("Service", "web", spec={"selector": WEB})


def test_the_systems_defaults():
    nodes = [make_node(f"n{number}", labels={ZONE: "aabbcc"[number]}) for number in range(6)]
    on = ["n0", "n0", "n1", "n2"]
    pods = [make_pod(f"q{number}", labels=WEB, node=name) for number, name in enumerate(on)]
    found = scores(ask("PodTopologySpread", make_pod(labels=WEB), *nodes, *pods, SERVICE))
    assert list(found.values()) == [40, 53, 73, 86, 100, 100]


def test_a_node_without_a_zone_looks_emptier_to_the_systems_defaults():
    nodes = [make_node("zoned", labels={ZONE: "a"}), make_node("plain")]
    found = scores(ask("PodTopologySpread", make_pod(labels=WEB), *nodes, SERVICE))
    # 3 - 1 for the host, and where there is a zone 5 - 1 more.
    assert found == {"zoned": 100 * (6 + 2 - 6) // 6, "plain": 100 * (6 + 2 - 2) // 6}


def test_own_constraints_give_nothing_to_nodes_without_the_label():
    nodes = [*zones(a=1, b=0), make_node("plain")]
    found = scores(ask("PodTopologySpread", spreading(soft()), *nodes))
    assert found == {"a": 0, "b": 100, "plain": 0}


def test_nothing_to_count_gives_everybody_full_marks():
    assert scores(ask("PodTopologySpread", spreading(soft()), *zones(a=0, b=0))) == {"a": 100, "b": 100}


def test_on_its_own_host_a_pod_counts_where_it_may_not_go():
    pod = spreading(soft(HOSTNAME, nodeTaintsPolicy="Honor"))
    nodes = [make_node("a", taints=["gpu:NoSchedule"]), make_node("b")]
    found = scores(ask("PodTopologySpread", pod, *nodes, make_pod("q", labels=WEB, node="a")))
    assert found == {"a": 0, "b": 100}


@pytest.mark.parametrize(
    ("pod", "objects", "skips"),
    [
        pytest.param(make_pod(labels=WEB), [], True, id="no service and no owner"),
        pytest.param(make_pod(labels=WEB), [SERVICE], False, id="a service"),
        pytest.param(spreading(hard()), [SERVICE], True, id="constraints of its own replace the defaults"),
    ],
)
def test_when_there_is_nothing_to_score(pod, objects, skips):
    plugin = plugin_of("PodTopologySpread", make_node("n"), *objects)
    nodes = plugin.handle.cluster.nodes
    assert plugin.pre_score(CycleState(), pod, nodes) == (Status.skip() if skips else None)


# Whom a pod's services and owner select

ARGS = {
    "defaultingType": "List",
    "defaultConstraints": [{"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}],
}


def owned(kind, name="web", version="apps/v1", controller=True):
    reference = {"apiVersion": version, "kind": kind, "name": name, "uid": "u", "controller": controller}
    return make_pod(labels=WEB | {"tier": "front"}, metadata={"ownerReferences": [reference]})


def owner(kind, selector):
    return manifest(kind, "web", spec={"selector": selector})


BACK = {"matchLabels": {"tier": "back"}}
FRONT = {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["front"]}]}


@pytest.mark.parametrize(
    ("pod", "objects", "counts"),
    [
        pytest.param(make_pod(labels=WEB), [], False, id="nothing"),
        pytest.param(make_pod(labels=WEB), [SERVICE], True, id="a service"),
        pytest.param(make_pod(labels={"app": "db"}), [SERVICE], False, id="a service for others"),
        pytest.param(
            make_pod(labels=WEB),
            [manifest("Service", "all", spec={"selector": {}})],
            False,
            id="an empty one",
        ),
        pytest.param(
            make_pod(labels=WEB),
            [SERVICE, manifest("Service", "none", spec={})],
            True,
            id="a service without a selector adds nothing",
        ),
        pytest.param(owned("ReplicaSet"), [owner("ReplicaSet", SELECTS_WEB)], True, id="a ReplicaSet"),
        pytest.param(owned("StatefulSet"), [owner("StatefulSet", SELECTS_WEB)], True, id="a StatefulSet"),
        pytest.param(
            owned("ReplicationController", version="v1"),
            [owner("ReplicationController", WEB)],
            True,
            id="a ReplicationController",
        ),
        pytest.param(
            owned("ReplicationController", version="v1"),
            [owner("ReplicationController", {"tier": "back"})],
            False,
            id="a ReplicationController of others",
        ),
        pytest.param(owned("StatefulSet"), [owner("StatefulSet", BACK)], False, id="a StatefulSet of others"),
        pytest.param(owned("ReplicaSet"), [], False, id="an owner that is gone"),
        pytest.param(
            owned("ReplicaSet", version="extensions/v1beta1"),
            [owner("ReplicaSet", SELECTS_WEB)],
            False,
            id="of another group",
        ),
        pytest.param(
            owned("ReplicaSet", controller=False),
            [owner("ReplicaSet", SELECTS_WEB)],
            False,
            id="no controller",
        ),
        pytest.param(owned("Job"), [], False, id="an owner of another kind"),
        pytest.param(
            owned("ReplicaSet"), [SERVICE, owner("ReplicaSet", FRONT)], True, id="service and owner agree"
        ),
        pytest.param(
            owned("ReplicaSet"), [SERVICE, owner("ReplicaSet", BACK)], False, id="both must select a pod"
        ),
    ],
)
def test_default_constraints_go_by_services_and_owners(pod, objects, counts):
    other = make_pod("other", labels=WEB | {"tier": "front"}, node="a")
    nodes = [make_node(zone, labels={ZONE: zone}) for zone in "ab"]
    found = refusals(ask("PodTopologySpread", pod, *nodes, other, *objects, args=ARGS))
    assert found == ({"a": SKEWED} if counts else {})


# Waking

ADDED = ClusterEvent(Resource.ASSIGNED_POD, Action.ADD)
LABEL = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_LABEL)
GONE = ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE)
TOLERATION = ClusterEvent(Resource.UNSCHEDULABLE_POD, Action.UPDATE_POD_TOLERATION)
NODE_ADDED = ClusterEvent(Resource.NODE, Action.ADD)
NODE_GONE = ClusterEvent(Resource.NODE, Action.DELETE)
NODE_LABEL = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_LABEL)
NODE_TAINT = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_TAINT)


def other(labels=WEB, **fields):
    return make_pod("other", labels=labels, **{"node": "n", **fields})


@pytest.mark.parametrize(
    ("event", "old", "new", "hint"),
    [
        pytest.param(ADDED, None, other(), QUEUE, id="one more of the kind"),
        pytest.param(ADDED, None, other({"app": "db"}), SKIP_HINT, id="one of another kind"),
        pytest.param(ADDED, None, other(namespace="else"), SKIP_HINT, id="one of another namespace"),
        pytest.param(ADDED, None, other(node=""), SKIP_HINT, id="one without a node"),
        pytest.param(
            ADDED,
            None,
            other(node="", status={"nominatedNodeName": "n"}),
            QUEUE,
            id="one that is promised a node",
        ),
        pytest.param(GONE, other(), None, QUEUE, id="one less of the kind"),
        pytest.param(GONE, other({"app": "db"}), None, SKIP_HINT, id="one less of another kind"),
        pytest.param(LABEL, other({"app": "db"}), other(), QUEUE, id="one becomes of the kind"),
        pytest.param(LABEL, other(), other({}), QUEUE, id="one is no longer of the kind"),
        pytest.param(LABEL, other(WEB), other(WEB | {"x": "y"}), SKIP_HINT, id="another label changes"),
        pytest.param(LABEL, other(), other(), SKIP_HINT, id="no label changes"),
        pytest.param(NODE_ADDED, None, make_node("n", labels={ZONE: "a"}), QUEUE, id="a new node"),
        pytest.param(NODE_ADDED, None, make_node("n"), SKIP_HINT, id="a new node without the label"),
        pytest.param(NODE_GONE, make_node("n", labels={ZONE: "a"}), None, QUEUE, id="a node is gone"),
        pytest.param(NODE_GONE, make_node("n"), None, SKIP_HINT, id="one without the label is gone"),
        pytest.param(
            NODE_LABEL, make_node("n"), make_node("n", labels={ZONE: "a"}), QUEUE, id="the label came"
        ),
        pytest.param(
            NODE_LABEL, make_node("n", labels={ZONE: "a"}), make_node("n"), QUEUE, id="the label went"
        ),
        pytest.param(
            NODE_LABEL,
            make_node("n", labels={ZONE: "a"}),
            make_node("n", labels={ZONE: "b"}),
            QUEUE,
            id="the node moved",
        ),
        pytest.param(
            NODE_LABEL,
            make_node("n", labels={ZONE: "a"}),
            make_node("n", labels={ZONE: "a", "x": "y"}),
            SKIP_HINT,
            id="another label came",
        ),
        pytest.param(
            NODE_TAINT,
            make_node("n", labels={ZONE: "a"}, taints=["gpu:NoSchedule"]),
            make_node("n", labels={ZONE: "a"}),
            QUEUE,
            id="a taint went",
        ),
        pytest.param(
            NODE_TAINT,
            make_node("n", taints=["gpu:NoSchedule"]),
            make_node("n"),
            SKIP_HINT,
            id="without the label",
        ),
    ],
)
def test_what_is_news(event, old, new, hint):
    assert plugin_of("PodTopologySpread").queueing_hint(spreading(hard()), event, old, new) is hint


@pytest.mark.parametrize(
    ("policy", "hint"),
    [pytest.param("Honor", QUEUE, id="taints matter"), pytest.param("Ignore", SKIP_HINT, id="they do not")],
)
def test_own_tolerations_are_news_where_taints_matter(policy, hint):
    constraints = [hard(nodeTaintsPolicy=policy)]
    before, after = (
        tolerating(*tolerations, topologySpreadConstraints=constraints)
        for tolerations in ([], [{"key": "gpu", "operator": "Exists"}])
    )
    assert plugin_of("PodTopologySpread").queueing_hint(after, TOLERATION, before, after) is hint
