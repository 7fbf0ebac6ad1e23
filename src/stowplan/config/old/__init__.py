"""Configuration files of older releases and Policy files, converted to v1.

`config/load.py` calls `convert_document`; nothing else outside of this package knows of older versions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stowplan.config.document import Source, name_source, read_document, repeated_keys
from stowplan.config.old import files, versions
from stowplan.config.old.conversion import convert
from stowplan.config.types import GROUP, KubeSchedulerConfiguration, fill_dependent_defaults
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


def _convert(plain: dict[str, Any], policy: Source | None, what: str) -> ConvertedDocument:
    version = versions.OLD_VERSIONS[plain["apiVersion"]]
    if policy is not None and "algorithmSource" not in version.fields:
        raise ConfigError(f"{plain['apiVersion']} does not use a policy: only v1alpha1 refers to one")
    old, ignored = files.read_config(fill_dependent_defaults(plain), version)
    in_force, config_map = _find_policy(old, policy, ignored)
    converted = convert(msgspec.structs.replace(old, profiles=files.profiles_of(old)), version, in_force)
    warning = f"converted from {what} to v1"
    if converted.left_out:
        warning += f"; left out plugins that no longer exist: {', '.join(converted.left_out)}"
    if ignored:
        warning += f"; ignored unknown fields, as that version did: {', '.join(ignored)}"
    warnings = [warning]
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
        policy, unknown = files.read_policy(read_document(given))
    ignored += unknown
    return policy, ""
