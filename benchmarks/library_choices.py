"""CPU time of what we wrote ourselves and of the library that does the same.

    pip install jsonschema-rs jsonpatch prometheus-client
    python benchmarks/library_choices.py

The least of five rounds, in microseconds. docs/architecture.md has the figures and what follows from them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from timeit import Timer
from typing import Any

import jsonpatch
import jsonschema_rs
import prometheus_client

from stowplan.apiserver.patches import json_patch
from stowplan.apiserver.structural import Validator
from stowplan.metrics import MILLISECONDS, Page

Json = dict[str, Any]

TASK = {
    "type": "object",
    "required": ["name", "replicas"],
    "properties": {
        "name": {"type": "string", "maxLength": 63},
        "image": {"type": "string"},
        "replicas": {"type": "integer", "minimum": 0, "maximum": 1000},
        "policy": {"type": "string", "enum": ["Always", "Never", "OnFailure"]},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["tasks"],
            "properties": {
                "tasks": {"type": "array", "maxItems": 50, "items": TASK},
                "suspend": {"type": "boolean"},
            },
        }
    },
}
OBJECT: Json = {
    "apiVersion": "example.com/v1",
    "kind": "Workflow",
    "spec": {
        "suspend": False,
        "tasks": [
            {
                "name": f"task-{number}",
                "image": "web:1",
                "replicas": number,
                "policy": "Always",
                "labels": {"app": "web", "tier": "front"},
            }
            for number in range(5)
        ],
    },
}
POD: Json = {
    "metadata": {"name": "web", "labels": {"app": "web"}, "annotations": {}},
    "spec": {"containers": [{"name": f"c{i}", "image": "web:1", "env": []} for i in range(3)]},
}
PATCH = [
    {"op": "test", "path": "/metadata/name", "value": "web"},
    {"op": "replace", "path": "/spec/containers/1/image", "value": "web:2"},
    {"op": "add", "path": "/metadata/annotations/a~1b", "value": "x"},
    {"op": "remove", "path": "/metadata/labels/app"},
]


def micros(work: Callable[[], object], count: int = 20_000) -> float:
    return min(Timer(work).repeat(5, count)) / count * 1e6


def show(what: str, **figures: float) -> None:
    print(f"{what:44}" + "".join(f"{name}: {value:9.2f}   " for name, value in figures.items()), flush=True)


def main() -> None:
    broken = copy.deepcopy(OBJECT)
    broken["spec"]["tasks"][2]["replicas"] = -1
    broken["spec"]["tasks"][3]["policy"] = "Sometimes"
    plain, worded = jsonschema_rs.Draft4Validator(SCHEMA), Validator(SCHEMA)
    show(
        "a valid custom object of 5 tasks",
        ours=micros(lambda: list(worded.errors(OBJECT))),
        jsonschema_rs=micros(lambda: plain.is_valid(OBJECT)),
    )
    show(
        "the same with two errors, in its words",
        ours=micros(lambda: list(worded.errors(broken))),
        jsonschema_rs=micros(lambda: list(plain.iter_errors(broken))),
    )

    parsed = jsonpatch.JsonPatch(PATCH)
    assert json_patch(copy.deepcopy(POD), PATCH) == parsed.apply(POD)
    show(
        "a JSON patch of 4 operations",
        ours=micros(lambda: json_patch(copy.deepcopy(POD), PATCH), 5000),
        jsonpatch=micros(lambda: jsonpatch.JsonPatch(PATCH).apply(copy.deepcopy(POD), in_place=True), 5000),
    )

    page, registry = Page(), prometheus_client.CollectorRegistry()
    ours, theirs = (
        page.counter("a_total", "A.", "profile", "result"),
        prometheus_client.Counter("a_total", "A.", ["profile", "result"], registry=registry),
    )
    our_seconds, their_seconds = (
        page.histogram("b_seconds", "B.", MILLISECONDS, "profile"),
        prometheus_client.Histogram("b_seconds", "B.", ["profile"], buckets=MILLISECONDS, registry=registry),
    )

    def count() -> None:
        ours["default-scheduler", "scheduled"] += 1

    kept = theirs.labels("default-scheduler", "scheduled")
    show(
        "a count",
        ours=micros(count, 200_000),
        prometheus_client=micros(lambda: theirs.labels("default-scheduler", "scheduled").inc(), 200_000),
        with_kept_labels=micros(kept.inc, 200_000),
    )

    def observe() -> None:
        our_seconds["default-scheduler",].observe(0.003)

    def observe_and_settle() -> None:
        for _ in range(1000):
            our_seconds["default-scheduler",].observe(0.003)
        our_seconds.settle()

    series = their_seconds.labels("default-scheduler")
    show(
        "an observation",
        ours=micros(observe_and_settle, 100) / 1000,
        prometheus_client=micros(lambda: their_seconds.labels("default-scheduler").observe(0.003), 200_000),
        with_kept_labels=micros(lambda: series.observe(0.003), 200_000),
    )
    for number in range(200):
        our_seconds[f"p{number}",].observe(0.003)
        their_seconds.labels(f"p{number}").observe(0.003)
    show(
        "a page of 200 histograms",
        ours=micros(page.render, 20),
        prometheus_client=micros(lambda: prometheus_client.generate_latest(registry), 20),
    )


if __name__ == "__main__":
    main()
