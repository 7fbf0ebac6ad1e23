"""What there is to say of a plugin: where it is from, its extension points, what it takes and watches."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from stowplan.framework.args import args_of
from stowplan.framework.plugin import Plugin
from stowplan.framework.plugin_check import methods_of, type_text
from stowplan.framework.plugin_source import fault_at
from stowplan.framework.points import METHODS_OF_POINT


class Argument(msgspec.Struct, rename="camel"):
    """As a configuration spells it; one without default is required."""

    name: str
    type: str
    required: bool
    default: Any = None


class PluginFacts(msgspec.Struct, rename="camel"):
    name: str
    origin: str
    """A file and a line."""
    entry_point: str
    """`module:Class`, for an installed one."""
    says: str
    """The first line of what its class says of itself, or else of its module."""
    points: list[str]
    arguments: list[Argument]
    watches: list[str]
    """Plural, version and group of the kinds."""
    has_background_work: bool


def facts_of(name: str, plugin: type[Plugin], entry_point: str = "") -> PluginFacts:
    place = fault_at(plugin, "", "")
    about = plugin.__dict__.get("__doc__") or getattr(inspect.getmodule(plugin), "__doc__", None) or ""
    return PluginFacts(
        name,
        f"{place.file}:{place.line}",
        entry_point,
        inspect.cleandoc(about).partition("\n")[0],
        [point for point, methods in METHODS_OF_POINT.items() if methods_of(plugin, methods)],
        [_argument(field) for field in msgspec.structs.fields(args_of(plugin))],
        [kind.definition.event_resource for kind in plugin.watches],
        bool(methods_of(plugin, ("run",))),
    )


def _argument(field: msgspec.structs.FieldInfo) -> Argument:
    default: Any = None
    if field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    elif field.default is not msgspec.NODEFAULT:
        default = field.default
    plain = msgspec.json.decode(msgspec.json.encode(default, enc_hook=str))
    return Argument(field.encode_name, type_text(field.type), field.required, plain)
