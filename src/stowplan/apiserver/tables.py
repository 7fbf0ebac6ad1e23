"""Tables, as `kubectl get` asks for them: columns, rows, and the cells of custom resources."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from stowplan.api.meta import Json
from stowplan.apiserver.cells import CELLS, age
from stowplan.apiserver.options import Form
from stowplan.apiserver.resources import Column, Resource
from stowplan.apiserver.times import UNKNOWN, since


def table_of(
    resource: Resource, items: list[Json], form: Form, meta: Json, with_columns: bool = True
) -> Json:
    columns = resource.columns or (Column("Name", format="name"), Column("Age", "date"))
    kept = ("resourceVersion", "continue", "remainingItemCount")
    table: Json = {
        "kind": "Table",
        "apiVersion": form.group_version,
        "metadata": {field: meta[field] for field in kept if field in meta},
        "columnDefinitions": [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": "",
                "priority": column.priority,
            }
            for column in columns
        ]
        if with_columns
        else None,
        "rows": [_row(resource, columns, item, form) for item in items],
    }
    return table


def _row(resource: Resource, columns: tuple[Column, ...], item: Json, form: Form) -> Json:
    make = CELLS.get(resource.name)
    cells = make(item) if make is not None else [_plain_cell(column, item) for column in columns]
    row: Json = {"cells": cells[: len(columns)] + [""] * (len(columns) - len(cells))}
    if form.include == "Object":
        row["object"] = item
    elif form.include == "Metadata":
        row["object"] = {
            "kind": "PartialObjectMetadata",
            "apiVersion": form.group_version,
            "metadata": item["metadata"],
        }
    return row


def _plain_cell(column: Column, item: Json) -> object:
    """For kinds without cells of their own, and for columns that a custom resource declares."""
    if column.path:
        return _custom_cell(column, item)
    match column.name:
        case "Name":
            return item["metadata"]["name"]
        case "Age":
            return age(item)
        case "Created At":
            return item["metadata"].get("creationTimestamp")
    return ""


def _custom_cell(column: Column, item: Json) -> object:
    found = json_path(column.path)(item)
    value = found[0] if found else None
    if value is None:
        return None
    if column.type == "date":
        return since(value) if isinstance(value, str) else UNKNOWN
    types: dict[str, Any] = {"integer": int, "number": (int, float), "boolean": bool}
    fits = types.get(column.type)
    if column.type == "string":
        return value if isinstance(value, str) else _json(value)
    return value if fits is not None and isinstance(value, fits) else None


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


_STEP = re.compile(
    r"""\.?(?:(?P<name>(?:\\.|[^.\[\\])+)|\[(?:
        (?P<all>\*) | (?P<first>-?[0-9]*)(?P<colon>:)?(?P<last>-?[0-9]*)
        | (?P<quote>['"])(?P<key>.*?)(?P=quote)
        | \?\(@\.(?P<field>[^=!<>\s)]+)\s*(?P<sign>==|!=)\s*(?P<value>[^)]*)\)
    )\])""",
    re.VERBOSE,
)


@lru_cache(maxsize=256)
def json_path(path: str) -> Callable[[object], list[object]]:
    """Find the values at a JSONPath of a printer column; ValueError if it is none."""
    steps: list[re.Match[str]] = []
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None or match.end() == at:
            raise ValueError(f"unreadable JSONPath {path!r}")
        steps.append(match)
        at = match.end()

    def find(value: object) -> list[object]:
        found = [value]
        for step in steps:
            found = [inner for each in found for inner in _step_into(each, step)]
        return found

    return find


def _step_into(value: object, step: re.Match[str]) -> list[object]:
    if name := step["name"] or step["key"]:
        name = name.replace("\\.", ".")
        return [value[name]] if isinstance(value, dict) and name in value else []
    if step["all"]:
        return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if not isinstance(value, list):
        return []
    if field := step["field"]:
        try:
            wanted = json.loads(step["value"].strip().replace("'", '"'))
        except ValueError:
            return []
        find, equal = json_path(f".{field}"), step["sign"] == "=="
        return [each for each in value if (wanted in find(each)) is equal]
    first, last = (int(step[part]) if step[part] else None for part in ("first", "last"))
    if step["colon"]:
        return value[first:last]
    return [value[first]] if first is not None and -len(value) <= first < len(value) else []
