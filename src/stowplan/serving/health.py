"""Health checks as kube-scheduler answers them: all of a path, or one of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping

from aiohttp import web

from stowplan.log import log
from stowplan.metrics import HealthPath

Check = Callable[[], str | None]
"""None if all is well, else what is not."""
Page = Callable[[web.BaseRequest], web.Response | Awaitable[web.Response]]
Record = Callable[[str, HealthPath, bool], None]


def ping() -> None:
    """That we answer is the answer."""


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
