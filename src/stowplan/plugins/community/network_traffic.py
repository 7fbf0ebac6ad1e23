"""NetworkTraffic: prefers nodes with less traffic on a network interface, as Prometheus has it.

One query for all nodes is asked in the background; a decision only looks up what was read last. A node
without data gets the median of the other nodes' scores. Where nothing read is fresh, all nodes get 0.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence

import aiohttp
import numpy as np

from stowplan import CycleState, Handle, NodeTable, PluginArgs, Pod, Reads, Scores, log, scale_to_max
from stowplan.api.node import NodeObject
from stowplan.config.field_errors import child, forbidden, invalid, required
from stowplan.framework.plugin import ExplainingPlugin
from stowplan.plugins.node_metrics import Poller
from stowplan.plugins.prometheus import (
    PrometheusError,
    answer_time,
    is_url,
    reading_errors,
    run_query,
    without_port,
)

NO_DATA = -1
LARGEST = 2**62
NODES_AWAITED = 100
"""How many tenths of a second to wait for the first node, to say at the first reading that it names none."""
A_URL = "such as http://prometheus.monitoring:9090"


class NetworkTrafficArgs(PluginArgs):
    prometheus_address: str | None = None
    address: str | None = None
    """Another name of `prometheusAddress`."""
    network_interface: str = "ens192"
    time_range_in_minutes: int = 5
    node_label: str = ""
    """Label of the series that holds a node's name or address, with or without a port."""
    refresh_seconds: float = 15
    timeout_seconds: float = 10
    stale_after_seconds: float = 120
    compat: bool = False
    """Query the sum of all values of the receive counter in that time, as the tutorial does."""

    def __post_init__(self) -> None:
        self.node_label = self.node_label or ("kubernetes_node" if self.compat else "instance")

    def validate(self, path: str) -> Iterator[str]:
        given = {"prometheusAddress": self.prometheus_address, "address": self.address}
        addresses = {name: address for name, address in given.items() if address}
        if not addresses:
            yield required(child(path, "prometheusAddress"), A_URL)
        if len(addresses) == 2:
            yield forbidden(child(path, "address"), "is another name of prometheusAddress: give one of them")
        for name, address in addresses.items():
            if not is_url(address):
                yield invalid(child(path, name), address, f"must be a URL, {A_URL}")
        if not self.network_interface:
            yield required(child(path, "networkInterface"), "such as ens192")
        positive = {
            "timeRangeInMinutes": self.time_range_in_minutes,
            "refreshSeconds": self.refresh_seconds,
            "timeoutSeconds": self.timeout_seconds,
            "staleAfterSeconds": self.stale_after_seconds,
        }
        yield from reading_errors(path, self.node_label, positive)

    @property
    def query(self) -> str:
        device = f"device={json.dumps(self.network_interface, ensure_ascii=False)}"
        window = f"[{self.time_range_in_minutes}m]"
        if self.compat:
            named = f'{self.node_label}!="",{device}'
            return f"sum_over_time(node_network_receive_bytes_total{{{named}}}{window})"
        ways = (
            f"rate(node_network_{way}_bytes_total{{{device}}}{window})" for way in ("receive", "transmit")
        )
        return f"sum by ({self.node_label}) ({' + '.join(ways)})"


class NetworkTraffic(ExplainingPlugin):
    args: NetworkTrafficArgs
    reads = Reads.NODE

    def __init__(self, args: NetworkTrafficArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._traffic: Mapping[str, int] = {}
        """By what the series call the node; replaced as a whole, never changed in place."""
        self.poller = Poller(
            handle,
            self._refresh,
            "network traffic of nodes",
            refresh=args.refresh_seconds,
            timeout=args.timeout_seconds,
            plugin=self.name,
        )
        self._without_data = handle.counter(
            "stowplan_network_traffic_nodes_without_data_total",
            "Nodes that got the median score since a reading had nothing of them, counted once a reading.",
        )
        self._stale = handle.counter(
            "stowplan_network_traffic_stale_total",
            "Refreshes after which no traffic was known that is fresh, so that all nodes get 0.",
        )

    def sign_pod(self, pod: Pod) -> int:
        """Scores do not depend on the pod, so they are cached until the next reading."""
        return 0 if self._is_stale else self.poller.reading

    def score_nodes(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Scores:
        if self._is_stale:
            return np.full(len(nodes), NO_DATA, np.int64)
        traffic = [self._traffic_of(node) for node in nodes.objects]
        self._without_data[()] += traffic.count(NO_DATA)
        return np.array(traffic, np.int64)

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        known = scores != NO_DATA
        if not known.any():
            return np.zeros(len(scores), np.int64)
        points = scale_to_max(scores[known], reverse=True)
        normalized = np.full(len(scores), int(np.median(points)), np.int64)
        normalized[known] = points
        return normalized

    def explain_scores(self, pod: Pod) -> Iterator[str]:
        if self._is_stale:
            yield f"{self.name} gives every node 0: {self.poller.stale_text()}."

    async def run(self) -> None:
        await self.poller.run(self._count_stale)

    def _count_stale(self) -> None:
        self._stale[()] += self._is_stale

    @property
    def _is_stale(self) -> bool:
        return self.poller.is_stale(self.args.stale_after_seconds)

    def _traffic_of(self, node: NodeObject) -> int:
        """Return the largest value reported for any name of the node."""
        names = (node.name, *(each.address for each in node.status.addresses))
        return max(self._traffic.get(name, NO_DATA) for name in names)

    async def _refresh(self, session: aiohttp.ClientSession) -> str:
        """Read the traffic once; return what is wrong, if anything is."""
        self._traffic, at = await self._read(session)
        self.poller.took(at)
        log.log(5, "Read network traffic of nodes", plugin=self.name, bytes=self._traffic)
        nodes = await self._wait_for_nodes()
        if nodes and all(self._traffic_of(node) == NO_DATA for node in nodes):
            found = ", ".join(sorted(self._traffic)[:3])
            return f"label {self.args.node_label} has no node's name or address, but {found}"
        return ""

    async def _wait_for_nodes(self) -> Sequence[NodeObject]:
        """The nodes; a scheduler that starts may read the traffic before it knows any."""
        for _ in range(NODES_AWAITED):
            if nodes := self.handle.cluster.nodes.objects:
                return nodes
            await asyncio.sleep(0.1)
        return ()

    async def _read(self, session: aiohttp.ClientSession) -> tuple[dict[str, int], float]:
        address = self.args.prometheus_address or self.args.address or ""
        label = self.args.node_label
        traffic: dict[str, int] = {}
        samples = await run_query(session, address, self.args.query)
        at = answer_time(samples, self.handle.now(), self.args.stale_after_seconds)
        for sample in samples:
            name = without_port(sample.metric.get(label, ""))
            if name and (amount := sample.amount) is not None:
                traffic[name] = max(int(min(amount, LARGEST)), traffic.get(name, 0))
        if samples and not any(label in sample.metric for sample in samples):
            labels = ", ".join(sorted({name for sample in samples for name in sample.metric})) or "no labels"
            raise PrometheusError(
                f"the result of {self.args.query} has no label {label}, but {labels}: set nodeLabel to the "
                "label that names the node"
            )
        if not traffic:
            raise PrometheusError(f"no data for {self.args.query}")
        return traffic, at
