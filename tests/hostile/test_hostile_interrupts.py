"""A plugin is interrupted at any line of our code that it can reach: nothing breaks, and it still ends."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from plugin_world import World, loaded_from

import stowplan
from example_share import SHARE
from make import make_pod
from stowplan.metrics import Metrics
from stowplan.scheduler.guard import Guard

# Hypothesis times collections of garbage by a callback. An interrupt there is lost, and the next one counts.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. .function gc_cumulative_time")
PACKAGE = str(Path(stowplan.__file__).parent)
COMMUNITY = str(Path(PACKAGE) / "plugins" / "community")

SOURCE = """
import itertools
from collections import deque

from stowplan import Nomination, Plugin, Status
from stowplan.api.pod import HostPort
from stowplan.api.selectors import NodeTerm, Requirement


class Remembered:
    def clone(self):
        return Remembered()


class Hostile(Plugin):
    budget = 1000.0
    door = begin = end = None
    others = ()
    reached = []

    def pre_filter(self, state, pod, nodes):
        if pod.name == "cursed":
            self.go(state, pod, nodes)

    def post_filter(self, state, pod, decision):
        if pod.name == "cursed-late":
            self.go(state, pod, decision)
        return Status.unschedulable()

    def go(self, state, pod, nodes):
        type(self).begin()
        type(self).door(self, state, pod, nodes)
        type(self).end()
        self.reached.append(pod.name)


def use_up(things):
    deque(things, maxlen=0)


ZONE = Requirement("zone", "In", frozenset(("a",)))


def trial(self, state, pod, nodes):
    part = nodes.take([0, 2])
    part.add_pod(0, pod)
    part.copy().remove_pod(0, pod)
    part.requested["cpu"], part.label("zone"), part.pods_on(0), part.names, part.row_of("n0")


def waiting(self, state, pod, nodes):
    for each in self.handle.waiting_pods:
        each.allow("Hostile")
        each.reject("Hostile", "no")


def remember(self, state, pod, nodes):
    state.write(Remembered())
    state.read(Remembered), state.find(Remembered), state.clone()


DOORS = {
    "label": lambda self, state, pod, nodes: nodes.label("zone"),
    "label that nobody asked for before": lambda self, state, pod, nodes: nodes.label("only-1"),
    "label of a part": lambda self, state, pod, nodes: nodes.take([0, 1]).label("only-2").present,
    "columns": lambda self, state, pod, nodes: (
        nodes.allocatable["cpu"], nodes.requested["example.com/gpu"], nodes.requested["nothing"],
        nodes.nonzero_requested["cpu"], nodes.pod_count, nodes.unschedulable, nodes.names,
    ),
    "nodes": lambda self, state, pod, nodes: [
        (each.name, each.labels, each.requested, each.pods, each.taints, each.images, each.allocatable)
        for each in nodes
    ],
    "node": lambda self, state, pod, nodes: nodes.node(0).requested,
    "pods on a node": lambda self, state, pod, nodes: nodes.pods_on(0),
    "images": lambda self, state, pod, nodes: nodes.has_image("docker.io/library/web:latest"),
    "ports": lambda self, state, pod, nodes: nodes.ports_taken([HostPort("0.0.0.0", "TCP", 80)]),
    "taints": lambda self, state, pod, nodes: nodes.by_taints(len, int),
    "features": lambda self, state, pod, nodes: nodes.by_features(bool),
    "lookup": lambda self, state, pod, nodes: nodes.lookup({"n0": 1.0}),
    "matches": lambda self, state, pod, nodes: nodes.matches(ZONE),
    "terms": lambda self, state, pod, nodes: nodes.match_terms([NodeTerm((ZONE,), (Requirement(
        "metadata.name", "In", frozenset(("n0",))),))]),
    "keep": lambda self, state, pod, nodes: nodes.keep("mine", lambda part: (part.pod_count.copy(),)),
    "keep by usage": lambda self, state, pod, nodes: nodes.keep(
        "used", lambda part: (part.requested["cpu"].copy(),), usage=True),
    "trial": trial,
    "state": remember,
    "activate": lambda self, state, pod, nodes: self.handle.activate(self.others),
    "activate one": lambda self, state, pod, nodes: self.handle.activate(self.others[:1]),
    "activate the one that is being tried": lambda self, state, pod, nodes: self.handle.activate([pod]),
    "nominations": lambda self, state, pod, nodes: (
        self.handle.nominations.on("n3"), list(self.handle.nominations.before(pod))),
    "cluster": lambda self, state, pod, nodes: (
        list(self.handle.cluster.pods()), list(self.handle.cluster.pvs), self.handle.cluster.pvs.get("v"),
        self.handle.cluster.is_assumed(pod), self.handle.cluster.nodes.label("zone"),
        self.handle.cluster.nodes.requested["cpu"]),
    "counter": lambda self, state, pod, nodes: self.handle.counter("hits", "Hits.", "a"),
    "event": lambda self, state, pod, nodes: self.handle.record_event(pod, "Normal", "Reason", "note"),
    "waiting pods": waiting,
    "pod": lambda self, state, pod, nodes: (
        pod.key, pod.on("n1"), pod.labels, pod.requests, pod.priority, pod.condition("x"), pod.is_finished),
    "only ever our code": lambda self, state, pod, nodes: use_up(map(nodes.label, itertools.repeat("zone"))),
}
LATE = {
    "preempt": lambda self, state, pod, decision: self.handle.preempt(state, pod, decision, 100, 100),
    "decision": lambda self, state, pod, decision: (
        decision.rejected(), decision.codes(), decision.message, decision.rejectors, decision.as_golden()),
}
"""


class LineInterrupt:
    """Traces our code while the plugin runs, and has the signal arrive at one line of it."""

    def __init__(self, guard: Guard, done: set[tuple[str, int]]) -> None:
        self._guard, self._done = guard, done
        self.at: tuple[str, int] | None = None
        """The line that was interrupted; None if there was none that is not in `done`."""

    def begin(self) -> None:
        sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if self.at is not None:
            return None
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE) or file.startswith(COMMUNITY):
            return self._trace_calls
        if event != "line":
            return self._trace
        line = (file, frame.f_lineno)
        if line in self._done or self._guard.call is None:
            return self._trace
        self.at = line
        self._done.add(line)
        sys.settrace(None)
        self._guard.call.is_overdue = True
        arrive: Any = signal.getsignal(signal.SIGALRM)
        arrive(signal.SIGALRM, frame)
        return frame.f_trace if frame.f_trace != self._trace else None

    def _trace_calls(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._trace_calls


def doors(name: str) -> list[str]:
    found: dict[str, Any] = {}
    exec(SOURCE, found)
    return list(found[name])


@pytest.fixture(scope="module")
def plugins(tmp_path_factory):
    with loaded_from(tmp_path_factory.mktemp("plugins"), {"plugin_of_someone": SOURCE}) as modules:
        yield modules["plugin_of_someone"]


async def interrupt_everywhere(plugins: Any, door: Any, pod_name: str, at_once: int = 1) -> int:
    """Has the plugin go through the door again and again, and interrupts it at another line each time.

    A scheduler is interrupted `at_once` times before it is checked.
    """
    done: set[tuple[str, int]] = set()
    while True:
        with Guard(Metrics()) as guard:
            world = World(plugins.Hostile, guard)
            plugins.Hostile.door = staticmethod(door)
            plugins.Hostile.others = [*world.waiting.values()]
            plugins.Hostile.end = staticmethod(lambda: sys.settrace(None))
            for number in range(at_once):
                interrupt, plugins.Hostile.reached = LineInterrupt(guard, done), []
                plugins.Hostile.begin = interrupt.begin
                cursed = make_pod(pod_name, requests={"cpu": "100"}, metadata={"uid": f"cursed-{number}"})
                try:
                    world.schedule(cursed)
                finally:
                    sys.settrace(None)
                if interrupt.at is None:
                    break
                assert plugins.Hostile.reached == [], f"interrupted at {interrupt.at}: the plugin went on"
                assert guard.call is None
            world.check()
            if interrupt.at is None:
                return len(done)


AT_ONCE = 1 if SHARE >= 1 else 8
"""Interrupts of a scheduler before it is checked: in CI each of them is."""
ENDLESS = "only ever our code"
"""A door that never ends by itself: it has a test of its own."""


@pytest.mark.parametrize("door", [door for door in doors("DOORS") if door != ENDLESS])
async def test_our_code_runs_to_its_end_and_the_plugin_is_interrupted_then(plugins, door):
    # A pod that is active again is attempted before the next one.
    at_once = 1 if door == "activate the one that is being tried" else AT_ONCE
    assert await interrupt_everywhere(plugins, plugins.DOORS[door], "cursed", at_once)


@pytest.mark.parametrize("door", doors("LATE"))
async def test_so_does_what_a_post_filter_calls(plugins, door):
    assert await interrupt_everywhere(plugins, plugins.LATE[door], "cursed-late", AT_ONCE)


FOREVER = """
import time


def forever(*words):
    while True:
        pass


class Slow:
    def __lt__(self, other):
        forever()


def waiting(function):
    import functools

    @functools.wraps(function)
    def wait(*words):
        if any(getattr(word, "name", "") == "cursed" for word in words):
            time.sleep(1000)
        return function(*words)

    return wait
"""
PLACES = {
    "in a callback": "nodes.by_taints(forever)",
    "in a callback of a helper": "nodes.keep('x', lambda part: forever())",
    "in a library": "list(filter(lambda number: False, iter(int, 1)))",
    "in our code alone": "[nodes.label('zone') for _ in iter(int, 1)]",
    "in long calls of ours": "[nodes.take(list(range(5)) * 1000).requested['cpu'] for _ in iter(int, 1)]",
    "in calls from C": "max(map(nodes.label, iter(str, 1)), key=lambda column: 1)",
}


@pytest.mark.parametrize("folder", ["plugins", "site-packages"])
@pytest.mark.parametrize("place", PLACES)
async def test_it_is_interrupted_wherever_it_hangs_and_is_installed(tmp_path, folder, place):
    source = f"""
from stowplan import Plugin
from hanging_helper import forever, waiting

class Hanging(Plugin):
    budget = 0.1

    def pre_filter(self, state, pod, nodes):
        if pod.name == "cursed":
            {PLACES[place]}
"""
    await hangs_in_vain(tmp_path / folder, source)


@pytest.mark.parametrize("folder", ["plugins", "site-packages"])
async def test_it_is_interrupted_in_a_decorator_of_others(tmp_path, folder):
    source = """
from stowplan import Plugin
from hanging_helper import waiting

class Hanging(Plugin):
    budget = 0.1

    @waiting
    def pre_filter(self, state, pod, nodes):
        pass
"""
    await hangs_in_vain(tmp_path / folder, source)


async def hangs_in_vain(folder: Path, source: str) -> None:
    files = {"hanging_helper": FOREVER, "hanging_plugin": source}
    with loaded_from(folder, files) as modules, Guard(Metrics()) as guard:
        world = World(modules["hanging_plugin"].Hanging, guard)
        began = time.monotonic()
        world.schedule(make_pod("cursed"))
        assert time.monotonic() - began < 5
        assert not world.api.bound
        world.check()


async def test_a_pod_is_not_lost_while_its_sort_key_is_compared(tmp_path):
    """Whatever becomes of the comparison, which takes longer than the budget, each pod is in one place."""
    source = """
import time
from stowplan import Plugin

class Key:
    armed = False

    def __init__(self, name):
        self.name = name

    def __lt__(self, other):
        ends = time.monotonic() + (0.5 if Key.armed else 0)
        while time.monotonic() < ends:
            pass
        return self.name < other.name

class Sorting(Plugin):
    budget = 0.1
    others = ()

    def queue_sort(self, queued):
        return Key(queued.pod.name)

    def pre_filter(self, state, pod, nodes):
        if pod.name == "cursed":
            Key.armed = True
            try:
                self.handle.activate(self.others)
            finally:
                Key.armed = False
"""
    with loaded_from(tmp_path, {"sorting_plugin": source}) as modules, Guard(Metrics()) as guard:
        plugin = modules["sorting_plugin"].Sorting
        world = World(plugin, guard, sort="Sorting")
        plugin.others = [*world.waiting.values()]
        world.schedule(make_pod("cursed", requests={"cpu": "100"}))
        world.check()


async def test_a_plugin_that_never_leaves_our_code_is_interrupted_by_the_clock(plugins, monkeypatch):
    monkeypatch.setattr(plugins.Hostile, "budget", 0.1)
    with Guard(Metrics()) as guard:
        world = World(plugins.Hostile, guard)
        plugins.Hostile.door, plugins.Hostile.reached = staticmethod(plugins.DOORS["only ever our code"]), []
        plugins.Hostile.begin = plugins.Hostile.end = staticmethod(lambda: None)
        began = time.monotonic()
        world.schedule(make_pod("cursed"))
        assert time.monotonic() - began < 5
        assert plugins.Hostile.reached == []
        world.check()
