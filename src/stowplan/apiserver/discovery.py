"""Discovery: which groups, versions and resources are served, plain and aggregated."""

from __future__ import annotations

import hashlib

import msgspec

from stowplan.api.meta import Json
from stowplan.apiserver.resources import Resource, Resources
from stowplan.http11.messages import Request, Response

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"


def answer(resources: Resources, request: Request, parts: list[str]) -> Response | None:
    accept = request.headers.get("accept", "")
    match parts:
        case ["api"]:
            if version := _wants_aggregated(accept):
                return _aggregate_discovery(resources, [""], version, request)
            return Response.of(
                200, {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
            )
        case ["apis"]:
            if version := _wants_aggregated(accept):
                return _aggregate_discovery(resources, _groups(resources), version, request)
            groups = [_group(resources, name) for name in _groups(resources)]
            return Response.of(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        case ["apis", group] if group in _groups(resources):
            return Response.of(200, {"kind": "APIGroup", "apiVersion": "v1", **_group(resources, group)})
        case ["api", version] if resources.serves("", version):
            return _plain(resources, "", version)
        case ["apis", group, version] if resources.serves(group, version):
            return _plain(resources, group, version)
    return None


def _groups(resources: Resources) -> list[str]:
    return list(dict.fromkeys(each.group for each in resources if each.group))


def _versions(resources: Resources, group: str) -> list[str]:
    found = dict.fromkeys(each.version for each in resources if each.group == group)
    return sorted(found, key=version_order)


def version_order(version: str) -> tuple[int, int, int, str]:
    """The newest stable version first, as the API orders them."""
    rest = version.removeprefix("v")
    for rank, word in enumerate(("", "beta", "alpha")):
        major, _, minor = rest.partition(word) if word else (rest, "", "0")
        if major.isdecimal() and (minor.isdecimal() if word else True):
            return (rank, -int(major), -int(minor or 0), "")
    return (3, 0, 0, version)


def _group(resources: Resources, name: str) -> Json:
    versions = [{"groupVersion": f"{name}/{each}", "version": each} for each in _versions(resources, name)]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _plain(resources: Resources, group: str, version: str) -> Response:
    found: list[Json] = []
    for each in _of(resources, group, version):
        entry: Json = {
            "name": each.plural,
            "singularName": each.singular,
            "namespaced": each.namespaced,
            "kind": each.kind,
            "verbs": list(each.verbs),
        }
        optional = {
            "shortNames": list(each.short_names),
            "categories": list(each.categories),
            "storageVersionHash": each.storage_hash,
        }
        found.append(entry | {key: value for key, value in optional.items() if value})
        for below, sub in each.subresources.items():
            entry = {
                "name": f"{each.plural}/{below}",
                "singularName": "",
                "namespaced": each.namespaced,
                "group": sub.group,
                "version": sub.version,
                "kind": sub.kind,
                "verbs": list(sub.verbs),
            }
            found.append({key: value for key, value in entry.items() if value != "" or key == "singularName"})
    group_version = f"{group}/{version}" if group else version
    document: Json = {"kind": "APIResourceList", "groupVersion": group_version, "resources": found}
    if group:
        document["apiVersion"] = "v1"
    return Response.of(200, document)


def _of(resources: Resources, group: str, version: str) -> list[Resource]:
    return [each for each in resources if (each.group, each.version) == (group, version)]


def _wants_aggregated(accept: str) -> str:
    """The version of aggregated discovery that the client prefers over the plain form; empty if none."""
    for part in accept.replace(" ", "").split(","):
        for version in ("v2", "v2beta1"):
            wanted = {f"v={version}", "g=apidiscovery.k8s.io", "as=APIGroupDiscoveryList"}
            if part.startswith("application/json") and wanted <= set(part.split(";")):
                return version
        if part in ("application/json", "*/*"):
            return ""
    return ""


def _aggregate_discovery(resources: Resources, groups: list[str], version: str, request: Request) -> Response:
    items = []
    for group in groups:
        versions = [
            {
                "version": each,
                "resources": [_resource_entry(resource) for resource in _of(resources, group, each)],
                "freshness": "Current",
            }
            for each in _versions(resources, group)
        ]
        items.append({"metadata": {"name": group} if group else {}, "versions": versions})
    document = {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }
    body = msgspec.json.encode(document)
    tag = f'"{hashlib.sha256(body).hexdigest().upper()}"'
    headers = (("ETag", tag), ("Vary", "Accept"))
    kind = AGGREGATED.format(version=version)
    if request.headers.get("if-none-match") == tag:
        return Response(304, b"", kind, headers)
    return Response(200, body, kind, headers)


def _resource_entry(resource: Resource) -> Json:
    empty = {"group": "", "version": ""}
    found: Json = {
        "resource": resource.plural,
        "responseKind": {**_response_kind(resource), "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        found["shortNames"] = list(resource.short_names)
    if resource.categories:
        found["categories"] = list(resource.categories)
    if resource.subresources:
        found["subresources"] = [
            {
                "subresource": name,
                "responseKind": {
                    **(
                        {"group": sub.group, "version": sub.version}
                        if sub.group
                        else _response_kind(resource) or empty
                    ),
                    "kind": sub.kind,
                },
                "verbs": list(sub.verbs),
            }
            for name, sub in resource.subresources.items()
        ]
    return found


def _response_kind(resource: Resource) -> Json:
    """Built-in kinds leave out what the document already says; custom ones name their group."""
    if resource.is_custom:
        return {"group": resource.group, "version": resource.version}
    return {"group": "", "version": ""}
