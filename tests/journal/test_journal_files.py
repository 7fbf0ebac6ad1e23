"""The journal on disk: whole files always, merged, within limits, whatever happens to the process."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from keeping_decisions import attempt_of, records_of

from make import make_node, make_pod, planner
from stowplan import log
from stowplan.errors import InputError
from stowplan.journal import Decisions, parquet, reader, writer
from stowplan.journal.files import list_files
from stowplan.journal.writer import JournalWriter, writing
from stowplan.metrics import Metrics

START = 1_800_000_000.0


def decisions(count: int, nodes: int = 20):
    placing = planner([make_node(f"n{number}") for number in range(nodes)])
    for number in range(count):
        decision = placing.decide(make_pod(f"p{number}", requests={"cpu": f"{number + 1}m"}))
        placing.carry_out(decision)
        yield decision


def refuse(path: Path, error: Exception) -> None:
    raise AssertionError(f"{path} is damaged: {error}")


def write(directory: Path, *batches, **options) -> None:
    """Each batch is a file of its own, before merging."""
    for batch in batches:
        journal = JournalWriter(directory, every=60, **options)
        for record in batch:
            journal.add(record)
        journal.close()


def merge(directory: Path, most_files: int = 1) -> None:
    """What a writer does in a quiet moment."""
    journal = JournalWriter(directory, every=0.001)
    wait_for(lambda: len(list_files(directory)) <= most_files)
    journal.close()


@pytest.fixture
def logged(monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(log, "warn", lambda message, **_: lines.append(message))
    monkeypatch.setattr(log, "error", lambda message, error, **_: lines.append(message))
    monkeypatch.setattr(log, "log", lambda verbosity, message, **_: lines.append(message))
    return lines


def test_other_tools_read_what_is_asked_for_most(tmp_path):
    found = list(decisions(3))
    write(tmp_path, records_of(found))
    table = pq.read_table(tmp_path).to_pylist()
    assert [(row["pod"], row["node"]) for row in table] == [
        (f"default/p{number}", decision.chosen) for number, decision in enumerate(found)
    ]
    assert table[0]["time"].timestamp() == START
    assert {
        key: table[0][key] for key in ("profile", "attempt", "outcome", "node_count", "seconds", "message")
    } == {
        "profile": "default-scheduler",
        "attempt": 1,
        "outcome": "scheduled",
        "node_count": 20,
        "seconds": 0.25,
        "message": "",
    }


def test_a_decision_is_found_as_it_was_made(tmp_path):
    found = list(decisions(50))
    records = records_of(found)
    write(tmp_path, records[:20], records[20:])
    for decision in found:
        (record,) = reader.find(tmp_path, decision.pod.key, refuse)
        assert record.decision().as_golden() == decision.as_golden()
    assert reader.find(tmp_path, "default/unknown", refuse) == []
    assert reader.find(tmp_path, "other/p1", refuse) == []


def test_the_newest_attempt_comes_first(tmp_path):
    (decision,) = decisions(1)
    records = records_of([decision, decision, decision])
    write(tmp_path, records[:1], records[1:])
    assert [each.number for each in reader.find(tmp_path, "default/p0", refuse)] == [3, 2]


@pytest.mark.parametrize(
    "group_bytes",
    [
        pytest.param(parquet.GROUP_BYTES, id="small groups, made one"),
        pytest.param(100_000, id="small groups, made several"),
        pytest.param(1, id="large groups, as they are"),
    ],
)
def test_small_files_become_one_and_lose_nothing(tmp_path, group_bytes, monkeypatch):
    monkeypatch.setattr(parquet, "GROUP_BYTES", group_bytes)
    found = list(decisions(30, nodes=500))
    records = records_of(found)
    write(tmp_path, *(records[start : start + 3] for start in range(0, 30, 3)))
    assert len(list_files(tmp_path)) == 10
    merge(tmp_path)
    assert pq.read_table(tmp_path)["pod"].to_pylist() == [each.pod.key for each in found]
    for decision in found:
        (record,) = reader.find(tmp_path, decision.pod.key, refuse)
        assert record.decision().as_golden() == decision.as_golden()


def test_merged_decisions_share_what_they_have_in_common(tmp_path):
    records = records_of(list(decisions(40, nodes=500)))
    write(tmp_path, *([record] for record in records[:20]))
    alone = evidence_in(tmp_path)
    merge(tmp_path)
    assert evidence_in(tmp_path) < alone / 2
    (group,) = parquet.groups_of(records[:20])
    assert evidence_in(tmp_path) < 1.1 * group["evidence"].nbytes


def evidence_in(directory: Path) -> int:
    return pq.read_table(directory, columns=["evidence"]).nbytes


@pytest.mark.parametrize(
    "written_bytes",
    [pytest.param(10_000, id="groups made one"), pytest.param(50_000, id="groups as they are")],
)
def test_merging_takes_the_memory_of_a_few_groups(tmp_path, written_bytes, monkeypatch):
    """Arrow's memory and Python's are both counted."""
    group_bytes = 50_000
    monkeypatch.setattr(parquet, "GROUP_BYTES", written_bytes)
    records = records_of(list(decisions(120, nodes=500)))
    write(tmp_path, *(records for _ in range(writer.MIN_MERGED)))
    assert evidence_in(tmp_path) > 20 * group_bytes
    assert peak_of(lambda: merge(tmp_path)) < 10 * group_bytes


def peak_of(work) -> int:
    usual = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counting)
    tracemalloc.start()
    try:
        work()
        return counting.max_memory() + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)


def test_merging_gives_way_to_what_is_decided_and_to_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1)
    records = records_of(list(decisions(201)))
    write(tmp_path, *(records[start : start + 25] for start in range(0, 200, 25)))
    journal = JournalWriter(tmp_path, every=0.001)
    wait_for(lambda: unfinished(tmp_path))
    journal.add(records[-1])
    wait_for(lambda: reader.find(tmp_path, "default/p200", refuse))
    assert unfinished(tmp_path)
    journal.close()
    assert len(list_files(tmp_path)) == 9
    assert not unfinished(tmp_path)


def unfinished(directory: Path) -> list[str]:
    return [each.name for each in directory.iterdir() if each.name.startswith(".unfinished")]


def test_a_file_that_was_merged_already_does_not_count(tmp_path):
    """As when the process is killed after it wrote the merged file and before it deleted the others."""
    records = records_of(list(decisions(writer.MIN_MERGED)))
    write(tmp_path, *([record] for record in records))
    before = {each.path: each.path.read_bytes() for each in list_files(tmp_path)}
    merge(tmp_path)
    (merged,) = list_files(tmp_path)
    for path, data in before.items():
        path.write_bytes(data)
    assert list_files(tmp_path) == [merged]
    write(tmp_path, [])
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".parquet"] == [merged.path.name]


def test_the_oldest_files_go_beyond_the_size(tmp_path):
    records = records_of(list(decisions(6)))
    write(tmp_path, *([record] for record in records))
    size = list_files(tmp_path)[0].size
    write(tmp_path, [], size=3.5 * size)
    assert sum(each.size for each in list_files(tmp_path)) <= 3.5 * size
    assert reader.find(tmp_path, "default/p0", refuse) == []
    assert reader.find(tmp_path, "default/p5", refuse)


def test_files_go_beyond_the_age(tmp_path):
    first, second = records_of(list(decisions(2)))
    write(tmp_path, [first], now=lambda: START)
    write(tmp_path, [second], now=lambda: START + 50, age=100)
    assert len(list_files(tmp_path)) == 2
    write(tmp_path, [], now=lambda: START + 120, age=100)
    assert reader.find(tmp_path, "default/p0", refuse) == []
    assert reader.find(tmp_path, "default/p1", refuse)


def test_a_clock_that_goes_back_overwrites_nothing(tmp_path):
    first, second = records_of(list(decisions(2)))
    write(tmp_path, [first], now=lambda: START)
    write(tmp_path, [second], now=lambda: START - 1000)
    assert len(list_files(tmp_path)) == 2


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-30], id="cut short"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: b"PAR1" + b"\0" * 100 + b"PAR1", id="zeros"),
        pytest.param(lambda data: data[:200] + bytes(len(data) - 400) + data[-200:], id="a hole in it"),
    ],
)
def test_a_damaged_file_is_named_and_skipped(tmp_path, damage, logged):
    records = records_of(list(decisions(3)))
    write(tmp_path, *([record] for record in records))
    broken = list_files(tmp_path)[1].path
    broken.write_bytes(damage(broken.read_bytes()))
    named: list[Path] = []
    assert reader.find(tmp_path, "default/p0", lambda path, error: named.append(path))
    assert named == [broken]
    more = records_of(list(decisions(2 * writer.MIN_MERGED)))
    write(tmp_path, *([record] for record in more))
    merge(tmp_path, most_files=3)
    assert broken.exists()
    assert len(reader.find(tmp_path, "default/p15", lambda *_: None)) == 1
    assert set(logged) == {"Journal file cannot be read and is not merged"}


def test_a_file_of_another_format_is_named_and_kept(tmp_path, logged):
    records = records_of(list(decisions(writer.MIN_MERGED + 1)))
    write(tmp_path, *([record] for record in records[:-1]))
    old = list_files(tmp_path)[0].path
    pq.write_table(pa.table({"pod": ["p0"]}, metadata={"stowplan.journal": "1"}), old)
    said: list[str] = []
    assert not reader.find(tmp_path, "default/p0", lambda path, error: said.append(f"{path}: {error}"))
    assert said == [
        f"{old}: its format is 1, and this version of stowplan reads only 3: "
        "use the version that wrote the file, or delete it"
    ]
    write(tmp_path, records[-1:])
    merge(tmp_path, most_files=2)
    assert old.exists()
    assert logged == ["Journal file cannot be read and is not merged"]


def test_two_processes_cannot_write_to_one_directory(tmp_path):
    journal = JournalWriter(tmp_path, every=60)
    with pytest.raises(InputError, match="another process writes its journal there"):
        JournalWriter(tmp_path)
    journal.close()
    JournalWriter(tmp_path, every=60).close()


def test_a_directory_that_is_none(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write a journal there"):
        JournalWriter(tmp_path / "file")
    for name, said in (
        ("nowhere", "no such directory"),
        ("file", "no such directory"),
        ("x" * 300, "cannot read the directory: File name too long"),
    ):
        with pytest.raises(InputError, match=said):
            reader.find(tmp_path / name, "default/p", refuse)


def test_what_cannot_be_written_is_said_and_later_ones_are(tmp_path, logged):
    first, second = records_of(list(decisions(2)))
    folder = tmp_path / "journal"
    journal = JournalWriter(folder, every=0.01)
    (folder / ".lock").unlink()
    folder.rmdir()
    journal.add(first)
    wait_for(lambda: "Journal cannot be written" in logged)
    folder.mkdir()
    journal.add(second)
    journal.close()
    assert reader.find(folder, "default/p0", refuse)
    assert reader.find(folder, "default/p1", refuse)


class Disk:
    """Has room for so many bytes, and for files of so many, as it says when one is to be on it for good."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._fsync = directory, os.fsync
        self.room = self.room_for_a_file = math.inf

    def fsync(self, file: int) -> None:
        used = sum(each.stat().st_size for each in self._directory.iterdir())
        if used > self.room or os.fstat(file).st_size > self.room_for_a_file:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._fsync(file)


@pytest.fixture
def disk(tmp_path, monkeypatch):
    disk = Disk(tmp_path)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    return disk


def test_on_a_full_disk_the_oldest_files_go(tmp_path, disk, logged):
    records = records_of(list(decisions(30)))
    write(tmp_path, records[:1])
    disk.room = 5.5 * list_files(tmp_path)[0].size
    journal = JournalWriter(tmp_path, every=0.001)
    for number, record in enumerate(records[1:], 1):
        journal.add(record)
        wait_for(lambda number=number: reader.find(tmp_path, f"default/p{number}", refuse))
    journal.close()
    assert sum(each.size for each in list_files(tmp_path)) <= disk.room
    assert not reader.find(tmp_path, "default/p20", refuse)
    assert reader.find(tmp_path, "default/p27", refuse)
    assert logged == ["Disk is full; deleting the oldest files of the journal"]


def test_where_there_is_no_room_to_merge_writing_goes_on(tmp_path, disk, logged, monkeypatch):
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1)
    records = records_of(list(decisions(13)))
    write(tmp_path, *([record] for record in records[:10]))
    disk.room_for_a_file = 1.1 * max(each.size for each in list_files(tmp_path))
    journal = JournalWriter(tmp_path, every=0.001)
    for number, record in enumerate(records[10:], 10):
        journal.add(record)
        wait_for(lambda number=number: reader.find(tmp_path, f"default/p{number}", refuse))
    journal.close()
    assert len(list_files(tmp_path)) == 13
    assert not unfinished(tmp_path)
    assert logged == []


def test_what_finds_no_room_waits_for_it(tmp_path, disk, logged):
    """As when others fill the disk."""
    first, second, third = records_of(list(decisions(3)))
    disk.room = 0
    journal = JournalWriter(tmp_path, every=0.001)
    journal.add(first)
    wait_for(lambda: logged)
    journal.add(second)
    time.sleep(0.05)
    assert not list_files(tmp_path)
    disk.room = math.inf
    journal.add(third)
    wait_for(lambda: len(logged) > 1)
    journal.close()
    assert pq.read_table(tmp_path)["pod"].to_pylist() == ["default/p0", "default/p1", "default/p2"]
    assert logged == ["Journal cannot be written", "Journal can be written again"]


@pytest.fixture
def lost(monkeypatch):
    counts: list[int] = []
    monkeypatch.setattr(log, "error", lambda *_, **__: None)
    monkeypatch.setattr(log, "warn", lambda message, **fields: counts.append(fields["count"]))
    return counts


def test_what_never_finds_room_is_counted(tmp_path, disk, lost, monkeypatch):
    monkeypatch.setattr(writer, "MAX_WAITING", 3)
    disk.room = 0
    write(tmp_path, records_of(list(decisions(5))))
    assert sum(lost) == 5


def test_a_decision_that_cannot_be_written_does_not_hold_up_others(tmp_path, lost):
    first, second = records_of(list(decisions(2)))
    first.pod = "\ud800"
    journal = JournalWriter(tmp_path, every=0.001)
    journal.add(first)
    wait_for(lambda: lost)
    journal.add(second)
    journal.close()
    assert lost == [1]
    assert pq.read_table(tmp_path)["pod"].to_pylist() == ["default/p1"]


def test_what_does_not_keep_up_is_said(tmp_path, logged, monkeypatch):
    monkeypatch.setattr(writer, "MAX_WAITING", 2)
    write(tmp_path, records_of(list(decisions(5))))
    assert logged == ["Decisions are missing from the journal"]
    assert len(pq.read_table(tmp_path)) == 2


ENDLESS = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from keeping_decisions import attempt_of
from test_journal_files import decisions
from stowplan.journal import Decisions
from stowplan.journal.writer import JournalWriter
from stowplan.metrics import Metrics
journal = JournalWriter(Path({directory!r}), every=0.005)
kept = Decisions(write=journal.add)
for decision in decisions(100_000, nodes=500):
    kept.keep(decision, attempt_of(decision))
"""


def test_kill_leaves_whole_files(tmp_path):
    folder = tmp_path / "journal"
    here = Path(__file__).parent
    program = ENDLESS.format(paths=[str(here), str(here.parent)], directory=str(folder))
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        wait_for(lambda: folder.is_dir() and len(list_files(folder)) >= 3)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    names = [name for each in list_files(folder) for name in pq.read_table(each.path)["pod"].to_pylist()]
    total = len(names)
    assert total > 0
    assert names == [f"default/p{number}" for number in range(total)]
    (later,) = records_of(list(decisions(1)))
    write(folder, [later])
    assert not [each for each in folder.iterdir() if each.name.startswith(".unfinished")]
    assert sum(len(pq.read_table(each.path)) for each in list_files(folder)) == total + 1


def wait_for(is_so, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


__all__ = ["attempt_of"]


def test_files_of_others_are_left_alone(tmp_path):
    notes = [tmp_path / "decisions-notes.txt", tmp_path / "decisions-2026-report.parquet"]
    for each in notes:
        each.write_text("keep me")
    JournalWriter(tmp_path).close()
    assert [each.read_text() for each in notes] == ["keep me", "keep me"]


def test_a_journal_that_fails_shows_in_the_metrics(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "MAX_WAITING", 2)
    found, folder, metrics = list(decisions(4)), tmp_path / "journal", Metrics()
    kept = Decisions(0)

    def shown() -> list[str]:
        assert kept.journal is not None
        metrics.journal(kept.journal.is_failing, kept.journal.lost)
        page = metrics.page.render().decode().splitlines()
        return [line for line in page if line.startswith("stowplan_journal")]

    with writing(kept, folder, size=2**20, age=3600):
        assert shown() == ["stowplan_journal_failing 0", "stowplan_journal_lost_decisions_total 0"]
        folder.rename(tmp_path / "elsewhere")
        for decision in found:
            kept.keep(decision, attempt_of(decision))
        kept.flush()
        wait_for(lambda: shown() == ["stowplan_journal_failing 1", "stowplan_journal_lost_decisions_total 2"])
        (tmp_path / "elsewhere").rename(folder)
        wait_for(lambda: shown() == ["stowplan_journal_failing 0", "stowplan_journal_lost_decisions_total 2"])
    assert reader.find(folder, "default/p1", refuse)
