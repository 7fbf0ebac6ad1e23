"""The options that come with a request: dry run, strictness, field manager; lists and watches; deletions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import parse_qs

import msgspec

from stowplan.api.meta import Json
from stowplan.api.selectors import EVERYTHING, Requirement, Selector
from stowplan.apiserver.bodies import (
    MEDIA_TYPES,
    BuiltIn,
    media_type,
    normalize,
    parse_body,
    unsupported_media,
)
from stowplan.apiserver.failures import (
    Failure,
    FieldError,
    bad_request,
    forbidden,
    invalid,
    invalid_object,
    no_kind,
    required,
    unsupported,
)
from stowplan.apiserver.names import label_key_errors, label_value_errors
from stowplan.apiserver.schemas import META
from stowplan.http11.messages import Request

VALIDATIONS = ("", "Ignore", "Strict", "Warn")
MAX_MANAGER = 128
MAX_DIGITS = 30
_GROUP = "meta.k8s.io"


class Form(NamedTuple):
    """The form of the response: whole objects, a table or metadata only."""

    what: str = ""
    """Empty for whole objects, or the kind that the client asks for."""
    yaml: bool = False
    include: str = "Metadata"
    """How much of each object the rows of a table contain."""
    group_version: str = "meta.k8s.io/v1"
    is_bare: bool = False
    """Whether managed fields are left out."""
    is_list: bool = False
    """Whether metadata is asked for as a list."""


class Query:
    """The parameters of a request, each read once."""

    def __init__(self, text: str) -> None:
        self._values = parse_qs(text, keep_blank_values=True) if text else {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def __call__(self, name: str) -> str:
        return self._values[name][0] if name in self._values else ""

    def all(self, name: str) -> list[str]:
        return self._values.get(name, [])

    def flag(self, name: str) -> bool:
        return name in self._values and self(name).lower() not in ("0", "false")

    def has(self, name: str) -> bool:
        return name in self._values


class WriteOptions(msgspec.Struct):
    dry_run: bool
    validation: str
    manager: str
    force: bool = False


def write_options(request: Request, query: Query, kind: str, is_apply: bool = False) -> WriteOptions:
    """Read the options of a write; raises a 422 about `kind` if they are invalid."""
    if not query and not is_apply:
        return WriteOptions(False, "", _manager_of(request.headers.get("user-agent", "")))
    errors: list[FieldError] = []
    dry_run, validation, manager = query.all("dryRun"), query("fieldValidation"), query("fieldManager")
    if dry_run and any(each != "All" for each in dry_run):
        errors.append(unsupported("dryRun", dry_run, ["All"]))
    if len(manager) > MAX_MANAGER:
        errors.append(FieldError("fieldManager", "Too long", f"may not be more than {MAX_MANAGER} bytes"))
    if not manager.isprintable():
        errors.append(invalid("fieldManager", manager, "should only contain printable characters"))
    if kind == "PatchOptions" and is_apply and not manager:
        errors.append(required("fieldManager", "is required for apply patch"))
    if kind == "PatchOptions" and not is_apply and query.has("force"):
        errors.append(forbidden("force", "may not be specified for non-apply patch"))
    if validation not in VALIDATIONS:
        errors.append(unsupported("fieldValidation", validation, VALIDATIONS))
    if errors:
        raise invalid_object(kind, "", errors, _GROUP)
    manager = manager or _manager_of(request.headers.get("user-agent", ""))
    return WriteOptions(bool(dry_run), validation, manager, query.flag("force"))


@lru_cache(maxsize=256)
def _manager_of(agent: str) -> str:
    """The manager of a client that names none: the first word of its user agent."""
    return re.split(r"[/ ]", agent, maxsplit=1)[0] or "unknown"


class ListOptions(msgspec.Struct):
    label_selector: str
    field_selector: str
    limit: int
    continue_from: str
    version: str
    match: str
    watch: bool
    bookmarks: bool
    timeout: int | None
    initial_events: bool | None


def list_options(query: Query) -> ListOptions:
    initial = query.flag("sendInitialEvents") if query.has("sendInitialEvents") else None
    options = ListOptions(
        query("labelSelector"),
        query("fieldSelector"),
        max(_number(query("limit")), 0),
        query("continue"),
        query("resourceVersion"),
        query("resourceVersionMatch"),
        query.flag("watch"),
        query.flag("allowWatchBookmarks"),
        _number(query("timeoutSeconds")) if query("timeoutSeconds") else None,
        initial,
    )
    if errors := _list_errors(options):
        raise invalid_object("ListOptions", "", errors, _GROUP)
    return options


def _list_errors(options: ListOptions) -> list[FieldError]:
    match, version, field = options.match, options.version, "resourceVersionMatch"
    if options.watch:
        return _watch_errors(options)
    errors = []
    if options.initial_events is not None:
        errors.append(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if match:
        if options.continue_from:
            errors.append(forbidden(field, "resourceVersionMatch is forbidden with continue"))
        if not version:
            errors.append(
                forbidden(field, "resourceVersionMatch is forbidden unless resourceVersion is provided")
            )
        if match not in ("Exact", "NotOlderThan"):
            errors.append(unsupported(field, match, ["Exact", "NotOlderThan", ""]))
        if match == "Exact" and version == "0":
            said = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            errors.append(forbidden(field, said))
    return errors


def _watch_errors(options: ListOptions) -> list[FieldError]:
    field = "resourceVersionMatch"
    if options.initial_events is not None:
        if options.match != "NotOlderThan":
            return [
                forbidden(field, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
            ]
        return []
    if options.match:
        return [
            forbidden(
                field, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            )
        ]
    return []


def _number(text: str) -> int:
    if not text:
        return 0
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    if len(text) > MAX_DIGITS or not -(2**63) <= int(text) < 2**63:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": value out of range')
    return int(text)


_DELETE = BuiltIn(META + "DeleteOptions")


def _unreadable(said: str) -> Failure:
    return bad_request(f'DeleteOptions in version "v1" cannot be handled as a DeleteOptions: {said}')


class DeleteOptions(msgspec.Struct):
    dry_run: bool = False
    grace: int | None = None
    uid: str = ""
    version: str = ""
    propagation: str = ""
    orphan: bool | None = None


def delete_options(request: Request, query: Query) -> DeleteOptions:
    """From the body, if there is one, else from the query."""
    given: Json = {}
    if request.body:
        media = media_type(request.headers.get("content-type", ""))
        if media not in MEDIA_TYPES:
            raise unsupported_media()
        body = parse_body(request.body, "DeleteOptions", media)
        if (kind := body.get("kind") or "DeleteOptions") != "DeleteOptions":
            raise no_kind(kind, body.get("apiVersion") or "v1")
        given, _ = normalize(body, _DELETE, _unreadable)
    else:
        if query("gracePeriodSeconds"):
            given["gracePeriodSeconds"] = _number(query("gracePeriodSeconds"))
        given |= {"propagationPolicy": query("propagationPolicy")} if query("propagationPolicy") else {}
        given |= {"dryRun": query.all("dryRun")} if query.has("dryRun") else {}
        given |= {"orphanDependents": query.flag("orphanDependents")} if query.has("orphanDependents") else {}
    dry_run, policy = given.get("dryRun") or [], given.get("propagationPolicy")
    orphan = given.get("orphanDependents")
    errors = []
    if policy is not None and orphan is not None:
        said = "orphanDependents and deletionPropagation cannot be both set"
        errors.append(invalid("propagationPolicy", policy, said))
    if policy is not None and policy not in ("Foreground", "Background", "Orphan"):
        errors.append(unsupported("propagationPolicy", policy, ["Foreground", "Background", "Orphan", "nil"]))
    if dry_run and any(each != "All" for each in dry_run):
        errors.append(unsupported("dryRun", dry_run, ["All"]))
    if errors:
        raise invalid_object("DeleteOptions", "", errors, _GROUP)
    conditions = given.get("preconditions") or {}
    return DeleteOptions(
        bool(dry_run),
        given.get("gracePeriodSeconds"),
        conditions.get("uid") or "",
        conditions.get("resourceVersion") or "",
        policy or "",
        orphan,
    )


_TOKEN = re.compile(r"\s*(?:(!=|==|[=!<>(),])|([^\s=!<>(),]+))")
_WORDS = ("in", "notin")
MAX_REMEMBERED = 1024
MAX_TERMS = 200
"""Requirements of one selector; each is checked for every object of a list."""
_OPERATORS = {"=", "==", "!=", "in", "notin", ">", "<"}


def label_selector(text: str) -> Selector:
    """`a=b,c in (d,e),!f`; raises a 400."""
    return _cached_selector(text) if len(text) <= MAX_REMEMBERED else _label_selector(text)


@lru_cache(maxsize=1024)
def _cached_selector(text: str) -> Selector:
    return _label_selector(text)


def _label_selector(text: str) -> Selector:
    return Selector(tuple(_Parser(text).requirements())) if text.strip() else EVERYTHING


class _Parser:
    def __init__(self, text: str) -> None:
        tokens = (match[1] or match[2] for match in _TOKEN.finditer(text))
        self.tokens = [token for token in tokens if token]
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def requirements(self) -> list[Requirement]:
        found = []
        while True:
            token = self.peek()
            if not token:
                break
            if not (token == "!" or _is_name(token)):
                raise bad_request(f"found '{token}', expected: !, identifier, or 'end of string'")
            found.append(self.requirement())
            if len(found) > MAX_TERMS:
                raise bad_request(f"unable to parse requirement: more than {MAX_TERMS} requirements")
            token = self.next()
            if not token:
                break
            if token != ",":
                raise bad_request(f"found '{token}', expected: ',' or 'end of string'")
            if not (self.peek() == "!" or _is_name(self.peek())):
                raise bad_request(f"found '{self.peek()}', expected: identifier after ','")
        return found

    def requirement(self) -> Requirement:
        negated = self.peek() == "!"
        if negated:
            self.next()
        key = self.next()
        if not _is_name(key):
            raise _parse_error(f"found '{key}', expected: identifier")
        if errors := label_key_errors(key):
            raise bad_request(
                f'unable to parse requirement: <nil>: Invalid value: "{key}": {_key_words(errors)}'
            )
        if negated or self.peek() in ("", ","):
            return Requirement(key, "DoesNotExist" if negated else "Exists")
        operator = self.next()
        if operator not in _OPERATORS:
            raise _parse_error(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
        values = self.values() if operator in _WORDS else {self.exact_value()}
        for value in values:
            if errors := label_value_errors(value):
                shown = f'values[0][{key}]: Invalid value: "{value}": {"; ".join(errors)}'
                raise bad_request(f"unable to parse requirement: {shown}")
        names = {"in": "In", "=": "In", "==": "In", "notin": "NotIn", "!=": "NotIn", ">": "Gt", "<": "Lt"}
        return Requirement(key, names[operator], frozenset(values))

    def values(self) -> set[str]:
        if (token := self.next()) != "(":
            raise _parse_error(f"found '{token}' expected: '('")
        found: set[str] = set()
        while True:
            token = self.next()
            if _is_name(token):
                found.add(token)
                token = self.next()
                if token == ")":
                    return found
                if token != ",":
                    raise _parse_error(f"found '{token}', expected: ',' or ')'")
            elif token in (",", ")"):
                found.add("")
                if token == ")":
                    return found
            else:
                raise _parse_error(f"found '{token}', expected: ',', ')' or identifier")

    def exact_value(self) -> str:
        token = self.peek()
        if token in ("", ","):
            return ""
        if not _is_name(token):
            raise _parse_error(f"found '{token}', expected: identifier")
        return self.next()


def _key_words(errors: tuple[str, ...]) -> str:
    return "; ".join(errors).replace("a qualified name must", "a valid label key must")


def _is_name(token: str) -> bool:
    return bool(token) and token[0] not in "=!<>(),"


def _parse_error(said: str) -> Exception:
    return bad_request(f"unable to parse requirement: {said}")


FieldTerms = tuple[tuple[str, str, bool], ...]
"""(field, value, whether it must be equal)"""


def field_selector(text: str, known: Collection[str], unknown: Callable[[str], Exception]) -> FieldTerms:
    """`a.b=x,c!=y`, of fields that are known; raises a 400."""
    found = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(.*?)(==|=|!=)(.*)", part.strip(), re.DOTALL)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        field = match[1].strip()
        if field not in known:
            raise unknown(field)
        found.append((field, match[3], match[2] != "!="))
        if len(found) > MAX_TERMS:
            raise bad_request(f"invalid selector: more than {MAX_TERMS} terms")
    return tuple(found)


def fields_match(terms: FieldTerms, fields: Mapping[str, str]) -> bool:
    return all((fields.get(field, "") == value) is equal for field, value, equal in terms)
