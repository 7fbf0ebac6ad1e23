"""What-if from the page's form, and the smallest changes for one pod: on a copy, in a thread of its own.

The scheduler goes on meanwhile, and ends without waiting. One question at a time, and none for long: each
takes a processor from it.
"""

from __future__ import annotations

import asyncio
import io
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
from stowplan.api.manifests import STDIN, WORKLOADS, Manifests, read_into
from stowplan.api.meta import Object
from stowplan.api.names import kind_and_name
from stowplan.api.pod import Pod
from stowplan.cluster.columns import Rows
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.cycle import first_by_name
from stowplan.cycle.planner import plugin_error
from stowplan.errors import InputError, PluginError, StowplanError
from stowplan.explain.changes import ChangesAnswer, report_change
from stowplan.explain.smallest_changes import smallest_changes
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles, watched_kinds
from stowplan.scheduler.scheduler import Scheduler
from stowplan.simulator import WhatIf
from stowplan.simulator.outcome import as_json
from stowplan.simulator.question import Question, ask
from stowplan.web.pasted import check_pasted
from stowplan.web.source import Refused, Source, pod_of, running

VERSION = "kubescheduler.config.k8s.io/v1"
MAX_ADDED = 10_000
"""Pods and nodes that may be supposed beside a scheduler at work."""
MOST_MANIFESTS, MOST_CONFIG = 100_000, 2_000
"""Values in what is pasted: about as many as fit into a request, and more than any configuration has."""
SECONDS = 20.0
"""A connection to the scheduler lives for 30."""
CHANGES_SECONDS = 1.0
T = TypeVar("T")
A = TypeVar("A")


class Asked(Question, frozen=True, kw_only=True):
    manifests: str = ""
    """YAML: pods, workloads, nodes, whatever would be added or replaced."""
    config: str = ""
    """A KubeSchedulerConfiguration in YAML, instead of the scheduler's own."""


class Patience:
    """How long an answer is waited for."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._ends = seconds, time.monotonic() + seconds

    def end(self) -> None:
        self._ends = -math.inf

    def check(self) -> None:
        if time.monotonic() >= self._ends:
            raise InputError(
                f"not worked out within {self._seconds:g} seconds: ask for less, or ask `stowplan whatif`"
            )


class Copy(NamedTuple):
    """All that a scheduler knows at one moment. Its objects are never changed, only replaced."""

    objects: tuple[Pod | Object, ...]
    kinds: tuple[type[CustomResource], ...]
    """Those that plugins watch."""
    unserved: tuple[type[CustomResource], ...]
    config: KubeSchedulerConfiguration
    registry: Registry
    check: Callable[[], None]
    """Raises once nobody waits for an answer any more."""

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

    async def what_if(self, body: bytes) -> Mapping[str, Any]:
        try:
            asked = msgspec.json.decode(body, type=Asked)
        except (msgspec.DecodeError, InputError) as error:
            raise Refused(f"the question cannot be read: {error}", 400) from None
        return await self._apart(answer_what_if, asked)

    async def changes(self, key: str) -> ChangesAnswer:
        if pod_of(running(self._source), key) is None:
            raise Refused(f"pod {key} not found in this cluster")
        return await self._apart(answer_changes, key)

    async def _apart(self, answer: Callable[[Copy, T], A], asked: T) -> A:
        if self._is_busy:
            raise Refused("another question of this kind is being worked out: ask again in a moment", 429)
        patience, answered = Patience(self._seconds), Future[A]()
        copy = copy_of(self._source, patience.check)
        answered.set_running_or_notify_cancel()  # the thread goes on even if nobody waits any more
        answered.add_done_callback(self._set_free)
        self._is_busy = True

        def work() -> None:
            try:
                answered.set_result(answer(copy, asked))
            except BaseException as error:
                answered.set_exception(error)

        # Not one of the loop's own threads, since these are waited for when a process ends.
        threading.Thread(target=work, name="question", daemon=True).start()
        try:
            return await asyncio.wrap_future(answered)
        except StowplanError as error:
            raise Refused(str(error), 400) from None
        except RecursionError:
            raise Refused("the question is nested too deeply", 400) from None
        finally:
            patience.end()

    def _set_free(self, _: Future[Any]) -> None:
        self._is_busy = False


def copy_of(source: Source, check: Callable[[], None]) -> Copy:
    scheduler, config, registry = running(source), source.config(), source.registry()
    profiles = resolve_profiles(config, registry)
    kinds = watched_kinds(plugin for profile in profiles for plugin in profile.classes.values())
    unserved = tuple(kind for kind in kinds if not scheduler.cluster.watched(kind).is_served)
    return Copy(tuple(_objects(scheduler)), kinds, unserved, config, registry, check)


def _objects(scheduler: Scheduler) -> Iterator[Pod | Object]:
    cluster = scheduler.cluster
    yield from cluster.objects()
    for pod in scheduler.handlers.pending.values():
        if cluster.pod(pod.uid) is None:
            yield pod


def answer_what_if(copy: Copy, asked: Asked) -> Mapping[str, Any]:
    """Works it out; nothing but the copy is looked at."""
    check_pasted(asked.config, "the configuration", MOST_CONFIG)
    check_pasted(asked.manifests, "the manifests", MOST_MANIFESTS)
    config = _config(asked.config, copy.registry) if asked.config.strip() else None
    what_if = copy.what_if(config)
    if config is not None:
        what_if.changes.append("the configuration of the form")

    def read_more(manifests: Manifests) -> None:
        if asked.manifests.strip():
            read_into(manifests, (STDIN,), io.BytesIO(asked.manifests.encode()))
        if manifests.faults:
            raise InputError("\n".join(str(fault) for fault in manifests.faults))
        for each in asked.more:
            _check_known(manifests, each.name)

    known = Manifests(kinds=copy.kinds)
    known.take(copy.objects)
    return as_json(ask(what_if, asked, known, read_more, MAX_ADDED))


def _check_known(manifests: Manifests, wanted: str) -> None:
    kind, name = kind_and_name(wanted)
    is_known = manifests.pod(wanted) or (kind, f"{manifests.namespace}/{name}") in manifests.workloads
    if kind in WORKLOADS and not is_known:
        raise InputError(
            f"a scheduler does not know what a {kind} makes its pods from: "
            "name one of its pods, as namespace/name, or paste its manifest",
            what=wanted,
        )


def _config(text: str, registry: Registry) -> KubeSchedulerConfiguration:
    """Only what this process has at hand is used: nothing is imported, no file is read for a form."""
    try:
        plain = yaml.load(text, yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise InputError(f"the configuration is not YAML: {error}") from None
    if not isinstance(plain, dict) or plain.get("apiVersion") != VERSION:
        raise InputError(f"the configuration's apiVersion must be {VERSION}")
    for name in _names_in(plain):
        if ":" in name:
            raise InputError(
                f"{name!r}: plugins named module:Class are not loaded here; try `stowplan whatif`"
            )
    return load(plain, registry).config


def _names_in(plain: Any) -> Iterator[str]:
    if isinstance(plain, dict):
        yield from (value for key, value in plain.items() if key == "name" and isinstance(value, str))
    inner = plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ()
    for each in inner:
        yield from _names_in(each)


def answer_changes(copy: Copy, key: str) -> ChangesAnswer:
    """Single changes after which the pod would land elsewhere, or somewhere at all."""
    planner = copy.what_if().planner
    pod = next(each for each in copy.objects if isinstance(each, Pod) and each.key == key)
    planner.cluster.remove_pod(pod)
    planner.tie_break = partial(stay, pod.node_name)
    decision = planner.decide(pod.on(""))
    if fault := plugin_error(decision):
        raise PluginError(fault)
    found = smallest_changes(planner, decision, seconds=CHANGES_SECONDS)
    return ChangesAnswer(decision.chosen, tuple(map(report_change, found.found)), found.is_complete)


def stay(node_name: str, nodes: LiveNodeTable, feasible: Rows, totals: NDArray[Any]) -> int:
    """Of nodes that are equally good, the one where the pod is: no change is needed to keep it there."""
    own = np.flatnonzero((feasible == nodes.row_of(node_name)) & (totals == totals.max()))
    return int(own[0]) if len(own) else first_by_name(nodes, feasible, totals)
