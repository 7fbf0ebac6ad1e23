"""Recording a live cluster, and replaying the recording."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time

import msgspec
import pytest
from small_trace import busy_trace, node, pod

from stowplan.client import kubeconfig
from stowplan.client.api import RESOURCES, ApiClient
from stowplan.embedded.cluster import EmbeddedCluster
from stowplan.errors import InputError
from stowplan.replay import ReplayOptions, read_trace, replay, write_trace
from stowplan.replay.recorder import Privacy, Recorder, TraceFolder, decode_seen, record
from stowplan.replay.trace import Trace

SECRET = "hunter2-in-the-environment"


def make_pod(name, namespace):
    data = pod(name, "100m")
    data["metadata"] = {"name": name, "namespace": namespace}
    data["spec"]["containers"][0] |= {"env": [{"name": "PASSWORD", "value": SECRET}], "args": [SECRET]}
    return data


@contextlib.asynccontextmanager
async def recording(cluster, folder, **options):
    async with ApiClient(kubeconfig.load(str(cluster.kubeconfig)), qps=0) as api:
        task = asyncio.create_task(record(api, folder, **options))
        try:
            await until(lambda: any(each.kind == "Node" for each in read_trace(folder).events), task)
            await asyncio.sleep(0.5)
            yield task
            await asyncio.sleep(1.5)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def until(condition, task=None):
    ends = time.monotonic() + 60
    while True:
        if task is not None and task.done():
            task.result()
        with contextlib.suppress(InputError):
            if condition():
                return
        assert time.monotonic() < ends
        await asyncio.sleep(0.1)


def verbs(trace, name):
    return [each.verb for each in trace.events if each.kind == "Pod" and each.name == name]


async def test_what_happens_is_recorded_and_replayed(kube_cluster, kube_namespace, tmp_path):
    folder = tmp_path / "trace"
    async with recording(kube_cluster, folder):
        for name in ("one", "two"):
            await asyncio.to_thread(kube_cluster.create, make_pod(name, kube_namespace))
            await asyncio.to_thread(kube_cluster.wait_for, f"pod/{name}", "Ready", kube_namespace)
        await asyncio.to_thread(kube_cluster.delete, "Pod", "one", kube_namespace)
        await until(lambda: "delete" in verbs(read_trace(folder), "one"))
    assert [each.suffix for each in folder.iterdir()] == [".parquet"]
    trace = read_trace(folder)
    assert trace.faults == []
    assert verbs(trace, "one") == ["add", "bind", "start", "update", "delete"]
    assert verbs(trace, "two") == ["add", "bind", "start"]
    (bound,) = [each for each in trace.events if each.verb == "bind" and each.name == "two"]
    assert bound.by == "default-scheduler"
    assert bound.node == kube_cluster.get("Pod", "two", kube_namespace)["spec"]["nodeName"]
    assert SECRET not in str([bytes(each.object) for each in trace.events])
    found = await asyncio.to_thread(replay, trace, options=ReplayOptions(prefers_recorded=True))
    replayed = {each.name: (each.node, each.recorded_node) for each in found.pods}
    assert replayed["one"][0] == replayed["one"][1]
    assert replayed["two"] == (bound.node, bound.node)


async def test_recording_goes_on_after_a_restart(kube_cluster, kube_namespace, tmp_path):
    folder = tmp_path / "trace"
    await asyncio.to_thread(kube_cluster.create, make_pod("gone", kube_namespace))
    await asyncio.to_thread(kube_cluster.wait_for, "pod/gone", "Ready", kube_namespace)
    async with recording(kube_cluster, folder):
        pass
    ended = read_trace(folder).end
    await asyncio.to_thread(kube_cluster.delete, "Pod", "gone", kube_namespace)
    await asyncio.to_thread(kube_cluster.create, make_pod("new", kube_namespace))
    async with recording(kube_cluster, folder):
        await until(lambda: "delete" in verbs(read_trace(folder), "gone"))
    trace = read_trace(folder)
    assert trace.faults == []
    assert verbs(trace, "gone") == ["add", "delete"]
    (gone,) = [each for each in trace.events if each.verb == "delete" and each.name == "gone"]
    assert gone.earliest == ended
    assert verbs(trace, "new")[0] == "add"
    added = [each.name for each in trace.events if each.kind == "Node" and each.verb == "add"]
    assert len(added) == len(set(added))


async def test_after_a_gap_departures_have_bounds(kube_cluster, kube_namespace, tmp_path):
    folder = tmp_path / "trace"
    await asyncio.to_thread(kube_cluster.create, make_pod("gone", kube_namespace))
    await asyncio.to_thread(kube_cluster.wait_for, "pod/gone", "Ready", kube_namespace)
    async with recording(kube_cluster, folder):
        with kube_cluster.fault(503, verb="watch", resource="pods"):
            kube_cluster.drop_watches("pods")
            await asyncio.to_thread(kube_cluster.delete, "Pod", "gone", kube_namespace)
            kube_cluster.expire_watches("pods")
        await until(lambda: "delete" in verbs(read_trace(folder), "gone"))
    (gone,) = [each for each in read_trace(folder).events if each.verb == "delete" and each.name == "gone"]
    assert gone.earliest is not None
    assert gone.earliest < gone.time


async def test_names_and_images_can_be_hashed(kube_cluster, kube_namespace, tmp_path):
    folder = tmp_path / "trace"
    privacy = Privacy(hashes_names=True, hashes_images=True, omits_annotations=True, key=b"key")
    async with recording(kube_cluster, folder, privacy=privacy):
        await asyncio.to_thread(kube_cluster.create, make_pod("topsecret", kube_namespace))
        await asyncio.to_thread(kube_cluster.wait_for, "pod/topsecret", "Ready", kube_namespace)
    trace = read_trace(folder)
    hashed = privacy.hashed("topsecret")
    assert verbs(trace, hashed) == ["add", "bind", "start"]
    text = str([bytes(each.object) for each in trace.events if each.kind == "Pod"])
    assert "topsecret" not in text
    assert '"image":"web"' not in text


async def record_in_process(cluster, folder):
    """Record a cluster of this process until its nodes and pods are in the trace."""
    task = asyncio.create_task(record(cluster.api, folder))
    try:
        await until(lambda: {"Node", "Pod"} <= {each.kind for each in read_trace(folder).events}, task)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return read_trace(folder)


async def test_pending_pods_are_recorded_in_the_order_of_their_creation(tmp_path):
    """A list has them in the order of their names, and may arrive before that of nodes."""
    names = [f"{letter}-{number}" for number, letter in enumerate("qzbmaxkc")]
    async with EmbeddedCluster() as cluster:
        for number in range(3):
            made = node(f"node-{number}")
            await cluster.api.request("POST", "/api/v1/nodes", made)
        for name in names:
            await cluster.api.request("POST", "/api/v1/namespaces/default/pods", make_pod(name, "default"))
        trace = await record_in_process(cluster, tmp_path / "trace")
    first = [each for each in trace.events if each.time == trace.start]
    kinds = [each.kind for each in first]
    assert [each.name for each in first if each.kind == "Pod"] == names
    assert "Node" not in kinds[kinds.index("Pod") :]
    found = await asyncio.to_thread(replay, trace)
    assert [each.name for each in found.pods] == names
    assert {each.bound for each in found.pods} == {trace.start}


async def test_attempts_that_find_no_node_are_recorded(tmp_path):
    """With the node that was nominated, and without the message; the same again is not recorded."""
    folder, pods = tmp_path / "trace", "/api/v1/namespaces/default/pods"
    kind = "application/merge-patch+json"
    rejected = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"}
    async with EmbeddedCluster() as cluster:
        await cluster.api.request("POST", "/api/v1/nodes", node("node-0"))
        await cluster.api.request("POST", pods, make_pod("big", "default"))
        task = asyncio.create_task(record(cluster.api, folder))
        try:
            await until(lambda: verbs(read_trace(folder), "big") == ["add"], task)
            for change in (
                {"conditions": [rejected]},
                {"conditions": [rejected | {"lastProbeTime": "2026-01-01T00:00:00Z"}]},
                {"conditions": [rejected], "nominatedNodeName": "node-0"},
            ):
                await cluster.api.request(
                    "PATCH", f"{pods}/big/status", {"status": change}, content_type=kind
                )
            await until(lambda: verbs(read_trace(folder), "big").count("reject") == 2, task)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    trace = read_trace(folder)
    found = [each for each in trace.events if each.name == "big"]
    assert [(each.verb, each.node) for each in found] == [("add", ""), ("reject", ""), ("reject", "node-0")]
    assert {each.by for each in found[1:]} == {"default-scheduler"}
    assert "full" not in str([bytes(each.object) for each in found])


def test_a_line_that_was_not_written_to_its_end_is_left_out(tmp_path):
    write_trace(tmp_path / "trace-000001.jsonl", busy_trace().events[:3])
    with (tmp_path / "trace-000001.jsonl").open("ab") as stream:
        stream.write(b'{"time": 9, "verb": "ad')
    TraceFolder(tmp_path).close()
    found = read_trace(tmp_path)
    assert (len(found.events), found.faults) == (3, [])


def test_a_damaged_file_is_kept_and_the_events_before_are_used(tmp_path, caplog):
    """After a power failure, a file may end in zeros."""
    write_trace(tmp_path / "trace-000001.jsonl", busy_trace().events[:3])
    with (tmp_path / "trace-000001.jsonl").open("ab") as stream:
        stream.write(bytes(100) + b"\n" + bytes(10))
    target = TraceFolder(tmp_path)
    for event in busy_trace().events[3:5]:
        target.write(event)
    target.close()
    found = read_trace(tmp_path)
    assert (len(found.events), found.faults) == (5, [])
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "trace-000001.damaged",
        "trace-000001.parquet",
        "trace-000002.parquet",
    ]
    assert "Trace file is damaged" in caplog.text


def test_files_of_others_in_the_folder_are_left_alone(tmp_path):
    write_trace(tmp_path / "trace-of-monday.parquet", busy_trace().events[:3])
    TraceFolder(tmp_path).close()
    assert [each.name for each in tmp_path.iterdir()] == ["trace-of-monday.parquet"]


def resource_of(kind):
    (found,) = (each for each in RESOURCES if each.kind == kind)
    return found


def seen(name, message="", *containers, **labels):
    """An object as a Reflector would hand it on; with a message, a pod that was rejected."""
    data = {
        "metadata": {"name": name, "uid": name, "labels": labels},
        "spec": {"containers": list(containers)},
    }
    if message:
        condition = {"type": "PodScheduled", "reason": "Unschedulable", "message": message}
        data["status"] = {"conditions": [condition]}
    return decode_seen(msgspec.json.encode(data))


def test_a_list_that_follows_a_change_is_newer_than_it():
    """A watch may break while other kinds are still being listed."""
    events = []
    recorder, pods = Recorder(events.append), resource_of("Pod")
    first, second, third = (seen("web", version=each) for each in ("1", "2", "3"))
    recorder.see(resource_of("Node"), None, seen("a"), is_listed=True)
    recorder.see(pods, None, first, is_listed=True)
    recorder.see(pods, first, second)
    recorder.see(pods, second, third, since=0.0, is_listed=True)
    recorder.release(all_listed=True)
    found = [msgspec.json.decode(each.object)["metadata"] for each in events]
    assert [each["labels"]["version"] for each in found[1:]] == ["1", "2", "3"]


def test_all_that_plugins_read_of_a_container_is_recorded_and_no_more():
    profile = {"type": "Localhost", "localhostProfile": "operator/default/web.json"}
    read = {"name": "main", "image": "web", "securityContext": {"seccompProfile": profile}}
    context = {"runAsUser": 1, "seccompProfile": profile}
    events = []
    whole = {**read, "securityContext": context, "env": [{"name": "PASSWORD", "value": SECRET}]}
    Recorder(events.append).see(resource_of("Pod"), None, seen("web", "", whole))
    assert msgspec.json.decode(events[0].object)["spec"]["containers"] == [read]


def test_a_rejection_is_not_recorded_again_after_a_restart():
    events = []
    pods = resource_of("Pod")
    recorder = Recorder(events.append)
    recorder.see(pods, None, seen("web", "0/1 nodes are available"))
    assert [each.verb for each in events] == ["add", "reject"]
    recorder = Recorder(events.append, before=Trace(list(events)))
    recorder.see(pods, None, seen("web", "0/1 nodes are available"))
    assert [each.verb for each in events] == ["add", "reject"]
    recorder.see(pods, None, seen("web", "0/2 nodes are available"))
    assert [each.verb for each in events] == ["add", "reject", "reject"]


def test_files_are_rotated(tmp_path):
    target = TraceFolder(tmp_path, size=2000)
    for event in busy_trace().events:
        target.write(event)
    target.close()
    files = sorted(each.name for each in tmp_path.iterdir())
    assert len(files) > 3
    assert files[0] == "trace-000001.parquet"
    assert len(read_trace(tmp_path).events) == len(busy_trace().events)


def test_events_are_written_while_a_full_file_is_packed(tmp_path):
    target, (first, second, *_) = TraceFolder(tmp_path, size=1), busy_trace().events
    full = tmp_path / "trace-000001.jsonl"
    full.unlink()
    os.mkfifo(full)  # so that packing waits until the test writes the events to the pipe
    writing = threading.Thread(target=target.write, args=(first,), daemon=True)
    writing.start()
    writing.join(timeout=30)
    assert not writing.is_alive()
    target.write(second)
    full.write_bytes(msgspec.json.encode(first) + b"\n")
    target.close()
    assert [each.uid for each in read_trace(tmp_path).events] == [first.uid, second.uid]


def test_a_full_file_that_cannot_be_packed(tmp_path):
    target = TraceFolder(tmp_path, size=1)
    (tmp_path / "trace-000001.parquet.part").mkdir()
    target.write(busy_trace().events[0])
    with pytest.raises(InputError, match=r"cannot be written: "):
        target.close()
    assert (tmp_path / "trace-000001.jsonl").exists()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/trace: cannot be written: Not a directory"):
        TraceFolder(tmp_path / "file" / "trace")
