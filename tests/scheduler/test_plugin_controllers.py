"""Controllers that plugins bring along: run once we lead, once for all profiles, until the end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from scheduler_staging import staged
from stowplan import CustomResource, Definition, Plugin, PluginArgs

RUNNING: list[str] = []


class NamedArgs(PluginArgs):
    name: str = "one"


class Counting:
    def __init__(self, args, handle):
        self._name = f"{args.name} of {handle.scheduler_name}"

    async def run(self):
        RUNNING.append(self._name)
        try:
            await asyncio.Event().wait()
        finally:
            RUNNING.remove(self._name)


class Kind(CustomResource, frozen=True):
    definition = Definition("example.com", "v1", "kinds", "Kind")


class Controlled(Plugin):
    args: NamedArgs
    controllers = (f"{__name__}:Counting",)

    def pre_filter(self, state, pod, nodes):
        return None


class Elsewhere(Controlled):
    watches = (Kind,)


def profile(scheduler, plugin, **args):
    return {
        "schedulerName": scheduler,
        "plugins": {"multiPoint": {"enabled": [{"name": plugin}]}},
        "pluginConfig": [{"name": plugin, "args": args}],
    }


@asynccontextmanager
async def running(*profiles):
    plugins = {"Controlled": Controlled, "Elsewhere": Elsewhere}
    async with staged({"profiles": list(profiles)}, plugins) as stage, asyncio.TaskGroup() as tasks:

        async def run():
            async with asyncio.TaskGroup() as own:
                stage.scheduler.run_plugins_in(own)
                await asyncio.Event().wait()

        work = tasks.create_task(run())
        await stage.settle()
        yield stage
        work.cancel()


async def test_controllers_wait_until_we_lead_and_end_with_us():
    async with running(profile("a", "Controlled")) as stage:
        assert RUNNING == []
        stage.scheduler.run_controllers()
        await stage.settle()
        assert RUNNING == ["one of a"]
    assert RUNNING == []


async def test_profiles_share_a_controller_unless_their_kinds_differ():
    profiles = [profile("a", "Controlled"), profile("b", "Controlled", name="two"), profile("c", "Elsewhere")]
    async with running(*profiles) as stage:
        stage.scheduler.run_controllers()
        await stage.settle()
        assert RUNNING == ["one of a", "one of c"]
