"""Plugins that go wrong at one point for one pod: its label `fault` says where and how.

`REACHED` has every fault that was carried out, so that a test can tell one that did no harm from one that
never happened.
"""
# ruff: noqa: N818 (what is wrong with them matters, not that they are errors)

from __future__ import annotations

import asyncio
import decimal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from stowplan import Plugin, Status
from stowplan.client.errors import ApiError
from stowplan.framework.events import Action, ClusterEvent, Hint, Resource
from stowplan.framework.plugin import Nomination, Reads, Reject
from stowplan.framework.status import Code

REACHED: list[tuple[str, str]] = []
"""The pod and the fault."""
LONG = 300.0


class Rude(BaseException):
    """No Exception, as those of some test frameworks."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class MuteForGood(Exception):
    def __str__(self) -> str:
        sys.exit(0)

    __repr__ = __str__


class Numb(Exception):
    def __str__(self) -> Any:
        return 5


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class Anonymous(Exception, metaclass=Nameless):
    pass


class Deceptive(ApiError):
    """Looks like an error of ours."""

    def __init__(self) -> None:
        super().__init__(409, "Conflict", "x")

    def __str__(self) -> str:
        raise SystemExit(0)


class OddText(str):
    def __format__(self, spec: str) -> str:
        raise RuntimeError("no format")

    __str__ = __len__ = __getitem__ = __eq__ = __format__  # type: ignore[assignment]
    __hash__ = str.__hash__


def misbehave(error: BaseException) -> Any:
    raise error


def dig() -> None:
    dig()


def grouped() -> BaseException:
    return BaseExceptionGroup("several", [SystemExit(0), ExceptionGroup("nested", [Mute(), Numb()])])


RAISED: dict[str, Callable[[], Any]] = {
    "ValueError": lambda: misbehave(ValueError("broken")),
    "StopIteration": lambda: misbehave(StopIteration(5)),
    "RecursionError": dig,
    "MemoryError": lambda: misbehave(MemoryError()),
    "TimeoutError": lambda: misbehave(TimeoutError()),
    "CancelledError": lambda: misbehave(asyncio.CancelledError()),
    "GeneratorExit": lambda: misbehave(GeneratorExit()),
    "KeyboardInterrupt": lambda: misbehave(KeyboardInterrupt()),
    "SystemExit": lambda: sys.exit(0),
    "BaseException": lambda: misbehave(Rude("rude")),
    "group": lambda: misbehave(grouped()),
    "str-raises": lambda: misbehave(Mute()),
    "str-exits": lambda: misbehave(MuteForGood()),
    "str-is-number": lambda: misbehave(Numb()),
    "odd-text": lambda: misbehave(ValueError(OddText("odd"))),
    "no-name": lambda: misbehave(Anonymous("x")),
    "gigantic": lambda: misbehave(ValueError("x" * 5_000_000)),
    "surrogates": lambda: misbehave(ValueError("\ud800 and \x00 and \u202e")),
    "api-error": lambda: misbehave(Deceptive()),
}


async def awaits_cancelled_task() -> None:
    task = asyncio.create_task(asyncio.sleep(LONG))
    task.cancel()
    await task


async def awaits_cancelled_future() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(LONG)


async def cancels_itself_at_the_end() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def group_fails() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(LONG))
        raise SystemExit(0)


class OddAwaitable:
    def __await__(self) -> Any:
        yield 5


AWAITED: dict[str, Callable[[], Any]] = {
    "awaits-cancelled-task": awaits_cancelled_task,
    "awaits-cancelled-future": awaits_cancelled_future,
    "cancels-itself": cancels_itself,
    "group-fails": group_fails,
    "odd-awaitable": OddAwaitable,
}


async def nothing() -> None:
    pass


# What a method may answer instead of a Status.
ANSWERS: dict[str, Callable[[], Any]] = {
    "True": lambda: True,
    "False": lambda: False,
    "text": lambda: "ok",
    "list": lambda: [Status.unschedulable("no")],
    "tuple": lambda: (Status.unschedulable("no"), 5),
    "number": lambda: 0,
    "object": object,
    "class": lambda: Status,
    "code": lambda: Code.UNSCHEDULABLE,
    "exception": lambda: ValueError("x"),
    "int-code": lambda: Status(2, ("no",)),  # type: ignore[arg-type]
    "text-code": lambda: Status("Error", ("no",)),  # type: ignore[arg-type]
    "list-of-reasons": lambda: Status(Code.UNSCHEDULABLE, ["no"]),  # type: ignore[arg-type]
    "reason-None": lambda: Status.unschedulable(None),  # type: ignore[arg-type]
    "reason-list": lambda: Status.unschedulable(["no"]),  # type: ignore[arg-type]
    "error-number": lambda: Status.error(5),  # type: ignore[arg-type]
    "plugin-None": lambda: Status(Code.UNSCHEDULABLE, ("no",), None),  # type: ignore[arg-type]
}
NOT_AWAITED = {"coroutine": nothing}


def all_of(nodes: Any, *, more: int = 0, kind: Any = np.bool_) -> Any:
    return np.ones(len(nodes) + more, kind)


NODE_REJECTS: dict[str, Callable[[Any], Any]] = {
    "None": lambda nodes: None,
    "True": lambda nodes: True,
    "text": lambda nodes: "no",
    "one-reject": lambda nodes: Reject(all_of(nodes), "no"),
    "yields-None": lambda nodes: iter((None,)),
    "yields-mask": lambda nodes: [all_of(nodes)],
    "yields-tuple": lambda nodes: [(all_of(nodes), "no")],
    "yields-status": lambda nodes: [Status.unschedulable("no")],
    "long-mask": lambda nodes: [Reject(all_of(nodes, more=1), "no")],
    "short-mask": lambda nodes: [Reject(all_of(nodes, more=-1), "no")],
    "numbers": lambda nodes: [Reject(all_of(nodes, kind=np.int64), "no")],
    "mask-None": lambda nodes: [Reject(None, "no")],  # type: ignore[arg-type]
    "mask-True": lambda nodes: [Reject(True, "no")],  # type: ignore[arg-type]
    "mask-table": lambda nodes: [Reject(np.ones((len(nodes), 2), np.bool_), "no")],
    "reason-None": lambda nodes: [Reject(all_of(nodes), None)],  # type: ignore[arg-type]
    "reason-number": lambda nodes: [Reject(all_of(nodes), 5)],  # type: ignore[arg-type]
    "reason-list": lambda nodes: [Reject(all_of(nodes), ["no"])],  # type: ignore[arg-type]
    "unresolvable-text": lambda nodes: [Reject(all_of(nodes), "no", "yes")],  # type: ignore[arg-type]
    "unresolvable-long": lambda nodes: [Reject(all_of(nodes), "no", all_of(nodes, more=1))],
    "unresolvable-numbers": lambda nodes: [Reject(all_of(nodes), "no", all_of(nodes, kind=np.int64))],
    "breaks-off": lambda nodes: (
        Reject(all_of(nodes), "no") if first else sys.exit(0) for first in (True, False)
    ),
}
NODE_SCORES: dict[str, Callable[[Any], Any]] = {
    "None": lambda nodes: None,
    "number": lambda nodes: 5,
    "text": lambda nodes: "5" * len(nodes),
    "texts": lambda nodes: ["5"] * len(nodes),
    "long": lambda nodes: np.zeros(len(nodes) + 1, np.int64),
    "short": lambda nodes: np.zeros(len(nodes) - 1, np.int64),
    "table": lambda nodes: np.zeros((len(nodes), 2), np.int64),
    "fractions": lambda nodes: np.full(len(nodes), 5.5),
    "NaN": lambda nodes: np.full(len(nodes), np.nan),
    "objects": lambda nodes: np.array([object()] * len(nodes)),
    "dict": lambda nodes: dict.fromkeys(range(len(nodes)), 0),
    "too-high": lambda nodes: np.full(len(nodes), 101),
    "negative": lambda nodes: np.full(len(nodes), -1),
    "huge": lambda nodes: np.full(len(nodes), 2**63, np.uint64),
    "generator": lambda nodes: (0 for _ in range(len(nodes))),
}
SCORES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "text": lambda: "5",
    "fraction": lambda: 5.5,
    "whole-float": lambda: 5.0,
    "NaN": lambda: float("nan"),
    "infinite": lambda: float("inf"),
    "huge": lambda: 10**30,
    "digits": lambda: 10**6000,
    "negative": lambda: -1,
    "too-high": lambda: 101,
    "decimal": lambda: decimal.Decimal(5),
    "list": lambda: [5],
    "numpy-float": lambda: np.float64(3),
}
NAMES: dict[str, Callable[[], Any]] = {
    "names-in-list": lambda: ["node-0"],
    "numbers": lambda: {1, 2},
    "None-in-set": lambda: frozenset({None}),
    "names-in-dict": lambda: {"node-0": 1},
}
NOMINATIONS: dict[str, Callable[[], Any]] = {
    "number": lambda: Nomination(5),  # type: ignore[arg-type]
    "victims-text": lambda: Nomination("node-0", "pods"),  # type: ignore[arg-type]
    "victims-names": lambda: Nomination("node-0", ("some-pod",)),
    "victims-number": lambda: Nomination("node-0", 5),  # type: ignore[arg-type]
    "wait": lambda: Status.wait(5),
    "skip": Status.skip,
}
WAITS: dict[str, Callable[[], Any]] = {
    "wait-text": lambda: Status.wait("soon"),  # type: ignore[arg-type]
    "wait-NaN": lambda: Status.wait(float("nan")),
    "wait-None": lambda: Status.wait(None),  # type: ignore[arg-type]
    "skip": Status.skip,
}
NO_WAITS: dict[str, Callable[[], Any]] = {"wait": lambda: Status.wait(5), "skip": Status.skip}


class Incomparable:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __lt__(self, other: object) -> bool:
        raise self._error

    __eq__ = __gt__ = __lt__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class Vague:
    """Comparing it gives something that is neither true nor false."""

    def __lt__(self, other: object) -> Any:
        return np.array([True, False])


KEYS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "object": object,
    "text": lambda: "key",
    "number": lambda: 5,
    "tuple-of-text": lambda: ("a", "b"),
    "complex": lambda: (1j, 2),
    "dict": dict,
    "array": lambda: np.array([1, 2]),
    "incomparable": lambda: Incomparable(ValueError("no")),
    "incomparable-exits": lambda: Incomparable(SystemExit(0)),
    "vague": Vague,
}


class Unhashable:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __hash__(self) -> int:
        raise self._error


class Unequal:
    """Has the same hash as all its kind, and cannot be compared with them."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise SystemExit(0)


SIGNATURES: dict[str, Callable[[], Any]] = {
    "list": lambda: [1],
    "unhashable": lambda: Unhashable(ValueError("no")),
    "unhashable-exits": lambda: Unhashable(SystemExit(0)),
}
HINTS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "text": lambda: "Perhaps",
    "number": lambda: 5,
    "status": Status.skip,
    "object": object,
}


class Remembered:
    """What a plugin keeps in the cycle state, to be copied when nodes are tried out."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act

    def clone(self) -> Any:
        return self._act()


METHODS: dict[str, dict[str, Callable[..., Any]]] = {
    "OneNode.pre_enqueue": RAISED | ANSWERS | NO_WAITS | NOT_AWAITED,
    "OneNode.pre_filter": RAISED | ANSWERS | NAMES | NOT_AWAITED,
    "OneNode.add_pod": RAISED | ANSWERS | NO_WAITS | NOT_AWAITED,
    "OneNode.remove_pod": RAISED | ANSWERS | NO_WAITS | NOT_AWAITED,
    "OneNode.clone": RAISED,
    "OneNode.filter": RAISED | ANSWERS | NO_WAITS | NOT_AWAITED,
    "OneNode.post_filter": RAISED | ANSWERS | NOMINATIONS | NOT_AWAITED,
    "OneNode.pre_score": RAISED | ANSWERS | {"wait": lambda: Status.wait(5)} | NOT_AWAITED,
    "OneNode.score": RAISED | SCORES | NOT_AWAITED,
    "OneNode.normalize_score": RAISED | NODE_SCORES | NOT_AWAITED,
    "OneNode.reserve": RAISED | ANSWERS | NO_WAITS | NOT_AWAITED,
    "OneNode.unreserve": RAISED | ANSWERS | NOT_AWAITED,
    "OneNode.permit": RAISED | ANSWERS | WAITS | NOT_AWAITED,
    "OneNode.pre_bind": RAISED | AWAITED | ANSWERS | NO_WAITS,
    "OneNode.bind": RAISED | AWAITED | ANSWERS | {"wait": lambda: Status.wait(5)},
    "OneNode.post_bind": RAISED | AWAITED | ANSWERS,
    "OneNode.queueing_hint": RAISED | HINTS | NOT_AWAITED,
    "Columns.filter_nodes": RAISED | NODE_REJECTS | NOT_AWAITED,
    "Columns.score_nodes": RAISED | NODE_SCORES | NOT_AWAITED,
    "Kept.filter_nodes": RAISED | NODE_REJECTS | NOT_AWAITED,
    "Kept.score_nodes": RAISED | NODE_SCORES | NOT_AWAITED,
    "Kept.sign_pod": RAISED | SIGNATURES,
    "Sorter.queue_sort": RAISED | KEYS | NOT_AWAITED,
}
"""All faults of each method, by name."""
CASES = [(method, fault) for method, faults in METHODS.items() for fault in faults]


class Hostile(Plugin):
    budget = bind_budget = LONG

    def act(self, method: str, pod: Any, usual: Any, *given: Any) -> Any:
        """The usual answer, or the fault that the pod is labelled with, if it is one of this method."""
        where, _, fault = pod.labels.get("fault", "").partition("--")
        if where != f"{type(self).__name__}.{method}":
            return usual
        REACHED.append((pod.name, fault))
        return METHODS[where][fault](*given)

    def is_about(self, method: str, pod: Any) -> bool:
        return bool(pod.labels.get("fault", "").startswith(f"{type(self).__name__}.{method}--"))


class OneNode(Hostile):
    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        self._rejected: set[str] = set()

    def events_to_register(self) -> Any:
        return [ClusterEvent(Resource.NODE, Action.ALL), ClusterEvent(Resource.POD, Action.ALL)]

    def pre_enqueue(self, pod: Any) -> Any:
        return self.act("pre_enqueue", pod, None)

    def pre_filter(self, state: Any, pod: Any, nodes: Any) -> Any:
        if self.is_about("clone", pod):
            state.write(Remembered(lambda: self.act("clone", pod, None)))
        return self.act("pre_filter", pod, None)

    def add_pod(self, state: Any, pod: Any, other: Any, node: Any) -> Any:
        return self.act("add_pod", pod, None)

    def remove_pod(self, state: Any, pod: Any, other: Any, node: Any) -> Any:
        return self.act("remove_pod", pod, None)

    def filter(self, state: Any, pod: Any, node: Any) -> Any:
        if self.is_about("queueing_hint", pod) and pod.name not in self._rejected:
            if node.name == "node-2":
                self._rejected.add(pod.name)
            return Status.unschedulable("not yet")
        return self.act("filter", pod, None)

    def post_filter(self, state: Any, pod: Any, decision: Any) -> Any:
        return self.act("post_filter", pod, Status.unschedulable("no"))

    def pre_score(self, state: Any, pod: Any, nodes: Any) -> Any:
        return self.act("pre_score", pod, None)

    def score(self, state: Any, pod: Any, node: Any) -> Any:
        return self.act("score", pod, 0)

    def normalize_score(self, state: Any, pod: Any, scores: Any) -> Any:
        return self.act("normalize_score", pod, scores, scores)

    def reserve(self, state: Any, pod: Any, node_name: str) -> Any:
        return self.act("reserve", pod, None)

    def unreserve(self, state: Any, pod: Any, node_name: str) -> Any:
        return self.act("unreserve", pod, None)

    def permit(self, state: Any, pod: Any, node_name: str) -> Any:
        if self.is_about("unreserve", pod):
            return Status.unschedulable("not permitted")
        return self.act("permit", pod, None)

    async def pre_bind(self, state: Any, pod: Any, node_name: str) -> Any:
        return await self._later("pre_bind", pod)

    async def bind(self, state: Any, pod: Any, node_name: str) -> Any:
        return await self._later("bind", pod, Status.skip())

    async def post_bind(self, state: Any, pod: Any, node_name: str) -> Any:
        return await self._later("post_bind", pod)

    async def _later(self, method: str, pod: Any, usual: Any = None) -> Any:
        await asyncio.sleep(0)
        answer = self.act(method, pod, usual)
        return await answer if hasattr(answer, "__await__") else answer

    def queueing_hint(self, pod: Any, event: Any, old: Any, new: Any) -> Any:
        return self.act("queueing_hint", pod, Hint.QUEUE)


class Columns(Hostile):
    def filter_nodes(self, state: Any, pod: Any, nodes: Any) -> Any:
        return self.act("filter_nodes", pod, (), *() if fault_of(pod) in (RAISED | NOT_AWAITED) else (nodes,))

    def score_nodes(self, state: Any, pod: Any, nodes: Any) -> Any:
        usual = np.zeros(len(nodes), np.int64)
        given = () if fault_of(pod) in (RAISED | NOT_AWAITED) else (nodes,)
        return self.act("score_nodes", pod, usual, *given)


class Kept(Columns):
    reads = Reads.NODE

    def sign_pod(self, pod: Any) -> Any:
        return self.act("sign_pod", pod, pod.name)


class Sorter(Hostile):
    def queue_sort(self, queued: Any) -> Any:
        return self.act("queue_sort", queued.pod, (-queued.pod.priority, queued.timestamp))


def fault_of(pod: Any) -> str:
    return str(pod.labels.get("fault", "").partition("--")[2])


class Background(Hostile):
    """One that fails in the background, each instance in its own way."""

    how = ""

    def filter(self, state: Any, pod: Any, node: Any) -> Any:
        return None

    async def run(self) -> None:
        REACHED.append(("run", self.how))
        answer = (RAISED | AWAITED)[self.how]()
        if hasattr(answer, "__await__"):
            await answer


BACKGROUND = {
    f"Background{number}": type(f"Background{number}", (Background,), {"how": how})
    for number, how in enumerate(RAISED | AWAITED)
}
PLUGINS: dict[str, type[Plugin]] = {
    each.__name__: each for each in (OneNode, Columns, Kept, Sorter)
} | BACKGROUND


def configuration() -> dict[str, Any]:
    """A profile for each plugin, one with those that fail in the background, and one without any."""
    sort = {"queueSort": {"enabled": [{"name": "Sorter"}], "disabled": [{"name": "*"}]}}
    binders = {
        "bind": {"enabled": [{"name": "OneNode"}, {"name": "DefaultBinder"}], "disabled": [{"name": "*"}]}
    }

    def profile(name: str, *plugins: str, **more: Any) -> dict[str, Any]:
        enabled = {"multiPoint": {"enabled": [{"name": each} for each in plugins]}}
        return {"schedulerName": name, "plugins": {**enabled, **sort, **more}}

    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        # Long enough for a machine that is busy with other tests.
        "leaderElection": {"leaseDuration": "120s", "renewDeadline": "100s", "retryPeriod": "2s"},
        "profiles": [
            profile("default-scheduler"),
            profile("OneNode", "OneNode", **binders),
            profile("Columns", "Columns"),
            profile("Kept", "Kept"),
            profile("Background", *BACKGROUND),
        ],
    }
