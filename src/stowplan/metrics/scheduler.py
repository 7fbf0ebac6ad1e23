"""kube-scheduler's metric families: its names, labels and buckets, so that dashboards keep working.

`Metrics` has one small method for each thing that happens; the rest of Stowplan calls those and knows no
metric names.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar, Literal

from stowplan.metrics.page import Distributions, Page, exponential

EVALUATED_POINTS = {"preFilter": "PreFilter", "filter": "Filter", "preScore": "PreScore", "score": "Score"}
"""Extension points whose plugins are counted each time they are asked, by their names in a configuration."""
QUEUES = ("active", "backoff", "gated", "unschedulable")
MAX_ATTEMPT_SERIES = 15
"""Pods with this many attempts or more share one series."""

SETTLE_AFTER_REQUESTS = 1000
"""Requests to the API server."""

AttemptResult = Literal["scheduled", "unschedulable", "error"]
HintResult = Literal["Queue", "QueueSkip", "Error"]
CallResult = Literal["success", "error"]
HealthPath = Literal["healthz", "livez", "readyz"]
MILLISECONDS = exponential(0.001, 2, 15)
TENTHS_OF_MILLISECONDS = exponential(0.0001, 2, 12)
MICROSECONDS = exponential(0.00001, 2, 12)
FINE_MICROSECONDS = exponential(0.00001, 1.5, 20)
MINUTES = exponential(0.01, 2, 20)
REQUESTS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
SIZES = (64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216)
UNLIMITED = float(2**64 - 1)
"""How Prometheus' libraries write that there is no limit of memory."""


class Metrics:
    """What happens in a scheduler, counted. Label values are passed in alphabetical order of their names."""

    are_read: ClassVar[bool] = True
    """Whether anyone reads them; if not, decisions are not measured."""

    def __init__(self) -> None:
        self.page, self.slis = Page(), Page()
        self.before_render: Callable[[], None] = lambda: None
        """Called before each rendering, for a part that counts on its own and reports its sums here."""
        self._started, self._unsettled = time.time(), 0
        self._declare_attempts()
        self._declare_plugins()
        self._declare_queue()
        self._declare_preemption()
        self._declare_equal_pods()
        self._declare_calls()
        self._declare_pod_groups()
        self._declare_generic()

    def render(self) -> bytes:
        """The page that Prometheus reads."""
        self.before_render()
        self._measure_process()
        return self.page.render()

    def settle(self) -> None:
        """Sort new observations into their buckets; until then each takes memory."""
        self._unsettled = 0
        for family in self.page.families.values():
            if isinstance(family, Distributions):
                family.settle()

    def render_slis(self) -> bytes:
        """The page of health checks, for service level indicators."""
        return self.slis.render()

    # One pod's attempt

    def attempt(self, profile: str, result: AttemptResult, seconds: float) -> None:
        """A pod went through the cycle, up to its bind if it found a node."""
        self._attempts[profile, result] += 1
        self._attempt_seconds[profile, result].observe(seconds)

    def algorithm(self, seconds: float) -> None:
        """Filters and scores of one attempt."""
        self._algorithm_seconds[()].observe(seconds)

    def pod_scheduled(self, attempts: int, seconds: float) -> None:
        """A pod was bound, after this many attempts and this long since it could first be attempted."""
        self._pod_attempts[()].observe(attempts)
        label = str(attempts) if attempts < MAX_ATTEMPT_SERIES else f"{MAX_ATTEMPT_SERIES}+"
        self._sli_seconds[label,].observe(seconds)

    def scheduled_after_flush(self) -> None:
        """A pod was bound that only a flush had requeued, and no event: the hint of a plugin may be wrong."""
        self._after_flush[()] += 1

    def running(self, operation: str, change: int) -> None:
        """The number of running tasks of a kind has changed."""
        self._tasks[operation,] += change

    def cache_sizes(self, *, nodes: int, pods: int, assumed_pods: int) -> None:
        self._cache_size["nodes",] = nodes
        self._cache_size["pods",] = pods
        self._cache_size["assumed_pods",] = assumed_pods

    def unreadable(self, resource: str, count: int) -> None:
        self._unreadable[resource,] = count

    def _declare_attempts(self) -> None:
        page, labels = self.page, ("profile", "result")
        self._attempts = page.counter(
            "scheduler_schedule_attempts_total", "[STABLE] Attempts to schedule a pod, by result.", *labels
        )
        self._attempt_seconds = page.histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "[STABLE] Length of an attempt: decision and bind.",
            MILLISECONDS,
            *labels,
        )
        self._algorithm_seconds = page.histogram(
            "scheduler_scheduling_algorithm_duration_seconds",
            "[ALPHA] Length of the decision alone.",
            MILLISECONDS,
        )
        self._pod_attempts = page.histogram(
            "scheduler_pod_scheduling_attempts",
            "[STABLE] Attempts that a bound pod needed.",
            exponential(1, 2, 5),
        )
        self._sli_seconds = page.histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "[BETA] Time from a pod's first entry into the queue to its bind, over all attempts.",
            MINUTES,
            "attempts",
        )
        self._after_flush = page.counter(
            "scheduler_pod_scheduled_after_flush_total",
            "[ALPHA] Pods bound after a flush of those that waited too long.",
        )
        self._tasks = page.gauge(
            "scheduler_goroutines", "[BETA] Tasks under way, by what they do.", "operation"
        )
        self._cache_size = page.gauge(
            "scheduler_cache_size", "[ALPHA] Nodes, pods and assumed pods in the cache.", "type"
        )
        self.cache_sizes(nodes=0, pods=0, assumed_pods=0)
        self._unreadable = page.gauge(
            "stowplan_unreadable_objects", "Objects that cannot be read, or only in part.", "resource"
        )

    # Plugins

    def profile_started(self, profile: str, plugins_by_point: Mapping[str, Iterable[str]]) -> None:
        """Show all plugins that will be counted, so that those never called are at zero.

        Points are named as in the configuration: `preFilter`.
        """
        for point, label in EVALUATED_POINTS.items():
            for plugin in plugins_by_point.get(point, ()):
                self._evaluations[label, plugin, profile] += 0

    def plugin_evaluated(self, point: str, plugin: str, profile: str, times: int = 1) -> None:
        self._evaluations[point, plugin, profile] += times

    def extension_point(self, point: str, profile: str, status: str, seconds: float) -> None:
        """All plugins of a point have answered; `status` is the code's name on the wire."""
        self._point_seconds[point, profile, status].observe(seconds)

    def extension_point_at_once(self, point: str, profile: str, status: str, times: int) -> None:
        """Count several evaluations that took no time."""
        self._point_seconds[point, profile, status].observe_alike(0.0, times)

    def plugin_executed(self, point: str, plugin: str, status: str, seconds: float) -> None:
        self._plugin_seconds[point, plugin, status].observe(seconds)

    def plugin_interrupted(self, plugin: str, method: str) -> None:
        self._interruptions[method, plugin] += 1

    def plugins_reloaded(self, result: CallResult) -> None:
        self._reloads[result,] += 1

    def plugin_times(self, plugin: str) -> Iterator[tuple[str, int, float]]:
        """The measured calls of a plugin, by extension point and status: status, number and seconds."""
        for (_, name, status), series in self._plugin_seconds.items():
            if name == plugin:
                series.settle()
                yield status, sum(series.counts), series.total

    def interruption_count(self, plugin: str) -> int:
        return int(sum(count for (_, name), count in self._interruptions.items() if name == plugin))

    def reload_counts(self) -> dict[str, int]:
        return {result: int(count) for (result,), count in self._reloads.items()}

    def attempt_counts(self, profile: str) -> dict[str, int]:
        return {result: int(count) for (name, result), count in self._attempts.items() if name == profile}

    def journal(self, is_failing: bool, lost: int) -> None:
        """The state of the journal on disk; the families exist from the first call on."""
        self.page.shared_gauge(
            "stowplan_journal_failing", "1 while decisions cannot be written to the journal."
        )[()] = int(is_failing)
        self.page.shared_counter(
            "stowplan_journal_lost_decisions_total", "Decisions that are missing in the journal."
        )[()] = lost

    def permit_waited(self, result: str, seconds: float) -> None:
        self._permit_seconds[result,].observe(seconds)

    def _declare_plugins(self) -> None:
        page = self.page
        self._interruptions = page.counter(
            "stowplan_plugin_interruptions_total",
            "How often a plugin's method took longer than its budget.",
            *("method", "plugin"),
        )
        self._reloads = page.counter(
            "stowplan_plugin_reloads_total", "How often changed files of plugins were read again.", "result"
        )
        self._evaluations = page.counter(
            "scheduler_plugin_evaluation_total",
            "[BETA] Number of plugin evaluations.",
            *("extension_point", "plugin", "profile"),
        )
        self._point_seconds = page.histogram(
            "scheduler_framework_extension_point_duration_seconds",
            "[STABLE] Time for all plugins of an extension point.",
            TENTHS_OF_MILLISECONDS,
            *("extension_point", "profile", "status"),
        )
        self._plugin_seconds = page.histogram(
            "scheduler_plugin_execution_duration_seconds",
            "[ALPHA] Time for one plugin at an extension point.",
            FINE_MICROSECONDS,
            *("extension_point", "plugin", "status"),
        )
        self._permit_seconds = page.histogram(
            "scheduler_permit_wait_duration_seconds",
            "[BETA] Time that a pod waited for its permit.",
            MILLISECONDS,
            "result",
        )

    # Queue

    def pod_queued(self, event: str, queue: str) -> None:
        """A pod entered the active, backoff or unschedulable pods because of an event."""
        self._incoming[event, queue] += 1

    def pending(self, counts: Mapping[str, int]) -> None:
        """How many pods wait, by queue: active, backoff, gated, unschedulable."""
        for queue, count in counts.items():
            self._pending[queue,] = count

    def unschedulable(self, plugin: str, profile: str, change: int) -> None:
        """One more, or one fewer, pod waits because this plugin rejected it."""
        self._unschedulable[plugin, profile] += change

    def inflight_events(self, event: str, change: int) -> None:
        """More, or fewer, events are kept for pods whose attempts are under way."""
        self._inflight[event,] += change

    def event_handled(self, event: str, seconds: float) -> None:
        self._event_seconds[event,].observe(seconds)

    def hint_asked(self, event: str, hint: HintResult, plugin: str, seconds: float) -> None:
        self._hint_seconds[event, hint, plugin].observe(seconds)

    def _declare_queue(self) -> None:
        page = self.page
        self._incoming = page.counter(
            "scheduler_queue_incoming_pods_total",
            "[STABLE] Pods put into a queue, by event.",
            "event",
            "queue",
        )
        self._pending = page.gauge("scheduler_pending_pods", "[STABLE] Pods that wait, by queue.", "queue")
        self.pending(dict.fromkeys(QUEUES, 0))
        self._unschedulable = page.gauge(
            "scheduler_unschedulable_pods",
            "[BETA] Pods that wait, by the plugin that rejected them.",
            *("plugin", "profile"),
        )
        self._inflight = page.gauge(
            "scheduler_inflight_events", "[ALPHA] Events kept for pods whose attempts are under way.", "event"
        )
        self._event_seconds = page.histogram(
            "scheduler_event_handling_duration_seconds",
            "[ALPHA] Time to handle a cluster event.",
            TENTHS_OF_MILLISECONDS,
            "event",
        )
        self._hint_seconds = page.histogram(
            "scheduler_queueing_hint_execution_duration_seconds",
            "[ALPHA] Time that a plugin took to say whether an event helps a pod.",
            FINE_MICROSECONDS,
            *("event", "hint", "plugin"),
        )

    # Preemption

    def preemption_attempted(self) -> None:
        self._preemptions[()] += 1

    def preempted(self, victims: int) -> None:
        self._victims[()].observe(victims)

    def victims_evicted(self, result: CallResult, seconds: float) -> None:
        """The evictions of one preemption have finished."""
        self._evictions[result,] += 1
        self._eviction_seconds[result,].observe(seconds)

    def _declare_preemption(self) -> None:
        page = self.page
        self._preemptions = page.counter(
            "scheduler_preemption_attempts_total", "[STABLE] Attempts to preempt pods."
        )
        self._victims = page.histogram(
            "scheduler_preemption_victims",
            "[STABLE] Pods that one preemption chose to evict.",
            exponential(1, 2, 7),
        )
        self._evictions = page.counter(
            "scheduler_preemption_goroutines_execution_total",
            "[ALPHA] Rounds of evictions, by result.",
            "result",
        )
        self._eviction_seconds = page.histogram(
            "scheduler_preemption_goroutines_duration_seconds",
            "[ALPHA] Time for a round of evictions.",
            MINUTES,
            "result",
        )

    # Pods equal to the one before

    def batch_attempted(
        self, profile: str, result: Literal["no_hint", "hint_used", "hint_not_used"], times: int = 1
    ) -> None:
        self._batches[profile, result] += times

    def batch_flushed(self, profile: str, reason: str, times: int = 1) -> None:
        self._flushes[profile, reason] += times

    def node_hint_sought(
        self, hinted: Literal["hint", "no_hint"], profile: str, seconds: float, times: int = 1
    ) -> None:
        self._node_hint_seconds[hinted, profile].observe_alike(seconds, times)

    def results_stored(self, profile: str, seconds: float, times: int = 1) -> None:
        self._store_seconds[profile,].observe_alike(seconds, times)

    def _declare_equal_pods(self) -> None:
        page = self.page
        self._batches = page.counter(
            "scheduler_batch_attempts_total",
            "[ALPHA] Attempts that could use the answer for an equal pod, by whether they did.",
            *("profile", "result"),
        )
        self._flushes = page.counter(
            "scheduler_batch_cache_flushed_total",
            "[ALPHA] Kept answers dropped, by reason.",
            *("profile", "reason"),
        )
        self._node_hint_seconds = page.histogram(
            "scheduler_get_node_hint_duration_seconds",
            "[ALPHA] Time to look up a kept answer.",
            MICROSECONDS,
            *("hinted", "profile"),
        )
        self._store_seconds = page.histogram(
            "scheduler_store_schedule_results_duration_seconds",
            "[ALPHA] Time to keep an answer for equal pods.",
            MICROSECONDS,
            "profile",
        )

    # Calls, volumes, devices

    def api_call(self, call_type: str, result: CallResult, seconds: float) -> None:
        self._calls[call_type, result] += 1
        self._call_seconds[call_type, result].observe(seconds)

    def pending_api_calls(self, call_type: str, change: int) -> None:
        self._pending_calls[call_type,] += change

    def claim_created(self, status: Literal["success", "failure"]) -> None:
        self._claims[status,] += 1

    def binding_conditions_waited(self, driver: str, profile: str, status: str, seconds: float) -> None:
        self._device_allocations[driver, profile, status] += 1
        self._device_seconds[driver, profile, status].observe(seconds)

    def _declare_calls(self) -> None:
        page, labels = self.page, ("call_type", "result")
        self._calls = page.counter(
            "scheduler_async_api_call_execution_total",
            "[ALPHA] Writes to the API server, by result.",
            *labels,
        )
        self._call_seconds = page.histogram(
            "scheduler_async_api_call_execution_duration_seconds",
            "[ALPHA] Time for a write to the API server.",
            MILLISECONDS,
            *labels,
        )
        self._pending_calls = page.gauge(
            "scheduler_pending_async_api_calls", "[ALPHA] Writes not answered yet.", "call_type"
        )
        page.counter(
            "scheduler_volume_scheduling_stage_error_total", "[ALPHA] Volume stages that failed.", "operation"
        )
        self._claims = page.counter(
            "scheduler_resourceclaim_creates_total", "[ALPHA] Claims created for pods, by status.", "status"
        )
        devices = ("driver", "profile", "status")
        self._device_allocations = page.counter(
            "scheduler_dra_bindingconditions_allocations_total",
            "[ALPHA] Pods that waited for their devices' binding conditions, by outcome.",
            *devices,
        )
        self._device_seconds = page.histogram(
            "scheduler_dra_bindingconditions_wait_duration_seconds",
            "[ALPHA] Time that a pod waited for its devices' binding conditions.",
            exponential(0.1, 2, 14),
            *devices,
        )

    # Pod groups

    def group_attempt(self, profile: str, result: str, seconds: float) -> None:
        self._group_attempts[profile, result] += 1
        self._group_seconds[profile, result].observe(seconds)

    def group_algorithm(self, seconds: float) -> None:
        self._group_algorithm_seconds[()].observe(seconds)

    def _declare_pod_groups(self) -> None:
        page, labels = self.page, ("profile", "result")
        self._group_attempts = page.counter(
            "scheduler_podgroup_schedule_attempts_total",
            "[ALPHA] Attempts to schedule a pod group, by result.",
            *labels,
        )
        self._group_seconds = page.histogram(
            "scheduler_podgroup_scheduling_attempt_duration_seconds",
            "[ALPHA] Length of an attempt for a pod group.",
            MILLISECONDS,
            *labels,
        )
        self._group_algorithm_seconds = page.histogram(
            "scheduler_podgroup_scheduling_algorithm_duration_seconds",
            "[ALPHA] Length of the decision for a pod group.",
            MILLISECONDS,
        )
        self._group_algorithm_seconds.clear()  # not shown where no pod groups are

    # What every Kubernetes component shows

    def set_build_info(self, version: str) -> None:
        """What is running: the release of Kubernetes, `v1.36.4`, with what may follow after a plus sign."""
        major, minor = version.removeprefix("v").split(".")[:2]
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
        compiler, platform = sys.implementation.name, f"{sys.platform}/{machine}"
        self._build["", compiler, "", "", version, "", major, minor, platform] = 1

    def leading(self, lease: str, is_leader: bool) -> None:
        self._leader[lease,] = int(is_leader)

    def request(self, code: str, host: str, method: str, seconds: float) -> None:
        """A request to the API server; `code` is its status, or `<error>` without an answer."""
        self._requests[code, host, method] += 1
        self._request_seconds[host, method].observe(seconds)
        self._unsettled += 1
        if self._unsettled >= SETTLE_AFTER_REQUESTS:  # who stands by does nothing but renew its claim
            self.settle()

    def request_sent(self, host: str, method: str, size: int) -> None:
        self._request_sizes[host, method].observe(size)

    def count_response(self, host: str, method: str, size: int) -> None:
        self._response_sizes[host, method].observe(size)

    def throttled(self, host: str, method: str, seconds: float) -> None:
        """How long a request waited because of our rate limit; mostly not at all."""
        self._throttled_seconds[host, method].observe(seconds)

    def watch_begun(self, code: str, host: str) -> None:
        """Count a watch when it begins, without a duration: the server decides when it ends."""
        self._requests[code, host, "GET"] += 1

    def health_checked(self, name: str, path: HealthPath, is_ok: bool) -> None:
        self._health[name, path] = int(is_ok)
        self._health_checks[name, "success" if is_ok else "error", path] += 1

    def _declare_generic(self) -> None:
        page = self.page
        self._build = page.gauge(
            "kubernetes_build_info",
            "[BETA] Always 1; the labels have the version.",
            *("build_date", "compiler", "git_commit", "git_tree_state", "git_version", "go_version"),
            *("major", "minor", "platform"),
        )
        self._leader = page.gauge("leader_election_master_status", "[ALPHA] 1 while leading, else 0.", "name")
        self._requests = page.counter(
            "rest_client_requests_total", "[ALPHA] Requests to the API server.", "code", "host", "method"
        )
        self._request_seconds = page.histogram(
            "rest_client_request_duration_seconds",
            "[ALPHA] Time until the API server answered.",
            REQUESTS,
            *("host", "verb"),
        )
        self._declare_bodies()
        self._process_cpu = page.counter("process_cpu_seconds_total", "CPU time of this process.")
        self._process_start = page.gauge("process_start_time_seconds", "When the scheduler started.")
        self._process_start[()] = self._started
        self._process_memory = page.gauge("process_resident_memory_bytes", "Resident memory of this process.")
        self._process_virtual = page.gauge("process_virtual_memory_bytes", "Virtual memory of this process.")
        page.gauge("process_virtual_memory_max_bytes", "Maximum virtual memory of this process.")[()] = (
            _max_memory()
        )
        self._received = page.counter(
            "process_network_receive_bytes_total",
            "Bytes received over the network, as the system counts them.",
        )
        self._sent = page.counter(
            "process_network_transmit_bytes_total", "Bytes sent over the network, as the system counts them."
        )
        self._process_files = page.gauge("process_open_fds", "Open files and sockets.")
        page.gauge("process_max_fds", "Maximum number of open files and sockets.")[()] = os.sysconf(
            "SC_OPEN_MAX"
        )
        self._health = self.slis.gauge(
            "kubernetes_healthcheck", "[STABLE] 1 where a check last passed, else 0.", "name", "type"
        )
        self._health_checks = self.slis.counter(
            "kubernetes_healthchecks_total", "[STABLE] Checks made, by result.", "name", "status", "type"
        )

    def _declare_bodies(self) -> None:
        page, labels = self.page, ("host", "verb")
        self._request_sizes = page.histogram(
            "rest_client_request_size_bytes", "[ALPHA] Size of requests to the API server.", SIZES, *labels
        )
        self._response_sizes = page.histogram(
            "rest_client_response_size_bytes",
            "[ALPHA] Size of responses from the API server.",
            SIZES,
            *labels,
        )
        self._throttled_seconds = page.histogram(
            "rest_client_rate_limiter_duration_seconds",
            "[ALPHA] Time that requests waited because of the client's rate limit.",
            REQUESTS,
            *labels,
        )

    def _measure_process(self) -> None:
        self._process_cpu[()] = time.process_time()
        self._received[()], self._sent[()] = _octets()
        try:
            with open("/proc/self/statm") as statm:
                size, resident = map(int, statm.read().split()[:2])
            open_files = len(os.listdir("/proc/self/fd"))
        except OSError:
            return  # not Linux
        page_size = os.sysconf("SC_PAGE_SIZE")
        self._process_virtual[()], self._process_memory[()] = size * page_size, resident * page_size
        self._process_files[()] = open_files


def _octets() -> tuple[int, int]:
    """Received and sent by all that shares our network, which in a pod are we."""
    try:
        with open("/proc/self/net/netstat") as netstat:
            names, numbers = [line.split() for line in netstat if line.startswith("IpExt:")]
        found = dict(zip(names, numbers, strict=True))
        return int(found["InOctets"]), int(found["OutOctets"])
    except (OSError, LookupError, ValueError):
        return 0, 0  # not Linux, or not all of it


def _max_memory() -> float:
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return UNLIMITED if most == resource.RLIM_INFINITY else most
