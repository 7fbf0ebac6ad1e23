"""Reaching a server: TLS, names, proxies, and what is said when it does not work."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import yaml
from api_server import ScriptedServer, answer, hang, serving, watch

from certificates import Authority, server_context
from stowplan.client import kubeconfig
from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection
from stowplan.client.errors import Unreachable

AUTHORITY = Authority()


@asynccontextmanager
async def secure_server(tmp_path, *hosts: str) -> AsyncIterator[ScriptedServer]:
    tls = server_context(tmp_path, AUTHORITY.issue("server", *hosts))
    async with serving(ScriptedServer(), tls) as server:
        server.answers = [answer({"hello": "world"})]
        yield server


def connected(tmp_path, server: ScriptedServer, **cluster) -> ApiClient:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server.url} | cluster}],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return ApiClient(kubeconfig.load(str(path)))


def data_of(authority: Authority) -> str:
    return base64.b64encode(authority.certificate.encode()).decode()


@pytest.mark.parametrize(
    ("hosts", "cluster"),
    [
        pytest.param(["127.0.0.1"], {"certificate-authority-data": data_of(AUTHORITY)}, id="right authority"),
        pytest.param(["127.0.0.1"], {"insecure-skip-tls-verify": True}, id="no check at all"),
        pytest.param(
            ["api.example.org"],
            {"certificate-authority-data": data_of(AUTHORITY), "tls-server-name": "api.example.org"},
            id="another name",
        ),
    ],
)
async def test_a_trusted_server(tmp_path, hosts, cluster):
    async with secure_server(tmp_path, *hosts) as server, connected(tmp_path, server, **cluster) as api:
        assert await api.get_json("/version") == {"hello": "world"}


async def test_a_server_trusted_by_its_own_certificate(tmp_path):
    async with secure_server(tmp_path, "127.0.0.1") as server:
        own = tmp_path / "server.crt"
        async with connected(tmp_path, server, **{"certificate-authority": str(own)}) as api:
            assert await api.get_json("/version") == {"hello": "world"}


@pytest.mark.parametrize(
    ("hosts", "authority", "reason"),
    [
        pytest.param(
            ["127.0.0.1"], Authority("other"), "unable to get local issuer certificate", id="wrong CA"
        ),
        pytest.param(
            ["127.0.0.2"], AUTHORITY, "IP address mismatch, certificate is not valid for", id="wrong name"
        ),
    ],
)
async def test_a_server_that_is_not_trusted(tmp_path, hosts, authority, reason):
    cluster = {"certificate-authority-data": data_of(authority)}
    async with secure_server(tmp_path, *hosts) as server, connected(tmp_path, server, **cluster) as api:
        with pytest.raises(Unreachable) as caught:
            await api.get_json("/version")
        assert str(caught.value).startswith(
            f"GET {server.url}/version: the API server's certificate is not trusted ({reason}"
        )
        assert str(caught.value).endswith(
            "set certificate-authority or certificate-authority-data of the cluster in the kubeconfig to the "
            "authority that signed it"
        )


async def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    async with ApiClient(Connection(url)) as api:
        with pytest.raises(Unreachable) as caught:
            await api.get_json("/version")
    assert str(caught.value) == (
        f"GET {url}/version: cannot connect (Connection refused); "
        "is the server's address right, and is it running?"
    )


async def test_no_answer(server: ScriptedServer):
    server.answers = [watch(then=hang)]
    async with ApiClient(Connection(server.url), timeout=0.1) as api:
        with pytest.raises(Unreachable, match="no response in time"):
            await api.get_json("/version")


async def test_a_server_that_speaks_something_else():
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org ready\r\n\r\n")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        async with ApiClient(Connection(url)) as api:
            with pytest.raises(Unreachable, match="the connection broke"):
                await api.get_json("/version")


async def test_a_proxy_is_asked(server: ScriptedServer):
    server.answers = [answer({"by": "proxy"})]
    async with ApiClient(Connection("http://api.example.org/prefix", proxy=server.url)) as api:
        assert await api.get_json("/version") == {"by": "proxy"}
    (asked,) = server.asked
    assert asked.headers["Host"] == "api.example.org"
    assert asked.path == "/prefix/version"
