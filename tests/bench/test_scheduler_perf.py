"""benchmarks/scheduler_perf.py: its files, templates and tables, and a run on the embedded API server."""

from __future__ import annotations

import asyncio
import json
import sys
import typing
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

import gate
import perf_files
from cluster import cpu_ms
from perf_files import CreatePods, FileError, Row, Template, choose, parse_duration, read_rows
from perf_ops import FreeDevices
from perf_world import opcodes, write_world
from scheduler_perf import Result, Runner, compare, notes_on, read_results, run_all, scheduler_flags, table
from stowplan.api.meta import decode
from stowplan.api.resource import ResourceSlice


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    return read_rows(write_world(tmp_path))


def made(tmp_path: Path, text: str) -> Template:
    (tmp_path / "made.yaml").write_text(text)
    return Template(tmp_path / "made.yaml")


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        pytest.param("{{.Index}}", 7, id="a field"),
        pytest.param("{{ .Count }}", 100, id="with spaces"),
        pytest.param("{{ Mod .Index 5 }}", 2, id="a function"),
        pytest.param("{{ DivideInt .Index 2 }}", 3, id="integers are cut"),
        pytest.param("{{ DivideInt (SubtractInt 0 .Index) 2 }}", -3, id="towards zero"),
        pytest.param("{{ Mod (SubtractInt 0 .Index) 5 }}", -2, id="the sign is the dividend's"),
        pytest.param("{{ DivideFloat .Index 2 }}", 3.5, id="a fraction"),
        pytest.param("{{ MultiplyFloat .Index 2 }}", 14, id="a float without a fraction"),
        pytest.param("{{ AddInt .Index 1 2.9 }}", 10, id="any number of arguments"),
        pytest.param("{{ .Index | AddInt 1 }}", 8, id="a pipeline"),
        pytest.param('{{ MultiplyInt "3" 2 }}', 6, id="a number in a string"),
    ],
)
def test_renders_actions(tmp_path: Path, action: str, expected: float) -> None:
    assert made(tmp_path, f"value: {action}").render(7, 100) == {"value": expected}


def test_trims_spaces(tmp_path: Path) -> None:
    assert made(tmp_path, "value: 'a  {{- .Index -}}  b'").render(7, 100) == {"value": "a7b"}


@pytest.mark.parametrize(
    ("action", "message"),
    [
        pytest.param("{{ Add 1 2 }}", "unknown function 'Add'", id="an unknown function"),
        pytest.param("{{ .Name }}", "Name", id="an unknown field"),
        pytest.param("{{ DivideInt 1 0 }}", "ZeroDivision", id="a division by zero"),
        pytest.param("{{ AddInt (1 }}", "not closed", id="an open parenthesis"),
        pytest.param("{{ range .Items }}", "unknown function 'range'", id="a loop"),
    ],
)
def test_says_which_template_is_wrong(tmp_path: Path, action: str, message: str) -> None:
    with pytest.raises(FileError, match=rf"made\.yaml: .*{message}"):
        made(tmp_path, f"value: {action}").render(0, 1)


def test_objects_of_a_template_differ_by_index(tmp_path: Path) -> None:
    def change(item: dict, index: int) -> None:
        item["extra"] = index

    template = made(tmp_path, "name: pod-{{.Index}}")
    assert list(template.encode_all(2, change)) == [
        b'{"name": "pod-0", "extra": 0}',
        b'{"name": "pod-1", "extra": 1}',
    ]
    assert list(made(tmp_path, "name: pod").encode_all(2, change))[1] == b'{"name": "pod", "extra": 1}'


def test_knows_all_operations() -> None:
    known = {op.__struct_config__.tag for op in typing.get_args(perf_files.AnyOp)}
    assert opcodes() == known  # the workloads below run every one of them
    assert len(known) == 15


def test_reads_rows(rows: list[Row]) -> None:
    assert [row.name for row in rows] == [
        "topic/Everything/tiny",
        "topic/Everything/huge",
        "topic/Devices/tiny",
    ]
    tiny, huge, _ = rows
    assert tiny.labels == {"common", "quick"}
    assert (tiny.threshold, huge.threshold) == (5.0, 0.0)
    assert huge.gates == {"SchedulerQueueingHints": False}
    pods = [op for op in tiny.ops() if isinstance(op, CreatePods)]
    assert [(op.namespace, op.count) for op in pods] == [
        ("set-0", 2),
        ("set-1", 2),
        ("big", 3),
        ("volumes", 3),
    ]


def test_chooses_rows_by_label_and_name(rows: list[Row]) -> None:
    assert [row.name for row in choose(rows, "quick", "")] == ["topic/Everything/tiny", "topic/Devices/tiny"]
    assert [row.name for row in choose(rows, "common,-quick", "")] == ["topic/Everything/huge"]
    assert [row.name for row in choose(rows, "+quick", "Dev")] == ["topic/Devices/tiny"]


def test_overrides_parameters_that_a_row_has(rows: list[Row]) -> None:
    changes = {"nodes": "7", "steady": "false", "duration": "9s"}
    everything, _, devices = (row.with_params(changes).params for row in rows)
    assert everything == {"nodes": 7, "sets": 2, "pods": 3}
    assert devices == {"devices": 3, "pods": 2, "steady": False, "duration": "9s"}
    with pytest.raises(FileError, match="nodes=many: not a int"):
        rows[0].with_params({"nodes": "many"})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("opcode: sleep", "opcode: nap", "Invalid value 'nap'", id="an unknown operation"),
        pytest.param("duration: 200ms", "durations: 200ms", "durations", id="an unknown field"),
        pytest.param("params: {nodes", "params: {node", "parameter 'nodes' has no value", id="no value"),
    ],
)
def test_says_which_file_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write_world(tmp_path) / "topic" / "performance-config.yaml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(FileError, match=message) as error:
        list(read_rows(tmp_path)[0].ops())
    assert "topic" in str(error.value)


def test_parses_durations() -> None:
    assert parse_duration("1m30s") == 90
    assert parse_duration("250ms") == 0.25
    with pytest.raises(FileError, match="'10' is not a duration"):
        parse_duration("10")


def test_gates_go_to_both_schedulers(rows: list[Row]) -> None:
    tiny, huge, _ = rows
    assert scheduler_flags(tiny) == ["--feature-gates=SchedulerQueueingHints=true"]
    assert scheduler_flags(huge) == [
        "--feature-gates=SchedulerQueueingHints=false",
        "--emulated-version=1.33",
    ]
    assert notes_on(tiny, "stowplan") == notes_on(huge, "kube-scheduler") == []
    assert "SchedulerQueueingHints=false has no effect" in notes_on(huge, "stowplan")[0]


def a_slice() -> ResourceSlice:
    """Two devices, of which each takes the whole counter."""
    takes = [{"counterSet": "all", "counters": {"memory": {"value": "1"}}}]
    spec = {
        "driver": "test-driver",
        "nodeName": "n1",
        "pool": {"name": "p", "resourceSliceCount": 1, "generation": 1},
        "sharedCounters": [{"name": "all", "counters": {"memory": {"value": "1"}}}],
        "devices": [{"name": f"d{number}", "consumesCounters": takes} for number in range(2)],
    }
    return decode(ResourceSlice, json.dumps({"metadata": {"name": "s"}, "spec": spec}).encode())


def test_allocates_no_more_than_counters_allow() -> None:
    selector = {"cel": {"expression": "device.driver == 'test-driver'"}}
    classes = [{"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}}]
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}}
    free = FreeDevices([a_slice()], classes)
    allocation = free.allocate(claim)
    assert allocation["devices"]["results"][0]["pool"] == "p"
    assert allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["n1"]
    with pytest.raises(FileError, match="no device is left for ResourceClaim c"):
        free.allocate(claim)


def result(row: str, scheduler: str, cpu: float, rate: float, **others: object) -> Result:
    fields = {"round": 1, "pods": 10, "wanted": 10, **others}
    return Result(row=row, scheduler=scheduler, params={}, cpu=cpu, per_second=rate, **fields)


def test_lists_rows_that_are_not_ahead_first() -> None:
    results = [
        result("ahead", "kube-scheduler", 2.0, 100),
        result("ahead", "stowplan", 1.0, 100),
        result("slower", "kube-scheduler", 2.0, 100),
        result("slower", "stowplan", 1.0, 99),
        result("dearer", "kube-scheduler", 2.0, 100),
        result("dearer", "stowplan", 3.0, 200, notes=["Gate=true has no effect"]),
        result("stuck", "kube-scheduler", 2.0, 100),
        result("stuck", "stowplan", 1.5, 100, pods=9),
    ]
    assert [each.ours.row for each in compare(results)] == ["dearer", "stuck", "slower", "ahead"]
    shown = table(results)
    assert "| dearer | 0 | 10 | 3.00 / 2.00 | 1.50 | 200 / 100 | 2.00 |" in shown
    assert "stowplan: 9 of 10 bound" in shown
    assert "4 rows, 3 not ahead." in shown
    assert "[1] Gate=true has no effect" in shown


def test_a_steady_state_without_a_bound_pod_is_a_fault() -> None:
    results = [
        result("row", "kube-scheduler", 2.0, 1, wanted=None),
        result("row", "stowplan", 1.0, 1, wanted=None, pods=0),
    ]
    assert "stowplan: 0 bound" in table(results)
    assert compare(results)[0].is_behind


def test_medians_are_of_all_rounds() -> None:
    ours = [result("row", "stowplan", cpu, 100, round=number) for number, cpu in enumerate((1.0, 9.0, 2.0))]
    (compared,) = compare([result("row", "kube-scheduler", 4.0, 100), *ours])
    assert compared.ours.cpu == 2.0
    assert compared.cpu_ratio == 0.5


def test_runs_on_the_embedded_api_server_and_resumes(rows: list[Row], tmp_path: Path) -> None:
    resume = tmp_path / "results.jsonl"
    runner = Runner(tmp_path, embedded=True, before=None, timeout=100)
    (ran,) = asyncio.run(run_all(runner, rows[:1], ["stowplan"], 1, resume, "table"))
    assert (ran.error, ran.pods, ran.wanted, ran.nodes) == ("", 6, 6, 2)
    assert ran.cpu > 0
    assert ran.api_server_cpu > 0
    assert ran.calls is None  # nobody counts them there
    assert read_results(resume) == [ran]
    assert asyncio.run(run_all(runner, rows[:1], ["stowplan"], 1, resume, "table")) == [ran]
    assert read_results(resume) == [ran]  # nothing was run again


def test_a_run_whose_objects_are_rejected_ends_with_the_servers_message(tmp_path: Path) -> None:
    folder = write_world(tmp_path)
    (folder / "topic" / "templates" / "class.yaml").write_text(
        "{apiVersion: resource.k8s.io/v1alpha9, kind: DeviceClass, metadata: {name: gpu}}"
    )
    runner = Runner(tmp_path, embedded=True, before=None, timeout=100)
    (_, _, row) = read_rows(folder)
    ran = asyncio.run(runner.run(row, "stowplan", 1))
    assert "class.yaml: the server could not find the requested resource" in ran.error


def test_cpu_time_of_another_process_is_known_to_a_fraction_of_a_millisecond() -> None:
    program = "import time; print(time.process_time_ns(), flush=True); input()"
    with Popen([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        own = int(process.stdout.readline()) / 1e6
        seen = cpu_ms(process.pid)
        process.stdin.write("\n")
    assert own <= seen < own + 9  # what it used after it looked; a tick of /proc is 10 ms
    assert seen % 1  # /proc has whole ticks
    assert cpu_ms(process.pid) == 0.0  # it has ended


def test_gate_says_what_got_slower() -> None:
    assert "| +20.0% | **slower** |" in gate.report("plain", 1.0, 1.2, 0.05)
    assert gate.report("plain", 1.0, 1.04, 0.05).endswith("| +4.0% |  |")
    assert "faster" in gate.report("plain", 1.0, 0.9, 0.05)
    assert "new" in gate.report("plain", None, 0.9, 0.05)
