"""A client that counts what it asks of the API server."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from stowplan.api.meta import Object
from stowplan.api.quantity import encode_hook
from stowplan.api.resource import ResourceClaim
from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection
from stowplan.client.errors import ApiError
from stowplan.http11.client import Reply
from stowplan.metrics import Metrics

T = TypeVar("T", bound=Object)
NO_ANSWER = "<error>"


class MeasuredClient(ApiClient):
    def __init__(self, connection: Connection, metrics: Metrics, **settings: Any) -> None:
        super().__init__(connection, **settings)
        self._metrics, self._host = metrics, urlsplit(connection.server).netloc

    async def request(self, method: str, path: str, body: Any = None, **options: Any) -> Reply:
        began, code = perf_counter(), NO_ANSWER
        if body is not None and not isinstance(body, bytes):
            body = msgspec.json.encode(body, enc_hook=encode_hook)
        self._metrics.request_sent(self._host, method, len(body or b""))
        try:
            answer = await super().request(method, path, body, **options)
            code = str(answer.status)
            self._metrics.answered(self._host, method, len(answer.data))
        except ApiError as error:
            code = str(error.status or NO_ANSWER)
            raise
        finally:
            self._metrics.request(code, self._host, method, perf_counter() - began)
        return answer

    def on_throttled(self, method: str, seconds: float) -> None:
        self._metrics.throttled(self._host, method, seconds)

    async def stream(
        self,
        path: str,
        on_line: Callable[[bytes], None],
        *,
        on_open: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        is_counted = False

        def opened() -> None:
            nonlocal is_counted
            is_counted = True
            self._metrics.watch_begun("200", self._host)
            on_open()

        try:
            await super().stream(path, on_line, on_open=opened, **options)
        except ApiError as error:
            if not is_counted:
                self._metrics.watch_begun(str(error.status or NO_ANSWER), self._host)
            raise

    async def create(self, item: T) -> T:
        try:
            created = await super().create(item)
        except ApiError:
            self._count_claim(item, "failure")
            raise
        self._count_claim(item, "success")
        return created

    def _count_claim(self, item: Object, status: Literal["success", "failure"]) -> None:
        if isinstance(item, ResourceClaim):
            self._metrics.claim_created(status)
