"""CPU time per small request: our HTTP/1.1 server and client, and aiohttp's, with TLS and without.

    python benchmarks/http_libraries.py [--requests 20000] [--rounds 3]

A server in a process of its own answers a POST of a binding with a Status; a client sends them over eight
connections. Each server is measured with our client, each client with our server, in turn. The least of all
rounds counts: everything else is other work of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
from aiohttp import web

from stowplan.apiserver.http import Pair, _context, make_certificate
from stowplan.client.connection import HttpPool
from stowplan.http11.messages import Request, Response
from stowplan.http11.server import Limits, listen

PATH = "/api/v1/namespaces/default/pods/web-1/binding"
BODY = (
    b'{"apiVersion":"v1","kind":"Binding","metadata":{"name":"web-1","namespace":"default",'
    b'"uid":"0b0b4c2e-9d33-4a57-8f5e-0f6d5a2c9b11"},"target":{"kind":"Node","name":"node-1"}}'
)
STATUS = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}'
HEADERS = (("User-Agent", "stowplan"), ("Accept", "application/json"), ("Authorization", "Bearer secret"))
CONNECTIONS = 8


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class App:
    def authenticates(self, authorization: bytes) -> bool:
        return True

    def is_public(self, url: bytes) -> bool:
        return True

    async def handle(self, request: Request) -> Response:
        assert request.body
        return Response(201, STATUS)

    def reject(self, status: int, limits: Limits) -> Response:
        return Response(status, b"")


async def serve_ours(tls: ssl.SSLContext | None, ready: Callable[[int], Awaitable[None]]) -> None:
    async with listen(App(), "127.0.0.1", 0, tls=tls, limits=Limits()) as listener:
        await ready(listener.port)


async def serve_aiohttp(tls: ssl.SSLContext | None, ready: Callable[[int], Awaitable[None]]) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        assert await request.read()
        return web.Response(status=201, body=STATUS, content_type="application/json")

    server = web.Server(handle, access_log=None)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0, ssl=tls)
    await ready(listener.sockets[0].getsockname()[1])


SERVERS = {"ours": serve_ours, "aiohttp": serve_aiohttp}


def serve(name: str, pair: Pair | None, pipe: Connection) -> None:
    async def ready(port: int) -> None:
        pipe.send(port)
        while await asyncio.to_thread(pipe.recv):
            pipe.send(cpu_seconds())

    asyncio.run(SERVERS[name](_context(pair) if pair else None, ready))


async def ask_ours(url: str, tls: ssl.SSLContext | None, count: int) -> None:
    pool = HttpPool(url, ssl_context=tls)
    headers = (*HEADERS, ("Content-Type", "application/json"))

    async def ask() -> None:
        for _ in range(count // CONNECTIONS):
            reply = await pool.request("POST", PATH, headers, BODY, timeout=10)
            assert reply.status == 201

    await asyncio.gather(*(ask() for _ in range(CONNECTIONS)))
    await pool.close()


async def ask_aiohttp(url: str, tls: ssl.SSLContext | None, count: int) -> None:
    connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=tls or True)
    headers = {**dict(HEADERS), "Content-Type": "application/json"}
    async with aiohttp.ClientSession(url, connector=connector) as session:

        async def ask() -> None:
            for _ in range(count // CONNECTIONS):
                async with session.post(PATH, data=BODY, headers=headers) as response:
                    assert response.status == 201
                    await response.read()

        await asyncio.gather(*(ask() for _ in range(CONNECTIONS)))


CLIENTS = {"ours": ask_ours, "aiohttp": ask_aiohttp}


def measure(server: str, client: str, pair: Pair | None, count: int) -> tuple[float, float]:
    """Microseconds of the server and of the client for a request."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=serve, args=(server, pair, there))
    process.start()
    try:
        port, tls = here.recv(), None
        if pair is not None:
            with tempfile.TemporaryDirectory() as folder:
                trusted = Path(folder, "ca.crt")
                trusted.write_bytes(pair.certificate)
                tls = ssl.create_default_context(cafile=str(trusted))
        url = f"{'https' if pair else 'http'}://127.0.0.1:{port}"
        asyncio.run(CLIENTS[client](url, tls, 1000))
        here.send(True)
        server_before, client_before = here.recv(), cpu_seconds()
        asyncio.run(CLIENTS[client](url, tls, count))
        client_after = cpu_seconds()
        here.send(True)
        server_after = here.recv()
        here.send(False)
    finally:
        process.kill()
        process.join()
    return (server_after - server_before) / count * 1e6, (client_after - client_before) / count * 1e6


def main(count: int, rounds: int) -> None:
    pair = make_certificate()
    for what, tls in (("plain", None), ("TLS", pair)):
        best: dict[str, float] = {}
        for _ in range(rounds):
            for name in ("ours", "aiohttp"):
                as_server, _ = measure(name, "ours", tls, count)
                _, as_client = measure("ours", name, tls, count)
                for key, value in ((f"{name} server", as_server), (f"{name} client", as_client)):
                    best[key] = min(value, best.get(key, value))
        for key, value in best.items():
            print(f"{what:6} {key:16} {value:8.1f} µs CPU per request", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    main(given.requests, given.rounds)
