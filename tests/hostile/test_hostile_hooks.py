"""Hooks that nothing guards are called on plugins that come with Stowplan only, not on classes derived from
them: one that raises or never returns must not be called at all."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import pytest

from scheduler_staging import node, pod, staged
from stowplan.api.meta import ObjectMeta
from stowplan.framework import Action, ClusterEvent, CustomResource, Definition, Plugin, Status
from stowplan.framework.plugin import ExplainingPlugin, ReservingPlugin, SortingPlugin
from stowplan.plugins.community.coscheduling import Coscheduling


class Rank(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "ranks", "Rank", namespaced=False)


def fail(*_: object) -> NoReturn:
    raise SystemExit("called")


class OwnOrder(SortingPlugin):
    watches = (Rank,)
    pods_to_sort_again = fail

    def queue_sort(self, queued: Any) -> Any:
        return queued.timestamp


class GroupOrder(Coscheduling):
    watches = (*Coscheduling.watches, Rank)
    pods_to_sort_again = fail


class NeedsRank(Plugin):
    watches = (Rank,)

    def filter(self, state: Any, pod: Any, node: Any) -> Status | None:
        return None if len(self.handle.watched(Rank)) else Status.unschedulable("no rank")

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (ClusterEvent(Rank.definition.event_resource, Action.ADD),)


def profile(*names: str, sort: str = "PrioritySort") -> dict[str, Any]:
    queue_sort = {"disabled": [{"name": "*"}], "enabled": [{"name": sort}]}
    plugins = {"multiPoint": {"enabled": [{"name": name} for name in names]}, "queueSort": queue_sort}
    return {"profiles": [{"plugins": plugins}]}


@pytest.mark.parametrize("order", [OwnOrder, GroupOrder])
async def test_which_pods_to_sort_again(order):
    classes = {each.__name__: each for each in (order, NeedsRank)}
    config = profile("NeedsRank", sort=order.__name__)
    async with staged(config, classes) as stage:
        stage.see(node("n1"), pod("p"))
        await stage.settle()
        assert stage.scheduler.queue.counts()["unschedulable"] == 1
        rank = Rank(metadata=ObjectMeta(name="rank"))
        stage.scheduler.handlers.on_event("added", None, rank)
        assert stage.scheduler.queue.counts()["unschedulable"] == 0
        stage.scheduler.handlers.on_event("modified", rank, rank)


class Patient(ReservingPlugin):
    """Says that pods have to wait, and does not hold them back."""

    def pre_enqueue(self, pod: Any) -> None: ...

    def awaits_write(self, pod: Any) -> bool:
        return True


async def test_whether_a_write_is_awaited():
    config = profile("Patient")
    config["profiles"][0]["plugins"]["multiPoint"]["disabled"] = [{"name": "DynamicResources"}]
    async with staged(config, {"Patient": Patient}) as stage:
        claims = [{"name": "gpu", "resourceClaimName": "gpu"}]
        stage.see(node("n1"), pod("p", resourceClaims=claims))
        await stage.settle()
        assert stage.api.bound == {"default/p": "n1"}


class Talker(ExplainingPlugin):
    explain_pod = fail

    def filter(self, state: Any, pod: Any, node: Any) -> None: ...


class Sayer(Coscheduling):
    explain_pod = fail


@pytest.mark.parametrize("kind", [Talker, Sayer])
async def test_what_is_said_of_a_pod(kind):
    async with staged(profile(kind.__name__), {kind.__name__: kind}) as stage:
        stage.see(node("n1"), pod("p"))
        await stage.settle()
        assert stage.api.bound == {"default/p": "n1"}
