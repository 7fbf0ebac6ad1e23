"""The whole process, as `stowplan run` starts it, on an API server in the same event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import aiohttp
import pytest
import yaml

from stowplan.apiserver import ApiServer, Request, Response
from stowplan.apiserver.http import serve
from stowplan.apiserver.server import VERSION
from stowplan.errors import InputError
from stowplan.framework.registry import Registry
from stowplan.scheduler.main import Service
from stowplan.scheduler.options import parse

V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


async def until(is_so) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(*flags: str) -> AsyncIterator[Service]:
    """Ends as SIGTERM ends it."""
    service = Service(parse(["--secure-port=0", *flags]).options, Registry.installed(), owns_process=False)
    task = asyncio.create_task(service.run())
    try:
        await until(lambda: service.is_synced or task.done())
        if not task.done():
            yield service
            os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(task, 10) == 0
    finally:
        task.cancel()


@pytest.fixture
def api_server() -> ApiServer:
    return ApiServer()


@pytest.fixture
async def address(api_server) -> AsyncIterator[str]:
    async with serve(api_server) as front:
        yield f"http://127.0.0.1:{front.port}"


@pytest.fixture
def configure(tmp_path, address):
    """Writes the configuration, whose kubeconfig leads to the API server; its path."""
    kubeconfig, config = tmp_path / "kubeconfig", tmp_path / "scheduler.yaml"
    named = {"clusters": [{"name": "c", "cluster": {"server": address}}]}
    context = {"contexts": [{"name": "x", "context": {"cluster": "c"}}], "current-context": "x"}
    kubeconfig.write_text(yaml.safe_dump(named | context))
    own = {"leaderElection": {"leaderElect": False}, "clientConnection": {"kubeconfig": str(kubeconfig)}}

    def write(**parts):
        joined = {name: own[name] | parts.get(name, {}) for name in own}
        config.write_text(yaml.safe_dump(V1 | parts | joined))
        return config

    return write


def said(caplog, message: str) -> list[dict[str, object]]:
    return [record.fields for record in caplog.records if record.getMessage() == message]


async def test_metrics_say_who_runs(configure):
    async with running(f"--config={configure()}") as service:
        page = service.metrics.render().decode()
    assert f'git_version="v1.36.4+stowplan.{version("stowplan")}"' in page
    assert "rest_client_response_size_bytes_count" in page


@pytest.mark.parametrize(
    ("minor", "has_plugin", "line"),
    [
        ("36", True, None),
        ("35+", False, {"server": "1.35"}),
        (
            "37",
            True,
            {
                "server": "1.37",
                "missingFeatures": "DRADeviceTaintRules,DRAFractionalCapacityRange,StorageCapacityScoring,"
                "VolumeLimitScaling",
            },
        ),
    ],
)
async def test_features_follow_an_older_server(configure, caplog, monkeypatch, minor, has_plugin, line):
    monkeypatch.setitem(VERSION, "emulationMinor", minor)
    caplog.set_level(logging.INFO, "stowplan")
    for flags, follows in ((), True), (("--emulated-version=1.36",), False):
        caplog.clear()
        async with running(f"--config={configure()}", *flags) as service:
            assert ("NodeDeclaredFeatures" in plugins_of(service)) is (has_plugin or not follows)
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: said(caplog, "Configuration reloaded") and service.is_synced)
            assert ("NodeDeclaredFeatures" in plugins_of(service)) is (has_plugin or not follows)
        found = [
            each
            for message in (
                "API server is older, using its features",
                "API server is newer, scheduling as kube-scheduler 1.36",
            )
            for each in said(caplog, message)
        ]
        assert found == ([line] if line and follows else [])


async def test_an_api_server_that_starts_meanwhile_is_asked_again(configure, api_server, caplog):
    caplog.set_level(logging.INFO, "stowplan")
    asked = 0

    async def answer(request: Request) -> Response:
        nonlocal asked
        asked += 1
        return Response(503, b"") if asked == 1 else Response(200, b'{"major": "1", "minor": "35"}')

    api_server.proxied["version"] = answer
    async with running(f"--config={configure()}") as service:
        await until(lambda: service.is_synced and "NodeDeclaredFeatures" not in plugins_of(service))
    assert len(said(caplog, "API server's version not known, scheduling as kube-scheduler 1.36")) == 1
    assert said(caplog, "API server is older, using its features") == [{"server": "1.35"}]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"<html>who are you?</html>", id="a page"),
        pytest.param(b'["1", "35"]', id="a list"),
        pytest.param(b"[" * 100_000, id="nested deeply"),
        pytest.param(b'{"major": "2", "minor": "1"}', id="another major version"),
    ],
)
async def test_a_version_that_cannot_be_read_is_said_and_ignored(configure, api_server, caplog, body):
    async def answer(request: Request) -> Response:
        return Response(200, body)

    api_server.proxied["version"] = answer
    async with running(f"--config={configure()}") as service:
        assert "NodeDeclaredFeatures" in plugins_of(service)
    (fields,) = said(caplog, "API server's version not known, scheduling as kube-scheduler 1.36")
    assert fields == {"err": "/version does not say 1.x"}


def plugins_of(service: Service) -> set[str]:
    assert service.scheduler is not None
    return set(service.scheduler.profiles["default-scheduler"].plugins)


RESTART = "Configuration field not taken up: it takes a restart"


@pytest.mark.parametrize(
    ("parts", "fields"),
    [
        pytest.param({}, [], id="nothing"),
        pytest.param({"podMaxBackoffSeconds": 20}, [], id="what is taken up"),
        pytest.param(
            {"leaderElection": {"leaderElect": True, "resourceName": "zz", "leaseDuration": "20s"}},
            [
                ("leaderElection.leaderElect", "False", "True"),
                ("leaderElection.leaseDuration", "15s", "20s"),
                ("leaderElection.resourceName", "kube-scheduler", "zz"),
            ],
            id="the lease",
        ),
        pytest.param(
            {"clientConnection": {"burst": 7}}, [("clientConnection.burst", "100", "7")], id="the connection"
        ),
    ],
)
async def test_sighup_names_what_only_a_restart_takes_up(configure, caplog, parts, fields):
    caplog.set_level(logging.INFO, "stowplan")
    async with running(f"--config={configure()}"):
        configure(**parts)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: said(caplog, "Configuration reloaded"))
    found = said(caplog, RESTART)
    assert [tuple(map(str, each.values())) for each in found] == fields


async def test_a_signal_is_not_lost_while_the_configuration_is_read_again(configure, caplog):
    caplog.set_level(logging.INFO, "stowplan")
    async with running(f"--config={configure()}"):
        os.kill(os.getpid(), signal.SIGHUP)  # SIGTERM comes at once after it
    assert said(caplog, "Configuration reloaded")


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        pytest.param([], "kube-system/foo", id="the usual namespace"),
        pytest.param(["--policy-configmap-namespace=other"], "other/foo", id="another namespace"),
    ],
)
async def test_a_policy_that_is_not_there_is_named(address, flags, name):
    with pytest.raises(InputError) as caught:
        async with running(f"--master={address}", "--leader-elect=false", "--policy-configmap=foo", *flags):
            pass
    assert str(caught.value) == (
        f'ConfigMap {name} with the Policy cannot be read: configmaps "foo" not found; it is named by '
        "--policy-configmap and --policy-configmap-namespace, or by algorithmSource.policy.configMap of the "
        "configuration"
    )


LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


@pytest.mark.parametrize(
    ("holder", "leader"),
    [
        pytest.param("someone-else", "someone-else", id="another leads"),
        pytest.param("", None, id="it leads itself"),
    ],
)
async def test_who_leads_while_it_stands_by(configure, address, holder, leader):
    lease = {"metadata": {"name": "kube-scheduler"}, "spec": {"holderIdentity": holder}}
    lease["spec"]["leaseDurationSeconds"] = 60
    async with aiohttp.ClientSession(address) as session, session.post(LEASES, json=lease) as response:
        assert response.status == 201
    config = configure(leaderElection={"leaderElect": True})
    async with running(f"--config={config}") as service:
        await until(lambda: service.leader == leader)
