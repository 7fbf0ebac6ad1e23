"""etcd and kube-apiserver on free loopback ports, with RBAC, as a user of the tests sees them."""

from __future__ import annotations

import csv
import http.client
import io
import json
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from controlplane.binaries import program
from controlplane.process import Process, wait_until

Json = dict[str, Any]

ADMIN = "admin"
SCHEDULER = "system:kube-scheduler"
NOBODY = "nobody"
GROUPS = {ADMIN: "system:masters", SCHEDULER: "", NOBODY: ""}
"""The users there are. RBAC's own roles give the scheduler its rights, and to nobody none."""

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
IDLE_SECONDS = 30.0
"""How long a connection to the API server is kept: that one closes them after 90."""
NAMESPACED = (
    "api/v1/pods",
    "api/v1/persistentvolumeclaims",
    "api/v1/services",
    "api/v1/replicationcontrollers",
    "api/v1/resourcequotas",
    "api/v1/limitranges",
    "apis/apps/v1/deployments",
    "apis/apps/v1/replicasets",
    "apis/apps/v1/statefulsets",
    "apis/apps/v1/daemonsets",
    "apis/apps/v1/controllerrevisions",
    "apis/batch/v1/jobs",
    "apis/policy/v1/poddisruptionbudgets",
    "apis/resource.k8s.io/v1/resourceclaims",
    "apis/resource.k8s.io/v1/resourceclaimtemplates",
    "apis/storage.k8s.io/v1/csistoragecapacities",
    "apis/coordination.k8s.io/v1/leases",
    "apis/events.k8s.io/v1/events",
)
CLUSTER_WIDE = (
    "api/v1/nodes",
    "api/v1/persistentvolumes",
    "apis/storage.k8s.io/v1/storageclasses",
    "apis/storage.k8s.io/v1/csinodes",
    "apis/storage.k8s.io/v1/csidrivers",
    "apis/storage.k8s.io/v1/volumeattachments",
    "apis/resource.k8s.io/v1/resourceslices",
    "apis/resource.k8s.io/v1/deviceclasses",
    "apis/scheduling.k8s.io/v1/priorityclasses",
)
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
BUILT_IN = (
    "metadata.name!=system-cluster-critical,metadata.name!=system-node-critical,metadata.name!=kubernetes"
)


class ControlPlane:
    """A running control plane: `etcd` and `api_server` are its processes, for tests that kill and start them.

    No controller runs: bound claims, endpoints, replicas and garbage are nobody's work here. `flags` are
    added to those of the API server.
    """

    start_seconds = 120.0
    """How long a program may take until it is ready."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        etcd_port, peer_port, api_port = free_ports(3)
        self.server = f"https://127.0.0.1:{api_port}"
        self.etcd_url = f"http://127.0.0.1:{etcd_port}"
        self.certificate = folder / "certificates" / "apiserver.crt"
        self.etcd = _etcd(folder, self.etcd_url, f"http://127.0.0.1:{peer_port}")
        self.api_server = Process(
            [*self._api_server_command(self.etcd_url, api_port), *flags],
            folder / "kube-apiserver.log",
            lambda: self.is_ready,
        )

    def start(self) -> None:
        self.etcd.start()
        self.start_api_server()

    def start_api_server(self) -> None:
        self.api_server.start(seconds=self.start_seconds)
        wait_until(
            lambda: all(self._answers(f"/api/v1/namespaces/{name}") for name in SYSTEM_NAMESPACES),
            lambda: f"the namespaces {', '.join(SYSTEM_NAMESPACES)} are not all there",
            seconds=30,
        )

    @property
    def is_ready(self) -> bool:
        """Whether the API server answers; after a crash of etcd it takes a moment."""
        return self._answers("/readyz")

    def stop(self) -> None:
        self.disconnect()
        self.api_server.kill()  # asked nicely it waits for watches to end
        self.etcd.stop()

    def disconnect(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """A kubeconfig file with the token of one of `GROUPS`."""
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        cluster = {"server": self.server, "certificate-authority": str(self.certificate)}
        context = {"cluster": "tests", "user": user, "namespace": "default"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token_of(user)}}],
            "contexts": [{"name": "tests", "context": context}],
            "current-context": "tests",
        }
        path.write_text(json.dumps(document))
        return path

    def kubectl(self, *arguments: str, objects: list[Json] | None = None, user: str = ADMIN) -> str:
        """What kubectl prints; `objects` are given to it as a file would be with `-f -`."""
        done = subprocess.run(
            [program("kubectl"), "--kubeconfig", self.kubeconfig(user), *arguments],
            input="\n---\n".join(map(json.dumps, objects or [])),
            env={**os.environ, "HOME": str(self.folder)},  # kubectl keeps what it discovered there
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr.strip())
        return done.stdout

    def request(self, method: str, path: str, body: Json | None = None, *, user: str = ADMIN) -> Json:
        """Ask the API server without any client of ours: what it says is the truth to compare with.

        A PATCH is a merge patch. Raises urllib's HTTPError.
        """
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {token_of(user)}", "Content-Type": kind}
        answer, data = self._exchange(method, path, None if body is None else json.dumps(body), headers)
        if answer.status >= 400:
            url = self.server + path
            raise urllib.error.HTTPError(url, answer.status, answer.reason, answer.msg, io.BytesIO(data))
        return json.loads(data) if data.startswith(b"{") else {"text": data.decode()}

    @cached_property
    def _idle(self) -> list[tuple[float, http.client.HTTPSConnection]]:
        """Connections that wait for their next request, and since when."""
        return []

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))

    def _exchange(
        self, method: str, path: str, body: str | None, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Over a connection that was used before, if there is one: to open one takes longer than the rest."""
        while True:
            connection = self._take_idle()
            is_used = connection is not None
            if connection is None:
                host = self.server.removeprefix("https://")
                connection = http.client.HTTPSConnection(host, context=self._trusted, timeout=30)
            try:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                data = answer.read()
            except BaseException as error:
                connection.close()
                # Closed by the API server since, which may have been killed.
                if is_used and isinstance(error, (ConnectionError, ssl.SSLError)):
                    continue
                raise
            if not answer.will_close:
                self._idle.append((time.monotonic(), connection))
            return answer, data

    def _take_idle(self) -> http.client.HTTPSConnection | None:
        while self._idle:
            since, connection = self._idle.pop()
            if time.monotonic() - since < IDLE_SECONDS:
                return connection
            connection.close()
        return None

    def wipe(self) -> None:
        """Make the cluster as good as new: no nodes, no pods, no namespaces but the system's."""
        namespaces = [item["metadata"]["name"] for item in self.request("GET", "/api/v1/namespaces")["items"]]
        for resource in NAMESPACED:
            found = self.request("GET", f"/{resource}?fieldSelector={BUILT_IN}")["items"]
            prefix, _, plural = resource.rpartition("/")
            for name in {item["metadata"]["namespace"] for item in found}:
                self._delete_all(f"/{prefix}/namespaces/{name}/{plural}")
        for resource in CLUSTER_WIDE:
            if self.request("GET", f"/{resource}?fieldSelector={BUILT_IN}&limit=1")["items"]:
                self._delete_all(f"/{resource}")
        self._delete_definitions()
        for name in set(namespaces) - set(SYSTEM_NAMESPACES):
            # No controller empties namespaces here, so the finalizer that waits for it is taken off by hand.
            namespace = self.request("DELETE", f"/api/v1/namespaces/{name}")
            namespace["spec"] = {"finalizers": []}
            self.request("PUT", f"/api/v1/namespaces/{name}/finalize", namespace)

    def _delete_definitions(self) -> None:
        """One by one: deleted as a collection, CustomResourceDefinitions leave their objects behind."""
        found = self.request("GET", DEFINITIONS)["items"]
        for item in found:
            self.request("DELETE", f"{DEFINITIONS}/{item['metadata']['name']}")
        if found:
            wait_until(
                lambda: not self.request("GET", DEFINITIONS)["items"],
                lambda: "CustomResourceDefinitions are still there",
                seconds=30,
            )

    def _delete_all(self, path: str) -> None:
        # Pods wait for a kubelet, unless they get no time at all.
        now = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        self.request("DELETE", f"{path}?fieldSelector={BUILT_IN}", now)
        for item in self.request("GET", f"{path}?fieldSelector={BUILT_IN}")["items"]:
            if item["metadata"].get("finalizers"):
                self._remove_finalizers(f"{path}/{item['metadata']['name']}")

    def _remove_finalizers(self, path: str) -> None:
        try:
            self.request("PATCH", path, {"metadata": {"finalizers": None}})
        except urllib.error.HTTPError as error:
            if error.code != 422:
                raise
            # A claim with settings that were sent with whitespace, as `request` does: it is kept so.
            made = self.request("GET", path)
            del made["metadata"]["finalizers"]
            self.request("PUT", path, made)

    def kube_scheduler(self, *flags: str, **config: Any) -> AbstractContextManager[Process]:
        """The real scheduler at work; `config` are fields of its configuration, such as `profiles`."""
        return self.run_scheduler("kube-scheduler", [program("kube-scheduler")], flags, config)

    def stowplan(
        self, *flags: str, name: str = "stowplan", source: Path | None = None, **config: Any
    ) -> AbstractContextManager[Process]:
        """Run our scheduler in a process of its own; another `name` for a second one beside it.

        `source` is the `src` folder of another checkout to run instead of this one.
        """
        other = ["env", f"PYTHONPATH={source}"] if source else []
        return self.run_scheduler(name, [*other, sys.executable, "-m", "stowplan.cli", "run"], flags, config)

    def shadow(self, *flags: str, **config: Any) -> AbstractContextManager[Process]:
        """Run `stowplan shadow` beside another scheduler; its output has a line of JSON for each pod."""
        command = [sys.executable, "-m", "stowplan.cli", "shadow", "--no-page", "--output=json"]
        return self.run_scheduler("shadow", command, flags, config)

    @contextmanager
    def run_scheduler(
        self, name: str, command: list[str | Path], flags: tuple[str, ...], config: Json
    ) -> Iterator[Process]:
        (port,) = free_ports(1)
        kubeconfig = str(self.kubeconfig(SCHEDULER))
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": kubeconfig, "qps": 5000, "burst": 5000},
            "leaderElection": {"leaderElect": False},
        }
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(document | config))
        command = [
            *command,
            f"--config={path}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.folder / name}",
            *flags,
        ]
        ready = f"https://127.0.0.1:{port}/readyz"
        scheduler = Process(command, self.folder / f"{name}.log", lambda: _is_ok(ready))
        scheduler.server = f"https://127.0.0.1:{port}"
        try:
            scheduler.start(seconds=self.start_seconds)
            yield scheduler
        finally:
            scheduler.stop()

    def _api_server_command(self, etcd: str, port: int) -> list[str | Path]:
        key, tokens = self.folder / "accounts.key", self.folder / "tokens.csv"
        key.write_bytes(_private_key())
        with tokens.open("w", newline="") as file:
            csv.writer(file).writerows((token_of(user), user, user, group) for user, group in GROUPS.items())
        # No controller makes accounts or clears taints and finalizers here.
        absent = "ServiceAccount,TaintNodesByCondition,StorageObjectInUseProtection"
        return [
            program("kube-apiserver"),
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self.certificate.parent}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            f"--disable-admission-plugins={absent}",
            "--max-requests-inflight=4000",
            "--max-mutating-requests-inflight=2000",
        ]

    def _answers(self, path: str) -> bool:
        try:
            self.request("GET", path)
        except OSError:  # not listening, no certificate yet, or an answer that is none of the good ones
            return False
        return True


def token_of(user: str) -> str:
    return f"token-of-{user.replace(':', '-')}"


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nothing listens on; held together, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in held]
    for listener in held:
        listener.close()
    return ports


def _etcd(folder: Path, client: str, peer: str) -> Process:
    command = [
        program("etcd"),
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        f"--quota-backend-bytes={8 << 30}",
    ]
    return Process(command, folder / "etcd.log", lambda: _is_ok(f"{client}/health"))


@cache
def careless_context() -> ssl.SSLContext:
    """Trusts any certificate. Made once: it takes longer than a request to read the machine's authorities."""
    found = ssl.create_default_context()
    found.check_hostname, found.verify_mode = False, ssl.CERT_NONE
    return found


def _is_ok(url: str) -> bool:
    """Whether whoever listens there, trusted or not, says that it is well."""
    try:
        with open_url(url, careless_context()) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def open_url(asked: urllib.request.Request | str, trusted: ssl.SSLContext) -> Any:
    """Ask a loopback address, which no proxy of the machine's is to see."""
    no_proxy = urllib.request.ProxyHandler({})
    opener = urllib.request.build_opener(no_proxy, urllib.request.HTTPSHandler(context=trusted))
    return opener.open(asked, timeout=30)


def _private_key() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    plain = serialization.NoEncryption()
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain
    )
