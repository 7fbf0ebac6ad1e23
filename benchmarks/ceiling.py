"""Does all that a scheduler must do besides deciding, with the client and the encoding of Stowplan's.

Binds every pod that waits for a node to the next one, whatever the pod asks for, writes an event for each and
reads the watch of pods. `cluster.py` and `scheduler_perf.py` run it in the place of a scheduler.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from stowplan.api.pod import Pod
from stowplan.client.api import ApiClient
from stowplan.client.errors import ApiError
from stowplan.client.events import EventRecorder
from stowplan.client.kubeconfig import load

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from controlplane.control_plane import SCHEDULER, ControlPlane
from controlplane.process import Process

CEILING = "ceiling"
AT_ONCE = 64
UNLIMITED = 10_000
READY = "ready"


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    scheduling_gates: list[msgspec.Raw] = []


class _Pod(msgspec.Struct):
    spec: _Spec


_event = msgspec.json.Decoder(_Event).decode
_pod = msgspec.json.Decoder(_Pod).decode


@contextmanager
def running(plane: ControlPlane) -> Iterator[Process]:
    """Run it in a process of its own."""
    log = plane.folder / f"{CEILING}.log"
    command = [sys.executable, __file__, str(plane.kubeconfig(SCHEDULER))]
    process = Process(command, log, lambda: log.exists() and READY in log.read_text())
    try:
        process.start()
        yield process
    finally:
        process.kill()


async def bind_all(kubeconfig: str) -> None:
    connection = load(kubeconfig)
    make_client = partial(ApiClient, connection, qps=UNLIMITED, burst=UNLIMITED, uses_protobuf=True)
    async with (
        make_client() as api,
        make_client(beside=api) as events_api,
        asyncio.TaskGroup() as tasks,
    ):
        recorder = EventRecorder(events_api, "default-scheduler", CEILING, time.time)
        waiting: asyncio.Queue[Pod] = asyncio.Queue()
        seen: set[str] = set()
        nodes: Iterator[str] | None = None
        is_listing = asyncio.Lock()

        def on_line(line: bytes) -> None:
            event = _event(line)
            spec = _pod(event.object).spec
            if event.type != "DELETED" and not spec.node_name and not spec.scheduling_gates:
                pod = Pod.decode(bytes(event.object))
                if pod.uid not in seen:
                    seen.add(pod.uid)
                    waiting.put_nowait(pod)

        async def next_node() -> str:
            nonlocal nodes
            async with is_listing:
                if nodes is None:  # all pods of a run come after its nodes
                    listed = await api.get_json("/api/v1/nodes")
                    nodes = itertools.cycle([each["metadata"]["name"] for each in listed["items"]])
                return next(nodes)

        async def bind() -> None:
            while True:
                pod = await waiting.get()
                node = await next_node()
                with suppress(ApiError):  # the pod is gone
                    await api.create_binding(pod, node)
                    note = f"Successfully assigned {pod.key} to {node}"
                    recorder.record(pod, "Normal", "Scheduled", "Binding", note)

        tasks.create_task(recorder.run())
        for _ in range(AT_ONCE):
            tasks.create_task(bind())
        print(READY, flush=True)
        while True:  # the server ends a watch now and then; what it shows again is known
            await api.stream("/api/v1/pods", on_line, query={"watch": "true"}, silence=3600, open_seconds=600)


if __name__ == "__main__":
    asyncio.run(bind_all(sys.argv[1]))
