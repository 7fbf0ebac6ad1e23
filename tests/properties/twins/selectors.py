"""Selectors and tolerations over plain objects."""

from __future__ import annotations

import re
from typing import Any

Json = dict[str, Any]
Labels = dict[str, str]
NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class MistakeError(Exception):
    """A selector with a mistake in it."""


def is_key(text: str) -> bool:
    if "/" in text:
        prefix, text = text.rsplit("/", 1)
        if len(prefix) > 253 or not DNS.fullmatch(prefix):
            return False
    return NAME.fullmatch(text) is not None


def is_value(text: str) -> bool:
    return text == "" or NAME.fullmatch(text) is not None


def as_number(text: str) -> int | None:
    if re.fullmatch(r"[+-]?[0-9]+", text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    return None


def check(requirement: Json) -> None:
    key, operator, values = requirement["key"], requirement["operator"], requirement.get("values", [])
    wrong = not is_key(key) or not all(is_value(value) for value in values)
    if operator in ("In", "NotIn"):
        wrong = wrong or not values
    elif operator in ("Exists", "DoesNotExist"):
        wrong = wrong or bool(values)
    else:
        wrong = wrong or len(values) != 1 or as_number(values[0]) is None
    if wrong:
        raise MistakeError(requirement)


def holds(requirement: Json, labels: Labels) -> bool:
    """One requirement that was found in order."""
    key, operator, values = requirement["key"], requirement["operator"], requirement.get("values", [])
    if operator == "In":
        return key in labels and labels[key] in values
    if operator == "NotIn":
        return key not in labels or labels[key] not in values
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    number = as_number(labels[key]) if key in labels else None
    if number is None:
        return False
    return number > int(values[0]) if operator == "Gt" else number < int(values[0])


def selects(selector: Json | None, labels: Labels) -> bool:
    """A label selector: None selects nothing, an empty one everything."""
    check_selector(selector)
    if selector is None:
        return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        holds(each, labels) for each in selector.get("matchExpressions", [])
    )


def check_selector(selector: Json | None) -> None:
    for key, value in (selector or {}).get("matchLabels", {}).items():
        check({"key": key, "operator": "In", "values": [value]})
    for each in (selector or {}).get("matchExpressions", []):
        check(each)


def is_empty(selector: Json | None) -> bool:
    return selector is not None and not selector.get("matchLabels") and not selector.get("matchExpressions")


def check_node_term(term: Json) -> None:
    for each in term.get("matchExpressions", []):
        check(each)
    for each in term.get("matchFields", []):
        if each["operator"] not in ("In", "NotIn") or len(each.get("values", [])) != 1:
            raise MistakeError(each)


def node_term_holds(term: Json, labels: Labels, name: str) -> bool:
    """An empty name stands for a node known by its labels alone: then fields are not looked at."""
    if not term.get("matchExpressions") and not term.get("matchFields"):
        return False
    check_node_term(term)
    for each in term.get("matchFields", []) if name else []:
        value = name if each["key"] == "metadata.name" else ""
        if (value == each["values"][0]) != (each["operator"] == "In"):
            return False
    return all(holds(each, labels) for each in term.get("matchExpressions", []))


def any_node_term_holds(terms: list[Json], labels: Labels, name: str) -> bool:
    """Terms with a mistake simply do not match."""
    for term in terms:
        try:
            if node_term_holds(term, labels, name):
                return True
        except MistakeError:
            continue
    return False


def is_wanted_node(pod: Json, node: Json) -> bool:
    """nodeSelector and required node affinity of the pod."""
    labels, name = labels_of(node), node["metadata"]["name"]
    for key, value in (pod["spec"].get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            return False
    required = node_affinity(pod).get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any_node_term_holds(required.get("nodeSelectorTerms", []), labels, name)


def node_affinity(pod: Json) -> Json:
    return (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}


def labels_of(item: Json) -> Labels:
    return item["metadata"].get("labels", {})


def namespace_of(item: Json) -> str:
    return item["metadata"].get("namespace", "default")


def is_tolerated(taint: Json, tolerations: list[Json]) -> bool:
    return any(tolerates(each, taint) for each in tolerations)


def tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect", "") not in ("", taint["effect"]):
        return False
    if toleration.get("key", "") not in ("", taint["key"]):
        return False
    operator = toleration.get("operator", "")
    if operator in ("", "Equal"):
        return toleration.get("value", "") == taint.get("value", "")
    return operator == "Exists"


def has_untolerated(pod: Json, node: Json) -> bool:
    return any(
        taint["effect"] in ("NoSchedule", "NoExecute")
        and not is_tolerated(taint, pod["spec"].get("tolerations", []))
        for taint in node.get("spec", {}).get("taints", [])
    )
