"""Whatever a cluster went through, it decides like one that is built from scratch as it is now."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
from comparing import comparable
from drawing import pods as drawn
from drawing.clusters import mixed_scenes, scenes
from histories import History, histories
from hypothesis import assume, given
from hypothesis import strategies as st

from example_share import examples
from make import planner
from stowplan.api.pod import Pod

RESOURCES = frozenset({"resources"})


@given(history=histories())
@examples(120)
def test_after_any_history_decisions_are_those_of_a_new_cluster(history):
    history.run()
    assert_like_new(history)


@given(history=histories(RESOURCES | {"priority"}))
@examples(60)
def test_resources_that_nominated_pods_and_preemption_bring_up_first(history):
    """A resource may be first asked for by a pod that is only tried out, and by one that is placed later."""
    history.run()
    assert_like_new(history)


@given(
    scene=scenes(RESOURCES, RESOURCES, most_pods=6),
    kind=drawn.pod_kinds(RESOURCES),
    first=st.integers(0, 60),
    count=st.integers(10, 30),
)
@examples(25)
def test_many_nodes_that_change_at_once(scene, kind, first, count):
    """More than are worked out again one by one, of more than are worked out all over."""
    history = History(scene._replace(objects=_times_many(scene.objects)), {}, [])
    for which in (0, 1):
        history.take(("decide", which))
    names = list(history.nodes)
    for number, name in enumerate(names[first : first + count]):
        history.take(("pod", f"q{number}", name, kind, False))
    assert_like_new(history)


def _times_many(objects: list[Any]) -> list[Any]:
    """The same nodes over and over, each time by another name, until there are a hundred."""
    nodes = [item for item in objects if item["kind"] == "Node"]
    copies = [
        node | {"metadata": node["metadata"] | {"name": f"copy{number:03}"}}
        for number, node in zip(range(100 - len(nodes)), nodes * 100, strict=False)
    ]
    return [*objects, *copies]


def assert_like_new(history: History) -> None:
    new = history.from_scratch()
    for pod in history.pending:
        warm, cold = history.planner.decide(pod), new.decide(pod)
        assert comparable(warm.as_golden()) == comparable(cold.as_golden())


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
    for number, tally in enumerate(table.tallies):
        found[f"tally {number}"] = tally.by_row.copy()
    for row in range(len(table)):
        found[f"ports {row}"] = sorted(map(str, table.ports.on(row)))
    return found
