"""`stowplan up` as its user sees it: a process, a kubeconfig, HTTPS."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from stowplan.client.api import ApiClient
from stowplan.client.errors import Unauthorized, Unreachable
from stowplan.client.kubeconfig import load
from up_process import STOWPLAN, running_up

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
EXAMPLES = Path(__file__).parents[2] / "examples"


def pod(name, cpu="100m"):
    container = {"name": "main", "image": "web:1", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container]},
    }


def client(up):
    return ApiClient(load(str(up.kubeconfig)), qps=0)


async def node_of(api, name, seconds=10.0):
    async with asyncio.timeout(seconds):
        while not (node := (await api.get_json(f"{PODS}/{name}"))["spec"].get("nodeName")):
            await asyncio.sleep(0.01)
    return node


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """For tests that need no flags of their own."""
    with running_up(tmp_path_factory.mktemp("up"), "--nodes", "{count: 2, cpu: 4, zones: [a, b]}") as running:
        yield running


async def test_the_page_for_whoever_has_its_link(up):
    link = re.search(r"Web page: (http://127\.0\.0\.1:\d+/)(\S+/)", up.said)
    assert link, up.said
    async with aiohttp.ClientSession() as session:
        async with session.get(link[1] + link[2]) as page:
            assert page.status == 200
            assert "<title>Stowplan" in await page.text()
        async with session.get(link[1]) as page:
            assert page.status == 403


async def test_a_cluster_for_whoever_has_the_kubeconfig(up):
    assert "2 nodes, 0 pods" in up.said
    assert up.kubeconfig.stat().st_mode & 0o777 == 0o600
    async with client(up) as api:
        await api.request("POST", PODS, pod("web"))
        assert await node_of(api, "web") in ("node-1", "node-2")
    explained = subprocess.run(
        [STOWPLAN, "explain", "web", "-o", "json", f"--server={up.scheduler}", *up.config_flag],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(explained.stdout)
    assert (found["pod"], found["changes"], explained.stderr) == ("default/web", [], "")


def test_it_starts_without_the_library_for_pages():
    script = (
        "import sys, stowplan.embedded.up; sys.exit(bool({'aiohttp', 'stowplan.replay'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


async def test_nobody_else_gets_in(up, tmp_path):
    text = up.kubeconfig.read_text()
    other = tmp_path / "other.kubeconfig"
    other.write_text(text.replace("token: ", "token: not-"))
    async with ApiClient(load(str(other))) as api:
        with pytest.raises(Unauthorized):
            await api.get_json("/api/v1/nodes")


async def test_manifests_and_a_configuration_to_begin_with(tmp_path):
    folder = EXAMPLES / "score-by-label"
    flags = ["-f", str(folder / "nodes.yaml"), "-f", str(folder / "testpod.yaml")]
    with running_up(tmp_path, *flags, "--config", str(folder / "scheduler.yaml")) as up:
        assert "3 nodes" in up.said
        async with client(up) as api:
            assert await node_of(api, "testpod") == "node-1"


def test_the_kubeconfig_of_others_is_not_overwritten(tmp_path):
    own = tmp_path / "config"
    own.write_text("apiVersion: v1\n")
    command = [STOWPLAN, "up", "--kubeconfig", str(own)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert "name another file with --kubeconfig" in ended.stderr
    assert own.read_text() == "apiVersion: v1\n"


async def test_objects_are_kept_from_one_start_to_the_next(tmp_path):
    flags = ["--data", str(tmp_path / "data")]
    with running_up(tmp_path, *flags, "--nodes", "2") as up:
        async with client(up) as api:
            await api.request("POST", PODS, pod("web"))
            node = await node_of(api, "web")
    with running_up(tmp_path, *flags) as up:
        assert "2 nodes, 1 pods" in up.said
        async with client(up) as api:
            assert await node_of(api, "web") == node


def test_what_is_taken_is_said(tmp_path):
    data = tmp_path / "data"
    with running_up(tmp_path, f"--data={data}", "--nodes=1") as up:
        port = up.said.partition("127.0.0.1:")[2].split()[0]
        for flag, said in (
            (f"--data={data}", "another process is using this file"),
            (f"--port={port}", f"cannot listen on 127.0.0.1:{port}: Address already in use"),
            (f"--page-port={port}", f"127.0.0.1:{port}: cannot listen: Address already in use;"),
            (f"--secure-port={port}", f"127.0.0.1:{port}: cannot listen: Address already in use;"),
        ):
            command = [STOWPLAN, "up", f"--kubeconfig={tmp_path / 'other'}", flag]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
            assert ended.returncode == 1
            assert said in ended.stderr
            assert "Traceback" not in ended.stderr


async def test_a_deleted_pod_is_terminating_before_it_is_gone(up):
    async with client(up) as api:
        for number in range(20):
            name = f"stopping-{number}"
            await api.request("POST", PODS, pod(name))
            async with asyncio.timeout(10):
                while (await api.get_json(f"{PODS}/{name}"))["status"]["phase"] != "Running":
                    await asyncio.sleep(0.01)
            await api.request("DELETE", f"{PODS}/{name}")
            await asyncio.sleep(0.02)  # as long as a slow client may take
            found = await api.get_json(f"{PODS}/{name}")
            assert found["metadata"]["deletionTimestamp"]
        async with asyncio.timeout(10):
            while "stopping-" in str(await api.get_json(PODS)):
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("flag", ["--record", "--journal"])
def test_a_library_that_is_missing_is_said_at_the_start(tmp_path, flag):
    script = "import sys; sys.modules['pyarrow'] = None; from stowplan.cli import main; main()"
    command = [sys.executable, "-c", script, "up", f"--kubeconfig={tmp_path / 'config'}", flag, "kept"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "needs pyarrow, which is not installed" in ended.stderr


async def test_no_write_is_lost_that_was_acknowledged_before_a_kill(tmp_path):
    flags = ["--data", str(tmp_path / "data"), "--nodes", "1"]
    kept: list[str] = []

    async def write(api, writer):
        for number in range(10_000):
            name = f"map-{writer}-{number}"
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
            await api.request("POST", MAPS, body)
            kept.append(name)

    with running_up(tmp_path, *flags) as up:
        async with client(up) as api:
            writers = [asyncio.create_task(write(api, writer)) for writer in range(8)]
            while len(kept) < 200:
                await asyncio.sleep(0.01)
            up.kill()
            ends = await asyncio.gather(*writers, return_exceptions=True)
        assert all(isinstance(end, Unreachable) for end in ends), ends
    with running_up(tmp_path, *flags) as up:
        async with client(up) as api:
            found = {each["metadata"]["name"] for each in (await api.get_json(MAPS))["items"]}
    assert set(kept) <= found


async def test_custom_objects_that_plugins_watch_are_copied(tmp_path, monkeypatch):
    folder = EXAMPLES / "node-crd-resource-fit"
    (tmp_path / "live").mkdir()
    flags = [f"-f{folder / name}.yaml" for name in ("crd", "nodes", "resources")]
    with running_up(tmp_path / "live", *flags) as live:
        monkeypatch.setenv("KUBECONFIG", str(live.kubeconfig))
        with running_up(tmp_path, "--from-cluster", f"--config={folder / 'scheduler.yaml'}") as up:
            async with client(up) as api:
                found = await api.get_json("/apis/scheduling.sigs.k8s.io/v1alpha1/clusterscopedresources")
    assert [each["metadata"]["name"] for each in found["items"]] == ["worker-5", "worker-6"]
    assert found["items"][0]["spec"]["resourcesScore"] == {"company.net/memory": 55}


async def test_a_live_cluster_is_copied_and_left_alone(tmp_path, monkeypatch):
    (tmp_path / "live").mkdir()
    with running_up(tmp_path / "live", "--nodes", "{count: 2, cpu: 4}") as live:
        async with client(live) as api:
            await api.request("POST", PODS, pod("web"))
            node = await node_of(api, "web")
            before = (await api.get_json(f"{PODS}/web"))["metadata"]["uid"]
            monkeypatch.setenv("KUBECONFIG", str(live.kubeconfig))
            with running_up(tmp_path, "--from-cluster") as up:
                assert "2 nodes, 1 pods" in up.said
                async with client(up) as copy:
                    assert await node_of(copy, "web") == node
                    await copy.request("DELETE", f"{PODS}/web")
            assert (await api.get_json(f"{PODS}/web"))["metadata"]["uid"] == before


PLUGIN = """
from stowplan import Plugin

class Favourite(Plugin):
    def score(self, state, pod, node):
        return 100 if node.name == "{}" else 0
"""
CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    score:
      enabled: [{name: Favourite}]
      disabled: [{name: "*"}]
"""


async def test_a_plugin_that_is_saved_decides_the_next_pod(tmp_path):
    plugins, config = tmp_path / "plugins", tmp_path / "scheduler.yaml"
    plugins.mkdir()
    (plugins / "favourite.py").write_text(PLUGIN.format("node-2"))
    config.write_text(CONFIG)
    with running_up(tmp_path, f"--plugin-dir={plugins}", f"--config={config}", "--nodes=3") as up:
        async with client(up) as api:
            await api.request("POST", PODS, pod("first"))
            assert await node_of(api, "first") == "node-2"
            (plugins / "favourite.py").write_text(PLUGIN.format("node-3"))
            await asyncio.sleep(
                0.1
            )  # the scheduler looks at files before a pod, but not more often than this
            await api.request("POST", PODS, pod("second"))
            assert await node_of(api, "second") == "node-3"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


async def fetch(session, url, token=""):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with session.get(url, headers=headers, ssl=False) as response:
        return response.status, response.content_type, await response.text()


async def test_one_port_serves_the_api_the_page_and_the_scheduler(tmp_path):
    port, secure = free_port(), free_port()
    with running_up(tmp_path, "--nodes=1", f"--port={port}", f"--secure-port={secure}") as up:
        assert up.server == f"https://127.0.0.1:{port}"
        assert up.page.startswith(f"http://127.0.0.1:{port}/")
        assert up.scheduler == f"https://127.0.0.1:{secure}"
        token = re.search(r"token: ([^}\s]+)", up.kubeconfig.read_text())[1]
        async with client(up) as api, aiohttp.ClientSession() as session:
            await api.request("POST", PODS, pod("web"))
            await node_of(api, "web")
            for server in (up.server, up.scheduler):
                status, kind, text = await fetch(session, f"{server}/metrics", token)
                assert (status, kind) == (200, "text/plain")
                assert "\nscheduler_schedule_attempts_total" in text
                assert (await fetch(session, f"{server}/page/", token))[:2] == (200, "text/html")
                assert (await fetch(session, f"{server}/page/page.css", token))[:2] == (200, "text/css")
                assert (await fetch(session, f"{server}/configz", token))[:2] == (200, "application/json")
                assert (await fetch(session, f"{server}/page/none", token))[0] == 404
                for path in ("/metrics", "/page/", "/configz", "/debug/decisions"):
                    assert (await fetch(session, f"{server}{path}"))[0] in (401, 403)
            assert (await fetch(session, up.page))[0] == 200
            assert (await fetch(session, f"http://127.0.0.1:{port}/"))[0] == 403
            assert (await fetch(session, f"http://127.0.0.1:{port}/api/v1/nodes"))[0] == 403


def run_explain(up, *words):
    command = [STOWPLAN, "explain", *words, *up.config_flag]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


async def test_explain_finds_the_scheduler_through_the_kubeconfig(up):
    async with client(up) as api:
        await api.request("POST", PODS, pod("shop"))
        node = await node_of(api, "shop")
        other = pod("other") | {"spec": pod("other")["spec"] | {"nodeName": "node-1"}}
        await api.request("POST", PODS, other)
    decided = run_explain(up, "shop")
    assert decided.stdout.startswith(f"Pod default/shop went to {node}")
    assert decided.stderr == ""
    computed = run_explain(up, "other")
    assert computed.stdout.startswith("Pod default/other goes to node-")
    assert "computing what the default configuration would decide now" in computed.stderr
    assert run_explain(up, "shop", "--seed=1").stdout.startswith("Pod default/shop goes to node-")


OTHER_PROFILE = CONFIG.replace("- plugins:", "- schedulerName: mine\n  plugins:")


async def test_pods_that_no_profile_schedules_are_announced(tmp_path):
    plugins, config = tmp_path / "plugins", tmp_path / "scheduler.yaml"
    plugins.mkdir()
    (plugins / "favourite.py").write_text(PLUGIN.format("node-1"))
    config.write_text(OTHER_PROFILE)
    with running_up(tmp_path, f"--plugin-dir={plugins}", f"--config={config}", "--nodes=1"):
        said = (tmp_path / "up.errors").read_text()
        assert f"{config}: no profile is named default-scheduler" in said
        assert "schedulerName: mine" in said


def test_a_warning_about_a_flag_is_given_once(tmp_path):
    with running_up(tmp_path, "--feature-gates=Nope=true", "--nodes=1"):
        said = (tmp_path / "up.errors").read_text()
        assert said.count("Nope=true has no effect") == 1


async def test_the_kubeconfig_of_a_running_cluster_is_not_overwritten(tmp_path):
    with running_up(tmp_path, "--nodes=1") as up:
        before = up.kubeconfig.read_text()
        command = [STOWPLAN, "up", *up.config_flag]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert f"{up.kubeconfig}: another `stowplan up` that is running uses this file" in ended.stderr
        assert "--kubeconfig" in ended.stderr
        assert up.kubeconfig.read_text() == before
    end = up.said.partition("Press Ctrl-C to stop.")[2]
    assert "All objects are gone; use --data DIR to keep them." in end
    assert f"{up.kubeconfig} no longer leads to a cluster" in end
    data, journal = tmp_path / "data", tmp_path / "journal"
    with running_up(tmp_path, "--nodes=1", f"--data={data}", f"--journal={journal}") as up:
        assert up.kubeconfig.read_text() != before
        async with client(up) as api:
            await api.request("POST", PODS, pod("web"))
            await node_of(api, "web")
    end = up.said.partition("Press Ctrl-C to stop.")[2]
    assert f"--data {data}" in end
    assert f"stowplan explain POD --journal {journal}" in end
    command = [STOWPLAN, "explain", "web", "--journal", str(journal)]
    explained = subprocess.run(command, capture_output=True, text=True, check=True)
    assert explained.stdout.startswith("Pod default/web went to node-")
