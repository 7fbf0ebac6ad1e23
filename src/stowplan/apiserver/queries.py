"""Selectors as they stand in the query of a request, refused in the API's words when they cannot be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

from stowplan.api.selectors import EVERYTHING, Requirement, Selector
from stowplan.apiserver.failures import bad_request
from stowplan.apiserver.names import label_key_errors, label_value_errors

_TOKEN = re.compile(r"\s*(?:(!=|==|[=!<>(),])|([^\s=!<>(),]+))")
_WORDS = ("in", "notin")
MAX_REMEMBERED = 1024
MAX_TERMS = 200
"""Requirements of one selector; every object of a list is asked for each of them."""
_OPERATORS = {"=", "==", "!=", "in", "notin", ">", "<"}


def label_selector(text: str) -> Selector:
    """`a=b,c in (d,e),!f`; raises a 400."""
    return _remembered(text) if len(text) <= MAX_REMEMBERED else _label_selector(text)


@lru_cache(maxsize=1024)
def _remembered(text: str) -> Selector:
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
            raise _unparsed(f"found '{key}', expected: identifier")
        if errors := label_key_errors(key):
            raise bad_request(
                f'unable to parse requirement: <nil>: Invalid value: "{key}": {_key_words(errors)}'
            )
        if negated or self.peek() in ("", ","):
            return Requirement(key, "DoesNotExist" if negated else "Exists")
        operator = self.next()
        if operator not in _OPERATORS:
            raise _unparsed(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
        values = self.values() if operator in _WORDS else {self.exact_value()}
        for value in values:
            if errors := label_value_errors(value):
                shown = f'values[0][{key}]: Invalid value: "{value}": {"; ".join(errors)}'
                raise bad_request(f"unable to parse requirement: {shown}")
        names = {"in": "In", "=": "In", "==": "In", "notin": "NotIn", "!=": "NotIn", ">": "Gt", "<": "Lt"}
        return Requirement(key, names[operator], frozenset(values))

    def values(self) -> set[str]:
        if (token := self.next()) != "(":
            raise _unparsed(f"found '{token}' expected: '('")
        found: set[str] = set()
        while True:
            token = self.next()
            if _is_name(token):
                found.add(token)
                token = self.next()
                if token == ")":
                    return found
                if token != ",":
                    raise _unparsed(f"found '{token}', expected: ',' or ')'")
            elif token in (",", ")"):
                found.add("")
                if token == ")":
                    return found
            else:
                raise _unparsed(f"found '{token}', expected: ',', ')' or identifier")

    def exact_value(self) -> str:
        token = self.peek()
        if token in ("", ","):
            return ""
        if not _is_name(token):
            raise _unparsed(f"found '{token}', expected: identifier")
        return self.next()


def _key_words(errors: tuple[str, ...]) -> str:
    return "; ".join(errors).replace("a qualified name must", "a valid label key must")


def _is_name(token: str) -> bool:
    return bool(token) and token[0] not in "=!<>(),"


def _unparsed(said: str) -> Exception:
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
