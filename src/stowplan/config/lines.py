"""In which line of a file a field stands."""

from __future__ import annotations

import re

import yaml

_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def line_of(text: str | bytes, path: str) -> int:
    """The line of `profiles[0].pluginConfig[1].args`, or of as much of that path as is there; 0 for none."""
    try:
        node = yaml.compose(text, yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        return mark.line + 1 if mark else 0
    line = 0
    for number, name in _STEP.findall(path):
        if number and isinstance(node, yaml.SequenceNode) and int(number) < len(node.value):
            node = node.value[int(number)]
            line = node.start_mark.line + 1
        elif name and isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == name), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        else:
            break
    return line
