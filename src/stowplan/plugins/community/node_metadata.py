"""NodeMetadata: prefers nodes by a number or a time in one of their labels or annotations.

The best node gets 100, the worst that has a value gets 1. A node whose value is missing or cannot be read
gets 0, is counted in a metric, and is named in decisions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import numpy as np

from stowplan.api.meta import parse_time
from stowplan.config.field_errors import child, invalid, required, unsupported
from stowplan.errors import InputError
from stowplan.framework import CycleState, Handle, Mask, NodeTable, PluginArgs, Pod, Reads, Scores
from stowplan.framework.plugin import ExplainingPlugin
from stowplan.framework.scores import MAX_SCORE

LABEL, ANNOTATION = "Label", "Annotation"
STRATEGIES = {"Number": ("Highest", "Lowest"), "Timestamp": ("Newest", "Oldest")}
RFC3339 = "2006-01-02T15:04:05Z07:00"
NO_VALUE = -(2**63)
MAX_LENGTH = 256
"""Longer texts are no numbers and no times: an annotation may have many thousand characters."""

SHOWN = 3
"""So many nodes without a value are named."""
EXACT_DIGITS = 16
"""A whole number of fewer digits is the same as a float."""

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_RFC3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}([.][0-9]+)?(Z|[+-][0-9:]{5})", re.ASCII)
# What the parts of a Go time layout are to strptime; a longer part comes before one that it starts with.
_PARTS = {
    "January": "%B", "Jan": "%b", "Monday": "%A", "Mon": "%a", "MST": "%Z", "2006": "%Y",
    "Z07:00": "%z", "Z0700": "%z", "-07:00": "%z", "-0700": "%z", "002": "%j",
    "01": "%m", "02": "%d", "03": "%I", "04": "%M", "05": "%S", "06": "%y", "15": "%H", "_2": "%d",
    "PM": "%p", "pm": "%p", "1": "%m", "2": "%d", "3": "%I", "4": "%M", "5": "%S", "%": "%%",
}  # fmt: skip
_PART = re.compile(r"[.,][09]+(?![0-9])|" + "|".join(map(re.escape, _PARTS)))


class NodeMetadataArgs(PluginArgs):
    metadata_key: str = ""
    metadata_source: str = ""
    """Label or Annotation."""
    metadata_type: str = ""
    """Number or Timestamp."""
    scoring_strategy: str = ""
    """Highest or Lowest for a Number, Newest or Oldest for a Timestamp."""
    timestamp_format: str = RFC3339
    """A time layout as the Go language has them: how it would write 2 January 2006, 15:04:05 in UTC-7."""

    def __post_init__(self) -> None:
        self.timestamp_format = self.timestamp_format or RFC3339

    def validate(self, path: str) -> Iterator[str]:
        if not self.metadata_key:
            yield required(child(path, "metadataKey"), "the key of a label or annotation of nodes")
        if self.metadata_source not in (LABEL, ANNOTATION):
            yield unsupported(child(path, "metadataSource"), self.metadata_source, (LABEL, ANNOTATION))
        where = child(path, "scoringStrategy")
        if self.metadata_type not in STRATEGIES:
            yield unsupported(child(path, "metadataType"), self.metadata_type, tuple(STRATEGIES))
            known = tuple(each for strategies in STRATEGIES.values() for each in strategies)
        else:
            known = STRATEGIES[self.metadata_type]
        if self.scoring_strategy not in known:
            yield unsupported(where, self.scoring_strategy, known)
        if not {"%Y", "%y"}.intersection(
            _PARTS.get(part, "") for part in _PART.findall(self.timestamp_format)
        ):
            detail = f"must be a Go time layout with a year, such as {RFC3339}"
            yield invalid(child(path, "timestampFormat"), self.timestamp_format, detail)


class NodeMetadata(ExplainingPlugin):
    args: NodeMetadataArgs
    reads = Reads.NODE

    def __init__(self, args: NodeMetadataArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._format = _strptime_format(args.timestamp_format)
        self._without_value = handle.counter(
            "stowplan_node_metadata_nodes_without_value_total",
            "Nodes that scored 0 since their label or annotation is missing or cannot be read, each time "
            "that scores were worked out.",
        )

    def sign_pod(self, pod: Pod) -> str:
        return ""  # all pods are alike

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        scores = self._points_of(nodes)
        self._without_value[()] += int(np.count_nonzero(scores == NO_VALUE))
        return scores

    def _points_of(self, nodes: NodeTable) -> Scores:
        key = self.args.metadata_key
        if self.args.metadata_source == LABEL:
            label = nodes.label(key)
            points = [self._points(text) for text in label.values]
            return np.array([*points, NO_VALUE], np.int64).take(label.ids)  # -1 is the last
        (live,) = nodes.live.keep((self.serial, "annotations"), self._annotation_points)
        found: Scores = live.copy() if nodes is nodes.live else live.take(nodes.rows)
        return found

    def _annotation_points(self, nodes: NodeTable) -> tuple[Scores]:
        texts = [node.metadata.annotations.get(self.args.metadata_key) for node in nodes.objects]
        by_text = {text: NO_VALUE if text is None else self._points(text) for text in set(texts)}
        return (np.array([by_text[text] for text in texts], np.int64),)

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        if len(scores) and scores.min() > NO_VALUE:
            return _scale(scores)
        known = scores > NO_VALUE
        points = np.zeros(len(scores), np.int64)
        if known.any():
            points[known] = _scale(scores[known])
        return points

    def explain_scores(self, pod: Pod) -> Iterator[str]:
        if text := self._gaps():
            yield text

    def _gaps(self) -> str:
        """What to say about nodes without a value, looked up again only when nodes change."""
        live = self.handle.cluster.nodes

        def compute(part: NodeTable) -> tuple[Mask]:
            return (self._points_of(part) == NO_VALUE,)

        def describe(columns: tuple[Mask]) -> str:
            rows = np.flatnonzero(columns[0])
            if not len(rows):
                return ""
            args = self.args
            what = "number" if args.metadata_type == "Number" else "time"
            where = f"no {what} in {args.metadata_source.lower()} {args.metadata_key} of"
            if len(rows) == len(live):
                return f"{self.name} gives every node 0: it finds {where} any node."
            names, more = ", ".join(live.names[row] for row in rows[:SHOWN].tolist()), len(rows) - SHOWN
            listed = f"{names} and {more} more" if more > 0 else names
            return f"{self.name} finds {where} {listed}: such nodes get 0."

        found: str = live.keep((self.serial, "gaps"), compute, finish=describe)  # type: ignore[arg-type]
        return found

    def _points(self, text: str) -> int:
        """The larger the better; NO_VALUE if the text cannot be read."""
        if len(text) > MAX_LENGTH:
            return NO_VALUE
        if self.args.metadata_type == "Number":
            found = _read_number(text)
        else:
            found = _read_time(text, self._format if self.args.timestamp_format != RFC3339 else "")
        if found is None:
            return NO_VALUE
        return -found if self.args.scoring_strategy in ("Lowest", "Oldest") else found


def _scale(values: Scores) -> Scores:
    """Scores from 1 for the lowest value to 100 for the highest."""
    lowest, highest = int(values.min()), int(values.max())
    if highest - lowest >= 2**63 // MAX_SCORE:
        values = values.astype(object)
    scores = values - lowest
    scores *= MAX_SCORE - 1
    scores //= max(highest - lowest, 1)
    scores += 1
    return scores.astype(np.int64, copy=False)


def _read_number(text: str) -> int | None:
    if len(text) < EXACT_DIGITS and text.isascii() and text.isdecimal():
        return int(text)
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    return int(number) if abs(number) < 2**63 else None


def _read_time(text: str, layout: str) -> int | None:
    """Seconds since 1970; a time without a zone is in UTC."""
    try:
        if layout:
            found = datetime.strptime(text, layout)
            seconds = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        else:
            seconds = parse_time(text) if _RFC3339.fullmatch(text) else math.nan
    except (InputError, ValueError, OverflowError):
        return None
    return math.floor(seconds) if math.isfinite(seconds) else None


def _strptime_format(layout: str) -> str:
    def parts() -> Iterable[str]:
        end = 0
        for match in _PART.finditer(layout):
            yield layout[end : match.start()]
            yield _PARTS.get(match[0], f"{match[0][0]}%f")
            end = match.end()
        yield layout[end:]

    return "".join(parts())
