"""Read and check a configuration given as text, file or plain data."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from stowplan.config import document, validation
from stowplan.config.document import Source
from stowplan.config.field_errors import join_errors
from stowplan.config.old import convert_document, convert_entry
from stowplan.config.strict import Decoder
from stowplan.config.types import GROUP, V1, KubeSchedulerConfiguration, PluginConfig, fill_dependent_defaults
from stowplan.errors import ConfigError

_SCHEME = "pkg/scheduler/apis/config/scheme/scheme.go:29"
PartT = TypeVar("PartT", bound=msgspec.Struct)


class ReadArgs(NamedTuple):
    """A plugin's arguments: the struct, decoding errors, and validation errors, which name their paths."""

    args: Any
    malformed: list[str]
    faults: list[str]


class ArgsReader(Protocol):
    """Reads the arguments of plugins: the framework's registry, which knows their types."""

    def read_args(self, plugin: str, raw: object, path: str) -> ReadArgs | None:
        """The arguments of `plugin` at `path`, or None if the plugin is unknown."""
        ...


class LoadedConfig(NamedTuple):
    """The configuration and its warnings.

    `policy_config_map` is `namespace/name` of the ConfigMap with the Policy, if that was not given: a running
    scheduler fetches it from the API server and loads again with `policy`.
    """

    config: KubeSchedulerConfiguration
    warnings: list[str]
    policy_config_map: str = ""


def load(source: Source, plugins: ArgsReader, *, policy: Source | None = None) -> LoadedConfig:
    """Read and check a configuration given as text, as the path of a file, or as plain data.

    Files of older versions and Policy files are converted, with a warning. `policy` is the Policy that an
    older file refers to, or the ConfigMap that has it.
    """
    with document.name_source(source):
        documents = document.read_documents(source)
        plain, warnings = documents.chosen, []
        if documents.others:
            ignored = ", ".join(map(document.describe, documents.others))
            warnings.append(f"using {documents.chosen_name}; other documents of the file: {ignored}")
        if (old := convert_document(plain, policy)) is not None:
            given = documents.find_config_map(old.policy_config_map)
            if given is not None and (converted := convert_document(plain, given)) is not None:
                old = converted
            config = _check(old.config, old.malformed, plugins)
            return LoadedConfig(config, warnings + old.warnings, old.policy_config_map)
        _check_version(plain)
        if policy is not None:
            raise ConfigError(f"{plain['apiVersion']} does not use a policy: only v1alpha1 refers to one")
        found = _load_v1(plain, plugins)
        return found._replace(warnings=warnings + found.warnings)


def _load_v1(plain: dict[str, object], plugins: ArgsReader) -> LoadedConfig:
    decoder = Decoder()
    config = decoder.struct(KubeSchedulerConfiguration, fill_dependent_defaults(plain))
    repeated = [f'duplicate field "{path}"' for path in document.repeated_keys(plain)]
    profiles, warnings = [], []
    for profile in config.profiles:
        converted = [convert_entry(entry) for entry in profile.plugin_config]
        warnings += [warning for _, warning in converted if warning]
        entries = tuple(entry for entry, _ in converted)
        profiles.append(msgspec.structs.replace(profile, plugin_config=entries))
    config = msgspec.structs.replace(config, profiles=tuple(profiles))
    return LoadedConfig(_check(config, decoder.faults + repeated, plugins), warnings)


def _check(
    config: KubeSchedulerConfiguration, malformed: list[str], plugins: ArgsReader
) -> KubeSchedulerConfiguration:
    """Read the plugins' arguments, and raise a ConfigError with everything that is wrong."""
    faults: dict[str, list[str]] = {}
    profiles = []
    for index, profile in enumerate(config.profiles):
        plugin_config = []
        for position, entry in enumerate(profile.plugin_config):
            path = f"profiles[{index}].pluginConfig[{position}]"
            read = plugins.read_args(entry.name, entry.args, f"{path}.args")
            if read is not None:
                malformed += [f"decoding .{path}: {fault}" for fault in read.malformed]
                faults[f"{path}.args"] = read.faults
                entry = PluginConfig(entry.name, read.args)
            plugin_config.append(entry)
        profiles.append(msgspec.structs.replace(profile, plugin_config=tuple(plugin_config)))
    if malformed:
        raise ConfigError("strict decoding error: " + ", ".join(malformed))
    config = msgspec.structs.replace(
        config,
        profiles=tuple(profiles),
        leader_election=_zero_as_default(config.leader_election),
        client_connection=_zero_as_default(config.client_connection),
    )
    if found := list(validation.faults(config, faults)):
        raise ConfigError(join_errors(found), stage="validate")
    return config


def _check_version(plain: dict[str, object]) -> None:
    version, kind = plain.get("apiVersion"), plain.get("kind")
    if not kind:
        raise ConfigError("Object 'Kind' is missing")
    if not version:
        raise ConfigError("Object 'apiVersion' is missing")
    if version != V1:
        raise ConfigError(f'no kind "{kind}" is registered for version "{version}" in scheme "{_SCHEME}"')
    if kind != "KubeSchedulerConfiguration":
        raise ConfigError(
            f"couldn't decode as KubeSchedulerConfiguration, got {GROUP}/v1, Kind={kind}: "
            "expected kind KubeSchedulerConfiguration"
        )


def _zero_as_default(part: PartT) -> PartT:
    """parity: in these parts an empty string or zero means unset."""
    unset = {name: value for name, value in _defaults(type(part)) if getattr(part, name) in ("", 0)}
    return msgspec.structs.replace(
        part, **{name: value for name, value in unset.items() if value is not True}
    )


@cache  # msgspec evaluates all annotations to answer this
def _defaults(kind: type[msgspec.Struct]) -> tuple[tuple[str, object], ...]:
    return tuple((field.name, field.default) for field in msgspec.structs.fields(kind))
