"""The contents of older configuration files and Policy files as structs, and how they are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from stowplan.config.duration import Duration
from stowplan.config.old.versions import POLICY, Version
from stowplan.config.strict import Decoder, decode_hook
from stowplan.config.types import (
    DEFAULT_SCHEDULER_NAME,
    ExtenderConfig,
    KubeSchedulerConfiguration,
    LeaderElection,
    Part,
    PluginConfig,
    Plugins,
    PluginSet,
    ProfileConfig,
)
from stowplan.errors import ConfigError


class FileSource(Part, frozen=True):
    path: str = ""


class ConfigMapSource(Part, frozen=True):
    namespace: str = ""
    name: str = ""


class PolicySource(Part, frozen=True):
    file: FileSource | None = None
    config_map: ConfigMapSource | None = None


class AlgorithmSource(Part, frozen=True):
    policy: PolicySource | None = None
    provider: str | None = None


class OldLeaderElection(LeaderElection, frozen=True):
    lock_object_name: str = ""
    lock_object_namespace: str = ""


class OldPlugins(Plugins, frozen=True):
    unreserve: PluginSet = PluginSet()


class OldProfile(ProfileConfig, frozen=True):
    plugins: OldPlugins = OldPlugins()


class OldConfiguration(KubeSchedulerConfiguration, frozen=True):
    """The fields of all older versions."""

    leader_election: OldLeaderElection = OldLeaderElection()
    profiles: tuple[OldProfile, ...] = ()
    algorithm_source: AlgorithmSource = AlgorithmSource()
    bind_timeout_seconds: int | None = None
    disable_preemption: bool = False
    failure_domains: str = ""
    hard_pod_affinity_symmetric_weight: int | None = None
    healthz_bind_address: str = ""
    metrics_bind_address: str = ""
    plugins: OldPlugins = OldPlugins()
    plugin_config: tuple[PluginConfig, ...] = ()
    scheduler_name: str | None = None


class Labels(Part, frozen=True):
    labels: tuple[str, ...] = ()
    presence: bool = False


class Label(Part, frozen=True):
    label: str = ""
    presence: bool = False


class PredicateArgument(Part, frozen=True):
    service_affinity: Labels | None = None
    labels_presence: Labels | None = None


class PriorityArgument(Part, frozen=True):
    service_anti_affinity: Label | None = None
    label_preference: Label | None = None
    requested_to_capacity_ratio_arguments: dict[str, Any] | None = None


class Predicate(Part, frozen=True):
    name: str = ""
    argument: PredicateArgument = PredicateArgument()


class Priority(Part, frozen=True):
    name: str = ""
    weight: int = 0
    argument: PriorityArgument = PriorityArgument()


class Policy(Part, frozen=True):
    """A legacy Policy. Without predicates the defaults apply; an empty list means only the mandatory ones."""

    api_version: str = ""
    kind: str = "Policy"
    predicates: tuple[Predicate, ...] | None = None
    priorities: tuple[Priority, ...] | None = None
    extenders: tuple[ExtenderConfig, ...] = ()
    hard_pod_affinity_symmetric_weight: int = 0
    always_check_all_predicates: bool = False


_OWN_FIELDS = frozenset(
    {field.encode_name for field in msgspec.structs.fields(OldConfiguration)}
    - {field.encode_name for field in msgspec.structs.fields(KubeSchedulerConfiguration)}
)


class OldDocument(NamedTuple):
    """An older file; `ignored` are unknown fields that its version ignored."""

    config: OldConfiguration
    ignored: list[str]


def read_config(plain: dict[str, object], version: Version) -> OldDocument:
    """Read the file; a ConfigError names every decoding error."""
    foreign = {name.casefold() for name in _OWN_FIELDS.difference(version.fields)}
    decoder = _decoder(version)
    config = decoder.struct(OldConfiguration, {k: v for k, v in plain.items() if k.casefold() not in foreign})
    decoder.unknown += [name for name in plain if name.casefold() in foreign]
    if decoder.malformed or (version.strict and decoder.unknown):
        raise ConfigError("strict decoding error: " + ", ".join(decoder.faults))
    if version.strict and (
        unknown := [f'unknown field "{path}"' for path in _fields_of_other_versions(config, version)]
    ):
        raise ConfigError("strict decoding error: " + ", ".join(unknown))
    return OldDocument(config, decoder.unknown)


def read_policy(plain: dict[str, object]) -> tuple[Policy, list[str]]:
    """Read the Policy and the names of ignored fields; a ConfigError names every decoding error."""
    if plain.get("kind", "Policy") != "Policy":
        raise ConfigError(f"expected a Policy, got {plain['kind']}")
    decoder = _decoder(POLICY)
    policy = decoder.struct(Policy, plain)
    if decoder.malformed:
        raise ConfigError("strict decoding error: " + ", ".join(decoder.malformed))
    return policy, decoder.unknown


def profiles_of(old: OldConfiguration) -> tuple[OldProfile, ...]:
    """The profiles, or the one profile of a version that had its fields at the top level."""
    if old.plugins == OldPlugins() and old.plugin_config == () and old.scheduler_name is None:
        return old.profiles
    name = old.scheduler_name or DEFAULT_SCHEDULER_NAME
    return (OldProfile(name, plugins=old.plugins, plugin_config=old.plugin_config),)


def _decoder(version: Version) -> Decoder:
    """Before v1beta1 field names were case-insensitive, and a duration could be a number of nanoseconds."""
    return Decoder() if version.strict else Decoder(_decode_duration, any_case=True)


def _decode_duration(kind: type, value: object) -> object:
    if kind is Duration and isinstance(value, int):
        return Duration.of_nanos(value)
    return decode_hook(kind, value)


def _fields_of_other_versions(config: OldConfiguration, version: Version) -> Iterator[str]:
    """The paths of nested fields that other versions have, but not this one."""
    if config.leader_election.lock_object_name:
        yield "leaderElection.lockObjectName"
    if config.leader_election.lock_object_namespace:
        yield "leaderElection.lockObjectNamespace"
    for index, profile in enumerate(config.profiles):
        if profile.plugins.unreserve != PluginSet():
            yield f"profiles[{index}].plugins.unreserve"
        if version.plugins is not None and profile.plugins.multi_point != PluginSet():
            yield f"profiles[{index}].plugins.multiPoint"
