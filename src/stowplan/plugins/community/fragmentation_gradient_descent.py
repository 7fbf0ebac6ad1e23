"""FragmentationGradientDescent: shares GPUs so that what is left of them stays usable for typical pods.

The policy is that of "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent" (USENIX ATC 2023): it prefers nodes whose expected fragment, the mean over typical pods, grows least
or shrinks most; see `gpu_fragments.py`.

Pods ask for parts of a GPU by annotations, and the plugin filters nodes and chooses the devices; or by
ResourceClaims for a capacity that several claims may consume, and DynamicResources does that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from stowplan.api.quantity import parse
from stowplan.api.resource import ResourceClaim
from stowplan.cluster import ClusterView
from stowplan.cluster.node_table import NodeRow, NodeSubset
from stowplan.config.field_errors import child, invalid, required
from stowplan.framework import (
    Action,
    ClusterEvent,
    CycleState,
    Handle,
    NodeTable,
    Plugin,
    PluginArgs,
    Pod,
    Reads,
    Reject,
    Resource,
    Right,
    Scores,
    Status,
)
from stowplan.plugins.devices.ledger import ClaimLedger
from stowplan.plugins.devices.pools import DeviceId
from stowplan.plugins.gpu_fragments import (
    MAX_DEVICES,
    MAX_SHAPES,
    MAX_TYPICAL,
    WHOLE,
    Request,
    State,
    States,
    TypicalPod,
    Workload,
    typical_pods,
)

PREFIX = "alibabacloud.com/"
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_PLACES = re.compile(r"[0-9]{1,3}(-[0-9]{1,3}){0,63}", re.ASCII)


class FragmentationGradientDescentArgs(PluginArgs):
    gpu_resource: str = f"{PREFIX}gpu-count"
    """The resource of a node that is the number of its GPUs."""
    model_label: str = f"{PREFIX}gpu-card-model"
    """The label of a node that names the model of its GPUs."""
    count_annotation: str = f"{PREFIX}gpu-count"
    milli_annotation: str = f"{PREFIX}gpu-milli"
    """Thousandths of each GPU."""
    models_annotation: str = f"{PREFIX}gpu-card-model"
    """The models that will do, separated by bars."""
    device_annotation: str = f"{PREFIX}gpu-index"
    """Written when the pod is bound: the numbers of its GPUs, separated by dashes."""
    device_classes: tuple[str, ...] = ()
    """DeviceClasses of GPUs: pods ask for them by ResourceClaims, and annotations have no effect."""
    driver: str = ""
    """The DRA driver of these GPUs."""
    capacity: str = ""
    """The capacity of a GPU that claims consume."""
    typical_pods: tuple[TypicalPod, ...] = ()
    """Without them, they are learned from the pods of the cluster."""

    def validate(self, path: str) -> Iterator[str]:
        for number, pod in enumerate(self.typical_pods):
            where = child(path, f"typicalPods[{number}]")
            if not 0 < pod.weight < 2**53:
                yield invalid(f"{where}.weight", pod.weight, "must be greater than 0")
            if not 0 <= pod.cpu < 2**53:
                yield invalid(f"{where}.cpu", pod.cpu, "must not be negative")
            if not 0 <= pod.count <= MAX_DEVICES:
                yield invalid(f"{where}.count", pod.count, f"must be from 0 to {MAX_DEVICES}")
            if pod.count and not 0 < pod.milli <= WHOLE:
                yield invalid(f"{where}.milli", pod.milli, f"must be from 1 to {WHOLE}")
        if len(self.typical_pods) > MAX_TYPICAL:
            where, count = child(path, "typicalPods"), len(self.typical_pods)
            yield invalid(where, count, f"must have at most {MAX_TYPICAL} items")
        if self.device_classes:
            for name in ("driver", "capacity"):
                if not getattr(self, name):
                    yield required(child(path, name), "must be set with deviceClasses")
        elif not self.gpu_resource:
            yield required(child(path, "gpuResource"), "must be set without deviceClasses")


class InvalidRequest(NamedTuple):
    """Why a request cannot be read, and what it is taken for on a node that the pod runs on already."""

    text: str
    assumed: Request


@lru_cache(maxsize=4096)
def _read(
    cpu: int, whole: int, count: str | None, milli: str | None, models: str, names: tuple[str, str]
) -> Request | InvalidRequest:
    """`whole` GPUs are requested as a resource; annotations come before it."""
    if count is None and milli is None:
        count, milli = str(min(whole, 10**9 - 1)), str(WHOLE if whole else 0)
    number = int(count) if count is not None and _NUMBER.fullmatch(count) else 1
    assumed = Request(cpu, min(max(number, 1), MAX_DEVICES), WHOLE)
    for name, text, most in ((names[0], count, 10**9), (names[1], milli, WHOLE)):
        if text is not None and (not _NUMBER.fullmatch(text) or int(text) > most):
            what = f"a whole number from 1 to {WHOLE}" if most == WHOLE else "a whole number"
            return InvalidRequest(f"annotation {name} is {text[:64]!r}, but must be {what}", assumed)
    part = WHOLE if milli is None else int(milli)
    if count is not None and milli is not None and bool(number) != bool(part):
        return InvalidRequest(f"annotations {names[0]} and {names[1]}: only one of them is 0", assumed)
    if not number or not part:
        return Request(cpu)
    allowed = tuple(sorted({each for each in models.split("|") if each}))
    return Request(cpu, number, part if number == 1 else WHOLE, allowed)


class Slices:
    """GPUs of ResourceSlices: what claims ask of them, and what is free on each."""

    def __init__(self, args: FragmentationGradientDescentArgs, handle: Handle) -> None:
        self._args, self._nodes = args, handle.cluster.nodes
        self._store, self._ledger = handle.cluster.resource_slices, ClaimLedger.of(handle)
        self._seen = -1, -1
        self._largest = 1
        """The capacity of the largest GPU, which is WHOLE."""
        self._on: dict[str, dict[DeviceId, int]] = {}
        """The capacity of each GPU, by the name of its node."""
        self._node_of: dict[DeviceId, str] = {}

    def follow(self) -> None:
        """Have the states of nodes computed again whose GPUs, or what is free on them, changed."""
        usage = self._ledger.usage
        now = self._store.version, usage.version
        if self._seen == now:
            return
        is_known, since = self._seen[0] == now[0], self._seen[1]
        self._seen = now
        changed = usage.changed_since(since) if is_known else None
        if changed is not None:
            for name in {self._node_of[each] for each in changed if each in self._node_of}:
                self._nodes.touch(name)
            return
        names = set(self._on)
        if not is_known:
            self._read()
        for name in names | set(self._on):
            self._nodes.touch(name)

    def _read(self) -> None:
        self._on, self._node_of = {}, {}
        slices = [each.spec for each in self._store if each.spec.driver == self._args.driver]
        newest: dict[str, int] = {}
        for spec in slices:
            newest[spec.pool.name] = max(newest.get(spec.pool.name, 0), spec.pool.generation)
        for spec in slices:
            for device in spec.devices if spec.pool.generation == newest[spec.pool.name] else ():
                name, capacity = spec.node_name or device.node_name, device.capacity.get(self._args.capacity)
                if name and capacity is not None and capacity.value > 0:
                    found = DeviceId(spec.driver, spec.pool.name, device.name)
                    self._on.setdefault(name, {})[found] = int(capacity.value)
                    self._node_of[found] = name
        self._largest = max((max(each.values()) for each in self._on.values()), default=1)

    def free_on(self, node_name: str) -> tuple[list[int], int]:
        """The free thousandths of each GPU of a node, and those of a whole one."""
        usage, found = self._ledger.usage, []
        devices = self._on.get(node_name, {})
        for device, capacity in devices.items():
            used = (
                capacity
                if device in usage.taken
                else usage.shared.get(device, {}).get(self._args.capacity, 0)
            )
            found.append(max(capacity - used, 0) * WHOLE // self._largest)
        return found[:MAX_DEVICES], max(devices.values(), default=0) * WHOLE // self._largest

    def request_of(self, pod: Pod, cpu: int) -> Request | InvalidRequest:
        """What claims without an allocation ask for; parts of several GPUs count as one of their sum."""
        parts: list[int] = []
        for claim in self._claims_of(pod):
            if claim is None or claim.allocation is not None:
                continue
            for each in claim.spec.devices.requests:
                asked = each.exactly
                if asked is None or asked.device_class_name not in self._args.device_classes:
                    continue
                wanted = asked.capacity.requests.get(self._args.capacity) if asked.capacity else None
                milli = WHOLE if wanted is None else -(-int(parse(wanted)) * WHOLE // self._largest)
                if milli <= 0:
                    text = f"request {each.name} asks for {wanted} of {self._args.capacity}"
                    return InvalidRequest(f"ResourceClaim {claim.key}: {text}", Request(cpu))
                parts += [min(milli, WHOLE)] * min(asked.count, MAX_DEVICES)
        total = sum(parts)
        if total <= WHOLE:
            return Request(cpu, 1, total) if parts else Request(cpu)
        return Request(cpu, -(-total // WHOLE), WHOLE)

    def is_waiting(self, pod: Pod) -> bool:
        """Whether a claim of the pod does not exist yet."""
        return any(claim is None for claim in self._claims_of(pod))

    def _claims_of(self, pod: Pod) -> Iterator[ResourceClaim | None]:
        for name in pod.claim_names:
            yield self._ledger.get(f"{pod.namespace}/{name}") if name else None


_taken_by_cluster: WeakKeyDictionary[ClusterView, dict[str, dict[str, tuple[int, ...]]]] = WeakKeyDictionary()


class FragmentationGradientDescent(Plugin):
    args: FragmentationGradientDescentArgs
    reads = Reads.USAGE
    rights = (Right("pods", ("patch",)),)

    def __init__(self, args: FragmentationGradientDescentArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._states = States(Workload(args.typical_pods))
        self._version = 0
        """Grows with each change of the typical pods."""
        self._generation = 0
        """Grows whenever states get new numbers."""
        by_resource = _taken_by_cluster.setdefault(handle.cluster, {})
        self._taken = by_resource.setdefault(args.gpu_resource, {})
        """The numbers of the GPUs that were chosen for a pod, by uid, also by other profiles."""
        self._reported: set[str] = set()
        """The uids of pods of which something was reported."""
        self._seen: Counter[Request] = Counter()
        self._seen_count = 0
        self._counted: set[str] = set()
        """The uids of the pods in `_seen`."""
        self._learn_at = 1
        self._slices = Slices(args, handle) if args.device_classes else None
        self._asked: dict[tuple[int, int], tuple[Request | InvalidRequest, Pod]] = {}
        """What pods ask for, by the ids of the shape and annotations that they share, with one of them."""

    # What pods ask for

    def _ask(self, pod: Pod) -> Request | InvalidRequest:
        if self._slices is not None:
            return self._slices.request_of(pod, pod.requests.get("cpu", 0))
        key = (id(pod.shape), id(pod.annotations))
        known = self._asked.get(key)
        if known is None:
            if len(self._asked) >= MAX_SHAPES:
                self._asked.clear()
            known = self._asked[key] = (self._read(pod), pod)  # the pod, so that the ids stay theirs
        return known[0]

    def _read(self, pod: Pod) -> Request | InvalidRequest:
        args, found, requests = self.args, pod.annotations, pod.requests
        return _read(
            requests.get("cpu", 0),
            requests.get(args.gpu_resource, 0),
            found.get(args.count_annotation),
            found.get(args.milli_annotation),
            found.get(args.models_annotation, ""),
            (args.count_annotation, args.milli_annotation),
        )

    def sign_pod(self, pod: Pod) -> Hashable:
        if self._slices is not None:
            self._slices.follow()
        if self._seen_count >= self._learn_at:
            self._learn()
        return self._version, self._ask(pod)

    # The typical pods

    def pod_added(self, pod: Pod) -> None:
        if self.args.typical_pods or pod.uid in self._counted:
            return
        request = self._ask(pod)
        if isinstance(request, InvalidRequest) or (self._slices and self._slices.is_waiting(pod)):
            return
        self._counted.add(pod.uid)
        self._seen[request] += 1
        self._seen_count += 1
        if len(self._seen) > MAX_SHAPES:
            self._seen = Counter({shape: count // 2 for shape, count in self._seen.items() if count > 1})
            self._seen_count = self._learn_at = self._seen.total()

    def pod_updated(self, old: Pod, pod: Pod) -> None:
        self.pod_added(pod)

    def pod_deleted(self, pod: Pod) -> None:
        for known in (self._counted, self._reported):
            known.discard(pod.uid)
        self._taken.pop(pod.uid, None)

    def _learn(self) -> None:
        """Take the most frequent shapes for typical, again after a quarter more pods."""
        self._learn_at = self._seen_count + max(self._seen_count // 4, 1)
        self._version += 1
        self._number_again(Workload(typical_pods(self._seen)))

    def _number_again(self, workload: Workload) -> None:
        self._generation += 1
        self._states = States(workload)

    # The states of nodes

    def _states_of(self, nodes: NodeTable) -> NDArray[np.int32]:
        """The number of each node's state."""
        if nodes is not nodes.live and _is_live(nodes):
            return self._states_of(nodes.live).take(nodes.rows)
        if nodes is nodes.live and len(self._states.states) > 4 * len(nodes) + 4096:
            self._number_again(self._states.workload)
        (found,) = nodes.keep(
            (self.serial, "states", self._generation),
            self._compute_states,
            usage=True,
            compute_row=self._compute_state,
        )
        return found  # type: ignore[no-any-return]

    def _compute_states(self, nodes: NodeTable) -> tuple[NDArray[np.int32]]:
        models = nodes.label(self.args.model_label)
        counts = nodes.allocatable[self.args.gpu_resource].tolist()
        names, found = (*models.values, ""), np.empty(len(nodes), np.int32)
        for row, (model, count) in enumerate(zip(models.ids.tolist(), counts, strict=True)):
            found[row] = self._state_of(nodes, row, names[model], count)
        return (found,)

    def _compute_state(self, node: NodeRow) -> tuple[int]:
        model = _model_on(node.live, node.rows, self.args.model_label)
        return (self._state_of(node.live, node.rows, model, node.allocatable[self.args.gpu_resource]),)

    def _state_of(self, nodes: NodeTable, row: int, model: str, count: int) -> int:
        if self._slices is not None:
            free, size = self._slices.free_on(nodes.names[row])
        else:
            free, size = self._free_on(nodes.pods_on(row), count), WHOLE
        free.sort(reverse=True)
        return self._states.number_of(State(tuple(free), size, model))

    def _free_on(self, pods: Iterable[Pod], count: int) -> list[int]:
        """What is free on each of a node's GPUs."""
        free = [WHOLE] * min(max(count, 0), MAX_DEVICES)
        unknown: list[tuple[Request, str]] = []
        for pod in pods if free else ():
            request = self._ask(pod)
            if isinstance(request, InvalidRequest):
                whole = "1 whole GPU" if request.assumed.gpus == 1 else f"{request.assumed.gpus} whole GPUs"
                self._report(pod, f"{request.text}; the pod is counted as {whole}")
                request = request.assumed
            if not request.gpus:
                continue
            places = self._taken.get(pod.uid) or self._places_of(pod, request, len(free))
            if not places or max(places) >= len(free):
                unknown.append((request, pod.uid))
                continue
            for place in places:
                free[place] = max(free[place] - request.milli, 0)
        for request, _ in sorted(unknown, key=lambda each: (-each[0].milli, each[1])):
            # Other schedulers do not write which GPUs they chose: assume the ones that the pod fits best.
            for _ in range(min(request.gpus, len(free))):
                place = min(range(len(free)), key=lambda place: (free[place] < request.milli, free[place]))
                free[place] = max(free[place] - request.milli, 0)
        return free

    def _places_of(self, pod: Pod, request: Request, count: int) -> tuple[int, ...]:
        """The numbers of the pod's GPUs by its annotation; empty if they are unknown."""
        text = pod.annotations.get(self.args.device_annotation)
        if text is None:
            return ()
        places = tuple(map(int, text.split("-"))) if _PLACES.fullmatch(text) else ()
        if len(set(places)) != request.gpus or len(places) != request.gpus or max(places) >= count:
            wanted = f"{request.gpus} numbers below {count}, separated by dashes"
            if request.gpus == 1:
                wanted = f"a number below {count}"
            self._report(
                pod, f"annotation {self.args.device_annotation} is {text[:64]!r}, but must be {wanted}"
            )
            return ()
        return places

    def _report(self, pod: Pod, text: str) -> None:
        if pod.uid not in self._reported:
            self._reported.add(pod.uid)
            self.handle.record_event(pod, "Warning", "InvalidGPURequest", text)

    # Which nodes fit, and which is best

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        request = self._ask(pod)
        if isinstance(request, InvalidRequest):
            return Status.unresolvable(request.text)
        return None if request.gpus and self._slices is None else Status.skip()

    def filter_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Iterator[Reject]:
        request = self._ask(pod)
        if isinstance(request, InvalidRequest):
            yield Reject(np.ones(len(nodes), np.bool_), request.text, unresolvable=True)
            return
        if not request.gpus or self._slices is not None:
            return
        if request.models:
            models = nodes.label(self.args.model_label)
            allowed = np.array([*(value in request.models for value in models.values), False])
            yield Reject(~allowed[models.ids], "node(s) had another GPU model", unresolvable=True)
        is_full, is_small = self._states.lacking(request, self._states_of(nodes))
        what = f"with {request.milli} thousandths free" if request.is_shared else "free"
        reason = f"node(s) had fewer than {request.gpus} GPU(s) {what}"
        yield Reject(is_full, reason, unresolvable=is_small)

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        request = self._ask(pod)
        if isinstance(request, InvalidRequest):
            return np.zeros(len(nodes), np.int64)
        numbers = self._states_of(nodes)
        if nodes is not nodes.live and _is_live(nodes):  # then these columns need not be copied
            allocatable, requested = (each["cpu"] for each in (nodes.live.allocatable, nodes.live.requested))
            free = allocatable.take(nodes.rows) - requested.take(nodes.rows)
        else:
            free = nodes.allocatable["cpu"] - nodes.requested["cpu"]
        steps = self._states.workload.steps
        return self._states.scores(request, numbers, steps(free), steps(free - request.cpu))

    # The devices of the chosen node

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        request = self._ask(pod)
        if self._slices is not None or isinstance(request, InvalidRequest) or not request.gpus:
            return None
        nodes = self.handle.cluster.nodes
        row = nodes.row_of(node_name)
        if row is None:
            return Status.unschedulable(f"node {node_name} was deleted")
        others = [each for each in nodes.pods_on(row) if each.uid != pod.uid]
        free = self._free_on(others, int(nodes.allocatable[self.args.gpu_resource][row]))
        places = self._choose(request, free, row)
        if not places:
            return Status.unschedulable(f"node {node_name} has no such GPUs left")
        self._taken[pod.uid] = places
        return None

    def _choose(self, request: Request, free: Sequence[int], row: int) -> tuple[int, ...]:
        """The first free GPUs, or for a part of one that with the best score; empty if there is none."""
        if not request.is_shared:
            places = tuple(place for place, amount in enumerate(free) if amount == WHOLE)[: request.gpus]
            return places if len(places) == request.gpus else ()
        fitting = [place for place, amount in enumerate(free) if amount >= request.milli]
        if len({free[place] for place in fitting}) < 2:
            return tuple(fitting[:1])
        nodes, states = self.handle.cluster.nodes, self._states
        used = int(nodes.requested["cpu"][row]) - request.cpu  # the pod is on it already
        left = int(nodes.allocatable["cpu"][row]) - used
        before, after = states.workload.steps(np.array([left, left - request.cpu])).tolist()
        model = _model_on(nodes, row, self.args.model_label)
        number = states.number_of(State(tuple(sorted(free, reverse=True)), WHOLE, model))
        scores = states.device_scores(request, number, before, after)
        return (max(fitting, key=lambda place: scores[free[place]]),)

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        self._taken.pop(pod.uid, None)

    async def pre_bind(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        places, name = self._taken.get(pod.uid), self.args.device_annotation
        if places and name:
            text = "-".join(map(str, places))
            await self.handle.api.patch_pod(pod, {"metadata": {"annotations": {name: text}}})
        return None

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        return (
            ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE),
            ClusterEvent(Resource.UNSCHEDULABLE_POD, Action.UPDATE),
            ClusterEvent(
                Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE | Action.UPDATE_NODE_LABEL
            ),
        )


def _model_on(nodes: NodeTable, row: int, label: str) -> str:
    models = nodes.label(label)
    number = int(models.ids[row])
    return models.values[number] if number >= 0 else ""


def _is_live(nodes: NodeTable) -> bool:
    """Whether all is as in the live table, of which these may be only some rows."""
    return nodes is nodes.live or (nodes.__class__ is NodeSubset and not nodes.is_changed)
