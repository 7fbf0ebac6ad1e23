"""/healthz, /livez and /readyz: texts and codes as people and probes know them."""

from __future__ import annotations

import pytest
from asking import ReviewedUser, Reviews, ask, serving

ALL_PATHS = ("/healthz*", "/livez*", "/readyz*")


def failing() -> str:
    return "handlers are not fully synced"


def broken() -> str:
    raise ValueError("out of order")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param("/healthz", "ok", id="healthz"),
        pytest.param("/livez", "ok", id="livez"),
        pytest.param("/readyz", "ok", id="readyz"),
        pytest.param(
            "/healthz?verbose", "[+]leaderElection ok\nhealthz check passed\n", id="verbose healthz"
        ),
        pytest.param("/livez?verbose=1", "[+]ping ok\nlivez check passed\n", id="verbose livez"),
        pytest.param(
            "/readyz?verbose",
            "[+]leaderElection ok\n[+]shutdown ok\n[+]sched-handler-sync ok\nreadyz check passed\n",
            id="verbose readyz",
        ),
        pytest.param(
            "/readyz?verbose&exclude=shutdown&exclude=leaderElection",
            "[+]leaderElection excluded: ok\n[+]shutdown excluded: ok\n[+]sched-handler-sync ok\n"
            "readyz check passed\n",
            id="without some",
        ),
        pytest.param(
            "/livez?verbose&exclude=pong&exclude=etcd",
            '[+]ping ok\nwarn: some health checks cannot be excluded: no matches for "pong","etcd"\n'
            "livez check passed\n",
            id="without some that are not there",
        ),
        pytest.param("/readyz/sched-handler-sync", "ok", id="one check"),
        pytest.param("/livez/ping", "ok", id="ping"),
    ],
)
async def test_healthy(path: str, text: str):
    async with serving(authorization_always_allow_paths=ALL_PATHS) as running:
        answer = await ask(running.port, path)
    assert (answer.status, answer.text) == (200, text)
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("check", "path", "status", "text"),
    [
        pytest.param(
            failing,
            "/readyz",
            500,
            "[+]leaderElection ok\n[+]shutdown ok\n[-]sched-handler-sync failed: reason withheld\n"
            "readyz check failed\n",
            id="all checks",
        ),
        pytest.param(
            failing,
            "/readyz/sched-handler-sync",
            500,
            "internal server error: handlers are not fully synced\n",
            id="the one that fails",
        ),
        pytest.param(failing, "/readyz?exclude=sched-handler-sync", 200, "ok", id="without it"),
        pytest.param(failing, "/readyz/shutdown", 200, "ok", id="another one"),
        pytest.param(failing, "/livez", 200, "ok", id="liveness does not depend on it"),
        pytest.param(
            broken,
            "/readyz/sched-handler-sync",
            500,
            "internal server error: ValueError: out of order\n",
            id="a check that raises",
        ),
    ],
)
async def test_unhealthy(check, path: str, status: int, text: str):
    async with serving(synced=check, authorization_always_allow_paths=ALL_PATHS) as running:
        answer = await ask(running.port, path)
    assert (answer.status, answer.text) == (status, text)


async def test_without_leader_election_healthz_only_pings():
    async with serving(election=None) as running:
        health = await ask(running.port, "/healthz?verbose")
        ready = await ask(running.port, "/readyz?verbose")
    assert health.text == "[+]ping ok\nhealthz check passed\n"
    assert "leaderElection" not in ready.text


async def test_head_has_no_body():
    async with serving() as running:
        answer = await ask(running.port, "/healthz", method="HEAD")
    assert (answer.status, answer.text, answer.headers["Content-Length"]) == (200, "", "2")


async def test_checks_are_counted():
    reviews = Reviews({"good": ReviewedUser("ann")}, may_get=["ann"])
    async with serving(reviews, synced=failing) as running:
        await ask(running.port, "/readyz")
        page = await ask(running.port, "/metrics/slis", token="good")
    lines = page.text.splitlines()
    assert 'kubernetes_healthcheck{name="shutdown",type="readyz"} 1' in lines
    assert 'kubernetes_healthcheck{name="sched-handler-sync",type="readyz"} 0' in lines
    assert 'kubernetes_healthchecks_total{name="shutdown",status="success",type="readyz"} 1' in lines
