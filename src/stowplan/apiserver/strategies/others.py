"""Priority classes, leases, storage, devices and rbac."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from stowplan.apiserver import schemas, times
from stowplan.apiserver.failures import FieldError, forbidden, invalid, required
from stowplan.apiserver.names import (
    address_errors,
    cidr_errors,
    label_errors,
    path_segment_errors,
    subdomain_errors,
)
from stowplan.apiserver.strategies.strategy import Strategy
from stowplan.apiserver.structural import bad_patterns

Json = dict[str, Any]

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

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        if data.get("spec") != old.get("spec"):
            yield invalid("spec", data.get("spec"), "field is immutable")


class ResourceClaimTemplateStrategy(Strategy):
    returns_deleted = True

    def default(self, data: Json) -> None:
        _default_devices(data.setdefault("spec", {}).setdefault("spec", {}))

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


class GenerationReturnsDeleted(Strategy):
    returns_deleted = True
    has_generation = True


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


class DefinitionStrategy(Strategy):
    has_status = True
    has_generation = True

    def default(self, data: Json) -> None:
        spec = data.setdefault("spec", {})
        names = spec.setdefault("names", {})
        kind = names.get("kind", "")
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
        spec.setdefault("conversion", {"strategy": "None"})

    def prepare_create(self, data: Json) -> None:
        """Served at once: there is no other server to agree with."""
        names, now = data["spec"]["names"], times.now()
        stored = [each["name"] for each in data["spec"].get("versions") or [] if each.get("storage")]

        def condition(kind: str, reason: str, message: str) -> Json:
            return {
                "type": kind,
                "status": "True",
                "lastTransitionTime": now,
                "reason": reason,
                "message": message,
                "observedGeneration": 1,
            }

        data["status"] = {
            "conditions": [
                condition("NamesAccepted", "NoConflicts", "no conflicts found"),
                condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            ],
            "acceptedNames": dict(names),
            "storedVersions": stored,
            "observedGeneration": 1,
        }

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec, name = data["spec"], data["metadata"].get("name", "")
        names = spec.get("names") or {}
        if not spec.get("group"):
            yield required("spec.group")
        if name != f"{names.get('plural', '')}.{spec.get('group', '')}":
            said = 'must be spec.names.plural+"."+spec.group'
            yield invalid("metadata.name", name, said)
        for field in ("plural", "kind"):
            if not names.get(field):
                yield required(f"spec.names.{field}")
            for why in label_errors(names.get(field, "").lower() or "x"):
                yield invalid(f"spec.names.{field}", names[field], why)
        if (spec.get("group"), names.get("plural")) in _built_in():
            yield invalid("spec.names.plural", names["plural"], "is a built-in resource of this group")
        if spec.get("scope") not in ("Namespaced", "Cluster"):
            yield (
                required("spec.scope") if not spec.get("scope") else invalid("spec.scope", spec["scope"], "")
            )
        storing = [each for each in spec.get("versions") or [] if each.get("storage")]
        if len(storing) != 1:
            said = "must have exactly one version marked as storage version"
            yield invalid("spec.versions", spec.get("versions"), said)
        for index, version in enumerate(spec.get("versions") or []):
            for said in label_errors(version.get("name") or ""):
                yield invalid(f"spec.versions[{index}].name", version.get("name"), said)
            at = f"spec.versions[{index}].schema.openAPIV3Schema"
            schema = (version.get("schema") or {}).get("openAPIV3Schema")
            if schema is None:
                yield required(at, "schemas are required")
            else:
                yield from _type_errors(schema, at)
                yield from bad_patterns(schema, at)


@cache
def _built_in() -> frozenset[tuple[str, str]]:
    found = schemas.data().resources
    return frozenset((each["groupVersion"].rpartition("/")[0], each["name"]) for each in found)


_NUMBER, _COUNT = (int, float), int
_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("type", "format", "pattern", "x-kubernetes-list-type", "x-kubernetes-map-type"), str),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _COUNT),
    **dict.fromkeys(("minProperties", "maxProperties"), _COUNT),
    **dict.fromkeys(("nullable", "exclusiveMinimum", "exclusiveMaximum", "uniqueItems"), bool),
    **dict.fromkeys(("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"), bool),
    "x-kubernetes-int-or-string": bool,
    **dict.fromkeys(("required", "x-kubernetes-list-map-keys"), list),
    **dict.fromkeys(("enum", "allOf", "anyOf", "oneOf"), list),
    **dict.fromkeys(("properties", "items", "not"), dict),
    "additionalProperties": (dict, bool),
}


def _type_errors(schema: Any, path: str) -> Iterator[FieldError]:
    """Schemas inside schemas are plain data until here."""
    waiting: list[tuple[Any, str]] = [(schema, path)]
    while waiting:
        part, at = waiting.pop()
        if not isinstance(part, dict):
            yield invalid(at, part, "must be a schema")
            continue
        if "$ref" in part:
            yield forbidden(f"{at}.$ref", "$ref is not supported")
        for key, kind in _TYPES.items():
            if (value := part.get(key)) is None:
                continue
            fits = isinstance(value, kind) and not (isinstance(value, bool) and kind in (_NUMBER, _COUNT))
            if not fits:
                yield invalid(f"{at}.{key}", value, "is of the wrong type")
            elif key in ("required", "x-kubernetes-list-map-keys"):
                if not all(isinstance(each, str) for each in value):
                    yield invalid(f"{at}.{key}", value, "must be a list of strings")
            elif key == "properties":
                waiting += ((each, f"{at}.properties[{name}]") for name, each in value.items())
            elif key in ("allOf", "anyOf", "oneOf"):
                waiting += ((each, f"{at}.{key}[{index}]") for index, each in enumerate(value))
            elif isinstance(value, dict):
                waiting.append((value, f"{at}.{key}"))
        if part.get("multipleOf") == 0:
            yield invalid(f"{at}.multipleOf", 0, "must not be zero")
