"""`stowplan controllers`: keep the status of pod groups and queues up to date in any cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from stowplan.cli.options import kubeconfig_options

if TYPE_CHECKING:
    from stowplan.client.connection import Connection
    from stowplan.config import LeaderElection as Lease

LEASE, LEASE_NAMESPACE = "stowplan-controllers", "kube-system"


@click.command()
@kubeconfig_options
@click.option(
    "--leader-elect",
    is_flag=True,
    help="Work only while holding a lease, so that several replicas can run and one of them is active.",
)
@click.option(
    "--leader-elect-resource-name",
    "lease",
    metavar="NAME",
    default=LEASE,
    show_default=True,
    help="Name of the lease.",
)
@click.option(
    "--leader-elect-resource-namespace",
    "lease_namespace",
    metavar="NAMESPACE",
    default=LEASE_NAMESPACE,
    show_default=True,
    help="Namespace of the lease.",
)
def controllers(
    kubeconfig: str | None, context: str | None, leader_elect: bool, lease: str, lease_namespace: str
) -> None:
    """Run the controllers of pod groups in a cluster, until Ctrl-C.

    They write phases and counts of PodGroups of scheduler-plugins (scheduling.x-k8s.io), the usage of its
    ElasticQuotas, and state and counts of Volcano's Queues, for the kinds that are installed: see
    `stowplan crd --help`. `stowplan up` runs them automatically. Do not run them beside the controllers of
    scheduler-plugins or Volcano, which write the same fields. `stowplan manifests --controllers` prints the
    objects to deploy them.
    """
    from contextlib import suppress

    from stowplan.client import kubeconfig as kubeconfigs
    from stowplan.config import LeaderElection as Lease

    settings = Lease(resource_name=lease, resource_namespace=lease_namespace) if leader_elect else None
    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(_run(kubeconfigs.load(kubeconfig, context=context), settings))


async def _run(connection: Connection, lease: Lease | None) -> None:
    import signal

    from stowplan.controllers.elected import run_group_controllers

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await run_group_controllers(connection, lease)
