"""Legacy Policy files: as a file, named by algorithmSource, in a ConfigMap."""

import itertools
import json

import pytest

from stowplan.config import load
from stowplan.errors import ConfigError
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles

MANDATORY = ["NodeUnschedulable", "TaintToleration"]
ALL_FILTERS = [
    *("NodeUnschedulable", "NodeResourcesFit", "NodeName", "NodePorts", "NodeAffinity", "VolumeRestrictions"),
    *(
        "TaintToleration",
        "NodeVolumeLimits",
        "VolumeBinding",
        "VolumeZone",
        "PodTopologySpread",
        "InterPodAffinity",
    ),
]


def policy(**fields):
    return {"kind": "Policy", "apiVersion": "v1", **fields}


def named(*names):
    return [{"name": name} for name in names]


def weighted(**weights):
    return [{"name": name, "weight": weight} for name, weight in weights.items()]


def resolved(document, **options):
    registry = Registry.installed()
    (profile,) = resolve_profiles(load(document, registry, **options).config, registry)
    return profile


def names(profile, point):
    return [name for name, _ in profile.points[point]]


@pytest.mark.parametrize(
    ("predicates", "filters"),
    [
        pytest.param(None, ALL_FILTERS, id="none given: the defaults"),
        pytest.param([], MANDATORY, id="an empty list: only what is mandatory"),
        pytest.param(
            named("MatchInterPodAffinity", "PodFitsResources", "HostName"),
            ["NodeUnschedulable", "NodeName", "NodeResourcesFit", "TaintToleration", "InterPodAffinity"],
            id="in the order in which they ran",
        ),
        pytest.param(
            named("GeneralPredicates", "PodFitsPorts"),
            [
                "NodeUnschedulable",
                "NodeResourcesFit",
                "NodeName",
                "NodePorts",
                "NodeAffinity",
                "TaintToleration",
            ],
            id="general predicates, and a former name",
        ),
        pytest.param(
            named(
                "MaxEBSVolumeCount",
                "MaxCSIVolumeCountPred",
                "NoVolumeZoneConflict",
                "NoDiskConflict",
                "EvenPodsSpread",
            ),
            [
                "NodeUnschedulable",
                "VolumeRestrictions",
                "TaintToleration",
                "NodeVolumeLimits",
                "VolumeZone",
                "PodTopologySpread",
            ],
            id="volumes and spreading",
        ),
        pytest.param(
            named("CheckNodeCondition", "CheckNodeMemoryPressure"), MANDATORY, id="conditions are taints"
        ),
    ],
)
def test_predicates(predicates, filters):
    document = policy() if predicates is None else policy(predicates=predicates)
    assert names(resolved(document), "filter") == filters


def test_the_order_of_predicates_is_that_of_kube_scheduler():
    """No release used the order of the file, nor the field `order` that a design once proposed."""
    listed = ["MatchNodeSelector", "HostName", "PodFitsResources"]
    found = [
        names(resolved(policy(predicates=named(*predicates))), "filter")
        for predicates in itertools.permutations(listed)
    ]
    assert (
        found
        == [["NodeUnschedulable", "NodeName", "NodeAffinity", "NodeResourcesFit", "TaintToleration"]] * 6
    )
    ordered = policy(predicates=[{"name": "HostName", "order": 2}])
    (warning,) = load(ordered, Registry.installed()).warnings
    assert "ignored unknown fields, as that version did: predicates[0].order" in warning


@pytest.mark.parametrize(
    ("priorities", "scores"),
    [
        pytest.param(
            None,
            {
                "NodeResourcesBalancedAllocation": 1,
                "PodTopologySpread": 2,
                "ImageLocality": 1,
                "InterPodAffinity": 1,
                "NodeResourcesFit": 1,
                "NodeAffinity": 1,
                "TaintToleration": 1,
            },
            id="none given: the defaults",
        ),
        pytest.param([], {}, id="an empty list"),
        pytest.param(
            weighted(TaintTolerationPriority=4, EqualPriority=9, BalancedResourceAllocation=2),
            {"NodeResourcesBalancedAllocation": 2, "TaintToleration": 4},
            id="by name, and one that changes nothing",
        ),
        pytest.param(weighted(ServiceSpreadingPriority=3), {"PodTopologySpread": 3}, id="service spreading"),
        pytest.param(weighted(MostRequestedPriority=3), {"NodeResourcesFit": 3}, id="most requested"),
    ],
)
def test_priorities(priorities, scores):
    document = policy() if priorities is None else policy(priorities=priorities)
    assert resolved(document).points["score"] == list(scores.items())


@pytest.mark.parametrize(
    ("document", "plugin", "field", "value"),
    [
        pytest.param(
            policy(hardPodAffinitySymmetricWeight=10),
            "InterPodAffinity",
            "hardPodAffinityWeight",
            10,
            id="hard weight",
        ),
        pytest.param(policy(), "InterPodAffinity", "hardPodAffinityWeight", 1, id="no hard weight"),
        pytest.param(
            policy(priorities=weighted(SelectorSpreadPriority=1)),
            "PodTopologySpread",
            "defaultingType",
            "System",
            id="spreading",
        ),
        pytest.param(
            policy(priorities=weighted(EvenPodsSpreadPriority=1)),
            "PodTopologySpread",
            "defaultingType",
            "List",
            id="spreading only of pods that ask for it",
        ),
        pytest.param(
            policy(priorities=weighted(MostRequestedPriority=1)),
            "NodeResourcesFit",
            "scoringStrategy",
            {
                "type": "MostAllocated",
                "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
            },
            id="most requested",
        ),
        pytest.param(
            policy(
                priorities=[
                    {
                        "name": "Mine",
                        "weight": 2,
                        "argument": {
                            "requestedToCapacityRatioArguments": {
                                "shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}],
                                "resources": [{"name": "example.com/gpu", "weight": 3}],
                            }
                        },
                    }
                ]
            ),
            "NodeResourcesFit",
            "scoringStrategy",
            {
                "type": "RequestedToCapacityRatio",
                "resources": [{"name": "example.com/gpu", "weight": 3}],
                "requestedToCapacityRatio": {
                    "shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]
                },
            },
            id="requested to capacity ratio under a name of one's own",
        ),
        pytest.param(
            policy(
                predicates=[
                    {"name": "Mine", "argument": {"labelsPresence": {"labels": ["zone"], "presence": True}}}
                ]
            ),
            "NodeAffinity",
            "addedAffinity",
            {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
                }
            },
            id="labels that nodes must have",
        ),
    ],
)
def test_arguments(document, plugin, field, value):
    assert resolved(document).args[plugin].as_json()[field] == value


@pytest.mark.parametrize(
    ("predicates", "reserve"),
    [
        pytest.param(named("CheckVolumeBinding"), ["VolumeBinding"], id="with volumes"),
        pytest.param(named("PodFitsResources"), [], id="without"),
    ],
)
def test_volumes_are_bound_where_they_are_checked(predicates, reserve):
    profile = resolved(policy(predicates=predicates))
    assert names(profile, "reserve") == names(profile, "preBind") == reserve


def test_extenders():
    document = policy(
        extenders=[
            {
                "urlPrefix": "http://e",
                "prioritizeVerb": "score",
                "BindVerb": "bind",
                "weight": 1,
                "enableHttps": True,
                "httpTimeout": 100_000_000,
                "managedResources": [{"name": "example.com/gpu", "ignoredByScheduler": True}],
            }
        ]
    )
    (extender,) = load(document, Registry.installed()).config.extenders
    assert (extender.bind_verb, extender.enable_https, str(extender.http_timeout)) == ("bind", True, "100ms")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param(
            policy(predicates=named("PodFitsResources", "X"), priorities=weighted(Y=1)),
            r'\[predicates\[1\]: predicate type not found for "X", priorities\[0\]: priority '
            r'type not found for "Y"\]',
            id="unknown names",
        ),
        pytest.param(
            policy(predicates=[{"name": 1}]), r"predicates\[0\]\.name: Invalid value: 1", id="a wrong type"
        ),
    ],
)
def test_refused(document, words):
    with pytest.raises(ConfigError, match=words):
        load(document, Registry.installed())


def test_what_has_no_successor_is_named_in_the_warning():
    document = policy(
        priorities=[
            {"name": "A", "weight": 1, "argument": {"labelPreference": {"label": "a", "presence": True}}},
            {"name": "B", "weight": 1, "argument": {"serviceAntiAffinity": {"label": "b"}}},
        ],
        foo=1,
    )
    (warning,) = load(document, Registry.installed()).warnings
    assert warning == (
        "converted from a Policy file (Kubernetes 1.22 and before) to v1; left out plugins that "
        "no longer exist: NodeLabel, ServiceAffinity; ignored unknown fields, as that version did: foo"
    )


class TestWhereAPolicyComesFrom:
    """A configuration of v1alpha1 names its policy."""

    policy = policy(predicates=[], priorities=weighted(ImageLocalityPriority=7))

    def config(self, **source):
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1alpha1",
            "kind": "KubeSchedulerConfiguration",
            "schedulerName": "mine",
            "algorithmSource": {"policy": source},
        }

    def test_a_file(self, tmp_path):
        file = tmp_path / "policy.json"
        file.write_text(json.dumps(self.policy))
        profile = resolved(self.config(file={"path": str(file)}))
        assert (profile.scheduler_name, profile.points["score"]) == ("mine", [("ImageLocality", 7)])

    def test_a_file_that_is_missing(self, tmp_path):
        with pytest.raises(ConfigError, match=r"policy\.json: cannot be read: No such file"):
            load(self.config(file={"path": str(tmp_path / "policy.json")}), Registry.installed())

    def test_a_config_map_that_is_not_at_hand(self):
        loaded = load(self.config(configMap={"namespace": "default", "name": "p"}), Registry.installed())
        assert loaded.policy_config_map == "default/p"
        assert loaded.warnings[1] == (
            "the policy in ConfigMap default/p was not read, so the default plugins are used: "
            "pass the policy with --policy FILE"
        )

    @pytest.mark.parametrize(
        "given",
        [
            pytest.param(policy, id="the policy"),
            pytest.param(
                {"kind": "ConfigMap", "data": {"policy.cfg": json.dumps(policy)}}, id="its ConfigMap"
            ),
            pytest.param(
                "kind: Policy\npredicates: []\npriorities: [{name: ImageLocalityPriority, weight: 7}]",
                id="the policy in YAML",
            ),
        ],
    )
    def test_a_config_map_that_is_given(self, given):
        config = self.config(configMap={"namespace": "default", "name": "p"})
        loaded = load(config, Registry.installed(), policy=given)
        assert (len(loaded.warnings), loaded.policy_config_map) == (1, "")
        assert resolved(config, policy=given).points["score"] == [("ImageLocality", 7)]

    @pytest.mark.parametrize("version", ["v1", "v1beta1"])
    def test_newer_versions_take_no_policy(self, version):
        config = {
            "apiVersion": f"kubescheduler.config.k8s.io/{version}",
            "kind": "KubeSchedulerConfiguration",
        }
        with pytest.raises(ConfigError, match="does not use a policy"):
            load(config, Registry.installed(), policy=self.policy)

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            pytest.param({"kind": "Pod"}, "expected a Policy, got Pod", id="another kind"),
            pytest.param(
                {"kind": "ConfigMap", "data": {}},
                r"is a ConfigMap without key policy\.cfg",
                id="an empty ConfigMap",
            ),
        ],
    )
    def test_what_is_no_policy(self, given, words):
        with pytest.raises(ConfigError, match=words):
            load(self.config(), Registry.installed(), policy=given)
