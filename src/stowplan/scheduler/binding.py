"""The binding cycle: from a chosen node to a bound pod, while the next pods are decided."""

from __future__ import annotations

from functools import partial
from time import perf_counter

from stowplan import log
from stowplan.api.pod import Pod
from stowplan.client.errors import ApiError
from stowplan.errors import StowplanError
from stowplan.framework.status import Code, Status
from stowplan.scheduler.attempt import Attempt, Failure, failure_at
from stowplan.scheduler.bind_outcome import node_after
from stowplan.scheduler.extender_binding import bind_by_extender
from stowplan.scheduler.failure import NOBODY, handle_failure, patch_status
from stowplan.scheduler.host import Host
from stowplan.scheduler.waiting import WaitingPod

VOLUME_BINDING = "VolumeBinding"
NOT_LEADING = Failure("this scheduler is no longer the leader", is_moot=True)


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
    began = perf_counter()
    for name, plugin in attempt.profile.at("reserve"):
        asked_at = perf_counter()
        status = _asked(plugin.reserve, attempt, placed, node_name)
        _measure_plugin(host, attempt, "Reserve", name, asked_at, status)
        if status is not None:
            _measure(host, attempt, "Reserve", began, status)
            undo(host, attempt, placed, node_name)
            return failure_at(status, name, "running Reserve plugin")
    _measure(host, attempt, "Reserve", began)
    return _permit(host, attempt, placed, node_name) or placed


def _permit(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> Failure | None:
    timeouts: dict[str, float] = {}
    began = perf_counter()
    for name, plugin in attempt.profile.at("permit"):
        status = _asked(plugin.permit, attempt, placed, node_name)
        if status is None:
            continue
        if status.code is Code.WAIT:
            timeouts[name] = status.timeout
            continue
        _measure(host, attempt, "Permit", began, status)
        undo(host, attempt, placed, node_name)
        return failure_at(status, name, "running Permit plugin")
    _measure(host, attempt, "Permit", began, Status.wait(0) if timeouts else None)
    if timeouts:
        host.waiting.put(WaitingPod(placed, timeouts))
    return None


async def binding_cycle(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> None:
    failure = await bind(host, attempt, placed, node_name)
    if failure is None:
        _succeeded(host, attempt, placed, node_name)
        await run_post_binds(host, attempt, placed, node_name)
        return
    host.stillness.after(partial(_failed, host, attempt, placed, node_name, failure))


def _failed(host: Host, attempt: Attempt, placed: Pod, node_name: str, failure: Failure) -> None:
    was_ours = host.cluster.is_assumed(placed)
    undo(host, attempt, placed, node_name)
    handle_failure(host, attempt, failure, NOBODY)
    if was_ours:
        host.handlers.on_room(placed)


async def bind(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> Failure | None:
    """Waits until plugins permit the pod, and binds it; what went wrong, if something did."""
    host.metrics.running("binding", 1)
    try:
        return await _bind(host, attempt, placed, node_name)
    except Exception as error:
        return Failure(f"binding: {type(error).__name__}: {error}")
    finally:
        host.metrics.running("binding", -1)


async def run_post_binds(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> None:
    began = perf_counter()
    for name, plugin in attempt.profile.at("postBind"):
        try:
            await plugin.post_bind(attempt.state, placed, node_name)
        except Exception as error:
            log.error("PostBind plugin failed", error, pod=placed, plugin=name)
    _measure(host, attempt, "PostBind", began)
    attempt.decision.state = None  # decisions may be kept; this is nobody's any more


async def _bind(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> Failure | None:
    waiting = host.waiting.find(placed.uid)
    if waiting is not None:
        began = host.now()
        try:
            status = await waiting.outcome()
        finally:
            host.waiting.remove(placed.uid)
        host.metrics.permit_waited((status or Status()).code.wire_name, host.now() - began)
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
    began = perf_counter()
    for name, plugin in attempt.profile.at("preBind"):
        asked_at, advice = perf_counter(), ""
        try:
            status = await plugin.pre_bind(attempt.state, placed, node_name)
        except Exception as error:
            status = _raised(error, placed, node_name)
            advice = error.advice if isinstance(error, ApiError) else ""
        _measure_plugin(host, attempt, "PreBind", name, asked_at, status)
        if status is not None:
            _measure(host, attempt, "PreBind", began, status)
            if name == VOLUME_BINDING:
                host.metrics.volume_stage_failed("bind")
            return _without_blame(failure_at(status, name, "running PreBind plugin"), advice)
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
    began = perf_counter()
    for name, plugin in attempt.profile.at("bind"):
        asked_at, advice = perf_counter(), ""
        try:
            status = await plugin.bind(attempt.state, placed, node_name)
        except ApiError as error:
            if not host.is_leading():
                return NOT_LEADING
            node_now = await node_after(host, placed, error)
            if node_now is None or node_now not in ("", node_name):
                return Failure(str(error), is_moot=True)
            status, advice = None if node_now else Status.error(str(error)), error.advice
        except Exception as error:
            status = _raised(error, placed, node_name)
        _measure_plugin(host, attempt, "Bind", name, asked_at, status)
        if status is None or status.code is not Code.SKIP:
            _measure(host, attempt, "Bind", began, status)
            failure = None if status is None else failure_at(status, name, "running Bind plugin")
            return failure and _without_blame(failure, advice)
    return Failure("no bind plugin took the pod")


def node_gone(node_name: str) -> Failure:
    return Failure(f'node "{node_name}" was deleted before the pod could be bound to it')


def _without_blame(failure: Failure, advice: str) -> Failure:
    """After `done` the queue no longer knows what happened meanwhile, so nobody's hints can wake the pod."""
    return Failure(failure.message, failure.is_error, advice=advice)


def _has_work_before_bind(attempt: Attempt) -> bool:
    spec = attempt.pod.spec
    return bool(spec.resource_claims) or any(
        volume.persistent_volume_claim is not None or volume.ephemeral is not None for volume in spec.volumes
    )


def _succeeded(host: Host, attempt: Attempt, placed: Pod, node_name: str) -> None:
    queued, decision, now = attempt.queued, attempt.decision, host.now()
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
        if not hasattr(plugin, "unreserve"):
            continue
        try:
            plugin.unreserve(attempt.state, placed, node_name)
        except Exception as error:
            log.error("Unreserve plugin failed", error, pod=placed, plugin=name)
    _measure(host, attempt, "Unreserve", began)
    if host.cluster.is_assumed(placed):
        host.cluster.forget_pod(placed)


def _asked(method: object, attempt: Attempt, placed: Pod, node_name: str) -> Status | None:
    """The plugin's answer; None for success. What it raises is an error that names it."""
    try:
        status: Status | None = method(attempt.state, placed, node_name)  # type: ignore[operator]
    except Exception as error:
        return _raised(error, placed, node_name)
    return None if status is None or status.code is Code.SUCCESS else status


def _raised(error: Exception, placed: Pod, node_name: str) -> Status:
    return Status.error(f"{type(error).__name__}: {error} (pod {placed.key}, node {node_name})")


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
