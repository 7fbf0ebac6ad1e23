"""Decides every recorded scenario as kube-scheduler did: refusals, scores, winners, messages and victims."""

from __future__ import annotations

import pytest

from golden import DECISIONS, cases, comparable
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
