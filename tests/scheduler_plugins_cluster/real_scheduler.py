"""The scheduler of scheduler-plugins: what it decides is read from the API server and from its log."""

from __future__ import annotations

import re
import time
import urllib.error
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from controlplane.binaries import program
from controlplane.control_plane import SCHEDULER, ControlPlane
from controlplane.process import Process, wait_until
from stowplan.api.crd import crd_of, needs_crd
from stowplan.api.group_crds import PUBLISHED
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import watched_kinds

Json = dict[str, Any]
NAMESPACES = ("default", "blue", "green", "red")
PATHS = {
    "Node": "/api/v1/nodes",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "Pod": "/api/v1/namespaces/{}/pods",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
}
"""Where objects of a kind are; `prepare` adds the plugins' own kinds."""
CLASSES = {"low": 10, "middle": 1000, "high": 100000}
"""Priority classes that there always are."""
SCORED = re.compile(
    r'"Plugin scored node for pod" pod="([^"]+)" plugin="([^"]+)" node="([^"]+)" score=(-?\d+)'
)
ATTEMPTED = re.compile(r'"Attempting to schedule pod" pod="([^"]+)"')
LOG = ("-v=3", "--vmodule=schedule_one=10,eventhandlers=4")
"""What these tests read of the log; -v=10 for all of it would print each response of the API server."""


def prepare(plane: ControlPlane, plugins: Iterable[str]) -> None:
    """Serve the kinds that plugins watch, and let the scheduler read and write them."""
    registry, definitions = Registry.installed(), []
    for kind in watched_kinds([registry.find(name) for name in plugins]):
        found = kind.definition
        if needs_crd(kind) and "volcano" not in found.group:  # which scheduler-plugins does not read
            definitions.append(PUBLISHED.get(f"{found.plural}.{found.group}") or crd_of(kind))
            where = "namespaces/{}/" if found.namespaced else ""
            PATHS[found.kind] = f"/apis/{found.group}/{found.version}/{where}{found.plural}"
    api = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{api}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "scheduler-plugins"},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": api, "kind": "User", "name": SCHEDULER}],
    }
    namespaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in NAMESPACES
        if name != "default"
    ]
    classes = [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        for name, value in CLASSES.items()
    ]
    plane.kubectl("create", "-f", "-", objects=[binding, *classes, *namespaces, *definitions])
    if definitions:
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


class Schedules:
    """A cluster, and the scheduler that is at work there, if any."""

    def __init__(self, plane: ControlPlane, process: Process | None = None) -> None:
        self.plane, self.process, self._read_from = plane, process, 0

    @property
    def log(self) -> str:
        """What the scheduler wrote since the cluster was cleared last."""
        if self.process is None:
            return ""
        with self.process.log.open("rb") as file:
            file.seek(self._read_from)
            return file.read().decode(errors="replace")

    def request(self, method: str, path: str, body: Json | None = None) -> Json:
        """Ask the API server, and again while it starts to serve a kind that is new."""
        for _ in range(50):
            try:
                return self.plane.request(method, path, body)
            except urllib.error.HTTPError as error:
                if error.code != 429:
                    raise
                time.sleep(0.2)
        return self.plane.request(method, path, body)

    def apply(self, objects: Iterable[Json]) -> None:
        """Create objects, with the status that they have, and wait until the scheduler knows them."""
        awaited = []
        objects = sorted(objects, key=lambda each: each["kind"] == "Pod")
        for place, each in enumerate(objects):
            if each["kind"] == "Pod" and place and objects[place - 1]["kind"] != "Pod":
                time.sleep(0.2)  # pods of a namespace whose ElasticQuota is not known yet are never counted
            self.create(each)
            meta = each["metadata"]
            if each["kind"] == "Node":
                awaited.append(f'"Add event for node" node="{meta["name"]}"')
            elif each["kind"] == "Pod" and each["spec"].get("nodeName"):
                awaited.append(f'event for scheduled pod" pod="{meta["namespace"]}/{meta["name"]}"')
        self.wait_for(*awaited)
        time.sleep(0.2)  # what the log does not tell of: other kinds, and changes of a pod's status

    def create(self, item: Json) -> Json:
        """Create an object; a pod with a deletionTimestamp is deleted again, and stays without a kubelet."""
        path = PATHS[item["kind"]].format(item["metadata"].get("namespace"))
        meta = {key: value for key, value in item["metadata"].items() if key != "deletionTimestamp"}
        created: Json = {}
        sent = {**item, "metadata": meta}
        if item["kind"] == "Pod":
            sent.pop("status", None)  # which is written afterwards
        wait_until(
            lambda: self._is_created(path, sent, created),
            lambda: f"{item['metadata']['name']} is not let in",
            seconds=10,
        )
        if item["kind"] == "Pod" and (statuses := item.get("status")):
            name = item["metadata"]["name"]
            for status in statuses if isinstance(statuses, list) else [statuses]:
                self.request("PATCH", f"{path}/{name}/status", {"status": status})

        if meta != item["metadata"]:
            self.delete(item, grace=300)
        return created

    def _is_created(self, path: str, item: Json, created: Json) -> bool:
        """Create an object, unless its PriorityClass is too new to be known."""
        try:
            created.update(self.request("POST", path, item))
        except urllib.error.HTTPError as error:
            if error.code != 403:
                raise
            return False
        return True

    def wait_for(self, *lines: str) -> None:
        missing = list(lines)

        def is_logged() -> bool:
            log = self.log
            missing[:] = [line for line in missing if line not in log]
            return not missing

        wait_until(is_logged, lambda: f"the scheduler did not log {missing[:3]}", seconds=30)

    def clear(self) -> None:
        """Delete all objects, and wait until the scheduler has seen the last node go."""
        if self.process is not None:
            self._read_from = self.process.log.stat().st_size
        nodes = [item["metadata"]["name"] for item in self.items("Node")]
        self.empty()
        self.wait_for(*(f'"Delete event for node" node="{name}"' for name in nodes))

    def empty(self) -> None:
        for kind in PATHS:
            for item in self.items(kind):
                self.delete(item)

    def delete(self, item: Json, grace: int | None = 0) -> None:
        meta = item["metadata"]
        path = f"{PATHS[item['kind']].format(meta.get('namespace'))}/{meta['name']}"
        try:
            self.request("DELETE", path, {"gracePeriodSeconds": grace} if grace is not None else None)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise

    def items(self, kind: str) -> list[Json]:
        listed = self.request("GET", PATHS[kind].replace("namespaces/{}/", ""))
        found = [item | {"apiVersion": listed["apiVersion"]} for item in listed["items"]]
        kept = ("system-cluster-critical", "system-node-critical", *CLASSES)
        if kind == "PriorityClass":
            found = [item for item in found if item["metadata"]["name"] not in kept]
        return [item | {"kind": kind} for item in found]

    def objects(self) -> list[Json]:
        """The whole cluster, without what no scheduler reads."""
        return [plain(item) for kind in PATHS for item in self.items(kind)]

    def decide(self, pod: Json) -> Json:
        """Create the pod and say what became of it."""
        path = PATHS["Pod"].format(pod["metadata"]["namespace"])
        key = key_of(pod)
        before = self.pods()
        self.create(pod)
        found: Json = {}

        def is_decided() -> bool:
            found.update(self.request("GET", f"{path}/{pod['metadata']['name']}"))
            return bool(found["spec"].get("nodeName") or condition_of(found, "PodScheduled"))

        wait_until(is_decided, lambda: f"{key} was not decided", seconds=30)
        pending = {**found, "spec": {**found["spec"], "nodeName": ""}, "status": {}, "kind": "Pod"}
        if node_name := found["spec"].get("nodeName"):
            scores: dict[str, dict[str, int]] = {}
            for pod_key, plugin, node, score in SCORED.findall(self.log):
                if pod_key == key:
                    scores.setdefault(plugin, {})[node] = int(score)
            feasible = sorted(next(iter(scores.values()), {node_name: 0}))
            return {"pod": pending, "chosen": node_name, "feasible": feasible, "scores": scores}
        condition = condition_of(found, "PodScheduled")
        answer = {
            "pod": pending,
            "message": condition.get("message", ""),
            "reason": condition.get("reason", ""),
        }
        if nominated := found["status"].get("nominatedNodeName"):
            answer |= {"nominated": nominated, "victims": self._victims(before)}
        return answer

    def pods(self) -> dict[str, bool]:
        """By key: whether the pod is being deleted."""
        return {key_of(item): "deletionTimestamp" in item["metadata"] for item in self.items("Pod")}

    def settled(self, seconds: float = 2.5) -> list[str]:
        """The pods that are bound, once none was for so long."""
        found: list[str] = []
        since = time.monotonic()
        while time.monotonic() - since < seconds:
            time.sleep(0.1)
            last, found = found, [key_of(item) for item in self.items("Pod") if item["spec"].get("nodeName")]
            if found != last:
                since = time.monotonic()
        return found

    def _victims(self, before: dict[str, bool]) -> list[str]:
        """The pods that are deleted since; they are deleted one after another, after the nomination."""
        found: list[str] = []
        for _ in range(20):
            now = self.pods()
            last, found = (
                found,
                sorted(key for key, left in before.items() if not left and now.get(key, True)),
            )
            if found and found == last:
                break
            time.sleep(0.15)
        return found


def key_of(item: Json) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def condition_of(pod: Json, kind: str) -> Json:
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind), {})


def plain(item: Json) -> Json:
    """An object without what is no part of any decision."""
    meta = {
        name: value
        for name, value in item["metadata"].items()
        if name not in ("managedFields", "generation", "resourceVersion", "selfLink") and value
    }
    return {**item, "metadata": meta}


@contextmanager
def scheduling(plane: ControlPlane, *flags: str, **config: Any) -> Iterator[Schedules]:
    command: list[Any] = [program("scheduler-plugins")]
    with plane.run_scheduler("scheduler-plugins", command, (*LOG, *flags), config) as process:
        yield Schedules(plane, process)


@contextmanager
def started(plane: ControlPlane, kind: str, **config: Any) -> Iterator[Schedules]:
    """One of the two: scheduler-plugins or stowplan."""
    if kind == "scheduler-plugins":
        with scheduling(plane, **config) as scheduler:
            yield scheduler
    else:
        with plane.stowplan(**config) as process:
            yield Schedules(plane, process)


@contextmanager
def waiting_to_lead(plane: ControlPlane, **config: Any) -> Iterator[tuple[Schedules, Callable[[], None]]]:
    """A scheduler that knows the cluster, and begins to schedule when it is told to."""
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    held = {"holderIdentity": "another", "leaseDurationSeconds": 3600, "acquireTime": now, "renewTime": now}
    meta = {"name": "scheduler-plugins", "namespace": "kube-system"}
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    plane.request("POST", path, {**kind, "metadata": meta, "spec": held})
    election = {"leaderElect": True, "resourceName": meta["name"], "resourceNamespace": meta["namespace"]}
    election |= {"retryPeriod": "1s"}

    def lead() -> None:
        plane.request("DELETE", f"{path}/{meta['name']}")

    with scheduling(plane, leaderElection=election, **config) as scheduler:
        yield scheduler, lead
    lead()
