"""What `stowplan explain group` and the page show of a pod group, as data and as text. Imports no engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from stowplan.explain.changes import ReportedChange
from stowplan.explain.layout import count_text, left_table, time_text, wrap

State = Literal["placed", "started", "waits", "preempting", "gated", "empty", "missing"]
MemberState = Literal["placed", "fits", "evicts", "waits"]
HEADLINES: dict[str, str] = {
    "placed": "is placed",
    "started": "has started, and more of its pods wait",
    "waits": "waits",
    "preempting": "waits until evicted pods are gone",
    "gated": "is not attempted yet",
    "empty": "has no pods",
    "missing": "does not exist",
}


class Part(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of what is sent as JSON."""


class MemberReport(Part, frozen=True, kw_only=True):
    pod: str
    state: MemberState
    """`fits` and `evicts`: where it would go, if the group started now or after evictions."""
    node: str = ""
    message: str = ""
    """Why it does not fit."""


class DomainReport(Part, frozen=True, kw_only=True):
    name: str
    nodes: int
    count: int
    """How many of the pending members fit into it; of one that lacks resources, how many these allow."""
    lacks: str = ""


class GroupReport(Part, frozen=True, kw_only=True):
    group: str
    """namespace/name"""
    api_version: str = ""
    """The API version of the object that describes the group, or the API group that its pods name."""
    state: State
    policy: str = "gang"
    min_count: int = 0
    members: int = 0
    """Pods that exist; finished ones do not count."""
    placed: int = 0
    finished: int = 0
    """Members that have succeeded, which count for the minimum."""
    queue: str = ""
    since: float | None = None
    """When the oldest of its pending pods was created."""
    why: tuple[str, ...] = ()
    """Sentences, the most important first."""
    message: str = ""
    """kube-scheduler's text, as the pods' conditions have it."""
    fitting: int | None = None
    """How many of the pending members fit; None if they were not attempted."""
    needed: int = 0
    """How many of the pending members must fit."""
    level: str = ""
    """The node label whose values are the domains; empty without a topology constraint."""
    pods: tuple[MemberReport, ...] = ()
    domains: tuple[DomainReport, ...] = ()
    changes: tuple[ReportedChange, ...] | None = None
    """Changes that would let it start; None if not requested."""
    is_complete: bool = True
    """False if time ran out before all changes were tried."""
    attempt: float | None = None
    """When it was attempted, if this is about a recorded attempt."""
    now: float = 0.0


def as_json(report: GroupReport) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(report)
    return found


def render(report: GroupReport, *, members: bool = False, domains: bool = False) -> str:
    paragraphs = [
        "\n".join(_summary(report)),
        "\n".join(_domains(report)) if domains else "",
        "\n".join(_members(report)) if members else "",
        _changes(report),
    ]
    return "\n\n".join(filter(None, paragraphs))


def _summary(report: GroupReport) -> Iterator[str]:
    what = f"Pod group {report.group} {HEADLINES[report.state]}"
    if report.attempt is not None:
        what = f"Pod group {report.group}, attempted at {time_text(report.attempt)}"
    kind = [report.api_version] if report.api_version else []
    if report.min_count:
        kind.append("basic policy" if report.policy == "basic" else f"at least {report.min_count} together")
    if report.queue:
        kind.append(f"queue {report.queue}")
    yield wrap(f"{what} ({', '.join(kind)})." if kind else f"{what}.")
    if report.members and report.attempt is None:
        pending = report.members - report.placed
        text = f"{count_text(report.members, 'pod')}: {report.placed} placed, {pending} pending"
        if pending and report.since is not None:
            text += f" for {duration_text(report.now - report.since)}"
        yield f"{text}{f'; {report.finished} more finished' if report.finished else ''}."
    for sentence in report.why:
        yield wrap(sentence)
    if report.message:
        yield f"  {report.message}"  # unchanged, because people search for it


def duration_text(seconds: float) -> str:
    """A rounded duration, such as 5 s, 12 min or 3 h."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(max(seconds, 0))} s"


def _domains(report: GroupReport) -> Iterator[str]:
    if not report.domains:
        yield "There are no domains: the group has no topology constraint."
        return
    rows = [(each.name, str(each.nodes), str(each.count), each.lacks or "-") for each in report.domains]
    yield from left_table((report.level.upper() or "DOMAIN", "NODES", "FIT", "LACKS"), rows)


def _members(report: GroupReport) -> Iterator[str]:
    if not report.pods:
        return
    yield from left_table(
        ("POD", "STATE", "NODE"), [(each.pod, each.state, each.node or "-") for each in report.pods]
    )
    by_message: dict[str, list[str]] = {}
    for each in report.pods:
        if each.message:
            by_message.setdefault(each.message, []).append(each.pod)
    for message, pods in by_message.items():
        others = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
        yield f"{pods[0]}{others}:\n  {message}"


def _changes(report: GroupReport) -> str:
    if report.changes is None:
        return ""
    left = "" if report.is_complete else "; time ran out before all changes were tried"
    aim = "place another of its pods" if report.state == "started" else "let it start"
    if not report.changes:
        return f"No single change that was tried would {aim}{left}."
    lines = [f"Each of these changes alone would {aim}; no smaller one of its kind would{left}:"]
    for each in report.changes:
        evicts = " (evicts other pods)" if each.by_preemption else ""
        lines.append(wrap(f"{each.text}{evicts}", indent=5, start="   - "))
    return "\n".join(lines)
