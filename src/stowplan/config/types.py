"""KubeSchedulerConfiguration v1 as structs. Plugins are names, and their arguments plain data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from stowplan.config.duration import Duration
from stowplan.config.gates import (
    DECLARED_FEATURES,
    DEVICES,
    GANG_SCHEDULING,
    NO_GATES,
    TOPOLOGY,
    FeatureGates,
)

GROUP = "kubescheduler.config.k8s.io"
V1 = f"{GROUP}/v1"
DEFAULT_SCHEDULER_NAME = "default-scheduler"
Entries = tuple[tuple[str, int], ...]
"""Plugins with their weights."""

DEFAULT_PLUGINS: Entries = (
    ("SchedulingGates", 0),
    ("PrioritySort", 0),
    ("NodeUnschedulable", 0),
    ("NodeName", 0),
    ("TaintToleration", 3),
    ("NodeAffinity", 2),
    ("NodePorts", 0),
    ("NodeResourcesFit", 1),
    ("VolumeRestrictions", 0),
    ("NodeVolumeLimits", 0),
    ("VolumeBinding", 0),
    ("VolumeZone", 0),
    ("PodTopologySpread", 2),
    ("InterPodAffinity", 2),
    ("DynamicResources", 2),
    ("DefaultPreemption", 0),
    ("NodeResourcesBalancedAllocation", 1),
    ("ImageLocality", 1),
    ("DefaultBinder", 0),
    ("NodeDeclaredFeatures", 0),
)
"""The default plugins of Kubernetes 1.36, all in multiPoint. A weight of 0 is unset and counts as 1."""
GATED_PLUGINS = (
    (GANG_SCHEDULING, ("GangScheduling", 0)),
    (TOPOLOGY, ("TopologyPlacementGenerator", 0)),
    (TOPOLOGY, ("PodGroupPodsCount", 1)),
)
"""Plugins that are default ones while a feature gate is on; they follow all others."""
_PLUGINS_OF_FEATURES = {DEVICES: "DynamicResources", DECLARED_FEATURES: "NodeDeclaredFeatures"}
"""Default plugins that are not default ones while a feature gate is off."""
RETIRED_RESOURCE_LOCKS = frozenset(("endpoints", "configmaps", "endpointsleases", "configmapsleases"))
"""Kinds of leader election locks that Kubernetes no longer has; Leases replace them."""


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the configuration, in camelCase in files."""


class LeaderElection(Part, frozen=True):
    leader_elect: bool = True
    lease_duration: Duration = Duration(15)
    renew_deadline: Duration = Duration(10)
    retry_period: Duration = Duration(2)
    resource_lock: str = "leases"
    resource_name: str = "kube-scheduler"
    resource_namespace: str = "kube-system"


class ClientConnection(Part, frozen=True):
    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = "application/vnd.kubernetes.protobuf"
    qps: float = 50
    burst: int = 100


class PluginEntry(Part, frozen=True, omit_defaults=True):
    name: str = ""
    weight: int = 0


class PluginSet(Part, frozen=True, omit_defaults=True):
    enabled: tuple[PluginEntry, ...] = ()
    disabled: tuple[PluginEntry, ...] = ()

    def over(self, defaults: Iterable[tuple[str, int]]) -> tuple[PluginEntry, ...]:
        """Merge with defaults: drop disabled ones, replace enabled ones in place, append the others."""
        disabled = {entry.name for entry in self.disabled}
        replacements = {entry.name: index for index, entry in enumerate(self.enabled)}
        kept, replaced = [], set()
        for name, weight in defaults:
            if "*" in disabled or name in disabled:
                continue
            if name in replacements:
                replaced.add(replacements[name])
                kept.append(self.enabled[replacements[name]])
            else:
                kept.append(PluginEntry(name, weight))
        return (*kept, *(entry for index, entry in enumerate(self.enabled) if index not in replaced))


class Plugins(Part, frozen=True, omit_defaults=True):
    pre_enqueue: PluginSet = PluginSet()
    queue_sort: PluginSet = PluginSet()
    pre_filter: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()
    post_filter: PluginSet = PluginSet()
    pre_score: PluginSet = PluginSet()
    score: PluginSet = PluginSet()
    reserve: PluginSet = PluginSet()
    permit: PluginSet = PluginSet()
    pre_bind: PluginSet = PluginSet()
    bind: PluginSet = PluginSet()
    post_bind: PluginSet = PluginSet()
    placement_generate: PluginSet = PluginSet()
    placement_score: PluginSet = PluginSet()
    multi_point: PluginSet = PluginSet()

    def at(self, point: str) -> PluginSet:
        """The plugins at an extension point, named as in files."""
        found: PluginSet = getattr(self, _ATTRIBUTES[point])
        return found

    def enabling(self, point: str, entries: Iterable[PluginEntry]) -> Plugins:
        """The same, but with these plugins enabled at an extension point."""
        found = msgspec.structs.replace(self.at(point), enabled=tuple(entries))
        return msgspec.structs.replace(self, **{_ATTRIBUTES[point]: found})


_ATTRIBUTES = {field.encode_name: field.name for field in msgspec.structs.fields(Plugins)}
MULTI_POINT = "multiPoint"
EXTENSION_POINTS = tuple(point for point in _ATTRIBUTES if point != MULTI_POINT)


class PluginConfig(Part, frozen=True):
    """`args` is the plugin's own struct if the plugin is known, else plain data."""

    name: str = ""
    args: Any = None


class ProfileConfig(Part, frozen=True):
    scheduler_name: str = ""
    percentage_of_nodes_to_score: int | None = None
    plugins: Plugins = Plugins()
    plugin_config: tuple[PluginConfig, ...] = ()


class ManagedResource(Part, frozen=True, omit_defaults=True):
    name: str = ""
    ignored_by_scheduler: bool = False


class ExtenderTLS(Part, frozen=True, omit_defaults=True):
    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_data: bytes = b""
    key_data: bytes = b""
    ca_data: bytes = b""


class ExtenderConfig(Part, frozen=True, omit_defaults=True):
    url_prefix: str = ""
    filter_verb: str = ""
    preempt_verb: str = ""
    prioritize_verb: str = ""
    weight: int = 0
    bind_verb: str = ""
    enable_https: bool = msgspec.field(default=False, name="enableHTTPS")
    tls_config: ExtenderTLS | None = None
    # A factory, so that it is written even if zero, as kube-scheduler does.
    http_timeout: Duration = msgspec.field(default_factory=Duration)
    node_cache_capable: bool = False
    managed_resources: tuple[ManagedResource, ...] = ()
    ignorable: bool = False


class KubeSchedulerConfiguration(Part, frozen=True):
    """The whole file with all defaults, except those of plugins and arguments, which need the registry."""

    api_version: str = V1
    kind: str = "KubeSchedulerConfiguration"
    parallelism: int = 16
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    enable_profiling: bool = True
    enable_contention_profiling: bool = True
    percentage_of_nodes_to_score: int = 0
    pod_initial_backoff_seconds: int = 1
    pod_max_backoff_seconds: int = 10
    profiles: tuple[ProfileConfig, ...] = (ProfileConfig(scheduler_name=DEFAULT_SCHEDULER_NAME),)
    extenders: tuple[ExtenderConfig, ...] = ()
    delay_cache_until_active: bool = False

    @property
    def gates(self) -> FeatureGates:
        """The feature gates of pod groups that are on; files do not have them."""
        return NO_GATES

    @property
    def disabled_gates(self) -> FeatureGates:
        """The feature gates that are off, though kube-scheduler 1.36 has them on by default."""
        return NO_GATES

    @property
    def default_plugins(self) -> Entries:
        dropped = {_PLUGINS_OF_FEATURES.get(gate) for gate in self.disabled_gates}
        kept = tuple(entry for entry in DEFAULT_PLUGINS if entry[0] not in dropped)
        return kept + tuple(entry for gate, entry in GATED_PLUGINS if gate in self.gates)

    def as_json(self) -> dict[str, Any]:
        """Plain data as in files, with defaults."""
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self, enc_hook=str))
        return _without_gates(plain)

    def without_defaults(self) -> dict[str, Any]:
        """Plain data as in files, without defaults; it reads back as the same configuration."""
        plain = _without_gates(_without_defaults(self))
        return {"apiVersion": self.api_version, "kind": self.kind, **plain}


class GatedConfiguration(KubeSchedulerConfiguration, frozen=True):
    """A configuration together with feature gates, which flags and the emulated version set."""

    enabled_features: FeatureGates = NO_GATES
    disabled_features: FeatureGates = NO_GATES

    @property
    def gates(self) -> FeatureGates:
        return self.enabled_features

    @property
    def disabled_gates(self) -> FeatureGates:
        return self.disabled_features


def _without_gates(plain: dict[str, Any]) -> dict[str, Any]:
    for field in ("enabledFeatures", "disabledFeatures"):
        plain.pop(field, None)
    return plain


def with_gates(
    config: KubeSchedulerConfiguration, gates: FeatureGates, disabled: FeatureGates | None = None
) -> KubeSchedulerConfiguration:
    """The same configuration with other feature gates on and off; None leaves those that are off."""
    disabled = config.disabled_gates if disabled is None else disabled
    if (gates, disabled) == (config.gates, config.disabled_gates):
        return config
    fields = {name: getattr(config, name) for name in KubeSchedulerConfiguration.__struct_fields__}
    return GatedConfiguration(**fields, enabled_features=gates, disabled_features=disabled)


COSCHEDULING = "Coscheduling"
PRIORITY_SORT = "PrioritySort"


def with_groups(config: KubeSchedulerConfiguration) -> KubeSchedulerConfiguration:
    """The same configuration with pod groups of scheduler-plugins and Volcano in every profile.

    Profiles that name Coscheduling stay as they are. All profiles share one sort of the queue: that of groups
    replaces the default one, but no other.
    """
    sorters = {entry.name for profile in config.profiles for entry in profile.plugins.queue_sort.enabled}
    sorts = sorters <= {PRIORITY_SORT} or sorters == {COSCHEDULING}
    profiles = tuple(
        profile if _names_coscheduling(profile) else _with_coscheduling(profile, sorts=sorts)
        for profile in config.profiles
    )
    return msgspec.structs.replace(config, profiles=profiles)


def _names_coscheduling(profile: ProfileConfig) -> bool:
    """Besides in queueSort, which is the same in all profiles."""
    points = (profile.plugins.at(point) for point in (*EXTENSION_POINTS, MULTI_POINT) if point != "queueSort")
    return any(entry.name == COSCHEDULING for found in points for entry in found.enabled)


def _with_coscheduling(profile: ProfileConfig, *, sorts: bool) -> ProfileConfig:
    plugins, entry = profile.plugins, PluginEntry(COSCHEDULING)
    multi_point = msgspec.structs.replace(plugins.multi_point, enabled=(*plugins.multi_point.enabled, entry))
    queue_sort = msgspec.structs.replace(plugins.queue_sort, disabled=(*plugins.queue_sort.disabled, entry))
    if sorts:
        queue_sort = PluginSet(enabled=(entry,), disabled=(PluginEntry("*"),))
    changed = msgspec.structs.replace(plugins, multi_point=multi_point, queue_sort=queue_sort)
    return msgspec.structs.replace(profile, plugins=changed)


def _without_defaults(value: object) -> Any:
    if isinstance(value, msgspec.Struct):
        return {
            field.encode_name: _without_defaults(getattr(value, field.name))
            for field in msgspec.structs.fields(value)
            if getattr(value, field.name) != _default(field)
        }
    if isinstance(value, (list, tuple)):
        return [_without_defaults(item) for item in value]
    return msgspec.to_builtins(value, enc_hook=str)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def fill_dependent_defaults(plain: dict[str, Any]) -> dict[str, Any]:
    """Fill in defaults that depend on other fields: a single unnamed profile is the default scheduler's."""
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
