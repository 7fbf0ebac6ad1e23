"""Where a command that asks about a cluster finds it: files, or an API server that is only read."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from stowplan.api.custom import CustomResource
from stowplan.api.manifests import Found, Manifests
from stowplan.api.names import kind_and_name
from stowplan.client import kubeconfig as kubeconfigs
from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection
from stowplan.client.reading import WORKLOADS, OnObject, Reading, read_cluster, read_workload
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.errors import InputError
from stowplan.explain.layout import printable
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles, watched_kinds

READS_A_SECOND = 500
"""A command reads once and ends: it need not hold back as a program does that goes on asking."""


def config_of(
    config: Path | None, policy: Path | None, registry: Registry
) -> KubeSchedulerConfiguration | None:
    if config is None:
        if policy is not None:
            raise click.UsageError("--policy goes with --config; a Policy alone is a --config, too")
        return None
    loaded = load(config, registry, policy=policy)
    for warning in loaded.warnings:
        click.echo(f"{config}: {warning}", err=True)
    if loaded.config.extenders:
        click.echo(f"{config}: its {len(loaded.config.extenders)} extenders are not asked", err=True)
    return loaded.config


def kinds_of(
    config: KubeSchedulerConfiguration | None, registry: Registry
) -> tuple[type[CustomResource], ...]:
    """The custom resources that the configured plugins watch."""
    profiles = resolve_profiles(config, registry) if config else ()
    return watched_kinds(plugin for profile in profiles for plugin in profile.classes.values())


def live_manifests(
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    kinds: Sequence[type[CustomResource]],
    wanted: Sequence[str] = (),
) -> Manifests:
    """What the API server has, and of the workloads only those that are `wanted`. Nothing is written."""
    connection = kubeconfigs.load(kubeconfig, context=context)
    namespace = namespace or connection.namespace
    built = Cluster()
    found, workloads = asyncio.run(_read(connection, kinds, namespace, wanted, built.apply))
    for name, error in found.missing.items():
        click.echo(printable(f"{connection.server}: {name} are not looked at: {error}"), err=True)
    for fault in found.faults:
        click.echo(printable(f"{connection.server}: {fault}; it is left out"), err=True)
    manifests = Manifests(namespace, kinds)
    manifests.take(found.objects, found.unserved, None if found.is_torn else built)
    manifests.add(Found(connection.server, "", each) for each in workloads)
    return manifests


async def _read(
    connection: Connection,
    kinds: Sequence[type[CustomResource]],
    namespace: str,
    wanted: Sequence[str],
    on_object: OnObject,
) -> tuple[Reading, list[dict[str, Any]]]:
    asked = [(kind, name) for kind, name in map(kind_and_name, wanted) if kind in WORKLOADS and name]
    async with ApiClient(connection, qps=READS_A_SECOND, burst=READS_A_SECOND) as api:
        found = [await read_workload(api, kind, namespace, name) for kind, name in asked if kind]
        return await read_cluster(api, kinds, on_object), [each for each in found if each is not None]


def stop_for(faults: Sequence[InputError]) -> None:
    """Ends the command if a file was wrong, after all that is wrong has been said."""
    for fault in faults:
        click.echo(printable(f"stowplan: {fault}"), err=True)
    if faults:
        sys.exit(1)


def echo_ignored(manifests: Manifests) -> None:
    ignored = manifests.ignored
    if ignored:
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(ignored.items()))
        click.echo(printable(f"not looked at, since they do not concern scheduling: {listed}"), err=True)
