"""What should become of a pod, from filters to preemption, in the form of the golden answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twins.cycle import Cycle, Profile
from twins.preempting import preempt
from twins.world import UNRESOLVABLE, CycleError, Refusal, World, name_of

Json = dict[str, Any]


def decide(world: World, pod: Json, profile: Profile, nominated: Iterable[tuple[Json, str]] = ()) -> Json:
    """What should become of the pod, in the form of the golden answers, reasons as sets."""
    cycle = Cycle(world.copy(), pod, profile, nominated)
    answer: Json = {"pod": f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}"}
    try:
        feasible, statuses = find_feasible(cycle, answer)
        if feasible:
            choose(cycle, feasible, answer)
        else:
            preempt(cycle, statuses, answer)
    except CycleError:
        return {"pod": answer["pod"], "error": True}
    return answer


def find_feasible(cycle: Cycle, answer: Json) -> tuple[list[Json], dict[str, Refusal]]:
    """The nodes that fit, and the refusal of every node that does not."""
    world = cycle.world
    refused = cycle.pre_filter()
    if refused is not None:
        plugin, refusal = refused
        answer["preFilter"] = plain(plugin, refusal)
        return [], dict.fromkeys(map(name_of, world.nodes), refusal)
    promised = cycle.pod.get("status", {}).get("nominatedNodeName")
    for node in world.nodes:
        if name_of(node) == promised and cycle.refusal(node) is None:
            answer["feasible"] = [promised]
            return [node], {}
    feasible, statuses, rejected = [], {}, {}
    for node in world.nodes:
        name = name_of(node)
        if cycle.names is not None and name not in cycle.names:
            text = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
            statuses[name] = Refusal(UNRESOLVABLE, frozenset((text,)))
        elif (found := cycle.refusal(node)) is not None:
            statuses[name] = found[1]
            rejected[name] = plain(*found)
        else:
            feasible.append(node)
    if rejected:
        answer["rejected"] = rejected
    if feasible:
        answer["feasible"] = sorted(map(name_of, feasible))
    return feasible, statuses


def choose(cycle: Cycle, feasible: list[Json], answer: Json) -> None:
    names = [name_of(node) for node in feasible]
    totals = dict.fromkeys(names, 0 if any(twin.scores for twin in cycle.twins.values()) else 1)
    if len(names) > 1:
        answer["scores"] = cycle.scores(feasible)
        for column in answer["scores"].values():
            for name, score in column.items():
                totals[name] += score
        answer["totals"] = totals
    answer["best"] = sorted(name for name in names if totals[name] == max(totals.values()))
    answer["chosen"] = answer["best"][0]


def plain(plugin: str, refusal: Refusal) -> Json:
    return {"code": refusal.code, "plugin": plugin, "reasons": set(refusal.reasons)}
