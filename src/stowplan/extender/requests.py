"""Requests to the extender, with their nodes as rows of our own table, and the scores of responses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from stowplan.api.extender import ExtenderArgs, HostPriority, NodeList, read, write
from stowplan.api.meta import decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.cluster.columns import Rows
from stowplan.cluster.live_nodes import LiveNodeTable
from stowplan.errors import InputError

UNKNOWN = "the extender does not know this node"


class _Meta(msgspec.Struct, gc=False):
    name: str = ""


class _Named(msgspec.Struct, gc=False):
    """The part of a node that identifies it."""

    metadata: _Meta = msgspec.field(default_factory=_Meta)


_named = msgspec.json.Decoder(_Named).decode


class ExtenderRequest(NamedTuple):
    """`items` are the nodes as received, if they were sent whole."""

    pod: Pod
    names: list[str]
    items: list[Raw] | None

    @classmethod
    def read(cls, body: bytes) -> ExtenderRequest:
        """Raises InputError."""
        args = read(ExtenderArgs, body)
        pod = pod_of(args.pod)
        if args.node_names is not None:
            return cls(pod, args.node_names, None)
        if args.nodes is None:
            raise InputError("expected Nodes or NodeNames, got neither")
        try:
            names = [_named(item).metadata.name for item in args.nodes.items]
        except msgspec.DecodeError as error:
            raise InputError(f"Nodes.items: {error}") from None
        return cls(pod, names, args.nodes.items)

    def objects(self) -> list[NodeObject] | None:
        """The nodes that came whole."""
        return None if self.items is None else [decode(NodeObject, bytes(item)) for item in self.items]

    def whole(self, places: Sequence[int] | None) -> NodeList | None:
        """These of the nodes, None for all, as they came; nothing where names came."""
        if self.items is None:
            return None
        return NodeList(items=self.items if places is None else [self.items[place] for place in places])


def pod_of(raw: Raw) -> Pod:
    return _pod_of(bytes(raw))


@lru_cache(maxsize=8)  # filter and prioritize come with the same pod
def _pod_of(text: bytes) -> Pod:
    try:
        pod = Pod.decode(text)
    except InputError as error:
        raise InputError(f"Pod: {error}") from None
    if not pod.name:
        raise InputError("Pod: metadata.name is missing")
    return pod


class Places(NamedTuple):
    """Where the names of a request are in our table: `rows[i]` is that of name `places[i]`."""

    rows: Rows
    places: Rows
    unknown: list[str]

    @classmethod
    def of(cls, names: list[str], nodes: LiveNodeTable) -> Places:
        rows = nodes.rows_of(names)
        is_known = rows >= 0
        places = np.flatnonzero(is_known)
        if len(places) == len(names):
            return cls(rows, places, [])
        return cls(rows[places], places, [names[place] for place in np.flatnonzero(~is_known).tolist()])


MAX_LINE_SCORE = 100
SHOWN = 10


class Scored(NamedTuple):
    answer: bytes
    shown: dict[str, int]
    """The scores of the first nodes, for a line of the log."""

    @classmethod
    def of(cls, names: Sequence[str], scores: Sequence[int]) -> Scored:
        lines = [HostPriority(host=name, score=score) for name, score in zip(names, scores, strict=True)]
        return cls(write(lines), dict(zip(names[:SHOWN], scores, strict=False)))


class ScoreLines:
    """Writes the scores of thousands of nodes: the part of a line that names the node is kept."""

    def __init__(self) -> None:
        self._layout = -1
        self._heads: NDArray[Any] = np.empty(0, object)
        self._tails = _objects([f"{score}}}," for score in range(MAX_LINE_SCORE + 1)])

    def format_scores(
        self, nodes: LiveNodeTable, rows: Rows, scores: NDArray[np.int64], unknown: Sequence[str]
    ) -> Scored:
        """The scores as JSON; nodes in `unknown` get 0."""
        if unknown or not len(rows):
            names = [nodes.names[row] for row in rows.tolist()]
            return Scored.of([*names, *unknown], [*scores.tolist(), *(0 for _ in unknown)])
        if self._layout != nodes.layout:
            self._layout = nodes.layout
            self._heads = _objects([f'{{"Host":"{name}","Score":' for name in nodes.names])
        pieces = np.empty(2 * len(rows), object)
        pieces[0::2], pieces[1::2] = self._heads[rows], self._tails[scores]
        shown = {nodes.names[row]: int(score) for row, score in zip(rows[:SHOWN], scores, strict=False)}
        return Scored(f"[{''.join(pieces.tolist())[:-1]}]".encode(), shown)


def _objects(texts: list[str]) -> NDArray[Any]:
    found = np.empty(len(texts), object)
    found[:] = texts
    return found
