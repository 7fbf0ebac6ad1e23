"""The Helm chart and the kustomize bases, with the real helm and kubectl."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployed import rendered, scheduler

from controlplane.binaries import program
from controlplane.control_plane import ADMIN, ControlPlane
from controlplane.objects import node, pod
from controlplane.pods import add_nodes, create, placed
from controlplane.waiting import eventually
from up_process import running_up

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
CHART, KUSTOMIZE = ROOT / "deploy/helm/stowplan", ROOT / "deploy/kustomize"
MODES = ("scheduler", "replacement", "extender", "shadow", "recorder")
CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: ours  # and "nobody" else's: <&> ä
"""
WITHOUT_LEASE = f"{CONFIG}leaderElection: {{leaderElect: false}}\n"
OTHER_LEASE = f"{CONFIG}leaderElection: {{resourceName: other, resourceNamespace: kube-system}}\n"
GROUPS = f"""{CONFIG}\
  plugins:
    multiPoint:
      enabled: [{{name: Coscheduling}}, {{name: CapacityScheduling}}]
    queueSort:
      disabled: [{{name: "*"}}]
      enabled: [{{name: Coscheduling}}]
"""
FULL = {
    "imagePullSecrets": [{"name": "registry"}],
    "labels": {"team": "platform", "app.kubernetes.io/name": "not-ours-to-change"},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "resources": {"requests": {"cpu": "2"}},
    "podDisruptionBudget": False,
    "serviceMonitor": True,
    "prometheusRule": True,
    "dashboard": True,
    "extraArgs": ["--kube-api-burst=500", "--kube-api-qps=500"],
    "extender": {"tlsSecret": "extender-tls"},
    "recorder": {"claim": "traces", "hashNames": True},
}


def helm(*words: str, kubeconfig: Path | None = None, code: int = 0) -> str:
    environment = {**os.environ, "HELM_CACHE_HOME": "/nonexistent", "HELM_CONFIG_HOME": "/nonexistent"}
    if kubeconfig is not None:
        environment["KUBECONFIG"] = str(kubeconfig)
    done = subprocess.run(
        [program("helm"), *words], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def by_name(text: str) -> dict[tuple[str, str, str], Json]:
    objects = [each for each in yaml.safe_load_all(text) if each]
    for each in objects:
        if each["kind"] == "CustomResourceDefinition":  # the chart keeps them when it is uninstalled
            each["metadata"].pop("annotations", None)
    found = {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each
        for each in objects
        if each["kind"] != "Namespace"  # helm creates it: --create-namespace
    }
    assert len(found) == len([each for each in objects if each["kind"] != "Namespace"])
    return found


def rules_of(objects: dict[tuple[str, str, str], Json], name: str) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in objects["ClusterRole", "", name]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("config", "values", "options"),
    [
        pytest.param(CONFIG, {}, [], id="defaults"),
        pytest.param(CONFIG, FULL, [], id="all settings"),
        pytest.param(WITHOUT_LEASE, {"replicas": 1}, [], id="no lease"),
        pytest.param(OTHER_LEASE + "delayCacheUntilActive: true\n", {}, ["--journal"], id="a journal"),
        pytest.param(
            GROUPS, {"replicas": 1, "controllers": True, "journal": {"claim": "kept"}}, [], id="groups"
        ),
    ],
)
def test_the_chart_gives_the_objects_of_the_command(tmp_path, mode, config, values, options):
    (tmp_path / "config.yaml").write_text(config)
    (tmp_path / "given.yaml").write_text(yaml.safe_dump({**values, "mode": mode}))
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/chart_plugin.py").write_text('"""Braces {{ .Values }} are text here."""\n')
    words = [f"--values={tmp_path / 'given.yaml'}", f"--plugin-dir={tmp_path / 'plugins'}", *options]
    expected = by_name(rendered(tmp_path / "config.yaml", *words, "--namespace=packing", "--name=packer"))
    (tmp_path / "values.yaml").write_text(rendered(tmp_path / "config.yaml", *words, "--print-values"))
    file = str(tmp_path / "values.yaml")
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), f"--values={file}")
    assert (
        by_name(helm("template", "packer", str(CHART), f"--values={file}", "--namespace=packing")) == expected
    )


def test_without_printed_values_the_chart_finds_the_rights_of_plugins_by_their_names(tmp_path):
    (tmp_path / "config.yaml").write_text(GROUPS)
    expected = by_name(rendered(tmp_path / "config.yaml"))
    words = [
        "--set=image=stowplan:test",
        f"--set-file=config={tmp_path / 'config.yaml'}",
        "--namespace=stowplan",
    ]
    found = by_name(helm("template", "stowplan", str(CHART), *words))
    name = "stowplan:stowplan"
    assert rules_of(found, name) == rules_of(expected, name)
    assert found.keys() == expected.keys()
    (tmp_path / "config.yaml").write_text(json.dumps(yaml.safe_load(GROUPS), indent=1))
    assert rules_of(by_name(helm("template", "stowplan", str(CHART), *words)), name) == rules_of(found, name)
    plain = by_name(
        helm("template", "stowplan", str(CHART), "--set=image=stowplan:test", "--namespace=stowplan")
    )
    assert rules_of(plain, name) < rules_of(found, name)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        pytest.param("mode=nothing", "mode", id="an unknown mode"),
        pytest.param("replicas=0", "replicas", id="no replicas"),
        pytest.param("tolerance=1", "tolerance", id="an unknown value"),
        pytest.param("image=", "image: set it to the image", id="no image"),
        pytest.param("lease.name=a # b", "lease", id="no lease's name"),
        pytest.param("lease.enabled=false", "replicas: without leader election", id="two, and no lease"),
        pytest.param(
            "config=leaderElection: {leaderElect: false}", "without leader election", id="by config"
        ),
        pytest.param("journal.claim=kept", "replicas cannot share a journal", id="two on one volume"),
    ],
)
def test_the_chart_rejects_what_cannot_work(setting, message):
    said = helm("template", "any", str(CHART), "--set=image=stowplan:test", f"--set={setting}", code=1)
    assert message in said


@pytest.mark.parametrize("mode", MODES)
def test_a_kustomize_base_gives_the_objects_of_the_command_and_can_be_changed(tmp_path, mode):
    (tmp_path / "config.yaml").write_text(
        CONFIG.partition("  #")[0].replace("ours", "stowplan" if mode == "scheduler" else "default-scheduler")
        + "\n"
    )
    options = [] if mode == "scheduler" else [f"--{mode}"]
    expected = by_name(rendered(tmp_path / "config.yaml", *options, "--image=stowplan"))
    assert by_name(kustomized(KUSTOMIZE / mode)) == expected
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(KUSTOMIZE / mode, tmp_path / "overlay")],
        "images": [{"name": "stowplan", "newName": "registry.example/stowplan", "newTag": "1"}],
        "patches": [{"target": {"kind": "ConfigMap"}, "path": "configmap.yaml"}],
    }
    patch = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "any"},
        "data": {"config.yaml": CONFIG},
    }
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay/configmap.yaml").write_text(yaml.safe_dump(patch))
    (tmp_path / "overlay/kustomization.yaml").write_text(yaml.safe_dump(overlay))
    changed = by_name(kustomized(tmp_path / "overlay"))
    (deployment,) = (each for key, each in changed.items() if key[0] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.example/stowplan:1"
    (config_map,) = (each for key, each in changed.items() if key[0] == "ConfigMap")
    assert config_map["data"]["config.yaml"] == CONFIG
    assert "kubeconfig" in config_map["data"]


def kustomized(folder: Path) -> str:
    command = [program("kubectl"), "kustomize", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_release_is_installed_upgraded_and_rolled_back_on_stowplan_up(tmp_path):
    with running_up(tmp_path, "--nodes", "3") as up:
        here = ["--namespace=packing", "--wait", "--timeout=60s"]
        first = ["--set=image=stowplan:1", "--create-namespace"]
        helm("install", "packer", str(CHART), *first, *here, kubeconfig=up.kubeconfig)

        def deployment() -> Json:
            command = [
                program("kubectl"),
                *up.config_flag,
                "-n",
                "packing",
                "get",
                "deployment",
                "packer",
                "-ojson",
            ]
            return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

        assert deployment()["status"]["readyReplicas"] == 2
        second = ["--set=image=stowplan:2,replicas=3", "--set=labels.team=platform"]
        helm("upgrade", "packer", str(CHART), *second, *here, kubeconfig=up.kubeconfig)
        upgraded = deployment()
        assert upgraded["status"]["readyReplicas"] == 3
        assert upgraded["metadata"]["labels"]["team"] == "platform"
        helm("rollback", "packer", "1", *here, kubeconfig=up.kubeconfig)
        assert deployment()["spec"]["template"]["spec"]["containers"][0]["image"] == "stowplan:1"
        assert deployment()["status"]["readyReplicas"] == 2
        helm("uninstall", "packer", *here, kubeconfig=up.kubeconfig)


async def test_a_release_on_a_real_api_server_has_all_that_its_scheduler_needs(control_plane, tmp_path):
    kubeconfig = control_plane.kubeconfig(ADMIN)
    release = ["packer", str(CHART), "--namespace=packing", "--set=image=stowplan:test"]
    config = "--set-file=config=" + str(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text(CONFIG)
    helm("install", *release, config, "--create-namespace", kubeconfig=kubeconfig)
    try:
        helm("upgrade", *release, config, "--set=verbosity=2", kubeconfig=kubeconfig)
        helm("rollback", "packer", "1", "--namespace=packing", kubeconfig=kubeconfig)
        text = helm("get", "manifest", "packer", "--namespace=packing", kubeconfig=kubeconfig)
        objects = [each for each in yaml.safe_load_all(text) if each]
        add_nodes(control_plane, node("n1"))
        process = scheduler(control_plane, objects, tmp_path)
        process.start()
        try:
            create(control_plane, pod("p", schedulerName="ours"))
            await eventually(lambda: placed(control_plane), lambda found: found["p"] == "n1")
        finally:
            process.stop()
        assert "orbidden" not in process.output
    finally:
        helm("uninstall", "packer", "--namespace=packing", kubeconfig=kubeconfig)


@pytest.mark.parametrize("mode", MODES)
def test_a_real_api_server_accepts_every_mode(control_plane: ControlPlane, mode):
    """Each with all settings of the core API."""
    values = {name: each for name, each in FULL.items() if name not in ("serviceMonitor", "prometheusRule")}
    given = [
        "--set=image=stowplan:test",
        f"--set=mode={mode}",
        f"--set-json=labels={json.dumps(FULL['labels'])}",
    ]
    given += [f"--set-json={name}={json.dumps(each)}" for name, each in values.items() if name != "labels"]
    given += ["--set=controllers=true,journal.enabled=true", "--namespace=default"]
    helm(
        "install",
        "packer",
        str(CHART),
        *given,
        "--dry-run=server",
        kubeconfig=control_plane.kubeconfig(ADMIN),
    )
    text = helm("template", "packer", str(CHART), *given)
    control_plane.kubectl(
        "apply", "--dry-run=server", "-f", "-", objects=[each for each in yaml.safe_load_all(text) if each]
    )
