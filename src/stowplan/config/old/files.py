"""What older configuration files and Policy files hold, as structs, and how such a file is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from stowplan.config.duration import Duration
from stowplan.config.old.versions import POLICY, Version
from stowplan.config.strict import Decoder, decode_hook
from stowplan.config.types import (
    DEFAULT_SCHEDULER_NAME,
    Extender,
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
    """All fields that any older version had."""

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
    """A legacy Policy. No predicates at all means the default ones, an empty list only the mandatory ones."""

    api_version: str = ""
    kind: str = "Policy"
    predicates: tuple[Predicate, ...] | None = None
    priorities: tuple[Priority, ...] | None = None
    extenders: tuple[Extender, ...] = ()
    hard_pod_affinity_symmetric_weight: int = 0
    always_check_all_predicates: bool = False


_OWN_FIELDS = frozenset(
    {field.encode_name for field in msgspec.structs.fields(OldConfiguration)}
    - {field.encode_name for field in msgspec.structs.fields(KubeSchedulerConfiguration)}
)


class OldDocument(NamedTuple):
    """An older file as read; `ignored` are fields that its version did not know and did not mind."""

    config: OldConfiguration
    ignored: list[str]


def read_config(plain: dict[str, Any], version: Version) -> OldDocument:
    """The file, or a ConfigError that names every fault of form."""
    foreign = {name.casefold() for name in _OWN_FIELDS.difference(version.fields)}
    decoder = _decoder(version)
    config = decoder.struct(OldConfiguration, {k: v for k, v in plain.items() if k.casefold() not in foreign})
    decoder.unknown += [name for name in plain if name.casefold() in foreign]
    if decoder.malformed or (version.strict and decoder.unknown):
        raise ConfigError("strict decoding error: " + ", ".join(decoder.faults))
    if version.strict and (
        unknown := [f'unknown field "{path}"' for path in _too_new_or_old(config, version)]
    ):
        raise ConfigError("strict decoding error: " + ", ".join(unknown))
    return OldDocument(config, decoder.unknown)


def read_policy(plain: dict[str, Any]) -> tuple[Policy, list[str]]:
    """The Policy and the fields that were ignored, or a ConfigError that names every fault of form."""
    if plain.get("kind", "Policy") != "Policy":
        raise ConfigError(f"expected a Policy, got {plain['kind']}")
    decoder = _decoder(POLICY)
    policy = decoder.struct(Policy, plain)
    if decoder.malformed:
        raise ConfigError("strict decoding error: " + ", ".join(decoder.malformed))
    return policy, decoder.unknown


def profiles_of(old: OldConfiguration) -> tuple[OldProfile, ...]:
    """The profiles, or the only one of a version that had its fields at the top."""
    if old.plugins == OldPlugins() and old.plugin_config == () and old.scheduler_name is None:
        return old.profiles
    name = old.scheduler_name or DEFAULT_SCHEDULER_NAME
    return (OldProfile(name, plugins=old.plugins, plugin_config=old.plugin_config),)


def _decoder(version: Version) -> Decoder:
    """Before v1beta1 the case of names did not matter, and a number of nanoseconds was a duration."""
    return Decoder() if version.strict else Decoder(_duration_or_nanos, any_case=True)


def _duration_or_nanos(kind: type, value: Any) -> Any:
    if kind is Duration and isinstance(value, int):
        return Duration.of_nanos(value)
    return decode_hook(kind, value)


def _too_new_or_old(config: OldConfiguration, version: Version) -> Iterator[str]:
    """Paths of fields inside of others that some version has, but not this one."""
    if config.leader_election.lock_object_name:
        yield "leaderElection.lockObjectName"
    if config.leader_election.lock_object_namespace:
        yield "leaderElection.lockObjectNamespace"
    for index, profile in enumerate(config.profiles):
        if profile.plugins.unreserve != PluginSet():
            yield f"profiles[{index}].plugins.unreserve"
        if version.plugins is not None and profile.plugins.multi_point != PluginSet():
            yield f"profiles[{index}].plugins.multiPoint"
