"""`stowplan run`: the scheduler with its lease, its server and its signals."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from enum import Enum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.api.protobuf import CONTENT_TYPE as PROTOBUF
from stowplan.client import kubeconfig
from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection
from stowplan.client.core_tasks import CoreTaskError, first_of
from stowplan.client.errors import ApiError
from stowplan.client.extenders import extenders_of
from stowplan.client.leases import LeaderElection, new_identity
from stowplan.config import KubeSchedulerConfiguration
from stowplan.config.gates import RELEASE_MINOR, missing_features, read_server_minor
from stowplan.errors import InputError, StowplanError
from stowplan.framework.answers import describe, stack_of
from stowplan.framework.plugin import is_trusted
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles
from stowplan.journal import Decisions
from stowplan.metrics import Metrics
from stowplan.scheduler.comparer import compare, dump
from stowplan.scheduler.decision_pages import decision_pages
from stowplan.scheduler.guard import Guard
from stowplan.scheduler.measuring import MeasuredClient
from stowplan.scheduler.options import RELEASE, Parsed, RunOptions, complete_config, parse
from stowplan.scheduler.scheduler import Scheduler, Settings, steady_clock
from stowplan.serving.access import cluster_client_ca
from stowplan.serving.pages import Page, scheduler_pages
from stowplan.serving.server import Server

GRACE_SECONDS = 20.0
VERSION_SECONDS = 5.0
"""How long we wait for the API server's version at the start."""
FIRST_VERSION_PAUSE, MAX_VERSION_PAUSE = 1.0, 60.0
"""Seconds until we ask for it again, if it is not known; they double each time."""
UNKNOWN_VERSION = f"API server's version not known, scheduling as kube-scheduler 1.{RELEASE_MINOR}"
END_SECONDS = 5.0
"""How long we wait for tasks to end that were cancelled."""
EXIT_SECONDS = 5.0
"""After all our own work has ended, how long that of plugins may hold up the end of the process."""
NOT_SYNCED = "handlers are not fully synchronized"
LOOK_SECONDS = 0.05
"""How long ago the plugins' files may have been checked when a pod is decided."""


MorePages = Callable[["Service"], Mapping[str, Page]]
"""Further pages of the server, by path; packages above this one provide them."""


class Ending(Enum):
    STOPPED = "told to stop"
    RELOADED = "told to read the configuration again"
    LOST = "lost the lease"
    FAILED = "failed"


def run(
    options: RunOptions,
    registry: Registry,
    more_pages: MorePages = lambda _: {},
    beside: Callable[[Connection], AbstractAsyncContextManager[None]] | None = None,
) -> None:
    """Runs until it is stopped or loses its lease; the process exits with the corresponding status.

    `beside` is entered with a connection to the cluster, and lasts as long as the scheduler.
    """
    import aiohttp.web  # noqa: F401  # at the start, rather than with the first probe while pods wait

    async def serve() -> int:
        status = 1
        try:
            async with nullcontext() if beside is None else beside(connect(options)):
                status = await Service(options, registry, more_pages=more_pages).run()
        finally:
            end_soon(status)
        return status

    try:
        status = asyncio.run(serve())
    except BaseException as error:
        error = first_of(error)
        if isinstance(error, StowplanError):
            raise error from None
        # Such as SystemExit in a task that a plugin started: it ends the event loop, whatever its status.
        log.error("Fatal error, exiting", describe(error), stacktrace=stack_of(error))
        status = 1
    sys.exit(status)


def end_soon(status: int) -> None:
    """Ends the process in a while, if tasks or threads of plugins keep it from ending by itself."""

    def end() -> None:
        time.sleep(EXIT_SECONDS)
        log.error("Background work of plugins did not stop; exiting anyway", None)
        os._exit(status)

    threading.Thread(target=end, name="end of the process", daemon=True).start()


class Service:
    """The process. Clients, lease and server last; the scheduler is built anew for a new configuration.

    `connection` leads to the API server, if the options do not say where it is.
    """

    def __init__(
        self,
        options: RunOptions,
        registry: Registry,
        connection: Connection | None = None,
        more_pages: MorePages = lambda _: {},
        now: Callable[[], float] = time.time,
        *,
        owns_process: bool = True,
    ) -> None:
        """`now` is the time of day, for what people and other programs read.

        With `owns_process` the garbage collector is tuned for the scheduler, which affects the whole process.
        """
        self.options, self._connection, self._more_pages = options, connection, more_pages
        self._now, self._owns_process = now, owns_process
        self.registry, self.metrics = registry, Metrics()
        self.metrics.set_build_info(f"{RELEASE}+stowplan.{version('stowplan')}")
        self._guard = Guard(self.metrics)
        self._looked_at_files = time.monotonic()
        self._draw = random.Random(options.seed)
        self._election: LeaderElection | None = None
        self.scheduler: Scheduler | None = None
        self.decisions = Decisions(options.journal.memory)
        self._is_stopping = False
        self._fault: str | None = None
        """Why the process is about to end, if it was not asked to."""
        self._config_before: KubeSchedulerConfiguration | None = None
        """The last one that a scheduler was built for."""
        self._signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
        """Not yet answered: one may come while the scheduler is built anew."""
        self._policy: dict[str, Any] | None = None
        """The ConfigMap with the Policy, as it was at the start."""
        self._server_minor: int | None = None
        """The API server's minor version at the start, if features are to follow it."""

    async def run(self) -> int:
        log.log(0, "Starting Stowplan scheduler")
        connection = self._connection or connect(self.options)
        async with AsyncExitStack() as stack:
            stack.enter_context(self._journal())
            client = self.options.config.client_connection
            make_client = partial(
                MeasuredClient,
                connection,
                self.metrics,
                qps=client.qps,
                burst=client.burst,
                user_agent="stowplan/scheduler",
                uses_protobuf=client.content_type == PROTOBUF,
            )
            api = await stack.enter_async_context(make_client(may_write=self._is_leading))
            events_api = await stack.enter_async_context(make_client(beside=api))
            deadline = self.options.config.leader_election.renew_deadline
            leases = await stack.enter_async_context(
                MeasuredClient(
                    connection,
                    self.metrics,
                    user_agent="stowplan/leader-election",
                    timeout=max(1.0, deadline / 2),
                )
            )
            await self._take_policy(api)
            if self.options.config.leader_election.leader_elect:
                self._election = self._make_election(leases)
            stack.enter_context(self._guard)
            await stack.enter_async_context(self._serve())
            return await self._run(api, events_api)

    async def _run(self, api: ApiClient, events_api: ApiClient) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
            asyncio.get_running_loop().add_signal_handler(number, self._signals.put_nowait, number)
        elected = asking = None
        if self._election is not None:
            elected = asyncio.create_task(self._election.run(), name="leader election")
        try:
            asking = await self._follow_server_version(api)
            while True:
                ending = await self._run_once(api, events_api, elected)
                if ending is Ending.STOPPED:
                    log.log(0, "Requested to terminate, exiting")
                    return 0
                if ending is Ending.LOST:
                    log.error("Leaderelection lost", None)
                    return 1
                if ending is Ending.FAILED:
                    log.error("Scheduler failed, exiting", self._fault)
                    return 1
        finally:
            for task in (elected, asking):
                if task is not None:
                    task.cancel()
            if self._election is not None:
                await self._election.release()

    async def _run_once(
        self, api: ApiClient, events_api: ApiClient, elected: asyncio.Task[None] | None
    ) -> Ending:
        """One configuration's life."""
        scheduler = self.scheduler = self._build_scheduler(api, events_api)
        if self._is_leading():
            scheduler.start()
        works = {
            "scheduler": scheduler.run(),
            "signals": self._wait_for_signal(),
            "plugin files": self._look_at_plugin_files(),
            **self._more_work(scheduler),
        }
        tasks = {name: asyncio.create_task(work, name=name) for name, work in works.items()}
        waited = tasks if elected is None else tasks | {"leader election": elected}
        try:
            await asyncio.wait(waited.values(), return_when=asyncio.FIRST_COMPLETED)
            ending = self._ending_of(waited)
            self._is_stopping = ending is Ending.STOPPED
            if ending in (Ending.STOPPED, Ending.RELOADED):
                await scheduler.stop(GRACE_SECONDS)
            return ending
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.wait(tasks.values(), timeout=END_SECONDS)

    def _more_work(self, scheduler: Scheduler) -> Mapping[str, Coroutine[Any, Any, Any]]:
        """Tasks of this configuration besides; none of them may end by itself."""
        return {}

    def _ending_of(self, tasks: Mapping[str, asyncio.Task[Any]]) -> Ending:
        """Why this configuration's life is over. The end of any task but that of the signals is a failure."""
        for name, task in tasks.items():
            if not task.done():
                continue
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is not None:
                error = first_of(error)
                self._fault = str(error) if isinstance(error, CoreTaskError) else f"{name}: {describe(error)}"
                if not isinstance(error, CoreTaskError):
                    log.error("A core task has ended", self._fault, stacktrace=stack_of(error))
                return Ending.FAILED
            if name == "leader election":
                return Ending.LOST
            if name != "signals":
                self._fault = f"{name} has ended"
                return Ending.FAILED
        ended: Ending = tasks["signals"].result()
        return ended

    def _build_scheduler(self, api: ApiClient, events_api: ApiClient) -> Scheduler:
        """The scheduler for the configuration; if a new one cannot be used, for the one before it."""
        try:
            scheduler = self._scheduler(self.options.config, api, events_api)
        except StowplanError as error:
            if self._config_before is None:
                raise
            log.error("Cannot use the new configuration; keeping the old one", error)
            self.options = msgspec.structs.replace(self.options, config=self._config_before)
            scheduler = self._scheduler(self._config_before, api, events_api)
        self._config_before = self.options.config
        return scheduler

    def _scheduler(
        self, config: KubeSchedulerConfiguration, api: ApiClient, events_api: ApiClient
    ) -> Scheduler:
        return Scheduler(config, api, events_api, self._settings())

    def _settings(self) -> Settings:
        return Settings(
            registry=self.registry,
            metrics=self.metrics,
            now=self._now,
            clock=steady_clock(),
            draw=self._draw,
            is_leading=self._is_leading,
            max_in_unschedulable=self.options.pod_max_in_unschedulable,
            before_pod=self._follow_plugin_files,
            guard=self._guard,
            decisions=self.decisions,
            owns_process=self._owns_process,
            extender_max_response_bytes=self.options.extender_max_response_bytes,
        )

    async def _wait_for_signal(self) -> Ending:
        """Waits for a signal that ends this configuration's life; others are answered on the way."""
        while True:
            number = await self._signals.get()
            if number in (signal.SIGTERM, signal.SIGINT):
                return Ending.STOPPED
            if number is signal.SIGUSR2:
                self._dump()
            elif self._reload():
                return Ending.RELOADED

    async def _look_at_plugin_files(self) -> None:
        """Follow the plugins' files while no pods are decided."""
        while True:
            await asyncio.sleep(1)
            self._follow_plugin_files()

    def _follow_plugin_files(self) -> None:
        """Takes up plugins whose files have changed, as seen now or a moment ago."""
        now = time.monotonic()
        if now - self._looked_at_files < LOOK_SECONDS:
            return
        self._looked_at_files = now
        scheduler = self.scheduler
        if scheduler is None or scheduler.is_deferring:
            return
        try:
            if not self.registry.has_changed:
                return
            with self.registry.reloading() as registry:
                config = self._parse(registry).options.config
                if [each.scheduler_name for each in config.profiles] != list(scheduler.profiles):
                    config = self.options.config  # other profiles are taken up when told so by SIGHUP
                scheduler.take_profiles(config, registry)
        except BaseException as error:  # files of plugins are executed, and may raise anything
            _log_reload_fault("Plugins not reloaded, the old ones stay", error)
            self.metrics.plugins_reloaded("error")
            return
        self.registry = registry
        self.options = msgspec.structs.replace(self.options, config=self._keep_fixed(config))
        self.metrics.plugins_reloaded("success")
        log.log(0, "Plugins reloaded")

    def _keep_fixed(self, config: KubeSchedulerConfiguration) -> KubeSchedulerConfiguration:
        """What the process was started with stays: clients, lease and server are not made anew."""
        return msgspec.structs.replace(
            config,
            leader_election=self.options.config.leader_election,
            client_connection=self.options.config.client_connection,
        )

    def _dump(self) -> None:
        if self.scheduler is not None:
            if mismatch := compare(self.scheduler):
                log.error("Cache mismatch", None, **mismatch._asdict())
            log.log(0, "Dump of cache and queue", dump=log.Whole(dump(self.scheduler)))

    def _reload(self) -> bool:
        """Reads the configuration again; a bad one is rejected and the old one stays."""
        try:
            options, warnings = self._parse(self.registry)
            complete_config(options.config, self.registry)
            extenders_of(options.config.extenders)
        except BaseException as error:  # modules of plugins are imported, and may raise anything
            _log_reload_fault("Configuration not reloaded, the old one stays", error)
            return False
        for warning in warnings:
            log.warn(warning)
        for field, in_force, wanted in self._fields_for_restart(options.config):
            log.warn(
                "Configuration field not taken up: it takes a restart",
                field=field,
                inForce=in_force,
                wanted=wanted,
            )
        self.options = msgspec.structs.replace(self.options, config=self._keep_fixed(options.config))
        log.log(0, "Configuration reloaded")
        return True

    def _fields_for_restart(self, wanted: KubeSchedulerConfiguration) -> Iterator[tuple[str, object, object]]:
        """Fields that a new configuration changes and that `_keep_fixed` keeps, with both values."""
        in_force = self.options.config
        yield from _changes("leaderElection", in_force.leader_election, wanted.leader_election)
        if self._connection is None:  # else it is not the configuration that says where to connect
            yield from _changes("clientConnection", in_force.client_connection, wanted.client_connection)

    @property
    def leader(self) -> str | None:
        """The current leader while this replica stands by, empty if unknown; None if this one leads."""
        return None if self._election is None or self._is_leading() else self._election.holder

    def _is_leading(self) -> bool:
        return self._election is None or self._election.is_leading

    def _make_election(self, api: ApiClient) -> LeaderElection:
        config = self.options.config
        lease = config.leader_election.resource_name

        def begin() -> None:
            self.metrics.leading(lease, True)
            if self.scheduler is not None:
                self.scheduler.start()

        self.metrics.leading(lease, False)
        return LeaderElection(
            api,
            new_identity(),
            config.leader_election,
            on_started=begin,
            on_lost=lambda: self.metrics.leading(lease, False),
            component=config.profiles[0].scheduler_name,
        )

    async def _take_policy(self, api: ApiClient) -> None:
        """An old configuration whose Policy is in a ConfigMap: read it from the API server."""
        if not self.options.policy_config_map:
            return
        namespace, _, name = self.options.policy_config_map.partition("/")
        try:
            found = await api.get_json(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        except ApiError as error:
            raise InputError(
                f"ConfigMap {namespace}/{name} with the Policy cannot be read: {error}; it is named by "
                "--policy-configmap and --policy-configmap-namespace, or by algorithmSource.policy.configMap "
                "of the configuration"
            ) from error
        self._policy = {"kind": "ConfigMap", **found}
        known = parse(self.options.argv, registry=self.registry).warnings
        options, warnings = self._parse(self.registry)
        self.options = msgspec.structs.replace(options, config=self._keep_fixed(options.config))
        for warning in warnings:
            if warning not in known:  # those were written at the start
                log.warn(warning)

    def _parse(self, registry: Registry) -> Parsed:
        return parse(
            self.options.argv, registry=registry, policy=self._policy, server_minor=self._server_minor
        )

    async def _follow_server_version(self, api: ApiClient) -> asyncio.Task[None] | None:
        """Without --emulated-version, an older API server says which features there are.

        If it does not answer, returns a task that asks again: it may be starting just as we are.
        """
        if self.options.emulated_minor is not None:
            return None
        try:
            minor = await _read_version(api)
        except (ApiError, TimeoutError) as error:
            log.warn(UNKNOWN_VERSION, err=error)
            return asyncio.create_task(self._ask_again_for_version(api), name="server version")
        if self._take_version(minor):
            config = self._keep_fixed(self._parse(self.registry).options.config)
            self.options = msgspec.structs.replace(self.options, config=config)
        return None

    async def _ask_again_for_version(self, api: ApiClient) -> None:
        pause = FIRST_VERSION_PAUSE
        while True:
            await asyncio.sleep(pause)
            try:
                minor = await _read_version(api)
            except (ApiError, TimeoutError):
                pause = min(2 * pause, MAX_VERSION_PAUSE)
                continue
            if self._take_version(minor):
                self._signals.put_nowait(signal.SIGHUP)  # from now on with its features
            return

    def _take_version(self, minor: int | None) -> bool:
        """Whether the features are to be those of an older API server."""
        if minor is None:
            log.warn(UNKNOWN_VERSION, err="/version does not say 1.x")
        elif minor > RELEASE_MINOR:
            log.log(
                0,
                f"API server is newer, scheduling as kube-scheduler 1.{RELEASE_MINOR}",
                server=f"1.{minor}",
                missingFeatures=",".join(missing_features(minor)),
            )
        if minor is None or minor >= RELEASE_MINOR:
            return False
        self._server_minor = minor
        log.log(0, "API server is older, using its features", server=f"1.{minor}")
        return True

    def _journal(self) -> AbstractContextManager[None]:
        """Decisions go to disk, where that is asked for, until all that was decided is written."""
        options = self.options.journal
        if not options.directory:
            return nullcontext()
        from stowplan.journal.writer import writing  # it needs pyarrow, which nothing else does

        return writing(self.decisions, Path(options.directory), size=options.size, age=options.age)

    def _has_plugins_of_others(self) -> bool:
        profiles = resolve_profiles(self.options.config, self.registry)
        return bool(self.options.plugin_dirs) or not all(
            is_trusted(plugin) for profile in profiles for plugin in profile.classes.values()
        )

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[None]:
        access = self.options.access
        election = self._election
        async with AsyncExitStack() as stack:
            tokens, rights = [
                await stack.enter_async_context(ApiClient(found)) if (found := self._reviewer(path)) else None
                for path in (access.authentication_kubeconfig, access.authorization_kubeconfig)
            ]
            pages = scheduler_pages(
                self.metrics,
                lambda: complete_config(self.options.config, self.registry),
                leader_election=None if election is None else election.check,
                shutdown=lambda: "shutting down" if self._is_stopping else None,
                handlers_synced=self._check_synced,
                pods=self._pods_to_show,
                plugins=self._guard.check if self._has_plugins_of_others() else None,
                core_tasks=self._check_tasks,
            )
            pages |= decision_pages(self.decisions, lambda: self.scheduler, lambda: self.leader)
            pages |= self._more_pages(self)
            client_ca = ""
            looks_up = not (self.options.serving.client_ca_file or access.authentication_skip_lookup)
            if tokens is not None and looks_up:
                tolerates = access.authentication_tolerate_lookup_failure
                client_ca = await cluster_client_ca(tokens, tolerate_failure=tolerates)
            server = Server(self.options.serving, pages, tokens=tokens, access=rights, client_ca=client_ca)
            async with server:
                self._guard.while_stuck = partial(server.answer_waiting, "plugins")
                yield

    def _check_tasks(self) -> str | None:
        """Which part of the process has ended that must not; for /livez."""
        return self._fault or (None if self.scheduler is None else self.scheduler.check())

    def _reviewer(self, path: str) -> Connection | None:
        is_ours = self._connection is not None  # then the cluster of a pod that we may run in is another
        return None if is_ours and not path else reviewer(path)

    def _pods_to_show(self) -> Iterable[Pod]:
        """The pods for /metrics/resources: placed and waiting ones while we lead."""
        if self.scheduler is None or not self._is_leading():
            return ()
        return (*self.scheduler.cluster.pods(), *self.scheduler.handlers.pending.values())

    @property
    def is_synced(self) -> bool:
        """Whether the cluster is known, so that its pods can be decided."""
        return self.scheduler is not None and self.scheduler.is_synced

    def _check_synced(self) -> str | None:
        return NOT_SYNCED if self.scheduler is None else self.scheduler.not_ready


def _log_reload_fault(message: str, error: BaseException) -> None:
    if isinstance(error, StowplanError):
        log.error(message, error)
    else:
        log.error(message, describe(error), stacktrace=stack_of(error))


def _changes(part: str, old: msgspec.Struct, new: msgspec.Struct) -> Iterator[tuple[str, object, object]]:
    for field in msgspec.structs.fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before != after:
            yield f"{part}.{field.encode_name}", before, after


async def _read_version(api: ApiClient) -> int | None:
    async with asyncio.timeout(VERSION_SECONDS):
        return read_server_minor((await api.request("GET", "/version")).data)


def reviewer(
    path: str, *, environ: Mapping[str, str] = os.environ, account: Path = kubeconfig.ACCOUNT
) -> Connection | None:
    """The API server that authenticates our clients: by default that of the pod we run in."""
    if path:
        return kubeconfig.load(path)
    if kubeconfig.is_in_pod(environ=environ, account=account):
        return kubeconfig.in_cluster(environ=environ, account=account)
    return None


def connect(options: RunOptions) -> Connection:
    if options.kubeconfig or options.master:
        return kubeconfig.load(options.kubeconfig or None, master=options.master)
    return kubeconfig.in_cluster()
