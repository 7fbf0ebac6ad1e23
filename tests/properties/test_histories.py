"""Whatever a cluster went through, it decides like one that is built from scratch as it is now."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
from comparing import comparable, examples
from drawing import nodes, pods
from drawing.clusters import mixed_scenes, scenes
from drawing.profiles import configuration, profiles
from drawing.words import Json
from hypothesis import assume, given
from hypothesis import strategies as st

from make import planner
from stowplan.api.kinds import object_of
from stowplan.api.pod import Pod

NAMES = tuple(f"n{index:02}" for index in range(12))
POD_NAMES = tuple(f"q{index}" for index in range(10))


def steps(parts: frozenset[str], node_parts: frozenset[str]) -> st.SearchStrategy[list[Any]]:
    """Things that happen: nodes and pods come, change and go, pods are placed for good or for a while."""
    node, pod = st.sampled_from(NAMES), st.sampled_from(POD_NAMES)
    kind = pods.pod_kinds(parts)
    return st.lists(
        st.one_of(
            st.tuples(st.just("node"), node, nodes.node_kinds(node_parts)),
            st.tuples(st.just("node gone"), node),
            st.tuples(st.just("pod"), pod, node, kind, st.booleans()),
            st.tuples(st.just("pod"), pod, node, kind, st.booleans()),
            st.tuples(st.just("pod gone"), pod),
            st.tuples(st.just("leaving"), pod),
            st.tuples(st.just("resized"), pod, st.sampled_from(("100m", "3"))),
            st.tuples(st.just("assume"), pod, node, kind),
            st.tuples(st.just("forget"), pod),
            st.tuples(st.just("confirm"), pod),
            st.tuples(st.just("decide"), st.integers(0, 1)),
            st.tuples(st.just("decide"), st.integers(0, 1)),
        ),
        max_size=40,
    )


class History:
    """A cluster that things happen to, and beside it plain objects to which the same happens."""

    def __init__(self, objects: list[Json], pending: list[Json], config: Json) -> None:
        self.config = config
        self.planner = planner(objects, config)
        self.cluster = self.planner.cluster
        self.pending = [Pod.decode(each) for each in pending]
        self.nodes = {item["metadata"]["name"]: item for item in objects if item["kind"] == "Node"}
        self.pods = {item["metadata"]["uid"]: item for item in objects if item["kind"] == "Pod"}
        self.assumed: set[str] = set()
        self.others = [item for item in objects if item["kind"] not in ("Node", "Pod")]

    def take(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("node", name, kind):
                self.nodes[name] = nodes.node(name, kind)
                self.cluster.apply(object_of(self.nodes[name]))
            case ("node gone", name) if name in self.nodes:
                self.cluster.remove(object_of(self.nodes.pop(name)))
            case ("pod", name, node_name, kind, leaving):
                self.put(pods.pod(name, kind, node=node_name, leaving=leaving))
            case ("pod gone", name) if f"uid-{name}" in self.pods:
                self.cluster.remove(Pod.decode(self.pods.pop(f"uid-{name}")))
                self.assumed.discard(f"uid-{name}")
            case ("leaving", name) if (plain := self.confirmed(name)) is not None:
                self.put(
                    plain | {"metadata": plain["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
                )
            case ("resized", name, amount) if (plain := self.confirmed(name)) is not None:
                given = {"name": "c0", "resources": {"requests": {"cpu": amount}}}
                self.put(plain | {"status": plain["status"] | {"containerStatuses": [given]}})
            case ("assume", name, node_name, kind) if f"uid-{name}" not in self.pods:
                plain = pods.pod(name, kind)
                if self.takes_no_shared_port(plain, node_name):
                    self.cluster.assume_pod(Pod.decode(plain), node_name)
                    self.pods[f"uid-{name}"] = pods.pod(name, kind, node=node_name)
                    self.assumed.add(f"uid-{name}")
            case ("forget", name) if f"uid-{name}" in self.assumed:
                self.cluster.forget_pod(Pod.decode(self.pods.pop(f"uid-{name}")))
                self.assumed.discard(f"uid-{name}")
            case ("confirm", name) if f"uid-{name}" in self.assumed:
                self.cluster.add_pod(Pod.decode(self.pods[f"uid-{name}"]))
                self.assumed.discard(f"uid-{name}")
            case ("decide", which):
                self.planner.decide(self.pending[which])

    def confirmed(self, name: str) -> Json | None:
        uid = f"uid-{name}"
        return None if uid in self.assumed else self.pods.get(uid)

    def put(self, plain: Json) -> None:
        """A pod that is new, or known and now another; moving an assumed one confirms it elsewhere."""
        if self.takes_no_shared_port(plain, plain["spec"]["nodeName"]):
            self.cluster.apply(Pod.decode(plain))
            self.pods[plain["metadata"]["uid"]] = plain
            self.assumed.discard(plain["metadata"]["uid"])

    def takes_no_shared_port(self, plain: Json, node_name: str) -> bool:
        """Of two pods with one port the first to leave frees it: a matter of history, so not here."""
        mine = set(Pod.decode(plain).shape.ports)
        return not any(
            mine & set(Pod.decode(other).shape.ports)
            for uid, other in self.pods.items()
            if other["spec"]["nodeName"] == node_name and uid != plain["metadata"]["uid"]
        )

    def from_scratch(self) -> Any:
        """A planner over the same objects; pods arrive in the order in which their nodes list them."""
        listed = [pod.uid for node in self.cluster.nodes for pod in node.pods]
        assert sorted(listed) == sorted(
            uid for uid, plain in self.pods.items() if plain["spec"]["nodeName"] in self.nodes
        )
        homeless = [uid for uid in self.pods if uid not in set(listed)]
        in_order = [self.pods[uid] for uid in (*listed, *homeless)]
        return planner([*self.nodes.values(), *in_order, *self.others], self.config)


@given(data=st.data())
@examples(120)
def test_after_any_history_decisions_are_those_of_a_new_cluster(data):
    parts = frozenset(data.draw(st.sets(st.sampled_from(sorted(pods.ALL)), min_size=1, max_size=5)))
    node_parts = frozenset(data.draw(st.sets(st.sampled_from(sorted(nodes.ALL)))))
    scene = data.draw(scenes(parts, node_parts, most_nodes=12, most_pods=8), label="scene")
    objects = [item for item in scene.objects if item["kind"] != "Pod" or _is_portless(item)]
    profile = data.draw(profiles(), label="profile")
    history = History(objects, scene.pending, configuration(profile))
    for step in data.draw(steps(parts, node_parts), label="steps"):
        history.take(step)
    new = history.from_scratch()
    for pod in history.pending:
        warm, cold = history.planner.decide(pod), new.decide(pod)
        assert comparable(warm.as_golden()) == comparable(cold.as_golden())


def _is_portless(plain: Json) -> bool:
    return not Pod.decode(plain).shape.ports


@given(scene=mixed_scenes(most_nodes=6), choice=st.integers(0, 5))
@examples(60)
def test_assume_then_forget_changes_nothing(scene, choice):
    asked = planner(scene.objects)
    pods = [Pod.decode(plain) for plain in scene.pending]
    for pod in pods:
        asked.decide(pod)
    before, answers = columns(asked.cluster), [asked.decide(pod).as_golden() for pod in pods]
    row = choice % len(asked.cluster.nodes)
    assume(
        not set(pods[0].shape.ports) & set(asked.cluster.nodes.ports.on(row))
    )  # it would free a shared port
    node_name = asked.cluster.nodes.names[row]
    asked.cluster.forget_pod(asked.cluster.assume_pod(pods[0], node_name))
    after = columns(asked.cluster)
    assert [pod.uid for pod in after.pop("pods")] == [pod.uid for pod in before.pop("pods")]
    for name in before | after:
        zeros = np.zeros(len(asked.cluster.nodes), np.int64)
        assert np.array_equal(before.get(name, zeros), after.get(name, zeros)), name
    assert [asked.decide(pod).as_golden() for pod in pods] == answers


@given(scene=mixed_scenes(most_nodes=6))
@examples(20)
def test_a_cluster_that_nobody_holds_is_freed(scene):
    """Pods share what they have in common across clusters; that must not keep a cluster alive."""
    survivors = [Pod.decode(plain) for plain in (*scene.pending, *scene.objects) if plain["kind"] == "Pod"]
    asked = planner(scene.objects)
    for pod in survivors[:2]:
        asked.decide(pod)
    table = weakref.ref(asked.cluster.nodes)
    del asked
    gc.collect()
    assert table() is None


def columns(cluster: Any) -> dict[str, Any]:
    """Every column there is, copied."""
    table = cluster.nodes
    found: dict[str, Any] = {"pods": list(table.pods.pods), "pod count": table.pod_count.copy()}
    for group in ("allocatable", "requested", "nonzero_requested"):
        amounts = getattr(table, group)
        found |= {f"{group} {name}": amounts[name].copy() for name in amounts}
    for number, tally in enumerate(table.tallies._all()):
        found[f"tally {number}"] = tally.by_row.copy()
    for row in range(len(table)):
        found[f"ports {row}"] = sorted(map(str, table.ports.on(row)))
    return found
