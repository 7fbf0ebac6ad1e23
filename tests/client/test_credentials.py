"""Credentials that change while the client runs, over real connections."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from api_server import ScriptedServer, answer, refusal, serving, watch

from certificates import Authority, server_context
from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection, tls_context
from stowplan.client.credentials import (
    CertificateFiles,
    Credential,
    ExecConfig,
    ExecPlugin,
    ExecVariable,
    TokenFile,
)
from stowplan.errors import InputError

VERSION = "client.authentication.k8s.io/v1"


@asynccontextmanager
async def client(server: ScriptedServer, *credentials: Credential) -> AsyncIterator[ApiClient]:
    async with ApiClient(Connection(server.url, credentials=credentials)) as api:
        yield api


def tokens(server: ScriptedServer) -> list[str | None]:
    return [asked.headers.get("Authorization") for asked in server.asked]


async def test_a_token_file_that_rotates(server: ScriptedServer, tmp_path):
    path = tmp_path / "token"
    path.write_text("one\n")
    server.answers = [answer({})] * 4
    async with client(server, TokenFile(path)) as api:
        await api.get_json("/")
        fresh = tmp_path / "fresh"  # as a kubelet does it: a new file takes the place of the old
        fresh.write_text("two\n")
        fresh.replace(path)
        await api.get_json("/")
        path.unlink()
        await api.get_json("/")
        path.write_text("")
        await api.get_json("/")
    assert tokens(server) == ["Bearer one", "Bearer two", "Bearer two", "Bearer two"]


async def test_a_refused_token_is_tried_again_only_if_there_is_a_new_one(server: ScriptedServer, tmp_path):
    path = tmp_path / "token"
    path.write_text("one")
    server.answers = [refusal(401, "Unauthorized", "Unauthorized"), answer({})]
    async with client(server, TokenFile(path)) as api:
        with pytest.raises(Exception, match="Unauthorized"):
            await api.get_json("/")
    assert tokens(server) == ["Bearer one"]


def plugin(tmp_path, statuses, **settings) -> ExecPlugin:
    """A program that prints one status after the other and writes down what it was told."""
    for number, status in enumerate(statuses):
        credential = {"apiVersion": VERSION, "kind": "ExecCredential", "status": status}
        (tmp_path / f"{number}.json").write_text(json.dumps(credential))
    script = tmp_path / "plugin.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "here = pathlib.Path(__file__).parent\n"
        "runs = len(list(here.glob('run*')))\n"
        "(here / f'run{runs}').write_text(os.environ['KUBERNETES_EXEC_INFO'] + os.environ['COLOUR'])\n"
        "print((here / f'{runs}.json').read_text())\n"
    )
    config = ExecConfig(
        api_version=VERSION,
        command=sys.executable,
        args=(str(script),),
        env=(ExecVariable(name="COLOUR", value="blue"),),
        provide_cluster_info=True,
    )
    return ExecPlugin(config, where="kubeconfig", **settings)


async def test_an_exec_plugin_runs_once_and_again_when_its_token_has_expired(
    server: ScriptedServer, tmp_path
):
    now = 0.0
    statuses = [{"token": "one", "expirationTimestamp": "1970-01-01T00:01:00Z"}, {"token": "two"}]
    found = plugin(tmp_path, statuses, now=lambda: now, cluster={"server": "https://x"})
    server.answers = [answer({})] * 4
    async with client(server, found) as api:
        await api.get_json("/")
        now = 59.0
        await api.get_json("/")
        now = 60.0
        await api.get_json("/")
        now = 1e9
        await api.get_json("/")
    assert tokens(server) == ["Bearer one", "Bearer one", "Bearer two", "Bearer two"]
    told = (tmp_path / "run0").read_text()
    assert told.endswith("blue")
    assert json.loads(told.removesuffix("blue")) == {
        "kind": "ExecCredential",
        "apiVersion": VERSION,
        "spec": {"interactive": False, "cluster": {"server": "https://x"}},
    }


async def test_an_exec_plugin_runs_again_when_its_token_is_refused(server: ScriptedServer, tmp_path):
    server.answers = [refusal(401, "Unauthorized", "Unauthorized"), answer({})]
    server.watches = [refusal(401, "Unauthorized", "Unauthorized"), watch(b"line\n")]
    lines: list[bytes] = []
    async with client(server, plugin(tmp_path, [{"token": word} for word in ("one", "two", "three")])) as api:
        await api.get_json("/")
        with pytest.raises(Exception, match="Unauthorized"):
            await api.stream("/", lines.append, query={"watch": "true"}, silence=0.2)
        with pytest.raises(Exception, match="no response in time"):
            await api.stream("/", lines.append, query={"watch": "true"}, silence=0.2)
    assert lines == [b"line"]
    assert tokens(server) == ["Bearer one", "Bearer two", "Bearer two", "Bearer three"]


async def test_requests_refused_together_need_one_run(server: ScriptedServer, tmp_path):
    server.answers = [answer({})] + [refusal(401, "Unauthorized", "Unauthorized")] * 5 + [answer({})] * 5
    async with client(server, plugin(tmp_path, [{"token": "one"}, {"token": "two"}])) as api:
        await api.get_json("/")
        await asyncio.gather(*(api.get_json("/") for _ in range(5)))
    assert tokens(server) == ["Bearer one"] * 6 + ["Bearer two"] * 5


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param(
            {"command": "no-such-plugin", "install_hint": "Get it from example.org"},
            "exec plugin 'no-such-plugin' cannot be run: No such file or directory; Get it from example.org",
            id="not installed",
        ),
        pytest.param(
            {"command": "false"},
            "exec plugin 'false' failed with exit status 1; see standard error for its output",
            id="it fails",
        ),
        pytest.param(
            {"command": "echo", "args": ("hello",)},
            "exec plugin 'echo' did not print an ExecCredential: is not JSON",
            id="it prints something else",
        ),
        pytest.param(
            {"command": "echo", "args": ("{}",)},
            f"exec plugin 'echo' must print an ExecCredential of {VERSION} with a status",
            id="it prints another object",
        ),
        pytest.param(
            {"command": "echo", "args": (json.dumps({"apiVersion": VERSION, "status": {}}),)},
            "exec plugin 'echo' returned neither a token nor a client certificate with its key",
            id="it has nothing",
        ),
    ],
)
async def test_a_bad_exec_plugin_is_explained(server: ScriptedServer, config, message):
    found = ExecPlugin(ExecConfig(api_version=VERSION, **config), where="kubeconfig")
    async with client(server, found) as api:
        with pytest.raises(InputError) as caught:
            await api.get_json("/")
    assert str(caught.value).startswith(f"kubeconfig: {message}")


async def test_an_exec_plugin_that_fails_runs_once_for_requests_that_start_together(tmp_path):
    config = ExecConfig(api_version=VERSION, command="sh", args=("-c", f"echo >> {tmp_path}/runs; false"))
    found = ExecPlugin(config, where="kubeconfig")
    errors = await asyncio.gather(*(found.authorization() for _ in range(5)), return_exceptions=True)
    assert all(isinstance(error, InputError) for error in errors)
    assert (tmp_path / "runs").read_text() == "\n"
    with pytest.raises(InputError):
        await found.authorization()
    assert (tmp_path / "runs").read_text() == "\n\n", "the next request tries again"


@asynccontextmanager
async def knowing_its_clients(
    tmp_path, authority: Authority
) -> AsyncIterator[tuple[ScriptedServer, ssl.SSLContext]]:
    """A server that wants client certificates, and a context that trusts the server."""
    tls = server_context(tmp_path, authority.issue("server", "127.0.0.1"), clients=authority)
    async with serving(ScriptedServer(), tls) as server:
        server.answers = [answer({}, headers={"Connection": "close"})] * 2
        yield server, tls_context(authority_text=authority.certificate)


def name_seen(server: ScriptedServer) -> str:
    return str(server.peer["subject"][-1][0][1])


async def test_a_client_certificate_that_rotates(tmp_path):
    authority = Authority()
    certificate, key = authority.issue("ann").write(tmp_path, "client")
    async with knowing_its_clients(tmp_path, authority) as (server, context):
        files = CertificateFiles(context, certificate, key)
        async with ApiClient(Connection(server.url, ssl_context=context, credentials=[files])) as api:
            await api.get_json("/")
            assert name_seen(server) == "ann"
            authority.issue("bob").write(tmp_path, "client")
            os.utime(certificate, ns=(1, 1))
            await api.get_json("/")
            assert name_seen(server) == "bob"


async def test_a_client_certificate_of_an_exec_plugin(tmp_path):
    authority = Authority()
    issued = authority.issue("cat")
    status = {"clientCertificateData": issued.certificate, "clientKeyData": issued.key}
    async with knowing_its_clients(tmp_path, authority) as (server, context):
        found = plugin(tmp_path, [status], context=context)
        async with ApiClient(Connection(server.url, ssl_context=context, credentials=[found])) as api:
            await api.get_json("/")
    assert name_seen(server) == "cat"
    assert tokens(server) == [None]
