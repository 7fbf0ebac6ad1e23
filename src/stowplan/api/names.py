"""Names on the command line: `deploy/web`, and suggestions for a name that is not found."""

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
    """Split `deploy/web` into Deployment and web; the kind is None if there is none, as in `ns/web`."""
    prefix, _, name = wanted.rpartition("/")
    return KIND_OF.get(prefix.lower().partition(".")[0]), name


def suggest_names(wanted: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: `; did you mean "web"? (known: db, web)`."""
    keys = sorted(known)
    if not keys:
        return " (there are none)"
    close = get_close_matches(_name(wanted), {_name(key) for key in keys}, NAMES_SHOWN)
    keys.sort(key=lambda key: close.index(_name(key)) if _name(key) in close else len(close))
    hint = f'; did you mean "{keys[0]}"?' if close else ""
    more = f" and {len(keys) - NAMES_SHOWN} more" if len(keys) > NAMES_SHOWN else ""
    return f"{hint} (known: {', '.join(keys[:NAMES_SHOWN])}{more})"


def _name(key: str) -> str:
    return key.rpartition("/")[2]
