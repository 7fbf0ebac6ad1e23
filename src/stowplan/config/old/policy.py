"""Legacy Policy files: the plugins and arguments that their predicates and priorities stand for."""

from __future__ import annotations

from typing import Any, NamedTuple

from stowplan.config.field_errors import joined
from stowplan.config.old import versions
from stowplan.config.old.files import Policy, Predicate, Priority
from stowplan.config.old.versions import Entries, PointPlugins
from stowplan.errors import ConfigError


class OldDefaults(NamedTuple):
    """What a profile of an older file starts from, in the plugin names of its time; arguments by plugin."""

    plugins: PointPlugins
    args: dict[str, Any]


def policy_defaults(policy: Policy) -> OldDefaults:
    """What the policy asks for; ConfigError names every predicate and priority that never existed."""
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
        raise ConfigError(joined(unknown))
    return OldDefaults(_points(predicates, priorities), _args(policy))


def _known_predicate(predicate: Predicate) -> str:
    """The predicate's name among the known ones: a name of one's own is told by its argument."""
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


def _points(predicates: set[str], priorities: dict[str, int]) -> PointPlugins:
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


def _args(policy: Policy) -> dict[str, Any]:
    args: dict[str, Any] = {}
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
