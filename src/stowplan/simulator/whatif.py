"""A modified copy of a cluster, and what its scheduler would do.

Every rule is the engine's: pods that wait are decided one after another in the order of the queue, each
placed before the next, its victims created again by their controllers. Permit and bind are not run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, NamedTuple

import msgspec
import numpy as np

from stowplan.api.custom import CustomResource
from stowplan.api.groups import GroupKey
from stowplan.api.meta import Object, ObjectMeta, parse_time
from stowplan.api.names import suggest_names
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.config import KubeSchedulerConfiguration
from stowplan.cycle import Planner, first_by_name
from stowplan.cycle.group import GroupDecision, Result
from stowplan.cycle.group_trial import Member
from stowplan.cycle.planner import ask_plugin, error_in, run_pre_enqueue
from stowplan.cycle.schedule import draw_ties
from stowplan.cycle.victims import Budgets
from stowplan.errors import InputError
from stowplan.explain.layout import count_text, join_names
from stowplan.explain.report import Rejection, explain_decision
from stowplan.framework.decision import Decision
from stowplan.framework.events import Action, ClusterEvent, Resource
from stowplan.framework.hints import QueueingHints
from stowplan.framework.plugin import is_trusted
from stowplan.framework.profile import Profile
from stowplan.framework.registry import Registry
from stowplan.framework.sealed import seal_queued
from stowplan.framework.state import seal_state
from stowplan.framework.status import Code
from stowplan.queue.waiting import QueuedPod
from stowplan.simulator.outcome import Cause, Ending, Fate, GroupFate, Outcome

replace = msgspec.structs.replace


class Queue:
    def __init__(self, planner: Planner, now: Callable[[], float]) -> None:
        profile = next(iter(planner.profiles.values()))  # in the order of all pods all profiles agree
        ((_, plugin),) = profile.at("queueSort")
        self._sort: Callable[[QueuedPod], Any] = seal_queued(plugin)
        self._now, self._numbers = now, count()
        self._heap: list[tuple[Any, int, Fate]] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def put(self, fate: Fate) -> None:
        """Among equals, the pod that has waited longest comes first."""
        pod, since = fate.pod, self._now()
        if fate.cause in (Cause.PENDING, Cause.AFRESH) and pod.creation_timestamp:
            since = parse_time(pod.creation_timestamp)
        heappush(self._heap, (self._sort(QueuedPod(pod, since)), next(self._numbers), fate))

    def pop(self) -> Fate:
        return heappop(self._heap)[2]

    def take(self, belongs: Callable[[Pod], bool]) -> list[Fate]:
        """Take out all such pods, in order."""
        taken = sorted((each for each in self._heap if belongs(each[2].pod)), key=lambda each: each[:2])
        self._heap = [each for each in self._heap if not belongs(each[2].pod)]
        heapify(self._heap)
        return [fate for _, _, fate in taken]

    def forget(self, keys: Container[str]) -> None:
        self._heap = [each for each in self._heap if each[2].pod.key not in keys]
        heapify(self._heap)


PROTECTED = "its disruption budget allows no eviction now"
EXPLAINED = 20
"""The number of different pending pods whose reasons are explained in full."""


PLACED, EVICTED = (ClusterEvent(Resource.ASSIGNED_POD, action) for action in (Action.ADD, Action.DELETE))


class RejectedPod(NamedTuple):
    """Why a pod found no node, by whom, and when."""

    profile: str
    message: str
    rejections: tuple[Rejection, ...]
    rejectors: frozenset[str]
    turn: int


class WhatIf:
    """Say what would be different, then `run` once. `objects` are those of a whole cluster; `cluster` is one
    of these objects that may be changed, where there is such a one already.

    With a seed, ties are broken at random; without one, the first node by name wins. `check` is called again
    and again while there is work: what it raises ends that.
    """

    def __init__(
        self,
        objects: Iterable[Pod | Object],
        config: KubeSchedulerConfiguration | None = None,
        *,
        registry: Registry | None = None,
        seed: int | None = None,
        unserved: Iterable[type[CustomResource]] = (),
        cluster: Cluster | None = None,
        now: Callable[[], float] = time.time,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        items = tuple(objects)
        self.cluster = Cluster.of(items) if cluster is None else cluster
        for kind in unserved:
            self.cluster.watched(kind).is_served = False
        tie_break = first_by_name if seed is None else draw_ties(random.Random(seed), by_name=True)
        self.planner = Planner(self.cluster, config, registry=registry, tie_break=tie_break, now=now)
        pods = [item for item in items if isinstance(item, Pod)]
        self.planner.keep_nominations(pods)
        self.changes: list[str] = []
        self._check = check
        self._queue = Queue(self.planner, now)
        self._fates: dict[str, Fate] = {}
        """By uid; a pod that was placed and then evicted has only its last one."""
        self._explained: dict[tuple[Any, ...], tuple[Rejection, ...]] = {}
        self._rejected: dict[tuple[Any, ...], RejectedPod] = {}
        """Results for pods that found no node since the cluster last changed, by equivalence key."""
        self._waiting: dict[str, RejectedPod] = {}
        """For pods that found no node, by uid."""
        self._hints = {name: QueueingHints(profile) for name, profile in self.planner.profiles.items()}
        self._groups: dict[GroupKey, GroupFate] = {}
        self._turn = 0
        self._last = {PLACED: 0, EVICTED: 0}
        """The turns in which a pod was last placed, and last evicted."""
        pending = [pod for pod in pods if not (pod.node_name or pod.is_finished or pod.is_terminating)]
        self.planner.expect(pending)
        for pod in pending:
            self._enqueue(pod, Cause.PENDING)

    def add(self, objects: Iterable[Pod | Object]) -> None:
        """Add nodes, pods and other objects; an object of the same name is replaced."""
        items: list[Pod | Object] = []
        for item in objects:  # they may be made only now
            self._check()
            items.append(item)
        pods = [item for item in items if isinstance(item, Pod)]
        self._forget({pod.key for pod in pods})
        for item in items:
            self.cluster.apply(item)
            if isinstance(item, Pod):
                self.planner.followers.tell(item)
            if isinstance(item, Pod) and not (item.node_name or item.is_finished):
                self._enqueue(item, Cause.NEW)
        if pods:
            self._note_change(f"{count_text(len(pods), 'pod')} added")
        if nodes := [item.name for item in items if isinstance(item, NodeObject)]:
            self._note_change(f"{join_names(nodes)} added or changed")

    def add_nodes_like(self, name: str, number: int = 1) -> None:
        """So many more nodes like the one of that name, with the pods that daemons run on it."""
        self._row_of(name)
        self._note_change(f"{count_text(number, 'more node')} like {name}")
        taken = set(self.cluster.nodes.names)
        free = (f"{name}-new-{each}" for each in count(1))
        for new in (each for each in free if each not in taken):
            if number <= 0:
                break
            number -= 1
            self._check()
            for item in tuple(copy_node(self.cluster, self._row_of(name), new)):
                self.cluster.apply(item)

    def drain(self, name: str) -> None:
        """Cordons the node and evicts its pods, except for those that a disruption budget protects."""
        row = self._row_of(name)
        self._note_change(f"{name} drained")
        node = self.cluster.nodes.objects[row]
        spec = replace(node.spec, unschedulable=True)
        self.cluster.add_node(replace(node, spec=spec))
        for pod in tuple(self.cluster.nodes.pods_on(row)):
            self._check()
            if belongs_to_node(pod):
                continue
            if is_protected(pod, self.cluster):
                fate = Fate(pod=pod, cause=Cause.DRAINED, ending=Ending.STAYS, node=name, before=name)
                self._record(replace(fate, message=PROTECTED))
            else:
                self._displace(pod, Cause.DRAINED)

    def lose(self, name: str) -> None:
        """The node is gone, and all its pods with it."""
        row = self._row_of(name)
        self._note_change(f"{name} lost")
        for pod in tuple(self.cluster.nodes.pods_on(row)):
            if belongs_to_node(pod):
                self._remove(pod)
            else:
                self._displace(pod, Cause.LOST)
        self.cluster.remove_node(name)

    def place_afresh(self) -> None:
        """Decide every pod again, except for those of DaemonSets and of other schedulers."""
        self._note_change("every pod placed afresh")
        for pod in tuple(self.cluster.pods()):
            is_ours = pod.scheduler_name in self.planner.profiles
            if is_ours and not (pod.is_terminating or belongs_to_node(pod)):
                self._remove(pod)
                self._enqueue(pod, Cause.AFRESH)

    def decide(self, pod: Pod) -> Decision:
        """What would become of the pod at this moment."""
        self._check()
        return self.planner.decide(pod)

    def run(self) -> Outcome:
        """Decide all waiting pods in order of the queue; some again, once others are placed or gone."""
        while self._queue:
            while self._queue:
                fate = self._queue.pop()
                key = self.planner.group_of(fate.pod)
                decided = [self._decide_next(fate)] if key is None else self._decide_group(key, fate)
                for each in decided:
                    self._record(each)
            for uid in [uid for uid, rejected in self._waiting.items() if self._may_pass(rejected)]:
                fate = self._fates[uid]
                self._enqueue(fate.pod, fate.cause, fate.evicted_by)
                del self._waiting[uid]
        return Outcome(tuple(self._fates.values()), tuple(self.changes), tuple(self._groups.values()))

    def _row_of(self, name: str) -> int:
        row = self.cluster.nodes.row_of(name)
        if row is None:
            raise InputError(f"node {name} not found{suggest_names(name, self.cluster.nodes.names)}")
        return row

    def _note_change(self, change: str) -> None:
        self.changes.append(change)

    def _forget(self, keys: Container[str]) -> None:
        """Remove pods that are about to be replaced."""
        for known in [pod for pod in self.cluster.pods() if pod.key in keys]:
            self._remove(known)
        self._queue.forget(keys)

    def _displace(self, pod: Pod, cause: Cause, evicted_by: str = "") -> None:
        """Remove the pod from its node; its controller, if it has one, creates it again."""
        self._remove(pod)
        if is_made_again(pod):
            self._enqueue(pod, cause, evicted_by)
        elif not pod.is_terminating:
            gone = Fate(pod=pod, cause=cause, ending=Ending.GONE, before=pod.node_name, evicted_by=evicted_by)
            self._record(gone)

    def _remove(self, pod: Pod) -> None:
        self.cluster.remove_pod(pod)
        self.planner.followers.tell(pod, is_gone=True)

    def _enqueue(self, pod: Pod, cause: Cause, evicted_by: str = "") -> None:
        if pod.node_name:  # one that leaves its node still belongs to its group
            self.planner.expect((pod.on(""),))
        fate = Fate(pod=pod, cause=cause, ending=Ending.PENDING, before=pod.node_name, evicted_by=evicted_by)
        self._queue.put(fate)

    def _record(self, fate: Fate) -> None:
        self._fates.pop(fate.pod.uid, None)
        self._fates[fate.pod.uid] = fate

    def _decide_next(self, waiting: Fate) -> Fate:
        pod = waiting.pod.on("")
        profile = self.planner.profiles.get(pod.scheduler_name)
        if profile is None:
            return _with_ending(waiting, Ending.ELSEWHERE, f"it is left to {pod.scheduler_name!r}")
        held_back = run_pre_enqueue(profile, pod)
        if held_back is not None:
            ending = Ending.FAILED if held_back.code is Code.ERROR else Ending.HELD_BACK
            return _with_ending(waiting, ending, held_back.message)
        self._turn += 1
        equivalence = equivalence_key(pod, profile)
        known = self._rejected.get(equivalence) if equivalence is not None else None
        if known is not None:
            self._waiting[pod.uid] = known
            return replace(waiting, message=known.message, rejections=known.rejections)
        decision, message = self.decide(pod), ""
        if decision.chosen is None and (leaving := leaving_for(pod, self.cluster)):
            names = join_names([each.key for each in leaving])
            message = f"once {names} {'is' if len(leaving) == 1 else 'are'} gone"
            for each in leaving:
                self._remove(each)
            self._last[EVICTED] = self._turn
            decision = self.decide(pod)
        if fault := error_in(decision):
            return _with_ending(waiting, Ending.FAILED, fault)
        if decision.chosen is None and decision.nominated is None:
            return self._left_waiting(waiting, decision, equivalence)
        self._rejected.clear()
        self._last[PLACED] = self._turn
        victims = decision.victims
        if victims:
            self._last[EVICTED] = self._turn
            decision = self._evict_for(pod, decision)
        if fault := self._reserve(profile, decision):
            return _with_ending(waiting, Ending.FAILED, fault)
        self.planner.carry_out(decision)
        return replace(
            waiting,
            ending=Ending.PLACED,
            node=decision.chosen or decision.nominated or "",
            victims=tuple(victim.key for victim in victims),
            message=message,
        )

    def _decide_group(self, key: GroupKey, first: Fate) -> list[Fate]:
        """Decide a pod and all others of its group that wait, as one."""
        fates = [first, *self._queue.take(lambda pod: self.planner.group_of(pod) == key)]
        done: list[Fate] = []
        ready: dict[str, Fate] = {}
        for fate in fates:
            profile = self.planner.profiles.get(fate.pod.scheduler_name)
            gate = None if profile is None else run_pre_enqueue(profile, fate.pod.on(""))
            if profile is None:
                left = f"it is left to {fate.pod.scheduler_name!r}"
                done.append(_with_ending(fate, Ending.ELSEWHERE, left))
            elif gate is not None:
                ending = Ending.FAILED if gate.code is Code.ERROR else Ending.HELD_BACK
                done.append(_with_ending(fate, ending, gate.message))
                self._groups.setdefault(key, GroupFate(group=str(key), starts=False, text=gate.message))
            else:
                ready[fate.pod.uid] = fate
        if not ready:
            return done
        self._turn += 1
        self._check()
        pods = [fate.pod.on("") for fate in ready.values()]
        found = self.planner.decide_group(key, pods)
        victims = found.victims
        if found.result is Result.WAITING:
            for victim in victims:
                self._displace(victim, Cause.EVICTED, str(key))
            self._last[EVICTED] = self._turn
            again = self.planner.decide_group(key, pods)
            found = again if again.result is Result.SCHEDULED else replace(found, victims=())
        starts = found.result in (Result.SCHEDULED, Result.WAITING)
        self._groups[key] = GroupFate(group=str(key), starts=starts, text=found.summary.partition(": ")[2])
        if starts:
            self._rejected.clear()
            self._last[PLACED] = self._turn
        members = {member.pod.uid: member for member in found.members}
        rejectors = frozenset[str]().union(*(each.decision.rejectors for each in found.members))
        for uid, fate in ready.items():
            done.append(self._end_member(fate, found, members.get(uid), rejectors))
        if starts:
            failed = {fate.pod.uid for fate in done if fate.ending is Ending.FAILED}
            kept = [member for member in found.members if member.pod.uid not in failed]
            self.planner.carry_out_group(replace(found, members=kept))
            if victims:
                at = next(at for at, fate in enumerate(done) if fate.ending is Ending.PLACED)
                done[at] = replace(done[at], victims=tuple(victim.key for victim in victims))
        return done

    def _end_member(
        self, fate: Fate, found: GroupDecision, member: Member | None, rejectors: frozenset[str]
    ) -> Fate:
        if found.result is Result.ERROR or member is None:
            return _with_ending(fate, Ending.FAILED, found.message)
        if found.result is not Result.UNSCHEDULABLE and member.node_name:
            if fault := self._reserve(self.planner.profile_of(member.pod), member.decision):
                return _with_ending(fate, Ending.FAILED, fault)
            return replace(fate, ending=Ending.PLACED, node=member.node_name)
        message, rejections = member.decision.message, tuple[Rejection, ...]()
        if member.node_name or not member.decision.filters:
            total = len(found.members)
            message = f"{found.message}, {found.fitting} of {total} pods fit, {found.needed} are needed"
        else:
            rejections = self._rejections(member.decision)
        # All wait for what would help any of them, so that they are attempted together again.
        name = member.pod.scheduler_name
        self._waiting[member.pod.uid] = RejectedPod(name, message, rejections, rejectors, self._turn)
        return replace(fate, message=message, rejections=rejections)

    def _reserve(self, profile: Profile, decision: Decision) -> str:
        """Let plugins count the volumes and devices that the pod takes; returns what went wrong."""
        if decision.chosen is None or decision.state is None:
            return ""
        for name, plugin in profile.at("reserve"):
            ask = partial(plugin.reserve, seal_state(plugin, decision.state), decision.pod, decision.chosen)
            status = ask_plugin(profile, name, "reserve", ask, decision.pod, decision.chosen)
            if status is not None:
                doing = "" if status.code is Code.ERROR else f'running Reserve plugin "{name}": '
                return f"{doing}{status.message}"
        self.planner.assume_written(decision)
        return ""

    def _evict_for(self, pod: Pod, decision: Decision) -> Decision:
        """Once its victims are gone, the pod is decided again, as it is when their deletion is seen."""
        for victim in decision.victims:
            self._displace(victim, Cause.EVICTED, pod.key)
        nominated = replace(pod, nominated_node_name=decision.nominated or "")
        again = self.decide(nominated)
        return decision if again.chosen is None else again

    def _left_waiting(
        self, waiting: Fate, decision: Decision, equivalence: tuple[object, ...] | None
    ) -> Fate:
        pod, rejections = decision.pod, self._rejections(decision)
        rejected = RejectedPod(
            pod.scheduler_name, decision.message, rejections, decision.rejectors, self._turn
        )
        self._waiting[pod.uid] = rejected
        if equivalence is not None:
            self._rejected[equivalence] = rejected
        return replace(waiting, message=rejected.message, rejections=rejections)

    def _may_pass(self, rejected: RejectedPod) -> bool:
        """Whether something has happened since that a plugin in the pod's way listens to."""
        hints = self._hints[rejected.profile]
        return any(
            turn > rejected.turn and not rejected.rejectors.isdisjoint(hints.listeners(event))
            for event, turn in self._last.items()
        )

    def _rejections(self, decision: Decision) -> tuple[Rejection, ...]:
        """The same for pods that are alike and wait for the same."""
        key = (decision.pod.shape, decision.pod.label_set, decision.message)
        if key not in self._explained and len(self._explained) < EXPLAINED:
            profile = self.planner.profile_of(decision.pod)
            found = explain_decision(
                decision, self.cluster.nodes, profile.scheduler_name, plugins=profile.plugins
            )
            self._explained[key] = tuple(found.rejections)
        return self._explained.get(key, ())


def _with_ending(waiting: Fate, ending: Ending, message: str) -> Fate:
    return replace(waiting, ending=ending, message=message)


MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a pod that the node's kubelet runs from a file."""


def belongs_to_node(pod: Pod) -> bool:
    """Whether the pod stays with its node, come what may, and goes with it: a daemon's, or a static pod."""
    owner = pod.controller
    return MIRROR in pod.annotations or (owner is not None and owner.kind in ("DaemonSet", "Node"))


def is_made_again(pod: Pod) -> bool:
    return pod.controller is not None and not pod.is_terminating


def leaving_for(pod: Pod, cluster: Cluster) -> list[Pod]:
    """The pods that are being deleted on the node that was promised to this one, and matter less."""
    row = cluster.nodes.row_of(pod.nominated_node_name)
    there = () if row is None else cluster.nodes.pods_on(row)
    return [each for each in there if each.is_terminating and each.priority < pod.priority]


def is_protected(pod: Pod, cluster: Cluster) -> bool:
    """Whether a disruption budget allows no eviction of the pod at this time."""
    table = cluster.nodes.pods
    slots = np.array([table.slot_of(pod)], np.intp)
    return bool(Budgets(cluster.pdbs).find_violations(table, slots)[0])


def equivalence_key(pod: Pod, profile: Profile) -> tuple[object, ...] | None:
    """Equal for pods that differ in no more than their names; None where a name may matter.

    It does to claims that are made for the pod, and it may to plugins that we do not know.
    """
    spec = pod.spec
    is_known = all(is_trusted(type(plugin)) for plugin in profile.plugins.values())
    if spec.volumes or spec.resource_claims or pod.nominated_node_name or not is_known:
        return None
    return (pod.shape, pod.label_set, pod.controller, id(pod.annotations))


HOSTNAME = "kubernetes.io/hostname"
OF_CONDITIONS = "node.kubernetes.io/"
"""Taints under it tell of the state that one node is in, not of what kind it is."""


def copy_node(cluster: Cluster, row: int, name: str) -> Iterator[Pod | Object]:
    """The node under a new name, schedulable and healthy, its drivers, devices and the pods of daemons."""
    node = cluster.nodes.objects[row]
    yield _rename(node, name)
    if (drivers := cluster.csi_nodes.get(node.name)) is not None:
        yield msgspec.structs.replace(drivers, metadata=_meta(drivers, name))
    for devices in tuple(cluster.resource_slices):
        spec = devices.spec
        if spec.node_name == node.name:
            pool = msgspec.structs.replace(spec.pool, name=f"{spec.pool.name}-{name}")
            spec = msgspec.structs.replace(spec, node_name=name, pool=pool)
            meta = _meta(devices, f"{devices.name}-{name}")
            yield msgspec.structs.replace(devices, metadata=meta, spec=spec)
    for pod in cluster.nodes.pods_on(row):
        if belongs_to_node(pod) and not pod.is_terminating:
            own = f"{pod.name}-{name}"
            yield msgspec.structs.replace(pod, name=own, uid=f"{pod.namespace}/{own}", node_name=name)


def _rename(node: NodeObject, name: str) -> NodeObject:
    labels = node.labels | ({HOSTNAME: name} if HOSTNAME in node.labels else {})
    taints = tuple(taint for taint in node.spec.taints if not taint.key.startswith(OF_CONDITIONS))
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(_meta(node, name), labels=labels),
        spec=msgspec.structs.replace(node.spec, unschedulable=False, taints=taints),
    )


def _meta(item: Object, name: str) -> ObjectMeta:
    return msgspec.structs.replace(item.metadata, name=name, uid="")
