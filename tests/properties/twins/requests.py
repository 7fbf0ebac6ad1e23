"""What pods ask for and take, and what nodes have."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from twins.quantities import amount, counted

Amounts = dict[str, Fraction]
Json = dict[str, Any]
DEFAULTS = {"cpu": Fraction(1, 10), "memory": Fraction(200 * 2**20)}
PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def is_extended(name: str) -> bool:
    if "/" not in name or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    prefix, _, rest = f"requests.{name}".partition("/")
    fits = len(prefix) <= 253 and len(rest) <= 63
    return fits and bool(PREFIX.fullmatch(prefix)) and bool(NAME.fullmatch(rest))


def is_scalar(name: str) -> bool:
    special = name.startswith(("hugepages-", "attachable-volumes-"))
    return special or "kubernetes.io/" in name or is_extended(name)


def is_known(name: str) -> bool:
    return name in ("cpu", "memory", "ephemeral-storage") or is_scalar(name)


def in_units(amounts: Amounts) -> dict[str, int]:
    """Rounded once, at the end; names that count nowhere are dropped."""
    return {name: counted(name, value) for name, value in amounts.items() if is_known(name)}


def allocatable(node: Json) -> dict[str, int]:
    amounts = {name: amount(text) for name, text in node["status"].get("allocatable", {}).items()}
    found = in_units(amounts)
    if "pods" in amounts:
        found["pods"] = counted("pods", amounts["pods"])
    return found


def asked(pod: Json) -> dict[str, int]:
    """What a pending pod needs to fit."""
    return in_units(total(pod))


def scored(pod: Json) -> Amounts:
    """What a pending pod counts as when NodeResourcesFit scores: pod-level requests are overlooked."""
    return total(pod, pod_level=False, fill=("cpu", "memory"))


def taken(pod: Json) -> dict[str, int]:
    """What a pod takes on its node."""
    return in_units(total(pod, with_status=True))


def taken_nonzero(pod: Json) -> dict[str, int]:
    """The same of cpu and memory, with defaults for containers that ask for neither."""
    plain = total(pod, with_status=True)
    fill = [name for name in DEFAULTS if not pod_level_requests(pod) or name not in plain]
    filled = total(pod, with_status=True, fill=fill)
    return {name: counted(name, filled.get(name, Fraction(0))) for name in DEFAULTS}


def total(pod: Json, *, pod_level: bool = True, with_status: bool = False, fill: Any = ()) -> Amounts:
    spec = pod["spec"]
    containers = [of_container(pod, each, with_status, fill) for each in spec.get("containers", [])]
    sidecars: Amounts = {}
    peaks: list[Amounts] = []
    for each in spec.get("initContainers", []):
        if each.get("restartPolicy") == "Always":
            own = of_container(pod, each, with_status, fill)
            containers.append(own)
            sidecars = added(sidecars, own)
            peaks.append(sidecars)
        else:
            peaks.append(added(of_container(pod, each, False, fill), sidecars))
    result: Amounts = {}
    for each in containers:
        result = added(result, each)
    result = highest(result, *peaks)
    if pod_level:
        result |= of_whole_pod(pod, with_status)
    return added(result, parsed(spec.get("overhead", {})))


def of_container(pod: Json, container: Json, with_status: bool, fill: Any) -> Amounts:
    found = parsed(container.get("resources", {}).get("requests", {}))
    status = status_of(pod, container["name"]) if with_status else None
    if status is not None and status.get("resources") is not None:
        given = parsed(status["resources"].get("requests", {})), parsed(status.get("allocatedResources", {}))
        found = highest(*given) if is_infeasible(pod) else highest(found, *given)
    for name in fill:
        found.setdefault(name, DEFAULTS[name])
    return found


def of_whole_pod(pod: Json, with_status: bool) -> Amounts:
    found = pod_level_requests(pod)
    status = pod.get("status", {})
    if found and with_status and status.get("resources") is not None:
        given = highest(
            parsed(status["resources"].get("requests", {})), parsed(status.get("allocatedResources", {}))
        )
        both = given if is_infeasible(pod) else highest(found, given)
        return {name: both.get(name, Fraction(0)) for name in found}
    return found


def pod_level_requests(pod: Json) -> Amounts:
    requests = parsed((pod["spec"].get("resources") or {}).get("requests", {}))
    return {
        name: value
        for name, value in requests.items()
        if name in ("cpu", "memory") or name.startswith("hugepages-")
    }


def status_of(pod: Json, container: str) -> Json | None:
    status = pod.get("status", {})
    for each in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        if each["name"] == container:
            return each
    return None


def is_infeasible(pod: Json) -> bool:
    return any(
        each["type"] == "PodResizePending" and each.get("reason") == "Infeasible"
        for each in pod.get("status", {}).get("conditions", [])
    )


def parsed(texts: Json) -> Amounts:
    return {name: amount(text) for name, text in texts.items()}


def added(left: Amounts, right: Amounts) -> Amounts:
    return {name: left.get(name, Fraction(0)) + right.get(name, Fraction(0)) for name in (left | right)}


def highest(*lists: Amounts) -> Amounts:
    names = {name: None for each in lists for name in each}
    return {name: max(each[name] for each in lists if name in each) for name in names}
