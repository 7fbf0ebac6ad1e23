"""Readers for traces of others: CSV, manifests, audit logs, SimKube."""

# ruff: noqa: E501 (messages are written in one line)

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from small_trace import node, pod

from stowplan.errors import InputError
from stowplan.framework.registry import Registry
from stowplan.replay import ReplayOptions, read_trace, replay

MAPPING = """
nodes:
  file: nodes.csv
  object:
    metadata: {name: "{sn}", labels: {model: "{model}"}}
    status: {allocatable: {cpu: "{cpu_milli}m", memory: "{memory_mib}Mi", pods: "10"}}
pods:
  arrival: creation_time
  start: scheduled_time
  end: "{deletion_time}"
  object:
    metadata: {name: "{name}", annotations: {spec: "{gpu_spec?}", none: "{nothing?}"}}
    spec:
      containers: [{name: main, image: x, resources: {requests: {cpu: "{cpu_milli}m"}}}]
"""
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,4000,8192,2,P100\nn1,8000,8192,0,\n"
PODS = """name,cpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time
late,1000,,50,90,60
early,6000,V100|P100,10,40,10
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "map.yaml").write_text(MAPPING)
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return tmp_path


def object_of(event):
    return msgspec.json.decode(bytes(event.object))


def test_csv_by_a_mapping(folder):
    found = read_trace(folder / "pods.csv", folder / "map.yaml").events
    shown = [(each.time, each.kind, each.name, each.run_seconds) for each in found]
    assert shown == [
        (10, "Node", "n0", None),
        (10, "Node", "n1", None),
        (10, "Pod", "early", 30),
        (50, "Pod", "late", 30),
    ]
    assert object_of(found[0])["metadata"]["labels"] == {"model": "P100"}
    assert "labels" not in object_of(found[1])["metadata"]
    assert object_of(found[2])["metadata"]["annotations"] == {"spec": "V100|P100"}


def test_csv_is_replayed(folder):
    trace = read_trace(folder / "pods.csv", folder / "map.yaml")
    found = replay(trace, registry=Registry.installed(), options=ReplayOptions())
    assert found.placements["default/early"] == "n1"


@pytest.mark.parametrize(
    ("file", "change", "expected"),
    [
        pytest.param("pods.csv", ("late,1000,,50,90,60", "late,1000,,50,9"),
                     "FOLDER/pods.csv: line 2: has 5 values for 6 columns; the file may be cut off here", id="cut off"),
        pytest.param("pods.csv", (",90,60", ",55,60"),
                     "FOLDER/pods.csv: line 2: Pod late: end: the pod ends 5 seconds before it starts", id="ends early"),
        pytest.param("pods.csv", (",90,60", ",90,40"),
                     "FOLDER/pods.csv: line 2: Pod late: start: the pod starts before it arrives", id="starts early"),
        pytest.param("pods.csv", (",50,90", ",soon,90"),
                     "FOLDER/pods.csv: line 2: arrival: 'soon' is not a number of seconds", id="no number"),
        pytest.param("pods.csv", ("late,1000", "late,lots"),
                     "FOLDER/pods.csv: line 2: Pod default/late: spec.containers[0].resources.requests.cpu: ", id="no amount"),
        pytest.param("map.yaml", ("{model}", "{modell}"),
                     "FOLDER/nodes.csv: line 2: there is no column 'modell'; there is sn, cpu_milli, memory_mib, gpu, model",
                     id="unknown column"),
        pytest.param("map.yaml", ("  arrival:", "  arival:"),
                     "FOLDER/map.yaml: is not a mapping: Object contains unknown field `arival` - at `$.pods`", id="unknown field"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_csv_file(folder, file, change, expected):
    (folder / file).write_text((folder / file).read_text().replace(*change))
    with pytest.raises(InputError) as error:
        read_trace(folder / "pods.csv", folder / "map.yaml")
    assert str(error.value).replace(str(folder), "FOLDER").startswith(expected)


def test_a_row_may_stand_for_several_pods(folder):
    (folder / "map.yaml").write_text(MAPPING + '  count: "{cpu_milli}"\n')
    (folder / "pods.csv").write_text(PODS.replace("late,1000", "late,2"))
    found = read_trace(folder / "pods.csv", folder / "map.yaml").events
    assert [each.name for each in found][-2:] == ["late-0", "late-1"]
    (folder / "pods.csv").write_text(PODS.replace("late,1000", "late,1000000000"))
    with pytest.raises(InputError, match=r"pods\.csv: line 2: count: 1,000,000,000 is more than 100,000"):
        read_trace(folder / "pods.csv", folder / "map.yaml")


def test_manifests_with_arrival_times(tmp_path):
    timed = pod("timed")
    timed["metadata"]["annotations"] = {"stowplan.dev/arrival": "1m30s", "stowplan.dev/run-time": "20s"}
    urgent = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "urgent"},
        "value": 7,
    }
    (tmp_path / "a.json").write_text(json.dumps(timed))
    items = [pod("there", priorityClassName="urgent"), node("a"), urgent]
    (tmp_path / "b.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    found = read_trace(tmp_path).events
    assert [(each.time, each.name, each.run_seconds) for each in found] == [
        (0, "a", None), (0, "urgent", None), (0, "there", None), (90, "timed", 20),
    ]  # fmt: skip
    assert object_of(found[2])["spec"]["priority"] == 7


def test_an_arrival_that_is_no_time(tmp_path):
    wrong = pod("wrong")
    wrong["metadata"]["annotations"] = {"stowplan.dev/arrival": "tomorrow"}
    (tmp_path / "a.json").write_text(json.dumps(wrong))
    with pytest.raises(InputError, match="'tomorrow' is not a duration; expected one like 90s or 1h30m"):
        read_trace(tmp_path)


def audit(verb, resource, time, *, name="web", sub="", request=None, response=None, user="someone", code=200):
    reference = {"resource": resource, "name": name, "apiVersion": "v1"}
    if resource == "pods":
        reference["namespace"] = "default"
    if sub:
        reference["subresource"] = sub
    return {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "RequestResponse",
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": user},
        "objectRef": reference,
        "responseStatus": {"code": code},
        "requestObject": request,
        "responseObject": response,
        "requestReceivedTimestamp": f"2026-01-01T00:00:{time:02}.000000Z",
        "stageTimestamp": f"2026-01-01T00:00:{time:02}.500000Z",
    }


BINDING = {"kind": "Binding", "target": {"kind": "Node", "name": "a"}}
AUDITED = [
    audit("create", "nodes", 0, name="a", response=node("a")),
    audit("create", "pods", 1, name="", request=pod("web"), response=pod("web")),
    audit("create", "pods", 2, name="refused", request=pod("refused"), code=403),
    audit("create", "pods", 3, sub="binding", request=BINDING, user="system:kube-scheduler"),
    audit("get", "pods", 4, response=pod("web")),
    audit("delete", "pods", 9),
]


@pytest.mark.parametrize("name", ["audit.log", "audit.log.gz"])
def test_an_audit_log(tmp_path, name):
    text = "\n".join(map(json.dumps, AUDITED)).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    trace = read_trace(tmp_path / name)
    assert [(each.verb, each.kind, each.name, each.node, each.by) for each in trace.events] == [
        ("add", "Node", "a", "", ""),
        ("add", "Pod", "web", "", ""),
        ("bind", "Pod", "web", "a", "system:kube-scheduler"),
        ("delete", "Pod", "web", "", ""),
    ]
    assert trace.run_times() == {"web": 6.0}


def test_an_audit_log_without_objects_says_so(tmp_path):
    bare = [audit("create", "pods", 1), audit("create", "pods", 3, sub="binding")]
    (tmp_path / "audit.log").write_text("\n".join(map(json.dumps, bare)))
    trace = read_trace(tmp_path / "audit.log")
    assert trace.events == []
    assert dict(trace.ignored) == {
        "create of pods without an object: log them at level RequestResponse": 1,
        "binding without an object: log pods/binding at level Request": 1,
    }


def test_a_truncated_audit_log_keeps_what_it_has(tmp_path):
    text = "\n".join(map(json.dumps, AUDITED))
    (tmp_path / "audit.log").write_text(text[:-30])
    trace = read_trace(tmp_path / "audit.log")
    assert len(trace.events) == 3
    assert str(trace.faults[0]).endswith("audit.log: line 6: is not an audit event: Input data was truncated")


def deployment(replicas):
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod("x")["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": replicas, "template": template},
    }


def simkube(*events, **more):
    return {
        "version": 2,
        "config": {"trackedObjects": {"apps/v1.Deployment": {"podSpecTemplatePath": "/spec/template"}}},
        "events": [{"ts": ts, "applied_objs": applied, "deleted_objs": gone} for ts, applied, gone in events],
        "index": {},
        "pod_lifecycles": {("apps/v1.Deployment", "default/web"): {1234: [{"Finished": [100, 160]}, {"Running": 100}, "Empty"]}},
        **more,
    }  # fmt: skip


def read_simkube(folder: Path, data: bytes):
    (folder / "x.sktrace").write_bytes(data)
    return read_trace(folder / "x.sktrace")


def test_a_simkube_trace(tmp_path):
    data = simkube(
        (100, [deployment(2)], []),
        (200, [deployment(3)], []),
        (300, [deployment(1)], []),
        (400, [], [deployment(1)]),
    )
    found = read_simkube(tmp_path, msgspec.msgpack.encode(data)).events
    assert [(each.time, each.verb, each.name, each.run_seconds) for each in found] == [
        (100, "add", "web-0", 60),
        (100, "add", "web-1", None),
        (200, "add", "web-2", 60),
        (300, "delete", "web-2", None),
        (300, "delete", "web-1", None),
        (400, "delete", "web-0", None),
    ]
    assert object_of(found[0])["metadata"]["ownerReferences"][0]["kind"] == "Deployment"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(
            msgspec.msgpack.encode(simkube((1, [], [])))[:-20],
            "is not msgpack, or is cut off: ",
            id="cut off",
        ),
        pytest.param(b"\x93\x01\x02\x03", "is not a SimKube trace of version 2: ", id="something else"),
        pytest.param(
            msgspec.msgpack.encode(simkube(version=1)),
            "is a SimKube trace of version 1; expected version 2",
            id="old",
        ),
    ],
)
def test_what_is_no_simkube_trace(tmp_path, data, expected):
    with pytest.raises(InputError) as error:
        read_simkube(tmp_path, data)
    assert str(error.value).startswith(f"{tmp_path}/x.sktrace: {expected}")


def test_a_simkube_trace_whose_clock_goes_back(tmp_path):
    data = simkube((100, [deployment(1)], []), (50, [], []))
    trace = read_simkube(tmp_path, msgspec.msgpack.encode(data))
    assert len(trace.events) == 1
    assert str(trace.faults[0]).endswith("event 2: the time goes back from 100 to 50")


def test_an_owner_of_too_many_pods(tmp_path):
    data = simkube((100, [deployment(10**9)], []))
    with pytest.raises(
        InputError, match=r"event 1: Deployment default/web: spec\.replicas: 1,000,000,000 pods"
    ):
        read_simkube(tmp_path, msgspec.msgpack.encode(data))


def test_an_audit_event_that_is_nested_too_deep(tmp_path):
    (tmp_path / "audit.log").write_text('{"requestObject": ' + "[" * 100_000)
    (fault,) = read_trace(tmp_path / "audit.log").faults
    assert "line 1: is not an audit event: " in str(fault)
