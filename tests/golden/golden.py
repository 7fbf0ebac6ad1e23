"""The recorded answers of kube-scheduler, one case at a time."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"
DECISIONS = (
    "affinity", "config", "dra", "images", "mixed", "nodeaffinity", "owners",
    "ports", "preemption", "resources", "spread", "taints", "volumes",
)  # fmt: skip
"""The files of cluster scenarios; what each is about is its name."""


@cache
def cases(family: str) -> dict[str, dict[str, Any]]:
    """The cases of a file, by name."""
    with gzip.open(CASES / f"{family}.jsonl.gz", "rt") as lines:
        found = [json.loads(line) for line in lines]
    return {case["name"]: case for case in found}
