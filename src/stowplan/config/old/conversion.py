"""Older configurations as v1: the plugins, order, weights and arguments that the older version ran.

First the older version's own lists are worked out, in its own names: its defaults, or what its Policy asks
for, merged with what the file says. Only then are plugins renamed, replaced or left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from stowplan.config.field_errors import unsupported
from stowplan.config.old import versions
from stowplan.config.old.files import OldConfiguration, OldPlugins, OldProfile, Policy
from stowplan.config.old.policy import OldDefaults, policy_defaults
from stowplan.config.old.versions import PointPlugins, Version
from stowplan.config.types import (
    EXTENSION_POINTS,
    V1,
    KubeSchedulerConfiguration,
    LeaderElection,
    PluginConfig,
    PluginEntry,
    Plugins,
    PluginSet,
    ProfileConfig,
)
from stowplan.errors import ConfigError

PointEntries = dict[str, tuple[PluginEntry, ...]]


class Converted(NamedTuple):
    """The v1 configuration, and the names of plugins that have no successor."""

    config: KubeSchedulerConfiguration
    left_out: list[str]


def convert(old: OldConfiguration, version: Version, policy: Policy | None) -> Converted:
    """`old` as v1; `policy` takes the place of the version's default plugins."""
    left_out: list[str] = []
    if version.plugins is None:
        profiles = tuple(_with_multi_point(profile, old.api_version, left_out) for profile in old.profiles)
    else:
        defaults = _defaults(old, version.plugins, policy)
        profiles = tuple(
            _by_point(profile, version, old.api_version, defaults, left_out) for profile in old.profiles
        )
    kept = {
        field.name: getattr(old, field.name) for field in msgspec.structs.fields(KubeSchedulerConfiguration)
    }
    changed = {
        "api_version": V1,
        "kind": "KubeSchedulerConfiguration",
        "leader_election": _leader_election(old),
        "profiles": profiles,
        "extenders": old.extenders + (policy.extenders if policy else ()),
    }
    return Converted(KubeSchedulerConfiguration(**{**kept, **changed}), list(dict.fromkeys(left_out)))


def _leader_election(old: OldConfiguration) -> LeaderElection:
    found = old.leader_election
    kept = {field.name: getattr(found, field.name) for field in msgspec.structs.fields(LeaderElection)}
    if found.resource_lock in versions.OLD_RESOURCE_LOCKS:
        kept["resource_lock"] = "leases"
    if found.lock_object_name:
        kept["resource_name"] = found.lock_object_name
    if found.lock_object_namespace:
        kept["resource_namespace"] = found.lock_object_namespace
    return LeaderElection(**kept)


def _defaults(old: OldConfiguration, plugins: PointPlugins, policy: Policy | None) -> OldDefaults:
    """The lists that a profile of this file starts from, and arguments that stood outside of profiles."""
    args: dict[str, Any] = {}
    if old.bind_timeout_seconds is not None:
        args["VolumeBinding"] = {"bindTimeoutSeconds": old.bind_timeout_seconds}
    if old.hard_pod_affinity_symmetric_weight is not None:
        args["InterPodAffinity"] = {"hardPodAffinityWeight": old.hard_pod_affinity_symmetric_weight}
    if policy is not None:
        asked = policy_defaults(policy)
        plugins, args = asked.plugins, {**args, **asked.args}
    elif provider := old.algorithm_source.provider:
        plugins = {**plugins, "score": tuple(_provided(provider, plugins["score"]))}
    if old.disable_preemption:
        plugins = {point: entries for point, entries in plugins.items() if point != "postFilter"}
    return OldDefaults(plugins, args)


def _provided(provider: str, score: Iterable[tuple[str, int]]) -> Iterable[tuple[str, int]]:
    if provider not in versions.PROVIDERS:
        raise ConfigError(unsupported("algorithmSource.provider", provider, sorted(versions.PROVIDERS)))
    least_allocated = versions.PROVIDERS["DefaultProvider"]
    return (
        (versions.PROVIDERS[provider] if name == least_allocated else name, weight) for name, weight in score
    )


def _with_multi_point(profile: OldProfile, api_version: str, left_out: list[str]) -> ProfileConfig:
    """A profile of a version that already had multiPoint: only names change, and newer defaults stay out."""
    dead = versions.GONE_PLUGINS | versions.RENAMED_PLUGINS.keys()
    sets = {}
    for field in msgspec.structs.fields(Plugins):
        found: PluginSet = getattr(profile.plugins, field.name)
        disabled = tuple(entry for entry in found.disabled if entry.name not in dead)
        sets[field.name] = PluginSet(_renamed(found.enabled, left_out), disabled)
    named = {entry.name for entry in sets["multi_point"].enabled + sets["multi_point"].disabled}
    newer = tuple(PluginEntry(name) for name in versions.NEWER_THAN_V1BETA3 if not named & {name, "*"})
    sets["multi_point"] = PluginSet(sets["multi_point"].enabled, sets["multi_point"].disabled + newer)
    return _built(profile, Plugins(**sets), _args(profile, api_version, {}), left_out)


def _by_point(
    profile: OldProfile, version: Version, api_version: str, defaults: OldDefaults, left_out: list[str]
) -> ProfileConfig:
    """A profile of a version that listed its plugins by extension point: every list is spelled out."""
    sets = _sets(profile.plugins, version)
    entries = {point: sets[point].over(defaults.plugins.get(point, ())) for point in EXTENSION_POINTS}
    args = _args(profile, api_version, defaults.args)
    _set_scoring_strategy(entries, args, left_out)
    _set_spreading(entries, args, version)
    _set_required_labels(entries, args)
    today = {point: _renamed(found, left_out) for point, found in entries.items()}
    for point, companion, plugins in versions.COMPANIONS:
        named = {name for name, _ in defaults.plugins.get(companion, ())}
        named.update(entry.name for entry in today[companion])
        today[companion] += tuple(
            PluginEntry(entry.name)
            for entry in today[point]
            if entry.name in plugins and entry.name not in named
        )
    plain = {"multiPoint": {"disabled": [{"name": "*"}]}}
    plain.update({point: {"enabled": msgspec.to_builtins(found)} for point, found in today.items() if found})
    return _built(profile, msgspec.convert(plain, Plugins), args, left_out)


def _sets(plugins: OldPlugins, version: Version) -> dict[str, PluginSet]:
    sets = {point: plugins.at(point) for point in EXTENSION_POINTS}
    if not version.strict:
        # What is preScore today was called postFilter, and undoing a reservation was a point of its own.
        late, early = sets["postFilter"], sets["preScore"]
        sets["preScore"] = PluginSet(early.enabled + late.enabled, early.disabled + late.disabled)
        sets["postFilter"] = PluginSet()
        reserve = sets["reserve"]
        also = tuple(entry for entry in plugins.unreserve.enabled if entry not in reserve.enabled)
        sets["reserve"] = PluginSet(reserve.enabled + also, reserve.disabled)
    return sets


def _args(profile: OldProfile, api_version: str, defaults: dict[str, Any]) -> dict[str, Any]:
    """Arguments by plugin, as plain data of v1 still under the plugins' old names."""
    args = dict(defaults)
    for entry in profile.plugin_config:
        args[entry.name] = entry.args
        if isinstance(entry.args, dict):
            merged = {**defaults.get(entry.name, {}), **entry.args}
            if merged.get("apiVersion") == api_version:
                merged["apiVersion"] = V1
            args[entry.name] = merged
    return args


def _set_scoring_strategy(entries: PointEntries, args: dict[str, Any], left_out: list[str]) -> None:
    """Three scoring plugins became strategies of NodeResourcesFit, which can have but one."""
    chosen = [entry.name for entry in entries["score"] if entry.name in versions.SCORING_STRATEGIES]
    if not chosen:
        return
    left_out += chosen[1:]
    own = {
        name: value for name, value in _fields(args, chosen[0]).items() if name not in ("apiVersion", "kind")
    }
    strategy = {"type": versions.SCORING_STRATEGIES[chosen[0]], **own}
    if strategy["type"] == "RequestedToCapacityRatio":
        strategy["requestedToCapacityRatio"] = {"shape": strategy.pop("shape", [])}
    if strategy != {"type": "LeastAllocated"}:
        args["NodeResourcesFit"] = {**_fields(args, "NodeResourcesFit"), "scoringStrategy": strategy}


def _set_spreading(entries: PointEntries, args: dict[str, Any], version: Version) -> None:
    """Where SelectorSpread spread pods by default, PodTopologySpread had no constraints of its own."""
    own = _fields(args, "PodTopologySpread")
    if own.get("defaultingType"):
        return
    spreads = version.strict or any(entry.name in versions.SELECTOR_SPREAD for entry in entries["score"])
    if own.get("defaultConstraints") or not spreads:
        args["PodTopologySpread"] = {**own, "defaultingType": "List"}


def _set_required_labels(entries: PointEntries, args: dict[str, Any]) -> None:
    """The filter of NodeLabel is node affinity that the scheduler adds to every pod's."""
    labels = _fields(args, "NodeLabel")
    wanted = [{"key": key, "operator": "Exists"} for key in _texts(labels.get("presentLabels"))]
    wanted += [{"key": key, "operator": "DoesNotExist"} for key in _texts(labels.get("absentLabels"))]
    filters = entries["filter"]
    if not wanted or "NodeLabel" not in {entry.name for entry in filters}:
        return
    successor = () if "NodeAffinity" in {entry.name for entry in filters} else (PluginEntry("NodeAffinity"),)
    entries["filter"] = tuple(entry for entry in filters if entry.name != "NodeLabel") + successor
    selector = {"nodeSelectorTerms": [{"matchExpressions": wanted}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": selector}
    args["NodeAffinity"] = {**_fields(args, "NodeAffinity"), "addedAffinity": affinity}
    del args["NodeLabel"]


def _fields(args: dict[str, Any], plugin: str) -> dict[str, Any]:
    found = args.get(plugin)
    return found if isinstance(found, dict) else {}


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _renamed(entries: tuple[PluginEntry, ...], left_out: list[str]) -> tuple[PluginEntry, ...]:
    """The plugins by today's names. Of several with one successor the first counts, or the successor."""
    renamed: list[PluginEntry] = []
    taken = {entry.name for entry in entries}
    for entry in entries:
        successor = versions.RENAMED_PLUGINS.get(entry.name)
        if entry.name in versions.GONE_PLUGINS:
            left_out.append(entry.name)
        elif successor is None:
            renamed.append(entry)
        elif successor not in taken:
            renamed.append(PluginEntry(successor, entry.weight))
            taken.add(successor)
    return tuple(renamed)


def _built(profile: OldProfile, plugins: Plugins, args: dict[str, Any], left_out: list[str]) -> ProfileConfig:
    left_out += [name for name in args if name in versions.GONE_PLUGINS and name not in left_out]
    dead = versions.GONE_PLUGINS | versions.RENAMED_PLUGINS.keys()
    plugin_config = [PluginConfig(name, value) for name, value in args.items() if name not in dead]
    names = [entry.name for entry in profile.plugin_config]
    # Validation has to see that arguments were given twice.
    plugin_config += [PluginConfig(name) for name in args for _ in range(names.count(name) - 1)]
    return ProfileConfig(
        profile.scheduler_name, profile.percentage_of_nodes_to_score, plugins, tuple(plugin_config)
    )
