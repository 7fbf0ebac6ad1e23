"""Looks a pod up in a journal on disk, whether or not a scheduler is writing it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stowplan.journal import parquet
from stowplan.journal.files import listed
from stowplan.journal.record import Record

TRIES = 5
OnDamage = Callable[[Path, Exception], None]


def find(directory: Path, pod: str, on_damage: OnDamage) -> list[Record]:
    """The attempts at a pod in the newest file that has some, the newest first.

    `on_damage` hears of files that cannot be read; they are skipped.
    """
    namespace, _, name = pod.partition("/")
    for _ in range(TRIES):
        try:
            for file in reversed(listed(directory)):
                try:
                    found = parquet.find(file.path, namespace, name)
                except FileNotFoundError:
                    raise
                except parquet.DAMAGED as error:
                    on_damage(file.path, error)
                    continue
                if found:
                    return found
            break
        except FileNotFoundError:
            continue  # merged or dropped since it was listed
    return []


def span(directory: Path) -> str:
    """From when to when, in words."""
    files = listed(directory)
    if not files:
        return "there is no decision in it"
    return f"it has those written from {files[0].first} to {files[-1].last}"
