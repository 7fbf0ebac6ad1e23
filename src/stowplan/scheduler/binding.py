"""The binding cycle: from a chosen node to a bound pod, while the next pods are decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.client.errors import ApiError, Unreachable
from stowplan.errors import StowplanError
from stowplan.framework.answers import (
    RaisedError,
    describe,
    nothing_of,
    plain_text,
    raise_interrupt,
    stack_of,
    status_of,
)
from stowplan.framework.plugin import Plugin, is_trusted, overrides
from stowplan.framework.status import Code, Status
from stowplan.scheduler.attempt import Attempt, Failure, failure_at
from stowplan.scheduler.bind_outcome import node_after
from stowplan.scheduler.extender_binding import bind_by_extender
from stowplan.scheduler.failure import NOBODY, handle_failure, patch_status
from stowplan.scheduler.guard import OverdueError
from stowplan.scheduler.host import Host
from stowplan.scheduler.waiting import WaitingPod

NOT_LEADING = Failure("this scheduler is no longer the leader", is_moot=True)
CANCELLED = Failure("binding: its task was cancelled")
UNCONFIRMED = Failure("binding: a bind plugin or extender reported success, but the pod has no node")
CONFIRM_SECONDS = 30.0
"""If the watch has not shown by then what another binder reported, the API server is asked."""


def reserve(host: Host, attempt: Attempt, node_name: str) -> Pod | None:
    """Places the pod; if a plugin refuses, the pod goes back to the queue."""
    placed = place(host, attempt, node_name)
    if isinstance(placed, Failure):
        handle_failure(host, attempt, placed, NOBODY)
        return None
    return placed


def place(host: Host, attempt: Attempt, node_name: str) -> Pod | Failure:
    """Counts the pod as placed and lets plugins reserve and permit; if one refuses, all is undone."""
    pod = attempt.pod
    try:
        placed = host.cluster.assume_pod(pod, node_name)
    except StowplanError as error:
        return Failure(str(error))
    host.nominations.remove(pod)
    try:
        failure = _reserve(host, attempt, placed, node_name) or _permit(host, attempt, placed, node_name)
    except BaseException:  # not foreseen: whoever catches it need not know of the room that is taken
        undo(host, attempt, placed, node_name)
        raise
    if failure is not None:
        undo(host, attempt, placed, node_name)
        return failure
    return placed


def _reserve(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> Failure | None:
    began = perf_counter()
    for name, plugin in attempt.profile.at("reserve"):
        asked_at = perf_counter()
        status, stack = _ask("Reserve", "reserve", plugin, attempt, placed, node_name)
        _measure_plugin(host, attempt, "Reserve", name, asked_at, status)
        if status is not None:
            _measure(host, attempt, "Reserve", began, status)
            return failure_at(status, name, "running Reserve plugin", stack)
    _measure(host, attempt, "Reserve", began)
    return None


def _permit(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> Failure | None:
    timeouts: dict[str, float] = {}
    began = perf_counter()
    for name, plugin in attempt.profile.at("permit"):
        status, stack = _ask("Permit", "permit", plugin, attempt, placed, node_name)
        if status is None:
            continue
        if status.code is Code.WAIT:
            timeouts[name] = status.timeout
            continue
        _measure(host, attempt, "Permit", began, status)
        return failure_at(status, name, "running Permit plugin", stack)
    _measure(host, attempt, "Permit", began, Status.wait(0) if timeouts else None)
    if timeouts:
        host.waiting.put(WaitingPod(placed, timeouts))
    return None


async def binding_cycle(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> None:
    """Ends with the pod bound or failed, whatever happens on the way."""
    try:
        failure = await bind(host, attempt, placed, node_name)
    except asyncio.CancelledError:
        if host.is_ending:
            raise
        # A plugin can reach any task of the event loop. The next step needs one that is not cancelled.
        host.spawn(
            _end_cancelled(host, attempt, placed, node_name), f"end of the binding of pod {placed.key}"
        )
        return
    await _conclude(host, attempt, placed, node_name, failure)


async def _end_cancelled(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> None:
    """After a binding that was cut off: whether the pod was bound is known to the API server alone."""
    failure: Failure | None = CANCELLED
    try:
        failure = await _outcome(host, placed, node_name, CANCELLED)
    finally:
        await _conclude(host, attempt, placed, node_name, failure)


async def _conclude(
    host: Host, attempt: Attempt, placed: Pod, node_name: str, failure: Failure | None
) -> None:
    if failure is not None:
        host.stillness.after(partial(_fail, host, attempt, placed, node_name, failure))
        return
    try:
        _succeeded(host, attempt, placed, node_name)
    except Exception as error:  # the pod is bound all the same
        log.error("Bound pod not recorded", error, pod=placed, stacktrace=stack_of(error))
    _confirm_later(host, attempt, placed, node_name)
    await run_post_binds(host, attempt, placed, node_name)


def _confirm_later(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> None:
    """Checks later that the pod is bound: a binder of others may report success without having bound it."""
    binders = attempt.profile.at("bind")
    if host.extended is None and all(is_trusted(type(plugin)) for _, plugin in binders):
        return
    state = attempt.state  # which plugins need to unreserve; after post_bind the attempt has it no more

    def look() -> None:
        if not host.is_ending and host.cluster.is_assumed(placed) and host.cluster.pod(placed.uid) is placed:
            host.spawn(check(), f"confirmation of pod {placed.key}")

    async def check() -> None:
        failure = await _outcome(host, placed, node_name, UNCONFIRMED)
        if failure is UNCONFIRMED and host.cluster.is_assumed(placed):
            attempt.decision.state = state
            host.stillness.after(partial(_fail, host, attempt, placed, node_name, failure))

    asyncio.get_running_loop().call_later(CONFIRM_SECONDS, look)


def _fail(host: Host, attempt: Attempt, placed: Pod, node_name: str, failure: Failure) -> None:
    was_ours = host.cluster.is_assumed(placed)
    try:
        undo(host, attempt, placed, node_name)
    finally:
        handle_failure(host, attempt, failure, NOBODY)
    if was_ours:
        host.handlers.on_room(placed)


async def _outcome(host: Host, placed: Pod, node_name: str, failure: Failure) -> Failure | None:
    """What became of a pod whose binding was not finished: None if it is bound all the same."""
    try:
        node_now = await node_after(host, placed, Unreachable(failure.message))
    except Exception as error:
        log.error("Cannot find out whether the pod is bound", error, pod=placed, stacktrace=stack_of(error))
        return failure
    if node_now == node_name:
        return None
    return failure if node_now == "" else Failure(failure.message, is_moot=True)


async def bind(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> Failure | None:
    """Waits until plugins permit the pod, and binds it; what went wrong, if something did."""
    host.metrics.running("binding", 1)
    task = asyncio.current_task()
    try:
        return await _bind(host, attempt, placed, node_name)
    except BaseException as error:  # what nobody foresaw for one pod must not stop the others
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        failure = Failure(f"binding: {describe(error)}", stack=stack_of(error))
        return await _outcome(host, placed, node_name, failure)
    finally:
        host.metrics.running("binding", -1)


async def run_post_binds(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> None:
    began, state, observer = perf_counter(), attempt.state, attempt.profile.observer
    for name, plugin in attempt.profile.at("postBind"):
        try:
            answer = await observer.call_async("PostBind", plugin, plugin.post_bind, state, placed, node_name)
            nothing_of("post_bind", answer)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            _log_fault("PostBind plugin failed", error, placed, name)
    _measure(host, attempt, "PostBind", began)
    attempt.decision.state = None  # decisions may be kept; this is nobody's any more


async def _bind(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> Failure | None:
    waiting = host.waiting.find(placed.uid)
    if waiting is not None:
        began = host.clock()
        try:
            status = await waiting.outcome()
        finally:
            host.waiting.remove(placed.uid)
        host.metrics.permit_waited((status or Status()).code.wire_name, host.clock() - began)
        if status is not None:
            if status.code.is_rejection:
                return failure_at(status, status.plugin, "waiting on permit for pod")
            return Failure(f"waiting on permit for pod: {status.message}")
    host.queue.done(placed.uid)
    began, has_work = perf_counter(), _has_work_before_bind(attempt)
    _measure(host, attempt, "PreBindPreFlight", began, None if has_work else Status.skip())
    if waiting is not None or has_work:
        await patch_status(host, placed, {"status": {"nominatedNodeName": node_name}})
    failure = await _run_pre_binds(host, attempt, placed, node_name)
    return await _run_binds(host, attempt, placed, node_name) if failure is None else failure


async def _run_pre_binds(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> Failure | None:
    began, observer = perf_counter(), attempt.profile.observer
    for name, plugin in attempt.profile.at("preBind"):
        asked_at, advice, stack = perf_counter(), "", ""
        try:
            answer = await observer.call_async(
                "PreBind", plugin, plugin.pre_bind, attempt.state, placed, node_name
            )
            status = status_of("pre_bind", answer)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            status, stack = _error(error, plugin, placed, node_name)
            advice = error.advice if isinstance(error, ApiError) else ""
        _measure_plugin(host, attempt, "PreBind", name, asked_at, status)
        if status is not None:
            _measure(host, attempt, "PreBind", began, status)
            return _without_blame(failure_at(status, name, "running PreBind plugin", stack), advice)
    _measure(host, attempt, "PreBind", began)
    return None


async def _run_binds(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> Failure | None:
    if not host.is_leading():
        return NOT_LEADING
    if host.cluster.nodes.row_of(node_name) is None:
        return node_gone(node_name)
    is_bound, failure = await bind_by_extender(host, placed, node_name)
    if is_bound or failure is not None:
        return failure
    began, observer = perf_counter(), attempt.profile.observer
    for name, plugin in attempt.profile.at("bind"):
        asked_at, advice, stack = perf_counter(), "", ""
        try:
            answer = await observer.call_async("Bind", plugin, plugin.bind, attempt.state, placed, node_name)
            status = status_of("bind", answer)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not host.is_leading():
                return NOT_LEADING
            # It may have bound the pod before it failed, or its request may still be under way.
            status, stack = _error(error, plugin, placed, node_name)
            if isinstance(error, ApiError):
                refusal, advice = error, error.advice
                status = Status.error(plain_text(error.message))
            else:
                refusal = ApiError(0, "PluginFailed", status.message)
                if isinstance(error, OverdueError) or (
                    isinstance(error, RaisedError) and error.was_cancelled
                ):
                    refusal = Unreachable(status.message)  # its request may still be under way
            node_now = await node_after(host, placed, refusal)
            if node_now == node_name:
                status = None
            elif node_now != "":
                return Failure(status.message, is_moot=True)
        _measure_plugin(host, attempt, "Bind", name, asked_at, status)
        if status is None or status.code is not Code.SKIP:
            _measure(host, attempt, "Bind", began, status)
            failure = None if status is None else failure_at(status, name, "running Bind plugin", stack)
            return failure and _without_blame(failure, advice)
    return Failure("no bind plugin took the pod")


def node_gone(node_name: str) -> Failure:
    return Failure(f'node "{node_name}" was deleted before the pod could be bound to it')


def _without_blame(failure: Failure, advice: str) -> Failure:
    """After `done` the queue no longer knows what happened meanwhile, so nobody's hints can wake the pod."""
    return Failure(failure.message, failure.is_error, advice=advice, stack=failure.stack)


def _has_work_before_bind(attempt: Attempt) -> bool:
    spec = attempt.pod.spec
    return bool(spec.resource_claims) or any(
        volume.persistent_volume_claim is not None or volume.ephemeral is not None for volume in spec.volumes
    )


def _succeeded(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> None:
    queued, decision, now = attempt.queued, attempt.decision, host.clock()
    recorder = host.recorders[attempt.profile.scheduler_name]
    recorder.record(
        attempt.pod, "Normal", "Scheduled", "Binding", f"Successfully assigned {placed.key} to {node_name}"
    )
    log.log(
        0,
        "Successfully bound pod to node",
        pod=placed,
        node=node_name,
        evaluatedNodes=len(decision.looked_at),
        feasibleNodes=len(decision.feasible),
    )
    if host.keeping is not None:
        host.keeping.bound(attempt)
    host.metrics.attempt(attempt.profile.scheduler_name, "scheduled", now - attempt.began)
    host.metrics.pod_scheduled(queued.attempts, now - (queued.initial_attempt_timestamp or attempt.began))
    if queued.was_flushed:
        host.metrics.scheduled_after_flush()


def undo(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> None:
    """Takes back what `place` did."""
    host.waiting.remove(placed.uid)
    began = perf_counter()
    for name, plugin in reversed(attempt.profile.at("reserve")):
        if not overrides(plugin, "unreserve"):
            continue
        attempt.profile.observer.enter("Unreserve", plugin)
        try:
            unreserve: Callable[..., object] = plugin.unreserve  # whatever its annotation says
            nothing_of("unreserve", unreserve(attempt.state, placed, node_name))
        except BaseException as error:
            _log_fault("Unreserve plugin failed", error, placed, name)
        finally:
            attempt.profile.observer.leave("Unreserve", plugin)
    _measure(host, attempt, "Unreserve", began)
    if host.cluster.is_assumed(placed):
        host.cluster.forget_pod(placed)


def _ask(
    point: str, method: str, plugin: Plugin, attempt: Attempt, placed: Pod, node_name: str
) -> tuple[Status | None, str]:
    """The plugin's answer, None for success; an error, with its traceback, if it went wrong."""
    observer = attempt.profile.observer
    observer.enter(point, plugin)
    try:
        ask = plugin.reserve if method == "reserve" else plugin.permit
        return status_of(method, ask(attempt.state, placed, node_name)), ""
    except BaseException as error:
        return _error(error, plugin, placed, node_name)
    finally:
        observer.leave(point, plugin)


def _error(error: BaseException, plugin: Plugin, placed: Pod, node_name: str) -> tuple[Status, str]:
    raise_interrupt(error)
    # Our own plugins raise such errors where they foresee them, as while an API server cannot be reached.
    is_foreseen = isinstance(error, StowplanError) and is_trusted(type(plugin))
    stack = "" if is_foreseen else stack_of(error)
    return Status.error(f"{describe(error)} (pod {placed.key}, node {node_name})"), stack


def _log_fault(message: str, error: BaseException, placed: Pod, name: str) -> None:
    raise_interrupt(error)
    log.error(message, describe(error), pod=placed, plugin=name, stacktrace=stack_of(error))


def _measure(host: Host, attempt: Attempt, point: str, began: float, status: Status | None = None) -> None:
    code = Code.SUCCESS if status is None else status.code
    host.metrics.extension_point(
        point, attempt.profile.scheduler_name, code.wire_name, perf_counter() - began
    )


def _measure_plugin(
    host: Host, attempt: Attempt, point: str, name: str, began: float, status: Status | None
) -> None:
    if attempt.is_measured:
        code = Code.SUCCESS if status is None else status.code
        host.metrics.plugin_executed(point, name, code.wire_name, perf_counter() - began)
