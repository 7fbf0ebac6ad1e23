"""Convert older configurations to v1: the plugins, order, weights and arguments that the older version ran.

The older version's lists are computed first, under its own names: its defaults or its Policy, merged with
the file. Only then are plugins renamed, replaced or left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from stowplan.config.field_errors import join_errors, unsupported
from stowplan.config.old import versions
from stowplan.config.old.files import OldConfiguration, OldPlugins, OldProfile, Policy, Predicate, Priority
from stowplan.config.old.versions import PointPlugins, Version
from stowplan.config.types import (
    EXTENSION_POINTS,
    RETIRED_RESOURCE_LOCKS,
    V1,
    Entries,
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
    """The v1 configuration, the names of plugins and of arguments that have no successor, and what else to
    say."""

    config: KubeSchedulerConfiguration
    left_out: list[str]
    left_out_args: list[str]
    notes: list[str]


def convert(old: OldConfiguration, version: Version, policy: Policy | None) -> Converted:
    """Convert `old` to v1; `policy` replaces the version's default plugins."""
    left_out: list[str] = []
    old, notes = _add_arguments(old)
    if version.plugins is None:
        profiles = tuple(_convert_multi_point(profile, old.api_version, left_out) for profile in old.profiles)
    else:
        defaults = _defaults(old, version.plugins, policy)
        profiles = tuple(
            _convert_points(profile, version, old.api_version, defaults, left_out) for profile in old.profiles
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
    given = [(entry.name, entry.args) for profile in old.profiles for entry in profile.plugin_config]
    return Converted(
        KubeSchedulerConfiguration(**{**kept, **changed}),
        list(dict.fromkeys(left_out)),
        list(dict.fromkeys(name for plugin, args in given for name in removed_args(plugin, args))),
        notes,
    )


def _add_arguments(old: OldConfiguration) -> tuple[OldConfiguration, list[str]]:
    """Set arguments that keep what plugins did in this version, and say so."""
    notes: list[str] = []

    def add(entry: PluginConfig) -> PluginConfig:
        added, note = versions.ADDED_ARGUMENTS.get((old.api_version, entry.name), ({}, ""))
        if not added or not isinstance(entry.args, dict) or added.keys() & entry.args.keys():
            return entry
        notes.append(note)
        return PluginConfig(entry.name, {**entry.args, **added})

    profiles = tuple(
        msgspec.structs.replace(profile, plugin_config=tuple(map(add, profile.plugin_config)))
        for profile in old.profiles
    )
    return msgspec.structs.replace(old, profiles=profiles), list(dict.fromkeys(notes))


def _leader_election(old: OldConfiguration) -> LeaderElection:
    found = old.leader_election
    kept = {field.name: getattr(found, field.name) for field in msgspec.structs.fields(LeaderElection)}
    if found.resource_lock in RETIRED_RESOURCE_LOCKS:
        kept["resource_lock"] = "leases"
    if found.lock_object_name:
        kept["resource_name"] = found.lock_object_name
    if found.lock_object_namespace:
        kept["resource_namespace"] = found.lock_object_namespace
    return LeaderElection(**kept)


def _defaults(old: OldConfiguration, plugins: PointPlugins, policy: Policy | None) -> OldDefaults:
    """The plugins that profiles of this file start from, and arguments given outside of profiles."""
    args: dict[str, object] = {}
    if old.bind_timeout_seconds is not None:
        args["VolumeBinding"] = {"bindTimeoutSeconds": old.bind_timeout_seconds}
    if old.hard_pod_affinity_symmetric_weight is not None:
        args["InterPodAffinity"] = {"hardPodAffinityWeight": old.hard_pod_affinity_symmetric_weight}
    if policy is not None:
        wanted = policy_defaults(policy)
        plugins, args = wanted.plugins, {**args, **wanted.args}
    elif provider := old.algorithm_source.provider:
        plugins = {**plugins, "score": tuple(_apply_provider(provider, plugins["score"]))}
    if old.disable_preemption:
        plugins = {point: entries for point, entries in plugins.items() if point != "postFilter"}
    return OldDefaults(plugins, args)


def _apply_provider(provider: str, score: Iterable[tuple[str, int]]) -> Iterable[tuple[str, int]]:
    if provider not in versions.PROVIDERS:
        raise ConfigError(unsupported("algorithmSource.provider", provider, sorted(versions.PROVIDERS)))
    least_allocated = versions.PROVIDERS["DefaultProvider"]
    return (
        (versions.PROVIDERS[provider] if name == least_allocated else name, weight) for name, weight in score
    )


def _convert_multi_point(profile: OldProfile, api_version: str, left_out: list[str]) -> ProfileConfig:
    """Convert a profile of a version with multiPoint: rename plugins and disable newer default plugins."""
    dead = versions.REMOVED_PLUGINS | versions.RENAMED_PLUGINS.keys()
    sets = {}
    for field in msgspec.structs.fields(Plugins):
        found: PluginSet = getattr(profile.plugins, field.name)
        disabled = tuple(entry for entry in found.disabled if entry.name not in dead)
        sets[field.name] = PluginSet(_rename(found.enabled, left_out), disabled)
    named = {entry.name for entry in sets["multi_point"].enabled + sets["multi_point"].disabled}
    newer = tuple(PluginEntry(name) for name in versions.NEWER_THAN_V1BETA3 if not named & {name, "*"})
    sets["multi_point"] = PluginSet(sets["multi_point"].enabled, sets["multi_point"].disabled + newer)
    return _build_profile(profile, Plugins(**sets), _args(profile, api_version, {}), left_out)


def _convert_points(
    profile: OldProfile, version: Version, api_version: str, defaults: OldDefaults, left_out: list[str]
) -> ProfileConfig:
    """Convert a profile of a version without multiPoint: write out the list of every extension point."""
    sets = _sets(profile.plugins, version)
    entries = {point: sets[point].over(defaults.plugins.get(point, ())) for point in EXTENSION_POINTS}
    args = _args(profile, api_version, defaults.args)
    _set_scoring_strategy(entries, args, left_out)
    _set_spreading(entries, args, version)
    _set_required_labels(entries, args)
    today = {point: _rename(found, left_out) for point, found in entries.items()}
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
    return _build_profile(profile, msgspec.convert(plain, Plugins), args, left_out)


def _sets(plugins: OldPlugins, version: Version) -> dict[str, PluginSet]:
    sets = {point: plugins.at(point) for point in EXTENSION_POINTS}
    if not version.strict:
        # Today's preScore was called postFilter, and unreserve was an extension point of its own.
        late, early = sets["postFilter"], sets["preScore"]
        sets["preScore"] = PluginSet(early.enabled + late.enabled, early.disabled + late.disabled)
        sets["postFilter"] = PluginSet()
        reserve = sets["reserve"]
        also = tuple(entry for entry in plugins.unreserve.enabled if entry not in reserve.enabled)
        sets["reserve"] = PluginSet(reserve.enabled + also, reserve.disabled)
    return sets


def _args(profile: OldProfile, api_version: str, defaults: dict[str, Any]) -> dict[str, Any]:
    """Arguments in v1 form by plugin, still under the plugins' old names."""
    args = dict(defaults)
    for entry in profile.plugin_config:
        args[entry.name] = entry.args
        if isinstance(entry.args, dict):
            merged = {**defaults.get(entry.name, {}), **entry.args}
            if merged.get("apiVersion") == api_version:
                merged["apiVersion"] = V1
            args[entry.name] = convert_args(entry.name, merged)
    return args


def convert_args(plugin: str, args: dict[str, object]) -> dict[str, Any]:
    """Convert arguments of scheduler-plugins, of whatever version, to v1."""
    removed = versions.REMOVED_ARGS.get(plugin, ())
    kept = {name: value for name, value in args.items() if name not in removed}
    if plugin in versions.READ_IN_ANY_VERSION and kept.get("apiVersion") in versions.BETAS:
        kept["apiVersion"] = V1
    return kept


def removed_args(plugin: str, args: object) -> Iterable[str]:
    """The arguments that `convert_args` leaves out, as `Plugin.argument`."""
    removed = versions.REMOVED_ARGS.get(plugin, ())
    return [f"{plugin}.{name}" for name in args if name in removed] if isinstance(args, dict) else ()


def _set_scoring_strategy(entries: PointEntries, args: dict[str, object], left_out: list[str]) -> None:
    """Set the strategy of NodeResourcesFit: three plugins became its strategies, and it has only one."""
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


def _set_spreading(entries: PointEntries, args: dict[str, object], version: Version) -> None:
    """Disable PodTopologySpread's default constraints unless SelectorSpread did their work."""
    own = _fields(args, "PodTopologySpread")
    if own.get("defaultingType"):
        return
    spreads = version.strict or any(entry.name in versions.SELECTOR_SPREAD for entry in entries["score"])
    if own.get("defaultConstraints") or not spreads:
        args["PodTopologySpread"] = {**own, "defaultingType": "List"}


def _set_required_labels(entries: PointEntries, args: dict[str, object]) -> None:
    """Convert the filter of NodeLabel to node affinity added to every pod."""
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


def _fields(args: dict[str, object], plugin: str) -> dict[str, object]:
    found = args.get(plugin)
    return found if isinstance(found, dict) else {}


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _rename(entries: tuple[PluginEntry, ...], left_out: list[str]) -> tuple[PluginEntry, ...]:
    """The plugins under today's names; of several with the same successor only the first is kept."""
    renamed: list[PluginEntry] = []
    taken = {entry.name for entry in entries}
    for entry in entries:
        successor = versions.RENAMED_PLUGINS.get(entry.name)
        if entry.name in versions.REMOVED_PLUGINS:
            left_out.append(entry.name)
        elif successor is None:
            renamed.append(entry)
        elif successor not in taken:
            renamed.append(PluginEntry(successor, entry.weight))
            taken.add(successor)
    return tuple(renamed)


def _build_profile(
    profile: OldProfile, plugins: Plugins, args: dict[str, object], left_out: list[str]
) -> ProfileConfig:
    left_out += [name for name in args if name in versions.REMOVED_PLUGINS and name not in left_out]
    dead = versions.REMOVED_PLUGINS | versions.RENAMED_PLUGINS.keys()
    plugin_config = [PluginConfig(name, value) for name, value in args.items() if name not in dead]
    names = [entry.name for entry in profile.plugin_config]
    # Validation must see that arguments were given twice.
    plugin_config += [PluginConfig(name) for name in args for _ in range(names.count(name) - 1)]
    return ProfileConfig(
        profile.scheduler_name, profile.percentage_of_nodes_to_score, plugins, tuple(plugin_config)
    )


class OldDefaults(NamedTuple):
    """The plugins and arguments that a profile of an older file starts from, under their old names."""

    plugins: PointPlugins
    args: dict[str, Any]


def policy_defaults(policy: Policy) -> OldDefaults:
    """The policy's plugins and arguments. A ConfigError names every unknown predicate and priority."""
    if policy.predicates is None:
        predicates, unknown = set(versions.DEFAULT_PREDICATES), []
    else:
        predicates = {_known_predicate(predicate) for predicate in policy.predicates}
        unknown = [
            f'predicates[{index}]: predicate type not found for "{predicate.name}"'
            for index, predicate in enumerate(policy.predicates)
            if not _known_predicate(predicate)
        ]
    if policy.priorities is None:
        priorities = dict(versions.DEFAULT_PRIORITIES)
    else:
        priorities = {_known_priority(priority): priority.weight for priority in policy.priorities}
        unknown += [
            f'priorities[{index}]: priority type not found for "{priority.name}"'
            for index, priority in enumerate(policy.priorities)
            if not _known_priority(priority)
        ]
    if unknown:
        raise ConfigError(join_errors(unknown))
    return OldDefaults(_policy_points(predicates, priorities), _policy_args(policy))


def _known_predicate(predicate: Predicate) -> str:
    """The built-in name of the predicate; a custom name is recognized by its argument."""
    if predicate.name in versions.PREDICATES:
        return predicate.name
    if predicate.argument.labels_presence is not None:
        return "CheckNodeLabelPresence"
    return "CheckServiceAffinity" if predicate.argument.service_affinity is not None else ""


def _known_priority(priority: Priority) -> str:
    if priority.name in versions.PRIORITIES:
        return priority.name
    if priority.argument.requested_to_capacity_ratio_arguments is not None:
        return "RequestedToCapacityRatioPriority"
    if priority.argument.label_preference is not None:
        return "NodeLabelPriority"
    return "ServiceAntiAffinityPriority" if priority.argument.service_anti_affinity is not None else ""


def _policy_points(predicates: set[str], priorities: dict[str, int]) -> PointPlugins:
    predicates = predicates.union(versions.MANDATORY_PREDICATES)
    in_order = [
        plugin for name, plugins in versions.PREDICATES.items() if name in predicates for plugin in plugins
    ]
    filters: Entries = tuple((plugin, 0) for plugin in dict.fromkeys(in_order))
    scores: dict[str, int] = {}
    for name in sorted(priorities):
        scores.setdefault(versions.PRIORITIES[name], priorities[name])
    scores.pop("", None)
    points = {**versions.ALWAYS, "filter": filters, "score": tuple(scores.items())}
    if "CheckVolumeBinding" not in predicates:
        del points["reserve"], points["preBind"]
    return points


def _policy_args(policy: Policy) -> dict[str, object]:
    args: dict[str, object] = {}
    if policy.hard_pod_affinity_symmetric_weight:
        args["InterPodAffinity"] = {"hardPodAffinityWeight": policy.hard_pod_affinity_symmetric_weight}
    for priority in policy.priorities or ():
        if ratio := priority.argument.requested_to_capacity_ratio_arguments:
            args["RequestedToCapacityRatio"] = ratio
    labels: dict[str, list[str]] = {}
    for predicate in policy.predicates or ():
        if presence := predicate.argument.labels_presence:
            labels.setdefault("presentLabels" if presence.presence else "absentLabels", []).extend(
                presence.labels
            )
    if labels:
        args["NodeLabel"] = labels
    return args
