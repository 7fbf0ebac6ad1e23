"""The replay: the scheduler's own queue, cycle and binder, on a virtual clock."""

from __future__ import annotations

import socket
import time

import pytest
from small_trace import add, busy_trace, change, node, pod, trace_of

from stowplan.config import load
from stowplan.errors import InputError
from stowplan.framework.registry import Registry
from stowplan.replay import ReplayOptions, replay

REGISTRY = Registry.installed()


def results_by_name(trace, config=None, **options):
    found = replay(trace, config, registry=REGISTRY, options=ReplayOptions(**options))
    return {each.name: each for each in found.pods}


def config_of(**profile):
    return load(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{"schedulerName": "default-scheduler", **profile}],
        },
        REGISTRY,
    ).config


def test_a_pod_is_bound_when_it_arrives_and_leaves_after_its_run_time():
    found = results_by_name(trace_of(add(0, node("a")), add(10, pod("web"), run_seconds=25.0)))["web"]
    assert (found.arrived, found.bound, found.node, found.ended, found.attempts) == (10, 10, "a", 35, 1)


def test_a_pod_that_does_not_fit_waits_until_another_leaves():
    trace = trace_of(
        add(0, node("a", "2")), add(1, pod("first", "2"), run_seconds=100.0), add(5, pod("second", "2"))
    )
    found = results_by_name(trace)
    assert (found["second"].bound, found["second"].attempts) == (101, 2)
    assert "Insufficient cpu" in found["second"].message


def test_a_new_node_wakes_pending_pods():
    trace = trace_of(add(0, node("a", "1")), add(1, pod("big", "3")), add(50, node("b", "4")))
    found = results_by_name(trace)["big"]
    assert (found.node, found.bound) == ("b", 50)


def test_a_changed_node_wakes_pending_pods():
    trace = trace_of(add(0, node("a", "1")), add(1, pod("big", "3")), change(40, "update", node("a", "4")))
    assert results_by_name(trace)["big"].bound == 40


def test_pods_of_one_moment_are_decided_by_priority():
    trace = trace_of(add(0, node("a", "1")), add(1, pod("low")), add(1, pod("high", priority=10)))
    found = results_by_name(trace, departures="never")
    assert found["high"].node == "a"
    assert found["low"].node == ""


def test_preemption_evicts_and_the_controller_makes_another_pod():
    trace = trace_of(
        add(0, node("a", "1")),
        add(1, pod("low", owner="set"), run_seconds=1000.0),
        add(20, pod("high", priority=10), run_seconds=100.0),
    )
    found = results_by_name(trace)
    assert found["low"].is_evicted
    assert (found["low"].ended, found["high"].bound) == (20, 20)
    (again,) = [each for name, each in found.items() if name.startswith("low-")]
    assert (again.arrived, again.bound) == (20, 120)


def test_victims_may_take_time_to_end():
    trace = trace_of(add(0, node("a", "1")), add(1, pod("low")), add(20, pod("high", priority=10)))
    assert results_by_name(trace, eviction_seconds=30.0)["high"].bound == 50


def test_a_gated_pod_waits_for_its_gate():
    gated = pod("web", schedulingGates=[{"name": "example.com/wait"}])
    trace = trace_of(add(0, node("a")), add(1, gated), change(30, "update", pod("web")))
    assert results_by_name(trace)["web"].bound == 30


def test_a_deleted_node_takes_its_pods_along():
    trace = trace_of(
        add(0, node("a")),
        add(1, pod("web", owner="set")),
        change(10, "delete", node("a")),
        add(20, node("b")),
    )
    found = results_by_name(trace)
    assert found["web"].ended == 10
    (again,) = [each for name, each in found.items() if name.startswith("web-")]
    assert (again.node, again.bound) == ("b", 20)


def test_a_pod_group_is_placed_as_one():
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "gang", "namespace": "default"},
        "spec": {"minMember": 3},
    }

    def member(number):
        data = pod(f"member-{number}")
        data["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "gang"}
        return data

    trace = trace_of(
        add(0, node("a", "2")),
        add(0, group),
        *(add(1 + number, member(number)) for number in range(3)),
        add(60, node("b", "2")),
    )
    config = config_of(
        plugins={
            "multiPoint": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "PrioritySort"}]}
        }
    )
    found = results_by_name(trace, config)
    assert [found[f"member-{number}"].bound for number in range(3)] == [60, 60, 60]


def test_recorded_departures():
    trace = trace_of(
        add(0, node("a")),
        add(1, pod("web")),
        change(5, "bind", pod("web"), node="a", by="kube-scheduler"),
        change(65, "delete", pod("web")),
    )
    assert results_by_name(trace)["web"].ended == 61  # it ran for 60 seconds
    assert results_by_name(trace, departures="recorded")["web"].ended == 65
    assert results_by_name(trace, departures="never")["web"].ended is None


def test_a_pending_pod_that_was_deleted_goes_at_that_time():
    trace = trace_of(add(0, node("a", "1")), add(1, pod("big", "3")), change(30, "delete", pod("big")))
    found = results_by_name(trace)["big"]
    assert (found.bound, found.ended) == (None, 30)


def test_a_pod_that_has_its_node_when_it_is_added():
    there = pod("web", nodeName="a")
    there["metadata"]["annotations"] = {"note": 'says "nodeName"'}
    trace = trace_of(add(0, node("a")), add(1, there), change(31, "delete", pod("web")))
    found = results_by_name(trace)["web"]
    assert (found.node, found.bound, found.ended, found.attempts) == ("a", 1, 31, 0)


def test_as_recorded_binds_as_recorded():
    trace = trace_of(
        add(0, node("a")),
        add(0, node("b")),
        add(1, pod("web")),
        change(4, "bind", pod("web"), node="b", by="x"),
    )
    found = results_by_name(trace, as_recorded=True)["web"]
    assert (found.node, found.bound, found.attempts) == ("b", 4, 0)


def test_the_recorded_node_wins_among_the_best():
    trace = trace_of(
        add(0, node("a")),
        add(0, node("b")),
        add(1, pod("web")),
        change(4, "bind", pod("web"), node="b", by="x"),
    )
    assert results_by_name(trace)["web"].node == "a"
    assert results_by_name(trace, prefers_recorded=True)["web"].node == "b"


def test_pods_of_other_schedulers_go_where_they_were():
    trace = trace_of(
        add(0, node("a", "2")),
        add(1, pod("theirs", "2", schedulerName="other")),
        add(2, pod("ours", "2")),
        change(3, "bind", pod("theirs"), node="a", by="other"),
    )
    found = results_by_name(trace)
    assert found["ours"].node == "a"
    assert found["theirs"].bound == 3


def test_without_retries_a_pod_that_does_not_fit_is_dropped():
    trace = trace_of(
        add(0, node("a", "1")), add(1, pod("big", "3")), add(50, node("b", "4")), add(60, pod("next"))
    )
    found = results_by_name(trace, retry=False)
    assert found["big"].is_dropped
    assert found["big"].bound is None
    assert found["next"].bound == 60


def test_the_same_replay_gives_the_same_bytes(tmp_path):
    for number in range(2):
        found = replay(busy_trace(), registry=REGISTRY, options=ReplayOptions(seed=7))
        found.write(tmp_path / f"{number}.jsonl")
        found.write(tmp_path / f"{number}.parquet")
    assert (tmp_path / "0.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()
    assert (tmp_path / "0.parquet").read_bytes() == (tmp_path / "1.parquet").read_bytes()


def test_another_seed_breaks_ties_another_way():
    one, two = (
        replay(busy_trace(), registry=REGISTRY, options=ReplayOptions(seed=seed)).placements
        for seed in (1, 2)
    )
    assert one != two


def test_a_month_takes_no_time_and_no_socket(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "socketpair", refuse)
    trace = trace_of(
        add(0, node("a", "1")),
        *(add(86400.0 * day, pod(f"pod-{day}"), run_seconds=80000.0) for day in range(30)),
        add(100, pod("never", "2")),
    )
    began = time.perf_counter()
    found = results_by_name(trace)
    assert time.perf_counter() - began < 10
    assert found["pod-29"].bound == 29 * 86400
    assert found["never"].bound is None


def test_measures():
    trace = trace_of(
        add(0, node("a", "4")),
        add(0, node("b", "4")),
        add(0, pod("web", "2"), run_seconds=50.0),
        add(100, pod("last", "4"), run_seconds=10.0),
    )
    found = replay(trace, registry=REGISTRY, options=ReplayOptions(samples=10)).metrics()
    assert found["allocated.cpu"] == pytest.approx(0.125)  # 2 of 8 CPUs for half of the time
    assert found["pods.bound"] == 2
    assert found["waiting.max"] == 0
    assert found["nodes.used.max"] == 1


def test_an_empty_trace_is_an_error():
    with pytest.raises(InputError, match="made-up: has no events"):
        replay(trace_of(), registry=REGISTRY)


def test_an_object_that_cannot_be_read_is_named():
    broken = node("a")
    broken["status"]["allocatable"]["cpu"] = "many"
    with pytest.raises(InputError, match=r"made-up: Node /?a at 3\.0+: status\.allocatable"):
        replay(trace_of(add(3, broken)), registry=REGISTRY)
