"""Custom resources: what a CustomResourceDefinition makes the server serve."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from stowplan.api.meta import Json
from stowplan.apiserver import nesting, schemas
from stowplan.apiserver.bodies import BuiltIn, duplicates
from stowplan.apiserver.failures import FieldError, invalid, unknown_resource
from stowplan.apiserver.objects import Objects
from stowplan.apiserver.resources import ALL_VERBS, Column, Resource, ScalePaths, Subresource
from stowplan.apiserver.rules import Rules
from stowplan.apiserver.store import Record
from stowplan.apiserver.strategies import Strategy
from stowplan.apiserver.strategies.strategy import Lookup
from stowplan.apiserver.structural import Validator, prune, set_defaults
from stowplan.errors import CelError
from stowplan.log import error as log_error

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
_OBJECT_META = schemas.META + "ObjectMeta"
_META_CODEC = BuiltIn(_OBJECT_META)
_PART = ("get", "patch", "update")


class CustomResources:
    """Serves the resources that the stored definitions declare."""

    def __init__(self, objects: Objects) -> None:
        self._objects, self._resources = objects, objects.resources
        objects.on_written[DEFINITIONS] = self._remove_objects
        objects.store.on_published[DEFINITIONS] = self._serve
        for record in objects.all(DEFINITIONS):
            self._serve(record, False)

    def _remove_objects(self, record: Record, is_removal: bool) -> None:
        """Delete a definition's objects in the same commit."""
        if is_removal:
            spec = record.data()["spec"]
            collection = self._objects.store.collection(f"{spec['names']['plural']}.{spec['group']}")
            for each in list(collection.all_latest()):
                collection.remove(each.key)

    def _serve(self, record: Record, is_removal: bool) -> None:
        spec = record.data()["spec"]
        made: list[Resource] = []
        try:
            if not is_removal:
                made = _resources(spec, record.version)
        except (LookupError, TypeError, ValueError, AttributeError, CelError, RecursionError) as error:
            log_error("A CustomResourceDefinition cannot be served", error, name=record.key[1])
        self._resources.replace(spec["group"], spec["names"]["plural"], made)
        if made:
            fields = partial(_selectable_fields, made) if len(made) > 1 else made[0].fields_of
            self._objects.collection(made[0]).index_by(fields)


def _resources(spec: Json, since: int) -> list[Resource]:
    """One resource for each version that is served."""
    known = {version["name"]: resource_of(spec, version, since) for version in spec["versions"]}
    stored = next(known[version["name"]] for version in spec["versions"] if version.get("storage"))
    made = [known[version["name"]] for version in spec["versions"] if version.get("served")]
    for resource in made:
        resource.stored_as = stored if resource is not stored else None
    return made


def _selectable_fields(resources: list[Resource], data: Json) -> Mapping[str, str]:
    return {field: value for each in resources for field, value in each.fields_of(data).items()}


def resource_of(spec: Json, version: Json, since: int = 0) -> Resource:
    names, below = spec["names"], version.get("subresources") or {}
    schema = _schema(version["schema"]["openAPIV3Schema"], spec["group"], version["name"], names["kind"])
    parts: dict[str, Subresource] = {}
    if below.get("status") is not None:
        parts["status"] = Subresource(names["kind"], _PART)
    paths = ScalePaths()
    if (scale := below.get("scale")) is not None:
        parts["scale"] = Subresource("Scale", _PART, "autoscaling", "v1")
        paths = ScalePaths(
            scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath") or ""
        )
    paths_of_fields = (each["jsonPath"].strip(".") for each in version.get("selectableFields") or ())
    fields = {path: path for path in paths_of_fields}
    return Resource(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        singular=names["singular"],
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        verbs=ALL_VERBS,
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=parts,
        columns=_columns(version.get("additionalPrinterColumns")),
        schema=schema,
        codec=CustomCodec(schema),
        strategy=CustomStrategy(schema, "status" in parts, f"{names['plural']}.{spec['group']}", fields),
        since=since,
        storage_hash=_storage_hash(spec),
        is_custom=True,
        scale_paths=paths,
    )


def _storage_hash(spec: Json) -> str:
    """The hash in discovery by which clients see that the storage version has changed."""
    version = next((each["name"] for each in spec["versions"] if each.get("storage")), "")
    text = f"{spec['group']}/{version}/{spec['names']['kind']}"
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()


def _columns(declared: list[Json] | None) -> tuple[Column, ...]:
    if not declared:
        return (Column("Name", format="name"), Column("Age", "date", path=".metadata.creationTimestamp"))
    columns = [
        Column(each["name"], each["type"], each.get("format", ""), each.get("priority", 0), each["jsonPath"])
        for each in declared
    ]
    return (Column("Name", format="name"), *columns)


def _schema(declared: Json, group: str, version: str, kind: str) -> Json:
    """Add the fields that every object has to the declared schema."""
    schema = copy.deepcopy(declared)
    schema["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        **(schema.get("properties") or {}),
        "metadata": {"$ref": schemas.REF + _OBJECT_META},
    }
    return schema


_BLOCKING = ("Required value", "Unsupported value", "Too long", "Too many")


def _is_unchanged(field: str, data: Json, old: Json) -> bool:
    """Whether a field has a value that it had before."""
    new: Any = data
    was: Any = old
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", field):
        step = int(index) if index else name
        try:
            new, was = new[step], was[step]
        except (KeyError, IndexError, TypeError):
            return False
    return bool(field != "<nil>" and new == was)


class CustomCodec(NamedTuple):
    """Prunes and defaults by the declared schema; the metadata has the form that all kinds share."""

    schema: Json

    def decode(self, body: bytes) -> Json | None:
        if nesting.is_too_deep(body):
            return None
        try:
            value = msgspec.json.decode(body)
        except ValueError:
            return None
        if not isinstance(value, dict) or not isinstance(value.get("metadata", {}), dict):
            return None
        try:
            found, unknown = self.normalize(value)
        except ValueError:
            return None
        return None if unknown else found

    def normalize(self, value: Json) -> tuple[Json, list[str]]:
        unknown: list[str] = []
        found = prune(self.schema, value, "", unknown)
        meta, more = _META_CODEC.normalize(found.get("metadata") or {})
        found["metadata"] = meta
        unknown += [f"metadata.{path}" for path in more]
        return set_defaults(self.schema, found), unknown

    def problems(self, value: object, unknown: list[str]) -> list[str]:
        return [f'duplicate field "{path}"' for path in duplicates(value)] + sorted(unknown)


class CustomStrategy(Strategy):
    has_generation = True
    updates_need_version = True
    checks_metadata_twice = False
    checks_updates_whole = True

    def __init__(self, schema: Json, has_status: bool, definition: str, fields: Mapping[str, str]) -> None:
        self._validator, self._has_status, self._definition = Validator(schema), has_status, definition
        self._rules = Rules.of(schema)
        self.fields = fields

    def admit(self, data: Json, lookup: Lookup) -> None:
        """Reject new objects of a definition that is being deleted."""
        if lookup.find(DEFINITIONS, self._definition) is None:
            raise unknown_resource()

    def prepare_create(self, data: Json) -> None:
        if self._has_status:
            data.pop("status", None)

    def prepare_update(self, data: Json, old: Json) -> None:
        """Increase the generation if more than metadata, or a status with a subresource, has changed."""
        if self._has_status:
            data.pop("status", None)
            if "status" in old:
                data["status"] = old["status"]
        apart = ("metadata", "status") if self._has_status else ("metadata",)
        new, was = ({key: value for key, value in each.items() if key not in apart} for each in (data, old))
        if new != was:
            data["metadata"]["generation"] = data["metadata"].get("generation", 0) + 1

    def prepare_status_update(self, data: Json, old: Json) -> None:
        """Nothing but the status changes, not even labels."""
        status = data.get("status")
        data.clear()
        data.update({key: value for key, value in old.items() if key != "status"})
        if status is not None:
            data["status"] = status

    def errors(self, data: Json) -> Iterator[FieldError]:
        found = list(self._validator.errors({key: each for key, each in data.items() if key != "metadata"}))
        yield from found
        yield from self._rule_errors(found, data)

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        """What was wrong before and did not change may stay wrong, so that schemas can become stricter."""
        found = list(self._validator.errors({key: each for key, each in data.items() if key != "metadata"}))
        found = [each for each in found if not _is_unchanged(each.field, data, old)]
        yield from found
        yield from self._rule_errors(found, data, old)

    def status_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        yield from self.update_errors(data, old)

    def _rule_errors(
        self, found: list[FieldError], data: Json, old: Json | None = None
    ) -> Iterator[FieldError]:
        if self._rules is None:
            return
        if any(each.what in _BLOCKING or each.reason == "FieldValueTypeInvalid" for each in found):
            said = (
                "some validation rules were not checked because the object was invalid; "
                "correct the existing errors to complete validation"
            )
            yield invalid("<nil>", None, said)
        else:
            yield from self._rules.errors(data, old, is_change=old is not None)
