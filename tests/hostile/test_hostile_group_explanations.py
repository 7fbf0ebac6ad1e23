"""Attacks on what explains pod groups, reserves nodes for them and reads JobSets: nothing breaks or hangs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from stowplan.cli import stowplan

sys.path.append(str(Path(__file__).parents[1] / "groups"))
from group_manifests import as_text, gang, members, node, pod
from groups_staging import last_text
from test_group_reservation import BUSY, FULL, NOW, reserving, running, waiting_group

from scheduler_staging import pod as staged_pod


def explain(tmp_path, *items, name="default/g", options=()):
    file = tmp_path / "objects.yaml"
    file.write_text(as_text(*items))
    return CliRunner().invoke(stowplan, ["explain", "group", name, "-f", str(file), *options])


@pytest.mark.parametrize(
    "name", ["", "/", "default/", "a/b/c/d", "default/\x1b[31mred", "default/" + "g" * 10_000, "group"]
)
def test_odd_names_are_not_found(tmp_path, name):
    done = explain(tmp_path, node("n1"), gang("g", 2), name=name)
    assert done.exit_code == 1
    assert "not found" in done.output
    assert "\x1b" not in done.output


@pytest.mark.parametrize(
    "items",
    [
        pytest.param([gang("g", 2**31 - 1), *members("g", 3)], id="a minimum that nobody reaches"),
        pytest.param([gang("g", 2), *members("g", 2, cpu="0")], id="no requests"),
        pytest.param([gang("g", 2), *members("g", 2, cpu="9E")], id="absurd requests"),
        pytest.param([gang("g", 2, topology="nobody/has-this"), *members("g", 2)], id="an unknown label"),
        pytest.param([gang("g", 2), *members("g", 2, priority=2**31 - 1)], id="the highest priority"),
        pytest.param([gang("g", 2), *members("g", 2, schedulerName="nobody")], id="another scheduler"),
    ],
)
def test_odd_groups_are_explained(tmp_path, items):
    done = explain(tmp_path, node("n1"), pod("other", on="n1"), *items, options=["--members", "--domains"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Pod group default/g ")


def test_explaining_a_large_group_takes_limited_time(tmp_path):
    nodes = [node(f"n{number}", labels={"rack": f"r{number % 10}"}) for number in range(200)]
    began = time.process_time()
    done = explain(tmp_path, nodes, gang("g", 900, topology="rack"), members("g", 900))
    assert done.exit_code == 0, done.output
    assert time.process_time() - began < 30
    assert "takes 80 and lacks 820 cpu" in " ".join(done.output.split())


@pytest.mark.parametrize("said", ["9" * 20, "9" * 400, "-5", "1e3", "soon", "", "٣", "0"])
async def test_absurd_promises_of_pods_hurt_nobody(said):
    """The annotation is anyone's to write: other pods are scheduled, whatever it says."""
    now = [NOW]
    odd = running("odd", "n3")
    odd["metadata"]["annotations"] = {"stowplan/expected-seconds": said}
    async with reserving(now) as world:
        await world.see(*FULL, *BUSY[:2], odd, *waiting_group(least=3))
        small = staged_pod("small", priority=1)
        small["metadata"]["annotations"] = {"stowplan/expected-seconds": said}
        await world.end("b")
        await world.see(small, staged_pod("plain"))
        assert world.bound["small"] == "n2"
        is_kept = "reserved for pod group default/g until 14:05" in last_text(world.stage, "plain")
        assert world.bound.get("plain") == "n2" or is_kept


async def test_an_endless_deadline_is_no_end():
    now = [NOW]
    async with reserving(now) as world:
        busy = [running(name, on, ends_in=10**15) for name, on in (("a", "n1"), ("b", "n2"), ("c", "n3"))]
        await world.see(*FULL, *busy, *waiting_group())
        assert world.reservation is None
        await world.end("a")
        await world.see(staged_pod("small"))
        assert world.bound == {"small": "n1"}
