"""What configures the API server itself: webhooks, admission policies, flow control, signing requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from urllib.parse import urlsplit

from stowplan.api.meta import Json
from stowplan.apiserver.failures import FieldError, duplicate, forbidden, invalid, required, unsupported
from stowplan.apiserver.names import path_segment_errors, subdomain_errors
from stowplan.apiserver.strategies.strategy import Strategy

_FAILURE, _MATCH, _SCOPES = ("Fail", "Ignore"), ("Equivalent", "Exact"), ("*", "Cluster", "Namespaced")
_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_SIDE_EFFECTS, _REINVOCATION = ("None", "NoneOnDryRun"), ("IfNeeded", "Never")
_ACTIONS, _REASONS = ("Audit", "Deny", "Warn"), ("Forbidden", "Invalid", "RequestEntityTooLarge")
_REVIEW_VERSIONS = ("v1", "v1beta1")
_URL_FORM = "; desired format: https://host[/path]"


class _Registration(Strategy):
    """A change of anything but metadata makes a new generation."""

    has_generation = True
    updates_need_version = True
    checks_metadata_twice = False
    part = "spec"

    def prepare_update(self, data: Json, old: Json) -> None:
        if self.has_status:
            super().prepare_update(data, old)
        elif data.get(self.part) != old.get(self.part):
            data["metadata"]["generation"] = data["metadata"].get("generation", 0) + 1


def _default_rules(rules: Iterable[Json] | None) -> None:
    for rule in rules or ():
        rule.setdefault("scope", "*")


class WebhookStrategy(_Registration):
    part = "webhooks"

    def __init__(self, *, mutates: bool) -> None:
        self._mutates = mutates

    def default(self, data: Json) -> None:
        for hook in data.get("webhooks") or ():
            _default_rules(hook.get("rules"))
            hook.setdefault("failurePolicy", "Fail")
            hook.setdefault("matchPolicy", "Equivalent")
            hook.setdefault("namespaceSelector", {})
            hook.setdefault("objectSelector", {})
            hook.setdefault("timeoutSeconds", 10)
            if self._mutates:
                hook.setdefault("reinvocationPolicy", "Never")
            if service := (hook.get("clientConfig") or {}).get("service"):
                service.setdefault("port", 443)

    def errors(self, data: Json) -> Iterator[FieldError]:
        if too_long := list(_size_errors(data.get("webhooks"), "webhooks")):
            yield from too_long
            return
        names: set[str] = set()
        for index, hook in enumerate(data.get("webhooks") or ()):
            at, name = f"webhooks[{index}]", hook.get("name", "")
            yield from _hook_errors(hook, at)
            yield from _version_errors(hook.get("admissionReviewVersions") or [], at)
            if name in names:
                yield duplicate(f"{at}.name", name)
            names.add(name)


def _hook_errors(hook: Json, at: str) -> Iterator[FieldError]:
    name = hook.get("name", "")
    if not name:
        yield required(f"{at}.name")
    elif errors := subdomain_errors(name):
        yield invalid(f"{at}.name", name, ",".join(errors))
    elif name.count(".") < 2:
        said = "should be a domain with at least three segments separated by dots"
        yield invalid(f"{at}.name", name, said)
    for index, rule in enumerate(hook.get("rules") or ()):
        yield from rule_errors(rule, f"{at}.rules[{index}]")
    for field, known in (("failurePolicy", _FAILURE), ("matchPolicy", _MATCH)):
        if hook[field] not in known:
            yield unsupported(f"{at}.{field}", hook[field], sorted(known))
    effects = hook.get("sideEffects")
    if effects is None:
        yield required(f"{at}.sideEffects", f"must specify one of {', '.join(_SIDE_EFFECTS)}")
    elif effects not in _SIDE_EFFECTS:
        yield unsupported(f"{at}.sideEffects", effects, _SIDE_EFFECTS)
    if not 1 <= hook["timeoutSeconds"] <= 30:
        said = "the timeout value must be between 1 and 30 seconds"
        yield invalid(f"{at}.timeoutSeconds", hook["timeoutSeconds"], said)
    if (again := hook.get("reinvocationPolicy", "Never")) not in _REINVOCATION:
        yield unsupported(f"{at}.reinvocationPolicy", again, _REINVOCATION)
    client = hook.get("clientConfig") or {}
    if (client.get("url") is None) == (client.get("service") is None):
        yield required(f"{at}.clientConfig", "exactly one of url or service is required")
    elif client.get("url") is not None:
        yield from _url_errors(client["url"], f"{at}.clientConfig.url")
    yield from condition_errors(hook.get("matchConditions") or (), f"{at}.matchConditions", ())


def _url_errors(url: str, at: str) -> Iterator[FieldError]:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        yield required(at, f"url must be a valid URL: {error}{_URL_FORM}")
        return
    if parts.scheme != "https":
        yield invalid(at, parts.scheme, f"'https' is the only allowed URL scheme{_URL_FORM}")
    if not parts.netloc:
        yield invalid(at, "", f"host must be specified{_URL_FORM}")
    if "@" in parts.netloc:
        user = parts.netloc.rpartition("@")[0]
        yield invalid(at, user, "user information is not permitted in the URL")
    if parts.fragment:
        yield invalid(at, parts.fragment, "fragments are not permitted in the URL")
    if parts.query:
        yield invalid(at, parts.query, "query parameters are not permitted in the URL")


def _version_errors(versions: list[str], at: str) -> Iterator[FieldError]:
    field = f"{at}.admissionReviewVersions"
    if not versions:
        yield required(field, f"must specify one of {', '.join(_REVIEW_VERSIONS)}")
        return
    for index, version in enumerate(versions):
        if version in versions[:index]:
            yield invalid(f"{field}[{index}]", version, "duplicate version")
    if not set(versions) & set(_REVIEW_VERSIONS):
        yield invalid(field, versions, f"must include at least one of {', '.join(_REVIEW_VERSIONS)}")


def rule_errors(rule: Json, at: str, operations: tuple[str, ...] = _OPERATIONS) -> Iterator[FieldError]:
    """Errors of which requests a webhook or policy wants to see."""
    given = rule.get("operations") or []
    if not given:
        yield required(f"{at}.operations")
    elif len(given) > 1 and "*" in given:
        yield invalid(f"{at}.operations", given, "if '*' is present, must not specify other operations")
    for index, operation in enumerate(given):
        if operation not in operations:
            yield unsupported(f"{at}.operations[{index}]", operation, operations)
    for field, words in (("apiGroups", "API groups"), ("apiVersions", "API versions")):
        values = rule.get(field) or []
        if not values:
            yield required(f"{at}.{field}")
        elif len(values) > 1 and "*" in values:
            yield invalid(f"{at}.{field}", values, f"if '*' is present, must not specify other {words}")
    resources = rule.get("resources") or []
    if not resources:
        yield required(f"{at}.resources")
    if len(resources) > 1 and "*/*" in resources:
        said = "if '*/*' is present, must not specify other resources"
        yield invalid(f"{at}.resources", resources, said)
    if rule.get("scope", "*") not in _SCOPES:
        yield unsupported(f"{at}.scope", rule["scope"], _SCOPES)


MAX_CEL = 64 * 1024
"""Characters of all expressions of one object: no other request is served while they are compiled."""


def _size_errors(part: object, at: str) -> Iterator[FieldError]:
    if (size := _cel_size(part)) > MAX_CEL:
        yield FieldError(at, "Too long", f"{size}: may not have more than {MAX_CEL} characters of CEL")


def _cel_size(part: object) -> int:
    if isinstance(part, list):
        return sum(map(_cel_size, part))
    if not isinstance(part, dict):
        return 0
    return sum(
        len(each) if isinstance(each, str) and key.lower().endswith("expression") else _cel_size(each)
        for key, each in part.items()
    )


Check = Callable[[str, tuple[str, ...], str], str]
check_expression: list[Check] = []
"""Compiles an expression for the policies: what is wrong with it, or nothing. Set by policies.py."""


def expression_errors(text: str, at: str, names: tuple[str, ...], kind: str) -> Iterator[FieldError]:
    for check in check_expression:
        if said := check(text, names, kind):
            yield invalid(at, text, said)


def condition_errors(conditions: Iterable[Json], at: str, names: tuple[str, ...]) -> Iterator[FieldError]:
    seen: set[str] = set()
    listed = list(conditions)
    if len(listed) > 64:
        yield FieldError(at, "Too many", f"{len(listed)}: must have at most 64 items")
    for index, condition in enumerate(listed):
        where, name, text = f"{at}[{index}]", condition.get("name", ""), condition.get("expression", "")
        if not text.strip():
            yield required(f"{where}.expression")
        else:
            yield from expression_errors(text, f"{where}.expression", names, "bool")
        if not name:
            yield required(f"{where}.name")
        elif name in seen:
            yield duplicate(f"{where}.name", name)
        seen.add(name)


def _default_match(match: Json | None) -> None:
    if match is not None:
        match.setdefault("matchPolicy", "Equivalent")
        match.setdefault("namespaceSelector", {})
        match.setdefault("objectSelector", {})
        _default_rules(match.get("resourceRules"))
        _default_rules(match.get("excludeResourceRules"))


def _match_errors(match: Json, at: str, operations: tuple[str, ...] = _OPERATIONS) -> Iterator[FieldError]:
    if match["matchPolicy"] not in _MATCH:
        yield unsupported(f"{at}.matchPolicy", match["matchPolicy"], _MATCH)
    for field in ("resourceRules", "excludeResourceRules"):
        for index, rule in enumerate(match.get(field) or ()):
            yield from rule_errors(rule, f"{at}.{field}[{index}]", operations)


class PolicyStrategy(_Registration):
    """ValidatingAdmissionPolicies and MutatingAdmissionPolicies."""

    def __init__(self, *, mutates: bool) -> None:
        self._mutates = mutates
        self.has_status = not mutates  # type: ignore[misc]

    def default(self, data: Json) -> None:
        spec = data.setdefault("spec", {})
        spec.setdefault("failurePolicy", "Fail")
        _default_match(spec.get("matchConstraints"))

    def prepare_create(self, data: Json) -> None:
        if self.has_status:
            data["status"] = {}

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec = data["spec"]
        if too_long := list(_size_errors(spec, "spec")):
            yield from too_long
            return
        if spec["failurePolicy"] not in _FAILURE:
            yield unsupported("spec.failurePolicy", spec["failurePolicy"], _FAILURE)
        if (kind := spec.get("paramKind")) is not None:
            for field in ("apiVersion", "kind"):
                if not kind.get(field):
                    yield required(f"spec.paramKind.{field}")
        match = spec.get("matchConstraints")
        operations = tuple(each for each in _OPERATIONS if each != "DELETE" or not self._mutates)
        if match is None:
            yield required("spec.matchConstraints")
        else:
            yield from _match_errors(match, "spec.matchConstraints", operations)
            if not match.get("resourceRules"):
                yield required("spec.matchConstraints.resourceRules")
        names = ("params",) if kind is not None else ()
        yield from condition_errors(spec.get("matchConditions") or (), "spec.matchConditions", names)
        if spec.get("variables"):
            names = (*names, "variables")
        for index, variable in enumerate(spec.get("variables") or ()):
            at = f"spec.variables[{index}]"
            for field in ("name", "expression"):
                if not variable.get(field, "").strip():
                    yield required(f"{at}.{field}", f"{field} is not specified")
            if variable.get("expression", "").strip():
                yield from expression_errors(variable["expression"], f"{at}.expression", names, "")
        yield from self._mutation_errors(spec, names) if self._mutates else _validation_errors(spec, names)

    def _mutation_errors(self, spec: Json, names: tuple[str, ...]) -> Iterator[FieldError]:
        if not spec.get("mutations"):
            yield required("spec.mutations", "mutations must contain at least one item")
        for index, mutation in enumerate(spec.get("mutations") or ()):
            at, kind = f"spec.mutations[{index}]", mutation.get("patchType", "")
            field = {"ApplyConfiguration": "applyConfiguration", "JSONPatch": "jsonPatch"}.get(kind)
            if field is None:
                known = ("ApplyConfiguration", "JSONPatch")
                yield required(f"{at}.patchType") if not kind else unsupported(f"{at}.patchType", kind, known)
                continue
            text = (mutation.get(field) or {}).get("expression", "")
            if not text.strip():
                yield required(f"{at}.{field}.expression", "expression is not specified")
            else:
                yield from expression_errors(text, f"{at}.{field}.expression", names, kind)
        if (again := spec.get("reinvocationPolicy", "")) not in _REINVOCATION:
            at = "spec.reinvocationPolicy"
            yield required(at) if not again else unsupported(at, again, _REINVOCATION)


def _validation_errors(spec: Json, names: tuple[str, ...]) -> Iterator[FieldError]:
    validations, annotations = spec.get("validations") or (), spec.get("auditAnnotations") or ()
    if not validations and not annotations:
        said = "validations or auditAnnotations must contain at least one item"
        yield required("spec.validations", said)
        yield required("spec.auditAnnotations", said)
    for index, validation in enumerate(validations):
        at, text = f"spec.validations[{index}]", validation.get("expression", "")
        if not text.strip():
            yield required(f"{at}.expression", "expression is not specified")
        else:
            yield from expression_errors(text, f"{at}.expression", names, "bool")
        if said := validation.get("messageExpression", "").strip():
            yield from expression_errors(said, f"{at}.messageExpression", names, "string")
        if "\n" in validation.get("message", "").strip():
            yield invalid(f"{at}.message", validation["message"], "must not contain line breaks")
        if (reason := validation.get("reason")) is not None and reason not in _REASONS:
            yield unsupported(f"{at}.reason", reason, _REASONS)
    for index, annotation in enumerate(annotations):
        at, text = f"spec.auditAnnotations[{index}]", annotation.get("valueExpression", "")
        if not text.strip():
            yield required(f"{at}.valueExpression", "valueExpression is not specified")
        else:
            yield from expression_errors(text, f"{at}.valueExpression", names, "string or null")


class PolicyBindingStrategy(_Registration):
    def __init__(self, *, mutates: bool) -> None:
        self._mutates = mutates

    def default(self, data: Json) -> None:
        _default_match(data.setdefault("spec", {}).get("matchResources"))

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec = data["spec"]
        if not spec.get("policyName"):
            yield required("spec.policyName")
        if (reference := spec.get("paramRef")) is not None:
            yield from _param_errors(reference)
        if spec.get("matchResources") is not None:
            yield from _match_errors(spec["matchResources"], "spec.matchResources")
        if self._mutates:
            return
        actions = spec.get("validationActions") or []
        if not actions:
            yield required("spec.validationActions", "at least one validation action is required")
        for index, action in enumerate(actions):
            if action not in _ACTIONS:
                yield unsupported("spec.validationActions", action, _ACTIONS)
            if action in actions[:index]:
                yield duplicate(f"spec.validationActions[{index}]", action)
        if {"Deny", "Warn"} <= set(actions):
            said = (
                "must not contain both Deny and Warn (repeating the same validation failure information in "
            )
            said += "the API response and headers serves no purpose)"
            yield invalid("spec.validationActions", actions, said)


def _param_errors(reference: Json) -> Iterator[FieldError]:
    at, name, selector = "spec.paramRef", reference.get("name"), reference.get("selector")
    if name and selector is not None:
        yield forbidden(f"{at}.name", "name and selector are mutually exclusive")
        yield forbidden(f"{at}.selector", "name and selector are mutually exclusive")
    if not name and selector is None:
        yield required(at, "one of name or selector must be specified")
    action = reference.get("parameterNotFoundAction")
    if not action:
        yield required(f"{at}.parameterNotFoundAction")
    elif action not in ("Deny", "Allow"):
        yield unsupported(f"{at}.parameterNotFoundAction", action, ("Deny", "Allow"))


class FlowSchemaStrategy(_Registration):
    has_status = True
    updates_need_version = False

    def default(self, data: Json) -> None:
        spec = data.setdefault("spec", {})
        spec["matchingPrecedence"] = spec.get("matchingPrecedence") or 1000

    def prepare_create(self, data: Json) -> None:
        data["status"] = {}

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec, at = data["spec"], "spec.matchingPrecedence"
        precedence = spec["matchingPrecedence"]
        if precedence <= 0:
            yield invalid(at, precedence, "must be a positive value")
        if precedence > 10000:
            yield invalid(at, precedence, "must not be greater than 10000")
        if not (spec.get("priorityLevelConfiguration") or {}).get("name"):
            yield required("spec.priorityLevelConfiguration.name", "must reference a priority level")


class PriorityLevelStrategy(_Registration):
    has_status = True
    updates_need_version = False

    def default(self, data: Json) -> None:
        spec = data.setdefault("spec", {})
        for field, shares in (("exempt", 0), ("limited", 30)):
            if (part := spec.get(field)) is not None:
                for key, value in (("nominalConcurrencyShares", shares), ("lendablePercent", 0)):
                    if part.get(key) is None:
                        part[key] = value
        queuing = ((spec.get("limited") or {}).get("limitResponse") or {}).get("queuing")
        if queuing is not None:
            for key, value in (("queues", 64), ("handSize", 8), ("queueLengthLimit", 50)):
                queuing[key] = queuing.get(key) or value

    def prepare_create(self, data: Json) -> None:
        data["status"] = {}

    def errors(self, data: Json) -> Iterator[FieldError]:
        kind = data["spec"].get("type", "")
        if kind not in ("Exempt", "Limited"):
            yield unsupported("spec.type", kind, ("Exempt", "Limited"))


class SigningRequestStrategy(Strategy):
    """What a client wants signed never changes; approval and status are written by themselves."""

    has_status = True
    fields = {"spec.signerName": "spec.signerName"}

    def default(self, data: Json) -> None:
        spec = data.setdefault("spec", {})
        if not spec.get("usages"):
            spec["usages"] = ["digital signature", "key encipherment"]

    def prepare_create(self, data: Json) -> None:
        data["status"] = {}

    def prepare_update(self, data: Json, old: Json) -> None:
        super().prepare_update(data, old)
        data["spec"] = old.get("spec", {})

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec = data["spec"]
        if not spec.get("signerName"):
            yield required("spec.signerName")
        if not spec.get("request"):
            yield invalid("spec.request", [], "PEM block type must be CERTIFICATE REQUEST")


class RuntimeClassStrategy(Strategy):
    creates_on_update = True
    updates_need_version = True

    def errors(self, data: Json) -> Iterator[FieldError]:
        if not data.get("handler"):
            yield required("handler")

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        if data.get("handler") != old.get("handler"):
            yield invalid("handler", data.get("handler"), "field is immutable")


class ApiServiceStrategy(Strategy):
    @staticmethod
    def name_errors(name: str) -> tuple[str, ...]:
        return path_segment_errors(name)
