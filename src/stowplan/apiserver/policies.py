"""ValidatingAdmissionPolicies and MutatingAdmissionPolicies, with their expressions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from stowplan.api.cel import MAX_COST, Message, Meter, Program
from stowplan.api.cel.overloads import define, define_on_text, name_of
from stowplan.api.cel.values import DYN, FIELDS, TYPE_NAMES
from stowplan.api.meta import Json, LabelSelector
from stowplan.api.selectors import selector_of
from stowplan.apiserver import managed, patches
from stowplan.apiserver.failures import Failure, bad_request, forbidden_request
from stowplan.apiserver.matching import Action, all_of, matches_rules, matches_selectors, request_facts
from stowplan.apiserver.objects import Objects
from stowplan.apiserver.rbac import Attributes, Authorizer, User
from stowplan.apiserver.rules import locate_error
from stowplan.apiserver.strategies import registration
from stowplan.errors import CelError, SelectorError

COST_BUDGET = 3 * MAX_COST
"""What all expressions of all policies may cost for one request: half a second without other answers."""
MAX_MESSAGE, MAX_PARAMS = 5120, 100
MAX_KEPT, PROGRAM_SIZE = 2 * 1024 * 1024, 1000
"""Characters of the expressions whose programs are kept, and what each counts for besides."""
_CODES = {"Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413, "Unauthorized": 401}
_WORDS = {"bool": bool, "string": str}


# What expressions may ask about rights: `authorizer.group('apps').resource('deployments').check('get')`.


class _Rights(NamedTuple):
    authorizer: Authorizer
    user: User
    own: Attributes


class _Check(NamedTuple):
    rights: _Rights
    asked: Attributes


class _PathCheck(NamedTuple):
    rights: _Rights
    path: str


class _Decision(NamedTuple):
    allowed: bool
    reason: str


def _decide(check: _Check | _PathCheck, verb: str) -> _Decision:
    asked = (
        check.asked._replace(verb=verb) if isinstance(check, _Check) else Attributes(verb, path=check.path)
    )
    return _Decision(*check.rights.authorizer.allows(check.rights.user, asked))


def _with(field: str) -> Callable[[_Check, str], _Check]:
    return lambda check, value: check._replace(asked=check.asked._replace(**{field: value}))


def _account(rights: _Rights, namespace: str, name: str) -> _Rights:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return rights._replace(user=User(f"system:serviceaccount:{namespace}:{name}", "", groups))


def _define() -> None:
    define(".path", _Rights, str, result=_PathCheck, function=_PathCheck)
    define(
        ".group",
        _Rights,
        str,
        result=_Check,
        function=lambda rights, group: _Check(rights, Attributes("", group)),
    )
    define(".serviceAccount", _Rights, str, str, result=_Rights, function=_account)
    for field in ("resource", "subresource", "namespace", "name"):
        define(f".{field}", _Check, str, result=_Check, function=_with(field))
    for kind in (_Check, _PathCheck):
        define(".check", kind, str, result=_Decision, function=_decide)
    define(".allowed", _Decision, result=bool, function=lambda decision: decision.allowed)
    define(".reason", _Decision, result=str, function=lambda decision: decision.reason)
    define(".errored", _Decision, result=bool, function=lambda decision: False)
    define(".error", _Decision, result=str, function=lambda decision: "")
    FIELDS[_Rights] = {"requestResource": (_Check, lambda rights: _Check(rights, rights.own))}
    names = (
        ("Authorizer", _Rights),
        ("ResourceCheck", _Check),
        ("PathCheck", _PathCheck),
        ("Decision", _Decision),
    )
    TYPE_NAMES.update({kind: f"kubernetes.authorization.{name}" for name, kind in names})
    define_on_text(
        "jsonpatch.escapeKey",
        str,
        result=str,
        function=lambda text: text.replace("~", "~0").replace("/", "~1"),
    )


_define()


# Compiling.

_BASE = (
    ("object", DYN),
    ("oldObject", DYN),
    ("request", DYN),
    ("namespaceObject", DYN),
    ("authorizer", _Rights),
)


class Variables(dict[str, Any]):
    """The variables of a policy: evaluated when they are first used, and only then."""

    def __init__(self, expressions: list[Json], names: tuple[str, ...]) -> None:
        super().__init__({each["name"]: None for each in expressions})
        self._expressions = {each["name"]: each["expression"] for each in expressions}
        self._names, self._known = names, dict[str, Any]()
        self.evaluate: Callable[[str, tuple[str, ...]], Any] = lambda text, names: None

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = CelError(f"variable '{name}' refers to itself")
            try:
                self._known[name] = self.evaluate(self._expressions[name], self._names)
            except CelError as error:
                self._known[name] = error
        value = self._known[name]
        if isinstance(value, CelError):
            raise value
        return value


TYPE_NAMES[Variables] = "map"


class _Programs(dict[tuple[str, tuple[str, ...]], Program]):
    """Programs of the last expressions: policies need all of theirs for every request.

    Those that are only checked when a policy is written are not kept.
    """

    def __init__(self) -> None:
        super().__init__()
        self._size = 0

    def keep(self, text: str, names: tuple[str, ...]) -> Program:
        self._size += len(text) + PROGRAM_SIZE
        if self._size > MAX_KEPT:
            self.clear()
            self._size = len(text) + PROGRAM_SIZE
        self[text, names] = program = _compile(text, names)
        return program


_programs: WeakKeyDictionary[Objects, _Programs] = WeakKeyDictionary()
"""The compiled programs of each server."""


def _compile(text: str, names: tuple[str, ...]) -> Program:
    declared = [*_BASE, *((name, DYN) for name in names)]
    return Program(text, (*declared, ("Object", Message), ("JSONPatch", Message)))


def _problem(text: str, names: tuple[str, ...], kind: str) -> str:
    """What is wrong with an expression that must evaluate to a kind of value."""
    try:
        program = _compile(text, names)
    except CelError as error:
        return f"compilation failed: {locate_error(text, error)}"
    wanted, is_open = _WORDS.get(kind), program.kind is DYN and "variables" in names
    if wanted is not None and program.kind is not wanted and not is_open:  # what variables are is seen later
        return f"must evaluate to {kind} but got {name_of(program.kind)}"
    if kind == "JSONPatch" and program.kind not in (list, DYN):
        return f"must evaluate to list(JSONPatch) but got {name_of(program.kind)}"
    return ""


registration.check_expression[:] = [_problem]


class _Evaluation:
    """One policy on one request with one param: all its expressions share a budget."""

    def __init__(self, action: Action, spec: Json, params: Json | None) -> None:
        context = action.context
        names = ("params",) if spec.get("paramKind") is not None else ()
        listed = spec.get("variables") or []
        self.names = (*names, "variables") if listed else names
        self._memory = context.request.memory
        self._programs = _programs.setdefault(context.objects, _Programs())
        variables = Variables(listed, self.names)
        variables.evaluate = self.evaluate
        own = Attributes("", context.resource.group, context.resource.plural, context.subresource)
        own = own._replace(namespace=context.namespace, name=action.name)
        authorizer = context.access.authorizer if context.access is not None else None
        self._values: Json = {
            "object": action.new,
            "oldObject": action.old,
            "request": request_facts(action),
            "namespaceObject": action.namespace,
            "authorizer": _Rights(authorizer, context.user, own) if authorizer is not None else None,
            "params": params,
            "variables": variables,
            "Object": None,
            "JSONPatch": None,
        }

    def evaluate(self, text: str, names: tuple[str, ...] | None = None) -> Any:
        left = self._memory.get("policy budget", COST_BUDGET)
        meter = Meter(min(MAX_COST, left))
        before = meter.left
        try:
            key = text, self.names if names is None else names
            return (self._programs.get(key) or self._programs.keep(*key)).evaluate(self._values, meter)
        finally:
            self._memory["policy budget"] = left - (before - max(meter.left, 0))


class PolicyError(Exception):
    """A policy could not be evaluated; its failurePolicy says what that means."""


def _is_wanted(action: Action, matching: Json | None) -> bool:
    if matching is None:
        return True
    policy, rules = matching.get("matchPolicy", "Equivalent"), matching.get("resourceRules")
    if rules is not None and not matches_rules(action, rules, policy):
        return False
    if matches_rules(action, matching.get("excludeResourceRules") or [], policy):
        return False
    return matches_selectors(action, matching)


def _bound(action: Action, kind: str) -> Iterator[tuple[Json, Json]]:
    """The policies that want to see the request, each with its binding."""
    context = action.context
    bindings = all_of(context, f"{kind}admissionpolicybindings")
    if not bindings or context.resource.group == "admissionregistration.k8s.io":
        return
    policies = {each["metadata"]["name"]: each for each in all_of(context, f"{kind}admissionpolicies")}
    for binding in bindings:
        policy = policies.get(binding["spec"].get("policyName", ""))
        if policy is None or not _is_wanted(action, policy["spec"].get("matchConstraints")):
            continue
        if _is_wanted(action, binding["spec"].get("matchResources")):
            yield policy, binding


def _params(action: Action, policy: Json, binding: Json) -> list[Json | None]:
    """What a binding gives its policy to work with: one evaluation for each."""
    kind, reference = policy["spec"].get("paramKind"), binding["spec"].get("paramRef")
    if kind is None or reference is None:
        return [None]
    context = action.context
    wanted = (kind.get("apiVersion"), kind.get("kind"))
    resource = next(
        (each for each in context.objects.resources if (each.group_version, each.kind) == wanted), None
    )
    if resource is None:
        said = f"failed to find resource referenced by paramKind: '{wanted[0]}, Kind={wanted[1]}'"
        raise PolicyError(f"failed to configure policy: {said}")
    namespace = (reference.get("namespace") or context.namespace) if resource.namespaced else ""
    records = context.objects.collection(resource).records
    found: list[Json | None] = []
    if reference.get("name"):
        record = records.get((namespace, reference["name"]))
        found = [] if record is None else [record.data()]
    else:
        try:
            selector = selector_of(msgspec.convert(reference.get("selector") or {}, LabelSelector))
        except (SelectorError, msgspec.ValidationError):
            selector = None
        for key in sorted(records):
            if selector is not None and key[0] == namespace and selector.matches(dict(records[key].labels)):
                found.append(records[key].data())
    if found:
        return found[:MAX_PARAMS]
    if reference.get("parameterNotFoundAction") == "Deny":
        words = "no params found for policy binding with `Deny` parameterNotFoundAction"
        raise PolicyError(f"failed to configure binding: {words}")
    return [None]


def _applies(evaluation: _Evaluation, spec: Json) -> bool:
    """Whether all conditions of a policy hold."""
    names = ("params",) if spec.get("paramKind") is not None else ()
    errors = []
    for condition in spec.get("matchConditions") or ():
        try:
            if evaluation.evaluate(condition["expression"], names) is False:
                return False
        except CelError as error:
            errors.append(f"expression '{condition['expression']}' resulted in error: {error}")
    if errors:
        raise PolicyError(errors[0])
    return True


def conditions_hold(action: Action, conditions: list[Json]) -> bool:
    """Whether all conditions of a webhook hold; PolicyError if they cannot be evaluated."""
    spec = {"matchConditions": conditions}
    return not conditions or _applies(_Evaluation(action, spec, None), spec)


# Validating.


def validate(action: Action) -> None:
    """Raise Failure if a policy denies the request; add warnings of those that only warn."""
    for policy, binding in _bound(action, "validating"):
        names = f"ValidatingAdmissionPolicy '{policy['metadata']['name']}' with binding"
        names += f" '{binding['metadata']['name']}'"
        actions = binding["spec"].get("validationActions") or ()
        for said, reason in _violations(action, policy, binding):
            if "Deny" in actions:
                raise _denial(action, f"{names} denied request: {said}", reason)
            if "Warn" in actions:
                action.context.warnings.append(f"Validation failed for {names}: {said}")


def _violations(action: Action, policy: Json, binding: Json) -> Iterator[tuple[str, str]]:
    spec = policy["spec"]
    is_strict = spec.get("failurePolicy", "Fail") == "Fail"
    try:
        for params in _params(action, policy, binding):
            evaluation = _Evaluation(action, spec, params)
            if _applies(evaluation, spec):
                yield from _failed_validations(evaluation, spec, is_strict)
    except PolicyError as error:
        if is_strict:
            yield str(error), "Invalid"


def _failed_validations(evaluation: _Evaluation, spec: Json, is_strict: bool) -> Iterator[tuple[str, str]]:
    for validation in spec.get("validations") or ():
        text = validation["expression"]
        try:
            if evaluation.evaluate(text) is True:
                continue
        except CelError as error:
            if is_strict:
                yield f"expression '{text}' resulted in error: {error}", "Invalid"
            continue
        said = validation.get("message", "").strip() or f"failed expression: {text.strip()}"
        if dynamic := validation.get("messageExpression"):
            try:
                found = str(evaluation.evaluate(dynamic)).strip()
                said = found if found and "\n" not in found and len(found) <= MAX_MESSAGE else said
            except CelError:
                pass  # the plain message will do
        yield said, validation.get("reason") or "Invalid"


def _denial(action: Action, said: str, reason: str) -> Failure:
    resource = action.context.resource
    # Of a collection that is deleted the API does not know the names.
    name = "Unknown" if action.context.verb == "deletecollection" else action.name
    failure = forbidden_request(name, resource.plural, resource.group, said)
    failure.code = failure.status["code"] = _CODES.get(reason, 422)
    failure.status["reason"] = reason
    failure.status["details"]["causes"] = [{"message": said}]
    return failure


# Mutating.


def mutate(action: Action, replace: Callable[[Json], Action]) -> Action:
    """Change the object as policies want it; `replace` takes the new one and returns the action with it."""
    changed_after: dict[str, Json | None] = {}
    for policy, binding in _bound(action, "mutating"):
        action = _mutate_once(action, policy, binding, replace)
        changed_after[binding["metadata"]["name"]] = action.new
    for policy, binding in _bound(action, "mutating"):
        is_wanted = policy["spec"].get("reinvocationPolicy") == "IfNeeded"
        if is_wanted and changed_after.get(binding["metadata"]["name"]) != action.new:
            action = _mutate_once(action, policy, binding, replace)
    return action


def _mutate_once(action: Action, policy: Json, binding: Json, replace: Callable[[Json], Action]) -> Action:
    spec = policy["spec"]
    try:
        for params in _params(action, policy, binding):
            evaluation = _Evaluation(action, spec, params)
            if not _applies(evaluation, spec):
                continue
            for mutation in spec.get("mutations") or ():
                new = _mutate(evaluation, action, mutation)
                if new is not None and new != action.new:
                    action = replace(new)
                    evaluation = _Evaluation(action, spec, params)
    except PolicyError as error:
        if spec.get("failurePolicy", "Fail") == "Fail":
            names = f"policy '{policy['metadata']['name']}' with binding '{binding['metadata']['name']}'"
            failure = _denial(action, f"{names} denied request: {error}", "Invalid")
            failure.code = failure.status["code"] = 403
            failure.status["message"] = f"{names} denied request: {error}"
            raise failure from None
    return action


def _mutate(evaluation: _Evaluation, action: Action, mutation: Json) -> Json | None:
    kind = mutation.get("patchType")
    field = "applyConfiguration" if kind == "ApplyConfiguration" else "jsonPatch"
    text = (mutation.get(field) or {}).get("expression", "")
    try:
        patch = copy.deepcopy(evaluation.evaluate(text))  # it may share parts with the object
        size = len(msgspec.json.encode(patch))
    except CelError as error:
        raise PolicyError(f"expression '{text}' resulted in error: {error}") from None
    except (TypeError, ValueError):
        raise PolicyError(f"expression '{text}' does not evaluate to JSON") from None
    if size > 3 * 2**20:
        raise PolicyError(f"expression '{text}' makes more than 3 MiB")
    live = copy.deepcopy(action.new) or {}
    try:
        if kind == "JSONPatch":
            if not isinstance(patch, list):
                raise bad_request("type mismatch: JSONPatchType.expression should evaluate to array")
            if any(isinstance(each, dict) and each.get("op") == "test" for each in patch):
                return _patch_if_tests_pass(live, patch)
            return dict(patches.json_patch(live, patch))
        schema = action.context.resource.schema
        managed.check_declared(schema, patch, "")
        return dict(managed.merge_config(schema, live, patch))
    except Failure as failure:
        said = failure.message.replace(
            "failed to create typed patch object (): ", "failed to convert patch object to typed object: "
        )
        raise PolicyError(f"error applying patch: {said}") from None


def _patch_if_tests_pass(live: Json, patch: list[Json]) -> Json | None:
    """A patch whose tests fail leaves the object as it is."""
    try:
        return dict(patches.json_patch(live, patch))
    except Failure:
        return None
