"""Alerts and dashboard ask for metrics and labels that exist, and the runbook explains every alert."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from stowplan.deploy.manifests import MONITORING
from stowplan.extender.routes import Counting
from stowplan.metrics import Metrics
from stowplan.replay.shadow import Shadow

ROOT = Path(__file__).parents[2]
RULES = [
    rule
    for group in yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule["alert"] for rule in RULES if "alert" in rule]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
TARGET_LABELS = {"job", "instance", "namespace", "le"}
"""What Prometheus and its operator add, and what every histogram has."""
_SELECTOR = re.compile(r"([a-z_][\w:]*)\{([^}]*)\}")
_METRIC = re.compile(r"\b(?:scheduler|stowplan|rest_client|process|leader_election|kubernetes)_\w+")
_GROUPING = re.compile(r"\b(?:by|on) \(([^)]*)\)")


def labels_of_metrics() -> dict[str, set[str]]:
    """Every family that a scheduler, an extender or a shadow shows, with its labels."""
    metrics = Metrics()
    metrics.journal(is_failing=False, lost=0)
    Counting(metrics.page)
    Shadow(metrics)
    return {name: set(family.labels) for name, family in metrics.page.families.items()}


def queries() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    return [*panels, *(rule["expr"] for rule in RULES)]


@pytest.mark.parametrize("query", queries())
def test_every_query_asks_for_what_exists(query):
    known = labels_of_metrics()
    without_strings = re.sub(r'"[^"]*"', '""', query)
    without_records = re.sub(r"\b\w+(?::\w+)+", "", without_strings)
    names = {re.sub("_(bucket|count|sum)$", "", name) for name in _METRIC.findall(without_records)}
    assert names <= known.keys()
    assert names or any(record in query for record in RECORDED)
    labels = set().union(TARGET_LABELS, *(known[name] for name in names))
    if not names:  # of recorded series
        labels |= {"profile", "result", "queue"}
    used = {word for group in _GROUPING.findall(without_strings) for word in re.split(r",\s*", group) if word}
    used |= {
        word for _, text in _SELECTOR.findall(without_strings) for word in re.findall(r"(\w+)\s*[=!]", text)
    }
    assert used <= labels


def test_every_alert_has_a_section_in_the_runbook_and_a_unit_test():
    sections = re.findall(r"^## (Stowplan\w+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    assert sections == ALERTS
    for rule in RULES:
        if "alert" in rule:
            assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
    tests = yaml.safe_load((Path(__file__).parent / "alerts.yaml").read_text())["tests"]
    firing = {each["alertname"] for test in tests for each in test["alert_rule_test"] if each["exp_alerts"]}
    quiet = {
        each["alertname"] for test in tests for each in test["alert_rule_test"] if not each["exp_alerts"]
    }
    assert firing == quiet == set(ALERTS)


def test_the_dashboard_has_no_two_panels_in_one_place():
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    taken = [
        (column, row)
        for place in places
        for column in range(place["x"], place["x"] + place["w"])
        for row in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert all(place["x"] + place["w"] <= 24 for place in places)
