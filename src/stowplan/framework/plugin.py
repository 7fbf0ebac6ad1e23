"""The class a plugin derives from. The methods it overrides are the extension points it takes part in."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.api.custom import CustomResource
from stowplan.errors import StowplanError
from stowplan.framework.args import PluginArgs
from stowplan.framework.events import ClusterEvent, Hint
from stowplan.framework.status import Status

if TYPE_CHECKING:
    from stowplan.api.groups import Group
    from stowplan.api.node import NodeObject
    from stowplan.api.pod import Pod
    from stowplan.cluster import Node, NodeTable
    from stowplan.cluster.pod_table import PodQuery
    from stowplan.framework.decision import Decision
    from stowplan.framework.handle import Handle
    from stowplan.framework.scores import Scores
    from stowplan.framework.state import CycleState
import inspect

Mask = NDArray[np.bool_]
Placements = Mapping[str, NDArray[np.intp]]
"""Rows of nodes by the name of their domain."""
_serials = itertools.count()


OWN = "stowplan."
TRUSTED = f"{OWN}plugins.default."


class Reads(Enum):
    """What a plugin's answer for a node depends on besides the pod. NODE and USAGE let it be cached."""

    ANYTHING = "anything"
    NODE = "the node object alone"
    USAGE = "the node object and what the pods on it take: requests, ports, how many they are"
    OBJECTS = "the node object and objects other than pods: never cached, but evicting pods changes nothing"


class Reject(msgspec.Struct, gc=False):
    """Nodes that a filter rejects for one reason; `unresolvable` where evicting pods would not help."""

    mask: Mask
    reason: str
    unresolvable: bool | Mask = False


class Right(msgspec.Struct, frozen=True):
    """A resource and the verbs it is asked with: `Right("pods/binding", ("create",))`."""

    resource: str
    """Its plural, or plural/subresource."""
    verbs: tuple[str, ...]
    group: str = ""
    """Empty for the core group."""


class FilterError(StowplanError):
    """Raised by `filter_nodes` where it fails on some nodes only: `texts` says why, by row.

    It ends the attempt, unless filters before it have rejected these nodes. What was yielded before counts
    for the other nodes.
    """

    def __init__(self, texts: Mapping[int, str]) -> None:
        super().__init__(next(iter(texts.values()), ""))
        self.texts = texts


class Nomination(NamedTuple):
    """What a post_filter achieved: once the victims are gone, the pod should fit on the node."""

    node_name: str
    victims: tuple[Any, ...] = ()


class Placement(NamedTuple):
    """A domain in which members of a pod group found their nodes, for `placement_score`."""

    name: str
    nodes: NodeTable
    """Its nodes, without these members."""
    members: Sequence[Pod]
    """The members that fit into it."""
    placed_count: int
    """How many members have a node already."""


class Queued(Protocol):
    """A pod in the scheduling queue, as `queue_sort` sees it."""

    @property
    def pod(self) -> Pod: ...
    @property
    def timestamp(self) -> float:
        """When the pod was added to the queue, or added again after a failed attempt."""

    @property
    def attempts(self) -> int:
        """How many times it was attempted before."""


class SortKey(Protocol):
    """Anything that can be compared with `<`: numbers, strings, tuples of them."""

    def __lt__(self, other: Any, /) -> bool: ...


class Plugin:
    """The base class of all plugins. Override the extension points that the plugin takes part in.

    A method that is not overridden is never called; its default here is what would have no effect. Where a
    method returns a `Status`, `None` means success. A plugin is created once per profile, with the arguments
    of its `pluginConfig` (`self.args`) and a `Handle` (`self.handle`).

    Methods run on the scheduler's event loop: those that are not `async` must not wait, and none may take
    longer than its `budget`. A method that raises fails the attempt of that pod; others go on.
    """

    args: PluginArgs
    """The plugin's arguments. Annotate it with a struct derived from `PluginArgs`."""
    reads: ClassVar[Reads] = Reads.ANYTHING
    """What `filter_nodes` and `score_nodes` depend on; NODE or USAGE with `sign_pod` allows caching."""
    takes_rows: ClassVar[bool] = False
    """Whether `filter_nodes` and `score_nodes` also work on a NodeRow: numbers instead of columns."""
    takes_trials: ClassVar[bool] = False
    """Whether `filter_nodes` works on a TrialTable, where each row has changes of its own, without `add_pod`
    and `remove_pod`. Only for plugins of the default profile: others do not get that table."""
    hints_by_spec: ClassVar[bool] = False
    """Whether `queueing_hint` depends only on the waiting pod's spec, namespace, labels and controller, and
    on whether it is the pod that changed. It is then called once per change for all pods that are alike."""
    hints_by_group: ClassVar[bool] = False
    """Whether `queueing_hint` says QUEUE after a change of a PodGroup or Workload only to its own pods. It is
    then called for these alone."""
    hints_by_claim: ClassVar[bool] = False
    """Whether `queueing_hint` says QUEUE after a change of a ResourceClaim only to pods that name it. It is
    then called for these alone, unless the claim has lost its allocation."""
    enables: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """By an extension point that a profile may enable the plugin at: the points that are then enabled, too.
    It may lack methods for the former, where a plugin of this name in another scheduler has some."""
    watches: ClassVar[tuple[type[CustomResource], ...]] = ()
    """Kinds to watch for this plugin besides those every scheduler watches; see `handle.watched`."""
    budget: ClassVar[float] = 1.0
    """Seconds a call may take, for all nodes together. Then it is interrupted, and the attempt fails."""
    bind_budget: ClassVar[float] = 60.0
    """The same for `pre_bind`, `bind` and `post_bind`, which may wait without holding up other pods."""
    preempts: ClassVar[bool] = False
    """Whether `post_filter` looks for pods to evict: its runs are counted as attempts to preempt."""
    limits_daemons: ClassVar[bool] = False
    """Whether the DaemonSet controller creates no pod for a node that this plugin rejects."""
    fits_resources: ClassVar[bool] = False
    """Whether `filter_nodes` rejects the nodes with too few free resources for the pod, as NodeResourcesFit
    does. Domains of nodes that are too small for a pod group are then skipped."""
    ignores_resources: bool = False
    """With `fits_resources`: whether it ignores some resources, so that no domain may be skipped."""
    only_creates_binding: ClassVar[bool] = False
    """Whether `bind` does nothing but `handle.api.create_binding`; a replay then writes it without a task."""
    group_families: ClassVar[tuple[str, ...]] = ()
    """The API groups whose pod groups this plugin keeps out of the queue until they can be attempted. What
    it registers for may help any member of a group that does not fit."""
    reports_gate: ClassVar[bool] = False
    """Whether a pod that `pre_enqueue` keeps out of the queue says so in an event and a condition, after two
    seconds and unless it has a condition already."""
    rights: ClassVar[tuple[Right, ...]] = ()
    """What the plugin writes through `handle.api`, for `stowplan manifests`; `watches` need no entry."""
    controllers: ClassVar[tuple[str, ...]] = ()
    """Controllers that the leader runs for this plugin, as `module:Class`. Each is created with the plugin's
    arguments and handle; its `async def run(self)` is restarted if it fails."""

    comes_with_stowplan: ClassVar[bool] = False
    """Set by Stowplan: whether the class, or one that it is derived from, comes with Stowplan."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        bases = (each for each in cls.__mro__ if each is not Plugin)
        cls.comes_with_stowplan = any(each.__module__.startswith(OWN) for each in bases)

    def __init__(self, args: PluginArgs, handle: Handle) -> None:
        self.args, self.handle = args, handle
        self.serial = next(_serials)
        """Unique per instance: a key for what the plugin caches in the memo of a pod's shape or labels."""

    @property
    def name(self) -> str:
        return type(self).__name__

    # Before a pod is attempted.

    def pre_enqueue(self, pod: Pod) -> Status | None:
        """Decide whether the pod may enter the active queue; anything but success keeps it gated.

        A gated pod is asked again when an event that the plugin registered for happens.
        """
        return None

    def queue_sort(self, queued: Queued) -> SortKey:
        """Return the key by which waiting pods are sorted; the lowest is attempted first.

        All profiles share one queue and one plugin that sorts it. All keys must be comparable. Keys are kept:
        a pod is sorted again when it changes, when it is requeued, and when an object of a kind in `watches`
        changes.
        """
        return 0

    def events_to_register(self) -> Iterable[ClusterEvent]:
        """Return the events that can make a pod schedulable which this plugin rejected.

        Without this method, every event does.
        """
        return ()

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> Hint:
        """Say whether a registered event is worth another attempt of a pod that this plugin rejected.

        `old` is None for an object that was added, `new` for one that was deleted. Without this method, every
        registered event is.
        """
        return Hint.QUEUE

    # Which nodes can take the pod.

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | frozenset[str] | None:
        """Prepare an attempt, once per pod and before any filter.

        Return a rejection to reject the pod on all nodes, `Status.skip()` to leave out this plugin's filter,
        or a frozenset of node names to consider only these nodes.
        """
        return None

    def filter(self, state: CycleState, pod: Pod, node: Node) -> Status | None:
        """Reject the node with `Status.unschedulable(reason)`, or with `Status.unresolvable(reason)` where
        evicting pods would not help. Called for each node that no earlier filter rejected."""
        return None

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterable[Reject]:
        """Do the same for all nodes at once: yield a `Reject` with a mask of nodes for each reason.

        Override this or `filter`, not both.
        """
        return ()

    def add_pod(self, state: CycleState, pod: Pod, other: Pod, node: Node) -> None:
        """Update what `pre_filter` wrote into `state`, as if `other` ran on `node` too.

        Called while preemption and nominated pods are tried out. Needs `pre_filter`.
        """

    def remove_pod(self, state: CycleState, pod: Pod, other: Pod, node: Node) -> None:
        """Update what `pre_filter` wrote into `state`, as if `other` did not run on `node` any more."""

    def post_filter(self, state: CycleState, pod: Pod, decision: Decision) -> Nomination | Status | None:
        """Make room when no node fits: return a `Nomination` of a node, with the pods to evict.

        A rejection says why there is none. None means nothing was found and nothing is to be said. In both
        cases the next plugin is asked.
        """
        return None

    # Where the members of a pod group may go together.

    def placement_generate(
        self, group: Group, placed: Sequence[Pod], nodes: NodeTable
    ) -> Placements | Sequence[Placements] | Status:
        """Return the domains of which one is to hold all members: rows of `nodes` by the domain's name.

        `placed` are the members that have a node already. Of several levels of domains, the first that has
        one into which the group fits is used. A rejection or an error ends the group's attempt.
        """
        return {}

    def placement_score(self, group: Group, placements: Sequence[Placement]) -> Scores:
        """Return a score from 0 to 100 for each domain into which enough of the members fit."""
        return np.zeros(len(placements), np.int64)

    # Which of these nodes is best.

    def pre_score(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        """Prepare scoring, with the feasible nodes. `Status.skip()` leaves out this plugin's score."""
        return None

    def score(self, state: CycleState, pod: Pod, node: Node) -> int:
        """Return the node's score: 0 to 100, or any number if the plugin overrides `normalize_score`."""
        return 0

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        """Do the same for all feasible nodes at once: return an array of int64, one number per node.

        Override this or `score`, not both.
        """
        return np.zeros(len(nodes), np.int64)

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        """Scale the scores of all nodes to 0 to 100; see `scale_to_max`. Needs `score` or `score_nodes`."""
        return scores

    def sign_pod(self, pod: Pod) -> Hashable:
        """Return what of the pod the answers of `filter_nodes` and `score_nodes` depend on.

        Answers for equal signatures are cached, and computed again only for nodes that changed. Needs `reads`
        to be `Reads.NODE` or `Reads.USAGE`.
        """
        return None

    # Once a node is chosen.

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        """Claim what the pod will use on the node, before it is bound; it counts as placed there already.

        A rejection ends the attempt: what was reserved is undone with `unreserve`, and the pod goes back to
        the queue. The next pod is decided only after all plugins have reserved.
        """
        return None

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Give back what `reserve` claimed: the pod was not bound after all.

        Called in reverse order for every plugin with `reserve`, even where `reserve` was not reached or
        failed: it must be safe to call twice, and must not fail. Needs `reserve`.
        """

    def permit(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        """Allow the binding with None, reject it, or hold the pod with `Status.wait(seconds)`.

        A pod that is held keeps its node reserved. It is bound when every plugin that returned `Status.wait`
        has called `allow` on the pod's entry in `handle.waiting_pods`; it is unreserved and goes back to the
        queue when one calls `reject`, or when the time is over. Other pods are decided meanwhile.
        """
        return None

    def pre_bind_pre_flight(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        """Return `Status.skip()` if `pre_bind` has nothing to do for this pod: it is not called then.

        If it has, return None: until the pod is bound, its status shows the node as `nominatedNodeName`.
        Without this method `pre_bind` is called for every pod and no status shows the node. Needs `pre_bind`.
        """
        return None

    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        """Do what must be done before the pod is bound, such as provisioning a volume."""
        return None

    async def bind(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        """Bind the pod. `Status.skip()` leaves it to the next plugin."""
        return Status.skip()

    async def post_bind(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Clean up after the pod was bound."""

    # What happens to pods, for plugins that count them.

    def pod_added(self, pod: Pod) -> None:
        """Follow a pod that is new: pending, or with a node already (`pod.node_name`).

        Called for every pod of the cluster, whatever its namespace and scheduler: for those that exist when
        the scheduler starts, before any is decided, and for all others as they appear. The extender server
        sees only pods with a node. The pod is read-only; an error is logged and stops nothing.
        """

    def pod_updated(self, old: Pod, new: Pod) -> None:
        """Follow a change of a pod, such as its binding: then only `new.node_name` is set."""

    def pod_deleted(self, pod: Pod) -> None:
        """Follow a pod that was deleted or has ended, that is, whose phase is Succeeded or Failed.

        Called before waiting pods are asked for hints, so that `queueing_hint` sees the new count.
        """

    # Beside the cycle.

    async def run(self) -> None:
        """Work in the background, such as reading metrics. Restarted if it raises, cancelled at the end."""


class AwaitingPlugin(Plugin):
    """A plugin that says which pods can help one that it rejected, so that it is not asked about others."""

    def awaited_pods(self, pod: Pod) -> Iterable[PodQuery] | None:
        """Queries of which a pod with a node must match one to help; None if any may help.

        After a change of such a pod, `queueing_hint` is called only if it matches one before or after it, or
        if it is deleted and had required anti-affinity, which may have kept the waiting pod away. A class
        that overrides `queueing_hint` must override this, too.
        """
        return None


class SortingPlugin(Plugin):
    """A plugin whose `queue_sort` depends on objects, and that knows which of them matter to which pods."""

    def pods_to_sort_again(self, old: Any, new: Any) -> Iterable[Pod] | None:
        """Pods whose keys may be others after a change of an object of a kind in `watches`; None for all.

        Called after each such change, if the plugin comes with Stowplan. For others, and without this method,
        all waiting pods are sorted again.
        """
        return None


class GroupPreemptingPlugin(Plugin):
    """A plugin that can look for pods to evict for a pod group that preempts as one."""

    preempts_for_groups: ClassVar[bool] = True

    def preempt_for_group(self, state: CycleState, pod: Pod, decision: Decision) -> Nomination | Status:
        """Do what `post_filter` does for a member; `pod` has the priority of its group."""
        raise NotImplementedError


class ReservingPlugin(Plugin):
    """A plugin that knows what its `reserve` takes: `stowplan decide --reserve` prints it."""

    reservation_name: ClassVar[str] = ""
    """The field of the output that has it."""

    def reservation(self, state: CycleState, node_name: str) -> Any:
        """What it would reserve on the node, in plain data; empty if nothing."""
        return {}

    def awaits_write(self, pod: Pod) -> bool:
        """Whether something the pod needs is just being written for another one, so that an attempt would
        fail: `pre_enqueue` must then hold the pod back until it is written. Called if the plugin comes with
        Stowplan."""
        return False

    def assume_written(self, state: CycleState, pod: Pod, node_name: str) -> None:
        """Count what `reserve` took as written. Simulations call it, where no `pre_bind` writes anything."""


class ExplainingPlugin(Plugin):
    """A plugin that can say more than reasons and scores do, for people who read a decision."""

    reads_node_labels: ClassVar[bool] = False
    """Whether another label may be all that a node lacks to pass the filter."""

    def explain_pod(self, pod: Pod) -> Iterable[str]:
        """Sentences about the objects that describe the pod. Called at the start of each attempt, if the
        plugin comes with Stowplan."""
        return ()

    def explain_scores(self, pod: Pod) -> Iterable[str]:
        """Sentences, called after each scoring: what takes longer than a few microseconds must be kept."""
        return ()

    def explain_rejections(self, pod: Pod, node_names: Sequence[str]) -> Iterable[str]:
        """Sentences about some of the nodes that it rejected, called when `stowplan explain` asks."""
        return ()

    def explain_reasons(self, pod: Pod, reasons: Sequence[str], nodes: Sequence[NodeObject]) -> str:
        """Say what nodes lack that it rejected for the same reasons; empty if the reasons say it all."""
        return ""

    def insufficient_resources(self, reasons: Sequence[str]) -> Iterable[str]:
        """The resources that nodes rejected for these reasons have too little of; `pods` for their number."""
        return ()


def overrides(plugin: type[Plugin] | Plugin, *methods: str) -> bool:
    """Whether a plugin has one of these methods of its own, and so takes part in that extension point."""
    kind = plugin if isinstance(plugin, type) else type(plugin)
    return any(getattr(kind, method) is not getattr(Plugin, method) for method in methods)


def name_of(plugin: Plugin) -> str:
    """The plugin's name, or that of its class if its own `name` fails: logs and metrics must not."""
    try:
        return plugin.name if type(plugin.name) is str else type(plugin).__name__
    except BaseException:
        return type(plugin).__name__


def is_trusted(plugin: type[Plugin]) -> bool:
    """Whether it is a plugin of the default profile, which is trusted to return in time and correctly."""
    return plugin.__module__.startswith(TRUSTED)


def is_own(plugin: type[Plugin]) -> bool:
    """Whether the class itself comes with Stowplan; one that is derived from it does not."""
    return plugin.__module__.startswith(OWN)


METHODS_OF_POINT = {
    "preEnqueue": ("pre_enqueue",),
    "queueSort": ("queue_sort",),
    "preFilter": ("pre_filter",),
    "filter": ("filter", "filter_nodes"),
    "postFilter": ("post_filter",),
    "preScore": ("pre_score",),
    "score": ("score", "score_nodes"),
    "reserve": ("reserve",),
    "permit": ("permit",),
    "preBind": ("pre_bind",),
    "bind": ("bind",),
    "postBind": ("post_bind",),
    "placementGenerate": ("placement_generate",),
    "placementScore": ("placement_score",),
}
"""Which methods make a plugin take part in an extension point, by its name in a configuration."""
METHODS = {
    name: method
    for name, method in vars(Plugin).items()
    if inspect.isfunction(method) and not name.startswith("_")
}
"""All methods of a plugin that are called, as the base class declares them."""
PARAMETERS = {name: tuple(inspect.signature(method).parameters)[1:] for name, method in METHODS.items()}
ASYNC = frozenset(name for name, method in METHODS.items() if inspect.iscoroutinefunction(method))
MAY_YIELD = frozenset(("filter_nodes", "events_to_register"))
NEEDS = {
    "add_pod": ("pre_filter",),
    "remove_pod": ("pre_filter",),
    "normalize_score": ("score", "score_nodes"),
    "unreserve": ("reserve",),
    "pre_bind_pre_flight": ("pre_bind",),
    "queueing_hint": ("events_to_register",),
}
"""Methods that are called only on a plugin that overrides one of these too."""
