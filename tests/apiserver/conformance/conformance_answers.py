"""What the real kube-apiserver said to every case; recorded by tests/cluster_suite/test_conformance.py."""

# ruff: noqa: E501  one case a line
from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("conformance_answers.json.gz")

DIFFERENT = {
    "daemonsets.apps/v1: table and metadata": "metadata alone lacks an annotation that only Go's conversion adds",
}
"""Cases that ours answers differently, and why that is right so."""


def recorded() -> dict[str, list[Any]]:
    answers: dict[str, list[Any]] = json.loads(gzip.decompress(FILE.read_bytes()))
    return answers


def record(answers: dict[str, list[Any]]) -> None:
    FILE.write_bytes(
        gzip.compress(json.dumps(answers, separators=(",", ":"), sort_keys=True).encode(), mtime=0)
    )


def without_name(answers: list[Any], namespace: str) -> list[Any]:
    """Answers with the name of the case's own namespace taken out."""
    found: list[Any] = json.loads(json.dumps(answers).replace(namespace, "{ns}"))
    return found
