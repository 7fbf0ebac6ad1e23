"""Peaks: prefers nodes whose power draw the pod raises least, by a power model of each node."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stowplan.api.node import NodeObject
from stowplan.config.field_errors import child, invalid, required
from stowplan.errors import ConfigError
from stowplan.framework import MAX_SCORE, CycleState, Handle, NodeTable, PluginArgs, Pod, Reads, Scores
from stowplan.plugins.node_metrics import LoadPlugin, MetricProvider, SourceSettings
from stowplan.plugins.prometheus import is_url

UNKNOWN, OVERLOADED = -(2**63), -(2**63) + 1
LARGEST = 2.0**63 - 1024
"""The largest float that is an int64; a rise above it, of 9 kW, counts as this."""
MODEL_FILE = "NODE_POWER_MODEL"


class PowerModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node draws k0 + k1 * exp(k2 * x) watts at a CPU utilization of x percent."""

    k0: float = 0
    k1: float = 0
    k2: float = 0


Models = dict[str, PowerModel]


class PeaksArgs(PluginArgs):
    watcher_address: str = msgspec.field(default="", name="WatcherAddress")
    node_power_model: Models = msgspec.field(default_factory=dict, name="NodePowerModel")
    """By node; read from the JSON file that the environment variable NODE_POWER_MODEL names, if empty."""

    def validate(self, path: str) -> Iterator[str]:
        where, text = child(path, "WatcherAddress"), "such as http://load-watcher.monitoring:2020"
        if not self.watcher_address:
            yield required(where, text)
        elif not is_url(self.watcher_address):
            yield invalid(where, self.watcher_address, f"must be a URL, {text}")
        yield from model_faults(child(path, "NodePowerModel"), self.node_power_model)


def model_faults(path: str, models: Models) -> Iterator[str]:
    for name, model in models.items():
        for key in ("k0", "k1", "k2"):
            if not math.isfinite(getattr(model, key)):
                yield invalid(f"{path}[{name}].{key}", getattr(model, key), "must be a finite number")


class Peaks(LoadPlugin):
    args: PeaksArgs  # type: ignore[assignment]
    reads = Reads.NODE
    neutral_score = 0
    without_data_text = "nodes without CPU metrics or a power model get 0"

    def __init__(self, args: PeaksArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._models = args.node_power_model or read_models(os.environ.get(MODEL_FILE, ""))

    @property
    def settings(self) -> SourceSettings:
        return SourceSettings(self.args.watcher_address, MetricProvider())

    def has_data(self, node: NodeObject) -> bool:
        return super().has_data(node) and node.name in self._models

    def sign_pod(self, pod: Pod) -> Hashable:
        return self.source.reading, pod.requests.get("cpu", 0)

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        """The rise in power, in units of 1e-15 W."""
        if not self.source.reading:
            return np.full(len(nodes), UNKNOWN, np.int64)
        load, (k1, k2) = self.source.columns(nodes), self._model_columns(nodes)
        now, capacity = load.first_cpu, load.cpu_capacity
        known = ~np.isnan(now) & ~np.isnan(k1) & (capacity > 0)
        request, predicted = pod.requests.get("cpu", 0), now
        if request:  # else rounding would make a rise out of nothing
            predicted = 100 * (now / 100 * capacity + request) / np.where(capacity > 0, capacity, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            rise = k1 * (np.exp(k2 * predicted) - np.exp(k2 * now)) * 1e15
        rise = np.clip(np.where(known & np.isfinite(rise), rise, 0), -LARGEST, LARGEST)
        scores = np.where(predicted > 100, OVERLOADED, rise.astype(np.int64))
        return np.where(known, scores, UNKNOWN)

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        """The least rise gets 100. Nodes that are unknown or would be overloaded get 0, never the best."""
        normalized = np.zeros(len(scores), np.int64)
        is_ranked = scores > OVERLOADED
        ranked = scores[is_ranked]
        if not ranked.any():
            return normalized
        least, most = int(ranked.min()), int(ranked.max())
        if least == most:
            normalized[is_ranked] = MAX_SCORE
        else:
            # parity: rounded in this order, which may leave 1 to the worst
            rises = (ranked - least).view(np.uint64)  # which may not fit in an int64
            share = float(MAX_SCORE) * rises.astype(np.float64) / float(most - least)
            normalized[is_ranked] = MAX_SCORE - share.astype(np.int64)
        return normalized

    def _model_columns(self, nodes: NodeTable) -> Any:
        def compute(part: NodeTable) -> tuple[Any, Any]:
            missing = PowerModel(math.nan, math.nan, math.nan)
            found = [self._models.get(name, missing) for name in part.names]
            return np.array([each.k1 for each in found]), np.array([each.k2 for each in found])

        columns = nodes.live.keep((self.serial, "model"), compute)
        return columns if nodes is nodes.live else tuple(column[nodes.rows] for column in columns)


def read_models(path: str) -> Models:
    if not path:
        return {}
    try:
        models = msgspec.json.decode(Path(path).read_bytes(), type=Models)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"cannot read the power models of nodes in {path} ({MODEL_FILE}): {error}"
        ) from None
    if faults := list(model_faults(path, models)):
        raise ConfigError("; ".join(faults))
    return models
