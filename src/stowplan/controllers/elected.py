"""The controllers of pod groups in any cluster: at once, or while holding a lease."""

from __future__ import annotations

import asyncio

from stowplan.client.api import ApiClient
from stowplan.client.connection import Connection
from stowplan.client.leases import LeaderElection, new_identity
from stowplan.config import LeaderElection as Lease
from stowplan.controllers.clock import Clock
from stowplan.controllers.groups import DEFINITIONS, GroupDialects
from stowplan.controllers.stores import Stores
from stowplan.errors import StowplanError

NAME = "stowplan-controllers"


async def run_group_controllers(connection: Connection, lease: Lease | None) -> None:
    """Run until cancelled. With a lease, stand by until it is free; raise a StowplanError once it is lost."""
    if lease is None:
        async with ApiClient(connection, user_agent="stowplan/controllers") as api:
            await _work(api)
        return
    leads = asyncio.Event()
    async with ApiClient(connection, user_agent="stowplan/leader-election") as leases:
        election = LeaderElection(leases, new_identity(), lease, leads.set, lambda: None, component=NAME)
        tasks = [asyncio.create_task(election.run(), name="leader election")]
        try:
            await leads.wait()
            async with ApiClient(
                connection, user_agent="stowplan/controllers", may_write=lambda: election.is_leading
            ) as api:
                tasks.append(asyncio.create_task(_work(api), name="controllers"))
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # what failed says why
            where = f"{lease.resource_namespace}/{lease.resource_name}"
            raise StowplanError(f"lost the lease {where}; another replica holds it now")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await election.release()


async def _work(api: ApiClient) -> None:
    await api.get_json(f"{DEFINITIONS.path}?limit=1")  # unreachable or forbidden: say so and end
    stores = Stores(api, Clock())
    dialects = GroupDialects(stores)
    async with asyncio.TaskGroup() as group:
        group.create_task(stores.run())
        group.create_task(dialects.run())
