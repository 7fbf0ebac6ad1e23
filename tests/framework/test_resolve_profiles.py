"""Profiles made definite: merging, order, weights, arguments, and what keeps a profile from being built."""

import pytest

from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.errors import ConfigError
from stowplan.framework.args import PluginArgs
from stowplan.framework.plugin import Plugin
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles
from stowplan.plugins.args import NodeResourcesFitArgs


class ByLabelArgs(PluginArgs):
    label_key: str


class ByLabel(Plugin):
    args: ByLabelArgs

    def score(self, state, pod, node):
        return 0


class Always(Plugin):
    """A filter for one node and a scorer for all."""

    def filter(self, state, pod, node):
        return None

    def score_nodes(self, state, pod, nodes):
        return nodes


def resolved(plugins=None, args=None, **fields):
    entries = [{"name": name, "args": found} for name, found in (args or {}).items()]
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"plugins": plugins or {}, "pluginConfig": entries, **fields}],
    }
    registry = Registry.installed()
    (profile,) = resolve_profiles(load(document, registry).config, registry)
    return profile


def points(**sets):
    """`score={"on": ["A:3"], "off": ["*"]}` as a file has it."""
    return {
        point: {
            "enabled": [
                {"name": entry.rpartition("=")[0], "weight": int(entry.rpartition("=")[2])}
                for entry in found.get("on", ())
            ],
            "disabled": [{"name": name} for name in found.get("off", ())],
        }
        for point, found in sets.items()
    }


OTHERS = [
    "VolumeBinding",
    "PodTopologySpread",
    "InterPodAffinity",
    "DynamicResources",
    "NodeResourcesBalancedAllocation",
]


@pytest.mark.parametrize(
    ("plugins", "scores"),
    [
        pytest.param({}, ["TaintToleration=3", "NodeAffinity=2", "NodeResourcesFit=1"], id="the defaults"),
        pytest.param(
            points(multiPoint={"on": ["NodeAffinity=9"]}),
            ["TaintToleration=3", "NodeAffinity=9", "NodeResourcesFit=1"],
            id="a weight in multiPoint keeps the place",
        ),
        pytest.param(
            points(score={"on": ["NodeResourcesFit=5"]}),
            ["NodeResourcesFit=5", "TaintToleration=3", "NodeAffinity=2"],
            id="the point's own come first",
        ),
        pytest.param(
            points(
                score={"on": ["NodeResourcesFit=5", "TaintToleration=0"]},
                multiPoint={"on": ["NodeResourcesFit=7"]},
            ),
            ["NodeResourcesFit=5", "TaintToleration=1", "NodeAffinity=2"],
            id="the point's weight beats multiPoint's",
        ),
        pytest.param(
            points(multiPoint={"off": ["NodeAffinity"]}),
            ["TaintToleration=3", "NodeResourcesFit=1"],
            id="disabled everywhere",
        ),
        pytest.param(
            points(score={"off": ["TaintToleration"]}),
            ["NodeAffinity=2", "NodeResourcesFit=1"],
            id="disabled at the point",
        ),
    ],
)
def test_order_and_weights(plugins, scores):
    found = [f"{name}={weight}" for name, weight in resolved(plugins).points["score"]]
    assert found[: len(scores)] == scores
    assert [each.partition("=")[0] for each in found[len(scores) :]] == [*OTHERS, "ImageLocality"]


@pytest.mark.parametrize(
    ("plugins", "scores"),
    [
        pytest.param(points(score={"off": ["*"]}), [], id="nothing at the point"),
        pytest.param(
            points(score={"off": ["*"], "on": ["ImageLocality=4"]}),
            [("ImageLocality", 4)],
            id="only what the point enables",
        ),
        pytest.param(
            points(multiPoint={"off": ["*"], "on": ["PrioritySort=0", "DefaultBinder=0", "ImageLocality=0"]}),
            [("ImageLocality", 1)],
            id="only what multiPoint enables",
        ),
        pytest.param(
            points(
                multiPoint={
                    "off": ["*"],
                    "on": ["PrioritySort=0", "DefaultBinder=0", "ImageLocality=2", "NodeAffinity=3"],
                },
                score={"off": ["NodeAffinity"], "on": ["NodeAffinity=4", "TaintToleration=5"]},
            ),
            [("ImageLocality", 2), ("NodeAffinity", 4), ("TaintToleration", 5)],
            id="disabled and enabled at the point comes last",
        ),
    ],
)
def test_what_is_left_at_a_point(plugins, scores):
    assert resolved(plugins).points["score"] == scores


def test_every_enabled_plugin_has_arguments_and_a_class():
    profile = resolved(args={"NodeResourcesFit": {"ignoredResources": ["a.com/x"]}})
    used = {name for entries in profile.points.values() for name, _ in entries}
    assert set(profile.classes) == used == set(profile.args)
    assert profile.args["NodeResourcesFit"] == NodeResourcesFitArgs(ignored_resources=("a.com/x",))
    assert profile.args["NodeName"] == PluginArgs()
    assert sorted(profile.as_json()["args"]) == [
        *("DefaultPreemption", "DynamicResources", "InterPodAffinity", "NodeAffinity"),
        *("NodeResourcesBalancedAllocation", "NodeResourcesFit", "PodTopologySpread", "VolumeBinding"),
    ]


@pytest.mark.parametrize(("own", "expected"), [(None, 30), (0, 0), (40, 40)])
def test_percentage_of_nodes_to_score(own, expected):
    registry = Registry.installed()
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 30,
        "profiles": [{"percentageOfNodesToScore": own}],
    }
    (profile,) = resolve_profiles(load(document, registry).config, registry)
    assert profile.percentage_of_nodes_to_score == expected


@pytest.mark.parametrize(
    ("plugins", "args", "message"),
    [
        pytest.param(
            points(filter={"on": ["X=0"]}), {}, 'FilterPlugin "X" does not exist', id="unknown at a point"
        ),
        pytest.param(
            points(multiPoint={"on": ["X=0"]}),
            {},
            'PreFilterPlugin "X" does not exist',
            id="unknown in multiPoint",
        ),
        pytest.param(
            points(score={"on": ["NodeName=0", "X=0"]}, filter={"on": ["ImageLocality=0"]}),
            {},
            '[plugin "ImageLocality" does not extend FilterPlugin plugin, '
            'plugin "NodeName" does not extend ScorePlugin plugin, ScorePlugin "X" does not exist]',
            id="several faults, in kube-scheduler's order",
        ),
        pytest.param(
            points(score={"on": ["NodeAffinity=1", "NodeAffinity=2"]}),
            {},
            'plugin "NodeAffinity" already registered as "ScorePlugin"',
            id="twice at a point",
        ),
        pytest.param(
            points(multiPoint={"on": ["NodeAffinity=1", "NodeAffinity=2"]}),
            {},
            'plugin "NodeAffinity" already registered as "PreFilterPlugin"',
            id="twice in multiPoint",
        ),
        pytest.param(
            points(queueSort={"off": ["*"]}, bind={"off": ["*"]}),
            {},
            "[only one queue sort plugin required for profile with scheduler name "
            '"default-scheduler", but got 0, '
            'at least one bind plugin is needed for profile with scheduler name "default-scheduler"]',
            id="nothing that sorts or binds",
        ),
        pytest.param(
            {},
            {
                "NodeResourcesFit": {
                    "scoringStrategy": {"type": "X", "resources": [{"name": "cpu", "weight": -1}]}
                }
            },
            'initializing plugin "NodeResourcesFit": [scoringStrategy.type: Unsupported '
            'value: "X": supported values: '
            '"LeastAllocated", "MostAllocated", "RequestedToCapacityRatio", '
            "scoringStrategy.resources[0].weight: "
            "Invalid value: -1: resource weight of cpu not in valid range (0, 100]]",
            id="arguments that are checked when the plugin is built",
        ),
        pytest.param(
            points(score={"on": [f"{__name__}:ByLabel=1"]}),
            {},
            f'initializing plugin "{__name__}:ByLabel": args.labelKey: Required value',
            id="a required argument that is missing",
        ),
        pytest.param(
            points(score={"on": ["nowhere.plugins:X=1"]}),
            {},
            "ScorePlugin \"nowhere.plugins:X\" cannot be imported: No module named 'nowhere'",
            id="a module that is not there",
        ),
        pytest.param(
            points(score={"on": ["json:loads=1"]}),
            {},
            'ScorePlugin "json:loads" is not a class derived from stowplan.Plugin',
            id="no plugin at all",
        ),
    ],
)
def test_profiles_that_cannot_be_built(plugins, args, message):
    with pytest.raises(ConfigError) as refused:
        resolved(plugins, args)
    prefix = "initializing profiles: creating profile for scheduler name default-scheduler: "
    assert (refused.value.stage, refused.value.message) == ("framework", prefix + message)


def test_a_plugin_named_by_its_module():
    name = f"{__name__}:Always"
    profile = resolved(points(filter={"on": [f"{name}=0"]}, score={"on": [f"{name}=6"]}))
    assert profile.points["filter"][-1] == (name, 0)
    assert profile.points["score"][-1] == (name, 6)
    assert profile.classes[name].__name__ == "Always"


def test_a_registry_of_given_classes():
    registry = Registry({"Always": Always, "ByLabel": ByLabel})
    assert registry.find("Always") is Always
    assert (registry.args_type("Always"), registry.args_type("ByLabel")) == (None, ByLabelArgs)
    assert [point for point in ("preFilter", "filter", "score") if registry.extends("Always", point)] == [
        "filter",
        "score",
    ]
    with pytest.raises(ConfigError, match='"NodeName" does not exist'):
        registry.find("NodeName")


def test_alpha_points_are_accepted_and_lead_to_nothing():
    profile = resolved({"placementScore": {"enabled": [{"name": "NodeResourcesFit"}]}})
    assert "placementScore" not in profile.points


def test_faults_of_all_profiles_are_named():
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [
            {"schedulerName": name, "plugins": {"bind": {"enabled": [{"name": "X"}]}}}
            for name in ("one", "two")
        ],
    }
    registry = Registry.installed()
    with pytest.raises(
        ConfigError, match=r"scheduler name one: .*X.* does not exist, .*scheduler name two: .*X"
    ):
        resolve_profiles(load(document, registry).config, registry)


def test_the_default_configuration_resolves():
    (profile,) = resolve_profiles(KubeSchedulerConfiguration(), Registry.installed())
    assert profile.scheduler_name == "default-scheduler"
    assert [name for name, _ in profile.points["postFilter"]] == ["DynamicResources", "DefaultPreemption"]
