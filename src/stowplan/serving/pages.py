"""The pages of a scheduler, by path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from stowplan.api import requests
from stowplan.api.pod import Container, Pod, PodSpec, ResourceRequirements
from stowplan.api.quantity import approximate
from stowplan.log import log
from stowplan.metrics import CONTENT_TYPE, HealthPath, Metrics, sample
from stowplan.serving import aiohttp_web as web


def scheduler_pages(
    metrics: Metrics,
    configuration: Callable[[], Mapping[str, object]],
    *,
    leader_election: Check | None,
    shutdown: Check,
    handlers_synced: Check,
    pods: Callable[[], Iterable[Pod]] = tuple,
    plugins: Check | None = None,
    core_tasks: Check | None = None,
) -> dict[str, Page]:
    """`configuration` is in the shape of v1, with its kind; `leader_election` is None where there is none.

    `pods` are those whose resources are shown: all while leading, else none. `plugins` says which of them
    hang, where that is watched, `core_tasks` which part of the scheduler has ended that must not.
    """
    election = {} if leader_election is None else {"leaderElection": leader_election}
    ready = {**election, "shutdown": shutdown, "sched-handler-sync": handlers_synced}
    more = {"plugins": plugins, "core-tasks": core_tasks}
    alive = {"ping": ping} | {name: check for name, check in more.items() if check is not None}
    record = metrics.health_checked
    return {
        **dict(health_pages("healthz", election or {"ping": ping}, record)),
        **dict(health_pages("livez", alive, record)),
        **dict(health_pages("readyz", ready, record)),
        "/metrics": _text_page(metrics.render),
        "/metrics/slis": _text_page(metrics.render_slis),
        "/metrics/resources": lambda _: _resources(pods()),
        "/configz": lambda _: _json({"componentconfig": configuration()}),
    }


def _text_page(render: Callable[[], bytes]) -> Page:
    return lambda _: web.Response(body=render(), headers={"Content-Type": CONTENT_TYPE})


async def _resources(pods: Iterable[Pod]) -> web.Response:
    return web.Response(body=await render_resources(pods), headers={"Content-Type": CONTENT_TYPE})


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


Check = Callable[[], str | None]
"""Return None if healthy, else the problem."""
Page: TypeAlias = "Callable[[web.BaseRequest], web.Response | Awaitable[web.Response]]"
Record = Callable[[str, HealthPath, bool], None]


def ping() -> None:
    """Always healthy: that it answers is the check."""


def health_pages(kind: HealthPath, checks: Mapping[str, Check], record: Record) -> Iterator[tuple[str, Page]]:
    """`/healthz` and, for each check, `/healthz/<name>`."""

    def passes(name: str) -> str | None:
        problem = _problem(checks[name])
        record(name, kind, problem is None)
        return problem

    yield f"/{kind}", lambda request: _all(request, kind, checks, passes)
    for name in checks:
        yield f"/{kind}/{name}", lambda _, name=name: _one(passes(name))  # type: ignore[misc]


def _all(
    request: web.BaseRequest, kind: str, checks: Mapping[str, Check], passes: Callable[[str], str | None]
) -> web.Response:
    excluded = dict.fromkeys(request.query.getall("exclude", ()))
    lines, failed = [], {}
    for name in checks:
        if name in excluded:
            del excluded[name]
            lines.append(f"[+]{name} excluded: ok\n")
        elif problem := passes(name):
            failed[name] = problem
            lines.append(f"[-]{name} failed: reason withheld\n")
        else:
            lines.append(f"[+]{name} ok\n")
    if excluded:
        unknown = ",".join(f'"{name}"' for name in excluded)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {unknown}\n")
    if failed:
        log(2, "Health check failed", path=kind, failed=failed)
        return web.Response(status=500, text=f"{''.join(lines)}{kind} check failed\n")
    if "verbose" not in request.query:
        return web.Response(text="ok")
    return web.Response(text=f"{''.join(lines)}{kind} check passed\n")


def _one(problem: str | None) -> web.Response:
    if problem is None:
        return web.Response(text="ok")
    return web.Response(status=500, text=f"internal server error: {problem}\n")


def _problem(check: Check) -> str | None:
    try:
        return check()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


LABELS = ("namespace", "node", "pod", "priority", "resource", "scheduler", "unit")
FAMILIES = {
    "kube_pod_resource_request": "[STABLE] Resources that a pod asks for.",
    "kube_pod_resource_limit": "[STABLE] Resources that a pod is limited to.",
}
PODS_AT_ONCE = 500
"""Pods rendered before other tasks run: a page of all pods must not delay scheduling."""
_UNITS = {"cpu": "cores", "memory": "bytes", "storage": "bytes", "ephemeral-storage": "bytes"}

Amounts = tuple[tuple[str, str, float], ...]
"""Resource, unit and amount; none that is zero."""


async def render_resources(pods: Iterable[Pod]) -> bytes:
    """The page; pods that have ended on their node take no resources any more."""
    shown = [pod for pod in pods if not (pod.node_name and pod.is_finished)]
    parts: list[str] = []
    for family, (name, text) in enumerate(FAMILIES.items()):
        header = f"# HELP {name} {text}\n# TYPE {name} gauge\n"
        for start in range(0, len(shown), PODS_AT_ONCE):
            some = shown[start : start + PODS_AT_ONCE]
            lines = "".join(line for pod in some for line in _lines(name, pod, _amounts(pod)[family]))
            parts.append(header + lines if lines else "")
            header = "" if lines else header
            await asyncio.sleep(0)
    return "".join(parts).encode()


def _lines(name: str, pod: Pod, amounts: Amounts) -> Iterator[str]:
    priority = "" if pod.spec.priority is None else str(pod.spec.priority)
    for resource, unit, amount in amounts:
        values = (pod.namespace, pod.node_name, pod.name, priority, resource, pod.scheduler_name, unit)
        yield sample(name, LABELS, values, amount) + "\n"


def _amounts(pod: Pod) -> tuple[Amounts, Amounts]:
    """Requests and limits, worked out once for all pods of a shape."""
    found: tuple[Amounts, Amounts] | None = pod.shape.memo.get(_amounts)
    if found is None:
        found = pod.shape.memo[_amounts] = (
            _format_amounts(requests.of_spec(pod.spec)),
            _format_amounts(_limits(pod.spec)),
        )
    return found


def _limits(spec: PodSpec) -> dict[str, int]:
    """The arithmetic of requests, over limits; overhead counts only beside a limit."""
    as_requests = msgspec.structs.replace(
        spec,
        containers=tuple(map(_limits_as_requests, spec.containers)),
        init_containers=tuple(map(_limits_as_requests, spec.init_containers)),
        resources=spec.resources and ResourceRequirements(requests=spec.resources.limits),
        overhead={},
    )
    limits = requests.of_spec(as_requests)
    return {name: limit + spec.overhead.get(name, 0) for name, limit in limits.items() if limit}


def _limits_as_requests(container: Container) -> Container:
    swapped = ResourceRequirements(requests=container.resources.limits)
    return msgspec.structs.replace(container, resources=swapped)


def _format_amounts(nanos: Mapping[str, int]) -> Amounts:
    return tuple((name, _unit(name), approximate(amount)) for name, amount in sorted(nanos.items()) if amount)


def _unit(resource: str) -> str:
    if resource.startswith("hugepages-"):
        return "bytes"
    if resource.startswith("attachable-volumes-") or requests.is_extended(resource):
        return "integer"
    return _UNITS.get(resource, "")
