"""Selectors: label selectors, node selectors and field selectors, built once and asked many times.

A built selector is hashable, so that counts and masks can be kept per selector.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from stowplan.api.meta import (
    LabelSelector,
    LabelSelectorRequirement,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)
from stowplan.errors import SelectorError

_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_INT64 = re.compile(r"[+-]?[0-9]+")


class Requirement(NamedTuple):
    """One condition on one label (or field)."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        if value is None or (number := as_int64(value)) is None:
            return False
        (text,) = self.values
        bound = as_int64(text) or 0  # it was checked when the requirement was made
        return number > bound if self.operator == "Gt" else number < bound


class Selector(NamedTuple):
    """All requirements must hold; without any, everything matches, unless `nothing` says nothing does."""

    requirements: tuple[Requirement, ...] = ()
    nothing: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        return not self.nothing and all(requirement.matches(labels) for requirement in self.requirements)

    @property
    def everything(self) -> bool:
        return not self.requirements and not self.nothing

    def also(self, requirements: Iterable[Requirement]) -> Selector:
        return self if self.nothing else Selector(self.requirements + tuple(requirements))


EVERYTHING = Selector()
NOTHING = Selector(nothing=True)


class NodeTerm(NamedTuple):
    """One alternative of a node selector. A term that could not be built, or is empty, matches no node."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()
    error: str = ""

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        """If `name` is empty, only labels are matched and field requirements are ignored."""
        if self.error or not (self.labels or self.fields):
            return False
        if name and not all(field.matches(_fields_of(field.key, name)) for field in self.fields):
            return False
        return all(requirement.matches(labels) for requirement in self.labels)


def selector_of(selector: LabelSelector | None) -> Selector:
    """A label selector, checked. None selects nothing, an empty one everything."""
    if selector is None:
        return NOTHING
    found = [equals(key, value, check=True) for key, value in sorted(selector.match_labels.items())]
    found += [requirement_of(expression) for expression in selector.match_expressions]
    return Selector(tuple(sorted(found, key=_by_key)))


def selector_of_map(labels: Mapping[str, str]) -> Selector:
    """Equalities from a plain map, unchecked: how services, nodeSelector and matchLabelKeys are meant."""
    return Selector(tuple(equals(key, value) for key, value in sorted(labels.items())))


def equals(key: str, value: str, *, check: bool = False) -> Requirement:
    if check:
        _check_key(key)
        _check_value(key, value)
    return Requirement(key, "In", frozenset((value,)))


def requirement_of(expression: LabelSelectorRequirement | NodeSelectorRequirement) -> Requirement:
    """A checked requirement; SelectorError says what is wrong with it."""
    key, operator, values = expression.key, expression.operator, expression.values
    _check_key(key)
    if operator in ("In", "NotIn") and not values:
        raise _bad_values(values, "for 'in', 'notin' operators, values set can't be empty")
    if operator in ("Exists", "DoesNotExist") and values:
        raise _bad_values(values, "values set must be empty for exists and does not exist")
    if operator in ("Gt", "Lt"):
        if len(values) != 1:
            raise _bad_values(values, "for 'Gt', 'Lt' operators, exactly one value is required")
        if as_int64(values[0]) is None:
            raise _bad_values(values, "for 'Gt', 'Lt' operators, the value must be an integer")
    for value in values:
        _check_value(key, value)
    return Requirement(key, operator, frozenset(values))


@lru_cache(maxsize=4096)
def node_term_of(term: NodeSelectorTerm) -> NodeTerm:
    """A node selector term; what cannot be built keeps its error and matches nothing."""
    try:
        labels = tuple(requirement_of(expression) for expression in term.match_expressions)
        fields = tuple(field_requirement_of(expression) for expression in term.match_fields)
    except SelectorError as error:
        return NodeTerm(error=str(error))
    return NodeTerm(labels, fields)


def node_terms_of(selector: NodeSelector) -> tuple[NodeTerm, ...]:
    return tuple(node_term_of(term) for term in selector.node_selector_terms)


def field_requirement_of(expression: NodeSelectorRequirement) -> Requirement:
    if expression.operator not in ("In", "NotIn"):
        raise SelectorError(
            f'operator: Invalid value: "{expression.operator}": not a valid selector operator'
        )
    if len(expression.values) != 1:
        raise SelectorError("values: Required value: must be only one value for fields")
    return Requirement(expression.key, expression.operator, frozenset(expression.values))


def as_int64(text: str) -> int | None:
    """The number `text` spells in base 10, if it is one of 64 bits."""
    if not _INT64.fullmatch(text):
        return None
    digits = text.lstrip("+-0") or "0"  # Python does not convert numbers of thousands of digits
    if len(digits) > 19:
        return None
    number = -int(digits) if text[0] == "-" else int(digits)
    return number if -(2**63) <= number < 2**63 else None


def is_qualified_name(text: str) -> bool:
    """`name` or `dns.prefix/name`."""
    prefix, slash, name = text.rpartition("/")
    if slash and not (len(prefix) <= 253 and _SUBDOMAIN.fullmatch(prefix)):
        return False
    return len(name) <= 63 and _NAME.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    return not text or (len(text) <= 63 and _NAME.fullmatch(text) is not None)


def selector_text(selector: LabelSelector | None) -> str:
    """The selector in words."""
    if selector is None:
        return "no matching labels"
    parts = [labels_text(selector.match_labels)] if selector.match_labels else []
    parts += [requirement_text(each) for each in selector.match_expressions]
    return " and ".join(parts) or "any labels"


def requirement_text(each: LabelSelectorRequirement | NodeSelectorRequirement) -> str:
    if each.operator == "In" and len(each.values) == 1:
        return f"{each.key}={each.values[0]}"
    values = f" ({', '.join(each.values)})" if each.values else ""
    return f"{each.key} {_OPERATOR_TEXTS[each.operator]}{values}"


def labels_text(labels: Mapping[str, str]) -> str:
    return " and ".join(f"{key}={value}" for key, value in labels.items())


_OPERATOR_TEXTS = {
    "In": "in",
    "NotIn": "not in",
    "Exists": "present",
    "DoesNotExist": "absent",
    "Gt": ">",
    "Lt": "<",
}


def _fields_of(key: str, name: str) -> dict[str, str]:
    return {key: name if key == "metadata.name" else ""}


def _check_key(key: str) -> None:
    if not is_qualified_name(key):
        raise SelectorError(f'key: Invalid value: "{key}": name part must consist of alphanumeric characters')


def _check_value(key: str, value: str) -> None:
    if not is_label_value(value):
        raise SelectorError(
            f'values[0][{key}]: Invalid value: "{value}": a valid label must be at most 63 characters'
        )


def _bad_values(values: Iterable[str], why: str) -> SelectorError:
    listed = ",".join(f'"{value}"' for value in values)
    return SelectorError(f"values: Invalid value: [{listed}]: {why}")


def _by_key(requirement: Requirement) -> str:
    return requirement.key
