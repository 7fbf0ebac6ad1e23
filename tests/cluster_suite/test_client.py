"""Our client and the real API server."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from subprocess import CalledProcessError

import pytest

from controlplane.binaries import chosen_module, version
from controlplane.control_plane import NOBODY, SCHEDULER
from controlplane.objects import node, pod
from controlplane.waiting import eventually
from stowplan.api.pod import Pod
from stowplan.client.api import PODS, RESOURCES
from stowplan.client.errors import Conflict, Forbidden
from stowplan.client.events import EventRecorder
from stowplan.client.watch import Reflector

PODS_PATH = "/api/v1/namespaces/default/pods"


@pytest.fixture
async def follow(connect):
    """Starts a reflector, and answers it with the events it tells of as (kind, name, node of the pod)."""
    running = []

    async def start(resource=PODS, user=SCHEDULER, **options):
        told = []
        reflector = Reflector(
            await connect(user),
            resource,
            on_event=lambda kind, old, new: told.append(
                (kind, (new or old).name, getattr(new, "node_name", ""))
            ),
            **options,
        )
        running.append(asyncio.create_task(reflector.run()))
        await asyncio.wait_for(reflector.synced.wait(), 30)
        return reflector, told

    yield start
    for task in running:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_watch_tells_of_creations_changes_and_deletions(control_plane, follow):
    control_plane.request("POST", PODS_PATH, pod("before"))
    _, told = await follow()
    assert told == [("added", "before", "")]
    control_plane.request("POST", PODS_PATH, pod("after"))
    control_plane.request("PATCH", f"{PODS_PATH}/after", {"metadata": {"labels": {"new": "label"}}})
    control_plane.request("DELETE", f"{PODS_PATH}/after?gracePeriodSeconds=0")
    wanted = ["added", "modified", "modified", "deleted"]  # its end is announced before it comes
    await eventually(lambda: told[1:], lambda events: events == [(kind, "after", "") for kind in wanted])


async def test_a_pod_that_finishes_leaves_the_scheduler_s_sight(control_plane, follow):
    control_plane.request("POST", PODS_PATH, pod("job"))
    _, told = await follow()
    control_plane.request("PATCH", f"{PODS_PATH}/job/status", {"status": {"phase": "Succeeded"}})
    await eventually(lambda: told, lambda events: events[-1] == ("deleted", "job", ""))


async def test_a_list_of_many_pages_is_whole(control_plane, follow):
    for number in range(25):
        control_plane.request("POST", PODS_PATH, pod(f"p{number}"))
    reflector, _ = await follow(page_size=10)
    assert sorted(reflector.objects) == sorted(f"default/p{number}" for number in range(25))


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.name)
async def test_the_scheduler_may_watch(follow, resource):
    reflector, _ = await follow(resource)
    assert reflector.synced.is_set()


@pytest.mark.parametrize("program", ["api_server", "etcd"])
async def test_a_reflector_goes_on_after_a_crash(control_plane, follow, program):
    control_plane.request("POST", PODS_PATH, pod("before"))
    reflector, _ = await follow(first_backoff=0.1)
    crashing = getattr(control_plane, program)
    crashing.kill()
    await asyncio.sleep(0.5)  # long enough for the reflector to notice
    crashing.start()
    await eventually(lambda: control_plane.is_ready, bool)
    control_plane.request("DELETE", f"{PODS_PATH}/before?gracePeriodSeconds=0")
    control_plane.request("POST", PODS_PATH, pod("after"))
    await eventually(lambda: list(reflector.objects), lambda keys: keys == ["default/after"], seconds=60)


async def test_a_user_without_rights_is_told_what_to_do(connect):
    api = await connect(NOBODY)
    with pytest.raises(Forbidden) as refused:
        await api.request("GET", "/api/v1/nodes")
    assert str(refused.value) == (
        'nodes is forbidden: User "nobody" cannot list resource "nodes" in API group "" at the cluster scope'
    )
    assert "system:kube-scheduler" in refused.value.explanation


async def test_the_scheduler_s_rights_end_where_kube_scheduler_s_do(connect):
    api = await connect(SCHEDULER)
    with pytest.raises(Forbidden, match='User "system:kube-scheduler" cannot create resource "nodes"'):
        await api.request("POST", "/api/v1/nodes", node("n1"))


async def test_a_pod_is_bound_once(control_plane, connect):
    control_plane.request("POST", PODS_PATH, pod("p"))
    seen = Pod.decode(control_plane.request("GET", f"{PODS_PATH}/p"))
    api = await connect(SCHEDULER)
    await api.create_binding(seen, "n1")
    assert control_plane.request("GET", f"{PODS_PATH}/p")["spec"]["nodeName"] == "n1"
    with pytest.raises(Conflict, match='pod p is already assigned to node "n1"'):
        await api.create_binding(seen, "n2")


async def test_bindings_and_events_in_protobuf(control_plane, connect):
    """The first of each is JSON, the others are protobuf, and nobody can tell."""
    api = await connect(SCHEDULER, uses_protobuf=True)
    recorder = EventRecorder(api, "me", "me-1", lambda: 1_800_000_000.123456)
    running = asyncio.create_task(recorder.run())
    names = ("first", "second", "third")
    for name in names:
        control_plane.request("POST", PODS_PATH, pod(name))
        seen = Pod.decode(control_plane.request("GET", f"{PODS_PATH}/{name}"))
        await api.create_binding(seen, "n1")
        assert control_plane.request("GET", f"{PODS_PATH}/{name}")["spec"]["nodeName"] == "n1"
        recorder.record(seen, "Normal", "Scheduled", "Binding", f"Successfully assigned {seen.key} to n1")
        assert await recorder.drain(10)
    with pytest.raises(Conflict, match='pod third is already assigned to node "n1"'):
        await api.create_binding(seen, "n2")
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    items = control_plane.request("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    assert len(items) == len(names)
    own = ("eventTime", "reportingController", "reportingInstance", "action", "reason", "type")
    assert len({tuple(item[field] for field in own) for item in items}) == 1
    assert items[0]["eventTime"] == "2027-01-15T08:00:00.123456Z"
    assert {item["note"] for item in items} == {
        f"Successfully assigned default/{name} to n1" for name in names
    }
    assert {item["regarding"]["name"] for item in items} == set(names)
    assert all(item["regarding"]["uid"] and item["regarding"]["resourceVersion"] for item in items)


def test_kubectl_knows_versions_and_creates_nodes_and_pods(control_plane):
    served = version("k8s.io/kubernetes", chosen_module())
    assert f"Server Version: {served}\n" in control_plane.kubectl("version")
    control_plane.kubectl("create", "-f", "-", objects=[node("n1"), pod("p", nodeName="n1")])
    assert control_plane.kubectl("get", "pods", "-o", "name").split() == ["pod/p"]
    assert control_plane.request("GET", "/api/v1/nodes/n1")["status"]["allocatable"]["cpu"] == "4"
    with pytest.raises(CalledProcessError) as refused:
        control_plane.kubectl("get", "nodes", user=NOBODY)
    assert "nodes is forbidden" in refused.value.stderr
