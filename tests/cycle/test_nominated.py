"""Pods that were promised a node: they keep their room there, and look there first."""

from __future__ import annotations

import pytest
from staging import feasible, nodes, plan, refusals

from make import make_node, make_pod
from stowplan.framework import Plugin, Reads, Reject, Status

FULL = Status.unschedulable("Insufficient cpu")
ROOM = {"cpu": "4", "memory": "8Gi", "pods": "9"}


def planner(*promised, plugins=("NodeResourcesFit",)):
    found = plan([make_node("a", allocatable=ROOM), make_node("b", allocatable=ROOM)], *plugins)
    for pod, node in promised:
        nominations(found).put(pod, node)
    return found


def nominations(found):
    return found.profiles["default-scheduler"].handle.nominations


def pod(name="pod", cpu="3", **fields):
    return make_pod(name, requests={"cpu": cpu}, **fields)


@pytest.mark.parametrize(
    ("promised", "refused"),
    [
        pytest.param(pod("other", priority=6), {"a": FULL}, id="more important"),
        pytest.param(pod("other", priority=5), {"a": FULL}, id="as important"),
        pytest.param(pod("other", priority=4), {}, id="less important"),
        pytest.param(pod("other", cpu="1", priority=6), {}, id="room for both"),
        pytest.param(pod("pod", priority=6), {}, id="the pod itself"),
    ],
)
def test_room_is_kept_for_more_important_pods(promised, refused):
    assert refusals(planner((promised, "a")).decide(pod(priority=5))) == refused


def test_all_pods_promised_a_node_count_together():
    promised = [(pod(f"other{number}", cpu="1", priority=9), "a") for number in range(2)]
    assert refusals(planner(*promised).decide(pod())) == {"a": FULL}


def test_a_promise_can_be_moved_and_taken_back():
    found, other = planner((pod("other", priority=9), "a")), pod("other", priority=9)
    nominations(found).put(other, "b")
    assert refusals(found.decide(pod())) == {"b": FULL}
    nominations(found).remove(other)
    assert refusals(found.decide(pod())) == {}


def test_a_nominated_pod_does_not_stand_in_its_own_way_among_equal_ones():
    mine = pod("mine", priority=5)
    found = planner((mine, "a"))
    for _ in range(2):
        assert refusals(found.decide(pod("equal", priority=5))) == {"a": FULL}
        assert refusals(found.decide(mine)) == {}


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        pytest.param(make_pod("placed", node="b", requests={"cpu": "1"}), {"a"}, id="another node"),
        pytest.param(make_pod("placed", node="b", requests={"cpu": "2"}), {"a", "b"}, id="a full node"),
        pytest.param(make_node("a", allocatable=ROOM | {"cpu": "8"}), set(), id="a larger node"),
        pytest.param(make_node("c", allocatable=ROOM), {"a"}, id="a new node"),
    ],
)
def test_room_is_looked_for_again_after_a_change(change, refused):
    found = planner((pod("other", priority=9), "a"))
    assert refusals(found.decide(pod())).keys() == {"a"}
    found.cluster.apply(change)
    assert refusals(found.decide(pod())).keys() == refused


def test_pods_of_a_kind_are_tried_only_once_beside_the_same_nominated_pods():
    asked = []

    class Watching(Plugin):
        reads = Reads.USAGE

        def sign_pod(self, pod):
            return pod.labels.get("kind")

        def filter_nodes(self, state, pod, nodes):
            asked.append(len(nodes))
            yield Reject(nodes.pod_count > 1, "crowded")

    found = planner((pod("other", priority=9), "a"), plugins=(Watching,))
    found.cluster.apply(make_pod("running", node="a"))
    for number, kind in enumerate("xxyx"):
        decision = found.decide(pod(f"new{number}", labels={"kind": kind}))
        assert refusals(decision) == {"a": Status.unschedulable("crowded")}
    assert asked == [2, 1, 2, 1]


class Partner(Plugin):
    """Wants a partner on the node, but not two."""

    def filter(self, state, pod, node):
        if len(node.pods) == 1:
            return None
        return Status.unschedulable("alone" if not node.pods else "crowded")


@pytest.mark.parametrize(
    ("running", "promised", "refused"),
    [
        pytest.param(0, 0, "alone", id="alone either way"),
        pytest.param(0, 1, "alone", id="a partner that may not come"),
        pytest.param(1, 0, None, id="a partner"),
        pytest.param(1, 1, "crowded", id="a partner, and one that may come"),
        pytest.param(0, 2, "crowded", id="the look with promised pods comes first"),
    ],
)
def test_a_node_must_do_with_and_without_promised_pods(running, promised, refused):
    found = plan(
        [make_node("a"), *(make_pod(f"running{number}", node="a") for number in range(running))], Partner
    )
    for number in range(promised):
        nominations(found).put(make_pod(f"promised{number}", priority=9), "a")
    assert refusals(found.decide(make_pod())) == ({"a": Status.unschedulable(refused)} if refused else {})


def test_the_refusal_counts_in_the_message_and_names_its_plugin():
    found = planner((pod("one", priority=9), "a"), (pod("two", priority=9), "b"))
    decision = found.decide(pod())
    assert decision.message == "0/2 nodes are available: 2 Insufficient cpu."
    assert decision.rejectors == {"NodeResourcesFit"}
    assert decision.codes().tolist() == [2, 2]


class Counting(Plugin):
    """Follows, in its state, who would be on the node; three are too many."""

    class Seen(list):
        def clone(self):
            return type(self)(self)

    def pre_filter(self, state, pod, nodes):
        state.write(self.Seen())

    def add_pod(self, state, pod, added, node):
        state.read(self.Seen).append((added.name, node.name))

    def filter(self, state, pod, node):
        seen = state.read(self.Seen)
        return Status.unschedulable(f"{len(seen)} promised") if len(seen) > 2 else None


def test_plugins_follow_promised_pods_on_a_state_of_each_nodes_own():
    two = [(make_pod(f"a{number}", priority=9), "a") for number in range(2)]
    three = [(make_pod(f"b{number}", priority=9), "b") for number in range(3)]
    found = planner(*two, *three, plugins=(Counting,))
    assert refusals(found.decide(make_pod())) == {"b": Status.unschedulable("3 promised")}


# The node that the pod itself was promised


def test_a_promised_node_is_taken_though_others_are_better():
    found = plan(
        [make_node("a"), make_node("b"), make_pod("busy", node="b", requests={"cpu": "3"})], default=True
    )
    assert found.decide(pod(cpu="1")).chosen == "a"
    decision = found.decide(pod(cpu="1", status={"nominatedNodeName": "b"}))
    assert (feasible(decision), decision.chosen, decision.totals) == (["b"], "b", None)


@pytest.mark.parametrize("promised", ["full", "elsewhere"])
def test_if_it_will_not_do_all_are_looked_at(promised):
    found = plan([*nodes("a", "b"), make_node("full", allocatable={"pods": "0"})], "NodeResourcesFit")
    decision = found.decide(make_pod(status={"nominatedNodeName": promised}))
    assert feasible(decision) == ["a", "b"]
    assert refusals(decision) == {"full": Status.unschedulable("Too many pods")}


def test_a_promised_node_is_no_use_to_a_pod_that_is_refused_as_a_whole():
    class Never(Plugin):
        def pre_filter(self, state, pod, nodes):
            return Status.unresolvable("never")

    decision = plan(nodes("a"), Never).decide(make_pod(status={"nominatedNodeName": "a"}))
    assert decision.message == "0/1 nodes are available: never."
