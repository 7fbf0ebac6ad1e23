"""YAML as people write it: fields in our order, texts of several lines as blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """The same labels again are written again."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def as_yaml(documents: Iterable[dict[str, Any]]) -> str:
    return "---\n".join(
        yaml.dump(each, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
        for each in documents
    )
