"""The extender: it follows the cluster, and answers at its paths until it is signalled to stop."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

import msgspec

from stowplan import log
from stowplan.client import kubeconfig
from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection
from stowplan.client.core_tasks import CoreTaskError, CoreTasks, first_of
from stowplan.config import KubeSchedulerConfiguration
from stowplan.extender.functions import Function
from stowplan.extender.options import VERBS, ExtenderOptions, check_paths, find_unreached
from stowplan.extender.routes import LIMITS, Counting, Route, RouteContext, Routes, VerbRoutes, text
from stowplan.extender.verbs import ExtenderBinder, FunctionVerb, ProfileVerbs
from stowplan.framework.registry import Registry
from stowplan.http11.messages import Response
from stowplan.http11.server import Listener, listen
from stowplan.metrics import CONTENT_TYPE, Metrics
from stowplan.scheduler.guard import Guard
from stowplan.scheduler.measuring import MeasuredClient
from stowplan.scheduler.options import RELEASE
from stowplan.scheduler.plugin_work import keep_running
from stowplan.scheduler.scheduler import Scheduler, Settings
from stowplan.serving.certificates import ServerCertificates
from stowplan.serving.options import ServingOptions

REFRESH_SECONDS = 60.0


class Extender:
    """With an `api` it follows that cluster; without one it serves functions to schedulers that send nodes.

    It answers while inside `listening`, about what `run` sees.
    """

    def __init__(
        self,
        options: ExtenderOptions,
        api: ApiClient | None = None,
        *,
        registry: Registry | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.options, self.metrics = options, metrics or Metrics()
        self.guard, self._core = Guard(self.metrics), CoreTasks()
        self.scheduler: Scheduler | None = None
        """Follows the cluster and has the profiles. Never started, it decides nothing by itself."""
        if api is not None:
            config = options.config or KubeSchedulerConfiguration()
            config = msgspec.structs.replace(config, delay_cache_until_active=False, extenders=())
            self.scheduler = Scheduler(
                config,
                api,
                api,
                Settings(
                    registry=registry or Registry.installed(),
                    metrics=self.metrics,
                    guard=self.guard,
                    takes_pods=False,
                    owns_process=True,
                ),
            )
        profiles = tuple(self.scheduler.profiles) if self.scheduler and options.config else ()
        check_paths(options, profiles)
        context = RouteContext(self.guard, Counting(self.metrics.page), options.budget, self._unready)
        self._verbs = {
            path: route for name in profiles for path, route in self._profile_routes(name, context)
        } | dict(self._function_routes(context))
        self._certificates = _certificates(options)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Listener]:
        """Answers while inside; yields where the verbs are served."""
        options, limits = self.options, LIMITS._replace(body=self.options.max_body)
        tls = None if self._certificates is None else self._certificates.context
        pages = self._pages()
        verbs = listen(Routes(self._verbs | pages), options.address, options.port, tls=tls, limits=limits)
        with self.guard:
            async with verbs as listener:
                for path in self._verbs:
                    log.log(0, "Serving", path=path, port=listener.port, tls=tls is not None)
                if not options.health_port:
                    yield listener
                    return
                async with listen(Routes(pages), options.address, options.health_port, limits=limits):
                    yield listener

    async def run(self) -> None:
        """Follows the cluster and runs what functions have in the background, until it is cancelled."""
        async with asyncio.TaskGroup() as of_functions, self._core as core:
            if self.scheduler is not None:
                core.start("view of the cluster", self.scheduler.run())
            for each in self.options.functions:
                if each.kind == "background":
                    of_functions.create_task(keep_running(each.name, each.call), name=each.name)
            core.start("certificates", self._refresh())

    async def stop(self, seconds: float = 10.0) -> None:
        """The bindings under way are finished."""
        self._core.may_end = True
        if self.scheduler is not None:
            await self.scheduler.stop(seconds)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            if self._certificates is not None:
                self._certificates.refresh()

    def _profile_routes(self, name: str, context: RouteContext) -> Iterator[tuple[str, Route]]:
        assert self.scheduler is not None
        profile, options = self.scheduler.profiles[name], self.options
        if missed := find_unreached(profile, options.verbs):
            log.warn(
                "Plugins are not used: none of the served verbs runs their extension points",
                profile=name,
                plugins=missed,
                verbs=options.verbs or VERBS,
            )
        verbs = ProfileVerbs(profile, self.scheduler.cluster, options.max_score)
        binder = ExtenderBinder(self.scheduler.shared, self.scheduler.binder, verbs)
        routes = VerbRoutes(context, verbs, binder.remember)
        for verb, path in options.routes_of(name):
            answers: Mapping[str, Callable[..., object]] = {
                "filter": partial(routes.filter, path),
                "prioritize": partial(routes.prioritize, path),
                "preempt": partial(routes.preempt, path, verbs.preempt),
                "bind": partial(routes.bind, path, binder.bind),
            }
            yield path, Route(answers[verb])  # type: ignore[arg-type]

    def _function_routes(self, context: RouteContext) -> Iterator[tuple[str, Route]]:
        view = None if self.scheduler is None else self.scheduler.cluster
        for each in self.options.functions:
            if each.kind != "background":
                verb = FunctionVerb(each, view, self.guard)
                routes = VerbRoutes(context, verb)
                if each.kind == "preemption":
                    yield each.path, Route(partial(routes.preempt, each.path, verb.preempt))
                    continue
                answer = routes.filter if each.kind == "predicate" else routes.prioritize
                yield each.path, Route(partial(answer, each.path))

    def _pages(self) -> dict[str, Route]:
        def metrics(_: bytes) -> Response:
            return Response(200, self.metrics.render(), CONTENT_TYPE)

        return {
            "/healthz": _page(lambda: None),
            "/livez": _page(lambda: self._core.fault or self.guard.check()),
            "/readyz": _page(self._unready),
            "/metrics": Route(metrics, "GET"),
            "/version": Route(lambda _: text(200, version("stowplan")), "GET"),
        }

    def _unready(self) -> str | None:
        if self.scheduler is None or self.scheduler.is_synced:
            return None
        return "the extender has not read the cluster yet"


def _page(check: Callable[[], str | None]) -> Route:
    def answer(_: bytes) -> Response:
        problem = check()
        return text(200, "ok") if problem is None else text(500, problem)

    return Route(answer, "GET")


def _certificates(options: ExtenderOptions) -> ServerCertificates | None:
    """With a client CA, only clients that have a certificate of that CA can send requests."""
    if not (options.tls_cert_file or options.tls_private_key_file or options.client_ca_file):
        return None
    found = ServerCertificates(
        ServingOptions(
            tls_cert_file=options.tls_cert_file,
            tls_private_key_file=options.tls_private_key_file,
            client_ca_file=options.client_ca_file,
        )
    )
    if options.client_ca_file:
        found.context.verify_mode = ssl.CERT_REQUIRED
    return found


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
    metrics.set_build_info(f"{RELEASE}+stowplan.{version('stowplan')}")
    async with AsyncExitStack() as stack:
        api = None
        connection = _connection(options)
        if connection is not None:
            client = MeasuredClient(connection, metrics, qps=1000, burst=1000, user_agent="stowplan/extender")
            api = await stack.enter_async_context(client)
        extender = Extender(options, api, registry=registry, metrics=metrics)
        await stack.enter_async_context(extender.listening())
        work, signalled = asyncio.create_task(extender.run()), asyncio.create_task(_wait_for_signal())
        try:
            await asyncio.wait((work, signalled), return_when=asyncio.FIRST_COMPLETED)
            if work.cancelled():
                raise CoreTaskError("the extender's task was cancelled")
            if work.done():
                work.result()
            log.log(0, "Requested to terminate, exiting")
            await extender.stop()
        finally:
            work.cancel()
            signalled.cancel()
            await asyncio.gather(work, signalled, return_exceptions=True)


def _connection(options: ExtenderOptions) -> Connection | None:
    """The connection to the cluster to follow; functions alone need none."""
    path = options.kubeconfig or (options.config and options.config.client_connection.kubeconfig)
    if path:
        return kubeconfig.load(path)
    return kubeconfig.in_cluster() if options.config or options.is_following else None


async def _wait_for_signal() -> None:
    signals: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    await signals.get()
