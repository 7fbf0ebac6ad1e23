"""Compares replays of one trace: their measures, the decisions that differ, and conditions that must not
hold."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from operator import attrgetter, eq, ge, gt, le, lt, ne
from typing import Any, NamedTuple

from stowplan.errors import InputError
from stowplan.explain.layout import table
from stowplan.replay.results import PodResult, Results, Sample

COMPARISONS = {">": gt, ">=": ge, "<": lt, "<=": le, "==": eq, "!=": ne}
_CONDITION = re.compile(r"\s*([\w./-]+)\s*(>=|<=|==|!=|>|<)\s*([+-]?)(\d+(?:\.\d+)?)\s*(%?)\s*")
DIFFERENCES_SHOWN = 20
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
PLOT_WIDTH, PLOT_HEIGHT, MARGIN = 520, 180, 42


class Condition(NamedTuple):
    """`waiting.p95 > +10%`: a measure of a configuration, or its change against the first one."""

    text: str
    metric: str
    operator: str
    limit: float
    is_change: bool
    is_percent: bool

    @classmethod
    def parse(cls, text: str) -> Condition:
        match = _CONDITION.fullmatch(text)
        if match is None:
            said = "expected a condition such as 'waiting.p95 > +10%', 'evictions > +0' or 'pods.pending > 5'"
            raise InputError(said, where="--fail-if", what=text)
        metric, operator, sign, number, percent = match.groups()
        limit = float(number) * (-1 if sign == "-" else 1)
        return cls(text, metric, operator, limit, bool(sign or percent), bool(percent))

    def holds(self, base: Mapping[str, float], other: Mapping[str, float]) -> bool:
        if self.metric not in other or self.metric not in base:
            known = ", ".join(other)
            raise InputError(
                f"unknown metric {self.metric!r}; there is {known}", where="--fail-if", what=self.text
            )
        value = other[self.metric]
        if self.is_change:
            value = change_of(base[self.metric], value) if self.is_percent else value - base[self.metric]
        return bool(COMPARISONS[self.operator](value, self.limit))


def change_of(before: float, after: float) -> float:
    """In percent; infinite if there was nothing before."""
    if before:
        return 100 * (after - before) / abs(before)
    return 0.0 if after == before else math.copysign(math.inf, after - before)


class Difference(NamedTuple):
    """A pod that is on another node, or none, in another replay."""

    uid: str
    key: str
    pods: tuple[PodResult | None, ...]
    """One for each replay."""
    kind: str


class Comparison:
    """Replays by name; the first is what the others are compared with."""

    def __init__(self, results: Mapping[str, Results]) -> None:
        self.results = dict(results)
        self.metrics = {name: each.metrics() for name, each in self.results.items()}
        self.differences = self._differences()
        self.explanations: dict[str, dict[str, str]] = {}
        """By pod and name of the replay."""

    @property
    def names(self) -> list[str]:
        return list(self.results)

    def _differences(self) -> list[Difference]:
        by_id = [{pod.uid: pod for pod in each.pods} for each in self.results.values()]
        known = {uid: pod for pods in reversed(by_id) for uid, pod in pods.items()}
        found = []
        for uid, pod in known.items():
            pods = tuple(each.get(uid) for each in by_id)
            if len({_node(each) for each in pods}) > 1:
                found.append(Difference(uid, f"{pod.namespace}/{pod.name}", pods, _kind_of(pods)))
        return sorted(found, key=lambda each: (known[each.uid].arrived, each.key))

    def failing(self, conditions: Sequence[Condition]) -> list[str]:
        """The conditions that hold, and for which replay."""
        first, *others = self.names
        return [
            f"{name}: {condition.text}"
            for condition in conditions
            for name in others or [first]
            if condition.holds(self.metrics[first], self.metrics[name])
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "metrics": self.metrics,
            "differences": [
                {
                    "pod": each.key,
                    "uid": each.uid,
                    "kind": each.kind,
                    "nodes": dict(zip(self.names, map(_node, each.pods), strict=True)),
                    **(
                        {"explanations": self.explanations[each.uid]} if each.uid in self.explanations else {}
                    ),
                }
                for each in self.differences
            ],
        }

    def as_text(self) -> str:
        first = self.metrics[self.names[0]]
        rows = [(name, *self._cells(name)) for name in first]
        lines = [*table([("METRIC", *self.names)], rows), ""]
        total = len(self.results[self.names[0]].pods)
        lines.append(f"{len(self.differences):,} of {total:,} pods have another node.")
        if self.differences:
            shown = [
                (each.key, *(_node(pod) or "none" for pod in each.pods), each.kind)
                for each in self.differences[:DIFFERENCES_SHOWN]
            ]
            lines += ["", *table([("POD", *self.names, "BECAUSE OF")], shown)]
        if len(self.differences) > DIFFERENCES_SHOWN:
            lines.append(
                f"and {len(self.differences) - DIFFERENCES_SHOWN:,} more; -o json and --html list all"
            )
        keys = {each.uid: each.key for each in self.differences}
        for uid, by_name in self.explanations.items():
            for name, text in by_name.items():
                lines += ["", f"{keys[uid]} with {name}:", text]
        return "\n".join(lines)

    def _cells(self, metric: str) -> list[str]:
        base, cells = self.metrics[self.names[0]].get(metric, 0.0), []
        for place, name in enumerate(self.names):
            value = self.metrics[name].get(metric, 0.0)
            change = change_of(base, value)
            extra = f" ({change:+.1f} %)" if place and math.isfinite(change) and round(change, 1) else ""
            cells.append(f"{number_text(value)}{extra}")
        return cells

    def as_html(self, title: str) -> str:
        """A page that needs nothing else."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.names)
        rows = "".join(
            f"<tr><td>{escape(name)}</td>"
            + "".join(f"<td>{cell}</td>" for cell in self._cells(name))
            + "</tr>"
            for name in self.metrics[self.names[0]]
        )
        pods = "".join(self._html_row(each) for each in self.differences)
        total = len(self.results[self.names[0]].pods)
        return (
            f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
            f"<style>{_STYLE}</style><h1>{escape(title)}</h1><table><tr><th>Metric</th>{head}</tr>{rows}</table>"
            f"<h2>Over time</h2><div>{''.join(self._plots())}</div>"
            f"<h2>Decisions that differ</h2>"
            f"<p>{len(self.differences):,} of {total:,} pods have another node.</p>"
            f"<table><tr><th>Pod</th>{head}<th>Because of</th></tr>{pods}</table></html>\n"
        )

    def _html_row(self, each: Difference) -> str:
        cells = "".join(f"<td>{escape(_node(pod) or 'none')}</td>" for pod in each.pods)
        row = f"<tr><td>{escape(each.key)}</td>{cells}<td>{escape(each.kind)}</td></tr>"
        texts = self.explanations.get(each.uid)
        if texts:
            inner = "".join(
                f"<h3>{escape(name)}</h3><pre>{escape(text)}</pre>" for name, text in texts.items()
            )
            why = f"<details><summary>Why</summary>{inner}</details>"
            row += f"<tr><td colspan={len(self.names) + 2}>{why}</td></tr>"
        return row

    def _plots(self) -> list[str]:
        samples = {name: each.samples for name, each in self.results.items()}
        resources = dict.fromkeys(
            name for each in samples.values() for sample in each for name in sample.allocated
        )
        series: dict[str, Callable[[Sample], float]] = {}
        for resource in resources:
            series[f"Allocated {resource}, %"] = partial(_percent, "allocated", resource)
            unused = f"Free {resource} that typical pods cannot use, %"
            series[unused] = partial(_percent, "fragmented", resource)
        series["Pods pending"] = attrgetter("pending")
        series["Nodes in use"] = attrgetter("nodes_used")
        series["Imbalance of nodes (coefficient of variation)"] = attrgetter("balance_cv")
        return [
            plot(
                title, {name: [(each.time, value(each)) for each in found] for name, found in samples.items()}
            )
            for title, value in series.items()
        ]


_STYLE = (
    "body{font:14px/1.45 system-ui,sans-serif;margin:2em;color:#222;background:#fff}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:right}"
    "td:first-child,th:first-child{text-align:left}svg{margin:0 1em 1em 0}pre{text-align:left;overflow:auto}"
)


def _percent(field: str, resource: str, sample: Sample) -> float:
    shares: dict[str, float] = getattr(sample, field)
    return 100 * shares.get(resource, 0.0)


def _node(pod: PodResult | None) -> str:
    return "" if pod is None else pod.node


def _kind_of(pods: Sequence[PodResult | None]) -> str:
    """What a difference comes from, as far as the pods' own decisions tell."""
    present = [pod for pod in pods if pod is not None]
    if len(present) < len(pods):
        return "an eviction"
    if any(not pod.node for pod in present):
        return "no room" if all(not pod.is_error for pod in present) else "an error"
    decided = [pod for pod in present if pod.attempts]  # not those that are as recorded
    if decided and all(pod.ties > 1 for pod in decided):
        return "a tie"
    return "policy, or other pods before it"


def number_text(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.0f}"


def plot(title: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """A line chart as SVG, with a step from one point to the next."""
    points = [point for line in lines.values() for point in line]
    if not points:
        return ""
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    top = max(max(y for _, y in points), 1e-9) * 1.05
    width, height = PLOT_WIDTH - 2 * MARGIN, PLOT_HEIGHT - 2 * MARGIN

    def x_of(value: float) -> float:
        return MARGIN + width * (value - first) / ((last - first) or 1)

    def y_of(value: float) -> float:
        return PLOT_HEIGHT - MARGIN - height * value / top

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" font-size="11" '
        f'width="{PLOT_WIDTH}" height="{PLOT_HEIGHT}">',
        f'<text x="{MARGIN}" y="14" font-weight="bold">{escape(title)}</text>',
    ]
    for share in (0.0, 0.5, 1.0):
        y = y_of(top / 1.05 * share)
        parts.append(
            f'<line x1="{MARGIN}" x2="{PLOT_WIDTH - MARGIN}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        parts.append(
            f'<text x="{MARGIN - 4}" y="{y + 4:.1f}" text-anchor="end">{top / 1.05 * share:,.3g}</text>'
        )
    for share, anchor in ((0.0, "start"), (1.0, "end")):
        at = (last - first) * share
        parts.append(
            f'<text x="{x_of(first + at):.1f}" y="{PLOT_HEIGHT - MARGIN + 14}" '
            f'text-anchor="{anchor}">{_duration(at)}</text>'
        )
    for place, (name, line) in enumerate(lines.items()):
        colour = COLOURS[place % len(COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        x, y = MARGIN + 110 * (place % 4), PLOT_HEIGHT - 12 + 11 * (place // 4)
        parts.append(f'<text x="{x}" y="{y}" fill="{colour}">{escape(name)}</text>')
    return "".join((*parts, "</svg>"))


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds:,.3g} s"
