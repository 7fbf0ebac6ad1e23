"""The benchmark commands, on clusters small enough to say whether they work, not how fast."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from stowplan.bench.decisions import measure_here
from stowplan.bench.workloads import read_workloads
from stowplan.cli.bench import bench
from stowplan.errors import InputError


@pytest.mark.parametrize("workload", read_workloads(), ids=lambda workload: workload.name)
def test_every_workload_places_its_pods(workload):
    found = measure_here(workload, nodes=40, count=10)
    assert (found.workload, found.nodes, found.decisions) == (workload.name, 40, 10)
    assert 0 < found.p50 <= found.p99


def test_json_has_one_measurement_a_line():
    result = CliRunner().invoke(
        bench,
        ["decisions", "--nodes", "20", "--nodes", "30", "--count", "5", "--workload", "plain", "-o", "json"],
    )
    assert result.exit_code == 0
    measured = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["nodes"] for each in measured] == [20, 30]
    assert set(measured[0]) == {"workload", "nodes", "decisions", "perSecond", "p50", "p99", "cpu", "rssMb"}


def test_the_table_names_its_columns():
    result = CliRunner().invoke(bench, ["decisions", "--nodes", "20", "--count", "5", "--workload", "plain"])
    head, row = result.stdout.splitlines()
    assert head.split()[:3] == ["workload", "nodes", "decisions/s"]
    assert row.split()[:2] == ["plain", "20"]


def test_memory_says_what_it_read():
    result = CliRunner().invoke(bench, ["memory", "--nodes", "5", "--pods", "20"])
    assert result.exit_code == 0
    assert result.stdout.startswith("5 nodes and 20 pods of 5")


def test_an_unknown_workload_is_refused_with_those_there_are():
    with pytest.raises(InputError, match=r'unknown workload "nope" \(known: affinity-terms, anti-affinity, '):
        CliRunner().invoke(bench, ["decisions", "--workload", "nope"], catch_exceptions=False)


@pytest.mark.parametrize(
    "text", ["[", "workloads: 3", "nodeTemplate: {}\ninitialPods: {}\nworkloads: [{name: x}]"]
)
def test_a_file_of_other_things_is_refused(text):
    with pytest.raises(InputError, match="is not a valid workload file"):
        read_workloads(text)
