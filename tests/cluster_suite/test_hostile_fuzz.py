"""Objects changed at random: whatever a kube-apiserver accepts, the scheduler survives it and counts it.

STOWPLAN_FUZZ_CASES says how many (300), STOWPLAN_FUZZ_SEED which (1).
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from math import ceil
from typing import Any
from urllib.parse import urlsplit

import pytest
from checking import JSON_LOG, read_dump

from controlplane.control_plane import ADMIN, ControlPlane, token_of
from controlplane.objects import node, pod
from controlplane.pods import add_nodes
from controlplane.waiting import eventually
from mutated_objects import KINDS, Json, Kind, Mutator
from stowplan.api.requests import MAX_TAKEN

CASES = int(os.environ.get("STOWPLAN_FUZZ_CASES", "300"))
SEED = int(os.environ.get("STOWPLAN_FUZZ_SEED", "1"))
BATCH = 50
FUZZED_NODES = [f"fuzz-{number}" for number in range(4)]
FAULTS = (
    "Traceback", "RecursionError", "Object cannot be read", "Event handler failed", "Background work failed",
    "Watch failed", "never retrieved", "Cache mismatch", "Error scheduling pod",
)  # fmt: skip
NAMED = {
    "StorageClass": "class-1",
    "PersistentVolumeClaim": "claim-1",
    "DeviceClass": "class-1",
    "ResourceClaim": "claim-a",
}
"""What pods of the examples want."""
LINE = re.compile(r"(\S+): requested (\{.*?\}), allocatable \{.*?\}, pods \[(.*)\]")


class Sender:
    """One connection to the API server, on which it takes what it takes."""

    def __init__(self, control_plane: ControlPlane) -> None:
        trusted = ssl.create_default_context(cafile=str(control_plane.certificate))
        where = urlsplit(control_plane.server)
        self._connection = http.client.HTTPSConnection(
            where.hostname, where.port, context=trusted, timeout=60
        )

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, Json]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {token_of(ADMIN)}", "Content-Type": kind}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def sender(control_plane: ControlPlane) -> Iterator[Sender]:
    with closing(Sender(control_plane)) as opened:
        yield opened


class Fuzz:
    def __init__(self, sender: Sender, seed: int) -> None:
        self.sender, self.mutator, self.draw = sender, Mutator(seed), Mutator(seed + 1).draw
        self.accepted: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.kept: list[tuple[str, str]] = []

    def one(self, number: int) -> None:
        """Makes an object, or changes one that was made before."""
        name = self.draw.choice((*["Pod"] * 12, *KINDS))
        kind = KINDS[name]
        example = self.mutator.thinned(kind.example)
        body = self.mutator.mutated(example, self.draw.choice((0, 1, 1, 2, 3)))
        if self.kept and self.draw.random() < 0.1:
            self._update()
        if not self._create(name, kind, body, number):
            return
        if kind.status is not None and self.draw.random() < 0.6:
            thin = self.mutator.thinned({"status": kind.status})
            status = self.mutator.mutated(thin, self.draw.choice((0, 1, 2))).get("status")
            if name == "Pod" and not body["spec"].get("nodeName"):  # its conditions are ours to write
                status = dict(status) if isinstance(status, dict) else {}
                status.pop("conditions", None)
            self._send("PATCH", f"{name}/status", f"{self.kept[-1][1]}/status", {"status": status})

    def _create(self, name: str, kind: Kind, body: Json, number: int) -> bool:
        meta = body.get("metadata")
        body["metadata"] = {**(meta if isinstance(meta, dict) else {}), "name": f"{name.lower()}-{number}"}
        if name == "Pod" and isinstance(spec := body.get("spec"), dict):
            self._place(spec)
        elif name in ("CSINode", "Node"):
            body["metadata"]["name"] = f"extra-{number}"
        if not self._send("POST", name, kind.path, body):
            return False
        self.kept.append((name, f"{kind.path}/{body['metadata']['name']}"))
        return True

    def _place(self, spec: Json) -> None:
        """Most pods are bound to certain nodes by whoever made them; others wait for one of these nodes."""
        if self.draw.random() < 0.8:
            spec.pop("schedulingGates", None)
        if self.draw.random() < 0.6:
            spec["nodeName"] = self.draw.choice(FUZZED_NODES)
            spec.pop("schedulingGates", None)
        else:
            spec["nodeSelector"] = {"pool": "fuzz"}
            spec.pop("nodeName", None)

    def _update(self) -> None:
        name, path = self.draw.choice(self.kept)
        example = KINDS[name].example
        part = self.draw.choice([key for key in ("metadata", "spec") if key in example] or ["metadata"])
        changed = self.mutator.mutated({part: example.get(part, {})}, self.draw.choice((1, 2)))
        if isinstance(changed.get("spec"), dict) and name == "Pod":
            self._place(changed["spec"])
        self._send("PATCH", f"{name} changed", path, changed)

    def _send(self, method: str, what: str, path: str, body: Json) -> bool:
        status, answer = self.sender.send(method, path, body)
        assert status < 500, f"the API server itself failed: {answer} {json.dumps(body)[:2000]}"
        self.sent[what] += 1
        self.accepted[what] += status < 300
        return status < 300

    def all(self, path: str) -> list[Json]:
        status, found = self.sender.send("GET", path)
        assert status == 200
        return list(found["items"])


def test_the_examples_are_accepted_as_they_are(control_plane: ControlPlane, sender: Sender) -> None:
    control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "fuzz"}})
    rejected = {}
    for name, kind in KINDS.items():
        meta = {**kind.example.get("metadata", {}), "name": name.lower()}
        status, answer = sender.send("POST", kind.path, {**kind.example, "metadata": meta})
        if status == 201 and kind.status is not None:
            status, answer = sender.send(
                "PATCH", f"{kind.path}/{name.lower()}/status", {"status": kind.status}
            )
        if status >= 300:
            rejected[name] = answer["message"]
    assert rejected == {}


async def test_the_scheduler_survives_what_the_api_server_accepts(
    control_plane: ControlPlane, sender: Sender, capsys: pytest.CaptureFixture[str]
) -> None:
    fuzz = Fuzz(sender, SEED)
    add_nodes(control_plane, node("canary", labels={"pool": "canary"}))
    add_nodes(control_plane, *(node(name, labels={"pool": "fuzz"}) for name in FUZZED_NODES))
    for name in ("fuzz", "canary"):
        control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    for name, made in NAMED.items():
        body = {**KINDS[name].example, "metadata": {"name": made}}
        assert fuzz.sender.send("POST", KINDS[name].path, body)[0] == 201, name
    with control_plane.stowplan(JSON_LOG) as scheduler:
        for start in range(0, CASES, BATCH):
            for number in range(start, min(start + BATCH, CASES)):
                fuzz.one(number)
            await _schedules_canary(fuzz, f"canary-{start}")
        try:
            await eventually(lambda: _silent(fuzz), lambda silent: not silent, seconds=60)
        except AssertionError:
            silent = _silent(fuzz)[0]
            lines = [line[:1500] for line in scheduler.output.splitlines() if f'"{silent}"' in line]
            item = fuzz.sender.send("GET", f"/api/v1/namespaces/fuzz/pods/{silent}")[1]
            raise AssertionError(f"pod without a reason, seed {SEED}: {json.dumps(item)} {lines}") from None
        await _counts_every_pod(fuzz, scheduler)
        metrics = _metrics(scheduler)
        assert not re.findall(r"^stowplan_unreadable_objects.* [1-9].*$", metrics, re.MULTILINE)
        for fault in FAULTS:
            lines = [line[:600] for line in scheduler.output.splitlines() if fault in line]
            assert not lines, f"{fault} in {len(lines)} lines, seed {SEED}: {lines[0]}"
    capsys.readouterr()
    with capsys.disabled():
        counts = ", ".join(f"{what} {fuzz.accepted[what]}/{sent}" for what, sent in sorted(fuzz.sent.items()))
        sys.stdout.write(f"\naccepted {sum(fuzz.accepted.values())} of {sum(fuzz.sent.values())}: {counts}\n")
    assert sum(fuzz.accepted.values()) > CASES / 5


async def _schedules_canary(fuzz: Fuzz, name: str) -> None:
    path = "/api/v1/namespaces/canary/pods"
    body = pod(name, namespace="canary", nodeSelector={"pool": "canary"})
    status, answer = fuzz.sender.send("POST", path, body)
    assert status == 201, answer
    await eventually(
        lambda: fuzz.sender.send("GET", f"{path}/{name}")[1],
        lambda found: found["spec"].get("nodeName") == "canary",
        seconds=60,
    )
    fuzz.sender.send("DELETE", f"{path}/{name}", {"gracePeriodSeconds": 0})


def _silent(fuzz: Fuzz) -> list[str]:
    """Pods that wait for us and do not say why; those that wait for a claim to be made need not."""
    return [
        each["metadata"]["name"]
        for each in fuzz.all("/api/v1/namespaces/fuzz/pods")
        if not each["spec"].get("nodeName")
        and each["spec"]["schedulerName"] == "default-scheduler"
        and not each["metadata"].get("deletionTimestamp")
        and not each["spec"].get("schedulingGates")
        and all(
            claim.get("resourceClaimName") == "claim-a" for claim in each["spec"].get("resourceClaims", ())
        )
        and not any(found["type"] == "PodScheduled" for found in each["status"].get("conditions", ()))
        and each["status"].get("phase") not in ("Succeeded", "Failed")
    ]


async def _counts_every_pod(fuzz: Fuzz, scheduler: Any) -> None:
    """What the scheduler says nodes are used by is what the pods of the API server add up to."""
    for attempt in range(20):
        expected: dict[str, Counter[str]] = {name: Counter() for name in (*FUZZED_NODES, "canary")}
        names: dict[str, set[str]] = defaultdict(set)
        unsure: set[str] = set()
        for each in fuzz.all("/api/v1/pods"):
            where = each["spec"].get("nodeName")
            if where not in expected or each["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            names[where].add(f"{each['metadata']['namespace']}/{each['metadata']['name']}")
            if any("resources" in status for status in each["status"].get("containerStatuses", ())):
                unsure.add(where)
            expected[where].update(usage(each["spec"]))
        known, pods = _read(await read_dump(scheduler))
        if all(pods[name] == names[name] for name in expected):
            break
        assert attempt < 19, {
            name: pods[name] ^ names[name] for name in expected if pods[name] != names[name]
        }
    assert sum(map(len, names.values())) > CASES / 20
    for name, amounts in expected.items():
        if name not in unsure:
            wanted = {resource: amount for resource, amount in amounts.items() if amount}
            assert {resource: amount for resource, amount in known[name].items() if amount} == wanted, name


def _read(dump: str) -> tuple[dict[str, Json], dict[str, set[str]]]:
    known, pods = {}, {}
    for line in dump.splitlines():
        if found := LINE.fullmatch(line):
            known[found[1]] = json.loads(found[2].replace("'", '"'))
            pods[found[1]] = set(filter(None, found[3].split(", ")))
    return known, pods


def usage(spec: Json) -> dict[str, int]:
    """What a pod takes, worked out from its spec in another way than the scheduler does."""
    total: Counter[str] = Counter()
    for container in spec["containers"]:
        total.update(requested(container))
    beside: Counter[str] = Counter()
    peaks: list[Counter[str]] = []
    for container in spec.get("initContainers", ()):
        if container.get("restartPolicy") == "Always":
            beside.update(requested(container))
            total.update(requested(container))
            peaks.append(Counter(beside))
        else:
            peaks.append(Counter(requested(container)) + Counter(beside))
    for peak in peaks:
        for name, amount in peak.items():
            total[name] = max(total[name], amount)
    for name, amount in requested(spec).items():
        if name in ("cpu", "memory") or name.startswith("hugepages-"):
            total[name] = amount
    for name, amount in spec.get("overhead", {}).items():
        total[name] += value(amount)
    return {
        name: min(ceil(amount * 1000 if name == "cpu" else amount), MAX_TAKEN)
        for name, amount in total.items()
        if name in ("cpu", "memory", "ephemeral-storage") or name.startswith("hugepages-") or "/" in name
    }


def requested(holder: Json) -> dict[str, Fraction]:
    asked = (holder.get("resources") or {}).get("requests") or {}
    return {name: value(text) for name, text in asked.items()}


def value(text: str) -> Fraction:
    """A quantity, as the documentation has it."""
    number, suffix = re.fullmatch(r"([+-]?[0-9.]+)(.*)", text).groups()  # type: ignore[union-attr]
    if suffix[:1] in ("e", "E") and len(suffix) > 1:
        exponent = (int(suffix[1:]) + 2**31) % 2**32 - 2**31
        factor = Fraction(10) ** exponent
    elif suffix.endswith("i"):
        factor = Fraction(1024) ** ("KMGTPE".index(suffix[0]) + 1)
    else:
        factor = (
            Fraction(10)
            ** {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}[suffix]
        )
    return Fraction(number.rstrip(".")) * factor


def _metrics(scheduler: Any) -> str:
    careless = ssl.create_default_context()
    careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
    where = urlsplit(scheduler.server)
    connection = http.client.HTTPSConnection(where.hostname, where.port, context=careless, timeout=30)
    with closing(connection):
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token_of(ADMIN)}"})
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode()
