"""Validation of a KubeSchedulerConfiguration, with kube-scheduler's messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stowplan.config.field_errors import duplicate, invalid, label_name_faults, required
from stowplan.config.types import (
    EXTENSION_POINTS,
    V1,
    ExtenderConfig,
    KubeSchedulerConfiguration,
    LeaderElection,
    ProfileConfig,
)

REMOVED_PLUGINS = frozenset(("AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits"))
# parity: kube-scheduler does not check these points for removed plugins.
_UNCHECKED_POINTS = ("placementGenerate", "placementScore")


def faults(config: KubeSchedulerConfiguration, args: Mapping[str, list[str]]) -> Iterator[str]:
    """All errors of `config` in kube-scheduler's order; `args` has the errors of arguments by path."""
    if config.client_connection.burst < 0:
        yield invalid("clientConnection.burst", config.client_connection.burst, "must be non-negative")
    if config.leader_election.leader_elect:
        yield from _leader_election(config.leader_election)
    if config.parallelism <= 0:
        yield invalid("parallelism", config.parallelism, "should be an integer value greater than zero")
    yield from _profiles(config.profiles, args)
    yield from _percentage("percentageOfNodesToScore", config.percentage_of_nodes_to_score)
    if config.pod_initial_backoff_seconds <= 0:
        yield invalid(
            "podInitialBackoffSeconds", config.pod_initial_backoff_seconds, "must be greater than 0"
        )
    if config.pod_max_backoff_seconds < config.pod_initial_backoff_seconds:
        yield invalid(
            "podMaxBackoffSeconds",
            config.pod_max_backoff_seconds,
            "must be greater than or equal to PodInitialBackoffSeconds",
        )
    yield from _extenders(config.extenders)


def _leader_election(election: LeaderElection) -> Iterator[str]:
    times = {
        "leaseDuration": election.lease_duration,
        "renewDeadline": election.renew_deadline,
        "retryPeriod": election.retry_period,
    }
    for name, time in times.items():
        if time <= 0:
            yield invalid(f"leaderElection.{name}", time, "must be greater than zero")
    if election.lease_duration <= election.renew_deadline:
        # parity: the path is that of leaseDuration, the value that of renewDeadline.
        yield invalid(
            "leaderElection.leaseDuration", election.renew_deadline, "must be greater than `RenewDeadline`"
        )
    if election.resource_lock != "leases":
        yield invalid(
            "leaderElection.resourceLock", election.resource_lock, 'resourceLock value must be "leases"'
        )


def _profiles(profiles: tuple[ProfileConfig, ...], args: Mapping[str, list[str]]) -> Iterator[str]:
    names: set[str] = set()
    for index, profile in enumerate(profiles):
        path = f"profiles[{index}]"
        yield from _profile(path, profile, args)
        if profile.scheduler_name in names:
            # parity: the value is printed as {}.
            yield duplicate(f"{path}.schedulerName", {})
        names.add(profile.scheduler_name)
    yield from _common_queue_sort(profiles)


def _profile(path: str, profile: ProfileConfig, args: Mapping[str, list[str]]) -> Iterator[str]:
    if not profile.scheduler_name:
        yield required(f"{path}.schedulerName")
    if profile.percentage_of_nodes_to_score is not None:
        yield from _percentage(f"{path}.percentageOfNodesToScore", profile.percentage_of_nodes_to_score)
    for point in EXTENSION_POINTS:
        if point not in _UNCHECKED_POINTS:
            for index, entry in enumerate(profile.plugins.at(point).enabled):
                yield from _removed_plugin_errors(f"{path}.plugins.{point}.enabled[{index}]", entry.name)
    seen: set[str] = set()
    for index, plugin in enumerate(profile.plugin_config):
        where = f"{path}.pluginConfig[{index}]"
        if plugin.name in seen:
            yield duplicate(where, plugin.name)
        seen.add(plugin.name)
        yield from _removed_plugin_errors(where, plugin.name)
        yield from args.get(f"{where}.args", ())


def _removed_plugin_errors(path: str, plugin: str) -> Iterator[str]:
    if plugin in REMOVED_PLUGINS:
        yield invalid(
            path, plugin, f'was invalid in version "v1" (KubeSchedulerConfiguration is version "{V1}")'
        )


def _common_queue_sort(profiles: tuple[ProfileConfig, ...]) -> Iterator[str]:
    """All profiles share one queue, so they must use the same sort plugin."""
    first = profiles[0].plugins.queue_sort
    if len(first.enabled) > 1:
        yield invalid(
            "profiles[0].plugins.queueSort.Enabled",
            len(first.enabled),
            "only one queue sort plugin can be enabled",
        )
    sorter = first.enabled[0].name if first.enabled else ""
    arguments = {plugin.name: plugin.args for plugin in profiles[0].plugin_config}.get(sorter)
    for index, profile in enumerate(profiles[1:], 1):
        if profile.plugins.queue_sort != first:
            yield invalid(
                f"profiles[{index}].plugins.queueSort",
                profile.plugins.queue_sort,
                "must be the same for all profiles",
            )
        for plugin in profile.plugin_config:
            if plugin.name == sorter and plugin.args != arguments:
                yield invalid(
                    f"profiles[{index}].pluginConfig.args",
                    plugin.args,
                    "queueSort must be the same for all profiles",
                )


def _percentage(path: str, percentage: int) -> Iterator[str]:
    if not 0 <= percentage <= 100:
        yield invalid(path, percentage, "not in valid range [0-100]")


def _extenders(extenders: tuple[ExtenderConfig, ...]) -> Iterator[str]:
    managed: set[str] = set()
    for index, extender in enumerate(extenders):
        path = f"extenders[{index}]"
        if extender.prioritize_verb and extender.weight <= 0:
            yield invalid(f"{path}.weight", extender.weight, "must have a positive weight applied to it")
        for position, resource in enumerate(extender.managed_resources):
            where = f"{path}.managedResources[{position}].name"
            yield from (invalid(where, resource.name, detail) for detail in _extended_resource(resource.name))
            if resource.name in managed:
                yield invalid(where, resource.name, "duplicate extender managed resource name")
            managed.add(resource.name)
    binders = sum(1 for extender in extenders if extender.bind_verb)
    if binders > 1:
        yield invalid(
            "extenders",
            f"found {binders} extenders implementing bind",
            "only one extender can implement bind",
        )


def _extended_resource(name: str) -> list[str]:
    """Why `name` is not a valid extended resource: it must not be native or a `requests.` quota."""
    if faults := label_name_faults(name):
        return faults
    native = "/" not in name or "kubernetes.io/" in name
    if native or name.startswith("requests.") or label_name_faults(f"requests.{name}"):
        return ["is an invalid extended resource name"]
    return []
