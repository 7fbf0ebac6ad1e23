"""Authentication and authorization: client certificates here, tokens and permissions by review requests."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from stowplan.errors import InputError, StowplanError
from stowplan.log import warn
from stowplan.serving.options import ServingOptions

REVIEW_SECONDS = 10
"""How long the API server may take to answer one review."""
ANSWERS_KEPT = 4096
"""Cached reviews of tokens and permissions; beyond it the oldest are dropped."""

Subject = Iterable[Iterable[tuple[str, str]]]
"""The subject of a certificate as the ssl module gives it."""
V = TypeVar("V")


class UserInfo(Protocol):
    @property
    def username(self) -> str: ...
    @property
    def groups(self) -> Sequence[str]: ...


class TokenReviewer(Protocol):
    async def review_token(self, token: str) -> UserInfo | None: ...


class AccessReviewer(Protocol):
    async def review_access(self, user: str, groups: Sequence[str], path: str, verb: str) -> bool: ...


class User(NamedTuple):
    name: str
    groups: tuple[str, ...]


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
AUTHENTICATED = "system:authenticated"
MASTERS = "system:masters"


class Authentication:
    """Identifies the user: by client certificate, else by bearer token, else anonymous."""

    def __init__(self, options: ServingOptions, reviewer: TokenReviewer | None) -> None:
        self._reviewer = reviewer
        self._tokens = Remembered[User | None](lambda _: options.authentication_token_webhook_cache_ttl)

    async def user_of(self, certificate: Any, authorization: str) -> User | None:
        """Return the user, or None for invalid credentials; a client without any is anonymous.

        `certificate` is the verified certificate of the client, if it has one; `authorization` is the header.
        """
        if certificate and (user := _certificate_user(certificate["subject"])):
            return user
        scheme, _, token = authorization.strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or self._reviewer is None:
            return ANONYMOUS
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
        return await self._tokens.answer(digest, lambda: self._review(token))

    async def _review(self, token: str) -> User | None:
        assert self._reviewer is not None
        found = await self._reviewer.review_token(token)
        return None if found is None else _make_user(found.username, found.groups)


class Authorization:
    """Decides whether a user may access a path."""

    def __init__(self, options: ServingOptions, reviewer: AccessReviewer | None) -> None:
        self._open_paths = options.authorization_always_allow_paths
        self._reviewer = reviewer
        allowed = options.authorization_webhook_cache_authorized_ttl
        rejected = options.authorization_webhook_cache_unauthorized_ttl
        self._rights = Remembered[bool](lambda is_allowed: allowed if is_allowed else rejected)

    async def allows(self, user: User, path: str, verb: str) -> bool:
        if MASTERS in user.groups or any(_matches(open_path, path) for open_path in self._open_paths):
            return True
        reviewer = self._reviewer
        if reviewer is None:
            return False
        return await self._rights.answer(
            (user, path, verb), lambda: reviewer.review_access(user.name, user.groups, path, verb)
        )


class Remembered(Generic[V]):
    """Caches results for a while. Concurrent requests for the same key share one call."""

    def __init__(self, seconds: Callable[[V], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._answers: dict[object, tuple[float, V]] = {}
        self._asking: dict[object, asyncio.Task[V]] = {}

    async def answer(self, question: object, ask: Callable[[], Awaitable[V]]) -> V:
        known = self._answers.get(question)
        if known is not None and self._clock() < known[0]:
            return known[1]
        task = self._asking.get(question)
        if task is None:
            task = self._asking[question] = asyncio.create_task(self._ask(question, ask))
        return await task

    async def _ask(self, question: object, ask: Callable[[], Awaitable[V]]) -> V:
        try:
            async with asyncio.timeout(REVIEW_SECONDS):
                answer = await ask()
        finally:
            del self._asking[question]
        self._answers.pop(question, None)
        self._answers[question] = (self._clock() + self._seconds(answer), answer)
        if len(self._answers) > ANSWERS_KEPT:
            del self._answers[next(iter(self._answers))]
        return answer


def _matches(open_path: str, path: str) -> bool:
    return path.startswith(open_path[:-1]) if open_path.endswith("*") else path == open_path


def _certificate_user(subject: Subject) -> User | None:
    """A certificate names the user in CN and the groups in O."""
    parts = [part for parts in subject for part in parts]
    name = next((value for key, value in parts if key == "commonName"), "")
    return _make_user(name, [value for key, value in parts if key == "organizationName"]) if name else None


def _make_user(name: str, groups: Iterable[str]) -> User:
    return User(name, tuple(dict.fromkeys((*groups, AUTHENTICATED))))


NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"
ADVICE = (
    f"let this account read it, by a RoleBinding in {NAMESPACE} to the Role "
    "extension-apiserver-authentication-reader, or give --client-ca-file or --authentication-skip-lookup"
)


class JsonReader(Protocol):
    async def get_json(self, path: str) -> Any: ...


async def cluster_client_ca(api: JsonReader, *, tolerate_failure: bool = True) -> str:
    """The certificates in PEM; empty where the cluster has none, or, if that is tolerated, does not tell."""
    try:
        found = await api.get_json(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}")
    except StowplanError as error:
        if not tolerate_failure:
            raise InputError(f"{error}; {ADVICE}", where=f"ConfigMap {NAMESPACE}/{NAME}") from error
        warn("Cannot read the CA of client certificates; none will be accepted", err=error, advice=ADVICE)
        return ""
    return str((found.get("data") or {}).get("client-ca-file", ""))
