"""Every command of ours that README.md and docs/ print exists, with the options and targets it is given."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from stowplan.cli import stowplan
from stowplan.scheduler.flag_parser import read
from stowplan.scheduler.flags import FLAGS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {ROOT / "docs" / "cli.md"})]
BLOCK = re.compile(r"^( *)```(?:console|shell|bash|)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(r"^\s*(?:\$ )?(?:\w+=\S* )*((?:\.venv/bin/)?stowplan|make|(?:\.venv/bin/)?python) (.*)")
END = {"|", ">", ">>", "&&", "||", "&", "<", "<<", "2>", ";"}
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def documented() -> Iterator[tuple[str, str, str]]:
    """The page, the program and the rest of the line."""
    for page in PAGES:
        text = page.read_text()
        blocks = [found[2] for found in BLOCK.finditer(text)]
        blocks += re.findall(r"(?:^    \S.*\n)+", text, re.MULTILINE)
        for block in (each.replace("\\\n", " ") for each in blocks):
            if "$ " in block:  # what is not behind a prompt is output
                block = "\n".join(line for line in block.splitlines() if line.lstrip().startswith("$ "))
            for line in block.splitlines():
                if found := PROMPT.match(line):
                    yield page.relative_to(ROOT).as_posix(), Path(found[1]).name, found[2]


def words_of(text: str) -> list[str]:
    """The arguments, up to a comment, a pipe, or the explanation behind two spaces."""
    text = re.split(r"\s{3,}(?=[^-\s])|\s+#\s", text)[0]
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split, lexer.commenters = True, ""
    found = []
    for word in lexer:
        if word in END or word == "…":
            break
        found.append(word)
    return found


COMMANDS = sorted(set(documented()))


@pytest.mark.parametrize(
    ("page", "line"), [(page, line) for page, name, line in COMMANDS if name == "stowplan"]
)
def test_commands_have_the_options_they_are_given(page: str, line: str) -> None:
    words, command, context = words_of(line), stowplan, click.Context(stowplan, info_name="stowplan")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        if words[0] in ("COMMAND", "…"):
            return
        assert inner is not None, f"{page}: stowplan {line}: no command {words[0]!r}"
        command, words = inner, words[1:]  # type: ignore[assignment]
        context = click.Context(command, info_name=command.name, parent=context)
    if command.name == "run":
        read(words, FLAGS, "stowplan run")
        return
    flags = {"-h", "--help", "--version"}
    inside = command.commands.values() if isinstance(command, click.Group) else ()
    params = (each for one in (command, *inside) for each in one.params)
    flags |= {flag for each in params for flag in (*each.opts, *each.secondary_opts)}
    if command.context_settings.get("ignore_unknown_options"):
        flags |= {f"--{name}" for name in FLAGS}
    for word in words:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        known = not word.startswith("-") or word == "-" or name in flags
        assert known, f"{page}: stowplan {line}: no option {name}"


@pytest.mark.parametrize(("page", "line"), [(page, line) for page, name, line in COMMANDS if name == "make"])
def test_targets_exist(page: str, line: str) -> None:
    targets = [word for word in words_of(line) if "=" not in word and not word.startswith("-")]
    assert set(targets) <= TARGETS, f"{page}: make {line}"


SCRIPTS = sorted({(page, line) for page, name, line in COMMANDS if name == "python" and ".py" in line})


@pytest.mark.parametrize(
    "script", sorted({words_of(line)[0] for _, line in SCRIPTS if line.startswith(("benchmarks/", "docs/"))})
)
def test_scripts_have_the_options_they_are_given(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    monkeypatch.syspath_prepend(ROOT / Path(script).parent)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert not ended.value.code
    printed = capsys.readouterr().out
    for page, line in SCRIPTS:
        words = words_of(line)
        if words[0] == script:
            for word in words[1:]:
                name = word.partition("=")[0]
                assert not word.startswith("--") or f"{name}" in printed, f"{page}: python {line}: no {name}"
