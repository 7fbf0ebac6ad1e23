"""Plugins that go wrong in a scheduler with a standby, on the real control plane."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest

from controlplane.control_plane import ControlPlane
from controlplane.objects import node, pod
from controlplane.pages import ask
from controlplane.pods import add_nodes, create, placed
from controlplane.waiting import eventually

PLUGIN = """
import asyncio
import pathlib
import sys

from stowplan import Plugin


class Deed(Plugin):
    def permit(self, state, pod, node_name):
        if pod.name == "permit":
            return True

    async def pre_bind(self, state, pod, node_name):
        if pod.name == "cancelled":
            task = asyncio.create_task(asyncio.sleep(60))
            task.cancel()
            await task
        if pod.name == "exits":
            sys.exit(0)

    def filter(self, state, pod, node):
        done = pathlib.Path("{done}")
        if pod.name == "trigger" and not done.exists():
            done.touch()
            {deed}
"""
PROFILES = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Deed"}]}}}]}
ELECTION = {"leaderElection": {"leaderElect": True}}
DEEDS = {
    "cancels every task": "[task.cancel() for task in asyncio.all_tasks()]",
    "exits in a callback": "asyncio.get_running_loop().call_soon(sys.exit, 0)",
}


def save(folder: Path, deed: str = "pass") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "deed.py").write_text(PLUGIN.format(done=folder / "done", deed=deed))
    return folder


async def bound(control_plane: ControlPlane, name: str) -> str:
    create(control_plane, pod(name))
    found = await eventually(lambda: placed(control_plane), lambda each: bool(each.get(name)))
    return str(found[name])


def condition(control_plane: ControlPlane, name: str) -> str:
    status = control_plane.request("GET", f"/api/v1/namespaces/default/pods/{name}").get("status", {})
    found = [each for each in status.get("conditions", ()) if each["type"] == "PodScheduled"]
    return str(found[0].get("message", "")) if found else ""


async def test_a_fault_is_its_pods_alone(control_plane, tmp_path):
    add_nodes(control_plane, node("n1"), node("n2"))
    folder = save(tmp_path / "plugins")
    with control_plane.stowplan(f"--plugin-dir={folder}", **PROFILES) as ours:
        for name, expected in {
            "permit": 'running Permit plugin "Deed": TypeError: expected a Status or None, got True',
            "cancelled": 'running PreBind plugin "Deed": CancelledError',
            "exits": 'running PreBind plugin "Deed": SystemExit: 0',
        }.items():
            create(control_plane, pod(name))
            await eventually(
                lambda name=name: condition(control_plane, name), lambda text, wanted=expected: wanted in text
            )
            await bound(control_plane, f"fine-{name}")
        assert ask(ours.server, "/livez") == (200, "ok")
        assert not {"permit", "cancelled", "exits"} & {
            name for name, where in placed(control_plane).items() if where
        }


@pytest.mark.parametrize("deed", DEEDS)
async def test_a_standby_takes_over_from_one_whose_tasks_end(control_plane, tmp_path, deed):
    add_nodes(control_plane, node("n1"), node("n2"))
    folder = save(tmp_path / "plugins", DEEDS[deed])
    with control_plane.stowplan(f"--plugin-dir={folder}", **PROFILES, **ELECTION) as first:
        await eventually(lambda: first.output, lambda output: "Became leader" in output)
        with control_plane.stowplan(
            f"--plugin-dir={folder}", name="standby", **PROFILES, **ELECTION
        ) as second:
            await bound(control_plane, "before")
            create(control_plane, pod("trigger"))
            began = monotonic()
            await eventually(lambda: second.output, lambda output: "Became leader" in output)
            # Less than the 15 s after which a lease that nobody released expires.
            assert monotonic() - began < 14
            await bound(control_plane, "after")
            first.stop()  # it has ended by itself
            assert first.exit_status == 1
