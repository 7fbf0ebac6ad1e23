"""A whole cluster on one event loop: API server, simulated nodes, controllers and Stowplan's scheduler."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from stowplan import log
from stowplan.api.crd import crd_of, needs_crd
from stowplan.api.meta import Json
from stowplan.apiserver import ApiServer, Store
from stowplan.apiserver.store import Snapshot
from stowplan.client.api import ApiClient
from stowplan.client.errors import NotFound
from stowplan.config import Duration, load
from stowplan.config.gates import DEPENDENCIES, NO_GATES, FeatureGates, enabled_gates
from stowplan.config.types import V1, with_gates
from stowplan.controllers.clock import Clock
from stowplan.controllers.running import Controllers
from stowplan.embedded import objects, waiting
from stowplan.embedded.pool import InProcess
from stowplan.embedded.waiting import Condition
from stowplan.errors import InputError
from stowplan.explain.recorded import explain_record, undecided_text
from stowplan.explain.text import render
from stowplan.framework.plugin import Plugin
from stowplan.framework.plugin_check import check_plugin
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles, watched_kinds
from stowplan.journal import Decisions
from stowplan.kubelet import Behaviour, NodeTemplate, SimulatedKubelets
from stowplan.scheduler.decision_pages import look_up
from stowplan.scheduler.scheduler import Scheduler, Settings

Nodes = int | NodeTemplate | Iterable[NodeTemplate]

WAIT_SECONDS = 10.0
LOOK_SECONDS = 0.002
QUIET_TURNS, SETTLE_SECONDS = 30, 2.0
"""Turns of the event loop in which nothing happens before a cluster counts as settled, and the time limit."""

T = TypeVar("T")


class ClusterSnapshot(NamedTuple):
    objects: Snapshot
    dead: frozenset[str]
    """Names of the nodes that were killed."""


class EmbeddedCluster:
    """All of a cluster but a scheduler, while in its `async with`.

    `api` is a client that may do everything, at any rate. `certificate` is what the server is to be known by,
    for the ConfigMap kube-root-ca.crt of each namespace.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        speed: float = 1.0,
        behaviour: Behaviour | None = None,
        certificate: str = "",
        rbac: bool = False,
        gates: FeatureGates = NO_GATES,
    ) -> None:
        self.gates = gates
        self.clock = Clock(speed)
        self.server = ApiServer(store, rbac=rbac, now=self.clock.now, gates=gates)
        self.connection = InProcess(self.server)
        self.api = self._client("stowplan")
        self._kubelet_api, self._controller_api = self._client("kubelet"), self._client("controller-manager")
        self.kubelets = SimulatedKubelets(self._kubelet_api, clock=self.clock, behaviour=behaviour)
        self.controllers = Controllers(
            self._controller_api,
            self.clock,
            node_grace_seconds=lambda: self.kubelets.grace_seconds,
            certificate=certificate,
            gates=gates,
        )
        self.server.containers = self.kubelets
        self.scheduler: Scheduler | None = None
        self.decisions = Decisions()
        self._open = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    def _client(self, name: str) -> ApiClient:
        return ApiClient(self.connection, qps=0, user_agent=name)

    async def __aenter__(self) -> EmbeddedCluster:
        for client in (self.api, self._kubelet_api, self._controller_api):
            await self._open.enter_async_context(client)
        self.work(self.kubelets.run())
        self.work(self.controllers.run())
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._open.aclose()
        for end in ends:
            if isinstance(end, Exception):
                raise end

    def work(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task until the cluster ends; if it fails, log that and raise it at the end."""
        task = asyncio.create_task(work)
        task.add_done_callback(_note_failure)
        self._tasks.append(task)

    async def add_nodes(self, nodes: Nodes) -> None:
        given = NodeTemplate(count=nodes) if isinstance(nodes, int) else nodes
        for template in [given] if isinstance(given, NodeTemplate) else given:
            await self.kubelets.add(template.nodes(self.clock.now()))

    async def schedule(
        self,
        config: Path | Json | None = None,
        *,
        registry: Registry | None = None,
        seed: int | None = None,
        feature_gates: Mapping[str, bool] | None = None,
    ) -> Scheduler:
        """Start Stowplan's scheduler, and wait until it knows the cluster."""
        registry = registry or Registry.installed()
        loaded = load(config or {"apiVersion": V1, "kind": "KubeSchedulerConfiguration"}, registry).config
        loaded = with_gates(loaded, enabled_gates(feature_gates or {}))
        api, events = [
            await self._open.enter_async_context(self._client("stowplan/scheduler")) for _ in range(2)
        ]
        scheduler = self.scheduler = Scheduler(
            loaded,
            api,
            events,
            Settings(
                registry=registry,
                now=self.clock.now,
                draw=random.Random(seed),
                decisions=self.decisions,
            ),
        )
        scheduler.start()
        self.work(scheduler.run())
        for reflector in scheduler.reflectors:
            await reflector.synced.wait()
        await scheduler.kinds_synced()
        return scheduler

    async def tick(self, duration: float | str) -> None:
        """Let so much of the cluster's time pass at once: seconds, or a text such as "5m".

        All that is due meanwhile is done in order: timers of pods and controllers, heartbeats, backoffs.
        """
        seconds = Duration.parse(duration) if isinstance(duration, str) else duration
        if seconds < 0:
            raise InputError(f"time does not go backwards: {duration}")
        await self.settle()
        end, beat_at = self.clock.now() + seconds, self.clock.now()
        while (left := end - self.clock.now()) > 0:
            # A node that lives is heard of at least twice before it would be given up.
            pause = self.kubelets.grace_seconds / 2.5
            self.clock.jump(min(left, pause))
            if self.clock.now() >= beat_at:
                beat_at = self.clock.now() + pause
                await self.kubelets.beat()
            if self.scheduler is not None:
                self.scheduler.flush_queue()
            await self.settle()

    async def settle(self) -> None:
        """Wait until nodes, controllers and scheduler have done what there is to do now."""
        loop = asyncio.get_running_loop()
        end, quiet, seen = loop.time() + SETTLE_SECONDS, 0, self.server.store.version
        while quiet < QUIET_TURNS and loop.time() < end:
            is_idle = self.kubelets.is_idle and self.controllers.is_idle and not self.clock.retries_soon
            if self.scheduler is not None:
                is_idle = is_idle and not self.scheduler.tasks_under_way
            version = self.server.store.version
            quiet = quiet + 1 if is_idle and version == seen else 0
            # What is not idle may wait for something outside of this loop, such as a webhook.
            await asyncio.sleep(0 if is_idle or version != seen else 0.001)
            seen = version

    def snapshot(self) -> ClusterSnapshot:
        """All objects as they are now, and which nodes are dead."""
        return ClusterSnapshot(self.server.store.snapshot(), self.kubelets.dead)

    async def restore(self, snapshot: ClusterSnapshot) -> None:
        """Restore all objects and nodes. The clock and resource versions continue."""
        dead = self.kubelets.dead
        self.server.store.restore(snapshot.objects)
        self.kubelets.kill(*snapshot.dead - dead)
        self.kubelets.revive(*dead - snapshot.dead)
        await self.settle()

    # What tests and demonstrations do with it.

    async def create(self, *items: Json | Path) -> list[Json]:
        """Create objects as manifests have them, or those of files and folders; each as it was stored."""
        return [await objects.create(self.server, self.api, item) for item in objects.read(items)]

    async def apply(self, *items: Json | Path) -> None:
        """Apply manifests as `kubectl apply` does, in dependency order."""
        for item in sorted(objects.read(items), key=objects.place_in_order):
            await objects.apply(self.server, self.api, item)

    async def get(self, kind: str, name: str, namespace: str = "default") -> Json:
        """An object by its kind, such as Deployment, or by another name of it that kubectl knows."""
        found: Json = await self.api.get_json(f"{self._path(kind, namespace)}/{name}")
        return found

    async def list(self, kind: str, namespace: str = "default") -> list[Json]:
        found: list[Json] = (await self.api.get_json(self._path(kind, namespace)))["items"]
        return found

    async def delete(self, kind: str, name: str, namespace: str = "default") -> None:
        await self.api.request("DELETE", f"{self._path(kind, namespace)}/{name}")

    async def bound(self, pod: str, namespace: str = "default", *, seconds: float = WAIT_SECONDS) -> str:
        """Wait until the pod is bound; return its node."""

        async def node() -> str | None:
            spec: Json = (await self.get("Pod", pod, namespace))["spec"]
            return spec.get("nodeName")

        return await self.until(node, f"pod {pod} has a node", seconds=seconds)

    async def rejected(self, pod: str, namespace: str = "default", *, seconds: float = WAIT_SECONDS) -> str:
        """Wait until the scheduler has found the pod unschedulable; return its message."""

        async def message() -> str | None:
            status: Json = (await self.get("Pod", pod, namespace)).get("status", {})
            said = (each for each in status.get("conditions", ()) if each["type"] == "PodScheduled")
            return next((each["message"] for each in said if each["status"] == "False"), None)

        return await self.until(message, f"pod {pod} is rejected", seconds=seconds)

    async def until(
        self,
        look: Callable[[], Awaitable[T | None]],
        what: str = "it is so",
        *,
        seconds: float = WAIT_SECONDS,
    ) -> T:
        """Looks again whenever something changes, until what is found is true; that.

        An object that is not there yet is waited for.
        """
        end, changes = asyncio.get_running_loop().time() + seconds, self.server.store
        while True:
            seen = changes.version
            try:
                if found := await look():
                    return found
            except NotFound:
                pass
            while changes.version == seen:
                left = end - asyncio.get_running_loop().time()
                if left <= 0:
                    raise TimeoutError(f"{what}: not within {seconds:g} seconds")
                await changes.waiters.wait(left)
                await asyncio.sleep(LOOK_SECONDS)  # changes mostly come several at a time

    async def wait_for(
        self,
        thing: object,
        condition: Condition = "Ready",
        namespace: str = "default",
        *,
        timeout: float = WAIT_SECONDS,
    ) -> Json:
        """Wait until an object is as expected, and return it; fail with what is known about it.

        `thing` is a text such as "pod/web", a manifest, or an object of a Python client. `condition` is the
        type of a condition ("Ready", "Available", "Ready=False"), a phase ("Running"), "exists", "deleted", a
        field ("spec.nodeName", "status.readyReplicas=3"), or a function of the object.
        """
        __tracebackhide__ = True  # pytest shows the line of the test that waits, not how we wait
        found = await self.wait_or_report(thing, condition, namespace, timeout)
        if isinstance(found, str):
            raise AssertionError(found)
        return found

    async def wait_or_report(
        self, thing: object, condition: Condition, namespace: str, timeout: float
    ) -> Json | str:
        """Wait as `wait_for` does; return the object, or what is known about it if the time is up."""
        about = waiting.which(self.server, thing, namespace)

        seen: object = ()

        async def look() -> tuple[Json] | None:
            nonlocal seen
            record = waiting.find(self.server, about)
            if record is seen and isinstance(condition, str):
                return None  # many tests may wait at once, each for something else that changes
            seen = record
            found = None if record is None else record.data()
            return (found or {},) if waiting.is_met(found, condition) else None

        try:
            return (await self.until(look, seconds=timeout))[0]
        except TimeoutError:
            known = waiting.report(self.server, about, self.explain)
            return f"{about} is not {waiting.describe(condition)} after {timeout:g} s\n{known}"

    def explain(self, pod: str, namespace: str = "default", *, node: str | None = None) -> str:
        """Why the scheduler decided as it did when it last attempted the pod, and what the pod waits for."""
        known = look_up(f"{namespace}/{pod}", self.decisions, self.scheduler, None)
        if known.attempts:
            return render(explain_record(known.attempts[0], node, known.waiting))
        assert known.waiting is not None
        return undecided_text(known.pod, known.waiting)

    def _path(self, kind: str, namespace: str) -> str:
        return objects.path_of(objects.resource_named(self.server, kind), namespace)


def _note_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("A component of the cluster failed", error)


def _read_gates(given: Mapping[str, bool]) -> FeatureGates:
    for name in given:
        if name not in DEPENDENCIES:
            known = ", ".join(DEPENDENCIES)
            raise InputError(f'unknown feature gate "{name}" (known: {known})', what="feature_gates")
    return enabled_gates(given)


@asynccontextmanager
async def embedded_cluster(
    nodes: Nodes = 1,
    *,
    config: Path | Json | None = None,
    plugins: Sequence[type[Plugin]] = (),
    plugin_dirs: Sequence[Path | str] = (),
    speed: float = 1.0,
    seed: int | None = None,
    behaviour: Behaviour | None = None,
    manifests: Iterable[Json | Path] = (),
    rbac: bool = False,
    certificate: str = "",
    feature_gates: Mapping[str, bool] | None = None,
) -> AsyncIterator[EmbeddedCluster]:
    """A cluster with its scheduler, ready: nodes by number or from templates, the objects of manifests.

    `plugins` are enabled besides the default ones, or, with a `config`, may be named there. The
    CustomResourceDefinitions of the kinds that enabled plugins watch are installed. `config` and `manifests`
    are plain data, or paths of files (and folders). With `rbac`, service accounts and impersonated users may
    do only what roles allow. `feature_gates` are those of pod groups, by name, such as
    `{"GenericWorkload": True, "GangScheduling": True}`.
    """
    registry = Registry.installed(plugin_dirs, {each.__name__: check_plugin(each) for each in plugins})
    if config is None:
        enabled = [{"name": each.__name__} for each in plugins]
        profile = {"plugins": {"multiPoint": {"enabled": enabled}}}
        config = {"apiVersion": V1, "kind": "KubeSchedulerConfiguration", "profiles": [profile]}
    profiles = resolve_profiles(load(config, registry).config, registry)
    kinds = watched_kinds(kind for each in profiles for kind in each.classes.values())
    gates = _read_gates(feature_gates or {})
    async with EmbeddedCluster(
        speed=speed, behaviour=behaviour, rbac=rbac, certificate=certificate, gates=gates
    ) as cluster:
        await cluster.apply(*(crd_of(kind) for kind in kinds if needs_crd(kind)))
        await cluster.add_nodes(nodes)
        await cluster.apply(*manifests)
        await cluster.schedule(
            config,
            registry=registry,
            seed=seed,
            feature_gates=feature_gates,
        )
        yield cluster
