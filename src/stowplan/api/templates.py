"""The pod that a command is about: an existing one, or the next one that a workload would create."""

from __future__ import annotations

from typing import Any, NamedTuple

from stowplan.api.amounts import reject_negative_requests
from stowplan.api.defaults import Plain
from stowplan.api.kinds import describe
from stowplan.api.manifests import Manifests
from stowplan.api.meta import Object, Wire, decode
from stowplan.api.names import POD, kind_and_name, suggest_names
from stowplan.api.pod import Pod, PodObject
from stowplan.api.storage import PersistentVolumeClaim
from stowplan.errors import InputError

DAEMON_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
]
"""Tolerations that the DaemonSet controller adds to its pods."""


class WorkloadSpec(Wire, frozen=True):
    template: PodObject
    volume_claim_templates: tuple[PersistentVolumeClaim, ...] = ()


class Workload(Object, frozen=True, kw_only=True):
    spec: WorkloadSpec


class Target(NamedTuple):
    pod: Pod
    notes: tuple[str, ...] = ()
    objects: tuple[Pod | Object, ...] = ()
    """Objects created with the pod: its owner, its claims."""
    member: int = 0
    """The number of the pod in its StatefulSet."""


def next_pod(manifests: Manifests, workload: Plain, first_member: int = 0) -> Target:
    """The next pod that the workload's controller would create, with the objects it needs.

    Members of a StatefulSet before `first_member` are known to exist.
    """
    try:
        reject_negative_requests(decode(Workload, workload).spec.template.spec, "spec.template.spec")
    except InputError as error:
        raise InputError(error.message, what=describe(workload), field=error.field) from None
    name, owner, made = workload["metadata"]["name"], workload, []
    note = f"This is the next pod that {describe(workload)} would create."
    if workload["kind"] == "Deployment":
        owner = _make_replica_set(workload)
        made.append(owner)
    pod = _make_pod(workload["spec"]["template"], owner, f"{name}-new")
    if workload["kind"] == "DaemonSet":
        tolerations = [*(pod["spec"].get("tolerations") or ()), *DAEMON_TOLERATIONS]
        pod["spec"] = pod["spec"] | {"tolerations": tolerations}
        note = f"This is a pod of {describe(workload)}, not tied to a particular node."
    member = first_member
    if workload["kind"] == "StatefulSet":
        namespace = workload["metadata"]["namespace"]
        while (POD, f"{namespace}/{name}-{member}") in manifests.objects:
            member += 1
        made += _name_member(manifests, pod, workload, member)
    found = manifests.decode_object(pod)
    assert isinstance(found, Pod)
    return Target(found, (note,), tuple(manifests.decode_object(each) for each in made), member)


def _make_replica_set(deployment: Plain) -> Plain:
    meta = deployment["metadata"]
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": f"{meta['name']}-new", "namespace": meta["namespace"]},
        "spec": {"selector": deployment["spec"].get("selector")},
    }


def _make_pod(template: Plain, owner: Plain, name: str) -> dict[str, Any]:
    meta = owner["metadata"]
    reference = {"controller": True, "uid": meta.get("uid", ""), "name": meta["name"]}
    reference |= {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    own = {"name": name, "namespace": meta["namespace"], "ownerReferences": [reference]}
    return {
        "apiVersion": "v1",
        "kind": POD,
        "metadata": (template.get("metadata") or {}) | own,
        "spec": template.get("spec") or {},
    }


def _name_member(manifests: Manifests, pod: dict[str, Any], workload: Plain, number: int) -> list[Plain]:
    """Name the pod as that member of the set; return the claims it needs that do not exist yet."""
    name, namespace = workload["metadata"]["name"], workload["metadata"]["namespace"]
    pod["metadata"] = pod["metadata"] | {"name": f"{name}-{number}"}
    templates = workload["spec"].get("volumeClaimTemplates") or ()
    claims = {each["metadata"]["name"]: each for each in templates}
    own = [volume for volume in pod["spec"].get("volumes") or () if volume.get("name") not in claims]
    made = []
    for volume, template in claims.items():
        claim = f"{volume}-{name}-{number}"
        own.append({"name": volume, "persistentVolumeClaim": {"claimName": claim}})
        if ("PersistentVolumeClaim", f"{namespace}/{claim}") not in manifests.objects:
            names = {"name": claim, "namespace": namespace}
            made.append(template | {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": names})
    pod["spec"] = pod["spec"] | {"volumes": own}
    return made


def find_target(manifests: Manifests, wanted: str, first_member: int = 0) -> Target:
    """`wanted` is a name, `namespace/name`, or `kind/name` as in kubectl; see `next_pod`."""
    if (pod := manifests.pod(wanted)) is not None:
        return Target(pod)
    slash, (kind, name) = "/" in wanted, kind_and_name(wanted)
    key = wanted if slash and kind is None else f"{manifests.namespace}/{name}"
    if kind is None or kind == POD:
        if (pod := manifests.pod(key)) is None:
            raise InputError(f"pod {key} not found{suggest_names(key, manifests.pods)}")
        return Target(pod)
    workload = manifests.workloads.get((kind, key))
    if workload is None:
        known = (other for each, other in manifests.workloads if each == kind)
        raise InputError(f"{kind} {key} not found{suggest_names(key, known)}")
    return next_pod(manifests, workload, first_member)
