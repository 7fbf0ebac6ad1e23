"""Text of a file into plain data: JSON or YAML, with repeated keys found rather than swallowed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from stowplan.errors import ConfigError
from stowplan.yaml_nesting import is_too_deep


class Mapping(dict[str, Any]):
    """A dict that knows which of its keys the text gave more than once."""

    repeated: tuple[str, ...] = ()

    @classmethod
    def of(cls, pairs: list[tuple[str, Any]]) -> Mapping:
        found = cls(pairs)
        keys = [key for key, _ in pairs]
        found.repeated = tuple(key for key in found if keys.count(key) > 1)
        return found


def parse(text: str | bytes) -> Any:
    """Plain data; ConfigError says why it is none."""
    if text.lstrip()[:1] in ("{", b"{"):
        return parse_json(text)
    if is_too_deep(text):
        raise ConfigError("is nested too deeply")
    try:
        found = [document for document in yaml.load_all(text, _Loader) if document is not None]
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"is not YAML: {' '.join(str(error).split())}") from None
    if len(found) > 1:
        raise ConfigError(f"has {len(found)} YAML documents; a configuration is one")
    return found[0] if found else None


def parse_json(text: str | bytes) -> Any:
    try:
        return json.loads(text, object_pairs_hook=Mapping.of)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"is not JSON: {error}") from None


def repeated_keys(document: Any, path: str = "") -> Iterator[str]:
    """Paths of all keys that were given more than once, at any depth."""
    if isinstance(document, dict):
        for key in getattr(document, "repeated", ()):
            yield f"{path}.{key}" if path else key
        for key, value in document.items():
            yield from repeated_keys(value, f"{path}.{key}" if path else key)
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from repeated_keys(value, f"{path}[{index}]")


class _Loader(yaml.CSafeLoader):
    """YAML as kube-scheduler reads it: dates stay text, keys are text, repeated keys are remembered."""

    def construct_document_mapping(self, node: yaml.MappingNode) -> Iterator[Mapping]:
        found = Mapping()
        yield found
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        found.update({_key(key): value for key, value in self.construct_mapping(node, deep=True).items()})
        found.repeated = tuple(key for key in dict.fromkeys(keys) if keys.count(key) > 1)


_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_document_mapping)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: node.value)


def _key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) or key is None else str(key)
