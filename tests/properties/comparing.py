"""Puts a scene to the planner and to the twins, and compares what they answer."""

from __future__ import annotations

from typing import Any

from drawing.clusters import Scene
from drawing.profiles import configuration
from twins import decisions
from twins.cycle import Profile
from twins.of_usage import host_ports
from twins.world import World

from make import planner
from stowplan.api.pod import Pod
from stowplan.cycle import Planner

Json = dict[str, Any]


def assert_agree(scene: Scene, profile: Profile) -> None:
    """Places the pending pods one after another, as the twins would and as the planner does."""
    asked = planner(scene.objects, configuration(profile))
    nominate(asked, scene)
    world = World(scene.objects)
    for plain in scene.pending:
        decision = asked.decide(Pod.decode(plain))
        expected = decisions.decide(world, plain, profile, scene.nominated)
        assert comparable(decision.as_golden()) == comparable(expected)
        victims = expected.get("victims", ())
        if any(host_ports(other) for other, _ in world.placed() if key_of(other) in victims):
            break  # ports in use are a set: what a victim frees that others share is a matter of history
        asked.carry_out(decision)
        carry_out(world, plain, expected)


def nominate(asked: Planner, scene: Scene) -> None:
    for plain, node_name in scene.nominated:
        asked.nominations.put(Pod.decode(plain), node_name)


def carry_out(world: World, pod: Json, answer: Json) -> None:
    node_name = answer.get("chosen") or answer.get("nominated")
    if node_name is not None:
        gone = set(answer.get("victims", ()))
        world.pods[node_name] = [each for each in world.pods.get(node_name, []) if key_of(each) not in gone]
        world.pods[node_name].append(pod | {"spec": pod["spec"] | {"nodeName": node_name}})


def key_of(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def comparable(answer: Json) -> Json:
    """Reasons as sets; without columns of zeros, which a plugin may leave out; errors without their text."""
    if "error" in answer:
        return {"error": True}
    found = {key: value for key, value in answer.items() if key != "preFilterNodes"}
    for name, refusal in found.get("rejected", {}).items():
        found["rejected"] = found["rejected"] | {name: refusal | {"reasons": set(refusal["reasons"])}}
    if "preFilter" in found:
        found["preFilter"] = found["preFilter"] | {
            "reasons": {_parsing(r) for r in found["preFilter"]["reasons"]}
        }
        found["message"] = _parsing(found["message"])
    if "scores" in found:
        found["scores"] = {name: column for name, column in found["scores"].items() if any(column.values())}
    return found


def _parsing(text: str) -> str:
    """Of a selector that cannot be built only where it stands, not what is wrong with it."""
    start, parsing, faults = text.partition("parsing pod: ")
    groups = [
        f"{kind}{side}Terms"
        for kind in ("required", "preferred")
        for side in ("Affinity", "AntiAffinity")
        if f"{kind}{side}Terms" in faults
    ]
    return f"{start}{parsing}{groups}" if parsing else text
