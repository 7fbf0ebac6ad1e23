"""Plugins that go wrong while they are loaded anew: the old ones stay, and pods go on being decided."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from stowplan.apiserver import ApiServer
from stowplan.client.api import ApiClient
from stowplan.embedded.pool import InProcess
from stowplan.errors import StowplanError
from stowplan.framework.registry import Registry
from stowplan.scheduler.main import LOOK_SECONDS, Service
from stowplan.scheduler.options import parse

V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
PODS = "/api/v1/namespaces/default/pods"
GOOD = """
from stowplan import Plugin, PluginArgs


class ChangedArgs(PluginArgs):
    broken: bool = False


class Changed(Plugin):
    args: ChangedArgs

    def filter(self, state, pod, node):
        return None
"""
RAISED = {
    "ValueError": "raise ValueError('broken')",
    "SystemExit": "raise SystemExit(0)",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "CancelledError": "import asyncio; raise asyncio.CancelledError",
    "GeneratorExit": "raise GeneratorExit",
    "BaseException": "raise BaseException('rude')",
    "RecursionError": "f = lambda: f(); f()",
    "str-raises": "raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})",
}
PLACES = {
    "module": "{fault}\n",
    "constructor": """
class Changed(Plugin):
    def __init__(self, args, handle):
        {fault}

    def filter(self, state, pod, node):
        return None
""",
    "events_to_register": """
class Changed(Plugin):
    def filter(self, state, pod, node):
        return None

    def events_to_register(self):
        {fault}
""",
    "validate": """
class ChangedArgs(PluginArgs):
    def validate(self, path):
        {fault}
        yield

class Changed(Plugin):
    args: ChangedArgs

    def filter(self, state, pod, node):
        return None
""",
    "class body": """
class Changed(Plugin):
    {fault}
""",
    "metaclass": """
class Meta(type):
    def __call__(cls, *args):
        {fault}

class Changed(Plugin, metaclass=Meta):
    def filter(self, state, pod, node):
        return None
""",
}
EVENTS = """from stowplan.framework.events import Action, ClusterEvent

class Changed(Plugin):
    def events_to_register(self):
        return """
ANSWERS = {
    "no super": "class Changed(Plugin):\n    def __init__(self, args, handle): pass\n{filter}",
    "another object": "class Changed(Plugin):\n    def __new__(cls, *args): return 5\n{filter}",
    "events None": "class Changed(Plugin):\n    def events_to_register(self): return None\n{filter}",
    "events text": "class Changed(Plugin):\n    def events_to_register(self): return 'Node'\n{filter}",
    "events of nonsense": "class Changed(Plugin):\n    def events_to_register(self): return [5]\n{filter}",
    "one event": f"{EVENTS}ClusterEvent('Node', Action.ALL)\n{{filter}}",
    "event with a number": f"{EVENTS}[ClusterEvent('Node', 5)]\n{{filter}}",
    "no plugin at all": "Changed = 5\n",
    "no Python": "class\n",
}
FILTER = "    def filter(self, state, pod, node): return None\n"
CASES = {
    f"{place}, {fault}": PLACES[place].format(fault=RAISED[fault]) for place in PLACES for fault in RAISED
} | {name: text.format(filter=FILTER) for name, text in ANSWERS.items()}


async def until(is_so: Callable[[], Any], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(folder: Path, **config: Any) -> AsyncIterator[tuple[Service, ApiClient]]:
    plugins = folder / "plugins"
    plugins.mkdir()
    (plugins / "changed.py").write_text(GOOD)
    write_config(folder, **config)
    flags = [f"--config={folder / 'config.yaml'}", f"--plugin-dir={plugins}", "--secure-port=0"]
    registry = Registry.installed([plugins])
    options = parse([*flags, "--leader-elect=false"], registry=registry).options
    server = ApiServer()
    async with ApiClient(InProcess(server), qps=0) as api:
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "100"}
        node = {"metadata": {"name": "n"}, "status": {"allocatable": amounts}}
        await api.request("POST", "/api/v1/nodes", node)
        service = Service(options, registry, InProcess(server), owns_process=False)
        task = asyncio.create_task(service.run())
        try:
            await until(lambda: service.is_synced)
            yield service, api
            assert not task.done(), "the scheduler has ended"
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(task, 30) == 0
        finally:
            task.cancel()
            sys.modules.pop("changed", None)


def write_config(folder: Path, **args: Any) -> None:
    profile = {
        "plugins": {"multiPoint": {"enabled": [{"name": "Changed"}]}},
        "pluginConfig": [{"name": "Changed", "args": args}] if args else [],
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(V1 | {"profiles": [profile]}))


async def bind(api: ApiClient, name: str) -> None:
    pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await api.request("POST", PODS, pod)
    async with asyncio.timeout(20):
        while not (await api.get_json(f"{PODS}/{name}"))["spec"].get("nodeName"):
            await asyncio.sleep(0.01)


def said(caplog: Any, message: str) -> list[Any]:
    return [each.fields.get("err") for each in caplog.records if each.getMessage() == message]


async def test_the_old_ones_stay(tmp_path, caplog):
    caplog.set_level(logging.INFO, "stowplan")
    refused = "Plugins not reloaded, the old ones stay"
    async with running(tmp_path) as (service, api):
        old = service.scheduler.profiles["default-scheduler"].plugins["Changed"]
        for number, (name, text) in enumerate(CASES.items()):
            caplog.clear()
            text = textwrap.dedent(text)
            head = "from stowplan import Plugin, PluginArgs\n" if name != "no Python" else ""
            (tmp_path / "plugins" / "changed.py").write_text(f"{head}{text}")
            # Before a pod is decided, files are checked for changes, unless that was a moment ago.
            await asyncio.sleep(LOOK_SECONDS)
            await bind(api, f"pod-{number}")
            await until(lambda: said(caplog, refused))
            assert service.scheduler.profiles["default-scheduler"].plugins["Changed"] is old, name
        (tmp_path / "plugins" / "changed.py").write_text(GOOD)
        await until(lambda: said(caplog, "Plugins reloaded"))
        await bind(api, "last")


async def test_a_configuration_that_a_constructor_refuses(tmp_path, caplog):
    caplog.set_level(logging.INFO, "stowplan")
    fails = "    def __init__(self, args, handle):\n        super().__init__(args, handle)\n"
    fails += "        if args.broken:\n            raise SystemExit(0)\n"
    async with running(tmp_path) as (service, api):
        (tmp_path / "plugins" / "changed.py").write_text(GOOD + "\n" + fails)
        await until(lambda: said(caplog, "Plugins reloaded"))
        first = service.scheduler
        write_config(tmp_path, broken=True)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: said(caplog, "Cannot use the new configuration; keeping the old one"))
        (error,) = said(caplog, "Cannot use the new configuration; keeping the old one")
        assert str(error).startswith('initializing plugin "Changed": SystemExit: 0 (at ')
        assert "changed.py:" in str(error)
        await until(lambda: service.scheduler is not first and service.is_synced)
        await bind(api, "after")


@pytest.mark.parametrize("fault", RAISED)
async def test_the_start_says_which_plugin_it_is(tmp_path, fault):
    """There is no old one to go on with."""
    (tmp_path / "changed.py").write_text(
        "from stowplan import Plugin\n" + PLACES["constructor"].format(fault=RAISED[fault])
    )
    write_config(tmp_path)
    registry = Registry.installed([tmp_path])
    try:
        options = parse(
            [f"--config={tmp_path / 'config.yaml'}", "--secure-port=0", "--leader-elect=false"],
            registry=registry,
        ).options
        with pytest.raises(StowplanError, match='initializing plugin "Changed"'):
            await Service(options, registry, InProcess(ApiServer())).run()
    finally:
        sys.modules.pop("changed", None)
