"""CustomResourceDefinitions: names, versions and the conditions that say that they are served."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from stowplan.apiserver import schemas, times
from stowplan.apiserver.failures import FieldError, forbidden, invalid, required
from stowplan.apiserver.names import label_errors
from stowplan.apiserver.strategies.strategy import Strategy
from stowplan.apiserver.structural import bad_patterns

Json = dict[str, Any]


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
