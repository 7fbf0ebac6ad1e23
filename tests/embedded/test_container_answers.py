"""Logs, commands and usage of containers that are simulated."""

from __future__ import annotations

import pytest

from stowplan.apiserver import Request, Response
from stowplan.client.errors import ApiError
from stowplan.embedded import embedded_cluster
from stowplan.http11.messages import response_head
from stowplan.kubelet import Behaviour
from stowplan.kubelet.behaviour import ExecResult

PODS = "/api/v1/namespaces/default/pods"


def pod(name="web", annotations=None, **container):
    main = {"name": "main", "image": "web:1", **container}
    meta = {"name": name, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [main]}}


async def running(cluster, item):
    await cluster.create(item)

    async def is_running():
        return (await cluster.get("Pod", item["metadata"]["name"]))["status"]["phase"] != "Pending"

    await cluster.until(is_running)


async def log_of(cluster, query=""):
    return (await cluster.api.request("GET", f"{PODS}/web/log{query}")).data.decode()


async def test_logs_are_what_commands_print_or_annotations_say():
    async with embedded_cluster() as cluster:
        await running(cluster, pod(command=["sh", "-c", "echo one; echo two; sleep 1000"]))
        assert await log_of(cluster) == "one\ntwo\n"
        assert await log_of(cluster, "?tailLines=1") == "two\n"
        with pytest.raises(ApiError, match="container other is not valid for pod web"):
            await log_of(cluster, "?container=other")
    async with embedded_cluster() as cluster:
        await running(cluster, pod(annotations={"kubelet.stowplan/logs": "listening"}))
        assert await log_of(cluster) == "listening\n"


async def test_logs_of_a_container_that_waits():
    async with embedded_cluster() as cluster:
        await cluster.create(pod(annotations={"kubelet.stowplan/start-error": "ErrImagePull"}))

        async def is_waiting():
            return (await cluster.get("Pod", "web"))["status"].get("containerStatuses")

        await cluster.until(is_waiting)
        with pytest.raises(ApiError, match='container "main" in pod "web" is waiting to start: ErrImagePull'):
            await log_of(cluster)


async def run(cluster, query):
    headers = {"sec_websocket_key": "a2V5", "sec_websocket_protocol": "v5.channel.k8s.io"}
    found = await cluster.server.handle(Request.of("GET", f"{PODS}/web/exec?{query}", None, **headers))
    assert isinstance(found, Response)
    return found


async def test_commands_are_answered_over_a_web_socket():
    def answer(pod, container, command):
        return ExecResult(f"{container} in {pod.name}: {' '.join(command)}\n", "", len(command))

    async with embedded_cluster(behaviour=Behaviour(exec=answer)) as cluster:
        await running(cluster, pod())
        found = await run(cluster, "command=cat&command=/etc/hosts")
        assert found.status == 101
        assert dict(found.headers)["Sec-WebSocket-Protocol"] == "v5.channel.k8s.io"
        assert b"\x01main in web: cat /etc/hosts\n" in found.body
        assert b'"reason":"ExitCode","message":"2"' in found.body


async def test_a_command_that_nobody_knows_gets_a_plain_answer():
    async with embedded_cluster() as cluster:
        await running(cluster, pod())
        found = await run(cluster, "command=psql")
        assert found.status == 400
        assert found.json()["message"].startswith("containers are simulated: no command can be run in them")
        with pytest.raises(ApiError, match="containers are simulated: nothing listens on their ports"):
            await cluster.api.request("POST", f"{PODS}/web/portforward")


async def test_usage_of_pods_and_nodes():
    async with embedded_cluster() as cluster:
        requests = {"requests": {"cpu": "200m", "memory": "64Mi"}}
        await running(cluster, pod(resources=requests))
        found = await cluster.api.get_json("/apis/metrics.k8s.io/v1beta1/namespaces/default/pods")
        assert found["items"][0]["containers"] == [
            {"name": "main", "usage": {"cpu": "100m", "memory": "32768Ki"}}
        ]
        await cluster.settle()  # nodes hear of their pods through a watch
        node = await cluster.api.get_json("/apis/metrics.k8s.io/v1beta1/nodes/node-1")
        assert node["usage"]["cpu"] == "200m"
        groups = await cluster.api.get_json("/apis")
        assert "metrics.k8s.io" in [each["name"] for each in groups["groups"]]


def test_a_switch_of_protocols_has_no_headers_of_a_body():
    head = response_head(Response(101, b"frames", headers=(("Upgrade", "websocket"),)), keeps_alive=False)
    assert head == b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
