"""Pod groups in the running scheduler: their members are taken from the queue, decided and bound as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from stowplan import log
from stowplan.api.groups import (
    IN_TREE,
    Group,
    GroupKey,
    GroupObject,
    VolcanoCondition,
    VolcanoPodGroup,
    with_priority,
)
from stowplan.api.pod import Pod
from stowplan.client.api import MERGE_PATCH, STRATEGIC_MERGE_PATCH, custom
from stowplan.client.errors import ApiError, NotFound
from stowplan.cluster import Cluster
from stowplan.cluster.columns import Rows
from stowplan.config.gates import PREEMPTION
from stowplan.cycle.group import GroupDecision, Result, decide_group, in_order, needed_count
from stowplan.cycle.group_trial import GroupHost, Member
from stowplan.cycle.sampling import Sampling
from stowplan.cycle.schedule import EqualPods, TieBreak
from stowplan.framework.decision import Decision
from stowplan.framework.profile import Profile
from stowplan.queue.scheduling_queue import SchedulingQueue
from stowplan.queue.waiting import QueuedPod
from stowplan.scheduler.binding import NOT_LEADING, GroupBinding, PodBinder
from stowplan.scheduler.failure import NOBODY, UNCHANGED, FailureHandler, timestamp
from stowplan.scheduler.measuring import CycleObserver
from stowplan.scheduler.shared import Attempt, Failure, RetryDelay, Shared, failure_of

WAIT = (
    "waiting for minCount pods from a gang to be scheduled, "
    "one or more plugins asked to wait and no plugin rejected pod"
)
OTHER_NAMES = "all pods in a single pod group should have the same .spec.schedulerName set"


MAX_UNSEEN = 1000
"""How many groups to remember whose new condition the watch has not shown yet."""


class GroupScheduler:
    """Decides groups, and hands their members on to the binder or the handler of failures."""

    def __init__(
        self, shared: Shared, queue: SchedulingQueue, binder: PodBinder, failures: FailureHandler
    ) -> None:
        self._shared, self._queue, self._binder, self._failures = shared, queue, binder, failures
        self._status = GroupStatusWriter(shared)

    def take_members(self, key: GroupKey, queued: QueuedPod) -> list[QueuedPod]:
        """All members to attempt together with one that was popped; empty if the group is gone."""
        groups, pending = self._shared.cluster.groups, self._shared.pending
        members = groups.members(key)
        others = (pod for uid, pod in members.items() if uid != queued.pod.uid and uid in pending)
        taken = [queued, *self._queue.take_members(others)]
        if groups.find(key) is None:
            for each in taken:
                self._queue.give_back(each)
            return []
        left = []
        for each in taken:
            if self._shared.cluster.is_assumed(each.pod):
                self._queue.done(each.pod.uid)
            else:
                left.append(each)
        return left

    def reject_mixed(self, taken: Sequence[QueuedPod], profiles: dict[str, Profile]) -> bool:
        """Whether the members name several schedulers, which fails all of them."""
        names = list(dict.fromkeys(queued.pod.scheduler_name for queued in taken))
        if len(names) < 2:
            return False
        text = f'{OTHER_NAMES}, got: "{names[0]}" and "{names[1]}"'
        for queued in taken:
            self.fail([queued], profiles[queued.pod.scheduler_name], text)
        return True

    def fail(self, taken: Iterable[QueuedPod], profile: Profile, message: str) -> None:
        """Fail members that were not attempted, with an error that concerns all of them."""
        for queued in taken:
            decision = Decision(queued.pod, self._shared.cluster.nodes)
            decision.error = message
            attempt = Attempt(queued, profile, decision, self._shared.clock())
            self._failures.handle(attempt, Failure(message, is_of_group=True), NOBODY)

    def schedule(
        self,
        key: GroupKey,
        taken: Sequence[QueuedPod],
        profile: Profile,
        observer: CycleObserver,
        tie_break: TieBreak,
        sampling: Sampling | None,
    ) -> None:
        """Decide all members. Nothing here waits, so the cluster is the same from start to end."""
        shared, began = self._shared, self._shared.clock()
        groups = shared.cluster.groups
        group = groups.find(key)
        assert group is not None
        host = LiveHost(group, shared, profile, self._binder, observer, tie_break, sampling, taken, began)
        pods = in_order(queued.pod for queued in taken)
        placed = groups.placed(key)
        needed = needed_count(group, len(placed), groups.succeeded(key), len(pods))
        found = decide_group(host, group, pods, placed, needed)
        seconds = shared.clock() - began
        shared.metrics.group_algorithm(seconds)
        log.log(3, "Decided pod group", podGroup=str(key), result=found.result, fitting=found.fitting)
        summary = found.summary
        for member in found.members:
            member.decision.group = summary
        if found.result is Result.SCHEDULED and not shared.is_leading():
            host.undo_all()
            for queued in taken:
                self._failures.handle(host.attempt(queued.pod), NOT_LEADING, UNCHANGED)
            return
        if found.result is Result.SCHEDULED:
            self._bind(host, found)
        elif found.result is Result.ERROR:
            self._fail_all(host, found, taken)
        else:
            self._requeue(host, found)
        shared.metrics.group_attempt(profile.scheduler_name, found.result, shared.clock() - began)
        self._status.write(key, found)

    def _bind(self, host: LiveHost, found: GroupDecision) -> None:
        fitting = [member for member in found.members if member.node_name]
        held = [member.pod.uid for member in fitting if self._shared.waiting.find(member.pod.uid) is not None]
        nodes = {member.pod.uid: member.node_name for member in fitting}
        binding = GroupBinding(nodes, held, found.needed)
        for member in fitting:
            attempt, placed = host.placed[member.pod.uid]
            self._binder.start_placed(attempt._replace(group=binding), placed, member.node_name)
        for member in found.members:
            if member.node_name:
                continue
            if (failure := _placing_failure(member)) is not None:
                self._failures.handle(host.attempt(member.pod, member.decision), failure, NOBODY)
            else:  # it waits, and may preempt, like a pod without a group, but in the group's domain
                decision = host.decide(member.pod, found.within, preempts=True)
                if decision.chosen is not None:  # sampled nodes may differ
                    decision = member.decision
                decision.group = member.decision.group
                generators = () if found.within is None else host.profile.at("placementGenerate")
                self._failures.handle_decision(
                    host.attempt(member.pod, decision), also=[name for name, _ in generators]
                )

    def _requeue(self, host: LiveHost, found: GroupDecision) -> None:
        """Nothing is held: every member waits for what would help any of them."""
        failures: dict[str, Failure] = {}
        known: dict[tuple[object, ...], Failure] = {}
        for member in found.members:
            # Equal members share what was decided for the first of them, and so what it says.
            decision = member.decision
            kind = (
                id(decision.filters),
                id(decision.overruled),
                id(decision.post_filter),
                member.node_name,
                member.is_preempting,
            )
            if kind not in known or member.failure is not None:
                known[kind] = _failure(found, member)
            failures[member.pod.uid] = known[kind]
        holding = host.profile.plugins_holding(found.group.key.family)
        rejectors = holding.union(*(failure.rejectors for failure in failures.values()))
        if found.members and not any(map(_was_looked_at, found.members)):
            rejectors |= {name for name, _ in host.profile.at("placementGenerate")}
        is_waiting = found.result is Result.WAITING
        keeps = is_waiting or any(map(_is_preempted_for, found.members))
        for member in found.members:
            failure = failures[member.pod.uid]
            if member.decision.node_count:
                # Also a member that fits may be the one that moves: an event that helps it helps all.
                failure = failure._replace(rejectors=rejectors)
            nominated: str | None = NOBODY
            if keeps:  # its status may not show yet what it was nominated to
                nominated = self._shared.nominations.node_of(member.pod) or UNCHANGED
            if is_waiting and member.node_name:
                nominated = member.node_name
            attempt = host.attempt(member.pod, member.decision)
            self._failures.handle(attempt, failure._replace(is_of_group=True), nominated)
        if is_waiting:
            self._evict(host.profile, found)

    def _evict(self, profile: Profile, found: GroupDecision) -> None:
        members = [member for member in found.members if member.node_name]
        pods = [member.pod for member in members]
        if not found.victims:
            return
        if PREEMPTION not in profile.gates:
            evictions = [
                (member.pod, member.node_name, member.decision.victims)
                for member in members
                if member.is_preempting
            ]
            self._failures.evictor.start_group(profile, pods, evictions)
            return
        # The group preempts, not a member: nominations of lower priority on all of its nodes must go.
        evictions = [
            (with_priority(member.pod, found.group.priority), member.node_name, ()) for member in members
        ]
        pod, node_name, _ = evictions[-1]
        evictions[-1] = (pod, node_name, found.victims)
        self._failures.evictor.start_group(profile, pods, evictions, found.group.uid)
        self._status.write_disrupted(profile, found.victims)

    def _fail_all(self, host: LiveHost, found: GroupDecision, taken: Iterable[QueuedPod]) -> None:
        known = {member.pod.uid: member for member in found.members}
        for queued in taken:
            pod, member = queued.pod, known.get(queued.pod.uid)
            decision = Decision(pod, host.nodes) if member is None else member.decision
            failure = Failure(found.message)
            if member is not None and (placing := _placing_failure(member)) is not None:
                failure = placing
            elif member is not None and decision.error is not None:
                failure = failure_of(decision)
            else:
                decision.error = found.message
            self._failures.handle(
                host.attempt(pod, decision), failure._replace(is_of_group=True, rejectors=frozenset()), NOBODY
            )


def _placing_failure(member: Member) -> Failure | None:
    """What `LiveHost.place` returned."""
    assert member.failure is None or isinstance(member.failure, Failure)
    return member.failure


def _failure(found: GroupDecision, member: Member) -> Failure:
    """What a member of a group that was not placed says."""
    if (failure := _placing_failure(member)) is not None:
        return failure
    if not member.decision.names:
        return failure_of(member.decision)
    if found.result is Result.WAITING and member.node_name and not member.is_preempting:
        return Failure(found.message, is_error=False)
    if member.node_name and found.result is not Result.WAITING:
        return Failure(f"{found.message}, {_wait_text(found)}", is_error=False)
    if not _was_looked_at(member) and member.decision.pre_filter is None:
        return Failure(found.message, is_error=False)  # there was no domain to look at
    return failure_of(member.decision)


def _was_looked_at(member: Member) -> bool:
    """Whether nodes rejected the member, also those where others are nominated."""
    return bool(member.decision.filters or member.decision.overruled)


def _wait_text(found: GroupDecision) -> str:
    if found.group.key.family == IN_TREE:
        return WAIT
    short = next((member for member in found.members if not member.node_name), None)
    text = f"{found.fitting} of {len(found.members)} pods fit, {found.needed} are needed"
    return text if short is None else f"{text}; pod {short.pod.name}: {short.decision.message}"


def _is_preempted_for(member: Member) -> bool:
    """Whether victims of an earlier attempt are on their way out, so that the nominations stay."""
    status = member.decision.post_filter
    return status is not None and status.keeps_nomination and bool(member.pod.nominated_node_name)


def group_ranked(cluster: Cluster, pod: Pod) -> Pod:
    """The pod with the priority of its group, which its nomination has."""
    key = cluster.group_of(pod)
    group = None if key is None or key.family != IN_TREE else cluster.groups.find(key)
    return pod if group is None else with_priority(pod, group.priority)


class LiveHost(GroupHost):
    """Decides and places members on the live cluster. Nobody else runs until the group is decided."""

    def __init__(
        self,
        group: Group,
        shared: Shared,
        profile: Profile,
        binder: PodBinder,
        observer: CycleObserver,
        tie_break: TieBreak,
        sampling: Sampling | None,
        taken: Iterable[QueuedPod],
        began: float,
    ) -> None:
        super().__init__(profile, group, shared.cluster, tie_break, sampling)
        self._shared, self._binder, self._observer, self._began = shared, binder, observer, began
        self._queued = {queued.pod.uid: queued for queued in taken}
        self.placed: dict[str, tuple[Attempt, Pod]] = {}
        self._nominated: dict[str, str] = {}

    def attempt(self, pod: Pod, decision: Decision | None = None) -> Attempt:
        seconds = self._shared.clock() - self._began
        decision = Decision(pod, self.nodes) if decision is None else decision
        measuring = self._observer.is_measuring
        return Attempt(self._queued[pod.uid], self.profile, decision, self._began, seconds, measuring)

    def decide(
        self, pod: Pod, within: Rows | None, *, preempts: bool, equal: EqualPods | None = None
    ) -> Decision:
        self._observer.begin()
        decision = super().decide(pod, within, preempts=preempts, equal=equal)
        self._observer.end(self.profile, decision)
        return decision

    def place(self, decision: Decision, node_name: str) -> Failure | None:
        pod, nominations = decision.pod, self._shared.nominations
        attempt, known = self.attempt(pod, decision), nominations.node_of(pod)
        placed = self._binder.place(attempt, node_name)
        if known is not None:
            self._nominated[pod.uid] = known
        if isinstance(placed, Failure):
            self._renominate(pod)
            return placed
        self.placed[pod.uid] = (attempt, placed)
        return None

    def undo(self, pod: Pod) -> None:
        attempt, placed = self.placed.pop(pod.uid)
        self._binder.undo(attempt, placed, placed.node_name)
        self._renominate(pod)

    def undo_all(self) -> None:
        for uid in reversed(tuple(self.placed)):
            self.undo(self._queued[uid].pod)

    def _renominate(self, pod: Pod) -> None:
        node_name = self._nominated.pop(pod.uid, None)
        if node_name is not None:
            self._shared.nominations.put(pod, node_name)


class GroupStatusWriter:
    """Writes whether a group was placed, under the condition that its version of the API has."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._scheduled: dict[GroupKey, str] = {}
        """The uids of groups that we said are scheduled, until the watch shows it."""

    def write(self, key: GroupKey, found: GroupDecision) -> None:
        item = self._shared.cluster.groups.object_of(key)
        if isinstance(item, VolcanoPodGroup):
            groups = self._shared.cluster.groups
            has = len(groups.placed(key)) + groups.succeeded(key)
            is_ready = found.result is Result.SCHEDULED or has >= found.group.min_count > 0
            text = "" if is_ready else self._volcano_text(key, found)
            conditions = volcano_conditions(item, text, self._shared.now())
            if conditions != item.status.conditions:
                plain = msgspec.to_builtins(conditions)
                work = self._patch(item, {"status": {"conditions": plain}})
                self._shared.tasks.start(work, f"status of pod group {key}")
            return
        if item is None or not item.condition_type:
            return
        if found.result is Result.SCHEDULED:
            condition = {"status": "True", "reason": "Scheduled", "message": ""}
            if not found.group.was_scheduled:
                self._remember(key, found.group.uid)
        elif self._scheduled.get(key) == found.group.uid:
            return  # a group that was placed stays so
        else:
            reason = "SchedulerError" if found.result is Result.ERROR else "Unschedulable"
            condition = {"status": "False", "reason": reason, "message": found.message}
        patch = condition_patch(item, condition, self._shared.now())
        if patch:
            self._shared.tasks.start(self._patch(item, patch), f"status of pod group {key}")

    def _volcano_text(self, key: GroupKey, found: GroupDecision) -> str:
        """Why the group was not placed, in Volcano's words."""
        groups, pending = self._shared.cluster.groups, len(found.members)
        placed = groups.placed(key)
        running = sum(1 for pod in placed if pod.phase == "Running")
        tasks = {
            "Pending": pending,
            "Running": running,
            "Bound": len(placed) - running,
            "Succeeded": groups.succeeded(key),
        }
        total = sum(tasks.values())
        of_pending = {"Schedulable": found.fitting, "Unschedulable": pending - found.fitting}
        text = f"{found.needed}/{total} tasks in gang unschedulable: pod group is not ready, "
        text += _histogram({**tasks, "minAvailable": found.group.min_count})
        text += f"; Pending: {_histogram(of_pending)}"
        short = next((member for member in found.members if not member.node_name), None)
        if short is None:
            return text
        why = _failure(found, short).message if found.result is not Result.ERROR else found.message
        return f"{text}. Origin reason is {short.pod.name}: {why}"

    def _remember(self, key: GroupKey, uid: str) -> None:
        if len(self._scheduled) >= MAX_UNSEEN:
            find = self._shared.cluster.groups.find
            seen = [each for each in self._scheduled if (group := find(each)) is None or group.was_scheduled]
            for each in seen or list(self._scheduled)[: MAX_UNSEEN // 2]:
                del self._scheduled[each]
        self._scheduled[key] = uid

    def write_disrupted(self, profile: Profile, victims: Iterable[Pod]) -> None:
        """Say on groups that are evicted as a whole why they are."""
        groups = self._shared.cluster.groups
        whole = groups.whole()
        keys = {groups.key_of(pod) for pod in victims}
        for key in whole.keys() & keys:
            item = groups.object_of(key)
            if item is not None and item.condition_type:
                text = f"{profile.scheduler_name}: preempting to accommodate a higher priority podgroup"
                condition = {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "PreemptionByScheduler",
                    "message": text,
                    "lastTransitionTime": timestamp(self._shared.now()),
                }
                patch = {"status": {"conditions": [condition]}}
                self._shared.tasks.start(self._patch(item, patch), f"status of pod group {key}")

    async def _patch(self, item: GroupObject, patch: dict[str, Any]) -> None:
        path, form = custom(type(item)).item(item.namespace, item.name), MERGE_PATCH
        if item.definition.has_status:
            path, form = f"{path}/status", STRATEGIC_MERGE_PATCH
        delay = RetryDelay()
        while True:
            try:
                await self._shared.api.request("PATCH", path, patch, content_type=form)
            except NotFound:
                return  # it was deleted
            except ApiError as error:
                log.error("Error updating pod group", error.explanation, podGroup=item.key)
                if not await delay.pause(error):
                    return
            else:
                return


def _histogram(counts: Mapping[str, int]) -> str:
    return ", ".join(sorted(f"{count} {name}" for name, count in counts.items() if count))


def volcano_conditions(item: VolcanoPodGroup, why: str, now: float) -> tuple[VolcanoCondition, ...]:
    """The conditions of a PodGroup of Volcano; `why` is empty if it was placed."""
    found = {each.type: each for each in item.status.conditions}
    wanted = [VolcanoCondition(type="Unschedulable", status="True", reason="NotEnoughResources", message=why)]
    if not why:
        ready = "tasks in gang are ready to be scheduled"
        wanted = [VolcanoCondition(type="Scheduled", status="True", reason=ready)]
        if "Unschedulable" in found:
            wanted.append(VolcanoCondition(type="Unschedulable", status="False", reason="Scheduled"))
    for each in wanted:
        known = found.get(each.type)
        same = known is not None and (known.status, known.reason, known.message) == (
            each.status,
            each.reason,
            each.message,
        )
        if not same:
            found[each.type] = msgspec.structs.replace(
                each, last_transition_time=timestamp(now), transition_id=str(uuid4())
            )
    return tuple(found.values())


def condition_patch(item: GroupObject, condition: dict[str, Any], now: float) -> dict[str, Any]:
    """A strategic merge patch; empty if nothing is to be said. A group that was placed stays so."""
    known = next((each for each in item.status.conditions if each.type == item.condition_type), None)  # type: ignore[attr-defined]
    if known is not None:
        if known.status == "True":
            return {}
        if (known.status, known.reason, known.message) == tuple(condition.values()):
            return {}
    changed = known is None or known.status != condition["status"]
    since = timestamp(now) if changed or known is None else known.last_transition_time
    return {
        "status": {"conditions": [{"type": item.condition_type, **condition, "lastTransitionTime": since}]}
    }
