"""PreemptionToleration: PriorityClasses keep their pods from being evicted, for a while or forever."""

from __future__ import annotations

import pytest
from alone import planner as alone
from alone import plugin_of
from hypothesis import given
from hypothesis import strategies as st

from make import make_node, make_pod
from scheduler_staging import staged
from stowplan.api.meta import decode
from stowplan.errors import ConfigError
from stowplan.explain.reasons import preemption_text
from stowplan.plugins.community.preemption_toleration import MINIMUM, SECONDS, PriorityClass

NAME = "PreemptionToleration"
START = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def priority_class(name="safe", value=0, minimum="100", seconds=None):
    annotations = {MINIMUM: minimum, SECONDS: seconds}
    given = {key: text for key, text in annotations.items() if text is not None}
    return decode(PriorityClass, {"metadata": {"name": name, "annotations": given}, "value": value})


def running(name="low", on="n", priority=0, of="safe", started=True):
    status = {"startTime": "2026-01-01T00:00:00Z"} if started else {}
    requests = {"cpu": "4"}
    fields = {"priorityClassName": of, "priority": priority}
    return make_pod(name, node=on, requests=requests, status=status, **fields)


def urgent(priority=10, **fields):
    return make_pod("urgent", priority=priority, requests={"cpu": "4"}, **fields)


def decide(*objects, after=0.0, pod=None):
    """Decide a pod on node n, which is full, so many seconds after the pods on it have started."""
    planner = alone(NAME, make_node("n"), *objects, also=["NodeResourcesFit"])
    planner.profiles["default-scheduler"].plugins[NAME].handle.now = lambda: START + after
    decision = planner.decide(pod or urgent())
    assert decision.error is None
    return decision


def evicted(*objects, **options):
    return sorted(victim.name for victim in decide(*objects, **options).victims)


@pytest.mark.parametrize(
    ("found", "after", "victims"),
    [
        pytest.param(priority_class(), 0, ["low"], id="no seconds: none"),
        pytest.param(priority_class(seconds="60"), 59, [], id="within the time"),
        pytest.param(priority_class(seconds="60"), 60, ["low"], id="after it"),
        pytest.param(priority_class(seconds="-1"), 10**9, [], id="forever"),
        pytest.param(priority_class(minimum="11", seconds="-1"), 0, [], id="a priority just below"),
        pytest.param(priority_class(minimum="10", seconds="-1"), 0, ["low"], id="a priority that may"),
        pytest.param(priority_class(minimum=None, seconds="-1"), 0, ["low"], id="no minimum"),
        pytest.param(priority_class("other", seconds="-1"), 0, ["low"], id="another class"),
        pytest.param(priority_class(minimum="much", seconds="-1"), 0, ["low"], id="no number"),
        pytest.param(priority_class(minimum=str(2**31), seconds="-1"), 0, ["low"], id="beyond 32 bits"),
        pytest.param(priority_class(seconds="1h"), 0, ["low"], id="no seconds"),
        pytest.param(priority_class(seconds="NaN"), 0, ["low"], id="not a number"),
        pytest.param(priority_class(seconds=str(2**63)), 0, ["low"], id="beyond 64 bits"),
        pytest.param(priority_class(seconds=str(2**63 - 1)), 0, [], id="as long as can be"),
    ],
)
def test_who_may_be_evicted(found, after, victims):
    assert evicted(found, running(), after=after) == victims


def test_a_pod_that_has_not_started_is_safe():
    assert evicted(priority_class(seconds="0"), running(started=False)) == []
    assert evicted(priority_class(seconds="60"), running(started=False), after=999) == []


def test_pods_without_a_class_are_not_safe():
    assert evicted(priority_class(seconds="-1"), running(of="")) == ["low"]


def test_a_class_that_is_gone_protects_nobody():
    assert evicted(running(of="gone")) == ["low"]


def test_a_node_whose_pods_are_not_safe_is_chosen():
    objects = [make_node("m"), running("one", "n"), running("two", "m", of="")]
    decision = decide(priority_class(seconds="-1"), *objects)
    assert decision.nominated == "m"
    assert [victim.name for victim in decision.victims] == ["two"]


def test_it_says_whom_the_pod_may_not_evict():
    text = decide(priority_class(seconds="-1"), running()).post_filter.message
    assert text == (
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod. "
        "Pods that priority 10 may not evict: 1 of PriorityClass safe (priority 100 or more may)."
    )


def test_pods_that_never_preempt():
    decision = decide(running(of=""), pod=urgent(preemptionPolicy="Never"))
    assert decision.victims == ()
    assert decision.post_filter.message == "preemption: not eligible due to preemptionPolicy=Never."


def test_changes_of_a_class_count_for_the_next_pod():
    planner = alone(NAME, make_node("n"), running(), also=["NodeResourcesFit"])
    assert len(planner.decide(urgent()).victims) == 1
    planner.cluster.apply(priority_class(seconds="-1"))
    assert len(planner.decide(urgent()).victims) == 0
    planner.cluster.apply(priority_class(minimum="5", seconds="-1"))
    assert len(planner.decide(urgent()).victims) == 1
    planner.cluster.apply(priority_class(seconds="-1"))
    planner.cluster.remove(priority_class())
    assert len(planner.decide(urgent()).victims) == 1


def test_bad_annotations_are_reported_once():
    planner = alone(
        NAME, make_node("n"), running(), priority_class(minimum="much"), also=["NodeResourcesFit"]
    )
    events = []
    plugin = planner.profiles["default-scheduler"].plugins[NAME]
    plugin.handle.record_event = lambda item, kind, reason, note: events.append((item.name, kind, note))
    planner.decide(urgent())
    planner.decide(urgent())
    ((name, kind, note),) = events
    assert (name, kind) == ("safe", "Warning")
    assert note.startswith(f"annotation {MINIMUM} is 'much', but must be a whole number")


def test_arguments():
    args = plugin_of(NAME).args
    assert (args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute) == (10, 100)
    with pytest.raises(ConfigError, match="cannot be zero at the same time"):
        plugin_of(NAME, args={"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0})


NUMBERS = st.none() | st.integers(-5, 25).map(str) | st.just("x")
CLASSES = st.tuples(NUMBERS, NUMBERS)
VICTIMS = st.tuples(st.sampled_from(["a", "b", "", "gone"]), st.integers(5, 15), st.booleans())


@given(st.tuples(CLASSES, CLASSES), VICTIMS, st.integers(0, 25))
def test_as_a_slow_obvious_version_would(classes, victim, after):
    made = [
        priority_class(name, 0, minimum, seconds)
        for name, (minimum, seconds) in zip("ab", classes, strict=True)
    ]
    name, priority, started = victim
    found = evicted(*made, running("low", "n", priority, name, started), after=after)
    known = dict(zip("ab", classes, strict=True)).get(name)
    assert (found == ["low"]) == (priority < 10 and not is_exempt(known, priority, started, after))


def is_exempt(known, priority, started, after):
    if known is None or "x" in known or known[0] is None:
        return False
    seconds = int(known[1] or 0)
    return int(known[0]) > 10 and (seconds < 0 or not started or seconds > after)


def test_explain_says_who_is_safe():
    decision = decide(priority_class(seconds="-1"), running())
    assert preemption_text(decision) == (
        "Preemption cannot help. The pod does not fit on 1 node where no pod may be evicted. "
        "Pods that priority 10 may not evict: 1 of PriorityClass safe (priority 100 or more may)."
    )


async def test_annotations_that_cannot_be_read_are_reported_before_a_pod_is_evicted_for_them():
    post_filter = {"disabled": [{"name": "*"}], "enabled": [{"name": NAME}]}
    async with staged(config={"profiles": [{"plugins": {"postFilter": post_filter}}]}) as stage:
        bad, worse = priority_class(minimum="ten"), priority_class(minimum="ten", seconds="NaN")
        on_event = stage.scheduler.handlers.on_event
        on_event("added", None, bad)
        on_event("modified", bad, worse)
        on_event("modified", worse, worse)
        await stage.settle()
        first, second = stage.notes("InvalidPreemptionToleration")
        assert first.startswith(f"annotation {MINIMUM} is 'ten', but must be a whole number of 32 bits; ")
        assert f"annotation {SECONDS} is 'NaN'" in second
        on_event("deleted", worse, None)
        on_event("added", None, bad)
        await stage.settle()
        assert len(stage.notes("InvalidPreemptionToleration")) == 2  # a repetition is counted in its event
