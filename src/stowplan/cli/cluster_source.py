"""The cluster that a command is about: read from files or from an API server. Nothing is written."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from stowplan.api.custom import CustomResource
from stowplan.api.groups import IN_TREE, KINDS_OF_FAMILY, GroupObject
from stowplan.api.manifests import Found, Manifests, read
from stowplan.api.names import kind_and_name
from stowplan.api.queues import HyperNode
from stowplan.cli.options import ClusterSource
from stowplan.client import kubeconfig as kubeconfigs
from stowplan.client.api import ApiClient, custom
from stowplan.client.connection import Connection
from stowplan.client.errors import ApiError
from stowplan.client.watch import WORKLOADS, OnObject, Reading, read_cluster, read_workload
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.config.gates import (
    GANG_SCHEDULING,
    GENERIC_WORKLOAD,
    RELEASE_MINOR,
    TOPOLOGY,
    choose_features,
    read_server_minor,
)
from stowplan.config.types import with_gates, with_groups
from stowplan.cycle.planner import DEFAULT_CONFIG
from stowplan.errors import ConfigError, InputError
from stowplan.explain.layout import printable
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles, watched_kinds

READS_PER_SECOND = 500
"""A command reads once and exits, so it needs no low rate limit."""
READ_SECONDS = 20.0
"""How long to wait for one page of a list, which a server that works has in a second."""


def config_of(
    config: Path | None, policy: Path | None, registry: Registry
) -> KubeSchedulerConfiguration | None:
    if config is None:
        if policy is not None:
            raise click.UsageError("--policy requires --config; to use only a Policy, pass it with --config")
        return None
    loaded = load(config, registry, policy=policy)
    for warning in loaded.warnings:
        click.echo(f"{config}: {warning}", err=True)
    try:
        resolve_profiles(loaded.config, registry)
    except ConfigError as error:
        raise ConfigError(error.message, stage=error.stage, where=str(config)) from None
    if loaded.config.extenders:
        click.echo(f"{config}: ignoring its extenders ({len(loaded.config.extenders)})", err=True)
    return loaded.config


GROUP_KINDS: tuple[type[CustomResource], ...] = (
    *(kind for kinds in KINDS_OF_FAMILY.values() for kind in kinds),
    HyperNode,
)
"""The kinds that describe pod groups and where they may go, of which a cluster has some at most."""


def with_features_of(
    manifests: Manifests, config: KubeSchedulerConfiguration | None, registry: Registry
) -> KubeSchedulerConfiguration | None:
    """The configuration with the features of the API server, if that is older than 1.36."""
    minor = manifests.server_minor
    if minor is None or minor >= RELEASE_MINOR:
        return config
    config = config or load(DEFAULT_CONFIG, registry).config
    return with_gates(config, config.gates, choose_features({}, RELEASE_MINOR, minor).disabled)


def with_groups_of(
    manifests: Manifests,
    config: KubeSchedulerConfiguration | None,
    registry: Registry,
    added: Sequence[Found] = (),
    *,
    gang: bool = False,
) -> KubeSchedulerConfiguration | None:
    """The configuration with the cluster's features, and plugins for its pod groups if it has none for them.

    `added` are objects that come later; `gang` says that groups of Kubernetes do.
    """
    more = Manifests(manifests.namespace, GROUP_KINDS)
    more.add(added)
    items = (*manifests.objects.values(), *more.objects.values())
    used = {item.family for item in items if isinstance(item, GroupObject)} | ({IN_TREE} if gang else set())
    config = with_features_of(manifests, config, registry)
    watched = kinds_of(config, registry)
    missing = {family for family in used if not set(KINDS_OF_FAMILY[family]) & set(watched)}
    if not missing:
        return config
    config = config or load(DEFAULT_CONFIG, registry).config
    if IN_TREE in missing:
        config = with_gates(config, config.gates | {GENERIC_WORKLOAD, GANG_SCHEDULING, TOPOLOGY})
    return with_groups(config) if missing - {IN_TREE} else config


def kinds_of(
    config: KubeSchedulerConfiguration | None, registry: Registry
) -> tuple[type[CustomResource], ...]:
    """The custom resources that the configured plugins watch."""
    profiles = resolve_profiles(config, registry) if config else ()
    return watched_kinds(plugin for profile in profiles for plugin in profile.classes.values())


def read_manifests(
    source: ClusterSource, kinds: Sequence[type[CustomResource]], wanted: Sequence[str] = ()
) -> Manifests:
    """Read the objects of files or of the API server; faults in files are left to the caller."""
    files, kubeconfig, context, namespace, is_verbose = source
    if files:
        manifests = read(files, sys.stdin.buffer, namespace or "default", kinds)
    else:
        manifests = live_manifests(kubeconfig, context, namespace, kinds, wanted)
    if is_verbose and not manifests.faults:
        echo_ignored(manifests)
    return manifests


def live_manifests(
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    kinds: Sequence[type[CustomResource]],
    wanted: Sequence[str] = (),
) -> Manifests:
    """Read the objects of the API server; of workloads, only those `wanted`."""
    connection = kubeconfigs.load(kubeconfig, context=context)
    namespace = namespace or connection.namespace
    built = Cluster()
    found, workloads, minor = asyncio.run(_read(connection, kinds, namespace, wanted, built.apply))
    groups = {custom(kind).name for kind in GROUP_KINDS}
    for name, error in found.missing.items():
        if name in groups:
            continue  # most clusters have only some of the APIs for pod groups, or none
        click.echo(printable(f"{connection.server}: ignoring {name}: {error}"), err=True)
    for fault in found.faults:
        click.echo(printable(f"{connection.server}: {fault}; ignoring it"), err=True)
    manifests = Manifests(namespace, kinds)
    manifests.server_minor = minor
    manifests.take(found.objects, found.unserved, None if found.is_torn else built)
    manifests.add(Found(connection.server, "", each) for each in workloads)
    return manifests


async def _read(
    connection: Connection,
    kinds: Sequence[type[CustomResource]],
    namespace: str,
    wanted: Sequence[str],
    on_object: OnObject,
) -> tuple[Reading, list[dict[str, object]], int | None]:
    workloads = [(kind, name) for kind, name in map(kind_and_name, wanted) if kind in WORKLOADS and name]
    rate = READS_PER_SECOND
    async with ApiClient(connection, qps=rate, burst=rate, timeout=READ_SECONDS) as api:
        found = [await read_workload(api, kind, namespace, name) for kind, name in workloads if kind]
        reading = await read_cluster(api, kinds, on_object)
        try:
            minor = read_server_minor((await api.request("GET", "/version")).data)
        except ApiError:
            minor = None  # it is only needed for older servers
        return reading, [each for each in found if each is not None], minor


def stop_for(faults: Sequence[InputError]) -> None:
    """Print all faults, and exit with status 1 if there are any."""
    for fault in faults:
        click.echo(printable(f"stowplan: {fault}"), err=True)
    if faults:
        sys.exit(1)


def echo_ignored(manifests: Manifests) -> None:
    ignored = manifests.ignored
    if ignored:
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(ignored.items()))
        click.echo(printable(f"ignored, because they do not affect scheduling: {listed}"), err=True)
