"""How busy nodes are, read in the background: from Prometheus, the Kubernetes metrics API or a load-watcher.

Plugins with the same source and settings share one collector. A decision only looks up what was read last.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import aiohttp
import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan import log
from stowplan.api.meta import parse_time
from stowplan.api.node import NodeObject
from stowplan.api.quantity import Quantity, decode_hook, milli_units
from stowplan.cluster import ClusterView
from stowplan.config.field_errors import child, invalid, required, unsupported
from stowplan.errors import StowplanError
from stowplan.framework import CycleState, Handle, NodeTable, PluginArgs, Pod, Right, Scores
from stowplan.framework.plugin import ExplainingPlugin
from stowplan.plugins.prometheus import (
    CLOCK_SKEW,
    PrometheusError,
    Sample,
    answer_time,
    is_url,
    read_body,
    reading_errors,
    run_query,
    without_port,
)

METRICS_SERVER, PROMETHEUS = "KubernetesMetricsServer", "Prometheus"
METRICS_PATH = "/apis/metrics.k8s.io/v1beta1/nodes"
NO_DATA = -1
"""The raw score of a node of which nothing is known."""
RECENT = 60.0
"""Pods bound less than so many seconds before a reading ended are not in its averages yet."""
STEP = 30.0
"""Seconds between the times at which Prometheus looks for the newest sample. These times are multiples of it:
samples after the last one are not seen."""
MAX_BACKOFF = 8
"""How many times the usual interval to wait, at most, after reading failed again and again."""
A_TOKEN = "one word of ASCII characters"
Column = NDArray[np.float64]


class SourceError(Exception):
    """The source answers, but not with what was asked for."""


class Poller:
    """Calls `read` again and again, less often while it fails, and logs when that changes."""

    def __init__(
        self,
        handle: Handle,
        read: Callable[[aiohttp.ClientSession], Awaitable[str]],
        what: str,
        *,
        refresh: float,
        timeout: float,
        **fields: Any,
    ) -> None:
        self._handle, self._read, self._what, self._fields = handle, read, what, fields
        self._refresh, self._timeout = refresh, timeout
        self.reading, self.read_at = 0, -math.inf
        self.fault: str | None = None
        """What was wrong the last time; empty if nothing was, None before the first time."""

    def is_stale(self, after: float) -> bool:
        return self._handle.now() - self.read_at > after

    def stale_text(self) -> str:
        """Why what was read is of no use, such as: metrics of nodes are 12 minutes old (HTTP 503)."""
        if self.read_at == -math.inf:
            return f"{self._what} were not read yet" + (f" ({self.fault})" if self.fault else "")
        age = f"{self._what} are {_age_text(self._handle.now() - self.read_at)} old"
        return f"{age} ({self.fault})" if self.fault else age

    def took(self, at: float) -> None:
        """Called by `read` when it has taken in data that are as of the time `at`."""
        self.reading, self.read_at = self.reading + 1, at

    async def run(self, after_each: Callable[[], None]) -> None:
        timeout = aiohttp.ClientTimeout(total=self._timeout)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            failures = 0
            while True:
                before = self.reading
                self._tell(await self._attempt(session))
                failures = failures + 1 if self.reading == before else 0
                after_each()
                await asyncio.sleep(self._refresh * min(2 ** max(failures - 1, 0), MAX_BACKOFF))

    async def _attempt(self, session: aiohttp.ClientSession) -> str:
        try:
            return await self._read(session)
        except TimeoutError:
            return f"no answer within {self._timeout:g} s"
        except (SourceError, PrometheusError, StowplanError, aiohttp.ClientError, OSError) as error:
            return str(error)

    def _tell(self, fault: str) -> None:
        if fault == self.fault:
            return
        self.fault = fault
        if fault:
            log.error(f"Cannot read {self._what}", fault, **self._fields)
        else:
            log.log(0, f"Reading {self._what}", **self._fields)


def _age_text(seconds: float) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}s"
    return f"{seconds:.0f} seconds"


# Arguments


class MetricProvider(msgspec.Struct, frozen=True, rename="camel"):
    type: str = METRICS_SERVER
    address: str = ""
    token: str = ""
    token_file: str = ""
    """File with the token, read again before each request."""
    ca_file: str = ""
    """File with the certificates, in PEM, that sign the server's; read again before each request."""
    insecure_skip_verify: bool | None = None
    """By default true without a `caFile`, as in scheduler-plugins."""


class LoadArgs(PluginArgs):
    """What TargetLoadPacking, LoadVariationRiskBalancing and LowRiskOverCommitment have in common."""

    watcher_address: str = ""
    metric_provider: MetricProvider = MetricProvider()
    node_label: str = "instance"
    """Label of Prometheus series that holds a node's name or address, with or without a port."""
    cpu_metric: str = "instance:node_cpu:ratio"
    """Prometheus series with the share of a node's CPU in use, from 0 to 1."""
    memory_metric: str = "instance:node_memory_utilisation:ratio"
    refresh_seconds: float = 30
    timeout_seconds: float = 10
    stale_after_seconds: float = 300
    neutral_score: int = 50
    """The score of all nodes while nothing fresh is known of any."""

    def validate(self, path: str) -> Iterator[str]:
        yield from source_faults(path, self)


class SourceSettings(NamedTuple):
    """Where metrics come from. Plugins for which this is equal share a collector."""

    watcher: str
    provider: MetricProvider
    node_label: str = "instance"
    cpu_metric: str = ""
    memory_metric: str = ""
    refresh: float = 30
    timeout: float = 10
    stale_after: float = 300

    @classmethod
    def of(cls, args: LoadArgs) -> SourceSettings:
        return cls(
            args.watcher_address,
            args.metric_provider,
            args.node_label,
            args.cpu_metric,
            args.memory_metric,
            args.refresh_seconds,
            args.timeout_seconds,
            args.stale_after_seconds,
        )

    @property
    def tls(self) -> ssl.SSLContext | bool:
        """The CA file, or whether to check certificates. Raises SourceError if the file cannot be used."""
        path = self.provider.ca_file
        if not self.checks_certificate or not path:
            return self.checks_certificate
        try:
            return ssl.create_default_context(cafile=path)
        except OSError as error:  # ssl.SSLError among them, whose text does not name the file
            raise SourceError(f"cannot use metricProvider.caFile {path}: {error.strerror or error}") from None

    @property
    def checks_certificate(self) -> bool:
        insecure = self.provider.insecure_skip_verify
        if self.watcher:
            return True
        return not insecure if self.provider.ca_file else insecure is False


def source_faults(path: str, args: LoadArgs) -> Iterator[str]:
    provider, where = args.metric_provider, child(path, "metricProvider")
    if args.watcher_address:
        if not is_url(args.watcher_address):
            text = "must be a URL, such as http://load-watcher.monitoring:2020"
            yield invalid(child(path, "watcherAddress"), args.watcher_address, text)
    elif provider.type not in (METRICS_SERVER, PROMETHEUS):
        yield unsupported(f"{where}.type", provider.type, (METRICS_SERVER, PROMETHEUS))
    elif provider.type == PROMETHEUS:
        if not provider.address:
            yield required(f"{where}.address", "such as http://prometheus.monitoring:9090")
        elif not is_url(provider.address):
            text = "must be a URL, such as http://prometheus.monitoring:9090"
            yield invalid(f"{where}.address", provider.address, text)
    if provider.token and provider.token_file:
        yield invalid(f"{where}.tokenFile", provider.token_file, "must be empty if there is a token")
    if provider.token and not is_token(provider.token):
        yield invalid(f"{where}.token", "(hidden)", f"must be {A_TOKEN}")
    positive = {
        "refreshSeconds": args.refresh_seconds,
        "timeoutSeconds": args.timeout_seconds,
        "staleAfterSeconds": args.stale_after_seconds,
    }
    yield from reading_errors(path, args.node_label, positive)
    if not 0 <= args.neutral_score <= 100:
        yield invalid(child(path, "neutralScore"), args.neutral_score, "must be between 0 and 100")


def is_token(text: str) -> bool:
    """Whether it can be sent in a header."""
    return text.isascii() and text.isprintable() and len(text.split()) == 1


# What sources answer


class NodeLoad(NamedTuple):
    """A node's load in percent of its capacity; NaN where it is not known."""

    cpu: float = math.nan
    cpu_deviation: float = math.nan
    memory: float = math.nan
    memory_deviation: float = math.nan
    last_cpu: float = math.nan
    """The last average or current value that the source lists, which TargetLoadPacking uses."""
    first_cpu: float = math.nan
    """The first one, which Peaks uses."""


NOTHING = NodeLoad()


class WatcherMetric(msgspec.Struct):
    type: str = ""
    operator: str = ""
    value: float | None = None


class WatcherNode(msgspec.Struct):
    metrics: list[WatcherMetric] | None = None


class WatcherWindow(msgspec.Struct):
    end: int = 0


class WatcherData(msgspec.Struct):
    nodes: dict[str, WatcherNode] | None = msgspec.field(name="NodeMetricsMap", default=None)


class WatcherAnswer(msgspec.Struct):
    data: WatcherData
    timestamp: int = 0
    window: WatcherWindow = msgspec.field(default_factory=WatcherWindow)


class UsageItem(msgspec.Struct):
    metadata: dict[str, Any] = {}
    timestamp: str = ""
    usage: dict[str, Quantity] = {}


class UsageList(msgspec.Struct):
    items: list[UsageItem]


def load_of(metrics: Iterable[WatcherMetric]) -> NodeLoad:
    """What a load-watcher says of a node; what is not a share of something counts as missing."""
    found: dict[tuple[str, str], float] = {}
    first = last = math.nan
    for each in metrics:
        if each.value is None or not 0 <= each.value < math.inf:
            continue
        operator = each.operator or "Latest"
        found[each.type, operator] = each.value
        if each.type == "CPU" and operator in ("AVG", "Latest"):
            last = each.value
            first = last if math.isnan(first) else first

    def average(kind: str) -> float:
        return found.get((kind, "AVG"), found.get((kind, "Latest"), math.nan))

    return NodeLoad(
        average("CPU"),
        found.get(("CPU", "STD"), math.nan),
        average("Memory"),
        found.get(("Memory", "STD"), math.nan),
        last,
        first,
    )


class Collector:
    """The loads of nodes by what the source calls them; `loads` is replaced as a whole at each reading."""

    def __init__(self, handle: Handle, settings: SourceSettings) -> None:
        self._handle, self.settings = handle, settings
        self.loads: Mapping[str, NodeLoad] = {}
        self.failed_queries = ""
        """Those that `loads` lacks the answers of, each with its fault."""
        source = settings.watcher or f"{settings.provider.type} {settings.provider.address}".rstrip()
        self.poller = Poller(
            handle,
            self._refresh,
            "metrics of nodes",
            refresh=settings.refresh,
            timeout=settings.timeout,
            source=source,
        )
        self._running = asyncio.Lock()
        self.users: WeakSet[LoadPlugin] = WeakSet()

    @classmethod
    def shared(cls, handle: Handle, settings: SourceSettings) -> Collector:
        known = _collectors.setdefault(handle.cluster, {})
        if settings not in known:
            known[settings] = cls(handle, settings)
        return known[settings]

    @property
    def reading(self) -> int:
        """The number of the last reading; 0 while what was read is stale."""
        return 0 if self.poller.is_stale(self.settings.stale_after) else self.poller.reading

    @property
    def read_at(self) -> float:
        return self.poller.read_at

    async def run(self) -> None:
        """Read for all plugins that share this; the others wait and take over when the first one ends."""
        async with self._running:
            provider = self.settings.provider
            if (
                not self.settings.checks_certificate
                and provider.address.startswith("https:")
                and (provider.token or provider.token_file)
            ):
                log.error(
                    "Sending a token to a server whose certificate is not checked",
                    "set metricProvider.caFile, and insecureSkipVerify to false",
                    address=provider.address,
                )
            await self.poller.run(self._after_each)

    def _after_each(self) -> None:
        for user in self.users:
            user.count_gaps()

    def load_of(self, node: NodeObject) -> NodeLoad:
        found = self.loads.get(node.name)
        if found is None:
            names = (each.address for each in node.status.addresses)
            found = next((self.loads[name] for name in names if name in self.loads), NOTHING)
        return found

    def columns(self, nodes: NodeTable) -> NodeColumns:
        """The loads and capacities of nodes by row; of a table of few rows only these are looked up."""

        def compute(part: NodeTable) -> tuple[Column, ...]:
            rows = [(*self.load_of(node), cpu_capacity(node)) for node in part.objects]
            return tuple(np.array(rows, np.float64).reshape(len(rows), 7).T.copy())

        live = nodes.live.keep(("node metrics", id(self), self.poller.reading), compute)
        found = live if nodes is nodes.live else tuple(column[nodes.rows] for column in live)
        return NodeColumns(*found)

    async def _refresh(self, session: aiohttp.ClientSession) -> str:
        if self.settings.watcher:
            self.loads, at = await self._read_watcher(session)
        elif self.settings.provider.type == PROMETHEUS:
            self.loads, at = await self._read_prometheus(session)
        else:
            self.loads, at = await self._read_metrics_api()
        self.poller.took(min(at, self._handle.now()))
        nodes = self._handle.cluster.nodes.objects
        if nodes and all(self.load_of(node) is NOTHING for node in nodes):
            return f"the source names no node of the cluster, but {', '.join(sorted(self.loads)[:3])}"
        return self.failed_queries

    async def _read_watcher(self, session: aiohttp.ClientSession) -> tuple[dict[str, NodeLoad], float]:
        url = f"{self.settings.watcher.rstrip('/')}/watcher"
        async with session.get(url, ssl=self.settings.tls) as response:
            body = await read_body(response)
        if response.status != 200:
            raise SourceError(f"HTTP {response.status}")
        try:
            answer = msgspec.json.decode(body, type=WatcherAnswer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise SourceError(f"not a response from a load-watcher: {error}") from None
        now = self._handle.now()
        end = float(answer.window.end or answer.timestamp) or now
        if end > now + CLOCK_SKEW:
            raise SourceError(f"the window ends {end - now:.0f} s in the future: compare the clocks")
        if now - end > self.settings.stale_after:
            raise SourceError(f"the window ended {now - end:.0f} s ago")
        nodes = answer.data.nodes or {}
        loads = {without_port(name): load_of(node.metrics or ()) for name, node in nodes.items()}
        return _some(loads), end

    async def _read_prometheus(self, session: aiohttp.ClientSession) -> tuple[dict[str, NodeLoad], float]:
        """Read averages and deviations over 15 minutes. One query that fails does not spoil the others."""
        provider = self.settings.provider
        headers, tls = self._authorization(provider), self.settings.tls
        faults: dict[str, str] = {}
        answered_at, has_old_series = math.inf, False

        async def ask(query: str) -> list[Sample] | None:
            nonlocal answered_at
            try:
                samples = await run_query(session, provider.address, query, headers=headers, tls=tls)
                at = answer_time(samples, self._handle.now(), self.settings.stale_after)
            except PrometheusError as error:
                faults[query] = str(error)
                return None
            answered_at = min(answered_at, at)
            return samples

        found: dict[str, dict[str, float]] = {}
        for metric, average, deviation in (
            (self.settings.cpu_metric, "cpu", "cpu_deviation"),
            (self.settings.memory_metric, "memory", "memory_deviation"),
        ):
            answers = {
                average: await ask(f"avg_over_time({metric}[15m])"),
                deviation: await ask(f"stddev_over_time({metric}[15m])"),
            }
            # Averages go on for 15 minutes after the last sample.
            times = await ask(f"max_over_time(timestamp({metric})[15m:{STEP:g}s])")
            current = {_labels_of(each) for each in times or () if self._is_current(each.amount, STEP)}
            for field, samples in answers.items():
                for sample in samples or ():
                    if times is not None and _labels_of(sample) not in current:
                        has_old_series = True
                        continue
                    name = without_port(sample.metric.get(self.settings.node_label, ""))
                    if name and (amount := sample.amount) is not None:
                        fields = found.setdefault(name, {})
                        fields[field] = max(100 * amount, fields.get(field, 0))
        loads = {}
        for name, fields in found.items():
            cpu = fields.get("cpu", math.nan)
            loads[name] = NodeLoad(**fields, last_cpu=cpu, first_cpu=cpu)
        if not loads and len(faults) > 1 and len(set(faults.values())) == 1:
            raise SourceError(next(iter(faults.values())))
        self.failed_queries = "; ".join(f"{query}: {fault}" for query, fault in faults.items())
        if not loads and has_old_series:
            raise SourceError(f"no series has a sample of the last {self.settings.stale_after:g} s")
        if not loads and faults:
            raise SourceError(self.failed_queries)
        return _some(loads), answered_at

    def _authorization(self, provider: MetricProvider) -> dict[str, str]:
        token = provider.token
        if provider.token_file:
            # It is replaced before it expires. What is not ASCII is rejected below, with a text.
            token = Path(provider.token_file).read_text("latin-1").strip()
            if not is_token(token):
                raise SourceError(f"metricProvider.tokenFile {provider.token_file} must hold {A_TOKEN}")
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def _read_metrics_api(self) -> tuple[dict[str, NodeLoad], float]:
        async with asyncio.timeout(self.settings.timeout):
            plain = await self._handle.api.get_json(METRICS_PATH)
        try:
            items = msgspec.convert(plain, UsageList, dec_hook=decode_hook).items
        except msgspec.MsgspecError as error:
            raise SourceError(f"not a response of the metrics API: {error}") from None
        nodes, newest = self._handle.cluster.nodes, -math.inf
        loads = {}
        for item in items:
            name = str(item.metadata.get("name", ""))
            row, at = nodes.row_of(name), _seconds_of(item.timestamp)
            if not self._is_current(at):
                continue
            newest = max(newest, at)
            if row is None:
                continue
            capacity = cpu_capacity(nodes.objects[row])
            memory = float(nodes.objects[row].allocatable.get("memory", 0))
            cpu = _share(milli_units(item.usage.get("cpu", Quantity(-1))), capacity)
            used_memory = _share(item.usage.get("memory", Quantity(-1)) / 10**9, memory)
            loads[name] = NodeLoad(cpu=cpu, memory=used_memory, last_cpu=cpu, first_cpu=cpu)
        if items and newest == -math.inf:
            raise SourceError(f"no item of the metrics API is of the last {self.settings.stale_after:g} s")
        return _some(loads), newest

    def _is_current(self, at: float | None, late: float = 0) -> bool:
        """Whether a time, which may be `late` seconds behind, is neither stale nor in the future."""
        return at is not None and -CLOCK_SKEW <= self._handle.now() - at <= self.settings.stale_after + late


def _seconds_of(timestamp: str) -> float:
    try:
        return parse_time(timestamp)
    except StowplanError:
        return math.nan  # which is not current


def _labels_of(sample: Sample) -> frozenset[tuple[str, str]]:
    """What tells a series from others; functions of PromQL drop the name of the metric."""
    return frozenset(each for each in sample.metric.items() if each[0] != "__name__")


_collectors: WeakKeyDictionary[ClusterView, dict[SourceSettings, Collector]] = WeakKeyDictionary()


class NodeColumns(NamedTuple):
    cpu: Column
    cpu_deviation: Column
    memory: Column
    memory_deviation: Column
    last_cpu: Column
    first_cpu: Column
    cpu_capacity: Column


def cpu_capacity(node: NodeObject) -> float:
    """The node's CPU capacity in thousandths; what is allocatable if its status has no capacity."""
    found = node.status.capacity.get("cpu")
    return float(milli_units(found) if found is not None else node.allocatable.get("cpu", 0))


def _share(used: float, capacity: float) -> float:
    return 100 * used / capacity if used >= 0 and capacity > 0 else math.nan


def _some(loads: dict[str, NodeLoad]) -> dict[str, NodeLoad]:
    if not loads:
        raise SourceError("the source has no metrics of any node")
    return loads


def round_half_up(numbers: Column) -> Scores:
    """As Go's math.Round does for numbers that are not negative."""
    whole = np.floor(numbers)
    return (whole + (numbers - whole >= 0.5)).astype(np.int64)


class Gaps(NamedTuple):
    """How many nodes a reading had nothing of, and what to say about it."""

    nodes: int
    text: str


class LoadPlugin(ExplainingPlugin):
    """Scores nodes by metrics. A node without data gets the median of the others' scores; where nothing is
    fresh, all get the neutral score."""

    args: LoadArgs
    rights = (Right("nodes", ("list",), "metrics.k8s.io"),)

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self.source = Collector.shared(handle, self.settings)
        self.source.users.add(self)
        self._without_data = handle.counter(
            "stowplan_node_metrics_nodes_without_data_total",
            "Nodes that a reading had no metrics of, counted once a reading.",
            "plugin",
        )
        self._stale = handle.counter(
            "stowplan_node_metrics_stale_total",
            "Refreshes after which no fresh metrics were known, so that all nodes got the same score.",
            "plugin",
        )

    @property
    def settings(self) -> SourceSettings:
        return SourceSettings.of(self.args)

    @property
    def neutral_score(self) -> int:
        return self.args.neutral_score

    def has_data(self, node: NodeObject) -> bool:
        return not math.isnan(self.source.load_of(node).last_cpu)

    def normalize_score(self, state: CycleState, pod: Pod, scores: Scores) -> Scores:
        known = scores != NO_DATA
        if known.all():
            return scores
        if not known.any():
            return np.full(len(scores), self.neutral_score, np.int64)
        return np.where(known, scores, int(np.median(scores[known])))

    def explain_scores(self, pod: Pod) -> Iterator[str]:
        if not self.source.reading:
            yield f"{self.name} gives every node {self.neutral_score}: {self.source.poller.stale_text()}."
            return
        if self.source.failed_queries:
            yield f"{self.name} does without a part of the metrics of nodes: {self.source.failed_queries}."
        if text := self._gaps().text:
            yield text

    def _gaps(self) -> Gaps:
        """The nodes without data, looked up again only for nodes that changed since the last reading."""
        live = self.handle.cluster.nodes

        def compute(part: NodeTable) -> tuple[NDArray[np.bool_]]:
            return (np.array([not self.has_data(node) for node in part.objects], np.bool_),)

        def describe(columns: tuple[NDArray[np.bool_]]) -> Gaps:
            rows = np.flatnonzero(columns[0])
            if 0 < len(rows) == len(live):
                return Gaps(
                    len(rows),
                    f"{self.name} gives every node {self.neutral_score}: it has no data of any node.",
                )
            names, more = ", ".join(live.names[row] for row in rows[:3].tolist()), len(rows) - 3
            listed = f"{names} and {more} more" if more > 0 else names
            text = f"{self.name} has no data of {listed}: {self.without_data_text}."
            return Gaps(len(rows), text if len(rows) else "")

        found: Gaps = live.keep(
            (self.serial, "gaps", self.source.poller.reading),
            compute,
            finish=describe,  # type: ignore[arg-type]
        )
        return found

    without_data_text = "such nodes get the median score of the others"

    async def run(self) -> None:
        await self.source.run()

    def count_gaps(self) -> None:
        if not self.source.reading:
            self._stale[self.name,] += 1
        else:
            self._without_data[self.name,] += self._gaps().nodes


class RecentPods:
    """CPU that pods will use which were bound too late to be in the last reading, by node."""

    def __init__(self, source: Collector, predict: Callable[[Pod], float], now: Callable[[], float]) -> None:
        self._source, self._predict, self._now = source, predict, now
        self._bound: dict[str, dict[str, tuple[float, float]]] = {}
        """By node and uid: when the pod was bound, and what it will use."""
        self._reading = -1
        self._sums: dict[str, float] = {}
        self._column: Column = np.zeros(0)
        """The sums by row of the live table, except for nodes in `_changed`."""
        self._layout: tuple[int, int] | None = None
        """Of which table, and which rows it had; None if the column is to be filled anew."""
        self._changed: set[str] = set()
        """No more names than the column has rows: while no metrics are read, nobody asks for it."""

    def add(self, pod: Pod, node_name: str) -> None:
        since = self._now() if pod.start_time is None else pod.start_time
        self._bound.setdefault(node_name, {})[pod.uid] = (since, self._predict(pod))
        self._add_up(node_name)

    def remove(self, pod: Pod, node_name: str) -> None:
        if self._bound.get(node_name, {}).pop(pod.uid, None) is not None:
            self._add_up(node_name)

    def column(self, nodes: NodeTable) -> Column | float:
        if self._reading != self._source.poller.reading:
            self._reading = self._source.poller.reading
            for name in tuple(self._bound):
                self._add_up(name)
        if not self._sums:
            return 0.0
        live = nodes.live
        if self._layout != (id(live), live.layout):
            self._layout = id(live), live.layout
            self._column, self._changed = np.zeros(len(live)), {*self._sums}
        for name in self._changed:
            if (row := live.row_of(name)) is not None:
                self._column[row] = self._sums.get(name, 0.0)
        self._changed.clear()
        return self._column if nodes is live else self._column.take(nodes.rows)

    def _add_up(self, node_name: str) -> None:
        """Drop what the last reading has counted, and add up the rest."""
        if self._layout is not None:
            self._changed.add(node_name)
            if len(self._changed) > len(self._column):
                self._layout, self._changed = None, set()
        since = self._source.read_at - RECENT
        kept = {uid: each for uid, each in self._bound[node_name].items() if each[0] > since}
        if kept:
            self._bound[node_name] = kept
            self._sums[node_name] = math.fsum(amount for _, amount in kept.values())
        else:
            del self._bound[node_name]
            self._sums.pop(node_name, None)
