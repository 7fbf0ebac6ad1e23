"""QOSSort: priority, then quality of service, then who waits longer."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from make import make_pod, planner
from stowplan.api.pod import Pod
from stowplan.api.requests import quality_of


class Queued(NamedTuple):
    pod: Pod
    timestamp: float = 0.0
    attempts: int = 0


SORT = {"enabled": [{"name": "QOSSort"}], "disabled": [{"name": "*"}]}
CONFIG = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [{"plugins": {"queueSort": SORT}}],
}
KEY = planner([], CONFIG).profiles["default-scheduler"].plugins["QOSSort"].queue_sort
BOTH = {"cpu": "1", "memory": "1Gi"}
GUARANTEED = {"requests": BOTH, "limits": BOTH}


def pod(*resources, name="pod", init=(), **spec):
    containers = [{"name": f"c{number}", "resources": each} for number, each in enumerate(resources)]
    first = [{"name": f"i{number}", "resources": each} for number, each in enumerate(init)]
    return make_pod(name, **{"containers": containers, "initContainers": first} | spec)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(pod({}), "BestEffort", id="nothing"),
        pytest.param(pod({"requests": {"example.com/gpu": "1"}}), "BestEffort", id="another resource"),
        pytest.param(pod({"requests": {"cpu": "0"}}), "BestEffort", id="zero"),
        pytest.param(pod({"requests": {"cpu": "1"}}), "Burstable", id="a request"),
        pytest.param(pod({"limits": {"cpu": "1"}}), "Burstable", id="one limit"),
        pytest.param(pod(GUARANTEED), "Guaranteed", id="limits of both"),
        pytest.param(pod({"limits": BOTH}), "Guaranteed", id="requests left out"),
        pytest.param(pod({"requests": {"cpu": "500m"}, "limits": BOTH}), "Burstable", id="a lower request"),
        pytest.param(pod(GUARANTEED, {}), "Burstable", id="a container without"),
        pytest.param(pod(GUARANTEED, init=[{}]), "Burstable", id="an init container without"),
        pytest.param(pod({}, resources=GUARANTEED), "Guaranteed", id="of the pod as a whole"),
        pytest.param(pod(GUARANTEED, resources={"requests": BOTH}), "Burstable", id="the pod's count alone"),
    ],
)
def test_quality_of_service(made, expected):
    assert quality_of(made.shape) == expected


def test_order():
    waiting = [
        Queued(pod({}, name="nothing"), 1.0),
        Queued(pod(GUARANTEED, name="late"), 9.0),
        Queued(pod({"requests": BOTH}, name="some"), 2.0),
        Queued(pod(GUARANTEED, name="early"), 5.0),
        Queued(pod({}, name="urgent", priority=1), 10.0),
        Queued(pod(GUARANTEED, name="negative", priority=-1), 0.0),
    ]
    in_order = sorted(waiting, key=KEY)
    assert [each.pod.name for each in in_order] == [
        "urgent", "early", "late", "some", "nothing", "negative"
    ]  # fmt: skip


AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "example.com/gpu"]), st.integers(0, 2).map(str))
RESOURCES = st.one_of(
    st.just(GUARANTEED),
    st.fixed_dictionaries({"requests": AMOUNTS}),
    AMOUNTS.flatmap(lambda limits: st.just({"requests": limits, "limits": limits})),
)
PODS = st.builds(
    lambda parts, priority, at: Queued(pod(*parts, priority=priority), at),
    st.lists(RESOURCES, min_size=1, max_size=3),
    st.integers(-2, 2),
    st.floats(0, 5),
)


@given(PODS, PODS)
def test_as_a_slow_obvious_version_would(one, other):
    assert (KEY(one) < KEY(other)) == is_first(one, other)


def is_first(one, other):
    if one.pod.priority != other.pod.priority:
        return one.pod.priority > other.pod.priority
    order = ["Guaranteed", "Burstable", "BestEffort"]
    mine, theirs = (order.index(slow_quality(each.pod)) for each in (one, other))
    return mine < theirs if mine != theirs else one.timestamp < other.timestamp


def slow_quality(pod):
    parts = [each.resources for each in pod.spec.containers]
    amounts = [
        amount for part in parts for kind in (part.requests, part.limits)
        for name, amount in kind.items() if name in ("cpu", "memory")
    ]  # fmt: skip
    if not any(amounts):
        return "BestEffort"
    for part in parts:
        for name in ("cpu", "memory"):
            if not part.limits.get(name) or part.limits[name] != part.requests.get(name):
                return "Burstable"
    return "Guaranteed"
