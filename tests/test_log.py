"""Log lines: klog's shape and kube's JSON, what shows at which verbosity, and nothing that breaks a line."""

from __future__ import annotations

import io
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from make import make_pod
from stowplan.log import MAX_VALUE, Whole, configure, error, is_verbose, log, set_verbosity, warn


@pytest.fixture(autouse=True, params=["alone", "beside others"])
def _logging_as_it_was(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lines are the same where others listen too, as pytest does, and where nobody else does."""
    root, ours = logging.root, logging.getLogger("stowplan")
    before = (root.handlers[:], root.level, ours.level)
    if request.param == "alone":
        monkeypatch.setattr(root, "addHandler", lambda handler: None)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.fixture
def text() -> io.StringIO:
    stream = io.StringIO()
    configure(stream=stream)
    return stream


@pytest.fixture
def jsons() -> io.StringIO:
    stream = io.StringIO()
    configure(style="json", verbosity=4, stream=stream)
    return stream


def body(line: str) -> str:
    return line.rstrip("\n").partition("] ")[2]


def test_klog_header(text: io.StringIO):
    log(0, "Successfully bound pod to node", pod=make_pod("web"), node="n1", evaluatedNodes=5)
    header, _, rest = text.getvalue().partition("] ")
    assert re.fullmatch(rf"I\d{{4}} \d\d:\d\d:\d\d\.\d{{6}} {os.getpid():7} test_log\.py:\d+", header)
    assert rest == '"Successfully bound pod to node" pod="default/web" node="n1" evaluatedNodes=5\n'


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param("plain", '"plain"', id="words"),
        pytest.param('say "hi" \\ bye', r'"say \"hi\" \\ bye"', id="quotes and backslashes"),
        pytest.param("ring\x07 \x1b[31mred", r'"ring\u0007 \u001b[31mred"', id="control characters"),
        pytest.param("größe", '"größe"', id="letters of any language"),
        pytest.param("one\ntwo", "<\n\tone\n\ttwo\n >", id="several lines"),
        pytest.param(
            "one\r\n\x1b[31mtwo\n", "<\n\tone\n\t\\u001b[31mtwo\n >", id="several lines, control characters"
        ),
        pytest.param(3, "3", id="a number"),
        pytest.param(0.25, "0.25", id="a fraction"),
        pytest.param(True, "true", id="a claim"),
        pytest.param(None, "<nil>", id="nothing"),
        pytest.param(["a", "b"], '["a","b"]', id="a list"),
        pytest.param({"b", "a"}, '["a","b"]', id="a set"),
        pytest.param({"a": 1}, '{"a":1}', id="a mapping"),
        pytest.param(ValueError("no"), '"no"', id="an error"),
        pytest.param(TimeoutError(), '"TimeoutError"', id="an error without words"),
        pytest.param([ValueError("no")], '["no"]', id="errors in a list"),
        pytest.param(make_pod("web", namespace="prod"), '"prod/web"', id="an object"),
    ],
)
def test_values_in_text(text: io.StringIO, value: Any, shown: str):
    log(0, "Message", key=value)
    assert body(text.getvalue()) == f'"Message" key={shown}'


@pytest.mark.parametrize(
    ("verbosity", "shown"),
    [
        pytest.param(0, [0], id="-v=0"),
        pytest.param(4, [0, 4], id="-v=4"),
        pytest.param(10, [0, 4, 5, 10], id="-v=10"),
        pytest.param(99, [0, 4, 5, 10], id="-v=99"),
    ],
)
def test_verbosity(text: io.StringIO, verbosity: int, shown: list[int]):
    set_verbosity(verbosity)
    for level in (0, 4, 5, 10):
        log(level, "Message", level=level)
    assert [int(line.rpartition("=")[2]) for line in text.getvalue().splitlines()] == shown
    assert [level for level in (0, 4, 5, 10) if is_verbose(level)] == shown


def test_severities(text: io.StringIO):
    log(0, "Information")
    warn("Warning", flag="--port")
    error("command failed", ValueError("bad"), code=1)
    error("Odd", None)
    lines = text.getvalue().splitlines()
    assert "".join(line[0] for line in lines) == "IWEE"
    assert [body(line) for line in lines[1:]] == [
        '"Warning" flag="--port"',
        '"command failed" err="bad" code=1',
        '"Odd"',
    ]


def test_json(jsons: io.StringIO):
    log(3, "Attempting to schedule pod", pod=make_pod("web"), nodes=("a", "b"))
    line = json.loads(jsons.getvalue())
    assert list(line) == ["ts", "caller", "msg", "v", "pod", "nodes"]
    assert line["ts"] > 1e12  # milliseconds
    assert re.fullmatch(r"test_log\.py:\d+", line["caller"])
    assert (line["msg"], line["v"]) == ("Attempting to schedule pod", 3)
    assert (line["pod"], line["nodes"]) == ({"name": "web", "namespace": "default"}, ["a", "b"])


def test_json_errors_have_no_verbosity(jsons: io.StringIO):
    error("command failed", ValueError("bad\nworse"))
    line = json.loads(jsons.getvalue())
    assert "v" not in line
    assert line["err"] == "bad\nworse"
    assert jsons.getvalue().count("\n") == 1


def test_field_names_cannot_replace_what_every_json_line_has(jsons: io.StringIO):
    log(0, "Message", msg="other", ts=0)
    assert json.loads(jsons.getvalue())["msg"] == "Message"


def test_libraries_lines_have_the_same_shape(text: io.StringIO):
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("asyncio").exception("Task %s failed", "t1")
    logging.getLogger("asyncio").info("not shown")
    shown = text.getvalue()
    assert body(shown.splitlines()[0]) == '"Task t1 failed" err="bad" stacktrace=<'
    assert 'raise ValueError("bad")' in shown
    assert "not shown" not in shown


def test_a_traceback_is_written_once_and_then_counted(jsons: io.StringIO, tmp_path: Path):
    stack = f'Traceback (most recent call last):\n  File "{tmp_path}", line 1\nValueError: {{}}\n'
    for text in ("one", "two", "three"):
        error("Failed", text, stacktrace=stack.format(text))
    error("Failed", "elsewhere", stacktrace=stack.format("one").replace("line 1", "line 2"))
    first, second, third, other = map(json.loads, jsons.getvalue().splitlines())
    assert first["stacktrace"] == stack.format("one")
    assert ("stacktrace" in second, second["repeated"], third["repeated"]) == (False, 1, 2)
    assert "line 2" in other["stacktrace"]


def test_a_closed_stream_stops_nobody(text: io.StringIO, capsys: pytest.CaptureFixture[str]):
    log(0, "Message before")
    assert "Message before" in text.getvalue()
    text.close()
    log(0, "Message after")
    assert capsys.readouterr().err == ""  # nor a traceback of Python's logging for each line


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10_000_000,
        "line\n" * 1_000_000,
        ValueError("x" * 10_000_000),
        {"k": ["v" * 1000] * 10_000},
        ["é" * 50] * 9999,
    ],
    ids=["text", "lines", "error", "map", "list"],
)
def test_long_values_are_cut_with_a_marker(value: object, text: io.StringIO):
    log(0, "Message", value=value, after="kept")
    assert len(text.getvalue()) < 7 * MAX_VALUE  # escapes take up to six characters
    assert re.search(r" \.\.\. \(\d+ more characters\)", text.getvalue())
    assert text.getvalue().endswith(' after="kept"\n')


@pytest.mark.parametrize(
    "value", ["x" * 10_000_000, ValueError("x" * 10_000_000), {"k": ["v" * 1000] * 10_000}]
)
def test_long_values_are_cut_in_json(value: object, jsons: io.StringIO):
    log(0, "Message" * 100_000, value=value, after="kept")
    line = json.loads(jsons.getvalue())
    assert len(line["value"]) < MAX_VALUE + 100
    assert len(line["msg"]) < MAX_VALUE + 100
    assert line["value"].endswith(" more characters)")
    assert line["after"] == "kept"


def test_what_must_be_whole_is_whole(jsons: io.StringIO, text: io.StringIO):
    dump = Whole("x" * 100_000)
    log(0, "Dump", dump=dump)
    assert "x" * 100_000 in text.getvalue()


class MuteError(Exception):
    def __str__(self) -> str:
        raise SystemExit("no")


class OddError(Exception):
    """Looks like an object with a name until someone asks for it."""

    name = "odd"

    @property
    def namespace(self) -> str:
        raise SystemExit("no")


class Masked:
    """Does not say what it is."""

    @property
    def __class__(self) -> Any:
        raise SystemExit("no")


class MaskedName:
    name, namespace = Masked(), "default"


@pytest.mark.parametrize(
    "value",
    [
        MuteError(),
        OddError("x"),
        "half \ud800",
        ["half \ud800"],
        {MuteError()},
        [MuteError()],
        {1, "a", None},
        {OddError(), "b"},
        MaskedName(),
    ],
    ids=range(9),
)
def test_no_value_stops_the_one_who_logs(value: object, jsons: io.StringIO):
    log(0, "Message", value=value)
    error("Failed", value if isinstance(value, BaseException) else "x")
    first, second = map(json.loads, jsons.getvalue().splitlines())
    assert first["msg"] == "Message"
    assert second["msg"] == "Failed"
