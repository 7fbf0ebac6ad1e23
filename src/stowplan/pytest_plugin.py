"""Fixtures with a Kubernetes cluster, and `async def` tests without configuration.

pytest loads this module by its entry point in every run, so it imports nothing but pytest: the cluster is
loaded when a test asks for it. `kube_cluster` and `kube_namespace` are described in docs/testing.md.

`async def` tests run in a loop of their own if no pytest plugin for asyncio is configured. Those of modules
that import nothing of Stowplan are left alone, and so are those that pytest-asyncio or anyio runs. Async
fixtures need pytest-asyncio, with `asyncio_mode = "auto"`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stowplan.embedded import KubeCluster

PACKAGE = "stowplan"
MARKER = "kube_cluster"
OPTIONS = ("nodes", "rbac", "config", "plugins", "plugin_dirs", "manifests", "speed", "seed", "behaviour")
MAX_NAME = 40
READS_KUBECONFIG_ONCE = ("kubernetes.config.kube_config", "kubernetes_asyncio.config.kube_config")
"""Modules that read KUBECONFIG when imported, and would later use the user's own cluster."""
_STASH = pytest.StashKey["Clusters"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("kube_nodes", "kube_cluster: number of nodes (default: 3)", default="")
    parser.addini("kube_rbac", "kube_cluster: enforce RBAC for service accounts", "bool", default=False)
    parser.addini("kube_config", "kube_cluster: the scheduler's configuration file", default="")
    parser.addini("kube_plugins", "kube_cluster: scheduler plugins, as module:Class", "linelist", default=[])
    parser.addini("kube_plugin_dirs", "kube_cluster: folders of scheduler plugins", "linelist", default=[])
    parser.addini("kube_manifests", "kube_cluster: manifests to apply at the start", "linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    words = ", ".join(f"{name}=…" for name in OPTIONS)
    config.addinivalue_line("markers", f"{MARKER}({words}): use a cluster with these options")
    config.stash[_STASH] = Clusters()


def pytest_generate_tests(metafunc: Any) -> None:
    """Give tests with the marker a cluster of their own kind."""
    if MARKER not in metafunc.fixturenames:
        return
    markers = list(metafunc.definition.iter_markers(MARKER))
    if not markers:
        return
    options: dict[str, Any] = {}
    for marker in reversed(markers):  # that of the function counts more than that of the module
        if marker.args or not set(marker.kwargs) <= set(OPTIONS):
            known, where = ", ".join(OPTIONS), metafunc.definition.nodeid
            raise pytest.UsageError(f"{where}: the marker {MARKER} takes keyword arguments: {known}")
        options |= marker.kwargs
    chosen = metafunc.config.stash[_STASH].chosen(options)
    name = ",".join(
        f"{key}={value}" for key, value in options.items() if isinstance(value, int | float | str)
    )
    metafunc.parametrize(MARKER, [chosen], indirect=True, scope="session", ids=[name or "options"])


def pytest_runtest_teardown(item: Any, nextitem: Any) -> None:
    """Faults end with the test that asked for them."""
    item.config.stash[_STASH].clear_faults()


@pytest.fixture(scope="session")
def _kube_clusters(request: pytest.FixtureRequest) -> Iterator[Clusters]:
    clusters = request.config.stash[_STASH]
    yield clusters
    clusters.stop()


@pytest.fixture(scope="session")
def kube_cluster(request: pytest.FixtureRequest, _kube_clusters: Clusters) -> KubeCluster:
    """A Kubernetes cluster for the whole run: API server, controllers, nodes and scheduler."""
    options = _ini_options(request.config) | getattr(request, "param", Chosen()).options
    return _kube_clusters.get(options)


@pytest.fixture
def kube_namespace(
    kube_cluster: KubeCluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The name of a new namespace, which is removed after the test with everything in it.

    Meanwhile KUBECONFIG names a kubeconfig of the cluster with this as its default namespace.
    """
    from secrets import token_hex

    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:MAX_NAME].strip("-")
    name = f"{words}-{token_hex(3)}" if words else f"test-{token_hex(3)}"
    kube_cluster.create_namespace(name)
    path = str(kube_cluster.kubeconfig_for(name))
    monkeypatch.setenv("KUBECONFIG", path)
    for module in READS_KUBECONFIG_ONCE:
        if module in sys.modules:
            monkeypatch.setattr(sys.modules[module], "KUBE_CONFIG_DEFAULT_LOCATION", path, raising=False)
    # Tests that run in a pod of a real cluster must not find that one.
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    yield name
    kube_cluster.remove_namespace(name)


class Chosen:
    """Options of a marker; pytest tells parameters apart by identity."""

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        self.options = options or {}


class Clusters:
    """The clusters of this run, one for each set of options, started when first asked for."""

    def __init__(self) -> None:
        self._running: list[tuple[dict[str, Any], KubeCluster]] = []
        self._chosen: list[Chosen] = []

    def chosen(self, options: dict[str, Any]) -> Chosen:
        for known in self._chosen:
            if known.options == options:
                return known
        self._chosen.append(Chosen(options))
        return self._chosen[-1]

    def get(self, options: dict[str, Any]) -> KubeCluster:
        for known, cluster in self._running:
            if known == options:
                return cluster
        from stowplan.embedded import KubeCluster

        started = KubeCluster(**options).start()
        self._running.append((options, started))
        return started

    def clear_faults(self) -> None:
        for _, cluster in self._running:
            cluster.clear_faults()

    def stop(self) -> None:
        while self._running:
            self._running.pop()[1].stop()


def _ini_options(config: pytest.Config) -> dict[str, Any]:
    """Paths are relative to the file with pytest's configuration."""
    found: dict[str, Any] = {}
    if nodes := config.getini("kube_nodes"):
        if not str(nodes).isdecimal():
            raise pytest.UsageError(f"kube_nodes: expected a number, not {nodes!r}")
        found["nodes"] = int(nodes)
    if config.getini("kube_rbac"):
        found["rbac"] = True
    folder = config.inipath.parent if config.inipath else config.rootpath
    if path := config.getini("kube_config"):
        found["config"] = folder / path
    if plugins := config.getini("kube_plugins"):
        found["plugins"] = [_load(each) for each in plugins]
    if folders := config.getini("kube_plugin_dirs"):
        found["plugin_dirs"] = [folder / each for each in folders]
    if manifests := config.getini("kube_manifests"):
        found["manifests"] = [folder / each for each in manifests]
    return found


def _load(name: str) -> Any:
    from importlib import import_module

    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise pytest.UsageError(
            f"kube_plugins: cannot load {name!r}, expected module:Class: {error}"
        ) from None


def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    """Run an async test in an event loop of its own; None leaves it to others."""
    import inspect

    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test) or not _uses_stowplan(pyfuncitem.module):
        return None
    import asyncio

    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(test(**given))
    return True


def _uses_stowplan(module: object) -> bool:
    modules = (
        getattr(value, "__module__", None) or getattr(value, "__name__", "")
        for value in vars(module).values()
    )
    return any(str(each).partition(".")[0] == PACKAGE for each in modules)
