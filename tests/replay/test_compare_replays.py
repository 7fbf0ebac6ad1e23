"""Comparing replays: measures, decisions that differ, conditions, the page; and the commands around them."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner
from small_trace import add, busy_trace, change, node, pod, trace_of

from stowplan.cli import stowplan
from stowplan.errors import InputError
from stowplan.replay import write_trace
from stowplan.replay.compare import Condition

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: STRATEGY, resources: [{name: cpu, weight: 1}, {name: memory, weight: 1}]}}
"""


@pytest.fixture
def folder(tmp_path):
    write_trace(tmp_path / "trace.parquet", busy_trace().events)
    for name, strategy in (("spread", "LeastAllocated"), ("pack", "MostAllocated")):
        (tmp_path / f"{name}.yaml").write_text(CONFIG.replace("STRATEGY", strategy))
    (tmp_path / "missing.yaml").write_text(CONFIG.replace("NodeResourcesFit", "NoSuchPlugin"))
    return tmp_path


def run(*words, exit_code=0):
    found = CliRunner().invoke(stowplan, [str(each) for each in words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == exit_code, found.output
    return found


def compare(folder, *words, exit_code=0):
    configs = ("--config", folder / "spread.yaml", "--config", folder / "pack.yaml")
    return run("compare", folder / "trace.parquet", *configs, *words, exit_code=exit_code)


def test_replay_prints_measures_and_writes_results(folder):
    found = run("replay", folder / "trace.parquet", "--results", folder / "out.jsonl", "-o", "json")
    metrics = json.loads(found.stdout)
    assert metrics["pods.total"] == 60
    assert metrics["pods.bound"] == 60
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 60
    assert {"name", "node", "bound", "ended"} <= rows[0].keys()


def test_replay_shows_progress(folder):
    found = run("replay", folder / "trace.parquet", "--progress")
    assert "65 of 65 events (100 %)" in found.stderr


def test_compare_prints_measures_and_differences(folder):
    text = compare(folder).stdout
    assert "METRIC" in text
    assert "waiting.p95" in text
    assert "pods have another node" in text
    assert "default/pod-1" in text


def test_a_difference_is_a_tie_only_if_it_is_one_for_all(folder):
    """With one the nodes are tied, with the other one of them wins."""
    nodes = [add(0, node(name)) for name in ("a", "b", "c")]
    trace = trace_of(*nodes, add(1, pod("old", nodeName="b")), add(5, pod("new")))
    write_trace(folder / "trace.parquet", trace.events)
    found = compare(folder, "--explain", "1").stdout
    assert re.search(r"default/new +a +b +policy, or other pods before it", found), found
    assert "default/new with spread:" in found


def test_compare_as_json_explains_decisions(folder):
    found = json.loads(compare(folder, "-o", "json", "--explain", "2").stdout)
    assert set(found["metrics"]) == {"spread", "pack"}
    assert found["metrics"]["pack"]["nodes.used"] < found["metrics"]["spread"]["nodes.used"]
    first = found["differences"][0]
    assert first["nodes"]["spread"] != first["nodes"]["pack"]
    assert "NodeResourcesFit" in first["explanations"]["pack"]
    assert "explanations" not in found["differences"][2]


def test_the_page_stands_alone(folder):
    compare(folder, "--html", folder / "page.html")
    page = (folder / "page.html").read_text()
    assert page.count("<svg") >= 5
    assert "<polyline" in page
    assert "src=" not in page
    assert "href=" not in page
    assert "<details>" in page


@pytest.mark.parametrize(
    ("condition", "exit_code"),
    [
        ("nodes.used < -5%", 3),
        ("nodes.used > +0%", 0),
        ("pods.bound < 60", 0),
        ("pods.bound >= 60", 3),
        ("evictions > +0", 0),
    ],
)
def test_a_condition_fails_the_command(folder, condition, exit_code):
    found = compare(folder, "--fail-if", condition, exit_code=exit_code)
    assert (f"failed: pack: {condition}" in found.stderr) == bool(exit_code)


@pytest.mark.parametrize("text", ["waiting.p95", "waiting.p95 > much", "> 5", "a > 1 > 2"])
def test_what_is_no_condition(text):
    with pytest.raises(InputError, match=r"expected a condition such as 'waiting\.p95 > \+10%'"):
        Condition.parse(text)


def test_an_unknown_metric_names_those_there_are(folder):
    with pytest.raises(
        InputError, match=r"--fail-if: speed > 1: unknown metric 'speed'; there is pods\.total, "
    ):
        compare(folder, "--fail-if", "speed > 1")


def test_compare_with_what_was_recorded(folder):
    trace = trace_of(
        add(0, node("a")),
        add(0, node("b")),
        add(1, pod("web")),
        change(4, "bind", pod("web"), node="b", by="kube-scheduler"),
    )
    write_trace(folder / "recorded.jsonl", trace.events)
    words = (
        "compare",
        folder / "recorded.jsonl",
        "--config",
        folder / "pack.yaml",
        "-o",
        "json",
        "--scheduler",
    )
    found = json.loads(run(*words, "kube-scheduler").stdout)
    assert found["differences"][0]["nodes"] == {"kube-scheduler": "b", "pack": "a"}
    with pytest.raises(InputError, match="no pod was bound by 'volcano'; pods were bound by kube-scheduler"):
        run(*words, "volcano")


def test_finished_replays_are_not_run_again(folder):
    first = compare(folder, "--resume", folder / "kept", "-o", "json", "--explain", "0").stdout
    kept = sorted((folder / "kept").iterdir())
    assert len(kept) == 2
    stamps = [each.stat().st_mtime_ns for each in kept]
    assert compare(folder, "--resume", folder / "kept", "-o", "json", "--explain", "0").stdout == first
    assert [each.stat().st_mtime_ns for each in kept] == stamps
    kept[0].write_bytes(b'{"source": ')  # as after a crash
    again = json.loads(compare(folder, "--resume", folder / "kept", "-o", "json", "--explain", "0").stdout)
    assert again["differences"] == json.loads(first)["differences"]


def test_processes_give_the_same(folder):
    def without_times(text):
        found = json.loads(text)
        for metrics in found["metrics"].values():
            del metrics["decision.p50"], metrics["decision.p95"]
        return found

    one = compare(folder, "-o", "json", "--explain", "0").stdout
    two = compare(folder, "-o", "json", "--explain", "0", "--jobs", "2").stdout
    assert without_times(one) == without_times(two)


def test_a_missing_plugin_is_an_error(folder):
    text = (folder / "missing.yaml").read_text()
    (folder / "missing.yaml").write_text(
        text + "  plugins: {multiPoint: {enabled: [{name: NoSuchPlugin}]}}\n"
    )
    with pytest.raises(InputError, match="NoSuchPlugin"):
        run("replay", folder / "trace.parquet", "--config", folder / "missing.yaml")


def test_a_damaged_trace_stops_the_replay_unless_the_rest_will_do(folder):
    write_trace(folder / "cut.jsonl", busy_trace().events)
    text = (folder / "cut.jsonl").read_text()
    (folder / "cut.jsonl").write_text(text[: len(text) // 2])
    found = run("replay", folder / "cut.jsonl", exit_code=1)
    assert "the file seems to be cut off here" in found.stderr
    assert "events before it are intact; use --partial to replay them." in found.stderr
    found = run("replay", folder / "cut.jsonl", "--partial", "-o", "json")
    assert 0 < json.loads(found.stdout)["pods.total"] < 60


def test_results_on_a_full_disk(folder):
    (folder / "out.jsonl").symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"out\.jsonl: cannot be written: No space left on device"):
        run("replay", folder / "trace.parquet", "--results", folder / "out.jsonl")


def test_names_from_a_trace_are_only_text_on_the_page(folder):
    evil = "<script>alert(1)</script>"
    trace = trace_of(
        add(0, node("0")),
        add(0, node(evil)),
        add(1, pod(evil)),
        change(4, "bind", pod(evil), node=evil, by="kube-scheduler"),
    )
    write_trace(folder / "evil.jsonl", trace.events)
    words = ("--config", folder / "pack.yaml", "--scheduler", "recorded", "--html", folder / "page.html")
    run("compare", folder / "evil.jsonl", *words)
    page = (folder / "page.html").read_text()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
