"""The pod that a workload's controller would make next from its template, with what else it would make."""

from __future__ import annotations

from typing import Any, NamedTuple

from stowplan.api.amounts import check_spec
from stowplan.api.defaults import Plain
from stowplan.api.kinds import describe
from stowplan.api.manifests import Manifests
from stowplan.api.meta import Object, Wire, decode
from stowplan.api.names import POD, kind_and_name, there_is
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
"""What the DaemonSet controller lets its pods put up with."""


class WorkloadSpec(Wire, frozen=True):
    template: PodObject
    volume_claim_templates: tuple[PersistentVolumeClaim, ...] = ()


class Workload(Object, frozen=True, kw_only=True):
    spec: WorkloadSpec


class Target(NamedTuple):
    pod: Pod
    notes: tuple[str, ...] = ()
    objects: tuple[Pod | Object, ...] = ()
    """What comes with the pod: its owner, its claims."""


def next_pod(manifests: Manifests, workload: Plain) -> Target:
    """The pod that the workload's controller would make next, with what else it would make."""
    try:
        check_spec(decode(Workload, workload).spec.template.spec, "spec.template.spec")
    except InputError as error:
        raise InputError(error.message, what=describe(workload), field=error.field) from None
    name, owner, made = workload["metadata"]["name"], workload, []
    note = f"It is the pod that {describe(workload)} would make next from its template."
    if workload["kind"] == "Deployment":
        owner = _replica_set(workload)
        made.append(owner)
    pod = _pod_from(workload["spec"]["template"], owner, f"{name}-new")
    if workload["kind"] == "DaemonSet":
        tolerations = [*(pod["spec"].get("tolerations") or ()), *DAEMON_TOLERATIONS]
        pod["spec"] = pod["spec"] | {"tolerations": tolerations}
        note = f"It is made from the template of {describe(workload)}, but free to go to any node."
    if workload["kind"] == "StatefulSet":
        made += _make_member(manifests, pod, workload)
    found = manifests.decoded(pod)
    assert isinstance(found, Pod)
    return Target(found, (note,), tuple(manifests.decoded(each) for each in made))


def _replica_set(deployment: Plain) -> Plain:
    meta = deployment["metadata"]
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": f"{meta['name']}-new", "namespace": meta["namespace"]},
        "spec": {"selector": deployment["spec"].get("selector")},
    }


def _pod_from(template: Plain, owner: Plain, name: str) -> dict[str, Any]:
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


def _make_member(manifests: Manifests, pod: dict[str, Any], workload: Plain) -> list[Plain]:
    """Makes the pod the set's first missing member; returns the claims it needs that do not exist yet."""
    name, namespace = workload["metadata"]["name"], workload["metadata"]["namespace"]
    number = 0
    while (POD, f"{namespace}/{name}-{number}") in manifests.objects:
        number += 1
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


def find_target(manifests: Manifests, wanted: str) -> Target:
    """`wanted` is a name, `namespace/name`, or `kind/name` as kubectl takes it."""
    if (pod := manifests.pod(wanted)) is not None:
        return Target(pod)
    slash, (kind, name) = "/" in wanted, kind_and_name(wanted)
    key = wanted if slash and kind is None else f"{manifests.namespace}/{name}"
    if kind is None or kind == POD:
        if (pod := manifests.pod(key)) is None:
            raise InputError(f"there is no pod {key}; {there_is(key, manifests.pods)}")
        return Target(pod)
    workload = manifests.workloads.get((kind, key))
    if workload is None:
        known = (other for each, other in manifests.workloads if each == kind)
        raise InputError(f"there is no {kind} {key}; {there_is(key, known)}")
    return next_pod(manifests, workload)
