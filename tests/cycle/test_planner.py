"""The planner: profiles by name, and pods one after another."""

from __future__ import annotations

import pytest
from staging import nodes, plan, planner_of, profile

from make import make_node, make_pod
from stowplan.errors import ConfigError, InputError
from stowplan.framework import Plugin, Status


def refusing(name, refused):
    def refuse(self, state, pod, node):
        return Status.unschedulable(f"not {node.name}") if node.name == refused else None

    return type(name, (Plugin,), {"filter": refuse})


def test_each_pod_goes_by_the_profile_it_names():
    not_a, not_b = refusing("NotA", "a"), refusing("NotB", "b")
    profiles = [profile(not_a, schedulerName="default-scheduler"), profile(not_b, schedulerName="other")]
    planner = planner_of(nodes("a", "b"), profiles, not_a, not_b)
    assert planner.decide(make_pod()).chosen == "b"
    assert planner.decide(make_pod(schedulerName="other")).chosen == "a"


def test_a_pod_of_nobodys():
    with pytest.raises(InputError) as refused:
        plan(nodes("a")).decide(make_pod("web", schedulerName="elsewhere"))
    assert str(refused.value) == (
        "Pod default/web: spec.schedulerName: no profile has the name 'elsewhere', there is default-scheduler"
    )


def test_deciding_changes_nothing_and_carrying_out_does():
    planner = plan(
        [make_node("a", allocatable={"cpu": "2", "memory": "4Gi", "pods": "9"})], "NodeResourcesFit"
    )
    pods = [make_pod(name, requests={"cpu": "1500m"}) for name in ("first", "second")]
    assert [planner.decide(pod).chosen for pod in pods] == ["a", "a"]
    planner.carry_out(planner.decide(pods[0]))
    decision = planner.decide(pods[1])
    assert decision.chosen is None
    planner.carry_out(decision)
    assert [pod.name for pod in planner.cluster.pods()] == ["first"]


def test_a_plugin_that_cannot_be_built():
    class Unbuildable(Plugin):
        def __init__(self, args, handle):
            raise OSError("no such device")

        def filter(self, state, pod, node):
            return None

    with pytest.raises(ConfigError) as refused:
        plan(nodes("a"), Unbuildable)
    said = 'initializing plugin "Unbuildable": OSError: no such device (at '
    assert refused.value.message.startswith(said)
    assert "test_planner.py:" in refused.value.message


class Evicting(Plugin):
    """Evicts pods of several nodes where nothing else helps."""

    def post_filter(self, state, pod, decision):
        return self.handle.preempt_across(pod, [list(self.handle.cluster.pods())], 10**9)


def test_plugins_of_others_have_all_of_the_handle():
    planner = plan([make_node("a", allocatable={"cpu": 2, "pods": 9})], "NodeResourcesFit", Evicting)
    (used,) = planner.profiles.values()
    given = used.plugins["Evicting"].handle
    assert given is not used.handle
    names = {name for name in dir(used.handle) if not name.startswith("_")} - {"api"}
    assert {name for name in names if not hasattr(given, name)} == set()
    assert tuple(given.scheduler_names) == ("default-scheduler",)
    assert given.disabled_gates == used.handle.disabled_gates


def test_plugins_of_others_may_evict_pods_of_several_nodes():
    room = [make_node(name, allocatable={"cpu": 2, "pods": 9}) for name in "ab"]
    pods = [make_pod(f"on-{name}", node=name, requests={"cpu": 2}) for name in "ab"]
    planner = plan([*room, *pods], "NodeResourcesFit", Evicting)
    decision = planner.decide(make_pod("high", requests={"cpu": 2}, priority=5))
    assert decision.error is None, decision.post_filter
    assert [each.name for each in decision.victims] == [f"on-{decision.nominated}"]
