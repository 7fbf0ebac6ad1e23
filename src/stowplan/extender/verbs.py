"""What profiles and functions answer to kube-scheduler: filter, prioritize, preempt and bind.

The plugins run as they do in the cycle, over our own table of nodes, for the nodes of the request.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan import log
from stowplan.api.extender import (
    ExtenderBindingArgs,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    MetaPod,
    MetaVictims,
)
from stowplan.api.meta import Object, decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.client.api import PODS
from stowplan.client.errors import ApiError
from stowplan.cluster import Cluster, ClusterView
from stowplan.cluster.columns import Rows, distinct
from stowplan.cluster.node_table import NodeTable
from stowplan.cycle.schedule import Cycle
from stowplan.errors import InputError, PluginError
from stowplan.extender.functions import Function
from stowplan.extender.requests import UNKNOWN, ExtenderRequest, Places, Scored, ScoreLines, pod_of
from stowplan.framework.answers import (
    Method,
    format_value,
    plain_text,
    plugin_error,
    score_of,
    wrong_answer,
)
from stowplan.framework.args import PluginArgs
from stowplan.framework.decision import Decision, Statuses, Verdicts
from stowplan.framework.handle import Handle
from stowplan.framework.plugin import Plugin
from stowplan.framework.profile import Profile
from stowplan.framework.scores import MAX_SCORE
from stowplan.framework.status import Code, Status
from stowplan.queue.waiting import QueuedPod
from stowplan.scheduler.binding import PodBinder
from stowplan.scheduler.guard import Guard
from stowplan.scheduler.shared import Attempt, Failure, Shared


class Looked(NamedTuple):
    """The results of pre_filter and filter for a pod; `places` has the place of each node in them."""

    cycle: Cycle
    places: Rows


class Filtered(NamedTuple):
    """The last answer to filter: prioritize, which follows for the same pod, need not look again."""

    uid: str
    version: str
    layout: int
    looked: Looked
    left: list[str]
    rows: Rows
    """The rows of the remaining nodes."""


class ProfileVerbs:
    """`most` is the highest score there is: the protocol foresees 10, but kube-scheduler takes finer ones."""

    def __init__(self, profile: Profile, cluster: Cluster, max_score: int = 10) -> None:
        self.profile, self._cluster, self._max_score = profile, cluster, max_score
        self._last: Filtered | None = None
        self._lines = ScoreLines()

    def filter(self, request: ExtenderRequest) -> ExtenderFilterResult:
        """Raises CycleError where a plugin fails."""
        where = Places.of(request.names, self._cluster.nodes)
        looked = self._look(request.pod, where.rows)
        failed: dict[str, str] = dict.fromkeys(where.unknown, UNKNOWN)
        hopeless: dict[str, str] = {}
        passing = np.ones(len(where.rows), np.bool_)
        for status, rejected in _rejections(looked, where.rows):
            passing[rejected] = False
            dropped = hopeless if status.code is Code.UNRESOLVABLE else failed
            names = (request.names[place] for place in where.places[rejected].tolist())
            dropped.update(dict.fromkeys(names, status.message))
        left = None if not failed and not hopeless else where.places[passing].tolist()
        names_left = request.names if left is None else [request.names[place] for place in left]
        pod, layout = request.pod, self._cluster.nodes.layout
        self._last = Filtered(pod.uid, pod.resource_version, layout, looked, names_left, where.rows[passing])
        return ExtenderFilterResult(
            nodes=request.whole(left),
            node_names=names_left if request.items is None else None,
            failed_nodes=failed,
            failed_and_unresolvable_nodes=hopeless,
        )

    def prioritize(self, request: ExtenderRequest) -> Scored:
        """A score for each node asked about; 0 for those that we do not know. Raises CycleError."""
        nodes, last = self._cluster.nodes, self._last_filtered(request.pod)
        if last is not None and last.left == request.names:
            where = Places(last.rows, np.arange(len(last.rows)), [])
        else:
            where = Places.of(request.names, nodes)
        looked = self._look(request.pod, where.rows) if last is None else last.looked
        if looked.cycle.decision.pre_filter is not None or not len(where.rows):
            scores = np.zeros(len(where.rows), np.int64)
        elif np.bincount(where.rows, minlength=len(nodes)).all():
            scores = self._scores(looked, nodes)[where.rows]
        else:
            scores = self._scores(looked, nodes.take(where.rows))
        return self._lines.format_scores(nodes, where.rows, scores, where.unknown)

    def _last_filtered(self, pod: Pod) -> Filtered | None:
        """What filter found for the pod, if that was the last question and rows are still where they were."""
        last, self._last = self._last, None
        now = (pod.uid, pod.resource_version, self._cluster.nodes.layout)
        return last if last is not None and last[:3] == now else None

    def _scores(self, looked: Looked, nodes: NodeTable) -> NDArray[np.int64]:
        return self._scale(looked.cycle.decision, looked.cycle.score(nodes))

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        """The nodes on which the filters pass the pod once the victims are gone. Raises CycleError."""
        cycle = Cycle(self.profile, pod_of(args.pod), self._cluster.nodes)
        cycle.pre_filter()
        if cycle.decision.pre_filter is not None:
            return ExtenderPreemptionResult()
        kept = {
            name: victims
            for name, victims in _victims(args).items()
            if (cycle.names is None or name in cycle.names) and self._fits_without(cycle, name, victims)
        }
        return ExtenderPreemptionResult(node_name_to_meta_victims=kept)

    def look_at(self, pod: Pod, node_name: str) -> tuple[Decision, Status | None]:
        """pre_filter and filter for one node, with what plugins remember for the points that follow."""
        row = self._cluster.nodes.row_of(node_name)
        rows = np.array([] if row is None else [row], np.intp)
        looked = self._look(pod, rows)
        if row is None:
            return looked.cycle.decision, Status.unresolvable(UNKNOWN)
        return looked.cycle.decision, next((status for status, _ in _rejections(looked, rows)), None)

    def _look(self, pod: Pod, rows: Rows) -> Looked:
        cycle = Cycle(self.profile, pod, self._cluster.nodes)
        cycle.pre_filter()
        if cycle.decision.pre_filter is not None or not len(rows):
            return Looked(cycle, rows)
        return Looked(cycle, cycle.filter_rows(rows))

    def _scale(self, decision: Decision, differences: NDArray[Any]) -> NDArray[np.int64]:
        """Weighted totals as parts of what they could be at most, rounded to whole scores."""
        weights = sum(column.weight for column in decision.scores)
        in_common = sum(column.uniform * column.weight for column in decision.scores if column.uniform)
        highest = MAX_SCORE * weights
        if not highest:
            return np.zeros(len(differences), np.int64)
        totals = differences.astype(np.int64) + in_common
        scaled: NDArray[np.int64] = (2 * self._max_score * totals + highest) // (2 * highest)
        return scaled

    def _fits_without(self, cycle: Cycle, name: str, victims: MetaVictims) -> bool:
        row = self._cluster.nodes.row_of(name)
        if row is None:
            return False
        known = (self._cluster.pod(each.uid) for each in victims.pods)
        return cycle.fits_without(row, [pod for pod in known if pod is not None and pod.node_name == name])


def _rejections(looked: Looked, rows: Rows) -> Iterator[tuple[Status, Rows]]:
    """Each reason with the nodes rejected for it, as places in `rows`. The first filter to reject counts."""
    decision = looked.cycle.decision
    if decision.pre_filter is not None:
        yield decision.pre_filter, np.arange(len(rows))
        return
    is_open = np.ones(len(rows), np.bool_)
    if looked.cycle.names is not None:
        names = decision.names
        outside = np.array([names[row] not in looked.cycle.names for row in rows.tolist()], np.bool_)
        is_open &= ~outside
        if outside.any():
            yield Status.unresolvable(decision.narrowed_reason), np.flatnonzero(outside)
    for rejected in decision.filters:
        fresh = np.flatnonzero(rejected.fails[looked.places] & is_open)
        if len(fresh):
            is_open[fresh] = False
            yield from _by_reason(rejected, looked.places, fresh)


def _by_reason(rejected: Verdicts | Statuses, places: Rows, fresh: Rows) -> Iterator[tuple[Status, Rows]]:
    if isinstance(rejected, Statuses):
        for place in fresh.tolist():
            yield rejected.status(int(places[place])), np.array([place])
        return
    bits = rejected.bits[places[fresh]]
    for value in distinct(bits):
        same = fresh[bits == value]
        yield rejected.status(int(places[same[0]])), same


def _victims(args: ExtenderPreemptionArgs) -> Mapping[str, MetaVictims]:
    """By node; whole pods as their uids, since that is how the answer names them."""
    if args.node_name_to_meta_victims is not None:
        return args.node_name_to_meta_victims
    return {
        name: MetaVictims(
            pods=[MetaPod(uid=decode(Object, bytes(pod)).metadata.uid) for pod in victims.pods],
            num_pdb_violations=victims.num_pdb_violations,
        )
        for name, victims in (args.node_name_to_victims or {}).items()
    }


class FunctionVerb:
    """Asks a function about the nodes of a request: those that came whole, or those of our own view."""

    def __init__(self, function: Function, view: ClusterView | None, guard: Guard) -> None:
        self.function, self._view, self._guard = function, view, guard
        kind = type(function.name, (Plugin,), {"__module__": function.module, "budget": math.inf})
        self._watched: Plugin = kind(PluginArgs(), Handle(view or ClusterView()))
        """Stands for the function where calls are watched; its budget is that of the request."""
        call = getattr(function.call, "func", function.call)  # without its options
        definition = type(function.name, (Plugin,), {call.__name__: staticmethod(call)})
        self._method: Method = (definition, call.__name__)
        """Where the function is defined, for errors."""
        self._doing = f"{function.kind} {function.name}"

    def filter(self, request: ExtenderRequest) -> ExtenderFilterResult:
        kept, failed = [], {}
        for place, (name, node) in enumerate(zip(request.names, self._nodes(request), strict=True)):
            reason = UNKNOWN if node is None else self._reason(request.pod, node)
            if reason is None:
                kept.append(place)
            else:
                failed[name] = reason
        names = [request.names[place] for place in kept] if request.items is None else None
        return ExtenderFilterResult(nodes=request.whole(kept), node_names=names, failed_nodes=failed)

    def prioritize(self, request: ExtenderRequest) -> Scored:
        nodes = self._nodes(request)
        return Scored.of(
            request.names, [0 if node is None else self._score(request.pod, node) for node in nodes]
        )

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        pod = pod_of(args.pod)
        kept = {name: each for name, each in _victims(args).items() if self._may_evict(pod, name, each)}
        return ExtenderPreemptionResult(node_name_to_meta_victims=kept)

    def _may_evict(self, pod: Pod, node_name: str, victims: MetaVictims) -> bool:
        answer = self._call(pod, node_name, node_name, [each.uid for each in victims.pods])
        if isinstance(answer, bool):
            return answer
        raise self._wrong_answer(f"expected True or False, got {format_value(answer)}", pod, node_name)

    def _nodes(self, request: ExtenderRequest) -> Iterable[NodeObject | None]:
        whole = request.objects()
        if whole is not None:
            return whole
        if self._view is None:
            raise PluginError(
                "the request names nodes and the extender follows no cluster: start it with --follow or "
                "--kubeconfig, or set nodeCacheCapable: false in the scheduler's configuration"
            )
        nodes = self._view.nodes
        return [None if row < 0 else nodes.objects[row] for row in nodes.rows_of(request.names).tolist()]

    def _reason(self, pod: Pod, node: NodeObject) -> str | None:
        answer = self._call(pod, node.name, node)
        if answer is True:
            return None
        if answer is False:
            return f"predicate {self.function.name} rejects the node"
        if isinstance(answer, str) and answer:
            return plain_text(answer)
        raise self._wrong_answer(
            f"expected True, False or a reason, got {format_value(answer)}", pod, node.name
        )

    def _score(self, pod: Pod, node: NodeObject) -> int:
        answer = self._call(pod, node.name, node)
        try:
            return score_of(answer)
        except TypeError as error:
            raise self._wrong_answer(str(error), pod, node.name) from None

    def _call(self, pod: Pod, node_name: str, *arguments: object) -> object:
        try:
            with self._guard.calling(self.function.kind, self._watched):
                return self.function.call(pod, *arguments)
        except BaseException as error:
            raise plugin_error(self._doing, error, pod, node_name) from error

    def _wrong_answer(self, text: str, pod: Pod, node_name: str) -> PluginError:
        return wrong_answer(text, self._method, pod, node_name, doing=f"{self._doing}: ")


PODS_KEPT = 1024
CONFIRMED_SECONDS = 60.0
"""If the watch has not shown a pod on its node by then, it was gone before we could see it there."""


class ExtenderBinder:
    """Binds for one profile. Pods that were asked about are remembered, so as not to read them again."""

    def __init__(
        self,
        shared: Shared,
        binder: PodBinder,
        verbs: ProfileVerbs,
        *,
        confirmed_seconds: float = CONFIRMED_SECONDS,
    ) -> None:
        self._shared, self._binder, self._verbs = shared, binder, verbs
        self._confirmed_seconds = confirmed_seconds
        self._seen: OrderedDict[str, Pod] = OrderedDict()

    def remember(self, pod: Pod) -> None:
        self._seen[pod.uid] = pod
        self._seen.move_to_end(pod.uid)
        if len(self._seen) > PODS_KEPT:
            self._seen.popitem(last=False)

    async def bind(self, args: ExtenderBindingArgs) -> str:
        """What went wrong; empty if nothing did."""
        try:
            pod = await self._pod(args)
            decision, rejection = self._verbs.look_at(pod, args.node)
        except (ApiError, InputError, PluginError) as error:
            return str(error)
        if rejection is not None:
            return f"node {args.node} rejects the pod: {rejection.message}"
        shared, binder = self._shared, self._binder
        attempt = Attempt(QueuedPod(pod, shared.now()), self._verbs.profile, decision, shared.clock())
        placed = binder.place(attempt, args.node)
        if isinstance(placed, Failure):
            return placed.message
        try:
            failure = await binder.bind(attempt, placed, args.node)
        except BaseException:  # given up, since it took too long
            binder.undo(attempt, placed, args.node)
            raise
        if failure is not None:
            binder.undo(attempt, placed, args.node)
            return failure.message
        log.log(0, "Bound pod to node", pod=placed, node=args.node)
        asyncio.get_running_loop().call_later(self._confirmed_seconds, self._forget_unconfirmed, placed)
        work = binder.run_post_binds(attempt, placed, args.node)
        shared.tasks.start(work, f"post_bind of pod {placed.key}")
        return ""

    def _forget_unconfirmed(self, placed: Pod) -> None:
        if self._shared.cluster.is_assumed(placed):
            self._shared.cluster.forget_pod(placed)

    async def _pod(self, args: ExtenderBindingArgs) -> Pod:
        pod = self._seen.pop(args.pod_uid, None)
        if pod is not None:
            return pod
        path = PODS.item(args.pod_namespace, args.pod_name)
        pod = Pod.decode((await self._shared.api.request("GET", path)).data)
        if args.pod_uid and pod.uid != args.pod_uid:
            raise InputError(f"pod {pod.key} has the UID {pod.uid}, not {args.pod_uid}: it is another pod")
        if pod.node_name:
            raise InputError(f"pod {pod.key} is already on node {pod.node_name}")
        return pod
