"""Parquet files of decisions: a row for each, with what is asked for most, and all evidence as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

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

DAMAGED = Exception
"""What reading a damaged file may raise: anything, since a bit that flipped may be any part of it."""
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
GROUP_BYTES = 2**23
"""A group with so much evidence gets no more rows: what reads or merges files has one in memory at a time."""
KEY = ["namespace", "pod"]
PLAIN = ["evidence", "uid"]
"""Columns in which hardly any value comes twice."""


def groups_of(records: Iterable[Record]) -> Iterator[pa.Table]:
    """Tables of which each can be read alone."""
    group, rows, evidence, size = GroupWriter(), list[Record](), list[bytes](), 0
    for record in records:
        rows.append(record)
        evidence.append(group.encoded(record))
        size += len(evidence[-1])
        if size >= GROUP_BYTES:
            yield _table(rows, evidence)
            group, rows, evidence, size = GroupWriter(), [], [], 0
    if rows:
        yield _table(rows, evidence)


def _table(rows: list[Record], evidence: list[bytes]) -> pa.Table:
    columns: dict[str, Any] = {
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
        "evidence": _binary(evidence),
    }
    return pa.table(columns, schema=SCHEMA)


def with_evidence(tables: list[pa.Table], evidence: list[bytes]) -> pa.Table:
    """Tables without any made one that has it."""
    return pa.concat_tables(tables).append_column(SCHEMA.field("evidence"), _binary(evidence))


def _binary(rows: list[bytes]) -> pa.Array:
    """Arrow makes one of a list, too, but takes several times as long, in which no other thread goes on."""
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(rows))]
    )


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
            yield file.read_row_group(number, use_threads=False)


def find(path: Path, namespace: str, name: str) -> list[Record]:
    """The decisions on a pod in one file, the newest first. Raises DAMAGED for a file that is."""
    found: list[Record] = []
    with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=KEY) as file:
        for number in range(file.num_row_groups):
            rows = _where(file, number, "pod", name)
            if rows.any():
                rows &= _where(file, number, "namespace", namespace)
            if rows.any():
                reader = _reader(file.read_row_group(number, columns=["evidence"]))
                found += [reader.record(row) for row in np.flatnonzero(rows).tolist()]
    return found[::-1]


def _where(file: pq.ParquetFile, group: int, column: str, text: str) -> NDArray[np.bool_]:
    """Rows of which a column has the text. Arrow's own way takes a while to be imported."""
    coded = file.read_row_group(group, columns=[column], use_threads=False)[column].combine_chunks()
    data = coded.dictionary.buffers()[-1]
    # Most groups lack a pod's name: to look through their bytes is faster than to make strings of them.
    may_have = data is not None and text.encode(errors="surrogatepass") in data.to_pybytes()
    texts = coded.dictionary.to_pylist() if may_have else []
    mask: NDArray[np.bool_] = coded.indices.to_numpy() == (texts.index(text) if text in texts else -1)
    return mask


def _reader(group: pa.Table) -> GroupReader:
    evidence = group["evidence"].combine_chunks()
    return GroupReader(lambda row: evidence[row].as_py())
