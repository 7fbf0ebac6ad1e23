"""Where a plugin failed: exception, file and line, in log, event, `explain`, page and testing kit."""

from __future__ import annotations

import inspect
import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stowplan import Plugin, log
from stowplan.config import load
from stowplan.embedded import embedded_cluster
from stowplan.errors import ConfigError, StowplanError
from stowplan.framework.hints import QueueingHints
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
WRONG = """
import functools

from stowplan import Plugin, Status


def logged(method):
    @functools.wraps(method)
    def call(*args):
        return method(*args)

    return call


class Wrong(Plugin):
    mistake = "None"

    @logged
    def METHOD(PARAMETERS):  # line 19
        return ANSWER
"""
LINE = 19
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
    for module in ("failing_helper", "failing_plugin", "wrong_plugin"):
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
    assert "cycle/steps.py" not in shown


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


def wrong_plugin(folder: Path, method: str, answer: str) -> Path:
    parameters = ", ".join(inspect.signature(getattr(Plugin, method)).parameters)
    is_async = inspect.iscoroutinefunction(getattr(Plugin, method))
    text = WRONG.replace("METHOD", method).replace("PARAMETERS", parameters).replace("ANSWER", answer)
    text = text.replace("    def " + method, "    async def " + method) if is_async else text
    if method == "normalize_score":
        text += "\n    def score(self, state, pod, node):\n        return 1\n"
    if method == "unreserve":
        text += "\n    def reserve(self, state, pod, node_name):\n        return None\n"
        text += "\n    def permit(self, state, pod, node_name):\n        return Status.unschedulable('no')\n"
    (folder / "wrong_plugin.py").write_text(text)
    return folder


def wrong_config() -> dict[str, Any]:
    return CONFIG | {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Wrong"}]}}}]}


@pytest.mark.parametrize(
    ("method", "answer", "says"),
    [
        ("filter", "True", "expected a Status or None, got True (pod default/web, node a, "),
        ("filter_nodes", "None", "expected Rejects, yielded or in a list, got None (pod default/web, "),
        ("pre_filter", "['a']", "expected a Status, a set of names of nodes or None, got an object of type"),
        ("pre_enqueue", "False", "expected a Status or None, got False (pod default/web, "),
        ("pre_score", "1", "expected a Status or None, got 1 (pod default/web, "),
        ("score", "'high'", "expected a whole number as score, got 'high' (pod default/web, node a, "),
        (
            "score",
            "101",
            "returns an invalid score 101, it should in the range of [0, 100] after normalizing",
        ),
        ("score_nodes", "[1]", "expected 2 whole numbers, one a node, got int64 of shape (1,)"),
        ("normalize_score", "None", "expected 2 whole numbers, one a node, got object of shape ()"),
        ("normalize_score", "scores - 2", "returns an invalid score -1, it should in the range of"),
        ("reserve", "0", "expected a Status or None, got 0 (pod default/web, node a, "),
        ("permit", "'no'", "expected a Status or None, got 'no' (pod default/web, node a, "),
    ],
)
def test_the_kit_names_the_line_of_a_method_with_a_wrong_answer(folder, method, answer, says):
    cluster = a_cluster(config=wrong_config(), plugin_dir=wrong_plugin(folder, method, answer))
    outcome = cluster.node("a").node("b").place("web")
    outcome.fails(says).fails(f"at wrong_plugin.py:{LINE})")
    shown = outcome.explanation
    assert f'wrong_plugin.py", line {LINE}, in {method}\n' in shown
    assert "stowplan/" not in shown.split("Traceback")[1]


def test_a_wrong_answer_for_events_to_register_names_the_line(folder):
    wrong_plugin(folder, "events_to_register", "'Node'")
    with (folder / "wrong_plugin.py").open("a") as file:
        file.write("\n    def pre_enqueue(self, pod): ...\n")
    with pytest.raises(StowplanError, match=rf"at wrong_plugin.py:{LINE}\)"):
        QueueingHints(
            a_cluster(config=wrong_config(), plugin_dir=folder).planner.profiles["default-scheduler"]
        )


def test_an_init_that_does_not_call_its_base_names_the_line(folder):
    text = WRONG.replace("METHOD", "__init__").replace("PARAMETERS", "self, args, handle")
    (folder / "wrong_plugin.py").write_text(
        text.replace("ANSWER", "None") + "\n    def pre_enqueue(self, pod): ...\n"
    )
    with pytest.raises(ConfigError, match=rf"at wrong_plugin.py:{LINE}\)"):
        a_cluster(config=wrong_config(), plugin_dir=folder).node("a").place("web")


@pytest.mark.parametrize(
    ("method", "answer", "in_event"),
    [
        ("filter", "True", True),
        ("score", "-1", True),
        ("queue_sort", "None", True),
        ("pre_enqueue", "1", True),
        ("reserve", "1", True),
        ("pre_bind", "False", True),
        ("post_bind", "1", False),
        ("unreserve", "1", False),
    ],
)
async def test_a_wrong_answer_names_the_line_in_event_explain_and_log(
    folder, written, method, answer, in_event
):
    wrong_plugin(folder, method, answer)
    config = wrong_config()
    if method == "queue_sort":
        config["profiles"][0]["plugins"]["queueSort"] = {
            "disabled": [{"name": "*"}],
            "enabled": [{"name": "Wrong"}],
        }
    async with embedded_cluster(config=config, plugin_dirs=[folder], nodes=2) as cluster:
        await cluster.create(a_pod("web"))
        place = f"at wrong_plugin.py:{LINE})"

        async def notes() -> list[str]:
            told = [str(each.get("message", each.get("note"))) for each in await cluster.list("Event")]
            return [each for each in told if place in each]

        async def logged() -> list[dict[str, Any]]:
            return [line for line in lines(written) if place in str(line.get("err"))]

        (found, *_) = await cluster.until(logged)
        assert f'wrong_plugin.py", line {LINE}, in {method}\n' in found["stacktrace"]
        assert "stowplan/" not in found["stacktrace"]
        if in_event:
            assert await cluster.until(notes)
            if method not in ("queue_sort", "pre_enqueue"):  # which do not end an attempt
                assert place in cluster.explain("web")
