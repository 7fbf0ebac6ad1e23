"""Arguments of plugins: a struct per plugin, read strictly, checked, and written back with every default.

    class ScoreByLabelArgs(PluginArgs):
        label_key: str = "score-by-label"

A file spells it `labelKey`. `validate` is where a plugin says more than types can.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from inspect import get_annotations
from types import SimpleNamespace
from typing import Any, ClassVar, get_type_hints

import msgspec

from stowplan.config import field_errors
from stowplan.config.load import ReadArgs
from stowplan.config.strict import Decoder
from stowplan.config.types import GROUP, V1


class PluginArgs(msgspec.Struct, rename="camel"):
    """What a plugin takes from its entry in `pluginConfig`."""

    # parity: kube-scheduler checks the arguments of NodeResourcesFit only when it builds the plugin.
    checked_late: ClassVar[bool] = False
    gated_fields: ClassVar[Mapping[str, str]] = {}
    """By feature gate, the field that is not written to a configuration while the gate is off."""

    def validate(self, path: str) -> Iterable[str]:
        """What is wrong with the arguments at `path`: texts that start with the fault's path."""
        return ()

    def as_json(self) -> dict[str, Any]:
        """The arguments as a file would spell them, with every default; what is empty is left out."""
        plain = msgspec.json.decode(msgspec.json.encode(self, enc_hook=str))
        return {"apiVersion": V1, "kind": type(self).__name__, **_without_empty(plain)}

    @classmethod
    def read(cls, plugin: str, raw: object, path: str) -> ReadArgs:
        """The arguments of `plugin` from plain data, and everything that is wrong with them."""
        raw = {} if raw is None else raw
        if isinstance(raw, dict):
            if fault := cls._type_fault(plugin, raw):
                return ReadArgs(None, [fault], [])
            raw = {name: value for name, value in raw.items() if name not in ("apiVersion", "kind")}
        decoder = Decoder()
        args = decoder.struct(cls, raw)
        if decoder.faults:
            return ReadArgs(None, [cls._form_fault(plugin, decoder)], [])
        if decoder.missing:
            return ReadArgs(None, [], [field_errors.child(path, fault) for fault in decoder.missing])
        rejected = {field_errors.child(path, where): text for where, text in decoder.rejected.items()}
        faults = [] if cls.checked_late else list(args.validate(path))
        # validate() may have better words for a value that its type does not allow.
        faults += [
            field_errors.child(path, text)
            for where, text in rejected.items()
            if not any(fault.startswith(f"{where}:") for fault in faults)
        ]
        return ReadArgs(args, [], faults)

    @classmethod
    def _type_fault(cls, plugin: str, raw: dict[str, object]) -> str:
        kind, version = raw.get("kind") or cls.__name__, raw.get("apiVersion") or V1
        if kind != cls.__name__:
            return f"args for plugin {plugin} were not of type {cls.__name__}.{GROUP}, got {kind}.{GROUP}"
        if version != V1:
            return (
                f'decoding args for plugin {plugin}: no kind "{kind}" is registered for version "{version}"'
            )
        return ""

    @classmethod
    def _form_fault(cls, plugin: str, decoder: Decoder) -> str:
        fault = f"strict decoding error: decoding args for plugin {plugin}: strict decoding error: "
        fault += ", ".join(decoder.faults)
        if any("." not in path for path in decoder.unknown):
            names = ", ".join(field.encode_name for field in msgspec.structs.fields(cls))
            fault += f" ({plugin} takes {names or 'no arguments'})"
        return fault


def args_of(plugin: type) -> type[PluginArgs]:
    """What a plugin's `args` is annotated with; NameError or TypeError where that is no struct for it."""
    owner = next(kind for kind in plugin.__mro__ if "args" in get_annotations(kind))
    # Only this one annotation: others may name what is imported for type checkers alone.
    hint = SimpleNamespace(__annotations__={"args": get_annotations(owner)["args"]})
    found: object = get_type_hints(hint, vars(sys.modules[owner.__module__]))["args"]
    if not (isinstance(found, type) and issubclass(found, PluginArgs)):
        shown = getattr(found, "__name__", repr(found))
        raise TypeError(f"expected a struct derived from stowplan.PluginArgs, got {shown}")
    return found


def _without_empty(value: object) -> Any:
    if isinstance(value, dict):
        kept = {name: _without_empty(item) for name, item in value.items()}
        return {name: item for name, item in kept.items() if item is not None and item != []}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


SECRET_WORDS = (
    "token",
    "password",
    "passphrase",
    "secret",
    "credential",
    "authorization",
    "apikey",
    "privatekey",
)
HIDDEN = "(hidden)"
URL_USER = re.compile(r"(?<=://)[^/?#\s]*@")


def without_secrets(plain: object) -> Any:
    """Arguments without what looks like a password, for logs and the page."""
    match plain:
        case dict():
            return {
                key: HIDDEN if value and _is_secret(key, value) else without_secrets(value)
                for key, value in plain.items()
            }
        case list() | tuple():
            return [without_secrets(each) for each in plain]
        case str():
            return URL_USER.sub(f"{HIDDEN}@", plain)
        case int() if abs(plain) >= 2**63:
            return str(plain)  # JSON is written with 64 bits
    return plain


def _is_secret(key: str, value: object) -> bool:
    words = key.lower().replace("_", "").replace("-", "")
    is_path = words.endswith(("file", "path"))
    return not isinstance(value, bool) and not is_path and any(word in words for word in SECRET_WORDS)
