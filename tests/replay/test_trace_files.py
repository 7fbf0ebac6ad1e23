"""Trace files: written and read again, and what is wrong with damaged or foreign ones."""

# ruff: noqa: E501 (messages are written in one line)

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_trace import add, busy_trace, change, node, pod, trace_of

from stowplan.errors import InputError
from stowplan.replay import read_trace, write_trace
from stowplan.replay.trace import Event


@pytest.mark.parametrize("name", ["trace.parquet", "trace.jsonl"])
def test_what_was_written_is_read(tmp_path, name):
    trace = trace_of(
        add(0, node("a")),
        add(1.25, pod("web"), run_seconds=3.5),
        change(2, "bind", pod("web"), node="a", by="kube-scheduler", earliest=1.5),
        change(3, "delete", pod("web")),
    )
    write_trace(tmp_path / name, trace.events)
    found = read_trace(tmp_path / name)
    assert found.faults == []
    for read, written in zip(found.events, trace.events, strict=True):
        assert bytes(read.object) == bytes(written.object)
        for field in (
            "time",
            "verb",
            "kind",
            "name",
            "namespace",
            "uid",
            "node",
            "by",
            "run_seconds",
            "earliest",
        ):
            assert getattr(read, field) == getattr(written, field)


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    events = busy_trace().events
    write_trace(tmp_path / "trace-000001.parquet", events[:20])
    write_trace(tmp_path / "trace-000002.parquet", events[20:40])
    write_trace(tmp_path / "trace-000003.jsonl", events[40:])
    assert len(read_trace(tmp_path).events) == len(events)


def test_duckdb_reads_a_trace(tmp_path):
    import duckdb

    write_trace(tmp_path / "trace.parquet", busy_trace(pods=3).events)
    query = f"""select name, object->>'$.spec.containers[0].resources.requests.cpu' from '{tmp_path}/trace.parquet'
        where kind = 'Pod' order by time"""
    assert duckdb.sql(query).fetchall() == [("pod-0", "500m"), ("pod-1", "1000m"), ("pod-2", "1500m")]


def lines(*events: Event) -> list[str]:
    return [msgspec.json.encode(each).decode() for each in events]


GOOD = lines(add(0, node("a")), add(1, pod("web")))


def faults_of(tmp_path, *text: str):
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(text))
    found = read_trace(file)
    return [str(each).replace(str(file), "FILE") for each in found.faults], len(found.events)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param('{"time": 2, "verb": "add", "ki', "FILE: line 3: is not an event: Input data was truncated; "
                     "the file seems to be cut off here", id="cut off"),
        pytest.param('{"time": 2, "verb": "add", "kind": "Pod", "name": "x", "colour": "red"}',
                     "FILE: line 3: is not an event: Object contains unknown field `colour`", id="unknown field"),
        pytest.param('{"time": 0.5, "verb": "delete", "kind": "Pod", "name": "web", "uid": "web"}',
                     "FILE: line 3: Pod web: time: the time goes back from 1.000000 to 0.500000; sort the events by time",
                     id="the clock goes back"),
        pytest.param(lines(add(2, pod("short"), run_seconds=-5.0))[0],
                     "FILE: line 3: Pod default/short: run_seconds: the pod ends 5 seconds before it starts",
                     id="ends before it starts"),
        pytest.param('{"time": 2, "verb": "delete", "kind": "Pod", "name": "other"}',
                     "FILE: line 3: Pod other: the verb delete comes before the pod was added", id="unknown pod"),
        pytest.param(lines(add(2, pod("web")))[0],
                     "FILE: line 3: Pod default/web: uid: the pod is added twice; give each pod a uid of its own",
                     id="twice"),
        pytest.param('{"time": 2, "verb": "bind", "kind": "Pod", "name": "web", "uid": "web"}',
                     "FILE: line 3: Pod web: node: is required for the verb bind", id="no node"),
        pytest.param('{"time": 2, "verb": "add", "kind": "Pod", "name": "bare"}',
                     "FILE: line 3: Pod bare: object: is required for the verb add", id="no object"),
        pytest.param('{"time": 2, "verb": "explode", "kind": "Pod", "name": "web"}',
                     "FILE: line 3: is not an event: Invalid enum value 'explode' - at `$.verb`", id="unknown verb"),
    ],
)  # fmt: skip
def test_a_fault_has_its_place_and_what_came_before_is_kept(tmp_path, line, expected):
    found, kept = faults_of(tmp_path, *GOOD, line)
    assert [found, kept] == [[expected], 2]


def test_a_truncated_parquet_file(tmp_path):
    file = tmp_path / "trace.parquet"
    write_trace(file, busy_trace().events)
    file.write_bytes(file.read_bytes()[:-100])
    (fault,) = read_trace(file).faults
    assert str(fault).startswith(f"{file}: is not a Parquet file, or is cut off: ")


def test_in_a_folder_the_files_before_a_damaged_one_are_kept(tmp_path):
    events = busy_trace().events
    write_trace(tmp_path / "trace-1.parquet", events[:20])
    (tmp_path / "trace-2.parquet").write_bytes(b"PAR1 and then nothing")
    found = read_trace(tmp_path)
    assert len(found.events) == 20
    assert "trace-2.parquet" in str(found.faults[0])


def test_a_damaged_row_group(tmp_path):
    file = tmp_path / "trace.parquet"
    write_trace(file, busy_trace().events)
    data = bytearray(file.read_bytes())
    data[4:400] = bytes(396)
    file.write_bytes(data)
    (fault,) = read_trace(file).faults
    assert str(fault).startswith(f"{file}: row 1: is damaged: ")


@pytest.mark.parametrize(
    ("columns", "metadata", "expected"),
    [
        pytest.param(
            {"a": [1]},
            {},
            "is a Parquet file, but not a trace: its metadata has no stowplan.trace",
            id="foreign",
        ),
        pytest.param(
            {"a": [1]},
            {"stowplan.trace": "9"},
            "is a trace of format 9; this version reads format 1",
            id="newer",
        ),
        pytest.param({"a": [1]}, {"stowplan.trace": "1"}, "unknown column 'a'", id="unknown column"),
        pytest.param({"time": [1.0]}, {"stowplan.trace": "1"}, "has no column 'verb'", id="missing column"),
        pytest.param(
            {"time": [1.0], "verb": ["add"], "kind": [None], "name": ["x"]},
            {"stowplan.trace": "1"},
            "row 1: is not an event: Object missing required field `kind`",
            id="null",
        ),
    ],
)
def test_parquet_files_of_others(tmp_path, columns, metadata, expected):
    file = tmp_path / "trace.parquet"
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), file)
    (fault,) = read_trace(file).faults
    assert str(fault) == f"{file}: {expected}"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("missing.parquet", "does not exist"),
        ("picture.png", "unknown file type; expected a name that ends in .parquet, .jsonl, .sktrace, .log (audit "
         "log), .csv (with --mapping), .yaml or .json"),
        ("pods.csv", "a CSV file needs --mapping, which says what its columns are"),
    ],
)  # fmt: skip
def test_what_is_no_trace_by_its_name(tmp_path, name, expected):
    file = tmp_path / name
    if not name.startswith("missing"):
        file.touch()
    with pytest.raises(InputError) as error:
        read_trace(file)
    assert str(error.value) == f"{file}: {expected}"


def test_a_full_disk_is_an_error(tmp_path):
    (tmp_path / "trace.jsonl").symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"trace\.jsonl: cannot be written: No space left on device"):
        write_trace(tmp_path / "trace.jsonl", busy_trace().events)


def test_a_file_that_cannot_be_finished_is_not_left_behind(tmp_path):
    def events():
        yield from busy_trace().events[:5]
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="No space left on device"):
        write_trace(tmp_path / "trace.parquet", events())
    assert list(tmp_path.iterdir()) == []
