"""What the real kube-apiserver said to every case; recorded by tests/cluster_suite/test_conformance.py."""

# ruff: noqa: E501  one case a line
from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from conformance.conformance_machinery import machinery_cases

FILE = Path(__file__).with_name("conformance_answers.json.gz")
MACHINERY = Path(__file__).with_name("conformance_machinery.json.gz")
"""The answers to the cases of conformance_machinery.py."""
ADMISSION_FILE = Path(__file__).with_name("admission_answers.json.gz")

DIFFERENT = {
    "daemonsets.apps/v1: table and metadata": "metadata alone lacks an annotation that only Go's conversion adds",
}
"""Cases that ours answers differently, and why that is right so."""


def recorded(*files: Path) -> dict[str, list[Any]]:
    answers: dict[str, list[Any]] = {}
    for file in files or (FILE, MACHINERY):
        if file.exists():
            answers |= json.loads(gzip.decompress(file.read_bytes()))
    return answers


def record(answers: dict[str, list[Any]]) -> None:
    machinery = {case.name for case in machinery_cases()}
    for file, is_machinery in ((FILE, False), (MACHINERY, True)):
        chosen = {name: given for name, given in answers.items() if (name in machinery) is is_machinery}
        write(chosen, file)


def write(answers: dict[str, list[Any]], file: Path) -> None:
    text = json.dumps(answers, separators=(",", ":"), sort_keys=True).encode()
    file.write_bytes(gzip.compress(text, mtime=0))


def without_name(answers: list[Any], namespace: str) -> list[Any]:
    """Answers with the name of the case's own namespace taken out."""
    found: list[Any] = json.loads(json.dumps(answers).replace(namespace, "{ns}"))
    return found
