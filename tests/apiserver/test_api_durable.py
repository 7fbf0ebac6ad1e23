"""The store on disk: everything that was acknowledged is there again, in the same form."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from api_staging import Staged

from stowplan.apiserver import ApiServer
from stowplan.apiserver.durable import DurableStore
from stowplan.errors import InputError

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
WRITER = """
import asyncio, pathlib, sys
from stowplan.apiserver import ApiServer, Request
from stowplan.apiserver.durable import DurableStore

async def write(server, number):
    body = {"metadata": {"name": f"m{number}"}}
    answer = await server.handle(Request.of("POST", "/api/v1/namespaces/default/configmaps", body))
    print(number if answer.status == 201 else "refused", flush=True)

async def main():
    server = ApiServer(DurableStore(pathlib.Path(sys.argv[1])))
    for start in range(0, 100000, 20):
        await asyncio.gather(*(write(server, number) for number in range(start, start + 20)))

asyncio.run(main())
"""


async def test_objects_are_there_again(tmp_path: Path) -> None:
    store = DurableStore(tmp_path)
    api = Staged(ApiServer(store))
    await api("POST", CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"x": "y"}}, user_agent="me/1")
    await api("POST", CONFIG_MAPS, {"metadata": {"name": "gone"}})
    await api("DELETE", f"{CONFIG_MAPS}/gone")
    _, before = await api("GET", CONFIG_MAPS)
    store.close()

    again = DurableStore(tmp_path)
    api = Staged(ApiServer(again))
    _, after = await api("GET", CONFIG_MAPS)
    assert after["items"] == before["items"]
    assert int(after["metadata"]["resourceVersion"]) >= int(before["metadata"]["resourceVersion"])
    _, watched = await api("GET", f"{CONFIG_MAPS}?watch=1&resourceVersion=1")
    assert watched["object"]["code"] == 410  # what happened before the start is forgotten
    again.close()


async def test_custom_resources_are_there_again(tmp_path: Path) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    definition = {
        "metadata": {"name": "boxes.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Cluster",
            "names": {"plural": "boxes", "kind": "Box"},
            "versions": [version],
        },
    }
    store = DurableStore(tmp_path)
    api = Staged(ApiServer(store))
    await api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    box = {"apiVersion": "example.com/v1", "kind": "Box", "metadata": {"name": "b"}, "size": 3}
    assert (await api("POST", "/apis/example.com/v1/boxes", box))[0] == 201
    store.close()
    again = DurableStore(tmp_path)
    _, found = await Staged(ApiServer(again))("GET", "/apis/example.com/v1/boxes/b")
    assert found["size"] == 3
    again.close()


async def test_a_kill_loses_nothing_acknowledged(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(50)]
    os.kill(writer.pid, signal.SIGKILL)
    acknowledged += [int(line) for line in writer.stdout.read().splitlines() if line.strip().isdecimal()]
    writer.stdout.close()
    writer.wait()
    store = DurableStore(tmp_path)
    _, found = await Staged(ApiServer(store))("GET", CONFIG_MAPS)
    store.close()
    names = {item["metadata"]["name"] for item in found["items"]}
    assert {f"m{number}" for number in acknowledged[:-1]} <= names  # the last line may be half of a number


def test_two_servers_do_not_share_a_folder(tmp_path: Path) -> None:
    store = DurableStore(tmp_path)
    with pytest.raises(InputError, match="another process is using"):
        DurableStore(tmp_path)
    store.close()


async def test_writes_in_one_turn_share_a_commit(tmp_path: Path) -> None:
    store = DurableStore(tmp_path)
    api = Staged(ApiServer(store))
    bodies = [{"metadata": {"name": f"m{number}"}} for number in range(50)]
    made = await asyncio.gather(*(api("POST", CONFIG_MAPS, body) for body in bodies))
    assert [status for status, _ in made] == [201] * 50
    store.close()
