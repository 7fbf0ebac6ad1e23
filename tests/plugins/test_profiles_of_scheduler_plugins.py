"""Profiles that enable the plugins of scheduler-plugins at the extension points that they have there."""

from __future__ import annotations

import pytest

from stowplan.config import load
from stowplan.errors import ConfigError
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles

POINTS = {
    "Coscheduling": ("queueSort", "preFilter", "postFilter", "permit", "reserve"),
    "CapacityScheduling": ("preFilter", "postFilter", "reserve"),
    "NodeResourcesAllocatable": ("score",),
    "NodeResourceTopologyMatch": ("preFilter", "filter", "score", "reserve", "postBind"),
    "TargetLoadPacking": ("score",),
    "LoadVariationRiskBalancing": ("score",),
    "LowRiskOverCommitment": ("preScore", "score"),
    "Peaks": ("score",),
    "TopologicalSort": ("queueSort",),
    "NetworkOverhead": ("preFilter", "filter", "score"),
    "PreemptionToleration": ("postFilter",),
    "PodState": ("score",),
    "QOSSort": ("queueSort",),
    "CrossNodePreemption": ("postFilter",),
    "SySched": ("score",),
    "NodeMetadata": ("score",),
}
ARGS = {
    "Peaks": {"WatcherAddress": "http://load-watcher:2020"},
    "NodeMetadata": {
        "metadataKey": "rank",
        "metadataSource": "Label",
        "metadataType": "Number",
        "scoringStrategy": "Highest",
    },
}


def points_of(name, *points, multi_point=False):
    """At which points a plugin is that a profile enables at these."""
    plugins = {point: {"enabled": [{"name": name}]} for point in points}
    if "queueSort" in plugins:
        plugins["queueSort"]["disabled"] = [{"name": "*"}]
    if multi_point:
        plugins["multiPoint"] = {"enabled": [{"name": name}]}
    config = [{"name": name, "args": ARGS[name]}] if name in ARGS else []
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"plugins": plugins, "pluginConfig": config}],
    }
    registry = Registry.installed()
    (profile,) = resolve_profiles(load(content, registry).config, registry)
    return {point for point, entries in profile.points.items() if name in dict(entries)}


@pytest.mark.parametrize("name", POINTS)
def test_all_points_together_are_as_multi_point(name):
    sorts = ("queueSort",) if "queueSort" in POINTS[name] else ()
    assert points_of(name, *POINTS[name]) == points_of(name, *sorts, multi_point=True)


@pytest.mark.parametrize(("name", "point"), [(name, point) for name in POINTS for point in POINTS[name]])
def test_each_point_alone(name, point):
    points_of(name, point)


def test_a_point_that_it_has_nowhere_is_still_rejected():
    with pytest.raises(ConfigError, match='plugin "Coscheduling" does not extend ScorePlugin plugin'):
        points_of("Coscheduling", "score")
