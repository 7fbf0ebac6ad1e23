"""Arguments of scheduler-plugins in the versions that its older releases read."""

from __future__ import annotations

from typing import Any

import pytest

from make import REGISTRY
from stowplan.config import load
from stowplan.errors import ConfigError

GROUP = "kubescheduler.config.k8s.io"
WATCHER = {"watcherAddress": "http://127.0.0.1:2020"}
ARGS = {
    "Coscheduling": {"permitWaitingTimeSeconds": 10},
    "NodeResourcesAllocatable": {"mode": "Least", "resources": [{"name": "cpu", "weight": 1048576}]},
    "TargetLoadPacking": WATCHER | {"targetUtilization": 70, "defaultRequestsMultiplier": "2"},
    "LoadVariationRiskBalancing": WATCHER | {"safeVarianceMargin": 1, "safeVarianceSensitivity": 2},
    "LowRiskOverCommitment": WATCHER | {"smoothingWindowSize": 7, "riskLimitWeights": {"cpu": 0.3}},
    "NodeResourceTopologyMatch": {"scoringStrategy": {"type": "MostAllocated"}},
    "PreemptionToleration": {"minCandidateNodesPercentage": 20, "minCandidateNodesAbsolute": 50},
    "TopologicalSort": {"namespaces": ["apps"]},
    "NetworkOverhead": {"namespaces": ["apps"], "weightsName": "x", "networkTopologyName": "y"},
    "SySched": {"defaultProfileNamespace": "x", "defaultProfileName": "y"},
}
REMOVED: dict[str, dict[str, Any]] = {
    "Coscheduling": {"deniedPGExpirationTimeSeconds": 20, "kubeMaster": "https://x", "kubeConfigPath": "/x"},
    "CapacityScheduling": {"kubeConfigPath": "/etc/kubernetes/scheduler.conf"},
    "NodeResourceTopologyMatch": {"kubeconfigpath": "/x", "masteroverride": "x", "namespaces": ["a"]},
}
OLD = ("v1beta1", "v1beta2", "v1beta3")


def loaded(plugin, args, version, args_version=None):
    if args_version is not None:
        args = {"apiVersion": f"{GROUP}/{args_version}", "kind": f"{plugin}Args", **args}
    config = {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": "mine", "pluginConfig": [{"name": plugin, "args": args}]}],
    }
    found = load(config, REGISTRY)
    (profile,) = found.config.profiles
    (entry,) = [each for each in profile.plugin_config if each.name == plugin]
    return entry.args, found.warnings


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("plugin", ARGS)
@pytest.mark.parametrize("is_named", [True, False], ids=["with a version", "without a version"])
def test_arguments_in_a_file_of_an_older_version(plugin, version, is_named):
    expected, _ = loaded(plugin, ARGS[plugin], "v1", "v1")
    found, (warning,) = loaded(plugin, ARGS[plugin], version, version if is_named else None)
    assert found == expected
    assert warning.startswith(f"converted from {GROUP}/{version} ")


@pytest.mark.parametrize("args_version", OLD)
@pytest.mark.parametrize("plugin", ARGS)
def test_arguments_of_an_older_version_in_a_file_of_another(plugin, args_version):
    expected, _ = loaded(plugin, ARGS[plugin], "v1", "v1")
    found, (warning,) = loaded(plugin, ARGS[plugin], "v1", args_version)
    assert found == expected
    assert warning == f"arguments of plugin {plugin} converted from {GROUP}/{args_version} to v1"
    found, _ = loaded(plugin, ARGS[plugin], "v1beta3", args_version)
    assert found == expected


@pytest.mark.parametrize("plugin", REMOVED)
def test_arguments_that_no_longer_exist_are_dropped_and_named(plugin):
    kept = ARGS.get(plugin, {})
    expected, _ = loaded(plugin, kept, "v1")
    names = ", ".join(f"{plugin}.{name}" for name in REMOVED[plugin])
    found, (warning,) = loaded(plugin, kept | REMOVED[plugin], "v1beta1")
    assert found == expected
    assert warning.endswith(f"; left out arguments that no longer exist: {names}")
    expected, _ = loaded(plugin, kept, "v1", "v1")
    found, (warning,) = loaded(plugin, kept | REMOVED[plugin], "v1", "v1beta1")
    assert found == expected
    assert warning.endswith(f"to v1; left out arguments that no longer exist: {names}")


@pytest.mark.parametrize("plugin", ["Coscheduling", "NodeResourceTopologyMatch"])
def test_the_newest_version_does_not_take_them(plugin):
    with pytest.raises(ConfigError, match=f'unknown field "{next(iter(REMOVED[plugin]))}"'):
        loaded(plugin, REMOVED[plugin], "v1")


@pytest.mark.parametrize(
    ("plugin", "version", "args", "said"),
    [
        pytest.param(
            "NodeResourcesFit",
            "v1beta3",
            {},
            'no kind "NodeResourcesFitArgs" is registered',
            id="default plugin",
        ),
        pytest.param(
            "Coscheduling", "v1alpha1", {}, 'no kind "CoschedulingArgs" is registered', id="too old"
        ),
        pytest.param("Coscheduling", "v1beta2", {"x": 1}, 'unknown field "x"', id="unknown"),
        pytest.param(
            "Coscheduling", "v1beta2", {"kind": "OtherArgs"}, "not of type CoschedulingArgs", id="kind"
        ),
        pytest.param(
            "Coscheduling", "v1beta2", {"permitWaitingTimeSeconds": -1}, "or equal to 0", id="value"
        ),
    ],
)
def test_what_is_wrong_stays_wrong(plugin, version, args, said):
    with pytest.raises(ConfigError, match=said):
        loaded(plugin, args, "v1", version)
