"""Names as they are given and shown: `deploy/web`, and those that look like one that is not there."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

POD = "Pod"
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
