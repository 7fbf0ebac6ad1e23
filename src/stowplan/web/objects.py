"""What the page lists besides decisions: all pods, the profiles with their plugins, and single objects."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
import yaml

from stowplan.api.meta import ObjectMeta
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod, PodObject, PodStatus
from stowplan.api.quantity import Quantity, canonical
from stowplan.framework.args import without_secrets
from stowplan.framework.plugin import Plugin
from stowplan.framework.profile import Profile
from stowplan.journal.wire import WireStruct
from stowplan.scheduler.scheduler import Scheduler
from stowplan.web.source import RequestError, Source, find_pod, running_scheduler
from stowplan.web.views import read_time

MAX_PODS = 1_000
PODS_AT_ONCE = 5_000
BOUND, BINDING, TRYING = "bound", "binding", "trying"
MAX_ARGS = 100_000
MAX_YAML = 200_000


class ListedPod(WireStruct):
    pod: str
    state: str
    node: str
    scheduler: str
    priority: int
    created: float | None


class PodsAnswer(WireStruct):
    counts: dict[str, int]
    """The number of pods in each state, among those that pass the other filters."""
    namespaces: list[str]
    schedulers: list[str]
    pods: list[ListedPod]
    left_out: bool


async def describe_pods(source: Source, query: Mapping[str, str]) -> PodsAnswer:
    """The pods that the filters leave: `search` in the name, `namespace`, `scheduler` and `state`."""
    scheduler, search = running_scheduler(source), query.get("search", "").lower()
    namespace, name, wanted = (query.get(each, "") for each in ("namespace", "scheduler", "state"))
    counts, namespaces, schedulers = Counter[str](), set[str](), set[str]()
    rows: list[ListedPod] = []
    for number, (pod, state) in enumerate(list(_states(scheduler)), 1):
        if number % PODS_AT_ONCE == 0:
            await asyncio.sleep(0)  # a hundred thousand pods must not delay scheduling
        namespaces.add(pod.namespace)
        schedulers.add(pod.scheduler_name)
        if search not in pod.key or namespace not in ("", pod.namespace):
            continue
        if name not in ("", pod.scheduler_name):
            continue
        counts[state] += 1
        if wanted in ("", state) and len(rows) <= MAX_PODS:
            rows.append(_list_row(pod, state))
    return PodsAnswer(
        counts=dict(counts),
        namespaces=sorted(namespaces),
        schedulers=sorted(schedulers),
        pods=rows[:MAX_PODS],
        left_out=len(rows) > MAX_PODS,
    )


def _states(scheduler: Scheduler) -> Iterator[tuple[Pod, str]]:
    """Pods without a node first: they are what people look for."""
    cluster = scheduler.cluster
    places = {queued.pod.uid: str(queued.place) for queued in scheduler.queue}
    places |= {held.pod.uid: "permit" for held in scheduler.waiting}
    for pod in scheduler.handlers.pending.values():
        if cluster.pod(pod.uid) is None:
            yield pod, places.get(pod.uid, TRYING)
    for pod in cluster.pods():
        yield pod, BINDING if cluster.is_assumed(pod) else BOUND


def _list_row(pod: Pod, state: str) -> ListedPod:
    return ListedPod(
        pod=pod.key,
        state=state,
        node=pod.node_name,
        scheduler=pod.scheduler_name,
        priority=pod.priority,
        created=read_time(pod.creation_timestamp),
    )


class PluginRow(WireStruct):
    plugin: str
    points: list[str]
    weight: int | None
    """The weight of its scores; None if it does not score."""
    args: object
    calls: int
    """How many of its calls were measured: one decision in ten is."""
    mean: float | None
    slowest: float | None
    """The mean duration in seconds of its slowest extension point."""
    errors: int
    interruptions: int


class ProfileRow(WireStruct):
    profile: str
    plugins: list[PluginRow]
    attempts: dict[str, int]
    """By result."""


class ProfilesAnswer(WireStruct):
    profiles: list[ProfileRow]
    reloads: dict[str, int]
    """How often changed plugin files were read again, by result."""
    extenders: list[str]


def describe_profiles(source: Source) -> ProfilesAnswer:
    scheduler = running_scheduler(source)
    metrics = scheduler.metrics
    return ProfilesAnswer(
        profiles=[_profile_row(scheduler, name, each) for name, each in scheduler.profiles.items()],
        reloads=metrics.reload_counts(),
        extenders=[without_secrets(each.url_prefix) for each in source.config().extenders],
    )


def _profile_row(scheduler: Scheduler, name: str, profile: Profile) -> ProfileRow:
    weights = {step.name: step.weight for step in profile.scores}
    points: dict[str, list[str]] = {plugin: [] for plugin in profile.plugins}
    for point, plugins in profile.points.items():
        for each in plugins:
            points[each].append(point)
    return ProfileRow(
        profile=name,
        plugins=[
            _plugin_row(scheduler, plugin, each, points[plugin], weights.get(plugin))
            for plugin, each in profile.plugins.items()
        ],
        attempts=scheduler.metrics.attempt_counts(name),
    )


def _plugin_row(
    scheduler: Scheduler, name: str, plugin: Plugin, points: list[str], weight: int | None
) -> PluginRow:
    calls = errors = 0
    seconds, slowest = 0.0, None
    for status, count, total in scheduler.metrics.plugin_times(name):
        calls, seconds = calls + count, seconds + total
        errors += count if status == "Error" else 0
        slowest = max(slowest or 0.0, total / count)
    return PluginRow(
        plugin=name,
        points=points,
        weight=weight,
        args=_shown_args(plugin.args),
        calls=calls,
        mean=seconds / calls if calls else None,
        slowest=slowest,
        errors=errors,
        interruptions=scheduler.metrics.interruption_count(name),
    )


def _shown_args(args: object) -> object:
    """Arguments as plain data, or a text: those of one plugin must not keep the others from being shown."""
    try:
        plain = without_secrets(msgspec.to_builtins(args, str_keys=True, enc_hook=str))
        size = len(msgspec.json.encode(plain))
    except Exception as error:
        return f"(cannot be shown: {type(error).__name__})"
    return plain if size <= MAX_ARGS else f"(more than {MAX_ARGS} characters)"


class ObjectAnswer(WireStruct):
    yaml: str
    is_cut: bool


async def describe_object(source: Source, kind: str, name: str) -> ObjectAnswer:
    """A pod or node as the API writes it, with what the scheduler keeps of it."""
    scheduler = running_scheduler(source)
    found: Pod | NodeObject | None = None
    if kind == "pod":
        found = find_pod(scheduler, name)
    elif kind == "node":
        row = scheduler.cluster.nodes.row_of(name)
        found = None if row is None else scheduler.cluster.nodes.objects[row]
    else:
        raise RequestError(f"kind must be pod or node, not {kind!r}", 400)
    if found is None:
        raise RequestError(f"{kind} {name} not found")
    text = await asyncio.to_thread(_as_yaml, found)  # a megabyte takes about 0.2 s
    return ObjectAnswer(yaml=text[:MAX_YAML], is_cut=len(text) > MAX_YAML)


def _as_yaml(found: Pod | NodeObject) -> str:
    plain = msgspec.to_builtins(
        _as_written(found) if isinstance(found, Pod) else found, enc_hook=_plain_amount
    )
    kind = "Pod" if isinstance(found, Pod) else "Node"
    document = {"apiVersion": "v1", "kind": kind} | {key: value for key, value in plain.items() if value}
    return str(yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=100))


def _as_written(pod: Pod) -> PodObject:
    return PodObject(
        metadata=ObjectMeta(
            name=pod.name,
            namespace=pod.namespace,
            uid=pod.uid,
            labels=dict(pod.labels),
            annotations=dict(pod.annotations),
            resource_version=pod.resource_version,
            generation=pod.generation,
            creation_timestamp=pod.creation_timestamp,
            deletion_timestamp=pod.deletion_timestamp,
            owner_references=() if pod.controller is None else (pod.controller,),
        ),
        spec=msgspec.structs.replace(pod.spec, node_name=pod.node_name),
        status=PodStatus(
            phase=pod.phase, nominated_node_name=pod.nominated_node_name, conditions=pod.conditions
        ),
    )


def _plain_amount(value: object) -> str:
    return canonical(value) if isinstance(value, Quantity) else str(value)
