"""CustomResourceDefinitions: names, versions and the conditions that say that they are served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stowplan.apiserver import times
from stowplan.apiserver.failures import FieldError, invalid, required
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
        if spec.get("scope") not in ("Namespaced", "Cluster"):
            yield (
                required("spec.scope") if not spec.get("scope") else invalid("spec.scope", spec["scope"], "")
            )
        storing = [each for each in spec.get("versions") or [] if each.get("storage")]
        if len(storing) != 1:
            said = "must have exactly one version marked as storage version"
            yield invalid("spec.versions", spec.get("versions"), said)
        for index, version in enumerate(spec.get("versions") or []):
            at = f"spec.versions[{index}].schema.openAPIV3Schema"
            schema = (version.get("schema") or {}).get("openAPIV3Schema")
            if schema is None:
                yield required(at, "schemas are required")
            else:
                yield from bad_patterns(schema, at)
