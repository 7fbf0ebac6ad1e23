"""The configuration in force, spelt out: what --write-config-to writes and /configz shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from stowplan.config import EXTENSION_POINTS, KubeSchedulerConfiguration, PluginEntry, ProfileConfig
from stowplan.config.types import DEFAULT_PLUGINS, MULTI_POINT
from stowplan.errors import InputError
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles


def completed(config: KubeSchedulerConfiguration, registry: Registry) -> dict[str, Any]:
    """Plain data of version v1 with every default, those of plugins and arguments included.

    Read back, it is the same configuration. ConfigError if a profile cannot be built.
    """
    plain = config.as_json()
    for optional in ("extenders", "delayCacheUntilActive"):
        if not plain[optional]:
            del plain[optional]
    if plain["clientConnection"]["qps"] % 1 == 0:
        plain["clientConnection"]["qps"] = int(plain["clientConnection"]["qps"])
    for shown, profile, resolved in zip(
        plain["profiles"], config.profiles, resolve_profiles(config, registry), strict=True
    ):
        args = resolved.as_json()["args"]
        shown["plugins"] = _plugins(profile)
        shown["pluginConfig"] = [{"name": name, "args": args[name]} for name in sorted(args)]
        if shown["percentageOfNodesToScore"] is None:
            del shown["percentageOfNodesToScore"]
    return plain


def write_config(config: KubeSchedulerConfiguration, registry: Registry, path: Path) -> None:
    """Write the completed configuration as YAML with sorted keys."""
    text = yaml.safe_dump(completed(config, registry), sort_keys=True, allow_unicode=True)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None


def _plugins(profile: ProfileConfig) -> dict[str, Any]:
    """The plugins by point as the file has them, but multiPoint with the default plugins merged in."""
    points = {}
    for point in (*EXTENSION_POINTS, MULTI_POINT):
        found = profile.plugins.at(point)
        enabled = found.over(DEFAULT_PLUGINS) if point == MULTI_POINT else found.enabled
        sets = {"enabled": enabled, "disabled": found.disabled}
        points[point] = {
            name: [_entry(entry) for entry in entries] for name, entries in sets.items() if entries
        }
    return points


def _entry(entry: PluginEntry) -> dict[str, Any]:
    return {"name": entry.name, "weight": entry.weight}
