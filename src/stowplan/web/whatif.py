"""What-if from the page's form, and the smallest changes for one pod: on a copy, in a thread of its own.

The scheduler goes on meanwhile. One question at a time: each takes a processor from it.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
import yaml

from stowplan.api.custom import CustomResource
from stowplan.api.meta import Object
from stowplan.api.pod import Pod
from stowplan.config import KubeSchedulerConfiguration, load
from stowplan.errors import InputError, StowplanError
from stowplan.explain.changes import smallest_changes
from stowplan.explain.manifests import STDIN, Manifests, read_into
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles, watched_kinds
from stowplan.scheduler.scheduler import Scheduler
from stowplan.simulator import WhatIf
from stowplan.simulator.outcome import as_json
from stowplan.simulator.question import Question, ask
from stowplan.web.source import Refused, Source, pod_of, running

VERSION = "kubescheduler.config.k8s.io/v1"
MOST = 10_000
"""Copies of a pod or node that may be supposed beside a scheduler at work."""
CHANGES_SECONDS = 1.0
T = TypeVar("T")


class Asked(Question, frozen=True, kw_only=True):
    manifests: str = ""
    """YAML: pods, workloads, nodes, whatever would be added or replaced."""
    config: str = ""
    """A KubeSchedulerConfiguration in YAML, instead of the scheduler's own."""


class Copy(NamedTuple):
    """All that a scheduler knows at one moment. Its objects are never changed, only replaced."""

    objects: tuple[Pod | Object, ...]
    kinds: tuple[type[CustomResource], ...]
    """Those that plugins watch."""
    unserved: tuple[type[CustomResource], ...]
    config: KubeSchedulerConfiguration
    registry: Registry

    def what_if(self, config: KubeSchedulerConfiguration | None = None) -> WhatIf:
        return WhatIf(self.objects, config or self.config, registry=self.registry, unserved=self.unserved)


class Questions:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._is_busy = False

    async def what_if(self, body: bytes) -> Mapping[str, Any]:
        try:
            asked = msgspec.json.decode(body, type=Asked)
        except (msgspec.DecodeError, InputError) as error:
            raise Refused(f"the question cannot be read: {error}", 400) from None
        for each in (*asked.more, *asked.more_nodes):
            if each.count > MOST:
                raise Refused(f"{each.name}: not more than {MOST} here; `stowplan whatif` takes more", 400)
        return await self._apart(answer_what_if, asked)

    async def changes(self, key: str) -> Mapping[str, Any]:
        if pod_of(running(self._source), key) is None:
            raise Refused(f"no pod {key} is known now: there is nothing to try on it")
        return await self._apart(answer_changes, key)

    async def _apart(self, answer: Callable[[Copy, T], Mapping[str, Any]], asked: T) -> Mapping[str, Any]:
        if self._is_busy:
            raise Refused("another question of this kind is being worked out: ask again in a moment", 429)
        self._is_busy = True
        try:
            return await asyncio.to_thread(answer, copy_of(self._source), asked)
        except StowplanError as error:
            raise Refused(str(error), 400) from None
        finally:
            self._is_busy = False


def copy_of(source: Source) -> Copy:
    scheduler, config, registry = running(source), source.config(), source.registry()
    profiles = resolve_profiles(config, registry)
    kinds = watched_kinds(plugin for profile in profiles for plugin in profile.classes.values())
    unserved = tuple(kind for kind in kinds if not scheduler.cluster.watched(kind).is_served)
    return Copy(tuple(_objects(scheduler)), kinds, unserved, config, registry)


def _objects(scheduler: Scheduler) -> Iterator[Pod | Object]:
    cluster = scheduler.cluster
    yield from cluster.objects()
    for pod in scheduler.handlers.pending.values():
        if cluster.pod(pod.uid) is None:
            yield pod


def answer_what_if(copy: Copy, asked: Asked) -> Mapping[str, Any]:
    """Works it out; nothing but the copy is looked at."""
    config = _config(asked.config, copy.registry) if asked.config.strip() else None
    what_if = copy.what_if(config)
    if config is not None:
        what_if.changes.append("the configuration of the form")

    def read_more(manifests: Manifests) -> None:
        if asked.manifests.strip():
            read_into(manifests, (STDIN,), io.BytesIO(asked.manifests.encode()))
        if manifests.faults:
            raise InputError("\n".join(str(fault) for fault in manifests.faults))

    known = Manifests(kinds=copy.kinds)
    known.take(copy.objects)
    return as_json(ask(what_if, asked, known, read_more))


def _config(text: str, registry: Registry) -> KubeSchedulerConfiguration:
    """Only what this process has at hand is used: nothing is imported, no file is read for a form."""
    try:
        plain = yaml.safe_load(text)
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


def answer_changes(copy: Copy, key: str) -> Mapping[str, Any]:
    """Single changes after which the pod would land elsewhere, or somewhere at all."""
    planner = copy.what_if().planner
    pod = next(each for each in copy.objects if isinstance(each, Pod) and each.key == key)
    planner.cluster.remove_pod(pod)
    decision = planner.decide(pod.on(""))
    found = smallest_changes(planner, decision, seconds=CHANGES_SECONDS)
    return {
        "node": decision.chosen,
        "changes": [{"text": each.text, "node": each.flip.node} for each in found.found],
        "isComplete": found.is_complete,
    }
