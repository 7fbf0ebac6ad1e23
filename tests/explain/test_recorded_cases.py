"""Explaining what kube-scheduler itself decided: the same winners, and a text for whatever comes up."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from example_share import share_of
from plain_objects import REGISTRY, manifests_of
from stowplan.api.templates import find_target
from stowplan.config import load
from stowplan.explain import layout
from stowplan.explain.explainer import Explainer
from stowplan.explain.report import as_json
from stowplan.explain.text import render

CASES = Path(__file__).parents[1] / "golden/cases"


def recorded(family):
    with gzip.open(CASES / f"{family}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("family", ["mixed", "preemption", "volumes", "config"])
def test_explains_what_kube_scheduler_decided(family):
    for case in share_of(recorded(family)):
        manifests = manifests_of(*case["objects"], *case["pending"])
        config = load(case["config"], REGISTRY).config if case.get("config") else None
        explainer = Explainer(manifests, config, registry=REGISTRY)
        names = explainer.cluster.nodes.names
        for number, expected in enumerate(case["expected"]):
            found = explainer.explain(find_target(manifests, expected["pod"]), names[number % len(names)])
            assert found.decision.chosen == expected.get("chosen"), case["name"]
            plain = json.loads(json.dumps(as_json(found)))
            assert plain["message"] == expected.get("message", "")
            victims = plain["preemption"]["victims"] if plain["preemption"] else []
            assert sorted(victim["pod"] for victim in victims) == expected.get("victims", [])
            for text in (render(found), render(found._replace(node=None))):
                lines = [line for line in text.split("\n") if not line.startswith("  0/")]
                assert max(map(len, lines)) <= layout.width
            if found.held_back:
                break  # the record tries pods that would not have left the queue
