"""Searching weights and arguments: the same search wherever it runs, a study that goes on, the evidence."""

from __future__ import annotations

import json
import resource
from itertools import pairwise

import pytest
import yaml
from click.testing import CliRunner
from small_trace import add, node, pod, trace_of

from stowplan.cli import stowplan
from stowplan.errors import InputError
from stowplan.framework.registry import Registry
from stowplan.replay import write_trace
from stowplan.replay.executors import Processes
from stowplan.replay.tune import Objective, Parameter, Space, Tuner, report_json


def packing_trace(rounds=6):
    """Small pods that fill the cluster badly if they are spread, and large ones that need a whole node."""
    events = [add(0, node(f"node-{number}")) for number in range(4)]
    for number in range(rounds):
        start = 10.0 + 100 * number
        events += [
            add(start + each, pod(f"small-{number}-{each}", "1"), run_seconds=80.0) for each in range(4)
        ]
        events += [
            add(start + 10 + each, pod(f"large-{number}-{each}", "4"), run_seconds=40.0) for each in range(3)
        ]
    return trace_of(*events)


@pytest.fixture
def folder(tmp_path):
    write_trace(tmp_path / "trace.jsonl", packing_trace().events)
    return tmp_path


def tune(folder, *words, trials=9, exit_code=0):
    """With batches of four, the third of them not full."""
    fixed = ("--batch", "4", "--trials", trials, "--output-dir", folder / "tuned", "--jobs", "1")
    found = CliRunner().invoke(
        stowplan, ["tune", *map(str, (folder / "trace.jsonl", *fixed, *words))], catch_exceptions=True
    )
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == exit_code, found.output
    return found


SPACE = (
    "--arg",
    "NodeResourcesFit.scoringStrategy.type=LeastAllocated|MostAllocated",
    "--weight",
    "NodeResourcesFit=1:5",
    "--weight",
    "NodeResourcesBalancedAllocation=0:5",
)


def test_a_better_configuration_is_found_and_holds(folder):
    found = tune(folder, "--objective", "waiting.p95", *SPACE, "--progress")
    assert "trial 9 of 9: waiting.p95 0" in found.stderr
    assert "is better than the base configuration, on the held-out part too." in found.stdout
    report = json.loads((folder / "tuned/report.json").read_text())
    assert report["trials"] == 9
    best = report["front"][0]
    assert best["params"]["NodeResourcesFit.scoringStrategy.type"] == "MostAllocated"
    for part in ("training", "held_out"):
        assert best[part]["waiting.p95"] < report["base"][part]["waiting.p95"]
    # The search saw four and a half of the six rounds; the rest is measured apart.
    assert report["base"]["training"]["pods.total"] + report["base"]["held_out"]["pods.total"] == 42
    assert 8 <= report["base"]["held_out"]["pods.total"] <= 13
    assert "| waiting.p95 |" in (folder / "tuned/report.md").read_text()
    # The configuration is ready for use, and gives what the report says.
    words = ["replay", folder / "trace.jsonl", "--config", folder / "tuned/best.yaml", "-o", "json"]
    again = CliRunner().invoke(stowplan, list(map(str, words)))
    assert json.loads(again.stdout)["waiting.p95"] == 0


def test_several_objectives_give_a_front(folder):
    words = ("--objective", "waiting.p95", "--objective", "balance.jain")
    found = tune(folder, *words, *SPACE, "-o", "json")
    front = json.loads(found.stdout)["front"]
    assert len(front) >= 2  # to pack shortens the wait, to spread balances
    values = sorted((each["training"]["waiting.p95"], each["training"]["balance.jain"]) for each in front)
    assert all(one[1] < other[1] for one, other in pairwise(values))
    assert len(list((folder / "tuned").glob("pareto-*.yaml"))) == len(front) - 1
    for file in (folder / "tuned").glob("*.yaml"):
        assert yaml.safe_load(file.read_text())["kind"] == "KubeSchedulerConfiguration"


class StopError(Exception):
    pass


class CountingExecutor:
    """Runs replays here, and stops after so many of them."""

    def __init__(self, trace, limit=1000):
        self._inner, self.count, self._limit = Processes(trace, 1), 0, limit

    def run(self, jobs):
        for each in self._inner.run(jobs):
            self.count += 1
            if self.count > self._limit:
                raise StopError
            yield each


def test_an_interrupted_study_goes_on_as_if_it_had_not_been(tmp_path):
    trace, registry = packing_trace(rounds=3), Registry.installed()
    arg, weight = Parameter.parse_arg(SPACE[1]), Parameter.parse_weight(SPACE[3])

    def search(study, executor):
        space, objectives = (
            Space(None, registry, weights=[weight], args=[arg]),
            [Objective.parse("waiting.p95")],
        )
        return report_json(Tuner(trace, space, objectives, executor, study=tmp_path / study, batch=4).run(9))

    at_once = CountingExecutor(trace)
    whole = search("whole", at_once)
    with pytest.raises(StopError):
        search("part", CountingExecutor(trace, 7))  # in the second batch
    with (tmp_path / "part").open("ab") as stream:
        stream.write(b'{"op_code": 6, "worker')  # as after a crash while it was written
    rest = CountingExecutor(trace)
    assert search("part", rest) == whole
    assert at_once.count - rest.count == 5  # the base and the first batch were not replayed again


def test_a_study_of_another_search_is_not_continued(folder):
    tune(folder, "--objective", "waiting.p95", *SPACE, trials=1)
    with pytest.raises(
        InputError, match=r"study\.journal: belongs to another search: it differs in objectives;"
    ):
        tune(folder, "--objective", "nodes.used", *SPACE, trials=1)


@pytest.mark.parametrize(
    "text",
    [
        "garbage\n",
        "a file without the end of a line",
        '{"op_code": 4}\n{"op_code": 4}\n',
        '{"op_code": 77, "worker_id": "a"}\n',
        "[]\n",
        "\0\xff\n\0",
    ],
)
def test_a_file_that_is_not_a_study_is_left_as_it_is(folder, text):
    (folder / "tuned").mkdir()
    (folder / "tuned/study.journal").write_text(text)
    with pytest.raises(InputError, match=r"study\.journal: is not a study of Optuna"):
        tune(folder, "--objective", "waiting.p95", *SPACE, trials=1)
    assert (folder / "tuned/study.journal").read_text() == text


def test_a_mistake_leaves_nothing_in_the_way_of_the_next_search(folder):
    with pytest.raises(InputError, match="unknown metric"):
        tune(folder, "--objective", "waiting.p42", *SPACE, trials=1)
    with pytest.raises(InputError, match="no trial gave a valid configuration"):
        tune(folder, "--objective", "nodes.used", "--arg", "NodeResourcesFit.nope=1:3", trials=1)
    tune(folder, "--objective", "waiting.p95", *SPACE, trials=1)


@pytest.mark.parametrize("size", [1024, 4096])
def test_a_full_disk_is_an_error_and_the_study_goes_on_afterwards(folder, size):
    """A limit on the size of files stands for the full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(InputError, match=r"study\.journal: cannot be written: File too large"):
            tune(folder, "--objective", "waiting.p95", *SPACE, trials=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    tune(folder, "--objective", "waiting.p95", *SPACE, trials=4)
    assert json.loads((folder / "tuned/report.json").read_bytes())["trials"] == 4


def test_an_objective_is_given_once(folder):
    with pytest.raises(InputError, match=r"--objective: waiting\.p95: is given twice"):
        tune(folder, "--objective", "waiting.p95", "--objective", "waiting.p95:min", *SPACE, trials=1)


def test_invalid_configurations_are_counted_and_left_out(folder):
    space = ("--arg", "NodeResourcesFit.scoringStrategy.type=MostAllocated|NoSuchType")
    report = json.loads(tune(folder, "--objective", "waiting.p95", *space, "-o", "json", trials=5).stdout)
    assert 0 < report["failed"] < 5
    space = ("--arg", "NodeResourcesFit.scoringStrategy.type=NoSuchType", "--output-dir", folder / "other")
    with pytest.raises(InputError, match=r"no trial gave a valid configuration, such as: .*NoSuchType"):
        tune(folder, "--objective", "waiting.p95", *space, trials=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--objective", "speed"], "--objective: speed: unknown metric; known: pods.total, "),
        (["--objective", "decision.p95"], "decision times differ from run to run"),
        (["--objective", "waiting.p95:up"], "expected a metric such as waiting.p95"),
        (["--weight", "NoSuch=1:2"], "--weight: NoSuch: is not a score plugin of the profile; known: "),
        (["--weight", "ImageLocality=5:2"], "expected PLUGIN=LOW:HIGH"),
        (["--arg", "NodeResourcesFit=1"], "expected PLUGIN.FIELD=A|B"),
        (["--arg", "NodeResourcesFit.no.such=1|2"], "--arg: NodeResourcesFit.no.such: has no such field"),
        (["--profile", "other"], "other: unknown profile; the configuration has default-scheduler"),
    ],
)
def test_what_cannot_be_searched(folder, words, said):
    objective = () if "--objective" in words else ("--objective", "waiting.p95")
    with pytest.raises(InputError) as found:
        tune(folder, *objective, *words, trials=1)
    assert said in str(found.value)


def test_the_space_changes_weights_and_arguments_only():
    registry = Registry.installed()
    weight = Parameter.parse_weight("ImageLocality=0:5")
    arg = Parameter.parse_arg("NodeResourcesFit.scoringStrategy.resources.0.weight=1:9")
    space = Space(None, registry, weights=[weight], args=[arg])
    assert space.base_params() == {weight.name: 1, arg.name: 1}
    (profile,) = space.configuration({weight.name: 0, arg.name: 7})["profiles"]
    scores = {each["name"]: each["weight"] for each in profile["plugins"]["score"]["enabled"]}
    assert "ImageLocality" not in scores
    assert scores["TaintToleration"] == 3
    (fit,) = profile["pluginConfig"]
    assert [each["weight"] for each in fit["args"]["scoringStrategy"]["resources"]] == [7, 1]


def test_the_direction_of_an_objective():
    assert not Objective.parse("waiting.p95").is_maximized
    assert Objective.parse("allocated.cpu").is_maximized
    assert Objective.parse("nodes.used:max").is_maximized
    assert not Objective.parse("allocated.cpu:min").is_maximized
