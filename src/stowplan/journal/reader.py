"""Looks up a pod in a journal on disk, whether or not a scheduler is writing to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stowplan.journal import parquet
from stowplan.journal.files import list_files
from stowplan.journal.record import Record

MAX_ATTEMPTS = 5
OnDamage = Callable[[Path, Exception], None]


def find(directory: Path, pod: str, on_damage: OnDamage) -> list[Record]:
    """The attempts at a pod in the newest file that has any, the newest first.

    Files that cannot be read are skipped and passed to `on_damage`.
    """
    return _find(directory, lambda path: parquet.find(path, pod), on_damage)


def find_group(directory: Path, group: str, on_damage: OnDamage) -> list[Record]:
    """The same for the members of a pod group that were decided with it."""
    return _find(directory, lambda path: parquet.find_group(path, group), on_damage)


def _find(directory: Path, find_in: Callable[[Path], list[Record]], on_damage: OnDamage) -> list[Record]:
    for _ in range(MAX_ATTEMPTS):
        try:
            for file in reversed(list_files(directory)):
                try:
                    found = find_in(file.path)
                except FileNotFoundError:
                    raise
                except parquet.DAMAGED as error:
                    on_damage(file.path, error)
                    continue
                if found:
                    return found
            break
        except FileNotFoundError:
            continue  # merged or deleted since it was listed
    return []


def describe_span(directory: Path) -> str:
    files = list_files(directory)
    if not files:
        return "the journal is empty"
    return f"the journal has decisions written from {files[0].first} to {files[-1].last}"
