"""Configurations resolve, or are refused, as kube-scheduler 1.36 did."""

import gzip
import json
from pathlib import Path

import pytest

from stowplan.config import load
from stowplan.errors import ConfigError
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profile, resolve_profiles

CASES = Path(__file__).parent / "cases" / "configurations.jsonl.gz"
REGISTRY = Registry.installed()


def cases():
    with gzip.open(CASES, "rt") as lines:
        found = [json.loads(line) for line in lines]
    return [pytest.param(case["config"], case["expected"], id=case["name"]) for case in found]


def resolve(config):
    loaded = load(config, REGISTRY).config
    for profile in loaded.profiles:
        resolve_profile(profile, REGISTRY)  # whose refusal is not told together with those of others
    profiles = []
    for profile, found in zip(loaded.profiles, resolve_profiles(loaded, REGISTRY), strict=True):
        resolved = found.as_json()
        if profile.percentage_of_nodes_to_score is not None:
            resolved["percentageOfNodesToScore"] = profile.percentage_of_nodes_to_score
        profiles.append(resolved)
    return profiles, loaded.as_json()


@pytest.mark.parametrize(("config", "expected"), cases())
def test_configuration(config, expected):
    if expected["stage"] != "ok":
        with pytest.raises(ConfigError) as refused:
            resolve(config)
        assert refused.value.stage == expected["stage"]
        # Of what it finds while building a profile the reference names the first only; unknown arguments are
        # refused here with a hint at the known ones.
        assert refused.value.message.removeprefix("[").startswith(expected["error"].removeprefix("["))
        return
    profiles, top_level = resolve(config)
    assert profiles == expected["profiles"]
    assert {name: top_level[name] for name in expected["topLevel"]} == expected["topLevel"]
