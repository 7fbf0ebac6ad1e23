"""The third tutorial's default plugins, recomposed: its files as printed (printed_3) end as it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from make import make_node, make_pod, planner
from stowplan.api.kinds import object_of
from stowplan.cli import stowplan
from stowplan.config import load
from stowplan.errors import ConfigError
from stowplan.framework import Plugin
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles
from stowplan.scheduler.options import parse

PRINTED = Path(__file__).parent / "printed_3"
REGISTRY = Registry.installed()


def printed(name: str) -> list[dict]:
    return list(yaml.safe_load_all((PRINTED / name).read_text()))


@pytest.mark.parametrize("name", ["configuration.yaml", "configmap.yaml"])
def test_the_configuration_means_what_the_text_says(name):
    (profile,) = resolve_profiles(load(PRINTED / name, REGISTRY).config, REGISTRY)
    assert profile.scheduler_name == "my-custom-scheduler"
    shown = profile.as_json()["args"]
    assert shown["VolumeBinding"]["bindTimeoutSeconds"] == 60
    assert shown["NodeResourcesFit"]["scoringStrategy"] == {
        "type": "MostAllocated",
        "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
    }
    assert ("NodeResourcesFit", 1) in profile.points["score"]


def test_nginx_custom_goes_to_the_fuller_node_and_nginx_default_to_the_other():
    nodes = [make_node("empty"), make_node("fuller")]
    running = make_pod("running", node="fuller", requests={"cpu": "2", "memory": "4Gi"})
    default, custom = (object_of(plain) for plain in printed("pods.yaml"))
    (ours,) = printed("configuration.yaml")
    assert planner([*nodes, running]).decide(default).chosen == "empty"
    assert planner([*nodes, running], ours).decide(custom).chosen == "fuller"


def test_the_command_of_the_deployment_is_understood():
    (deployment,) = printed("deployment.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    program, *words = container["command"]
    mounted = container["volumeMounts"][0]["mountPath"]
    argv = [word.replace(mounted, str(PRINTED / "configuration.yaml")) for word in words]
    options, warnings = parse(argv, program=program, registry=REGISTRY)
    assert warnings == []
    assert options.logs.verbosity == 5
    assert not options.config.leader_election.leader_elect
    assert [profile.scheduler_name for profile in options.config.profiles] == ["my-custom-scheduler"]


def test_the_shorter_configurations():
    found = load(PRINTED / "kubeconfig-alone.yaml", REGISTRY).config
    assert found.client_connection.kubeconfig == "/etc/srv/kubernetes/kube-scheduler/kubeconfig"
    with pytest.raises(ConfigError) as refused:
        resolve_profiles(load(PRINTED / "other-plugins.yaml", REGISTRY).config, REGISTRY)
    assert 'ScorePlugin "MyCustomPluginA" does not exist' in str(refused.value)
    assert 'ScorePlugin "MyCustomPluginB" does not exist' in str(refused.value)


def test_the_shorter_configuration_with_plugins_of_these_names():
    def score(self, state, pod, node):
        return 0

    own = {name: type(name, (Plugin,), {"score": score}) for name in ("MyCustomPluginA", "MyCustomPluginB")}
    installed = {name: REGISTRY.find(name) for name in REGISTRY.names()}
    registry = Registry(installed | own)
    (profile,) = resolve_profiles(load(PRINTED / "other-plugins.yaml", registry).config, registry)
    weights = dict(profile.points["score"])
    assert (weights["MyCustomPluginA"], weights["MyCustomPluginB"]) == (2, 1)
    assert "PodTopologySpread" not in weights
    assert "PodTopologySpread" in dict(profile.points["filter"])


def test_config_check_has_nothing_to_say():
    done = CliRunner().invoke(stowplan, ["config", "check", str(PRINTED / "configuration.yaml")])
    assert (done.exit_code, done.output) == (0, "")
