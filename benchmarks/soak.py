"""Two schedulers on a real control plane for half an hour, under load and faults: `make soak`.

Pods of all kinds come and go: plain ones, with affinity, spread constraints, host ports, volumes, device
claims and priorities. Replica A lives from start to end. Replica B leads at first and is killed and frozen
from time to time until 40 % of the time have passed; then it lives on as the standby and takes over when A is
killed at the very end. On the way to the API server both meet 500s, 429s, answers that are lost, watches that
are cut and connections that are half-open; etcd is compacted.

`soak_checker.py`, a program of its own, says whether a node was ever overcommitted or a pod forgotten.
Memory, file descriptors and queue sizes of both replicas are drawn into an SVG. The exit status is 1 if
anything was wrong.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import click

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from controlplane.control_plane import ADMIN, ControlPlane, token_of
from controlplane.process import Process
from controlplane.proxy import Proxy, Spoilt
from controlplane.tcp_proxy import TcpProxy

Json = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
VOLUME_CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
NODES, ZONES, DEVICES_A_NODE, VOLUMES_A_NODE = 12, 3, 4, 4
FLAGS = ("--decisions-memory=4Mi", "--journal-size=4Mi", "-v=1")
"""Small, so that they are full soon and memory can be seen to stay as it is."""
MAX_PODS = 150
SAMPLE_SECONDS = 5.0
NOW = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}


class Api:
    """The admin's requests, one connection a thread."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._host = control_plane.server.removeprefix("https://")
        self._trusted = ssl.create_default_context(cafile=str(control_plane.certificate))
        self._local = threading.local()

    def __call__(self, method: str, path: str, body: Json | None = None, *, patch: str = "merge") -> Json:
        """The answer; an empty one if the API server refuses. Tries on while it cannot be reached."""
        kind = f"application/{patch}-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {token_of(ADMIN)}", "Content-Type": kind}
        for _ in range(60):
            try:
                connection = getattr(self._local, "connection", None)
                if connection is None:
                    connection = http.client.HTTPSConnection(self._host, context=self._trusted, timeout=30)
                    self._local.connection = connection
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                answer = connection.getresponse()
                data = answer.read()
                if answer.status not in (429, 500, 503, 504):
                    return json.loads(data) if answer.status < 300 and data.startswith(b"{") else {}
            except (OSError, http.client.HTTPException):
                self._local.connection = None
            time.sleep(0.5)
        raise TimeoutError(f"{method} {path}: no answer for half a minute")


class Sample(NamedTuple):
    seconds: float
    rss_mb: float
    files: int
    threads: int
    queues: dict[str, int]
    pid: int


class Soak:
    def __init__(self, minutes: float, folder: Path, seed: int) -> None:
        self.minutes, self.folder, self.draw = minutes, folder, random.Random(seed)
        self.control_plane = ControlPlane(folder)
        self.began = 0.0
        self.over, self.is_ending, self.is_quiet = threading.Event(), threading.Event(), threading.Event()
        self.samples: dict[str, list[Sample]] = {"A": [], "B": []}
        self.faults: list[tuple[float, str]] = []
        self.replicas: dict[str, Process] = {}
        self.made = self.restarts = 0
        self.errors: list[str] = []

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def run(self) -> bool:
        with ExitStack() as stack:
            stack.callback(self.control_plane.stop)
            self.control_plane.start()
            self.api = Api(self.control_plane)
            self.furnish()
            http_proxy = stack.enter_context(Proxy(self.control_plane, "a"))
            tcp_proxy = stack.enter_context(TcpProxy(self.control_plane))
            checker = self.start_checker()
            stack.callback(self.stop_process, checker)
            self.replicas["B"] = stack.enter_context(self.scheduler("B", str(tcp_proxy.kubeconfig())))
            self.replicas["A"] = stack.enter_context(self.scheduler("A", str(http_proxy.kubeconfig())))
            self.began = time.monotonic()
            loops = [
                threading.Thread(target=self.guarded, args=(each,))
                for each in (self.load, self.tend, self.sample, lambda: self.disturb(http_proxy, tcp_proxy))
            ]
            for each in loops:
                each.start()
            while self.elapsed < 60 * self.minutes and not self.errors:
                time.sleep(1)
            self.finish()
            self.over.set()
            for each in loops:
                each.join()
            assert checker.stdin is not None
            checker.stdin.close()
            checker.wait(60)
        return self.report()

    def guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except Exception as error:  # a soak without load, or without faults, would prove nothing
            self.errors.append(f"{type(error).__name__}: {error}")
            self.over.set()

    def scheduler(self, name: str, kubeconfig: str):
        return self.control_plane.stowplan(
            *FLAGS,
            f"--journal={self.folder / f'journal-{name}'}",
            name=name,
            clientConnection={"kubeconfig": kubeconfig, "qps": 5000, "burst": 5000},
            leaderElection={"leaderElect": True},
            podMaxBackoffSeconds=5,
        )

    def start_checker(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("soak_checker.py")),
                self.control_plane.server,
                str(self.control_plane.certificate),
                token_of(ADMIN),
                str(self.folder / "checked.json"),
            ],
            stdin=subprocess.PIPE,
        )

    def stop_process(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.kill()
            process.wait()

    # The cluster, and what its other components would do

    def furnish(self) -> None:
        self.api(
            "POST",
            "/apis/storage.k8s.io/v1/storageclasses",
            {
                "metadata": {"name": "local"},
                "provisioner": "kubernetes.io/no-provisioner",
                "volumeBindingMode": "WaitForFirstConsumer",
            },
        )
        self.api(
            "POST",
            "/apis/resource.k8s.io/v1/deviceclasses",
            {
                "metadata": {"name": "gpu"},
                "spec": {"selectors": [{"cel": {"expression": "device.driver == 'soak.example'"}}]},
            },
        )
        for name, value in (("low", 1), ("high", 1000)):
            self.api(
                "POST",
                "/apis/scheduling.k8s.io/v1/priorityclasses",
                {"metadata": {"name": name}, "value": value},
            )
        for number in range(NODES):
            name = f"n{number:02}"
            labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"z{number % ZONES}"}
            has = {"cpu": "4", "memory": "8Gi", "pods": "20"}
            self.api("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
            self.api(
                "PATCH", f"/api/v1/nodes/{name}/status", {"status": {"capacity": has, "allocatable": has}}
            )
            devices = [{"name": f"gpu{at}"} for at in range(DEVICES_A_NODE)]
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            self.api(
                "POST",
                "/apis/resource.k8s.io/v1/resourceslices",
                {
                    "metadata": {"name": name},
                    "spec": {"driver": "soak.example", "nodeName": name, "pool": pool, "devices": devices},
                },
            )
            for at in range(VOLUMES_A_NODE):
                here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
                self.api(
                    "POST",
                    VOLUMES,
                    {
                        "metadata": {"name": f"{name}-{at}"},
                        "spec": {
                            "capacity": {"storage": "1Gi"},
                            "accessModes": ["ReadWriteOnce"],
                            "storageClassName": "local",
                            "persistentVolumeReclaimPolicy": "Retain",
                            "local": {"path": f"/volumes/{at}"},
                            "nodeAffinity": {
                                "required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}
                            },
                        },
                    },
                )
                self.api("PATCH", f"{VOLUMES}/{name}-{at}/status", {"status": {"phase": "Available"}})

    def tend(self) -> None:
        """What controllers and kubelets would do: bind claims to volumes, end pods, free what they had."""
        while not self.over.wait(0.5):
            pods = self.api("GET", PODS).get("items")
            if pods is None:
                continue
            for pod in pods:
                if pod["metadata"].get("deletionTimestamp"):
                    self.delete(pod)
            self.tend_volumes({pod["metadata"]["name"] for pod in pods})
            self.tend_devices({pod["metadata"]["name"] for pod in pods})

    def tend_volumes(self, pods: set[str]) -> None:
        claims = {each["metadata"]["name"]: each for each in self.api("GET", VOLUME_CLAIMS).get("items", ())}
        for volume in self.api("GET", VOLUMES).get("items", ()):
            name, ref = volume["metadata"]["name"], volume["spec"].get("claimRef")
            if not ref:
                continue
            claim = claims.get(ref["name"])
            if claim is None or claim["metadata"]["uid"] != ref.get("uid"):
                self.api("PATCH", f"{VOLUMES}/{name}", {"spec": {"claimRef": None}})
                self.api("PATCH", f"{VOLUMES}/{name}/status", {"status": {"phase": "Available"}})
            elif not claim["spec"].get("volumeName"):
                path = f"{VOLUME_CLAIMS}/{ref['name']}"
                done = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
                self.api("PATCH", path, {"metadata": done, "spec": {"volumeName": name}})
                status = {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
                self.api("PATCH", f"{path}/status", {"status": status})
                self.api("PATCH", f"{VOLUMES}/{name}/status", {"status": {"phase": "Bound"}})
        for name in claims.keys() - pods:  # claims are named as their pods, and made before them
            if self.is_old(claims[name]):
                self.api("DELETE", f"{VOLUME_CLAIMS}/{name}", NOW)

    def tend_devices(self, pods: set[str]) -> None:
        for claim in self.api("GET", CLAIMS).get("items", ()):
            name = claim["metadata"]["name"]
            if name in pods or not self.is_old(claim):
                continue
            if claim.get("status", {}).get("allocation"):
                free = {"status": {"allocation": None, "reservedFor": None, "devices": None}}
                self.api("PATCH", f"{CLAIMS}/{name}/status", free)
            self.api("PATCH", f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}})
            self.api("DELETE", f"{CLAIMS}/{name}", NOW)

    def is_old(self, item: Json) -> bool:
        return int(item["metadata"]["annotations"]["soak/made-at"]) < time.time() - 5

    def delete(self, pod: Json) -> None:
        self.api("DELETE", f"{PODS}/{pod['metadata']['name']}", NOW)

    # Load

    def load(self) -> None:
        while not self.over.is_set():
            if self.is_quiet.is_set():
                time.sleep(0.5)
                continue
            pods = self.api("GET", PODS).get("items", [])
            for _ in range(self.draw.randrange(4) if len(pods) < MAX_PODS else 0):
                self.make_pod()
            bound = [pod for pod in pods if pod["spec"].get("nodeName")]
            surplus = max(0, len(pods) - MAX_PODS * 2 // 3)
            for pod in self.draw.sample(bound, min(len(bound), self.draw.randrange(3) + surplus // 20)):
                if self.draw.random() < 0.3:
                    done = {"status": {"phase": "Succeeded"}}
                    self.api("PATCH", f"{PODS}/{pod['metadata']['name']}/status", done)
                self.delete(pod)
            time.sleep(0.4)

    def make_pod(self) -> None:
        self.made += 1
        draw, name = self.draw, f"p{self.made:05}"
        app = f"app{draw.randrange(4)}"
        cpu, memory = draw.choice([100, 250, 500, 900]), draw.choice([64, 256, 1024])
        container: Json = {
            "name": "main",
            "image": "web",
            "resources": {"requests": {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}},
        }
        spec: Json = {"containers": [container], "automountServiceAccountToken": False}
        labels = {"app": app}
        kind = draw.choices(
            ["plain", "anti-affinity", "affinity", "spread", "port", "volume", "claim", "high"],
            [6, 2, 2, 2, 2, 2, 2, 1],
        )[0]
        selector = {"matchLabels": {"app": app}}
        if kind == "anti-affinity":
            labels["app"] = f"alone{draw.randrange(2)}"
            selector = {"matchLabels": {"app": labels["app"]}}
            term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
            spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        elif kind == "affinity":
            term = {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": selector}
            wish = {"weight": 50, "podAffinityTerm": term}
            spec["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
        elif kind == "spread":
            spec["topologySpreadConstraints"] = [
                {
                    "maxSkew": 3,
                    "topologyKey": "topology.kubernetes.io/zone",
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": selector,
                }
            ]
        elif kind == "port":
            container["ports"] = [{"containerPort": 80, "hostPort": 8000 + draw.randrange(3)}]
        elif kind == "volume":
            self.make(VOLUME_CLAIMS, name, spec={
                "storageClassName": "local",
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            })  # fmt: skip
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
        elif kind == "claim":
            devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}
            self.make(CLAIMS, name, spec={"devices": devices})
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
            container["resources"]["claims"] = [{"name": "gpu"}]
        spec["priorityClassName"] = "high" if kind == "high" else "low"
        self.api("POST", PODS, {"metadata": {"name": name, "labels": labels}, "spec": spec})

    def make(self, path: str, name: str, **fields: Any) -> None:
        made_at = {"soak/made-at": str(int(time.time()))}
        self.api("POST", path, {"metadata": {"name": name, "annotations": made_at}, **fields})

    # Faults

    def disturb(self, http_proxy: Proxy, tcp_proxy: TcpProxy) -> None:
        total = 60 * self.minutes
        pause = min(45.0, total / 15)
        while not self.over.wait(pause * self.draw.uniform(0.7, 1.3)):
            if self.is_ending.is_set():
                return
            at = self.elapsed / total
            choices: list[Callable[[], None]] = [
                lambda: self.spoil_binds(http_proxy),
                lambda: self.cut_watches(http_proxy),
                lambda: self.half_open(tcp_proxy),
                self.compact,
            ]
            if at < 0.4:
                choices += [self.kill_b, self.kill_b, self.freeze_b]
            self.draw.choice(choices)()

    def note(self, text: str) -> None:
        self.faults.append((self.elapsed, text))
        print(f"{self.elapsed:7.1f} s  {text}", flush=True)

    def spoil_binds(self, proxy: Proxy) -> None:
        self.note("A: binds fail (500, 429, 409, lost answers) for 10 s")
        fates = [
            Spoilt(500, "InternalError"),
            Spoilt(429, "TooManyRequests", retry_after=1),
            Spoilt(409, "Conflict"),
            Spoilt(passed_on=True),
            Spoilt(504, "Timeout", passed_on=True),
        ]
        proxy.spoil = lambda pod: self.draw.choice(fates) if self.draw.random() < 0.5 else None
        self.over.wait(10)
        proxy.spoil = lambda pod: None

    def cut_watches(self, proxy: Proxy) -> None:
        self.note(f"A: {proxy.cut_watches(self.draw)} watches cut")

    def half_open(self, proxy: TcpProxy) -> None:
        way = self.draw.choice(["both", "down", "up"])
        self.note(f"B: {proxy.make_half_open(way)} connections half-open ({way})")

    def compact(self) -> None:
        version = int(self.api("GET", f"{PODS}?limit=1")["metadata"]["resourceVersion"])
        self.note(f"etcd compacted to {version}")
        host = next(part for part in self.control_plane.etcd.command if "--listen-client-urls=" in str(part))
        place = str(host).partition("http://")[2]
        connection = http.client.HTTPConnection(place, timeout=10)
        with suppress(OSError, http.client.HTTPException):
            connection.request("POST", "/v3/kv/compaction", json.dumps({"revision": version}))
            connection.getresponse().read()
        connection.close()

    def kill_b(self) -> None:
        self.note("B: killed")
        self.replicas["B"].kill()
        self.over.wait(3)
        self.start_b()

    def freeze_b(self) -> None:
        self.note("B: frozen for 20 s")
        process = self.replicas["B"]
        with suppress(Exception):
            process.send(signal.SIGSTOP)
            self.over.wait(20)
            process.send(signal.SIGCONT)
        time.sleep(3)
        self.start_b()

    def start_b(self) -> None:
        """Unless it is still alive: one that led and was frozen past its lease ends."""
        process = self.replicas["B"]
        running = process._running
        if running is not None and running.poll() is None:
            return
        self.restarts += 1
        process.start()

    def finish(self) -> None:
        """A is killed, B takes over what A left; then everything that waits must fit and be placed."""
        self.is_ending.set()
        self.note("A: killed for good; B takes over")
        self.replicas["A"].kill()
        time.sleep(40)
        self.is_quiet.set()
        self.note("quiet: no new pods, three of four are deleted")
        pods = self.api("GET", PODS).get("items", [])
        for pod in pods:
            if pod["spec"].get("nodeName") and self.draw.random() < 0.75:
                self.delete(pod)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            waiting = [
                pod for pod in self.api("GET", PODS).get("items", []) if not pod["spec"].get("nodeName")
            ]
            if not waiting:
                break
            time.sleep(1)
        time.sleep(3)

    # What they take

    def sample(self) -> None:
        while not self.over.wait(SAMPLE_SECONDS):
            for name, process in self.replicas.items():
                with suppress(Exception):  # it is being killed
                    self.samples[name].append(self.sample_of(process))

    def sample_of(self, process: Process) -> Sample:
        folder = Path(f"/proc/{process.pid}")
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        return Sample(
            self.elapsed,
            int(status["VmRSS"].split()[0]) / 1024,
            len(os.listdir(folder / "fd")),
            int(status["Threads"]),
            dict(self.queues(process)),
            process.pid,
        )

    def queues(self, process: Process) -> Iterator[tuple[str, int]]:
        careless = ssl.create_default_context()
        careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
        place = process.server.removeprefix("https://")
        connection = http.client.HTTPSConnection(place, context=careless, timeout=3)
        try:
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token_of(ADMIN)}"})
            for line in connection.getresponse().read().decode().splitlines():
                if line.startswith('scheduler_pending_pods{queue="'):
                    yield line.split('"')[1], int(float(line.split()[-1]))
        finally:
            connection.close()

    # Report

    def report(self) -> bool:
        checked: Json = {"faults": ["the checker wrote no report"]}
        with suppress(OSError, ValueError):
            checked = json.loads((self.folder / "checked.json").read_text())
        problems = [*self.errors, *checked["faults"]]
        for name in ("A", "B"):
            problems += self.growth(name)
        lines = [
            f"{self.minutes:g} minutes, {self.made} pods made, {checked.get('bound', 0)} bound, "
            f"{len(self.faults)} faults, B started again {self.restarts} times",
            f"checker: {checked.get('events', 0)} changes, {checked.get('checks', 0)} checks of nodes, "
            "fullest node "
            + ", ".join(f"{share:.0%} of {name}" for name, share in checked.get("highest", {}).items()),
        ]
        for name, samples in self.samples.items():
            if samples:
                first, last = self.life(name)[0], samples[-1]
                lines.append(
                    f"{name}: lived {last.seconds - first.seconds:.0f} s; "
                    f"RSS {self.medians(name, 'rss_mb')} MB; "
                    f"file descriptors {self.medians(name, 'files')}; threads {self.medians(name, 'threads')}"
                )
        lines += [f"PROBLEM: {each}" for each in problems] or ["no problem found"]
        text = "\n".join(lines) + "\n"
        (self.folder / "summary.txt").write_text(text)
        (self.folder / "samples.json").write_text(json.dumps([self.samples, self.faults]))
        (self.folder / "soak.svg").write_text(draw_svg(self.samples, self.faults, 60 * self.minutes))
        print(text, flush=True)
        return not problems

    def life(self, name: str) -> list[Sample]:
        """The samples of the last process, which lives the longest."""
        samples = self.samples[name]
        return [each for each in samples if each.pid == samples[-1].pid]

    def quarters(self, name: str, field: str) -> list[float]:
        """Medians of four equal parts of a life, without its first minute."""
        life = self.life(name)
        values = [getattr(each, field) for each in life if each.seconds > life[0].seconds + 60]
        size = len(values) // 4
        return [statistics.median(values[at * size : (at + 1) * size]) for at in range(4)] if size else []

    def medians(self, name: str, field: str) -> str:
        return " → ".join(f"{value:.0f}" for value in self.quarters(name, field))

    def growth(self, name: str) -> list[str]:
        found = []
        for field, share, least in (("rss_mb", 0.10, 8.0), ("files", 0.2, 10.0), ("threads", 0.2, 2.0)):
            parts = self.quarters(name, field)
            if parts and parts[3] - parts[1] > max(least, share * parts[1]):
                found.append(f"{name}: {field} grows from {parts[1]:.0f} to {parts[3]:.0f}")
        return found


WIDTH, HEIGHT, LEFT, GAP = 900, 150, 60, 46
COLORS = {"A": "#1f6feb", "B": "#d4691a"}


def draw_svg(samples: dict[str, list[Sample]], faults: list[tuple[float, str]], seconds: float) -> str:
    """Three charts above each other, with a line for each replica and a mark for each fault."""
    charts: list[tuple[str, Callable[[Sample], float]]] = [
        ("resident memory, MB", lambda each: each.rss_mb),
        ("open file descriptors", lambda each: each.files),
        ("pods in all queues", lambda each: sum(each.queues.values())),
    ]
    end = max([seconds, *(each.seconds for lives in samples.values() for each in lives)])
    total = len(charts) * (HEIGHT + GAP) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, (title, value_of) in enumerate(charts):
        top = 24 + number * (HEIGHT + GAP)
        highest = max([1.0, *(value_of(each) for lives in samples.values() for each in lives)]) * 1.1

        def place(at: float, value: float, top: int = top, highest: float = highest) -> str:
            across = LEFT + (WIDTH - LEFT - 10) * at / end
            return f"{across:.1f},{top + HEIGHT * (1 - value / highest):.1f}"

        parts.append(f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{title}</text>')
        for share in (0, 0.5, 1):
            level = highest * share / 1.1
            here = place(0, level).split(",")[1]
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{here}" y2="{here}" stroke="#ddd"/>')
            parts.append(
                f'<text x="{LEFT - 6}" y="{float(here) + 4:.1f}" text-anchor="end">{level:.0f}</text>'
            )
        for at, text in faults:
            across = place(at, 0).split(",")[0]
            parts.append(
                f'<line x1="{across}" x2="{across}" y1="{top}" y2="{top + HEIGHT}" stroke="#bbb" '
                f'stroke-dasharray="2 3"><title>{text}</title></line>'
            )
        for name, lives in samples.items():
            run: list[Sample] = []
            for each in [*lives, None]:
                if each is None or (run and each.pid != run[-1].pid):
                    line = " ".join(place(one.seconds, value_of(one)) for one in run)
                    parts.append(f'<polyline points="{line}" fill="none" stroke="{COLORS[name]}"/>')
                    run = []
                if each is not None:
                    run.append(each)
        for minute in range(0, int(end // 60) + 1, max(1, int(end // 600))):
            across = place(60 * minute, 0).split(",")[0]
            parts.append(
                f'<text x="{across}" y="{top + HEIGHT + 14}" text-anchor="middle">{minute} min</text>'
            )
    legend = " ".join(f'<tspan fill="{color}">replica {name}</tspan>' for name, color in COLORS.items())
    parts.append(f'<text x="{WIDTH - 170}" y="14">{legend}</text></svg>')
    return "\n".join(parts)


@click.command()
@click.option("--minutes", default=30.0, help="How long to run, besides starting and the quiet end.")
@click.option("--seed", default=1, help="Seed for the load and the faults.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder for the summary, plot and logs.")
def main(minutes: float, seed: int, output: Path | None) -> None:
    """Run two replicas under load and faults, and check that nothing is overcommitted or forgotten."""
    folder = output or Path(tempfile.mkdtemp(prefix="stowplan-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    is_well = Soak(minutes, folder, seed).run()
    print(f"written to {folder}")
    sys.exit(0 if is_well else 1)


if __name__ == "__main__":
    main()
