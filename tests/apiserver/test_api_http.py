"""The HTTPS front: token, certificate, keep-alive, clients that misbehave; and our own client on it."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stowplan.apiserver import ApiServer, Request
from stowplan.apiserver.http import MAX_BODY, Endpoint, make_certificate, serve
from stowplan.client.api import RESOURCES, ApiClient
from stowplan.client.kubeconfig import load
from stowplan.client.watch import Reflector

TOKEN = "secret"


@pytest.fixture
async def front() -> AsyncIterator[Endpoint]:
    async with serve(ApiServer(), tls=make_certificate(), token=TOKEN) as front:
        yield front


async def talk(front: Endpoint, data: bytes) -> bytes:
    """What the server says to these bytes until it closes or falls silent."""
    trusted = ssl.create_default_context(cadata=front.certificate.decode())
    reader, writer = await asyncio.open_connection(front.host, front.port, ssl=trusted)
    writer.write(data)
    said = b""
    try:
        while chunk := await asyncio.wait_for(reader.read(65536), 0.3 if said else 10):
            said += chunk
    except TimeoutError:
        pass
    writer.transport.abort()
    return said


def request(method: str, path: str, body: bytes = b"", token: str = TOKEN) -> bytes:
    lines = (
        f"{method} {path} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {token}",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        pytest.param(request("GET", "/api/v1/nodes"), 200, b'"NodeList"', id="the token"),
        pytest.param(request("GET", "/api/v1/nodes", token="x"), 401, b'"Unauthorized"', id="another token"),
        pytest.param(b"GET /api/v1/nodes HTTP/1.1\r\nHost: x\r\n\r\n", 401, b'"Unauthorized"', id="no token"),
        pytest.param(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n", 200, b"ok", id="health needs none"),
        pytest.param(b"nonsense\r\n\r\n", 400, b"", id="no HTTP"),
        pytest.param(
            request("POST", "/api/v1/nodes", b"{"), 400, b"unexpected end of JSON input", id="no JSON"
        ),
        pytest.param(request("POST", "/api/v1/nodes", b" " * (MAX_BODY + 1)), 413, b"", id="too large"),
    ],
)
async def test_answers(front: Endpoint, data: bytes, status: int, text: bytes) -> None:
    head, _, body = (await talk(front, data)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert text in body


async def test_requests_are_answered_in_their_order(front: Endpoint) -> None:
    paths = ("/readyz", "/api/v1/nodes/none", "/readyz")
    said = await talk(front, b"".join(request("GET", path) for path in paths))
    assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"404", b"200"]


@pytest.mark.parametrize("size", [900, 5_000, 20_000, 70_000, 150_000])
async def test_bodies_may_come_in_any_pieces(front: Endpoint, size: int) -> None:
    """Pieces of requests that follow one another: a piece may end one body and begin the next request."""
    path = "/api/v1/namespaces/default/configmaps"
    bodies = (
        json.dumps({"metadata": {"name": f"m{n}"}, "data": {"x": "x" * 60_000}}).encode() for n in "abc"
    )
    data = b"".join(request("POST", path, body) for body in bodies)
    trusted = ssl.create_default_context(cadata=front.certificate.decode())
    reader, writer = await asyncio.open_connection(front.host, front.port, ssl=trusted)
    for start in range(0, len(data), size):
        writer.write(data[start : start + size])
        await writer.drain()
        await asyncio.sleep(0.001)
    said = b""
    while said.count(b"HTTP/1.1 ") < 3:
        chunk = await asyncio.wait_for(reader.read(65536), 10)
        assert chunk, said[-300:]
        said += chunk
    writer.transport.abort()
    assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"201"] * 3


async def test_clients_that_vanish_do_no_harm(front: Endpoint) -> None:
    trusted = ssl.create_default_context(cadata=front.certificate.decode())
    watch, half = request("GET", "/api/v1/pods?watch=1"), request("POST", "/api/v1/nodes", b"{}")[:-1]
    for data in (b"POST /api/v1/no", watch, half):
        _, writer = await asyncio.open_connection(front.host, front.port, ssl=trusted)
        writer.write(data)
        await asyncio.sleep(0.01)
        writer.transport.abort()
    assert b" 200 OK" in await talk(front, request("GET", "/readyz"))


async def test_our_own_client_lists_watches_and_binds(front: Endpoint, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {
        "server": f"https://{front.host}:{front.port}",
        "certificate-authority-data": base64.b64encode(front.certificate).decode(),
    }
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": TOKEN}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    pods = next(resource for resource in RESOURCES if resource.kind == "Pod")
    bound = asyncio.get_running_loop().create_future()

    async with ApiClient(load(str(kubeconfig)), qps=1000, burst=1000) as client:

        def on_event(kind: str, old: object, new: object) -> None:
            if getattr(new, "node_name", "") == "n" and not bound.done():
                bound.set_result(new)

        following = asyncio.ensure_future(Reflector(client, pods, on_event=on_event).run())
        path = "/api/v1/namespaces/default/pods"
        body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        await client.request("POST", path, body)
        binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
        await client.request("POST", f"{path}/p/binding", binding)
        assert (await asyncio.wait_for(bound, 5)).name == "p"
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_the_service_of_the_api_points_to_it() -> None:
    server = ApiServer()
    for _ in range(2):  # after the second start it is another port
        async with serve(server, tls=make_certificate(), token=TOKEN) as front:
            found = await server.handle(Request.of("GET", "/api/v1/namespaces/default/endpoints/kubernetes"))
            subset = json.loads(found.body)["subsets"][0]
            assert (subset["addresses"], subset["ports"][0]["port"]) == ([{"ip": front.host}], front.port)
            path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
            chosen = f"{path}?labelSelector=kubernetes.io/service-name%3Dkubernetes"
            slices = json.loads((await server.handle(Request.of("GET", chosen))).body)["items"]
            assert [each["ports"][0]["port"] for each in slices] == [front.port]
