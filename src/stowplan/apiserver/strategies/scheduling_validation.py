"""What is wrong with selectors, affinities, tolerations and spread constraints, in the API's words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stowplan.apiserver.failures import FieldError, duplicate, forbidden, invalid, required, unsupported
from stowplan.apiserver.metadata import label_errors_of
from stowplan.apiserver.names import label_errors, label_key_errors, label_value_errors

Json = dict[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_WEIGHT = "must be in the range 1-100"
_OPERATORS = ("DoesNotExist", "Equal", "Exists", "Gt", "Lt")


def node_selector_errors(labels: Json, at: str) -> Iterator[FieldError]:
    yield from label_errors_of(labels, at)


def label_selector_errors(
    selector: Json | None, at: str, *, checks_values: bool = True
) -> Iterator[FieldError]:
    if selector is None:
        return
    yield from label_errors_of(selector.get("matchLabels") or {}, f"{at}.matchLabels")
    for index, term in enumerate(selector.get("matchExpressions") or []):
        here, operator, values = (
            f"{at}.matchExpressions[{index}]",
            term.get("operator"),
            term.get("values") or [],
        )
        if operator in ("In", "NotIn"):
            if not values:
                yield required(f"{here}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                yield forbidden(
                    f"{here}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                )
        else:
            yield invalid(f"{here}.operator", operator or "", "not a valid selector operator")
        for said in label_key_errors(term.get("key", "")):
            yield invalid(f"{here}.key", term.get("key", ""), said)
        for number, value in enumerate(values if checks_values else ()):
            for said in label_value_errors(value):
                yield invalid(f"{here}.values[{number}]", value, said)


def affinity_errors(affinity: Json, at: str) -> Iterator[FieldError]:
    node = affinity.get("nodeAffinity") or {}
    if node.get(REQUIRED) is not None:
        yield from _node_selector(node[REQUIRED], f"{at}.nodeAffinity.{REQUIRED}")
    for index, term in enumerate(node.get(PREFERRED) or []):
        here = f"{at}.nodeAffinity.{PREFERRED}[{index}]"
        if not 1 <= term.get("weight", 0) <= 100:
            yield invalid(f"{here}.weight", term.get("weight", 0), _WEIGHT)
        yield from _node_term(term.get("preference") or {}, f"{here}.preference")
    for side in ("podAffinity", "podAntiAffinity"):
        group = affinity.get(side) or {}
        for index, term in enumerate(group.get(REQUIRED) or []):
            yield from _pod_term(term, f"{at}.{side}.{REQUIRED}[{index}]")
        for index, term in enumerate(group.get(PREFERRED) or []):
            here = f"{at}.{side}.{PREFERRED}[{index}]"
            if not 1 <= term.get("weight", 0) <= 100:
                yield invalid(f"{here}.weight", term.get("weight", 0), _WEIGHT)
            yield from _pod_term(term.get("podAffinityTerm") or {}, f"{here}.podAffinityTerm")


def _node_selector(selector: Json, at: str) -> Iterator[FieldError]:
    if not selector.get("nodeSelectorTerms"):
        yield required(f"{at}.nodeSelectorTerms", "must have at least one node selector term")
    for index, term in enumerate(selector.get("nodeSelectorTerms") or []):
        yield from _node_term(term, f"{at}.nodeSelectorTerms[{index}]")


def _node_term(term: Json, at: str) -> Iterator[FieldError]:
    for index, each in enumerate(term.get("matchExpressions") or []):
        yield from _node_requirement(each, f"{at}.matchExpressions[{index}]")
    for index, each in enumerate(term.get("matchFields") or []):
        yield from _field_requirement(each, f"{at}.matchFields[{index}]")


def _node_requirement(term: Json, at: str) -> Iterator[FieldError]:
    operator, values = term.get("operator", ""), term.get("values") or []
    if operator in ("In", "NotIn"):
        if not values:
            yield required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            yield forbidden(
                f"{at}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            )
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            yield required(f"{at}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    else:
        yield invalid(f"{at}.operator", operator, "not a valid selector operator")
    for said in label_key_errors(term.get("key", "")):
        yield invalid(f"{at}.key", term.get("key", ""), said)


def _field_requirement(term: Json, at: str) -> Iterator[FieldError]:
    operator, values = term.get("operator", ""), term.get("values") or []
    if operator in ("In", "NotIn"):
        if len(values) != 1:
            yield required(
                f"{at}.values",
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            )
    else:
        yield invalid(f"{at}.operator", operator, "not a valid selector operator")
    if term.get("key") != "metadata.name":
        yield invalid(f"{at}.key", term.get("key", ""), "not a valid field selector key")


def _pod_term(term: Json, at: str) -> Iterator[FieldError]:
    yield from label_selector_errors(term.get("labelSelector"), f"{at}.labelSelector")
    yield from label_selector_errors(term.get("namespaceSelector"), f"{at}.namespaceSelector")
    for index, name in enumerate(term.get("namespaces") or []):
        for said in label_errors(name):
            yield invalid(f"{at}.namespaces[{index}]", name, said)
    if not term.get("topologyKey"):
        yield required(f"{at}.topologyKey", "can not be empty")
    for said in label_key_errors(term.get("topologyKey") or ""):
        yield invalid(f"{at}.topologyKey", term.get("topologyKey") or "", said)


def toleration_errors(toleration: Json, at: str) -> Iterator[FieldError]:
    key, operator = toleration.get("key", ""), toleration.get("operator", "")
    value, effect = toleration.get("value", ""), toleration.get("effect", "")
    if key:
        for said in label_key_errors(key):
            yield invalid(f"{at}.key", key, said)
    if not key and operator != "Exists":
        said = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield invalid(f"{at}.operator", operator, said)
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        said = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield invalid(f"{at}.effect", effect, said)
    if operator in ("Equal", ""):
        for said in label_value_errors(value):
            yield invalid(f"{at}.operator", value, said)
    elif operator == "Exists":
        if value:
            yield invalid(f"{at}.operator", value, "value must be empty when `operator` is 'Exists'")
    else:
        yield unsupported(f"{at}.operator", operator, ("Equal", "Exists"))
    if effect and effect not in EFFECTS:
        yield unsupported(f"{at}.effect", effect, EFFECTS)


def spread_errors(constraints: list[Json], at: str) -> Iterator[FieldError]:
    pairs = [(each.get("topologyKey", ""), each.get("whenUnsatisfiable", "")) for each in constraints]
    for index, each in enumerate(constraints):
        here = f"{at}[{index}]"
        skew, key, action = (
            each.get("maxSkew", 0),
            each.get("topologyKey", ""),
            each.get("whenUnsatisfiable", ""),
        )
        if skew <= 0:
            yield invalid(f"{here}.maxSkew", skew, "must be greater than zero")
        if not key:
            yield required(f"{here}.topologyKey", "can not be empty")
        else:
            for said in label_key_errors(key):
                yield invalid(f"{here}.topologyKey", key, said)
        if action not in ("DoNotSchedule", "ScheduleAnyway"):
            yield unsupported(f"{here}.whenUnsatisfiable", action, ("DoNotSchedule", "ScheduleAnyway"))
        if (key, action) in pairs[index + 1 :]:
            yield duplicate(f"{here}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {action}}}")
        domains = each.get("minDomains")
        if domains is not None:
            if domains <= 0:
                yield invalid(f"{here}.minDomains", domains, "must be greater than zero")
            if action != "DoNotSchedule":
                said = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
                yield invalid(f"{here}.minDomains", domains, said)
        yield from label_selector_errors(each.get("labelSelector"), f"{here}.labelSelector")
