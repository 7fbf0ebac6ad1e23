"""`stowplan config` from the outside."""

import json
from functools import partial

import pytest
import yaml

V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
POLICY = {"kind": "Policy", "predicates": [], "priorities": [{"name": "ImageLocalityPriority", "weight": 7}]}
ALPHA = {
    "apiVersion": "componentconfig/v1alpha1",
    "kind": "KubeSchedulerConfiguration",
    "schedulerName": "mine",
    "algorithmSource": {"policy": {"configMap": {"namespace": "default", "name": "p"}}},
}


@pytest.fixture
def stowplan(run_stowplan):
    return partial(run_stowplan, "config")


@pytest.fixture
def file(tmp_path):
    def write(document, name="config.yaml"):
        path = tmp_path / name
        path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        return path

    return write


def test_show_prints_plugins_weights_and_arguments(stowplan, file):
    profiles = [{"plugins": {"score": {"enabled": [{"name": "NodeAffinity", "weight": 8}]}}}]
    run = stowplan("show", file({**V1, "profiles": profiles, "percentageOfNodesToScore": 30}))
    assert (run.status, run.err) == (0, "")
    lines = [line.split() for line in run.out.splitlines()]
    assert lines[:2] == [["profile", "default-scheduler"], ["scores", "30%", "of", "the", "nodes"]]
    assert ["score", "NodeAffinity", "8"] in lines
    assert ["InterPodAffinity", "hardPodAffinityWeight:", "1"] in lines


@pytest.mark.parametrize("command", ["show", "check"])
def test_a_plugin_that_is_not_known_is_named(stowplan, file, command):
    path = file({**V1, "profiles": [{"plugins": {"score": {"enabled": [{"name": "Nowhere"}]}}}]})
    run = stowplan(command, path)
    assert (run.status, run.out) == (1, "")
    assert f"{path}: " in run.err
    assert 'ScorePlugin "Nowhere" does not exist' in run.err
    assert "Traceback" not in run.err


def test_check_says_nothing_where_nothing_is_wrong(stowplan, file):
    run = stowplan("check", file(V1))
    assert (run.status, run.out, run.err) == (0, "", "")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param({**V1, "foo": 1}, 'unknown field "foo"', id="an unknown field"),
        pytest.param({**V1, "parallelism": 0}, "parallelism: Invalid value: 0", id="a wrong value"),
        pytest.param("a: b: c", "is not YAML", id="no YAML"),
        pytest.param("", "is not a scheduler configuration", id="an empty file"),
    ],
)
def test_check_says_what_is_wrong(stowplan, file, document, words):
    path = file(document)
    run = stowplan("check", path)
    assert (run.status, run.out) == (1, "")
    (line,) = run.err.splitlines()
    assert f"{path}: " in line
    assert words in line


def test_convert_prints_v1(stowplan, file):
    run = stowplan("convert", file({**V1, "apiVersion": "kubescheduler.config.k8s.io/v1beta3"}))
    assert "v1beta3 (Kubernetes 1.23 to 1.28) to v1" in run.err
    disabled = [{"name": "DynamicResources"}, {"name": "NodeDeclaredFeatures"}]
    plugins = {"multiPoint": {"disabled": disabled}}
    assert yaml.safe_load(run.out) == {
        **V1,
        "profiles": [{"schedulerName": "default-scheduler", "plugins": plugins}],
    }


def test_a_policy_is_given_or_missed(stowplan, file):
    config, policy = file(ALPHA), file(POLICY, "policy.yaml")
    without = stowplan("check", config)
    assert (without.status, len(without.err.splitlines())) == (0, 2)
    assert "pass the policy with --policy FILE" in without.err
    given = stowplan("show", config, "--policy", policy)
    assert (given.status, len(given.err.splitlines())) == (0, 1)
    assert ["score", "ImageLocality", "7"] in [line.split() for line in given.out.splitlines()]


def config_map(name, **texts):
    data = {key.replace("_", "."): yaml.safe_dump(text) for key, text in texts.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


BETA2 = {
    "apiVersion": "kubescheduler.config.k8s.io/v1beta2",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [{"schedulerName": "scorebylabel"}],
}
DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "scorebylabel-scheduler"}}
ACCOUNT = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "scorebylabel"}}


@pytest.mark.parametrize("command", ["check", "show", "convert"])
@pytest.mark.parametrize(
    "wrapped",
    [
        pytest.param(BETA2, id="as it is"),
        pytest.param(config_map("settings", config_yaml=BETA2), id="in a ConfigMap"),
        pytest.param(config_map("settings", config_yaml=BETA2, other_txt="x"), id="beside another text"),
    ],
)
def test_the_configuration_is_found_among_other_documents(stowplan, file, command, wrapped):
    path = file(yaml.safe_dump_all([DEPLOYMENT, wrapped, config_map("empty"), ACCOUNT]))
    run = stowplan(command, path)
    assert run.status == 0, run.err
    chosen = "ConfigMap settings" if wrapped["kind"] == "ConfigMap" else "KubeSchedulerConfiguration"
    others = "Deployment scorebylabel-scheduler, ConfigMap empty, ServiceAccount scorebylabel"
    assert f"{path}: using {chosen}; other documents of the file: {others}\n" in run.err
    assert command == "check" or "scorebylabel" in run.out


def test_the_policy_in_the_same_file_is_used(stowplan, file):
    path = file(yaml.safe_dump_all([config_map("p", policy_cfg=POLICY), config_map("c", c_yaml=ALPHA)]))
    run = stowplan("show", path)
    assert run.err.splitlines() == [
        f"{path}: using ConfigMap c; other documents of the file: ConfigMap p",
        f"{path}: converted from componentconfig/v1alpha1 (Kubernetes 1.11 and before) to v1",
    ]
    assert ["score", "ImageLocality", "7"] in [line.split() for line in run.out.splitlines()]


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        pytest.param(
            [DEPLOYMENT, ACCOUNT, "text"],
            "has 3 YAML documents, and none is a KubeSchedulerConfiguration or a ConfigMap that contains "
            "one: Deployment scorebylabel-scheduler, ServiceAccount scorebylabel, a document that is not an "
            "object",
            id="none",
        ),
        pytest.param(
            [BETA2, config_map("c", c_yaml=V1)],
            "has 2 documents with a KubeSchedulerConfiguration, expected one: "
            "KubeSchedulerConfiguration, ConfigMap c",
            id="two",
        ),
    ],
)
def test_documents_without_one_configuration(stowplan, file, documents, words):
    run = stowplan("check", file(yaml.safe_dump_all(documents)))
    assert (run.status, run.out) == (1, "")
    assert words in run.err


def test_plugins_that_a_policy_may_not_use_are_not_reported(stowplan, file):
    """They are plugins of that version's defaults, which the policy in the ConfigMap replaces."""
    assert "left out" not in stowplan("check", file(ALPHA)).err


def test_resolve_answers_every_line(stowplan):
    lines = [
        json.dumps({"name": "good", "config": V1}),
        json.dumps({"name": "bad", "config": {**V1, "parallelism": 0}}),
        "",
        json.dumps({"name": "old", "config": {**V1, "apiVersion": "kubescheduler.config.k8s.io/v1beta1"}}),
    ]
    run = stowplan("resolve", stdin="\n".join(lines))
    good, bad, old = map(json.loads, run.out.splitlines())
    assert run.status == 0
    assert (good["name"], good["stage"], good["topLevel"]["parallelism"]) == ("good", "ok", 16)
    message = "parallelism: Invalid value: 0: should be an integer value greater than zero"
    assert bad == {"name": "bad", "stage": "validate", "error": message}
    assert old["stage"] == "ok"
    assert "old: converted from kubescheduler.config.k8s.io/v1beta1" in run.err


@pytest.mark.parametrize("line", ["{", "5", '{"name": "x"}', '{"name": "x", "config": 5}'])
def test_resolve_says_which_lines_it_cannot_read(stowplan, line):
    run = stowplan("resolve", stdin=f"{line}\n{json.dumps({'name': 'good', 'config': V1})}\n")
    unreadable, good = map(json.loads, run.out.splitlines())
    assert run.status == 1
    assert (unreadable["name"], unreadable["stage"]) == (None, "decode")
    assert good["stage"] == "ok"
