"""The handle: counters that cannot break /metrics, and what waiting pods are allowed by."""

from __future__ import annotations

import re
import threading
import time

import pytest

from stowplan import Plugin, Status
from stowplan.cluster import Cluster
from stowplan.framework.handle import Handle
from stowplan.framework.observer import OverdueError
from stowplan.metrics import Metrics
from stowplan.scheduler.guard import Guard
from stowplan.testing import a_cluster

LINE = re.compile(r'(# (HELP|TYPE) .*|[a-zA-Z_:][\w:]*(\{[a-zA-Z_]\w*="([^"\\]|\\.)*"(,.*)?\})? \S+)')


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def handle(metrics: Metrics) -> Handle:
    return Handle(Cluster(), metrics=metrics.page)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        pytest.param("with space", (), id="a space"),
        pytest.param("", (), id="empty"),
        pytest.param("9lives", (), id="starts with a digit"),
        pytest.param("line\nbreak", (), id="a line break"),
        pytest.param(None, (), id="no text"),
        pytest.param("fine_total", ("with space",), id="a label with a space"),
        pytest.param("fine_total", ("__reserved",), id="a reserved label"),
        pytest.param("fine_total", ("a", "a"), id="a label twice"),
        pytest.param("fine_total", (7,), id="a label that is no text"),
        pytest.param("scheduler_pending_pods", (), id="a gauge of the scheduler"),
        pytest.param("scheduler_scheduling_attempt_duration_seconds", (), id="a histogram of the scheduler"),
    ],
)
def test_names_that_prometheus_does_not_accept(handle, metrics, name, labels):
    before = metrics.page.families.copy()
    with pytest.raises(ValueError, match=r"name|already"):
        handle.counter(name, "text", *labels)
    assert metrics.page.families == before


def test_a_counter_counts_and_never_breaks_the_page(handle, metrics):
    counter = handle.counter("my_total", "Two\nlines.", "reason")
    counter['bad luck \\ "quoted"\n',] += 2
    for wrong in ("text", (), ("a", "b"), (1,), None):
        with pytest.raises(ValueError, match="my_total: expected a tuple of text"):
            counter[wrong] += 1
    for wrong in ("1", None, float("nan"), True):
        with pytest.raises(ValueError, match="my_total: expected a number"):
            counter["a",] = wrong
    assert handle.counter("my_total", "Two lines.", "reason")['bad luck \\ "quoted"\n',] == 2
    with pytest.raises(ValueError, match=r"my_total is already a counter with the labels \(reason\)"):
        handle.counter("my_total", "text")
    page = metrics.render().decode()
    assert "# HELP my_total Two lines.\n" in page
    assert all(LINE.fullmatch(line) for line in page.splitlines())


def compute(guard: Guard, plugin: Plugin) -> None:
    with guard.calling("Filter", plugin):
        ends = time.monotonic() + 5
        while time.monotonic() < ends:
            pass


def test_a_name_that_fails_does_not_end_the_thread_that_guards_budgets():
    class Nameless(Plugin):
        budget = 0.1

        @property
        def name(self) -> str:
            raise SystemExit("no name")

    plugin = Nameless(None, None)  # type: ignore[arg-type]
    metrics = Metrics()
    with Guard(metrics) as guard:
        for _ in range(2):
            with pytest.raises(OverdueError):
                compute(guard, plugin)
        assert "plugin guard" in {thread.name for thread in threading.enumerate()}
    assert 'plugin="Nameless"' in metrics.render().decode()


class Holding(Plugin):
    def permit(self, state, pod, node_name):
        for waiting in self.handle.waiting_pods:
            waiting.allow(self.name)
        return Status.wait(60)


def test_a_waiting_pod_is_allowed_by_a_plugin_that_is_named_by_its_module(monkeypatch):
    name = f"{Holding.__module__}:Holding"
    cluster = a_cluster().plugin(name).node("a")
    first = cluster.place("one").is_held(name)
    cluster.place("two").is_held(name)
    first.lands_on("a")
