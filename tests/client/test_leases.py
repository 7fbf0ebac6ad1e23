"""Leader election against an API server of the tests' own, in virtual time."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest

from stowplan.client.errors import Conflict, Forbidden, NotFound, Unreachable
from stowplan.client.leases import LeaderElection, new_identity
from stowplan.config import LeaderElection as Settings
from stowplan.config.duration import Duration
from stowplan.errors import ConfigError
from stowplan.http11.client import Reply
from virtual_time import elapsed, in_virtual_time

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
LEASE = f"{LEASES}/kube-scheduler"
EVENTS = "/api/v1/namespaces/kube-system/events"
START = 1_800_000_000.0  # 2027-01-15T08:00:00Z


class LeaseServer:
    """One Lease, guarded by its resourceVersion, and the events about it."""

    def __init__(self, lease=None):
        self.lease = lease
        self.version = 0
        self.events = []
        self.calls = []
        self.is_down = self.refuses_events = self.refuses_leases = False
        self.latency = 0.0
        self.spoilt = b""

    async def request(self, method, path, body=None, *, content_type="application/json", query=None):
        self.calls.append((round(elapsed(), 3), method))
        await asyncio.sleep(self.latency)
        if self.is_down:
            raise Unreachable("no answer")
        if path == EVENTS and self.refuses_events:
            raise Forbidden(403, "Forbidden", "you may not")
        if path != EVENTS and self.refuses_leases:
            raise Forbidden(403, "Forbidden", "leases are forbidden")
        if path == EVENTS:
            self.events.append(body)
            return Reply(201, b"{}")
        answer = self.answer(method, path, json.loads(msgspec.json.encode(body)))
        return Reply(200, self.spoilt or json.dumps(answer).encode())

    def answer(self, method, path, body):
        assert path == (LEASES if method == "POST" else LEASE)
        if method == "POST":
            if self.lease:
                raise Conflict(409, "AlreadyExists", "there already")
            self.store(body)
        elif not self.lease:
            raise NotFound(404, "NotFound", "no such lease")
        elif method == "PUT":
            if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
                raise Conflict(409, "Conflict", "the object has been modified")
            self.store(body)
        return self.lease

    def store(self, lease):
        self.version += 1
        metadata = lease["metadata"] | {"uid": "lease-uid", "resourceVersion": str(self.version)}
        self.lease = lease | {"metadata": metadata}

    def hand_to(self, holder, **spec):
        """What someone else writes."""
        lease = self.lease or {"metadata": {"name": "kube-scheduler", "namespace": "kube-system"}, "spec": {}}
        changes = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": str(elapsed())}
        self.store(lease | {"spec": lease["spec"] | changes | spec})

    @property
    def spec(self):
        return self.lease["spec"]

    def times_of(self, method):
        return [at for at, called in self.calls if called == method]


class Candidate:
    """One scheduler that takes part, and what it was told."""

    def __init__(self, server, identity="us", settings=None, draw=lambda: 0.0):
        self.told = []
        self.frozen = 0.0
        self.election = LeaderElection(
            server,
            identity,
            settings or Settings(),
            on_started=lambda: self.told.append((round(elapsed(), 3), "started")),
            on_lost=lambda: self.told.append((round(elapsed(), 3), "lost", self.election.is_leading)),
            component="my-scheduler",
            clock=lambda: elapsed() + self.frozen,
            now=lambda: START + elapsed(),
            draw=draw,
        )

    @property
    def is_leading(self):
        return self.election.is_leading

    @property
    def is_healthy(self):
        return self.election.check() is None


@asynccontextmanager
async def taking_part(*candidates):
    tasks = [asyncio.create_task(candidate.election.run()) for candidate in candidates]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@in_virtual_time
async def test_takes_a_lease_that_nobody_has():
    server = LeaseServer()
    us = Candidate(server)
    assert us.is_healthy
    assert not us.is_leading
    async with taking_part(us):
        await asyncio.sleep(1)
        assert us.is_leading
        assert us.told == [(0, "started")]
    assert server.lease["metadata"]["name"] == "kube-scheduler"
    assert server.lease["metadata"]["namespace"] == "kube-system"
    assert server.spec == {
        "holderIdentity": "us",
        "leaseDurationSeconds": 15,
        "acquireTime": "2027-01-15T08:00:00.000000Z",
        "renewTime": "2027-01-15T08:00:00.000000Z",
        "leaseTransitions": 0,
    }


@in_virtual_time
async def test_renews_every_two_seconds_by_one_put():
    server = LeaseServer()
    async with taking_part(Candidate(server)):
        await asyncio.sleep(7)
    assert server.calls == [(0, "GET"), (0, "POST"), (0, "POST"), (2, "PUT"), (4, "PUT"), (6, "PUT")]
    assert server.spec["acquireTime"] == "2027-01-15T08:00:00.000000Z"
    assert server.spec["renewTime"] == "2027-01-15T08:00:06.000000Z"
    assert server.spec["leaseTransitions"] == 0


@pytest.mark.parametrize(
    ("drawn", "polls"),
    [
        pytest.param(0.0, [0, 2, 4, 6, 8], id="every two seconds at least"),
        pytest.param(1.0, [0, 4.4, 8.8], id="every 4.4 seconds at most"),
    ],
)
@in_virtual_time
async def test_standby_polls_with_jitter(drawn, polls):
    server = LeaseServer()
    server.hand_to("other")
    us = Candidate(server, draw=lambda: drawn)
    async with taking_part(us):
        await asyncio.sleep(9)
    assert server.calls == [(at, "GET") for at in polls]
    assert not us.told
    assert us.is_healthy


@pytest.mark.parametrize(
    ("spec", "taken_at"),
    [
        pytest.param({}, 16, id="a lease of 15 s, at the first poll after it"),
        pytest.param({"leaseDurationSeconds": 30}, 30, id="as long as its holder says"),
        pytest.param({"leaseDurationSeconds": None}, 16, id="our own duration where its holder says none"),
        pytest.param(
            {"renewTime": "1999-01-01T00:00:00.000000Z"}, 16, id="the holder's clock counts for nothing"
        ),
        pytest.param({"holderIdentity": ""}, 0, id="a released one at once"),
        pytest.param({"holderIdentity": None}, 0, id="one without a holder at once"),
    ],
)
@in_virtual_time
async def test_takes_over_when_the_lease_was_seen_unchanged_for_its_duration(spec, taken_at):
    server = LeaseServer()
    server.hand_to("other", leaseTransitions=4, acquireTime="2020-01-01T00:00:00.000000Z")
    server.lease["spec"] |= spec
    us = Candidate(server)
    async with taking_part(us):
        await asyncio.sleep(taken_at + 1)
    assert us.told == [(taken_at, "started")]
    assert server.spec["holderIdentity"] == "us"
    assert server.spec["leaseTransitions"] == 5
    assert server.spec["acquireTime"] == f"2027-01-15T08:00:{taken_at:02}.000000Z"


@in_virtual_time
async def test_standby_waits_while_the_holder_renews():
    server = LeaseServer()
    us = Candidate(server)
    server.hand_to("other")
    async with taking_part(us):
        for _ in range(10):
            await asyncio.sleep(9)
            server.hand_to("other")
        assert not us.told
        await asyncio.sleep(14)
        assert not us.told
        await asyncio.sleep(3)
        assert us.is_leading


@in_virtual_time
async def test_of_two_that_start_together_one_leads():
    server = LeaseServer()
    both = Candidate(server, "a"), Candidate(server, "b")
    async with taking_part(*both):
        await asyncio.sleep(60)
        assert sorted(candidate.is_leading for candidate in both) == [False, True]
    assert len(both[0].told + both[1].told) == 1


@in_virtual_time
async def test_fields_that_are_not_ours_survive():
    server = LeaseServer()
    server.hand_to("", preferredHolder="someone")
    server.lease["metadata"]["labels"] = {"team": "infra"}
    async with taking_part(Candidate(server)):
        await asyncio.sleep(5)
    assert server.lease["metadata"]["labels"] == {"team": "infra"}
    assert server.spec["preferredHolder"] == "someone"


@in_virtual_time
async def test_taken_over_by_someone_else_it_stops_at_once():
    server = LeaseServer()
    us = Candidate(server)
    async with taking_part(us) as (running,):
        await asyncio.sleep(3)
        server.hand_to("thief")
        await asyncio.sleep(1.5)
        assert not us.is_leading
        assert us.told == [(0, "started"), (4, "lost", False)]
        assert running.done()
    assert server.spec["holderIdentity"] == "thief"
    assert us.election.check() == "failed election to renew leadership on lease kube-scheduler"


@in_virtual_time
async def test_an_unreachable_server_ends_leadership_at_the_renewal_deadline():
    server = LeaseServer()
    us = Candidate(server)
    async with taking_part(us):
        await asyncio.sleep(3)  # renewed at 2, next at 4
        server.is_down = True
        await asyncio.sleep(10.9)
        assert us.is_leading
        await asyncio.sleep(0.2)
        assert not us.is_leading
    assert us.told == [(0, "started"), (14, "lost", False)]
    assert [at for at in server.times_of("PUT") if at >= 4] == [4, 6, 8, 10, 12]


@in_virtual_time
async def test_a_server_that_does_not_answer_ends_leadership_at_the_renewal_deadline():
    server = LeaseServer()
    us = Candidate(server)
    async with taking_part(us):
        await asyncio.sleep(3)
        server.latency = 100_000
        await asyncio.sleep(11.1)
        assert us.told[-1] == (14, "lost", False)


@in_virtual_time
async def test_leadership_never_outlasts_the_lease():
    settings = Settings(renew_deadline=Duration(14), retry_period=Duration(10))
    server = LeaseServer()
    us = Candidate(server, settings=settings)
    async with taking_part(us):
        await asyncio.sleep(1)
        server.is_down = True
        await asyncio.sleep(20)
    assert us.told[-1] == (15, "lost", False)


@pytest.mark.parametrize(
    ("fault", "repair"),
    [
        pytest.param({"is_down": True}, {"is_down": False}, id="unreachable"),
        pytest.param({"spoilt": b"<html>"}, {"spoilt": b""}, id="answers that are no leases"),
        pytest.param({"lease": None}, {}, id="the lease deleted"),
    ],
)
@in_virtual_time
async def test_goes_on_leading_after_a_short_fault(fault, repair):
    server = LeaseServer()
    us = Candidate(server)
    async with taking_part(us):
        await asyncio.sleep(3)
        for name, value in fault.items():
            setattr(server, name, value)
        await asyncio.sleep(6)
        for name, value in repair.items():
            setattr(server, name, value)
        await asyncio.sleep(30)
        assert us.is_leading
    assert us.told == [(0, "started")]
    assert server.spec["holderIdentity"] == "us"


@in_virtual_time
async def test_renewal_reads_the_lease_after_a_conflict():
    server = LeaseServer()
    us = Candidate(server)
    async with taking_part(us):
        await asyncio.sleep(3)
        server.lease["metadata"]["resourceVersion"] = "edited"
        await asyncio.sleep(2)
        assert us.is_leading
    assert [method for at, method in server.calls if at == 4] == ["PUT", "GET", "PUT"]


@pytest.mark.parametrize(
    ("frozen", "leads"),
    [
        pytest.param(12.9, True, id="woken before its lease expired"),
        pytest.param(13, False, id="woken when its lease expired"),
        pytest.param(600, False, id="woken long after"),
    ],
)
@in_virtual_time
async def test_a_frozen_leader_knows_at_once(frozen, leads):
    server = LeaseServer()
    us = Candidate(server)
    async with taking_part(us):
        await asyncio.sleep(4.0)  # the renewal of second 4 is not answered yet, that of second 2 counts
        us.frozen = frozen
        assert us.is_leading is leads  # nothing of the election ran in between


@in_virtual_time
async def test_a_frozen_leader_leaves_the_lease_alone_when_it_wakes():
    server = LeaseServer()
    us = Candidate(server)
    async with taking_part(us):
        await asyncio.sleep(3)
        us.frozen = 20
        await asyncio.sleep(5)
    assert us.told[-1] == (4, "lost", False)
    assert server.times_of("PUT") == [2]


@in_virtual_time
async def test_a_renewal_answered_too_late_is_none():
    server = LeaseServer()
    us = Candidate(server)
    async with taking_part(us):
        await asyncio.sleep(3)
        server.latency = 1
        await asyncio.sleep(1.5)
        us.frozen = 16  # sent before, answered after
        await asyncio.sleep(1)
        assert not us.is_leading
    assert us.told[-1] == (5, "lost", False)


@pytest.mark.parametrize(
    ("overdue", "is_healthy"),
    [
        pytest.param(14, True, id="just expired"),
        pytest.param(14 + 19, True, id="expired for less than 20 s"),
        pytest.param(14 + 21, False, id="expired for more than 20 s"),
    ],
)
@in_virtual_time
async def test_health_of_a_leader_that_is_late(overdue, is_healthy):
    us = Candidate(LeaseServer())
    async with taking_part(us):
        await asyncio.sleep(1)
        us.frozen = overdue
        assert us.is_healthy is is_healthy


@in_virtual_time
async def test_release_hands_the_lease_on():
    server = LeaseServer()
    server.hand_to("", leaseTransitions=2)
    us, other = Candidate(server), Candidate(server, "other")
    async with taking_part(us):
        await asyncio.sleep(5)
    await us.election.release()
    assert server.spec == {
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "acquireTime": "2027-01-15T08:00:05.000000Z",
        "renewTime": "2027-01-15T08:00:05.000000Z",
        "leaseTransitions": 3,
    }
    assert not us.is_leading
    assert us.is_healthy
    assert us.told == [(0, "started")]
    async with taking_part(other):
        await asyncio.sleep(0.1)
        assert other.is_leading
    assert server.spec["leaseTransitions"] == 4


@in_virtual_time
async def test_release_after_a_renewal_that_was_cut_off():
    server = LeaseServer()
    us = Candidate(server)
    async with taking_part(us):
        await asyncio.sleep(1)
    server.hand_to("us")  # it came through, its answer did not
    await us.election.release()
    assert server.spec["holderIdentity"] == ""


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda server: server.hand_to("thief"), id="taken over"),
        pytest.param(lambda server: setattr(server, "is_down", True), id="unreachable"),
    ],
)
@in_virtual_time
async def test_release_of_what_cannot_be_released(spoil):
    server = LeaseServer()
    us = Candidate(server)
    async with taking_part(us):
        await asyncio.sleep(1)
    spoil(server)
    before = dict(server.spec)
    await us.election.release()
    assert server.spec == before


@in_virtual_time
async def test_a_standby_releases_nothing():
    server = LeaseServer()
    server.hand_to("other")
    us = Candidate(server)
    async with taking_part(us):
        await asyncio.sleep(1)
    await us.election.release()
    assert server.spec["holderIdentity"] == "other"
    assert not server.times_of("PUT")


@in_virtual_time
async def test_events_say_who_leads():
    server = LeaseServer()
    async with taking_part(Candidate(server)):
        await asyncio.sleep(1)
        server.hand_to("thief")
        await asyncio.sleep(2)
    assert [event["message"] for event in server.events] == ["us became leader", "us stopped leading"]
    event = server.events[0]
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"kube-scheduler.{int(START * 1e9):x}", "namespace": "kube-system"},
        "involvedObject": {
            "kind": "Lease",
            "apiVersion": "coordination.k8s.io/v1",
            "namespace": "kube-system",
            "name": "kube-scheduler",
            "uid": "lease-uid",
            "resourceVersion": "1",
        },
        "reason": "LeaderElection",
        "message": "us became leader",
        "source": {"component": "my-scheduler"},
        "reportingComponent": "my-scheduler",
        "firstTimestamp": "2027-01-15T08:00:00Z",
        "lastTimestamp": "2027-01-15T08:00:00Z",
        "count": 1,
        "type": "Normal",
    }


@in_virtual_time
async def test_a_missing_right_is_named(caplog):
    server = LeaseServer()
    server.refuses_leases = True
    async with taking_part(Candidate(server, settings=Settings(resource_name="stowplan"))):
        await asyncio.sleep(1)
    (said,) = caplog.records
    assert said.fields["err"] == (
        "leases are forbidden: in namespace kube-system give this account the right to create leases, and to "
        "get and update the one named stowplan"
    )


@in_virtual_time
async def test_a_refused_event_does_not_end_leadership():
    server = LeaseServer()
    server.refuses_events = True
    us = Candidate(server)
    async with taking_part(us):
        await asyncio.sleep(30)
        assert us.is_leading


@pytest.mark.parametrize(
    ("renew_deadline", "is_right"),
    [
        pytest.param(2.4, False, id="as long as the longest pause"),
        pytest.param(2.41, True, id="longer than the longest pause"),
    ],
)
def test_the_renewal_deadline_must_allow_for_the_jitter(renew_deadline, is_right):
    settings = Settings(renew_deadline=Duration(renew_deadline))
    if is_right:
        Candidate(LeaseServer(), settings=settings)
        return
    with pytest.raises(ConfigError) as caught:
        Candidate(LeaseServer(), settings=settings)
    expected = "couldn't create leader elector: renewDeadline must be greater than retryPeriod*JitterFactor"
    assert str(caught.value) == expected


def test_identities_differ_even_on_one_host():
    assert new_identity() != new_identity()
    assert new_identity().rpartition("_")[0] == new_identity().rpartition("_")[0]


@in_virtual_time
async def test_a_lease_that_someone_bloated_is_renewed_all_the_same():
    fields = b'{"f:a":' * 5000 + b"{}" + b"}" * 5000
    written = []

    class Bloated:
        async def request(self, method, path, body=None, **options):
            if method == "PUT":
                written.append(msgspec.json.encode(body))
            meta = b'{"name":"kube-scheduler","managedFields":[{"fieldsV1":' + fields + b"}]}"
            return Reply(200, b'{"metadata":' + meta + b',"spec":{}}')

    us = Candidate(Bloated())
    async with taking_part(us):
        await asyncio.sleep(5)
        assert us.is_leading
    assert len(written) > 1
    assert all(fields in body for body in written)
