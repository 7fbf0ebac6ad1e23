"""CustomResourceDefinitions: which of them are accepted, with kube-apiserver's words for the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from stowplan.api.meta import Json
from stowplan.apiserver import schemas, times
from stowplan.apiserver.failures import FieldError, duplicate, forbidden, invalid, required, unsupported
from stowplan.apiserver.names import dns1035_errors, subdomain_errors
from stowplan.apiserver.rules import rule_errors
from stowplan.apiserver.strategies.strategy import Strategy
from stowplan.apiserver.structural import TYPES, Validator, bad_patterns, prune

APPROVAL = "api-approved.kubernetes.io"
_SEE = "see https://github.com/kubernetes/enhancements/pull/1111"
_MIXED = "may have mixed case, but should otherwise match: "
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
_FIELD_TYPES = (
    "must point to a field of type string, boolean or integer. "
    "Enum string fields and strings with formats are allowed."
)


class DefinitionStrategy(Strategy):
    has_status = True
    has_generation = True

    def default(self, data: Json) -> None:
        spec = data.setdefault("spec", {})
        names = spec.setdefault("names", {})
        if kind := names.get("kind"):
            names.setdefault("singular", kind.lower())
            names.setdefault("listKind", f"{kind}List")
        spec.setdefault("conversion", {"strategy": "None"})

    def prepare_create(self, data: Json) -> None:
        """Served at once: there is no other server to agree with."""
        names = data["spec"]["names"]
        stored = [each["name"] for each in data["spec"].get("versions") or [] if each.get("storage")]
        conditions = [
            _condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            _condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ]
        if approval := _approval(data):
            conditions.append(approval)
        data["status"] = {
            "conditions": conditions,
            "acceptedNames": dict(names),
            "storedVersions": stored[:1],
            "observedGeneration": 1,
        }

    def prepare_update(self, data: Json, old: Json) -> None:
        """Names that may change are accepted at once, and a new storage version is one that was stored."""
        super().prepare_update(data, old)
        status = data.setdefault("status", {})
        status["acceptedNames"] = dict(data["spec"]["names"])
        known = status.setdefault("storedVersions", [])
        known += [
            each["name"]
            for each in data["spec"].get("versions") or []
            if each.get("storage") and each["name"] not in known
        ]

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec, name = data["spec"], data["metadata"].get("name", "")
        names, group, versions = spec.get("names") or {}, spec.get("group", ""), spec.get("versions") or []
        is_new = not data["metadata"].get("resourceVersion")
        if is_new and name != f"{names.get('plural', '')}.{group}":
            yield invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
        if not group:
            yield required("spec.group")
        elif wrong := subdomain_errors(group):
            yield from (invalid("spec.group", group, why) for why in wrong)
        elif "." not in group:
            yield invalid("spec.group", group, "should be a domain with at least one dot")
        if not spec.get("scope"):
            yield required("spec.scope")
        elif spec["scope"] not in ("Namespaced", "Cluster"):
            yield unsupported("spec.scope", spec["scope"], ["Cluster", "Namespaced"])
        yield from _version_errors(versions)
        if (group, names.get("plural")) in _built_in():
            yield invalid("spec.names.plural", names["plural"], "is a built-in resource of this group")
        yield from _name_errors(names)
        alike = _fields_alike(versions)
        for index, version in enumerate(versions):
            yield from _content_errors(alike, index, version)
        yield from _conversion_errors(spec.get("conversion") or {})
        yield from _stored_errors(versions, (data.get("status") or {}).get("storedVersions"))
        yield from _approval_errors(data)

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        for path in ("group", "scope", "names.plural", "names.kind"):
            new, was = data["spec"], old["spec"]
            for part in path.split("."):
                new, was = new.get(part), was.get(part)
            if new != was:
                yield invalid(f"spec.{path}", new, "field is immutable")


def _condition(kind: str, reason: str, message: str) -> Json:
    return {
        "type": kind,
        "status": "True",
        "lastTransitionTime": times.now(),
        "reason": reason,
        "message": message,
        "observedGeneration": 1,
    }


# Protected groups.


def _is_protected(group: str) -> bool:
    return f".{group}".endswith((".k8s.io", ".kubernetes.io"))


def _approval_errors(data: Json) -> Iterator[FieldError]:
    if not _is_protected(data["spec"].get("group", "")):
        return
    value = (data["metadata"].get("annotations") or {}).get(APPROVAL) or ""
    said, at = (
        f'protected groups must have approval annotation "{APPROVAL}"',
        f"metadata.annotations[{APPROVAL}]",
    )
    if not value:
        yield required(at, f"{said}, {_SEE}")
    elif not value.startswith(("https://", "http://", "unapproved")):
        yield invalid(at, value, f'{said} with either a URL or a reason starting with "unapproved", {_SEE}')


def _approval(data: Json) -> Json | None:
    if not _is_protected(data["spec"].get("group", "")):
        return None
    value = (data["metadata"].get("annotations") or {}).get(APPROVAL, "")
    kind = "KubernetesAPIApprovalPolicyConformant"
    if value.startswith("unapproved"):
        return _condition(kind, "UnapprovedAnnotation", f'not approved: "{value}"') | {"status": "False"}
    return _condition(kind, "ApprovedAnnotation", f"approved in {value}")


# Names and versions.


def _name_errors(names: Json) -> Iterator[FieldError]:
    def checked(field: str, is_mixed: bool = False) -> Iterator[FieldError]:
        value, at = names.get(field) or "", f"spec.names.{field}"
        if not value:
            yield required(at)
            return
        for why in dns1035_errors(value.lower() if is_mixed else value):
            yield invalid(at, value, _MIXED + why if is_mixed else why)

    def listed(field: str) -> Iterator[FieldError]:
        for index, value in enumerate(names.get(field) or []):
            yield from (invalid(f"spec.names.{field}[{index}]", value, why) for why in dns1035_errors(value))

    yield from checked("plural")
    yield from checked("singular")
    yield from checked("kind", is_mixed=True)
    yield from listed("shortNames")
    yield from checked("listKind", is_mixed=True)
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        yield invalid("spec.names.listKind", names["listKind"], "kind and listKind may not be the same")
    yield from listed("categories")


def _version_errors(versions: list[Json]) -> Iterator[FieldError]:
    shown = [
        {
            "Name": each.get("name", ""),
            "Served": bool(each.get("served")),
            "Storage": bool(each.get("storage")),
            "Deprecated": bool(each.get("deprecated")),
            "DeprecationWarning": each.get("deprecationWarning"),
            **dict.fromkeys(("Schema", "Subresources", "AdditionalPrinterColumns", "SelectableFields")),
        }
        for each in versions
    ]
    for index, each in enumerate(versions):
        for why in dns1035_errors(each.get("name") or ""):
            yield invalid(f"spec.versions[{index}].name", each.get("name") or "", why)
    if len({each.get("name") for each in versions}) < len(versions):
        yield invalid("spec.versions", shown, "must contain unique version names")
    if sum(bool(each.get("storage")) for each in versions) != 1:
        yield invalid("spec.versions", shown, "must have exactly one version marked as storage version")
    if versions:
        first = versions[0].get("name") or ""
        yield from (invalid("spec.version", first, why) for why in dns1035_errors(first))


def _stored_errors(versions: list[Json], stored: list[str] | None) -> Iterator[FieldError]:
    at, known = "status.storedVersions", [each.get("name") for each in versions]
    if not stored:
        yield invalid(at, None, "must have at least one stored version")
        return
    for index, name in enumerate(stored):
        if name not in known:
            said = (
                f"missing from spec.versions; {name} was previously a storage version, and must remain in "
                f"spec.versions until a storage migration ensures no data remains persisted in {name} and "
                f"removes {name} from status.storedVersions"
            )
            yield invalid(f"{at}[{index}]", name, said)
    for each in reversed(versions):
        if each.get("storage"):
            if each.get("name") not in stored:
                yield invalid(at, stored, f"must have the storage version {each.get('name')}")
            return


def _conversion_errors(conversion: Json) -> Iterator[FieldError]:
    strategy, webhook, at = conversion.get("strategy"), conversion.get("webhook"), "spec.conversion"
    if strategy == "Webhook":
        if not (webhook or {}).get("clientConfig"):
            yield required(f"{at}.webhookClientConfig", "required when strategy is set to Webhook")
        if not (webhook or {}).get("conversionReviewVersions"):
            yield required(f"{at}.conversionReviewVersions")
    elif strategy != "None":
        yield unsupported(f"{at}.strategy", strategy, ["None", "Webhook"])
    elif webhook is not None:
        for field in ("webhookClientConfig", "conversionReviewVersions"):
            yield forbidden(f"{at}.{field}", "should not be set when strategy is not set to Webhook")


# What a version contains.


def _fields_alike(versions: list[Json]) -> set[str]:
    """The fields that are equal in all versions."""
    fields = ("schema", "subresources", "additionalPrinterColumns", "selectableFields")
    return {field for field in fields if all(each.get(field) == versions[0].get(field) for each in versions)}


def _content_errors(alike: set[str], index: int, version: Json) -> Iterator[FieldError]:
    """What all versions have alike is checked once, as if it stood before them."""

    def place(field: str) -> str | None:
        if field in alike:
            return "spec" if not index else None
        return f"spec.versions[{index}]"

    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    if schema is None:
        yield required(f"spec.versions[{index}].schema.openAPIV3Schema")
        return
    if at := place("schema"):
        part = "validation" if at == "spec" else "schema"
        yield from schema_errors(schema, f"{at}.{part}.openAPIV3Schema")
    if at := place("subresources"):
        yield from _scale_errors(version.get("subresources") or {}, f"{at}.subresources.scale")
    if at := place("additionalPrinterColumns"):
        for number, column in enumerate(version.get("additionalPrinterColumns") or []):
            yield from _column_errors(column, f"{at}.additionalPrinterColumns[{number}]")
    if at := place("selectableFields"):
        seen: set[str] = set()
        for number, field in enumerate(version.get("selectableFields") or []):
            path, where = field.get("jsonPath") or "", f"{at}.selectableFields[{number}].jsonPath"
            yield from [duplicate(where, path)] if path in seen else _selectable_errors(schema, path, where)
            seen.add(path)


def _scale_errors(subresources: Json, at: str) -> Iterator[FieldError]:
    scale = subresources.get("scale")
    if scale is None:
        return
    for field, roots in (
        ("specReplicasPath", (".spec",)),
        ("statusReplicasPath", (".status",)),
        ("labelSelectorPath", (".spec", ".status")),
    ):
        path, where = scale.get(field) or "", f"{at}.{field}"
        if not path:
            if field != "labelSelectorPath":
                yield required(where)
        elif not path.startswith("."):
            yield invalid(where, path, "must be a simple json path starting with .")
        elif not path.startswith(tuple(f"{root}." for root in roots)):
            under = roots[0] if len(roots) == 1 else f"either {' or '.join(roots)}"
            yield invalid(where, path, f"should be a json path under {under}")


def _column_errors(column: Json, at: str) -> Iterator[FieldError]:
    kind, form, path = column.get("type") or "", column.get("format") or "", column.get("jsonPath") or ""
    if not column.get("name"):
        yield required(f"{at}.name")
    if not kind:
        yield required(f"{at}.type", f"must be one of {','.join(_COLUMN_TYPES)}")
    elif kind not in _COLUMN_TYPES:
        yield invalid(f"{at}.type", kind, f"must be one of {','.join(_COLUMN_TYPES)}")
    if form and form not in _COLUMN_FORMATS:
        yield invalid(f"{at}.format", form, f"must be one of {','.join(_COLUMN_FORMATS)}")
    if not path:
        yield required(f"{at}.JSONPath")
    elif not path.startswith("."):
        yield invalid(f"{at}.JSONPath", path, "must be a simple json path starting with .")


def _selectable_errors(schema: Json, path: str, at: str) -> Iterator[FieldError]:
    if not path:
        yield required(at)
        return
    if not path.startswith("."):
        yield invalid(at, path, f"is an invalid path: expected [ or . but got: {path.partition('.')[0]}")
        return
    inner: Any = schema
    for part in path.removeprefix(".").split("."):
        inner = ((inner or {}).get("properties") or {}).get(part)
    if inner is None or path.startswith(".metadata."):
        yield invalid(at, path, "is an invalid path: does not refer to a valid field")
    elif inner.get("type") not in ("string", "boolean", "integer"):
        yield invalid(at, path, _FIELD_TYPES)


# Schemas.

_NUMBER, _COUNT = (int, float), int
_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("type", "format", "pattern", "x-kubernetes-list-type", "x-kubernetes-map-type"), str),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _COUNT),
    **dict.fromkeys(("minProperties", "maxProperties"), _COUNT),
    **dict.fromkeys(("nullable", "exclusiveMinimum", "exclusiveMaximum", "uniqueItems"), bool),
    **dict.fromkeys(("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"), bool),
    "x-kubernetes-int-or-string": bool,
    **dict.fromkeys(("required", "x-kubernetes-list-map-keys", "x-kubernetes-validations"), list),
    **dict.fromkeys(("enum", "allOf", "anyOf", "oneOf"), list),
    **dict.fromkeys(("properties", "items", "not"), dict),
    "additionalProperties": (dict, bool),
}
_LOGIC = ("allOf", "anyOf", "oneOf")
_NOT_IN_LOGIC = (
    "type",
    "default",
    "nullable",
    "title",
    "additionalProperties",
    "x-kubernetes-preserve-unknown-fields",
)


def schema_errors(schema: Any, at: str) -> list[FieldError]:
    """Errors of a schema; the later checks need the earlier ones to have found nothing."""
    for check in (_type_errors, bad_patterns, _structural_errors, _default_errors, rule_errors):
        if found := list(check(schema, at)):
            return found
    return []


def _type_errors(schema: object, path: str) -> Iterator[FieldError]:
    """Schemas inside schemas are plain data until here."""
    for part, at, _ in _walk(schema, path):
        if not isinstance(part, dict):
            yield invalid(at, part, "must be a schema")
            continue
        if "$ref" in part:
            yield forbidden(f"{at}.$ref", "$ref is not supported")
        for key, kind in _KINDS.items():
            if (value := part.get(key)) is None:
                continue
            fits = isinstance(value, kind) and not (isinstance(value, bool) and kind in (_NUMBER, _COUNT))
            if key == "items" and isinstance(value, list):
                yield forbidden(f"{at}.items", "items must be a schema object and not an array")
            elif not fits:
                yield invalid(f"{at}.{key}", value, "is of the wrong type")
            elif key in ("required", "x-kubernetes-list-map-keys") and not all(
                isinstance(each, str) for each in value
            ):
                yield invalid(f"{at}.{key}", value, "must be a list of strings")
        if part.get("multipleOf") == 0:
            yield invalid(f"{at}.multipleOf", 0, "must not be zero")


def _walk(schema: object, path: str) -> Iterator[tuple[Any, str, bool]]:
    """All schemas inside a schema, with their paths and whether they are part of its logic only."""
    waiting: list[tuple[Any, str, bool]] = [(schema, path, False)]
    while waiting:
        part, at, is_logic = waiting.pop(0)
        yield part, at, is_logic
        if not isinstance(part, dict):
            continue
        if isinstance(properties := part.get("properties"), dict):
            waiting += ((each, f"{at}.properties[{name}]", is_logic) for name, each in properties.items())
        for key in ("items", "additionalProperties"):
            if isinstance(inner := part.get(key), dict):
                waiting.append((inner, f"{at}.{key}", is_logic))
        if isinstance(inner := part.get("not"), dict):
            waiting.append((inner, f"{at}.not", True))
        for key in _LOGIC:
            if isinstance(listed := part.get(key), list):
                waiting += ((each, f"{at}.{key}[{index}]", True) for index, each in enumerate(listed))


def _structural_errors(schema: Json, path: str) -> Iterator[FieldError]:
    for part, at, is_logic in _walk(schema, path):
        if part.get("uniqueItems"):
            said = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
            yield forbidden(f"{at}.uniqueItems", said)
        if not is_logic:
            yield from _node_errors(part, at, at == path)
            yield from _list_errors(part, at)
            continue
        if part in ({"type": "integer"}, {"type": "string"}):
            parent = _parent_of(schema, path, at)
            if parent.get("x-kubernetes-int-or-string"):
                continue
        for key in _NOT_IN_LOGIC:
            if part.get(key) not in (None, False, ""):
                yield forbidden(f"{at}.{key}", "must be empty to be structural")


def _parent_of(schema: Json, path: str, at: str) -> Json:
    """The schema that has this one as an alternative."""
    return next((part for part, where, _ in _walk(schema, path) if at.startswith(f"{where}.anyOf[")), {})


def _node_errors(part: Json, at: str, is_root: bool) -> Iterator[FieldError]:
    kind, open_fields = part.get("type") or "", part.get("x-kubernetes-preserve-unknown-fields")
    if open_fields is False:
        yield invalid(f"{at}.x-kubernetes-preserve-unknown-fields", False, "must be true or undefined")
    if not kind:
        where = "array items" if at.endswith(".items") else "object fields"
        if is_root:
            yield required(f"{at}.type", "must not be empty at the root")
        elif not part.get("x-kubernetes-int-or-string") and not open_fields:
            yield required(f"{at}.type", f"must not be empty for specified {where}")
    elif kind not in TYPES:
        yield unsupported(f"{at}.type", kind, sorted(TYPES))
    elif is_root and kind != "object":
        yield invalid(f"{at}.type", kind, "must be object at the root")
    if kind == "array" and part.get("items") is None:
        yield required(f"{at}.items", "must be specified")
    if part.get("properties") and part.get("additionalProperties") is not None:
        said = "additionalProperties and properties are mutual exclusive"
        yield forbidden(f"{at}.additionalProperties", said)
    if part.get("x-kubernetes-embedded-resource") and not open_fields and not part.get("properties"):
        yield required(
            f"{at}.properties",
            "must not be empty if x-kubernetes-embedded-resource is true without "
            "x-kubernetes-preserve-unknown-fields",
        )


def _list_errors(part: Json, at: str) -> Iterator[FieldError]:
    kind, listed, keys = (
        part.get("type"),
        part.get("x-kubernetes-list-type"),
        part.get("x-kubernetes-list-map-keys"),
    )
    mapped, items = part.get("x-kubernetes-map-type"), part.get("items") or {}
    if mapped is not None and mapped not in ("atomic", "granular"):
        yield unsupported(f"{at}.x-kubernetes-map-type", mapped, ["atomic", "granular"])
    elif mapped is not None and kind != "object":
        yield invalid(f"{at}.type", kind, "must be object if x-kubernetes-map-type is specified")
    if listed is not None and listed not in ("atomic", "set", "map"):
        yield unsupported(f"{at}.x-kubernetes-list-type", listed, ["atomic", "set", "map"])
    elif listed is not None and kind != "array":
        yield invalid(f"{at}.type", kind, "must be array if x-kubernetes-list-type is specified")
    elif listed == "set" and items.get("type") == "object" and items.get("x-kubernetes-map-type") != "atomic":
        said = "must be atomic as item of a list with x-kubernetes-list-type=set"
        yield invalid(f"{at}.items.x-kubernetes-map-type", items.get("x-kubernetes-map-type"), said)
    elif listed == "map":
        yield from _map_errors(items, keys or [], at)
    if keys and listed != "map":
        said = "must be map if x-kubernetes-list-map-keys is non-empty"
        yield (
            required(f"{at}.x-kubernetes-list-type", said)
            if not listed
            else invalid(f"{at}.x-kubernetes-list-type", listed, said)
        )


def _map_errors(items: Json, keys: list[str], at: str) -> Iterator[FieldError]:
    where, properties = f"{at}.x-kubernetes-list-map-keys", items.get("properties") or {}
    if items.get("type") != "object":
        said = "must be object if parent array's x-kubernetes-list-type is map"
        yield invalid(f"{at}.items.type", items.get("type"), said)
    elif not keys:
        yield required(where, "must not be empty if x-kubernetes-list-type is map")
    elif not set(keys) <= set(properties):
        yield invalid(where, keys, "entries must all be names of item properties")
    else:
        for key in keys:
            if key not in (items.get("required") or ()) and properties[key].get("default") is None:
                said = (
                    "this property is in x-kubernetes-list-map-keys, so it must have a default or be a "
                    "required property"
                )
                yield required(f"{at}.items.properties[{key}].default", said)


def _default_errors(schema: Json, path: str) -> Iterator[FieldError]:
    for part, at, _ in _walk(schema, path):
        value = part.get("default")
        if value is None:
            continue
        unknown: list[str] = []
        if prune(part, value, "default", unknown) != value and unknown:
            yield invalid(f"{at}.default", json.loads(json.dumps(value)), "must not have unknown fields")
            continue
        for error in Validator(part).errors(value):
            field = f"{at}.default.{error.field}" if error.field else f"{at}.default"
            yield error._replace(field=field)


@cache
def _built_in() -> frozenset[tuple[str, str]]:
    found = schemas.data().resources
    return frozenset((each["groupVersion"].rpartition("/")[0], each["name"]) for each in found)
