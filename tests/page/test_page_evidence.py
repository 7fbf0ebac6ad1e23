"""What the page makes of a decision is what the decision says: node by node, refused and scored."""

from __future__ import annotations

import json

import pytest
from browser import Tab

from make import make_node, make_pod
from page_world import demo_objects, page_world
from stowplan.journal.record import Record
from stowplan.web import answer_by_name, serve_locally

EVIDENCE = """(async () => {
  const { Evidence } = await import("./evidence.js");
  const told = await (await fetch("api/decisions?" + new URLSearchParams(%s))).json();
  const { rows, fit } = new Evidence(told.decision);
  return { rows, fit: fit.map((row) => row.name) };
})()"""


def named(name: str) -> dict:
    field = {"key": "metadata.name", "operator": "In", "values": [name]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def small_cluster():
    for number in range(4):
        yield make_node(f"n{number}", unschedulable=number == 3, allocatable={"cpu": "2", "pods": "9"})
    yield make_pod("low", node="n0", requests={"cpu": "2"}, priority=-5)


CASES = {
    "the demo": (demo_objects, {}),
    "a node by name, so that others are not asked for": (
        lambda: [*small_cluster(), make_pod("p", requests={"cpu": "1"}, **named("n1"))],
        {},
    ),
    "refused as a whole": (
        lambda: [
            *small_cluster(),
            make_pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "nowhere"}}]),
        ],
        {},
    ),
    "a lone node, which needs no scores": (lambda: [make_node("n"), make_pod("p")], {}),
    "one that evicts": (
        lambda: [
            make_node("n", allocatable={"cpu": "2", "pods": "9"}),
            make_pod("low", node="n", requests={"cpu": "2"}, priority=-5),
            make_pod("p", requests={"cpu": "2"}, priority=5),
        ],
        {},
    ),
    "a sample of the nodes": (
        lambda: [*(make_node(f"n{number}") for number in range(300)), make_pod("p"), make_pod("q")],
        {"percentageOfNodesToScore": 40},
    ),
    "no nodes": (lambda: [make_pod("p")], {}),
}


@pytest.mark.parametrize("case", CASES)
async def test_the_page_shows_what_was_decided(tab: Tab, case: str):
    objects, config = CASES[case]
    async with page_world(objects(), config) as world, serve_locally(answer_by_name(world.pages)) as link:
        await world.settle(2000)
        await tab.go(link)
        records = list(world.decisions.recent.newest(100))
        assert records
        for record in records:
            asked = json.dumps({"pod": record.pod, "number": str(record.number)})
            found = await tab.until(EVIDENCE % asked)
            assert page_says(found["rows"]) == decision_says(record), record.pod
            if record.node:
                assert found["fit"][0] in record.decision().as_golden()["best"]
        await tab.go("about:blank")


def page_says(rows: list[dict]) -> dict:
    return {
        "refused": {
            row["name"]: row["rejections"][0]["reasons"] for row in rows if row["state"] == "rejected"
        },
        "feasible": sorted(row["name"] for row in rows if row["state"] in ("fits", "chosen")),
        "totals": {row["name"]: row["total"] for row in rows if row["total"] is not None},
        "chosen": next((row["name"] for row in rows if row["state"] == "chosen"), None),
        "apart": sorted(row["name"] for row in rows if row["state"] == "apart"),
    }


def decision_says(record: Record) -> dict:
    decision = record.decision()
    found = decision.as_golden()
    refused = {name: status["reasons"] for name, status in found.get("rejected", {}).items()}
    if decision.pre_filter is not None:
        refused = {key: list(decision.pre_filter.reasons) for key in decision.names}
    kept = found.get("preFilterNodes", decision.names)
    return {
        "refused": refused,
        "feasible": found.get("feasible", []),
        "totals": found.get("totals", {}),
        "chosen": found.get("chosen"),
        "apart": sorted(set(decision.names) - set(kept)),
    }
