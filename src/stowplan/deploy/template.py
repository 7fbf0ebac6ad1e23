"""Objects as YAML, or as templates of a Helm chart.

The functions that build objects from `Values` also build the chart's templates: given `Symbol`s in place of
values they return objects with Go template expressions in them. So they must not ask whether a value is
set: `when`, `items`, `choose`, `any_of`, `negate` and `merge` do, for values and symbols alike.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, TypeVar

import yaml

from stowplan.api.meta import Json

Part = TypeVar("Part", dict[str, Any], list[Any])


class Symbol:
    """A value that is known only when Helm renders the chart; its attributes are fields of that value."""

    def __init__(self, expression: str) -> None:
        self.expression = expression

    def __getattr__(self, name: str) -> Symbol:
        if name.startswith("__"):
            raise AttributeError(name)
        return Symbol(f"{self.expression}.{re.sub('_(.)', lambda found: found[1].upper(), name)}")

    def __str__(self) -> str:
        return f"{{{{ {self.expression} }}}}"

    def __format__(self, spec: str) -> str:
        return str(self)

    def __bool__(self) -> bool:
        raise TypeError(f"{self.expression} is not known yet: use when() or choose()")


class Action:
    """A line of the template between two others, such as the start of an `if`."""

    def __init__(self, text: str) -> None:
        self.text = text


def when(condition: object, part: Part) -> Part:
    """Return the part if the condition holds, otherwise an empty one."""
    if not isinstance(condition, Symbol):
        return part if condition else type(part)()
    start, end = Action(f"if {condition.expression}"), Action("end")
    marked: Any = {start: "", **part, end: ""} if isinstance(part, dict) else [start, *part, end]
    return marked  # type: ignore[no-any-return]


def items(values: Any) -> list[Any]:
    """Return the items of a list, for use in another one."""
    if not isinstance(values, Symbol):
        return list(values)
    return [Action(f"range {values.expression}"), Symbol("."), Action("end")]


def choose(condition: object, yes: object, no: object) -> Any:
    if not isinstance(condition, Symbol):
        return yes if condition else no
    return Symbol(f"(ternary {_literal(yes)} {_literal(no)} (not (not {condition.expression})))")


def any_of(*conditions: object) -> Any:
    if not any(isinstance(each, Symbol) for each in conditions):
        return any(conditions)
    return Symbol(f"(or {' '.join(map(_literal, conditions))})")


def negate(condition: object) -> Any:
    return Symbol(f"(not {condition.expression})") if isinstance(condition, Symbol) else not condition


def merge(ours: Json, others: Any) -> Any:
    """Add what others give to our keys, which they cannot change."""
    if isinstance(others, Symbol):
        return Symbol(f"(merge {_literal(ours)} {others.expression})")
    return {**ours, **{key: value for key, value in others.items() if key not in ours}}


def checksum(text: Any) -> Any:
    if isinstance(text, Symbol):
        return Symbol(f"({text.expression} | sha256sum | trunc 16)")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _literal(value: object) -> str:
    """Write a value as an operand of a Go template function."""
    if isinstance(value, Symbol):
        return value.expression
    if isinstance(value, dict):
        return f"(dict {' '.join(f'{_literal(key)} {_literal(each)}' for key, each in value.items())})"
    return json.dumps(value)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        """The same labels again are written again."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


def _placeholder(dumper: yaml.SafeDumper, value: Symbol | Action) -> yaml.ScalarNode:
    """PyYAML would quote an expression, so it writes a word that is replaced afterwards."""
    kind, text = ("VALUE", value.expression) if isinstance(value, Symbol) else ("ACTION", value.text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", f"{kind}_{text.encode().hex()}_")


_Dumper.add_representer(str, _text)
_Dumper.add_representer(Symbol, _placeholder)
_Dumper.add_representer(Action, _placeholder)
_PLACEHOLDER = re.compile(r"^ *(?:- )?ACTION_([0-9a-f]+)_(?:: '')?$|VALUE_([0-9a-f]+)_", re.MULTILINE)


def as_yaml(documents: Iterable[Any]) -> str:
    """Write objects as YAML documents; those with symbols as a template."""
    text, is_first = "", True
    for each in documents:
        if isinstance(each, Action):
            text += f"{{{{- {each.text} }}}}\n"
            continue
        # In a template the document before may be left out, and empty documents do no harm.
        text += "" if is_first else "---\n"
        text += yaml.dump(each, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
        is_first = False
    return _PLACEHOLDER.sub(_expression, text)


def _expression(found: re.Match[str]) -> str:
    if found[1]:
        return f"{{{{- {bytes.fromhex(found[1]).decode()} }}}}"
    # JSON is YAML too, whatever the value's type, and needs no indentation.
    return f"{{{{ {bytes.fromhex(found[2]).decode()} | toJson }}}}"
