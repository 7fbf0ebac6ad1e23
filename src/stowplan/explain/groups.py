"""Why a pod group waits: how many members fit, what the best domain lacks, and what would let it start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec
import numpy as np

from stowplan.api.groups import IN_TREE, KINDS_OF_FAMILY, VOLCANO, Group, GroupKey, with_priority
from stowplan.api.meta import parse_time
from stowplan.api.names import suggest_names
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.api.queues import HyperNode
from stowplan.cluster.groups import Groups
from stowplan.cycle import Planner, first_by_name
from stowplan.cycle.group import (
    GroupDecision,
    Result,
    decide_group,
    decide_within,
    free_places,
    in_order,
    lacking,
    lacking_text,
    needed_count,
)
from stowplan.cycle.group_trial import GroupHost, Member
from stowplan.cycle.planner import run_pre_enqueue
from stowplan.cycle.topology import HYPER_NODE, hyper_node_levels
from stowplan.errors import InputError
from stowplan.explain.changes import MAX_PER_KIND, Change, Flip, report_change
from stowplan.explain.group_report import DomainReport, GroupReport, MemberReport, MemberState, State
from stowplan.explain.layout import count_text, join_names, time_text
from stowplan.explain.smallest_changes import (
    OutOfTime,
    Trial,
    add_tolerations,
    drop_terms,
    find_least,
    raise_priority,
    replaced_node,
    uncordon_nodes,
    vary_node_labels,
    vary_requests,
)
from stowplan.framework.plugin import Placements
from stowplan.framework.profile import Profile
from stowplan.framework.status import Status
from stowplan.journal.record import Record

SECONDS = 1.0
"""CPU time for the smallest changes."""
MAX_NEW_NODES = 256
NODE_KINDS_TRIED = 3
AHEAD_TRIED = 20
HOSTNAME = "kubernetes.io/hostname"
replace = msgspec.structs.replace


def find_key(groups: Groups, wanted: str) -> GroupKey:
    """The group of this `namespace/name`, whichever API has it. An InputError names groups like it."""
    known = groups.known_keys()
    namespace, _, name = wanted.partition("/")
    for family in KINDS_OF_FAMILY:  # in the order in which they count for a pod that names several
        if (key := GroupKey(family, namespace, name)) in known:
            return key
    raise InputError(f"pod group {wanted} not found{suggest_names(wanted, map(str, known))}")


def outline(groups: Groups, key: GroupKey, pending: Iterable[Pod], now: float) -> GroupReport:
    """What is known of a group without deciding it. `pending` are those of its members without a node."""
    group, waiting = groups.find(key), list(pending)
    placed, members = len(groups.placed(key)), len(groups.members(key))
    created = [parse_time(pod.creation_timestamp) for pod in waiting if pod.creation_timestamp]
    has_run = bool(placed or groups.succeeded(key)) or (group is not None and group.was_scheduled)
    state: State = "waits" if waiting else "placed" if has_run else "empty"
    if group is None:
        state = "missing"
    elif waiting and any(pod.nominated_node_name for pod in waiting):
        state = "preempting"
    elif waiting and group.policy == "gang" and placed + groups.succeeded(key) >= group.min_count:
        state = "started"
    return GroupReport(
        group=str(key),
        api_version=key.family if group is None else group.api_version,
        state=state,
        policy="gang" if group is None else group.policy,
        min_count=0 if group is None else group.min_count,
        members=members,
        placed=placed,
        finished=groups.succeeded(key),
        queue="" if group is None else group.queue,
        since=min(created, default=None),
        level=_level(group),
        why=tuple(_why_not_attempted(groups, key, group, waiting)),
        now=now,
    )


def _level(group: Group | None) -> str:
    """What the domains of its topology constraint are called."""
    if group is None or group.topology is None:
        return ""
    return HYPER_NODE if group.key.family == VOLCANO else "".join(group.topology.keys[-1:])


def _why_not_attempted(
    groups: Groups, key: GroupKey, group: Group | None, waiting: Sequence[Pod]
) -> Iterator[str]:
    if group is None:
        pods = count_text(len(groups.members(key)), "pod")
        verb = "names" if len(groups.members(key)) == 1 else "name"
        if fault := groups.fault_of(key):
            yield f"{pods} {verb} it, but it cannot be read: {fault}; correct it."
            return
        yield f"{pods} {verb} it, but no PodGroup {key} exists in {key.family}; create it."
        return
    yield from (f"{each}." for each in group.faults)
    if not groups.members(key) and group.was_scheduled:
        yield "It was scheduled before; its pods have finished or are deleted."
        return
    if not groups.members(key) and not groups.succeeded(key):
        yield f"Create at least {count_text(group.min_count, 'pod')} that name it."
        return
    known = groups.known_count(key)
    if waiting and group.policy == "gang" and not group.was_scheduled and known < group.min_count:
        missing = group.min_count - known
        yield (
            f"{known} of at least {count_text(group.min_count, 'pod')} exist; "
            f"it is attempted once {missing} more {'is' if missing == 1 else 'are'} created."
        )
    names = sorted({pod.scheduler_name for pod in waiting})
    if len(names) > 1:
        yield f"Its pods name different schedulers, {join_names(names)}; give all the same schedulerName."


def explain_group(
    planner: Planner,
    key: GroupKey,
    pending: Sequence[Pod],
    *,
    changes: bool = False,
    now: float | None = None,
    seconds: float = SECONDS,
    check: Callable[[], None] = lambda: None,
) -> GroupReport:
    """Decide the group as it is now, and say what keeps it waiting. `pending` are all pods without a node.

    The planner must know them (`Planner.expect`). Nothing changes. `check` is called again and again: what it
    raises ends the work.
    """
    groups = planner.cluster.groups
    own = in_order(pod for pod in pending if groups.key_of(pod) == key)
    report = outline(groups, key, own, time.time() if now is None else now)
    placed = tuple(
        MemberReport(pod=pod.key, state="placed", node=pod.node_name)
        for pod in sorted(groups.placed(key), key=lambda pod: pod.key)
    )
    report = replace(report, pods=placed)
    ours = [pod for pod in own if pod.scheduler_name in planner.profiles]
    if len(ours) < len(own):
        other = next(pod for pod in own if pod.scheduler_name not in planner.profiles)
        text = f"{count_text(len(own) - len(ours), 'pod')} must be placed by {other.scheduler_name!r}."
        report = replace(report, why=(*report.why, text))
    group = groups.find(key)
    if group is None or not ours:
        return report
    gates = [run_pre_enqueue(planner.profile_of(pod), pod) for pod in ours]
    free = [pod for pod, gate in zip(ours, gates, strict=True) if gate is None]
    gate = next((each for each in gates if each is not None), None)
    if not free:
        assert gate is not None
        behind = _behind_in_queue(groups, key, report.queue, gate.message)
        return replace(report, state="gated", why=(*report.why, *behind), message=gate.message)
    if gate is not None:
        text = f"{count_text(len(ours) - len(free), 'pod')} of it cannot be attempted: {gate.message}."
        report = replace(report, why=(*report.why, text))
    profile = planner.profile_of(free[0])
    found = planner.decide_group(key, free)
    report = _describe(planner, profile, report, found, free)
    if found.result is Result.SCHEDULED:
        return _behind(planner, key, pending, free, report, check)
    if changes and found.result is Result.UNSCHEDULABLE:
        trial = GroupTrial(planner, profile, found, report.fitting or 0, seconds, time.process_time)
        report = replace(report, **trial.changes())
    return report


def _describe(
    planner: Planner, profile: Profile, report: GroupReport, found: GroupDecision, pods: Sequence[Pod]
) -> GroupReport:
    placements = _placements(planner, profile, found)
    domains = _domains(planner, placements, found, pods)
    best = max(domains, key=lambda each: each.count, default=None)
    shown = found
    if best is not None and found.result is Result.UNSCHEDULABLE:
        # The attempt itself, like kube-scheduler's, ends with the members in the first domain.
        placed = planner.cluster.groups.placed(found.group.key)
        host = GroupHost(profile, found.group, planner.cluster, first_by_name, None)
        shown = decide_within(host, found.group, pods, placed, found.needed, placements[best.name])
    fitting, has_started = shown.fitting, report.state == "started"
    sentences = _sentences(planner, found, fitting, best, report.level, len(domains), has_started=has_started)
    return replace(
        report,
        state="preempting" if found.result is Result.WAITING else report.state,
        why=(*report.why, *sentences),
        message="" if found.result is Result.SCHEDULED else found.message,
        fitting=fitting,
        needed=found.needed,
        pods=(*report.pods, *map(_member, shown.members)),
        domains=domains,
    )


def _member(member: Member) -> MemberReport:
    if member.node_name:
        state: MemberState = "evicts" if member.is_preempting else "fits"
        return MemberReport(pod=member.pod.key, state=state, node=member.node_name)
    message = member.decision.message if member.failure is None else member.failure.message
    return MemberReport(pod=member.pod.key, state="waits", message=message)


def _sentences(
    planner: Planner,
    found: GroupDecision,
    fitting: int,
    best: DomainReport | None,
    level: str,
    domain_count: int,
    *,
    has_started: bool,
) -> Iterator[str]:
    is_are = "is" if found.needed == 1 else "are"
    if found.result is Result.ERROR:
        yield f"It could not be decided: {found.message}."
        return
    fit = f"{fitting} of {count_text(len(found.members), 'pending pod')} fit"
    if found.result is Result.WAITING and found.victims:
        victims = join_names([victim.key for victim in found.victims])
        yield f"{fit} once {victims} {'is' if len(found.victims) == 1 else 'are'} evicted."
        return
    if found.result is Result.WAITING:
        yield f"{fit}; it starts once pods that were evicted for it are gone."
        return
    if found.result is Result.SCHEDULED:
        where = f" in {level} {found.placement}" if found.placement and level else ""
        yield f"{fit}{where}, {found.needed} {is_are} needed: it can start now."
        return
    yield f"{fit}." if has_started else f"{fit}, at least {found.needed} {is_are} needed."
    rejections = (member.decision.pre_filter for member in found.members)
    rejection = next((each for each in rejections if each is not None), None)
    if rejection is not None:
        key, groups = found.group.key, planner.cluster.groups
        behind = list(_behind_in_queue(groups, key, found.group.queue, rejection.message))
        yield from behind or [f"{rejection.plugin} rejects it: {rejection.message}."]
    elif best is not None:
        which = f"The only {level}" if domain_count == 1 else f"The best {level} of {domain_count}"
        lacks = f" and lacks {best.lacks}" if best.lacks else ""
        yield f"{which}, {best.name}, takes {fitting}{lacks}."
    elif found.lacks:
        yield f"The nodes that it may use lack {found.lacks}."
    reservation = planner.cluster.groups.reservation
    if reservation is not None and reservation.key == found.group.key:
        until, nodes = time_text(reservation.until), count_text(len(reservation.nodes), "node")
        yield f"{nodes} reserved for it until {until}: {join_names(reservation.nodes)}."


def _behind_in_queue(groups: Groups, key: GroupKey, queue: str, message: str) -> Iterator[str]:
    """For a group that its queue does not let start: what uses the queue."""
    if not queue or "queue" not in message.lower():
        return
    users = []
    for other in groups.known_keys():
        group = groups.find(other) if other != key else None
        if group is not None and group.queue == queue and (placed := groups.placed(other)):
            users.append(f"{other} ({count_text(len(placed), 'pod')} placed)")
    if users:
        word = "group" if len(users) == 1 else "groups"
        yield f"It waits behind {word} {join_names(users)} for queue {queue}: {message}."
    else:
        yield f"It waits for queue {queue}: {message}."


def _placements(planner: Planner, profile: Profile, found: GroupDecision) -> Placements:
    """The domains of its topology constraint, if it has one; of several levels, those of the last one."""
    group, cluster = found.group, planner.cluster
    placed, topology = cluster.groups.placed(group.key), group.topology
    answers: list[Placements | Sequence[Placements] | Status] = []
    if group.key.family == VOLCANO and topology is not None:
        answers.append(hyper_node_levels(topology, placed, cluster.nodes, cluster.watched(HyperNode)))
    else:
        generators = profile.at("placementGenerate")
        answers += [plugin.placement_generate(group, placed, cluster.nodes) for _, plugin in generators]
    for answer in answers:
        if not isinstance(answer, Status):
            placements = answer if isinstance(answer, Mapping) else answer[-1]
            if "" not in placements:
                return placements
    return {}


def _domains(
    planner: Planner, placements: Placements, found: GroupDecision, pods: Sequence[Pod]
) -> tuple[DomainReport, ...]:
    nodes = planner.cluster.nodes
    counts = {trial.name: trial.count for trial in found.trials if trial.count >= 0}
    kinds: dict[int, list[Pod]] = {}
    for pod in pods if placements else ():
        kinds.setdefault(id(pod.shape), []).append(pod)
    places = [(len(alike), free_places(nodes, alike[0])) for alike in kinds.values()]
    return tuple(
        DomainReport(
            name=name,
            nodes=len(rows),
            count=counts.get(name, sum(min(number, int(room[rows].sum())) for number, room in places)),
            lacks=lacking_text(lacking(nodes, pods, found.needed, rows)),
        )
        for name, rows in placements.items()
    )


def _behind(
    planner: Planner,
    key: GroupKey,
    pending: Sequence[Pod],
    own: Sequence[Pod],
    report: GroupReport,
    check: Callable[[], None],
) -> GroupReport:
    """A group that fits may still wait for those that are attempted before it and take the room."""
    groups, cluster = planner.cluster.groups, planner.cluster
    waiting: dict[GroupKey, list[Pod]] = {}
    for pod in pending:
        other = groups.key_of(pod)
        if other is not None and pod.scheduler_name in planner.profiles:
            waiting.setdefault(other, []).append(pod)
    order = sorted(waiting, key=lambda each: _rank(groups, each, waiting[each]))
    assumed: list[Pod] = []
    takers: list[str] = []
    try:
        for other in order[: order.index(key)][:AHEAD_TRIED]:
            check()
            pods = [pod for pod in waiting[other] if run_pre_enqueue(planner.profile_of(pod), pod) is None]
            if not pods or groups.find(other) is None:
                continue
            found = planner.decide_group(other, pods)
            if found.result is Result.SCHEDULED:
                for member in found.members:
                    if member.node_name:
                        cluster.assume_pod(member.pod, member.node_name)
                        assumed.append(member.pod)
                takers.append(str(other))
        if not takers or planner.decide_group(key, own).result is Result.SCHEDULED:
            return report
    finally:
        for pod in reversed(assumed):
            cluster.forget_pod(pod)
    queue = f" for queue {report.queue}" if report.queue else ""
    start = f"It waits behind {'group' if len(takers) == 1 else 'groups'} {join_names(takers)}{queue}"
    text = f"{start}, which {'is' if len(takers) == 1 else 'are'} attempted first and would take the room."
    return replace(report, why=(text, *report.why))


def _rank(groups: Groups, key: GroupKey, pods: Sequence[Pod]) -> tuple[int, str, str]:
    group = groups.find(key)
    created = min(pod.creation_timestamp or "" for pod in pods)
    return (-max(pod.priority for pod in pods), (group and group.created) or created, str(key))


class GroupTrial(Trial):
    """Decides a group again with one thing changed, for all members like the first that does not fit."""

    def __init__(
        self,
        planner: Planner,
        profile: Profile,
        found: GroupDecision,
        fitting: int,
        seconds: float,
        now: Callable[[], float],
    ) -> None:
        """`fitting` is how many members fit, in the best domain if there are domains."""
        first = next((each for each in found.members if not each.node_name), found.members[0])
        super().__init__(planner, first.decision, seconds, now)
        self.profile, self.found, self.group, self.fitting = profile, found, found.group, fitting
        self.pods = [member.pod for member in found.members]

    @property
    def winner(self) -> str | None:
        return None

    def changes(self) -> Mapping[str, object]:
        """The fields of a report."""
        changes: list[Change] = []
        is_complete = True
        try:
            for kind in (
                lower_minimum,
                drop_topology,
                add_nodes,
                vary_requests,
                add_tolerations,
                drop_terms,
                uncordon_nodes,
                vary_node_labels,
                raise_priority,
            ):
                if kind is vary_node_labels and not self.decision.filters:
                    continue
                found = (each for each in kind(self) if each.kind != "request" or each.now)
                changes.extend(islice(found, MAX_PER_KIND))
        except OutOfTime:
            is_complete = False
        return {"changes": tuple(map(report_change, changes)), "is_complete": is_complete}

    def with_group(self, group: Group) -> Flip | None:
        return self._starts(self.pods, group)

    def with_pod(self, pod: Pod) -> Flip | None:
        return self._starts(self._like(pod), self.group)

    def with_node(self, node: NodeObject) -> Flip | None:
        with replaced_node(self.cluster, node):
            return self._starts(self.pods, self.group)

    def with_new_nodes(self, like: NodeObject, number: int) -> Flip | None:
        names = [f"{like.name}-new-{each + 1}" for each in range(number)]
        names = [name for name in names if self.cluster.nodes.row_of(name) is None]
        for name in names:
            labels = like.labels | ({HOSTNAME: name} if HOSTNAME in like.labels else {})
            meta = replace(like.metadata, name=name, uid="", labels=labels)
            self.cluster.add_node(replace(like, metadata=meta))
        try:
            return self._starts(self.pods, self.group)
        finally:
            for name in names:
                self.cluster.remove_node(name)

    def with_preemption(self, pod: Pod) -> Flip | None:
        priority = pod.priority
        pods = [with_priority(each, priority) for each in self.pods]
        return self._starts(pods, replace(self.group, priority=priority), preempts=True)

    def _like(self, pod: Pod) -> list[Pod]:
        """All members, those like the first that does not fit with its changed spec."""
        return [
            replace(each, shape=pod.shape) if each.shape is self.pod.shape else each for each in self.pods
        ]

    def _starts(self, pods: Sequence[Pod], group: Group, *, preempts: bool = False) -> Flip | None:
        self._check_time()
        groups = self.cluster.groups
        host = GroupHost(self.profile, group, self.cluster, first_by_name, None)
        placed = groups.placed(group.key)
        needed = needed_count(group, len(placed), groups.succeeded(group.key), len(pods))
        found = decide_group(host, group, pods, placed, needed)
        if found.result is Result.SCHEDULED:
            for member in reversed(found.members):
                if member.node_name:
                    host.undo(member.pod)
            return Flip(found.placement)
        is_helped = preempts and found.result is Result.WAITING and bool(found.victims)
        return Flip(found.placement, by_preemption=True) if is_helped else None


def lower_minimum(trial: Trial) -> Iterator[Change]:
    """The largest minimum with which it starts: as many as fit."""
    assert isinstance(trial, GroupTrial)
    group = trial.group
    least = group.min_count - (trial.found.needed - trial.fitting)
    if group.policy == "basic" or not trial.fitting or least >= group.min_count:
        return
    field = "minCount" if group.key.family == IN_TREE else "minMember"
    if (flip := trial.with_group(replace(group, min_count=least, min_by_task={}))) is not None:
        text = f"{field} {least} instead of {group.min_count}"
        yield Change(kind="minimum", text=text, flip=flip, was=group.min_count, now=least)


def drop_topology(trial: Trial) -> Iterator[Change]:
    assert isinstance(trial, GroupTrial)
    topology = trial.group.topology
    if topology is None or not topology.keys:
        return
    if (flip := trial.with_group(replace(trial.group, topology=None))) is not None:
        key = topology.keys[-1]
        text = f"without the topology constraint on {key}"
        yield Change(kind="topology", text=text, flip=flip, was=key)


def add_nodes(trial: Trial) -> Iterator[Change]:
    """The fewest new nodes like an existing one, for the kinds of nodes that take the most members."""
    assert isinstance(trial, GroupTrial)
    nodes, pod = trial.cluster.nodes, trial.pod
    room = nodes.allocatable["pods"].astype(np.int64)
    for name, amount in pod.requests.items():
        if amount > 0:
            room = np.minimum(room, nodes.allocatable[name] // amount)
    kinds: dict[tuple[object, ...], int] = {}
    level = trial.group.topology.keys[-1:] if trial.group.topology is not None else ()
    best = max(trial.found.trials, key=lambda each: (bool(each.lacks), each.count), default=None)
    for row in np.lexsort((nodes.name_ranks, -room)).tolist():
        node = nodes.objects[row]
        domain = tuple(node.labels.get(key) for key in level)
        is_best = best is None or best.name in domain
        if room[row] > 0 and is_best and not node.unschedulable:
            kinds.setdefault((int(room[row]), node.spec.taints), row)
    most = min(trial.found.needed, MAX_NEW_NODES)
    for row in list(kinds.values())[:NODE_KINDS_TRIED]:
        like = nodes.objects[row]

        def starts(number: int, like: NodeObject = like) -> Flip | None:
            return trial.with_new_nodes(like, number)

        if (found := find_least(starts, most)) is not None:
            number, flip = found
            text = f"{count_text(number, 'more node')} like {like.name}"
            yield Change(kind="nodes", text=text, flip=flip, was=0, now=number)
            return


def explain_recorded_group(group: str, records: Sequence[Record]) -> GroupReport:
    """The last attempt at a group, from the records of its members, the newest first."""
    last = records[0].attempt.time
    newest: dict[str, Record] = {}
    for record in records:
        newest.setdefault(record.pod, record)
    members = []
    for pod, record in sorted(newest.items()):
        node = record.node or record.chosen or ""
        if record.node:
            members.append(MemberReport(pod=pod, state="placed", node=node))
        else:
            is_fit = record.chosen is not None
            state: MemberState = "fits" if is_fit else "evicts" if record.nominated else "waits"
            members.append(
                MemberReport(
                    pod=pod,
                    state=state,
                    node=node or record.nominated or "",
                    message="" if is_fit else record.attempt.message,
                )
            )
    text = records[0].group.partition(": ")[2]
    placed = sum(member.state == "placed" for member in members)
    return GroupReport(
        group=group,
        state="placed" if placed else "waits",
        members=len(members),
        placed=placed,
        why=(f"{text[:1].upper()}{text[1:]}",),
        pods=tuple(members),
        attempt=last,
        now=last,
    )
