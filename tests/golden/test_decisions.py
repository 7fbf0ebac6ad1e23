"""Decides every recorded scenario as kube-scheduler did: refusals, scores, winners, messages and victims."""

from __future__ import annotations

import pytest

from golden import DECISIONS, cases
from stowplan.api.kinds import object_of
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.framework.registry import Registry

REGISTRY = Registry.installed()


@pytest.mark.parametrize(
    ("family", "name"),
    [pytest.param(family, name, id=name) for family in DECISIONS for name in cases(family)],
)
def test_decides_as_kube_scheduler_did(family, name):
    case = cases(family)[name]
    config = load(case["config"], REGISTRY).config if case.get("config") else None
    planner = Planner(Cluster.of(map(object_of, case["objects"])), config, registry=REGISTRY)
    for pod, expected in zip(case["pending"], case["expected"], strict=True):
        decision = planner.decide(object_of(pod))
        assert comparable(decision.as_golden()) == comparable(expected)
        planner.carry_out(decision)


def comparable(decision):
    """What two decisions must agree in: not in the text of an error, nor in the order of reasons."""
    if decision.get("error"):
        return {"pod": decision["pod"], "error": True}
    refused = decision.get("rejected") or {}
    scores = decision.get("scores") or {}
    return {
        "pod": decision["pod"],
        "preFilter": status(decision.get("preFilter")),
        "rejected": {node: status(refusal) for node, refusal in refused.items()},
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


def status(refusal):
    if refusal is None:
        return None
    return refusal["code"], refusal.get("plugin"), sorted(refusal.get("reasons") or [])
