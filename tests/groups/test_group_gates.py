"""Feature gates of pod groups: their dependencies, and what they add to a configuration."""

from __future__ import annotations

import pytest
import yaml

from stowplan.config import load
from stowplan.config.gates import enabled_gates
from stowplan.config.types import with_gates
from stowplan.errors import ConfigError, InputError
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles
from stowplan.scheduler.options import parse, write_config

REGISTRY = Registry.installed()
GANG = ("GenericWorkload", "GangScheduling")
ALL = (*GANG, "TopologyAwareWorkloadScheduling", "WorkloadAwarePreemption", "WorkloadWithJob")
V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def resolved(gates, **profile):
    config = load({**V1, "profiles": [{"schedulerName": "s", **profile}]}, REGISTRY).config
    (found,) = resolve_profiles(with_gates(config, frozenset(gates)), REGISTRY)
    return found


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            "GangScheduling=true",
            "GangScheduling is enabled, but depends on features that are disabled: [GenericWorkload]",
        ),
        (
            "GenericWorkload=true,WorkloadAwarePreemption=true",
            "WorkloadAwarePreemption is enabled, but depends on features that are disabled: [GangScheduling]",
        ),
        (
            "DRAWorkloadResourceClaims=true",
            "DRAWorkloadResourceClaims is enabled, but depends on features that are disabled: "
            "[GenericWorkload]",
        ),
    ],
)
def test_a_gate_whose_dependency_is_off_is_rejected(given, text):
    with pytest.raises(InputError) as error:
        parse([f"--feature-gates={given}"], registry=REGISTRY)
    assert text in str(error.value)


def test_gates_that_are_on_have_no_warning():
    given = ",".join(f"{gate}=true" for gate in (*ALL, "DRAWorkloadResourceClaims"))
    options, warnings = parse([f"--feature-gates={given}"], registry=REGISTRY)
    assert options.config.gates == {*ALL, "DRAWorkloadResourceClaims"}
    assert [line for line in warnings if "feature-gates" in line] == []
    assert enabled_gates(dict.fromkeys(ALL, False)) == frozenset()


def test_without_gates_nothing_is_added():
    points = resolved(()).points
    assert "placementScore" not in points
    assert all("GangScheduling" not in dict(entries) for entries in points.values())


def test_gates_add_plugins_in_kube_schedulers_order():
    points = resolved(ALL).points
    assert points["permit"] == [("GangScheduling", 0)]
    assert [name for name, _ in points["preEnqueue"]] == [
        "SchedulingGates",
        "DynamicResources",
        "DefaultPreemption",
        "GangScheduling",
    ]
    assert points["placementGenerate"] == [("TopologyPlacementGenerator", 0)]
    assert points["placementScore"] == [("NodeResourcesFit", 1), ("PodGroupPodsCount", 1)]
    assert resolved(GANG).points["permit"] == [("GangScheduling", 0)]


def test_the_multi_point_weight_of_a_plugin_counts_for_placements_too():
    entry = {"name": "NodeResourcesFit", "weight": 5}
    points = resolved(ALL, plugins={"multiPoint": {"enabled": [entry]}}).points
    assert dict(points["placementScore"])["NodeResourcesFit"] == 5
    own = {"multiPoint": {"enabled": [entry]}, "placementScore": {"enabled": [entry | {"weight": 2}]}}
    assert dict(resolved(ALL, plugins=own).points["placementScore"])["NodeResourcesFit"] == 2


def test_naming_a_plugin_without_its_gate_is_accepted():
    points = resolved((), plugins={"multiPoint": {"enabled": [{"name": "GangScheduling"}]}}).points
    assert points["permit"] == [("GangScheduling", 0)]


def test_a_second_placement_generator_is_rejected():
    class Another(REGISTRY.find("TopologyPlacementGenerator")):
        pass

    registry = Registry.installed(classes={"Another": Another})
    profile = {"schedulerName": "s", "plugins": {"placementGenerate": {"enabled": [{"name": "Another"}]}}}
    config = with_gates(load({**V1, "profiles": [profile]}, registry).config, frozenset(ALL))
    with pytest.raises(ConfigError, match="at most one placement generate plugin is allowed for profile"):
        resolve_profiles(config, registry)


def test_the_written_configuration_lists_the_plugins(tmp_path):
    given = ",".join(f"{gate}=true" for gate in ALL)
    options, _ = parse([f"--feature-gates={given}"], registry=REGISTRY)
    write_config(options.config, REGISTRY, tmp_path / "c.yaml")
    written = yaml.safe_load((tmp_path / "c.yaml").read_text())
    assert "featureGates" not in written
    plugins = written["profiles"][0]["plugins"]
    assert plugins["multiPoint"]["enabled"][-3:] == [
        {"name": "GangScheduling", "weight": 0},
        {"name": "TopologyPlacementGenerator", "weight": 0},
        {"name": "PodGroupPodsCount", "weight": 1},
    ]
    assert (plugins["placementGenerate"], plugins["placementScore"]) == ({}, {})
    assert written["profiles"][0]["plugins"].keys() >= {"placementGenerate", "placementScore"}
    again, _ = parse([f"--config={tmp_path / 'c.yaml'}"], registry=REGISTRY)
    assert again.config.gates == frozenset()


def test_a_file_has_no_feature_gates():
    with pytest.raises(ConfigError):
        load({**V1, "featureGates": ["GangScheduling"]}, REGISTRY)
