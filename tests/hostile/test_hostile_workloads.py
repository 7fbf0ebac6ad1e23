"""Workloads that ask for billions of pods, or say at length what their containers do."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from stowplan.controllers.jobs import indexes_of
from stowplan.embedded import embedded_cluster
from stowplan.kubelet.behaviour import read_script

Json = dict[str, Any]

SECONDS = 3.0
"""Within which others are answered, also on a busy machine."""


def workload(kind: str, version: str, **spec: Any) -> Json:
    container = {"name": "main", "image": "pause"}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
    else:
        spec["selector"] = {"matchLabels": {"a": "b"}}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "huge"},
        "spec": {**spec, "template": template},
    }


@pytest.mark.parametrize(
    "item",
    [
        workload("Job", "batch/v1", completions=2_000_000_000, parallelism=2_000_000_000),
        workload("Job", "batch/v1", completions=100_000, parallelism=100_000, completionMode="Indexed"),
        workload("ReplicaSet", "apps/v1", replicas=2_000_000_000),
    ],
    ids=["a job", "an indexed job", "a replica set"],
)
async def test_others_are_served_while_pods_are_made_without_end(item: Json) -> None:
    async with embedded_cluster(1) as cluster:
        await cluster.create(item)
        slowest, made, ends = 0.0, 0, time.monotonic() + 60
        while made <= 700 and time.monotonic() < ends:
            began = time.monotonic()
            await cluster.get("Namespace", "default")
            slowest = max(slowest, time.monotonic() - began)
            await asyncio.sleep(0.01)
            made = len(cluster.server.store.collection("pods").records)
    assert slowest < SECONDS
    assert made > 700, "the next ones follow"


def test_the_indexes_of_a_status_are_limited() -> None:
    began = time.process_time()
    assert len(indexes_of("0-99999999999,5")) <= 1_000_001
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize(
    "text", ["sleep 0;" * 50_000, "true && " * 50_000 + "true", "echo " + "x " * 100_000]
)
def test_a_long_script_is_not_read(text: str) -> None:
    began = time.process_time()
    assert read_script(("sh", "-c", text)) is None
    assert time.process_time() - began < 0.1
