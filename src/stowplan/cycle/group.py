"""The group cycle: the pending members of a pod group in, one decision for all of them out.

Members are decided one after another, each placed on the live tables before the next, so that they see each
other as any two pods do. Whoever runs the cycle does the placing (`GroupHost`) and lets nobody else see the
tables meanwhile. If enough members fit, they stay placed; otherwise everything is undone, in reverse order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from stowplan.api import requests
from stowplan.api.amounts import amount_text
from stowplan.api.groups import VOLCANO, Group, task_of
from stowplan.api.pod import Pod
from stowplan.api.queues import HyperNode
from stowplan.cluster.columns import Ints, Rows
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.cycle.group_trial import UNSCHEDULABLE, GroupError, GroupHost, Member, Trial, kind_of
from stowplan.cycle.topology import hyper_node_levels
from stowplan.framework.answers import describe
from stowplan.framework.decision import Decision
from stowplan.framework.plugin import Placement, Placements, Plugin, is_trusted
from stowplan.framework.status import Code, Status

WAITING = f"{UNSCHEDULABLE}, pod group is waiting for preemption to complete"


class Result(StrEnum):
    """How an attempt for a group ended, as metrics name it."""

    SCHEDULED = "scheduled"
    WAITING = "waiting_on_preemption"
    UNSCHEDULABLE = "unschedulable"
    ERROR = "error"


class PlacementTrial(msgspec.Struct):
    """How many members fit into a domain; -1 if its free resources alone rule it out."""

    name: str
    count: int
    lacks: str = ""
    """What resources it lacks; only known of the best one, after a failure."""


class GroupDecision(msgspec.Struct):
    """What became of a group."""

    group: Group
    result: Result
    members: list[Member]
    """All of them; after an error only the one that failed, if it was one."""
    message: str = ""
    victims: tuple[Pod, ...] = ()
    """Pods to evict; then every member with a node fits on it."""
    needed: int = 0
    """How many members had to be placed at least."""
    placement: str = ""
    """The domain that was chosen."""
    within: Rows | None = None
    """The rows of its nodes; None for all."""
    trials: list[PlacementTrial] = []
    lacks: str = ""
    """What resources the nodes lack for the members that are needed, after a failure without domains."""

    @property
    def fitting(self) -> int:
        return sum(1 for member in self.members if member.node_name)

    @property
    def summary(self) -> str:
        """What became of the group, for people."""
        total = len(self.members)
        text = f"Decided with pod group {self.group.key}: "
        if self.result is Result.ERROR:
            return f"{text}{self.message}."
        least = f"at least {self.needed} {'was' if self.needed == 1 else 'were'} needed"
        text += f"{self.fitting} of {total} pods fit"
        if self.result is Result.WAITING and self.victims:
            text += (
                " once 1 pod is evicted"
                if len(self.victims) == 1
                else f" once {len(self.victims)} pods are evicted"
            )
        elif self.result is Result.WAITING:
            text += " before evicted pods end"
        text = f"{text}, {least}."
        if self.placement:
            text += f" All of them go into domain {self.placement}."
        elif self.trials:
            best = max(self.trials, key=lambda trial: (bool(trial.lacks), trial.count))
            lacking = sum(1 for trial in self.trials if trial.count < 0)
            lacks = f" The best, {best.name}, lacks {best.lacks}." if best.lacks else ""
            if best.count < 0:
                return f"{text} No domain has the free resources for them.{lacks}"
            text += f" No domain takes enough: the best of {len(self.trials)} domains, {best.name}, "
            text += f"takes {best.count}" + (f" and lacks {best.lacks}" if best.lacks else "")
            text += f"; {lacking} lack the free resources." if lacking else "."
        elif self.lacks:
            text += f" The nodes that they may use lack {self.lacks}."
        return text


def needed_count(group: Group, placed: int, succeeded: int, pending: int) -> int:
    """How many of the pending members must be placed for the group to go ahead."""
    if group.policy == "basic":
        return 1
    missing = group.min_count - placed - succeeded
    if group.was_scheduled:  # some of its members may have ended without our seeing it
        missing = min(missing, pending)
    return max(missing, 1)


def in_order(pods: Iterable[Pod]) -> list[Pod]:
    """Members in the order in which they are attempted first: priority, age, name."""
    return sorted(pods, key=lambda pod: (-pod.priority, pod.creation_timestamp or "", pod.name))


def decide_group(
    host: GroupHost, group: Group, pods: Sequence[Pod], placed: Sequence[Pod], needed: int
) -> GroupDecision:
    """Decide all pending members at once.

    With the result SCHEDULED the members that fit are placed, otherwise none is.
    """
    try:
        return _GroupCycle(host, group, pods, placed, needed).decide()
    except GroupError as error:
        members = [] if error.member is None else [error.member]
        return GroupDecision(group, Result.ERROR, members, str(error), needed=needed)


def try_group(
    host: GroupHost, group: Group, pods: Sequence[Pod], placed: Sequence[Pod], needed: int
) -> GroupDecision:
    """As `decide_group`, but nothing stays placed."""
    found = decide_group(host, group, pods, placed, needed)
    if found.result is Result.SCHEDULED:
        for member in reversed(found.members):
            if member.node_name:
                host.undo(member.pod)
    return found


def decide_within(
    host: GroupHost, group: Group, pods: Sequence[Pod], placed: Sequence[Pod], needed: int, rows: Rows
) -> GroupDecision:
    """What would become of the members on these nodes. Nothing stays placed."""
    trial = _GroupCycle(host, group, pods, placed, needed)
    found = trial._in_any_order(rows)
    if found.result is Result.SCHEDULED:
        trial._undo(found)
    return found


class _GroupCycle:
    def __init__(
        self, host: GroupHost, group: Group, pods: Sequence[Pod], placed: Sequence[Pod], needed: int
    ) -> None:
        self._host, self._group, self._pods, self._placed = host, group, pods, placed
        self._needed = needed
        profile = host.profile
        steps: list[Plugin] = [step.plugin for step in profile.filters]
        steps += [plugin for _, plugin, _ in profile.pre_filters]
        self._shares = all(is_trusted(type(plugin)) for plugin in steps)
        """Whether equal members can share a rejection: plugins of others may look at names."""
        self._has_network_topology = group.key.family == VOLCANO and group.topology is not None
        self._scorers = profile.placement_scores
        self._fits = {name: plugin for name, plugin in profile.plugins.items() if plugin.fits_resources}
        """The plugins that compare requests with free resources; mostly one."""
        if not self._scorers:  # without the gate of placementScore
            self._scorers = [(name, plugin, 1) for name, plugin in self._fits.items()]

    def decide(self) -> GroupDecision:
        if gap := resource_gap(self._group, self._host.nodes, self._placed):
            return self._without_placement(gap)
        generators = self._host.profile.at("placementGenerate")
        found: Placements | Sequence[Placements] | Status
        if self._has_network_topology:
            items = self._host.cluster.watched(HyperNode)
            assert self._group.topology is not None
            found = hyper_node_levels(self._group.topology, self._placed, self._host.nodes, items)
        elif not generators:
            return self._in_any_order(None, explains=True)
        else:
            (_, plugin) = generators[0]
            try:
                found = plugin.placement_generate(self._group, self._placed, self._host.nodes)
            except Exception as error:
                raise GroupError(describe(error)) from error
        if isinstance(found, Status):
            if found.code is Code.ERROR:
                raise GroupError(found.message)
            return self._without_placement(found.message)
        levels = (found,) if isinstance(found, Mapping) else tuple(found)
        for level in levels[:-1]:
            decided = self._in_best(level, is_last=False)
            if decided.result is Result.SCHEDULED:
                return decided
        return self._in_best(levels[-1])

    def _without_placement(self, message: str) -> GroupDecision:
        members = [Member(pod, Decision(pod, self._host.nodes)) for pod in self._pods]
        for each in members:
            each.decision.notes = tuple(self._host.profile.notes_on(each.pod))
        return GroupDecision(self._group, Result.UNSCHEDULABLE, members, message, needed=self._needed)

    # Without domains

    def _in_any_order(self, within: Rows | None, *, explains: bool = False) -> GroupDecision:
        """Try the members in their order, then the largest and the most constrained ones first.

        With `explains` the result stands, so that members say why they do not fit, and others may be evicted.
        """
        first = self._attempt(self._pods, within)
        if self._is_enough(first):
            return self._scheduled(first)
        text, is_clearing = "", False
        try:
            if explains and not self._has_network_topology:  # parity: such groups of Volcano do not preempt
                first.preempt(within, self._needed if self._group.policy == "gang" else len(self._pods))
            if self._host.preempts_whole:
                is_clearing = any(map(self._host.is_clearing, first.members.values()))
                text = "" if is_clearing or not explains else first.preempt_whole(self._needed)
            makes_room = self._is_enough(first)
        finally:
            first.undo()
        for order in self._other_orders(first):
            trial = self._attempt(order, within)
            if self._is_enough(trial):
                return self._scheduled(trial)
            trial.undo()
        result = Result.WAITING if makes_room or is_clearing else Result.UNSCHEDULABLE
        lacks = self._lacks(first, within) if explains and result is Result.UNSCHEDULABLE else ""
        # parity: a group that preempts as one does not say that it waits
        is_said = result is Result.WAITING and not self._host.preempts_whole
        message = WAITING if is_said else UNSCHEDULABLE
        return GroupDecision(
            self._group,
            result,
            self._members(first),
            f"{message}, {text}" if text and not makes_room else message,
            victims=tuple(first.victims) if makes_room else (),
            needed=self._needed,
            lacks=lacks,
        )

    def _lacks(self, trial: Trial, within: Rows | None) -> str:
        """What the nodes lack that only resources rule out for a member that does not fit."""
        decisions = (each.decision for each in trial.members.values() if not each.node_name)
        decision = next((each for each in decisions if each.filters), None)
        rows = self._host.nodes.rows if within is None else within
        if decision is not None:
            ruled_out = [each.fails for each in decision.filters if each.plugin not in self._fits]
            others = decision.looked_at[np.any(ruled_out, axis=0)] if ruled_out else decision.looked_at[:0]
            both = np.intersect1d(rows, decision.looked_at, assume_unique=True)
            rows = np.setdiff1d(both, others, assume_unique=True)
        return lacking_text(lacking(self._host.nodes, self._pods, self._needed, rows))

    def _is_enough(self, trial: Trial) -> bool:
        """Whether so many members are placed that the group can go ahead."""
        if len(trial.placed) < self._needed:
            return False
        tasks = Counter(map(task_of, (*trial.placed, *self._placed))) if self._group.min_by_task else {}
        return all(tasks.get(task, 0) >= least for task, least in self._group.min_by_task.items())

    def _scheduled(self, trial: Trial) -> GroupDecision:
        return GroupDecision(self._group, Result.SCHEDULED, self._members(trial), needed=self._needed)

    def _members(self, trial: Trial) -> list[Member]:
        return [trial.members[pod.uid] for pod in self._pods]

    def _other_orders(self, first: Trial) -> Iterable[list[Pod]]:
        pods = self._pods
        if len({kind_of(pod) for pod in pods}) < 2:
            return  # equal members fit in any order, or in none
        totals = {name: max(int(self._host.nodes.allocatable[name].sum()), 1) for name in _resources(pods)}
        sizes = {
            pod.uid: max((amount / totals[name] for name, amount in pod.requests.items()), default=0.0)
            for pod in pods
        }
        choices = {uid: len(member.decision.feasible) for uid, member in first.members.items()}
        before = [pod.uid for pod in pods]
        keys: tuple[Callable[[Pod], Any], ...] = (
            lambda pod: (-sizes[pod.uid], choices[pod.uid]),
            lambda pod: (choices[pod.uid], -sizes[pod.uid]),
        )
        seen = [before]
        for key in keys:
            order = sorted(pods, key=key)
            uids = [pod.uid for pod in order]
            if uids not in seen:
                seen.append(uids)
                yield order

    def _attempt(self, order: Sequence[Pod], within: Rows | None) -> Trial:
        trial = Trial(self._host, self._pods, shares=self._shares)
        trial.place(order, within)
        return trial

    # With domains

    def _in_best(self, placements: Placements, *, is_last: bool = True) -> GroupDecision:
        """Try the domains, the one that promises the highest score first.

        Unless these are the last domains, members need not say why they do not fit.
        """
        nodes = self._host.nodes
        if len(placements) == 1 and "" in placements:
            found = self._in_any_order(None, explains=True)
            if found.result is not Result.SCHEDULED and found.message != WAITING:
                found.message = _none_available(1, found.message)
            return found
        capacity = self._capacity(placements)
        promise = self._scores(
            [
                Placement(name, nodes.take(rows), self._pods, len(self._placed))
                for name, rows in placements.items()
            ]
        )
        order = sorted(placements, key=lambda name: (-promise[name], name))
        trials: list[PlacementTrial] = []
        candidates: dict[str, GroupDecision] = {}
        for name in order:
            if capacity[name] < self._needed:
                trials.append(PlacementTrial(name, -1))
                continue
            found = self._in_any_order(placements[name])
            trials.append(PlacementTrial(name, found.fitting))
            if found.result is Result.SCHEDULED:
                found.placement, found.within, found.trials = name, placements[name], trials
                if found.fitting == len(self._pods) and self._is_packing:
                    return found  # no other can have a higher score
                self._undo(found)
                candidates[name] = found
        if candidates:
            return self._choose(placements, candidates, trials)
        if not is_last:
            return self._without_placement(UNSCHEDULABLE)
        first = self._in_any_order(placements[order[0]], explains=True)
        first.message = _none_available(len(placements), first.message)
        first.trials, first.lacks = trials, ""
        best = max(trials, key=lambda trial: (trial.count, capacity[trial.name]))
        best.lacks = lacking_text(lacking(nodes, self._pods, self._needed, placements[best.name]))
        return first

    @property
    def _is_packing(self) -> bool:
        """Whether all scores of domains grow with the members in them."""
        return all(is_trusted(type(plugin)) for _, plugin, _ in self._scorers)

    def _choose(
        self,
        placements: Mapping[str, Rows],
        candidates: Mapping[str, GroupDecision],
        trials: list[PlacementTrial],
    ) -> GroupDecision:
        names = sorted(candidates)
        if len(names) > 1:
            scores = self._scores(
                [
                    Placement(
                        name,
                        self._host.nodes.take(placements[name]),
                        [member.pod for member in candidates[name].members if member.node_name],
                        len(self._placed),
                    )
                    for name in names
                ]
            )
            names.sort(key=lambda name: (-scores[name], name))
        found = self._in_any_order(placements[names[0]])
        found.placement, found.within, found.trials = names[0], placements[names[0]], trials
        return found

    def _undo(self, found: GroupDecision) -> None:
        for member in reversed(found.members):
            if member.node_name:
                self._host.undo(member.pod)

    def _scores(self, placements: Sequence[Placement]) -> dict[str, int]:
        """The weighted sum of all plugins, by domain."""
        totals = np.zeros(len(placements), np.int64)
        for name, plugin, weight in self._scorers:
            try:
                column = np.asarray(plugin.placement_score(self._group, placements))
            except Exception as error:
                raise GroupError(
                    f'running PlacementScore plugins: plugin "{name}" failed with: {describe(error)}'
                ) from error
            if len(column) and not (int(column.min()) >= 0 and int(column.max()) <= 100):
                wrong = int(column[(column < 0) | (column > 100)][0])
                raise GroupError(
                    f'applying score defaultWeights on PlacementScore plugins: plugin "{name}" returns an '
                    f"invalid score {wrong}, it should in the range of [0, 100] after normalizing"
                )
            totals += column * weight
        return dict(zip((each.name for each in placements), totals.tolist(), strict=True))

    def _capacity(self, placements: Mapping[str, Rows]) -> dict[str, int]:
        """The most members that each domain could take by its free resources alone."""
        filters = self._host.profile.points.get("filter", ())
        if not any(name in filters and not fit.ignores_resources for name, fit in self._fits.items()):
            return dict.fromkeys(placements, len(self._pods))  # other rules than those below
        kinds: dict[Hashable, list[Pod]] = {}
        for pod in self._pods:
            kinds.setdefault(pod.shape, []).append(pod)
        found = dict.fromkeys(placements, 0)
        for pods in kinds.values():
            room = free_places(self._host.nodes, pods[0])
            for name, rows in placements.items():
                found[name] += min(len(pods), int(room[rows].sum()))
        return found


def resource_gap(group: Group, nodes: LiveNodeTable, placed: Sequence[Pod]) -> str:
    """What all nodes together lack for the group's `minResources`; empty if they have it.

    Members that have a node already reduce the need. This is a quick rejection, never a promise.
    """
    gaps = []
    for name, quantity in group.min_resources.items():
        wanted = requests.amount_of(name, int(quantity))
        own = sum(pod.requests.get(name, 0) for pod in placed)
        free = int(np.maximum(nodes.allocatable[name] - nodes.requested[name], 0).sum()) + own
        if wanted > free:
            missing = wanted - free
            amount = f"{missing / 1000:g}" if name == "cpu" else str(missing)
            gaps.append(f"{name or repr('')} {amount}")
    return f"resource gap: {', '.join(gaps)}" if gaps else ""


def free_places(nodes: LiveNodeTable, pod: Pod) -> Ints:
    """How many such pods fit on each node by its free resources alone: never fewer than the filters allow."""
    room: Ints = np.maximum(nodes.allocatable["pods"] - nodes.pod_count, 0)
    for name, amount in pod.requests.items():
        if amount > 0 and name in nodes.requested.index:
            capacity = nodes.allocatable[name]
            free = np.maximum(capacity - nodes.requested[name], 0)
            # A resource that a node lacks may be one that devices stand behind.
            room = np.minimum(room, np.where(capacity > 0, free // amount, room if "/" in name else 0))
    return room


def lacking(nodes: LiveNodeTable, pods: Sequence[Pod], needed: int, rows: Rows) -> dict[str, int]:
    """What these nodes lack of each resource, looked at alone, to take so many of the pods."""
    found: dict[str, int] = {}
    for name in (*sorted(_resources(pods)), "pods"):
        capacity = nodes.allocatable[name]
        if name != "pods" and (name not in nodes.requested.index or not capacity.any()):
            continue  # devices may stand behind it
        used = nodes.pod_count if name == "pods" else nodes.requested[name]
        free = np.maximum(capacity - used, 0)[rows]
        # The least that so many of them can ask for.
        amounts = sorted(1 if name == "pods" else pod.requests.get(name, 0) for pod in pods)[:needed]
        if amounts and amounts[0] == amounts[-1] > 0:
            missing = (len(amounts) - int((free // amounts[0]).sum())) * amounts[0]
        else:
            missing = sum(amounts) - int(free.sum())
        if missing > 0:
            found[name] = missing
    return found


def lacking_text(missing: Mapping[str, int]) -> str:
    return " and ".join(
        f"room for {amount} pods" if name == "pods" else f"{amount_text(name, amount)} {name}"
        for name, amount in missing.items()
    )


def _none_available(count: int, text: str) -> str:
    return f"0/{count} placements are available, first placement status: {text}"


def _resources(pods: Iterable[Pod]) -> set[str]:
    return {name for pod in pods for name in pod.requests}
