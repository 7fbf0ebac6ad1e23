"""A Prometheus query: returns samples, or raises an error that says why there are none."""

from __future__ import annotations

import math
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

import aiohttp
import msgspec

from stowplan.config.field_errors import child, invalid

MAX_RESPONSE_BYTES = 2**25
"""About 250,000 samples."""
CLOCK_SKEW = 60.0
"""Seconds that the clock of a source may be ahead of ours."""
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class PrometheusError(Exception):
    """Prometheus answers, but not with what was asked for."""


class Sample(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]

    @property
    def at(self) -> float:
        """The time that it is as of: when Prometheus answered, whenever its series got values."""
        return self.value[0]

    @property
    def amount(self) -> float | None:
        """The value, where it is an amount of something: neither negative, nor infinite, nor no number."""
        try:
            amount = float(self.value[1])
        except ValueError:
            return None
        return amount if 0 <= amount < math.inf else None


class Samples(msgspec.Struct):
    result: list[Sample]


class QueryResponse(msgspec.Struct):
    data: Samples


class ErrorResponse(msgspec.Struct):
    error: str = ""


async def run_query(
    session: aiohttp.ClientSession,
    address: str,
    query: str,
    *,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | bool = True,
) -> list[Sample]:
    """Run an instant query. The same fault always gives the same error text."""
    url = f"{address.rstrip('/')}/api/v1/query"
    async with session.get(url, params={"query": query}, headers=headers, ssl=tls) as response:
        body = await read_body(response)
    if response.status != 200:
        raise PrometheusError(f"HTTP {response.status} {_reason(body)}".strip())
    try:
        return msgspec.json.decode(body, type=QueryResponse).data.result
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PrometheusError(f"not a response from Prometheus: {error}") from None


def answer_time(samples: Iterable[Sample], now: float, stale_after: float) -> float:
    """The time that an answer is as of, at most now.

    Raises PrometheusError for what a cache has kept for too long, and where a clock is wrong.
    """
    found = now
    for sample in samples:
        if sample.at > now + CLOCK_SKEW:
            text = f"Prometheus has answered as of more than {CLOCK_SKEW:g} s in the future"
            raise PrometheusError(f"{text}: compare the clocks")
        if now - sample.at > stale_after:
            text = f"Prometheus has answered as of more than {stale_after:g} s ago"
            raise PrometheusError(f"{text}: compare the clocks, and look for caches")
        found = min(found, sample.at)
    return found


async def read_body(response: aiohttp.ClientResponse) -> bytes:
    """Read a response, unless it is so large that it would take memory from the scheduler."""
    found = bytearray()
    async for part in response.content.iter_any():
        found += part
        if len(found) > MAX_RESPONSE_BYTES:
            raise PrometheusError(f"the response has more than {MAX_RESPONSE_BYTES >> 20} MiB")
    return bytes(found)


def _reason(body: bytes) -> str:
    """Read Prometheus's error message from a response; return an empty string if it has none."""
    try:
        return msgspec.json.decode(body, type=ErrorResponse).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def reading_errors(path: str, node_label: str, positive: Mapping[str, float]) -> Iterator[str]:
    """Check the arguments that all plugins which query Prometheus have; `positive` are numbers by field."""
    if not LABEL_NAME.fullmatch(node_label):
        yield invalid(child(path, "nodeLabel"), node_label, "must be a label, such as instance")
    for name, number in positive.items():
        if not 0 < number < math.inf:
            yield invalid(child(path, name), number, "must be greater than zero")


def is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def without_port(instance: str) -> str:
    """The host of `10.0.0.1:9100`, `[fd00::1]:9100` or `node-1`."""
    if instance.startswith("["):
        return instance[1:].partition("]")[0]
    host, _, port = instance.rpartition(":")
    return host if port.isdecimal() and ":" not in host else instance
