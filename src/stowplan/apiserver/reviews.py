"""Resources that are only ever created: questions with their answer, and bindings by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowplan.apiserver.binding import bind
from stowplan.apiserver.managed import Manager
from stowplan.apiserver.messages import Answer
from stowplan.apiserver.options import write_options
from stowplan.apiserver.verbs import Target, Verbs

Json = dict[str, Any]

ADMIN = {"username": "admin", "groups": ["system:masters", "system:authenticated"]}
"""Whoever holds the server's token."""


def _allowed(verbs: Verbs, target: Target) -> Answer:
    data = _read(verbs, target)
    data["status"] = {"allowed": True}
    return Answer.of(201, data)


def _token(verbs: Verbs, target: Target) -> Answer:
    data = _read(verbs, target)
    token = (data.get("spec") or {}).get("token", "")
    known = bool(verbs.token) and token == verbs.token
    data["status"] = (
        {"authenticated": True, "user": ADMIN} if known else {"user": {}, "error": "invalid bearer token"}
    )
    return Answer.of(201, data)


def _self(verbs: Verbs, target: Target) -> Answer:
    data = _read(verbs, target)
    data["status"] = {"userInfo": ADMIN}
    return Answer.of(201, data)


def _rules(verbs: Verbs, target: Target) -> Answer:
    data = _read(verbs, target)
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    data["status"] = {
        "resourceRules": [everything],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "incomplete": False,
    }
    return Answer.of(201, data)


def _binding(verbs: Verbs, target: Target) -> Answer:
    data = _read(verbs, target)
    target.resource = verbs.resource_of("pods")
    return bind(verbs, target, data)


def _read(verbs: Verbs, target: Target) -> Json:
    options = write_options(target.request, target.query, "CreateOptions")
    data, _ = verbs.read(target, options)
    data.setdefault("metadata", {})["managedFields"] = verbs.objects.first_entries(
        target.resource, data, Manager(options.manager, "Update", target.resource.group_version)
    )
    return data


REVIEWS: dict[str, Callable[[Verbs, Target], Answer]] = {
    "selfsubjectaccessreviews": _allowed,
    "subjectaccessreviews": _allowed,
    "localsubjectaccessreviews": _allowed,
    "selfsubjectrulesreviews": _rules,
    "selfsubjectreviews": _self,
    "tokenreviews": _token,
    "bindings": _binding,
}
