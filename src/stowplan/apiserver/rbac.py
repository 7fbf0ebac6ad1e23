"""Role-based access control: who may do what, by Roles, ClusterRoles and their bindings.

Nothing is enforced unless the server was started with RBAC; questions are answered by the same rules then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from stowplan.api.meta import Json, LabelSelector
from stowplan.api.selectors import selector_of
from stowplan.apiserver import schemas
from stowplan.apiserver.failures import Failure, aggregate, bad_request, forbidden_request, not_found
from stowplan.apiserver.objects import Objects
from stowplan.apiserver.options import Query
from stowplan.apiserver.store import Record
from stowplan.errors import SelectorError
from stowplan.http11.messages import Request

GROUP = "rbac.authorization.k8s.io"
ROLES, BINDINGS = f"roles.{GROUP}", f"rolebindings.{GROUP}"
CLUSTER_ROLES, CLUSTER_BINDINGS = f"clusterroles.{GROUP}", f"clusterrolebindings.{GROUP}"
MASTERS, AUTHENTICATED, ACCOUNTS = "system:masters", "system:authenticated", "system:serviceaccounts"
UNAUTHENTICATED = "system:unauthenticated"
ACCOUNT_PREFIX = "system:serviceaccount:"
MAX_MISSING = 1000
"""Rules that are looked at, at most, for what a role would grant beyond its author's rights."""
FULL_AUTHORITY: list[Json] = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    {"nonResourceURLs": ["*"], "verbs": ["*"]},
]
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class User(msgspec.Struct, frozen=True):
    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}

    def info(self) -> Json:
        """As reviews show it."""
        found: Json = {"username": self.name, "uid": self.uid, "groups": list(self.groups)}
        found["extra"] = {key: list(values) for key, values in self.extra.items()}
        return {key: value for key, value in found.items() if value}


ADMIN = User("admin", groups=(MASTERS, AUTHENTICATED))
"""Whoever holds the server's token, and clients in this process."""
NOBODY = User("system:anonymous", groups=(UNAUTHENTICATED,))
"""Whoever reads a public page without a token."""


def account_groups(namespace: str) -> tuple[str, ...]:
    return (ACCOUNTS, f"{ACCOUNTS}:{namespace}", AUTHENTICATED)


class Attributes(NamedTuple):
    """What is asked for: a verb on a resource, or on a path."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def whole_resource(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def attributes_of(request: Request) -> Attributes:
    """What a request asks for, as its path and method say."""
    match [part for part in request.path.split("/") if part]:
        case ["api", _, *rest] if rest:
            return _resource_attributes(request, "", rest)
        case ["apis", group, _, *rest] if rest:
            return _resource_attributes(request, group, rest)
    return Attributes(request.method.lower(), path=request.path)


def _resource_attributes(request: Request, group: str, rest: list[str]) -> Attributes:
    query = Query(request.query)  # read as the server reads it, or it would serve what was not asked here
    is_watch = rest[0] == "watch" and len(rest) > 1
    rest = rest[1:] if is_watch else rest
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in ("status", "finalize"):
            rest = rest[2:]
    resource, name, below = rest[0], rest[1] if len(rest) > 1 else "", "/".join(rest[2:3])
    if is_watch or (request.method in ("GET", "HEAD") and query.flag("watch")):
        verb = "watch"
    elif request.method in ("GET", "HEAD"):
        verb = "get" if name else "list"
    else:
        verb = _VERBS.get(request.method, request.method.lower())
        verb = "deletecollection" if verb == "delete" and not name else verb
    if not name and verb in ("list", "watch", "deletecollection"):
        name = _selected_name(query("fieldSelector"))
    return Attributes(verb, group, resource, below, namespace, name)


def _selected_name(selector: str) -> str:
    for term in selector.split(","):
        key, _, value = term.partition("=")
        if key.strip() == "metadata.name":
            return value.removeprefix("=").strip()
    return ""


class Grant(NamedTuple):
    """A binding, as far as it concerns one subject."""

    namespace: str
    binding: str
    role_kind: str
    role: str
    subject: str

    @property
    def source(self) -> str:
        kind, name = "ClusterRoleBinding", self.binding
        if self.namespace:
            kind, name = "RoleBinding", f"{self.binding}/{self.namespace}"
        return f'{kind} "{name}" of {self.role_kind} "{self.role}" to {self.subject}'


class Authorizer:
    """Answers what users may do."""

    def __init__(self, objects: Objects, *, is_enforced: bool) -> None:
        self._objects, self.is_enforced = objects, is_enforced
        self._grants: dict[tuple[str, str], list[Grant]] | None = None
        self._rules: dict[tuple[str, str], list[Json]] = {}
        for collection in (ROLES, BINDINGS, CLUSTER_ROLES, CLUSTER_BINDINGS):
            objects.store.on_published[collection] = self._forget

    def _forget(self, record: Record, is_removal: bool) -> None:
        self._grants = None

    def allows(self, user: User, asked: Attributes) -> tuple[bool, str]:
        """Whether it is allowed, and why (not), in the API's words."""
        if MASTERS in user.groups:
            return True, ""
        if not self.is_enforced:  # for whoever has a token
            return UNAUTHENTICATED not in user.groups, ""
        errors = []
        for grant, rules in self._find_grants(user, asked.namespace):
            if rules is None:
                errors.append(_missing_role(grant))
            elif any(_rule_allows(rule, asked) for rule in rules):
                return True, f"RBAC: allowed by {grant.source}"
        return False, f"RBAC: {aggregate(errors)}" if errors else ""

    def check(self, user: User, asked: Attributes) -> None:
        """Raise a 403 unless it is allowed."""
        allowed, why = self.allows(user, asked)
        if allowed:
            return
        why = f": {why}" if why else ""
        if asked.path:
            message = f'forbidden: User "{user.name}" cannot {asked.verb} path "{asked.path}"{why}'
            raise Failure(403, "Forbidden", message, details={})
        where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
        said = f'User "{user.name}" cannot {asked.verb} resource "{asked.whole_resource}"'
        said += f' in API group "{asked.group}" {where}{why}'
        raise forbidden_request(asked.name, asked.resource, asked.group, said)

    def rules_of(self, user: User, namespace: str) -> list[Json]:
        """All rules that apply to a user in a namespace."""
        return [rule for _, rules in self._find_grants(user, namespace) for rule in rules or ()]

    def _find_grants(self, user: User, namespace: str) -> Iterator[tuple[Grant, list[Json] | None]]:
        """Bindings of the user with the rules of their roles; None if the role does not exist."""
        if self._grants is None:
            self._grants = self._read()
        subjects = [("User", user.name), *(("Group", group) for group in user.groups)]
        for where in dict.fromkeys(("", namespace)):
            for subject in subjects:
                for grant in self._grants.get(subject, ()):
                    if grant.namespace == where:
                        role_namespace = grant.namespace if grant.role_kind == "Role" else ""
                        yield grant, self._rules.get((role_namespace, grant.role))

    def _read(self) -> dict[tuple[str, str], list[Grant]]:
        found: dict[tuple[str, str], list[Grant]] = {}
        self._rules = {
            record.key: record.data().get("rules") or []
            for collection in (ROLES, CLUSTER_ROLES)
            for record in self._objects.store.collection(collection).records.values()
        }
        for collection in (CLUSTER_BINDINGS, BINDINGS):
            for record in self._objects.store.collection(collection).records.values():
                data = record.data()
                reference, (namespace, name) = data.get("roleRef") or {}, record.key
                for subject in data.get("subjects") or ():
                    kind, who = subject.get("kind", ""), subject.get("name", "")
                    shown = f'{kind} "{who}"'
                    if kind == "ServiceAccount":
                        place = subject.get("namespace") or namespace
                        shown = f'ServiceAccount "{who}/{place}"'
                        kind, who = "User", f"{ACCOUNT_PREFIX}{place}:{who}"
                    grant = Grant(
                        namespace, name, reference.get("kind", ""), reference.get("name", ""), shown
                    )
                    found.setdefault((kind, who), []).append(grant)
        return found

    # Nobody may grant more than he has.

    def check_role(self, user: User, resource: str, namespace: str, data: Json) -> None:
        """Raise a 403 if a role would grant what its author may not do."""
        if not self.is_enforced or MASTERS in user.groups:
            return
        name = data["metadata"].get("name", "")
        asked = Attributes("escalate", GROUP, resource, "", namespace, name)
        if not self.allows(user, asked)[0]:
            # Roles that are labelled for it later count as well, whatever they grant.
            rules = FULL_AUTHORITY if data.get("aggregationRule") else data.get("rules") or []
            self._check_held(user, resource, namespace, name, rules)

    def check_binding(self, user: User, resource: str, namespace: str, data: Json) -> None:
        """The same for a binding, which grants what its role has."""
        if not self.is_enforced or MASTERS in user.groups:
            return
        reference, name = data.get("roleRef") or {}, data["metadata"].get("name", "")
        kind, role = reference.get("kind", ""), reference.get("name", "")
        plural = "roles" if kind == "Role" else "clusterroles"
        if self.allows(user, Attributes("bind", GROUP, plural, "", namespace, role))[0]:
            return
        record = self._objects.find(f"{plural}.{GROUP}", role, namespace if kind == "Role" else "")
        if record is None:
            raise not_found(role, resource, GROUP)
        self._check_held(user, resource, namespace, name, record.data().get("rules") or [])

    def _check_held(self, user: User, resource: str, namespace: str, name: str, rules: list[Json]) -> None:
        held = self.rules_of(user, namespace)
        missing: dict[Any, Json] = {}
        for part in _parts_of(rules):
            if not any(_covers(rule, part) for rule in held):
                key = (*part.get("apiGroups", ()), *part.get("resources", ()), *part.get("resourceNames", ()))
                key = key or (*part.get("nonResourceURLs", ()), *part["verbs"])
                known = missing.setdefault(key, {**part, "verbs": []})
                known["verbs"] = list(dict.fromkeys([*known["verbs"], *part["verbs"]]))
        if missing:
            groups = " ".join(f'"{group}"' for group in user.groups)
            shown = "\n".join(sorted(map(_compact, missing.values())))
            why = f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not '
            raise forbidden_request(name, resource, GROUP, f"{why}currently held:\n{shown}")


def _missing_role(grant: Grant) -> str:
    return f'{grant.role_kind.lower()}.{GROUP} "{grant.role}" not found'


def _rule_allows(rule: Json, asked: Attributes) -> bool:
    if not _has(rule.get("verbs"), asked.verb):
        return False
    if asked.path:
        return any(
            url in ("*", asked.path) or (url.endswith("*") and asked.path.startswith(url[:-1]))
            for url in rule.get("nonResourceURLs") or ()
        )
    names = rule.get("resourceNames")
    return (
        _has(rule.get("apiGroups"), asked.group)
        and _has_resource(rule.get("resources"), asked.whole_resource, asked.subresource)
        and (not names or asked.name in names)
    )


def _has(values: list[str] | None, value: str) -> bool:
    return values is not None and ("*" in values or value in values)


def _has_resource(values: list[str] | None, whole: str, subresource: str) -> bool:
    return _has(values, whole) or bool(values and subresource and f"*/{subresource}" in values)


def _parts_of(rules: list[Json]) -> Iterator[Json]:
    """Rules of one verb on one resource each."""
    count = 0
    for rule in rules:
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                for verb in rule.get("verbs") or ():
                    for name in rule.get("resourceNames") or (None,):
                        count += 1
                        if count > MAX_MISSING:
                            raise bad_request(f"the rules grant more than {MAX_MISSING} single permissions")
                        part = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
                        yield part if name is None else {**part, "resourceNames": [name]}
        for url in rule.get("nonResourceURLs") or ():
            for verb in rule.get("verbs") or ():
                yield {"nonResourceURLs": [url], "verbs": [verb]}


def _covers(rule: Json, part: Json) -> bool:
    if not _has(rule.get("verbs"), part["verbs"][0]):
        return False
    if urls := part.get("nonResourceURLs"):
        return any(
            each == "*" or each == urls[0] or (each.endswith("*") and urls[0].startswith(each[:-1]))
            for each in rule.get("nonResourceURLs") or ()
        )
    resource, names = part["resources"][0], rule.get("resourceNames")
    return (
        _has(rule.get("apiGroups"), part["apiGroups"][0])
        and _has_resource(rule.get("resources"), resource, resource.partition("/")[2])
        and (not names or (bool(part.get("resourceNames")) and part["resourceNames"][0] in names))
    )


def _compact(rule: Json) -> str:
    """A rule as the API shows it in errors."""
    shown = []
    for title in ("APIGroups", "Resources", "NonResourceURLs", "ResourceNames", "Verbs"):
        field = "apiGroups" if title == "APIGroups" else title[0].lower() + title[1:]
        if values := rule.get(field):
            listed = " ".join(f'"{each}"' for each in values)
            shown.append(f"{title}:[{listed}]")
    return "{" + ", ".join(shown) + "}"


# Impersonation.


def acting_user(request: Request, user: User, authorizer: Authorizer) -> User:
    """The user whom the request acts as: another one if its headers say so and the user may."""
    headers = request.headers
    name = headers.get("impersonate-user", "")
    groups = tuple(filter(None, headers.get("impersonate-group", "").split("\n")))
    uid = headers.get("impersonate-uid", "")
    extra = {
        unquote(header.removeprefix("impersonate-extra-")): tuple(value.split("\n"))
        for header, value in headers.items()
        if header.startswith("impersonate-extra-")
    }
    if not name:
        listed = ", ".join(f'"{group}"' for group in groups)
        shown = f"[]string{{{listed}}}" if groups else "[]string(nil)"
        raise bad_request(
            f'requested &user.DefaultInfo{{Name:"", UID:"{uid}", Groups:{shown}, '
            "Extra:map[string][]string(nil)} without impersonating a user name"
        )
    wanted = [
        _impersonation_attributes(name),
        *(Attributes("impersonate", "", "groups", name=each) for each in groups),
    ]
    if uid:
        wanted.append(Attributes("impersonate", "authentication.k8s.io", "uids", name=uid))
    for key, values in extra.items():
        wanted += (
            Attributes("impersonate", "authentication.k8s.io", "userextras", key, name=value)
            for value in values
        )
    if authorizer.is_enforced:
        _check_may_impersonate(request, user, wanted, authorizer)
    if name.startswith(ACCOUNT_PREFIX) and not groups:
        groups = account_groups(name.removeprefix(ACCOUNT_PREFIX).partition(":")[0])
    if AUTHENTICATED not in groups and name != "system:anonymous":
        groups = (*groups, AUTHENTICATED)
    return User(name, uid, groups, extra)


def impersonates(request: Request) -> bool:
    return "\nimpersonate-" in "\n".join(
        ("", *request.headers)
    )  # in half the time of a loop: all requests come here


def _impersonation_attributes(name: str) -> Attributes:
    if name.startswith(ACCOUNT_PREFIX):
        namespace, _, account = name.removeprefix(ACCOUNT_PREFIX).partition(":")
        return Attributes("impersonate", "", "serviceaccounts", "", namespace, account)
    return Attributes("impersonate", "", "users", name=name)


def _check_may_impersonate(
    request: Request, user: User, wanted: list[Attributes], authorizer: Authorizer
) -> None:
    if all(authorizer.allows(user, each)[0] for each in wanted):
        return
    rules = authorizer.rules_of(user, wanted[0].namespace)
    if any(_has(rule.get("verbs"), "impersonate") for rule in rules):
        for each in wanted:
            authorizer.check(user, each)
    first = wanted[0]
    mode = "serviceaccount" if first.resource == "serviceaccounts" else "user-info"
    mode = "arbitrary-node" if first.name.startswith("system:node:") else mode
    asked = attributes_of(request)
    authorizer.check(user, asked._replace(verb=f"impersonate-on:{mode}:{asked.verb}"))
    raise AssertionError("unreachable: the check before fails")


# Aggregated cluster roles, and the roles that every cluster has.


class Aggregation:
    """Keeps the rules of cluster roles that are made of those of others."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        objects.on_written[CLUSTER_ROLES] = self._on_role

    def _on_role(self, record: Record, is_removal: bool) -> None:
        """Aggregated roles may be part of others, so every role that changes is looked at again."""
        if is_removal and not record.labels:
            return
        for each in list(self._objects.all(CLUSTER_ROLES)):
            if b'"aggregationRule"' in each.body:
                self._fill(each)

    def _fill(self, record: Record) -> None:
        data = record.data()
        rules: list[Json] = []
        for selector in (data.get("aggregationRule") or {}).get("clusterRoleSelectors") or ():
            try:
                chosen = selector_of(msgspec.convert(selector, LabelSelector))
            except (SelectorError, msgspec.ValidationError):
                continue
            for other in sorted(self._objects.all(CLUSTER_ROLES), key=lambda each: each.key):
                if other.key != record.key and chosen.matches(dict(other.labels)):
                    rules += (rule for rule in other.data().get("rules") or () if rule not in rules)
        if rules != (data.get("rules") or []):
            data["rules"] = rules
            resource = self._objects.resources.kept_in(CLUSTER_ROLES)
            self._objects.put(resource, record.key, data, record.managed)


def bootstrap_objects(*, with_groups: bool) -> Iterable[tuple[str, Json]]:
    """The collection and content of each role and binding that every cluster has."""
    plurals = {
        "ClusterRole": CLUSTER_ROLES,
        "ClusterRoleBinding": CLUSTER_BINDINGS,
        "Role": ROLES,
        "RoleBinding": BINDINGS,
    }
    items = {(item["kind"], item["metadata"]["name"]): item for item in schemas.data().bootstrap}
    if with_groups:
        items |= {(item["kind"], item["metadata"]["name"]): item for item in schemas.gated_data().bootstrap}
    for item in items.values():
        yield plurals[item["kind"]], item
