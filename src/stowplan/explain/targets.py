"""Which pod is meant: one that is known, or the one that a workload would make next."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from stowplan.errors import InputError
from stowplan.explain.manifests import POD, Manifests
from stowplan.explain.templates import Target, next_pod

KIND_OF = {
    **dict.fromkeys(("po", "pod", "pods"), POD),
    **dict.fromkeys(("deploy", "deployment", "deployments"), "Deployment"),
    **dict.fromkeys(("rs", "replicaset", "replicasets"), "ReplicaSet"),
    **dict.fromkeys(("sts", "statefulset", "statefulsets"), "StatefulSet"),
    **dict.fromkeys(("ds", "daemonset", "daemonsets"), "DaemonSet"),
    **dict.fromkeys(("job", "jobs"), "Job"),
    **dict.fromkeys(("rc", "replicationcontroller", "replicationcontrollers"), "ReplicationController"),
}
NAMES_SHOWN = 8


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


def kind_and_name(wanted: str) -> tuple[str | None, str]:
    """`deploy/web` is a Deployment called web; None for what names no kind, a namespace perhaps."""
    prefix, _, name = wanted.rpartition("/")
    return KIND_OF.get(prefix.lower().partition(".")[0]), name


def there_is(wanted: str, known: Iterable[str]) -> str:
    """Names that exist, those that look like the wanted one first, in whatever namespace."""
    keys = sorted(known)
    if not keys:
        return "there is none"
    close = get_close_matches(_name(wanted), {_name(key) for key in keys}, NAMES_SHOWN)
    keys.sort(key=lambda key: close.index(_name(key)) if _name(key) in close else len(close))
    more = f" and {len(keys) - NAMES_SHOWN} more" if len(keys) > NAMES_SHOWN else ""
    return f"there is {', '.join(keys[:NAMES_SHOWN])}{more}"


def _name(key: str) -> str:
    return key.rpartition("/")[2]
