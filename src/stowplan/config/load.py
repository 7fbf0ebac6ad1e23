"""Reading a configuration: text, file or plain data in; the checked configuration out, or a ConfigError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from stowplan.config import document, validation
from stowplan.config.field_errors import joined
from stowplan.config.old import files, versions
from stowplan.config.old.conversion import convert
from stowplan.config.old.files import OldConfiguration, Policy
from stowplan.config.strict import Decoder
from stowplan.config.types import DEFAULT_SCHEDULER_NAME, GROUP, V1, KubeSchedulerConfiguration, PluginConfig
from stowplan.errors import ConfigError

Source = str | bytes | Path | dict[str, Any]
KIND = "KubeSchedulerConfiguration"
POLICY_KEY = "policy.cfg"
NO_POLICY = "{} does not refer to a policy, so none may be given: only v1alpha1 does"
_SCHEME = "pkg/scheduler/apis/config/scheme/scheme.go:29"
PartT = TypeVar("PartT", bound=msgspec.Struct)


class ReadArgs(NamedTuple):
    """A plugin's arguments: the struct, its faults of form, and those of value, which name their paths."""

    args: Any
    malformed: list[str]
    faults: list[str]


class ArgsReader(Protocol):
    """Who knows the plugins and so the form of their arguments: the framework's registry."""

    def read_args(self, plugin: str, raw: Any, path: str) -> ReadArgs | None:
        """The arguments of `plugin` that stand at `path`, or None if their form is not known."""
        ...


class LoadedConfig(NamedTuple):
    """The configuration, and one line for each thing its owner should know.

    `policy_config_map` is `namespace/name` where the plugins are those of a Policy that was not at hand: a
    running scheduler fetches it from the API server and loads again with `policy`.
    """

    config: KubeSchedulerConfiguration
    warnings: list[str]
    policy_config_map: str = ""


def load(source: Source, plugins: ArgsReader, *, policy: Source | None = None) -> LoadedConfig:
    """Read and check a configuration given as text, as the path of a file, or as plain data.

    Files of older versions and Policy files are converted, with a warning. `policy` is the Policy, or the
    ConfigMap that holds it, that an older file refers to.
    """
    with _naming(source):
        plain = _plain(source)
        if plain.get("kind") == "Policy":
            policy, plain = plain, {"apiVersion": f"{GROUP}/v1alpha1", "kind": "KubeSchedulerConfiguration"}
            return _load_old(plain, policy, plugins, f"a Policy file (Kubernetes {versions.POLICY.releases})")
        version = plain.get("apiVersion")
        if isinstance(version, str) and version in versions.OLD_VERSIONS and plain.get("kind") == KIND:
            what = f"{version} (Kubernetes {versions.OLD_VERSIONS[version].releases})"
            return _load_old(plain, policy, plugins, what)
        _check_version(plain)
        if policy is not None:
            raise ConfigError(NO_POLICY.format(version))
        return LoadedConfig(_load_v1(plain, plugins), [])


@contextmanager
def _naming(source: Source) -> Iterator[None]:
    """Errors say which file they are about."""
    try:
        yield
    except ConfigError as error:
        where = error.where or (str(source) if isinstance(source, Path) else "")
        raise ConfigError(error.message, stage=error.stage, where=where) from None


def _plain(source: Source) -> dict[str, Any]:
    """The document; one that is wrapped in a ConfigMap is taken out of it."""
    if isinstance(source, Path):
        try:
            source = source.read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}") from None
    plain = source if isinstance(source, dict) else document.parse(source)
    if not isinstance(plain, dict):
        raise ConfigError("is no scheduler configuration: expected an object with apiVersion and kind")
    if plain.get("kind") != "ConfigMap":
        return plain
    data = plain.get("data")
    texts = data if isinstance(data, dict) else {}
    text = texts.get(POLICY_KEY) or (next(iter(texts.values())) if len(texts) == 1 else None)
    if not isinstance(text, str):
        raise ConfigError(f"is a ConfigMap without the key {POLICY_KEY}")
    return _plain(text)


def _load_v1(plain: dict[str, Any], plugins: ArgsReader) -> KubeSchedulerConfiguration:
    decoder = Decoder()
    config = decoder.struct(KubeSchedulerConfiguration, _with_dependent_defaults(plain))
    return _checked(config, decoder.faults + _repeated(plain), plugins)


def _load_old(plain: dict[str, Any], policy: Source | None, plugins: ArgsReader, what: str) -> LoadedConfig:
    version = versions.OLD_VERSIONS[plain["apiVersion"]]
    if policy is not None and "algorithmSource" not in version.fields:
        raise ConfigError(NO_POLICY.format(plain["apiVersion"]))
    old, ignored = files.read_config(_with_dependent_defaults(plain), version)
    in_force, config_map = _policy(old, policy, ignored)
    converted = convert(msgspec.structs.replace(old, profiles=files.profiles_of(old)), version, in_force)
    warning = f"{what} was converted to v1"
    if converted.left_out:
        warning += f"; left out, since they no longer exist: {', '.join(converted.left_out)}"
    if ignored:
        warning += f"; ignored, as that version did: {', '.join(ignored)}"
    warnings = [warning]
    if config_map:
        warnings.append(
            f"its policy is in ConfigMap {config_map}, which is not read here: give it with --policy FILE; "
            "the default plugins stand in for it"
        )
    return LoadedConfig(_checked(converted.config, _repeated(plain), plugins), warnings, config_map)


def _policy(old: OldConfiguration, given: Source | None, ignored: list[str]) -> tuple[Policy | None, str]:
    """The Policy in force, or else the name of the ConfigMap that would have it."""
    named = old.algorithm_source.policy
    if given is None and named is not None and named.file is not None:
        given = Path(named.file.path)
    if given is None:
        config_map = named.config_map if named is not None else None
        return None, f"{config_map.namespace}/{config_map.name}" if config_map else ""
    with _naming(given):
        policy, unknown = files.read_policy(_plain(given))
    ignored += unknown
    return policy, ""


def _repeated(plain: dict[str, Any]) -> list[str]:
    return [f'duplicate field "{path}"' for path in document.repeated_keys(plain)]


def _checked(
    config: KubeSchedulerConfiguration, malformed: list[str], plugins: ArgsReader
) -> KubeSchedulerConfiguration:
    """The configuration with its plugins' arguments read, or all that is wrong with it."""
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
        raise ConfigError(joined(found), stage="validate")
    return config


def _check_version(plain: dict[str, Any]) -> None:
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


def _with_dependent_defaults(plain: dict[str, Any]) -> dict[str, Any]:
    """Defaults that hang on other fields: one nameless profile is the default scheduler's."""
    filled = dict(plain)
    if not filled.get("profiles"):
        filled["profiles"] = [{}]
    if isinstance(filled["profiles"], list) and len(filled["profiles"]) == 1:
        (profile,) = filled["profiles"]
        if profile is None or (isinstance(profile, dict) and profile.get("schedulerName") is None):
            filled["profiles"] = [{**(profile or {}), "schedulerName": DEFAULT_SCHEDULER_NAME}]
    if filled.get("enableContentionProfiling") is None and filled.get("enableProfiling") is False:
        filled["enableContentionProfiling"] = False
    return filled


def _zero_as_default(part: PartT) -> PartT:
    """parity: for these parts an empty text or a zero means that nothing was set."""
    fields = msgspec.structs.fields(part)
    unset = {field.name: field.default for field in fields if getattr(part, field.name) in ("", 0)}
    return msgspec.structs.replace(
        part, **{name: value for name, value in unset.items() if value is not True}
    )
