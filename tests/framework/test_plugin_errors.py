"""Where a plugin failed: exception, file and line, in log, event, `explain`, page and testing kit."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stowplan import log
from stowplan.config import load
from stowplan.embedded import embedded_cluster
from stowplan.framework.registry import Registry
from stowplan.testing import a_cluster
from stowplan.web import Source, answer_by_name, make_pages, serve_locally

HELPER = """
import json


def parse(text):
    return json.loads(text)
"""
PLUGIN = """
import logging

from failing_helper import parse
from stowplan import Plugin

logger = logging.getLogger(__name__)


class Failing(Plugin):
    def filter(self, state, pod, node):
        logger.info("Looking at %s", node.name)
        logger.debug("Details of %s", node.name)
        self.handle.log.info("Asked about %s", pod.name)
        logging.warning("From the root logger")
        if pod.name.startswith("broken"):
            return parse("{not json")  # line 17
        return None


class Undecided(Plugin):
    def permit(self, state, pod, node_name):
        logger.info("Permitted")
        if pod.name.startswith("unpermitted"):
            raise LookupError("no opinion")  # line 25
        return None
"""
CONFIG = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Failing"}, {"name": "Undecided"}]}}}],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "failing_helper.py").write_text(HELPER)
    (tmp_path / "failing_plugin.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for module in ("failing_helper", "failing_plugin"):
        sys.modules.pop(module, None)


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What the scheduler's own logging writes, as JSON lines."""
    root, ours = logging.root, logging.getLogger("stowplan")
    before = (root.handlers[:], root.level, ours.level)
    stream = io.StringIO()
    log.configure(style="json", stream=stream)
    yield stream
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def a_pod(name: str) -> dict[str, Any]:
    container = {"name": "main", "image": "web:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container]},
    }


def test_the_kit_shows_the_line_and_the_traceback(folder):
    cluster = a_cluster(config=CONFIG, plugin_dir=folder).node("a")
    outcome = cluster.decide("broken").fails("JSONDecodeError").fails("failing_helper.py:6")
    assert "(pod default/broken, node a, at failing_helper.py:6)" in str(outcome.decision.error)
    with pytest.raises(AssertionError) as failed:
        outcome.lands_on("a")
    shown = str(failed.value)
    assert 'failing_plugin.py", line 17, in filter' in shown
    assert "json/decoder.py" in shown
    assert "cycle/filters.py" not in shown


async def test_event_explain_and_page_name_the_line(folder):
    async with embedded_cluster(config=CONFIG, plugin_dirs=[folder]) as cluster:
        await cluster.create(a_pod("broken"), a_pod("unpermitted"))
        assert "(pod default/broken, node node-1, at failing_helper.py:6)" in await cluster.rejected("broken")
        assert "(pod default/unpermitted, node node-1, at failing_plugin.py:25)" in await cluster.rejected(
            "unpermitted"
        )

        async def notes() -> list[str]:
            told = [str(each.get("message", each.get("note"))) for each in await cluster.list("Event")]
            return [each for each in told if "failing_" in each]

        noted = " ".join(await cluster.until(notes))
        assert "JSONDecodeError" in noted
        assert "failing_helper.py:6" in noted
        assert "failing_helper.py:6" in cluster.explain("broken")
        assert "at failing_plugin.py:25)" in cluster.explain("unpermitted")
        registry = Registry.installed([folder])
        config = load(CONFIG, registry).config
        source = Source(cluster.decisions, lambda: cluster.scheduler, lambda: config, lambda: registry)
        async with (
            serve_locally(answer_by_name(make_pages(source))) as link,
            aiohttp.ClientSession() as session,
            session.get(f"{link}api/decisions", params={"pod": "default/broken"}) as response,
        ):
            shown = await response.json()
        assert "JSONDecodeError" in shown["decision"]["message"]
        assert "failing_helper.py:6" in shown["decision"]["message"]


async def test_a_traceback_is_logged_once_and_then_counted(folder, written):
    async with embedded_cluster(config=CONFIG, plugin_dirs=[folder]) as cluster:
        for number in range(3):
            await cluster.create(a_pod(f"broken-{number}"))
            await cluster.rejected(f"broken-{number}")
    found = [line for line in lines(written) if line["msg"] == "Error scheduling pod; retrying"]
    first, *others = found
    assert (
        first["stacktrace"].splitlines()[1].strip().startswith(f'File "{folder}/failing_plugin.py", line 17')
    )
    assert "repeated" not in first
    assert [line["repeated"] for line in others[:2]] == [1, 2]
    assert not any("stacktrace" in line for line in others)


@pytest.mark.parametrize(("verbosity", "debug"), [(0, False), (4, True)])
async def test_lines_of_plugins_are_written_with_their_name(folder, written, verbosity, debug):
    log.set_verbosity(verbosity)
    async with embedded_cluster(config=CONFIG, plugin_dirs=[folder]) as cluster:
        await cluster.create(a_pod("web"))
        await cluster.bound("web")
    told = {line["msg"]: line for line in lines(written) if line.get("plugin") in ("Failing", "Undecided")}
    assert told["Looking at node-1"]["plugin"] == "Failing"
    assert told["Looking at node-1"]["caller"] == "failing_plugin.py:12"
    assert told["Asked about web"]["plugin"] == "Failing"
    assert told["From the root logger"]["plugin"] == "Failing"
    assert told["Permitted"]["plugin"] == "Undecided"
    assert ("Details of node-1" in told) is debug
    assert not [line for line in lines(written) if line["caller"].startswith("access")]
