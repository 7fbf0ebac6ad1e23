"""Runs an extender until the process is told to stop."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from typing import Any

from stowplan import log
from stowplan.client import kubeconfig
from stowplan.client.connection import Connection
from stowplan.client.core_tasks import CoreTaskError, first_of
from stowplan.extender.functions import Function
from stowplan.extender.options import ExtenderOptions
from stowplan.extender.service import Extender
from stowplan.framework.registry import Registry
from stowplan.metrics import Metrics
from stowplan.scheduler.measured_client import MeasuredClient


def serve(*functions: Function, **options: Any) -> None:
    """Serves functions; the options are those of ExtenderOptions, such as `port` and `kubeconfig`."""
    log.configure()
    run(ExtenderOptions(functions=functions, **options))


def run(options: ExtenderOptions, registry: Registry | None = None) -> None:
    try:
        asyncio.run(_run(options, registry))
    except BaseExceptionGroup as group:
        raise first_of(group) from None


async def _run(options: ExtenderOptions, registry: Registry | None) -> None:
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        api = None
        connection = _connection(options)
        if connection is not None:
            client = MeasuredClient(connection, metrics, qps=1000, burst=1000, user_agent="stowplan/extender")
            api = await stack.enter_async_context(client)
        extender = Extender(options, api, registry=registry, metrics=metrics)
        await stack.enter_async_context(extender.listening())
        work, told = asyncio.create_task(extender.run()), asyncio.create_task(_told())
        try:
            await asyncio.wait((work, told), return_when=asyncio.FIRST_COMPLETED)
            if work.cancelled():
                raise CoreTaskError("the extender's task was cancelled")
            if work.done():
                work.result()
            log.log(0, "Requested to terminate, exiting")
            await extender.stop()
        finally:
            work.cancel()
            told.cancel()
            await asyncio.gather(work, told, return_exceptions=True)


def _connection(options: ExtenderOptions) -> Connection | None:
    """To the cluster to follow; functions alone need none."""
    path = options.kubeconfig or (options.config and options.config.client_connection.kubeconfig)
    if path:
        return kubeconfig.load(path)
    return kubeconfig.in_cluster() if options.config or options.is_following else None


async def _told() -> None:
    signals: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    await signals.get()
