"""Which requests are sent to webhooks and admission policies, and in which form."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import msgspec

from stowplan.api.meta import Json, LabelSelector
from stowplan.api.selectors import selector_of
from stowplan.apiserver.context import RequestContext
from stowplan.apiserver.forms import from_stored
from stowplan.apiserver.store import Record
from stowplan.errors import SelectorError

GROUP = "admissionregistration.k8s.io"


class Action(NamedTuple):
    """A write on its way through admission; `old` and `new` as clients know the objects."""

    context: RequestContext
    operation: str
    new: Json | None
    old: Json | None

    @property
    def name(self) -> str:
        meta = (self.new or self.old or {}).get("metadata") or {}
        return self.context.name or meta.get("name") or ""

    @property
    def namespace(self) -> Json | None:
        """The namespace as an object; None for what is cluster-wide."""
        context = self.context
        name = self.name if context.resource.collection == "namespaces" else context.namespace
        if context.resource.collection == "namespaces":
            return self.new or self.old
        found = context.objects.find("namespaces", name) if name else None
        return None if found is None else found.data()

    @property
    def labels(self) -> list[Json]:
        found = [each for each in (self.new, self.old) if each is not None]
        return [(each.get("metadata") or {}).get("labels") or {} for each in found]


def action_of(context: RequestContext) -> Action:
    """A create or update."""
    resource = context.resource
    new = from_stored(resource, dict(context.data))
    if context.before is None:
        return Action(context, "CREATE", new, None)
    return Action(context, "UPDATE", new, from_stored(resource, dict(context.old)))


def deletion_of(context: RequestContext, record: Record) -> Action:
    return Action(context, "DELETE", None, from_stored(context.resource, record.data()))


def matches_rules(action: Action, rules: list[Json], policy: str) -> bool:
    return any(_matches_rule(action, rule, policy) for rule in rules)


def _matches_rule(action: Action, rule: Json, policy: str) -> bool:
    context = action.context
    resource = context.resource
    if not _has(rule.get("operations"), action.operation):
        return False
    names = rule.get("resourceNames")
    if names and action.name not in names:
        return False
    scope = rule.get("scope", "*")
    is_namespaced = resource.namespaced and bool(context.namespace)
    if scope != "*" and (scope == "Namespaced") != is_namespaced:
        return False
    if not _has(rule.get("apiGroups"), resource.group):
        return False
    # With Equivalent a rule of any version of the resource will do.
    if policy == "Exact" and not _has(rule.get("apiVersions"), resource.version):
        return False
    return any(
        _is_resource(each, resource.plural, context.subresource) for each in rule.get("resources") or ()
    )


def _is_resource(pattern: str, plural: str, subresource: str) -> bool:
    first, _, second = pattern.partition("/")
    return first in ("*", plural) and (
        second == subresource or (second == "*" and bool(subresource)) or pattern == "*/*"
    )


def _has(values: list[str] | None, value: str) -> bool:
    return values is not None and ("*" in values or value in values)


def matches_selectors(action: Action, matching: Json) -> bool:
    """Whether the labels of the namespace and of the object, as it was or will be, are wanted."""
    chosen = matching.get("namespaceSelector")
    if chosen:
        namespace = action.namespace
        labels = ((namespace or {}).get("metadata") or {}).get("labels") or {}
        if namespace is not None and not _selects(chosen, labels):
            return False
    chosen = matching.get("objectSelector")
    return not chosen or any(_selects(chosen, labels) for labels in action.labels)


def _selects(selector: Json, labels: Json) -> bool:
    try:
        return selector_of(msgspec.convert(selector, LabelSelector)).matches(labels)
    except (SelectorError, msgspec.ValidationError):
        return False


@lru_cache(maxsize=512)
def _decode(body: bytes) -> Json:
    found: Json = msgspec.json.decode(body)
    return found


def all_of(context: RequestContext, plural: str) -> list[Json]:
    """All objects of a kind of configuration, by name; they are shared and must not be changed."""
    records = context.objects.store.collection(f"{plural}.{GROUP}").records
    return [_decode(records[key].body) for key in sorted(records)] if records else []


def request_facts(action: Action) -> Json:
    """What expressions and webhooks learn of the request."""
    context = action.context
    resource = context.resource
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    where = {"group": resource.group, "version": resource.version, "resource": resource.plural}
    found: Json = {
        "kind": kind,
        "resource": where,
        "requestKind": kind,
        "requestResource": where,
        "name": action.name,
        "operation": action.operation,
        "userInfo": context.user.info(),
        "dryRun": context.dry_run,
        "options": {"kind": _OPTIONS[action.operation], "apiVersion": "meta.k8s.io/v1"},
    }
    if context.namespace:
        found["namespace"] = context.namespace
    if context.subresource:
        found["subResource"] = found["requestSubResource"] = context.subresource
    return found


_OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}
