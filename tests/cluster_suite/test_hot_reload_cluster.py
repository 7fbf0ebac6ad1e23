"""Plugins in a folder of a running scheduler: saved, broken, hanging; on the real control plane."""

from __future__ import annotations

from pathlib import Path

from controlplane.control_plane import ADMIN, ControlPlane, token_of
from controlplane.objects import node, pod
from controlplane.pages import ask
from controlplane.pods import add_nodes, create, placed
from controlplane.process import Process
from controlplane.waiting import eventually

FAVOURITE = """
import asyncio
import time

from stowplan import Plugin


class Favourite(Plugin):
    budget = 0.5

    async def run(self):
        print("{node} runs", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print("{node} ended", flush=True)

    def score(self, state, pod, node):
        if pod.name == "cursed":
            {hang}
        return 100 if node.name == "{node}" else 0
"""
PROFILES = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Favourite", "weight": 100}]}}}]}
FOR_EVER = """
            while True:
                try:
                    time.sleep(1)
                except BaseException:
                    pass
"""


def save(folder: Path, favourite: str, hang: str = "time.sleep(3600)") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "favourite.py").write_text(FAVOURITE.format(node=favourite, hang=hang))


async def bound(control_plane: ControlPlane, name: str) -> str:
    create(control_plane, pod(name))
    found = await eventually(lambda: placed(control_plane), lambda each: bool(each.get(name)))
    return found[name]


async def said(process: Process, text: str) -> None:
    await eventually(lambda: process.output, lambda output: text in output)


async def test_a_saved_plugin_decides_the_next_pod(control_plane, tmp_path):
    add_nodes(control_plane, node("n1"), node("n2"), node("n3"))
    folder = tmp_path / "plugins"
    save(folder, "n1")
    with control_plane.stowplan(f"--plugin-dir={folder}", **PROFILES) as ours:
        assert await bound(control_plane, "first") == "n1"
        save(folder, "n2")
        assert await bound(control_plane, "second") == "n2"
        await said(ours, "n1 ended")
        (folder / "favourite.py").write_text("class Favourite(:\n")
        assert await bound(control_plane, "third") == "n2"
        await said(
            ours, f'"Plugins not reloaded, the old ones stay" err="{folder}/favourite.py:1: SyntaxError'
        )
        save(folder, "n3")
        assert await bound(control_plane, "fourth") == "n3"
        metrics = page(ours, "/metrics")
        assert 'stowplan_plugin_reloads_total{result="success"} 2' in metrics
        assert 'stowplan_plugin_reloads_total{result="error"} 1' in metrics
        ours.stop()
        assert ours.exit_status == 0
        assert "n3 ended" in ours.output


async def test_a_plugin_that_hangs_harms_its_own_pod_alone(control_plane, tmp_path):
    add_nodes(control_plane, node("n1"), node("n2"))
    folder = tmp_path / "plugins"
    save(folder, "n1")
    with control_plane.stowplan(f"--plugin-dir={folder}", **PROFILES) as ours:
        create(control_plane, pod("cursed"))
        assert await bound(control_plane, "fine") == "n1"
        note = "OverdueError: took longer than its budget of 0.5s (pod default/cursed, node n"
        await eventually(
            lambda: notes(control_plane, "cursed"), lambda found: any(note in each for each in found)
        )
        assert 'stowplan_plugin_interruptions_total{method="score",plugin="Favourite"}' in page(
            ours, "/metrics"
        )
        assert ask(ours.server, "/livez") == (200, "ok")


async def test_one_that_cannot_be_interrupted_shows_in_livez(control_plane, tmp_path):
    add_nodes(control_plane, node("n1"), node("n2"))
    folder = tmp_path / "plugins"
    save(folder, "n1", FOR_EVER)
    with control_plane.stowplan(f"--plugin-dir={folder}", **PROFILES) as ours:
        create(control_plane, pod("cursed"))
        await said(ours, "Plugin cannot be interrupted; scheduling is blocked")
        failed = "[-]plugins failed: reason withheld\nlivez check failed\n"
        assert ask(ours.server, "/livez") == (500, failed)
        ours.kill()


def notes(control_plane: ControlPlane, name: str) -> list[str]:
    events = control_plane.request("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    return [event["note"] for event in events if event["regarding"]["name"] == name]


def page(ours: Process, path: str) -> str:
    status, text = ask(ours.server, path, token_of(ADMIN))
    assert status == 200
    return text
