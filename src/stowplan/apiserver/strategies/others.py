"""Priority classes, leases, storage, devices and rbac."""

from __future__ import annotations

from collections.abc import Iterator

from stowplan.api.cel import compile_cel
from stowplan.api.cel.overloads import name_of
from stowplan.api.meta import Json
from stowplan.apiserver.failures import FieldError, forbidden, invalid, required, too_long, unsupported
from stowplan.apiserver.names import (
    address_errors,
    cidr_errors,
    path_segment_errors,
    subdomain_errors,
)
from stowplan.apiserver.strategies.strategy import Strategy
from stowplan.errors import CelError

MAX_EXPRESSION = 10 * 1024
"""Bytes of a device selector."""
HIGHEST_USER_PRIORITY = 1_000_000_000
_SYSTEM = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class PriorityClassStrategy(Strategy):
    has_generation = True

    def default(self, data: Json) -> None:
        data.setdefault("preemptionPolicy", "PreemptLowerPriority")

    def errors(self, data: Json) -> Iterator[FieldError]:
        name, value = data["metadata"].get("name", ""), data.get("value", 0)
        if name.startswith("system-"):
            if _SYSTEM.get(name) != value:
                said = "priority class names with 'system-' prefix are reserved for system use only"
                yield forbidden(
                    "metadata.name", said + ". error: " + f"{name} is not a known system priority class"
                )
        elif value > HIGHEST_USER_PRIORITY:
            said = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
            yield forbidden("value", said)

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        if data.get("value", 0) != old.get("value", 0):
            yield forbidden("value", "may not be changed in an update.")
        if data.get("preemptionPolicy") != old.get("preemptionPolicy"):
            yield invalid("preemptionPolicy", data.get("preemptionPolicy"), "field is immutable")


class LeaseStrategy(Strategy):
    creates_on_update = True
    updates_need_version = True

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec = data.get("spec") or {}
        seconds = spec.get("leaseDurationSeconds")
        if seconds is not None and seconds <= 0:
            yield invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")
        transitions = spec.get("leaseTransitions")
        if transitions is not None and transitions < 0:
            yield invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0")


class StorageClassStrategy(Strategy):
    returns_deleted = True

    def default(self, data: Json) -> None:
        data.setdefault("reclaimPolicy", "Delete")
        data.setdefault("volumeBindingMode", "Immediate")

    def errors(self, data: Json) -> Iterator[FieldError]:
        if not data.get("provisioner"):
            yield required("provisioner")

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        if (data.get("parameters") or None) != (old.get("parameters") or None):
            yield forbidden("parameters", "updates to parameters are forbidden.")
        for field in ("provisioner", "reclaimPolicy", "volumeBindingMode"):
            if data.get(field) != old.get(field):
                yield invalid(field, data.get(field), "field is immutable")


class CsiDriverStrategy(Strategy):
    returns_deleted = True
    updates_need_version = True

    def prepare_update(self, data: Json, old: Json) -> None:
        if data.get("spec") != old.get("spec"):
            data["metadata"]["generation"] = data["metadata"].get("generation", 0) + 1

    def default(self, data: Json) -> None:
        spec = data.setdefault("spec", {})
        spec.setdefault("attachRequired", True)
        spec.setdefault("podInfoOnMount", False)
        spec.setdefault("storageCapacity", False)
        spec.setdefault("fsGroupPolicy", "ReadWriteOnceWithFSType")
        spec.setdefault("requiresRepublish", False)
        spec.setdefault("seLinuxMount", False)
        if not spec.get("volumeLifecycleModes"):
            spec["volumeLifecycleModes"] = ["Persistent"]


class NeedsVersion(Strategy):
    updates_need_version = True


class CsiNodeStrategy(NeedsVersion):
    returns_deleted = True
    checks_metadata_twice = False

    def prepare_create(self, data: Json) -> None:
        data["spec"]["drivers"] = data["spec"].get("drivers") or None

    def prepare_update(self, data: Json, old: Json) -> None:
        self.prepare_create(data)


class AttachmentStrategy(NeedsVersion):
    returns_deleted = True
    has_status = True

    def prepare_create(self, data: Json) -> None:
        data["status"] = {"attached": False}


class ResourceClaimStrategy(Strategy):
    returns_deleted = True
    has_status = True

    def default(self, data: Json) -> None:
        _default_devices(data.setdefault("spec", {}))

    def prepare_create(self, data: Json) -> None:
        data["status"] = {}

    def errors(self, data: Json) -> Iterator[FieldError]:
        return _request_errors(data.get("spec") or {}, "spec")

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        if data.get("spec") != old.get("spec"):
            yield invalid("spec", data.get("spec"), "field is immutable")


class ResourceClaimTemplateStrategy(Strategy):
    returns_deleted = True

    def default(self, data: Json) -> None:
        _default_devices(data.setdefault("spec", {}).setdefault("spec", {}))

    def errors(self, data: Json) -> Iterator[FieldError]:
        return _request_errors((data.get("spec") or {}).get("spec") or {}, "spec.spec")

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        if data.get("spec") != old.get("spec"):
            yield invalid("spec", data.get("spec"), "field is immutable")


def _default_devices(spec: Json) -> None:
    for request in (spec.get("devices") or {}).get("requests") or []:
        asked = (
            [request["exactly"]]
            if request.get("exactly") is not None
            else request.get("firstAvailable") or []
        )
        for each in asked:
            each.setdefault("allocationMode", "ExactCount")
            if each["allocationMode"] == "ExactCount":
                each["count"] = each.get("count") or 1


def _request_errors(spec: Json, path: str) -> Iterator[FieldError]:
    for number, request in enumerate((spec.get("devices") or {}).get("requests") or []):
        at = f"{path}.devices.requests[{number}]"
        yield from _selector_errors(request.get("exactly") or {}, f"{at}.exactly")
        for place, each in enumerate(request.get("firstAvailable") or []):
            yield from _selector_errors(each, f"{at}.firstAvailable[{place}]")


def _selector_errors(holder: Json, path: str) -> Iterator[FieldError]:
    """Selectors that are not CEL over a device, or whose result is no truth value.

    The texts are kube-apiserver's, without the position and the source line that follow "compilation failed".
    """
    for number, selector in enumerate(holder.get("selectors") or []):
        expression = (selector.get("cel") or {}).get("expression")
        if expression is None:
            continue
        field = f"{path}.selectors[{number}].cel.expression"
        if len(expression.encode()) > MAX_EXPRESSION:
            yield too_long(field, MAX_EXPRESSION)
            continue
        try:
            kind = compile_cel(expression).kind
        except CelError as error:
            yield invalid(field, expression, f"compilation failed: ERROR: {error}")
        else:
            if kind not in (bool, object):
                said = f"must evaluate to bool or the unknown type, not {name_of(kind)}"
                yield invalid(field, expression, said)


class GenerationReturnsDeleted(Strategy):
    returns_deleted = True
    has_generation = True


class DeviceClassStrategy(GenerationReturnsDeleted):
    def errors(self, data: Json) -> Iterator[FieldError]:
        return _selector_errors(data.get("spec") or {}, "spec")


class SliceStrategy(GenerationReturnsDeleted):
    fields = {"spec.nodeName": "spec.nodeName", "spec.driver": "spec.driver"}


class AddressStrategy(Strategy):
    """Addresses of services: an IPAddress is named after the address that it reserves."""

    @staticmethod
    def name_errors(name: str) -> tuple[str, ...]:
        return address_errors(name)

    def errors(self, data: Json) -> Iterator[FieldError]:
        parent, at = (data.get("spec") or {}).get("parentRef"), "spec.parentRef"
        if parent is None:
            yield required(at)
            return
        if group := parent.get("group"):
            yield from (invalid(f"{at}.group", group, why) for why in subdomain_errors(group))
        for field in ("resource", "name"):
            value = parent.get(field)
            if not value:
                yield required(f"{at}.{field}")
            yield from (invalid(f"{at}.{field}", value, why) for why in path_segment_errors(value or ""))
        if namespace := parent.get("namespace"):
            yield from (invalid(f"{at}.namespace", namespace, why) for why in path_segment_errors(namespace))

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        parent = data["spec"].get("parentRef") or {}
        if parent != old["spec"].get("parentRef"):
            fields = ("group", "resource", "namespace", "name")
            value = {field.capitalize(): parent.get(field, "") for field in fields}
            yield invalid("spec.parentRef", value, "field is immutable")


class RangeStrategy(Strategy):
    """ServiceCIDRs: where the addresses of services are taken from."""

    has_status = True

    def prepare_create(self, data: Json) -> None:
        data["status"] = {}

    def errors(self, data: Json) -> Iterator[FieldError]:
        cidrs, at = (data.get("spec") or {}).get("cidrs") or [], "spec.cidrs"
        if not cidrs:
            yield required(at, "at least one CIDR required")
        elif len(cidrs) > 2:
            yield invalid(at, {"CIDRs": cidrs}, "may only hold up to 2 values")
        else:
            wrong = [
                invalid(f"{at}[{index}]", each, why)
                for index, each in enumerate(cidrs)
                for why in cidr_errors(each)
            ]
            if len(cidrs) == 2 and not wrong and (":" in cidrs[0]) is (":" in cidrs[1]):
                said = (
                    "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"
                )
                wrong.append(invalid(at, cidrs, said))
            yield from wrong

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        new, was = data["spec"].get("cidrs") or [], old["spec"].get("cidrs") or []
        if len(new) < len(was):
            yield invalid("spec.cidrs", new, "field is immutable")
            return
        for index, each in enumerate(was):
            if new[index] != each:
                yield invalid(f"spec.cidrs[{index}]", new[index], "field is immutable")


class RbacStrategy(Strategy):
    @staticmethod
    def name_errors(name: str) -> tuple[str, ...]:
        return path_segment_errors(name)

    creates_on_update = True

    def default(self, data: Json) -> None:
        for subject in data.get("subjects") or []:
            if subject.get("kind") in ("User", "Group"):
                subject.setdefault("apiGroup", "rbac.authorization.k8s.io")
        if data.get("roleRef") is not None and not data["roleRef"].get("apiGroup"):
            data["roleRef"]["apiGroup"] = "rbac.authorization.k8s.io"

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        if data.get("roleRef") != old.get("roleRef"):
            yield invalid("roleRef", data.get("roleRef"), "cannot change roleRef")


class RoleStrategy(RbacStrategy):
    def __init__(self, *, namespaced: bool) -> None:
        self._namespaced = namespaced

    def errors(self, data: Json) -> Iterator[FieldError]:
        for index, rule in enumerate(data.get("rules") or ()):
            at, urls = f"rules[{index}]", rule.get("nonResourceURLs") or []
            if not rule.get("verbs"):
                yield required(f"{at}.verbs", "verbs must contain at least one value")
            if urls and self._namespaced:
                said = "namespaced rules cannot apply to non-resource URLs"
                yield invalid(f"{at}.nonResourceURLs", urls, said)
            elif urls and any(rule.get(field) for field in ("apiGroups", "resources", "resourceNames")):
                said = "rules cannot apply to both regular resources and non-resource URLs"
                yield invalid(f"{at}.nonResourceURLs", urls, said)
            if urls:
                continue
            if not rule.get("apiGroups"):
                yield required(f"{at}.apiGroups", "resource rules must supply at least one api group")
            if not rule.get("resources"):
                yield required(f"{at}.resources", "resource rules must supply at least one resource")


class BindingStrategy(RbacStrategy):
    def __init__(self, *, namespaced: bool) -> None:
        self._namespaced = namespaced

    def errors(self, data: Json) -> Iterator[FieldError]:
        reference = data.get("roleRef") or {}
        known = ("Role", "ClusterRole") if self._namespaced else ("ClusterRole",)
        if reference.get("apiGroup") != "rbac.authorization.k8s.io":
            yield unsupported("roleRef.apiGroup", reference.get("apiGroup"), ("rbac.authorization.k8s.io",))
        if reference.get("kind") not in known:
            yield unsupported("roleRef.kind", reference.get("kind", ""), known)
        if not reference.get("name"):
            yield required("roleRef.name")
        for index, subject in enumerate(data.get("subjects") or ()):
            yield from self._subject_errors(subject, f"subjects[{index}]")

    def _subject_errors(self, subject: Json, at: str) -> Iterator[FieldError]:
        kind = subject.get("kind", "")
        if not subject.get("name"):
            yield required(f"{at}.name")
        if kind not in ("ServiceAccount", "User", "Group"):
            yield unsupported(f"{at}.kind", kind, ("ServiceAccount", "User", "Group"))
        elif kind == "ServiceAccount" and not self._namespaced and not subject.get("namespace"):
            yield required(f"{at}.namespace")
