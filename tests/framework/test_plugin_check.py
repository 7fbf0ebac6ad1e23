"""Faults of plugin classes, with file and line, before they run."""

import importlib
import sys
from textwrap import dedent

import pytest

from stowplan.framework.plugin import Plugin
from stowplan.framework.plugin_check import faults_of, repeated_definitions
from stowplan.framework.registry import Registry

HEAD = """\
from typing import ClassVar
import numpy as np
from stowplan import CustomResource, Plugin, PluginArgs, Reads

class Mine(Plugin):
"""
FIRST = len(HEAD.splitlines()) + 1  # the line of the class's first statement


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A module made of a text: its class `Mine` and its file."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def write(text, head=HEAD):
        file = tmp_path / "mine.py"
        file.write_text(head + (dedent(text) if not head else "    " + dedent(text).replace("\n", "\n    ")))
        importlib.invalidate_caches()
        sys.modules.pop("mine", None)
        return importlib.import_module("mine").Mine, file

    yield write
    sys.modules.pop("mine", None)


GOOD = "def filter(self, state, pod, node): ..."


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        pytest.param(
            "def filter_node(self, state, pod, node): ...", 0, "did you mean filter_nodes?", id="one letter"
        ),
        pytest.param(
            f"{GOOD}\ndef preFilter(self, state, pod, nodes): ...",
            1,
            "did you mean pre_filter?",
            id="camelCase",
        ),
        pytest.param(
            "def prefilter(self, state, pod, nodes): ...", 0, "did you mean pre_filter?", id="one word"
        ),
        pytest.param("def normalise_score(self): ...", 0, "did you mean normalize_score?", id="British"),
        pytest.param("def Less(self, a, b): ...", 0, "did you mean queue_sort?", id="the name elsewhere"),
        pytest.param(
            "def filter(self, pod, node): ...",
            0,
            "Mine.filter takes (self, pod, node); it is called with filter(self, state, pod, node)",
            id="too few parameters",
        ),
        pytest.param("def score(self, state, pod, node, extra): ...", 0, "it is called with", id="too many"),
        pytest.param("def filter(state, pod, node): ...", 0, "it is called with", id="no self"),
        pytest.param(f"{GOOD}\ndef __init__(self): ...", 1, "called with (self, args, handle)", id="init"),
        pytest.param(
            "def score(self, state, node, pod): return 1",
            0,
            "Mine.score takes (self, state, node, pod); it is called with score(self, state, pod, node)",
            id="swapped parameters",
        ),
        pytest.param(
            "def score(self, state, pod, node) -> str: ...",
            0,
            "Mine.score returns str; expected int",
            id="score of text",
        ),
        pytest.param(
            "def filter(self, state, pod, node) -> bool: ...",
            0,
            "Mine.filter returns bool; expected Status | None",
            id="filter of truth",
        ),
        pytest.param(
            "def reserve(self, state, pod, node_name) -> bool | None: ...",
            0,
            "Mine.reserve returns bool | None; expected Status | None",
            id="reserve of truth",
        ),
        pytest.param(
            "def pre_filter(self, state, pod, nodes) -> list[str]: ...",
            0,
            "Mine.pre_filter returns list[str]; expected Status | frozenset[str] | None",
            id="pre_filter of a list",
        ),
        pytest.param(
            "def filter_nodes(self, state, pod, nodes) -> list[str]: ...",
            0,
            "Mine.filter_nodes returns list[str]; expected Iterable[Reject]",
            id="filter_nodes of texts",
        ),
        pytest.param(
            "def score_nodes(self, state, pod, nodes) -> list[int]: ...",
            0,
            "Mine.score_nodes returns list[int]; expected Scores",
            id="score_nodes of a list",
        ),
        pytest.param(
            "def filter(self, state, pod, node: str): ...",
            0,
            "Mine.filter takes node: str; it is called with Node",
            id="a parameter of another type",
        ),
        pytest.param(
            "def filtre(self, state, pod, node): ...", 0, "did you mean filter?", id="letters swapped"
        ),
        pytest.param("filter = True", 0, "Mine.filter is not a method but bool", id="no method"),
        pytest.param("def bind(self, state, pod, node_name): ...", 0, "write `async def`", id="sync bind"),
        pytest.param("async def filter(self, state, pod, node): ...", 0, "without async", id="async filter"),
        pytest.param(f"{GOOD}\ndef run(self): ...", 1, "Mine.run is awaited", id="sync run"),
        pytest.param("def score_nodes(self, state, pod, nodes): yield 1", 0, "yields", id="yields"),
        pytest.param(
            f"{GOOD}\ndef filter_nodes(self, state, pod, nodes): ...",
            0,
            "is never called because filter_nodes is defined, too",
            id="both ways",
        ),
        pytest.param(
            f"{GOOD}\ndef normalize_score(self, state, pod, scores): ...",
            1,
            "is never called without score or score_nodes",
            id="nothing to normalise",
        ),
        pytest.param(
            f"{GOOD}\ndef sign_pod(self, pod): ...",
            1,
            "unless `reads` is Reads.NODE",
            id="sign without reads",
        ),
        pytest.param(f"reads = Reads.NODE\n{GOOD}", 0, "has no effect without sign_pod", id="reads alone"),
        pytest.param(
            f"reads = Reads.NODE\n{GOOD}\ndef sign_pod(self, pod): ...",
            1,
            "define filter_nodes instead",
            id="kept filter",
        ),
        pytest.param(f"{GOOD}\nreads = 'node'", 1, "is 'node'; expected Reads", id="reads of another type"),
        pytest.param(f"{GOOD}\nwatches = CustomResource", 1, "expected a tuple", id="watches a class"),
        pytest.param(f"{GOOD}\nwatches = (int,)", 1, "derived from CustomResource", id="watches a number"),
        pytest.param(
            f"{GOOD}\nwatches = (CustomResource,)",
            1,
            "which has no `definition",
            id="watches without definition",
        ),
        pytest.param(
            f"{GOOD}\nargs: dict",
            1,
            "expected a struct derived from stowplan.PluginArgs, got dict",
            id="args of dict",
        ),
        pytest.param(f"{GOOD}\nargs: 'Nope'", 1, "name 'Nope' is not defined", id="args of nothing known"),
        pytest.param(
            f"{GOOD}\nargs = PluginArgs", 1, "annotate it instead: `args: PluginArgs`", id="args with a value"
        ),
        pytest.param(f"{GOOD}\nbudget = 0", 1, "is 0; expected seconds, more than 0", id="no budget"),
        pytest.param("def helper(self): ...", -1, "takes part in no extension point: define", id="nothing"),
    ],
)
def test_a_fault_is_named_at_its_line(written, body, line, words):
    plugin, _ = written(body)
    (fault,) = faults_of(plugin)
    assert (fault.file, fault.line) == ("mine.py", FIRST + line)
    assert words in fault.text
    assert str(fault) == f"mine.py:{FIRST + line}: {fault.text}"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(f"{GOOD}\ndef score(self, *anything): return 1", id="any parameters"),
        pytest.param("@staticmethod\ndef filter(state, pod, node): ...", id="static"),
        pytest.param("@classmethod\ndef filter(cls, state, pod, node): ...", id="of the class"),
        pytest.param("def filter(self, s, p, n) -> None: ...", id="names of one's own"),
        pytest.param(
            "def filter(self, state, pod, node) -> 'Unknown': ...", id="what only a type checker knows"
        ),
        pytest.param("def score(self, state, pod, node) -> np.int64: ...", id="a number of NumPy's"),
        pytest.param("def queue_sort(self, queued) -> tuple[int, str]: ...", id="a sort key"),
        pytest.param(f"{GOOD}\ndef _filter_node(self): ...", id="an own method like a point"),
        pytest.param(f"{GOOD}\nasync def run(self): ...", id="background work"),
        pytest.param("def score(self, state, pod, node, scale=2): return 1", id="a parameter with a default"),
    ],
)
def test_what_is_right_passes(written, body):
    assert faults_of(written(body)[0]) == []


def test_an_inherited_fault_is_named_where_it_stands(written):
    text = (
        "from stowplan import Plugin\nclass Base(Plugin):\n    def filter(self): ...\nclass Mine(Base): ...\n"
    )
    (fault,) = faults_of(written(text, head="")[0])
    assert fault.line == 3
    assert fault.text.startswith("Mine.filter takes (self)")


def test_arguments_whose_own_check_fails_are_named(written):
    text = (
        "from stowplan import Plugin, PluginArgs\n"
        "class Args(PluginArgs):\n    size: int = 0\n    def validate(self, path): yield 1 / self.size\n"
        "class Mine(Plugin):\n    args: Args\n    def filter(self, state, pod, node): ...\n"
    )
    (fault,) = faults_of(written(text, head="")[0])
    assert str(fault) == "mine.py:4: Args cannot be read: ZeroDivisionError: division by zero"


def test_all_faults_are_found_at_once_by_line(written):
    plugin, _ = written("def prescore(self): ...\ndef filter(self): ...\nargs: int")
    assert [fault.line - FIRST for fault in faults_of(plugin)] == [0, 1, 2]


@pytest.mark.parametrize("name", sorted(Registry.installed().names()))
def test_the_plugins_that_come_along_pass(name):
    plugin = Registry.installed().find(name)
    assert issubclass(plugin, Plugin)
    assert faults_of(plugin) == []


def test_of_two_definitions_of_one_name_the_second_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "twice.py"
    file.write_text("class A:\n    def f(self): ...\n    def f(self): ...\nclass A: ...\n")
    lines = [str(fault) for fault in repeated_definitions(file)]
    assert lines == [
        "twice.py:4: A is already defined in line 1; rename one of them",
        "twice.py:3: A.f is already defined in line 2; rename one of them",
    ]
