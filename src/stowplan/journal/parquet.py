"""Parquet files of decisions: columns for queries, and all evidence as bytes for `stowplan explain`.

The columns are derived from the fields of Record; `standings.py` adds those that summarize the evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import missing_extra
from stowplan.framework.status import Status
from stowplan.journal.codec import LEAVES, GroupReader, GroupWriter, Interned
from stowplan.journal.record import Record, UnixTime
from stowplan.journal.standings import Standing, Standings

try:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]
except ImportError:
    raise missing_extra("a journal", "pyarrow", "journal") from None

DAMAGED = Exception
"""What reading a damaged file may raise: anything, because a flipped bit may be in any part of it."""
FORMAT_KEY, FORMAT = "stowplan.journal", "3"
GROUP_BYTES = 2**23
"""A group with so much evidence gets no more rows: reading and merging hold one group in memory."""
SIMPLE = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    UnixTime: pa.timestamp("us", "UTC"),
    Status: pa.string(),
}


def arrow_type(kind: object) -> pa.DataType | None:
    """The type of the column for a field; None if the field is stored only in the evidence."""
    origin, args = get_origin(kind), [each for each in get_args(kind) if each is not NoneType]
    if kind in SIMPLE:
        return SIMPLE[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return pa.string()
    if origin in (Union, UnionType) and len(args) == 1:
        return arrow_type(args[0])
    if origin in (tuple, list) and (inner := arrow_type(args[0])):
        return pa.list_(pa.field("element", inner))
    if origin in (Mapping, dict) and args[0] is str:
        return pa.map_(pa.string(), arrow_type(args[1]))
    if isinstance(kind, type) and hasattr(kind, "_fields"):
        types = {name: arrow_type(each) for name, each in get_type_hints(kind).items()}
        return pa.struct(types) if all(types.values()) else None
    return None


COLUMNS = {name: kind for name, leaf in LEAVES.items() if (kind := arrow_type(leaf.kind)) and name != "size"}
STANDING = {name: arrow_type(kind) for name, kind in get_type_hints(Standing).items()}
SCHEMA = pa.schema([*COLUMNS.items(), *STANDING.items(), ("evidence", pa.binary())])
DICTIONARY = [name for name in SCHEMA.names if name not in ("evidence", "uid")]
"""Columns in which values recur."""


class FormatError(Exception):
    pass


class DamagedFileError(Exception):
    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(str(error))
        self.path = path


def groups_of(records: Iterable[Record]) -> Iterator[pa.Table]:
    """Tables, each of which can be read alone."""
    group, rows, evidence, size = GroupWriter(), list[Record](), list[bytes](), 0
    for record in records:
        rows.append(record)
        evidence.append(group.encode(record))
        size += len(evidence[-1])
        if size >= GROUP_BYTES:
            yield _table(rows, evidence)
            group, rows, evidence, size = GroupWriter(), [], [], 0
    if rows:
        yield _table(rows, evidence)


def _table(rows: list[Record], evidence: list[bytes]) -> pa.Table:
    columns: dict[str, object] = {
        name: _array(map(LEAVES[name].get, rows), kind) for name, kind in COLUMNS.items()
    }
    standings = zip(*map(Standings().summarize, rows), strict=True)
    for (name, kind), values in zip(STANDING.items(), standings, strict=True):
        columns[name] = _array(values, kind)
    return pa.table({**columns, "evidence": _binary(evidence)}, schema=SCHEMA)


def _array(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    """Nested values are taken apart here: Arrow would need a dict for each, and block all threads longer."""
    values = list(values)
    if pa.types.is_timestamp(kind):
        return pa.array([int(each * 1e6) for each in values], kind)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(
            _offsets(values), _array(chain.from_iterable(values), kind.value_type)
        )
    if pa.types.is_map(kind):
        keys, items = (chain.from_iterable(each) for each in ([*values], [each.values() for each in values]))
        return pa.MapArray.from_arrays(
            _offsets(values), _array(keys, kind.key_type), _array(items, kind.item_type)
        )
    if pa.types.is_struct(kind):
        parts = zip(*values, strict=True) if values else [()] * kind.num_fields
        arrays = [_array(part, field.type) for part, field in zip(parts, kind, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=list(kind))
    if any(isinstance(each, Status) for each in values):
        values = [each and f"{each.plugin}: {each.message}" for each in values]
    return pa.array(values, kind)


def _offsets(values: list[Any]) -> pa.Array:
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.Array.from_buffers(pa.int32(), len(ends), [None, pa.py_buffer(ends)])


def _binary(rows: list[bytes]) -> pa.Array:
    """Arrow would take several times as long to convert the list, and block all threads meanwhile."""
    ends = _offsets(rows).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), len(rows), [None, ends, pa.py_buffer(b"".join(rows))])


def write(path: Path, groups: Iterable[pa.Table]) -> None:
    with pq.ParquetWriter(
        path,
        SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=DICTIONARY,
        write_page_checksum=True,
        store_schema=False,  # other tools do not need it, and files are opened faster without
    ) as writer:
        writer.add_key_value_metadata({FORMAT_KEY: FORMAT})
        for group in groups:
            writer.write_table(group, row_group_size=max(len(group), 1))


def find(path: Path, pod: str) -> list[Record]:
    """The decisions on a pod in one file, the newest first. A damaged file raises DAMAGED."""
    found: list[Record] = []
    with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=["pod"]) as file:
        _check_format(file)
        for number in range(file.num_row_groups):
            rows = _rows_of(file, number, pod)
            if rows.any():
                evidence = file.read_row_group(number, columns=["evidence"])["evidence"].combine_chunks()
                found += _decode_rows(evidence, np.flatnonzero(rows).tolist())
    return found[::-1]


def find_group(path: Path, group: str) -> list[Record]:
    """The decisions on the members of a pod group in one file, the newest first."""
    found: list[Record] = []
    start = f"Decided with pod group {group}: "
    with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=["group"]) as file:
        _check_format(file)
        for number in range(file.num_row_groups):
            coded = file.read_row_group(number, columns=["group"], use_threads=False)["group"]
            coded = coded.combine_chunks()
            texts = coded.dictionary.to_pylist()
            named = [at for at, text in enumerate(texts) if text.startswith(start)]
            rows = np.flatnonzero(np.isin(coded.indices.to_numpy(), named)).tolist()
            if rows:
                evidence = file.read_row_group(number, columns=["evidence"])["evidence"].combine_chunks()
                found += _decode_rows(evidence, rows)
    return found[::-1]


def _decode_rows(evidence: pa.Array, rows: list[int]) -> list[Record]:
    reader = GroupReader(lambda row: evidence[row].as_py())
    return [reader.record(row) for row in rows]


def _check_format(file: pq.ParquetFile) -> None:
    found = (file.metadata.metadata or {}).get(FORMAT_KEY.encode(), b"none").decode()
    if found != FORMAT:
        raise FormatError(
            f"its format is {found}, and this version of stowplan reads only {FORMAT}: "
            "use the version that wrote the file, or delete it"
        )


def _rows_of(file: pq.ParquetFile, group: int, pod: str) -> NDArray[np.bool_]:
    """A mask of the rows of a pod. Arrow's own functions for this take long to import."""
    coded = file.read_row_group(group, columns=["pod"], use_threads=False)["pod"].combine_chunks()
    data = coded.dictionary.buffers()[-1]
    # Most groups lack the pod: searching their bytes is faster than making strings of them.
    may_have = data is not None and pod.encode(errors="surrogatepass") in data.to_pybytes()
    texts = coded.dictionary.to_pylist() if may_have else []
    mask: NDArray[np.bool_] = coded.indices.to_numpy() == (texts.index(pod) if pod in texts else -1)
    return mask


def merge_groups(paths: Iterable[Path], pause: Callable[[], None]) -> Iterator[pa.Table]:
    """The groups of all files in order: large ones as they are, consecutive small ones joined.

    One group at a time is in memory, and `pause` is called before each. A file that cannot be read raises
    DamagedFileError.
    """
    joined = _JoinedGroup()
    for path in paths:
        for group in _groups_in(path):
            pause()
            is_small = group["evidence"].nbytes < GROUP_BYTES // 2
            if is_small:
                with _name_damaged_file(path):
                    joined.add(group)
            if joined.bytes >= (GROUP_BYTES if is_small else 1):
                yield joined.table()
                joined = _JoinedGroup()
            if not is_small:
                yield group
    if joined.bytes:
        yield joined.table()


def _groups_in(path: Path) -> Iterator[pa.Table]:
    with _name_damaged_file(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        _check_format(file)
        if not file.schema_arrow.equals(SCHEMA):
            raise FormatError(f"its columns are {file.schema_arrow.names}, not those of a journal")
        for number in range(file.num_row_groups):
            yield file.read_row_group(number, use_threads=False)


@contextmanager
def _name_damaged_file(path: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        raise DamagedFileError(path, error) from error


class _JoinedGroup:
    """Small groups as one, in which what several of them hold is held once."""

    def __init__(self) -> None:
        self.bytes = 0
        self._tables: list[pa.Table] = []
        self._evidence: list[bytes] = []
        self._writer = GroupWriter()
        self._interned: Interned = {}

    def add(self, group: pa.Table) -> None:
        rows = group["evidence"].to_pylist()
        reader = GroupReader(rows.__getitem__, self._interned)
        moved = [self._writer.encode(reader.record(row)) for row in range(len(rows))]
        self._tables.append(group.drop_columns("evidence"))
        self._evidence += moved
        self.bytes += sum(map(len, moved))

    def table(self) -> pa.Table:
        return pa.concat_tables(self._tables).append_column(SCHEMA.field("evidence"), _binary(self._evidence))
