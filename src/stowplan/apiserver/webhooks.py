"""Validating and mutating webhooks on this machine.

The server answers a request between two awaits, and a webhook cannot be awaited there. So a request that
needs the answers of webhooks is given up with `Pending`, the webhooks are called, and the request is answered
again from its beginning, with their answers at hand. An answer counts for exactly the object that the webhook
saw: if another request has changed it meanwhile, the webhook is called again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import ssl
import uuid
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from stowplan.api.meta import Json
from stowplan.apiserver import patches, policies
from stowplan.apiserver.failures import Failure
from stowplan.apiserver.matching import Action, all_of, matches_rules, matches_selectors, request_facts
from stowplan.client.connection import HttpPool, tls_context
from stowplan.client.errors import Unreachable
from stowplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable


MAX_CALLS = 64
"""Calls for one request; more are a loop of webhooks that undo each other's work, or of other writers."""
MAX_SECONDS = 30.0
"""All calls for one request take no longer; each has a time limit of its own besides."""
MAX_ANSWER = 3 * 2**20
_HEADERS = (
    ("Content-Type", "application/json"),
    ("Accept", "application/json"),
    ("User-Agent", "kube-apiserver-admission"),
)


class Call(NamedTuple):
    key: str
    hook: Json
    review: Json


class Outcome(NamedTuple):
    """What a webhook answered, or why there is no answer."""

    response: Json
    error: str = ""


class Pending(Exception):  # noqa: N818  not an error: the request continues when the calls are done
    """The request waits for these calls."""

    def __init__(self, calls: list[Call]) -> None:
        super().__init__()
        self.calls = calls


# What the pipeline asks for.


def validate(action: Action) -> None:
    """Raise Failure if a webhook denies the request, or cannot be asked; Pending until all have answered."""
    hooks = _matching_hooks(action, "validating")
    asked = [_outcome(action, name, hook, 0) for name, hook in hooks]
    missing = [each for each in asked if isinstance(each, Call)]
    if missing:
        raise Pending(missing)
    for (_, hook), outcome in zip(hooks, asked, strict=True):
        is_allowed = isinstance(outcome, Outcome) and _is_accepted(action, hook, outcome)
        if is_allowed and isinstance(outcome, Outcome) and outcome.response.get("patch"):
            _fail(hook, f"{_INVALID}validating webhook may not return response.patch")


def mutate(action: Action, replace: Callable[[Json], Action]) -> None:
    """Change the object as webhooks want it; those that ask for it see it again after the others."""
    seen: dict[str, Json | None] = {}
    for again in (0, 1):
        for name, hook in _matching_hooks(action, "mutating"):
            key = f"{name}/{hook['name']}"
            if again and (hook.get("reinvocationPolicy") != "IfNeeded" or seen.get(key) == action.new):
                continue
            outcome = _outcome(action, name, hook, again)
            if isinstance(outcome, Call):
                raise Pending([outcome])
            if _is_accepted(action, hook, outcome):
                action = _apply_patch(action, hook, outcome.response, replace)
            seen[key] = action.new


def _matching_hooks(action: Action, kind: str) -> list[tuple[str, Json]]:
    """The webhooks that want to see the request, each with the name of its configuration."""
    if action.context.resource.group == "admissionregistration.k8s.io":
        return []
    found = []
    for configuration in all_of(action.context, f"{kind}webhookconfigurations"):
        for hook in configuration.get("webhooks") or ():
            rules, policy = hook.get("rules") or [], hook.get("matchPolicy", "Equivalent")
            if not matches_rules(action, rules, policy) or not matches_selectors(action, hook):
                continue
            try:
                if policies.conditions_hold(action, hook.get("matchConditions") or []):
                    found.append((configuration["metadata"]["name"], hook))
            except policies.PolicyError as error:
                if hook.get("failurePolicy", "Fail") == "Fail":
                    _fail(hook, str(error))
    return found


def _outcome(action: Action, configuration: str, hook: Json, again: int) -> Outcome | Call:
    objects = {"object": action.new, "oldObject": action.old}
    facts = request_facts(action)
    digest = hashlib.sha256(msgspec.json.encode([facts, objects], order="sorted")).hexdigest()
    key = f"{configuration}/{hook['name']}/{again}/{digest}"
    known = action.context.request.memory.get(key)
    if isinstance(known, Outcome):
        return known
    request = {"uid": str(uuid.uuid4()), **facts, **objects}
    version = "v1" if "v1" in (hook.get("admissionReviewVersions") or ()) else "v1beta1"
    review = {"kind": "AdmissionReview", "apiVersion": f"admission.k8s.io/{version}", "request": request}
    return Call(key, hook, review)


_INVALID = "received invalid webhook response: "


def _is_accepted(action: Action, hook: Json, outcome: Outcome) -> bool:
    """Whether the webhook allows the request; False if it could not be asked and that may be ignored."""
    if outcome.error:
        if hook.get("failurePolicy", "Fail") == "Fail":
            _fail(hook, outcome.error)
        return False
    response = outcome.response
    warnings = response.get("warnings")
    if isinstance(warnings, list):
        action.context.warnings += [each for each in warnings if isinstance(each, str)]
    if response.get("allowed") is True:
        return True
    status = response.get("status") if isinstance(response.get("status"), dict) else {}
    assert isinstance(status, dict)
    code, reason, said = status.get("code"), status.get("reason"), status.get("message")
    words = f'admission webhook "{hook["name"]}" denied the request'
    if isinstance(said, str) and said:
        words += f": {said}"
    elif isinstance(reason, str) and reason:
        words += f": {reason}"
    else:
        words += " without explanation"
    answered = code if isinstance(code, int) and 400 <= code < 600 else 400
    raise Failure(answered, reason if isinstance(reason, str) else "", words)


def _fail(hook: Json, why: str) -> None:
    said = f'failed calling webhook "{hook["name"]}": {why}'
    raise _internal(said)


def _internal(said: str) -> Failure:
    details = {"causes": [{"message": said}]}
    return Failure(500, "InternalError", f"Internal error occurred: {said}", details=details)


def _apply_patch(action: Action, hook: Json, response: Json, replace: Callable[[Json], Action]) -> Action:
    if not response.get("patch"):
        return action
    if response.get("patchType") != "JSONPatch":
        _fail(hook, f"{_INVALID}webhook returned response.patch but not response.patchType")
    try:
        patch = msgspec.json.decode(base64.b64decode(response["patch"], validate=True))
        new = patches.json_patch(msgspec.json.decode(msgspec.json.encode(action.new)), patch)
    except (binascii.Error, msgspec.DecodeError, TypeError, ValueError) as error:
        raise _internal(f"the patch is not JSON in base64: {error}") from None
    except Failure as failure:
        raise _internal(failure.message) from None
    return action if new == action.new else replace(new)


# Calling.


async def answer(calls: list[Call], memory: dict[str, Any]) -> None:
    """Call webhooks and keep their answers for the next attempt."""
    loop = asyncio.get_running_loop()
    left = memory.setdefault("webhooks until", loop.time() + MAX_SECONDS) - loop.time()
    memory["webhook calls"] = memory.get("webhook calls", 0) + len(calls)
    if memory["webhook calls"] > MAX_CALLS:
        raise _internal(f"webhooks were called more than {MAX_CALLS} times for this request")
    outcomes = await asyncio.gather(*(_call(call, left) for call in calls))
    for call, outcome in zip(calls, outcomes, strict=True):
        memory[call.key] = outcome


async def _call(call: Call, left: float) -> Outcome:
    hook, seconds = call.hook, call.hook.get("timeoutSeconds", 10)
    client = hook.get("clientConfig") or {}
    if client.get("service") is not None:
        service = client["service"]
        host = f"{service.get('name')}.{service.get('namespace')}.svc"
        said = "pods are simulated and answer nothing: give the webhook a url on this machine"
        return Outcome({}, f'failed to call webhook: Post "https://{host}": {said}')
    url = urlsplit(client.get("url") or "")
    target = f"{url.path or '/'}?timeout={seconds}s"
    shown = f'failed to call webhook: Post "{url.scheme}://{url.netloc}{target}": '
    if not _is_local(url.hostname or ""):
        return Outcome({}, f"{shown}only webhooks on this machine (localhost, 127.0.0.1, ::1) are called")
    try:
        authority = base64.b64decode(client.get("caBundle") or "").decode()
        tls = tls_context(authority_text=authority)
    except (InputError, ValueError) as error:
        return Outcome({}, f"{shown}unable to load root certificates: {error}")
    return await _ask(call, url.netloc, url.hostname or "", target, tls, min(seconds, left), shown)


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _ask(
    call: Call, place: str, host: str, target: str, tls: ssl.SSLContext, seconds: float, shown: str
) -> Outcome:
    pool = HttpPool(f"https://{place}", ssl_context=tls, server_hostname=host, max_body_bytes=MAX_ANSWER)
    try:
        async with asyncio.timeout(max(seconds, 0.01)):
            body = msgspec.json.encode(call.review)
            reply = await pool.request("POST", target, _HEADERS, body, timeout=seconds)
    except TimeoutError:
        return Outcome({}, f"{shown}context deadline exceeded")
    except Unreachable as error:
        words = str(error)
        is_late = "timed out" in words or "time" in words.rpartition(":")[2]
        return Outcome({}, f"{shown}{'context deadline exceeded' if is_late else words.rpartition(': ')[2]}")
    finally:
        await pool.close()
    if reply.status != 200:
        said = 'an error on the server ("unknown") has prevented the request from succeeding'
        return Outcome({}, f"failed to call webhook: {said}")
    return _read(call, reply.data)


def _read(call: Call, data: bytes) -> Outcome:
    try:
        review = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return Outcome({}, "failed to call webhook: the answer is not JSON")
    if not isinstance(review, dict):
        return Outcome({}, "failed to call webhook: the answer is not an AdmissionReview")
    response = review.get("response")
    if not isinstance(response, dict):
        return Outcome({}, f"{_INVALID}webhook response was absent")
    wanted, given = call.review["request"]["uid"], response.get("uid", "")
    if given != wanted:
        return Outcome({}, f'{_INVALID}expected response.uid="{wanted}", got "{given}"')
    return Outcome(response)
