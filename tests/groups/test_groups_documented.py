"""docs/groups.md: what it shows is what the commands print."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from stowplan.client import kubeconfig as kubeconfigs
from stowplan.client.api import MERGE_PATCH, ApiClient
from up_process import STOWPLAN, running_up

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/groups.md").read_text()


def block(command):
    """What the page shows after a command."""
    found = re.search(rf"^\$ {re.escape(command)}\n(.*?)(?=^\$ |^```)", TEXT, re.DOTALL | re.MULTILINE)
    assert found, command
    return found[1]


def run(command, *more):
    return subprocess.run(
        [STOWPLAN, *shlex.split(command)[1:], *more], capture_output=True, text=True, cwd=ROOT, check=False
    )


def ageless(text):
    return re.sub(r"pending for \d+ s", "pending for N s", text)


def test_a_job_as_a_gang():
    (command,) = re.findall(r"^\$ (stowplan whatif -f .*)$", TEXT, re.MULTILINE)
    assert run(command).stdout == block(command)


@contextmanager
def up(folder, number):
    """The cluster of the page's nth `stowplan up`."""
    command = re.findall(r"^\$ stowplan up (.*)$", TEXT.replace("\\\n", ""), re.MULTILINE)[number]
    words = [str(ROOT / each) if each.startswith("examples/") else each for each in shlex.split(command)]
    with running_up(folder, *words) as found:
        yield found


def shows(cluster, command):
    """Whether the command prints what the page shows, soon."""
    shown, ends = ageless(block(command)), time.monotonic() + 30
    while (printed := ageless(run(command, *cluster.config_flag).stdout)) != shown:
        assert time.monotonic() < ends, printed
        time.sleep(0.5)


def test_a_gang_that_must_fit_into_one_rack(tmp_path):
    with up(tmp_path, 0) as cluster:
        shows(cluster, "stowplan explain group train --domains")
        command = "stowplan whatif --more-nodes b1"
        printed = run(command, *cluster.config_flag).stdout
        assert printed.startswith(block(command).partition("…")[0].rstrip())


async def scale(kubeconfig, name, replicas):
    async with ApiClient(kubeconfigs.load(str(kubeconfig))) as api:
        path = f"/apis/apps/v1/namespaces/default/deployments/{name}"
        await api.request("PATCH", path, {"spec": {"replicas": replicas}}, content_type=MERGE_PATCH)


def test_two_queues_that_lend_and_take_back(tmp_path):
    with up(tmp_path, 1) as cluster:
        ends = time.monotonic() + 30
        while (
            "10 pods: 10 placed" not in run("stowplan explain group red-train", *cluster.config_flag).stdout
        ):
            assert time.monotonic() < ends
            time.sleep(0.5)
        asyncio.run(scale(cluster.kubeconfig, "blue-train", 5))
        shows(cluster, "stowplan explain group blue-train")
        shows(cluster, "stowplan explain group red-train")
