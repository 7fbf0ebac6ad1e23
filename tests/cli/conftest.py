"""What tests of several commands share: running one, and writing its files."""

from __future__ import annotations

import io
import sys
from typing import NamedTuple

import pytest

from stowplan.cli import main


class Run(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """On a busy machine the caches are cold, and searches for changes take more CPU time than they may."""
    monkeypatch.setattr("stowplan.explain.smallest_changes.SECONDS", 60.0)


@pytest.fixture
def run_stowplan(monkeypatch, capsys):
    """Runs `stowplan` with the words given, in this process."""

    def run(*words, stdin=""):
        monkeypatch.setattr(sys, "argv", ["stowplan", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main()
        return Run(ended.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def file(tmp_path):
    def write(text, name="objects.yaml"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write
