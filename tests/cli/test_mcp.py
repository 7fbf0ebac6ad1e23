"""`stowplan mcp`, asked by the SDK's own client over standard input and output."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from stowplan.cli import cluster_source, scheduler_client
from stowplan.cli import mcp as command
from stowplan.cli.options import ClusterSource, SchedulerSource
from stowplan.client.connection import Connection
from stowplan.replay import read_trace
from up_process import STOWPLAN, running_up

ROOT = Path(__file__).parents[2]
WHAT_IF = ROOT / "examples" / "whatif"
PACKED = (WHAT_IF / "scheduler" / "most-allocated.yaml").read_text()
CHECKOUT = "shop/checkout-1"


DEFAULT = SchedulerSource(None, None, (), None)


@asynccontextmanager
async def assistant(*flags: str) -> AsyncIterator[Client]:
    server = StdioServerParameters(command=STOWPLAN, args=["mcp", *flags], cwd=ROOT)
    async with Client(server, read_timeout_seconds=60) as client:
        yield client


@asynccontextmanager
async def assistant_here(source: command.Source, seconds: float = 60) -> AsyncIterator[Client]:
    """The same tools without a process of their own."""
    server = command.make_server(source, partial(command.compare_placements, source), seconds)
    async with Client(server, read_timeout_seconds=60) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    answer = await client.call_tool(tool, arguments)
    text = "".join(getattr(each, "text", "") for each in answer.content)
    if answer.is_error:
        return f"error: {text}"
    found = answer.structured_content or {}
    return found.get("result", found) or text


async def test_tools_are_read_only_and_say_what_they_take() -> None:
    async with assistant_here(command.Journal("journal", "default")) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert sorted(tools) == ["compare_configs", "what_if", "why_here", "why_pending"]
    for tool in tools.values():
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is True
        assert tool.description
    assert tools["why_here"].input_schema["required"] == ["pod"]


async def test_questions_about_a_dump() -> None:
    files = ClusterSource((str(WHAT_IF),), None, None, None, False)
    async with assistant_here(command.ReadCluster(files, DEFAULT)) as client:
        pending = await call(client, "why_pending")
        assert pending == "0 pods are pending."
        here = await call(client, "why_here", pod=CHECKOUT)
        assert here.startswith(f"Pod {CHECKOUT} goes to worker-2")
        there = await call(client, "why_here", pod=CHECKOUT, node="worker-1")
        assert "worker-1" in there
        unknown = await call(client, "why_here", pod="shop/nobody")
        assert unknown.startswith("error: ")
        assert "shop/nobody" in unknown

        lost = await call(client, "what_if", lose=["worker-2"], more_nodes={"worker-3": 2})
        assert lost["counts"] == {"placed": 3}
        added = await call(client, "what_if", manifests=(WHAT_IF / "added" / "sale.yaml").read_text())
        assert added["counts"]["pending"] == 2
        bad = await call(client, "what_if", drain=["worker-9"])
        assert bad.startswith("error: ")
        assert "worker-9" in bad

        compared = await call(client, "compare_configs", config=PACKED)
        assert compared["different"] == len(compared["differences"]) > 0
        assert set(compared["differences"][0]["nodes"]) == {"now", "config"}
        assert compared["pending"] == {"now": 0, "config": 0}
        same = await call(client, "compare_configs", config=PACKED, other=PACKED)
        assert same["different"] == 0


async def test_answers_name_the_configuration_that_was_used_in_place_of_the_schedulers(
    tmp_path: Path,
) -> None:
    files = ClusterSource((str(WHAT_IF),), None, None, None, False)
    async with assistant_here(command.ReadCluster(files, DEFAULT)) as client:
        assert "with the default configuration;" in await call(client, "why_here", pod=CHECKOUT)
        assert "default" in (await call(client, "what_if", drain=["worker-1"]))["decidedWith"]
        assert "default" in (await call(client, "compare_configs", config=PACKED))["now"]
        assert "decidedWith" not in await call(client, "what_if", config=PACKED)
        assert "now" not in await call(client, "compare_configs", config=PACKED, other=PACKED)
    config = tmp_path / "ours.yaml"
    config.write_text(PACKED)
    async with assistant_here(command.ReadCluster(files, DEFAULT._replace(config=config))) as client:
        assert "ours.yaml" in (await call(client, "what_if", drain=["worker-1"]))["decidedWith"]
        assert "ours.yaml" in await call(client, "why_here", pod=CHECKOUT)


async def test_an_assistant_cannot_make_it_import_code_or_end_it() -> None:
    hostile = (
        PACKED.replace("NodeResourcesFit", "os:system"),
        "a: &a [x]\nb: *a",
        "kind: KubeSchedulerConfiguration",
        "[" * 5000,
    )
    source = command.ReadCluster(ClusterSource((str(WHAT_IF),), None, None, None, False), DEFAULT)
    async with assistant_here(source) as client:
        for text in hostile:
            assert (await call(client, "compare_configs", config=text)).startswith("error: ")
            assert (await call(client, "what_if", config=text)).startswith("error: ")
        said = await call(client, "what_if", manifests="- [")
        assert said.startswith("error: ")
        assert ": the manifests: is not YAML" in said
        assert (await call(client, "what_if", more_nodes={"worker-1": 10**9})).startswith("error: ")
        assert (await call(client, "why_pending")) == "0 pods are pending."


async def test_a_plugin_that_prints_does_not_disturb_the_answers(tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(
        "from stowplan import Plugin\n"
        "class Chatty(Plugin):\n"
        "    def score(self, state, pod, node):\n"
        "        print('hello')\n"
        "        return 0\n"
    )
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "profiles:\n- plugins: {multiPoint: {enabled: [{name: Chatty}]}}\n"
    )
    flags = ("-f", str(WHAT_IF), "--plugin-dir", str(tmp_path), "--config", str(config))
    async with assistant(*flags) as client:
        assert "Chatty" in await call(client, "why_here", pod=CHECKOUT)


PLUGIN = """\
import time
from pathlib import Path
from stowplan import Plugin

class Sleeper(Plugin):
    def score(self, state, pod, node):
        while {until}:
            time.sleep({pause})
        return 0
"""


def sleeping(folder: Path, until: str, pause: float) -> SchedulerSource:
    (folder / "sleeper.py").write_text(PLUGIN.format(until=until, pause=pause))
    config = folder / "config.yaml"
    config.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "profiles:\n- plugins: {multiPoint: {enabled: [{name: Sleeper}]}}\n"
    )
    return SchedulerSource(config, None, (folder,), None)


async def test_a_plugin_that_waits_again_and_again_is_interrupted(tmp_path: Path) -> None:
    scheduler = sleeping(tmp_path, "True", 0.01)
    files = ClusterSource((str(WHAT_IF),), None, None, None, False)
    async with assistant_here(command.ReadCluster(files, scheduler), seconds=0.1) as client:
        answer = await call(client, "why_here", pod=CHECKOUT)
        assert "Sleeper" in answer
        assert "took longer than the request may take" in answer


async def test_a_plugin_that_never_returns_keeps_nobody_waiting(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    scheduler = sleeping(tmp_path, f"not Path({str(ended)!r}).exists()", 15.0)
    files = ClusterSource((str(WHAT_IF),), None, None, None, False)
    async with assistant_here(command.ReadCluster(files, scheduler), seconds=0.1) as client:
        asked = [call(client, "why_here", pod=CHECKOUT) for _ in range(command.MAX_STUCK)]
        for answer in await asyncio.gather(*asked):
            assert answer.endswith(": plugin Sleeper has not returned within 0.1 s")
        answer = await call(client, "why_pending")
    ended.touch()
    assert answer.endswith(": 4 earlier questions are still running; restart `stowplan mcp`")


async def test_a_server_that_does_not_answer_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_client, "SECONDS", 0.2)
    monkeypatch.setattr(cluster_source, "READ_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(
            f"clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n"
            "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u}]\n"
            "current-context: c\n"
        )
        cluster = ClusterSource((), str(kubeconfig), None, None, False)
        async with assistant_here(command.ReadCluster(cluster, DEFAULT)) as client:
            why = await call(client, "why_here", pod="p")
            assert why.endswith(f": {server}: no answer within 0.2 s; is the API server running?")
            for tool in ("why_pending", "what_if"):
                answer = await call(client, tool)
                assert f"GET {server}/" in answer
                assert answer.endswith(": no response in time")


@pytest.mark.parametrize("body", ["<html>", "{}", "[]", '{"pods": 5}', '{"pods": [{}]}'])
async def test_an_assistant_is_told_that_a_server_is_no_scheduler(body: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        source = command.RunningScheduler(Connection(url), "default")
        async with assistant_here(source) as client:
            for tool, more in (("why_pending", {}), ("what_if", {}), ("compare_configs", {"config": PACKED})):
                answered = await call(client, tool, **more)
                assert f"{url}: " in answered
                assert answered.endswith(
                    "has an unexpected answer; is this a Stowplan scheduler of this version?"
                )


async def test_an_assistant_is_told_what_is_wrong_with_files(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("- [")
    files = ClusterSource((str(tmp_path),), None, None, None, False)
    async with assistant_here(command.ReadCluster(files, DEFAULT)) as client:
        for tool, more in (("why_here", {"pod": "p"}), ("why_pending", {}), ("what_if", {})):
            assert "bad.yaml: is not YAML" in await call(client, tool, **more)


async def test_a_running_scheduler_and_its_journal_are_asked(tmp_path: Path) -> None:
    journal, manifests = tmp_path / "journal", tmp_path / "pods.yaml"
    manifests.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: small}\n"
        "spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 100m}}}]}\n"
        "---\napiVersion: v1\nkind: Pod\nmetadata: {name: large}\n"
        "spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 900}}}]}\n"
    )
    flags = ("--nodes", "3", "--journal", str(journal), "-f", str(manifests))
    with running_up(tmp_path, *flags) as up:
        kubeconfig = ("--kubeconfig", str(up.kubeconfig))
        async with assistant("--server", up.scheduler, *kubeconfig) as client:
            for _ in range(100):
                pending = await call(client, "why_pending")
                if "Insufficient cpu" in pending:
                    break
            assert pending.startswith("1 pod is pending.\ndefault/large: 0/3 nodes are available: ")
            assert "Insufficient cpu" in await call(client, "why_pending", pod="default/large")
            assert "Pod default/small went to" in await call(client, "why_here", pod="default/small")
            found = await call(client, "what_if", more_pods={"default/small": 2})
            assert found["counts"] == {"placed": 2, "pending": 1}
            assert (await call(client, "compare_configs", config=PACKED))["pods"] == 2
        live = command.ReadCluster(ClusterSource((), str(up.kubeconfig), None, None, False), DEFAULT)
        async with assistant_here(live) as client:  # as a user of `stowplan up` has it
            assert "Pod default/small went to" in await call(client, "why_here", pod="small")
            assert "default/large" in await call(client, "why_pending")
    async with assistant_here(command.Journal(str(journal), "default")) as client:
        assert "Pod default/small went to" in await call(client, "why_here", pod="default/small")
        assert "fit nowhere" in await call(client, "why_pending", pod="default/large")
        lacking = await call(client, "what_if", lose=["node-0"])
        assert "a journal has decisions, but not the cluster" in lacking


async def test_an_assistant_is_told_that_a_journal_is_damaged(tmp_path: Path) -> None:
    damaged = tmp_path / "decisions-20261116T142405.817768Z-20261116T142405.817768Z.parquet"
    damaged.write_bytes(b"PAR1 and no more")
    async with assistant_here(command.Journal(str(tmp_path), "default")) as client:
        answer = await call(client, "why_here", pod="default/small")
    assert answer.startswith("error: ")
    assert "1 of its files cannot be read" in answer


def test_configurations_are_compared_on_a_recording() -> None:
    trace = read_trace(ROOT / "examples" / "tuning" / "trace.jsonl")
    found = command.compare_replays(trace, DEFAULT, {"now": "", "config": PACKED})
    assert set(found["metrics"]) == {"now", "config"}
    assert found["comparedOn"].startswith("the recording ")


def test_the_library_is_loaded_only_for_this_command() -> None:
    code = "import sys, stowplan, stowplan.cli, stowplan.cli.mcp; sys.exit('mcp' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
