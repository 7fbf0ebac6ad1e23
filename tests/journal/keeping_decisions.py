"""Decisions for the tests of the journal, with what came of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from example_share import share_of
from stowplan.api.kinds import object_of
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.framework.decision import Decision
from stowplan.framework.registry import Registry
from stowplan.journal import Attempt, Outcome
from stowplan.journal.record import Record, RecordMaker

REGISTRY = Registry.installed()
ROOM = 2**20
CASES = Path(__file__).parents[1] / "golden/cases"
FAMILIES = ("affinity", "config", "dra", "mixed", "preemption", "resources", "spread", "taints", "volumes")


def recorded_decisions(family: str) -> Iterator[Decision]:
    """The decisions of a share of recorded cases, each with the cluster as it was left."""
    with gzip.open(CASES / f"{family}.jsonl.gz", "rt") as lines:
        cases = [json.loads(line) for line in lines]
    for case in share_of(cases):
        config = load(case["config"], REGISTRY).config if case.get("config") else None
        planner = Planner(Cluster.of(map(object_of, case["objects"])), config, registry=REGISTRY)
        for pod in case["pending"]:
            decision = planner.decide(object_of(pod))
            yield decision
            planner.carry_out(decision)


def attempt_of(decision: Decision, **facts: Any) -> Attempt:
    outcome = Outcome.UNSCHEDULABLE if decision.chosen is None else Outcome.SCHEDULED
    outcome = Outcome.ERROR if decision.error else outcome
    given = {"profile": "default-scheduler", "number": 1, "time": 1_800_000_000.0, "seconds": 0.25}
    return Attempt(**given | {"outcome": outcome, "message": decision.message} | facts)


def records_of(decisions: list[Decision]) -> list[Record]:
    maker = RecordMaker(ROOM)
    return [maker.make_record(decision, attempt_of(decision)) for decision in decisions]
