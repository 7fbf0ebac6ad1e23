"""The queries of docs/journal-queries.md, run by DuckDB on a journal."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from keeping_decisions import attempt_of
from test_journal_files import write

from make import make_node, make_pod, planner
from stowplan.journal.record import RecordMaker

PAGE = (Path(__file__).parents[2] / "docs/journal-queries.md").read_text()
QUERIES = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```sql\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
ASK = """
import pickle
import sys

import duckdb

queries = pickle.load(sys.stdin.buffer)
pickle.dump({title: duckdb.sql(query).fetchall() for title, query in queries.items()}, sys.stdout.buffer)
"""
SMALL, LARGE = ({"cpu": cpu, "memory": "8Gi", "pods": "10"} for cpu in ("2", "8"))


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """Four nodes, pods that fit, a pod that never does, and one that evicts another."""
    placing = planner(
        [
            *(make_node(f"small-{n}", allocatable=SMALL) for n in range(3)),
            make_node("large", allocatable=LARGE),
        ]
    )
    pods = [make_pod(f"web-{n}", namespace="shop", requests={"cpu": "1"}) for n in range(8)]
    pods += [make_pod("huge", namespace="batch", requests={"cpu": "64"})] * 2
    pods += [make_pod("urgent", namespace="ops", requests={"cpu": "8"}, priority=100)]
    maker, records = RecordMaker(2**20), []
    for number, pod in enumerate(pods):
        decision = placing.decide(pod)
        placing.carry_out(decision)
        attempt = 2 if number == 9 else 1
        records.append(
            maker.make_record(decision, attempt_of(decision, number=attempt, time=1_800_000_000.0 + number))
        )
    folder = tmp_path_factory.mktemp("queries")
    write(folder / "journal", records)
    return folder


@pytest.fixture(scope="module")
def ask(journal):
    """Ask in a process of its own: in one that xdist ends, DuckDB reports leaks on stderr."""
    command = [sys.executable, "-c", ASK]
    done = subprocess.run(command, input=pickle.dumps(QUERIES), cwd=journal, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return pickle.loads(done.stdout).__getitem__


def test_nodes_that_lose(ask):
    found = ask("Which nodes lose most often, and by which score?")
    assert {node for node, *_ in found} <= {"small-0", "small-1", "small-2", "large"}
    assert {plugin for _, plugin, *_ in found} <= {"NodeResourcesFit", "NodeResourcesBalancedAllocation"}
    assert found[0][2] >= 2


def test_reasons_of_pending_pods(ask):
    reasons = {(plugin, reason) for plugin, reason, *_ in ask("Why do pods stay pending?")}
    assert reasons == {("NodeResourcesFit", "Insufficient cpu")}


def test_pods_that_waited(ask):
    ((pod, attempts, waited, reason),) = ask("Which pods waited longest for a node?")
    assert (pod, attempts, waited.total_seconds()) == ("batch/huge", 2, 1.0)
    assert reason.startswith("0/4 nodes are available: 4 Insufficient cpu.")


def test_close_decisions(ask):
    found = ask("How close are decisions, and which plugin makes the difference?")
    assert sum(decisions for _, decisions, *_ in found) > 4
    assert all(0 <= tied <= 100 for _, _, tied, _ in found)


def test_evictions(ask):
    ((evicting, evicted, pods, gap),) = ask("Which namespaces evict whose pods?")
    assert (evicting, evicted, gap) == ("ops", "shop", 100)
    assert pods >= 1


def test_durations(ask):
    assert {(outcome, p50) for _, outcome, _, p50, _ in ask("How long do attempts take?")} == {
        ("scheduled", 0.25),
        ("unschedulable", 0.25),
    }


def test_every_query_of_the_page_is_asked_here():
    asked = set(re.findall(r'ask\("(.+?)"\)', Path(__file__).read_text()))
    assert set(QUERIES) == asked
