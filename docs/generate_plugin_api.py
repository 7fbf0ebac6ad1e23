"""Write docs/plugin-api.md from the docstrings of what `stowplan` exports; `make docs` runs it.

A test fails while the page is not what this would write.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/plugin-api.md"
SECTIONS = {
    "The base class": ("Plugin", "PluginArgs", "Reads"),
    "What methods receive": (
        "Pod",
        "Node",
        "NodeTable",
        "CycleState",
        "Decision",
        "Queued",
        "SortKey",
        "Group",
        "Placement",
    ),
    "What methods return": ("Status", "Code", "Reject", "Mask", "Nomination", "Scores"),
    "Scores": ("MAX_SCORE", "scale_to_max"),
    "The handle": ("Handle", "WaitingPod", "Api", "ClusterView", "Right"),
    "Events": ("ClusterEvent", "Resource", "Action", "Hint", "QUEUE", "SKIP_HINT"),
    "Custom resources": ("CustomResource", "Definition", "Column", "Wire", "Quantity", "keyed_by"),
    "Errors": ("FilterError", "StateMissing"),
}


def page() -> str:
    package = griffe.load("stowplan", search_paths=[ROOT / "src"])
    exports = package["framework.exports"]
    listed = [name for names in SECTIONS.values() for name in names]
    if missing := {str(name) for name in exports.exports} ^ set(listed):
        raise SystemExit(f"SECTIONS and stowplan.framework.exports disagree on {', '.join(sorted(missing))}")
    lines = [
        "# Plugin API",
        "",
        "Everything a plugin imports, as `from stowplan import Plugin`. Generated from the docstrings by",
        "`make docs`. [Plugins](plugins.md) explains how the parts work together.",
    ]
    for title, names in SECTIONS.items():
        lines += ["", f"## {title}"]
        for name in names:
            lines += ["", *describe(name, exports[name])]
    return "\n".join(lines) + "\n"


def describe(name: str, found: griffe.Object | griffe.Alias) -> Iterator[str]:
    thing = found.final_target if isinstance(found, griffe.Alias) else found
    yield f"### `{name}`"
    if isinstance(thing, griffe.Function):
        yield from ("", "```python", signature(thing), "```")
    if thing.docstring:
        yield from ("", thing.docstring.value)
    if isinstance(thing, griffe.Class):
        # Those of a base class in the same module are part of what the class offers.
        inherited = (each.final_target for each in thing.inherited_members.values())  # type: ignore[union-attr]
        members = [*(each for each in inherited if each.module is thing.module), *thing.members.values()]
        for member in filter(is_public, members):
            yield from ("", *describe_member(member))


def is_public(member: griffe.Object | griffe.Alias) -> bool:
    return not member.name.startswith("_") and not member.is_alias and not isinstance(member, griffe.Class)


def describe_member(member: griffe.Object | griffe.Alias) -> Iterator[str]:
    says = member.docstring.value if member.docstring else ""
    if isinstance(member, griffe.Function):
        yield from ("```python", signature(member), "```")
        if says:
            yield from ("", says)
        return
    assert isinstance(member, griffe.Attribute)
    kind = f": {member.annotation}" if member.annotation else f" = {member.value}" if member.value else ""
    yield f"- `{member.name}{kind}`" + (f": {inspect.cleandoc(says)}" if says else "")


def signature(function: griffe.Function) -> str:
    parameters = ", ".join(
        f"{'*' if each.kind is griffe.ParameterKind.var_positional else ''}{each.name}"
        + (f": {each.annotation}" if each.annotation else "")
        + (
            f" = {each.default}"
            if each.default is not None and not str(each.default).startswith("()")
            else ""
        )
        for each in function.parameters
    )
    word = "async def" if "async" in function.labels else "def"
    return f"{word} {function.name}({parameters})" + (f" -> {function.returns}" if function.returns else "")


if __name__ == "__main__":
    PAGE.write_text(page())
