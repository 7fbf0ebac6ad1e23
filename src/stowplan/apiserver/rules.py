"""x-kubernetes-validations: rules in CEL that a schema has for its objects.

`Rules.of(schema)` compiles all rules of a schema; its `errors` are those of an object, and of its change.
`rule_errors` says which rules a definition may not have: those that make no sense, or may cost too much.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from stowplan.api.cel import COST_EXCEEDED, MAX_COST, Meter, Program
from stowplan.api.cel.parser import Call, Index, ListOf, Literal, MapOf, Name, Node, Select
from stowplan.api.cel.parser import parse as parse_cel
from stowplan.api.cel.times import parse_duration, parse_timestamp
from stowplan.api.cel.values import (
    DYN,
    MISSING,
    Duration,
    Optional,
    Timestamp,
    list_type,
    map_type,
    object_type,
)
from stowplan.api.meta import Json
from stowplan.apiserver.failures import FieldError, forbidden, invalid, json_text, required, unsupported
from stowplan.errors import CelError

RULES = "x-kubernetes-validations"
OBJECT_BUDGET = 3 * MAX_COST
"""What all rules of one object may cost together. Kubernetes allows ten; it serves others meanwhile."""
RULE_LIMIT, SCHEMA_LIMIT = 10_000_000, 100_000_000
"""What a rule, and all rules of a schema, may cost for the largest objects that the schema allows."""
MAX_RULES = 1000
"""Rules of one schema: each takes a while to compile, and no other request is served meanwhile."""
MAX_RULE_TEXT = 64 * 1024
"""Characters of all rules of one schema, for the same reason."""
MAX_REQUEST = 3 * 1024 * 1024
REASONS = {
    "FieldValueDuplicate": "Duplicate value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueInvalid": "Invalid value",
    "FieldValueRequired": "Required value",
}
_KEYWORDS = frozenset((
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if",
    "import", "let", "loop", "package", "namespace", "return",
))  # fmt: skip
_SIGNS = (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__"))
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
_META = {"type": "object", "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}}}


parse = lru_cache(4)(parse_cel)
"""Each rule is looked at several times in a row."""

# Values and types.


def escape(name: str) -> str:
    """A field's name in rules, where it may neither be a keyword nor have any sign; empty if it has none."""
    if name in _KEYWORDS:
        return f"__{name}__"
    for sign, word in _SIGNS:
        name = name.replace(sign, word)
    return name if _NAME.fullmatch(name) else ""


def _properties(schema: Json, is_root: bool = False) -> Json:
    properties = schema.get("properties") or {}
    if is_root or schema.get("x-kubernetes-embedded-resource"):
        return {**properties, **_OWN, "metadata": _META}
    return dict(properties)


def type_of(schema: Json, is_root: bool = False) -> type:
    """The type of the values that a schema allows."""
    if schema.get("x-kubernetes-int-or-string"):
        return DYN
    match schema.get("type"):
        case "object" if isinstance(others := schema.get("additionalProperties"), dict):
            return map_type(type_of(others))
        case "object":
            properties = _properties(schema, is_root)
            return object_type(
                {escape(key): type_of(each) for key, each in properties.items() if escape(key)}
            )
        case "array":
            return list_type(type_of(schema.get("items") or {}))
        case "string":
            formats: dict[Any, type] = {
                "date": Timestamp,
                "date-time": Timestamp,
                "duration": Duration,
                "byte": bytes,
            }
            return formats.get(schema.get("format"), str)
        case "integer":
            return int
        case "number":
            return float
        case "boolean":
            return bool
    return DYN


def value_of(schema: Json, value: Any, is_root: bool = False) -> Any:
    """A value as rules see it; CelError if it is not what its format says."""
    if value is None or schema.get("x-kubernetes-int-or-string"):
        return value
    if isinstance(value, dict):
        if isinstance(others := schema.get("additionalProperties"), dict):
            return {key: value_of(others, each) for key, each in value.items()}
        properties = _properties(schema, is_root)
        return {
            escape(key): value_of(properties[key], each) for key, each in value.items() if key in properties
        }
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [value_of(items, each) for each in value]
    match schema.get("type"), schema.get("format"):
        case ("number", _):
            return float(value)
        case ("integer", _):
            return int(value)
        case ("string", "date"):
            return parse_timestamp(f"{value}T00:00:00Z")
        case ("string", "date-time"):
            return parse_timestamp(value)
        case ("string", "duration"):
            return parse_duration(value)
        case ("string", "byte"):
            return base64.b64decode(value)
    return value


# Rules of a schema, compiled.


class Rule(NamedTuple):
    text: str
    program: Program
    message: str
    message_program: Program | None
    reason: str
    path: str
    uses_old: bool
    is_old_optional: bool

    @classmethod
    def of(cls, given: Json, kind: type) -> Rule:
        """Raises CelError."""
        text, is_optional = given["rule"], bool(given.get("optionalOldSelf"))
        old = Optional if is_optional else kind
        uses_old = mentions(parse(text), "oldSelf")
        names = (("self", kind), ("oldSelf", old)) if uses_old else (("self", kind),)
        expression = given.get("messageExpression") or ""
        return cls(
            text,
            Program(text, names),
            (given.get("message") or "").strip(),
            Program(expression, names) if expression.strip() else None,
            given.get("reason") or "FieldValueInvalid",
            given.get("fieldPath") or "",
            uses_old,
            is_optional,
        )


def mentions(node: object, name: str) -> bool:
    if isinstance(node, Name):
        return node.name == name
    return isinstance(node, tuple) and any(mentions(part, name) for part in node)


class _Budget:
    """What the rules of one object may still cost."""

    def __init__(self) -> None:
        self.left = OBJECT_BUDGET


class Rules:
    """The rules at one place of a schema and below it."""

    def __init__(self, schema: Json, is_root: bool) -> None:
        self._schema, self._is_root = schema, is_root
        kind = type_of(schema, is_root) if schema.get(RULES) else DYN
        self._rules = [Rule.of(each, kind) for each in schema.get(RULES) or ()]
        below = schema.get("properties") or {}
        self._fields = {key: found for key, each in below.items() if (found := Rules.of(each, False))}
        self._entries = Rules.of(schema.get("additionalProperties"), False)
        self._items = Rules.of(schema.get("items"), False)

    @classmethod
    def of(cls, schema: Any, is_root: bool = True) -> Rules | None:
        """None if there are no rules. Raises CelError."""
        return cls(schema, is_root) if has_rules(schema) else None

    def errors(self, value: object, old: object = None, *, is_change: bool = False) -> Iterator[FieldError]:
        yield from self._errors(value, old if is_change else MISSING, "", _Budget())

    def _errors(self, value: object, old: object, path: str, budget: _Budget) -> Iterator[FieldError]:
        """`old` is MISSING for what was not there before; what did not change is not checked again."""
        if value is None or value == old:
            return
        if self._rules:
            yield from self._own_errors(value, old, path, budget)
        if budget.left < 0:
            return
        if isinstance(value, dict):
            known = old if isinstance(old, dict) else {}
            for key, each in value.items():
                if rules := self._fields.get(key):
                    at = f"{path}.{key}" if path else key
                    yield from rules._errors(each, known.get(key, MISSING), at, budget)
                elif self._entries and key not in (self._schema.get("properties") or ()):
                    yield from self._entries._errors(each, known.get(key, MISSING), f"{path}[{key}]", budget)
        elif isinstance(value, list) and self._items:
            for index, each in enumerate(value):
                yield from self._items._errors(each, self._counterpart(each, old), f"{path}[{index}]", budget)

    def _counterpart(self, item: Any, old: Any) -> Any:
        """The same item of the list before; only items of a map can be identified."""
        keys = self._schema.get("x-kubernetes-list-map-keys")
        if not keys or not isinstance(old, list):
            return MISSING
        return next((each for each in old if all(each.get(key) == item.get(key) for key in keys)), MISSING)

    def _own_errors(self, value: object, old: object, path: str, budget: _Budget) -> Iterator[FieldError]:
        kind, at = self._schema.get("type") or "object", path or "<nil>"
        try:
            variables = {"self": value_of(self._schema, value, self._is_root)}
            before = MISSING if old is MISSING else value_of(self._schema, old, self._is_root)
        except (CelError, ValueError) as error:
            yield invalid(at, kind, str(error))
            return
        for rule in self._rules:
            if rule.uses_old and old is MISSING and not rule.is_old_optional:
                continue
            optional = before if before is MISSING else Optional(before)
            variables["oldSelf"] = optional if rule.is_old_optional else before
            shown_rule = rule.message or rule.text
            meter = Meter(min(MAX_COST, budget.left))
            start = meter.left
            try:
                is_met = rule.program.evaluate(variables, meter)
            except CelError as error:
                if str(error) == COST_EXCEEDED:
                    yield from _cost_errors(at, kind, shown_rule, budget, start)
                    return
                yield invalid(at, kind, f"{error} evaluating rule: {shown_rule}")
                continue
            finally:
                budget.left -= start - max(meter.left, 0)
            if is_met is not True:
                yield _unmet(rule, _message(rule, variables), value, f"{path}{rule.path}".lstrip(".") or at)


def _cost_errors(at: str, kind: str, rule: str, budget: _Budget, start: int) -> Iterator[FieldError]:
    if start >= MAX_COST:
        said = "no further validation rules will be run due to call cost exceeds limit for rule"
        yield invalid(at, kind, f"'{COST_EXCEEDED}': {said}: {rule}")
    else:
        said = "validation failed due to running out of cost budget, no further validation rules will be run"
        yield invalid(at, kind, said)
    budget.left = -1


def _message(rule: Rule, variables: Json) -> str:
    if rule.message_program is not None:
        try:
            text = rule.message_program.evaluate(variables)
            if isinstance(text, str) and text.strip() and "\n" not in text:
                return text.strip()
        except CelError:
            pass  # the message that is written out will do
    return rule.message or f"failed rule: {rule.text}"


def _unmet(rule: Rule, message: str, value: object, at: str) -> FieldError:
    is_shown = not rule.path and not isinstance(value, (dict, list)) and rule.reason == "FieldValueInvalid"
    body = f"{json_text(value)}: {message}" if is_shown else message
    return FieldError(at, REASONS.get(rule.reason, "Invalid value"), body)


def has_rules(schema: object) -> bool:
    if not isinstance(schema, dict):
        return False
    return bool(schema.get(RULES)) or any(map(has_rules, _below(schema)))


def _below(schema: Json) -> Iterator[Any]:
    yield from (schema.get("properties") or {}).values()
    yield schema.get("items")
    yield schema.get("additionalProperties")


# What a definition may not have.


def rule_errors(schema: Json, path: str) -> Iterator[FieldError]:
    if not has_rules(schema):
        return
    rules = list(_all_rules(schema))
    if len(rules) > MAX_RULES:
        yield FieldError(path, "Too many", f"{len(rules)}: must have at most {MAX_RULES} {RULES}")
        return
    parts = (
        each.get(key) for each in rules if isinstance(each, dict) for key in ("rule", "messageExpression")
    )
    if (size := sum(len(text) for text in parts if isinstance(text, str))) > MAX_RULE_TEXT:
        yield FieldError(
            path, "Too long", f"{size}: may not have more than {MAX_RULE_TEXT} characters of {RULES}"
        )
        return
    checker = _Checker(path)
    yield from checker.errors(schema, path, 1, "", True)
    if checker.total > SCHEMA_LIMIT:
        for field in checker.expensive:
            said = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
            yield forbidden(field, said)
        said = f"{RULES} estimated rule cost total for entire OpenAPIv3 schema exceeds budget"
        yield forbidden(path, f"{said} {_by_factor(checker.total, SCHEMA_LIMIT)}")


def _all_rules(schema: object) -> Iterator[Any]:
    if isinstance(schema, dict):
        yield from schema.get(RULES) or ()
        for each in _below(schema):
            yield from _all_rules(each)


def _by_factor(cost: float, limit: int) -> str:
    factor = cost / limit
    words = "more than 100x" if factor > 100 else f"{factor:.1f}x"
    return (
        f"by factor of {words} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength "
        "where arrays, maps, and strings are declared)"
    )


class _Checker:
    def __init__(self, root: str) -> None:
        self.root, self.total = root, 0.0
        self.expensive: list[str] = []

    def errors(
        self, schema: Json, path: str, count: float, uncorrelated: str, is_root: bool = False
    ) -> Iterator[FieldError]:
        """`count` is how often the schema may occur in an object; `uncorrelated` is the list it is in."""
        for index, given in enumerate(schema.get(RULES) or ()):
            yield from self._rule(schema, given, f"{path}.{RULES}[{index}]", count, uncorrelated, is_root)
        for key, each in (schema.get("properties") or {}).items():
            yield from self.errors(each, f"{path}.properties[{key}]", count, uncorrelated)
        size = max_size(schema)
        if isinstance(others := schema.get("additionalProperties"), dict):
            yield from self.errors(others, f"{path}.additionalProperties", count * size, uncorrelated)
        if isinstance(items := schema.get("items"), dict):
            is_map = schema.get("x-kubernetes-list-type") == "map"
            within = uncorrelated if is_map else uncorrelated or path
            yield from self.errors(items, f"{path}.items", count * size, within)

    def _rule(
        self, schema: Json, given: object, at: str, count: float, uncorrelated: str, is_root: bool
    ) -> Iterator[FieldError]:
        texts = ("rule", "message", "messageExpression", "reason", "fieldPath")
        if not isinstance(given, dict) or any(not isinstance(given.get(key) or "", str) for key in texts):
            yield invalid(at, given, "must be a validation rule")
            return
        rule, message, reason = given.get("rule") or "", given.get("message") or "", given.get("reason")
        if not rule.strip():
            yield required(f"{at}.rule", "rule is not specified")
            return
        if "\n" in message.strip():
            yield invalid(f"{at}.message", message, "must not contain line breaks")
        if reason and reason not in REASONS:
            yield unsupported(f"{at}.reason", reason, sorted(REASONS))
        if (path := given.get("fieldPath")) and not _has_field(schema, path):
            yield invalid(f"{at}.fieldPath", path, "must be a valid path")
        kind = type_of(schema, is_root)
        try:
            uses_old = mentions(parse(rule), "oldSelf")
        except CelError as error:
            yield invalid(
                f"{at}.rule", _go(given), f"compilation failed: ERROR: <input>: Syntax error: {error}"
            )
            return
        try:
            made = Rule.of({**given, "messageExpression": ""}, kind)
            if made.program.kind not in (bool, DYN):
                yield invalid(f"{at}.rule", _go(given), "cel expression must evaluate to a bool")
                return
        except CelError as error:
            yield invalid(f"{at}.rule", _go(given), f"compilation failed: {locate_error(rule, error)}")
            return
        if uses_old and uncorrelated:
            said = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {uncorrelated}"
            yield invalid(f"{at}.rule", rule, said)
        if given.get("optionalOldSelf") is not None and not uses_old:
            said = "may not be set if oldSelf is not used in rule"
            yield invalid(f"{at}.optionalOldSelf", given["optionalOldSelf"], said)
        yield from self._cost(schema, rule, f"{at}.rule", "rule", count, is_root)
        if expression := given.get("messageExpression"):
            try:
                program = Rule.of(given, kind).message_program
                if program is not None and program.kind not in (str, DYN):
                    said = "messageExpression must evaluate to a string"
                    yield invalid(f"{at}.messageExpression", _go(given), said)
                    return
            except CelError as error:
                said = f"messageExpression compilation failed: {locate_error(expression, error)}"
                yield invalid(f"{at}.messageExpression", _go(given), said)
                return
            where = f"{at}.messageExpression"
            yield from self._cost(schema, expression, where, "messageExpression", count, is_root)

    def _cost(
        self, schema: Json, text: str, at: str, what: str, count: float, is_root: bool
    ) -> Iterator[FieldError]:
        variables = {"self": _Sized(schema, is_root), "oldSelf": _Sized(schema, is_root)}
        cost = estimate(parse(text), variables).cost * count
        self.total += cost
        if cost > SCHEMA_LIMIT:
            self.expensive.append(at)
        if cost > RULE_LIMIT:
            yield forbidden(at, f"estimated {what} cost exceeds budget {_by_factor(cost, RULE_LIMIT)}")


def locate_error(text: str, error: CelError) -> str:
    """What is wrong with an expression, in the words of CEL's own compiler, with the place marked."""
    message = re.sub(r"(undeclared reference to '[^']*')$", r"\1 (in container '')", str(error))
    message = re.sub(r"overload for '([^'\w]+|in)' applied", _overload, message)
    if error.offset is None:
        return f"ERROR: <input>: {message}"
    start = text.rfind("\n", 0, error.offset) + 1
    line, column = text.count("\n", 0, error.offset) + 1, error.offset - start
    shown = text[start:].partition("\n")[0]
    return f"ERROR: <input>:{line}:{column + 1}: {message}\n | {shown}\n | {'.' * column}^"


def _overload(match: re.Match[str]) -> str:
    """An operator as CEL calls its function."""
    names = {"in": "@in", "[]": "_[_]", "?:": "_?_:_", "!_": "!_", "-_": "-_"}
    name = names.get(match[1], f"_{match[1]}_")
    return f"overload for '{name}' applied"


def _go(given: Json) -> Json:
    """A rule as messages show it."""
    return {
        "Rule": given.get("rule") or "",
        "Message": given.get("message") or "",
        "MessageExpression": given.get("messageExpression") or "",
        "Reason": given.get("reason"),
        "FieldPath": given.get("fieldPath") or "",
        "OptionalOldSelf": given.get("optionalOldSelf"),
    }


def _has_field(schema: Json, path: str) -> bool:
    """Whether a path such as `.a['b']` leads to a field."""
    parts = re.findall(r"\.([^.\[]+)|\['([^']*)'\]", path)
    if "".join(f".{name}" if name else f"['{key}']" for name, key in parts) != path:
        return False
    found: Any = schema
    for name, key in parts:
        others = found.get("additionalProperties")
        found = (found.get("properties") or {}).get(name or key, others if isinstance(others, dict) else None)
        if found is None:
            return False
    return True


# How much a rule may cost, from the sizes that the schema allows.


def max_size(schema: Json) -> float:
    """The longest text, or the most entries, that a schema allows; what it leaves open a request limits."""
    room = MAX_REQUEST - 2
    match schema.get("type"):
        case "string":
            limit = schema.get("maxLength")
            room = {"date": 10, "date-time": 24, "duration": 32}.get(schema.get("format", ""), room)
        case "array":
            limit, room = schema.get("maxItems"), room // (_least_bytes(schema.get("items") or {}) + 1)
        case "object":
            limit, others = schema.get("maxProperties"), schema.get("additionalProperties")
            room //= 6 + (_least_bytes(others) if isinstance(others, dict) else 1)
        case _:
            return 1.0
    return float(room if limit is None else limit)


def _least_bytes(schema: Json) -> int:
    """The least bytes that a value takes in a request."""
    match schema.get("type"):
        case "object":
            needed = schema.get("required") or ()
            below = schema.get("properties") or {}
            return 2 + sum(len(key) + 4 + _least_bytes(below[key]) for key in needed if key in below)
        case "string" | "array":
            return 2
        case "boolean":
            return 4
    return 1


class _Sized(NamedTuple):
    """A part of an object; without a schema, of a size that is known otherwise."""

    schema: Json
    is_root: bool = False
    size: float | None = None
    cost: float = 1.0

    @property
    def length(self) -> float:
        return self.size if self.size is not None else max_size(self.schema)

    @property
    def is_text(self) -> bool:
        return self.schema.get("type") == "string"

    def field(self, name: str) -> _Sized:
        for key, each in _properties(self.schema, self.is_root).items():
            if escape(key) == name:
                return _Sized(each)
        return self.entry()

    def entry(self) -> _Sized:
        inner = self.schema.get("items") or self.schema.get("additionalProperties")
        return _Sized(inner if isinstance(inner, dict) else {})


_LOOPS = frozenset((
    "all", "exists", "exists_one", "existsOne", "filter", "map", "transformList", "transformMap",
    "transformMapEntry", "sortBy",
))  # fmt: skip
_TEXT: Json = {"type": "string"}


def estimate(node: Node | None, scope: dict[str, _Sized]) -> _Sized:
    """What evaluating an expression may cost at most, and how large its value may be."""
    match node:
        case Name(name):
            return scope.get(name, _Sized({}, cost=1))._replace(cost=1)
        case Literal(value):
            return _Sized(_TEXT, size=len(value), cost=0) if isinstance(value, str) else _Sized({}, cost=0)
        case Select(operand, field, _):
            inner = estimate(operand, scope)
            return inner.field(field)._replace(cost=inner.cost + 1)
        case Index(operand, key, _):
            inner = estimate(operand, scope)
            return inner.entry()._replace(cost=inner.cost + estimate(key, scope).cost + 1)
        case ListOf(items) | MapOf(items):
            cost = sum(estimate(item.value, scope).cost + estimate(item.key, scope).cost for item in items)
            return _Sized(
                {"type": "array"}, size=len(items), cost=cost + (10 if isinstance(node, ListOf) else 30)
            )
        case Call(name, arguments, target) if target is not None and name in _LOOPS and len(arguments) > 1:
            return _estimate_loop(arguments, estimate(target, scope), scope)
        case Call(name, arguments, target):
            parts = [estimate(each, scope) for each in ((target,) if target is not None else ()) + arguments]
            return _estimate_call(name, parts)
    return _Sized({}, cost=0)


def _estimate_loop(arguments: tuple[Node, ...], over: _Sized, scope: dict[str, _Sized]) -> _Sized:
    names = [each.name for each in arguments[: max(1, len(arguments) - 2)] if isinstance(each, Name)]
    is_map = isinstance(over.schema.get("additionalProperties"), dict)
    inner = {
        name: _Sized(_TEXT) if is_map and not place else over.entry() for place, name in enumerate(names)
    }
    bodies = arguments[len(names) :] or arguments[-1:]
    step = sum(estimate(each, {**scope, **inner}).cost for each in bodies) + 3
    return over._replace(cost=over.cost + over.length * step)


def _estimate_call(name: str, parts: list[_Sized]) -> _Sized:
    cost = sum(part.cost for part in parts)
    lengths = [part.length for part in parts if part.is_text]
    match name:
        case "&&" | "||" | "?:" | "has":
            chosen = max(parts[1:], key=lambda part: part.length) if name == "?:" else _Sized({})
            return chosen._replace(cost=cost)
        case "==" | "!=" | "<" | "<=" | ">" | ">=":
            sizes = [
                part.length for part in parts if part.schema.get("type") in ("string", "array", "object")
            ]
            return _Sized({}, cost=cost + max(1, 0.1 * min(sizes) if sizes else 1))
        case "+" if lengths:
            return _Sized(_TEXT, size=sum(lengths), cost=cost + 0.1 * sum(lengths))
        case "in" if len(parts) == 2:
            return _Sized({}, cost=cost + parts[1].length)
        case "contains" if len(lengths) == 2:
            return _Sized({}, cost=cost + 0.01 * lengths[0] * lengths[1] + 1)
        case "matches" if lengths:
            pattern = lengths[1] if len(lengths) > 1 else 1
            return _Sized({}, cost=cost + (lengths[0] * 0.1 + 1) * (pattern * 0.25 + 1))
        case "size" | "startsWith" | "endsWith":
            shortest = lengths[-1] if len(lengths) > 1 else 0
            return _Sized({}, cost=cost + 1 + 0.1 * shortest)
        case "string":
            return _Sized(
                _TEXT, size=lengths[0] if lengths else MAX_REQUEST, cost=cost + 1 + 0.1 * sum(lengths)
            )
    walked = sum(part.length for part in parts if part.schema.get("type") in ("string", "array"))
    return (parts[0] if parts else _Sized({}))._replace(cost=cost + 1 + 0.1 * walked)
