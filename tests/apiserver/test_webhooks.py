"""Webhooks on this machine: what they see, what their answers do, and what bad ones cannot do."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_staging import Staged

from stowplan.apiserver import Request, Response
from stowplan.apiserver.http import make_certificate

Json = dict[str, Any]
Answer = Callable[[Json], Any]
ROOT = "/apis/admissionregistration.k8s.io/v1"
MAPS = "/api/v1/namespaces/default/configmaps"
CALLED = 'Internal error occurred: failed calling webhook "hook.example.com": '


class Hooks:
    """An HTTPS server with an answer for each path; `seen` are the requests it got."""

    def __init__(self, folder: Path) -> None:
        self.answers: dict[str, Answer] = {}
        self.seen: list[Json] = []
        pair = make_certificate()
        self.authority = base64.b64encode(pair.certificate).decode()
        (folder / "crt").write_bytes(pair.certificate)
        (folder / "key").write_bytes(pair.key)
        hooks = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hooks.seen.append(review["request"])
                found = hooks.answers[self.path.partition("?")[0]](review["request"])
                status, data = found if isinstance(found, tuple) else (200, found)
                if isinstance(data, dict):
                    data = {"uid": review["request"]["uid"], "allowed": True, **data}
                    data = json.dumps(
                        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": data}
                    )
                raw = data.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "crt", folder / "key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def hook(self, path: str, **more: Any) -> Json:
        url = f"https://localhost:{self.server.server_address[1]}{path}"
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}
        return {
            "name": "hook.example.com",
            "clientConfig": {"url": url, "caBundle": self.authority},
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            **more,
        }


@pytest.fixture
def hooks(tmp_path: Path) -> Iterator[Hooks]:
    found = Hooks(tmp_path)
    yield found
    found.server.shutdown()
    found.server.server_close()


async def register(api: Staged, kind: str, *webhooks: Json, name: str = "hooks") -> None:
    body = {"metadata": {"name": name}, "webhooks": list(webhooks)}
    status, said = await api("POST", f"{ROOT}/{kind}webhookconfigurations", body)
    assert status == 201, said


def patch(*operations: Json) -> Json:
    return {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(operations).encode()).decode()}


def adds(key: str, value: str = "yes") -> Json:
    return patch({"op": "add", "path": f"/data/{key}", "value": value})


async def make(api: Staged, name: str = "a", **data: str) -> tuple[int, Any]:
    return await api("POST", MAPS, {"metadata": {"name": name}, "data": {"x": "1", **data}})


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        ({}, 201, None),
        ({"allowed": False}, 400, 'admission webhook "hook.example.com" denied the request without explanation'),  # noqa: E501
        (
            {"allowed": False, "status": {"message": "no way", "code": 418, "reason": "Teapot"}},
            418,
            'admission webhook "hook.example.com" denied the request: no way',
        ),
        ((500, "oh no"), 500, CALLED + 'failed to call webhook: an error on the server ("unknown") has prevented the request from succeeding'),  # noqa: E501
        ("{}", 500, CALLED + "received invalid webhook response: webhook response was absent"),
        (patch(), 500, CALLED + "received invalid webhook response: validating webhook may not return response.patch"),  # noqa: E501
        ("hello", 500, CALLED + "failed to call webhook: the answer is not JSON"),
        ("[" * 100_000, 500, CALLED + "failed to call webhook: the answer is not JSON"),
        ("x" * 4_000_000, 500, None),
    ],
    ids=["allow", "deny", "deny with a status", "error", "empty", "patch", "text", "deep", "large"],
)  # fmt: skip
async def test_a_validating_webhook_decides(
    api: Staged, hooks: Hooks, answer: Any, status: int, message: Any
) -> None:
    hooks.answers["/x"] = lambda request: answer
    await register(api, "validating", hooks.hook("/x"))
    found, said = await make(api)
    assert found == status
    assert message is None or said["message"] == message


async def test_a_webhook_sees_the_request(api: Staged, hooks: Hooks) -> None:
    hooks.answers["/x"] = lambda request: {"warnings": ["careful"]}
    await register(api, "validating", hooks.hook("/x"))
    body = {"metadata": {"generateName": "g-"}, "data": {"x": "1"}}
    answer = await api.server.handle(Request.of("POST", MAPS, body, impersonate_user="bob"))
    assert isinstance(answer, Response)
    assert ("Warning", '299 - "careful"') in answer.headers
    made, (seen,) = answer.json(), hooks.seen
    assert (seen["operation"], seen["namespace"], seen["userInfo"]["username"]) == (
        "CREATE",
        "default",
        "bob",
    )
    assert seen["object"]["metadata"]["uid"] == made["metadata"]["uid"], "it saw what was stored"
    assert seen["name"] == made["metadata"]["name"]
    await api(
        "PATCH", f"{MAPS}/{seen['name']}", {"data": {"y": "2"}}, content_type="application/merge-patch+json"
    )
    await api("DELETE", f"{MAPS}/{seen['name']}")
    assert [(each["operation"], bool(each["object"]), bool(each["oldObject"])) for each in hooks.seen] == [
        ("CREATE", True, False),
        ("UPDATE", True, True),
        ("DELETE", False, True),
    ]


async def test_mutating_webhooks_change_the_object_in_turn(api: Staged, hooks: Hooks) -> None:
    hooks.answers["/a"] = lambda request: adds("count", str(len(request["object"]["data"])))
    hooks.answers["/b"] = lambda request: adds("more")
    again = hooks.hook("/a", reinvocationPolicy="IfNeeded")
    await register(api, "mutating", again, {**hooks.hook("/b"), "name": "other.example.com"})
    status, made = await make(api)
    assert (status, made["data"]) == (201, {"x": "1", "count": "3", "more": "yes"})
    assert len(hooks.seen) == 3, "the first one is asked again, the second is not"


async def test_a_bad_patch_is_an_error(api: Staged, hooks: Hooks) -> None:
    hooks.answers["/x"] = lambda request: patch({"op": "remove", "path": "/nope"})
    await register(api, "mutating", hooks.hook("/x"))
    assert (await make(api))[0] == 500
    hooks.answers["/x"] = lambda request: {"patch": "W10="}
    _, said = await make(api)
    assert said["message"].endswith("webhook returned response.patch but not response.patchType")


async def test_a_slow_webhook_ends_at_its_time_limit_and_holds_nobody_up(api: Staged, hooks: Hooks) -> None:
    def answer_late(request: Any) -> dict[str, Any]:
        time.sleep(3)
        return {}

    hooks.answers["/x"] = answer_late
    await register(api, "validating", hooks.hook("/x", timeoutSeconds=1))
    began = time.monotonic()
    waiting = asyncio.ensure_future(make(api))
    await asyncio.sleep(0.2)
    assert (await api("GET", MAPS))[0] == 200, "others are served meanwhile"
    assert not waiting.done()
    status, said = await waiting
    assert time.monotonic() - began < 2.5
    assert status == 500
    assert said["message"].endswith('?timeout=1s": context deadline exceeded')


@pytest.mark.parametrize(
    "change",
    [
        {"failurePolicy": "Ignore", "clientConfig": {"url": "https://127.0.0.1:9/none"}},
        {"objectSelector": {"matchLabels": {"none": "such"}}},
        {"namespaceSelector": {"matchLabels": {"none": "such"}}},
        {"matchConditions": [{"name": "x", "expression": "object.metadata.name != 'a'"}]},
        {"rules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["*"]}]},
    ],
)
async def test_a_webhook_that_is_not_wanted_is_not_called(api: Staged, hooks: Hooks, change: Json) -> None:
    hooks.answers["/x"] = lambda request: {"allowed": False}
    await register(api, "validating", hooks.hook("/x", **change))
    assert (await make(api))[0] == 201
    assert not hooks.seen


@pytest.mark.parametrize(
    ("client", "words"),
    [
        ({"url": "https://192.0.2.1/x"}, "only webhooks on this machine"),
        ({"url": "https://localhost.example.com/x"}, "only webhooks on this machine"),
        ({"service": {"namespace": "default", "name": "hook"}}, "pods are simulated"),
    ],
)
async def test_only_this_machine_is_called(api: Staged, hooks: Hooks, client: Json, words: str) -> None:
    await register(api, "validating", hooks.hook("/x", clientConfig=client))
    status, said = await make(api)
    assert status == 500
    assert words in said["message"]


async def test_a_certificate_is_checked(api: Staged, hooks: Hooks) -> None:
    hooks.answers["/x"] = lambda request: {}
    hook = hooks.hook("/x")
    del hook["clientConfig"]["caBundle"]
    await register(api, "validating", hook)
    assert (await make(api))[0] == 500
    assert not hooks.seen


async def test_an_answer_counts_for_the_object_that_was_seen(api: Staged, hooks: Hooks) -> None:
    await make(api)
    calls = []

    def answer(request: Json) -> Json:
        calls.append(request["object"]["data"])
        time.sleep(0.3 if len(calls) == 1 else 0)
        return {"allowed": "bad" not in request["object"]["data"]}

    hooks.answers["/x"] = answer
    rule = hooks.hook(
        "/x", matchConditions=[{"name": "x", "expression": "!('free' in object.data) || 'y' in object.data"}]
    )
    await register(api, "validating", rule)
    merge = {"content_type": "application/merge-patch+json"}
    waiting = asyncio.ensure_future(api("PATCH", f"{MAPS}/a", {"data": {"y": "2"}}, **merge))
    await asyncio.sleep(0.1)
    status, _ = await api("PATCH", f"{MAPS}/a", {"data": {"free": "1", "bad": "1"}}, **merge)
    assert status == 200, "this one is not reviewed"
    status, _ = await waiting
    assert status == 400, "the webhook is asked again, about both changes together"
    assert [sorted(each) for each in calls] == [["x", "y"], ["bad", "free", "x", "y"]]
