"""Prepare the objects of a real cluster to be created again in a simulated one.

Leaves out uids, versions, times and owners, which only mean something in the old cluster.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stowplan.api.meta import Json
from stowplan.kubelet.statuses import node_of

FIRST = ("Namespace", "PriorityClass", "StorageClass", "PersistentVolume", "PersistentVolumeClaim")
LAST = ("Pod",)
KEPT_METADATA = ("name", "namespace", "labels", "annotations")
FINISHED = ("Succeeded", "Failed")
SYSTEM_CLASSES = ("system-cluster-critical", "system-node-critical")


class Dump(msgspec.Struct):
    nodes: list[Json]
    dead: list[str]
    """The names of nodes that were not ready, and must stay not ready."""
    others: list[Json]
    """In an order in which they can be created; the pods, with the nodes they were on, come last."""


def dump_of(objects: Iterable[Json], now: float) -> Dump:
    objects = list(objects)
    nodes = [each for each in objects if each["kind"] == "Node"]
    others = [_clean(each) for each in objects if each["kind"] != "Node" and _is_wanted(each)]
    others += _missing_objects(others)
    others.sort(key=lambda each: _order(each["kind"]))
    return Dump(
        [_node(each, now) for each in nodes],
        [each["metadata"]["name"] for each in nodes if not _is_ready(each)],
        others,
    )


def _is_wanted(item: Json) -> bool:
    """Pods that have ended, or are about to, are history."""
    ended = (item.get("status") or {}).get("phase") in FINISHED if item["kind"] == "Pod" else False
    return not ended and not item["metadata"].get("deletionTimestamp")


def _node(item: Json, now: float) -> Json:
    status = {name: value for name, value in (item.get("status") or {}).items() if name != "conditions"}
    if not _is_ready(item):
        status["conditions"] = item["status"].get("conditions", [])
    name = item["metadata"]["name"]
    return node_of({"metadata": _metadata(item), "spec": item.get("spec") or {}, "status": status}, name, now)


def _is_ready(node: Json) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return all(each["status"] == "True" for each in conditions if each["type"] == "Ready")


def _clean(item: Json) -> Json:
    found = {**item, "metadata": _metadata(item)}
    found.pop("status", None)
    if item["kind"] == "Pod":
        spec = {name: value for name, value in (item.get("spec") or {}).items() if name != "priority"}
        found["spec"] = spec
        found["priority"] = (item.get("spec") or {}).get("priority")
    elif item["kind"] == "PersistentVolume" and (claim := (item.get("spec") or {}).get("claimRef")):
        named = {name: claim[name] for name in ("kind", "namespace", "name") if name in claim}
        found["spec"] = {**item["spec"], "claimRef": named}
    return found


def _missing_objects(items: list[Json]) -> list[Json]:
    """Namespaces and priority classes that are used and not in the dump."""
    known = {(each["kind"], each["metadata"]["name"]) for each in items}
    known |= {("PriorityClass", name) for name in SYSTEM_CLASSES} | {("Namespace", "default")}
    made: dict[tuple[str, str], Json] = {}
    for item in items:
        priority = item.pop("priority", None)
        if namespace := item["metadata"].get("namespace"):
            made["Namespace", namespace] = {"apiVersion": "v1", "kind": "Namespace"}
        if item["kind"] == "Pod" and (name := item["spec"].get("priorityClassName")):
            kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
            made["PriorityClass", name] = {**kind, "value": priority or 0}
    return [{**item, "metadata": {"name": key[1]}} for key, item in made.items() if key not in known]


def _metadata(item: Json) -> Json:
    return {name: item["metadata"][name] for name in KEPT_METADATA if name in item["metadata"]}


def _order(kind: str) -> int:
    return FIRST.index(kind) if kind in FIRST else len(FIRST) + (kind in LAST)
