"""Files of a journal damaged at random: each is read as it was, or said to be damaged."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from keeping_decisions import records_of
from test_journal_files import decisions, write

from stowplan.journal import parquet, reader
from stowplan.journal.files import list_files

TIMES = 60


def flip_bits(data: bytearray, draw: random.Random) -> bytes:
    for _ in range(draw.choice([1, 1, 2, 8, 64])):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def cut(data: bytearray, draw: random.Random) -> bytes:
    return bytes(data[: draw.randrange(len(data))])


def overwrite(data: bytearray, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    data[at : at + draw.randrange(200)] = draw.randbytes(draw.randrange(200))
    return bytes(data)


def spoil_footer(data: bytearray, draw: random.Random) -> bytes:
    for _ in range(draw.choice([1, 2, 4])):
        data[-1 - draw.randrange(min(len(data), 3000))] = draw.randrange(256)
    return bytes(data)


@pytest.mark.parametrize("damage", [flip_bits, cut, overwrite, spoil_footer])
def test_damage_is_said_or_does_no_harm(tmp_path, damage: Callable[[bytearray, random.Random], bytes]):
    write(tmp_path, records_of(list(decisions(12))))
    file, draw, named = list_files(tmp_path)[0].path, random.Random(36), 0
    whole = file.read_bytes()
    for _ in range(TIMES):
        file.write_bytes(damage(bytearray(whole), draw))
        said: list[Exception] = []
        for record in reader.find(tmp_path, "default/p3", lambda path, error, said=said: said.append(error)):
            assert record.decision().pod.name
        with suppress(parquet.DamagedFileError):
            list(parquet.merge_groups([file], lambda: None))
        named += len(said)
    assert named
