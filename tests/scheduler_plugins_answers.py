"""What the scheduler of scheduler-plugins decided in random clusters, and what ours decides in the same.

A case has the `plugin`, a `profile` with it, the `objects` of the cluster, a `pending` pod, the time `at`
which it was decided, and the `answer`. `watcher` is what a load-watcher said, if the plugin asks one. Cases
of queues and groups have `pods` instead, in the order in which they were created.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from fake_prometheus import running, until
from make import REGISTRY
from scheduler_staging import staged
from stowplan.api.kinds import object_of
from stowplan.api.meta import decode
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.framework.resolve import watched_kinds

Json = dict[str, Any]
FOLDER = Path(__file__).parent / "plugins" / "scheduler_plugins"
KIND = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
WATCHER = "http://127.0.0.1:1"
"""Stands for the address of the load-watcher in a profile."""


def recorded(plugin: str) -> list[Json]:
    with gzip.open(FOLDER / f"{plugin}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def recorded_plugins() -> list[str]:
    return sorted(path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("*.jsonl.gz"))


def record(plugin: str, cases: Iterable[Json]) -> None:
    text = "".join(json.dumps(case, separators=(",", ":")) + "\n" for case in cases)
    (FOLDER / f"{plugin}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


async def decide(case: Json) -> Json:
    """Our answer, as `stowplan decide` prints it."""
    if "pods" in case:
        return await schedule_all(case)
    if "watcher" not in case:
        return planner_of(case).decide(object_of(case["pending"])).as_golden()
    async with load_watcher(json.dumps(case["watcher"])) as url:
        planner = planner_of(case, url)
        plugin: Any = planner.profiles[case["profile"]["schedulerName"]].plugins[case["plugin"]]
        async with running(plugin):
            await until(lambda: bool(plugin.source.reading))
        return planner.decide(object_of(case["pending"])).as_golden()


async def schedule_all(case: Json) -> Json:
    """The order in which pods are bound, and how many of each group are."""
    now = [case["at"]]
    config = {"profiles": [case["profile"]]}
    async with staged(
        config=config, draw=random.Random(1), now=lambda: now[0], clock=lambda: now[0]
    ) as stage:
        for item in objects_of(case):
            stage.scheduler.handlers.on_event("added", None, item)
        for each in case["pods"]:
            now[0] += 0.001
            stage.see(each)
        for _ in range(3):
            await stage.settle()
            now[0] += 12
            stage.scheduler.queue.flush_backoff()
        order = list(stage.api.bound)
    return {"order": order, "groups": count_by_group(case["pods"], order)}


def count_by_group(pods: Iterable[Json], bound: Iterable[str]) -> dict[str, int]:
    """How many pods of each group are bound."""
    keys, found = set(bound), Counter()
    for each in pods:
        if group := each["metadata"].get("labels", {}).get("scheduling.x-k8s.io/pod-group"):
            found[group] += f"{each['metadata']['namespace']}/{each['metadata']['name']}" in keys
    return dict(found)


def planner_of(case: Json, watcher: str = "") -> Planner:
    profile = json.loads(json.dumps(case["profile"]).replace(WATCHER, watcher))
    objects = objects_of(case)
    config = load(KIND | {"profiles": [profile]}, REGISTRY).config
    planner = Planner(Cluster.of(objects), config, registry=REGISTRY, now=lambda: case["at"])
    planner.keep_nominations(each for each in objects if isinstance(each, Pod))
    return planner


def objects_of(case: Json) -> list[Any]:
    watched = watched_kinds([REGISTRY.find(case["plugin"])])
    kinds = {(kind.definition.api_version, kind.definition.kind): kind for kind in watched}
    found = []
    for each in case["objects"]:
        kind = kinds.get((each["apiVersion"], each["kind"]))
        if kind is not None:
            found.append(decode(kind, each))
        elif each["kind"] != "PriorityClass":  # which else only the API server reads
            found.append(object_of(each))
    return found


@asynccontextmanager
async def load_watcher(body: str) -> AsyncIterator[str]:
    async def respond(request: web.Request) -> web.Response:
        return web.Response(text=body)

    app = web.Application()
    app.router.add_get("/watcher", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def comparable(case: Json, answer: Json) -> Json:
    """What both must agree in: who rejects the pod with which words, whom it evicts, and all scores."""
    if "pods" in case:
        return {what: answer[what] for what in case["answer"]}
    if "message" in answer:
        text = answer["message"]
        return {
            "message": REASON.match(text)[1] if case["plugin"] in OTHER_TEXTS else text,
            "nominated": answer.get("nominated", ""),
            "victims": answer.get("victims", []),
        }
    scores = (answer.get("scores") or {}).get(case["plugin"], {})
    # Of one node no scores are asked for.
    return {"feasible": answer["feasible"], "scores": scores if len(answer["feasible"]) > 1 else {}}


async def compare(case: Json) -> tuple[Json, Json, bool]:
    """Our answer, what it must be, and whether that differs on purpose from that of scheduler-plugins."""
    ours, theirs = comparable(case, await decide(case)), comparable(case, case["answer"])
    change = ON_PURPOSE.get(case["plugin"])
    wanted = theirs if change is None else change(case, theirs)
    if "scores" in wanted and "scores" in ours:
        right, nearly = wanted["scores"], NEARLY.get(case["plugin"], 0)
        ours["scores"] = {
            node: right[node] if abs(score - right[node]) <= nearly else score
            for node, score in ours["scores"].items()
            if node in right  # some are not compared
        }
    return ours, wanted, wanted != theirs


def median_without_data(case: Json, answer: Json) -> Json:
    """A node without metrics gets the median of the others' scores; theirs gives it 0."""
    known = case["watcher"]["data"]["NodeMetricsMap"]
    scores = answer["scores"]
    missing = [name for name in scores if name not in known]
    assert not any(scores[name] for name in missing)
    if not missing:
        return answer
    median = int(statistics.median(score for name, score in scores.items() if name in known))
    return {**answer, "scores": {**scores, **dict.fromkeys(missing, median)}}


def rises_of_power(case: Json, answer: Json) -> Json:
    """A node without metrics gets 0; theirs counts it as one whose power does not rise, so it is best.

    That also changes the range to which the scores of the others are scaled, so these are not compared.
    A pod that requests no CPU raises the power of no node: all get 0. Theirs ranks them by rounding errors.
    """
    scores = answer["scores"]
    if not object_of(case["pending"]).requests.get("cpu"):
        return {**answer, "scores": dict.fromkeys(scores, 0)}
    known = case["watcher"]["data"]["NodeMetricsMap"]
    missing = [name for name in scores if name not in known]
    return {**answer, "scores": dict.fromkeys(missing, 0)} if missing else answer


FAR = re.compile(
    r"1 Node \S+ does not meet several network requirements from Workload dependencies: "
    r"Satisfied: (\d+) Violated: (\d+)(?:, |(?=\.))"
)


def without_node_names(case: Json, answer: Json) -> Json:
    """Nodes that are rejected for the same reason are counted together; theirs names each of them."""
    text = answer.get("message", "")
    counts = Counter(FAR.findall(text))
    if not counts:
        return answer
    reason = "node(s) do not meet the network requirements of most workload dependencies"
    ours = [
        f"{count} {reason}: satisfied: {met}, violated: {not_met}" for (met, not_met), count in counts.items()
    ]
    start, _, rest = FAR.sub("", text).partition(": ")
    others, _, end = rest.partition(".")
    listed = sorted([*ours, *filter(None, others.strip(", ").split(", "))])
    return {**answer, "message": f"{start}: {', '.join(listed)}.{end}"}


OTHER_TEXTS = ("CapacityScheduling", "PreemptionToleration")
"""Plugins whose texts are compared up to the reason, to which ours adds amounts. What follows is about
preemption: ours is that of DefaultPreemption and says who is safe, theirs has a sentence for each node."""
REASON = re.compile(
    r"(0/\d+ nodes are available: .+?)(; [\w./-]+: used [^;]+?)?\.($| preemption: | 0/\d+ nodes)"
)
NEARLY = {"Peaks": 1}
"""By plugin: by how much scores may differ. Go's exponential function is inexact in the last digits."""
ON_PURPOSE: dict[str, Callable[[Json, Json], Json]] = {
    "TargetLoadPacking": median_without_data,
    "LoadVariationRiskBalancing": median_without_data,
    "LowRiskOverCommitment": median_without_data,
    "Peaks": rises_of_power,
    "NetworkOverhead": without_node_names,
}
"""By plugin: what ours answers where it differs on purpose, as docs/community-plugins.md says."""
