"""A cluster for tests: a thread of its own, behind HTTPS, for any Kubernetes client and for synchronous code.

    with KubeCluster(nodes=3) as cluster:
        kubernetes.config.load_kube_config(str(cluster.kubeconfig))
        ...
        cluster.wait_for("deployment/web", "Available")

Under pytest, the fixture `kube_cluster` is one.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stowplan.api.meta import Json
from stowplan.apiserver.faults import Fault, Target
from stowplan.apiserver.http import Endpoint, make_certificate, serve
from stowplan.config import Duration
from stowplan.embedded import kubeconfig
from stowplan.embedded.cluster import (
    WAIT_SECONDS,
    ClusterSnapshot,
    EmbeddedCluster,
    Nodes,
    embedded_cluster,
)
from stowplan.embedded.waiting import Condition
from stowplan.errors import InputError, StowplanError
from stowplan.framework.plugin import Plugin
from stowplan.kubelet import Behaviour

T = TypeVar("T")

DEFAULT_NODES = 3
NOT_RUNNING = "the cluster is not running: use it in a `with` block, or call start()"


class ActiveFault:
    """A fault of a cluster, until it is removed."""

    def __init__(self, cluster: KubeCluster, fault: Fault) -> None:
        self._cluster, self._fault = cluster, fault

    @property
    def hits(self) -> int:
        """How many requests it has affected."""
        return self._fault.hits

    def remove(self) -> None:
        self._cluster.remove_fault(self._fault)

    def __enter__(self) -> ActiveFault:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class KubeCluster:
    """Starts with its `with` block or `start`, and ends with it or with `stop`.

    All methods may be called from any thread; they wait until the cluster has done what they ask for.
    """

    def __init__(
        self,
        nodes: Nodes = DEFAULT_NODES,
        *,
        rbac: bool = False,
        config: Path | Json | None = None,
        plugins: Sequence[type[Plugin]] = (),
        plugin_dirs: Sequence[Path | str] = (),
        manifests: Iterable[Json | Path] = (),
        speed: float = 1.0,
        seed: int | None = None,
        behaviour: Behaviour | None = None,
    ) -> None:
        self._options: Json = {
            "nodes": nodes,
            "rbac": rbac,
            "config": config,
            "plugins": plugins,
            "plugin_dirs": plugin_dirs,
            "manifests": manifests,
            "speed": speed,
            "seed": seed,
            "behaviour": behaviour,
        }
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._cluster: EmbeddedCluster | None = None
        self._endpoint: Endpoint | None = None
        self._namespaces: set[str] = set()
        """Default namespaces of the administrator's kubeconfigs."""
        self.token = ""
        """The bearer token of the administrator."""

    # Start and end.

    def start(self) -> KubeCluster:
        if self._thread is not None:
            raise StowplanError("the cluster was started before; make another one")
        self._folder = tempfile.TemporaryDirectory(prefix="stowplan-test-")
        self._thread = threading.Thread(target=self._run, name="stowplan-cluster", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            self._folder.cleanup()
            raise self._failure
        return self

    def stop(self) -> None:
        """End the cluster; raise what failed in it meanwhile."""
        if self._thread is None or self._folder is None:
            return
        if self._loop is not None and self._end is not None and self.is_running:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._folder.cleanup()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> KubeCluster:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # whoever started or stops the cluster is told
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with self._serving() as (cluster, endpoint):
            self._cluster, self._endpoint = cluster, endpoint
            self._write_kubeconfig(self.kubeconfig, self.token)
            self._ready.set()
            await self._end.wait()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[tuple[EmbeddedCluster, Endpoint]]:
        pair, self.token = make_certificate(), secrets.token_urlsafe(24)
        certificate = pair.certificate.decode()
        async with (
            embedded_cluster(**self._options, certificate=certificate) as cluster,
            serve(cluster.server, tls=pair, token=self.token) as endpoint,
        ):
            self.certificate_file.write_bytes(pair.certificate)
            yield cluster, endpoint

    def run(self, work: Callable[[EmbeddedCluster], Coroutine[Any, Any, T]]) -> T:
        """Run an async function of the cluster in its event loop, for everything that has no method here."""
        cluster, loop = self.embedded, self._loop
        assert loop is not None
        return asyncio.run_coroutine_threadsafe(work(cluster), loop).result()

    def _call(self, work: Callable[[EmbeddedCluster], T]) -> T:
        async def call(cluster: EmbeddedCluster) -> T:
            return work(cluster)

        return self.run(call)

    # How clients reach it.

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def embedded(self) -> EmbeddedCluster:
        """The cluster itself, to be used only in its own event loop: see `run`."""
        if self._cluster is None or not self.is_running:
            raise StowplanError(NOT_RUNNING)
        return self._cluster

    @property
    def url(self) -> str:
        """The address of the API server."""
        assert self.embedded is not None
        assert self._endpoint is not None
        return f"https://{self._endpoint.host}:{self._endpoint.port}"

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig file of the administrator."""
        return self._file("kubeconfig")

    @property
    def certificate_file(self) -> Path:
        """The certificate that clients must trust, in PEM."""
        return self._file("ca.crt")

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for programs such as kubectl and Helm, besides `os.environ`."""
        return {"KUBECONFIG": str(self.kubeconfig)}

    def kubeconfig_for(self, namespace: str, service_account: str = "", expires: str = "1h") -> Path:
        """Write a kubeconfig with this default namespace, for a service account in it or, without one, for
        the administrator. The tokens of service accounts expire by the cluster's clock."""
        token = self.token
        if service_account:
            token = self.service_account_token(service_account, namespace, expires)
        else:
            self._namespaces.add(namespace)
        path = self._file(f"{namespace}.{service_account or 'admin'}.kubeconfig")
        self._write_kubeconfig(path, token, namespace)
        return path

    def service_account_token(
        self, name: str = "default", namespace: str = "default", expires: str = "1h"
    ) -> str:
        """Request a token of a service account, as a pod would have; at least for ten minutes."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": int(Duration.parse(expires))},
        }

        async def request(cluster: EmbeddedCluster) -> str:
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
            answer = await cluster.api.request("POST", path, body)
            return str(msgspec.json.decode(answer.data)["status"]["token"])

        return self.run(request)

    def expire_token(self) -> None:
        """Make the administrator's token invalid; all kubeconfig files of the administrator get a new one."""

        def expire(cluster: EmbeddedCluster) -> None:
            self.token = cluster.server.access.token = secrets.token_urlsafe(24)

        self._call(expire)
        self._write_kubeconfig(self.kubeconfig, self.token)
        for namespace in list(self._namespaces):
            self.kubeconfig_for(namespace)

    def _file(self, name: str) -> Path:
        if self._folder is None:
            raise StowplanError(NOT_RUNNING)
        return Path(self._folder.name, name)

    def _write_kubeconfig(self, path: Path, token: str, namespace: str = "") -> None:
        assert self._endpoint is not None
        text = kubeconfig.text_of(
            server=self.url, certificate=self._endpoint.certificate, token=token, namespace=namespace
        )
        made = path.with_suffix(".new")
        made.touch(0o600)
        made.write_text(text)
        made.replace(path)

    # Objects.

    def create(self, *items: Json | Path) -> list[Json]:
        """Create objects as manifests have them, or those of files and folders; each as it was stored."""
        return self.run(lambda cluster: cluster.create(*items))

    def apply(self, *items: Json | Path) -> None:
        """Do as `kubectl apply` does, those first that others need."""
        self.run(lambda cluster: cluster.apply(*items))

    def get(self, kind: str, name: str, namespace: str = "default") -> Json:
        """An object by its kind, such as Deployment, or by another name of it that kubectl knows."""
        return self.run(lambda cluster: cluster.get(kind, name, namespace))

    def list(self, kind: str, namespace: str = "default") -> list[Json]:
        return self.run(lambda cluster: cluster.list(kind, namespace))

    def delete(self, kind: str, name: str, namespace: str = "default") -> None:
        self.run(lambda cluster: cluster.delete(kind, name, namespace))

    def wait_for(
        self,
        thing: object,
        condition: Condition = "Ready",
        namespace: str = "default",
        *,
        timeout: float = WAIT_SECONDS,
    ) -> Json:
        """Wait until an object is as expected, and return it: see `EmbeddedCluster.wait_for`."""
        __tracebackhide__ = True  # pytest shows the line of the test that waits, not how we wait
        found = self.run(lambda cluster: cluster.wait_or_report(thing, condition, namespace, timeout))
        if isinstance(found, str):
            raise AssertionError(found)
        return found

    def explain(self, pod: str, namespace: str = "default") -> str:
        """Why the scheduler decided as it did."""
        return self._call(lambda cluster: cluster.explain(pod, namespace))

    def create_namespace(self, name: str) -> None:
        """Create a namespace, and wait until it has its default service account."""
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.wait_for("serviceaccount/default", "exists", name)

    def remove_namespace(self, name: str) -> None:
        """Remove a namespace with everything in it at once, without grace periods and finalizers."""
        self._namespaces.discard(name)
        self._call(lambda cluster: cluster.server.store.purge(name))

    # Time and snapshots.

    @property
    def now(self) -> float:
        """The cluster's time, in seconds since 1970."""
        return self._call(lambda cluster: cluster.clock.now())

    def tick(self, duration: float | str) -> None:
        """Let so much of the cluster's time pass at once: seconds, or a text such as "5m".

        Pods, controllers, nodes, the scheduler and tokens are affected, clients are not.
        """
        self.run(lambda cluster: cluster.tick(duration))

    def snapshot(self) -> ClusterSnapshot:
        """All objects as they are now, and which nodes are dead."""
        return self._call(lambda cluster: cluster.snapshot())

    def restore(self, snapshot: ClusterSnapshot) -> None:
        """Make all objects and nodes as they were. Clients see changes; the clock goes on."""
        self.run(lambda cluster: cluster.restore(snapshot))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Whatever is changed within the `with` block, nothing of it stays."""
        taken = self.snapshot()
        try:
            yield
        finally:
            self.restore(taken)

    # Nodes.

    def add_nodes(self, nodes: Nodes) -> None:
        """Add nodes, from a number or templates."""
        self.run(lambda cluster: cluster.add_nodes(nodes))

    def kill_node(self, name: str) -> None:
        """Let nothing be heard of a node from now on: its heartbeats end, its pods stay as they are."""
        self._call(lambda cluster: cluster.kubelets.kill(_node(cluster, name)))

    def revive_node(self, name: str) -> None:
        self._call(lambda cluster: cluster.kubelets.revive(_node(cluster, name)))

    def slow_down_node(self, name: str, by: float | str) -> None:
        """Delay starting and stopping pods on the node, in seconds of the cluster's clock; 0 removes the
        delay."""
        seconds = Duration.parse(by) if isinstance(by, str) else by
        self._call(lambda cluster: cluster.kubelets.slow_down(_node(cluster, name), seconds))

    # Faults.

    def fault(
        self,
        status: int | None = None,
        *,
        verb: str = "*",
        resource: str = "*",
        name: str = "*",
        namespace: str = "*",
        user_agent: str = "",
        count: int | None = None,
        delay: float = 0.0,
        message: str = "",
        retry_after: int | None = None,
    ) -> ActiveFault:
        """From now on, let requests that match fail with a status, be delayed, or both.

        It ends with its `with` block if it is used in one, with `remove()`, or with the test.

        Verbs are those of the API (`list`, `watch`, `create` …), resources plurals (`pods`, `pods/status`);
        all are patterns as in file names. `count` limits how many requests are affected. The cluster's own
        components are spared unless `user_agent` matches them: `stowplan/scheduler`, `controller-manager`,
        `kubelet`. Of several faults that match, the first counts. The fault's `hits` is how many requests it
        has affected.
        """
        fault = Fault(
            target=Target(verb, resource, name, namespace, user_agent),
            status=status,
            count=count,
            delay=delay,
            message=message,
            retry_after=retry_after,
        )
        self._call(lambda cluster: cluster.server.faults.add(fault))
        return ActiveFault(self, fault)

    def remove_fault(self, fault: Fault) -> None:
        if self.is_running:
            self._call(lambda cluster: cluster.server.faults.remove(fault))

    def clear_faults(self) -> None:
        """End all faults, as at the end of a test."""
        if self.is_running and self.embedded.server.faults:
            self._call(lambda cluster: cluster.server.faults.clear())

    def drop_watches(self, resource: str = "*", *, namespace: str = "*", user_agent: str = "") -> int:
        """Break off the connections of open watches, as when a server dies; return how many."""
        target = Target("watch", resource, "*", namespace, user_agent)
        return self._call(lambda cluster: cluster.server.faults.drop_watches(target))

    def expire_watches(self, resource: str = "*", *, namespace: str = "*", user_agent: str = "") -> int:
        """Drop watches and forget their history: clients that resume get 410 Gone and must list again."""
        target = Target("watch", resource, "*", namespace, user_agent)

        def expire(cluster: EmbeddedCluster) -> int:
            cluster.server.store.expire()
            return cluster.server.faults.drop_watches(target)

        return self._call(expire)


def _node(cluster: EmbeddedCluster, name: str) -> str:
    names = [key[1] for key in cluster.server.store.collection("nodes").records]
    if name not in names:
        raise InputError(f"unknown node {name!r} (known: {', '.join(sorted(names)[:20])})")
    return name
