"""Plugin arguments: reading, checking, and writing them back."""

from typing import Annotated, Literal

import msgspec
import pytest

from stowplan.config import Duration
from stowplan.framework.args import PluginArgs, without_secrets
from stowplan.plugins import args as default


class Point(msgspec.Struct, rename="camel"):
    at_load: int = 0


class ExampleArgs(PluginArgs):
    label_key: str = "score-by-label"
    mode: Literal["soft", "hard"] = "soft"
    percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 50
    ignored: frozenset[str] = frozenset()
    every: Duration = Duration(15)
    points: tuple[Point, ...] = ()

    def validate(self, path):
        if self.label_key == "":
            yield f"{path}.labelKey: Required value"


class NeedsUrlArgs(PluginArgs):
    url: str


def faults(kind, raw):
    read = kind.read(kind.__name__.removesuffix("Args"), raw, "args")
    return read.malformed + read.faults


def test_arguments_are_spelled_in_camel_case():
    raw = {"labelKey": "x", "ignored": ["a"], "every": "1m", "points": [{"atLoad": 3}]}
    read = ExampleArgs.read("Example", raw, "args")
    expected = ExampleArgs(
        label_key="x",
        ignored=frozenset("a"),
        every=Duration(60),
        points=(Point(3),),
    )
    assert read == (expected, [], [])


@pytest.mark.parametrize(
    "raw", [None, {}, {"kind": "ExampleArgs", "apiVersion": "kubescheduler.config.k8s.io/v1"}]
)
def test_no_arguments_are_the_defaults(raw):
    assert ExampleArgs.read("Example", raw, "args").args == ExampleArgs()


def test_as_json_has_every_default():
    assert ExampleArgs(every=Duration(90)).as_json() == {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "ExampleArgs",
        "labelKey": "score-by-label",
        "mode": "soft",
        "percent": 50,
        "every": "1m30s",
    }


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param({"labelKey": ""}, "args.labelKey: Required value", id="a rule of the plugin's own"),
        pytest.param(
            {"mode": "x"},
            'args.mode: Unsupported value: "x": supported values: "soft", "hard"',
            id="not one of the choices",
        ),
        pytest.param(
            {"percent": 101}, "args.percent: Invalid value: 101: expected int <= 100", id="out of range"
        ),
    ],
)
def test_values_that_are_not_allowed(raw, expected):
    assert faults(ExampleArgs, raw) == [expected]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(
            {"every": "1"},
            'every: Invalid value: "1": expected a duration such as 500ms, 10s or 1m30s',
            id="duration",
        ),
        pytest.param(
            {"points": [{"atLoad": "x"}]},
            'points[0].atLoad: Invalid value: "x": expected int, got str',
            id="nested",
        ),
        pytest.param(
            {"points": [{"foo": 1}]}, 'unknown field "points[0].foo"', id="an unknown field further in"
        ),
        pytest.param(
            {"label": 1, "foo": 2},
            'unknown field "label", unknown field "foo" (Example takes labelKey, mode, '
            "percent, ignored, every, points)",
            id="unknown fields",
        ),
        pytest.param([], "<root>: Invalid value: []: expected an object, got an array", id="no object"),
    ],
)
def test_arguments_of_the_wrong_form(raw, expected):
    (fault,) = faults(ExampleArgs, raw)
    prefix = "strict decoding error: decoding args for plugin Example: strict decoding error: "
    assert fault.startswith(prefix + expected)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        pytest.param(
            {"kind": "OtherArgs"},
            "args for plugin Example were not of type ExampleArgs.kubescheduler.config.k8s.io, "
            "got OtherArgs.kubescheduler.config.k8s.io",
            id="kind",
        ),
        pytest.param(
            {"apiVersion": "kubescheduler.config.k8s.io/v1beta3"},
            'decoding args for plugin Example: no kind "ExampleArgs" is registered for version '
            '"kubescheduler.config.k8s.io/v1beta3"',
            id="version",
        ),
    ],
)
def test_arguments_of_another_type(raw, words):
    assert faults(ExampleArgs, raw) == [words]


@pytest.mark.parametrize("raw", [{}, None, {"url": None}])
def test_a_required_argument(raw):
    assert faults(NeedsUrlArgs, raw) == ["args.url: Required value"]


def node_affinity(**requirement):
    terms = [{"matchExpressions": [{"key": "disk", **requirement}]}]
    return {"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


ADDED = "args.addedAffinity.requiredDuringSchedulingIgnoredDuringExecution"
REQUIREMENT = f"{ADDED}.nodeSelectorTerms[0].matchExpressions[0]"
FIELD = {"matchFields": [{"key": "metadata.name", "operator": "Exists"}]}
CONSTRAINT = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        pytest.param(
            default.DefaultPreemptionArgs,
            {"minCandidateNodesPercentage": -1, "minCandidateNodesAbsolute": -1},
            [
                "args.minCandidateNodesPercentage: Invalid value: -1: not in valid range [0, 100]",
                "args.minCandidateNodesAbsolute: Invalid value: -1: not in valid range [0, inf)",
            ],
            id="preemption candidates",
        ),
        pytest.param(
            default.DefaultPreemptionArgs,
            {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0},
            [
                "args.minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as "
                "minCandidateNodesAbsolute",
                "args.minCandidateNodesAbsolute: Invalid value: 0: cannot be zero at the same time as "
                "minCandidateNodesPercentage",
            ],
            id="no preemption candidates",
        ),
        pytest.param(
            default.InterPodAffinityArgs,
            {"hardPodAffinityWeight": 101},
            ["args.hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]"],
            id="hard pod affinity weight",
        ),
        pytest.param(
            default.NodeAffinityArgs,
            node_affinity(operator="In"),
            [
                f"{REQUIREMENT}.values: Invalid value: null: for 'in', 'notin' operators, values "
                "set can't be empty"
            ],
            id="node affinity without values",
        ),
        pytest.param(
            default.NodeAffinityArgs,
            node_affinity(operator="Exists", values=["a"]),
            [
                f'{REQUIREMENT}.values: Invalid value: ["a"]: values set must be empty for exists '
                "and does not exist"
            ],
            id="node affinity with values",
        ),
        pytest.param(
            default.NodeAffinityArgs,
            node_affinity(operator="Gt", values=["a", "1"]),
            [
                f'{REQUIREMENT}.values: Invalid value: ["a","1"]: '
                "for 'Gt', 'Lt' operators, exactly one value is required",
                f"{REQUIREMENT}.values[0]: Invalid value: \"a\": for 'Gt', 'Lt' operators, the "
                "value must be an integer",
            ],
            id="node affinity that compares",
        ),
        pytest.param(
            default.NodeAffinityArgs,
            node_affinity(operator="X"),
            [
                f'{REQUIREMENT}.operator: Unsupported value: "X": supported values: "In", "NotIn", "Exists", '
                '"DoesNotExist", "Gt", "Lt"'
            ],
            id="an unknown operator",
        ),
        pytest.param(
            default.NodeAffinityArgs,
            {
                "addedAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": FIELD}]
                }
            },
            [
                "args.addedAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchFields[0]"
                '.operator: Unsupported value: "Exists": supported values: "In", "NotIn"'
            ],
            id="a preferred field",
        ),
        pytest.param(
            default.NodeResourcesBalancedAllocationArgs,
            {"resources": [{"name": "cpu", "weight": 2}, {"name": "cpu"}]},
            [
                "args.resources[0].weight: Invalid value: 2: must be 1",
                'args.resources[1].name: Duplicate value: "cpu"',
            ],
            id="balanced resources",
        ),
        pytest.param(
            default.PodTopologySpreadArgs,
            {"defaultingType": "X"},
            ['args.defaultingType: Unsupported value: "X": supported values: "System", "List"'],
            id="defaulting type",
        ),
        pytest.param(
            default.PodTopologySpreadArgs,
            {"defaultConstraints": [CONSTRAINT]},
            ['args.defaultingType: Invalid value: "System": when .defaultConstraints are not empty'],
            id="constraints besides the system's",
        ),
        pytest.param(
            default.PodTopologySpreadArgs,
            {
                "defaultingType": "List",
                "defaultConstraints": [{**CONSTRAINT, "labelSelector": {}}, CONSTRAINT],
            },
            [
                "args.defaultConstraints[0].labelSelector: Forbidden: constraint must not define "
                "a selector, as they "
                "deduced for each pod",
                'args.defaultConstraints[1]: Duplicate value: "{zone, DoNotSchedule}"',
            ],
            id="selector and repetition",
        ),
        pytest.param(
            default.PodTopologySpreadArgs,
            {"defaultingType": "List", "defaultConstraints": [{"maxSkew": 1}]},
            [
                "args.defaultConstraints[0].topologyKey: Required value: can not be empty",
                "args.defaultConstraints[0].whenUnsatisfiable: Required value: can not be empty",
            ],
            id="what a constraint needs",
        ),
        pytest.param(
            default.VolumeBindingArgs,
            {"bindTimeoutSeconds": -1, "shape": []},
            [
                "args.bindTimeoutSeconds: Invalid value: -1: invalid BindTimeoutSeconds, should "
                "not be a negative value",
                "args.shape: Invalid value: []: unexpected field `shape`, remove it or turn on "
                "the feature gate "
                "StorageCapacityScoring",
            ],
            id="volume binding",
        ),
        pytest.param(
            default.DynamicResourcesArgs,
            {"filterTimeout": "-1s", "bindingTimeout": "999ms"},
            [
                'args.filterTimeout: Invalid value: "-1s": must be zero or positive',
                'args.bindingTimeout: Invalid value: "999ms": must be at least 1 second',
            ],
            id="dynamic resources",
        ),
        pytest.param(
            default.NodeResourcesFitArgs, {"scoringStrategy": {"type": "X"}}, [], id="fit is checked later"
        ),
    ],
)
def test_rules_of_the_default_plugins(kind, raw, expected):
    assert faults(kind, raw) == expected


def ratio(*shape):
    points = [{"utilization": utilization, "score": score} for utilization, score in shape]
    return {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {"shape": points}}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param({}, [], id="the defaults"),
        pytest.param({"scoringStrategy": ratio((0, 0), (100, 10))}, [], id="a shape"),
        pytest.param(
            {"ignoredResources": ["a/b/c"], "ignoredResourceGroups": ["a.com/b"]},
            [
                'ignoredResources[0]: Invalid value: "a/b/c": a valid label key must consist of',
                "ignoredResourceGroups[0]: Invalid value: \"a.com/b\": resource group name can't contain '/'",
            ],
            id="ignored resources",
        ),
        pytest.param(
            {"scoringStrategy": {}},
            [
                'scoringStrategy.type: Unsupported value: "": supported values: '
                '"LeastAllocated", "MostAllocated", '
                '"RequestedToCapacityRatio"'
            ],
            id="no type",
        ),
        pytest.param(
            {"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 101}]}},
            [
                "scoringStrategy.resources[0].weight: Invalid value: 101: resource weight of cpu "
                "not in valid range (0, 100]"
            ],
            id="weight",
        ),
        pytest.param(
            {"scoringStrategy": {**ratio((0, 0)), "type": "MostAllocated"}},
            [
                "scoringStrategy.requestedToCapacityRatio: Forbidden: must be nil when type is "
                "not RequestedToCapacityRatio"
            ],
            id="a shape too many",
        ),
        pytest.param(
            {"scoringStrategy": {"type": "RequestedToCapacityRatio"}},
            [
                "scoringStrategy.requestedToCapacityRatio: Required value: must be specified "
                "when type is RequestedToCapacityRatio"
            ],
            id="no shape",
        ),
        pytest.param(
            {"scoringStrategy": ratio()},
            [
                "scoringStrategy.requestedToCapacityRatio.shape: Required value: at least one "
                "point must be specified"
            ],
            id="an empty shape",
        ),
        pytest.param(
            {"scoringStrategy": ratio((101, 11), (50, -1))},
            [
                "scoringStrategy.requestedToCapacityRatio.shape[1].utilization: Invalid value: 50: "
                "values must be sorted in increasing order",
                "scoringStrategy.requestedToCapacityRatio.shape[0].utilization: Invalid value: "
                "101: not in valid range [0, 100]",
                "scoringStrategy.requestedToCapacityRatio.shape[0].score: Invalid value: 11: not "
                "in valid range [0, 10]",
                "scoringStrategy.requestedToCapacityRatio.shape[1].score: Invalid value: -1: not "
                "in valid range [0, 10]",
            ],
            id="a wrong shape",
        ),
    ],
)
def test_rules_of_node_resources_fit(raw, expected):
    args = default.NodeResourcesFitArgs.read("NodeResourcesFit", raw, "args").args
    found = list(args.validate(""))
    assert [fault[: len(start)] for fault, start in zip(found, expected, strict=True)] == expected


@pytest.mark.parametrize(
    ("kind", "raw", "field", "value"),
    [
        pytest.param(
            default.NodeResourcesFitArgs,
            {"scoringStrategy": {"type": "MostAllocated", "resources": []}},
            "scoringStrategy",
            {
                "type": "MostAllocated",
                "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
            },
            id="no resources are cpu and memory",
        ),
        pytest.param(
            default.NodeResourcesBalancedAllocationArgs,
            {"resources": [{"name": "cpu", "weight": 0}]},
            "resources",
            [{"name": "cpu", "weight": 1}],
            id="no weight is one",
        ),
        pytest.param(
            default.PodTopologySpreadArgs,
            {"defaultingType": ""},
            "defaultingType",
            "System",
            id="no defaulting type",
        ),
    ],
)
def test_defaults_of_the_default_plugins(kind, raw, field, value):
    assert kind.read("X", raw, "args").args.as_json()[field] == value


def test_what_looks_like_a_password_is_hidden():
    given = {
        "apiToken": "x",
        "tokenFile": "/t",
        "url": "https://me:pw@host/",
        "list": [{"password": 1}],
        "n": 3,
    }
    assert without_secrets(given) == {
        "apiToken": "(hidden)",
        "tokenFile": "/t",
        "url": "https://(hidden)@host/",
        "list": [{"password": "(hidden)"}],
        "n": 3,
    }
