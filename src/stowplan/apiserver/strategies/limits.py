"""LimitRanges and ResourceQuotas: defaults and validation; admission.py enforces them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stowplan.api.meta import Json
from stowplan.api.quantity import NANO, parse
from stowplan.api.quota import scopes_of
from stowplan.api.requests import is_extended
from stowplan.apiserver.failures import FieldError, duplicate, forbidden, invalid, required
from stowplan.apiserver.names import label_key_errors
from stowplan.apiserver.strategies.strategy import Strategy

_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_INTEGERS = (
    *("pods", "resourcequotas", "services", "replicationcontrollers", "secrets", "configmaps"),
    *("persistentvolumeclaims", "services.nodeports", "services.loadbalancers"),
)
_QUOTA_NAMES = {
    *_INTEGERS,
    *(f"{prefix}{name}" for prefix in ("", "requests.", "limits.") for name in _COMPUTE),
    "requests.storage",
}
_STANDARD = _QUOTA_NAMES | {"storage"}
_POD_SCOPES = ("Terminating", "NotTerminating", "NotBestEffort", "PriorityClass", "CrossNamespacePodAffinity")
_SCOPES = (*_POD_SCOPES, "BestEffort", "VolumeAttributesClass")
_PLAIN_SCOPES = (
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "CrossNamespacePodAffinity",
)
_WITH_POD_SCOPES = (
    "pods",
    *(f"{kind}{each}" for kind in ("", "requests.", "limits.") for each in _COMPUTE[:2]),
)
_CONFLICTING = ({"BestEffort", "NotBestEffort"}, {"Terminating", "NotTerminating"})
_ONLY_EXISTS = (
    "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, "
    "ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or "
    "ResourceQuotaScopeCrossNamespacePodAffinity"
)


def _name_errors(name: str, at: str) -> Iterator[FieldError]:
    errors = [invalid(at, name, said) for said in label_key_errors(name)]
    if not errors and "/" not in name and name not in _STANDARD and "hugepages-" not in name:
        errors = [invalid(at, name, "must be a standard resource type or fully qualified")]
    yield from errors


class LimitRangeStrategy(Strategy):
    creates_on_update = True

    def default(self, data: Json) -> None:
        for item in data.setdefault("spec", {}).get("limits") or ():
            if item.get("type") == "Container":
                limits, requests = item.setdefault("default", {}), item.setdefault("defaultRequest", {})
                for wanted, given in ((limits, "max"), (requests, "default"), (requests, "min")):
                    for name, amount in (item.get(given) or {}).items():
                        wanted.setdefault(name, amount)
                for field in ("default", "defaultRequest"):
                    if not item[field]:
                        del item[field]

    def errors(self, data: Json) -> Iterator[FieldError]:
        seen: set[str] = set()
        for index, item in enumerate(data["spec"].get("limits") or ()):
            yield from _limit_errors(item, f"spec.limits[{index}]", seen)


def _limit_errors(item: Json, at: str, seen: set[str]) -> Iterator[FieldError]:
    kind = item.get("type", "")
    errors = [invalid(f"{at}.type", kind, said) for said in label_key_errors(kind)]
    if not errors and "/" not in kind and kind not in ("Pod", "Container", "PersistentVolumeClaim"):
        errors = [invalid(f"{at}.type", kind, "must be a standard limit type or fully qualified")]
    yield from errors
    if kind in seen:
        yield duplicate(f"{at}.type", kind)
    seen.add(kind)
    names: dict[str, None] = {}

    def names_in(field: str) -> Iterator[FieldError]:
        for name in sorted(item.get(field) or {}):
            names[name] = None
            yield from _name_errors(name, f"{at}.{field}[{name}]")
            is_known = "/" in name or name in _COMPUTE or name.startswith("hugepages-")
            if kind in ("Pod", "Container") and not is_known:
                yield invalid(f"{at}.{field}[{name}]", name, "must be a standard resource for containers")

    yield from names_in("max")
    yield from names_in("min")
    for field in ("default", "defaultRequest"):
        if kind != "Pod":
            yield from names_in(field)
        elif item.get(field):
            yield forbidden(f"{at}.{field}", "may not be specified when `type` is 'Pod'")
    has_size = any("storage" in (item.get(field) or {}) for field in ("min", "max"))
    if kind == "PersistentVolumeClaim" and not has_size:
        said = "either minimum or maximum storage value is required, but neither was provided"
        yield required(f"{at}.limits", said)
    yield from names_in("maxLimitRequestRatio")
    for name in names:
        yield from _amount_errors(item, name, at)


def _amount_errors(item: Json, name: str, at: str) -> Iterator[FieldError]:
    def given(field: str) -> str | None:
        found: str | None = (item.get(field) or {}).get(name)
        return found

    least, most, ratio = given("min"), given("max"), given("maxLimitRequestRatio")
    limit = given("default") if item.get("type") != "Pod" else None
    request = given("defaultRequest") if item.get("type") != "Pod" else None

    def above(left: str | None, right: str | None) -> bool:
        return left is not None and right is not None and parse(left) > parse(right)

    def error(field: str, value: str | None, said: str) -> FieldError:
        return invalid(f"{at}.{field}[{name}]", value, said)

    if above(least, most):
        yield error("min", least, f"min value {least} is greater than max value {most}")
    if above(least, request):
        said = f"min value {least} is greater than default request value {request}"
        yield error("defaultRequest", request, said)
    if above(request, most):
        said = f"default request value {request} is greater than max value {most}"
        yield error("defaultRequest", request, said)
    if above(request, limit):
        said = f"default request value {request} is greater than default limit value {limit}"
        yield error("defaultRequest", request, said)
    if above(least, limit):
        yield error("default", least, f"min value {least} is greater than default value {limit}")
    if above(limit, most):
        yield error("default", most, f"default value {limit} is greater than max value {most}")
    if ratio is not None and parse(ratio) < NANO:
        yield error("maxLimitRequestRatio", ratio, f"ratio {ratio} is less than 1")
    if ratio is not None and least is not None and most is not None and parse(least) > 0:
        largest = parse(most) / parse(least)
        if parse(ratio) / NANO > largest:
            said = f"ratio {ratio} is greater than max/min = {largest:f}"
            yield error("maxLimitRequestRatio", ratio, said)
    may_overcommit = "/" not in name and not name.startswith("hugepages-")
    if not may_overcommit and (above(limit, request) or above(request, limit)):
        said = f"default value {limit} must equal to defaultRequest value {request} in {name}"
        yield error("defaultRequest", request, said)


class ResourceQuotaStrategy(Strategy):
    has_status = True
    returns_deleted = True

    def prepare_create(self, data: Json) -> None:
        data["status"] = {}

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec = data.get("spec") or {}
        yield from _amounts_errors(spec.get("hard"), "spec.hard")
        yield from _scope_errors(spec)
        yield from _selector_errors(spec)

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        now, was = ((each.get("spec") or {}).get("scopes") for each in (data, old))
        if set(now or ()) != set(was or ()):
            yield invalid("spec.scopes", now, "field is immutable")

    def status_errors(self, data: Json, old: Json) -> Iterable[FieldError]:
        for field in ("hard", "used"):
            yield from _amounts_errors((data.get("status") or {}).get(field), f"status.{field}")


def _amounts_errors(amounts: Json | None, at: str) -> Iterator[FieldError]:
    for name, amount in sorted((amounts or {}).items()):
        where = f"{at}[{name}]"
        yield from _name_errors(name, where)
        if "/" not in name and name not in _QUOTA_NAMES and "hugepages-" not in name:
            yield invalid(where, name, "must be a standard resource for quota")
        if parse(amount) < 0:
            yield invalid(where, amount, "must be greater than or equal to 0")
        if (name in _INTEGERS or is_extended(name)) and parse(amount) % NANO:
            yield invalid(where, amount, "must be an integer")


def _fits(scope: str, name: str) -> bool:
    if scope == "BestEffort":
        return name == "pods"
    if scope == "VolumeAttributesClass":
        return name in ("persistentvolumeclaims", "requests.storage")
    return name in _WITH_POD_SCOPES if scope in _POD_SCOPES else True


def _scope_errors(spec: Json) -> Iterator[FieldError]:
    scopes = spec.get("scopes") or []
    for scope in scopes:
        if scope not in _SCOPES:
            yield invalid("spec.scopes", scopes, "unsupported scope")
        for name in sorted(spec.get("hard") or {}):
            if name in _QUOTA_NAMES and not _fits(scope, name):
                yield invalid("spec.scopes", scopes, "unsupported scope applied to resource")
    for pair in _CONFLICTING:
        if pair <= set(scopes):
            yield invalid("spec.scopes", scopes, "conflicting scopes")


def _selector_errors(spec: Json) -> Iterator[FieldError]:
    at, selector = "spec.scopeSelector.matchExpressions", spec.get("scopeSelector")
    terms = list(scopes_of({"scopeSelector": selector}))
    for term in terms:
        scope, operator, values = term.get("scopeName", ""), term.get("operator", ""), term.get("values")
        if scope not in _SCOPES:
            yield invalid(f"{at}.scopeName", scope, "unsupported scope")
        for name in sorted(spec.get("hard") or {}):
            if name in _QUOTA_NAMES and not _fits(scope, name):
                yield invalid(at, selector, "unsupported scope applied to resource")
        if scope in _PLAIN_SCOPES and operator != "Exists":
            yield invalid(f"{at}.operator", operator, _ONLY_EXISTS)
        if operator in ("In", "NotIn"):
            if not values:
                said = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                yield required(f"{at}.values", said)
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                said = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
                yield invalid(f"{at}.values", values, said)
        else:
            yield invalid(f"{at}.operator", operator, "not a valid selector operator")
    for pair in _CONFLICTING:
        if pair <= {term.get("scopeName") for term in terms}:
            yield invalid(at, spec.get("scopes"), "conflicting scopes")
