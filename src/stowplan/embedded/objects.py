"""Creates and applies manifests in the embedded API server, in dependency order."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from stowplan.api.manifests import objects_in
from stowplan.api.meta import Json
from stowplan.apiserver import ApiServer
from stowplan.apiserver.resources import Resource
from stowplan.client.api import APPLY_PATCH, ApiClient
from stowplan.errors import InputError

FIRST = ("Namespace", "CustomResourceDefinition", "PriorityClass", "StorageClass", "Node")
FIELD_MANAGER = "stowplan-up"


def read(items: Iterable[Json | Path]) -> list[Json]:
    """The objects of manifests, given as plain data or in files and folders."""
    found: list[Json] = []
    for item in items:
        if isinstance(item, Path):
            faults: list[InputError] = []
            found += [each.data for each in objects_in([str(item)], io.BytesIO(), faults)]
            for fault in faults:
                raise fault
            continue
        if not isinstance(item, dict):
            hint = f": for a file, pass Path({item!r})" if isinstance(item, str) else ""
            raise InputError(f"expected plain data or a Path, not {item!r:.100}{hint}")
        try:
            check(item)
        except InputError as error:
            raise InputError(error.message, what=f"{item!r:.100}", field=error.field) from None
        found.append(item)
    return found


def place_in_order(item: Json) -> int:
    """What others refer to comes first; sorted by this, the rest stays in its order."""
    kind = item.get("kind")
    return FIRST.index(kind) if kind in FIRST else len(FIRST)


def check(item: Any) -> None:
    """Check that it is an object; the API server checks its fields."""
    meta = item.get("metadata") if isinstance(item, dict) else None
    if not isinstance(meta, dict) or not all(
        isinstance(item.get(each), str) for each in ("apiVersion", "kind")
    ):
        raise InputError("is not a Kubernetes object: it needs at least apiVersion, kind and metadata")
    for name in ("name", "namespace"):
        if not isinstance(meta.get(name) or "", str):
            raise InputError(f"is not text: {meta[name]}", field=f"metadata.{name}")


def resource_named(server: ApiServer, name: str) -> Resource:
    """Find a resource by its kind, or by another name that kubectl knows: `pods`, `po`, `jobs.batch`."""
    wanted = name.lower()
    for resource in server.resources:
        names = (resource.kind.lower(), resource.plural, resource.singular, *resource.short_names)
        if wanted in names or wanted == f"{resource.plural}.{resource.group}":
            return resource
    raise InputError(f"the API server does not serve kind {name}")


def path_of(resource: Resource, namespace: str = "") -> str:
    """Return the path of a resource's collection, in this namespace if it is namespaced."""
    inside = f"/namespaces/{namespace or 'default'}" if resource.namespaced else ""
    return f"{resource.root}{inside}/{resource.plural}"


async def create(server: ApiServer, api: ApiClient, item: Json) -> Json:
    answer = await api.request("POST", _collection(server, item), item)
    found: Json = msgspec.json.decode(answer.data)
    return found


async def apply(server: ApiServer, api: ApiClient, item: Json) -> None:
    """Create the object, or update an existing one to the manifest."""
    name = (item.get("metadata") or {}).get("name")
    if not name:
        await create(server, api, item)
        return
    query = {"fieldManager": FIELD_MANAGER, "force": "true"}
    path = f"{_collection(server, item)}/{name}"
    await api.request("PATCH", path, item, content_type=APPLY_PATCH, query=query)
    if item.get("status") and item["kind"] == "Node":  # what the manifest says of a node's room
        await api.request("PATCH", f"{path}/status", item, content_type=APPLY_PATCH, query=query)


def _collection(server: ApiServer, item: Json) -> str:
    version, kind = item["apiVersion"], item["kind"]
    for resource in server.resources:
        if (resource.kind, resource.group_version) == (kind, version):
            return path_of(resource, (item.get("metadata") or {}).get("namespace", ""))
    raise InputError(f"the API server does not serve kind {kind} in {version}")
