"""Text into plain data."""

import json

import pytest

from stowplan.config import load
from stowplan.config.document import parse, repeated_keys
from stowplan.errors import ConfigError
from stowplan.framework.registry import Registry


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        pytest.param('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}, id="JSON"),
        pytest.param(b"a: 1\n", {"a": 1}, id="bytes of YAML"),
        pytest.param("---\na: 1\n---\n", {"a": 1}, id="an empty second document"),
        pytest.param("a: 2020-01-31", {"a": "2020-01-31"}, id="a date stays text"),
        pytest.param("yes: 1\n5: 2", {"true": 1, "5": 2}, id="keys become text"),
        pytest.param(
            "x: &x {a: 1}\ny: {<<: *x, b: 2}", {"x": {"a": 1}, "y": {"a": 1, "b": 2}}, id="merge keys"
        ),
        pytest.param("", None, id="nothing"),
    ],
)
def test_parse(text, plain):
    assert parse(text) == plain


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        pytest.param("a: 1\nb: 2", [], id="none in YAML"),
        pytest.param("a: 1\na: 2", ["a"], id="at the top in YAML"),
        pytest.param("a:\n- b: 1\n  b: 2", ["a[0].b"], id="deep in YAML"),
        pytest.param('{"a": {"b": 1, "b": 2}, "a": {"c": 1, "c": 1}}', ["a", "a.c"], id="twice in JSON"),
    ],
)
def test_repeated_keys(text, paths):
    assert list(repeated_keys(parse(text))) == paths


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param('{"a": ', "is not JSON", id="JSON cut short"),
        pytest.param("a: b: c", "is not YAML", id="YAML"),
        pytest.param(b"\xff\xfe\x00", "is not YAML", id="no text at all"),
        pytest.param("a: !!python/object:os.system {}", "is not YAML", id="a tag that would run code"),
        pytest.param("a: " + "{b: " * 100_000, "is nested too deeply", id="endless nesting"),
        pytest.param("a: 1\n---\nb: 1", "has 2 YAML documents", id="two documents"),
    ],
)
def test_what_is_no_document(text, words):
    with pytest.raises(ConfigError, match=words):
        parse(text)


GROUP = "kubescheduler.config.k8s.io"


@pytest.mark.parametrize(
    "more", [pytest.param("", id="alone"), pytest.param("kind: Pod\n---\n", id="beside")]
)
def test_a_configmap_in_a_configmap_is_rejected(more):
    def wrap(document):
        return {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"config.yaml": json.dumps(document)}}

    config = {"apiVersion": f"{GROUP}/v1", "kind": "KubeSchedulerConfiguration"}
    assert load(more + json.dumps(wrap(config)), Registry.installed()).config.profiles
    with pytest.raises(ConfigError, match="ConfigMap that contains"):
        load(more + json.dumps(wrap(wrap(config))), Registry.installed())


@pytest.mark.parametrize(
    "other",
    [
        pytest.param("kind: [Pod]", id="a list as its kind"),
        pytest.param("kind: {a: b}", id="an object as its kind"),
        pytest.param("kind: ConfigMap\nmetadata: text", id="text as its metadata"),
        pytest.param("kind: ConfigMap\nmetadata: [text]", id="a list as its metadata"),
        pytest.param("kind: ConfigMap\ndata: {a: 'kind: [Pod]', b: 'kind: {}'}", id="such data"),
        pytest.param("- text", id="no object"),
    ],
)
@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
def test_what_other_documents_contain_does_not_matter(version, other):
    config = f"apiVersion: {GROUP}/{version}\nkind: KubeSchedulerConfiguration\n"
    if version == "v1alpha1":
        config += "algorithmSource: {policy: {configMap: {namespace: kube-system, name: p}}}\n"
    found = load(f"{config}---\n{other}\n", Registry.installed())
    assert [each.scheduler_name for each in found.config.profiles] == ["default-scheduler"]
    assert "other documents of the file" in found.warnings[0]
