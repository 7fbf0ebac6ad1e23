"""Reading manifests and dumps, good and bad."""

from __future__ import annotations

import io
import json

import pytest
import yaml

from plain_objects import node, pod
from stowplan.api.manifests import read

NO_OBJECT = "is not a Kubernetes object: it needs at least apiVersion, kind and metadata"


def read_text(text, namespace="default"):
    return read(["-"], io.BytesIO(text if isinstance(text, bytes) else text.encode()), namespace)


LIST = {"apiVersion": "v1", "kind": "List", "items": [node("n"), pod("p")]}
POD_LIST = {"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "p"}}]}
NODE_LIST = {"apiVersion": "v1", "kind": "NodeList", "items": [{"metadata": {"name": "n"}}]}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(json.dumps(LIST), id="a list as JSON"),
        pytest.param(yaml.safe_dump(LIST), id="a list as YAML"),
        pytest.param(yaml.safe_dump_all([node("n"), None, pod("p")]), id="documents, one of them empty"),
        pytest.param(
            yaml.safe_dump_all([POD_LIST, NODE_LIST]), id="lists of a kind, whose items do not repeat it"
        ),
        pytest.param(json.dumps(LIST | {"items": [POD_LIST, NODE_LIST]}), id="lists in a list"),
    ],
)
def test_reads_what_kubectl_prints_and_takes(text):
    found = read_text(text)
    assert not found.faults
    assert set(found.objects) == {("Node", "n"), ("Pod", "default/p")}


def test_reads_files_and_directories_but_not_further_down(tmp_path):
    for path, name in (("a.yaml", "a"), ("dir/b.yml", "b"), ("dir/c.json", "c"), ("dir/more/d.json", "d")):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(json.dumps(pod(name)))
    (tmp_path / "dir/readme.txt").write_text("not a manifest")
    found = read([str(tmp_path / "a.yaml"), str(tmp_path / "dir")], io.BytesIO())
    assert not found.faults
    assert list(found.pods) == ["default/a", "default/b", "default/c"]


def test_an_object_given_twice_counts_as_given_last():
    first, last = pod("p", cpu="1", metadata={"uid": "1"}), pod("p", cpu="2", metadata={"uid": "2"})
    assert read_text(yaml.safe_dump_all([first, last])).pods["default/p"].requests["cpu"] == 2000


def test_counts_what_does_not_concern_scheduling():
    knative = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "s"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    found = read_text(yaml.safe_dump_all([knative, secret, secret]))
    assert (found.ignored, found.objects) == ({"Service": 1, "Secret": 2}, {})


def test_the_namespace_is_for_objects_that_name_none():
    found = read_text(yaml.safe_dump_all([pod("p"), pod("q", namespace="own"), node("n")]), "shop")
    assert set(found.objects) == {("Pod", "shop/p"), ("Pod", "own/q"), ("Node", "n")}


def test_generated_names_are_completed():
    some = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "batch-"}}
    assert list(read_text(yaml.safe_dump_all([some, some])).pods) == ["default/batch-1", "default/batch-2"]


def test_what_looks_like_a_date_is_text():
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, creationTimestamp: 2026-01-31T12:00:00Z}"
    assert read_text(text).pods["default/p"].creation_timestamp == "2026-01-31T12:00:00Z"


def test_keys_are_text():
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {no: a, 8: b, on: c}}"
    assert read_text(text).pods["default/p"].labels == {"false": "a", "8": "b", "true": "c"}


def bad_pod(**spec):
    return yaml.safe_dump(pod("web") | {"spec": spec})


TERM = {"matchExpressions": [{"key": "disk", "operator": "Inn", "values": ["ssd"]}]}
SELECTOR = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}}
IN_SELECTOR = (
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    ".nodeSelectorTerms[0].matchExpressions[0].operator"
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("", "contains no Kubernetes object", id="nothing"),
        pytest.param("# a comment\n---\n", "contains no Kubernetes object", id="only a comment"),
        pytest.param("just text", f"document 1: {NO_OBJECT}", id="text"),
        pytest.param("[]", f"document 1: {NO_OBJECT}", id="an array"),
        pytest.param("kind: Pod\nmetadata: {name: p}", f"document 1: {NO_OBJECT}", id="without a version"),
        pytest.param("apiVersion: v1\nmetadata: {name: p}", f"document 1: {NO_OBJECT}", id="without a kind"),
        pytest.param(
            json.dumps(LIST | {"items": [pod("p"), 3]}),
            f"document 1: items[1]: {NO_OBJECT}",
            id="a number in a list",
        ),
        pytest.param(
            "apiVersion: v1\nkind: Pod", "Pod without a name: metadata.name: is required", id="no name"
        ),
        pytest.param(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {}",
            "Deployment without a name: metadata.name: is required",
            id="a workload without a name",
        ),
        pytest.param("a: [1, 2", "is not YAML: line 2, column 1: did not find", id="broken YAML"),
        pytest.param("a: \x07", "is neither YAML nor JSON: ", id="control characters"),
        pytest.param('{"a": ', "is not JSON: ", id="broken JSON"),
        pytest.param("[" * 100_000, "is nested too deeply", id="endless nesting"),
        pytest.param("a: " + "[" * 100_000, "is nested too deeply", id="endless nesting in YAML"),
        pytest.param("- " * 100_000, "is nested too deeply", id="endless lists in YAML"),
        pytest.param(
            "apiVersion: v1\nkind: Pod\nmetadata: &a {name: x, labels: *a}",
            "contains itself",
            id="a part of itself",
        ),
        pytest.param(b"{\n\xff}", "is not UTF-8: line 2 has the byte 0xff", id="JSON that is not UTF-8"),
        pytest.param(b"a: 1\nb: \xe9", "is not UTF-8: line 2 has the byte 0xe9", id="YAML that is not UTF-8"),
        pytest.param(
            bad_pod(containers=[{"resources": {"requests": {"memory": "1Gi", "cpu": "1.5.3"}}}]),
            "Pod default/web: spec.containers[0].resources.requests.cpu: '1.5.3' is not a quantity",
            id="a request that is no quantity",
        ),
        pytest.param(
            bad_pod(containers=[{"resources": {"limits": {"cpu": "much"}}}]),
            "Pod default/web: spec.containers[0].resources.",
            id="a limit that is no quantity",
        ),
        pytest.param(
            bad_pod(containers=[{"resources": {"requests": {"cpu": "-500m"}}}]),
            "Pod default/web: spec.containers[0].resources.requests.cpu: -500m is negative; must be 0 or g",
            id="a request below zero",
        ),
        pytest.param(
            bad_pod(initContainers=[{}, {"resources": {"limits": {"memory": "-1Gi"}, "requests": {}}}]),
            "Pod default/web: spec.initContainers[1].resources.limits.memory: -1Gi is negative",
            id="a limit of an init container below zero",
        ),
        pytest.param(
            bad_pod(containers=[None]),
            "Pod default/web: spec.containers[0]: is null; remove it, or say what it is",
            id="a container that is null",
        ),
        pytest.param(
            bad_pod(tolerations=[{"operator": "Exists"}, None]),
            "Pod default/web: spec.tolerations[1]: is null",
            id="a toleration that is null",
        ),
        pytest.param(
            bad_pod(containers=[{"resources": {"requests": {"cpu": "1e3000000000"}}}]),
            "Pod default/web: spec.containers[0].resources.requests.cpu: '1e3000000000' is not a",
            id="a request of too many digits",
        ),
        pytest.param(
            yaml.safe_dump(node("n", cpu="1e4294967299")),
            "Node n: status.allocatable.cpu: '1e4294967299' is not a quantity that",
            id="a capacity whose exponent wraps",
        ),
        pytest.param(
            bad_pod(overhead={"example.com/x": -2}),
            "Pod default/web: spec.overhead.example.com/x: -2 is negative",
            id="an overhead below zero",
        ),
        pytest.param(
            bad_pod(resources={"requests": {"cpu": "-5"}}),
            "Pod default/web: spec.resources.requests.cpu: -5 is negative",
            id="a request of the whole pod below zero",
        ),
        pytest.param(
            yaml.safe_dump(node("n", cpu="-3")),
            "Node n: status.allocatable.cpu: -3 is negative",
            id="a node with less than nothing",
        ),
        pytest.param(
            bad_pod(affinity=SELECTOR), f"Pod default/web: {IN_SELECTOR}: ", id="an unknown operator"
        ),
        pytest.param(
            bad_pod(containers=5), "Pod default/web: spec.containers: Expected `array`", id="containers: 5"
        ),
        pytest.param(
            yaml.safe_dump(pod("web") | {"spec": 5}), "Pod default/web: spec: Expected `object`", id="spec: 5"
        ),
        pytest.param(
            yaml.safe_dump(pod("web") | {"metadata": 5}),
            "Pod without a name: metadata: Expected ",
            id="metadata: 5",
        ),
        pytest.param(
            bad_pod(priorityClassName=["a"]),
            "Pod default/web: spec.priorityClassName: ",
            id="a list of names",
        ),
        pytest.param(
            bad_pod(priorityClassName="high"),
            "Pod default/web: spec.priorityClassName: PriorityClass 'high'",
            id="a priority class that is nowhere",
        ),
    ],
)
def test_says_what_is_wrong_and_where(text, fault):
    (found,) = read_text(text).faults
    assert str(found).startswith(f"standard input: {fault}")


def test_finds_every_fault_of_every_file(tmp_path):
    broken = yaml.safe_dump_all([pod("a", cpu="x"), pod("b"), node("n", cpu="y")])
    (tmp_path / "broken.yaml").write_text(broken)
    (tmp_path / "empty").mkdir()
    missing, empty = tmp_path / "missing.yaml", tmp_path / "empty"
    found = read([str(tmp_path / "broken.yaml"), str(missing), str(empty)], io.BytesIO())
    assert [str(fault).partition(" is not a quantity")[0] for fault in found.faults] == [
        f"{missing}: cannot be read: No such file or directory",
        f"{empty}: contains no file that ends in .json, .yaml, .yml",
        f"{tmp_path}/broken.yaml: Pod default/a: spec.containers[0].resources.requests.cpu: 'x'",
        f"{tmp_path}/broken.yaml: Node n: status.allocatable.cpu: 'y'",
    ]


def test_a_deep_object_in_a_dump_does_not_hide_the_others():
    """`kubectl get -o json` writes what a cluster has, opaque parameters included."""
    config = [{"opaque": {"driver": "d.io", "parameters": "DEEP"}}]
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"config": config}},
    }
    dump = {"apiVersion": "v1", "kind": "List", "items": [claim, node("n1")]}
    found = read_text(json.dumps(dump).replace('"DEEP"', "[" * 5000 + "]" * 5000))
    assert found.faults == []
    assert {each.name for each in found.objects.values()} == {"c", "n1"}
