"""The resources that are served: what each is called, how it is written, and where its objects are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from stowplan.api.meta import Json
from stowplan.apiserver import schemas
from stowplan.apiserver.bodies import BuiltIn, Codec
from stowplan.apiserver.strategies import Strategy, strategy_of
from stowplan.apiserver.strategies.groups import are_served
from stowplan.config.gates import NO_GATES, FeatureGates

_EMPTY: Json = {}
ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class Subresource(msgspec.Struct, frozen=True):
    """A path below an object; its body is of this kind."""

    kind: str
    verbs: tuple[str, ...]
    group: str = ""
    version: str = ""


class ScalePaths(msgspec.Struct, frozen=True):
    """Paths of the fields of a scale in an object."""

    wanted: str = ".spec.replicas"
    current: str = ".status.replicas"
    selector: str = ".spec.selector"


class Column(msgspec.Struct, frozen=True):
    """A column of a table; `path` is where a custom resource has its value."""

    name: str
    type: str = "string"
    format: str = ""
    priority: int = 0
    path: str = ""


class Selectable(NamedTuple):
    """Fields that selectors may name in one part of an object, with the texts for those it does not have."""

    part: tuple[str, ...]
    fields: tuple[tuple[str, str, str], ...]
    """As selectors name them, their keys in the part, and those texts."""


class Resource(msgspec.Struct, kw_only=True, eq=False):
    """One resource in one version."""

    group: str
    version: str
    plural: str
    singular: str
    kind: str
    namespaced: bool
    verbs: tuple[str, ...] = ALL_VERBS
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: dict[str, Subresource] = {}
    columns: tuple[Column, ...] = ()
    storage_hash: str = ""
    schema: Json = {}
    codec: Codec
    strategy: Strategy
    collection: str = ""
    is_custom: bool = False
    scale_paths: ScalePaths = ScalePaths()
    name: str = ""
    """The plural with its group."""
    group_version: str = ""
    prefix: bytes = b""
    """How the text of every object begins."""
    _empty: bytes = b""
    since: int = 0
    """The version of a custom resource's definition: what was written before may not follow its schema."""
    stored_as: Resource | None = None
    """The resource in the version that a custom resource is stored in, if that is another one."""
    _selectable: list[Selectable] = []

    def __post_init__(self) -> None:
        self.name = f"{self.plural}.{self.group}" if self.group else self.plural
        self.collection = self.collection or self.name
        self.group_version = f"{self.group}/{self.version}" if self.group else self.version
        self.prefix = f'{{"kind":"{self.kind}","apiVersion":"{self.group_version}",'.encode()
        found: dict[tuple[str, ...], list[tuple[str, str, str]]] = {}
        for field, path in self.strategy.fields.items():
            *parts, key = path.split(".")
            found.setdefault(tuple(parts), []).append((field, key, _zero_text(self.schema, path)))
        self._selectable = [Selectable(part, tuple(fields)) for part, fields in found.items()]

    @property
    def root(self) -> str:
        return f"/apis/{self.group_version}" if self.group else f"/api/{self.version}"

    @property
    def error_group(self) -> str:
        """The group in error messages: for events always the core group."""
        return "" if self.collection == "events" else self.group

    @property
    def list_kind(self) -> str:
        return f"{self.kind}List"

    def fields_of(self, data: Json) -> Mapping[str, str]:
        """The values of an object's selectable fields."""
        meta = data["metadata"]
        found = {"metadata.name": meta.get("name", "")}
        if self.namespaced:
            found["metadata.namespace"] = meta.get("namespace", "")
        for parts, fields in self._selectable:
            inner = data
            for part in parts:
                inner = inner.get(part) or _EMPTY
            for field, key, zero in fields:
                value = inner.get(key, zero)
                found[field] = value if type(value) is str else _text(value, zero)
        if self.collection == "events" and not found.get("source"):
            found["source"] = data.get("reportingComponent") or ""
        return found

    @property
    def empty(self) -> bytes:
        """An empty object of this kind, encoded once because every create needs it."""
        if not self._empty:
            is_built_in = schemas.ref_of(self.schema)
            self._empty = msgspec.json.encode(self.codec.normalize({})[0] if is_built_in else {})
        return self._empty

    @property
    def known_fields(self) -> set[str]:
        return {"metadata.name", "metadata.namespace", *self.strategy.fields}


def _text(value: object, zero: str) -> str:
    if value is None:
        return zero
    return str(value).lower() if isinstance(value, bool) else str(value)


def _zero_text(schema: Json, path: str) -> str:
    """What a selector compares with if an object does not have the field; nothing for custom resources."""
    if not schemas.ref_of(schema):
        return ""
    for part in path.split("."):
        schema = schemas.resolve_ref(schema).get("properties", {}).get(part, {})
    return {"boolean": "false", "integer": "0"}.get(schema.get("type", ""), "")


def built_in(gates: FeatureGates) -> list[Resource]:
    """What is served without any custom resource."""
    found: dict[tuple[str, str], Resource] = {}
    for entry in (*schemas.data().resources, *(schemas.gated_data().resources if are_served(gates) else ())):
        group, _, version = entry["groupVersion"].rpartition("/")
        plural, _, below = entry["name"].partition("/")
        if below:
            parent = found.get((entry["groupVersion"], plural))
            if parent is not None:
                parent.subresources[below] = Subresource(
                    entry["kind"], tuple(entry["verbs"]), entry.get("group", ""), entry.get("version", "")
                )
            continue
        name = schemas.names().get((group, version, entry["kind"]), "")
        if name:
            found[entry["groupVersion"], plural] = _resource(entry, group, version, name, gates)
    return list(found.values())


def _resource(entry: Json, group: str, version: str, schema: str, gates: FeatureGates) -> Resource:
    return Resource(
        group=group,
        version=version,
        plural=entry["name"],
        singular=entry["singularName"],
        kind=entry["kind"],
        namespaced=entry["namespaced"],
        verbs=tuple(entry["verbs"]),
        short_names=tuple(entry.get("shortNames", ())),
        categories=tuple(entry.get("categories", ())),
        subresources={},
        columns=tuple(Column(*column) for column in entry.get("columns", ())),
        storage_hash=entry.get("storageVersionHash", ""),
        schema={"$ref": schemas.REF + schema},
        codec=BuiltIn(schema),
        strategy=strategy_of(group, entry["name"], gates),
        # Events of both groups are the same objects.
        collection="events" if entry["name"] == "events" else "",
    )


class Resources:
    """All resources that are served now, by path."""

    def __init__(self, gates: FeatureGates = NO_GATES) -> None:
        self.gates, self.has_groups = gates, are_served(gates)
        self._by_path = {(each.group, each.version, each.plural): each for each in built_in(gates)}
        self._served: set[tuple[str, str]] = set()
        self._count_served()
        self.documents: dict[str, bytes] = {}
        """What is derived from all resources, by name; emptied when they change."""

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._by_path.values())

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        return self._by_path.get((group, version, plural))

    def serves(self, group: str, version: str = "") -> bool:
        return (group, version) in self._served

    def serves_built_in(self, group: str) -> bool:
        return any(each.group == group and not each.is_custom for each in self)

    def _count_served(self) -> None:
        self._served = {(each.group, version) for each in self for version in ("", each.version)}

    def kept_in(self, collection: str) -> Resource:
        return next(each for each in self if each.collection == collection)

    def replace(self, group: str, plural: str, resources: Iterable[Resource]) -> None:
        """Serve these versions of a custom resource and no others; what is built in stays."""
        for key, each in list(self._by_path.items()):
            if each.is_custom and key[0] == group and key[2] == plural:
                del self._by_path[key]
        for resource in resources:
            self._by_path.setdefault((resource.group, resource.version, resource.plural), resource)
        self._count_served()
        self.documents.clear()
