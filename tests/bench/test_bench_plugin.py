"""`stowplan bench plugin`, on clusters small enough to say whether it works, not how fast."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from stowplan import Plugin, PluginArgs, Reject, Status
from stowplan.bench.plugin_cost import cost_of
from stowplan.cli.bench import bench
from stowplan.errors import InputError

PLUGIN = """\
import time

from stowplan import Plugin, PluginArgs

class BenchedArgs(PluginArgs):
    points: int = 3

class Benched(Plugin):
    args: BenchedArgs

    def score(self, state, pod, node):
        time.sleep(0.001)  # far more than decisions differ by chance
        return self.args.points
"""


class SpreadArgs(PluginArgs):
    step: int


class Everywhere(Plugin):
    """Takes part in all that can be measured, and does nothing."""

    args: SpreadArgs

    def pre_enqueue(self, pod): ...

    def queue_sort(self, queued):
        return queued.timestamp

    def pre_filter(self, state, pod, nodes): ...

    def filter_nodes(self, state, pod, nodes):
        yield Reject(np.zeros(len(nodes), np.bool_), "never")

    def post_filter(self, state, pod, decision):
        return Status.unschedulable()

    def pre_score(self, state, pod, nodes): ...

    def score_nodes(self, state, pod, nodes):
        return np.zeros(len(nodes), np.int64)

    def normalize_score(self, state, pod, scores):
        return scores

    def reserve(self, state, pod, node_name): ...

    def permit(self, state, pod, node_name): ...

    def unreserve(self, state, pod, node_name): ...


class Nowhere(Plugin):
    def filter(self, state, pod, node):
        return Status.unschedulable("no")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "benched_plugin.py"
    path.write_text(PLUGIN)
    return path


def run(*arguments):
    return CliRunner().invoke(bench, ["plugin", *map(str, arguments)], catch_exceptions=False)


def test_every_method_of_a_decision_is_measured_with_its_calls():
    found = cost_of(Everywhere, args={"step": 1}, nodes=30, decisions=10)
    calls = {each.method: each.calls for each in found.methods}
    in_cycle = ("pre_filter", "filter_nodes", "pre_score", "score_nodes", "normalize_score")
    assert calls == dict.fromkeys(("pre_enqueue", *in_cycle, "reserve", "permit", "unreserve"), 1)
    assert (found.plugin, found.nodes, found.decisions) == ("Everywhere", 30, 10)
    assert found.added == round(found.with_it - found.without_it, 1)


def test_a_method_that_is_asked_for_each_node_counts_as_often(file):
    result = run(file, "--nodes", 20, "--count", 5, "--args", "{points: 7}", "-o", "json")
    found = json.loads(result.stdout)
    assert [(each["method"], each["calls"]) for each in found["methods"]] == [("score", 20)]
    assert set(found) == {"plugin", "nodes", "decisions", "withoutIt", "withIt", "methods", "added"}
    assert 0 < found["withoutIt"] < found["withIt"]


@pytest.mark.parametrize("name", ["NodeAffinity", "stowplan.plugins.default.node_affinity:NodeAffinity"])
def test_a_default_plugin_is_measured_against_a_profile_without_it(name):
    head, columns, *rows = run(name, "--nodes", 10, "--count", 5).stdout.splitlines()
    assert head == "NodeAffinity on 10 nodes, p50 of 5 decisions"
    assert columns.split() == ["method", "calls", "µs"]
    assert [" ".join(row.split()[:-1]) for row in rows[-3:]] == [
        "decision without it",
        "decision with it",
        "added",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--args", "["], "--args: is neither JSON nor YAML", id="no YAML"),
        pytest.param(["--args", "7"], "--args: expected an object, got 7", id="no object"),
        pytest.param(["--args", "{pints: 1}"], r"unknown field .*Benched takes points", id="wrong arguments"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(file, arguments, words):
    with pytest.raises(InputError, match=words):
        run(file, "--nodes", 10, *arguments)


def test_of_a_file_with_several_plugins_one_must_be_named(file):
    file.write_text(PLUGIN + "\nclass Other(Benched):\n    pass\n")
    with pytest.raises(InputError, match=r"benched_plugin.py:Benched, .*benched_plugin.py:Other"):
        run(file, "--nodes", 10)
    assert run(f"{file}:Other", "--nodes", 10, "--count", 2).stdout.startswith("Other on 10 nodes")


def test_a_file_with_a_fault_is_refused_with_its_line(file):
    file.write_text("class Benched(\n")
    with pytest.raises(InputError, match=r"benched_plugin.py:1: SyntaxError"):
        run(file)


def test_a_plugin_that_refuses_every_node_leaves_nothing_to_measure():
    with pytest.raises(InputError, match=r"the pod fits on no node: 0/10 nodes are available: 10 no\."):
        cost_of(Nowhere, nodes=10, decisions=2)
