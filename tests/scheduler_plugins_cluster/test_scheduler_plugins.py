"""The scheduler of scheduler-plugins and ours decide the same pods in the same random clusters.

With STOWPLAN_RECORD=1, what the former decided is written to tests/plugins/scheduler_plugins, with which
`make test` compares ours. STOWPLAN_SEED draws other clusters.
"""

from __future__ import annotations

import asyncio
import json
import os
import time

import pytest
from random_clusters import PLUGINS, Json, Made, make_cases
from real_scheduler import ATTEMPTED, Schedules, key_of, plain, scheduling, waiting_to_lead

from controlplane.control_plane import ControlPlane
from scheduler_plugins_answers import WATCHER, compare, count_by_group, load_watcher, record

SEED = int(os.environ.get("STOWPLAN_SEED", "1"))


@pytest.mark.parametrize("plugin", PLUGINS)
async def test_decides_as_scheduler_plugins_does(plane, plugin):
    cases = await ask(plane, plugin)
    if os.environ.get("STOWPLAN_RECORD"):
        record(plugin, cases)
    wrong, on_purpose = {}, 0
    for case in cases:
        ours, wanted, differs = await compare(case)
        on_purpose += differs
        if ours != wanted:
            wrong[case["name"]] = (ours, wanted)
    same = len(cases) - len(wrong) - on_purpose
    print(f"{plugin}: {len(cases)} clusters, {same} alike, {on_purpose} differ on purpose")  # noqa: T201
    assert not wrong


async def ask(plane: ControlPlane, plugin: str) -> list[Json]:
    """The cases with the answers of scheduler-plugins."""
    found = []
    made_cases, size = make_cases(plugin, SEED), PLUGINS[plugin].cases_per_start
    for first in range(0, len(made_cases), size):
        part = made_cases[first : first + size]
        metrics = {node: {"metrics": each} for _, made in part for node, each in made.metrics.items()}
        now = int(time.time())
        window = {"duration": "15m", "start": now - 900, "end": now}
        watcher = {"timestamp": now, "window": window, "source": "test", "data": {"NodeMetricsMap": metrics}}
        async with load_watcher(json.dumps(watcher)) as url:
            profiles = json.loads(json.dumps([profile for profile, _ in part]).replace(WATCHER, url))
            # In another thread, while this one answers for the load-watcher.
            cases = await asyncio.to_thread(answers, plane, plugin, part, profiles)
        for case, (_, made) in zip(cases, part, strict=True):
            if made.metrics:
                own = {name: metrics[name] for name in made.metrics}
                case["watcher"] = watcher | {"data": {"NodeMetricsMap": own}}
        found += cases
    return found


def answers(plane: ControlPlane, plugin: str, part: list[tuple[Json, Made]], profiles: Json) -> list[Json]:
    if PLUGINS[plugin].asks == "order":
        return answer_orders(plane, plugin, part)
    ask_one = answer_groups if PLUGINS[plugin].asks == "groups" else answer
    with scheduling(plane, profiles=profiles) as scheduler:
        return [ask_one(scheduler, plugin, profile, made) for profile, made in part]


def case_of(plugin: str, profile: Json, objects: list[Json]) -> Json:
    return {
        "name": profile["schedulerName"],
        "plugin": plugin,
        "profile": profile,
        "objects": objects,
        "at": time.time(),
    }


def answer(scheduler: Schedules, plugin: str, profile: Json, made: Made) -> Json:
    scheduler.clear()
    scheduler.apply(made.objects)
    for each in made.first:
        scheduler.decide(each)
    case = case_of(plugin, profile, scheduler.objects())
    case["answer"] = scheduler.decide(made.pending)
    case["pending"] = plain(case["answer"].pop("pod"))
    return case


def answer_groups(scheduler: Schedules, plugin: str, profile: Json, made: Made) -> Json:
    scheduler.clear()
    scheduler.apply(made.objects)
    case = case_of(plugin, profile, scheduler.objects())
    pods = [scheduler.create(each) for each in made.first]
    case["pods"] = [plain(each) for each in pods]
    case["answer"] = {"groups": count_by_group(pods, scheduler.settled())}
    return case


def answer_orders(plane: ControlPlane, plugin: str, part: list[tuple[Json, Made]]) -> list[Json]:
    """All pods are in the queue before the scheduler begins, since another one leads until then."""
    node = {"cpu": "1000", "memory": "1000Gi", "pods": "1000"}
    status = {"capacity": node, "allocatable": node}
    large = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"{plugin.lower()}-n"},
        "status": status,
    }
    profiles = [profile for profile, _ in part]
    with waiting_to_lead(plane, profiles=profiles) as (scheduler, lead):
        scheduler.clear()
        scheduler.apply([large, *(each for _, made in part for each in made.objects)])
        objects, found = scheduler.objects(), []
        for profile, made in part:
            own = f"{profile['schedulerName']}-"
            case = case_of(
                plugin,
                profile,
                [
                    each
                    for each in objects
                    if each["kind"] == "Node" or each["metadata"]["name"].startswith(own)
                ],
            )
            case["pods"] = [plain(scheduler.create(each)) for each in made.first]
            found.append(case)
        keys = {key_of(each): case["name"] for case in found for each in case["pods"]}
        scheduler.wait_for(*(f'"Add event for unscheduled pod" pod="{key}"' for key in keys))
        lead()
        scheduler.wait_for(*(f'"Attempting to schedule pod" pod="{key}"' for key in keys))
        order = ATTEMPTED.findall(scheduler.log)
    for case in found:
        case["answer"] = {"order": [key for key in order if keys[key] == case["name"]]}
    return found
