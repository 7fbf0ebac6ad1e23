"""The arithmetic of controllers, case by case."""

from __future__ import annotations

import pytest

from stowplan.api.meta import decode
from stowplan.controllers.daemon_sets import Placement
from stowplan.controllers.deployments import limits_of
from stowplan.controllers.jobs import Counts, format_indexes, indexes_of
from stowplan.controllers.kinds import Plain, PodView, TimedToleration
from stowplan.controllers.node_lifecycle import leaves_at, taints_of
from stowplan.controllers.owned_pods import available_in, differs, share_of, with_condition
from stowplan.controllers.replica_sets import Rank
from stowplan.controllers.volumes import fits

AT = "2026-09-21T14:13:20Z"
NOW = 1_790_000_000.0


def plain(**parts):
    return decode(Plain, parts)


def pod(name="p", *, ready="", since=AT, phase="Running", node="n", annotations=None, restarts=0, **meta):
    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": since}] if ready else []
    return decode(
        PodView,
        {
            "metadata": {"name": name, "uid": name, "annotations": annotations or {}, **meta},
            "spec": {"nodeName": node},
            "status": {
                "phase": phase,
                "conditions": conditions,
                "containerStatuses": [{"restartCount": restarts}],
            },
        },
    )


@pytest.mark.parametrize(
    ("replicas", "rolling", "limits"),
    [
        pytest.param(10, {}, (3, 2), id="a quarter, more of the surplus"),
        pytest.param(4, {"maxSurge": 1, "maxUnavailable": 0}, (1, 0), id="numbers"),
        pytest.param(3, {"maxSurge": "0%", "maxUnavailable": "10%"}, (0, 1), id="it must get on"),
        pytest.param(2, {"maxSurge": 0, "maxUnavailable": 5}, (0, 2), id="no more than there are"),
    ],
)
def test_limits_of_a_rolling_update(replicas, rolling, limits):
    strategy = {"type": "RollingUpdate", "rollingUpdate": rolling}
    assert limits_of(plain(spec={"replicas": replicas, "strategy": strategy})) == limits


def test_shares():
    assert [share_of("50%", 3, round_up=up) for up in (True, False)] == [2, 1]
    assert share_of(7, 3, round_up=True) == 7
    assert share_of(None, 3, round_up=True) == 0


@pytest.mark.parametrize(
    "order",
    [
        pytest.param([pod("a", node=""), pod("b")], id="those without a node first"),
        pytest.param([pod("a", phase="Pending"), pod("b")], id="those that do not run"),
        pytest.param([pod("a"), pod("b", ready="True")], id="those that are not ready"),
        pytest.param(
            [
                pod("a", ready="True", annotations={"controller.kubernetes.io/pod-deletion-cost": "-1"}),
                pod("b", ready="True"),
            ],
            id="those that cost less",
        ),
        pytest.param(
            [pod("a", ready="True"), pod("b", ready="True"), pod("c", ready="True", node="m")],
            id="those that share a node",
        ),
        pytest.param(
            [pod("a", ready="True"), pod("b", ready="True", since="2026-09-21T14:00:00Z")],
            id="those that were ready last",
        ),
        pytest.param([pod("a", ready="True", restarts=3), pod("b", ready="True")], id="restarted ones"),
        pytest.param(
            [pod("a", creationTimestamp=AT), pod("b", creationTimestamp="2026-09-21T14:00:00Z")],
            id="younger ones",
        ),
    ],
)
def test_which_pods_are_given_up_first(order):
    assert min(order, key=Rank(order)).name == "a"
    assert max(order, key=Rank(order)).name == order[-1].name


@pytest.mark.parametrize(
    ("asked", "wait"),
    [
        pytest.param(pod(ready="False"), None, id="not ready"),
        pytest.param(pod(ready="True"), 30.0, id="just ready"),
        pytest.param(pod(ready="True", since="2026-09-21T14:13:10Z"), 20.0, id="for some time"),
        pytest.param(pod(ready="True", since="2026-09-21T14:12:50Z"), 0.0, id="long enough"),
    ],
)
def test_a_pod_is_available_after_its_time(asked, wait):
    assert available_in(asked, 30, NOW) == wait


@pytest.mark.parametrize("text", ["", "0", "0-2", "1,2", "1,3-5,9"])
def test_indexes_are_spelled_in_ranges(text):
    assert format_indexes(indexes_of(text)) == text


def test_pods_are_counted_after_they_were_written_down():
    job = plain(spec={"completions": 3}, status={"succeeded": 1})
    counts = Counts.of(job)
    counts.fold([pod("a", phase="Succeeded"), pod("b", phase="Failed")])
    assert counts.as_status() == {
        "succeeded": 1,
        "failed": 0,
        "uncountedTerminatedPods": {"succeeded": ["a"], "failed": ["b"]},
    }
    assert (counts.succeeded_all, counts.failed_all) == (2, 1)
    again = Counts.of(plain(spec={"completions": 3}, status=counts.as_status()))
    again.fold([pod("a", phase="Succeeded"), pod("b", phase="Failed")])
    assert again.as_status() == {
        "succeeded": 2,
        "failed": 1,
        "uncountedTerminatedPods": {"succeeded": None, "failed": None},
    }


@pytest.mark.parametrize(
    ("completions", "succeeded", "active", "enough", "missing"),
    [
        pytest.param(3, 3, 0, True, 0, id="all"),
        pytest.param(3, 1, 1, False, 2, id="some"),
        pytest.param(None, 0, 2, False, 2**31, id="no number, none yet"),
        pytest.param(None, 1, 2, False, 2, id="no number, the others still run"),
        pytest.param(None, 1, 0, True, 0, id="no number, all ended"),
    ],
)
def test_when_a_job_has_enough(completions, succeeded, active, enough, missing):
    spec = {} if completions is None else {"completions": completions}
    counts = Counts.of(plain(spec=spec, status={"succeeded": succeeded}))
    assert (counts.are_enough(active), counts.missing(active)) == (enough, missing)


UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": AT}


@pytest.mark.parametrize(
    ("tolerations", "taints", "end"),
    [
        pytest.param([], [], None, id="no taints"),
        pytest.param([], [UNREACHABLE], 0.0, id="not tolerated"),
        pytest.param([{"operator": "Exists"}], [UNREACHABLE], None, id="tolerated for ever"),
        pytest.param(
            [{"operator": "Exists", "tolerationSeconds": 9}], [UNREACHABLE], NOW + 9, id="for a time"
        ),
        pytest.param(
            [{"operator": "Exists", "tolerationSeconds": 9}],
            [{"key": "k", "effect": "NoExecute"}],
            NOW + 109,
            id="a taint that does not say since when",
        ),
        pytest.param(
            [{"operator": "Exists"}, {"operator": "Exists", "tolerationSeconds": 5}],
            [UNREACHABLE],
            NOW + 5,
            id="the shortest time counts",
        ),
        pytest.param(
            [{"key": "other", "operator": "Exists"}], [UNREACHABLE], 0.0, id="another taint is tolerated"
        ),
    ],
)
def test_when_a_pod_has_to_leave(tolerations, taints, end):
    found = tuple(decode(TimedToleration, each) for each in tolerations)
    assert leaves_at(found, taints, NOW + 100) == end


@pytest.mark.parametrize(
    ("conditions", "spec", "taints"),
    [
        pytest.param({"Ready": "True"}, {}, [], id="well"),
        pytest.param({"Ready": "False"}, {}, ["not-ready:NoSchedule", "not-ready:NoExecute"], id="not ready"),
        pytest.param(
            {"Ready": "Unknown"}, {}, ["unreachable:NoSchedule", "unreachable:NoExecute"], id="silent"
        ),
        pytest.param(
            {"Ready": "True", "DiskPressure": "True"}, {}, ["disk-pressure:NoSchedule"], id="under pressure"
        ),
        pytest.param({"Ready": "True"}, {"unschedulable": True}, ["unschedulable:NoSchedule"], id="cordoned"),
    ],
)
def test_taints_follow_from_conditions(conditions, spec, taints):
    listed = [{"type": kind, "status": status} for kind, status in conditions.items()]
    found = taints_of(plain(spec=spec, status={"conditions": listed}))
    assert [f"{key.removeprefix('node.kubernetes.io/')}:{effect}" for key, effect in found] == taints


@pytest.mark.parametrize(
    ("pod_spec", "node", "takes"),
    [
        pytest.param({}, {}, True, id="any node"),
        pytest.param({"nodeSelector": {"disk": "ssd"}}, {}, False, id="a label it lacks"),
        pytest.param(
            {"nodeSelector": {"disk": "ssd"}}, {"labels": {"disk": "ssd"}}, True, id="a label it has"
        ),
        pytest.param({"nodeName": "other"}, {}, False, id="another node's name"),
        pytest.param({}, {"taint": "gpu"}, False, id="a taint"),
        pytest.param({"tolerations": [{"operator": "Exists"}]}, {"taint": "gpu"}, True, id="a tolerated one"),
        pytest.param({}, {"taint": "node.kubernetes.io/unschedulable"}, True, id="a cordoned node"),
    ],
)
def test_where_daemons_belong(pod_spec, node, takes):
    taints = [{"key": node["taint"], "effect": "NoSchedule"}] if "taint" in node else []
    found = plain(metadata={"name": "n", "labels": node.get("labels", {})}, spec={"taints": taints})
    assert Placement({"spec": pod_spec}).takes(found) is takes


@pytest.mark.parametrize(
    ("volume", "is_fit"),
    [
        pytest.param({}, True, id="just right"),
        pytest.param({"capacity": {"storage": "1Gi"}}, False, id="too small"),
        pytest.param({"storageClassName": "other"}, False, id="another class"),
        pytest.param({"accessModes": ["ReadOnlyMany"]}, False, id="another way of access"),
        pytest.param({"volumeMode": "Block"}, False, id="a block device"),
    ],
)
def test_which_volumes_fit_a_claim(volume, is_fit):
    modes = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast"}
    claim = plain(spec={**modes, "resources": {"requests": {"storage": "2Gi"}}})
    assert fits(plain(spec={**modes, "capacity": {"storage": "2Gi"}, **volume}), claim) is is_fit


def test_a_condition_keeps_its_time_as_long_as_its_status():
    first = with_condition([], "Ready", "True", "A", "", "t1")
    second = with_condition(first, "Ready", "True", "B", "", "t2")
    third = with_condition(second, "Ready", "False", "B", "", "t3")
    assert [each[0]["lastTransitionTime"] for each in (first, second, third)] == ["t1", "t1", "t3"]
    assert first[0]["reason"] == "A", "what was there is not changed"


def test_what_is_empty_is_as_good_as_absent():
    assert not differs({"a": 1}, {"a": 1, "b": 0, "c": [], "d": {"e": None}})
    assert differs({"a": 1}, {"a": 2})
    assert differs({"a": 1}, {"a": 0})
