"""Where in a file a plugin, or the part of it that is at fault, stands."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stowplan.framework.answers import short_path


class Fault(NamedTuple):
    """`line` is 0 where none is to be named."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


def fault_at(kind: type, member: str, text: str) -> Fault:
    """A fault of a class: at the line that defines the member, or else at the class's own."""
    file = inspect.getsourcefile(kind) or ""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError):  # it was loaded, so it has changed or gone since
        return Fault(short_path(str(file)), 0, text)
    definition = _definition(tree, kind.__qualname__)
    lines = [part.lineno for part in definition.body if member in _names(part)] if definition else []
    return Fault(short_path(str(file)), next(iter(lines), definition.lineno if definition else 0), text)


def repeated_definitions(file: str | Path) -> Iterator[Fault]:
    """Classes of one name in a file, and methods of one name in a class: only the last one counts."""
    tree = ast.parse(Path(file).read_bytes())
    classes = [part for part in tree.body if isinstance(part, ast.ClassDef)]
    scopes = [("", tree.body), *((f"{each.name}.", each.body) for each in classes)]
    for prefix, body in scopes:
        first: dict[str, int] = {}
        for part in body:
            if not isinstance(part, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if part.decorator_list:  # a property's setter, an overload
                continue
            if part.name in first:
                text = (
                    f"{prefix}{part.name} is defined in line {first[part.name]} already: rename one of them"
                )
                yield Fault(short_path(str(file)), part.lineno, text)
            first.setdefault(part.name, part.lineno)


def _definition(tree: ast.Module, qualified_name: str) -> ast.ClassDef | None:
    """The class of that name; the last one, which counts."""
    body, found = tree.body, None
    for name in qualified_name.split("."):
        if name == "<locals>":
            continue
        found = next((part for part in reversed(body) if getattr(part, "name", "") == name), None)
        body = getattr(found, "body", [])
    return found if isinstance(found, ast.ClassDef) else None


def _names(part: ast.stmt) -> set[str]:
    """What a statement of a class's body defines."""
    if isinstance(part, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {part.name}
    targets = part.targets if isinstance(part, ast.Assign) else [getattr(part, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}
