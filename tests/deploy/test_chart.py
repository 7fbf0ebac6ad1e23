"""The Helm chart and the kustomize bases: what `make chart` writes, from the code of `stowplan manifests`."""

from __future__ import annotations

import filecmp
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from jsonschema_rs import validator_for

from stowplan.cli import stowplan
from stowplan.deploy.setup import Values
from stowplan.deploy.template import Symbol, as_yaml, when

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/stowplan"
CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: ours
"""
SETTINGS = {
    "image": "registry.example/stowplan:1",
    "imagePullSecrets": [{"name": "registry"}],
    "labels": {"team": "platform", "app.kubernetes.io/name": "not-ours-to-change"},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "resources": {"requests": {"cpu": "2"}},
    "priorityClassName": "mine",
    "podDisruptionBudget": False,
    "serviceMonitor": True,
    "prometheusRule": True,
    "dashboard": True,
    "extraArgs": ["--kube-api-burst=500"],
}


def run(folder: Path, values: dict[str, Any], *options: str, config: str = CONFIG) -> Any:
    (folder / "config.yaml").write_text(config)
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    words = [f"--config={folder / 'config.yaml'}", f"--values={folder / 'values.yaml'}", *options]
    return CliRunner().invoke(stowplan, ["manifests", *words])


def rendered(folder: Path, values: dict[str, Any], *options: str) -> list[dict[str, Any]]:
    done = run(folder, values, *options)
    assert done.exit_code == 0, done.output
    return list(yaml.safe_load_all(done.stdout))


def test_the_files_are_what_make_chart_writes(tmp_path):
    generate = runpy.run_path(str(ROOT / "deploy/generate.py"))
    generate["write_chart"](tmp_path / "helm/stowplan")
    generate["write_kustomize"](tmp_path / "kustomize")
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    kept = {
        path.relative_to(ROOT / "deploy")
        for folder in ("helm", "kustomize")
        for path in (ROOT / "deploy" / folder).rglob("*")
        if path.is_file()
    }
    assert written == kept
    _, different, _ = filecmp.cmpfiles(tmp_path, ROOT / "deploy", map(str, written), shallow=False)
    assert different == [], "run `make chart`"


def test_settings_of_a_values_file_are_where_they_belong(tmp_path):
    objects = rendered(tmp_path, SETTINGS)
    kinds = [each["kind"] for each in objects]
    assert {"ServiceMonitor", "PrometheusRule"} < set(kinds)
    assert "PodDisruptionBudget" not in kinds
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["nodeSelector"] == {"pool": "system"}
    assert pod["tolerations"] == SETTINGS["tolerations"]
    assert pod["affinity"] == SETTINGS["affinity"]
    assert pod["priorityClassName"] == "mine"
    assert container["resources"] == {"requests": {"cpu": "2"}}
    assert container["command"][-1] == "--kube-api-burst=500"
    labels = {"app.kubernetes.io/name": "stowplan", "app.kubernetes.io/instance": "stowplan"}
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert deployment["spec"]["template"]["metadata"]["labels"] == {**labels, "team": "platform"}
    dashboard = next(each for each in objects if each["metadata"]["name"] == "stowplan-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["stowplan.json"])["panels"]


def test_options_take_precedence_over_the_file(tmp_path):
    values = {"image": "a:1", "replicas": 4, "name": "packer", "journal": {"size": "5Gi"}}
    objects = rendered(tmp_path, values, "--replicas=3", "--journal")
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    assert (deployment["metadata"]["name"], deployment["spec"]["replicas"]) == ("packer", 3)
    assert "--journal-size=5Gi" in deployment["spec"]["template"]["spec"]["containers"][0]["command"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({"toleration": []}, "unknown field `toleration`", id="a field"),
        pytest.param({"replicas": "two"}, "replicas: Expected `int`, got `str`", id="a type"),
        pytest.param({"mode": "controller"}, "mode: Invalid enum value 'controller'", id="a mode"),
        pytest.param({"journal": {"size": "much"}}, "journal.size: Expected `str` matching", id="a size"),
        pytest.param(
            {"recorder": {"volumeSize": "1.2.3Gi"}}, "recorder.volumeSize: Expected", id="two points"
        ),
        pytest.param(
            {"resources": {"requests": {"cpu": "banana"}}},
            "resources.requests.cpu: 'banana' is not a quantity: write a number",
            id="an amount that is none",
        ),
        pytest.param(
            {"resources": {"limits": {"memory": "-1Gi"}}},
            "resources.limits.memory: -1Gi is negative; must be 0 or greater",
            id="a negative amount",
        ),
        pytest.param(
            {"resources": {"requests": {"cpu": True}}},
            "resources.requests.cpu: 'True' is not a quantity",
            id="no number",
        ),
        pytest.param(
            {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}},
            "resources.requests.cpu: 2 is more than its limit, 1500m",
            id="more than its limit",
        ),
        pytest.param(
            {"lease": {"name": "a # b"}}, "lease.name: Expected `str` matching", id="no lease's name"
        ),
        pytest.param({"lease": {"namespace": "a:\n b"}}, "lease.namespace: Expected", id="no namespace"),
        pytest.param(
            {"resources": {"request": {}}}, "resources.request: unknown field", id="an unknown field"
        ),
        pytest.param(
            {"resources": {"requests": ["cpu"]}},
            "resources.requests: expected an object, such as {cpu: 500m}",
            id="a list of amounts",
        ),
    ],
)
def test_what_is_wrong_with_a_values_file_is_named(tmp_path, values, message):
    done = run(tmp_path, {"image": "a:1", **values})
    assert done.exit_code != 0
    assert "values.yaml" in str(done.exception)
    assert message in str(done.exception)


@pytest.mark.parametrize("mode", ["scheduler", "replacement", "extender", "shadow", "recorder"])
def test_printed_values_give_the_same_objects_again_and_fit_the_charts_schema(tmp_path, mode):
    options = [] if mode == "scheduler" else [f"--{mode}"]
    printed = run(tmp_path, SETTINGS, *options, "--print-values", "--name=mine").stdout
    values = yaml.safe_load(printed)
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert validator_for(schema).is_valid(values)
    expected = rendered(tmp_path, SETTINGS, *options, "--name=mine")
    assert rendered(tmp_path, values) == expected


def test_the_default_values_fit_the_schema_and_are_the_commands_defaults():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert validator_for(schema).is_valid(values)
    assert not validator_for(schema).is_valid(values | {"mode": "nothing"})
    assert values["replicas"] == Values().replicas


# Modes


def test_a_replacement_takes_kube_schedulers_lease(tmp_path):
    done = run(
        tmp_path, {"image": "a:1"}, "--replacement", config=CONFIG.replace("ours", "default-scheduler")
    )
    assert "keep kube-scheduler as standby" in done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    command = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    assert "--leader-elect-resource-name=kube-scheduler" in command
    assert "--leader-elect-resource-namespace=kube-system" in command
    (role,) = (each for each in objects if each["kind"] == "Role")
    assert role["metadata"]["namespace"] == "kube-system"
    assert role["rules"][1]["resourceNames"] == ["kube-scheduler"]


@pytest.mark.parametrize("mode", ["extender", "shadow", "recorder"])
def test_all_other_modes_may_only_read(tmp_path, mode):
    objects = rendered(tmp_path, {"image": "a:1"}, f"--{mode}")
    role = next(each for each in objects if each["kind"] == "ClusterRole")
    for rule in role["rules"]:
        if rule["apiGroups"] not in (["authentication.k8s.io"], ["authorization.k8s.io"]):
            assert set(rule["verbs"]) <= {"get", "list", "watch"}


def test_an_extender_binds_nothing_and_may_have_a_certificate(tmp_path):
    (deployment,) = (
        each for each in rendered(tmp_path, {"image": "a:1"}, "--extender") if each["kind"] == "Deployment"
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "--verb=bind" not in container["command"]
    assert "--verb=filter" in container["command"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "extender", "scheme": "HTTP"}
    secured = {"image": "a:1", "extender": {"tlsSecret": "extender-tls"}}
    (deployment,) = (
        each for each in rendered(tmp_path, secured, "--extender") if each["kind"] == "Deployment"
    )
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {"name": "tls", "secret": {"secretName": "extender-tls"}} in pod["volumes"]
    assert "--client-ca-file=/etc/stowplan-tls/ca.crt" in container["command"]
    assert container["livenessProbe"]["httpGet"]["port"] == "health"


def test_a_journal_without_a_size_has_the_default_one(tmp_path):
    values = {"image": "a:1", "journal": {"enabled": True, "size": ""}}
    (deployment,) = (each for each in rendered(tmp_path, values) if each["kind"] == "Deployment")
    assert "--journal-size=1Gi" in deployment["spec"]["template"]["spec"]["containers"][0]["command"]


def test_a_recorder_writes_to_its_volume(tmp_path):
    values = {"image": "a:1", "recorder": {"claim": "traces", "hashNames": True}}
    (deployment,) = (
        each for each in rendered(tmp_path, values, "--recorder") if each["kind"] == "Deployment"
    )
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"][:3] == ["stowplan", "record", "/var/lib/stowplan"]
    assert "--hash-names" in container["command"]
    assert {"name": "trace", "persistentVolumeClaim": {"claimName": "traces"}} in pod["volumes"]
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_a_template_cannot_depend_on_a_value_by_accident():
    with pytest.raises(TypeError, match=r"\.Values\.journal is not known yet"):
        assert Symbol(".Values").journal
    part = {"spec": {"a": 1, **when(Symbol(".Values.more"), {"b": Symbol(".Values.b")})}}
    assert as_yaml([part]) == (
        "spec:\n  a: 1\n{{- if .Values.more }}\n  b: {{ .Values.b | toJson }}\n{{- end }}\n"
    )
