"""`stowplan explain` on a real control plane: for what kube-scheduler decided, and for what we did."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from test_beside_kube_scheduler import drawn_node, drawn_pod

from controlplane.control_plane import ADMIN, NOBODY
from controlplane.objects import node, pod
from controlplane.pods import add_nodes, condition, create, placed
from controlplane.waiting import eventually

Json = dict[str, Any]

PODS_DECIDED = 40
HUGE = {"cpu": "50"}
OWN_DECISION = (
    "no Stowplan scheduler answers here; computing what the default configuration would decide now "
    "(see --server and --config)\n"
)


class Command:
    """`stowplan explain` as a program, on one control plane."""

    def __init__(self, control_plane: Any) -> None:
        self.control_plane = control_plane

    def run(self, *arguments: str, user: str = ADMIN) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stowplan.cli", "explain", *arguments]
        environment = os.environ | {"KUBECONFIG": str(self.control_plane.kubeconfig(user))}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, env=environment
        )

    def text(self, *arguments: str) -> str:
        done = self.run(*arguments)
        is_own = not {"--server", "--journal", "--config", "--plugin-dir"} & set(arguments)
        assert (done.returncode, done.stderr.endswith(OWN_DECISION)) == (0, is_own), done.stderr
        assert done.stderr.count("\n") == is_own
        return done.stdout

    def json(self, *arguments: str) -> Json:
        found: Json = json.loads(self.text(*arguments, "-o", "json"))
        return found


@pytest.fixture
def explain(control_plane):
    return Command(control_plane)


async def decided(control_plane, name: str) -> str:
    """Where the pod is, once a scheduler has tried it; empty if it stays pending."""
    await eventually(
        lambda: placed(control_plane)[name] or condition(control_plane, name).get("message", ""), bool
    )
    return placed(control_plane)[name]


async def test_what_kube_scheduler_chose_is_among_our_best(control_plane, explain):
    draw = random.Random(7)
    add_nodes(control_plane, *(drawn_node(draw, number) for number in range(12)))
    chosen, pending = 0, 0
    with control_plane.kube_scheduler():
        for number in range(PODS_DECIDED):
            made = drawn_pod(draw, number)
            create(control_plane, made)
            name = made["metadata"]["name"]
            where = await decided(control_plane, name)
            found = explain.json(name, "--no-changes")
            if where:
                chosen += 1
                assert where in (found["node"], *found["ties"]), found
                assert any(f"It runs on {where};" in note for note in found["notes"])
            elif found["outcome"] != "preempting":
                pending += 1
                assert found["outcome"] == "pending"
                assert found["message"] == condition(control_plane, name)["message"]
                assert found["wakes"]
    assert chosen > PODS_DECIDED / 2
    assert pending > 0


async def test_nothing_is_written(control_plane, explain):
    add_nodes(control_plane, node("n1"))
    create(control_plane, pod("p"))
    before = control_plane.request("GET", "/api/v1/pods")["items"]
    assert "Pod default/p goes to n1 (profile default-scheduler)." in explain.text("p", "--no-changes")
    assert control_plane.request("GET", "/api/v1/pods")["items"] == before
    done = explain.run("nobody")
    assert done.returncode == 1
    assert done.stderr.endswith("stowplan: pod default/nobody not found (known: default/p)\n")
    done = explain.run("p", user=NOBODY)
    assert done.returncode == 1
    assert "forbidden" in done.stderr


async def test_what_our_scheduler_decided(control_plane, explain, tmp_path):
    add_nodes(control_plane, node("n1"), node("n2", unschedulable=True))
    journal = tmp_path / "journal"
    with control_plane.stowplan(f"--journal={journal}") as ours:
        asking = ("--server", ours.server, "--insecure-skip-tls-verify")
        create(control_plane, pod("p"), pod("large", requests=HUGE), pod("other", schedulerName="another"))
        create(control_plane, pod("gated", schedulingGates=[{"name": "example.com/wait"}]))
        assert await decided(control_plane, "p") == "n1"
        assert await decided(control_plane, "large") == ""
        found = explain.json("p", *asking)
        assert (found["outcome"], found["node"], found["made"]["attempt"]) == ("placed", "n1", 1)
        assert abs(found["made"]["time"] - time.time()) < 60
        assert found["refused"][0]["nodes"] == ["n2"]
        large = explain.text("default/large", *asking)
        assert "Pod default/large fit nowhere, attempt " in large
        assert f"\n  {condition(control_plane, 'large')['message']}\n" in large
        assert "\n  NodeResourcesFit: a node is added or changes its allocatable resources" in large
        assert "\n\nComputed for the cluster as it is now, where the pod would fit nowhere.\n" in large
        assert re.search(r"\n   - cpu request \S+ of the container \S+ instead of 50: n1\n", large)
        gated = explain.text("gated", *asking)
        assert "It is gated by SchedulingGates and not attempted until the gate is removed." in gated
        for name, said in (
            ("nobody", "pod default/nobody not found"),
            ("other", "pod default/other uses scheduler 'another', which is not a profile of this one"),
        ):
            done = explain.run(name, *asking)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith(f"stowplan: {said}")
        refused = explain.run("p", *asking, user=NOBODY)
        assert refused.returncode == 1
        assert f'User "{NOBODY}" cannot get path "/page/api/explain"' in refused.stderr
        (tmp_path / "role.yaml").write_text(documented_role())
        control_plane.kubectl("apply", f"--filename={tmp_path / 'role.yaml'}")
        binding = ("clusterrolebinding", "see-decisions")
        control_plane.kubectl("create", *binding, "--clusterrole=see-decisions", f"--user={NOBODY}")
        try:
            allowed = await eventually(
                lambda: explain.run("p", *asking, user=NOBODY), lambda done: done.returncode == 0
            )
            assert allowed.stderr == ""
        finally:
            control_plane.kubectl("delete", *binding)
        untrusted = explain.run("p", "--server", ours.server)
        assert "--insecure-skip-tls-verify" in untrusted.stderr
        trusted = f"{control_plane.folder}/stowplan/kube-scheduler.crt"
        assert explain.json("p", "--server", ours.server, "--certificate-authority", trusted)["node"] == "n1"
    again = explain.json("p", "--journal", str(journal))
    kept = found.keys() - {"waiting", "changes"}
    assert {key: again[key] for key in kept} == {key: found[key] for key in kept}
    done = explain.run("nobody", "--journal", str(journal))
    assert done.returncode == 1
    assert "no decision for pod default/nobody; the journal has decisions written from" in done.stderr


async def test_a_scheduler_that_is_killed_leaves_a_sound_journal(control_plane, explain, tmp_path):
    add_nodes(control_plane, node("n1"))
    with control_plane.stowplan(f"--journal={tmp_path}") as ours:
        create(control_plane, *(pod(f"p{number}") for number in range(20)))
        await eventually(lambda: sum(map(rows, tmp_path.glob("*.parquet"))), lambda count: count == 20)
        ours.kill()
    assert sum(map(rows, tmp_path.glob("*.parquet"))) == 20
    assert explain.json("p7", "--journal", str(tmp_path))["node"] == "n1"
    damaged = tmp_path / "decisions-20300101T000000.000000Z-20300101T000000.000000Z.parquet"
    damaged.write_bytes(b"PAR1")
    done = explain.run("p7", "--journal", str(tmp_path))
    assert done.returncode == 0
    assert f"{damaged}: skipping unreadable file: " in done.stderr


def documented_role() -> str:
    page = (Path(__file__).parents[2] / "docs" / "explain.md").read_text()
    (role,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    return str(role)


def rows(file: Path) -> int:
    return len(pq.read_table(file))
