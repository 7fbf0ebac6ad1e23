"""Replays with plugins that fail, and traces that are not what they should be."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from small_trace import add, node, pod, trace_of

from stowplan.cli import stowplan
from stowplan.replay import write_trace

PLUGINS = """
from stowplan import Plugin


class Raising(Plugin):
    def filter(self, state, pod, node):
        raise RuntimeError("out of order")


class Looping(Plugin):
    budget = 0.05

    def filter(self, state, pod, node):
        while True:
            pass


class LoopingElsewhere(Raising):
    budget = 0.02

    def pod_added(self, pod):
        while pod.name == "one":
            pass
"""
CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins: {multiPoint: {enabled: [{name: NAME}]}}
"""


def run(folder, plugin):
    (folder / "plugins").mkdir()
    (folder / "plugins" / "bad.py").write_text(PLUGINS)
    (folder / "config.yaml").write_text(CONFIG.replace("NAME", plugin))
    write_trace(
        folder / "trace.jsonl", trace_of(add(0, node("a")), add(1, pod("one")), add(2, pod("two"))).events
    )
    words = ["replay", "trace.jsonl", "--config", "config.yaml", "--plugin-dir", "plugins"]
    return CliRunner().invoke(stowplan, words)


def test_a_plugin_that_raises_is_reported_once_and_the_replay_ends(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run(tmp_path, "Raising")
    assert found.exit_code == 0
    assert found.stderr.count("out of order") == 1
    assert "2 pods failed with an error, the first default/one" in found.stderr


def test_a_plugin_that_loops_ends_the_replay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run(tmp_path, "Looping")
    assert found.exit_code != 0
    assert "trace.jsonl: Pod default/one" in str(found.exception)
    assert "took more than 10 times its budget" in str(found.exception)


def test_a_plugin_that_loops_outside_of_a_decision_does_not_end_the_replay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run(tmp_path, "LoopingElsewhere")
    assert found.exit_code == 0, found.exception
    assert "2 pods failed with an error, the first default/one" in found.stderr


def test_an_absent_plugin_is_named_with_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run(tmp_path, "NoSuch")
    assert "config.yaml: initializing profiles" in str(found.exception)
    assert 'Plugin "NoSuch" does not exist' in str(found.exception)


@pytest.mark.parametrize("content", [b"\x00\xff", b"hello\n", b"{" * 5000, b'{"time":1e999,"verb":"add"}\n'])
def test_a_foreign_file_has_no_part_to_keep(content, tmp_path):
    (tmp_path / "trace.jsonl").write_bytes(content)
    found = CliRunner().invoke(stowplan, ["replay", str(tmp_path / "trace.jsonl")])
    assert found.exit_code == 1
    assert "trace.jsonl: line 1: is not an event" in found.stderr
    assert "intact" not in found.stderr
