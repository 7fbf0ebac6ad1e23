"""Binding a pod to a node: what a scheduler does at the end."""

from __future__ import annotations

from typing import Any

from stowplan.apiserver import times
from stowplan.apiserver.failures import Failure, bad_request, conflict, internal, other_uid
from stowplan.apiserver.messages import Answer
from stowplan.apiserver.verbs import Target, Verbs

Json = dict[str, Any]

TOPOLOGY_LABELS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
CREATED = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def bind(verbs: Verbs, target: Target, sent: Json) -> Answer:
    objects, resource = verbs.objects, target.resource
    meta = sent.get("metadata") or {}
    name, node = meta.get("name", ""), (sent.get("target") or {}).get("name", "")
    if target.name and name != target.name:
        raise bad_request("name in URL does not match name in Binding object")
    _check_target(sent.get("target") or {})
    before = objects.get(resource, target.namespace, name)
    data = before.data()
    _check_pod(data, meta, name)
    data["spec"]["nodeName"] = node
    if meta.get("annotations"):
        data["metadata"]["annotations"] = {**data["metadata"].get("annotations", {}), **meta["annotations"]}
    where = objects.find("nodes", node)
    if where is not None and (labels := _topology(where.labels, data["metadata"].get("labels") or {})):
        data["metadata"]["labels"] = {**(data["metadata"].get("labels") or {}), **labels}
    conditions = data.setdefault("status", {}).setdefault("conditions", [])
    _set_scheduled(conditions)
    objects.write(resource, before, data, dry_run="All" in target.query.all("dryRun"))
    return Answer.of(201, CREATED)


def _topology(labels: Any, own: Json) -> Json:
    return {key: labels[key] for key in TOPOLOGY_LABELS if key in labels and own.get(key) != labels[key]}


def _check_target(target: Json) -> None:
    said = []
    if target.get("kind") not in ("", None, "Node"):
        said.append(
            f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
        )
    if not target.get("name"):
        said.append("target.name: Required value")
    if said:
        raise internal(said[0] if len(said) == 1 else f"[{', '.join(said)}]")


def _check_pod(data: Json, meta: Json, name: str) -> None:
    def refused(why: str) -> Failure:
        return conflict(name, "pods/binding", "", why)

    own = data["metadata"]
    if meta.get("uid") and meta["uid"] != own["uid"]:
        raise other_uid(name, "pods", "", f"pods/{own['namespace']}/{name}", meta["uid"], own["uid"])
    if own.get("deletionTimestamp"):
        raise refused(f"pod {name} is being deleted, cannot be assigned to a host")
    if data["spec"].get("nodeName"):
        raise refused(f'pod {name} is already assigned to node "{data["spec"]["nodeName"]}"')
    if data["spec"].get("schedulingGates"):
        raise refused(f"pod {name} has non-empty .spec.schedulingGates")


def _set_scheduled(conditions: list[Json]) -> None:
    known = next((each for each in conditions if each["type"] == "PodScheduled"), None)
    if known is None:
        known = {"type": "PodScheduled"}
        conditions.append(known)
    if known.get("status") != "True":
        known["lastTransitionTime"] = times.now()
    for field in ("reason", "message"):
        known.pop(field, None)
    known["status"] = "True"
    known.setdefault("lastProbeTime", None)
