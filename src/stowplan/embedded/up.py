"""`stowplan up`: an embedded cluster behind HTTPS, with the scheduler as `stowplan run` runs it."""

from __future__ import annotations

import asyncio
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from stowplan import log
from stowplan.api.custom import CustomResource
from stowplan.api.group_crds import PUBLISHED
from stowplan.api.manifests import Found
from stowplan.api.meta import Json
from stowplan.apiserver import Store
from stowplan.apiserver.http import Endpoint, Pair, make_certificate, serve
from stowplan.client import kubeconfig as kubeconfigs
from stowplan.client.connection import Connection
from stowplan.client.errors import ApiError, Conflict
from stowplan.config import KubeSchedulerConfiguration
from stowplan.config.gates import NO_GATES, FeatureGates, enabled_gates
from stowplan.config.types import DEFAULT_SCHEDULER_NAME
from stowplan.embedded import kubeconfig, objects
from stowplan.embedded.cluster import EmbeddedCluster
from stowplan.embedded.live import look_at
from stowplan.errors import InputError
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles, watched_kinds
from stowplan.kubelet import Behaviour, NodeTemplate
from stowplan.kubelet.dump import Dump, dump_of
from stowplan.scheduler.flag_parser import read
from stowplan.scheduler.flags import FLAGS
from stowplan.scheduler.main import Service
from stowplan.scheduler.options import RunOptions, parse
from stowplan.serving.aiohttp_web import LazyServer
from stowplan.web import (
    answer_by_name,
    make_page_server,
    make_pages,
    make_source,
    mount,
    relay,
    serve_locally,
)

DEFAULT_NODES = 10
PROXIED = ("page", "metrics", "configz", "debug")
"""Pages of the scheduler that the API server's port serves as well."""
SYNC_SECONDS = 60.0
STOP_SECONDS = 0.2
"""How long containers take to stop. Without it, a client that deletes a pod and then looks at it may find it
gone within a millisecond, which no kubelet does."""


class UpOptions(msgspec.Struct, kw_only=True):
    kubeconfig: Path
    nodes: list[NodeTemplate] | None = None
    """None: some, if there are none yet."""
    config: Path | None = None
    plugin_dirs: tuple[Path, ...] = ()
    manifests: list[Found] = []
    data: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    speed: float = 1.0
    page_port: int | None = None
    """None: that of the API server."""
    secure_port: int = 0
    """The port of the scheduler's own server."""
    missing_images: tuple[str, ...] = ()
    """Patterns of images that nodes cannot pull."""
    rbac: bool = False
    feature_gates: str = ""
    """Gates as flags have them: GenericWorkload=true,GangScheduling=true."""
    groups: bool = False
    """Whether the pod groups of scheduler-plugins and Volcano are installed, and placed as one."""
    definitions: list[Json] = []
    """CustomResourceDefinitions to install at the start."""
    journal: Path | None = None
    """Where decisions are kept on disk, too."""
    record: Path | None = None
    """Where a trace of the cluster is recorded."""
    copied: Connection | None = None
    """The live cluster that this one is to look like."""

    @property
    def gates(self) -> FeatureGates:
        """The feature gates of pod groups that are on; raises InputError if one needs another."""
        if not self.feature_gates:
            return NO_GATES
        return enabled_gates(
            read([f"--feature-gates={self.feature_gates}"], FLAGS, "stowplan up")["feature-gates"]
        )


class Ready(NamedTuple):
    """What was started, for messages about it."""

    server: str
    scheduler: str
    """Where the scheduler answers, too; empty unless it was asked for."""
    page: str
    nodes: int
    pods: int
    warnings: list[str]


async def up(options: UpOptions, on_ready: Callable[[Ready], None]) -> int:
    """Run until a signal; return the exit status."""
    warnings: list[str] = []
    _ = options.gates  # what is wrong with them is said at once
    kubeconfig.check_may_write(options.kubeconfig)
    _check_manifests(options.manifests)
    registry = Registry.installed(options.plugin_dirs)
    config = _scheduler_options(options, registry).config  # what is wrong with it is said before all else
    warnings += _check_profiles(options, config)
    kinds = watched_kinds(
        plugin for profile in resolve_profiles(config, registry) for plugin in profile.classes.values()
    )
    options = msgspec.structs.replace(options, definitions=_group_definitions(options, kinds))
    looked = None if options.copied is None else await look_at(options.copied, kinds)
    if looked is not None:
        warnings += [f"{name} are not copied: {error}" for name, error in looked.missing.items()]
    with tempfile.TemporaryDirectory(prefix="stowplan-up-") as folder:
        pair, token, secret = make_certificate(), secrets.token_urlsafe(24), secrets.token_urlsafe(16)
        files, port = _written(Path(folder), pair), options.secure_port or _free_port()
        async with _running(options, pair) as cluster, AsyncExitStack() as stack:
            service = Service(
                _scheduler_options(options, registry, *files, port),
                registry,
                cluster.connection,
                lambda _: mount(pages),
                cluster.clock.now,
            )
            pages = make_pages(make_source(service))
            answer = answer_by_name(pages)
            plain = LazyServer(partial(make_page_server, answer, secret)) if _shares_port(options) else None
            front = await stack.enter_async_context(_served(options, cluster, pair, token, plain))
            if plain is None:
                local = serve_locally(answer, options.page_port or 0, secret)
                page = await stack.enter_async_context(local)
            else:
                stack.push_async_callback(plain.shutdown, 1)
                page = f"http://{_reached_at(front.host)}:{front.port}/{secret}/"
            pool = kubeconfigs.load(str(options.kubeconfig), master=f"https://127.0.0.1:{port}").open()
            stack.push_async_callback(pool.close)
            cluster.server.proxied = dict.fromkeys(PROXIED, partial(relay, pool))
            dump = None if looked is None else dump_of(looked.objects, cluster.clock.now())
            await _fill(cluster, options, dump, warnings)
            if options.record is not None:
                from stowplan.replay.recorder import record_beside  # replays take 40 ms to import

                recorded = record_beside(cluster.connection, options.record, kinds, cluster.clock.now)
                await stack.enter_async_context(recorded)
            running = asyncio.create_task(service.run())
            try:
                await _synced(service, running)
                if not running.done():
                    on_ready(_ready(cluster, front, options.secure_port, page, warnings))
                return await running
            finally:
                running.cancel()


def _shares_port(options: UpOptions) -> bool:
    """Whether the page is served on the API server's port: it must be reached from this machine alone."""
    return options.page_port is None and _reached_at(options.host) in ("localhost", "127.0.0.1", "[::1]")


def _check_profiles(options: UpOptions, config: KubeSchedulerConfiguration) -> list[str]:
    names = [profile.scheduler_name for profile in config.profiles]
    if DEFAULT_SCHEDULER_NAME in names:
        return []
    return [
        f"{options.config}: no profile is named {DEFAULT_SCHEDULER_NAME}, so pods without a schedulerName "
        "stay Pending, including those of Deployments and Jobs whose templates have none: set "
        f"schedulerName: {names[0]} there, or add a profile named {DEFAULT_SCHEDULER_NAME}"
    ]


def _group_definitions(options: UpOptions, kinds: Iterable[type[CustomResource]]) -> list[Json]:
    """The definitions of pod groups that the scheduler's plugins watch, or of all."""
    watched = {f"{kind.definition.plural}.{kind.definition.group}" for kind in kinds}
    return [item for name, item in PUBLISHED.items() if options.groups or name in watched]


def _check_manifests(manifests: list[Found]) -> None:
    for found in manifests:
        try:
            objects.check(found.data)
        except InputError as error:
            raise InputError(error.message, where=found.file, what=found.place, field=error.field) from None


@asynccontextmanager
async def _running(options: UpOptions, pair: Pair) -> AsyncIterator[EmbeddedCluster]:
    certificate = pair.certificate.decode()
    # With a clock that stands still, pods that take time to stop would never be gone.
    stop_seconds = STOP_SECONDS if options.speed > 0 else 0.0
    behaviour = Behaviour(missing_images=options.missing_images, stop_seconds=stop_seconds)
    with _opened(options.data) as store:
        async with EmbeddedCluster(
            store,
            speed=options.speed,
            behaviour=behaviour,
            certificate=certificate,
            rbac=options.rbac,
            gates=options.gates,
        ) as cluster:
            await cluster.apply(*options.definitions)
            yield cluster


@contextmanager
def _opened(data: Path | None) -> Iterator[Store]:
    if data is None:
        yield Store()
        return
    from stowplan.apiserver.durable import DurableStore  # which loads SQLite: nothing else needs it

    with closing(DurableStore(data)) as store:
        yield store


@asynccontextmanager
async def _served(
    options: UpOptions, cluster: EmbeddedCluster, pair: Pair, token: str, plain: LazyServer | None
) -> AsyncIterator[Endpoint]:
    async with serve(cluster.server, options.host, options.port, tls=pair, token=token, plain=plain) as front:
        address = f"https://{_reached_at(front.host)}:{front.port}"
        with kubeconfig.written(
            options.kubeconfig, server=address, certificate=front.certificate, token=token
        ):
            yield front


async def _fill(cluster: EmbeddedCluster, options: UpOptions, dump: Dump | None, warnings: list[str]) -> None:
    """Nodes, and objects of manifests and of a cluster that is copied."""
    if dump is not None:
        await cluster.kubelets.add(dump.nodes)
        cluster.kubelets.kill(*dump.dead)
        for item in sorted(dump.others, key=objects.place_in_order):
            await _copy(cluster, item, warnings)
    given = [found.data for found in options.manifests]
    templates = options.nodes
    if templates is None and dump is None and not any(item.get("kind") == "Node" for item in given):
        is_empty = not cluster.server.store.collection("nodes").records
        templates = [NodeTemplate(count=DEFAULT_NODES)] if is_empty else []
    await cluster.add_nodes(templates or ())
    for found in sorted(options.manifests, key=lambda each: objects.place_in_order(each.data)):
        try:
            await objects.apply(cluster.server, cluster.api, found.data)
        except (ApiError, InputError) as error:
            said = error.message if isinstance(error, ApiError) else str(error)
            raise InputError(f"{found.place}: {said}", where=found.file) from None


async def _copy(cluster: EmbeddedCluster, item: Json, warnings: list[str]) -> None:
    try:
        await objects.create(cluster.server, cluster.api, item)
    except Conflict:
        pass  # such as the default namespace, which every cluster has
    except (ApiError, InputError) as error:
        meta = item["metadata"]
        name = "/".join(part for part in (meta.get("namespace"), meta["name"]) if part)
        warnings.append(f"{item['kind']} {name} is not copied: {error}")


def _scheduler_options(
    options: UpOptions,
    registry: Registry,
    certificate: Path | None = None,
    key: Path | None = None,
    port: int = 0,
) -> RunOptions:
    """Options as of `stowplan run`, without leader election and rate limits."""
    argv = [
        "--leader-elect=false",
        f"--secure-port={port}",
        *(f"--plugin-dir={each}" for each in options.plugin_dirs),
    ]
    argv += [f"--config={options.config}"] if options.config is not None else []
    argv += [f"--feature-gates={options.feature_gates}"] if options.feature_gates else []
    argv += ["--groups"] if options.groups else []
    argv += [f"--journal={options.journal}"] if options.journal is not None else []
    if port:
        argv += [
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            "--bind-address=127.0.0.1",
        ]
        argv += [f"--{what}-kubeconfig={options.kubeconfig}" for what in ("authentication", "authorization")]
        argv += ["--authentication-skip-lookup=true"]
    found, said = parse(argv, registry=registry)
    for warning in () if port else said:  # they were given when the options were first checked
        log.warn(warning)
    client = msgspec.structs.replace(found.config.client_connection, qps=0)
    return msgspec.structs.replace(
        found, config=msgspec.structs.replace(found.config, client_connection=client)
    )


def _written(folder: Path, pair: Pair) -> tuple[Path, Path]:
    """The scheduler proves itself with the API server's certificate, so that one kubeconfig is for both."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    certificate.write_bytes(pair.certificate)
    key.touch(0o600)
    key.write_bytes(pair.key)
    return certificate, key


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def _synced(service: Service, running: asyncio.Task[int]) -> None:
    async with asyncio.timeout(SYNC_SECONDS):
        while not service.is_synced and not running.done():
            await asyncio.sleep(0.005)


def _ready(
    cluster: EmbeddedCluster, front: Endpoint, secure_port: int, page: str, warnings: list[str]
) -> Ready:
    collections = cluster.server.store.collections
    return Ready(
        f"https://{_reached_at(front.host)}:{front.port}",
        f"https://127.0.0.1:{secure_port}" if secure_port else "",
        page,
        len(collections["nodes"].records),
        len(collections["pods"].records),
        warnings,
    )


def _reached_at(host: str) -> str:
    """An address to connect to, as URLs write it, also where the server listens on all."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host
