"""Requests of the real kube-scheduler v1.36, recorded by controlplane/recording_extender.py, replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from extender_staging import Stage, node, pod, serving

RECORDED = Path(__file__).parent / "recorded"
PROFILES = [{"schedulerName": "recorded"}]


def recorded(name: str) -> bytes:
    return (RECORDED / f"{name}.http").read_bytes()


def body_of(name: str) -> Any:
    return json.loads(recorded(name).partition(b"\r\n\r\n")[2])


async def replay(stage: Stage, name: str) -> Any:
    reply = await stage.send(recorded(name))
    assert reply.status == 200
    return reply.json


@pytest.mark.parametrize("form", ["names", "nodes"])
async def test_filter(form):
    async with serving(node("n1", cpu="2"), node("n2"), profiles=PROFILES) as stage:
        answer = await replay(stage, f"filter-{form}")
    assert answer["Error"] == ""
    assert answer["FailedNodes"] == {}
    assert answer["FailedAndUnresolvableNodes"] == {"n1": "Insufficient cpu"}
    if form == "names":
        assert (answer["NodeNames"], answer["Nodes"]) == (["n2"], None)
    else:
        sent = {each["metadata"]["name"]: each for each in body_of("filter-nodes")["Nodes"]["items"]}
        assert (answer["NodeNames"], answer["Nodes"]["items"]) == (None, [sent["n2"]])


@pytest.mark.parametrize("form", ["names", "nodes"])
async def test_prioritize(form):
    async with serving(node("n1", cpu="4"), node("n2", cpu="32"), profiles=PROFILES) as stage:
        answer = await replay(stage, f"prioritize-{form}")
    scores = {each["Host"]: each["Score"] for each in answer}
    assert scores.keys() == {"n1", "n2"}
    assert 0 <= scores["n1"] < scores["n2"] <= 10


@pytest.mark.parametrize("form", ["names", "nodes"])
async def test_preempt(form):
    asked = body_of(f"preempt-{form}")
    victims = asked["NodeNameToMetaVictims"] or {
        name: {
            "Pods": [{"UID": each["metadata"]["uid"]} for each in found["Pods"]],
            "NumPDBViolations": found["NumPDBViolations"],
        }
        for name, found in asked["NodeNameToVictims"].items()
    }
    running = []
    for name, found in victims.items():
        for victim in found["Pods"]:
            running.append(pod(f"on-{name}", cpu="3", on=name))
            running[-1]["metadata"]["uid"] = victim["UID"]
    async with serving(node("n1", cpu="4"), node("n2", cpu="2"), *running, profiles=PROFILES) as stage:
        answer = await replay(stage, f"preempt-{form}")
    assert answer == {"NodeNameToMetaVictims": {"n1": victims["n1"]}}


@pytest.mark.parametrize("form", ["names", "nodes"])
async def test_bind(form):
    chosen = body_of(f"bind-{form}")["Node"]
    async with serving(node("n1"), node("n2"), profiles=PROFILES) as stage:
        await replay(stage, f"filter-{form}")
        assert await replay(stage, f"bind-{form}") == {"Error": ""}
        assert stage.api.bound == {"default/a": chosen}
        again = await replay(stage, f"filter-{form}")
    assert again["FailedNodes"] == {chosen: "Insufficient cpu"}  # what was just bound counts
