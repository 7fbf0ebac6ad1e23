"""Which pod is meant: one that is known, or the one that a workload would make next."""

from __future__ import annotations

from stowplan.api.manifests import Manifests
from stowplan.api.names import POD, kind_and_name, there_is
from stowplan.api.templates import Target, next_pod
from stowplan.errors import InputError


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
