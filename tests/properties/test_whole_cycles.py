"""Whole profiles against the twins: who refuses a node first, every score, the message, preemption."""

from __future__ import annotations

import pytest
from comparing import assert_agree
from drawing.clusters import crowded_scenes, mixed_scenes
from drawing.profiles import profiles
from hypothesis import given
from hypothesis import strategies as st
from twins.cycle import TWINS, WEIGHTS, Profile

from example_share import examples

ONE_NODE_AT_A_TIME = ("NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodeResourcesFit")
"""Plugins whose answer for a node depends on that node alone: preemption tries all nodes at once."""


@given(scene=mixed_scenes(most_pods=12), profile=profiles())
@examples(150)
def test_every_plugin_at_once(scene, profile):
    assert_agree(scene, profile)


@pytest.mark.parametrize(
    ("pod_parts", "plugins"),
    [
        pytest.param({"tight"}, ONE_NODE_AT_A_TIME, id="resources, all nodes together"),
        pytest.param({"tight"}, tuple(TWINS), id="resources"),
        pytest.param({"ports"}, tuple(TWINS), id="ports"),
        pytest.param({"near"}, tuple(TWINS), id="pod affinity"),
        pytest.param({"spread"}, tuple(TWINS), id="topology spread"),
        pytest.param({"tight", "near", "spread", "ports"}, tuple(TWINS), id="all of it"),
    ],
)
@given(data=st.data())
@examples(50)
def test_preemption(pod_parts, plugins, data):
    parts = frozenset(pod_parts)
    scene = data.draw(crowded_scenes(parts, parts & {"tight"}), label="scene")
    everything = plugins == tuple(TWINS)
    assert_agree(scene, Profile(plugins, WEIGHTS if everything else {}, claims=everything))
