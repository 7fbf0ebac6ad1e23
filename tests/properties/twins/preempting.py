"""Twin of preemption: victims searched node by node, one pod put back at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from twins.cycle import Cycle, priority_of
from twins.selectors import MistakeError, check_selector, is_empty, labels_of, namespace_of, selects
from twins.world import UNSCHEDULABLE, Refusal, name_of, unresolvable

Json = dict[str, Any]
NO_VICTIMS = unresolvable("No preemption victims found for incoming pod")
NOT_HELPFUL = unresolvable("Preemption is not helpful for scheduling")
DYNAMIC = "no new claims to deallocate"


def preempt(cycle: Cycle, statuses: dict[str, Refusal], answer: Json) -> None:
    """Adds the message, or the nomination and its victims, to the answer."""
    nodes = cycle.world.nodes
    refused = answer.get("preFilter")
    text = f"0/{len(nodes)} nodes are available: {', '.join(refused['reasons'])}." if refused else ""
    answer["message"] = text or sentence(len(nodes), statuses.values())
    if not cycle.profile.preempts:
        return
    if refused and cycle.profile.claims:
        answer["message"] += " not found"  # DynamicResources never got to its PreFilter
        return
    if cycle.profile.claims:
        answer["message"] += f" {DYNAMIC}"
    glue = ", " if cycle.profile.claims else " "
    reason = not_eligible(cycle, statuses)
    if reason:
        answer["message"] += f"{glue}preemption: {reason}"
        return
    candidates, dry = [], []
    for node in nodes:
        if statuses[name_of(node)].code != UNSCHEDULABLE:
            dry.append(NOT_HELPFUL)
            continue
        found = victims_on(cycle, node)
        (dry if isinstance(found, Refusal) else candidates).append(found)
    if not candidates:
        answer["message"] += f"{glue}preemption: {sentence(len(nodes), dry)}"
        return
    best = min(candidates, key=harm)
    answer["message"] = text or sentence(len(nodes), statuses.values())
    answer["nominated"] = best["node"]
    answer["victims"] = sorted(
        f"{namespace_of(each)}/{each['metadata']['name']}"
        for each in best["victims"]
        if "deletionTimestamp" not in each["metadata"]
    )


def not_eligible(cycle: Cycle, statuses: dict[str, Refusal]) -> str:
    pod = cycle.pod
    if pod["spec"].get("preemptionPolicy") == "Never":
        return "not eligible due to preemptionPolicy=Never."
    promised = pod.get("status", {}).get("nominatedNodeName", "")
    if promised not in statuses or statuses[promised].code != UNSCHEDULABLE:
        return ""
    for other in cycle.world.pods.get(promised, []):
        conditions = other.get("status", {}).get("conditions", [])
        evicted = any(
            (each["type"], each.get("status"), each.get("reason"))
            == ("DisruptionTarget", "True", "PreemptionByScheduler")
            for each in conditions
        )
        if priority_of(other) < priority_of(pod) and "deletionTimestamp" in other["metadata"] and evicted:
            return "not eligible due to a terminating pod on the nominated node."
    return ""


def victims_on(cycle: Cycle, node: Json) -> Refusal | Json:
    """Takes all lesser pods off a copy of the node, then puts back whom it can."""
    trial = Cycle(cycle.world.copy(), cycle.pod, cycle.profile, cycle.nominated)
    trial.pre_filter()
    lesser = [pod for pod in trial.world.pods_on(node) if priority_of(pod) < priority_of(cycle.pod)]
    if not lesser:
        return NO_VICTIMS
    for pod in lesser:
        trial.take(pod, node)
    refused = trial.refusal(node)
    if refused is not None:
        return refused[1]
    lesser = by_importance(lesser)
    violating, others = split_by_budgets(cycle, lesser)
    victims, violations = [], 0
    for group in (violating, others):
        for pod in group:
            trial.put(pod, node)
            if trial.refusal(node) is not None:
                trial.take(pod, node)
                victims.append(pod)
                violations += group is violating
    return {"node": name_of(node), "victims": by_importance(victims), "violations": violations}


def by_importance(pods: list[Json]) -> list[Json]:
    """An insertion sort by an unfair comparison: of two pods that have not started, each beats the other."""
    pods = list(pods)
    for index in range(1, len(pods)):
        while index > 0 and is_more_important(pods[index], pods[index - 1]):
            pods[index - 1], pods[index] = pods[index], pods[index - 1]
            index -= 1
    return pods


def is_more_important(left: Json, right: Json) -> bool:
    if priority_of(left) != priority_of(right):
        return priority_of(left) > priority_of(right)
    if started(left) == started(right) == math.inf:
        return True
    return started(left) < started(right)


def started(pod: Json) -> float:
    text = pod.get("status", {}).get("startTime")
    return math.inf if text is None else datetime.fromisoformat(text).timestamp()


def split_by_budgets(cycle: Cycle, pods: list[Json]) -> tuple[list[Json], list[Json]]:
    budgets = [each for each in cycle.world.all("PodDisruptionBudget") if is_in_order(each)]
    left = [each.get("status", {}).get("disruptionsAllowed", 0) for each in budgets]
    violating, others = [], []
    for pod in pods:
        is_one_too_many = False
        for index, budget in enumerate(budgets):
            selector = budget["spec"].get("selector")
            if namespace_of(budget) != namespace_of(pod) or not labels_of(pod):
                continue
            if selector is None or is_empty(selector) or not selects(selector, labels_of(pod)):
                continue
            if pod["metadata"]["name"] in budget.get("status", {}).get("disruptedPods", {}):
                continue
            left[index] -= 1
            is_one_too_many = is_one_too_many or left[index] < 0
        (violating if is_one_too_many else others).append(pod)
    return violating, others


def is_in_order(budget: Json) -> bool:
    try:
        check_selector(budget["spec"].get("selector"))
    except MistakeError:
        return False
    return True


def harm(candidate: Json) -> tuple[Any, ...]:
    """Smaller is better; last of all the name decides."""
    victims = candidate["victims"]
    top = priority_of(victims[0])
    earliest = min(started(pod) for pod in victims if priority_of(pod) == top)
    weight = sum(priority_of(pod) + 2**31 for pod in victims)
    return (candidate["violations"], top, weight, len(victims), -earliest, candidate["node"])


def sentence(count: int, refusals: Iterable[Refusal]) -> str:
    """Why none of so many nodes is any good."""
    reasons = Counter(reason for refusal in refusals for reason in refusal.reasons)
    counted = ", ".join(sorted(f"{number} {reason}" for reason, number in reasons.items()))
    return f"0/{count} nodes are available: {counted}."
