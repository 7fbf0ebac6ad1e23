"""ScoreByLabel in `stowplan run`, on a real control plane: tutorial 2's steps, by kubectl."""

from __future__ import annotations

import re

from controlplane.objects import node, pod
from controlplane.pods import add_nodes, create, placed
from controlplane.waiting import eventually

NODES = ("10.177.222.232", "10.177.222.243", "10.177.222.253")


def profile(name: str, **args: str) -> dict[str, object]:
    return {
        "schedulerName": name,
        "plugins": {"score": {"enabled": [{"name": "ScoreByLabel"}], "disabled": [{"name": "*"}]}},
        "pluginConfig": [{"name": "ScoreByLabel", "args": args}],
    }


async def test_the_node_with_the_highest_label_is_chosen_as_the_labels_change(control_plane):
    add_nodes(control_plane, *map(node, NODES))
    for name, value in zip(NODES, ("10", "5", "1"), strict=True):
        control_plane.kubectl("label", "node", name, f"score-by-label={value}")
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1beta2",
        "profiles": [profile("scorebylabel", labelKey="score-by-label")],
    }
    with control_plane.stowplan("-v=6", **config) as scheduler:
        create(control_plane, pod("testpod", schedulerName="scorebylabel"))
        await eventually(lambda: placed(control_plane), lambda each: each["testpod"] == NODES[0])
        found = re.findall(r'plugin="ScoreByLabel" node="(.*)" score=(\d+)', scheduler.output)
        assert dict(found) == dict(zip(NODES, ("100", "50", "10"), strict=True))
        events = await eventually(
            lambda: control_plane.kubectl("get", "events"), lambda text: "testpod" in text
        )
        assert f"Successfully assigned default/testpod to {NODES[0]}" in events

        control_plane.kubectl("label", "node", NODES[2], "score-by-label=20", "--overwrite")
        create(control_plane, pod("next", schedulerName="scorebylabel"))
        await eventually(lambda: placed(control_plane), lambda each: each["next"] == NODES[2])


async def test_two_profiles_go_by_labels_of_their_own(control_plane):
    add_nodes(
        control_plane,
        node("fast", labels={"speed": "9", "price": "unknown"}),
        node("cheap", labels={"speed": "2", "price": "3"}),
    )
    profiles = [profile("by-speed", labelKey="speed"), profile("by-price", labelKey="price")]
    with control_plane.stowplan(profiles=profiles):
        create(control_plane, pod("a", schedulerName="by-speed"), pod("b", schedulerName="by-price"))
        await eventually(lambda: placed(control_plane), lambda each: each == {"a": "fast", "b": "cheap"})
