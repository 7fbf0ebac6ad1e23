"""The configurations in docs/community-plugins.md are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from make import planner

PAGE = Path(__file__).parents[2] / "docs" / "community-plugins.md"
SECTIONS = re.split(r"(?m)^## ", PAGE.read_text())[1:]
EXAMPLES = [
    pytest.param(section.partition("\n")[0], block, id=section.partition("\n")[0])
    for section in SECTIONS
    for block in re.findall(r"(?ms)^```yaml\n(.*?)^```", section)
    if "KubeSchedulerConfiguration" in block
]


@pytest.mark.parametrize(("plugin", "text"), EXAMPLES)
def test_the_example_is_valid_and_uses_the_plugin(plugin, text):
    (profile,) = planner([], yaml.safe_load(text)).profiles.values()
    assert plugin in profile.plugins
