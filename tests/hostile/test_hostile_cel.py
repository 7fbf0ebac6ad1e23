"""Device selectors that are made to take long, to take much memory, or to break the compiler.

Each is either answered or ends with the cost limit, in a process that may take 1 GiB and a minute.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from subprocess import PIPE

import pytest

from stowplan.api.cel import MAX_COST, DeviceVariable, Domains, Meter, compile_cel
from stowplan.api.cel.compiler import Program, compilations
from stowplan.errors import CelError

DEVICE = DeviceVariable("gpu.example.com", Domains({"gpu.example.com": {"model": "a" * 64}}), Domains())
COST_LIMIT = "operation cancelled: actual cost limit exceeded"
SERVE = """
import json, os, resource, signal, sys
from stowplan.api.cel import DeviceVariable, Domains, compile_cel
from stowplan.errors import CelError
device = DeviceVariable("gpu.example.com", Domains({"gpu.example.com": {"model": "a" * 64}}), Domains())
for line in sys.stdin:
    process = os.fork()  # a process for each expression, without the time to import everything
    if not process:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        signal.alarm(60)
        try:
            print("answer:", compile_cel(json.loads(line)).evaluate({"device": device}))
        except CelError as error:
            print("error:", error)
        sys.stdout.flush()
        os._exit(0)
    print("ended:", os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""
MODEL = 'device.attributes["gpu.example.com"].model'


def bound(first: str, step: str, times: int, last: str) -> str:
    """`cel.bind(x0, first, cel.bind(x1, step of x0, … last of the last))`."""
    binds = [f"cel.bind(x0, {first}, "] + [
        f"cel.bind(x{number}, {step.replace('$', f'x{number - 1}')}, " for number in range(1, times + 1)
    ]
    return "".join(binds) + last.replace("$", f"x{times}") + ")" * len(binds)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Evaluates an expression in a process of its own."""
    errors = tmp_path_factory.mktemp("cel") / "errors"
    with errors.open("w") as stderr:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVE], stdin=PIPE, stdout=PIPE, stderr=stderr, text=True
        )

    def evaluate(expression: str) -> str:
        assert server.stdin is not None
        assert server.stdout is not None
        print(json.dumps(expression), file=server.stdin, flush=True)
        said = ""
        while not (line := server.stdout.readline()).startswith("ended: "):
            assert line, errors.read_text()[-2000:]
            said += line
        assert line == "ended: 0\n", errors.read_text()[-2000:]
        return said.strip()

    with server:
        yield evaluate
        server.kill()


TEN = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param("".join(f"{TEN}.all(v{i}, " for i in range(9)) + "true" + ")" * 9, id="nested loops"),
        pytest.param(f"{TEN}.all(a, lists.range(1000000).size() > a)", id="a long range in a loop"),
        pytest.param("lists.range(9223372036854775807).size() > 0", id="the longest range"),
        pytest.param(bound("'x'", "$ + $", 60, "$ == 'x'"), id="strings that double"),
        pytest.param(bound("[1]", "$ + $", 60, "$ == [1]"), id="lists that double"),
        pytest.param(bound("b'x'", "$ + $", 60, "$ == b'x'"), id="bytes that double"),
        pytest.param(bound("[1, 1]", "[$, $]", 60, "$ == $"), id="comparing a list that holds itself twice"),
        pytest.param(bound("[1, 1]", "[$, $]", 60, "$ in [$]"), id="finding it"),
        pytest.param(bound("[1, 1]", "[$, $]", 60, "[$, $].distinct() == []"), id="comparing it many times"),
        pytest.param(bound("[1, 1]", "[$, $]", 60, "sets.contains([$], [$])"), id="it as a set"),
        pytest.param(bound("[1, 1]", "[$, $]", 60, "[$].indexOf($) == 0"), id="its position"),
        pytest.param(bound("[1, 1]", "[$, $]", 60, "$.flatten(60).size() > 0"), id="flattening it"),
        pytest.param(bound("[1, 1]", "[$, $]", 60, '"%s".format([$]) == ""'), id="writing it"),
        pytest.param(bound('{"a": 1}', '{"a": $, "b": $}', 60, "$ == $"), id="a map that holds itself twice"),
        pytest.param(
            bound('{"a": 1}', '{"a": $, "b": $}', 60, '"%s".format([$]) == ""'), id="writing that map"
        ),
        pytest.param(bound(f'"{"a" * 1500}"', f'$.replace("", "{"b" * 1500}")', 3, "$ == ''"), id="replace"),
        pytest.param(bound(f'"{"a" * 1500}"', '$.replace("a", $)', 6, "$ == ''"), id="replace by itself"),
        pytest.param(bound('["a", "a"]', "[$.join($[0]), $.join($[0])]", 60, "$ == []"), id="join"),
        pytest.param(bound("'x'", '"%s%s".format([$, $])', 60, "$ == ''"), id="format"),
        pytest.param(bound("'\"'", "strings.quote($)", 60, "$ == ''"), id="quote"),
        pytest.param(bound("lists.range(50)", "$.map(x, $)", 6, "$ == $"), id="lists of lists of lists"),
        pytest.param(
            'lists.range(20000).all(i, "x".matches("(a{0,1000}){0,1}" + string(i)) || true)',
            id="many patterns that are large",
        ),
        pytest.param(
            'lists.range(20000).all(i, "x".matches("[" + string(i)) || true)',
            id="many patterns that are wrong",
        ),
        pytest.param(
            bound(f'"{"a" * 1000}"', "$ + $", 8, '$.findAll("a.*b|a").size() == 0'),
            id="matches up to the end",
        ),
        pytest.param(
            'lists.range(100000).all(i, timestamp(0).getHours("Nowhere/" + string(i)) == 1 || true)',
            id="many time zones",
        ),
        pytest.param("lists.range(1000).sort() == lists.range(1000).reverse().sort()", id="sorting"),
    ],
)
def test_what_costs_too_much_ends(run, expression):
    assert len(expression) < 10_240
    assert run(expression) == f"error: {COST_LIMIT}"


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        pytest.param(f'"{"a" * 60}!".matches("^(a+)+$")', "answer: False", id="a pattern that backtracks"),
        pytest.param(f'({MODEL} + "!").matches("^(a|a)*$")', "answer: False", id="over an attribute"),
        pytest.param(f'({MODEL} + "!").find("^(a|aa)+$") == ""', "answer: True", id="find"),
        pytest.param(f'({MODEL} + "!").findAll("^(a|aa)+$") == []', "answer: True", id="findAll"),
        pytest.param(f'int("{"9" * 9000}") == 1', "error: integer overflow", id="a number of 9,000 digits"),
        pytest.param("9" * 9000 + " == 1", "error: invalid int literal", id="a literal of 9,000 digits"),
        pytest.param("0x" + "f" * 9000 + " == 1", "error: invalid int literal", id="a literal in base 16"),
        pytest.param("1e" + "9" * 9000 + " > 1.0", "error: invalid double literal", id="a large exponent"),
        pytest.param(
            f'double("1e{"9" * 9000}") > 1.0', "error: type conversion", id="a large exponent in text"
        ),
        pytest.param(
            f'duration("{"9" * 9000}s") > duration("1s")', "error: integer overflow", id="a duration"
        ),
        pytest.param(f'duration("0.{"9" * 9000}s") < duration("1s")', "answer: True", id="a fine duration"),
        pytest.param(f'isSemver("{"9" * 9000}.0.0")', "answer: False", id="a version"),
        pytest.param(f'isSemver("1.0.0-{"9" * 9000}")', "answer: False", id="a pre-release"),
        pytest.param(f'isIP("{"1" * 9000}")', "answer: False", id="an address"),
        pytest.param(
            '"%.999999999f".format([1.0]) == ""', "error: error during formatting", id="a precision"
        ),
        pytest.param('"%s" == "' + "\\x41" * 2000 + '"', "answer: False", id="escapes"),
        pytest.param('"' + "\\a" * 4000, "error: syntax error", id="a string that does not end"),
        pytest.param('r"' + "\\" * 9000, "error: syntax error", id="a raw string that does not end"),
        pytest.param("(" * 5000, "error: expression recursion limit", id="open parentheses"),
        pytest.param("[" * 5000 + "]" * 5000, "error: expression recursion limit", id="nested lists"),
        pytest.param("{1:" * 2500, "error: expression recursion limit", id="nested maps"),
        pytest.param("-(" * 2500 + "1" + ")" * 2500, "error: expression recursion limit", id="nested signs"),
        pytest.param("true ? true : " * 700 + "true", "error: expression recursion limit", id="conditions"),
        pytest.param("1" + " + 1" * 2500, "error: max recursion depth exceeded", id="a long sum"),
        pytest.param(
            '""' + ".trim()" * 1400, "error: max recursion depth exceeded", id="a long chain of calls"
        ),
        pytest.param("device" + ".a" * 5000, "error: max recursion depth", id="a long chain of fields"),
        pytest.param("dyn([])" + "[0]" * 3000, "error: max recursion depth", id="a long chain of indexes"),
        pytest.param("!" * 10_000 + "true", "answer: True", id="many signs"),
        pytest.param("true" + " && true" * 1200, "answer: True", id="a long conjunction"),
        pytest.param("[" + "1," * 5000 + "1].size() == 5001", "answer: True", id="a long list"),
        pytest.param("\ud800".encode("utf-8", "surrogatepass").decode("latin1"), "error: ", id="not text"),
        pytest.param(
            "x" * 200_000, "error: expression code point size exceeds limit", id="a long expression"
        ),
        pytest.param(
            'timestamp(0).getHours("' + "../" * 500 + 'etc/passwd") == 0',
            "error: unknown time zone",
            id="a time zone that is a path",
        ),
    ],
)
def test_hostile_expressions_are_answered_or_rejected(run, expression, said):
    assert run(expression).startswith(said)


def test_no_operator_swallows_the_cost_limit():
    costly = "lists.range(2000000).size() > 0"
    for expression in (
        f"{costly} || true",
        f"true && ({costly} || true)",
        f"[1].exists(x, {costly} || x == 1)",
        f"cel.bind(x, {costly}, true)",
        f"optional.of({costly}).hasValue()",
    ):
        with pytest.raises(CelError, match=COST_LIMIT):
            compile_cel(expression).evaluate({"device": DEVICE})


def test_an_evaluation_tells_its_cost():
    meter = Meter(MAX_COST)
    compile_cel("lists.range(1000).all(x, x >= 0)").evaluate({"device": DEVICE}, meter)
    assert 5_000 < MAX_COST - meter.left < 10_000


def test_an_expression_that_does_not_compile_is_compiled_once():
    before = compilations()
    for _ in range(100):
        with pytest.raises(CelError):
            compile_cel("no_such_thing")
    assert compilations() == before + 1


def test_thousands_of_expressions_are_not_all_kept():
    for number in range(2000):
        compile_cel(f"device.driver == '{number}'")
    gc.collect()
    assert sum(isinstance(each, Program) for each in gc.get_objects()) <= 200
