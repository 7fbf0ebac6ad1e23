"""Cases of the API's behaviour, as requests that can be sent to any API server.

A case is a list of steps; `{ns}` in paths and bodies is a name that no other case uses, and a namespace of that
name is there. What a server answers is compared after `normal` took out what differs from run to run.
"""

# ruff: noqa: E501  one case a line
from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

from conformance.conformance_extra import extra_cases
from conformance.conformance_kinds import KINDS, Kind
from conformance.conformance_machinery import machinery_cases
from conformance.conformance_steps import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    PARTIAL,
    PARTIAL_LIST,
    STRATEGIC_PATCH,
    TABLE,
    Api,
    Case,
    Step,
)

Json = dict[str, Any]

_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_DIFF = re.compile(r"\n@@ .*", re.DOTALL)
"""Go shows its own structs when it says what an update may not change."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_VERSION = re.compile(r"(current: |object meta: |record \(|resource version: \d+ \()\d+")
_AGES = re.compile(r"^\d+[sd]$")


async def answers(api: Api, case: Case, namespace: str) -> list[Any]:
    """What a server says to each step of a case, fit to be compared."""
    await api(Step("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}}))
    found = []
    for step in case.steps:
        headers = tuple((name, value.replace("{ns}", namespace)) for name, value in step.headers)
        path, body = step.path.replace("{ns}", namespace), _named(step.body, namespace)
        step = step._replace(path=path, body=body, headers=headers)
        if step.method in ("WAIT", "PAUSE") or step.method.startswith("QUIET"):
            await _prepare(api, step)
            continue
        status, answer = await api(step)
        found.append([status, normal(answer)])
    return found


def _named(body: Any, namespace: str) -> Any:
    if isinstance(body, bytes):
        return body.replace(b"{ns}", namespace.encode())
    return json.loads(json.dumps(body).replace("{ns}", namespace))


async def _prepare(api: Api, step: Step) -> None:
    """QUIET: create or patch what the case needs, whatever the answer; WAIT: until the path is served.

    PAUSE: until admission has seen what was written, which a real server learns from watches.
    """
    if step.method == "PAUSE":
        await api(step)
        return
    if step.method.startswith("QUIET"):
        await api(step._replace(method=step.method.partition("-")[2] or "POST"))
        return
    for _ in range(100):
        if (await api(step._replace(method="GET")))[0] == 200:
            return
        await asyncio.sleep(0.1)


def normal(value: Any, key: str = "") -> Any:
    """A value without what differs from run to run."""
    if isinstance(value, dict):
        if value.get("type") == "BOOKMARK":
            return "the end of the initial events"
        return {
            name: normal(each, name)
            for name, each in value.items()
            if name
            not in ("time", "continue", "storageVersionHash", "description", "serverAddressByClientCIDRs")
        }
    if isinstance(value, list):
        if key in ("managedFields", "resourceRules", "nonResourceRules"):  # their order means nothing
            value = sorted(
                (normal(entry) for entry in value), key=lambda entry: json.dumps(entry, sort_keys=True)
            )
        return [normal(each, key) for each in value if not _is_mere_bookmark(each)]
    if not isinstance(value, str):
        return value
    if key in ("resourceVersion", "uid"):
        return f"<{key}>"
    if key == "cells" and _AGES.match(value):
        return "<age>"
    value = _DIFF.sub("", value)
    value = _TIME.sub("<time>", _UID.sub("<uid>", value))
    value = re.sub(r"-[bcdfghjklmnpqrstvwxz2456789]{5}\b", "-<random>", value)
    return _VERSION.sub(r"\1<version>", value)


def _is_mere_bookmark(event: Any) -> bool:
    """Bookmarks come when the server likes; the one that ends the initial events must be there."""
    is_bookmark = isinstance(event, dict) and event.get("type") == "BOOKMARK"
    return is_bookmark and "annotations" not in event["object"]["metadata"]


def all_cases() -> list[Case]:
    found = [
        Case(f"{kind.plural}.{kind.api_version}: {name}", steps(kind))
        for kind in KINDS
        for name, steps in OPERATIONS.items()
    ]
    return found + extra_cases() + machinery_cases()


Steps = Callable[[Kind], tuple[Step, ...]]


def _create(kind: Kind, **metadata: Any) -> Step:
    return Step("POST", kind.collection(), kind.object(**metadata))


def _unknown(kind: Kind) -> Json:
    return {**kind.object(), "nonsense": 1}


def _merged(body: Any, patch: Json) -> Json:
    merged = dict(body) if isinstance(body, dict) else {}
    for key, value in patch.items():
        merged[key] = _merged(merged.get(key), value) if isinstance(value, dict) and value else value
    return merged


def _selected(kind: Kind, query: str) -> str:
    return f"{kind.collection()}?labelSelector=case%3D{{ns}}{query}"


OPERATIONS: dict[str, Steps] = {
    "create, read, delete": lambda kind: (
        _create(kind),
        Step("GET", kind.item()),
        Step("DELETE", kind.item(), {"gracePeriodSeconds": 0}),
        Step("GET", kind.item("{ns}-none")),
        Step("DELETE", kind.item("{ns}-none")),
    ),
    "create twice": lambda kind: (_create(kind), _create(kind)),
    "create without a name, with a bad one, with a version": lambda kind: (
        Step("POST", kind.collection(), {**kind.object(), "metadata": {}}),
        _create(kind, name="Bad_Name!{ns}"),
        _create(kind, resourceVersion="1"),
        _create(kind, labels={"a": "-bad-"}),
        _create(kind, generateName="{ns}-gen-", name=None),
    ),
    "create: unknown fields and wrong types": lambda kind: (
        Step("POST", kind.collection() + "?fieldValidation=Strict", _unknown(kind)),
        Step("POST", kind.collection() + "?fieldValidation=Ignore&dryRun=All", _unknown(kind)),
        Step("POST", kind.collection(), _merged(kind.object(), kind.wrong)),
        Step("POST", kind.collection(), {**kind.object(), "kind": "Nonsense"}),
        Step("POST", kind.collection() + "?dryRun=Some", kind.object()),
    ),
    "lists": lambda kind: (
        _create(kind),
        Step("GET", _selected(kind, "")),
        Step("GET", _selected(kind, "&limit=1")),
        Step("GET", _selected(kind, "&fieldSelector=metadata.name%3D{ns}-a")),
        Step("GET", _selected(kind, "&fieldSelector=metadata.name%3Dother")),
        Step("GET", _selected(kind, "&fieldSelector=spec.nonsense%3Da")),
        Step("GET", kind.collection() + "?labelSelector=case+in+({ns}"),
        Step("GET", kind.collection() + "?labelSelector=case%3D{ns},!gone,changed+notin+(yes)"),
    ),
    "table and metadata": lambda kind: (
        _create(kind),
        Step("GET", _selected(kind, ""), accept=TABLE),
        Step("GET", kind.item(), accept=TABLE),
        Step("GET", kind.item(), accept=PARTIAL),
        Step("GET", _selected(kind, ""), accept=PARTIAL_LIST),
    ),
    "watch": lambda kind: (
        _create(kind),
        Step("PATCH", kind.item(), kind.change, MERGE_PATCH),
        Step("GET", _selected(kind, "&watch=1&timeoutSeconds=1")),
        Step(
            "GET",
            _selected(
                kind,
                "&watch=1&timeoutSeconds=1&sendInitialEvents=true&allowWatchBookmarks=true"
                "&resourceVersionMatch=NotOlderThan",
            ),
        ),
    ),
    "update": lambda kind: (
        _create(kind),
        Step("PUT", kind.item(), _merged(kind.object(), kind.change)),
        Step("PUT", kind.item(), kind.object(resourceVersion="1")),
        Step("PUT", kind.item(), kind.object(name="other")),
        Step("PUT", kind.item(), kind.object(uid="b5a1c6ee-0000-4000-8000-000000000000")),
        Step("PUT", kind.item("{ns}-none"), kind.object(name="{ns}-none")),
    ),
    "merge patch": lambda kind: (
        _create(kind),
        Step("PATCH", kind.item(), kind.change, MERGE_PATCH),
        Step("PATCH", kind.item(), {"metadata": {"labels": {"case": None}}}, MERGE_PATCH),
        Step("PATCH", kind.item(), [], MERGE_PATCH),
        Step("PATCH", kind.item(), {"metadata": {"resourceVersion": "1"}}, MERGE_PATCH),
        Step("PATCH", kind.item("{ns}-none"), kind.change, MERGE_PATCH),
    ),
    "JSON patch": lambda kind: (
        _create(kind),
        Step("PATCH", kind.item(), [{"op": "add", "path": "/metadata/labels/x", "value": "y"}], JSON_PATCH),
        Step("PATCH", kind.item(), [{"op": "test", "path": "/metadata/name", "value": "no"}], JSON_PATCH),
        Step("PATCH", kind.item(), [{"op": "remove", "path": "/metadata/labels/none"}], JSON_PATCH),
        Step("PATCH", kind.item(), {}, JSON_PATCH),
    ),
    "strategic merge patch": lambda kind: (
        _create(kind, finalizers=["example.com/a"]),
        Step("PATCH", kind.item(), kind.change, STRATEGIC_PATCH),
        Step("PATCH", kind.item(), {"metadata": {"finalizers": ["example.com/b"]}}, STRATEGIC_PATCH),
        Step(
            "PATCH",
            kind.item(),
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}},
            STRATEGIC_PATCH,
        ),
        Step(
            "PATCH",
            kind.item(),
            {"metadata": {"labels": {"$patch": "replace", "only": "this"}}},
            STRATEGIC_PATCH,
        ),
    ),
    "server-side apply": lambda kind: (
        Step("PATCH", kind.item() + "?fieldManager=one", kind.object(), APPLY_PATCH),
        Step("PATCH", kind.item() + "?fieldManager=two", _merged(kind.object(), LABEL_CHANGE), APPLY_PATCH),
        Step(
            "PATCH",
            kind.item() + "?fieldManager=two&force=true",
            _merged(kind.object(), LABEL_CHANGE),
            APPLY_PATCH,
        ),
        Step("PATCH", kind.item() + "?fieldManager=one", kind.object(labels={"new": "label"}), APPLY_PATCH),
        Step("PATCH", kind.item(), kind.object(), APPLY_PATCH),
        Step("PATCH", kind.item() + "?fieldManager=one", {**kind.object(), "nonsense": 1}, APPLY_PATCH),
    ),
    "delete: conditions, finalizers, propagation": lambda kind: (
        _create(kind, finalizers=["example.com/a"]),
        Step("DELETE", kind.item(), {"preconditions": {"uid": "wrong"}}),
        Step("DELETE", kind.item(), {"preconditions": {"resourceVersion": "1"}}),
        Step("DELETE", kind.item(), {"propagationPolicy": "Nonsense"}),
        Step("DELETE", kind.item(), {"gracePeriodSeconds": 0, "dryRun": ["All"]}),
        Step("DELETE", kind.item(), {"gracePeriodSeconds": 0}),
        Step("PATCH", kind.item(), {"metadata": {"finalizers": ["example.com/b"]}}, MERGE_PATCH),
        Step("PATCH", kind.item(), {"metadata": {"finalizers": None}}, MERGE_PATCH),
        Step("GET", kind.item()),
    ),
    "delete a collection": lambda kind: (
        _create(kind),
        _create(kind, name="{ns}-b", labels={"case": "{ns}", "keep": "yes"}),
        Step("DELETE", _selected(kind, ",keep"), {"gracePeriodSeconds": 0}),
        Step("GET", _selected(kind, "")),
    ),
    "dry run": lambda kind: (
        Step("POST", kind.collection() + "?dryRun=All", kind.object()),
        Step("GET", kind.item()),
        _create(kind),
        Step("PATCH", kind.item() + "?dryRun=All", kind.change, MERGE_PATCH),
        Step("GET", kind.item()),
    ),
    "verbs that are not there": lambda kind: (
        Step("PUT", kind.collection(), kind.object()),
        Step("POST", kind.item(), kind.object()),
        Step("PATCH", kind.item(), {}, "application/json"),
        Step("GET", f"{kind.item()}/nonsense"),
        Step("POST", kind.collection(), kind.object(), "text/plain"),
    ),
}

LABEL_CHANGE: Json = {"metadata": {"labels": {"case": "taken"}}}
