"""Bodies other than JSON, and the form in which objects are kept."""

# ruff: noqa: E501  one case a line
from __future__ import annotations

import pytest
from api_staging import Staged

from stowplan.api.protobuf import MAGIC, encode_message
from stowplan.apiserver.amounts import AmountError, canonical

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PROTOBUF = "application/vnd.kubernetes.protobuf"


async def test_protobuf_is_understood(api: Staged) -> None:
    labels = encode_message((11, encode_message((1, "a"), (2, "b"))))
    meta = encode_message((1, "m")) + labels
    entry = encode_message((1, "key"), (2, "value"))
    raw = encode_message((1, meta), (2, entry))
    body = MAGIC + encode_message((1, encode_message((1, "v1"), (2, "ConfigMap"))), (2, raw))
    status, found = await api("POST", CONFIG_MAPS, body, content_type=PROTOBUF)
    assert (status, found["data"], found["metadata"]["labels"]) == (201, {"key": "value"}, {"a": "b"})


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


async def test_times_of_early_years_are_kept(api: Staged) -> None:
    path, zero = "/apis/coordination.k8s.io/v1/namespaces/default/leases", -62_135_596_800
    spec = encode_message((3, b"\x08" + varint((zero + 2) % 2**64)), (4, b"\x08\x01"))
    lease = encode_message((1, encode_message((1, "binary"))), (2, spec))
    kind = encode_message((1, "coordination.k8s.io/v1"), (2, "Lease"))
    status, made = await api(
        "POST", path, MAGIC + encode_message((1, kind), (2, lease)), content_type=PROTOBUF
    )
    assert (status, made["spec"]) == (
        201,
        {"acquireTime": "0001-01-01T00:00:02.000000Z", "renewTime": "1970-01-01T00:00:01.000000Z"},
    )
    text = {"metadata": {"name": "text"}, "spec": {"renewTime": "0001-01-01T00:00:02.5Z"}}
    assert (await api("POST", path, text))[1]["spec"] == {"renewTime": "0001-01-01T00:00:02.500000Z"}


@pytest.mark.parametrize(
    "body", [b"", b"k8s\0\xff\xff", b"{}", MAGIC + encode_message((1, encode_message((2, "Nonsense"))))]
)
async def test_broken_protobuf_is_refused(api: Staged, body: bytes) -> None:
    status, found = await api("POST", CONFIG_MAPS, body, content_type=PROTOBUF)
    assert (status, found["reason"]) == (400, "BadRequest")


async def test_yaml_comes_in_and_goes_out(api: Staged) -> None:
    body = b"metadata:\n  name: m\ndata:\n  a: b\n"
    status, found = await api("POST", CONFIG_MAPS, body, content_type="application/yaml")
    assert (status, found["data"]) == (201, {"a": "b"})
    _, text = await api("GET", f"{CONFIG_MAPS}/m", accept="application/yaml")
    assert "  a: b\n" in text


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("1000m", "1"),
        ("0.5Gi", "512Mi"),
        ("1.5Gi", "1536Mi"),
        ("1024", "1024"),
        ("1024Ki", "1Mi"),
        ("0.1", "100m"),
        ("1e3", "1e3"),
        (1000, "1k"),
        (2.5, "2500m"),
        ("-5", "-5"),
        ("0", "0"),
        ("1000Mi", "1000Mi"),
    ],
)
def test_amounts_are_kept_in_one_form(given: str | float, kept: str) -> None:
    assert canonical(given) == kept


@pytest.mark.parametrize("given", ["", "x", "1.2.3", "1Qi", True, None, "--1"])
def test_what_is_no_amount_is_refused(given: object) -> None:
    with pytest.raises(AmountError, match="quantities must match"):
        canonical(given)


@pytest.mark.parametrize(
    ("method", "target", "body", "expected"),
    [
        pytest.param("POST", "/apis/apps/v1/namespaces/default/deployments", {"spec": {"template": {"spec": None}}}, 422, id="null for a struct"),
        pytest.param("DELETE", "/api/v1/namespaces/default", {"preconditions": 3}, 400, id="options of a wrong type"),
        pytest.param("DELETE", "/api/v1/namespaces/default", [], 400, id="options that are a list"),
        pytest.param("POST", "/api/v1/nodes", b"\xff", 400, id="no text"),
        pytest.param("GET", "/api/v1/namespaces/default/pods/a/b/c", None, 404, id="a path too long"),
        pytest.param("GET", "/api/v1/pods?limit=99999999999999999999", None, 400, id="a limit too large"),
    ],
)  # fmt: skip
async def test_odd_requests_are_refused(
    api: Staged, method: str, target: str, body: object, expected: int
) -> None:
    status, answer = await api(method, target, body)
    assert status == expected, answer


async def test_yaml_nested_without_end_is_refused(api):
    body = b"a: " + b"[" * 100_000
    status, found = await api("POST", CONFIG_MAPS, body, content_type="application/yaml")
    assert (status, found["reason"]) == (400, "BadRequest")


@pytest.mark.parametrize(
    ("media", "patch", "problems"),
    [
        (
            "merge-patch",
            b'{"data":{"x":"1","x":"2"},"zzz":1,"nonsense":1,"data":{"y":"3"}}',
            'duplicate field "data.x", duplicate field "data", unknown field "nonsense", unknown field "zzz"',
        ),
        (
            "json-patch",
            b'[{"op":"add","path":"/zzz","value":1},{"op":"add","path":"/nonsense","value":1,"op":"add"}]',
            'json patch duplicate field "[1].op", unknown field "nonsense", unknown field "zzz"',
        ),
    ],
)
async def test_strict_patches_have_no_duplicates(
    api: Staged, media: str, patch: bytes, problems: str
) -> None:
    await api("POST", CONFIG_MAPS, {"metadata": {"name": "m"}})
    target = f"{CONFIG_MAPS}/m?fieldValidation=Strict"
    status, found = await api("PATCH", target, patch, content_type=f"application/{media}+json")
    assert (status, found["message"].partition("strict decoding error: ")[2]) == (422, problems)


async def test_the_range_of_services_is_there(api: Staged) -> None:
    _, found = await api("GET", "/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
    assert [each["status"] for each in found["status"]["conditions"] if each["type"] == "Ready"] == ["True"]


async def test_definitions_are_read_from_protobuf(api: Staged) -> None:
    """Schemas have messages of their own where JSON has one thing or another."""

    def schema(kind: str, *more: tuple[int, bytes | str]) -> bytes:
        return encode_message((5, kind), *more)

    def field(name: str, inner: bytes) -> bytes:
        return encode_message((1, name), (2, inner))

    items = encode_message((1, schema("string", (8, encode_message((1, b'"x"'))))))
    others = encode_message((2, schema("integer")))
    spec = schema(
        "object",
        (29, field("list", schema("array", (24, items)))),
        (29, field("map", schema("object", (30, others)))),
    )
    root = encode_message((1, schema("object", (29, field("spec", spec)))))
    version = encode_message((1, "v1")) + b"\x10\x01\x18\x01" + encode_message((4, root))
    names = encode_message((1, "things"), (4, "Thing"))
    body = encode_message((1, "example.com"), (3, names), (4, "Namespaced"), (7, version))
    made = encode_message((1, encode_message((1, "things.example.com"))), (2, body))
    kind = encode_message((1, "apiextensions.k8s.io/v1"), (2, "CustomResourceDefinition"))
    target = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    status, found = await api(
        "POST", target, MAGIC + encode_message((1, kind), (2, made)), content_type=PROTOBUF
    )
    assert status == 201, found
    (version_found,) = found["spec"]["versions"]
    assert version_found["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] == {
        "list": {"type": "array", "items": {"type": "string", "default": "x"}},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    }


async def test_only_ephemeral_containers_are_written_through_their_subresource(api: Staged) -> None:
    pods = "/api/v1/namespaces/default/pods"
    spec = {"containers": [{"name": "c", "image": "app:1"}]}
    await api("POST", pods, {"metadata": {"name": "p"}, "spec": spec})
    change = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"activeDeadlineSeconds": 5, "ephemeralContainers": [{"name": "d", "image": "debug"}]},
        "status": {"phase": "Running"},
    }
    merge = "application/merge-patch+json"
    status, found = await api("PATCH", f"{pods}/p/ephemeralcontainers", change, content_type=merge)
    assert (status, [each["name"] for each in found["spec"]["ephemeralContainers"]]) == (200, ["d"])
    assert "labels" not in found["metadata"]
    assert "activeDeadlineSeconds" not in found["spec"]
    assert (found["status"]["phase"], found["metadata"]["generation"]) == ("Pending", 2)
    log = f"{pods}/p/log?container=d"
    assert (await api("GET", log))[0] == 400, "it has not started"
    running = [{"name": "d", "state": {"running": {}}}]
    await api(
        "PATCH", f"{pods}/p/status", {"status": {"ephemeralContainerStatuses": running}}, content_type=merge
    )
    assert await api("GET", log) == (200, [])
