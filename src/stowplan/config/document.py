"""Configuration files as plain data: JSON or YAML, with repeated keys reported, and the lines of fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from stowplan.errors import ConfigError
from stowplan.yaml_nesting import is_too_deep

_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


Source = str | bytes | Path | dict[str, Any]
POLICY_KEY = "policy.cfg"


class Mapping(dict[str, Any]):
    """A dict that records which keys the text repeats."""

    repeated: tuple[str, ...] = ()

    @classmethod
    def of(cls, pairs: list[tuple[str, Any]]) -> Mapping:
        found = cls(pairs)
        keys = [key for key, _ in pairs]
        found.repeated = tuple(key for key in found if keys.count(key) > 1)
        return found


@contextmanager
def name_source(source: Source) -> Iterator[None]:
    """Add the name of the file to errors."""
    try:
        yield
    except ConfigError as error:
        where = error.where or (str(source) if isinstance(source, Path) else "")
        raise ConfigError(error.message, stage=error.stage, where=where) from None


def read_document(source: Source) -> dict[str, Any]:
    """The document, taken out of the ConfigMap if it is wrapped in one."""
    if isinstance(source, Path):
        try:
            source = source.read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}") from None
    plain = source if isinstance(source, dict) else parse(source)
    if not isinstance(plain, dict):
        raise ConfigError("is not a scheduler configuration: expected an object with apiVersion and kind")
    if plain.get("kind") != "ConfigMap":
        return plain
    data = plain.get("data")
    texts = data if isinstance(data, dict) else {}
    text = texts.get(POLICY_KEY) or (next(iter(texts.values())) if len(texts) == 1 else None)
    if not isinstance(text, str):
        raise ConfigError(f"is a ConfigMap without key {POLICY_KEY}")
    return read_document(text)


def parse(text: str | bytes) -> Any:
    """Parse JSON or YAML; raise a ConfigError if it is neither."""
    if text.lstrip()[:1] in ("{", b"{"):
        return parse_json(text)
    if is_too_deep(text):
        raise ConfigError("is nested too deeply")
    try:
        found = [document for document in yaml.load_all(text, _Loader) if document is not None]
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"is not YAML: {' '.join(str(error).split())}") from None
    if len(found) > 1:
        raise ConfigError(f"has {len(found)} YAML documents; expected one")
    return found[0] if found else None


def parse_json(text: str | bytes) -> Any:
    try:
        return json.loads(text, object_pairs_hook=Mapping.of)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"is not JSON: {error}") from None


def repeated_keys(document: Any, path: str = "") -> Iterator[str]:
    """The paths of all repeated keys, at any depth."""
    if isinstance(document, dict):
        for key in getattr(document, "repeated", ()):
            yield f"{path}.{key}" if path else key
        for key, value in document.items():
            yield from repeated_keys(value, f"{path}.{key}" if path else key)
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from repeated_keys(value, f"{path}[{index}]")


class _Loader(yaml.CSafeLoader):
    """YAML as kube-scheduler reads it: dates and keys are strings. Records repeated keys."""

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


def line_of(text: str | bytes, path: str) -> int:
    """The line of `profiles[0].pluginConfig[1].args`, or of its longest prefix that exists; 0 for none."""
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
