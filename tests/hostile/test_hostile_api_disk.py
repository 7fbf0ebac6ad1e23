"""A disk that fills up, fails or vanishes under `--data`: what clients see is what a restart brings back."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from stowplan.apiserver import ApiServer, Request, Response, Stream
from stowplan.apiserver.durable import FILE, DurableStore

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
MERGE = "application/merge-patch+json"


class Disk(Protocol):
    folder: Path

    def fill(self) -> None: ...

    def free(self) -> None: ...


class SmallDisk:
    """A file system of a megabyte of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "data"
        self._filler = folder / "filler"

    def fill(self) -> None:
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)


class LimitedFiles:
    """The kernel lets files grow no further than they are: writes fail with EFBIG, as at a quota."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        largest = max((each.stat().st_size for each in self.folder.iterdir()), default=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, self._before[1]))

    def free(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


@pytest.fixture(params=["a full file system", "a limit of file sizes"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "a limit of file sizes":
        limited = LimitedFiles(tmp_path)
        yield limited
        limited.free()
        return
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("only root can mount a file system")
    yield SmallDisk(tmp_path)
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


class Api:
    """A server on a store that can be restarted, and a watch that follows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = DurableStore(folder)
        self.server = ApiServer(self.store)

    async def __call__(self, method: str, target: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        answer = await self.server.handle(Request.of(method, target, body, **headers))
        assert isinstance(answer, Response)
        return answer.status, answer.json()

    async def names(self) -> dict[str, Any]:
        _, found = await self("GET", CONFIG_MAPS)
        return {item["metadata"]["name"]: item.get("data") for item in found["items"]}

    async def watch(self) -> Stream:
        _, found = await self("GET", CONFIG_MAPS)
        version = found["metadata"]["resourceVersion"]
        stream = await self.server.handle(
            Request.of("GET", f"{CONFIG_MAPS}?watch=1&resourceVersion={version}")
        )
        assert isinstance(stream, Stream)
        return stream

    def restart(self) -> Api:
        self.store.close()
        return Api(self.folder)


@pytest.fixture
async def api(disk: Disk) -> AsyncIterator[Api]:
    made = Api(disk.folder)
    yield made
    disk.free()
    made.store.close()


def config_map(name: str, size: int = 10) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"x": "x" * size}}


async def until_rejected(api: Api, size: int = 20_000) -> tuple[int, Any]:
    """Write until a write fails; small ones may still find room that the database has kept."""
    for number in range(200):
        status, answer = await api("POST", CONFIG_MAPS, config_map(f"fill-{number}", size))
        if status != 201:
            return status, answer
    raise AssertionError("the disk never became full")


async def test_a_failed_write_is_neither_served_nor_kept(api: Api, disk: Disk) -> None:
    await api("POST", CONFIG_MAPS, config_map("before"))
    stream = await api.watch()
    disk.fill()
    status, answer = await until_rejected(api)
    assert status in (500, 507)
    assert str(disk.folder / FILE) in answer["message"]
    assert "free" in answer["message"]
    served = await api.names()
    seen = await events(stream)
    assert set(served) == {"before", *seen}
    again = api.restart()
    api.store, api.server = again.store, again.server
    assert await api.names() == served


async def test_deletes_and_patches_that_fail_take_no_effect(api: Api, disk: Disk) -> None:
    big = config_map("big", 50_000)
    await api("POST", CONFIG_MAPS, big)
    disk.fill()
    await until_rejected(api)
    before = await api.names()
    refused = 0
    for _ in range(50):
        patch = {"data": {"y": "y" * 500_000}}
        status, _ = await api("PATCH", f"{CONFIG_MAPS}/big", patch, content_type=MERGE)
        if status != 200:
            refused += 1
            assert (await api.names())["big"] == before["big"]
        status, _ = await api("DELETE", f"{CONFIG_MAPS}/big")
        assert ("big" in await api.names()) is (status != 200)
        if status == 200:
            break
    assert refused
    served = await api.names()
    again = api.restart()
    api.store, api.server = again.store, again.server
    assert await api.names() == served


async def test_writes_succeed_again_once_there_is_room(api: Api, disk: Disk) -> None:
    disk.fill()
    await until_rejected(api)
    served = await api.names()
    disk.free()
    status, made = await api("POST", CONFIG_MAPS, config_map("after", 20_000))
    assert status == 201
    assert set(await api.names()) == {*served, "after"}
    _, found = await api("GET", CONFIG_MAPS)
    versions = [int(item["metadata"]["resourceVersion"]) for item in found["items"]]
    assert len(set(versions)) == len(versions)
    assert max(versions) == int(made["metadata"]["resourceVersion"])


async def test_writes_that_share_a_failed_commit_all_fail(api: Api, disk: Disk) -> None:
    """One that rests on another that failed cannot stay: neither a second version nor an 'already exists'."""
    disk.fill()
    await until_rejected(api)
    before = await api.names()
    large = config_map("large", 200_000)
    answers = await asyncio.gather(
        api("POST", CONFIG_MAPS, large),
        api("POST", CONFIG_MAPS, large),
        api("PATCH", f"{CONFIG_MAPS}/large", {"data": {"y": "y"}}, content_type=MERGE),
        api("DELETE", f"{CONFIG_MAPS}/large"),
        api("POST", CONFIG_MAPS, config_map("small")),
    )
    assert {status for status, _ in answers} <= {500, 507}
    assert await api.names() == before
    disk.free()
    assert (await api("POST", CONFIG_MAPS, large))[0] == 201


async def test_a_write_that_rests_on_a_failed_one_says_why_that_failed(api: Api, disk: Disk) -> None:
    disk.fill()
    await until_rejected(api)
    first = asyncio.create_task(api("POST", CONFIG_MAPS, config_map("first", 200_000)))
    for _ in range(5):
        await asyncio.sleep(0)  # its commit has begun then, and the next write does not share it
    answers = [await api("POST", CONFIG_MAPS, config_map("second", 200_000)), await first]
    assert all("free" in answer["message"] for _, answer in answers), answers


async def test_custom_resources_of_a_definition_that_failed_are_not_served(api: Api, disk: Disk) -> None:
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    schema = {"type": "object", "description": "x" * 200_000}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {
        "group": "example.com",
        "scope": "Cluster",
        "names": {"plural": "boxes", "kind": "Box"},
        "versions": [version],
    }
    definition = {"metadata": {"name": "boxes.example.com"}, "spec": spec}
    disk.fill()
    await until_rejected(api)
    assert (await api("POST", definitions, definition))[0] in (500, 507)
    answer = await api.server.handle(Request.of("GET", "/apis/example.com/v1/boxes"))
    assert isinstance(answer, Response)
    assert answer.status == 404
    disk.free()
    assert (await api("POST", definitions, definition))[0] == 201
    box = {"apiVersion": "example.com/v1", "kind": "Box", "metadata": {"name": "b"}}
    assert (await api("POST", "/apis/example.com/v1/boxes", box))[0] == 201
    assert (await api("DELETE", f"{definitions}/boxes.example.com"))[0] == 200
    assert (await api("POST", definitions, definition))[0] == 201
    assert (await api("GET", "/apis/example.com/v1/boxes"))[1]["items"] == []


@pytest.mark.parametrize("harm", ["deleted", "replaced"])
async def test_a_database_that_vanishes_takes_no_more_writes(tmp_path: Path, harm: str) -> None:
    api = Api(tmp_path / "data")
    await api("POST", CONFIG_MAPS, config_map("before"))
    if harm == "deleted":
        shutil.rmtree(api.folder)
    else:
        (api.folder / FILE).rename(tmp_path / "moved")
        (api.folder / FILE).write_bytes(b"")
    status, answer = await api("POST", CONFIG_MAPS, config_map("after"))
    assert status == 500
    assert str(api.folder / FILE) in answer["message"]
    assert set(await api.names()) & {"before", "after"} == {"before"}
    api.store.close()


WRITER = """
import asyncio, pathlib, resource, sys
from stowplan.apiserver import ApiServer, Request
from stowplan.apiserver.durable import DurableStore

async def write(server, number):
    body = {"metadata": {"name": f"m{number}"}, "data": {"x": "x" * 3000}}
    answer = await server.handle(Request.of("POST", "/api/v1/namespaces/default/configmaps", body))
    print("kept" if answer.status == 201 else "lost", number, flush=True)

async def main():
    server = ApiServer(DurableStore(pathlib.Path(sys.argv[1])))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for start in range(0, 100000, 20):
        limit = 2_000_000 if start % 200 < 100 else 400_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        await asyncio.gather(*(write(server, number) for number in range(start, start + 20)))

asyncio.run(main())
"""


async def test_a_kill_among_failing_writes_brings_back_what_was_acknowledged(tmp_path: Path) -> None:
    """The disk is full at times; whatever was acknowledged is there after a kill, and nothing that failed."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(600)]
    os.kill(writer.pid, signal.SIGKILL)
    lines += writer.stdout.read().splitlines(keepends=True)
    writer.stdout.close()
    writer.wait()
    said = [line.split() for line in lines if line.endswith("\n")]
    kept = {f"m{number}" for what, number in said if what == "kept"}
    lost = {f"m{number}" for what, number in said if what == "lost"}
    assert kept
    assert lost
    api = Api(tmp_path)
    found = set(await api.names())
    api.store.close()
    assert kept <= found
    assert not lost & found


SYNC_FAILS = """
import asyncio, ctypes, errno, os, pathlib, platform, struct, sys
from stowplan.apiserver import ApiServer, Request
from stowplan.apiserver.durable import DurableStore

PATH = "/api/v1/namespaces/default/configmaps"
LOAD, EQUALS, RETURN, ALLOW, FAIL = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000 | errno.EIO
SECCOMP, FSYNC, FDATASYNC = {"x86_64": (317, 74, 75), "aarch64": (277, 82, 83)}[platform.machine()]

def fail_syncs():
    # A filter in the kernel, for all threads: fsync and fdatasync fail with EIO, as on a disk that dies.
    filters = [(LOAD, 0, 0, 0), (EQUALS, 1, 0, FSYNC), (EQUALS, 0, 1, FDATASYNC),
               (RETURN, 0, 0, FAIL), (RETURN, 0, 0, ALLOW)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in filters))
    header = struct.pack("HxxxxxxQ", len(filters), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    if libc.syscall(SECCOMP, 1, 1, ctypes.create_string_buffer(header)) != 0:
        sys.exit(f"no seccomp: {os.strerror(ctypes.get_errno())}")
    try:
        os.fsync(1)
    except OSError as error:
        assert error.errno == errno.EIO

async def main():
    server = ApiServer(DurableStore(pathlib.Path(sys.argv[1])))
    async def write(name):
        answer = await server.handle(Request.of("POST", PATH, {"metadata": {"name": name}}))
        return answer.status
    print(await write("before"), flush=True)
    fail_syncs()
    print(await write("one"), await write("two"), flush=True)
    answer = await server.handle(Request.of("GET", PATH))
    print(*(item["metadata"]["name"] for item in answer.json()["items"]), flush=True)
    os._exit(0)

asyncio.run(main())
"""


async def test_a_write_that_cannot_be_synced_is_not_acknowledged(tmp_path: Path) -> None:
    """The kernel itself fails fsync: what is not certainly on disk is an error, and not served."""
    ended = subprocess.run(
        [sys.executable, "-c", SYNC_FAILS, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    before, failed, served = ended.stdout.splitlines()
    assert (before, failed, served) == ("201", "500 500", "before")
    api = Api(tmp_path)  # on a disk that works again
    found = set(await api.names())
    api.store.close()
    assert {"before"} <= found <= {"before", "one", "two"}  # a failed write may have reached the disk


async def events(stream: Stream) -> list[str]:
    """Names in the events that a watch has for us now."""
    found: list[str] = []
    chunks = aiter(stream.chunks)
    try:
        while True:
            chunk = await asyncio.wait_for(anext(chunks), 0.1)
            found += [Response(200, line).json()["object"]["metadata"]["name"] for line in chunk.splitlines()]
    except TimeoutError:
        return found
