"""Errors of requests to an API server.

ApiError
├── Unauthorized     401: it does not know us
├── Forbidden        403: it knows us and will not let us
├── NotFound         404
├── Conflict         409: changed by others in the meantime, or there already
├── Gone             410: a resourceVersion or a page that is too old
├── TooMany          429: it asks to be left alone for a while
├── NotAllowed       not sent: we may not write any more
└── Unreachable      no answer at all, or half of one
"""
# ruff: noqa: N818 (the names are those that Kubernetes gives the reasons)

from __future__ import annotations

import ssl
from typing import Any

import msgspec

from stowplan.api import protobuf
from stowplan.errors import StowplanError

NAMESPACE_TERMINATING = "NamespaceTerminating"
"""The cause of an error: the namespace is being deleted, and nothing can be created in it."""


class ApiError(StowplanError):
    """A request that failed. `str()` gives the server's message; `advice` says what to do about it."""

    advice = ""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        causes: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.retry_after = status, reason, message, retry_after
        self.causes = causes
        """The reasons of `details.causes`, such as NamespaceTerminating."""

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        return isinstance(self, (Unreachable, TooMany)) or self.status >= 500

    @property
    def explanation(self) -> str:
        """The message with what to do about it, for logs and for people."""
        return f"{self.message}: {self.advice}" if self.advice else self.message


class Unauthorized(ApiError):
    advice = (
        "the API server does not accept our credentials; check the token, client certificate or exec plugin "
        "of the kubeconfig's user, and whether it has expired"
    )


class Forbidden(ApiError):
    advice = (
        "give this account the right, most simply by binding it to the ClusterRoles "
        "system:kube-scheduler and system:volume-scheduler"
    )


class NotFound(ApiError):
    pass


class Conflict(ApiError):
    pass


class Gone(ApiError):
    pass


class TooMany(ApiError):
    pass


class NotAllowed(ApiError):
    def __init__(self, message: str) -> None:
        super().__init__(0, "NotAllowed", message)


class Unreachable(ApiError):
    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    429: TooMany,
}


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None


class _Status(msgspec.Struct):
    """The Status object that explains an error."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None

    @property
    def causes(self) -> frozenset[str]:
        found = None if self.details is None else self.details.causes
        return frozenset(each.reason for each in found or () if each.reason)


def error_of(status: int, data: bytes, retry_after: float | None = None) -> ApiError:
    """Return the error for a response; with `status` 0, take the code from the Status object in it."""
    data = bytes(data)  # a part of a watch event is none yet
    try:
        is_protobuf = data.startswith(protobuf.MAGIC)
        found = _decode_protobuf(data) if is_protobuf else msgspec.json.decode(data, type=_Status)
    except (ValueError, IndexError, RecursionError):
        found = _Status(message=data[:1024].decode(errors="replace").strip())
    status = status or found.code
    message = found.message or f"the API server answered with status {status}"
    return _BY_STATUS.get(status, ApiError)(status, found.reason, message, retry_after, found.causes)


def _decode_protobuf(data: bytes) -> _Status:
    found = _fields(_fields(data[len(protobuf.MAGIC) :]).get((2, bytes), b""))
    message, reason = (found.get((number, bytes), b"").decode(errors="replace") for number in (3, 4))
    details = found.get((5, bytes), b"")
    causes = [field.value for field in protobuf.fields(details) if field.number == 4]
    reasons = [_fields(each).get((1, bytes), b"") for each in causes if isinstance(each, bytes)]
    return _Status(
        message,
        reason,
        found.get((6, int), 0),
        _Details([_Cause(each.decode(errors="replace")) for each in reasons]),
    )


def _fields(message: bytes) -> dict[tuple[int, type], Any]:
    """The fields by number and type: one of an unexpected type counts as missing."""
    return {(field.number, type(field.value)): field.value for field in protobuf.fields(message)}


def unreachable_scheduler(error: Unreachable) -> str:
    """Say why a scheduler does not answer, and what to do about it."""
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.__cause__.verify_message}); name it, or the authority "
            "that signed it, with --certificate-authority FILE, or skip the check with "
            "--insecure-skip-tls-verify"
        )
    return f"{error}; is a scheduler there?"
