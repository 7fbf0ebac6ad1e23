"""Members of a pod group placed on trial: where they fit, or where they would once other pods are evicted.

`GroupHost` does the placing. Nobody else sees the tables until the trial is undone or kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from copy import copy
from typing import Protocol

import msgspec

from stowplan.api.groups import IN_TREE, Group, with_priority
from stowplan.api.pod import Pod
from stowplan.cluster import Cluster
from stowplan.cluster.columns import Rows
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.config.gates import PREEMPTION
from stowplan.cycle.sampling import Sampling
from stowplan.cycle.schedule import EqualPods, TieBreak, schedule, schedule_equal
from stowplan.cycle.victims import is_lower
from stowplan.framework.decision import Decision
from stowplan.framework.plugin import GroupPreemptingPlugin, Nomination, ReservingPlugin
from stowplan.framework.profile import Profile
from stowplan.framework.status import Code, Status

UNSCHEDULABLE = "pod group is unschedulable"
OTHER_FAILED = "failed to schedule other pod from a pod group"


class PlacingFailure(Protocol):
    """Why a pod was not placed on the node that was chosen for it."""

    @property
    def message(self) -> str: ...
    @property
    def is_error(self) -> bool: ...


class GroupHost:
    """Runs the steps of single pods for the group cycle; a host of the cycle adds how pods are placed."""

    def __init__(
        self,
        profile: Profile,
        group: Group,
        cluster: Cluster,
        tie_break: TieBreak,
        sampling: Sampling | None,
    ) -> None:
        self.profile, self.group, self.cluster = profile, group, cluster
        self._tie_break, self._sampling = tie_break, sampling
        self.preempts_whole = PREEMPTION in profile.gates and group.key.family == IN_TREE
        """Whether the group preempts as one, with its own priority."""
        self._aside: dict[str, tuple[Pod, bool]] = {}
        self._reserved: dict[str, tuple[Decision, Pod]] = {}
        self._reserving = [
            (name, plugin) for name, plugin in profile.at("reserve") if isinstance(plugin, ReservingPlugin)
        ]
        able = (each for each in profile.plugins.values() if isinstance(each, GroupPreemptingPlugin))
        self._preempting = next((each for each in able if each.preempts_for_groups), None)

    @property
    def nodes(self) -> LiveNodeTable:
        return self.cluster.nodes

    def place(self, decision: Decision, node_name: str) -> PlacingFailure | None:
        """Count the pod as placed; returns what rejected it, if something did, and has undone it then."""
        pod = decision.pod
        placed = self.cluster.assume_pod(pod, node_name)
        self._reserved[pod.uid] = (decision, placed)
        try:
            for _, plugin in self._reserving:  # else the next member would be offered the same devices
                status = None if decision.state is None else plugin.reserve(decision.state, placed, node_name)
                if status is not None:
                    self.undo(pod)
                    return status
        except BaseException:
            self.undo(pod)
            raise
        return None

    def undo(self, pod: Pod) -> None:
        """Undo `place`."""
        decision, placed = self._reserved.pop(pod.uid)
        for _, plugin in reversed(self._reserving):
            if decision.state is not None:
                plugin.unreserve(decision.state, placed, placed.node_name)
        self.cluster.forget_pod(pod)

    def decide(
        self, pod: Pod, within: Rows | None, *, preempts: bool, equal: EqualPods | None = None
    ) -> Decision:
        """Decide a member; `equal` is what is known from an equal one."""
        nodes, preemptor = self.nodes, with_priority(pod, self.group.priority) if self.preempts_whole else pod
        if equal is None:
            decision = schedule(
                self.profile,
                preemptor,
                nodes,
                self._tie_break,
                self._sampling,
                preempts=preempts,
                within=within,
            )
        else:
            decision = schedule_equal(
                equal, self.profile, preemptor, nodes, self._tie_break, self._sampling, within
            )
        decision.pod = pod
        return decision

    def rejection(self, pods: Sequence[Pod]) -> str:
        """Why the group with these members does not preempt; empty if it does."""
        if self._preempting is None:
            return "default preemption plugin is not registered, workload aware preemption is disabled"
        if self.group.topology is not None and self.group.topology.keys:
            return "workload aware preemption is not supported for pod groups with scheduling constraints"
        if self.group.never_preempts or any(pod.spec.preemption_policy == "Never" for pod in pods):
            return "not eligible due to preemptionPolicy=Never."
        preemptor = with_priority(pods[0], self.group.priority)
        ranks = self.cluster.groups.ranks(preemptor)
        if not is_lower(self.nodes, preemptor.priority, ranks).any():
            return "No preemption victims found for incoming preemptor"
        return ""

    def preempt(self, decision: Decision) -> Nomination | Status:
        """Look for pods to evict, with the priority of the group."""
        assert decision.state is not None
        assert self._preempting is not None
        pod = with_priority(decision.pod, self.group.priority)
        return self._preempting.preempt_for_group(decision.state, pod, decision)

    def is_clearing(self, member: Member) -> bool:
        """Whether pods that were evicted for the member are still on their way out."""
        node_name = member.pod.nominated_node_name or self.profile.handle.nominations.node_of(member.pod)
        return any(member.decision.victims_leaving(self.nodes, node_name))

    def take_off(self, victims: Iterable[Pod]) -> None:
        """Count these pods as evicted."""
        for pod, is_assumed in self.cluster.set_aside(victims):
            self._aside[pod.uid] = (pod, is_assumed)

    def put_back(self, victims: Iterable[Pod]) -> None:
        """Undo `take_off`."""
        known = (self._aside.pop(pod.uid, None) for pod in victims)
        self.cluster.bring_back([each for each in known if each is not None])


class Member(msgspec.Struct):
    """What became of a member."""

    pod: Pod
    decision: Decision
    node_name: str = ""
    """Where it fits, whether or not the group does."""
    failure: PlacingFailure | None = None
    """What rejected it after its node was chosen."""
    is_preempting: bool = False
    """Whether it fits only once victims are gone."""


class GroupError(Exception):
    """A member, or a step of the whole group, failed; the attempt ends."""

    def __init__(self, message: str, member: Member | None = None) -> None:
        super().__init__(message)
        self.member = member


class Trial:
    """Members of a group placed one after another. The caller must `undo` it, or keep what it placed.

    With `shares`, equal members share a rejection.
    """

    def __init__(self, host: GroupHost, pods: Sequence[Pod], *, shares: bool) -> None:
        self._host, self._pods, self._shares = host, pods, shares
        self.members: dict[str, Member] = {}
        self.placed: list[Pod] = []
        self.victims: list[Pod] = []

    def undo(self) -> None:
        for pod in reversed(self.placed):
            self._host.undo(pod)
        self.placed.clear()
        if self.victims:
            self._host.put_back(self.victims)

    def place(self, order: Sequence[Pod], within: Rows | None) -> None:
        """Place as many members as fit; if something fails, none."""
        try:
            waiting = list(order)
            while waiting:
                count = len(self.placed)
                rejected = self._place_each(waiting, within)
                if len(self.placed) == count:
                    break
                # Only these can fit better with more members in place.
                waiting = [pod for pod in rejected if _looks_for_others(pod)]
        except BaseException:
            self.undo()
            raise

    def _place_each(self, pods: Sequence[Pod], within: Rows | None) -> list[Pod]:
        """Place those that fit; returns the others."""
        rejected: list[Pod] = []
        alike: dict[Hashable, tuple[int, Decision]] = {}
        equals: dict[Hashable, EqualPods] = {}
        profile, kinds = self._host.profile, [kind_of(pod) for pod in pods]
        counts = Counter(pod.shape for pod in pods)
        for pod, kind in zip(pods, kinds, strict=True):
            count, decision = alike.get(kind, (-1, None))
            # Pods of a Job may each have a label of their own.
            shape = kind if kind == pod.uid else (pod.shape, id(pod.controller))
            equal, is_alone = equals.get(shape), True
            if decision is not None and count == len(self.placed):
                decision = copy(decision)  # nothing has changed since an equal one was rejected
                decision.pod = pod
            else:
                decision = self._host.decide(pod, within, preempts=False, equal=equal)
                if equal is None:
                    is_alone = EqualPods.looks_alone(profile, decision)
                    if is_alone and counts[pod.shape] > 1:
                        equals[shape] = EqualPods(profile, decision)
            member = self.members[pod.uid] = Member(pod, decision)
            if decision.error is not None:
                raise GroupError(f"{OTHER_FAILED}: {decision.error}", member)
            if decision.chosen is None:
                if self._shares:
                    alike[kind] = (len(self.placed), decision)
                rejected.append(pod)
                continue
            self._put(member, decision.chosen)
            if member.failure is not None:
                rejected.append(pod)
            if member.failure is not None or not is_alone:
                equals.clear()
        return rejected

    def _put(self, member: Member, node_name: str) -> None:
        member.failure = self._host.place(member.decision, node_name)
        if member.failure is None:
            member.node_name = node_name
            self.placed.append(member.pod)
        elif member.failure.is_error:
            raise GroupError(f"{OTHER_FAILED}: {member.failure.message}", member)

    def preempt(self, within: Rows | None, enough: int) -> None:
        """Place members that did not fit where they would without pods of lower priority, until `enough` are.

        Also where that leads to nothing, the members say why.
        """
        alike: dict[Hashable, tuple[int, Decision]] = {}
        for pod in self._pods:
            member = self.members[pod.uid]
            if member.node_name or member.failure is not None:
                continue
            kind = kind_of(pod) if self._shares and not pod.nominated_node_name else pod.uid
            count, decision = alike.get(kind, (-1, None))
            if decision is not None and count == len(self.placed):
                decision = copy(decision)
                decision.pod = pod
            else:
                decision = self._host.decide(pod, within, preempts=True)
                alike[kind] = (len(self.placed), decision)
            if decision.error is not None:
                raise GroupError(f"{OTHER_FAILED}: {decision.error}", member)
            member.decision = decision
            node_name = decision.chosen or decision.nominated
            if node_name is None or len(self.placed) >= enough:
                continue
            member.is_preempting = decision.chosen is None
            if decision.victims:
                self._host.take_off(decision.victims)
                self.victims += decision.victims
            self._put(member, node_name)

    def preempt_whole(self, needed: int) -> str:
        """Do the same with the group's priority, for all members that are needed. Returns why not, if so."""
        if rejection := self._host.rejection(self._pods):
            return rejection
        for pod in self._pods:
            if len(self.placed) >= needed:
                break
            member = self.members[pod.uid]
            if member.node_name or member.failure is not None:
                continue
            decision = self._host.decide(pod, None, preempts=False)
            if decision.error is not None:
                raise GroupError(f"{OTHER_FAILED}: {decision.error}", member)
            if decision.chosen is not None:  # victims of a member before it made room for this one, too
                member.decision.state = decision.state
                self._put(member, decision.chosen)
                member.is_preempting = True
                continue
            answer = self._host.preempt(decision)
            if isinstance(answer, Status):
                if answer.code is Code.ERROR:
                    raise GroupError(answer.message, member)
                continue
            self._host.take_off(answer.victims)
            self.victims += answer.victims
            member.is_preempting = True
            member.decision.state = decision.state
            self._put(member, answer.node_name)
        return "" if len(self.placed) >= needed else UNSCHEDULABLE


def kind_of(pod: Pod) -> Hashable:
    """Equal for members that get the same answers; members with claims or volumes of their own differ."""
    if (
        pod.spec.resource_claims
        or pod.nominated_node_name
        or any(volume.ephemeral is not None for volume in pod.spec.volumes)
    ):
        return pod.uid
    return (pod.shape, pod.label_set, id(pod.controller))


def _looks_for_others(pod: Pod) -> bool:
    affinity = pod.spec.affinity
    wants = affinity is not None and affinity.pod_affinity is not None
    return wants or bool(pod.spec.topology_spread_constraints)
