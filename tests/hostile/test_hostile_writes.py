"""A plugin tries to write to all that it is given, at every extension point: nothing changes for anyone."""

from __future__ import annotations

import logging
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from plugin_world import WAITING, Rack, World, in_zones

from make import make_node, make_pod
from stowplan import Plugin, Reads, Reject, Status
from stowplan.cluster.node_table import NodeTable
from stowplan.plugins.default.node_resources_fit import NodeResourcesFit

LEAVES = (str, bytes, int, float, bool, type(None), type, types.ModuleType, np.generic, np.dtype)
# A plugin's logger is its own, and Python's: broken, it would break pytest's in every test that follows.
LEAVES += (logging.Logger,)
MAX_ALIKE = 12
BY_DESIGN = {
    "handle": {"api", "counter", "record_event", "activate", "preempt", "now"},
    "waiting": {"allow", "reject"},
    "nodes": {"add_pod", "remove_pod", "take", "keep"},  # on a copy of its own, and under a key of its own
    "state": {"write"},
}
"""Calls that are meant to have an effect; all others are called with whatever fits."""
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "label": ("zone",),
    "node": (0,),
    "pods_on": (0,),
    "row": (0,),
    "status": (0,),
    "status_of": ("n0",),
    "row_of": ("n0",),
    "has_image": ("docker.io/library/web:latest",),
    "on": ("n3",),
    "watched": (Rack,),
    "get": ("v",),
    "pod": ("uid-web-1",),
    "take": ([0, 1],),
    "lookup": ({},),
    "by_taints": (len,),
    "by_features": (bool,),
    "at": (np.array([0, 1]),),
    "view": (2,),
    "line": ("made-up",),
    "grow": (10, 10),
    "put": (0, "made up"),
    "condition": ("x",),
}


class Vandal:
    """Walks over all public attributes of what it is given, and tries to change each."""

    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}
        self.places: Counter[tuple[type, ...]] = Counter()
        self.tried = 0

    def visit(self, thing: Any, *path: type) -> None:
        if isinstance(thing, (*LEAVES, Plugin)) or id(thing) in self.seen:
            return
        self.seen[id(thing)] = thing  # kept, so that its id is not used again
        path = (*path, type(thing))
        self.places[path[-3:]] += 1
        if self.places[path[-3:]] > MAX_ALIKE or len(path) > 12:
            return  # many are made anew each time that they are asked for
        for part in [*self.parts(thing)]:
            self.visit(part, *path)
        self.vandalise(thing)

    def parts(self, thing: Any) -> Iterator[Any]:
        if isinstance(thing, np.ndarray):
            yield thing.base
            yield thing.view()
            yield thing.data.obj
            return
        if isinstance(thing, memoryview):
            yield thing.obj
            return
        if isinstance(thing, Mapping):
            yield from attempt(lambda: [*thing.values()], [])
        elif isinstance(thing, (list, tuple, set, frozenset)):
            yield from thing
        elif isinstance(thing, (types.GeneratorType, type({}.values()))):
            yield from [*thing][:20]
            return
        elif hasattr(type(thing), "__iter__"):
            yield from attempt(lambda: [*thing][:20], [])
        if hasattr(type(thing), "__getitem__"):
            for key in ("cpu", "example.com/gpu", 0):
                yield attempt(lambda key=key: thing[key])
        if type(thing).__module__.startswith(("stowplan.", "plugin_world")):
            for name in dir(thing):
                if not name.startswith("_"):
                    yield from self.attribute(thing, name)

    def attribute(self, thing: Any, name: str) -> Iterator[Any]:
        found = attempt(lambda: getattr(thing, name))
        if isinstance(found, types.MethodType):
            if not any(name in names for names in BY_DESIGN.values()):
                yield attempt(lambda: found(*ARGUMENTS.get(name, ())))
            if name == "take":
                yield attempt(lambda: found([0, 1]))
        elif not isinstance(found, (types.FunctionType, types.BuiltinMethodType)):
            yield found

    def vandalise(self, thing: Any) -> None:
        self.tried += 1
        if isinstance(thing, np.ndarray):
            attempt(lambda: setattr(thing.flags, "writeable", True))
            attempt(lambda: thing.setflags(write=True))
            attempt(lambda: thing.fill(7))
            attempt(lambda: thing.sort())
            attempt(lambda: thing.__setitem__(slice(None), 1))
            attempt(lambda: np.add(thing, 1, out=thing))
            attempt(lambda: np.copyto(thing, 1))
            attempt(lambda: setattr(thing, "shape", (1, thing.size)))
            attempt(lambda: setattr(thing, "dtype", np.int8))
            return
        for name in [each for each in dir(thing) if not each.startswith("_")]:
            attempt(lambda name=name: setattr(thing, name, None))
            attempt(lambda name=name: delattr(thing, name))
        for act in (
            lambda: thing.sort(),
            lambda: thing.reverse(),
            lambda: thing.append(thing[0]),
            lambda: thing.extend(thing),
            lambda: thing.insert(0, thing[0]),
            lambda: thing.__setitem__(0, thing[-1]),
            lambda: thing.__iadd__([1]),
            lambda: thing.__imul__(2),
            lambda: thing.add("NodeResourcesFit"),
            lambda: thing.update(["NodeResourcesFit"]),
            lambda: thing.discard(next(iter(thing))),
            lambda: thing.__setitem__("cpu", 10**6),
            lambda: thing.__setitem__("zone", "b"),
            lambda: thing.__setitem__("app", "db"),
            lambda: thing.update(cpu=0, zone="b", app="web"),
            lambda: thing.__ior__({"zone": "b"}),
            lambda: thing.setdefault("zone", "b"),
            lambda: thing.pop(next(iter(thing))),
            lambda: thing.popitem(),
            lambda: thing.pop(),
            lambda: thing.clear(),
        ):
            attempt(act)


def attempt(act: Any, otherwise: Any = None) -> Any:
    try:
        return act()
    except Exception:
        return otherwise


class Writing(Plugin):
    """Hands all that it gets to a vandal."""

    vandal: ClassVar[Vandal]

    def vandalise(self, *words: Any) -> None:
        for word in (*words, self.handle):
            self.vandal.visit(word)

    def pre_enqueue(self, pod: Any) -> None:
        self.vandalise(pod)

    def queue_sort(self, queued: Any) -> Any:
        key = (-queued.pod.priority, queued.timestamp)
        self.vandalise(queued)
        return key

    def pre_filter(self, state: Any, pod: Any, nodes: Any) -> None:
        self.vandalise(state, pod, nodes)

    def add_pod(self, state: Any, pod: Any, other: Any, node: Any) -> None:
        self.vandalise(state, pod, other, node)

    remove_pod = add_pod

    def post_filter(self, state: Any, pod: Any, decision: Any) -> Status:
        decision.chosen = decision.nominated = "n3"
        self.vandalise(state, pod, decision)
        return Status.unschedulable()

    def pre_score(self, state: Any, pod: Any, nodes: Any) -> None:
        self.vandalise(state, pod, nodes)

    def reserve(self, state: Any, pod: Any, node_name: str) -> None:
        self.vandalise(state, pod)

    unreserve = permit = reserve

    def queueing_hint(self, pod: Any, event: Any, old: Any, new: Any) -> Any:
        self.vandalise(pod, event, old, new)
        return 1

    def events_to_register(self) -> Any:
        from stowplan import Action, ClusterEvent, Resource

        return [ClusterEvent(Resource.NODE, Action.ALL), ClusterEvent(Resource.POD, Action.ALL)]


class OneByOne(Writing):
    def filter(self, state: Any, pod: Any, node: Any) -> None:
        self.vandalise(state, pod, node)

    def score(self, state: Any, pod: Any, node: Any) -> int:
        self.vandalise(state, pod, node)
        return 0


class AllAtOnce(Writing):
    def filter_nodes(self, state: Any, pod: Any, nodes: Any) -> Iterator[Reject]:
        self.vandalise(state, pod, nodes)
        yield Reject(np.zeros(len(nodes), np.bool_), "never")

    def score_nodes(self, state: Any, pod: Any, nodes: Any) -> Any:
        self.vandalise(state, pod, nodes)
        return np.zeros(len(nodes), np.int64)

    def normalize_score(self, state: Any, pod: Any, scores: Any) -> Any:
        zeros = np.zeros(len(scores), np.int64)
        self.vandalise(scores)
        return zeros


class Kept(Writing):
    """Looks at columns, or at one row in plain numbers, and is asked again only for what changed."""

    reads = Reads.USAGE
    takes_rows = True

    def sign_pod(self, pod: Any) -> str:
        return pod.name

    def filter_nodes(self, state: Any, pod: Any, nodes: Any) -> Iterator[Reject]:
        self.vandalise(state, pod, nodes)
        yield Reject(nodes.allocatable["cpu"] < 0, "never")

    def score_nodes(self, state: Any, pod: Any, nodes: Any) -> Any:
        self.vandalise(nodes)
        return nodes.allocatable["cpu"] * 0


@pytest.mark.parametrize("plugin", [OneByOne, AllAtOnce, Kept])
async def test_nothing_that_a_plugin_is_given_can_be_written_to(plugin):
    plugin.vandal = Vandal()
    world = World(plugin, sort=plugin.__name__)
    world.schedule(make_pod("fits", **in_zones("c"), tolerations=["gpu"]))
    world.schedule(make_pod("does-not", requests={"cpu": "100"}, priority=5))
    world.schedule(make_pod("preempts", requests={"cpu": "8"}, priority=9, **in_zones("b")))
    assert world.plugin.vandal.tried > 100
    (placed,) = [pod for pod in world.cluster.pods() if world.cluster.is_assumed(pod)]
    assert (placed.name, placed.node_name) == ("fits", "n4")
    world.cluster.forget_pod(placed)
    for queued in [*world.queue]:
        if queued.pod.name not in WAITING:
            world.queue.delete(queued.pod)
    world.check()


def writable_arrays(thing: Any) -> list[Any]:
    """What of the arrays reached through attributes can be written to, or made so."""
    found = []
    while thing is not None:
        if isinstance(thing, np.ndarray):
            attempt(lambda array=thing: setattr(array.flags, "writeable", True))
            if thing.flags.writeable:
                found.append(thing)
            thing = thing.base
        else:
            thing = getattr(thing, "obj", None)
    return found


class Columns(Plugin):
    seen: ClassVar[dict[str, Any]] = {}

    def pre_filter(self, state: Any, pod: Any, nodes: NodeTable) -> None:
        part = next(iter(nodes.take([0, 1]))), nodes.take([0, 1])
        for prefix, table in (("", nodes), ("part ", part[1]), ("live ", part[1].live)):
            type(self).seen |= {
                f"{prefix}allocatable": table.allocatable["cpu"],
                f"{prefix}requested": table.requested["memory"],
                f"{prefix}all amounts": table.requested.amounts,
                f"{prefix}nonzero": table.nonzero_requested["cpu"],
                f"{prefix}pods": table.pod_count,
                f"{prefix}unschedulable": table.unschedulable,
                f"{prefix}rows": table.rows,
                f"{prefix}labels": table.label("zone").ids,
            }


async def test_no_column_has_a_base_that_can_be_written_to():
    World(Columns)
    assert len(Columns.seen) == 24
    for name, column in Columns.seen.items():
        assert writable_arrays(column) == [], name
        with pytest.raises(ValueError, match="read-only"):
            column[...] = 0


async def test_columns_follow_the_cluster():
    """They are views of the live columns, not copies of how these were once."""
    world = World(Columns)
    nodes = world.plugin.handle.cluster.nodes
    before, names, zones = nodes.requested["cpu"], nodes.names, nodes.label("zone")
    world.cluster.apply(make_pod("another", node="n0", requests={"cpu": "1"}))
    assert before[0] == 2000
    world.cluster.apply(make_node("n9", labels={"zone": "z"}))
    assert names == ["n0", "n1", "n2", "n3", "n4"]
    assert nodes.names == [*names, "n9"]
    assert "z" in zones.values
    assert nodes.label("zone").values[nodes.label("zone").ids[5]] == "z"
    world.cluster.remove_node("n0")
    assert sorted(nodes.names) == ["n1", "n2", "n3", "n4", "n9"]
    assert len(nodes.requested["cpu"]) == 5


class Trying(Plugin):
    found: ClassVar[list[Any]] = []

    def pre_filter(self, state: Any, pod: Any, nodes: NodeTable) -> None:
        if pod.name == "tries":
            part = nodes.take([1, 2])
            before = part.requested["cpu"].tolist(), part.requested["example.com/spare"].tolist()
            part.add_pod(0, pod)
            twin = part.copy()
            part.remove_pod(0, pod)
            after = [table.requested["example.com/spare"].tolist() for table in (part, twin, nodes)]
            type(self).found = [before, after, twin.requested["cpu"].tolist(), twin.pod_count.tolist()]


async def test_a_copy_that_a_plugin_takes_can_be_tried_on():
    world = World(Trying)
    world.decide(make_pod("tries", requests={"cpu": "3", "example.com/spare": "4"}))
    nothing = [0, 0, 0, 0, 0]
    assert Trying.found == [([0, 2000], [0, 0]), [[0, 0], [4, 0], nothing], [3000, 2000], [2, 2]]
    world.check()


class Meddling(Plugin):
    """Tries what is neither an attribute nor a container."""

    ways: ClassVar[dict[str, Any]] = {}

    def pre_filter(self, state: Any, pod: Any, nodes: Any) -> None:
        from stowplan.plugins.default.node_resources_fit import Demand

        cluster: Any = self.handle.cluster
        activate: Any = self.handle.activate
        acts = {
            "skip": lambda: state.skipped_filters.add("NodeResourcesFit"),
            "state of others": lambda: state.read(Demand),
            "overwritten state": lambda: state.write(Demand((), ())),
            "remove a node": lambda: cluster.remove_node("n0"),
            "remove from the table": lambda: cluster.nodes.remove_node("n0"),
            "store": lambda: cluster.pvs.put("x"),
            "nominate": lambda: self.handle.nominations.put(pod, "n0"),
            "end a nomination": lambda: self.handle.nominations.remove(pod),
            "another cluster": lambda: setattr(self.handle, "cluster", None),
            "memo": lambda: pod.shape.memo.clear(),
            "memo of labels": lambda: list(pod.label_set.memo),
            "labels": lambda: pod.labels.update(zone="a"),
            "container": lambda: pod.spec.containers[0].resources.requests.clear(),
            "selector": lambda: pod.spec.node_selector.clear(),
            "queue of another": lambda: activate.__self__.queue,
        }
        for name, act in acts.items():
            try:
                act()
            except Exception as error:
                type(self).ways[name] = error
            else:
                type(self).ways[name] = None


async def test_each_way_to_meddle_says_why_it_fails():
    World(Meddling)
    assert [name for name, error in Meddling.ways.items() if error is None] == []


async def test_a_plugin_derived_from_one_of_ours_works_on_the_same_tables():
    class StricterFit(NodeResourcesFit):
        pass

    from plugin_world import PROBES

    world = World(StricterFit)
    assert world.decide(PROBES[0])["chosen"]


def test_values_are_what_they_were_for_those_who_only_read():
    """They encode, compare and copy as plain ones do."""
    pod = make_pod(labels={"app": "web"}, requests={"cpu": "1"})
    assert pod.labels == {"app": "web"}
    assert {**pod.labels, "a": "b"} == {"app": "web", "a": "b"}
    changed = dict(pod.labels)
    changed["app"] = "db"
    assert pod.labels["app"] == "web"
    assert msgspec.json.encode(pod.labels) == b'{"app":"web"}'
    again = msgspec.structs.replace(pod.spec, priority=3)
    assert make_pod(requests={"cpu": "1"}, priority=3).spec == again
