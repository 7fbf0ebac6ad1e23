"""The recorded answers of kube-scheduler, one case at a time, and what an answer of ours must agree in."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from stowplan.api.quantity import parse

CASES, MORE_CASES = (Path(__file__).parent / name for name in ("cases", "cases2"))
DECISIONS = (
    "affinity", "config", "dra", "images", "mixed", "nodeaffinity", "owners",
    "ports", "preemption", "resources", "spread", "taints", "volumes",
)  # fmt: skip
"""The files of cluster scenarios; what each is about is its name."""
MORE_DECISIONS = tuple(sorted(path.name.removesuffix(".jsonl.gz") for path in MORE_CASES.glob("*.jsonl.gz")))
"""Scenarios with what would be reserved on each feasible node."""

Json = dict[str, Any]


@cache
def cases(family: str, folder: Path = CASES) -> dict[str, Json]:
    """The cases of a file, by name."""
    with gzip.open(folder / f"{family}.jsonl.gz") as lines:
        found = [msgspec.json.decode(line) for line in lines]
    return {case["name"]: case for case in found}


def comparable(decision: Json) -> Json:
    """What two decisions must agree in: not in the text of an error, nor in the order of reasons."""
    if decision.get("error"):
        return {"pod": decision["pod"], "error": True}
    refused = decision.get("rejected") or {}
    scores = decision.get("scores") or {}
    return {
        "pod": decision["pod"],
        "preFilter": _status(decision.get("preFilter")),
        "rejected": {node: _status(refusal) for node, refusal in refused.items()},
        "feasible": sorted(decision.get("feasible") or []),
        # A plugin that gave every node zero may as well be absent.
        "scores": {plugin: by_node for plugin, by_node in scores.items() if any(by_node.values())},
        "totals": decision.get("totals") or {},
        "best": sorted(decision.get("best") or []),
        "chosen": decision.get("chosen"),
        "message": decision.get("message") or "",
        "nominated": decision.get("nominated") or "",
        "victims": sorted(decision.get("victims") or []),
    }


def comparable_reservations(decision: Json) -> Json:
    """What is reserved by node; amounts count by value, and nothing to reserve need not be said."""
    if decision.get("error"):
        return {}
    allocations = {
        node: sorted((_allocation(each) for each in found if each is not None), key=json.dumps)
        for node, found in (decision.get("allocations") or {}).items()
    }
    bindings = {
        node: {kind: planned for kind, planned in (found or {}).items() if planned}
        for node, found in (decision.get("bindings") or {}).items()
    }
    found: dict[str, dict[str, Any]] = {"allocations": allocations, "bindings": bindings}
    return {what: {node: each for node, each in by_node.items() if each} for what, by_node in found.items()}


def _status(refusal: Json | None) -> tuple[Any, ...] | None:
    if refusal is None:
        return None
    return refusal["code"], refusal.get("plugin"), sorted(refusal.get("reasons") or [])


def _allocation(allocation: Json) -> Json:
    found = allocation | {"results": [_result(result) for result in allocation["results"]]}
    if "nodeSelector" in allocation:
        terms = allocation["nodeSelector"]["nodeSelectorTerms"]
        found["nodeSelector"] = [
            {part: sorted(requirements, key=json.dumps) for part, requirements in term.items()}
            for term in terms
        ]
    if "config" in allocation:
        found["config"] = [
            setting | {"requests": sorted(setting.get("requests", ()))} for setting in allocation["config"]
        ]
    return found


def _result(result: Json) -> Json:
    found = dict(result)
    if "consumed" in result:
        found["consumed"] = {name: int(parse(amount)) for name, amount in result["consumed"].items()}
    if "tolerations" in result:
        found["tolerations"] = [
            {name: value for name, value in each.items() if value not in (None, "")}
            for each in result["tolerations"]
        ]
    return found
