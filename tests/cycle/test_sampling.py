"""Looking at some of the nodes only: how many, which ones, and where the next search goes on."""

from __future__ import annotations

import pytest
from staging import feasible, plan, planner_of, profile, refusals

from make import make_node, make_pod
from stowplan.cycle.sampling import Sampling, nodes_to_find
from stowplan.cycle.schedule import EqualPods, first_by_name, schedule, schedule_equal
from stowplan.framework import Plugin, Status

ZONE = "topology.kubernetes.io/zone"
BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"


@pytest.mark.parametrize(
    ("count", "percentage", "expected"),
    [
        pytest.param(0, 50, 0, id="no nodes"),
        pytest.param(99, 1, 99, id="fewer than a hundred: all"),
        pytest.param(100, 1, 100, id="a hundred: all"),
        pytest.param(150, 10, 100, id="never fewer than a hundred"),
        pytest.param(1000, 30, 300, id="as said"),
        pytest.param(333, 50, 166, id="cut off"),
        pytest.param(1000, 0, 420, id="adapted: 50 - 1000/125"),
        pytest.param(5000, 0, 500, id="adapted: 50 - 5000/125"),
        pytest.param(6000, 0, 300, id="adapted: never less than 5"),
        pytest.param(5000, 100, 5000, id="all"),
    ],
)
def test_how_many_are_enough(count, percentage, expected):
    assert nodes_to_find(count, percentage) == expected


class OpenOnly(Plugin):
    """Refuses nodes whose label says so."""

    def filter(self, state, pod, node):
        return Status.unschedulable("closed") if "closed" in node.labels else None

    def score(self, state, pod, node):
        return 1


class FirstHundredAndTwenty(Plugin):
    def pre_filter(self, state, pod, nodes):
        return frozenset(f"n{number:03}" for number in range(120))


def row(count, closed=()):
    return [
        make_node(f"n{number:03}", labels={"closed": "yes"} if number in closed else {})
        for number in range(count)
    ]


def numbers(names):
    return sorted(int(name[1:]) for name in names)


def looked_at(decision):
    return numbers([*feasible(decision), *refusals(decision)])


def test_the_next_search_goes_on_where_the_last_one_ended():
    planner = plan(row(250), OpenOnly, percentageOfNodesToScore=40)
    found = [numbers(feasible(planner.decide(make_pod()))) for _ in range(3)]
    assert found[0] == list(range(100))
    assert found[1] == list(range(100, 200))
    assert found[2] == [*range(50), *range(200, 250)]


def test_a_search_ends_at_the_first_node_too_many():
    """Nodes refused between the last one wanted and the next that fits were looked at, that one was not."""
    planner = plan(row(120, closed=range(100, 105)), OpenOnly, percentageOfNodesToScore=1)
    first = planner.decide(make_pod())
    assert numbers(feasible(first)) == list(range(100))
    assert numbers(refusals(first)) == list(range(100, 105))
    second = planner.decide(make_pod())
    assert looked_at(second) == [*range(85), *range(105, 120)]


def test_too_few_feasible_nodes_make_a_search_of_all():
    planner = plan(row(150, closed=range(60, 150)), OpenOnly, percentageOfNodesToScore=1)
    for _ in range(2):
        assert looked_at(planner.decide(make_pod())) == list(range(150))


@pytest.mark.parametrize("label", [ZONE, BETA_ZONE])
def test_zones_take_turns(label):
    listed = [("a", 90), ("b", 30)]
    objects = [
        make_node(f"{zone}{number:02}", labels={label: zone})
        for zone, count in listed
        for number in range(count)
    ]
    decision = plan(objects, OpenOnly, percentageOfNodesToScore=1).decide(make_pod())
    # Two at a time while both have nodes left: thirty of each, then forty more of the first.
    assert sorted(feasible(decision)) == [f"a{n:02}" for n in range(70)] + [f"b{n:02}" for n in range(30)]


def test_the_older_zone_label_wins():
    objects = [
        make_node(f"n{number:03}", labels={ZONE: "same", BETA_ZONE: "a" if number < 90 else "b"})
        for number in range(120)
    ]
    decision = plan(objects, OpenOnly, percentageOfNodesToScore=1).decide(make_pod())
    assert numbers(feasible(decision)) == [*range(70), *range(90, 120)]


def test_a_promised_node_that_fits_is_taken_without_a_search():
    planner = plan(row(250), OpenOnly, percentageOfNodesToScore=40)
    promised = make_pod("promised", status={"nominatedNodeName": "n200"})
    assert feasible(planner.decide(promised)) == ["n200"]
    assert numbers(feasible(planner.decide(make_pod()))) == list(range(100))


def test_a_narrowed_search_goes_on_in_its_own_list():
    planner = plan(row(250), FirstHundredAndTwenty, OpenOnly, percentageOfNodesToScore=50)
    found = [numbers(feasible(planner.decide(make_pod()))) for _ in range(2)]
    assert found == [list(range(100)), [*range(80), *range(100, 120)]]


@pytest.mark.parametrize(
    ("everywhere", "own", "count"),
    [
        pytest.param(0, None, 250, id="adaptive means all"),
        pytest.param(100, None, 250, id="all"),
        pytest.param(50, None, 125, id="half"),
        pytest.param(99, None, 247, id="nearly all"),
        pytest.param(50, 0, 250, id="the profile says all"),
        pytest.param(50, 100, 250, id="the profile says all, in percent"),
        pytest.param(0, 60, 150, id="the profile says some"),
    ],
)
def test_every_node_is_scored_unless_a_percentage_says_otherwise(everywhere, own, count):
    fields = {} if own is None else {"percentageOfNodesToScore": own}
    planner = planner_of(
        row(250), [profile(OpenOnly, **fields)], OpenOnly, percentageOfNodesToScore=everywhere
    )
    assert len(planner.decide(make_pod()).totals) == count


def test_all_profiles_go_on_where_the_last_search_ended():
    profiles = [
        profile(OpenOnly, schedulerName="one", percentageOfNodesToScore=10),
        profile(OpenOnly, schedulerName="two", percentageOfNodesToScore=10),
        profile(OpenOnly, schedulerName="all"),
    ]
    planner = planner_of(row(150), profiles, OpenOnly)
    looked_at = [
        numbers(feasible(planner.decide(make_pod(name, schedulerName=name))))
        for name in ("one", "two", "all")
    ]
    assert looked_at == [list(range(100)), [*range(50), *range(100, 150)], list(range(150))]
    assert numbers(feasible(planner.decide(make_pod("p", schedulerName="one")))) == list(range(50, 150))


def test_a_nominated_node_that_was_rejected_counts_as_one_the_search_came_by():
    planner = planner_of(row(150, closed=(149,)), [profile(OpenOnly, percentageOfNodesToScore=10)], OpenOnly)
    decision = planner.decide(make_pod("p", status={"nominatedNodeName": "n149"}))
    assert numbers(feasible(decision)) == list(range(100))
    assert list(refusals(decision)) == ["n149"]
    after = numbers(feasible(planner.decide(make_pod("q"))))
    assert after == [*range(52), *range(101, 149)]


def test_a_search_for_an_equal_pod_that_is_started_over_counts_once():
    """A member of a group with a label that another pod looks for is decided from the beginning."""
    selector = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    preferred = [{"weight": 1, "podAffinityTerm": selector}]
    affinity = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    nodes = [
        make_node(f"n{number:03}", labels={"kubernetes.io/hostname": f"n{number:03}"})
        for number in range(150)
    ]
    looking = make_pod("looking", node="n000", affinity=affinity)
    plain, wanted = make_pod("plain"), make_pod("wanted", labels={"app": "web"})
    starts = []
    for is_equal in (True, False):
        planner = plan([*nodes, looking], "NodeResourcesFit", "InterPodAffinity")
        (profile,) = planner.profiles.values()
        table, sampling = planner.cluster.nodes, Sampling(10)
        first = schedule(profile, plain, table, first_by_name, sampling)
        assert EqualPods.looks_alone(profile, first)
        if is_equal:
            equal = EqualPods(profile, first)
            second = schedule_equal(equal, profile, wanted, table, first_by_name, sampling)
        else:
            second = schedule(profile, wanted, table, first_by_name, sampling)
        starts.append((sampling.start.index, second.chosen, feasible(second)))
    assert starts[0] == starts[1]
