"""CrossNodePreemption: evicts pods of several nodes where those of one do not help."""

from __future__ import annotations

from itertools import combinations

import pytest
from alone import manifest
from hypothesis import given
from hypothesis import strategies as st

from make import make_node, make_pod, planner
from stowplan.errors import ConfigError

NAME, ZONE = "CrossNodePreemption", "topology.kubernetes.io/zone"


def config(**args):
    plugins = {"enabled": [{"name": NAME}], "disabled": [{"name": "DefaultPreemption"}]}
    profile = {"plugins": {"multiPoint": plugins}, "pluginConfig": [{"name": NAME, "args": args}]}
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    return kind | {"profiles": [profile]}


def decide(wanted, *objects, **args):
    return planner(objects, config(**args)).decide(wanted)


def found(decision):
    """The node and the victims."""
    assert decision.error is None
    assert decision.chosen is None
    return decision.nominated, {each.name for each in decision.victims}


def node(name, zone="a", cpu=4):
    room = {"cpu": str(cpu), "memory": "8Gi", "pods": "110"}
    return make_node(name, labels={ZONE: zone}, allocatable=room)


def away_from(app, key=ZONE):
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def pod(name, app="other", node="", priority=0, cpu="100m", **spec):
    return make_pod(name, node=node, labels={"app": app}, requests={"cpu": cpu}, priority=priority, **spec)


def high(**spec):
    return pod("high", "web", priority=100, **spec)


NODES = (node("a1"), node("a2"), node("b1", "b"), node("b2", "b"))


def test_anti_affinity_to_pods_of_several_nodes_in_a_zone():
    running = [pod("x1", "db", "a1"), pod("x2", "db", "a2"), pod("y", "db", "b1", priority=200)]
    decision = decide(high(affinity=away_from("db")), *NODES, *running)
    assert found(decision) == ("a1", {"x1", "x2"})


def test_the_zone_with_the_least_harm_is_chosen():
    running = [pod("x1", "db", "a1"), pod("x2", "db", "a2"), pod("y1", "db", "b1"), pod("y2", "db", "b2", 9)]
    assert found(decide(high(affinity=away_from("db")), *NODES, *running))[1] == {"x1", "x2"}
    running[0] = pod("x1", "db", "a1", 50)
    assert found(decide(high(affinity=away_from("db")), *NODES, *running))[1] == {"y1", "y2"}


def test_existing_pods_that_want_to_be_alone():
    guards = [pod(f"g-{each.name}", "g", each.name, affinity=away_from("web")) for each in NODES]
    node_name, victims = found(decide(high(), *NODES, *guards))
    assert (node_name, victims) == ("a1", {"g-a1", "g-a2"})


def test_pods_that_can_stay_are_not_evicted():
    """Spreading: zone b has one pod, so zone a may have two with this one."""
    spread = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    running = [pod("w1", "web", "a1", 1), pod("w2", "web", "a2", 2), pod("w3", "web", "a3", 3)]
    full = [pod("b1-full", "big", "b1", 200, "4"), pod("b2-full", "big", "b2", 200, "4")]
    objects = [*NODES, node("a3"), *running, *full, pod("v", "web", "b1", 200, "0")]
    assert found(decide(high(topologySpreadConstraints=[spread]), *objects)) == ("a1", {"w1", "w2"})


def test_room_on_the_node_is_made_as_well():
    running = [pod("x1", "db", "a1", cpu="1"), pod("x2", "db", "a2", cpu="1")]
    running += [pod(f"f{name}", "f", name, 3, "2500m") for name in ("a1", "a2")]
    running += [pod(f"f{name}", "f", name, 300, "4") for name in ("b1", "b2")]
    decision = decide(high(cpu="3500m", affinity=away_from("db")), *NODES, *running)
    assert found(decision) == ("a1", {"x1", "x2", "fa1"})


def test_a_volume_for_one_pod_only():
    """Its user runs in a zone that the pod may not go to."""
    names = ("PrioritySort", "DefaultBinder", "NodeAffinity", "VolumeRestrictions", NAME)
    plugins = {"enabled": [{"name": name} for name in names], "disabled": [{"name": "*"}]}
    settings = config() | {"profiles": [{"plugins": {"multiPoint": plugins}}]}
    claim = manifest("PersistentVolumeClaim", "data", spec={"accessModes": ["ReadWriteOncePod"]})
    uses = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
    world = [*NODES, claim, pod("user", node="b2", **uses), pod("other", node="a1")]
    wanted = high(nodeSelector={ZONE: "a"}, **uses)
    made = planner(world, settings)
    assert found(made.decide(wanted)) == ("a1", {"user"})
    made.nominations.put(wanted, "a1")
    made.cluster.remove_pod(pod("user"))
    assert len(made.decide(pod("next", **uses)).rejected()) == 4
    assert made.decide(pod("plain")).chosen


def test_one_node_is_enough():
    running = [pod(f"f{each.name}", "f", each.name, 3, "4") for each in NODES]
    assert found(decide(high(cpu="2"), *NODES, *running)) == ("a1", {"fa1"})


@pytest.mark.parametrize(
    ("running", "wanted"),
    [
        pytest.param([pod("x1", "db", "a1", 100), pod("x2", "db", "a2", 100)], {}, id="no lower priority"),
        pytest.param(
            [pod("x1", "db", "a1"), pod("x2", "db", "a2")], {"preemptionPolicy": "Never"}, id="never"
        ),
        pytest.param([], {"nodeSelector": {"disk": "ssd"}}, id="no node would do"),
    ],
)
def test_nothing_helps(running, wanted):
    assert found(decide(high(affinity=away_from("db"), **wanted), *NODES[:2], *running)) == (None, set())


def test_the_message_says_that_it_was_tried():
    running = [pod("x1", "db", "a1"), pod("x2", "db", "a2"), pod("boss", "db", "a2", 500)]
    decision = decide(high(affinity=away_from("db")), *NODES[:2], *running)
    assert decision.post_filter.message.endswith("Evicting pods of several nodes does not help.")


def test_budgets_are_kept_if_possible():
    running = [
        pod("x1", "db", "a1"),
        pod("x2", "db", "a2"),
        pod("y1", "db", "b1", 5),
        pod("y2", "db", "b2", 5),
    ]
    budget = manifest(
        "PodDisruptionBudget",
        "db",
        spec={"selector": {"matchLabels": {"zone": "a"}}},
        status={"disruptionsAllowed": 1},
    )
    for number in range(2):
        plain = make_pod(
            f"x{number + 1}", node=f"a{number + 1}", labels={"app": "db", "zone": "a"}, priority=0
        )
        running[number] = plain
    assert found(decide(high(affinity=away_from("db")), *NODES, *running, budget))[1] == {"y1", "y2"}


def test_it_waits_for_victims_that_are_leaving():
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    leaving = make_pod(
        "x2",
        node="a2",
        labels={"app": "db"},
        priority=0,
        metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"},
        status={"conditions": [condition]},
    )
    decision = decide(high(affinity=away_from("db")), *NODES[:2], pod("x1", "db", "a1"), leaving)
    assert found(decision) == (None, set())
    assert "terminating pods that stand in the way" in decision.post_filter.message
    assert decision.post_filter.keeps_nomination


def test_nothing_changes_in_the_cluster():
    running = [pod(f"x{number}", "db", f"a{number % 2 + 1}", number) for number in range(9)]
    world = planner([*NODES, *running, pod("y", "db", "b1", 500)], config())
    before = {each.uid: each.node_name for each in world.cluster.pods()}
    usage = world.cluster.nodes.requested["cpu"].tolist()
    first = found(world.decide(high(affinity=away_from("db"))))
    assert {each.uid: each.node_name for each in world.cluster.pods()} == before
    assert world.cluster.nodes.requested["cpu"].tolist() == usage
    assert found(world.decide(high(affinity=away_from("db")))) == first
    world.carry_out(world.decide(high(affinity=away_from("db"))))
    assert world.cluster.pod("uid-high").node_name == first[0]


def test_pods_that_would_stand_in_the_way_again_are_kept_out():
    running = [pod("x1", "db", "a1"), pod("x2", "db", "a2"), pod("y", "db", "b1", 200)]
    world = planner([*NODES, *running], config())
    wanted = high(affinity=away_from("db"))
    decision = world.decide(wanted)
    for victim in decision.victims:
        world.cluster.remove_pod(victim)
    world.nominations.put(wanted, decision.nominated)
    again = world.decide(pod("x3", "db"))
    assert set(again.rejected()) == {"a1", "a2"}
    assert {reason for status in again.rejected().values() for reason in status.reasons} == {
        "node(s) were in a domain that is being cleared for a pod of higher priority"
    }
    shy = pod("shy", "shy", affinity=away_from("web"))
    assert set(world.decide(shy).rejected()) == {"a1", "a2"}
    for other in (pod("z", "other"), pod("equal", "db", priority=100)):
        assert "a2" not in world.decide(other).rejected()
    world.carry_out(world.decide(wanted))
    assert world.cluster.pod("uid-high").node_name in ("a1", "a2")
    assert world.decide(pod("x4", "db")).chosen in ("b1", "b2")


def test_a_restart_remembers_for_whom_room_is_made():
    waiting = make_pod(
        "high",
        labels={"app": "web"},
        priority=100,
        affinity=away_from("db"),
        status={"nominatedNodeName": "a1"},
    )
    world = planner(NODES, config())
    world.followers.tell(waiting)
    world.keep_nominations([waiting])
    assert set(world.decide(pod("x", "db")).rejected()) == {"a1", "a2"}
    world.nominations.remove(waiting)
    assert world.decide(pod("x", "db")).rejected() == {}


def test_work_is_limited():
    running = [pod(f"x{number}", "db", f"a{number % 2 + 1}", number % 7) for number in range(200)]
    world = [*NODES, *running, pod("y", "db", "b1", 500)]
    decision = decide(high(affinity=away_from("db")), *world, maxTrials=3)
    assert found(decision) == (None, set())
    assert decision.post_filter.message.endswith("and the search ended after 3 trials.")
    assert len(found(decide(high(affinity=away_from("db")), *world, maxTrials=1000))[1]) == 200


@pytest.mark.parametrize("trials", [0, -1, 10_001])
def test_arguments_that_are_wrong(trials):
    with pytest.raises(ConfigError, match="maxTrials: Invalid value"):
        planner([], config(maxTrials=trials))


def slow(wanted, nodes, running):
    """All sets of pods of lower priority, as the sample of scheduler-plugins tries them; the cheapest."""
    lower = [each for each in running if each.priority < wanted.priority]
    best = None
    for count in range(1, len(lower) + 1):
        for victims in combinations(lower, count):
            left = [each for each in running if each not in victims]
            if planner([*nodes, *left], None).decide(wanted).chosen:
                key = (max(each.priority for each in victims), count)
                best = key if best is None else min(best, key)
    return best


@given(
    st.lists(
        st.tuples(st.sampled_from(["a1", "a2", "b1", "b2"]), st.sampled_from([0, 5, 200]), st.booleans()),
        max_size=6,
    ),
    st.booleans(),
)
def test_it_finds_victims_if_any_set_of_pods_would_do(others, own_term):
    """And none that are not needed: with one of them back, the pod does not fit any more."""
    running = [
        pod(
            f"p{number}",
            "db" if is_db else "x",
            name,
            priority,
            affinity=None if own_term else away_from("web"),
        )
        for number, (name, priority, is_db) in enumerate(others)
    ]
    wanted = high(affinity=away_from("db") if own_term else None)
    decision = decide(wanted, *NODES, *running)
    if decision.chosen:
        return
    node_name, victims = found(decision)
    assert (node_name is not None) == (slow(wanted, NODES, running) is not None)
    if node_name:
        left = [each for each in running if each.name not in victims]
        assert planner([*NODES, *left], None).decide(wanted).chosen
        for each in running:
            if each.name in victims:
                assert planner([*NODES, *left, each], None).decide(wanted).chosen is None
