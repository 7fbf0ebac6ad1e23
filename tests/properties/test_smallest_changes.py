"""Whatever the cluster: a change that is proposed changes the outcome, and one step less of it does not."""

from __future__ import annotations

import time

from comparing import nominate
from drawing.clusters import crowded_scenes, mixed_scenes
from drawing.profiles import configuration, profiles
from hypothesis import given
from hypothesis import strategies as st

from example_share import examples
from make import planner
from stowplan.api.pod import Pod
from stowplan.cycle import schedule
from stowplan.explain.smallest_changes import Trial, smallest_changes, vary_weights

LONG = 60
STEPS = 6
TIGHT = frozenset({"tight"})


def decided_anew(scene, config, pod, *, node=None, weight=None):
    """On a cluster that is built for this decision alone."""
    asked = planner(scene.objects, config)
    nominate(asked, scene)
    if node is not None:
        asked.cluster.add_node(node)
    profile = asked.profile_of(pod)
    return schedule(profile if weight is None else profile.with_weight(*weight), pod, asked.cluster.nodes)


def flips(before, after):
    if before.chosen is None:
        return after.chosen is not None or (before.nominated is None and after.nominated is not None)
    return after.chosen is not None and before.chosen not in {after.names[row] for row in after.best.tolist()}


def check(scene, profile):
    config = configuration(profile)
    asked = planner(scene.objects, config)
    nominate(asked, scene)
    pod = Pod.decode(scene.pending[0])
    before = asked.decide(pod)
    changes = smallest_changes(asked, before, seconds=LONG)
    assert asked.decide(pod).as_golden() == before.as_golden()  # nothing is left of the trials
    assert changes.is_complete
    for each in changes.found:
        after = decided_anew(scene, config, each.pod or pod, node=each.node, weight=each.weight)
        assert flips(before, after), each
        assert each.flip.node == (after.nominated if each.flip.by_preemption else after.chosen)
        if isinstance(each.less, Pod):
            assert not flips(before, decided_anew(scene, config, each.less)), each
        elif each.less is not None:
            weight = (each.weight[0], each.less)
            assert not flips(before, decided_anew(scene, config, pod, weight=weight)), each


@given(scene=mixed_scenes(most_pods=8), profile=profiles())
@examples(60)
def test_where_pods_fit_or_not(scene, profile):
    check(scene, profile)


@given(data=st.data())
@examples(40)
def test_where_room_is_scarce(data):
    check(data.draw(crowded_scenes(TIGHT, TIGHT)), data.draw(profiles()))


@given(scene=mixed_scenes(most_pods=8), profile=profiles())
@examples(60)
def test_no_smaller_change_of_a_weight_does_it(scene, profile):
    asked = planner(scene.objects, configuration(profile))
    nominate(asked, scene)
    pod = Pod.decode(scene.pending[0])
    before, own = asked.decide(pod), asked.profile_of(pod)
    proposed = {
        each.weight[0]: abs(each.now - each.was)
        for each in vary_weights(Trial(asked, before, LONG, time.time))
    }
    for step in own.scores if before.relative_totals is not None else ():
        found = [
            size
            for size in range(1, STEPS + 1)
            for weight in (step.weight + size, step.weight - size)
            if weight >= 1
            and flips(before, schedule(own.with_weight(step.name, weight), pod, asked.cluster.nodes))
        ]
        if found:
            assert proposed[step.name] == found[0]
        else:
            assert proposed.get(step.name, STEPS + 1) > STEPS
