"""Workloads and PodGroups of scheduling.k8s.io/v1alpha2, and what their feature gates change for other kinds.

A field whose gate is off is dropped from what is written, unless the object that is replaced has it already.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from stowplan.api.meta import Json
from stowplan.apiserver import schemas
from stowplan.apiserver.failures import (
    Failure,
    FieldError,
    duplicate,
    forbidden_request,
    invalid,
    required,
    too_long,
    unsupported,
)
from stowplan.apiserver.names import (
    group_name_errors,
    label_errors,
    label_key_errors,
    path_segment_errors,
    subdomain_errors,
)
from stowplan.apiserver.strategies.pods import CLASSES, default_class
from stowplan.apiserver.strategies.strategy import Lookup, Strategy
from stowplan.config.gates import (
    GENERIC_WORKLOAD,
    PREEMPTION,
    TOPOLOGY,
    WORKLOAD_CLAIMS,
    FeatureGates,
)

GROUP, VERSION = "scheduling.k8s.io", "v1alpha2"
POD_GROUPS, WORKLOADS = f"podgroups.{GROUP}", f"workloads.{GROUP}"
FINALIZER = f"{GROUP}/podgroup-protection"
GATE_OF_FIELD = {
    "schedulingConstraints": TOPOLOGY,
    "resourceClaims": WORKLOAD_CLAIMS,
    "disruptionMode": PREEMPTION,
    "priorityClassName": PREEMPTION,
    "priority": PREEMPTION,
}
MAX_TEMPLATES, MAX_CLAIMS, MAX_TOPOLOGY = 8, 4, 1
MAX_PRIORITY = 1_000_000_000
MODES = ("Pod", "PodGroup")
_TEMPLATE = f"io.k8s.api.scheduling.{VERSION}.PodGroupTemplate"
_SPEC_FIELDS = (
    "podGroupTemplateRef",
    "schedulingPolicy",
    "schedulingConstraints",
    "resourceClaims",
    "disruptionMode",
    "priorityClassName",
    "priority",
)
_IMMUTABLE = "field is immutable"


class PodGroupStrategy(Strategy):
    has_status = True
    checks_updates_whole = True

    def __init__(self, gates: FeatureGates) -> None:
        self._gates = gates

    @staticmethod
    def name_errors(name: str) -> tuple[str, ...]:
        return group_name_errors(name)

    def default(self, data: Json) -> None:
        spec = data.setdefault("spec", {})
        if spec.get("disruptionMode") is None:
            spec["disruptionMode"] = "Pod"

    def admit(self, data: Json, lookup: Lookup) -> None:
        meta = data["metadata"]
        finalizers = meta.get("finalizers") or []
        if FINALIZER not in finalizers:
            meta["finalizers"] = [*finalizers, FINALIZER]
        if PREEMPTION in self._gates:
            _set_priority(data, lookup)

    def prepare_create(self, data: Json) -> None:
        data["status"] = {}
        drop_disabled(data["spec"], {}, self._gates)
        self.default(data)  # a mode that was dropped is read as the default one

    def prepare_update(self, data: Json, old: Json) -> None:
        super().prepare_update(data, old)
        drop_disabled(data["spec"], old["spec"], self._gates)

    def prepare_status_update(self, data: Json, old: Json) -> None:
        super().prepare_status_update(data, old)
        for field in ("labels", "annotations", "finalizers", "ownerReferences"):
            if field in old["metadata"]:
                data["metadata"][field] = old["metadata"][field]
            else:
                data["metadata"].pop(field, None)
        status = data.get("status") or {}
        if WORKLOAD_CLAIMS not in self._gates and not (old.get("status") or {}).get("resourceClaimStatuses"):
            status.pop("resourceClaimStatuses", None)

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec = data["spec"]
        yield from _reference_errors(spec.get("podGroupTemplateRef"), "spec.podGroupTemplateRef")
        yield from _group_errors(spec, "spec")

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        for field in _SPEC_FIELDS:
            if data["spec"].get(field) != old["spec"].get(field):
                gate = GATE_OF_FIELD.get(field)
                if gate is None or gate in self._gates:
                    yield invalid(f"spec.{field}", None, _IMMUTABLE)
                else:
                    yield FieldError(f"spec.{field}", "Forbidden")

    def status_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        status, at = data.get("status") or {}, "status.resourceClaimStatuses"
        claims = status.get("resourceClaimStatuses") or []
        known = {each.get("name") for each in data["spec"].get("resourceClaims") or []}
        yield from condition_errors(status.get("conditions") or [], "status.conditions")
        for index, each in enumerate(claims):
            name, claim = each.get("name", ""), each.get("resourceClaimName")
            if name not in known:
                said = "must match the name of an entry in `spec.resourceClaims`"
                yield invalid(f"{at}[{index}].name", name, said)
            if claim is not None:
                where = f"{at}[{index}].resourceClaimName"
                yield from (invalid(where, claim, why) for why in subdomain_errors(claim))
        yield from _list_errors(claims, at, MAX_CLAIMS)


class WorkloadStrategy(Strategy):
    checks_updates_whole = True

    def __init__(self, gates: FeatureGates) -> None:
        self._gates = gates

    @staticmethod
    def name_errors(name: str) -> tuple[str, ...]:
        return group_name_errors(name)

    def prepare_create(self, data: Json) -> None:
        for template in _templates(data):
            drop_disabled(template, {}, self._gates)

    def prepare_update(self, data: Json, old: Json) -> None:
        before = {each.get("name"): each for each in _templates(old)}
        for template in _templates(data):
            drop_disabled(template, before.get(template.get("name"), {}), self._gates)

    def errors(self, data: Json) -> Iterator[FieldError]:
        at, templates = "spec.podGroupTemplates", _templates(data)
        yield from _controller_errors((data.get("spec") or {}).get("controllerRef"), "spec.controllerRef")
        if not templates:
            yield required(at)
        if errors := list(
            _list_errors(templates, at, MAX_TEMPLATES, tuple(schemas.data().fields[_TEMPLATE]))
        ):
            yield from errors
            return
        for index, template in enumerate(templates):
            yield from _label_errors(template.get("name", ""), f"{at}[{index}].name")
            yield from _group_errors(template, f"{at}[{index}]")

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        for field in ("controllerRef", "podGroupTemplates"):
            new, was = ((each.get("spec") or {}).get(field) for each in (data, old))
            if new != was:
                yield invalid(f"spec.{field}", None, _IMMUTABLE)
        if not _templates(data):
            yield required("spec.podGroupTemplates")


def _templates(data: Json) -> list[Json]:
    return (data.get("spec") or {}).get("podGroupTemplates") or []


def drop_disabled(spec: Json, old: Json, gates: FeatureGates) -> None:
    for field, gate in GATE_OF_FIELD.items():
        if gate not in gates and old.get(field) is None and field in spec:
            if field == "schedulingConstraints" and "name" in spec:
                spec[field] = None  # templates always have the field
            else:
                del spec[field]


def drop_membership(pod: Json, old: Json | None) -> None:
    """Remove the group that a pod or a template names, for a server without groups."""
    spec = pod.get("spec") or {}
    if spec.get("schedulingGroup") is not None and not ((old or {}).get("spec") or {}).get("schedulingGroup"):
        del spec["schedulingGroup"]


def _group_errors(spec: Json, at: str) -> Iterator[FieldError]:
    """Errors of the fields that PodGroups and templates of Workloads have in common."""
    policy, where = spec.get("schedulingPolicy") or {}, f"{at}.schedulingPolicy"
    yield from _union_errors(policy, ("basic", "gang"), where)
    if policy.get("gang") is not None:
        count = policy["gang"].get("minCount", 0)
        if count == 0:
            yield required(f"{where}.gang.minCount")
        elif count < 1:
            yield invalid(f"{where}.gang.minCount", count, "must be greater than or equal to 1")
    yield from _topology_errors(spec.get("schedulingConstraints") or {}, f"{at}.schedulingConstraints")
    claims, where = spec.get("resourceClaims") or [], f"{at}.resourceClaims"
    if errors := list(_list_errors(claims, where, MAX_CLAIMS)):
        yield from errors
    else:
        for index, claim in enumerate(claims):
            yield from _claim_errors(claim, f"{where}[{index}]")
    mode = spec.get("disruptionMode")
    if mode is not None and mode not in MODES:
        yield unsupported(f"{at}.disruptionMode", mode, MODES)
    if name := spec.get("priorityClassName"):
        yield from (invalid(f"{at}.priorityClassName", name, why) for why in subdomain_errors(name))
    priority = spec.get("priority")
    if priority is not None and priority > MAX_PRIORITY:
        yield invalid(f"{at}.priority", priority, f"must be less than or equal to {MAX_PRIORITY}")


def _topology_errors(constraints: Json, at: str) -> Iterator[FieldError]:
    keys, where = constraints.get("topology") or [], f"{at}.topology"
    if errors := list(_list_errors(keys, where, MAX_TOPOLOGY, unique=False)):
        yield from errors
        return
    for index, each in enumerate(keys):
        key, field = each.get("key", ""), f"{where}[{index}].key"
        if not key:
            yield required(field)
            continue
        for why in label_key_errors(key):
            yield invalid(field, key, why.replace("a qualified name must", "a valid label key must"))


def _claim_errors(claim: Json, at: str) -> Iterator[FieldError]:
    sources = ("resourceClaimName", "resourceClaimTemplateName")
    yield from _union_errors(claim, sources, at)
    yield from _label_errors(claim.get("name", ""), f"{at}.name")
    for source in sources:
        if (name := claim.get(source)) is not None:
            yield from (invalid(f"{at}.{source}", name, why) for why in subdomain_errors(name))


def _reference_errors(reference: Json | None, at: str) -> Iterator[FieldError]:
    if reference is None:
        return
    yield from _union_errors(reference, ("workload",), at)
    workload = reference.get("workload")
    if workload is not None:
        name, where = workload.get("workloadName", ""), f"{at}.workload.workloadName"
        if not name:
            yield required(where)
        else:
            yield from (invalid(where, name, why) for why in subdomain_errors(name))
        yield from _label_errors(
            workload.get("podGroupTemplateName", ""), f"{at}.workload.podGroupTemplateName"
        )


def _controller_errors(controller: Json | None, at: str) -> Iterator[FieldError]:
    if controller is None:
        return
    if group := controller.get("apiGroup"):
        yield from (invalid(f"{at}.apiGroup", group, why) for why in subdomain_errors(group))
    for field in ("kind", "name"):
        if not (value := controller.get(field, "")):
            yield required(f"{at}.{field}")
        else:
            yield from (invalid(f"{at}.{field}", value, why) for why in path_segment_errors(value))


def _label_errors(name: str, at: str) -> Iterator[FieldError]:
    if not name:
        yield required(at)
    elif "." in name and not subdomain_errors(name):
        yield invalid(at, name, "must not contain dots")
    else:
        yield from (invalid(at, name, why) for why in label_errors(name))


def _union_errors(value: Json, members: tuple[str, ...], at: str) -> Iterator[FieldError]:
    given = [each for each in members if value.get(each) is not None]
    names = ", ".join(f"`{each}`" for each in members)
    if not given:
        yield invalid(at, "", f"must specify one of: {names}")
    elif len(given) > 1:
        yield invalid(at, f"{{{', '.join(given)}}}", f"must specify exactly one of: {names}")


def _list_errors(
    items: list[Json], at: str, limit: int, order: tuple[str, ...] = (), *, unique: bool = True
) -> Iterator[FieldError]:
    """Too many items, or two of one name; `order` is that of the fields in messages."""
    if len(items) > limit:
        plural = "" if limit == 1 else "s"
        yield FieldError(at, "Too many", f"{len(items)}: must have at most {limit} item{plural}")
        return
    seen: set[str] = set()
    for index, item in enumerate(items) if unique else ():
        name = item.get("name", "")
        if name in seen:
            shown = {key: item[key] for key in order if key in item} if order else item
            yield duplicate(f"{at}[{index}]", shown)
        seen.add(name)


_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_REASON_WORDS = (
    "a condition reason must start with alphabetic character, optionally followed by a string of "
    "alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  "
    "or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is "
    "'[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')"
)
MAX_REASON, MAX_MESSAGE = 1024, 32 * 1024


def condition_errors(conditions: list[Json], at: str) -> Iterator[FieldError]:
    """Errors of conditions of the type that all newer kinds have."""
    seen: set[str] = set()
    for index, each in enumerate(conditions):
        where, kind = f"{at}[{index}]", each.get("type", "")
        if kind in seen:
            yield duplicate(f"{where}.type", kind)
        seen.add(kind)
        yield from _condition_errors(each, where, kind)


def _condition_errors(condition: Json, at: str, kind: str) -> Iterator[FieldError]:
    yield from (invalid(f"{at}.type", kind, why) for why in label_key_errors(kind))
    status, reason = condition.get("status", ""), condition.get("reason", "")
    if status not in ("True", "False", "Unknown"):
        yield unsupported(f"{at}.status", status, ("False", "True", "Unknown"))
    if (generation := condition.get("observedGeneration") or 0) < 0:
        yield invalid(f"{at}.observedGeneration", generation, "must be greater than or equal to zero")
    if not condition.get("lastTransitionTime"):
        yield required(f"{at}.lastTransitionTime")
    if not reason:
        yield required(f"{at}.reason")
    else:
        if not _REASON.fullmatch(reason):
            yield invalid(f"{at}.reason", reason, _REASON_WORDS)
        if len(reason.encode()) > MAX_REASON:
            yield too_long(f"{at}.reason", MAX_REASON)
    if len(condition.get("message", "").encode()) > MAX_MESSAGE:
        yield too_long(f"{at}.message", MAX_MESSAGE)


# Admission.


def _set_priority(data: Json, lookup: Lookup) -> None:
    """A group has the priority of its class, or of the default one."""
    spec, name = data["spec"], data["spec"].get("priorityClassName")
    if name:
        record = lookup.find(CLASSES, name)
        if record is None:
            raise reject(data, f"no PriorityClass with name {name} was found")
        value = record.data()["value"]
    else:
        found = default_class(lookup.all(CLASSES))
        value = 0 if found is None else found["value"]
        if found is not None:
            spec["priorityClassName"] = found["metadata"]["name"]
    given = spec.get("priority")
    if given is not None and given != value:
        raise reject(
            data,
            f"priority set in the pod group ({given}) must match the priority computed ({value}) "
            "based on the priority class set in the spec",
        )
    spec["priority"] = value


def reject(data: Json, why: str) -> Failure:
    meta = data["metadata"]
    name, prefix = meta.get("name", ""), meta.get("generateName") or ""
    # Admission runs before a name is generated.
    is_generated = prefix and name.startswith(prefix) and len(name) == len(prefix) + 5
    return forbidden_request(prefix if is_generated else name, "podgroups", GROUP, why)


def check_workload_exists(data: Json, namespace: str, lookup: Lookup) -> None:
    """Raise Failure unless the template that a new PodGroup names is there."""
    reference = ((data["spec"].get("podGroupTemplateRef") or {}).get("workload")) or {}
    if not reference:
        return
    name, template = str(reference.get("workloadName")), reference.get("podGroupTemplateName")
    record = lookup.find(WORKLOADS, name, namespace)
    if record is None:
        raise reject(data, f'PodGroup rejected: Workload "{name}" not found')
    workload = record.data()
    if workload["metadata"].get("deletionTimestamp"):
        raise reject(data, f'PodGroup rejected: Workload "{name}" is being deleted')
    if template not in (each.get("name") for each in _templates(workload)):
        why = f'PodGroup rejected: PodGroupTemplate "{template}" not found in Workload "{name}"'
        raise reject(data, why)


def check_parallelism(data: Json, old: Json, namespace: str, lookup: Lookup) -> None:
    """Raise Failure if a Job whose pods are a gang is to run another number of them."""
    if data["spec"].get("parallelism") == old["spec"].get("parallelism"):
        return
    named = (data["spec"]["template"]["spec"].get("schedulingGroup") or {}).get("podGroupName")
    for group in _groups_of(named, data["metadata"].get("uid", ""), namespace, lookup):
        if group["spec"]["schedulingPolicy"].get("gang") is not None:
            name = group["metadata"]["name"]
            why = f'cannot change parallelism for a Job referencing gang-scheduled PodGroup "{name}"'
            raise forbidden_request(data["metadata"]["name"], "jobs", "batch", why)


def _groups_of(named: str | None, uid: str, namespace: str, lookup: Lookup) -> Iterable[Json]:
    if named:
        record = lookup.find(POD_GROUPS, named, namespace)
        return () if record is None else (record.data(),)
    in_namespace = (each for each in lookup.all(POD_GROUPS) if each.key[0] == namespace)
    groups = (each.data() for each in in_namespace if uid.encode() in each.body)
    return (
        group
        for group in groups
        if any(
            owner.get("controller") and owner.get("uid") == uid
            for owner in group["metadata"].get("ownerReferences") or ()
        )
    )


STRATEGIES: Mapping[str, type[PodGroupStrategy] | type[WorkloadStrategy]] = {
    POD_GROUPS: PodGroupStrategy,
    WORKLOADS: WorkloadStrategy,
}


def are_served(gates: FeatureGates) -> bool:
    return GENERIC_WORKLOAD in gates
