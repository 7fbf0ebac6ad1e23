"""Every attempt ends bound or failed, whatever goes wrong between the choice of a node and the bound pod."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hostile_plugins import ANSWERS, AWAITED, RAISED
from hypothesis import given
from hypothesis import strategies as st

from example_share import examples
from scheduler_staging import RecordingApi, Stage, node, pod, staged
from stowplan import Plugin, Status
from stowplan.api.pod import Pod
from stowplan.client.errors import ApiError, Conflict, Forbidden, NotFound, TooMany, Unreachable
from stowplan.metrics import Metrics
from stowplan.scheduler.guard import Guard
from virtual_time import VirtualTimeLoop

FAULTS = {**RAISED, **{f"answers {name}": answer for name, answer in ANSWERS.items()}}
LATER = {**FAULTS, **AWAITED}
API_ERRORS: dict[str, Callable[[], ApiError]] = {
    "unreachable": lambda: Unreachable("the connection broke"),
    "500": lambda: ApiError(500, "InternalError", "no"),
    "429": lambda: TooMany(429, "TooManyRequests", "busy"),
    "403": lambda: Forbidden(403, "Forbidden", "no"),
    "404": lambda: NotFound(404, "NotFound", "no"),
    "409": lambda: Conflict(409, "Conflict", "no"),
}
BUDGET = 10.0
WAIT = 20.0


class Script(msgspec.Struct):
    """What goes wrong, by place. Each happens `times` times, then all is well."""

    reserve: str = ""
    permit: str = ""
    wait: str = ""
    """What ends a wait that permit asks for: allow, reject, timeout or cancelled."""
    pre_bind: str = ""
    bind: str = ""
    post_bind: str = ""
    unreserve: str = ""
    api: dict[str, str] = {}
    """What the API server answers: to bind, patch and get."""
    meanwhile: str = ""
    """What happens once pre_bind has begun."""
    is_bound_anyway: bool = False
    """Whether the pod is bound although the request failed."""


class Binding(Plugin):
    budget = bind_budget = BUDGET
    script = Script()
    stage: Stage

    def _fault(self, method: str, pod: Pod, usual: Any = None) -> Any:
        fault = getattr(self.script, method)
        if pod.name != "cursed" or not fault:
            return usual
        return LATER[fault]()

    def reserve(self, state: Any, pod: Pod, node_name: str) -> Any:
        return self._fault("reserve", pod)

    def unreserve(self, state: Any, pod: Pod, node_name: str) -> Any:
        return self._fault("unreserve", pod)

    def permit(self, state: Any, pod: Pod, node_name: str) -> Any:
        if pod.name != "cursed" or not self.script.wait:
            return self._fault("permit", pod)
        loop = asyncio.get_running_loop()
        if self.script.wait != "timeout":
            loop.call_later(1, self._end_wait, pod)
        return Status.wait(WAIT)

    def _end_wait(self, pod: Pod) -> None:
        for waiting in self.handle.waiting_pods:
            if waiting.pod.uid != pod.uid:
                continue
            if self.script.wait == "allow":
                waiting.allow("Binding")
            elif self.script.wait == "reject":
                waiting.reject("Binding", "no")
            elif self.script.wait == "nonsense":
                with pytest.raises(TypeError):
                    waiting.reject("Binding", 5)  # type: ignore[arg-type]
            else:
                self._cancel_bindings()

    async def pre_bind(self, state: Any, pod: Pod, node_name: str) -> Any:
        if pod.name == "cursed" and self.script.meanwhile:
            self.stage_change(pod, node_name)
            await asyncio.sleep(0.5)
        return await self._later("pre_bind", pod)

    async def bind(self, state: Any, pod: Pod, node_name: str) -> Any:
        if pod.name == "cursed" and self.script.is_bound_anyway and self.script.bind:
            await self.handle.api.create_binding(pod, node_name)
        return await self._later("bind", pod, Status.skip())

    async def post_bind(self, state: Any, pod: Pod, node_name: str) -> Any:
        return await self._later("post_bind", pod)

    async def _later(self, method: str, pod: Pod, usual: Any = None) -> Any:
        await asyncio.sleep(0)
        answer = self._fault(method, pod, usual)
        return await answer if hasattr(answer, "__await__") else answer

    def stage_change(self, pod: Pod, node_name: str) -> None:
        """What happens in the cluster, or to us, while the pod is being bound."""
        happens, stage = self.script.meanwhile, type(self).stage
        if happens == "pod deleted":
            stage.change(cursed(), None)
        elif happens == "node deleted":
            stage.change(node(node_name), None)
        elif happens == "bound elsewhere":
            other = "n2" if node_name == "n1" else "n1"
            stage.change(cursed(), cursed(on=other))
        elif happens == "no longer leading":
            stage.is_leading = False
        elif happens == "task cancelled":
            self._cancel_bindings()
        elif happens == "task cancelled while binding":
            asyncio.get_running_loop().call_later(0.6, self._cancel_bindings)

    def _cancel_bindings(self) -> None:
        for task in asyncio.all_tasks():
            if task.get_name().endswith("binding of pod default/cursed"):
                task.cancel()


async def hang() -> None:
    await asyncio.sleep(10 * BUDGET)


async def hang_and_ignore() -> None:
    for _ in range(3):
        try:
            await asyncio.sleep(4 * BUDGET)
        except asyncio.CancelledError:
            continue


async def hang_in_a_call() -> None:
    await asyncio.wait_for(asyncio.sleep(5), 1)


LATER |= {
    "lies": lambda: None,
    "hangs": hang,
    "ignores being cancelled": hang_and_ignore,
    "times out": hang_in_a_call,
}


def cursed(on: str = "") -> dict[str, Any]:
    return pod("cursed", on=on)


class BindingApi(RecordingApi):
    """Fails as the script says, for the cursed pod, a few times."""

    def __init__(self) -> None:
        super().__init__()
        self.script, self.stage, self.left = Script(), None, {}

    async def create_binding(self, pod: Pod, node_name: str) -> None:
        await asyncio.sleep(0.2)
        if pod.name == "cursed" and self._fails("bind"):
            if self.script.is_bound_anyway:
                self._bind(pod, node_name)
            raise API_ERRORS[self.script.api["bind"]]()
        self._bind(pod, node_name)

    def _bind(self, pod: Pod, node_name: str) -> None:
        self.bound[pod.key] = node_name
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        if path in self.pods:
            before = self.pods[path]
            after = {**before, "spec": {**before["spec"], "nodeName": node_name}}
            self.pods[path] = after
            asyncio.get_running_loop().call_later(0.3, self._show, before, after)

    def _show(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        path = f"/api/v1/namespaces/{before['metadata']['namespace']}/pods/{before['metadata']['name']}"
        if self.pods.get(path) is after and self.stage is not None:
            self.stage.change(before, after)

    async def patch_pod_status(self, pod: Pod, patch: dict[str, Any]) -> None:
        if pod.name == "cursed" and self._fails("patch"):
            raise API_ERRORS[self.script.api["patch"]]()
        await super().patch_pod_status(pod, patch)

    async def request(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        if method == "GET" and path.endswith("/cursed") and self._fails("get"):
            raise API_ERRORS[self.script.api["get"]]()
        return await super().request(method, path, body, **options)

    def _fails(self, what: str) -> bool:
        if what not in self.script.api or not self.left.setdefault(what, 2):
            return False
        self.left[what] -= 1
        return True


maybe = lambda faults: st.sampled_from(["", *sorted(faults)])  # noqa: E731
scripts = st.builds(
    Script,
    reserve=st.one_of(st.just(""), st.just(""), maybe(FAULTS)),
    permit=st.one_of(st.just(""), st.just(""), maybe(FAULTS)),
    wait=st.sampled_from(["", "", "allow", "reject", "timeout", "cancelled", "nonsense"]),
    pre_bind=st.one_of(st.just(""), maybe(LATER)),
    bind=st.one_of(st.just(""), maybe(LATER)),
    post_bind=st.one_of(st.just(""), maybe(LATER)),
    unreserve=st.one_of(st.just(""), maybe(FAULTS)),
    api=st.fixed_dictionaries(
        {},
        optional={
            "bind": st.sampled_from(sorted(API_ERRORS)),
            "patch": st.sampled_from(sorted(API_ERRORS)),
            # An API server that does not find a pod says that it is gone.
            "get": st.sampled_from(sorted(API_ERRORS.keys() - {"404"})),
        },
    ),
    meanwhile=st.sampled_from(
        [
            "",
            "",
            "pod deleted",
            "node deleted",
            "bound elsewhere",
            "no longer leading",
            "task cancelled",
            "task cancelled while binding",
        ]
    ),
    is_bound_anyway=st.booleans(),
)


@examples(150)
@given(script=scripts)
def test_an_attempt_ends_bound_or_failed(script):
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(attempt(script))


@pytest.mark.parametrize("fault", sorted(LATER))
@pytest.mark.parametrize("where", ["pre_bind", "bind", "post_bind"])
def test_one_fault_at_a_time(where, fault):
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(attempt(Script(**{where: fault})))


async def attempt(script: Script) -> None:
    """One pod goes through the script, another one is bound beside it."""
    Binding.script = script
    binders = {
        "enabled": [{"name": "Binding"}, {"name": "DefaultBinder"}],
        "disabled": [{"name": "*"}],
    }
    points = {"multiPoint": {"enabled": [{"name": "Binding"}]}, "bind": binders}
    config = {"profiles": [{"plugins": points}]}
    api = BindingApi()
    api.script = script
    guard = Guard(Metrics())  # without its thread, which counts real seconds
    async with staged(config, {"Binding": Binding}, guard=guard, api=api) as stage:
        Binding.stage = api.stage = stage
        stage.see(node("n1"), node("n2"), cursed(), pod("fine"))
        await asyncio.sleep(200)  # no time passes
        if script.meanwhile not in ("no longer leading", "node deleted"):
            assert "default/fine" in api.bound
        queue, cluster = stage.scheduler.queue, stage.scheduler.cluster
        assert not [task.get_name() for task in asyncio.all_tasks() if "binding of" in task.get_name()]
        assert len(queue.in_flight) == 0, "it is still in flight"
        assert not list(stage.scheduler.waiting), "it still waits for a permit"
        for uid in ("uid-cursed", "uid-fine"):
            queued = [each for each in queue if each.pod.uid == uid]
            placed = cluster.pod(uid)
            is_pending = uid in stage.scheduler.handlers.pending
            if script.meanwhile == "no longer leading":
                assert placed is None or not cluster.is_assumed(placed)
            elif is_pending:
                assert len(queued) == 1, "it is lost"
                assert placed is None, "room is held for it"
            else:
                assert not queued
                assert placed is None or not cluster.is_assumed(placed)
        assert cluster.assumed_count == 0
