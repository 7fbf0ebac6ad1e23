"""Parquet files of decisions: a row for each, with what is asked for most, and all evidence as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError
from stowplan.journal.record import Record
from stowplan.journal.stored import GroupReader, GroupWriter

try:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]
except ImportError:
    raise InputError(
        "a journal needs pyarrow, which is not installed; install it with: pip install 'stowplan[journal]'"
    ) from None

DAMAGED = (pa.ArrowException, msgspec.MsgspecError, OSError, ValueError, LookupError)
"""What reading a damaged file may raise."""
SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us", "UTC")),
        ("seconds", pa.float64()),
        ("namespace", pa.string()),
        ("pod", pa.string()),
        ("uid", pa.string()),
        ("profile", pa.string()),
        ("attempt", pa.int32()),
        ("outcome", pa.string()),
        ("node", pa.string()),
        ("nominated", pa.string()),
        ("message", pa.string()),
        ("nodes", pa.int32()),
        ("refused_by", pa.list_(pa.string())),
        ("evidence", pa.binary()),
    ],
    metadata={"stowplan.journal": "1"},
)
KEY = ["namespace", "pod"]
PLAIN = ["evidence", "uid"]
"""Columns in which hardly any value comes twice."""


def table_of(records: Iterable[Record]) -> pa.Table:
    """One group."""
    group, rows = GroupWriter(), list(records)
    columns: dict[str, list[Any]] = {
        "time": [int(each.attempt.time * 1e6) for each in rows],
        "seconds": [each.attempt.seconds for each in rows],
        "namespace": [each.pod.namespace for each in rows],
        "pod": [each.pod.name for each in rows],
        "uid": [each.pod.uid for each in rows],
        "profile": [each.attempt.profile for each in rows],
        "attempt": [each.attempt.number for each in rows],
        "outcome": [each.attempt.outcome.value for each in rows],
        "node": [each.node or None for each in rows],
        "nominated": [each.nominated or None for each in rows],
        "message": [each.attempt.message for each in rows],
        "nodes": [each.node_count for each in rows],
        "refused_by": [[part.plugin for part in each.filters] for each in rows],
        "evidence": [group.encoded(each) for each in rows],
    }
    return pa.table(columns, schema=SCHEMA)


def write(path: Path, groups: Iterable[pa.Table]) -> None:
    dictionary = [name for name in SCHEMA.names if name not in PLAIN]
    with pq.ParquetWriter(
        path,
        SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=dictionary,
        write_page_checksum=True,
    ) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=max(len(group), 1))


def groups_in(path: Path) -> Iterator[pa.Table]:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number)


def records_in(group: pa.Table) -> list[Record]:
    reader = _reader(group)
    return [reader.record(row) for row in range(len(group))]


def find(path: Path, namespace: str, name: str) -> list[Record]:
    """The decisions on a pod in one file, the newest first. Raises one of DAMAGED for a file that is."""
    found: list[Record] = []
    with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=KEY) as file:
        for number in range(file.num_row_groups):
            names = file.read_row_group(number, columns=KEY)
            rows = np.flatnonzero(_is(names["pod"], name) & _is(names["namespace"], namespace)).tolist()
            if rows:
                reader = _reader(file.read_row_group(number, columns=["evidence"]))
                found += [reader.record(row) for row in rows]
    return found[::-1]


def _is(column: pa.ChunkedArray, text: str) -> NDArray[np.bool_]:
    """Where a column read as a dictionary has the text. Arrow's own way takes a while to be imported."""
    coded = column.combine_chunks()
    texts = coded.dictionary.to_pylist()
    mask: NDArray[np.bool_] = coded.indices.to_numpy() == (texts.index(text) if text in texts else -1)
    return mask


def _reader(group: pa.Table) -> GroupReader:
    evidence = group["evidence"].combine_chunks()
    return GroupReader(lambda row: evidence[row].as_py())
