"""Older versions of the configuration resolve to what their release ran."""

import pytest

from stowplan.config import load
from stowplan.errors import ConfigError
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles

GROUP = "kubescheduler.config.k8s.io"
VERSIONS = [f"{GROUP}/{name}" for name in ("v1beta3", "v1beta2", "v1beta1", "v1alpha2", "v1alpha1")]
VERSIONS.append("componentconfig/v1alpha1")

# What the last release of each version ran by default, less the plugins that no longer exist.
NODE_FILTERS_1_19 = (
    "NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions"
)
FILTERS_1_19 = (
    f"{NODE_FILTERS_1_19} NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity"
)
FILTERS_1_18 = (
    "NodeUnschedulable NodeResourcesFit NodeName NodePorts NodeAffinity VolumeRestrictions TaintToleration "
    "NodeVolumeLimits VolumeBinding VolumeZone InterPodAffinity PodTopologySpread"
)
SCORES_1_19 = {
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
    "InterPodAffinity": 1,
    "NodeResourcesFit": 1,
    "NodeAffinity": 1,
    "PodTopologySpread": 2,
    "TaintToleration": 1,
}
SCORES_1_18 = {
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
    "InterPodAffinity": 1,
    "NodeResourcesFit": 1,
    "NodeAffinity": 1,
    "TaintToleration": 1,
    "PodTopologySpread": 1,
}
SCORES_1_28 = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "NodeResourcesFit": 1,
    "VolumeBinding": 1,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
}


def old(version, **fields):
    return {"apiVersion": version, "kind": "KubeSchedulerConfiguration", **fields}


def beta(name, plugins=None, args=None, **fields):
    """A file with one profile."""
    entries = [{"name": plugin, "args": found} for plugin, found in (args or {}).items()]
    return old(f"{GROUP}/{name}", profiles=[{"plugins": plugins or {}, "pluginConfig": entries}], **fields)


def alpha1(**fields):
    return old(f"{GROUP}/v1alpha1", **fields)


def resolved(document):
    registry = Registry.installed()
    (profile,) = resolve_profiles(load(document, registry).config, registry)
    return profile


def names(profile, point):
    return [name for name, _ in profile.points[point]]


@pytest.mark.parametrize(
    ("version", "filters", "scores"),
    [
        (f"{GROUP}/v1beta3", FILTERS_1_19, SCORES_1_28),
        (f"{GROUP}/v1beta2", FILTERS_1_19, SCORES_1_19),
        (f"{GROUP}/v1beta1", FILTERS_1_19, SCORES_1_19),
        (f"{GROUP}/v1alpha2", FILTERS_1_18, SCORES_1_18),
        (f"{GROUP}/v1alpha1", FILTERS_1_18, SCORES_1_18),
        ("componentconfig/v1alpha1", FILTERS_1_18, SCORES_1_18),
    ],
)
def test_default_plugins(version, filters, scores):
    profile = resolved(old(version))
    assert names(profile, "filter") == filters.split()
    assert profile.points["score"] == list(scores.items())
    assert names(profile, "postFilter") == ["DefaultPreemption"]
    assert names(profile, "preEnqueue") == ["SchedulingGates", "DefaultPreemption"]
    assert names(profile, "reserve") == names(profile, "preBind") == ["VolumeBinding"]
    assert (names(profile, "queueSort"), names(profile, "bind")) == (["PrioritySort"], ["DefaultBinder"])
    assert profile.scheduler_name == "default-scheduler"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_filter_and_score_has_what_it_needs(version):
    """A plugin that prepares its work at another point today runs there, too."""
    profile, registry = resolved(old(version)), Registry.installed()
    for point, before in (("filter", "preFilter"), ("score", "preScore")):
        needed = {name for name in names(profile, point) if registry.extends(name, before)}
        assert needed <= set(names(profile, before)) | {"VolumeBinding"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_warning_names_the_version(version):
    (warning,) = load(old(version), Registry.installed()).warnings
    assert warning.startswith(f"converted from {version} (Kubernetes 1.")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_converted_reads_as_itself(version):
    registry = Registry.installed()
    converted = load(old(version), registry).config
    again = load(converted.without_defaults(), registry)
    assert (again.config, again.warnings) == (converted, [])


@pytest.mark.parametrize(
    ("document", "point", "expected"),
    [
        pytest.param(
            beta("v1beta2", {"score": {"disabled": [{"name": "*"}], "enabled": [{"name": "ImageLocality"}]}}),
            "score",
            [("ImageLocality", 1)],
            id="all defaults of a point disabled",
        ),
        pytest.param(
            beta("v1beta2", {"filter": {"disabled": [{"name": "NodePorts"}, {"name": "EBSLimits"}]}}),
            "filter",
            [(name, 0) for name in FILTERS_1_19.split() if name != "NodePorts"],
            id="a default disabled, and one that is no more",
        ),
        pytest.param(
            beta("v1beta2", {"score": {"enabled": [{"name": "NodeAffinity", "weight": 7}]}}),
            "score",
            list({**SCORES_1_19, "NodeAffinity": 7}.items()),
            id="a default with another weight keeps its place",
        ),
        pytest.param(
            beta(
                "v1beta1",
                {
                    "score": {
                        "disabled": [{"name": "*"}],
                        "enabled": [{"name": "SelectorSpread", "weight": 4}],
                    }
                },
            ),
            "score",
            [("PodTopologySpread", 4)],
            id="SelectorSpread is PodTopologySpread",
        ),
        pytest.param(
            beta(
                "v1beta1",
                {
                    "filter": {
                        "disabled": [{"name": "*"}],
                        "enabled": [{"name": "CinderLimits"}, {"name": "EBSLimits"}],
                    }
                },
            ),
            "filter",
            [("NodeVolumeLimits", 0)],
            id="volume limits are one plugin",
        ),
        pytest.param(
            beta("v1beta3", {"multiPoint": {"enabled": [{"name": "ImageLocality", "weight": 9}]}}),
            "score",
            list({**SCORES_1_28, "ImageLocality": 9}.items()),
            id="multiPoint of v1beta3",
        ),
        pytest.param(
            beta("v1beta3", {"multiPoint": {"enabled": [{"name": "DynamicResources"}]}}),
            "postFilter",
            [("DynamicResources", 0), ("DefaultPreemption", 0)],
            id="a newer plugin that the file asks for",
        ),
        pytest.param(
            alpha1(
                plugins={
                    "postFilter": {"disabled": [{"name": "*"}], "enabled": [{"name": "TaintToleration"}]}
                }
            ),
            "preScore",
            [
                ("TaintToleration", 0),
                ("NodeResourcesBalancedAllocation", 0),
                ("NodeResourcesFit", 0),
                ("NodeAffinity", 0),
            ],
            id="postFilter of v1alpha1 is preScore",
        ),
        pytest.param(
            alpha1(plugins={"unreserve": {"enabled": [{"name": "DynamicResources"}]}}),
            "reserve",
            [("VolumeBinding", 0), ("DynamicResources", 0)],
            id="unreserve is part of reserve",
        ),
        pytest.param(alpha1(disablePreemption=True), "postFilter", [], id="preemption disabled"),
    ],
)
def test_plugins_of_a_point(document, point, expected):
    assert resolved(document).points[point] == expected


@pytest.mark.parametrize(
    ("document", "plugin", "expected"),
    [
        pytest.param(
            beta(
                "v1beta1", args={"NodeResourcesLeastAllocated": {"resources": [{"name": "cpu", "weight": 3}]}}
            ),
            "NodeResourcesFit",
            {"scoringStrategy": {"type": "LeastAllocated", "resources": [{"name": "cpu", "weight": 3}]}},
            id="least allocated",
        ),
        pytest.param(
            beta(
                "v1beta1",
                {
                    "score": {
                        "disabled": [{"name": "NodeResourcesLeastAllocated"}],
                        "enabled": [{"name": "NodeResourcesMostAllocated"}],
                    }
                },
                {
                    "NodeResourcesMostAllocated": {
                        "apiVersion": f"{GROUP}/v1beta1",
                        "kind": "NodeResourcesMostAllocatedArgs",
                        "resources": [{"name": "memory", "weight": 2}],
                    },
                    "NodeResourcesFit": {
                        "apiVersion": f"{GROUP}/v1beta1",
                        "kind": "NodeResourcesFitArgs",
                        "ignoredResources": ["example.com/x"],
                    },
                },
            ),
            "NodeResourcesFit",
            {
                "ignoredResources": ["example.com/x"],
                "scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "memory", "weight": 2}]},
            },
            id="most allocated, with the filter's own arguments",
        ),
        pytest.param(
            beta(
                "v1beta1",
                {
                    "score": {
                        "disabled": [{"name": "*"}],
                        "enabled": [{"name": "RequestedToCapacityRatio", "weight": 5}],
                    }
                },
                {"RequestedToCapacityRatio": {"shape": [{"utilization": 0, "score": 10}]}},
            ),
            "NodeResourcesFit",
            {
                "scoringStrategy": {
                    "type": "RequestedToCapacityRatio",
                    "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
                    "requestedToCapacityRatio": {"shape": [{"utilization": 0, "score": 10}]},
                }
            },
            id="requested to capacity ratio",
        ),
        pytest.param(
            alpha1(algorithmSource={"provider": "ClusterAutoscalerProvider"}),
            "NodeResourcesFit",
            {
                "scoringStrategy": {
                    "type": "MostAllocated",
                    "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
                }
            },
            id="the provider for the cluster autoscaler",
        ),
        pytest.param(
            alpha1(hardPodAffinitySymmetricWeight=10, bindTimeoutSeconds=30),
            "InterPodAffinity",
            {"hardPodAffinityWeight": 10, "ignorePreferredTermsOfExistingPods": False},
            id="hard pod affinity weight of v1alpha1",
        ),
        pytest.param(
            old(f"{GROUP}/v1alpha2", bindTimeoutSeconds=30),
            "VolumeBinding",
            {"bindTimeoutSeconds": 30},
            id="bind timeout",
        ),
        pytest.param(
            beta("v1alpha2", args={"VolumeBinding": {"bindTimeoutSeconds": 5}}, bindTimeoutSeconds=30),
            "VolumeBinding",
            {"bindTimeoutSeconds": 5},
            id="arguments of the plugin come first",
        ),
        pytest.param(
            alpha1(), "PodTopologySpread", {"defaultingType": "System"}, id="spreading by SelectorSpread"
        ),
        pytest.param(
            alpha1(plugins={"score": {"disabled": [{"name": "DefaultPodTopologySpread"}]}}),
            "PodTopologySpread",
            {"defaultingType": "List"},
            id="no spreading by default",
        ),
        pytest.param(
            beta(
                "v1beta1",
                args={
                    "PodTopologySpread": {
                        "defaultConstraints": [
                            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
                        ]
                    }
                },
            ),
            "PodTopologySpread",
            {
                "defaultConstraints": [
                    {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
                ],
                "defaultingType": "List",
            },
            id="constraints of 1.19, which had no defaultingType",
        ),
        pytest.param(
            beta(
                "v1beta1",
                {"filter": {"enabled": [{"name": "NodeLabel"}]}},
                {"NodeLabel": {"presentLabels": ["zone"], "absentLabels": ["retiring"]}},
            ),
            "NodeAffinity",
            {
                "addedAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {"key": "zone", "operator": "Exists"},
                                    {"key": "retiring", "operator": "DoesNotExist"},
                                ]
                            }
                        ]
                    }
                }
            },
            id="NodeLabel's filter is added node affinity",
        ),
        pytest.param(
            beta(
                "v1beta3",
                args={"NodeResourcesFit": {"apiVersion": f"{GROUP}/v1beta3", "kind": "NodeResourcesFitArgs"}},
            ),
            "NodeResourcesFit",
            {
                "scoringStrategy": {
                    "type": "LeastAllocated",
                    "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
                }
            },
            id="arguments that name their old version",
        ),
    ],
)
def test_arguments(document, plugin, expected):
    found = resolved(document).args[plugin].as_json()
    assert {name: value for name, value in found.items() if name not in ("apiVersion", "kind")} == expected


@pytest.mark.parametrize(
    ("document", "left_out"),
    [
        pytest.param(beta("v1beta1"), "NodePreferAvoidPods", id="a default that is no more"),
        pytest.param(
            beta(
                "v1beta1",
                {
                    "score": {
                        "disabled": [{"name": "NodePreferAvoidPods"}],
                        "enabled": [{"name": "ServiceAffinity"}],
                    }
                },
            ),
            "ServiceAffinity",
            id="a plugin that is no more",
        ),
        pytest.param(
            beta(
                "v1beta1",
                {
                    "score": {
                        "disabled": [{"name": "NodePreferAvoidPods"}],
                        "enabled": [{"name": "NodeResourcesMostAllocated"}],
                    }
                },
            ),
            "NodeResourcesMostAllocated",
            id="a second scoring strategy",
        ),
    ],
)
def test_a_warning_names_what_was_left_out(document, left_out):
    (warning,) = load(document, Registry.installed()).warnings
    assert warning.endswith(f"left out plugins that no longer exist: {left_out}")


def test_other_fields_carry_over():
    document = alpha1(
        schedulerName="mine",
        leaderElection={"lockObjectName": "lock", "lockObjectNamespace": "team", "resourceLock": "endpoints"},
        clientConnection={"kubeconfig": "/k"},
        podInitialBackoffSeconds=3,
        percentageOfNodesToScore=20,
        healthzBindAddress="0.0.0.0:10251",
        failureDomains="x",
    )
    loaded = load(document, Registry.installed())
    found, election = loaded.config, loaded.config.leader_election
    assert (election.resource_name, election.resource_namespace, election.resource_lock) == (
        "lock",
        "team",
        "leases",
    )
    assert (found.client_connection.kubeconfig, found.pod_initial_backoff_seconds) == ("/k", 3)
    assert (found.profiles[0].scheduler_name, found.percentage_of_nodes_to_score) == ("mine", 20)


def test_profiles_of_v1alpha2_and_its_extenders():
    document = old(
        f"{GROUP}/v1alpha2",
        profiles=[{"schedulerName": "a"}, {"schedulerName": "b"}],
        extenders=[
            {
                "urlPrefix": "http://e",
                "enableHttps": True,
                "httpTimeout": 5_000_000_000,
                "TLSConfig": {"CAFile": "c"},
            }
        ],
    )
    found = load(document, Registry.installed()).config
    assert [profile.scheduler_name for profile in found.profiles] == ["a", "b"]
    (extender,) = found.extenders
    assert (extender.enable_https, str(extender.http_timeout), extender.tls_config.ca_file) == (
        True,
        "5s",
        "c",
    )


def test_alpha_versions_ignore_what_they_do_not_know():
    (warning,) = load(alpha1(SchedulerName="a", foo=1, profiles=[{"bar": 1}]), Registry.installed()).warnings
    assert warning.endswith("ignored unknown fields, as that version did: foo, profiles[0].bar")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param(beta("v1beta2", foo=1), 'unknown field "foo"', id="a field of none"),
        pytest.param(
            beta("v1beta1", algorithmSource={}), 'unknown field "algorithmSource"', id="a field of v1alpha1"
        ),
        pytest.param(
            beta("v1beta3", metricsBindAddress=":1"),
            'unknown field "metricsBindAddress"',
            id="a field of v1beta2",
        ),
        pytest.param(
            beta("v1beta2", {"multiPoint": {"enabled": [{"name": "X"}]}}),
            'unknown field "profiles[0].plugins.multiPoint"',
            id="multiPoint before v1beta3",
        ),
        pytest.param(
            beta(
                "v1beta1", {"unreserve": {"enabled": [{"name": "X"}]}}, leaderElection={"lockObjectName": "x"}
            ),
            'unknown field "leaderElection.lockObjectName", unknown field "profiles[0].plugins.unreserve"',
            id="points and locks of v1alpha",
        ),
        pytest.param(
            alpha1(bindTimeoutSeconds="x"),
            'bindTimeoutSeconds: Invalid value: "x": expected int, got str',
            id="a wrong type",
        ),
    ],
)
def test_refused_while_decoding(document, message):
    with pytest.raises(ConfigError) as refused:
        load(document, Registry.installed())
    assert (refused.value.stage, refused.value.message) == ("decode", f"strict decoding error: {message}")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param(
            alpha1(algorithmSource={"provider": "X"}),
            'algorithmSource.provider: Unsupported value: "X": supported values: '
            '"ClusterAutoscalerProvider", "DefaultProvider"',
            id="an unknown provider",
        ),
        pytest.param(
            old(
                f"{GROUP}/v1beta2",
                profiles=[{"pluginConfig": [{"name": "NodeAffinity"}, {"name": "NodeAffinity"}]}],
            ),
            'profiles[0].pluginConfig[1]: Duplicate value: "NodeAffinity"',
            id="arguments twice",
        ),
        pytest.param(
            beta("v1beta2", args={"InterPodAffinity": {"hardPodAffinityWeight": 101}}),
            "profiles[0].pluginConfig[0].args.hardPodAffinityWeight: Invalid value: 101: not "
            "in valid range [0, 100]",
            id="a wrong argument",
        ),
    ],
)
def test_refused(document, message):
    with pytest.raises(ConfigError) as refused:
        load(document, Registry.installed())
    assert refused.value.message == message
