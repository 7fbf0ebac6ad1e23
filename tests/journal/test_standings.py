"""The summary of a decision's evidence in the journal, against the decision itself."""

from __future__ import annotations

import pytest
from keeping_decisions import FAMILIES, recorded_decisions, records_of

from make import make_node, make_pod, planner
from stowplan.framework.decision import Decision
from stowplan.journal.standings import MAX_RUNNERS_UP, Standings


def slow_standing(decision: Decision) -> tuple[int, int, list[int], int]:
    """Nodes that fit, ties, how far the next nodes are behind, and the points of the chosen node."""
    if decision.chosen is None or decision.totals is None:
        return len(decision.feasible), 0, [], 0
    best = max(decision.totals.tolist())
    behind = sorted(best - total for total in decision.totals.tolist() if total < best)
    return len(decision.feasible), decision.totals.tolist().count(best) - 1, behind[:MAX_RUNNERS_UP], best


@pytest.mark.parametrize("family", FAMILIES)
def test_standings_agree_with_the_decision(family):
    decisions = list(recorded_decisions(family))
    standings = Standings()
    for decision, record in zip(decisions, records_of(decisions), strict=True):
        found = standings.summarize(record)
        behind = [each.behind for each in found.runners_up]
        points = sum(each.points for each in found.points)
        assert (found.feasible, found.tied, behind, points) == slow_standing(decision)
        for runner_up in found.runners_up:
            assert sum(lost.points for lost in runner_up.lost) == runner_up.behind
        rejections: dict[str, int] = {}
        for _, reason, nodes in found.rejections:
            rejections[reason] = rejections.get(reason, 0) + nodes
        if decision.pre_filter is None:
            assert rejections == decision.histogram()


def test_runners_up_are_named_with_the_scores_they_lost_by():
    nodes = [
        make_node(name, allocatable={"cpu": cpu, "pods": "10"}) for name, cpu in (("a", "4"), ("b", "8"))
    ]
    decision = planner(nodes).decide(make_pod(requests={"cpu": "2"}))
    (record,) = records_of([decision])
    (second,) = Standings().summarize(record).runners_up
    points = {each.plugin: each.weighted.tolist() for each in decision.scores}
    assert (decision.chosen, second.node) == ("b", "a")
    assert dict(second.lost) == {plugin: b - a for plugin, (a, b) in points.items() if a != b}
