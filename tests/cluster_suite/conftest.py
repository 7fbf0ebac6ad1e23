"""Tests on a real control plane: etcd and kube-apiserver, with kubectl and kube-scheduler at hand.

They run only when this folder, or a file of it, is named: `make test-cluster`. Fixtures:

- `control_plane`: a running `controlplane.control_plane.ControlPlane` with nothing in it. It is started once
  and wiped before each test that asks for it. Its `request` and `kubectl` look at the cluster without our
  client; `kubeconfig(user)` is for programs; `etcd` and `api_server` can be killed and started; `with
  control_plane.kube_scheduler():` runs the real scheduler. Start again what you kill: the next test wants it.
- `connect(user)`: makes an `ApiClient` as ADMIN (the default), SCHEDULER (the rights that RBAC gives
  kube-scheduler and no more) or NOBODY; closed after the test. Its client-side rate limit is out of the way.
- `api`: `connect(ADMIN)`.
- `start(name, **config)`: runs our scheduler with a log of its own; another `name` for a second one.
- `proxy`, `tcp_proxy`: between a scheduler and the API server, to spoil requests or to cut connections.
- `kubelets`: `SimulatedKubelets` at work on the control plane: `await kubelets.register(template, names)`
  adds nodes; pods bound to any node become Running, and deleted ones go away.

No fixtures, but as useful: `controlplane.objects` makes small nodes and pods as the wire has them, and
`controlplane.waiting.eventually(read, is_so)` asks until the answer is right, and fails with the last one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from checking import JSON_LOG

from controlplane.control_plane import ADMIN, ControlPlane
from controlplane.process import Process
from controlplane.proxy import Proxy
from controlplane.tcp_proxy import TcpProxy
from stowplan.client.api import ApiClient
from stowplan.client.kubeconfig import load
from stowplan.kubelet import SimulatedKubelets

HERE = Path(__file__).parent
UNLIMITED = 10_000
TLS_GOODBYE_SECONDS = 0.1
"""aiohttp leaves the connections of cancelled watches to end by themselves: let them, while they can."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """These tests need Go and minutes, so a run of all tests leaves them out."""
    named = (Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args)
    return None if any(path.resolve().is_relative_to(HERE) for path in named) else True


@pytest.fixture(scope="session")
def running_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    control_plane = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    try:
        control_plane.start()
        yield control_plane
    finally:
        control_plane.stop()


@pytest.fixture
def control_plane(running_control_plane: ControlPlane) -> ControlPlane:
    running_control_plane.wipe()
    return running_control_plane


@pytest.fixture
def start(
    control_plane: ControlPlane, request: pytest.FixtureRequest
) -> Callable[..., AbstractContextManager[Process]]:
    test = re.sub(r"\W+", "-", request.node.name)

    def run(name: str = "", **config: Any) -> AbstractContextManager[Process]:
        return control_plane.stowplan(JSON_LOG, "-v=2", name=f"{test}{name}", **config)

    return run


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[Proxy]:
    with Proxy(control_plane) as running:
        yield running


@pytest.fixture
def tcp_proxy(control_plane: ControlPlane) -> Iterator[TcpProxy]:
    with TcpProxy(control_plane) as running:
        yield running


@pytest.fixture
async def connect(control_plane: ControlPlane) -> AsyncIterator[Callable[..., Awaitable[ApiClient]]]:
    async with AsyncExitStack() as clients:

        async def make(user: str = ADMIN, **options: Any) -> ApiClient:
            connection = load(str(control_plane.kubeconfig(user)))
            client = ApiClient(connection, qps=UNLIMITED, burst=UNLIMITED, **options)
            return await clients.enter_async_context(client)

        yield make
    await asyncio.sleep(TLS_GOODBYE_SECONDS)


@pytest.fixture
async def api(connect: Callable[..., Awaitable[ApiClient]]) -> ApiClient:
    return await connect()


@pytest.fixture
async def kubelets(connect: Callable[..., Awaitable[ApiClient]]) -> AsyncIterator[SimulatedKubelets]:
    simulated = SimulatedKubelets(await connect(), heartbeat_seconds=1)
    running = asyncio.create_task(simulated.run())
    yield simulated
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
