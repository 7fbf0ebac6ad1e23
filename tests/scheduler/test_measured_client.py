"""What a client asks of an API server is counted as client-go counts it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from stowplan.client.connection import Connection
from stowplan.client.errors import ApiError
from stowplan.metrics import Metrics
from stowplan.scheduler.measuring import MeasuredClient

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}\n"
GONE = b'HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{"type":"ERROR","code":410   }\n'
REFUSED = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\n{}"
BROKEN = b""


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[tuple[MeasuredClient, Metrics]]:
    """A client of a server that has but this to say."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    metrics = Metrics()
    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with MeasuredClient(Connection(f"http://127.0.0.1:{port}"), metrics) as client:
            yield client, metrics


def shown(metrics: Metrics, family: str) -> dict[str, str]:
    """What a family says, by the label that comes first."""
    found = {}
    for line in metrics.render().decode().splitlines():
        if line.startswith(family + "{"):
            labels, number = line.removeprefix(family).rsplit(" ", 1)
            found[labels.split('"')[1]] = number
    return found


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        pytest.param(GOOD, "200", id="a good one"),
        pytest.param(REFUSED, "403", id="a refusal"),
        pytest.param(BROKEN, "<error>", id="none"),
    ],
)
async def test_requests_are_counted_by_their_answers(answer, code):
    async with answering(answer) as (client, metrics):
        with suppress(ApiError):
            await client.request("GET", "/api/v1/pods")
    assert shown(metrics, "rest_client_requests_total") == {code: "1"}
    assert list(shown(metrics, "rest_client_request_duration_seconds_count").values()) == ["1"]


@pytest.mark.parametrize(
    ("body", "size"),
    [
        pytest.param(None, "0", id="none"),
        pytest.param({"a": [1]}, "9", id="an object"),
        pytest.param(b"12345", "5", id="bytes"),
    ],
)
async def test_bodies_are_measured(body, size):
    async with answering(GOOD) as (client, metrics):
        await client.request("POST", "/api/v1/pods", body)
    assert list(shown(metrics, "rest_client_request_size_bytes_sum").values()) == [size]
    assert list(shown(metrics, "rest_client_response_size_bytes_sum").values()) == ["3"]


async def test_waiting_for_ones_turn_is_measured():
    async with answering(GOOD) as (client, metrics):
        await client.request("GET", "/api/v1/pods")
        await raise_at_error(client)
    assert list(shown(metrics, "rest_client_rate_limiter_duration_seconds_count").values()) == ["2"]


async def raise_at_error(client: MeasuredClient) -> None:
    def on_line(line: bytes) -> None:
        if b"ERROR" in line:
            raise ApiError(410, "Expired", "too old")

    with suppress(ApiError):
        await client.stream("/api/v1/pods", on_line, query={"watch": "true"}, silence=5)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        pytest.param(GOOD, "200", id="as soon as it begins"),
        pytest.param(GONE, "200", id="once, though it breaks later"),
        pytest.param(REFUSED, "403", id="though it is refused"),
        pytest.param(BROKEN, "<error>", id="though there is no answer"),
    ],
)
async def test_a_watch_is_counted(answer, code):
    async with answering(answer) as (client, metrics):
        await raise_at_error(client)
    assert shown(metrics, "rest_client_requests_total") == {code: "1"}
    assert shown(metrics, "rest_client_request_duration_seconds_count") == {}


async def test_a_watch_is_counted_before_it_ends():
    async with answering(GOOD) as (client, metrics):
        counts: list[dict[str, str]] = []
        await client.stream(
            "/api/v1/pods",
            lambda line: None,
            query={"watch": "true"},
            silence=5,
            on_open=lambda: counts.append(shown(metrics, "rest_client_requests_total")),
        )
    assert counts == [{"200": "1"}]
