"""Pods: defaults, priority and tolerations, quality of service, and the fields that updates may change."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

from stowplan.api.defaults import with_label_keys
from stowplan.api.meta import Json
from stowplan.api.quantity import parse
from stowplan.apiserver import times
from stowplan.apiserver.failures import FieldError, forbidden, forbidden_request, invalid
from stowplan.apiserver.store import Record
from stowplan.apiserver.strategies.pod_defaults import default_pod
from stowplan.apiserver.strategies.pod_validation import pod_spec_errors
from stowplan.apiserver.strategies.strategy import Lookup, Strategy

EPHEMERAL = "ephemeralcontainers"
_RESIZABLE = ("cpu", "memory")
CLASSES = "priorityclasses.scheduling.k8s.io"
_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_SPEC_FORBIDDEN = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


class PodStrategy(Strategy):
    has_status = True
    has_generation = True
    returns_deleted = True
    fields = {
        "spec.nodeName": "spec.nodeName",
        "spec.restartPolicy": "spec.restartPolicy",
        "spec.schedulerName": "spec.schedulerName",
        "spec.serviceAccountName": "spec.serviceAccountName",
        "spec.hostNetwork": "spec.hostNetwork",
        "status.phase": "status.phase",
        "status.podIP": "status.podIP",
        "status.podIPs": "status.podIP",
        "status.nominatedNodeName": "status.nominatedNodeName",
    }

    def default(self, data: Json) -> None:
        default_pod(data)

    def admit(self, data: Json, lookup: Lookup) -> None:
        spec = data["spec"]
        _set_priority(data, lookup)
        _add_tolerations(spec)
        if spec.get("affinity"):
            spec["affinity"] = with_label_keys(spec["affinity"], data["metadata"].get("labels") or {})
        _merge_spread_keys(spec, data["metadata"].get("labels") or {})

    def admit_update(self, data: Json, old: Json, lookup: Lookup) -> None:
        spec, before = data["spec"], old["spec"]
        for field in ("priority", "preemptionPolicy"):
            if spec.get(field) is None and field in before:
                spec[field] = before[field]
        _add_tolerations(spec)

    def prepare_create(self, data: Json) -> None:
        data["status"] = {"phase": "Pending", "qosClass": quality_of(data["spec"])}
        if data["spec"].get("schedulingGates"):
            gated = {
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": None,
                "lastTransitionTime": times.now(),
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
            data["status"]["conditions"] = [gated]

    def prepare_status_update(self, data: Json, old: Json) -> None:
        super().prepare_status_update(data, old)
        status = data.setdefault("status", {})
        kept = old.get("status", {}).get("qosClass")
        if kept:
            status["qosClass"] = kept
        status.setdefault("phase", old.get("status", {}).get("phase", "Pending"))

    def status_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        nominated, was = ((each.get("status") or {}).get("nominatedNodeName") for each in (data, old))
        if nominated and nominated != was and old["spec"].get("nodeName"):
            said = "may not be set on pods that are already bound to a node"
            yield forbidden("status.nominatedNodeName", said)

    def prepare_part(self, data: Json, old: Json, part: str) -> None:
        wanted, version = data["spec"], data["metadata"].get("resourceVersion")
        data["spec"], data["status"] = copy.deepcopy(old["spec"]), old.get("status", {})
        meta = data["metadata"]  # others hold on to it
        meta.clear()
        meta.update({**old["metadata"], "resourceVersion": version})
        if part == EPHEMERAL:
            _restore(data["spec"], wanted, "ephemeralContainers")
        elif _names(wanted) != _names(data["spec"]):
            data["spec"] = wanted  # which is an error
        else:
            _restore(data["spec"], wanted, "resources")
            for kind in ("containers", "initContainers"):
                for container, new in zip(data["spec"].get(kind) or (), wanted.get(kind) or (), strict=True):
                    _restore(container, new, "resources")
                    _restore(container, new, "resizePolicy")

    def part_errors(self, data: Json, old: Json, part: str) -> Iterator[FieldError]:
        if part == "resize":
            yield from _resize_errors(data, old)
            return
        at, new = "spec.ephemeralContainers", data["spec"].get("ephemeralContainers") or []
        known = {each["name"]: each for each in new}
        for container in old["spec"].get("ephemeralContainers") or []:
            name = container["name"]
            if name not in known:
                yield forbidden(at, f'existing ephemeral containers "{name}" may not be removed\n')
            elif known[name] != container:
                yield forbidden(at, f'existing ephemeral containers "{name}" may not be changed')

    def errors(self, data: Json) -> Iterable[FieldError]:
        return pod_spec_errors(data["spec"], "spec", data["metadata"])

    def create_errors(self, data: Json) -> Iterator[FieldError]:
        if data["spec"].get("ephemeralContainers"):
            yield forbidden("spec.ephemeralContainers", "cannot be set on create")

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        new, before = data["spec"], old["spec"]
        if len(new.get("containers") or []) != len(before["containers"]):
            yield forbidden("spec.containers", "pod updates may not add or remove containers")
            return
        if gates := list(_gate_errors(new, before)):
            yield from gates
            return
        deadline, was = new.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds")
        if was is not None and deadline is None:
            yield invalid(
                "spec.activeDeadlineSeconds", None, "must not update from a positive integer to nil value"
            )
        elif was is not None and deadline is not None and deadline > was:
            yield invalid(
                "spec.activeDeadlineSeconds", deadline, "must be less than or equal to previous value"
            )
        if _without_mutable_fields(new, before) != _without_mutable_fields(before, before):
            yield forbidden("spec", _SPEC_FORBIDDEN)

    def grace_seconds(self, data: Json, asked: int | None) -> int | None:
        spec, phase = data["spec"], data.get("status", {}).get("phase")
        grace = spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked
        if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
            return 0
        return 1 if grace < 0 else grace


def _set_priority(data: Json, lookup: Lookup) -> None:
    spec, meta = data["spec"], data["metadata"]
    name = spec.get("priorityClassName")
    found: Json | None = None
    if name:
        record = lookup.find(CLASSES, name)
        if record is None:
            why = f"no PriorityClass with name {name} was found"
            raise forbidden_request(_name(meta), "pods", "", why)
        found = record.data()
    else:
        found = default_class(lookup.all(CLASSES))
        if found is not None:
            spec["priorityClassName"] = found["metadata"]["name"]
    value = found["value"] if found is not None else 0
    policy = (found or {}).get("preemptionPolicy") or "PreemptLowerPriority"
    if spec.get("priority") is not None and spec["priority"] != value:
        why = (
            f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; priority "
            f"admission controller computed {value} from the given PriorityClass name"
        )
        raise forbidden_request(_name(meta), "pods", "", why)
    if spec.get("preemptionPolicy") is not None and spec["preemptionPolicy"] != policy:
        why = (
            f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod "
            f"spec; priority admission controller computed {policy} from the given PriorityClass name"
        )
        raise forbidden_request(_name(meta), "pods", "", why)
    spec["priority"], spec["preemptionPolicy"] = value, policy


def _name(meta: Json) -> str:
    return meta.get("name") or ""


def default_class(classes: Iterable[Record]) -> Json | None:
    """The PriorityClass of pods and groups that name none."""
    marked = [
        data for record in classes if b'"globalDefault":true' in record.body and (data := record.data())
    ]
    return min(marked, key=lambda each: each["value"], default=None)


def _add_tolerations(spec: Json) -> None:
    """Every pod stays five minutes on a node that is not ready or not reachable, unless it says otherwise."""
    given = spec.get("tolerations") or []
    added = []
    for key in _NOT_READY:
        covers = any(
            each.get("key", "") in ("", key) and each.get("effect", "") in ("", "NoExecute") for each in given
        )
        if not covers:
            added.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    if added:
        spec["tolerations"] = [*given, *added]


def _merge_spread_keys(spec: Json, labels: Json) -> None:
    """The pod's own values of matchLabelKeys become part of each constraint's selector."""
    for constraint in spec.get("topologySpreadConstraints") or []:
        selector = constraint.get("labelSelector")
        keys = [key for key in constraint.get("matchLabelKeys") or [] if key in labels]
        if selector is not None and keys:
            terms = selector.setdefault("matchExpressions", [])
            terms += [{"key": key, "operator": "In", "values": [labels[key]]} for key in keys]


def quality_of(spec: Json) -> str:
    """Guaranteed, Burstable or BestEffort, from cpu and memory alone."""
    containers = [each for kind in ("containers", "initContainers") for each in spec.get(kind) or []]
    parts = (
        [spec["resources"]] if spec.get("resources") else [each.get("resources") or {} for each in containers]
    )
    known = ("cpu", "memory")

    def amounts(resources: Json, part: str) -> Json:
        given = resources.get(part) or {}
        return {name: nanos for name in known if name in given and (nanos := parse(given[name])) > 0}

    asked = [(amounts(each, "requests"), amounts(each, "limits")) for each in parts]
    if not any(requests or limits for requests, limits in asked):
        return "BestEffort"
    if all(len(limits) == len(known) and (requests or limits) == limits for requests, limits in asked):
        return "Guaranteed"
    return "Burstable"


def _without_mutable_fields(spec: Json, old: Json) -> Json:
    """The spec with what updates may change taken from the old one."""
    found = copy.deepcopy(spec)
    for kind in ("containers", "initContainers"):
        for container, was in zip(found.get(kind) or [], old.get(kind) or [], strict=False):
            container["image"] = was.get("image")
    _restore(found, old, "activeDeadlineSeconds")
    before, after = old.get("tolerations") or [], found.get("tolerations") or []
    if all(each in after for each in before):
        _restore(found, old, "tolerations")
    if (old.get("terminationGracePeriodSeconds") or 0) < 0 and found.get(
        "terminationGracePeriodSeconds"
    ) == 1:
        _restore(found, old, "terminationGracePeriodSeconds")
    if old.get("schedulingGates"):
        _restore(found, old, "schedulingGates")
        if _only_tightened(found.get("nodeSelector") or {}, old.get("nodeSelector") or {}):
            _restore(found, old, "nodeSelector")
        _restore(found, old, "affinity")
    return found


def _names(spec: Json) -> list[list[str]]:
    return [
        [each.get("name", "") for each in spec.get(kind) or ()] for kind in ("containers", "initContainers")
    ]


def _resize_errors(data: Json, old: Json) -> Iterator[FieldError]:
    spec, before, status = data["spec"], old["spec"], old.get("status", {})
    if quality_of(spec) != status.get("qosClass"):
        said = "Pod QOS Class may not change as a result of resizing"
        yield invalid("spec", status.get("qosClass", ""), said)
    running = [each for each in status.get("containerStatuses") or () if "running" in each.get("state", {})]
    if running and running[0].get("resources") is None:
        yield forbidden("spec", "Pod running on node without support for resize")
    if before.get("resources") and not spec.get("resources"):
        yield forbidden("spec.resources", "pod-level resources cannot be removed")
    kinds = ("containers", "initContainers")
    if errors := [each for kind in kinds for each in _order_errors(spec, before, kind)]:
        yield from errors
        return
    parts = [
        (f"spec.{kind}[{index}]", new, was)
        for kind in reversed(kinds)
        for index, (new, was) in enumerate(zip(spec.get(kind) or (), before.get(kind) or (), strict=True))
    ]
    for at, new, was in parts:
        for part in ("requests", "limits"):
            if set((was.get("resources") or {}).get(part) or ()) - set(new["resources"].get(part) or ()):
                yield forbidden(f"{at}.resources.{part}", f"resource {part} cannot be removed")
    for at, new, was in reversed(parts):
        if _beyond_cpu_and_memory(new) != _beyond_cpu_and_memory(was):
            is_init = "initContainers" in at
            what = " for init or sidecar containers" if is_init else ""
            yield forbidden(at if is_init else "spec", f"only cpu and memory resources{what} are mutable")


def _order_errors(new: Json, old: Json, kind: str) -> Iterator[FieldError]:
    names, known = ([each["name"] for each in spec.get(kind) or ()] for spec in (new, old))
    if len(names) != len(known):
        yield forbidden(f"spec.{kind}", f"{kind} may not be added or removed on resize")
        return
    for index, (name, was) in enumerate(zip(names, known, strict=True)):
        if name != was:
            yield forbidden(f"spec.{kind}[{index}].name", f"{kind} may not be renamed or reordered on resize")


def _beyond_cpu_and_memory(container: Json) -> Json:
    resources = container.get("resources") or {}
    found = {
        part: {name: amount for name, amount in (resources.get(part) or {}).items() if name not in _RESIZABLE}
        for part in ("requests", "limits")
    }
    return {**found, "claims": resources.get("claims"), "policy": container.get("resizePolicy")}


def _only_tightened(new: Json, old: Json) -> bool:
    return all(new.get(key) == value for key, value in old.items())


def _restore(found: Json, old: Json, field: str) -> None:
    if field in old:
        found[field] = old[field]
    else:
        found.pop(field, None)


def _gate_errors(new: Json, old: Json) -> Iterator[FieldError]:
    before = {each["name"] for each in old.get("schedulingGates") or []}
    for index, gate in enumerate(new.get("schedulingGates") or []):
        if gate["name"] not in before:
            said = f"only deletion is allowed, but found new scheduling gate '{gate['name']}'"
            yield forbidden(f"spec.schedulingGates[{index}].name", said)
