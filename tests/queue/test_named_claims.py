"""Plugins whose hints are about named claims are asked only about pods that name the claim that changed."""

from __future__ import annotations

import random
from typing import Any

import pytest
from waiting_room import Room

from example_share import share_of
from make import make_pod, planner
from stowplan.api.meta import decode
from stowplan.api.resource import ResourceClaim
from stowplan.framework import QUEUE, Action, ClusterEvent, Hint, Plugin, Resource
from stowplan.framework.hints import ObjectChange, QueueingHints

CLAIM_ADD = ClusterEvent(Resource.RESOURCE_CLAIM, Action.ADD)
CLAIM_UPDATE = ClusterEvent(Resource.RESOURCE_CLAIM, Action.UPDATE)
CLAIM_DELETE = ClusterEvent(Resource.RESOURCE_CLAIM, Action.DELETE)
ALLOCATED = {"allocation": {"devices": {"results": [{"driver": "d", "pool": "p", "device": "x"}]}}}


class Named(Plugin):
    hints_by_claim = True
    asked: tuple[str, ...] = ()

    def filter(self, state: Any, pod: Any, node: Any) -> None:
        return None

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (ClusterEvent(Resource.RESOURCE_CLAIM, Action.ADD | Action.UPDATE | Action.DELETE),)

    def queueing_hint(self, pod: Any, event: Any, old: Any, new: Any) -> Hint:
        self.asked = (*self.asked, pod.name)
        return Hint.SKIP


class Talkative(Named):
    def queueing_hint(self, pod: Any, event: Any, old: Any, new: Any) -> Hint:
        return super().queueing_hint(pod, event, old, new)


def claim(name: str = "c", namespace: str = "default", **fields: Any) -> ResourceClaim:
    return decode(ResourceClaim, {"metadata": {"name": name, "namespace": namespace}, **fields})


def using(*names: str) -> list[dict[str, Any]]:
    return [{"name": f"use-{number}", "resourceClaimName": name} for number, name in enumerate(names)]


def asked_after(change: ObjectChange, plugin: type[Named] = Named) -> list[str]:
    """Which of four waiting pods the plugin is asked about."""
    room = Room(plugin)
    room.refused("plain", plugin.__name__)
    room.refused("one", plugin.__name__, resourceClaims=using("c"))
    room.refused("two", plugin.__name__, resourceClaims=using("d", "c", "c"))
    room.refused("other", plugin.__name__, resourceClaims=using("d"))
    room.queue.on_change(change)
    return sorted(room.plugin(plugin.__name__).asked)


EVERYBODY = ["one", "other", "plain", "two"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(ObjectChange(CLAIM_ADD, None, claim()), ["one", "two"], id="a new claim"),
        pytest.param(
            ObjectChange(CLAIM_UPDATE, claim(), claim(status=ALLOCATED)), ["one", "two"], id="allocated"
        ),
        pytest.param(ObjectChange(CLAIM_ADD, None, claim("e")), [], id="a claim that no pod names"),
        pytest.param(ObjectChange(CLAIM_ADD, None, claim(namespace="b")), [], id="another namespace"),
        pytest.param(
            ObjectChange(CLAIM_UPDATE, claim(status=ALLOCATED), claim()),
            EVERYBODY,
            id="an allocation is lost",
        ),
        pytest.param(ObjectChange(CLAIM_DELETE, claim(), None), EVERYBODY, id="deleted"),
    ],
)
def test_who_is_asked_about_a_claim(change, expected):
    assert asked_after(change) == expected


def test_a_class_with_another_hint_must_say_itself_that_it_is_about_named_claims():
    assert asked_after(ObjectChange(CLAIM_ADD, None, claim()), Talkative) == EVERYBODY


def test_a_waiting_pod_names_a_claim_once_it_is_generated():
    room = Room(Named)
    uses = [{"name": "use", "resourceClaimTemplateName": "t"}]
    pod = room.refused("p", "Named", resourceClaims=uses)
    room.queue.on_change(ObjectChange(CLAIM_ADD, None, claim()))
    assert room.plugin("Named").asked == ()
    generated = {"resourceClaimStatuses": [{"name": "use", "resourceClaimName": "c"}]}
    room.queue.update(pod, make_pod("p", resourceClaims=uses, status=generated))
    room.queue.on_change(ObjectChange(CLAIM_UPDATE, claim(), claim()))
    assert room.plugin("Named").asked == ("p",)


def test_a_pod_that_left_is_not_asked_about():
    room = Room(Named)
    room.queue.delete(room.refused("p", "Named", resourceClaims=using("c")))
    room.queue.on_change(ObjectChange(CLAIM_ADD, None, claim()))
    assert room.plugin("Named").asked == ()


@pytest.mark.parametrize("seed", share_of(range(10)))
def test_the_default_hint_is_about_named_claims(seed):
    """DynamicResources queues no pod that does not name the claim, unless the claim lost its allocation."""
    draw, queued = random.Random(seed), 0
    objects = [
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        | {"metadata": {"name": name, "namespace": "default", "uid": name}}
        for name in "cde"
    ]
    hints = QueueingHints(planner(objects).profiles["default-scheduler"])
    for _ in range(100):
        pod = make_pod("waiting", resourceClaims=using(*draw.sample("cde", draw.randrange(4))))
        name = draw.choice("cde")
        old, new = (
            decode(
                ResourceClaim,
                {
                    "metadata": {"name": name, "namespace": "default", "uid": name},
                    "status": draw.choice([{}, ALLOCATED]),
                },
            )
            for _ in range(2)
        )
        event, before = draw.choice([(CLAIM_ADD, None), (CLAIM_UPDATE, old)])
        change = ObjectChange(event, before, new)
        if hints.answers(pod, change)["DynamicResources"] is QUEUE and hints.by_claim(change):
            queued += 1
            assert name in pod.claim_names
    assert queued > 10
