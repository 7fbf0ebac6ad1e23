"""The replay: the scheduler's own queue, cycle and binder, on a virtual clock."""

from __future__ import annotations

import asyncio
import socket
import time

import msgspec
import pytest
from small_trace import add, busy_trace, change, node, pod, trace_of

from stowplan.config import load
from stowplan.cycle.schedule import schedule
from stowplan.errors import InputError
from stowplan.framework.registry import Registry
from stowplan.replay import ReplayOptions, replay
from stowplan.scheduler.shared import BackgroundTasks

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


def test_the_recorded_node_wins_if_it_is_the_best_before_the_binding():
    """A pod ends between the arrival of another one and its binding; the live scheduler knew."""
    trace = trace_of(
        add(0, node("a")),
        add(0, node("b")),
        add(1, pod("old", "2", nodeName="b")),
        add(10, pod("new")),
        add(10, pod("other", nodeName="a")),
        change(10.001, "delete", pod("old")),
        change(10.003, "bind", pod("new"), node="b", by="live"),
    )
    assert results_by_name(trace)["new"].node == "a"
    found = results_by_name(trace, prefers_recorded=True, departures="recorded")["new"]
    assert (found.node, found.bound, found.attempts) == ("b", 10.001, 1)
    assert results_by_name(trace, prefers_recorded=True, departures="never")["new"].node == "a"


@pytest.mark.parametrize("order", ["creation", "names", "neither"])
def test_pods_that_are_pending_at_the_start_come_in_the_order_of_the_live_queue(order):
    created = [f"{letter}{number}" for number, letter in enumerate("hcafbged")]
    queued = {"creation": created, "names": sorted(created), "neither": [*created[::2], *created[::-2]]}[
        order
    ]
    pods = [add(0, pod(name, "2" if number % 2 else "1")) for number, name in enumerate(created)]
    bound = [change(1 + at / 8, "bind", pod(name), node="a", by="live") for at, name in enumerate(queued)]
    found = results_by_name(trace_of(add(0, node("a", "100")), *pods, *bound), departures="never")
    assert list(found) == queued


def test_pods_that_failed_at_one_moment_keep_their_order_over_profiles():
    config = load(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{"schedulerName": "default-scheduler"}, {"schedulerName": "other"}],
        },
        REGISTRY,
    ).config
    names = ("other", "default-scheduler", "other", "default-scheduler")
    pods = [add(1, pod(f"p{number}", schedulerName=name)) for number, name in enumerate(names)]
    trace = trace_of(add(0, node("a", "0")), *pods, change(50, "update", node("a", "2")))
    found = results_by_name(trace, config)
    assert [each.node for each in found.values()] == ["a", "a", "", ""]


def recorded_preemption(*more):
    """A pod is preempted, ends a moment later, and its controller makes another one."""
    low, again = pod("low", owner="set"), pod("again", owner="set")
    ending = pod("low", owner="set")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:20Z"
    return trace_of(
        add(0, node("a", "1")),
        add(1, low),
        change(1, "bind", low, node="a", by="live"),
        add(20, pod("high", priority=10)),
        change(20.1, "update", ending),
        add(20.2, again),
        change(20.3, "delete", low, by="preemption"),
        change(20.4, "bind", pod("high"), node="a", by="live"),
        change(60, "delete", pod("high")),
        change(61, "bind", again, node="a", by="live"),
        change(90, "delete", again),
        *more,
    )


@pytest.mark.parametrize("departures", ["run-time", "recorded"])
def test_a_recorded_preemption_makes_one_replacement(departures):
    found = results_by_name(recorded_preemption(), departures=departures)
    assert sorted(found) == ["again", "high", "low"]
    assert found["low"].is_evicted
    assert (found["again"].node, found["again"].arrived) == ("a", 20.2)


@pytest.mark.parametrize("departures", ["run-time", "recorded"])
def test_a_pod_that_is_not_preempted_here_stays_and_is_not_replaced(departures):
    trace = recorded_preemption()
    room = [msgspec.structs.replace(each) for each in trace.events]
    room[0] = add(0, node("a", "2"))
    found = results_by_name(trace_of(*room), departures=departures)
    assert sorted(found) == ["high", "low"]
    assert not found["low"].is_evicted
    assert (found["low"].bound, found["low"].ended) == (1, 90)


def test_a_pod_that_is_preempted_here_too_and_takes_time_to_end_is_replaced():
    found = results_by_name(recorded_preemption(), eviction_seconds=30.0)
    assert sorted(found) == ["again", "high", "low"]
    assert (found["high"].bound, found["low"].ended) == (50, 50)


@pytest.mark.parametrize("departures", ["run-time", "recorded"])
def test_a_pod_that_is_not_preempted_here_can_be_preempted_later(departures):
    trace = recorded_preemption(add(30, pod("higher", "2", priority=20)))
    room = [msgspec.structs.replace(each) for each in trace.events]
    room[0] = add(0, node("a", "2"))
    found = results_by_name(trace_of(*room), departures=departures)
    assert found["low"].is_evicted
    assert (found["higher"].node, found["higher"].bound) == ("a", 30)


@pytest.mark.parametrize("departures", ["run-time", "recorded"])
def test_a_pod_that_was_preempted_and_is_pending_here_is_replaced(departures):
    trace = recorded_preemption()
    room = [msgspec.structs.replace(each) for each in trace.events]
    room[0] = add(0, node("a", "100m"))
    found = results_by_name(trace_of(*room), departures=departures)
    assert sorted(found) == ["again", "high", "low"]


def test_preemption_takes_the_recorded_node_where_the_harm_is_equal():
    pods = [add(1, pod(f"on-{name}", "4", nodeName=name)) for name in ("a", "b", "c")]
    urgent = pod("high", "4", priority=10)
    recorded = change(6, "bind", urgent, node="b", by="live")
    trace = trace_of(*(add(0, node(name)) for name in ("a", "b", "c")), *pods, add(5, urgent), recorded)
    assert results_by_name(trace)["high"].node == "a"
    assert results_by_name(trace, prefers_recorded=True)["high"].node == "b"


def with_start(data, second):
    return data | {"status": {"startTime": f"2026-01-01T00:00:{second:02}Z"}}


def test_a_pod_that_was_overtaken_when_recorded_is_overtaken_in_the_replay():
    """A scheduler that is behind takes the pod of higher priority first, which arrived later."""
    urgent = pod("high", "4", priority=10)
    trace = trace_of(
        add(0, node("a")),
        add(0, node("b")),
        add(0, with_start(pod("on-a", "2", nodeName="a"), 9)),
        add(0, with_start(pod("on-b", "4", nodeName="b"), 1)),
        add(1, pod("low")),
        add(2, urgent),
        change(2.2, "reject", urgent, node="a", by="live"),
        change(2.3, "delete", pod("on-a"), by="preemption"),
        change(3, "bind", urgent, node="a", by="live"),
        change(4, "reject", pod("low"), by="live"),
    )
    assert results_by_name(trace)["high"].node == "b"
    found = results_by_name(trace, prefers_recorded=True)
    assert (found["high"].node, found["low"].node) == ("a", "")


def held_back(*between, taints=()):
    """A pod that is held back when it arrives, since one that arrived later was decided before it."""
    where = node("a")
    where["spec"] = {"taints": list(taints)}
    urgent = pod("high", priority=10, tolerations=[{"operator": "Exists"}])
    return trace_of(
        add(0, where), add(1, pod("low")), *between, add(3, urgent), change(4, "bind", urgent, node="a")
    )


def test_a_pod_that_is_deleted_while_it_is_held_back_is_not_attempted():
    found = results_by_name(held_back(change(2, "delete", pod("low"))), prefers_recorded=True)
    assert (found["high"].node, found["low"].node, found["low"].attempts) == ("a", "", 0)


def test_a_pod_that_changes_while_it_is_held_back_is_decided_as_it_is_then():
    taint = {"key": "gpu", "effect": "NoSchedule"}
    tolerating = pod("low", tolerations=[{"key": "gpu", "operator": "Exists"}])
    trace = held_back(change(2, "update", tolerating), taints=[taint])
    found = results_by_name(trace, prefers_recorded=True)["low"]
    assert (found.node, found.attempts) == ("a", 1)


@pytest.mark.parametrize("victim", ["one", "two", "three"])
def test_of_pods_that_are_equally_important_those_give_way_that_did_when_recorded(victim):
    urgent = pod("high", "2", priority=10)
    trace = trace_of(
        add(0, node("a", "6")),
        *(add(0, with_start(pod(name, "2", nodeName="a"), 1)) for name in ("one", "two", "three")),
        add(5, urgent),
        change(6, "delete", pod(victim), by="preemption"),
        change(7, "bind", urgent, node="a", by="live"),
    )
    found = results_by_name(trace, prefers_recorded=True, departures="recorded")
    assert [name for name, each in found.items() if each.is_evicted] == [victim]


@pytest.mark.parametrize(("chosen", "victims"), [("a", ["large"]), ("b", ["one", "two"])])
def test_preemption_takes_the_recorded_node_if_the_others_may_have_been_worse(chosen, victims):
    """Node a has one victim or two, depending on which of its equally important pods may stay first."""
    urgent = pod("high", "2", priority=10)
    trace = trace_of(
        *(add(0, node(name)) for name in ("a", "b")),
        *(add(0, with_start(pod(name, nodeName="a"), 2)) for name in ("small", "other")),
        add(0, with_start(pod("large", "2", nodeName="a"), 2)),
        add(0, with_start(pod("old", "2", nodeName="b"), 1)),
        *(add(0, with_start(pod(name, nodeName="b"), 2)) for name in ("one", "two")),
        add(5, urgent),
        change(6, "reject", urgent, node=chosen, by="live"),
        *(change(6, "delete", pod(name), by="preemption") for name in victims),
        change(7, "bind", urgent, node=chosen, by="live"),
    )
    found = results_by_name(trace, prefers_recorded=True, departures="recorded")
    assert found["high"].node == chosen
    assert [name for name, each in found.items() if each.is_evicted] == victims


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


@pytest.mark.parametrize("as_recorded", [False, True])
def test_a_pod_that_never_fits_waits_until_nothing_happens_any_more(as_recorded):
    trace = trace_of(add(0, node("a", "1")), add(1, pod("big", "3")), change(9, "update", node("a", "2")))
    found = replay(trace, registry=REGISTRY, options=ReplayOptions(as_recorded=as_recorded))
    assert found.metrics()["waiting.max"] == 8


def test_an_empty_trace_is_an_error():
    with pytest.raises(InputError, match="made-up: has no events"):
        replay(trace_of(), registry=REGISTRY)


def test_an_object_that_cannot_be_read_is_named():
    broken = node("a")
    broken["status"]["allocatable"]["cpu"] = "many"
    with pytest.raises(InputError, match=r"made-up: Node /?a at 3\.0+: status\.allocatable"):
        replay(trace_of(add(3, broken)), registry=REGISTRY)


WEB = {"matchLabels": {"app": "web"}}


@pytest.mark.parametrize(
    "special",
    [
        pytest.param({"nodeSelector": {"zone": "west"}}, id="a selector"),
        pytest.param(
            {
                "affinity": {
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"labelSelector": WEB, "topologyKey": "kubernetes.io/hostname"}
                        ]
                    }
                }
            },
            id="anti-affinity",
        ),
        pytest.param(
            {
                "topologySpreadConstraints": [
                    {
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": WEB,
                    }
                ]
            },
            id="hard spread",
        ),
    ],
)
def test_a_backlog_of_equal_pods_is_decided_once_for_each_change(monkeypatch, special):
    """Whenever a pod leaves, all that wait are attempted, and for all but the first nothing has changed."""
    events = [add(0, node("a", "4")), add(0, node("b", "4", zone="west"))]
    for number in range(60):
        size, more = ("1", {}) if number % 3 else ("3", special)
        made = pod(f"pod-{number}", size, **more)
        if more:
            made["metadata"]["labels"] = {"app": "web"}
        events.append(add(1 + number, made, run_seconds=100.0 + 7 * (number % 5)))
    decided = []

    def count_decisions(profile, pod, *args):
        decided.append(pod.name)
        return schedule(profile, pod, *args)

    monkeypatch.setattr("stowplan.scheduler.loop.schedule", count_decisions)
    found = results_by_name(trace_of(*events))
    attempts = sum(each.attempts for each in found.values())
    assert len(decided) < attempts / 3
    decided.clear()
    monkeypatch.setattr("stowplan.scheduler.loop.FailedPods.find", lambda *_: None)
    assert results_by_name(trace_of(*events)) == found
    assert len(decided) == attempts


def test_a_failure_does_not_hold_for_a_pod_with_other_labels():
    """Only the first of two pods that are alike but for a label is kept away by the other's anti-affinity."""
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    web, other = pod("web"), pod("other")
    web["metadata"]["labels"], other["metadata"]["labels"] = {"app": "web"}, {"app": "other"}
    found = results_by_name(
        trace_of(add(0, node("a")), add(1, pod("lone", affinity=affinity)), add(2, web), add(2, other))
    )
    assert (found["web"].node, found["other"].node) == ("", "a")


async def test_plain_work_is_run_when_it_is_told_to_and_may_wait_after_all():
    tasks, steps, go_on = BackgroundTasks(), [], asyncio.Event()
    tasks.defers_plain = True

    async def at_once() -> None:
        steps.append("at once")

    async def wait() -> None:
        steps.append("waiting")
        await go_on.wait()
        steps.append("over")

    tasks.start(wait(), "waiting", is_plain=True)
    tasks.start(at_once(), "at once", is_plain=True)
    assert (steps, len(tasks)) == ([], 2)
    tasks.run_deferred()
    assert (steps, len(tasks)) == (["waiting", "at once"], 1)
    go_on.set()
    await tasks.finish(1.0)
    assert (steps[2:], len(tasks)) == (["over"], 0)


async def test_plain_work_that_fails_is_logged_and_stops_nothing(caplog):
    tasks = BackgroundTasks()
    tasks.defers_plain = True

    async def fail() -> None:
        raise ValueError("no such thing")

    tasks.start(fail(), "binding of pod default/web", is_plain=True)
    tasks.run_deferred()
    assert len(tasks) == 0
    assert [each.message for each in caplog.records] == ["Background work failed"]
