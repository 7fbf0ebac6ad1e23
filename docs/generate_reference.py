"""Write the pages that are made from the code; `make docs` runs it.

docs/plugin-api.md comes from the docstrings of what `stowplan` exports, docs/cli.md from the help of the
commands, docs/metrics.md from the metrics that a scheduler declares, docs/feature-gates.md from the table of
gates. Tests fail while a page is not what this would write.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import click
import griffe

from stowplan.cli import stowplan
from stowplan.config.gates import CHANGES, GATES, MAX_KNOWN_MINOR, MIN_MINOR
from stowplan.metrics import Metrics

ROOT = Path(__file__).parents[1]
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


def plugin_api() -> str:
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


def command_line() -> str:
    lines = [
        "# Command line",
        "",
        "All commands with their options. Generated from the help texts by `make docs`;",
        "`stowplan COMMAND --help` prints the same. `stowplan run` also takes",
        "[kube-scheduler's flags](operations.md#flags).",
    ]
    context = click.Context(stowplan, info_name="stowplan")
    for name in stowplan.list_commands(context):
        command = stowplan.get_command(context, name)
        assert command is not None
        lines += describe_command(command, f"stowplan {name}", context, "##")
    return "\n".join(lines) + "\n"


def describe_command(command: click.Command, name: str, parent: click.Context, heading: str) -> Iterator[str]:
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    yield from ("", f"{heading} {name}", "")
    text = inspect.cleandoc(command.help or "").replace("\b\n", "").partition("\f")[0].strip()
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield from ("```", usage, "```", "", escape_markup(text))
    if not command.params and not isinstance(command, click.Group):  # parses its flags as kube-scheduler does
        yield from ("", "```", command.get_help(context).strip(), "```")
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if options:
        yield from ("", "| option | meaning |", "|---|---|")
    for option in options:
        flags, says = option.get_help_record(context) or ("", "")
        yield row(f"`{flags}`", escape_markup(" ".join(says.split())))
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            assert inner is not None
            yield from describe_command(inner, f"{name} {each}", context, f"{heading}#")


def escape_markup(text: str) -> str:
    """Keep words in angle brackets and asterisks as they are; what is in backquotes needs nothing."""
    parts = text.split("`")
    for place in range(0, len(parts), 2):
        parts[place] = parts[place].replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
    return "`".join(parts)


def row(*cells: str) -> str:
    """A line of a table; a bar within a cell would end it."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def metrics() -> str:
    lines = [
        "# Metrics",
        "",
        "All families that `/metrics` of a scheduler can have, with their labels. Generated from the code by",
        "`make docs`. Those that begin with `scheduler_` are kube-scheduler's own, with its labels and",
        "buckets; the word in brackets says how stable they are. [Operations](operations.md#monitored)",
        "explains the most useful ones and who may read them.",
        "",
        "| family | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    page = Metrics().page
    for name, family in sorted(page.families.items()):
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(row(f"`{name}`", family.kind, labels, escape_markup(page.text_of(name))))
    return "\n".join(lines) + "\n"


STAGES = {"a": "alpha", "b": "beta", "g": "GA", ".": "–"}
DEFAULTS = {"+": "on", "-": "off", "=": "on, locked", ".": ""}
HANDLING = {
    "both": "follows the gate",
    "on": "always on; `false` has a warning",
    "on!": "always on; `false` is an error",
    "off": "always off; `true` has a warning",
    "off!": "always off; `true` is an error",
}


def feature_gates() -> str:
    minors = range(MIN_MINOR, MAX_KNOWN_MINOR + 1)
    lines = [
        "# Feature gates by Kubernetes version",
        "",
        "The gates that concern a scheduler, with their defaults in each version, and what Stowplan",
        "does with them. Generated from the code by `make docs`. A value of `--feature-gates` that Stowplan",
        "cannot follow is an error if pods would be placed differently than by kube-scheduler, and else",
        "has a warning. [Operations](operations.md#kubernetes-versions) says how the version is chosen.",
        "",
        row("gate", *(f"1.{minor}" for minor in minors), "Stowplan"),
        row(*["---"] * (len(minors) + 2)),
    ]
    for gate in GATES.values():
        stages = map(gate.stage, minors)
        cells = [f"{STAGES[stage[0]]} {DEFAULTS[stage[-1]]}".strip() for stage in stages]
        lines.append(row(f"`{gate.name}`", *cells, HANDLING[gate.handling]))
    lines += [
        "",
        "Changes without a gate. With an API server of an older version, Stowplan undoes them; with",
        "`--emulated-version` it does not, nor does kube-scheduler.",
        "",
        row("since", "change"),
        row("---", "---"),
        *(row(f"1.{since}", text) for since, text in CHANGES.values()),
    ]
    return "\n".join(lines) + "\n"


PAGES = {
    "plugin-api.md": plugin_api,
    "cli.md": command_line,
    "metrics.md": metrics,
    "feature-gates.md": feature_gates,
}

if __name__ == "__main__":
    os.environ["COLUMNS"] = "110"  # help texts are wrapped to the terminal's width
    for name, make in PAGES.items():
        (ROOT / "docs" / name).write_text(make())
