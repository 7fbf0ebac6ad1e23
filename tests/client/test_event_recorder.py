"""Events against an API server of the tests' own, in virtual time."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest

from make import make_pod
from stowplan.client.errors import ApiError, Conflict, Forbidden, NotFound, TooMany, Unreachable
from stowplan.client.events import (
    COLLECT_SECONDS,
    MAX_SERIES,
    QUEUED,
    EventRecorder,
    event_name,
    micro_time,
    truncate,
)
from stowplan.http11.client import Reply
from virtual_time import elapsed, in_virtual_time

START = 1_800_000_000.0  # 2027-01-15T08:00:00Z
MINUTES = 60
FAILED = ("Warning", "FailedScheduling", "Scheduling")
SCHEDULED = ("Normal", "Scheduled", "Binding")
REFUSED = Forbidden(403, "Forbidden", "you may not")
PREEMPTED = ("Normal", "Preempted", "Preempting")


class EventServer:
    """Keeps events by path, and every call; the next calls fail with what `failures` holds."""

    def __init__(self, *failures, latency=0.0):
        self.events = {}
        self.calls = []
        self.failures = list(failures)
        self.latency = latency
        self.at_once = self.most_at_once = 0

    async def request(self, method, path, body=None, *, content_type="application/json"):
        plain = msgspec.json.decode(msgspec.json.encode(body))
        self.calls.append((elapsed(), method, path, content_type, plain))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(self.latency)
        self.at_once -= 1
        if self.failures:
            raise self.failures.pop(0)
        if method == "POST":
            name = f"{path}/{plain['metadata']['name']}"
            if name in self.events:
                raise Conflict(409, "AlreadyExists", "there already")
            self.events[name] = dict(plain)
        elif path not in self.events:
            raise NotFound(404, "NotFound", "no such event")
        else:
            self.events[path] |= plain
        return Reply(200, b"{}")

    @property
    def methods(self):
        return [method for _, method, *_ in self.calls]

    @property
    def counts(self):
        """How often each event happened, as far as the server knows."""
        return [event.get("series", {"count": 1})["count"] for event in self.events.values()]


@asynccontextmanager
async def recording(server, controller="default-scheduler", instance="default-scheduler-host"):
    recorder = EventRecorder(server, controller, instance, lambda: START + elapsed())
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def make_failed(name="web", version="7", **options):
    return make_pod(name, metadata={"resourceVersion": version}, **options)


@in_virtual_time
async def test_an_event_has_all_that_kubectl_shows():
    server = EventServer()
    pod = make_pod("web", namespace="shop", metadata={"uid": "pod-uid", "resourceVersion": "7"})
    async with recording(server, "my-scheduler", "my-scheduler-host") as recorder:
        recorder.record(pod, *SCHEDULED, "Successfully assigned shop/web to n1")
        assert await recorder.drain(1)
    [(_, method, path, content_type, body)] = server.calls
    assert method == "POST"
    assert path == "/apis/events.k8s.io/v1/namespaces/shop/events"
    assert content_type == "application/json"
    assert body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"web.{int(START * 1e9):x}", "namespace": "shop"},
        "eventTime": "2027-01-15T08:00:00.000000Z",
        "reportingController": "my-scheduler",
        "reportingInstance": "my-scheduler-host",
        "action": "Binding",
        "reason": "Scheduled",
        "type": "Normal",
        "note": "Successfully assigned shop/web to n1",
        "regarding": {
            "kind": "Pod",
            "apiVersion": "v1",
            "namespace": "shop",
            "name": "web",
            "uid": "pod-uid",
            "resourceVersion": "7",
        },
    }


NO_SUCH_PATH = NotFound(404, "", "404 page not found")


@in_virtual_time
async def test_a_server_without_events_of_that_group_gets_those_of_the_core():
    server = EventServer(NO_SUCH_PATH)
    async with recording(server) as recorder:
        for _ in range(2):
            recorder.record(make_failed(), *FAILED, "no room")
            await asyncio.sleep(10)
        recorder.record(make_failed("db"), *FAILED, "no room")
        await recorder.drain(1)
    name, core = f"web.{int(START * 1e9):x}", "/api/v1/namespaces/default/events"
    (_, created), (_, counted), (_, another) = [(path, body) for _, _, path, _, body in server.calls[1:]]
    assert [path for _, _, path, *_ in server.calls[1:]] == [core, f"{core}/{name}", core]
    assert created == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {
            "kind": "Pod",
            "apiVersion": "v1",
            "namespace": "default",
            "name": "web",
            "uid": "uid-web",
            "resourceVersion": "7",
        },
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": "no room",
        "source": {"component": "default-scheduler"},
        "count": 1,
        "firstTimestamp": "2027-01-15T08:00:00Z",
        "lastTimestamp": "2027-01-15T08:00:00Z",
    }
    assert counted == {"count": 2, "lastTimestamp": "2027-01-15T08:00:10Z"}
    assert another["involvedObject"]["name"] == "db"


@in_virtual_time
async def test_no_event_is_lost_while_that_is_found_out():
    server = EventServer(*[NO_SUCH_PATH] * 3, latency=1)
    async with recording(server) as recorder:
        for number in range(3):
            recorder.record(make_failed(f"web-{number}"), *FAILED, "no room")
        await recorder.drain(10)
    assert sorted(event["involvedObject"]["name"] for event in server.events.values()) == [
        "web-0",
        "web-1",
        "web-2",
    ]


@in_virtual_time
async def test_a_namespace_that_is_gone_is_no_reason_to_send_events_otherwise():
    server = EventServer(NotFound(404, "NotFound", 'namespaces "default" not found'))
    async with recording(server) as recorder:
        recorder.record(make_failed(), *FAILED, "no room")
        recorder.record(make_failed("db"), *FAILED, "no room")
        await recorder.drain(1)
    assert {path for _, _, path, *_ in server.calls} == {"/apis/events.k8s.io/v1/namespaces/default/events"}
    assert len(server.calls) == 2


@in_virtual_time
async def test_a_percent_sign_stays_one():
    server = EventServer()
    async with recording(server) as recorder:
        recorder.record(make_failed(), *FAILED, "disk 95% full (100%)")
        await recorder.drain(1)
    assert server.calls[0][-1]["note"] == "disk 95% full (100%)"


@in_virtual_time
async def test_an_instance_longer_than_the_api_allows_is_cut():
    server = EventServer()
    async with recording(server, instance="i" * 200) as recorder:
        recorder.record(make_failed(), *FAILED, "no room")
        await recorder.drain(1)
    assert server.calls[0][-1]["reportingInstance"] == "i" * 128


@in_virtual_time
async def test_a_series_tells_the_second_time_and_counts_the_others():
    server = EventServer()
    pod = make_failed()
    async with recording(server) as recorder:
        for _ in range(5):
            recorder.record(pod, *FAILED, "no room")
            await asyncio.sleep(10)
    assert server.methods == ["POST", "PATCH"]
    at, _, path, content_type, patch = server.calls[1]
    assert at == 10
    assert path == f"/apis/events.k8s.io/v1/namespaces/default/events/web.{int(START * 1e9):x}"
    assert content_type == "application/strategic-merge-patch+json"
    assert patch == {"series": {"count": 2, "lastObservedTime": "2027-01-15T08:00:10.000000Z"}}


@pytest.mark.parametrize(
    ("pod", "what", "note"),
    [
        pytest.param(make_failed(), FAILED, "no nodes", id="another note"),
        pytest.param(make_failed(version="8"), FAILED, "no room", id="another version of the pod"),
        pytest.param(make_failed("db"), FAILED, "no room", id="another pod"),
        pytest.param(make_failed(), ("Normal", *FAILED[1:]), "no room", id="another type"),
        pytest.param(make_failed(), ("Warning", "Preempted", "Scheduling"), "no room", id="another reason"),
        pytest.param(make_failed(), (*FAILED[:2], "Preempting"), "no room", id="another action"),
    ],
)
@in_virtual_time
async def test_what_is_not_the_same_gets_an_event_of_its_own(pod, what, note):
    server = EventServer()
    async with recording(server) as recorder:
        recorder.record(make_failed(), *FAILED, "no room")
        await asyncio.sleep(1)
        recorder.record(pod, *what, note)
        await asyncio.sleep(1)
    assert server.methods == ["POST", "POST"]
    assert server.counts == [1, 1]


@in_virtual_time
async def test_a_repetition_while_the_first_is_under_way_is_not_lost():
    server = EventServer(latency=1)
    pod = make_failed()
    async with recording(server) as recorder:
        recorder.record(pod, *FAILED, "no room")
        await asyncio.sleep(0.5)
        recorder.record(pod, *FAILED, "no room")
        await recorder.drain(10)
    assert server.methods == ["POST", "PATCH"]
    assert server.counts == [2]


@in_virtual_time
async def test_a_repetition_before_the_first_was_sent_takes_no_call_of_its_own():
    server = EventServer()
    pod = make_failed()
    async with recording(server) as recorder:
        for _ in range(3):
            recorder.record(pod, *FAILED, "no room")
        await recorder.drain(10)
    assert server.methods == ["POST"]
    assert server.counts == [3]


@pytest.mark.parametrize(
    ("pause", "known_after"),
    [
        # Failures every `pause` seconds during ten minutes; then nothing. When does the server know of all?
        pytest.param(60, 18 * MINUTES, id="at the first look after six quiet minutes"),
        pytest.param(200, 18 * MINUTES, id="as well with long pauses"),
    ],
)
@in_virtual_time
async def test_a_finished_series_is_told(pause, known_after):
    server = EventServer()
    pod = make_failed()
    async with recording(server) as recorder:
        times = 0
        while elapsed() < 10 * MINUTES:
            recorder.record(pod, *FAILED, "no room")
            times += 1
            await asyncio.sleep(pause)
        await asyncio.sleep(known_after - elapsed() - 1)
        assert server.counts == [2]
        await asyncio.sleep(2)
        assert server.counts == [times]
        recorder.record(pod, *FAILED, "no room")
        await asyncio.sleep(1)
    assert server.counts == [times, 1]  # what comes after is another series


@in_virtual_time
async def test_a_series_that_goes_on_is_told_every_half_hour():
    server = EventServer()
    pod = make_failed()
    async with recording(server) as recorder:
        for _ in range(61):
            recorder.record(pod, *FAILED, "no room")
            await asyncio.sleep(MINUTES)
    patched = [
        (at / MINUTES, body["series"]["count"]) for at, method, *_, body in server.calls if method == "PATCH"
    ]
    assert patched == [(1, 2), (30, 30), (60, 60)]


@in_virtual_time
async def test_nothing_is_told_of_what_did_not_change():
    server = EventServer()
    pod = make_failed()
    async with recording(server) as recorder:
        recorder.record(pod, *FAILED, "no room")
        await asyncio.sleep(1)
        recorder.record(pod, *FAILED, "no room")
        await asyncio.sleep(120 * MINUTES)
    assert server.methods == ["POST", "PATCH"]


@in_virtual_time
async def test_an_event_that_expired_meanwhile_is_made_again_with_its_count():
    server = EventServer()
    pod = make_failed()
    async with recording(server) as recorder:
        recorder.record(pod, *FAILED, "no room")
        await asyncio.sleep(1)
        server.events.clear()
        recorder.record(pod, *FAILED, "no room")
        await asyncio.sleep(1)
    assert server.methods == ["POST", "PATCH", "POST"]
    assert server.counts == [2]


@pytest.mark.parametrize(
    ("failures", "times"),
    [
        pytest.param([Unreachable("gone")] * 3, [0, 10, 20, 30], id="unreachable: every 10 s"),
        pytest.param([Unreachable("gone")] * 11, [10 * i for i in range(12)], id="the twelfth try succeeds"),
        pytest.param([Unreachable("gone")] * 99, [10 * i for i in range(12)], id="there is no thirteenth"),
        pytest.param([ApiError(503, "ServiceUnavailable", "busy")], [0, 10], id="unavailable"),
        pytest.param([TooMany(429, "TooManyRequests", "slower", 3)], [0, 3], id="when the server says"),
        pytest.param([REFUSED], [0, 1], id="refused by a server that has just started"),
        pytest.param([REFUSED] * 99, [0, 1, 2, 3, 4], id="refused for good"),
        pytest.param([Unreachable("gone"), REFUSED, REFUSED], [0, 10, 11, 12], id="gone, then starting"),
        pytest.param([ApiError(422, "Invalid", "no such field")], [0], id="invalid: not again"),
        pytest.param([RuntimeError("a bug")], [0], id="what nobody foresaw: not again"),
    ],
)
@in_virtual_time
async def test_tries(failures, times):
    server = EventServer(*failures)
    async with recording(server) as recorder:
        recorder.record(make_failed(), *FAILED, "no room")
        assert await recorder.drain(200)
        assert [at for at, *_ in server.calls] == times
        server.failures.clear()
        recorder.record(make_failed("db"), *FAILED, "no room")  # whatever it was, the next is sent
        assert await recorder.drain(1)
    assert "db" in server.calls[-1][-1]["metadata"]["name"]


@in_virtual_time
async def test_what_was_given_up_is_tried_again_when_it_happens_again():
    server = EventServer(*[ApiError(422, "Invalid", "no such field")] * 2)
    async with recording(server) as recorder:
        for _ in range(4):
            recorder.record(make_failed(), *FAILED, "no room")
            await asyncio.sleep(1)
    assert server.methods == ["POST", "POST", "POST"]
    assert server.counts == [3]


@in_virtual_time
async def test_a_try_that_came_through_without_an_answer_is_no_failure():
    server = EventServer(Unreachable("no answer"), Conflict(409, "AlreadyExists", "there already"))
    async with recording(server) as recorder:
        recorder.record(make_failed(), *FAILED, "no room")
        await recorder.drain(60)
        recorder.record(make_failed(), *FAILED, "no room")
        await recorder.drain(60)
    assert server.methods[:3] == ["POST", "POST", "PATCH"]


@in_virtual_time
async def test_a_full_queue_drops_and_counts():
    server = EventServer()
    async with recording(server) as recorder:
        for number in range(QUEUED + 3):  # nothing is sent before the first pause
            recorder.record(make_failed(f"web-{number}"), *PREEMPTED, "by another")
        assert recorder.dropped == 3
        assert await recorder.drain(10)
        assert len(server.calls) == QUEUED
        recorder.record(make_failed(f"web-{QUEUED + 2}"), *PREEMPTED, "by another")
        await recorder.drain(10)
    assert server.methods == ["POST"] * (QUEUED + 1)
    assert server.counts[-1] == 2  # one that was dropped is told when it happens again


@in_virtual_time
async def test_only_so_many_series_are_known():
    server = EventServer()
    pod = make_failed()
    async with recording(server) as recorder:
        recorder.record(pod, *FAILED, "the oldest")
        for number in range(MAX_SERIES):
            recorder.record(pod, *FAILED, str(number))
        await recorder.drain(10)
        recorder.record(pod, *FAILED, "the oldest")
        recorder.record(pod, *FAILED, "1")
        await recorder.drain(10)
    assert server.methods[-2:] == ["POST", "PATCH"]


@in_virtual_time
async def test_many_are_sent_side_by_side():
    server = EventServer(latency=0.01)
    async with recording(server) as recorder:
        for number in range(160):
            recorder.record(make_failed(f"web-{number}"), *SCHEDULED, "there")
        assert await recorder.drain(0.2)
    assert server.most_at_once == 64


@in_virtual_time
async def test_pods_scheduled_within_a_moment_are_told_of_together():
    server = EventServer()
    async with recording(server) as recorder:
        for number in range(3):
            recorder.record(make_pod(f"web-{number}"), *SCHEDULED, "there")
            await asyncio.sleep(COLLECT_SECONDS / 4)
        await asyncio.sleep(1)
        recorder.record(make_pod("web-4"), *SCHEDULED, "there")
        await asyncio.sleep(1)
    first, second, third, last = [at for at, *_ in server.calls]
    assert first == 0
    assert second == third == pytest.approx(COLLECT_SECONDS)
    assert last == pytest.approx(1 + COLLECT_SECONDS * 3 / 4)


@in_virtual_time
async def test_drain_does_not_wait_for_more_events():
    server = EventServer()
    async with recording(server) as recorder:
        recorder.record(make_pod("web"), *SCHEDULED, "there")
        assert await recorder.drain(1)
        assert (elapsed(), server.methods) == (0, ["POST"])


@in_virtual_time
async def test_pods_that_were_scheduled_count_among_those_that_wait():
    server = EventServer()
    async with recording(server) as recorder:
        for number in range(QUEUED + 3):
            recorder.record(make_pod(f"web-{number}"), *SCHEDULED, "there")
        assert recorder.dropped == 3
        assert await recorder.drain(10)
    assert len(server.calls) == QUEUED


@in_virtual_time
async def test_drain_gives_up_in_time():
    server = EventServer(latency=100)
    async with recording(server) as recorder:
        recorder.record(make_failed(), *FAILED, "no room")
        assert not await recorder.drain(5)
        assert elapsed() == pytest.approx(5)


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        pytest.param("", "", id="nothing"),
        pytest.param("x" * 1024, "x" * 1024, id="1024 bytes are kept"),
        pytest.param("x" * 1025, "x" * 1020 + " ...", id="1025 are not"),
        pytest.param("é" * 512, "é" * 512, id="bytes count, not characters: 1024"),
        pytest.param("é" * 513, "é" * 510 + " ...", id="bytes count, not characters: 1026"),
        pytest.param("x" + "é" * 512, "x" + "é" * 509 + " ...", id="no half characters"),
        pytest.param("😀" * 256, "😀" * 256, id="four bytes each"),
        pytest.param("half \ud800", "half ?", id="half of a surrogate pair"),
        pytest.param("\ud800" * 2000, "?" * 1020 + " ...", id="many of them"),
    ],
)
def test_truncation(note, expected):
    assert truncate(note) == expected
    assert len(truncate(note).encode()) <= 1024


@in_virtual_time
async def test_notes_are_truncated():
    server = EventServer()
    async with recording(server) as recorder:
        recorder.record(make_failed(), *FAILED, "x" * 2000)
        await recorder.drain(1)
    assert server.calls[0][-1]["note"] == "x" * 1020 + " ..."


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param(START, "2027-01-15T08:00:00.000000Z", id="all digits even of a whole second"),
        pytest.param(START + 0.25, "2027-01-15T08:00:00.250000Z", id="a fraction"),
    ],
)
def test_times_have_microseconds(seconds, expected):
    assert micro_time(seconds) == expected


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        pytest.param("web", r"web\.18fae27693b40000", id="name and nanoseconds"),
        pytest.param("w" * 236, r"w{236}\.18fae27693b40000", id="just short enough"),
        pytest.param("w" * 237, r"[0-9a-f-]{36}", id="too long for a name"),
    ],
)
def test_names(name, pattern):
    assert re.fullmatch(pattern, event_name(name, START))
