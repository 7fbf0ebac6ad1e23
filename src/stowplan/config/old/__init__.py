"""Configuration files of older releases and Policy files, converted to v1.

`config/load.py` calls `convert_document` and `convert_entry`; nothing else outside of this package knows of
older versions.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stowplan.config.document import POLICY, Source, name_source, read_document, repeated_keys
from stowplan.config.old import files, versions
from stowplan.config.old.conversion import convert, convert_args, removed_args
from stowplan.config.types import GROUP, KubeSchedulerConfiguration, PluginConfig, fill_dependent_defaults
from stowplan.errors import ConfigError


class ConvertedDocument(NamedTuple):
    """A v1 configuration whose plugin arguments are still to be read, and what its owner should know.

    `policy_config_map` is `namespace/name` of the ConfigMap with the Policy, if that was not given.
    """

    config: KubeSchedulerConfiguration
    malformed: list[str]
    warnings: list[str]
    policy_config_map: str


def convert_document(plain: dict[str, Any], policy: Source | None) -> ConvertedDocument | None:
    """Convert a document of an older version, or return None if it is not one."""
    if plain.get("kind") == "Policy":
        stub = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "KubeSchedulerConfiguration"}
        return _convert(stub, plain, f"a Policy file (Kubernetes {versions.POLICY.releases})")
    version = plain.get("apiVersion")
    known = versions.OLD_VERSIONS.get(version) if isinstance(version, str) else None
    if known is None or plain.get("kind") != "KubeSchedulerConfiguration":
        return None
    return _convert(plain, policy, f"{version} (Kubernetes {known.releases})")


def convert_entry(entry: PluginConfig) -> tuple[PluginConfig, str]:
    """Convert arguments of scheduler-plugins that name an older version in a v1 file, with a warning."""
    args = entry.args
    version = args.get("apiVersion") if isinstance(args, dict) else None
    if version not in versions.BETAS or entry.name not in versions.READ_IN_ANY_VERSION:
        return entry, ""
    warning = f"arguments of plugin {entry.name} converted from {version} to v1"
    warning += _left_out_text(removed_args(entry.name, args))
    return PluginConfig(entry.name, convert_args(entry.name, args)), warning


def _left_out_text(names: Iterable[str]) -> str:
    return f"; left out arguments that no longer exist: {', '.join(names)}" if names else ""


def _convert(plain: dict[str, Any], policy: Source | None, what: str) -> ConvertedDocument:
    version = versions.OLD_VERSIONS[plain["apiVersion"]]
    if policy is not None and "algorithmSource" not in version.fields:
        raise ConfigError(f"{plain['apiVersion']} does not use a policy: only v1alpha1 refers to one")
    old, ignored = files.read_config(fill_dependent_defaults(plain), version)
    in_force, config_map = _find_policy(old, policy, ignored)
    converted = convert(msgspec.structs.replace(old, profiles=files.profiles_of(old)), version, in_force)
    warning = f"converted from {what} to v1"
    if converted.left_out and not config_map:  # which plugins are in use depends on the policy
        warning += f"; left out plugins that no longer exist: {', '.join(converted.left_out)}"
    warning += _left_out_text(converted.left_out_args)
    if ignored:
        warning += f"; ignored unknown fields, as that version did: {', '.join(ignored)}"
    warnings = [warning, *converted.notes]
    if config_map:
        warnings.append(
            f"the policy in ConfigMap {config_map} was not read, so the default plugins are used: "
            "pass the policy with --policy FILE"
        )
    malformed = [f'duplicate field "{path}"' for path in repeated_keys(plain)]
    return ConvertedDocument(converted.config, malformed, warnings, config_map)


def _find_policy(
    old: files.OldConfiguration, given: Source | None, ignored: list[str]
) -> tuple[files.Policy | None, str]:
    """The Policy in force, or the name of the ConfigMap that has it."""
    named = old.algorithm_source.policy
    if given is None and named is not None and named.file is not None:
        given = Path(named.file.path)
    if given is None:
        config_map = named.config_map if named is not None else None
        return None, f"{config_map.namespace}/{config_map.name}" if config_map else ""
    with name_source(given):
        policy, unknown = files.read_policy(read_document(given, POLICY))
    ignored += unknown
    return policy, ""
