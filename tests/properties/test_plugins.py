"""Each plugin alone against its twin, on random clusters that dwell on what it reads."""

from __future__ import annotations

import pytest
from comparing import assert_agree, examples
from drawing.clusters import scenes
from drawing.profiles import only
from hypothesis import given
from hypothesis import strategies as st

PARTS: dict[str, tuple[set[str], set[str]]] = {
    "NodeUnschedulable": ({"tolerations"}, {"taints"}),
    "TaintToleration": ({"tolerations"}, {"taints"}),
    "NodeAffinity": ({"nodes"}, set()),
    "NodePorts": ({"ports"}, set()),
    "NodeResourcesFit": ({"resources"}, {"resources"}),
    "NodeResourcesBalancedAllocation": ({"resources"}, {"resources"}),
    "ImageLocality": ({"images"}, {"images"}),
    "NodeDeclaredFeatures": ({"features"}, {"features"}),
    "PodTopologySpread": ({"spread", "owners", "nodes", "tolerations"}, {"taints"}),
    "InterPodAffinity": ({"near"}, set()),
}


@pytest.mark.parametrize("plugin", PARTS)
@given(data=st.data())
@examples(60)
def test_agrees_with_its_twin(plugin, data):
    pod_parts, node_parts = PARTS[plugin]
    scene = data.draw(
        scenes(frozenset(pod_parts), frozenset(node_parts), mistakes=True), label="scene"
    )
    assert_agree(scene, data.draw(only(plugin), label="profile"))
