"""Pod affinity terms: whom a term is about, and what becomes of terms that cannot be built."""

from __future__ import annotations

import pytest

from make import make_pod
from stowplan.cluster.pod_table import terms_of

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WEB = {"matchLabels": {"app": "web"}}
BROKEN = {"matchExpressions": [{"key": "app", "operator": "In"}]}


def term(**fields):
    return {"topologyKey": "zone", "labelSelector": WEB} | fields


def built(plain, namespace="default"):
    pod = make_pod(namespace=namespace, affinity={"podAffinity": {REQUIRED: [plain]}})
    return terms_of(pod).required[0]


@pytest.mark.parametrize(
    ("fields", "namespaces"),
    [
        pytest.param({}, {"default"}, id="the pod's own"),
        pytest.param({"namespaces": ["other"]}, {"other"}, id="those it names"),
        pytest.param({"namespaceSelector": {}}, {"default", "other"}, id="all"),
        pytest.param(
            {"namespaceSelector": {"matchLabels": {"env": "x"}}}, {"other"}, id="those with a label"
        ),
        pytest.param(
            {"namespaces": ["default"], "namespaceSelector": {"matchLabels": {"env": "x"}}},
            {"default", "other"},
            id="either",
        ),
    ],
)
def test_namespaces(fields, namespaces):
    labels = {"default": {}, "other": {"env": "x"}}
    for name in ("default", "other"):
        pod = make_pod(namespace=name, labels={"app": "web"})
        assert built(term(**fields)).matches(pod, labels[name]) is (name in namespaces), name


@pytest.mark.parametrize(
    ("selector", "matches"), [(WEB, True), ({}, True), ({"matchLabels": {"app": "db"}}, False)]
)
def test_selectors(selector, matches):
    assert built(term(labelSelector=selector)).matches(make_pod(labels={"app": "web"}), {}) is matches


def test_a_term_without_a_selector_is_about_nobody():
    assert not built({"topologyKey": "zone"}).matches(make_pod(labels={"app": "web"}), {})


def test_a_group_with_a_mistake_is_empty_and_says_so():
    affinity = {
        "podAffinity": {REQUIRED: [term(), term(labelSelector=BROKEN)], PREFERRED: [_weighted(7)]},
        "podAntiAffinity": {REQUIRED: [term(namespaceSelector=BROKEN)]},
    }
    terms = terms_of(make_pod(affinity=affinity))
    assert terms.required == terms.required_anti == ()
    assert [entry.weight for entry in terms.preferred] == [7]
    assert [error.partition(":")[0] for error in terms.errors] == [
        "requiredAffinityTerms",
        "requiredAntiAffinityTerms",
    ]


def _weighted(weight):
    return {"weight": weight, "podAffinityTerm": term()}


def test_terms_are_worked_out_once_for_a_shape_and_a_namespace():
    affinity = {"podAffinity": {REQUIRED: [term()]}}
    one, other = make_pod("a", affinity=affinity), make_pod("b", affinity=affinity)
    elsewhere = make_pod("c", namespace="other", affinity=affinity)
    assert terms_of(one) is terms_of(other)
    assert terms_of(elsewhere) is not terms_of(one)
    assert terms_of(elsewhere).required[0].namespaces == {"other"}


@pytest.mark.parametrize("affinity", [None, {}, {"nodeAffinity": {}}, {"podAffinity": {}}])
def test_pods_without_terms(affinity):
    assert not terms_of(make_pod(affinity=affinity))
