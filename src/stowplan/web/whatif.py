"""What-if from the page's form, and the smallest changes for one pod, computed on a copy in a thread.

The scheduler continues meanwhile, and does not wait for the thread when it stops. Only one request runs at a
time, and only for a limited time, because each takes CPU time from the scheduler.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import yaml
from numpy.typing import NDArray

from stowplan.api.custom import CustomResource
from stowplan.api.groups import GroupKey
from stowplan.api.manifests import WORKLOADS, Manifests, read_text
from stowplan.api.meta import Object
from stowplan.api.names import kind_and_name
from stowplan.api.nesting import TOO_DEEP, cut_deep_values
from stowplan.api.pod import Pod
from stowplan.cluster.columns import Rows
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.config.gates import GANG_SCHEDULING, GENERIC_WORKLOAD
from stowplan.config.types import with_gates
from stowplan.cycle import first_by_name
from stowplan.cycle.planner import error_in
from stowplan.errors import InputError, PluginError, StowplanError
from stowplan.explain.changes import ChangesAnswer, report_change
from stowplan.explain.explainer import rejection_notes
from stowplan.explain.group_report import GroupReport
from stowplan.explain.groups import explain_group, find_key
from stowplan.explain.smallest_changes import smallest_changes
from stowplan.framework.observer import interrupt_thread
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles, watched_kinds
from stowplan.scheduler.scheduler import Scheduler
from stowplan.simulator import WhatIf
from stowplan.simulator.outcome import as_json
from stowplan.simulator.question import Question, ask
from stowplan.web.source import RequestError, Source, find_pod, running_scheduler

VERSION = "kubescheduler.config.k8s.io/v1"
MAX_ADDED = 10_000
"""Pods and nodes that a request may add."""
MAX_MANIFEST_VALUES, MAX_CONFIG_VALUES = 100_000, 2_000
"""About as many as fit into a request, and more than any configuration has."""
MAX_DEPTH = 100
MAX_PLAIN_LENGTH = 10_000
"""Characters of a value without quotes: it may be a number, and long numbers take long to parse."""
SECONDS = 20.0
"""A connection to the scheduler is closed after 30."""
GRACE_SECONDS = 1.0
"""After its deadline a request ends by itself, unless a plugin does not return."""
CHANGES_SECONDS = 1.0
NO_GROUPS = (
    "this scheduler does not read pod groups; start it with --groups (scheduler-plugins and Volcano), or "
    "with --feature-gates=GenericWorkload=true,GangScheduling=true (Kubernetes)"
)
T = TypeVar("T")
A = TypeVar("A")


class FormQuestion(Question, frozen=True, kw_only=True):
    manifests: str = ""
    """YAML of objects to add or replace: pods, workloads, nodes and others."""
    config: str = ""
    """A KubeSchedulerConfiguration in YAML to use instead of the scheduler's own."""


class Deadline:
    def __init__(self, seconds: float) -> None:
        self._seconds, self._ends = seconds, time.monotonic() + seconds

    def end(self) -> None:
        self._ends = -math.inf

    def check(self) -> None:
        if time.monotonic() >= self._ends:
            raise InputError(
                f"not finished within {self._seconds:g} seconds; reduce the request, or use `stowplan whatif`"
            )


class ClusterCopy(NamedTuple):
    """The state of a scheduler at one moment. Objects are never changed in place, only replaced."""

    objects: tuple[Pod | Object, ...]
    kinds: tuple[type[CustomResource], ...]
    """The custom resources that plugins watch."""
    unserved: tuple[type[CustomResource], ...]
    config: KubeSchedulerConfiguration
    registry: Registry
    check: Callable[[], None]
    """Raises once the client no longer waits for the answer."""

    def what_if(self, config: KubeSchedulerConfiguration | None = None) -> WhatIf:
        return WhatIf(
            self.objects,
            config or self.config,
            registry=self.registry,
            unserved=self.unserved,
            check=self.check,
        )


class Questions:
    def __init__(self, source: Source, seconds: float = SECONDS) -> None:
        self._source, self._seconds = source, seconds
        self._is_busy = False

    async def what_if(self, body: bytes) -> Mapping[str, object]:
        try:
            question = msgspec.json.decode(body, type=FormQuestion)
        except (msgspec.DecodeError, InputError) as error:
            raise RequestError(f"invalid request: {error}", 400) from None
        return await self._run_in_thread(answer_what_if, question)

    async def changes(self, key: str) -> ChangesAnswer:
        if find_pod(running_scheduler(self._source), key) is None:
            raise RequestError(f"pod {key} not found in this cluster")
        return await self._run_in_thread(answer_changes, key)

    async def group(self, wanted: str, *, changes: bool) -> GroupReport:
        groups = running_scheduler(self._source).cluster.groups
        if not groups.families:
            raise RequestError(NO_GROUPS)
        try:
            key = find_key(groups, wanted if "/" in wanted else f"default/{wanted}")
        except InputError as error:
            raise RequestError(str(error)) from None
        return await self._run_in_thread(partial(answer_group, changes=changes), key)

    async def _run_in_thread(self, answer: Callable[[ClusterCopy, T], A], question: T) -> A:
        if self._is_busy:
            raise RequestError("another request of this kind is running; try again in a moment", 429)
        deadline = Deadline(self._seconds)
        copy = copy_cluster(self._source, deadline.check)
        self._is_busy = True
        _, answered = start_thread(partial(answer, copy, question), self._seconds)
        answered.add_done_callback(self._set_free)
        try:
            return await asyncio.wrap_future(answered)
        except StowplanError as error:
            raise RequestError(str(error), 400) from None
        except RecursionError:
            raise RequestError("the request is nested too deeply", 400) from None
        finally:
            deadline.end()

    def _set_free(self, _: Future[Any]) -> None:
        self._is_busy = False


def start_thread(work: Callable[[], A], seconds: float) -> tuple[threading.Thread, Future[A]]:
    """Work on a question in a thread; a plugin that it is stuck in is interrupted after this time."""
    answered = Future[A]()
    answered.set_running_or_notify_cancel()  # the thread goes on even if nobody waits any more

    def run() -> None:
        try:
            answered.set_result(work())
        except BaseException as error:
            answered.set_exception(error)

    # Not one of the loop's own threads: the process would wait for them when it exits.
    thread = threading.Thread(target=run, name="question", daemon=True)
    thread.start()
    asyncio.get_running_loop().call_later(seconds + GRACE_SECONDS, _interrupt, thread)
    return thread, answered


def _interrupt(thread: threading.Thread) -> None:
    """Interrupt the plugin that a thread is stuck in, again and again until the thread ends."""
    if thread.is_alive():
        interrupt_thread(thread.ident or 0)
        asyncio.get_running_loop().call_later(GRACE_SECONDS, _interrupt, thread)


def copy_cluster(source: Source, check: Callable[[], None]) -> ClusterCopy:
    scheduler, config, registry = running_scheduler(source), source.config(), source.registry()
    profiles = resolve_profiles(config, registry)
    kinds = watched_kinds(plugin for profile in profiles for plugin in profile.classes.values())
    unserved = tuple(kind for kind in kinds if not scheduler.cluster.watched(kind).is_served)
    return ClusterCopy(tuple(_objects(scheduler)), kinds, unserved, config, registry, check)


def _objects(scheduler: Scheduler) -> Iterator[Pod | Object]:
    cluster = scheduler.cluster
    yield from cluster.objects()
    for pod in scheduler.handlers.pending.values():
        if cluster.pod(pod.uid) is None:
            yield pod


def answer_what_if(copy: ClusterCopy, question: FormQuestion) -> Mapping[str, object]:
    """Uses nothing but the copy."""
    check_pasted(question.config, "the configuration", MAX_CONFIG_VALUES)
    check_pasted(question.manifests, "the manifests", MAX_MANIFEST_VALUES)
    config = parse_config(question.config, copy.registry) if question.config.strip() else None
    gangs = {GENERIC_WORKLOAD, GANG_SCHEDULING} if question.gang else set()
    used = config or copy.config
    what_if = copy.what_if(with_gates(used, used.gates | gangs) if gangs else used)
    if config is not None:
        what_if.changes.append("the configuration of the form")

    def read_more(manifests: Manifests) -> None:
        if question.manifests.strip():
            read_text(manifests, "the manifests", question.manifests)
        if manifests.faults:
            raise InputError("\n".join(str(fault) for fault in manifests.faults))
        for each in question.more:
            _check_known(manifests, each.name)

    known = Manifests(kinds=copy.kinds)
    known.take(copy.objects)
    return as_json(ask(what_if, question, known, read_more, MAX_ADDED))


def _check_known(manifests: Manifests, wanted: str) -> None:
    kind, name = kind_and_name(wanted)
    is_known = manifests.pod(wanted) or (kind, f"{manifests.namespace}/{name}") in manifests.workloads
    if kind in WORKLOADS and not is_known:
        raise InputError(
            f"a scheduler does not read the pod template of a {kind}; "
            "name one of its pods as namespace/name, or paste its manifest",
            what=wanted,
        )


def parse_config(text: str, registry: Registry) -> KubeSchedulerConfiguration:
    """Uses only loaded plugins: a form must not make the scheduler import code or read files."""
    try:
        plain = yaml.load(text, yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise InputError(f"the configuration is not YAML: {error}") from None
    if not isinstance(plain, dict) or plain.get("apiVersion") != VERSION:
        raise InputError(f"the configuration's apiVersion must be {VERSION}")
    for name in _names_in(plain):
        if ":" in name:
            raise InputError(
                f"{name!r}: plugins given as module:Class are not loaded here; use `stowplan whatif`"
            )
    return load(plain, registry).config


def _names_in(plain: object) -> Iterator[str]:
    if isinstance(plain, dict):
        yield from (value for key, value in plain.items() if key == "name" and isinstance(value, str))
    inner = plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ()
    for each in inner:
        yield from _names_in(each)


def answer_changes(copy: ClusterCopy, key: str) -> ChangesAnswer:
    """Single changes that would move the pod to another node, or make it fit."""
    planner = copy.what_if().planner
    pod = next(each for each in copy.objects if isinstance(each, Pod) and each.key == key)
    planner.cluster.remove_pod(pod)
    planner.tie_break = partial(stay, pod.node_name)
    decision = planner.decide(pod.on(""))
    if fault := error_in(decision):
        raise PluginError(fault)
    found = smallest_changes(planner, decision, seconds=CHANGES_SECONDS)
    notes = tuple(rejection_notes(planner.profile_of(pod), decision))
    return ChangesAnswer(decision.chosen, tuple(map(report_change, found.found)), found.is_complete, notes)


def answer_group(copy: ClusterCopy, key: GroupKey, *, changes: bool) -> GroupReport:
    """Why a pod group waits, on the cluster as it is now."""
    planner = copy.what_if().planner
    pods = (each for each in copy.objects if isinstance(each, Pod))
    pending = [pod for pod in pods if not (pod.node_name or pod.is_finished or pod.is_terminating)]
    return explain_group(planner, key, pending, changes=changes, seconds=CHANGES_SECONDS, check=copy.check)


def stay(node_name: str, nodes: LiveNodeTable, feasible: Rows, totals: NDArray[Any]) -> int:
    """Break ties in favour of the pod's node: no change is needed to keep it there."""
    own = np.flatnonzero((feasible == nodes.row_of(node_name)) & (totals == totals.max()))
    return int(own[0]) if len(own) else first_by_name(nodes, feasible, totals)


def check_pasted(text: str, what: str, max_values: int) -> None:
    """Raise an InputError for YAML that would take too long to read; invalid YAML is left to its reader.

    A few lines of aliases can stand for more than fits into memory, and deep nesting ends the process.
    """
    depth = values = 0
    try:
        for event in yaml.parse(text, yaml.CSafeLoader):
            if anchor := getattr(event, "anchor", None):
                raise InputError(f"anchors and aliases, such as {anchor}, are not supported here", what=what)
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.ScalarEvent):
                values += 1
                if event.implicit[0] and len(event.value) > MAX_PLAIN_LENGTH:
                    raise InputError(
                        f"has a value of more than {MAX_PLAIN_LENGTH} characters: quote it", what=what
                    )
            if depth > MAX_DEPTH:
                raise InputError(f"is nested more than {MAX_DEPTH} deep", what=what)
            if values > max_values:
                raise InputError(
                    f"has more than {max_values} values; use `stowplan whatif` instead", what=what
                )
    except yaml.YAMLError:  # it may still be JSON, such as with escaped surrogates
        data = text.encode()
        if cut_deep_values(data) != data:
            raise InputError(TOO_DEEP, what=what) from None
