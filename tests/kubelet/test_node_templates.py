"""Nodes from templates and from dumps."""

from __future__ import annotations

import pytest

from stowplan.api.kinds import object_of
from stowplan.errors import InputError
from stowplan.kubelet import read_templates
from stowplan.kubelet.dump import dump_of

NOW = 1_790_000_000.0
FULL = """
- {count: 3, name: "gpu-{}", cpu: 16, memory: 64Gi, pods: 20, labels: {pool: gpu}, region: eu, zones: [a, b],
   taints: ["gpu=yes:NoSchedule", "new:NoExecute"], resources: {nvidia.com/gpu: 4}}
- {name: alone}
"""


def test_templates_say_what_nodes_are_like(tmp_path):
    file = tmp_path / "nodes.yaml"
    file.write_text(FULL)
    nodes = [object_of(node) for template in read_templates(str(file)) for node in template.nodes(NOW)]
    assert [node.name for node in nodes] == ["gpu-1", "gpu-2", "gpu-3", "alone"]
    assert [node.labels.get("topology.kubernetes.io/zone") for node in nodes] == ["a", "b", "a", None]
    first = nodes[0]
    assert {**first.allocatable, "ephemeral-storage": 0} == {
        "cpu": 16000,
        "memory": 64 * 2**30,
        "pods": 20,
        "ephemeral-storage": 0,
        "nvidia.com/gpu": 4,
    }
    assert [tuple(taint) for taint in first.taints] == [
        ("gpu", "yes", "NoSchedule"),
        ("new", "", "NoExecute"),
    ]
    assert first.labels["pool"] == "gpu"


@pytest.mark.parametrize(
    ("source", "count"), [("5", 5), ("{count: 2}", 2), ("[{count: 2}, {name: x}]", 3), ("0", 0)]
)
def test_a_few_words_are_enough(source, count):
    assert sum(len(list(template.nodes(NOW))) for template in read_templates(source)) == count


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param("{cpus: 3}", "unknown field `cpus`", id="an unknown field"),
        pytest.param("{count: 2, name: x}", "write {} where their numbers go", id="one name for two"),
        pytest.param("-3", "nodes[0]: count: -3 is negative; must be 0 or greater", id="less than none"),
        pytest.param(
            "{cpu: -1}", "nodes[0]: cpu: -1 is negative; must be 0 or greater", id="less than no room"
        ),
        pytest.param(
            "{pods: -1}", "nodes[0]: pods: -1 is negative; must be 0 or greater", id="less than no pods"
        ),
        pytest.param(
            "{resources: {a.b/c: '-2'}}",
            "nodes[0]: a.b/c: -2 is negative; must be 0 or greater",
            id="less than no devices",
        ),
        pytest.param("{memory: many}", "'many' is not a quantity", id="no quantity"),
        pytest.param("{taints: [k]}", "write key=value:Effect", id="no taint"),
        pytest.param("{count: [", "is not YAML", id="no YAML"),
        pytest.param("nowhere.yaml", "cannot be read", id="no such file"),
    ],
)
def test_mistakes_are_told(source, words):
    with pytest.raises(InputError, match=r".*") as error:
        read_templates(source)
    assert words in str(error.value)


def test_a_dump_becomes_objects_to_create():
    node = {
        "kind": "Node",
        "metadata": {"name": "n1", "uid": "u", "resourceVersion": "9", "labels": {"zone": "a"}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": "3"}, "capacity": {"cpu": "4"}, "conditions": []},
    }
    dead = {
        "kind": "Node",
        "metadata": {"name": "n2"},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
    }
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "gone", "controller": True}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "shop", "uid": "u2", "ownerReferences": [owner]},
        "spec": {"nodeName": "n1", "priority": 7, "priorityClassName": "high"},
        "status": {"phase": "Running"},
    }
    ended = {"kind": "Pod", "metadata": {"name": "old"}, "status": {"phase": "Succeeded"}}
    dump = dump_of([pod, ended, node, dead], NOW)
    first = object_of(dump.nodes[0])
    assert (first.name, first.allocatable, first.labels["zone"]) == ("n1", {"cpu": 3000}, "a")
    assert dump.nodes[0]["metadata"].keys() == {"name", "labels"}
    assert {each["type"]: each["status"] for each in dump.nodes[0]["status"]["conditions"]}["Ready"] == "True"
    assert dump.dead == ["n2"]
    assert [(each["kind"], each["metadata"]["name"]) for each in dump.others] == [
        ("Namespace", "shop"),
        ("PriorityClass", "high"),
        ("Pod", "p"),
    ]
    assert dump.others[1]["value"] == 7
    assert dump.others[2] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "shop"},
        "spec": {"nodeName": "n1", "priorityClassName": "high"},
    }
