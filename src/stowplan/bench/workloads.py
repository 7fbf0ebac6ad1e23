"""The workloads: read from their file, and made into objects."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec
import yaml

from stowplan.api.kinds import object_of
from stowplan.api.meta import Json
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.errors import InputError


class InitialPods(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    per_node: int = 0
    template: Json = {}


class NominatedPods(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    every_nth: int = 0
    """Only on every n-th node; 0 for none."""
    template: Json = {}


class Workload(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    name: str
    says: str
    pod_template: Json
    measured: int = 1000
    objects: list[Json] = []
    node_objects: list[Json] = []
    """For each node."""
    pod_objects: list[Json] = []
    """For each pod that is measured."""
    node_template: Json = {}
    initial_pods: InitialPods = msgspec.field(default_factory=InitialPods)
    nominated_pods: NominatedPods = msgspec.field(default_factory=NominatedPods)


def read_workloads(text: str | None = None) -> list[Workload]:
    """The workloads of a file, those that come with the package by default."""
    text = files("stowplan.bench").joinpath("workloads.yaml").read_text() if text is None else text
    try:
        plain = yaml.load(text, yaml.CSafeLoader)
        shared = {key: plain[key] for key in ("nodeTemplate", "initialPods")}
        return [msgspec.convert({**shared, **each}, Workload) for each in plain["workloads"]]
    except (yaml.YAMLError, msgspec.ValidationError, KeyError, TypeError) as error:
        raise InputError(f"is not a valid workload file: {error}") from None


def build(workload: Workload, nodes: int, pods: int | None = None) -> Cluster:
    """The cluster before the measurement, with the objects that this many pods need."""
    cluster = Cluster.of(_make(each) for each in workload.objects)
    for number in range(nodes):
        cluster.apply(_make({"kind": "Node", **fill_template(workload.node_template, number)}))
        for each in workload.node_objects:
            cluster.apply(_make(fill_template(each, number)))
    for number in range(pods or workload.measured):
        for each in workload.pod_objects:
            cluster.apply(_make(fill_template(each, number)))
    initial = workload.initial_pods
    for number in range(initial.per_node * nodes):
        plain = fill_template(initial.template, number)
        plain["spec"] = {**plain["spec"], "nodeName": f"node-{number % nodes}"}
        plain["status"] = {"startTime": "2026-01-01T00:00:00Z", "phase": "Running"}
        cluster.apply(_pod(f"initial-{number}", plain))
    return cluster


def nominated(workload: Workload, nodes: int) -> Iterator[Pod]:
    """The pods that wait, while others are measured, for a node that they are nominated to."""
    every_nth = workload.nominated_pods.every_nth
    for number in range(0, nodes, every_nth) if every_nth else ():
        plain = fill_template(workload.nominated_pods.template, number)
        plain["status"] = {"nominatedNodeName": f"node-{number}"}
        yield _pod(f"nominated-{number}", plain)


def pending(workload: Workload, count: int) -> Iterator[Pod]:
    """The pods to measure."""
    for number in range(count):
        yield _pod(f"pod-{number}", fill_template(workload.pod_template, number))


def _pod(name: str, plain: Json) -> Pod:
    metadata = {"name": name, "namespace": "default", "uid": name, **plain.get("metadata", {})}
    found = object_of({"kind": "Pod", **plain, "metadata": metadata})
    assert isinstance(found, Pod)
    return found


def _make(plain: dict[str, object]) -> Any:
    found = object_of(plain)
    assert found is not None
    return found


def fill_template(template: object, number: int) -> Any:
    """The template with its choices made for the pod or node of this number."""
    if isinstance(template, str):
        return template.replace("$n", str(number)).replace("$i", str(number))
    if isinstance(template, list):
        return [fill_template(each, number) for each in template]
    if not isinstance(template, dict):
        return template
    if "choose" in template:
        return template["choose"][number % len(template["choose"])]
    if "vary" in template:
        start, step = template["vary"]
        return f"{start + number * step}{template.get('unit', '')}"
    return {key: fill_template(value, number) for key, value in template.items()}
