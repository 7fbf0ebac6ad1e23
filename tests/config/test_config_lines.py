"""In which line of a file a field stands."""

import pytest

from stowplan.config.document import line_of

YAML = """\
kind: X
profiles:
- schedulerName: a
- pluginConfig:
  - name: A
    args:
      size: 1
"""
JSON = '{\n "profiles": [\n  {"pluginConfig":\n   [{"name": "A"}]}]}'


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        pytest.param(YAML, "profiles", 2, id="a field"),
        pytest.param(YAML, "profiles[1].pluginConfig[0].args.size", 7, id="deep down"),
        pytest.param(YAML, "profiles[1].pluginConfig[0].args.none", 6, id="as far as it is there"),
        pytest.param(YAML, "profiles[7].pluginConfig", 2, id="past the end of a list"),
        pytest.param(YAML, "none", 0, id="nothing of it"),
        pytest.param(JSON, "profiles[0].pluginConfig[0].name", 4, id="JSON"),
        pytest.param("a: 1\nb: c: d\n", "a", 2, id="no YAML: where that shows"),
        pytest.param("", "a", 0, id="nothing"),
    ],
)
def test_the_line_of_a_field(text, path, line):
    assert line_of(text, path) == line
