"""Watches a cluster by plain HTTP and says whether its scheduler ever went wrong. Standard library alone.

It shares no code with the scheduler: its own watch, its own arithmetic, its own idea of what fits. Every
change of a pod, node or claim is checked as it comes:

- the pods on a node never ask for more CPU, memory or pods than it has, nor for the same host port twice;
- no two pods that exclude each other by hostname are on the same node;
- no device is allocated to two claims, and no volume to two pods' claims;
- no pod waits for longer than FORGOTTEN_SECONDS although some node had room for it all that time.

`python soak_checker.py SERVER CA TOKEN REPORT` runs until its standard input is closed, then checks that no
pod waits any more and writes REPORT, a JSON file with everything found.
"""

from __future__ import annotations

import http.client
import json
import ssl
import sys
import threading
import time
from typing import Any
from urllib.parse import urlencode, urlsplit

Json = dict[str, Any]

FORGOTTEN_SECONDS = 60.0
KINDS = {
    "pods": "/api/v1/pods",
    "nodes": "/api/v1/nodes",
    "claims": "/apis/resource.k8s.io/v1/resourceclaims",
    "volumes": "/api/v1/persistentvolumes",
}
UNITS = {"m": 0.001, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def amount(text: str | int) -> float:
    text = str(text)
    for unit in ("Ki", "Mi", "Gi", "m", "k", "M", "G"):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * UNITS[unit]
    return float(text)


def needs(pod: Json) -> dict[str, float]:
    """What a pod takes of a node. The soak makes no pods with init containers or overhead."""
    found = {"cpu": 0.0, "memory": 0.0, "pods": 1.0}
    for container in pod["spec"]["containers"]:
        for name, value in container.get("resources", {}).get("requests", {}).items():
            found[name] = found.get(name, 0.0) + amount(value)
    return found


def ports(pod: Json) -> set[int]:
    listed = (each for container in pod["spec"]["containers"] for each in container.get("ports", ()))
    return {each["hostPort"] for each in listed if each.get("hostPort")}


def is_simple(pod: Json) -> bool:
    """Whether room, ports and nothing else say where it may go."""
    spec = pod["spec"]
    return not (
        spec.get("affinity")
        or spec.get("topologySpreadConstraints")
        or spec.get("resourceClaims")
        or spec.get("schedulingGates")
        or any("persistentVolumeClaim" in volume for volume in spec.get("volumes", ()))
    )


def excludes(pod: Json) -> str:
    """The label value that a pod does not want beside it on a node, by the one kind of rule in the soak."""
    rules = pod["spec"].get("affinity", {}).get("podAntiAffinity", {})
    for rule in rules.get("requiredDuringSchedulingIgnoredDuringExecution", ()):
        if rule["topologyKey"] == "kubernetes.io/hostname":
            return str(rule["labelSelector"]["matchLabels"]["app"])
    return ""


class Checker:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, dict[str, Json]] = {kind: {} for kind in KINDS}
        self.on_node: dict[str, dict[str, Json]] = {}
        self.fits_since: dict[str, float] = {}
        self.faults: list[str] = []
        self.counts = dict.fromkeys(("events", "bound", "checks", "lists", "broken watches"), 0)
        self.highest = {"cpu": 0.0, "memory": 0.0}
        """The fullest that a node ever was, as a share."""

    def fault(self, text: str) -> None:
        if text not in self.faults:
            self.faults.append(text)
            print(f"FAULT {time.strftime('%H:%M:%S')} {text}", flush=True)

    # Changes

    def listed(self, kind: str, items: list[Json]) -> None:
        with self.lock:
            self.counts["lists"] += 1
            now = {key(item): item for item in items}
            # First those that are gone: what was deleted made the room that others have taken since.
            for gone in self.objects[kind].keys() - now.keys():
                self.remove(kind, self.objects[kind][gone])
            for item in items:
                self.put(kind, item, is_checked=False)
            for name in list(self.on_node):
                self.check_node(name)

    def changed(self, kind: str, change: str, item: Json) -> None:
        with self.lock:
            self.counts["events"] += 1
            if change == "DELETED":
                self.remove(kind, item)
            else:
                self.put(kind, item)

    def put(self, kind: str, item: Json, *, is_checked: bool = True) -> None:
        before = self.objects[kind].get(key(item))
        self.objects[kind][key(item)] = item
        if kind == "pods":
            name, uid = item["spec"].get("nodeName"), item["metadata"]["uid"]
            is_over = item["status"].get("phase") in ("Succeeded", "Failed")
            if before is not None and before["metadata"]["uid"] != uid:
                self.remove("pods", before)
                self.objects["pods"][key(item)] = item
            if name and is_over:
                self.on_node.get(name, {}).pop(uid, None)
            elif name:
                self.counts["bound"] += uid not in self.on_node.setdefault(name, {})
                self.on_node[name][uid] = item
                self.fits_since.pop(uid, None)
                if is_checked:
                    self.check_node(name)
        elif kind == "claims":
            self.check_devices()
        elif kind == "volumes":
            self.check_volumes()

    def remove(self, kind: str, item: Json) -> None:
        self.objects[kind].pop(key(item), None)
        if kind == "pods":
            uid = item["metadata"]["uid"]
            self.fits_since.pop(uid, None)
            for pods in self.on_node.values():
                pods.pop(uid, None)

    # Checks

    def check_node(self, name: str) -> None:
        self.counts["checks"] += 1
        node, pods = self.objects["nodes"].get(name), list(self.on_node[name].values())
        if node is None:
            return
        has = {resource: amount(value) for resource, value in node["status"]["allocatable"].items()}
        for resource, taken in self.taken(name).items():
            if resource in self.highest:
                self.highest[resource] = max(self.highest[resource], taken / has[resource])
            if taken > has.get(resource, 0.0) * (1 + 1e-9):
                who = sorted(key(pod) for pod in pods)
                self.fault(
                    f"{name} is overcommitted: {taken:g} of {has.get(resource, 0):g} {resource}: {who}"
                )
        used: dict[int, str] = {}
        for pod in pods:
            for port in ports(pod):
                if port in used:
                    self.fault(f"{name}: host port {port} is used by {used[port]} and {key(pod)}")
                used[port] = key(pod)
        for pod in pods:
            unwanted = excludes(pod)
            beside = [
                key(other)
                for other in pods
                if other is not pod
                and unwanted
                and other["metadata"].get("labels", {}).get("app") == unwanted
            ]
            if beside:
                self.fault(f"{name}: {key(pod)} is beside {beside}, which it excludes")

    def taken(self, name: str) -> dict[str, float]:
        total: dict[str, float] = {}
        for pod in self.on_node.get(name, {}).values():
            for resource, value in needs(pod).items():
                total[resource] = total.get(resource, 0.0) + value
        return total

    def check_devices(self) -> None:
        owner: dict[tuple[str, str, str], str] = {}
        for name, claim in self.objects["claims"].items():
            results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
            for each in results:
                device = (each["driver"], each["pool"], each["device"])
                if device in owner:
                    self.fault(f"device {device} is allocated to {owner[device]} and {name}")
                owner[device] = name

    def check_volumes(self) -> None:
        owner: dict[str, str] = {}
        for name, volume in self.objects["volumes"].items():
            claim = volume["spec"].get("claimRef")
            if claim:
                claimed = f"{claim['namespace']}/{claim['name']}"
                if claimed in owner:
                    self.fault(f"volumes {owner[claimed]} and {name} are both bound to {claimed}")
                owner[claimed] = name

    def check_waiting(self, now: float) -> None:
        """Simple pods that wait although a node has room, for how long without a break."""
        with self.lock:
            free = {}
            for name, node in self.objects["nodes"].items():
                if not node["spec"].get("unschedulable"):
                    has = {each: amount(value) for each, value in node["status"]["allocatable"].items()}
                    taken = self.taken(name)
                    used = set().union(*(ports(pod) for pod in self.on_node.get(name, {}).values()))
                    free[name] = {each: has[each] - taken.get(each, 0.0) for each in has}, used
            for name, pod in self.objects["pods"].items():
                uid = pod["metadata"]["uid"]
                is_waiting = not pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")
                wanted = needs(pod)
                fits = (
                    is_waiting
                    and is_simple(pod)
                    and any(
                        all(left.get(each, 0.0) >= value for each, value in wanted.items())
                        and not used & ports(pod)
                        for left, used in free.values()
                    )
                )
                if not fits:
                    self.fits_since.pop(uid, None)
                elif now - self.fits_since.setdefault(uid, now) > FORGOTTEN_SECONDS:
                    self.fault(
                        f"pod {name} was forgotten: it waits, and has fitted for {FORGOTTEN_SECONDS:g} s"
                    )

    def waiting(self) -> list[str]:
        with self.lock:
            return sorted(
                name for name, pod in self.objects["pods"].items() if not pod["spec"].get("nodeName")
            )


def key(item: Json) -> str:
    meta = item["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


class Source:
    """Lists one kind and watches it, for ever."""

    def __init__(self, checker: Checker, kind: str, server: str, ca: str, token: str) -> None:
        self.checker, self.kind, self.path = checker, kind, KINDS[kind]
        self.host, self.headers = urlsplit(server).netloc, {"Authorization": f"Bearer {token}"}
        self.trusted = ssl.create_default_context(cafile=ca)
        self.synced = threading.Event()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        version = ""
        while True:
            try:
                version = self.follow(version)
            except (OSError, http.client.HTTPException, ValueError):
                self.checker.counts["broken watches"] += 1
                version = ""
                time.sleep(0.5)

    def get(self, connection: http.client.HTTPSConnection, **query: str) -> http.client.HTTPResponse:
        connection.request("GET", f"{self.path}?{urlencode(query)}", headers=self.headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"{self.path}: status {answer.status}")
        return answer

    def follow(self, version: str) -> str:
        connection = http.client.HTTPSConnection(self.host, context=self.trusted, timeout=20)
        try:
            if not version:
                found = json.load(self.get(connection))
                self.checker.listed(self.kind, found["items"])
                version = found["metadata"]["resourceVersion"]
                self.synced.set()
            query = {
                "watch": "true",
                "resourceVersion": version,
                "timeoutSeconds": "15",
                "allowWatchBookmarks": "true",
            }
            answer = self.get(connection, **query)
            while line := answer.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return ""
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self.checker.changed(self.kind, event["type"], event["object"])
            return version
        finally:
            connection.close()


def main(server: str, ca: str, token: str, report: str) -> None:
    checker = Checker()
    sources = [Source(checker, kind, server, ca, token) for kind in KINDS]
    for source in sources:
        source.synced.wait(60)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    while not ended.wait(1.0):
        checker.check_waiting(time.monotonic())
    for name in checker.waiting():
        checker.fault(f"pod {name} was forgotten: it waits at the end, when everything fits")
    with open(report, "w") as file:
        json.dump({"faults": checker.faults, "highest": checker.highest, **checker.counts}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
