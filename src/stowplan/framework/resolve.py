"""Profiles made definite: the plugins of each extension point in order, their weights and arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from stowplan.api.custom import CustomResource
from stowplan.config import (
    EXTENSION_POINTS,
    KubeSchedulerConfiguration,
    PluginEntry,
    PluginSet,
    ProfileConfig,
)
from stowplan.config.field_errors import join_errors
from stowplan.config.gates import NO_GATES, TOPOLOGY, FeatureGates
from stowplan.errors import ConfigError
from stowplan.framework.args import PluginArgs
from stowplan.framework.plugin import Plugin
from stowplan.framework.registry import Registry

# The points that run, with kube-scheduler's names of their interfaces, in the order in which it takes them.
_TYPES = {
    "preFilter": "PreFilterPlugin",
    "filter": "FilterPlugin",
    "postFilter": "PostFilterPlugin",
    "reserve": "ReservePlugin",
    "preScore": "PreScorePlugin",
    "score": "ScorePlugin",
    "preBind": "PreBindPlugin",
    "bind": "BindPlugin",
    "postBind": "PostBindPlugin",
    "permit": "PermitPlugin",
    "preEnqueue": "PreEnqueuePlugin",
    "queueSort": "QueueSortPlugin",
}

# They run with a feature gate only; without it they are accepted in files and lead to nothing.
_PLACEMENT_TYPES = {
    "placementGenerate": "PlacementGeneratePlugin",
    "placementScore": "PlacementScorePlugin",
}
RESOURCES_FIT = "NodeResourcesFit"


class ResolvedProfile(NamedTuple):
    """`points` maps the name of a point in files to (plugin, weight) in order; only scores have weights."""

    scheduler_name: str
    percentage_of_nodes_to_score: int
    points: dict[str, list[tuple[str, int]]]
    args: dict[str, PluginArgs]
    classes: dict[str, type[Plugin]]
    gates: FeatureGates = NO_GATES
    disabled_gates: FeatureGates = NO_GATES

    def as_json(self) -> dict[str, Any]:
        """Return plain data: the extension points that have plugins, and the arguments of plugins that take
        any."""
        points = {
            point: [
                {"name": name, "weight": weight} if weight else {"name": name} for name, weight in entries
            ]
            for point, entries in self.points.items()
            if entries
        }
        args = {name: args.as_json() for name, args in self.args.items() if type(args) is not PluginArgs}
        return {"schedulerName": self.scheduler_name, "points": points, "args": dict(sorted(args.items()))}


def resolve_profiles(config: KubeSchedulerConfiguration, registry: Registry) -> list[ResolvedProfile]:
    """All profiles, or a ConfigError that names everything that keeps one of them from being built."""
    resolved, faults = [], []
    for profile in config.profiles:
        try:
            resolved.append(resolve_profile(profile, registry, config))
        except ConfigError as error:
            faults.append(f"creating profile for scheduler name {profile.scheduler_name}: {error.message}")
    if faults:
        raise ConfigError(f"initializing profiles: {join_errors(faults)}", stage="framework")
    for found in resolved:
        _leave_to_extenders(config, found)
    return resolved


def _leave_to_extenders(config: KubeSchedulerConfiguration, profile: ResolvedProfile) -> None:
    """What extenders manage and the scheduler is to ignore replaces what NodeResourcesFit ignores."""
    ignored = tuple(
        resource.name
        for extender in config.extenders
        for resource in extender.managed_resources
        if resource.ignored_by_scheduler
    )
    if not ignored:
        return
    args = profile.args.get(RESOURCES_FIT)
    if args is None or not hasattr(args, "ignored_resources"):
        raise ConfigError(
            "couldn't build extenders: can't find NodeResourcesFitArgs in plugin config", stage="framework"
        )
    profile.args[RESOURCES_FIT] = msgspec.structs.replace(args, ignored_resources=ignored)


def watched_kinds(plugins: Iterable[Plugin | type[Plugin]]) -> tuple[type[CustomResource], ...]:
    """The kinds that these plugins watch, each once."""
    return tuple(dict.fromkeys(kind for plugin in plugins for kind in plugin.watches))


def resolve_profile(
    profile: ProfileConfig, registry: Registry, config: KubeSchedulerConfiguration | None = None
) -> ResolvedProfile:
    """One profile; the configuration has what it does not set itself, and the feature gates."""
    config = config or KubeSchedulerConfiguration()
    types = _TYPES | _PLACEMENT_TYPES if TOPOLOGY in config.gates else _TYPES
    multi_point = profile.plugins.multi_point.over(config.default_plugins)
    profile = _with_enabled_points(profile, multi_point, registry)
    args, faults = _args(profile, multi_point, registry)
    faults += _explicit_faults(profile, registry, types) + _multi_point_faults(multi_point, registry)
    if faults:
        raise ConfigError(join_errors(faults), stage="framework")
    weights = {
        "score": _weights(profile.plugins.score.enabled + multi_point),
        "placementScore": _weights(profile.plugins.placement_score.enabled + multi_point),
    }
    points = {
        point: [
            (name, weights[point][name] if point in weights else 0)
            for name in _order(point, profile.plugins.at(point), multi_point, registry)
        ]
        for point in EXTENSION_POINTS
        if point in types
    }
    if faults := _incomplete(profile.scheduler_name, points):
        raise ConfigError(join_errors(faults), stage="framework")
    own = profile.percentage_of_nodes_to_score
    used = dict.fromkeys(name for entries in points.values() for name, _ in entries)
    classes = {name: registry.find(name) for name in used}
    return ResolvedProfile(
        profile.scheduler_name,
        config.percentage_of_nodes_to_score if own is None else own,
        points,
        args,
        classes,
        config.gates,
        config.disabled_gates,
    )


def _args(
    profile: ProfileConfig, multi_point: tuple[PluginEntry, ...], registry: Registry
) -> tuple[dict[str, PluginArgs], list[str]]:
    """Arguments of every enabled plugin, defaults where the profile has none, and what is wrong with them."""
    given = {entry.name: entry.args for entry in profile.plugin_config}
    args = {name: found for name, found in given.items() if isinstance(found, PluginArgs)}
    enabled = {entry.name for point in _TYPES for entry in profile.plugins.at(point).enabled}
    faults = []
    for name in sorted(enabled.union(entry.name for entry in multi_point)):
        try:
            kind = registry.args_type(name)
        except ConfigError:
            continue  # A point that enables it says so.
        if kind is None:
            args[name] = PluginArgs()
            continue
        wrong: list[str] = []
        if name not in args:
            read = kind.read(name, given.get(name), "args")
            args[name], wrong = read.args, read.malformed + read.faults
        if kind.checked_late and not wrong:
            wrong = list(args[name].validate(""))
        if wrong:
            faults.append(f'initializing plugin "{name}": {join_errors(wrong)}')
    return args, faults


def _with_enabled_points(
    profile: ProfileConfig, multi_point: tuple[PluginEntry, ...], registry: Registry
) -> ProfileConfig:
    """Apply `Plugin.enables` to the plugins that single points enable; multiPoint enables all points."""
    plugins, everywhere = profile.plugins, {entry.name for entry in multi_point}
    for point in EXTENSION_POINTS:
        for entry in profile.plugins.at(point).enabled:
            try:
                found = registry.find(entry.name).enables.get(point)
            except ConfigError:
                continue  # A point that enables it says so.
            if found is None:
                continue
            if not registry.extends(entry.name, point):
                kept = (each for each in plugins.at(point).enabled if each.name != entry.name)
                plugins = plugins.enabling(point, kept)
            for other in found if entry.name not in everywhere else ():
                there = plugins.at(other).enabled
                if all(each.name != entry.name for each in there):
                    plugins = plugins.enabling(other, (*there, PluginEntry(entry.name)))
    return msgspec.structs.replace(profile, plugins=plugins)


def _explicit_faults(profile: ProfileConfig, registry: Registry, types: Mapping[str, str]) -> list[str]:
    """What is wrong with the plugins that single points enable."""
    faults = []
    for point, kind in types.items():
        seen: set[str] = set()
        for entry in profile.plugins.at(point).enabled:
            try:
                if not registry.extends(entry.name, point):
                    faults.append(f'plugin "{entry.name}" does not extend {kind} plugin')
                elif entry.name in seen:
                    faults.append(f'plugin "{entry.name}" already registered as "{kind}"')
            except ConfigError as error:
                faults.append(f"{kind} {error.message}")
            seen.add(entry.name)
    return faults


def _multi_point_faults(multi_point: tuple[PluginEntry, ...], registry: Registry) -> list[str]:
    faults = []
    seen: set[str] = set()
    for entry in multi_point:
        try:
            kinds = [kind for point, kind in _TYPES.items() if registry.extends(entry.name, point)]
            if entry.name in seen and kinds:
                faults.append(f'plugin "{entry.name}" already registered as "{kinds[0]}"')
        except ConfigError as error:
            # parity: an unknown plugin in multiPoint is reported for the first point.
            faults.append(f"PreFilterPlugin {error.message}")
        seen.add(entry.name)
    return faults


def _order(point: str, own: PluginSet, multi_point: tuple[PluginEntry, ...], registry: Registry) -> list[str]:
    """The point's own that are also in multiPoint, the rest of multiPoint, the rest of the point's own."""
    explicit = [entry.name for entry in own.enabled]
    disabled = {entry.name for entry in own.disabled}
    if "*" in disabled:
        return explicit
    expanded = [
        entry.name
        for entry in multi_point
        if entry.name not in disabled and registry.extends(entry.name, point)
    ]
    overridden = [name for name in explicit if name in expanded]
    others = [name for name in expanded if name not in explicit]
    return overridden + others + [name for name in explicit if name not in expanded]


def _weights(entries: Iterable[PluginEntry]) -> dict[str, int]:
    """The first entry that names a plugin decides; no weight is one."""
    weights: dict[str, int] = {}
    for entry in entries:
        weights.setdefault(entry.name, entry.weight or 1)
    return weights


def _incomplete(scheduler: str, points: dict[str, list[tuple[str, int]]]) -> list[str]:
    faults = []
    if (sorters := len(points["queueSort"])) != 1:
        wanted = f'only one queue sort plugin required for profile with scheduler name "{scheduler}"'
        faults.append(f"{wanted}, but got {sorters}")
    if not points["bind"]:
        faults.append(f'at least one bind plugin is needed for profile with scheduler name "{scheduler}"')
    if len(points.get("placementGenerate", ())) > 1:
        wanted = f'profile with scheduler name "{scheduler}"'
        faults.append(f"at most one placement generate plugin is allowed for {wanted}")
    return faults
