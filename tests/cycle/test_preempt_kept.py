"""Victims that are kept for the next pod of the same kind: the same as if all were looked for anew."""

from __future__ import annotations

import random

import numpy as np
import pytest
from staging import INSTALLED, V1, plan, profile

from example_share import share_of
from make import make_node, make_pod
from stowplan.api.kinds import object_of
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.framework import Plugin, Reads, Reject, Status
from stowplan.framework.registry import Registry

NODES = 24
GPU = "example.com/gpu"


class Refusing(Plugin):
    """Refuses some pods as a whole, so that victims are looked for where there is room, too."""

    def pre_filter(self, state, pod, nodes):
        return Status.unschedulable("no") if "refused" in pod.labels else None


class Soft(Plugin):
    """Refuses nodes for what they are, and says that evicting pods may help."""

    reads = Reads.NODE

    def sign_pod(self, pod):
        return "soft" in pod.labels

    def filter_nodes(self, state, pod, nodes):
        yield Reject(nodes.label("soft").present & ("soft" not in pod.labels), "soft")


class Unsigned(Plugin):
    """Lets every node pass, but does not say what it looks at of a pod: no victims are kept."""

    reads = Reads.USAGE

    def filter_nodes(self, state, pod, nodes):
        yield Reject(np.zeros(len(nodes), np.bool_), "never")


class FarSighted(Unsigned):
    """Might look at other nodes: they are tried one by one."""

    reads = Reads.ANYTHING


def planner_on(cluster, enough, *plugins):
    """`enough` nodes where evicting helps are enough, where they are tried one by one."""
    registry = Registry({each.__name__: each for each in plugins}, INSTALLED)
    args = {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": enough}
    fields = {"pluginConfig": [{"name": "DefaultPreemption", "args": args}]}
    config = load({**V1, "profiles": [profile(*plugins, default=True, **fields)]}, registry).config
    return Planner(cluster, config, registry=registry)


class World:
    """A cluster that things happen to, and planners with and without a memory that look at it."""

    def __init__(self, seed, enough):
        self.draw, self.number, self.cluster = random.Random(seed), 0, Cluster()
        forgetful = (Unsigned, FarSighted) if enough >= NODES else (Unsigned,)
        self.keeping, *anew = [
            planner_on(self.cluster, enough, Refusing, Soft, *more)
            for more in ((), *((each,) for each in forgetful))
        ]
        self.planners = [self.keeping, *anew]
        self.nodes, self.placed, self.promised = [f"n{each:02}" for each in range(NODES)], [], []
        for name in self.nodes:
            self.cluster.apply(self.node(name))
        for _ in range(3 * NODES):
            self.pod_comes()

    def node(self, name):
        cpu, gpus = self.draw.choice(["3", "4", "4"]), self.draw.choice(["0", "0", "1"])
        return make_node(
            name,
            labels={"soft": ""} if self.draw.random() < 0.1 else {},
            taints=["dedicated:NoSchedule"] if self.draw.random() < 0.1 else [],
            allocatable={"cpu": cpu, "memory": "8Gi", "pods": "6", GPU: gpus},
        )

    def pod(self, name, node=""):
        """Its spec is always the same, its labels and its status are not."""
        spec = random.Random(name)
        requests = {"cpu": spec.choice(["500m", "1", "1500m"]), "memory": spec.choice(["1Gi", "2Gi"])}
        return make_pod(
            name,
            node=node,
            requests=requests | ({GPU: "1"} if spec.random() < 0.2 else {}),
            priority=spec.choice([0, 0, 0, 5, 5, 200]),
            labels={"app": self.draw.choice("abc")},
            status={"startTime": self.when()} if self.draw.random() < 0.7 else {},
            metadata={"deletionTimestamp": self.when()} if self.draw.random() < 0.1 else {},
        )

    def when(self):
        return f"2026-01-01T00:00:0{self.draw.randrange(3)}Z"

    def preemptor(self):
        self.number += 1
        kind = self.draw.randrange(7)
        return make_pod(
            f"high-{self.number}",
            requests={"cpu": ["1", "2", "3"][kind % 3]} | ({GPU: "1"} if kind == 4 else {}),
            priority=[100, 100, 5, 1, 100, 100, -1][kind],
            labels=[{}, {}, {"soft": ""}, {}, {}, {"refused": ""}, {}][kind],
            tolerations=["dedicated"] if kind == 2 else [],
        )

    def decide(self):
        pod = self.preemptor()
        kept, *anew = [planner.decide(pod) for planner in self.planners]
        for other in anew:
            assert kept.as_golden() == other.as_golden()
            assert kept.victims == other.victims  # the very same objects
        if self.draw.random() < 0.5:
            self.placed = [each for each in self.placed if f"uid-{each}" not in {v.uid for v in kept.victims}]
            self.keeping.carry_out(kept)
            if kept.chosen or kept.nominated:
                self.placed.append(pod.name)
        return kept

    def pod_comes(self):
        self.number += 1
        self.placed.append(f"p{self.number}")
        self.cluster.apply(self.pod(self.placed[-1], self.draw.choice(self.nodes)))

    def pod_changes(self):
        if (known := self.known()).name.startswith("p"):
            self.cluster.apply(self.pod(known.name, known.node_name))

    def pod_goes(self):
        self.placed.remove((known := self.known()).name)
        self.cluster.remove(known)

    def pod_is_assumed(self):
        self.number += 1
        self.placed.append(f"p{self.number}")
        node_name = self.draw.choice(self.nodes)
        self.cluster.assume_pod(self.pod(self.placed[-1]), node_name)

    def known(self):
        return self.cluster.pod(f"uid-{self.draw.choice(self.placed)}")

    def node_changes(self):
        self.cluster.apply(self.node(self.draw.choice(self.nodes)))

    def node_moves(self):
        """Its row becomes that of another, and its pods wait for it to come back."""
        name = self.draw.choice(self.nodes)
        self.cluster.remove(make_node(name))
        if self.draw.random() < 0.5:
            self.decide()
        self.cluster.apply(self.node(name))

    def budget_changes(self):
        app = self.draw.choice("abc")
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": app, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {"disruptionsAllowed": self.draw.randrange(3)},
        }
        getattr(self.cluster, self.draw.choice(["apply", "remove"]))(object_of(budget))

    def node_is_promised(self):
        self.promised.append((self.preemptor(), self.draw.choice(self.nodes)))
        for nominations in self.nominations():
            nominations.put(*self.promised[-1])

    def promises_end(self):
        for nominations in self.nominations():
            for pod, _ in self.promised:
                nominations.remove(pod)
        self.promised = []

    def nominations(self):
        return [each.handle.nominations for planner in self.planners for each in planner.profiles.values()]


HAPPENINGS = {
    World.decide: 30,
    World.pod_comes: 4,
    World.pod_changes: 12,
    World.pod_goes: 3,
    World.pod_is_assumed: 2,
    World.node_changes: 3,
    World.node_moves: 1,
    World.budget_changes: 2,
    World.node_is_promised: 4,
    World.promises_end: 1,
}


@pytest.mark.parametrize("enough", [NODES, 2])
@pytest.mark.parametrize("seed", share_of(range(8)))
def test_victims_are_those_that_would_be_found_anew(seed, enough):
    world = World(seed, enough)
    evicted = 0
    for _ in range(150):
        (happening,) = world.draw.choices(list(HAPPENINGS), HAPPENINGS.values())
        decision = happening(world)
        evicted += bool(decision and decision.victims)
    assert evicted > 5


def low(name, node, started, cpu, **more):
    fields = {
        "requests": {"cpu": cpu},
        "status": {"startTime": f"2026-01-01T00:00:0{started}Z"},
        "priority": 0,
    }
    return make_pod(name, node=node, **fields | more)


def high(name, **more):
    return make_pod(name, **{"requests": {"cpu": "2"}, "priority": 9} | more)


RESIDENTS = {
    pod.name: pod
    for pod in (
        low("first", "n1", 3, "1500m"),
        low("second", "n1", 3, "500m"),
        low("third", "n1", 3, "1", labels={"app": "own"}),
        low("other", "n2", 2, "3", labels={"app": "shared"}),
        low("twin", "n3", 1, "3", labels={"app": "shared"}),
        low("last", "n0", 1, "3"),
    )
}
GUARD = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "guard", "namespace": "default"},
    "spec": {"selector": {"matchLabels": {"app": "guarded"}}},
}


def guarded(name, node, started, cpu):
    return low(name, node, started, cpu, labels={"app": "guarded"})


@pytest.mark.parametrize(
    ("changes", "victim"),
    [
        pytest.param([], "third", id="nothing"),
        pytest.param([low("last", "n0", 5, "3")], "last", id="its start"),
        pytest.param([guarded("third", "n1", 3, "1")], "first", id="labels that nobody else has"),
        pytest.param(
            [make_node("n1", unschedulable=True), guarded("other", "n2", 2, "3")],
            "last",
            id="labels that others have",
        ),
        pytest.param([RESIDENTS["second"]], "third", id="its place on the node"),
        pytest.param(
            [RESIDENTS["first"].on(""), make_node("n1", unschedulable=True), low("last", "n0", 3, "3")],
            "last",
            id="it is stored where one like it was",
        ),
        pytest.param(
            [make_node("n1", allocatable={"cpu": "3", "memory": "8Gi", "pods": "9"})],
            "other",
            id="the size of its node",
        ),
    ],
)
def test_a_pod_takes_the_same_but_something_else_changes(changes, victim):
    nodes = [make_node(name) for name in ("n0", "n1", "n2", "n3")]
    planner = plan([*nodes, *RESIDENTS.values(), object_of(GUARD)], default=True)
    assert [each.name for each in planner.decide(high("before")).victims] == ["third"]
    for item in changes:
        planner.cluster.apply(item)
    (found,) = planner.decide(high("after")).victims
    assert found.name == victim
    assert found is planner.cluster.pod(f"uid-{victim}")


@pytest.mark.parametrize("plugins", [(), (Unsigned,)], ids=["kept", "anew"])
def test_enough_nodes_that_were_promised_to_others(plugins):
    """They are tried in turn: the first protects its pod, the second is enough, the third is not tried."""
    nodes = [make_node(name) for name in ("n0", "n1", "n2")]
    pods = [guarded("a", "n0", 1, "3"), low("b", "n1", 1, "3", priority=5), low("c", "n2", 1, "3")]
    planner = planner_on(Cluster.of([*nodes, *pods, object_of(GUARD)]), 1, *plugins)
    (mine,) = planner.profiles.values()
    for node in nodes:
        mine.handle.nominations.put(make_pod(f"before-{node.name}", priority=9), node.name)
    for name in ("first", "second"):
        assert planner.decide(high(name)).nominated == "n1"


def test_a_victim_is_the_pod_as_it_is_now():
    planner = plan([make_node("n0"), low("only", "n0", 1, "3")], default=True)
    planner.decide(high("before"))
    planner.cluster.apply(low("only", "n0", 1, "3", metadata={"annotations": {"seen": "lately"}}))
    (found,) = planner.decide(high("after")).victims
    assert found.annotations == {"seen": "lately"}


def test_a_node_where_nobody_need_be_evicted_is_an_error():
    """It is asked about only if a plugin has refused the pod before it came to nodes."""
    objects = [make_node("roomy"), make_node("taken"), low("small", "roomy", 1, "1")]
    planner = plan(objects, Refusing, default=True)
    for name in ("first", "second"):
        decision = planner.decide(high(name, labels={"refused": ""}))
        assert decision.nominated is None
        assert 'preemption: expected at least one victim pod on node "roomy"' in decision.message


def test_only_nodes_that_changed_are_tried_again():
    asked = []

    class Counting(Plugin):
        reads = Reads.USAGE

        def sign_pod(self, pod):
            return None

        def filter_nodes(self, state, pod, nodes):
            asked.append(len(nodes))
            yield Reject(np.zeros(len(nodes), np.bool_), "never")

    nodes = [make_node(f"n{each:02}") for each in range(40)]
    planner = plan(
        [*nodes, *(low(f"p{each.name}", each.name, 1, "3") for each in nodes)], Counting, default=True
    )
    planner.carry_out(planner.decide(high("first")))
    assert max(asked) == 40
    asked.clear()
    planner.carry_out(planner.decide(high("second")))
    assert max(asked) == 1


class Stubborn(Plugin):
    """Rejects the node as long as it has pods, and counts the nodes that it was asked about."""

    asked = 0

    def filter(self, state, pod, node):
        self.asked += 1
        return Status.unschedulable("taken") if node.pods else None


@pytest.mark.parametrize(
    ("priorities", "tried", "chosen"),
    [
        pytest.param((5, 5, 5), 0, None, id="nobody is less important"),
        pytest.param((5, 1, 5), 2, "n1", id="only where somebody is"),
    ],
)
def test_nodes_without_pods_to_evict_are_not_tried(priorities, tried, chosen):
    objects = [make_node(f"n{number}") for number in range(3)]
    objects += [
        make_pod(f"p{number}", node=f"n{number}", priority=priority)
        for number, priority in enumerate(priorities)
    ]
    planner = plan(objects, Stubborn, "DefaultPreemption")
    decision = planner.decide(make_pod("urgent", priority=5))
    plugin = planner.profiles["default-scheduler"].plugins["Stubborn"]
    assert isinstance(plugin, Stubborn)
    assert plugin.asked == 3 + tried
    assert decision.nominated == chosen
    if chosen is None:
        reason = "0/3 nodes are available: 3 No preemption victims found for incoming pod."
        assert decision.post_filter.message == f"preemption: {reason}"


def test_pods_that_left_are_not_counted_as_victims():
    cluster_objects = [make_node("n"), make_pod("low", node="n", priority=1)]
    planner = plan(cluster_objects, Stubborn, "DefaultPreemption")
    planner.cluster.add_pod(make_pod("high", node="n", priority=9))
    assert planner.decide(make_pod("urgent", priority=5)).nominated is None
    planner.cluster.remove_pod(make_pod("high", node="n", priority=9))
    assert planner.decide(make_pod("urgent", priority=5)).nominated == "n"
    planner.cluster.remove_pod(make_pod("low", node="n", priority=1))
    assert planner.decide(make_pod("urgent", priority=5)).chosen == "n"
