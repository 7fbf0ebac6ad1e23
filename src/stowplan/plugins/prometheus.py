"""One question to a Prometheus: samples come back, or an error that says why not."""

from __future__ import annotations

import math

import aiohttp
import msgspec


class PrometheusError(Exception):
    """Prometheus answers, but not with what was asked for."""


class Sample(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]

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


class Answer(msgspec.Struct):
    data: Samples


class Refusal(msgspec.Struct):
    error: str = ""


async def ask(session: aiohttp.ClientSession, address: str, query: str) -> list[Sample]:
    """What the query gives now. An error has the same text whenever the same is wrong."""
    async with session.get(f"{address.rstrip('/')}/api/v1/query", params={"query": query}) as response:
        body = await response.read()
    if response.status != 200:
        raise PrometheusError(f"HTTP {response.status} {_reason(body)}".strip())
    try:
        return msgspec.json.decode(body, type=Answer).data.result
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PrometheusError(f"that is no answer of a Prometheus: {error}") from None


def _reason(body: bytes) -> str:
    """What Prometheus says when it refuses; empty where somebody else answered."""
    try:
        return msgspec.json.decode(body, type=Refusal).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
