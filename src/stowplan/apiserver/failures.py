"""Failures as the API reports them: Status objects, and errors of single fields inside them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from stowplan.api.meta import Json
from stowplan.errors import StowplanError
from stowplan.http11.messages import Response

SCHEME = "pkg/runtime/scheme.go:111"
_REASON = {
    "Required value": "FieldValueRequired",
    "Invalid value": "FieldValueInvalid",
    "Forbidden": "FieldValueForbidden",
    "Unsupported value": "FieldValueNotSupported",
    "Duplicate value": "FieldValueDuplicate",
    "Too long": "FieldValueTooLong",
    "Too many": "FieldValueTooMany",
    "Not found": "FieldValueNotFound",
    "Internal error": "InternalError",
}


class FieldError(NamedTuple):
    """An error of one field: `what` is the API's kind of error, `body` the rest of its message."""

    field: str
    what: str
    body: str = ""
    reason: str = ""

    @property
    def message(self) -> str:
        return f"{self.what}: {self.body}" if self.body else self.what

    @property
    def cause(self) -> Json:
        return {"reason": self.reason or _REASON[self.what], "message": self.message, "field": self.field}


def required(field: str, detail: str = "") -> FieldError:
    return FieldError(field, "Required value", detail)


def invalid(field: str, value: object, detail: str) -> FieldError:
    return FieldError(field, "Invalid value", f"{json_text(value)}: {detail}")


def wrong_type(field: str, value: object, detail: str) -> FieldError:
    return FieldError(field, "Invalid value", f"{json_text(value)}: {detail}", "FieldValueTypeInvalid")


def forbidden(field: str, detail: str) -> FieldError:
    return FieldError(field, "Forbidden", detail)


def unsupported(field: str, value: object, supported: Iterable[str]) -> FieldError:
    listed = ", ".join(f'"{each}"' for each in supported)
    return FieldError(field, "Unsupported value", f"{json_text(value)}: supported values: {listed}")


def duplicate(field: str, value: object) -> FieldError:
    return FieldError(field, "Duplicate value", json_text(value))


def too_long(field: str, limit: int) -> FieldError:
    return FieldError(field, "Too long", f"may not be more than {limit} bytes")


def not_found_value(field: str, value: object) -> FieldError:
    return FieldError(field, "Not found", json_text(value))


def json_text(value: object) -> str:
    """A value as messages show it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def aggregate(errors: list[str]) -> str:
    """Several errors as one text."""
    unique = list(dict.fromkeys(errors))
    return unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]"


class Failure(StowplanError):  # noqa: N818  the API's own word
    """A request that is rejected; `status` is the body of the response."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Json | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.code, self.headers = code, headers
        self.status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            **({"reason": reason} if reason else {}),
            **({"details": details} if details is not None else {}),
            "code": code,
        }

    @property
    def message(self) -> str:
        return str(self.status["message"])

    def response(self) -> Response:
        return Response.of(self.code, self.status, self.headers)


def bad_request(message: str) -> Failure:
    return Failure(400, "BadRequest", message)


def no_kind(kind: str, version: str) -> Failure:
    return bad_request(f'no kind "{kind}" is registered for version "{version}" in scheme "{SCHEME}"')


def not_found(name: str, plural: str, group: str = "") -> Failure:
    return Failure(
        404,
        "NotFound",
        f'{_qualified(plural, group)} "{name}" not found',
        details=_details(name, plural, group),
    )


def already_exists(name: str, plural: str, group: str = "") -> Failure:
    message = f'{_qualified(plural, group)} "{name}" already exists'
    return Failure(409, "AlreadyExists", message, details=_details(name, plural, group))


def conflict(name: str, plural: str, group: str, why: str) -> Failure:
    message = f'Operation cannot be fulfilled on {_qualified(plural, group)} "{name}": {why}'
    return Failure(409, "Conflict", message, details=_details(name, plural, group))


def modified(name: str, plural: str, group: str) -> Failure:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(name, plural, group, why)


def other_uid(name: str, plural: str, group: str, place: str, given: str, found: str) -> Failure:
    """The object has another uid than the client expects; `place` is its key in the message."""
    why = (
        f"StorageError: invalid object, Code: 4, Key: /registry/{place}, ResourceVersion: 0, "
        f"AdditionalErrorMsg: Precondition failed: UID in precondition: {given}, UID in object meta: {found}"
    )
    return conflict(name, plural, group, why)


def forbidden_request(name: str, plural: str, group: str, why: str) -> Failure:
    # Without a name the API still puts quotes where it would be only if there is one.
    what = f'{_qualified(plural, group)} "{name}"' if name else _qualified(plural, group)
    return Failure(403, "Forbidden", f"{what} is forbidden: {why}", details=_details(name, plural, group))


def invalid_object(kind: str, name: str, errors: list[FieldError], group: str = "") -> Failure:
    said = list(dict.fromkeys(f"{error.field}: {error.message}" for error in errors))
    text = said[0] if len(said) == 1 else f"[{', '.join(said)}]"
    details = _details(name, kind, group) | {"causes": [error.cause for error in errors]}
    return Failure(422, "Invalid", f'{_qualified(kind, group)} "{name}" is invalid: {text}', details=details)


def method_not_allowed() -> Failure:
    message = "the server does not allow this method on the requested resource"
    return Failure(405, "MethodNotAllowed", message, details={})


def unknown_resource() -> Failure:
    return Failure(404, "NotFound", "the server could not find the requested resource", details={})


def internal(message: str) -> Failure:
    return Failure(500, "", message)


def expired(message: str, details: Json | None = None) -> Failure:
    return Failure(410, "Expired", message, details=details)


def too_large_version(asked: int, current: int) -> Failure:
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Failure(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {asked}, current: {current}",
        details={"causes": [cause], "retryAfterSeconds": 1},
        headers=(("Retry-After", "1"),),
    )


def _qualified(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def _details(name: str, kind: str, group: str) -> Json:
    details = {"name": name, "group": group, "kind": kind}
    return {key: value for key, value in details.items() if value}
