"""Metrics: family by family what kube-scheduler's own page shows, and each family driven by its method."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stowplan.cluster import ClusterView
from stowplan.framework.handle import Handle
from stowplan.metrics import Metrics
from stowplan.metrics import scheduler as metrics_module
from stowplan.metrics.page import Page
from stowplan.plugins.default.volume_binding import STAGE_ERRORS

MILLISECONDS = "0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384"
SECONDS = "0.1 0.2 0.4 0.8 1.6 3.2 6.4 12.8 25.6 51.2 102.4 204.8 409.6 819.2"
TENTHS = "0.0001 0.0002 0.0004 0.0008 0.0016 0.0032 0.0064 0.0128 0.0256 0.0512 0.1024 0.2048"
MICROSECONDS = "1e-05 2e-05 4e-05 8e-05 0.00016 0.00032 0.00064 0.00128 0.00256 0.00512 0.01024 0.02048"
FINE = (
    "1e-05 1.5000000000000002e-05 2.2500000000000005e-05 3.375000000000001e-05 5.062500000000001e-05 "
    "7.593750000000002e-05 0.00011390625000000003 0.00017085937500000006 0.0002562890625000001 "
    "0.00038443359375000017 0.0005766503906250003 0.0008649755859375004 0.0012974633789062506 "
    "0.0019461950683593758 0.0029192926025390638 0.004378938903808595 0.006568408355712893 "
    "0.009852612533569338 0.014778918800354007 0.02216837820053101"
)
MINUTES = (
    "0.01 0.02 0.04 0.08 0.16 0.32 0.64 1.28 2.56 5.12 10.24 20.48 40.96 81.92 163.84 327.68 655.36 1310.72 "
    "2621.44 5242.88"
)
Call = Callable[[Metrics], None]


class Family(NamedTuple):
    type: str
    stability: str
    labels: frozenset[str]
    bounds: tuple[str, ...]


def read_reference() -> tuple[dict[str, Family], set[str]]:
    """The scheduler_* families of kube-scheduler's page, and the names of those it shows at its start."""
    text = (Path(__file__).parent / "kube_scheduler_metrics.txt").read_text().partition("# Registered")[0]
    families, at_start = {}, set()
    for block in re.split(r"\n(?=scheduler_)", text)[1:]:
        head, *rest = block.splitlines()
        name, kind, stability, *notes = head.split(None, 3)
        labels = dict(line.strip().split(": ", 1) for line in rest if line.strip())
        bounds = tuple(labels.pop("le", "").split())
        families[name] = Family(kind, stability, frozenset(labels), bounds)
        if notes == ["(at start)"]:
            at_start.add(name)
    return families, at_start


REFERENCE, SHOWN_AT_START = read_reference()


def evicted(metrics: Metrics) -> None:
    metrics.victims_evicted("success", 0.5)


def volume_failed(metrics: Metrics) -> None:
    """As VolumeBinding counts it, through its handle."""
    Handle(ClusterView(), metrics=metrics.page).counter(*STAGE_ERRORS)["bind",] += 1


def waited(metrics: Metrics) -> None:
    metrics.binding_conditions_waited("gpu", "prof", "success", 0.5)


NUMBERS = [
    (
        "schedule_attempts_total",
        "counter STABLE",
        'profile="prof",result="error"',
        lambda m: m.attempt("prof", "error", 1),
    ),
    ("pod_scheduled_after_flush_total", "counter ALPHA", "", lambda m: m.scheduled_after_flush()),
    ("goroutines", "gauge BETA", 'operation="binding"', lambda m: m.running("binding", 1)),
    ("cache_size", "gauge ALPHA", 'type="nodes"', lambda m: m.cache_sizes(nodes=1, pods=2, assumed_pods=3)),
    (
        "plugin_evaluation_total",
        "counter BETA",
        'extension_point="Filter",plugin="NodeName",profile="prof"',
        lambda m: m.plugin_evaluated("Filter", "NodeName", "prof"),
    ),
    (
        "queue_incoming_pods_total",
        "counter STABLE",
        'event="NodeAdd",queue="active"',
        lambda m: m.pod_queued("NodeAdd", "active"),
    ),
    ("pending_pods", "gauge STABLE", 'queue="gated"', lambda m: m.pending({"gated": 1})),
    (
        "unschedulable_pods",
        "gauge BETA",
        'plugin="NodeName",profile="prof"',
        lambda m: m.unschedulable("NodeName", "prof", 1),
    ),
    ("inflight_events", "gauge ALPHA", 'event="PodPopped"', lambda m: m.inflight_events("PodPopped", 1)),
    ("preemption_attempts_total", "counter STABLE", "", lambda m: m.preemption_attempted()),
    ("preemption_goroutines_execution_total", "counter ALPHA", 'result="success"', evicted),
    (
        "batch_attempts_total",
        "counter ALPHA",
        'profile="prof",result="hint_used"',
        lambda m: m.batch_attempted("prof", "hint_used"),
    ),
    (
        "batch_cache_flushed_total",
        "counter ALPHA",
        'profile="prof",reason="expired"',
        lambda m: m.batch_flushed("prof", "expired"),
    ),
    (
        "async_api_call_execution_total",
        "counter ALPHA",
        'call_type="pod_binding",result="error"',
        lambda m: m.api_call("pod_binding", "error", 1),
    ),
    (
        "pending_async_api_calls",
        "gauge ALPHA",
        'call_type="pod_binding"',
        lambda m: m.pending_api_calls("pod_binding", 1),
    ),
    (
        "volume_scheduling_stage_error_total",
        "counter ALPHA",
        'operation="bind"',
        volume_failed,
    ),
    (
        "resourceclaim_creates_total",
        "counter ALPHA",
        'status="success"',
        lambda m: m.claim_created("success"),
    ),
    (
        "dra_bindingconditions_allocations_total",
        "counter ALPHA",
        'driver="gpu",profile="prof",status="success"',
        waited,
    ),
    (
        "podgroup_schedule_attempts_total",
        "counter ALPHA",
        'profile="prof",result="scheduled"',
        lambda m: m.group_attempt("prof", "scheduled", 1),
    ),
]
HISTOGRAMS = [
    (
        "scheduling_attempt_duration_seconds",
        "STABLE",
        'profile="prof",result="scheduled"',
        MILLISECONDS,
        lambda m: m.attempt("prof", "scheduled", 0.5),
    ),
    ("scheduling_algorithm_duration_seconds", "ALPHA", "", MILLISECONDS, lambda m: m.algorithm(0.5)),
    ("pod_scheduling_attempts", "STABLE", "", "1 2 4 8 16", lambda m: m.pod_scheduled(3, 0.5)),
    (
        "pod_scheduling_sli_duration_seconds",
        "BETA",
        'attempts="14"',
        MINUTES,
        lambda m: m.pod_scheduled(14, 0.5),
    ),
    (
        "pod_scheduling_sli_duration_seconds",
        "BETA",
        'attempts="15+"',
        MINUTES,
        lambda m: m.pod_scheduled(15, 0.5),
    ),
    (
        "framework_extension_point_duration_seconds",
        "STABLE",
        'extension_point="Bind",profile="prof",status="Success"',
        TENTHS,
        lambda m: m.extension_point("Bind", "prof", "Success", 0.01),
    ),
    (
        "plugin_execution_duration_seconds",
        "ALPHA",
        'extension_point="Score",plugin="NodeName",status="Skip"',
        FINE,
        lambda m: m.plugin_executed("Score", "NodeName", "Skip", 0.001),
    ),
    (
        "permit_wait_duration_seconds",
        "BETA",
        'result="Success"',
        MILLISECONDS,
        lambda m: m.permit_waited("Success", 1),
    ),
    (
        "event_handling_duration_seconds",
        "ALPHA",
        'event="NodeAdd"',
        TENTHS,
        lambda m: m.event_handled("NodeAdd", 0.1),
    ),
    (
        "queueing_hint_execution_duration_seconds",
        "ALPHA",
        'event="NodeAdd",hint="QueueSkip",plugin="NodeName"',
        FINE,
        lambda m: m.hint_asked("NodeAdd", "QueueSkip", "NodeName", 0.001),
    ),
    ("preemption_victims", "STABLE", "", "1 2 4 8 16 32 64", lambda m: m.preempted(5)),
    ("preemption_goroutines_duration_seconds", "ALPHA", 'result="success"', MINUTES, evicted),
    (
        "get_node_hint_duration_seconds",
        "ALPHA",
        'hinted="no_hint",profile="prof"',
        MICROSECONDS,
        lambda m: m.node_hint_sought("no_hint", "prof", 0.001),
    ),
    (
        "store_schedule_results_duration_seconds",
        "ALPHA",
        'profile="prof"',
        MICROSECONDS,
        lambda m: m.results_stored("prof", 0.001),
    ),
    (
        "async_api_call_execution_duration_seconds",
        "ALPHA",
        'call_type="pod_binding",result="success"',
        MILLISECONDS,
        lambda m: m.api_call("pod_binding", "success", 1),
    ),
    (
        "dra_bindingconditions_wait_duration_seconds",
        "ALPHA",
        'driver="gpu",profile="prof",status="success"',
        SECONDS,
        waited,
    ),
    (
        "podgroup_scheduling_attempt_duration_seconds",
        "ALPHA",
        'profile="prof",result="scheduled"',
        MILLISECONDS,
        lambda m: m.group_attempt("prof", "scheduled", 1),
    ),
    (
        "podgroup_scheduling_algorithm_duration_seconds",
        "ALPHA",
        "",
        MILLISECONDS,
        lambda m: m.group_algorithm(1),
    ),
]


def lines(page: bytes) -> list[str]:
    return page.decode().splitlines()


def shown(page: bytes) -> set[str]:
    return {line.split()[2] for line in lines(page) if line.startswith("# TYPE scheduler_")}


def braced(*labels: str) -> str:
    text = ",".join(filter(None, labels))
    return f"{{{text}}}" if text else ""


def below(bound: str) -> str:
    return f'le="{bound}"'


def test_every_family_is_as_on_kube_schedulers_page():
    metrics = Metrics()
    for *_, call in (*NUMBERS, *HISTOGRAMS):
        call(metrics)
    assert read_families(metrics.render().decode()) == REFERENCE


def read_families(page: str) -> dict[str, Family]:
    types = dict(re.findall(r"^# TYPE (scheduler_\w+) (\w+)$", page, re.MULTILINE))
    stabilities = dict(re.findall(r"^# HELP (scheduler_\w+) \[(\w+)\] ", page, re.MULTILINE))
    found = {}
    for name, kind in types.items():
        suffix = "_bucket" if kind == "histogram" else ""
        samples = re.findall(rf"^{name}{suffix}(?:{{(.*)}})? ", page, re.MULTILINE)
        labels = [dict(re.findall(r'(\w+)="([^"]*)"', inside)) for inside in samples]
        bounds = tuple(dict.fromkeys(each.pop("le") for each in labels)) if suffix else ()
        (names,) = {frozenset(each) for each in labels}
        found[name] = Family(kind, stabilities[name], names, bounds)
    return found


def test_what_is_shown_before_the_first_pod():
    metrics = Metrics()
    metrics.profile_started("prof", {"filter": ["NodeName"]})
    assert shown(metrics.render()) == SHOWN_AT_START


@pytest.mark.parametrize(
    ("name", "type_and_stability", "labels", "call"), NUMBERS, ids=[row[0] for row in NUMBERS]
)
def test_number(name: str, type_and_stability: str, labels: str, call: Call):
    metrics, name = Metrics(), f"scheduler_{name}"
    kind, stability = type_and_stability.split()
    assert f"{name}{braced(labels)} 1" not in lines(metrics.render())
    call(metrics)
    page = lines(metrics.render())
    assert f"# TYPE {name} {kind}" in page
    assert any(line.startswith(f"# HELP {name} [{stability}] ") for line in page)
    assert f"{name}{braced(labels)} 1" in page


@pytest.mark.parametrize(
    ("name", "stability", "labels", "bounds", "call"),
    HISTOGRAMS,
    ids=[f"{row[0]} {row[2]}" for row in HISTOGRAMS],
)
def test_histogram(name: str, stability: str, labels: str, bounds: str, call: Call):
    metrics, name = Metrics(), f"scheduler_{name}"
    call(metrics)
    page = lines(metrics.render())
    assert f"# TYPE {name} histogram" in page
    assert any(line.startswith(f"# HELP {name} [{stability}] ") for line in page)
    buckets = [line.rpartition(" ")[0] for line in page if line.startswith(f"{name}_bucket")]
    assert buckets == [f"{name}_bucket{braced(labels, below(bound))}" for bound in (*bounds.split(), "+Inf")]
    assert f"{name}_bucket{braced(labels, below('+Inf'))} 1" in page
    assert f"{name}_count{braced(labels)} 1" in page


def test_a_bound_belongs_to_its_bucket():
    metrics = Metrics()
    for victims in (1, 2, 3, 65):
        metrics.preempted(victims)
    counts = [line.rpartition(" ")[2] for line in lines(metrics.render()) if "preemption_victims_" in line]
    assert counts == ["1", "2", "3", "3", "3", "3", "3", "4", "71", "4"]


def test_plugins_never_asked_stand_at_zero():
    metrics = Metrics()
    metrics.profile_started(
        "prof", {"filter": ["NodeName"], "score": ["ImageLocality"], "bind": ["DefaultBinder"]}
    )
    metrics.plugin_evaluated("Filter", "NodeName", "prof")
    metrics.profile_started("prof", {"filter": ["NodeName"]})
    assert [line for line in lines(metrics.render()) if line.startswith("scheduler_plugin_evaluation")] == [
        'scheduler_plugin_evaluation_total{extension_point="Filter",plugin="NodeName",profile="prof"} 1',
        'scheduler_plugin_evaluation_total{extension_point="Score",plugin="ImageLocality",profile="prof"} 0',
    ]


def test_gauges_go_down_again():
    metrics = Metrics()
    metrics.running("binding", 2)
    metrics.running("binding", -1)
    assert 'scheduler_goroutines{operation="binding"} 1' in lines(metrics.render())


def test_prometheus_reads_the_page():
    metrics = Metrics()
    odd = 'a "quoted"\\ name\nin two lines'
    metrics.attempt(odd, "scheduled", 0.25)
    families = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
    sample = families["scheduler_schedule_attempts"].samples[0]
    assert (sample.labels["profile"], sample.value) == (odd, 1)
    assert families["process_resident_memory_bytes"].samples[0].value > 1e6


def test_families_of_every_component():
    metrics = Metrics()
    metrics.leading("kube-scheduler", True)
    metrics.request("201", "10.0.0.1:443", "POST", 0.02)
    page = lines(metrics.render())
    assert 'leader_election_master_status{name="kube-scheduler"} 1' in page
    assert 'rest_client_requests_total{code="201",host="10.0.0.1:443",method="POST"} 1' in page
    assert 'rest_client_request_duration_seconds_bucket{host="10.0.0.1:443",verb="POST",le="0.025"} 1' in page


def test_who_is_running_in_the_words_of_every_component():
    metrics = Metrics()
    assert "kubernetes_build_info" not in metrics.render().decode()
    metrics.set_build_info("v1.36.4+stowplan.2.0")
    (line,) = [line for line in lines(metrics.render()) if line.startswith("kubernetes_build_info")]
    labels = dict(pair.split("=") for pair in line.partition("{")[2].partition("}")[0].split(","))
    assert list(labels) == [
        *("build_date", "compiler", "git_commit", "git_tree_state", "git_version", "go_version"),
        *("major", "minor", "platform"),
    ]
    assert (labels["git_version"], labels["major"], labels["minor"]) == (
        '"v1.36.4+stowplan.2.0"',
        '"1"',
        '"36"',
    )
    assert labels["go_version"] == '""'
    assert line.endswith(" 1")


SIZES = "64 256 512 1024 4096 16384 65536 262144 1.048576e+06 4.194304e+06 1.6777216e+07"
WAITS = "0.005 0.025 0.1 0.25 0.5 1 2 4 8 15 30 60"


@pytest.mark.parametrize(
    ("name", "bounds", "call"),
    [
        ("rest_client_request_size_bytes", SIZES, lambda m: m.request_sent("h:1", "POST", 700)),
        ("rest_client_response_size_bytes", SIZES, lambda m: m.count_response("h:1", "POST", 700)),
        ("rest_client_rate_limiter_duration_seconds", WAITS, lambda m: m.throttled("h:1", "POST", 0.3)),
        (
            "rest_client_request_duration_seconds",
            WAITS,
            lambda m: m.request("200", "h:1", "POST", 0.3),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("rest") else "",
)
def test_requests_have_client_gos_buckets(name: str, bounds: str, call: Call):
    metrics = Metrics()
    call(metrics)
    page = lines(metrics.render())
    buckets = [line.rpartition(" ")[0] for line in page if line.startswith(f"{name}_bucket")]
    labels = 'host="h:1",verb="POST"'
    assert buckets == [f"{name}_bucket{braced(labels, below(bound))}" for bound in (*bounds.split(), "+Inf")]
    assert f"{name}_count{braced(labels)} 1" in page


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_the_process_in_the_words_of_every_component():
    page = dict(line.rsplit(" ", 1) for line in lines(Metrics().render()) if line.startswith("process_"))
    assert set(page) == {
        "process_cpu_seconds_total",
        "process_max_fds",
        "process_network_receive_bytes_total",
        "process_network_transmit_bytes_total",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
        "process_virtual_memory_max_bytes",
    }
    assert all(float(number) > 0 for number in page.values())
    assert float(page["process_virtual_memory_max_bytes"]) >= float(page["process_virtual_memory_bytes"])


def test_health_checks_have_a_page_of_their_own():
    metrics = Metrics()
    metrics.health_checked("ping", "livez", True)
    metrics.health_checked("ping", "livez", False)
    assert [line for line in lines(metrics.render_slis()) if not line.startswith("#")] == [
        'kubernetes_healthcheck{name="ping",type="livez"} 0',
        'kubernetes_healthchecks_total{name="ping",status="error",type="livez"} 1',
        'kubernetes_healthchecks_total{name="ping",status="success",type="livez"} 1',
    ]


def test_what_was_observed_is_sorted_in_even_if_nobody_reads_the_page():
    metrics = Metrics()
    for _ in range(metrics_module.SETTLE_AFTER_REQUESTS):
        metrics.request("200", "h:1", "PUT", 0.01)
    series = metrics.page.families["rest_client_request_duration_seconds"]["h:1", "PUT"]
    assert sum(series.counts) == metrics_module.SETTLE_AFTER_REQUESTS
    metrics.algorithm(0.5)
    metrics.settle()
    assert metrics.page.families["scheduler_scheduling_algorithm_duration_seconds"][()].total == 0.5


def test_many_observations_are_counted_as_one_by_one():
    page = Page()
    values = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 4.5, 9.0, 1.0] * 5
    together, apart = (page.histogram(name, "", (1.0, 2.0, 4.0)) for name in ("together", "apart"))
    for value in values:
        together[()].observe(value)
        apart[()].observe(value)
        apart.settle()
    together.settle()
    assert together[()].counts == apart[()].counts == [15, 10, 10, 10]
    assert together[()].total == apart[()].total == sum(values)
