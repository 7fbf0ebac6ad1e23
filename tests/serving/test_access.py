"""Who may see what: tokens, client certificates and rights; answers are kube-scheduler's to the letter."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from asking import HOST, Authority, ReviewedUser, Reviews, ask, serving, trusting_anyone

USERS = {
    "good": ReviewedUser("ann", ("monitoring",)),
    "weak": ReviewedUser("bob"),
    "root": ReviewedUser("root", ("system:masters",)),
    "odd": ReviewedUser("<b>&"),
}


@pytest.fixture
def reviews() -> Reviews:
    return Reviews(USERS, may_get=["ann"])


def refusal(user: str, path: str, verb: str = "get") -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f'forbidden: User "{user}" cannot {verb} path "{path}"',
        "reason": "Forbidden",
        "details": {},
        "code": 403,
    }


UNAUTHORIZED = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "message": "Unauthorized",
    "reason": "Unauthorized",
    "code": 401,
}


async def test_pages_for_those_with_rights(reviews: Reviews):
    async with serving(reviews) as running:
        metrics = await ask(running.port, "/metrics", token="good")
        configuration = await ask(running.port, "/configz", token="good")
        missing = await ask(running.port, "/nowhere", token="good")
        check = await ask(running.port, "/livez/nowhere", token="good")
    assert metrics.status == 200
    assert metrics.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
    assert 'scheduler_pending_pods{queue="active"} 0\n' in metrics.text
    assert json.loads(configuration.text) == {
        "componentconfig": {"kind": "KubeSchedulerConfiguration", "parallelism": 16}
    }
    assert configuration.headers["Content-Type"] == "application/json"
    for answer in (missing, check):
        assert (answer.status, answer.text) == (404, "404 page not found\n")


@pytest.mark.parametrize(
    ("token", "path", "status", "body"),
    [
        pytest.param("", "/metrics", 403, refusal("system:anonymous", "/metrics"), id="nobody"),
        pytest.param("", "/nowhere", 403, refusal("system:anonymous", "/nowhere"), id="nobody, to no page"),
        pytest.param(
            "", "/livez/ping", 403, refusal("system:anonymous", "/livez/ping"), id="nobody, one check"
        ),
        pytest.param("", "/healthz/../metrics", 403, refusal("system:anonymous", "/metrics"), id="a detour"),
        pytest.param(
            "", "//healthz", 403, refusal("system:anonymous", "//healthz"), id="almost an open path"
        ),
        pytest.param("weak", "/metrics", 403, refusal("bob", "/metrics"), id="somebody without rights"),
        pytest.param("odd", "/metrics", 403, refusal("&lt;b&gt;&amp;", "/metrics"), id="a name like HTML"),
        pytest.param("wrong", "/metrics", 401, UNAUTHORIZED, id="a token that does not count"),
        pytest.param("wrong", "/healthz", 401, UNAUTHORIZED, id="such a token, and an open path"),
    ],
)
async def test_refusals(reviews: Reviews, token: str, path: str, status: int, body: dict[str, Any]):
    async with serving(reviews) as running:
        answer = await ask(running.port, path, token=token)
    assert answer.status == status
    assert answer.text == json.dumps(body, separators=(",", ":")) + "\n"
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Cache-Control"] == "no-cache, private"


async def test_no_detour_around_rights(reviews: Reviews):
    async with serving(reviews) as running:
        for path in (
            b"/healthz/../metrics",
            b"/%68ealthz/..%2fmetrics",
            b"/metrics?/healthz",
            b"/metrics#/healthz",
        ):
            reader, writer = await asyncio.open_connection(HOST, running.port, ssl=trusting_anyone())
            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await reader.read()).startswith((b"HTTP/1.1 403 ", b"HTTP/1.0 400 "))
            writer.close()


async def test_the_verb_is_the_method(reviews: Reviews):
    async with serving(reviews) as running:
        answer = await ask(running.port, "/metrics", token="good", method="POST")
    assert json.loads(answer.text) == refusal("ann", "/metrics", "post")
    assert reviews.asked == ["token good", "ann (monitoring,system:authenticated) post /metrics"]


async def test_masters_need_no_review(reviews: Reviews):
    async with serving(reviews) as running:
        assert (await ask(running.port, "/metrics", token="root")).status == 200
    assert reviews.asked == ["token root"]


async def test_strangers_are_reviewed_as_anonymous(reviews: Reviews):
    async with serving(reviews) as running:
        await ask(running.port, "/metrics")
        assert (await ask(running.port, "/healthz")).text == "ok"
    assert reviews.asked == ["system:anonymous (system:unauthenticated) get /metrics"]


@pytest.mark.parametrize("header", ["Basic YTpi", "Bearer", "Bearer ", "good"])
async def test_what_is_no_bearer_token_is_nobody(reviews: Reviews, header: str):
    async with serving(reviews) as running:
        answer = await ask(running.port, "/healthz", headers={"Authorization": header})
    assert (answer.status, reviews.asked) == (200, [])


async def test_without_reviews_only_open_paths_are_open():
    async with serving(None) as running:
        assert (await ask(running.port, "/readyz", token="good")).text == "ok"
        answer = await ask(running.port, "/metrics", token="good")
    assert json.loads(answer.text) == refusal("system:anonymous", "/metrics")


async def test_open_paths_can_be_named():
    async with serving(None, authorization_always_allow_paths=("/metrics", "/livez/*")) as running:
        answers = [
            await ask(running.port, path) for path in ("/metrics", "/livez/ping", "/livez", "/healthz")
        ]
    assert [answer.status for answer in answers] == [200, 200, 403, 403]


async def test_answers_are_remembered(reviews: Reviews):
    async with serving(reviews) as running:
        for token in ("good", "good", "wrong", "wrong"):
            await ask(running.port, "/metrics", token=token)
    assert reviews.asked == [
        "token good",
        "ann (monitoring,system:authenticated) get /metrics",
        "token wrong",
    ]


async def test_answers_are_not_remembered_for_ever(reviews: Reviews):
    expiring = {
        "authentication_token_webhook_cache_ttl": 0,
        "authorization_webhook_cache_authorized_ttl": 0,
        "authorization_webhook_cache_unauthorized_ttl": 0,
    }
    async with serving(reviews, **expiring) as running:
        assert (await ask(running.port, "/metrics", token="good")).status == 200
        reviews.may_get = ()
        assert (await ask(running.port, "/metrics", token="good")).status == 403
        reviews.tokens = {}
        assert (await ask(running.port, "/metrics", token="good")).status == 401


async def test_one_review_for_all_who_ask_at_once(reviews: Reviews):
    reviews.seconds = 0.3
    async with serving(reviews) as running:
        answers = await asyncio.gather(*(ask(running.port, "/metrics", token="good") for _ in range(8)))
    assert {answer.status for answer in answers} == {200}
    assert len(reviews.asked) == 2


async def test_an_api_server_that_is_down(reviews: Reviews):
    async with serving(reviews) as running:
        assert (await ask(running.port, "/metrics", token="good")).status == 200
        reviews.is_down = True
        unknown = await ask(running.port, "/metrics", token="weak")
        unsure = await ask(running.port, "/metrics?a=<b>")
        known = await ask(running.port, "/metrics", token="good")
        healthy = await ask(running.port, "/healthz")
        reviews.is_down = False
        again = await ask(running.port, "/metrics", token="weak")
    assert json.loads(unknown.text) == UNAUTHORIZED
    assert unsure.status == 500
    assert unsure.text.startswith('Internal Server Error: "/metrics?a=')
    assert unsure.text.endswith('": connection refused\n')
    assert "<" not in unsure.text
    assert (known.status, healthy.text, again.status) == (200, "ok", 403)


async def test_client_certificates(reviews: Reviews, tmp_path: Path):
    authority = Authority(tmp_path)
    client = trusting_anyone(authority.issue("carol", groups=["dev", "ops"]))
    async with serving(reviews, client_ca_file=str(authority.file)) as running:
        answer = await ask(running.port, "/metrics", context=client)
        stranger = await ask(running.port, "/metrics")
    assert json.loads(answer.text) == refusal("carol", "/metrics")
    assert json.loads(stranger.text) == refusal("system:anonymous", "/metrics")
    assert reviews.asked[0] == "carol (dev,ops,system:authenticated) get /metrics"


async def test_a_certificate_goes_before_a_token(reviews: Reviews, tmp_path: Path):
    authority = Authority(tmp_path)
    client = trusting_anyone(authority.issue("root", groups=["system:masters"]))
    async with serving(reviews, client_ca_file=str(authority.file)) as running:
        assert (await ask(running.port, "/metrics", context=client, token="weak")).status == 200


async def test_certificates_of_others_get_nowhere(reviews: Reviews, tmp_path: Path):
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    client = trusting_anyone(theirs.issue("root", groups=["system:masters"]))
    async with serving(reviews, client_ca_file=str(ours.file)) as running:
        with pytest.raises(aiohttp.ClientError):
            await ask(running.port, "/metrics", context=client)
        assert (await ask(running.port, "/healthz")).text == "ok"


async def test_certificates_are_not_asked_for_without_a_ca(reviews: Reviews, tmp_path: Path):
    client = trusting_anyone(Authority(tmp_path).issue("root", groups=["system:masters"]))
    async with serving(reviews) as running:
        answer = await ask(running.port, "/metrics", context=client)
    assert json.loads(answer.text) == refusal("system:anonymous", "/metrics")
