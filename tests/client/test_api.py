"""Requests and writes: what goes over the wire, and what refusals become."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from api_server import ScriptedServer, answer, protobuf_status, refusal
from msgspec.structs import replace

from make import make_pod
from stowplan.api.meta import decode
from stowplan.api.node import NodeObject
from stowplan.api.protobuf import MAGIC, encode_message, encode_object
from stowplan.api.resource import ResourceClaim
from stowplan.api.storage import ObjectReference, PersistentVolume, PersistentVolumeClaim
from stowplan.client.api import MAX_QUEUED, RESOURCES, ApiClient, resource_of
from stowplan.client.connection import INITIAL_REQUESTS, Connection
from stowplan.client.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    NotAllowed,
    NotFound,
    TooMany,
    Unauthorized,
    Unreachable,
    error_of,
)


@pytest.mark.parametrize(
    ("step", "kind", "status", "message"),
    [
        pytest.param(
            refusal(401, "Unauthorized", "Unauthorized"), Unauthorized, 401, "Unauthorized", id="401"
        ),
        pytest.param(refusal(403, "Forbidden", "you may not"), Forbidden, 403, "you may not", id="403"),
        pytest.param(
            refusal(404, "NotFound", 'pods "x" not found'), NotFound, 404, 'pods "x" not found', id="404"
        ),
        pytest.param(refusal(409, "Conflict", "changed"), Conflict, 409, "changed", id="409"),
        pytest.param(refusal(410, "Expired", "too old"), Gone, 410, "too old", id="410"),
        pytest.param(refusal(429, "TooManyRequests", "slow down"), TooMany, 429, "slow down", id="429"),
        pytest.param(refusal(500, "InternalError", "etcd"), ApiError, 500, "etcd", id="500"),
        pytest.param(answer("half a\n", 502), ApiError, 502, '"half a\\n"', id="no Status"),
        pytest.param(refusal(503), ApiError, 503, "the API server answered with status 503", id="no text"),
        pytest.param(
            answer({}, 302, {"Location": "/"}),
            ApiError,
            302,
            "the API server answered with status 302",
            id="moved",
        ),
    ],
)
async def test_refusals(server: ScriptedServer, api: ApiClient, step, kind, status, message):
    server.answers = [step]
    with pytest.raises(ApiError) as caught:
        await api.request("GET", "/api/v1/pods")
    assert type(caught.value) is kind
    assert (caught.value.status, str(caught.value)) == (status, message)
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_comes_back_when_the_server_asks_for_it(server: ScriptedServer, api: ApiClient, status):
    server.answers = [refusal(status, headers={"Retry-After": "0"})] * 3 + [answer({"fine": 1})]
    found = await api.request("POST", "/x", {"a": 1})
    assert (found.status, found.data) == (200, b'{"fine": 1}')
    assert [asked.body for asked in server.asked] == [{"a": 1}] * 4


async def test_gives_up_in_the_end(server: ScriptedServer, api: ApiClient):
    server.answers = [refusal(429, headers={"Retry-After": "0"})] * 20
    with pytest.raises(TooMany) as caught:
        await api.request("GET", "/x")
    assert caught.value.retry_after == 0
    assert len(server.asked) == 11


async def test_waits_as_long_as_the_server_asks(server: ScriptedServer, api: ApiClient):
    server.answers = [refusal(429, headers={"Retry-After": "1"}), answer({})]
    loop = asyncio.get_running_loop()
    start = loop.time()
    await api.request("GET", "/x")
    assert loop.time() - start >= 1


async def test_headers(server: ScriptedServer):
    server.answers = [answer({})]
    async with ApiClient(Connection(server.url), user_agent="stowplan/1.0") as api:
        await api.request("PATCH", "/x", {"a": 1}, content_type="application/merge-patch+json")
    headers = server.asked[0].headers
    assert headers["User-Agent"] == "stowplan/1.0"
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert headers["Accept"] == "application/json"
    assert "Accept-Encoding" not in headers  # packing costs the API server more than it saves


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda api: api.patch_pod_status(make_pod(), {"status": {}}), id="a status patch"),
        pytest.param(lambda api: api.delete(make_pod()), id="a deletion"),
    ],
)
async def test_answers_that_nobody_reads_are_asked_for_in_short(
    server: ScriptedServer, api: ApiClient, write
):
    server.answers = [answer({})]
    await write(api)
    short, whole = server.asked[0].headers["Accept"].split(",")
    assert short.startswith("application/json;as=PartialObjectMetadata")
    assert whole == "application/json"  # for servers that cannot


async def test_requests_beyond_the_burst_wait(server: ScriptedServer):
    server.answers = [answer({})] * 8
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with ApiClient(Connection(server.url), qps=20, burst=2) as api:
        await asyncio.gather(*(api.request("GET", "/x") for _ in range(8)))
    assert loop.time() - start >= 0.3


async def test_who_may_not_write_any_more_still_reads(server: ScriptedServer):
    server.answers = [answer({})]
    async with ApiClient(Connection(server.url), may_write=lambda: False) as api:
        await api.get_json("/x")
        with pytest.raises(NotAllowed, match="no longer the leader"):
            await api.create_binding(make_pod(), "n1")
    assert [asked.method for asked in server.asked] == ["GET"]


async def test_a_closed_client_says_so(server: ScriptedServer):
    with pytest.raises(Unreachable, match="the client is closed"):
        await ApiClient(Connection(server.url)).request("GET", "/")


async def test_a_binding(server: ScriptedServer, api: ApiClient):
    server.answers = [answer({"kind": "Status", "status": "Success"}, 201)]
    await api.create_binding(make_pod("p", namespace="a"), "n1")
    asked = server.asked[0]
    assert (asked.method, asked.path) == ("POST", "/api/v1/namespaces/a/pods/p/binding")
    assert asked.body == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "a", "uid": "uid-p"},
        "target": {"kind": "Node", "name": "n1"},
    }


async def test_bindings_are_protobuf_once_the_server_has_answered_in_it(server: ScriptedServer):
    server.answers = [protobuf_status(201), protobuf_status(201), answer({}, 201), answer({}, 201)]
    async with ApiClient(Connection(server.url), uses_protobuf=True) as api:
        for _ in range(4):
            await api.create_binding(make_pod("p", namespace="a"), "n1")
    kinds = [asked.headers["Content-Type"].rpartition(".")[2] for asked in server.asked]
    assert kinds == ["application/json", "protobuf", "protobuf", "application/json"]
    binding = server.asked[0].body
    for asked in server.asked[1:]:
        found = {**asked.body, "metadata": {**asked.body["metadata"]}, "target": {**asked.body["target"]}}
        assert found == binding


@pytest.mark.parametrize("status", [400, 403, 406, 415])
async def test_bindings_are_sent_again_in_json_if_protobuf_is_not_supported(server: ScriptedServer, status):
    """Such as by a proxy before the API server."""
    unsupported = refusal(status, "UnsupportedMediaType", "protobuf is not supported")
    server.answers = [protobuf_status(201), unsupported, answer({}, 201), answer({}, 201), unsupported]
    async with ApiClient(Connection(server.url), uses_protobuf=True) as api:
        for _ in range(3):
            await api.create_binding(make_pod("p", namespace="a"), "n1")
        with pytest.raises(ApiError, match="protobuf is not supported"):  # of JSON: it is not repeated
            await api.create_binding(make_pod("p", namespace="a"), "n1")
    kinds = [asked.headers["Content-Type"].rpartition(".")[2] for asked in server.asked]
    assert kinds == ["application/json", "protobuf", *["application/json"] * 3]
    assert [asked.headers["Accept"] for asked in server.asked[2:]] == ["application/json"] * 3
    assert server.asked[2].body == server.asked[0].body


@pytest.mark.parametrize("status", [404, 409, 500, 502])
async def test_bindings_are_json_after_a_rejection_that_is_not_protobuf(server: ScriptedServer, status):
    """It may be that of a proxy that cannot handle it: the next attempt must not fail for that."""
    rejection = refusal(status, "", "what is this?")
    server.answers = [protobuf_status(201), rejection, protobuf_status(201), protobuf_status(201)]
    async with ApiClient(Connection(server.url), uses_protobuf=True) as api:
        await api.create_binding(make_pod("p"), "n1")
        with pytest.raises(ApiError, match="what is this"):
            await api.create_binding(make_pod("p"), "n1")
        for _ in range(2):
            await api.create_binding(make_pod("p"), "n1")
    kinds = [asked.headers["Content-Type"].rpartition(".")[2] for asked in server.asked]
    assert kinds == ["application/json", "protobuf", "application/json", "protobuf"]


@pytest.mark.parametrize("status", [400, 403])
async def test_rejections_of_json_that_are_not_protobuf_are_not_repeated(server: ScriptedServer, status):
    server.answers = [refusal(status, "", "no")]
    async with ApiClient(Connection(server.url), uses_protobuf=True) as api:
        with pytest.raises(ApiError, match="no"):
            await api.create_binding(make_pod("p"), "n1")
    assert len(server.asked) == 1


async def test_rejections_in_protobuf_keep_it(server: ScriptedServer):
    conflict = protobuf_status(409, "Conflict", "pod p is already assigned to node n2")
    server.answers = [protobuf_status(201), conflict, protobuf_status(201)]
    async with ApiClient(Connection(server.url), uses_protobuf=True) as api:
        await api.create_binding(make_pod("p"), "n1")
        with pytest.raises(Conflict):
            await api.create_binding(make_pod("p"), "n1")
        await api.create_binding(make_pod("p"), "n1")
    kinds = [asked.headers["Content-Type"].rpartition(".")[2] for asked in server.asked]
    assert kinds == ["application/json", "protobuf", "protobuf"]


@pytest.mark.parametrize("body", [MAGIC, MAGIC + b"\xff" * 30, b"k8s\1", b"", b"<html>"], ids=str)
async def test_bindings_are_sent_once_whatever_the_answer_has(server: ScriptedServer, body):
    async def step(request):
        content_type = "application/vnd.kubernetes.protobuf; stream=watch"
        return web.Response(body=body, status=201, headers={"Content-Type": content_type})

    server.answers = [step, step]
    async with ApiClient(Connection(server.url), uses_protobuf=True) as api:
        for _ in range(2):
            await api.create_binding(make_pod("p"), "n1")
    assert len(server.asked) == 2


async def test_bindings_are_json_for_those_who_want_that(server: ScriptedServer, api: ApiClient):
    server.answers = [answer({}, 201), answer({}, 201)]
    for _ in range(2):
        await api.create_binding(make_pod("p"), "n1")
    assert {asked.headers["Accept"] for asked in server.asked} == {"application/json"}


def test_causes_are_read_from_json_and_protobuf():
    causes = [{"reason": "NamespaceTerminating", "message": "ns"}, {"message": "no reason"}]
    plain = json.dumps({"kind": "Status", "code": 403, "details": {"causes": causes}}).encode()
    cause = encode_message((1, "NamespaceTerminating"), (2, "ns"))
    details = encode_message((1, "web"), (4, cause), (4, encode_message((2, "no reason"))))
    status = encode_object("v1", "Status", encode_message((5, details), (6, 403)))
    for data in plain, status:
        assert error_of(403, data).causes == {"NamespaceTerminating"}
    assert error_of(403, b'{"details": {"causes": null}}').causes == error_of(403, b"{}").causes == set()


async def test_rejections_in_protobuf(server: ScriptedServer):
    server.answers = [protobuf_status(409, "Conflict", "pod p is already assigned to node n2")]
    async with ApiClient(Connection(server.url), uses_protobuf=True) as api:
        with pytest.raises(Conflict, match="pod p is already assigned to node n2") as caught:
            await api.create_binding(make_pod("p"), "n1")
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(
            encode_object("v1", "Status", encode_message((3, 1 << 40), (4, b"\xff"), (6, "x"))),
            "the API server answered with status 500",
            id="of other types",
        ),
        pytest.param(MAGIC + b"\x0a\xff", "k8s\0\n\ufffd", id="cut off"),
    ],
)
def test_rejections_in_broken_protobuf(data, message):
    assert error_of(500, data).message == message


async def test_the_status_of_a_pod(server: ScriptedServer, api: ApiClient):
    server.answers = [answer({})]
    patch = {"status": {"nominatedNodeName": "n1"}}
    await api.patch_pod_status(make_pod("p", namespace="a"), patch)
    asked = server.asked[0]
    assert (asked.method, asked.path) == ("PATCH", "/api/v1/namespaces/a/pods/p/status")
    assert asked.body == {"metadata": {"uid": "uid-p"}} | patch
    assert asked.headers["Content-Type"] == "application/strategic-merge-patch+json"


@pytest.mark.parametrize(
    ("item", "settings", "path", "options"),
    [
        pytest.param(
            make_pod("p", namespace="a"),
            {},
            "/api/v1/namespaces/a/pods/p",
            {"preconditions": {"uid": "uid-p"}},
            id="a pod",
        ),
        pytest.param(
            make_pod("p", namespace="a"),
            {"grace_seconds": 0},
            "/api/v1/namespaces/a/pods/p",
            {"preconditions": {"uid": "uid-p"}, "gracePeriodSeconds": 0},
            id="at once",
        ),
        pytest.param(
            decode(NodeObject, {"metadata": {"name": "n"}}),
            {},
            "/api/v1/nodes/n",
            {},
            id="without a namespace",
        ),
    ],
)
async def test_deletes_this_very_object(
    server: ScriptedServer, api: ApiClient, item, settings, path, options
):
    server.answers = [answer({})]
    await api.delete(item, **settings)
    asked = server.asked[0]
    assert (asked.method, asked.path) == ("DELETE", path)
    assert asked.body == {"apiVersion": "v1", "kind": "DeleteOptions"} | options


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        pytest.param(
            refusal(409, "Conflict", "the UID in the precondition (a) does not match the UID in record (b)"),
            NotFound,
            id="another of the same name, deleting",
        ),
        pytest.param(
            refusal(
                422, "Invalid", 'Pod "p" is invalid: metadata.uid: Invalid value: "a": field is immutable'
            ),
            NotFound,
            id="another of the same name, patching",
        ),
        pytest.param(
            refusal(409, "Conflict", "the object has been modified"), Conflict, id="any other conflict"
        ),
    ],
)
async def test_what_came_after_it_is_left_alone(server: ScriptedServer, api: ApiClient, step, kind):
    server.answers = [step] * 2
    with pytest.raises(kind):
        await api.delete(make_pod())
    with pytest.raises(kind):
        await api.patch_pod_status(make_pod(), {})


async def test_creates(server: ScriptedServer, api: ApiClient):
    wire = {
        "metadata": {"generateName": "p-", "namespace": "a"},
        "spec": {"resources": {"requests": {"storage": "1Ki", "odd": "1500m"}}, "storageClassName": "fast"},
    }
    made = wire | {"metadata": {"name": "p-1", "namespace": "a", "uid": "u", "resourceVersion": "3"}}
    server.answers = [answer(made, 201)]
    created = await api.create(decode(PersistentVolumeClaim, wire))
    assert (created.name, created.metadata.uid) == ("p-1", "u")
    asked = server.asked[0]
    assert (asked.method, asked.path) == ("POST", "/api/v1/namespaces/a/persistentvolumeclaims")
    amounts = {"storage": "1024", "odd": "1500000000n"}
    assert asked.body == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": wire["metadata"],
        "spec": {"resources": {"requests": amounts}, "storageClassName": "fast"},
    }


VOLUME = {
    "metadata": {"name": "v", "resourceVersion": "7", "annotations": {"old": "1", "kept": "1"}},
    "spec": {"capacity": {"storage": "1Gi"}, "nfs": {"server": "a field we do not decode"}},
    "status": {"phase": "Available"},
}


def changed_volume() -> PersistentVolume:
    volume = decode(PersistentVolume, VOLUME)
    return replace(
        volume,
        metadata=replace(volume.metadata, annotations={"kept": "1", "new": "2"}),
        spec=replace(volume.spec, claim_ref=ObjectReference(name="c", uid="u")),
        status=replace(volume.status, phase="Bound"),
    )


CHANGES = {
    "metadata": {"annotations": {"old": None, "new": "2"}, "resourceVersion": "7"},
    "spec": {"claimRef": {"name": "c", "uid": "u"}},
}


async def test_an_update_sends_what_has_changed(server: ScriptedServer, api: ApiClient):
    server.answers = [answer(VOLUME), answer(VOLUME | {"metadata": {"name": "v", "resourceVersion": "8"}})]
    updated = await api.update(changed_volume())
    assert updated.metadata.resource_version == "8"
    read, write = server.asked
    assert (read.method, read.path) == ("GET", "/api/v1/persistentvolumes/v")
    assert (write.method, write.path, write.body) == ("PATCH", "/api/v1/persistentvolumes/v", CHANGES)
    assert write.headers["Content-Type"] == "application/merge-patch+json"


@pytest.mark.parametrize(
    ("version", "methods"),
    [
        pytest.param("7", ["PATCH"], id="of the same version"),
        pytest.param("6", ["GET", "PATCH"], id="of another version"),
    ],
)
async def test_an_update_starts_from_what_is_stored(server: ScriptedServer, version, methods):
    stored = decode(PersistentVolume, VOLUME)
    stored = replace(stored, metadata=replace(stored.metadata, resource_version=version))
    server.answers = [answer(VOLUME)] * len(methods)
    async with ApiClient(Connection(server.url), stored=lambda item: stored) as api:
        await api.update(changed_volume())
    assert [asked.method for asked in server.asked] == methods
    assert server.asked[-1].body == CHANGES


async def test_a_second_write_starts_from_the_answer_to_the_first(server: ScriptedServer, api: ApiClient):
    allocation = {"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "x"}]}}
    plain = {"metadata": {"name": "c", "namespace": "a", "resourceVersion": "1"}}
    second = {"metadata": plain["metadata"] | {"resourceVersion": "2", "finalizers": ["f"]}}
    third = {"metadata": second["metadata"] | {"resourceVersion": "3"}, "status": {"allocation": allocation}}
    server.answers = [answer(plain), answer(second), answer(third), answer(second)]
    claim = decode(ResourceClaim, plain)
    claim = await api.update(replace(claim, metadata=replace(claim.metadata, finalizers=("f",))))
    claim = await api.update_status(replace(claim, status=decode(ResourceClaim, third).status))
    await api.update_status(replace(claim, status=ResourceClaim().status))
    assert [(asked.method, asked.path.rpartition("/")[2], asked.body) for asked in server.asked] == [
        ("GET", "c", None),
        ("PATCH", "c", {"metadata": {"finalizers": ["f"], "resourceVersion": "1"}}),
        (
            "PUT",
            "status",
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": second["metadata"],
                "status": {"allocation": allocation},
            },
        ),
        ("PATCH", "status", {"metadata": {"resourceVersion": "3"}, "status": {"allocation": None}}),
    ]


async def test_an_update_of_something_changed_by_others(server: ScriptedServer, api: ApiClient):
    server.answers = [answer(VOLUME), refusal(409, "Conflict", "the object has been modified")]
    with pytest.raises(Conflict):
        await api.update(changed_volume())


async def test_reviews_a_token(server: ScriptedServer, api: ApiClient):
    status = {"authenticated": True, "user": {"username": "joe", "groups": ["a", "b"]}}
    server.answers = [answer({"status": status}, 201), answer({"status": {"user": {}}}, 201)]
    user = await api.review_token("abc")
    assert user is not None
    assert (user.username, user.groups) == ("joe", ("a", "b"))
    assert await api.review_token("bad") is None
    assert server.asked[0].path == "/apis/authentication.k8s.io/v1/tokenreviews"
    assert server.asked[0].body["spec"] == {"token": "abc"}


@pytest.mark.parametrize("allowed", [True, False])
async def test_reviews_access(server: ScriptedServer, api: ApiClient, allowed):
    server.answers = [answer({"status": {"allowed": allowed}}, 201)]
    assert await api.review_access("joe", ["a"], "/metrics", "get") is allowed
    assert server.asked[0].path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert server.asked[0].body["spec"] == {
        "user": "joe",
        "groups": ["a"],
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }


async def test_room_is_there_again_once_most_requests_are_answered(server: ScriptedServer, api: ApiClient):
    may_answer = asyncio.Event()

    async def held(request):
        await may_answer.wait()
        return await answer({})(request)

    count = INITIAL_REQUESTS + MAX_QUEUED
    server.answers = [held] * count
    await api.wait_for_capacity()  # with nothing under way there is
    requests = [asyncio.create_task(api.request("GET", "/")) for _ in range(count)]
    await asyncio.sleep(0)
    waiting = asyncio.create_task(api.wait_for_capacity())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    may_answer.set()
    await asyncio.wait_for(waiting, 5)
    await asyncio.gather(*requests)


def test_what_is_watched():
    assert {resource.path for resource in RESOURCES} == {
        *(f"/api/v1/{name}" for name in ("namespaces", "nodes", "pods", "persistentvolumes")),
        *(f"/api/v1/{name}" for name in ("persistentvolumeclaims", "replicationcontrollers", "services")),
        *(f"/apis/apps/v1/{name}" for name in ("replicasets", "statefulsets")),
        "/apis/policy/v1/poddisruptionbudgets",
        *(f"/apis/storage.k8s.io/v1/{name}" for name in ("csidrivers", "csinodes", "csistoragecapacities")),
        *(f"/apis/storage.k8s.io/v1/{name}" for name in ("storageclasses", "volumeattachments")),
        *(
            f"/apis/resource.k8s.io/v1/{name}"
            for name in ("deviceclasses", "resourceclaims", "resourceslices")
        ),
    }
    claim = decode(PersistentVolumeClaim, {})
    assert resource_of(claim).item("a", "c") == "/api/v1/namespaces/a/persistentvolumeclaims/c"
