"""The binding cycle: from a chosen node to a bound pod, while the next pods are decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.client.api import PODS
from stowplan.client.errors import ApiError, NotFound, Unreachable
from stowplan.client.extenders import Extender, ExtenderError
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.config.gates import NODE_NAME_FOR_EXPECTATION
from stowplan.errors import StowplanError
from stowplan.framework.answers import (
    Method,
    RaisedError,
    describe,
    nothing_of,
    plain_text,
    raise_interrupt,
    stack_of,
    status_of,
    where_text,
)
from stowplan.framework.observer import OverdueError
from stowplan.framework.plugin import Plugin, is_trusted, overrides
from stowplan.framework.state import seal_state
from stowplan.framework.status import SKIP, Code, Status
from stowplan.queue.scheduling_queue import SchedulingQueue
from stowplan.scheduler.failure import NOBODY, FailureHandler, PodReporter
from stowplan.scheduler.shared import Attempt, Failure, RetryDelay, Shared, WaitingPod, failure_at

NOT_LEADING = Failure("this scheduler is no longer the leader", is_moot=True)
CANCELLED = Failure("binding: its task was cancelled")
UNCONFIRMED = Failure("binding: a bind plugin or extender reported success, but the pod has no node")
CONFIRM_SECONDS = 30.0
"""If the watch has not shown by then what another binder reported, the API server is asked."""


class PodBinder:
    """Takes pods from a chosen node to a bound pod, while the next pods are decided."""

    def __init__(
        self,
        shared: Shared,
        queue: SchedulingQueue,
        reporter: PodReporter,
        failures: FailureHandler,
        on_capacity_freed: Callable[[Pod], None],
        extenders: Sequence[Extender] = (),
    ) -> None:
        """`on_capacity_freed` is called for pods that are not bound to their node after all."""
        self._shared, self._queue, self._reporter, self._failures = shared, queue, reporter, failures
        self._on_capacity_freed, self._extenders = on_capacity_freed, extenders
        self.write_at_once: Callable[[Pod, str], None] | None = None
        """Set by a replay, where a binding takes no time: binds a pod."""

    def start(self, attempt: Attempt, node_name: str) -> None:
        """Place the pod and start to bind it; if a plugin rejects it, it is requeued."""
        placed = self.place(attempt, node_name)
        if isinstance(placed, Failure):
            self._failures.handle(attempt, placed, NOBODY)
        else:
            self.start_placed(attempt, placed, node_name)

    def start_placed(self, attempt: Attempt, placed: Pod, node_name: str) -> None:
        """Start to bind a pod that `place` has placed."""
        has_claims = placed.spec.volumes or placed.spec.resource_claims
        is_plain = attempt.group is None and attempt.profile.binds_plainly and not has_claims
        if is_plain and self.write_at_once is not None and self._bind_at_once(attempt, placed, node_name):
            return
        work = self._run(attempt, placed, node_name)
        self._shared.tasks.start(work, f"binding of pod {placed.key}", is_plain=is_plain)

    def _bind_at_once(self, attempt: Attempt, placed: Pod, node_name: str) -> bool:
        """Do what `_run` does for a pod that no plugin has anything to do for; False if one may have."""
        profile = attempt.profile
        if not profile.binds_only or self._extenders or self._shared.waiting.find(placed.uid) is not None:
            return False
        planned = self._pre_flight(attempt, placed, node_name)
        if isinstance(planned, Failure) or planned[0]:
            return False
        assert self.write_at_once is not None
        self._queue.done(placed.uid)
        self.write_at_once(placed, node_name)
        self._report_bound(attempt, placed, node_name)
        attempt.decision.state = None
        return True

    def place(self, attempt: Attempt, node_name: str) -> Pod | Failure:
        """Assume the pod and run reserve and permit; if a plugin rejects it, undo that."""
        pod = attempt.pod
        try:
            placed = self._shared.cluster.assume_pod(pod, node_name)
        except StowplanError as error:
            return Failure(str(error))
        self._shared.nominations.remove(pod)
        try:
            failure = self._reserve(attempt, placed, node_name) or self._permit(attempt, placed, node_name)
        except BaseException:  # not foreseen: whoever catches it need not know of the assumed pod
            self.undo(attempt, placed, node_name)
            raise
        if failure is not None:
            self.undo(attempt, placed, node_name)
            return failure
        return placed

    def _reserve(self, attempt: Attempt, placed: Pod, node_name: str) -> Failure | None:
        began = perf_counter()
        for name, plugin in attempt.profile.at("reserve"):
            asked_at = perf_counter()
            status, stack = _ask("Reserve", "reserve", plugin, attempt, placed, node_name)
            self._measure_plugin(attempt, "Reserve", name, asked_at, status)
            if status is not None:
                self._measure(attempt, "Reserve", began, status)
                return failure_at(status, name, "running Reserve plugin", stack)
        self._measure(attempt, "Reserve", began)
        return None

    def _permit(self, attempt: Attempt, placed: Pod, node_name: str) -> Failure | None:
        timeouts: dict[str, float] = {}
        began = perf_counter()
        for name, plugin in attempt.profile.at("permit"):
            status, stack = _ask("Permit", "permit", plugin, attempt, placed, node_name)
            if status is None:
                continue
            if status.code is Code.WAIT:
                timeouts[name] = status.timeout
                continue
            self._measure(attempt, "Permit", began, status)
            return failure_at(status, name, "running Permit plugin", stack)
        self._measure(attempt, "Permit", began, Status.wait(0) if timeouts else None)
        if timeouts:
            self._shared.waiting.put(WaitingPod(placed, timeouts))
        return None

    async def _run(self, attempt: Attempt, placed: Pod, node_name: str) -> None:
        """End with the pod bound or failed, whatever happens."""
        try:
            failure = await self.bind(attempt, placed, node_name)
        except asyncio.CancelledError:
            if self._shared.tasks.is_ending:
                raise
            # A plugin can reach any task of the event loop. The next step needs one that is not cancelled.
            self._shared.tasks.start(
                self._end_cancelled(attempt, placed, node_name), f"end of the binding of pod {placed.key}"
            )
            return
        await self._conclude(attempt, placed, node_name, failure)

    async def _end_cancelled(self, attempt: Attempt, placed: Pod, node_name: str) -> None:
        """After a cancelled binding: only the API server knows whether the pod was bound."""
        failure: Failure | None = CANCELLED
        try:
            failure = await self._outcome(placed, node_name, CANCELLED)
        finally:
            await self._conclude(attempt, placed, node_name, failure)

    async def _conclude(self, attempt: Attempt, placed: Pod, node_name: str, failure: Failure | None) -> None:
        if failure is not None:
            self._shared.changes.make(partial(self._fail, attempt, placed, node_name, failure))
            return
        try:
            self._report_bound(attempt, placed, node_name)
        except Exception as error:  # the pod is bound all the same
            log.error("Bound pod not recorded", error, pod=placed, stacktrace=stack_of(error))
        self._confirm_later(attempt, placed, node_name)
        await self.run_post_binds(attempt, placed, node_name)

    def _confirm_later(self, attempt: Attempt, placed: Pod, node_name: str) -> None:
        """Check later that the pod is bound: a binder of others may report success without having done it."""
        if not self._extenders and attempt.profile.binds_plainly:
            return
        binders = attempt.profile.at("bind")
        if not self._extenders and all(is_trusted(type(plugin)) for _, plugin in binders):
            return
        state = attempt.state  # which plugins need to unreserve; after post_bind the attempt has it no more

        def look() -> None:
            if (
                not self._shared.tasks.is_ending
                and self._shared.cluster.is_assumed(placed)
                and self._shared.cluster.pod(placed.uid) is placed
            ):
                self._shared.tasks.start(check(), f"confirmation of pod {placed.key}")

        async def check() -> None:
            failure = await self._outcome(placed, node_name, UNCONFIRMED)
            if failure is UNCONFIRMED and self._shared.cluster.is_assumed(placed):
                attempt.decision.state = state
                self._shared.changes.make(partial(self._fail, attempt, placed, node_name, failure))

        asyncio.get_running_loop().call_later(CONFIRM_SECONDS, look)

    def _fail(self, attempt: Attempt, placed: Pod, node_name: str, failure: Failure) -> None:
        was_ours = self._shared.cluster.is_assumed(placed)
        try:
            self.undo(attempt, placed, node_name)
        finally:
            self._failures.handle(attempt, failure, NOBODY)
        if was_ours:
            self._on_capacity_freed(placed)

    async def _outcome(self, placed: Pod, node_name: str, failure: Failure) -> Failure | None:
        """The failure of a pod whose binding was not finished; None if it is bound all the same."""
        try:
            node_now = await self._node_after(placed, Unreachable(failure.message))
        except Exception as error:
            log.error(
                "Cannot find out whether the pod is bound", error, pod=placed, stacktrace=stack_of(error)
            )
            return failure
        if node_now == node_name:
            return None
        return failure if node_now == "" else Failure(failure.message, is_moot=True)

    async def bind(self, attempt: Attempt, placed: Pod, node_name: str) -> Failure | None:
        """Wait until plugins permit the pod, and bind it. Returns the failure, if any."""
        self._shared.metrics.running("binding", 1)
        try:
            return await self._bind(attempt, placed, node_name)
        except BaseException as error:  # an unforeseen error of one pod must not stop the others
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            failure = Failure(f"binding: {describe(error)}", stack=stack_of(error))
            return await self._outcome(placed, node_name, failure)
        finally:
            self._shared.metrics.running("binding", -1)

    async def run_post_binds(self, attempt: Attempt, placed: Pod, node_name: str) -> None:
        began, state, observer = perf_counter(), attempt.state, attempt.profile.observer
        for name, plugin in attempt.profile.at("postBind"):
            try:
                answer = await observer.call_async(
                    "PostBind", plugin, plugin.post_bind, seal_state(plugin, state), placed, node_name
                )
                nothing_of("post_bind", answer)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                _log_fault("PostBind plugin failed", error, placed, name, (plugin, "post_bind"))
        self._measure(attempt, "PostBind", began)
        attempt.decision.state = None  # decisions may be kept; this is nobody's any more

    async def _bind(self, attempt: Attempt, placed: Pod, node_name: str) -> Failure | None:
        waiting = self._shared.waiting.find(placed.uid)
        planned = self._pre_flight(attempt, placed, node_name)
        if isinstance(planned, Failure):
            self._shared.waiting.remove(placed.uid)
            return planned
        pre_binds, has_work = planned
        if waiting is not None:
            began = self._shared.clock()
            try:
                await self._show_node(attempt, placed, node_name)
                status = await waiting.outcome()
            finally:
                self._shared.waiting.remove(placed.uid)
            self._shared.metrics.permit_waited(
                (status or Status()).code.wire_name, self._shared.clock() - began
            )
            if status is not None:
                rejection = Failure(f"waiting on permit for pod: {status.message}")
                if status.code.is_rejection:
                    rejection = failure_at(status, status.plugin, "waiting on permit for pod")
                if attempt.group is not None:
                    rejection = rejection._replace(is_of_group=True)
                    attempt.group.drop(placed, rejection)
                return rejection
        elif has_work:
            await self._show_node(attempt, placed, node_name)
        if attempt.group is not None and (failed := await attempt.group.permitted(placed)) is not None:
            return failed
        self._queue.done(placed.uid)
        failure = await self._run_pre_binds(attempt, placed, node_name, pre_binds)
        return await self._run_binds(attempt, placed, node_name) if failure is None else failure

    def _pre_flight(
        self, attempt: Attempt, placed: Pod, node_name: str
    ) -> tuple[list[tuple[str, Plugin]], bool] | Failure:
        """The plugins to call before the pod is bound, and whether one says that it has something to do."""
        began = perf_counter()
        found: list[tuple[str, Plugin]] = []
        has_work = False
        for name, plugin in attempt.profile.at("preBind"):
            if type(plugin).pre_bind_pre_flight is not Plugin.pre_bind_pre_flight:
                status, stack = _ask(
                    "PreBindPreFlight", "pre_bind_pre_flight", plugin, attempt, placed, node_name
                )
                if status is not None and status.code is Code.SKIP:
                    continue
                if status is not None:
                    self._measure(attempt, "PreBindPreFlight", began, status)
                    return failure_at(status, name, "running PreBindPreFlight", stack)
                has_work = True
            found.append((name, plugin))
        self._measure(attempt, "PreBindPreFlight", began, None if has_work else SKIP)
        return found, has_work

    async def _show_node(self, attempt: Attempt, placed: Pod, node_name: str) -> None:
        """While a binding takes its time, others see where the pod is going."""
        if NODE_NAME_FOR_EXPECTATION in attempt.profile.disabled_gates:
            return
        await self._reporter.patch_status(placed, {"status": {"nominatedNodeName": node_name}})

    async def _run_pre_binds(
        self, attempt: Attempt, placed: Pod, node_name: str, plugins: Sequence[tuple[str, Plugin]]
    ) -> Failure | None:
        began, observer = perf_counter(), attempt.profile.observer
        for name, plugin in plugins:
            asked_at, advice, stack = perf_counter(), "", ""
            try:
                state = seal_state(plugin, attempt.state)
                answer = await observer.call_async(
                    "PreBind", plugin, plugin.pre_bind, state, placed, node_name
                )
                status = status_of("pre_bind", answer)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                status, stack = _error(error, plugin, "pre_bind", placed, node_name)
                advice = error.advice if isinstance(error, ApiError) else ""
            self._measure_plugin(attempt, "PreBind", name, asked_at, status)
            if status is not None:
                self._measure(attempt, "PreBind", began, status)
                return _without_blame(failure_at(status, name, "running PreBind plugin", stack), advice)
        self._measure(attempt, "PreBind", began)
        return None

    async def _run_binds(self, attempt: Attempt, placed: Pod, node_name: str) -> Failure | None:
        if not self._shared.is_leading():
            return NOT_LEADING
        if attempt.group is not None:
            gone = attempt.group.check_nodes(self._shared.cluster.nodes)
            if gone is not None:
                return gone
        if self._shared.cluster.nodes.row_of(node_name) is None:
            return node_gone(node_name)
        if self._extenders:
            is_bound, failure = await self._bind_by_extender(placed, node_name)
            if is_bound or failure is not None:
                return failure
        began, observer = perf_counter(), attempt.profile.observer
        for name, plugin in attempt.profile.at("bind"):
            asked_at, advice, stack = perf_counter(), "", ""
            try:
                state = seal_state(plugin, attempt.state)
                answer = await observer.call_async("Bind", plugin, plugin.bind, state, placed, node_name)
                status = status_of("bind", answer)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                if not self._shared.is_leading():
                    return NOT_LEADING
                # It may have bound the pod before it failed, or its request may still be under way.
                status, stack = _error(error, plugin, "bind", placed, node_name)
                if isinstance(error, ApiError):
                    rejection, advice = error, error.advice
                    status = Status.error(plain_text(error.message))
                else:
                    rejection = ApiError(0, "PluginFailed", status.message)
                    if isinstance(error, OverdueError) or (
                        isinstance(error, RaisedError) and error.was_cancelled
                    ):
                        rejection = Unreachable(status.message)  # its request may still be under way
                node_now = await self._node_after(placed, rejection)
                if node_now == node_name:
                    status = None
                elif node_now != "":
                    return Failure(status.message, is_moot=True)
            self._measure_plugin(attempt, "Bind", name, asked_at, status)
            if status is None or status.code is not Code.SKIP:
                self._measure(attempt, "Bind", began, status)
                failure = None if status is None else failure_at(status, name, "running Bind plugin", stack)
                return failure and _without_blame(failure, advice)
        return Failure("no bind plugin took the pod")

    def _report_bound(self, attempt: Attempt, placed: Pod, node_name: str) -> None:
        queued, decision, now = attempt.queued, attempt.decision, self._shared.clock()
        recorder = self._reporter.recorders[attempt.profile.scheduler_name]
        recorder.record(
            attempt.pod,
            "Normal",
            "Scheduled",
            "Binding",
            f"Successfully assigned {placed.key} to {node_name}",
        )
        log.log(
            0,
            "Successfully bound pod to node",
            pod=placed,
            node=node_name,
            evaluatedNodes=len(decision.looked_at),
            feasibleNodes=len(decision.feasible),
        )
        if self._shared.recorder is not None:
            self._shared.recorder.record_bound(attempt)
        self._shared.metrics.attempt(attempt.profile.scheduler_name, "scheduled", now - attempt.began)
        self._shared.metrics.pod_scheduled(
            queued.attempts, now - (queued.initial_attempt_timestamp or attempt.began)
        )
        if queued.was_flushed:
            self._shared.metrics.scheduled_after_flush()

    def undo(self, attempt: Attempt, placed: Pod, node_name: str) -> None:
        """Undo what `place` did."""
        self._shared.waiting.remove(placed.uid)
        began = perf_counter()
        for name, plugin in reversed(attempt.profile.at("reserve")):
            if not overrides(plugin, "unreserve"):
                continue
            attempt.profile.observer.enter("Unreserve", plugin)
            try:
                unreserve: Callable[..., object] = plugin.unreserve  # whatever its annotation says
                nothing_of("unreserve", unreserve(seal_state(plugin, attempt.state), placed, node_name))
            except BaseException as error:
                _log_fault("Unreserve plugin failed", error, placed, name, (plugin, "unreserve"))
            finally:
                attempt.profile.observer.leave("Unreserve", plugin)
        self._measure(attempt, "Unreserve", began)
        if self._shared.cluster.is_assumed(placed):
            self._shared.cluster.forget_pod(placed)

    def _measure(self, attempt: Attempt, point: str, began: float, status: Status | None = None) -> None:
        if self._shared.metrics.are_read:
            code = Code.SUCCESS if status is None else status.code
            self._shared.metrics.extension_point(
                point, attempt.profile.scheduler_name, code.wire_name, perf_counter() - began
            )

    def _measure_plugin(
        self, attempt: Attempt, point: str, name: str, began: float, status: Status | None
    ) -> None:
        if attempt.is_measured:
            code = Code.SUCCESS if status is None else status.code
            self._shared.metrics.plugin_executed(point, name, code.wire_name, perf_counter() - began)

    async def _node_after(self, placed: Pod, error: ApiError) -> str | None:
        """The node of a pod after a bind that seemed to fail: empty if it has none, None if it is gone.

        A response may be lost although the bind was done, and a rejection may mean that the pod has a node
        already. Until that is known the capacity stays taken: given away meanwhile, it could be given away
        twice. Asks until the API server answers, or the watch has shown the pod.
        """
        delay = RetryDelay()
        if isinstance(error, Unreachable):
            await delay.pause(error)  # the server may be at it still
        while self._shared.cluster.is_assumed(placed):
            try:
                answer = await self._shared.api.request("GET", PODS.item(placed.namespace, placed.name))
            except NotFound:
                return None
            except ApiError as rejection:
                if not await delay.pause(rejection):
                    return ""
            else:
                found = Pod.decode(answer.data)
                return found.node_name if found.uid == placed.uid else None
        known = self._shared.cluster.pod(placed.uid)
        return None if known is None else known.node_name

    async def _bind_by_extender(self, placed: Pod, node_name: str) -> tuple[bool, Failure | None]:
        """Whether an extender has bound the pod, and the failure; neither if no extender manages it."""
        for extender in self._extenders:
            if not extender.binds or not extender.is_interested(placed):
                continue
            try:
                await extender.bind(placed, node_name)
            except ExtenderError as error:
                text = str(error)
                failed = Unreachable(text) if error.is_unknown else ApiError(0, "Refused", text)
                node_now = await self._node_after(placed, failed)
                if node_now is None or node_now not in ("", node_name):
                    return False, Failure(text, is_moot=True)
                if not node_now and extender.config.ignorable:
                    log.log(2, "Skipping extender that failed to bind", pod=placed, err=error)
                    continue
                return bool(node_now), None if node_now else Failure(text)
            return True, None
        return False, None


class GroupBinding:
    """The members of a group, which are bound once all are permitted and all of their nodes exist."""

    def __init__(self, nodes: Mapping[str, str], waiting: Iterable[str], needed: int) -> None:
        """`nodes` has the node of each member by uid, `waiting` the members that permit plugins hold."""
        self._nodes, self._waiting, self._needed = dict(nodes), set(waiting), needed
        self._is_ready = asyncio.Event()
        self._failure: Failure | None = None
        self._is_checked = False
        if not self._waiting:
            self._is_ready.set()

    async def permitted(self, pod: Pod) -> Failure | None:
        """Wait until all members are permitted. Returns why none of them is bound, if so."""
        self._leave(pod)
        await self._is_ready.wait()
        return self._failure

    def drop(self, pod: Pod, failure: Failure) -> None:
        """A plugin rejected a member while it waited; the others go on if they are enough."""
        self._nodes.pop(pod.uid, None)
        if len(self._nodes) < self._needed:
            text = f"pod group is unschedulable, pod {pod.key} was rejected: {failure.message}"
            self._failure = Failure(text, failure.is_error, failure.rejectors, is_of_group=True)
            self._is_ready.set()
        self._leave(pod)

    def check_nodes(self, nodes: LiveNodeTable) -> Failure | None:
        """Called before each member is bound: before the first of them, all nodes must be there still."""
        if not self._is_checked:
            self._is_checked = True
            gone = next((name for name in self._nodes.values() if nodes.row_of(name) is None), None)
            if gone is not None:
                text = f'node "{gone}" was deleted before the pod group could be bound'
                self._failure = Failure(text, is_of_group=True)
        return self._failure

    def _leave(self, pod: Pod) -> None:
        self._waiting.discard(pod.uid)
        if not self._waiting:
            self._is_ready.set()


def node_gone(node_name: str) -> Failure:
    return Failure(f'node "{node_name}" was deleted before the pod could be bound to it')


def _without_blame(failure: Failure, advice: str) -> Failure:
    """After `done` the queue keeps no changes for the pod, so that hints cannot requeue it."""
    return Failure(failure.message, failure.is_error, advice=advice, stack=failure.stack)


def _ask(
    point: str, method: str, plugin: Plugin, attempt: Attempt, placed: Pod, node_name: str
) -> tuple[Status | None, str]:
    """The plugin's status, None for success; an error, with its traceback, if it failed."""
    observer = attempt.profile.observer
    observer.enter(point, plugin)
    try:
        state = seal_state(plugin, attempt.state)
        if method == "reserve":
            answer = plugin.reserve(state, placed, node_name)
        elif method == "permit":
            answer = plugin.permit(state, placed, node_name)
        else:
            answer = plugin.pre_bind_pre_flight(state, placed, node_name)
        return status_of(method, answer), ""
    except BaseException as error:
        return _error(error, plugin, method, placed, node_name)
    finally:
        observer.leave(point, plugin)


def _error(
    error: BaseException, plugin: Plugin, method: str, placed: Pod, node_name: str
) -> tuple[Status, str]:
    raise_interrupt(error)
    # Our own plugins raise such errors where they foresee them, as while an API server cannot be reached.
    is_foreseen = isinstance(error, StowplanError) and is_trusted(type(plugin))
    stack = "" if is_foreseen else stack_of(error, (plugin, method))
    where = where_text(error, placed, node_name, method=(plugin, method))
    return Status.error(f"{describe(error)}{where}"), stack


def _log_fault(message: str, error: BaseException, placed: Pod, name: str, method: Method) -> None:
    raise_interrupt(error)
    said = f"{describe(error)}{where_text(error, method=method)}"
    log.error(message, said, pod=placed, plugin=name, stacktrace=stack_of(error, method))
