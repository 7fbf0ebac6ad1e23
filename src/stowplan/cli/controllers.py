"""`stowplan controllers`: keep the status of pod groups and queues up to date in any cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from stowplan.cli.options import kubeconfig_options

if TYPE_CHECKING:
    from stowplan.client.connection import Connection


@click.command()
@kubeconfig_options
def controllers(kubeconfig: str | None, context: str | None) -> None:
    """Run the controllers of pod groups in a cluster, until Ctrl-C.

    They write phases and counts of PodGroups of scheduler-plugins (scheduling.x-k8s.io), the usage of its
    ElasticQuotas, and state and counts of Volcano's Queues, for the kinds that are installed: see
    `stowplan crd --help`. `stowplan up` runs them automatically. Do not run them beside the controllers of
    scheduler-plugins or Volcano, which write the same fields.
    """
    from contextlib import suppress

    from stowplan.client import kubeconfig as kubeconfigs

    with suppress(KeyboardInterrupt):
        asyncio.run(_run(kubeconfigs.load(kubeconfig, context=context)))


async def _run(connection: Connection) -> None:
    from stowplan.client.api import ApiClient
    from stowplan.controllers.clock import Clock
    from stowplan.controllers.groups import DEFINITIONS, GroupDialects
    from stowplan.controllers.stores import Stores

    async with ApiClient(connection, user_agent="stowplan/controllers") as api:
        await api.get_json(f"{DEFINITIONS.path}?limit=1")  # unreachable or forbidden: say so and end
        stores = Stores(api, Clock())
        dialects = GroupDialects(stores)
        async with asyncio.TaskGroup() as group:
            group.create_task(stores.run())
            group.create_task(dialects.run())
