"""Carries out a Dockerfile without containers: each stage's file system is a folder.

Absolute paths are read as paths in that folder, so that a step finds nothing but what steps before it made.
Of the base image only Python is there.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

_ABSOLUTE = re.compile(r"(?<![\w./*])/(?=\w)")


class Stage:
    def __init__(self, folder: Path, python: Path) -> None:
        self.folder, self.work = folder, folder
        self.environment = {"PATH": f"{folder / 'usr/bin'}:/usr/bin:/bin"}
        self.command: list[str] = []
        (folder / "usr/bin").mkdir(parents=True)
        (folder / "usr/bin/python").symlink_to(python)
        pip = folder / "usr/bin/pip"
        pip.write_text(f'#!/bin/sh\nexec {python} -m pip "$@"\n')
        pip.chmod(0o755)

    def inside(self, text: str) -> str:
        """The text with its absolute paths as they are out here."""
        return _ABSOLUTE.sub(f"{self.folder}/", text)

    def path(self, text: str) -> Path:
        return self.folder / text.lstrip("/") if text.startswith("/") else self.work / text


def build(dockerfile: Path, folder: Path, python: Path) -> Stage:
    """The last stage, all its steps done."""
    stages: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    stage: Stage | None = None
    for word, rest in _instructions(dockerfile.read_text()):
        if word == "ARG":
            name, _, value = _expand(rest, arguments).partition("=")
            arguments[name] = value
        elif word == "FROM":
            image, _, name = _expand(rest, arguments).partition(" AS ")
            assert re.fullmatch(r"python:3\.\d+-slim", image), image
            stage = stages[name or "last"] = Stage(folder / (name or "last"), python)
        else:
            assert stage is not None, f"{word} before any FROM"
            _carry_out(word, rest, stage, stages, dockerfile.parent)
    assert stage is not None
    return stage


def _expand(text: str, arguments: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], text)


def _instructions(text: str) -> list[tuple[str, str]]:
    lines = re.sub(r"\\\n", " ", text).splitlines()
    found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in found]


def _carry_out(word: str, rest: str, stage: Stage, stages: dict[str, Stage], context: Path) -> None:
    if word == "WORKDIR":
        stage.work = stage.path(rest)
        stage.work.mkdir(parents=True, exist_ok=True)
    elif word == "COPY":
        _copy(shlex.split(rest), stage, stages, context)
    elif word == "RUN":
        # The machine's own settings, such as where pip finds packages, count as those of whoever builds.
        environment = {**os.environ, **stage.environment}
        subprocess.run(["sh", "-ec", stage.inside(rest)], cwd=stage.work, env=environment, check=True)
    elif word == "ENV":
        for each in shlex.split(rest):
            name, _, value = each.partition("=")
            old = stage.environment.get(name, "")
            stage.environment[name] = stage.inside(value).replace(f"${name}", old)
    elif word == "CMD":
        stage.command = json.loads(rest)
    else:
        raise AssertionError(f"{word} is not carried out here: teach it, or leave it out of the Dockerfile")


def _copy(words: list[str], stage: Stage, stages: dict[str, Stage], context: Path) -> None:
    source = context
    if words[0].startswith("--from="):
        source = stages[words.pop(0).removeprefix("--from=")].folder
    *patterns, target_name = words
    target = stage.path(target_name)
    for pattern in patterns:
        found = [Path(each) for each in glob.glob(str(source / pattern.lstrip("/")))]
        assert found, f"COPY: there is no {pattern}"
        for each in found:
            if each.is_dir():
                shutil.copytree(each, target, dirs_exist_ok=True, symlinks=True)
                _move_paths(target, source, stage.folder)
            elif target_name.endswith("/"):
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(each, target / each.name)
            else:
                shutil.copy(each, target)


def _move_paths(folder: Path, old: Path, new: Path) -> None:
    """Make what names the old stage's folder name the new one: inside containers both are the same path."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            target = os.readlink(path)
            if target.startswith(str(old)):
                path.unlink()
                path.symlink_to(target.replace(str(old), str(new)))
        elif path.parent.name == "bin" or path.name == "pyvenv.cfg":
            text = path.read_bytes()
            path.write_bytes(text.replace(bytes(old), bytes(new)))
