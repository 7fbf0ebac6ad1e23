"""Configuration files as plain data: JSON or YAML, with repeated keys reported, and the lines of fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from stowplan.errors import ConfigError
from stowplan.yaml_nesting import find_alias_fault, is_too_deep

_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


Source = str | bytes | Path | dict[str, Any]
POLICY_KEY = "policy.cfg"
CONFIGURATION, POLICY = "KubeSchedulerConfiguration", "Policy"
KINDS = frozenset({CONFIGURATION, POLICY})


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


class Documents(NamedTuple):
    """The document that was looked for, taken out of the ConfigMap if it is wrapped in one, and the rest."""

    chosen: dict[str, Any]
    chosen_name: str
    others: list[Any]

    def find_config_map(self, key: str) -> dict[str, object] | None:
        """The ConfigMap `namespace/name` among the other documents."""
        for each in self.others:
            if isinstance(each, dict) and each.get("kind") == "ConfigMap":
                metadata = each.get("metadata")
                if not isinstance(metadata, dict):
                    continue
                if f"{metadata.get('namespace', 'default')}/{metadata.get('name')}" == key:
                    return each
        return None


def read_documents(source: Source, kind: str = CONFIGURATION, *, in_config_map: bool = False) -> Documents:
    """Read a source, which may have several documents if one of them is of this kind.

    What a ConfigMap contains must not be another ConfigMap.
    """
    if isinstance(source, Path):
        try:
            source = source.read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}") from None
    found = [source] if isinstance(source, dict) else parse_all(source)
    chosen = found[0] if len(found) == 1 else _choose(found, kind, in_config_map)
    if not isinstance(chosen, dict):
        raise ConfigError("is not a scheduler configuration: expected an object with apiVersion and kind")
    others = [each for each in found if each is not chosen]
    return Documents(_unwrap(chosen, kind, in_config_map), describe(chosen), others)


def read_document(source: Source, kind: str = CONFIGURATION) -> dict[str, object]:
    return read_documents(source, kind).chosen


def _choose(documents: list[Any], kind: str, in_config_map: bool) -> Any:
    """The document of the given kind; if there is none, the one of the other kind."""
    if not documents:
        return None
    kinds = [_kind_within(each, in_config_map) for each in documents]
    for wanted in (kind, *(KINDS - {kind})):
        found = [each for each, kind_found in zip(documents, kinds, strict=True) if kind_found == wanted]
        if len(found) > 1:
            raise ConfigError(
                f"has {len(found)} documents with a {wanted}, expected one: {', '.join(map(describe, found))}"
            )
        if found:
            return found[0]
    raise ConfigError(
        f"has {len(documents)} YAML documents, and none is a {kind} or a ConfigMap that contains one: "
        f"{', '.join(map(describe, documents))}"
    )


def describe(document: object) -> str:
    """The document as people name it: `Deployment web`."""
    if not isinstance(document, dict):
        return "a document that is not an object"
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    kind = document.get("kind") or "an object without kind"
    return f"{kind} {name}" if name else str(kind)


def _kind_within(document: object, in_config_map: bool) -> str | None:
    if not isinstance(document, dict):
        return None
    try:
        kind = _unwrap(document, CONFIGURATION, in_config_map).get("kind")
    except ConfigError:
        return None
    return str(kind) if _is_our_kind(kind) else None


def _is_our_kind(kind: object) -> bool:
    return isinstance(kind, str) and kind in KINDS


def _unwrap(plain: dict[str, object], kind: str, in_config_map: bool) -> dict[str, object]:
    """The document itself, or the one in the ConfigMap."""
    if plain.get("kind") != "ConfigMap":
        return plain
    if in_config_map:
        raise ConfigError("is a ConfigMap that contains another ConfigMap; expected a configuration in it")
    data = plain.get("data")
    texts = {key: text for key, text in data.items() if text} if isinstance(data, dict) else {}
    if POLICY_KEY in texts:
        texts = {POLICY_KEY: texts[POLICY_KEY]}
    elif len(texts) > 1:
        texts = {key: text for key, text in texts.items() if isinstance(text, str) and _is_ours(text)}
    text = next(iter(texts.values())) if len(texts) == 1 else None
    if not isinstance(text, str):
        raise ConfigError(f"is a ConfigMap without key {POLICY_KEY}")
    return read_documents(text, kind, in_config_map=True).chosen


def _is_ours(text: str) -> bool:
    try:
        found = parse(text)
    except ConfigError:
        return False
    return isinstance(found, dict) and _is_our_kind(found.get("kind"))


def parse(text: str | bytes) -> object:
    """Parse JSON or YAML; raise a ConfigError if it is neither. Of several documents, our configuration."""
    found = parse_all(text)
    return found[0] if len(found) == 1 else _choose(found, CONFIGURATION, in_config_map=False)


def parse_all(text: str | bytes) -> list[object]:
    """All documents that are not empty."""
    if text.lstrip()[:1] in ("{", b"{"):
        return [parse_json(text)]
    if is_too_deep(text):
        raise ConfigError("is nested too deeply")
    try:
        if fault := find_alias_fault(text):
            raise ConfigError(fault)
        return [document for document in yaml.load_all(text, _Loader) if document is not None]
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"is not YAML: {' '.join(str(error).split())}") from None


def parse_json(text: str | bytes) -> object:
    try:
        return json.loads(text, object_pairs_hook=Mapping.of)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"is not JSON: {error}") from None


def repeated_keys(document: object, path: str = "") -> Iterator[str]:
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
        nodes = list(yaml.compose_all(text, yaml.CSafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        return mark.line + 1 if mark else 0
    node = next((each for each in nodes if _has_our_kind(each)), nodes[0] if nodes else None)
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


def _has_our_kind(node: yaml.Node) -> bool:
    return isinstance(node, yaml.MappingNode) and any(
        (key.value, value.value) == ("kind", CONFIGURATION) for key, value in node.value
    )
