"""Worked example 4, examples/recomposed: what each configuration changes, against the default profile."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from make import Json, planner
from stowplan.api.kinds import object_of
from stowplan.api.pod import Pod
from stowplan.cli import stowplan
from stowplan.cycle.planner import DEFAULT_CONFIG
from stowplan.framework import Decision

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "recomposed"
OBJECTS: list[Json] = list(yaml.safe_load_all((EXAMPLES / "cluster/objects.yaml").read_text()))


def decide(pod_name: str, config: str | None = None) -> Decision:
    """The decision about the pod under its own configuration, or as one of the default scheduler's."""
    (plain,) = (each for each in OBJECTS if each["kind"] == "Pod" and each["metadata"]["name"] == pod_name)
    if config is None:
        plain = {**plain, "spec": {**plain["spec"], "schedulerName": "default-scheduler"}}
    pod = object_of(plain)
    assert isinstance(pod, Pod)
    document = DEFAULT_CONFIG if config is None else yaml.safe_load((EXAMPLES / config).read_text())
    return planner(OBJECTS, document).decide(pod)


@pytest.mark.parametrize(
    ("config", "pod", "by_default", "here"),
    [
        pytest.param("bin-packing.yaml", "packed", "nearly-empty", "nearly-full", id="MostAllocated"),
        pytest.param("image-first.yaml", "model", "nearly-empty", "half-full", id="a weight"),
        pytest.param("load-alone.yaml", "fond-of-ssd", "half-full", "nearly-empty", id="* at score"),
        pytest.param("bare.yaml", "anywhere", "nearly-empty", "reserved", id="* at multiPoint"),
        pytest.param(
            "several-profiles.yaml", "web-spread-out", "nearly-empty", "nearly-empty", id="profile 1"
        ),
        pytest.param("several-profiles.yaml", "web-packed", "nearly-empty", "nearly-full", id="profile 2"),
        pytest.param("several-profiles.yaml", "web-even", "nearly-empty", "half-full", id="profile 3"),
    ],
)
def test_where_a_pod_lands(config, pod, by_default, here):
    assert decide(pod).chosen == by_default
    assert decide(pod, config).chosen == here


def test_without_its_plugin_nobody_is_evicted():
    by_default = decide("urgent")
    assert by_default.nominated is not None
    assert by_default.victims
    here = decide("urgent", "no-preemption.yaml")
    assert (here.chosen, here.nominated, tuple(here.victims)) == (None, None, ())


@pytest.mark.parametrize(
    ("config", "shown", "not_shown"),
    [
        pytest.param(
            "bin-packing.yaml",
            [
                ("score", "NodeResourcesFit", "5"),
                ("VolumeBinding", "bindTimeoutSeconds:", "60"),
                ("NodeResourcesFit", "scoringStrategy:", '{"type":', '"MostAllocated",'),
            ],
            [("NodeResourcesBalancedAllocation", "1")],
            id="arguments and a score disabled by name",
        ),
        pytest.param("image-first.yaml", [("score", "ImageLocality", "10")], [], id="a weight"),
        pytest.param(
            "no-preemption.yaml", [("postFilter", "DynamicResources")], [("DefaultPreemption",)], id="by name"
        ),
        pytest.param(
            "load-alone.yaml",
            [("score", "NodeResourcesFit", "1"), ("reserve", "VolumeBinding")],
            [("ImageLocality", "1"), ("TaintToleration", "3")],
            id="* at one point",
        ),
        pytest.param(
            "bare.yaml",
            [("bind", "DefaultBinder"), ("filter", "NodeUnschedulable")],
            [("TaintToleration",), ("postFilter",)],
            id="* everywhere",
        ),
        pytest.param(
            "several-profiles.yaml",
            [("profile", "spread-out"), ("profile", "packed"), ("profile", "even")],
            [],
            id="profiles",
        ),
    ],
)
def test_what_config_show_tells(config, shown, not_shown):
    done = CliRunner().invoke(stowplan, ["config", "show", str(EXAMPLES / config)])
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [tuple(line.split()) for line in done.stdout.splitlines()]

    def is_shown(words):
        return any(line[: len(words)] == words for line in lines)

    assert [words for words in shown if not is_shown(words)] == []
    assert [words for words in not_shown if is_shown(words)] == []


def test_every_configuration_has_a_pod_of_its_own():
    named = {each["spec"].get("schedulerName") for each in OBJECTS if each["kind"] == "Pod"}
    documents = [yaml.safe_load(path.read_text()) for path in EXAMPLES.glob("*.yaml")]
    profiles = {profile["schedulerName"] for document in documents for profile in document["profiles"]}
    assert profiles <= named


# As docs/tutorials/recompose-default-plugins.md has it

PAGE = (ROOT / "docs/tutorials/recompose-default-plugins.md").read_text()
SHOWN = [
    (block.partition("\n")[0], block)
    for block in re.findall(r"```\n\$ (.*?)```", PAGE.replace("\\\n    ", ""), re.DOTALL)
]


@pytest.mark.parametrize(("command", "block"), SHOWN, ids=[command[:60] for command, _ in SHOWN])
def test_commands_print_what_the_page_shows(command, block):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    rest = done.stdout
    for part in filter(None, block.partition("\n")[2].split("…\n")):
        assert part in rest
        rest = rest.partition(part)[2]


def test_the_page_names_every_configuration():
    assert {path.name for path in EXAMPLES.glob("*.yaml")} <= set(re.findall(r"\[([\w-]+\.yaml)\]", PAGE))
    assert len(SHOWN) == 8
