"""Faults on demand, for tests of clients: requests that fail or take long, and watches that break off.

`ApiServer.faults` is the only place where they act. Clients in the same process (controllers, nodes, the
scheduler) are spared unless a fault names a user agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import NamedTuple
from weakref import WeakSet

import msgspec

from stowplan.apiserver.failures import (
    Failure,
    already_exists,
    expired,
    forbidden_request,
    internal,
    modified,
    not_found,
)
from stowplan.apiserver.rbac import Attributes, attributes_of
from stowplan.apiserver.reading import Watch
from stowplan.errors import InputError
from stowplan.http11.messages import Request

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
_TEXTS = {
    401: ("Unauthorized", "Unauthorized"),
    429: ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "Timeout: request did not complete within the allotted timeout"),
}


class Target(NamedTuple):
    """Which requests are meant. Texts are patterns as in file names: `*`, `?`, `[ab]`."""

    verb: str = "*"
    """One of VERBS."""
    resource: str = "*"
    """A plural as in URLs, without its group; with a subresource, such as `pods/status`, only that."""
    name: str = "*"
    namespace: str = "*"
    user_agent: str = ""
    """Empty: all clients but those of the cluster itself."""

    def takes(self, request: Request, asked: Attributes) -> bool:
        if not self.user_agent and request.is_bare:
            return False
        name = asked.name
        if self.name != "*" and asked.verb == "create" and not name:
            name = _name_in(request.body)
        pairs = (
            (asked.verb, self.verb),
            (asked.whole_resource, self.resource),
            (name, self.name),
            (asked.namespace, self.namespace),
            (request.headers.get("user-agent", ""), self.user_agent or "*"),
        )
        return bool(asked.resource) and all(fnmatchcase(value, pattern) for value, pattern in pairs)


class Fault(msgspec.Struct, kw_only=True, eq=False):
    """What happens to requests that match; `count` is how many of them (None: all)."""

    target: Target
    status: int | None = None
    """The status that they fail with; None if they succeed after all."""
    delay: float = 0.0
    """Seconds of real time before they are handled."""
    message: str = ""
    retry_after: int | None = None
    count: int | None = None
    hits: int = 0
    """How many requests it has affected."""

    def __post_init__(self) -> None:
        if self.status is not None and not 400 <= self.status <= 599:
            raise InputError(f"a fault needs a status of 400 to 599, not {self.status}")
        if self.status is None and not self.delay:
            raise InputError("a fault needs a status, a delay, or both")
        if not any(fnmatchcase(verb, self.target.verb) for verb in VERBS):
            raise InputError(f"no verb matches {self.target.verb!r}; verbs are {', '.join(VERBS)}")

    @property
    def is_over(self) -> bool:
        return self.count is not None and self.hits >= self.count

    def failure(self, asked: Attributes) -> Failure:
        assert self.status is not None
        what = (asked.name, asked.resource, asked.group)
        match self.status:
            case 409:
                found = already_exists(*what) if asked.verb == "create" else modified(*what)
            case 410:
                found = expired("The resourceVersion for the provided list is too old.")
                if asked.verb == "watch":
                    found = expired("too old resource version: 1 (2)")
            case 403:
                found = forbidden_request(*what, "this was asked for by a test")
            case 404:
                found = not_found(*what)
            case 500:
                found = internal("Internal error occurred: this was asked for by a test")
                found.status["reason"] = "InternalError"
            case status:
                reason, text = _TEXTS.get(status, ("", _phrase(status)))
                found = Failure(status, reason, text)
        if self.message:
            found.status["message"] = self.message
        wait = 1 if self.retry_after is None and self.status == 429 else self.retry_after
        if wait is not None:
            found.headers = (*found.headers, ("Retry-After", str(wait)))
            found.status["details"] = {**found.status.get("details", {}), "retryAfterSeconds": wait}
        return found


class Faults:
    """The faults of one server, and its open watches."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self.watches: WeakSet[Watch] = WeakSet()

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._faults)

    def __bool__(self) -> bool:
        return bool(self._faults)

    def add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        if fault in self._faults:
            self._faults.remove(fault)

    def clear(self) -> None:
        self._faults.clear()

    async def act(self, request: Request) -> None:
        """Do to a request what the first fault that matches says: nothing, a delay, a Failure, or both."""
        asked = attributes_of(request)
        for fault in self._faults:
            if not fault.is_over and fault.target.takes(request, asked):
                fault.hits += 1
                if fault.delay:
                    await asyncio.sleep(fault.delay)
                if fault.status is not None:
                    raise fault.failure(asked)
                return

    def drop_watches(self, target: Target) -> int:
        """Break off the connections of open watches; return how many."""
        dropped = [each for each in self.watches if target.takes(each.request, attributes_of(each.request))]
        for each in dropped:
            each.drop()
        return len(dropped)


def _name_in(body: bytes) -> str:
    """The name of an object that is created, which is not in the path; only known if it is sent as JSON."""
    try:
        return str(msgspec.json.decode(body)["metadata"]["name"])
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError):
        return ""


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "this was asked for by a test"
