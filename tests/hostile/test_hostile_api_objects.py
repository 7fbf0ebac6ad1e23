"""Objects and patches that one token holder may send: never an internal error, never a frozen server."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from example_share import examples
from stowplan.api.protobuf import MAGIC, encode_message
from stowplan.apiserver import ApiServer, Request, Response, Stream
from stowplan.apiserver.resources import Resource
from stowplan.apiserver.schemas import resolve_ref
from stowplan.apiserver.store import Store

Json = dict[str, Any]

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
SCALE = "/apis/apps/v1/namespaces/default/deployments/d/scale"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE, STRATEGIC, APPLY, PATCH, YAML = (
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/yaml",
)
POD = {
    "metadata": {"name": "p", "finalizers": ["a/b"]},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}


class Api:
    def __init__(self, store: Store | None = None) -> None:
        self.server = ApiServer(store)

    async def __call__(self, method: str, target: str, body: Any = None, media: str = "") -> tuple[int, Any]:
        request = Request.of(method, target, body, content_type=media or "application/json")
        answer = await self.server.handle(request)
        if isinstance(answer, Stream):
            return 200, None
        assert isinstance(answer, Response)
        found = answer.json() if answer.content_type == "application/json" else answer.body
        if answer.status == 500:  # some of kube-apiserver's own answers are; none is an exception of ours
            assert "Internal error occurred" not in found["message"], (method, target, str(body)[:300], found)
        return answer.status, found


@pytest.fixture
def api() -> Api:
    return Api()


# Patches of a wrong type.


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"status": {"conditions": [{"name": "c", "type": [{"name": 5}]}]}}, 422),
        ({"metadata": {"finalizers": [[]]}}, 422),
        ({"metadata": {"finalizers": [5]}}, 422),
        ({"metadata": {"finalizers": 5}}, 422),
        ({"metadata": {"finalizers": {}}}, 422),
        ({"spec": {"$retainKeys": 5}}, 400),
        ({"spec": {"$setElementOrder/containers": 5}}, 422),
        ({"metadata": {"$deleteFromPrimitiveList/finalizers": 5}}, 200),
        ({"metadata": {"$deleteFromPrimitiveList/finalizers": [[]]}}, 200),
        ({"spec": 5}, 422),
        ({"spec": []}, 422),
        ({"spec": {"containers": {}}}, 422),
        ({"spec": {"containers": [5]}}, 422),
        ({"spec": {"containers": [None]}}, 422),
        ({"spec": {"containers": [{"name": []}]}}, 422),
        ({"spec": {"containers": [{"name": {}}]}}, 422),
        ({"metadata": 5}, 422),
        ({"metadata": {"labels": []}}, 422),
    ],
)
async def test_strategic_patches_of_a_wrong_type(api: Api, patch: Json, expected: int) -> None:
    """kube-apiserver has 422 for most of them, 500 for some, and panics at two."""
    await api("POST", PODS, POD)
    status, answer = await api("PATCH", f"{PODS}/p", patch, STRATEGIC)
    assert status == expected, answer


@pytest.mark.parametrize(
    ("patch", "expected", "said"),
    [
        (5, 400, "json: cannot unmarshal number into Go value of type []handlers.jsonPatchOp"),
        ({}, 400, "json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
        ([5], 400, "json: cannot unmarshal number into Go value of type handlers.jsonPatchOp"),
        ([None], 422, "the server rejected our request"),
        ([{}], 422, "the server rejected our request"),
        ([{"op": 5}], 400, "cannot unmarshal number into Go struct field jsonPatchOp.op of type string"),
        ([{"op": "add", "path": 5}], 400, "Go struct field jsonPatchOp.path of type string"),
        ([{"op": "copy", "from": 5, "path": "/x"}], 400, "Go struct field jsonPatchOp.from of type string"),
        ([{"op": "replace", "path": "", "value": 5}], 422, "the server rejected our request"),
        ([{"op": "remove", "path": ""}], 422, "the server rejected our request"),
        (
            [{"op": "move", "path": "/metadata/a", "from": "/metadata"}],
            422,
            "the server rejected our request",
        ),
    ],
)
async def test_json_patches_of_a_wrong_type(api: Api, patch: Any, expected: int, said: str) -> None:
    """As the real one answers."""
    await api("POST", PODS, POD)
    status, answer = await api("PATCH", f"{PODS}/p", patch, PATCH)
    assert status == expected
    assert said in answer["message"]


WRONG = [
    None, 5, -1, 1.5, "x", True, [], {}, [5], ["x"], [None], [[]], [{}], {"a": 5}, {"a": None}, {"$patch": 5},
    {"$patch": "delete"}, [{"$patch": "delete"}], [{"$patch": "replace"}], [{"name": 5}], [{"name": []}],
    {"$retainKeys": 5}, {"$retainKeys": [[]]}, "1e999", 2**70, {"": {}}, "\0", [{"name": "x", "$patch": "z"}],
]  # fmt: skip


def paths(schema: Json, depth: int) -> list[tuple[Any, ...]]:
    """Ways to all fields of a kind; 0 stands for the first item of a list."""
    if depth == 0:
        return []
    inner, found = resolve_ref(schema), []
    for key, each in (inner.get("properties") or {}).items():
        found += [(key,), *((key, *rest) for rest in paths(each, depth - 1))]
    if "items" in schema:
        found += [(0, *rest) for rest in paths(schema["items"], depth - 1)]
    if isinstance(inner.get("additionalProperties"), dict):
        found.append(("key",))
    return found


def at(path: tuple[Any, ...], value: Any) -> Any:
    for part in reversed(path):
        value = [{"name": "c", **value} if isinstance(value, dict) else value] if part == 0 else {part: value}
    return value


def root(resource: Resource) -> str:
    return f"{resource.root}{'/namespaces/default' if resource.namespaced else ''}/{resource.plural}"


SAMPLES: dict[str, Json] = {
    "Pod": POD,
    "Deployment": {
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": POD["spec"]},
        }
    },
    "PersistentVolumeClaim": {
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}}
    },
    "StorageClass": {"provisioner": "x.y/z"},
}


async def test_no_field_of_any_kind_takes_a_wrong_type_badly(api: Api) -> None:
    """Every kind, a sample of all its fields, every way to write: what does not fit is rejected."""
    draw = random.Random(1)
    for resource in list(api.server.resources):
        target, kind = root(resource), {"apiVersion": resource.group_version, "kind": resource.kind}
        base = {**kind, **SAMPLES.get(resource.kind, {}), "metadata": {"name": "p"}}
        await api("POST", target, base)
        fields = paths(resource.schema, 4)
        for path in draw.sample(fields, min(len(fields), 12)):
            wrong = at(path, draw.choice(WRONG))
            for media in (MERGE, STRATEGIC):
                await api("PATCH", f"{target}/p?dryRun=All", wrong, media)
                await api("PATCH", f"{target}/p/status?dryRun=All", wrong, media)
            applied = {**kind, "metadata": {"name": "p"}, **wrong}
            await api("PATCH", f"{target}/p?dryRun=All&fieldManager=x&force=true", applied, APPLY)
            operation = {"op": "add", "path": "/" + "/".join(map(str, path)), "value": draw.choice(WRONG)}
            await api("PATCH", f"{target}/p?dryRun=All", [operation], PATCH)
            await api("PUT", f"{target}/p?dryRun=All", {**base, **wrong})
            await api("POST", f"{target}?dryRun=All", {**base, **wrong})
            await api("DELETE", f"{target}/p?dryRun=All", wrong)
    assert (await api("GET", "/readyz"))[0] == 200


# Anything at all.

NAMES = st.sampled_from(["p", "", "a" * 300, "a/b", "..", "\0", "é", "metadata.name"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
    | st.sampled_from(["1e999999999", "9" * 5000, "Ki", "2020-01-01T00:00:00Z", "$patch", "delete"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["metadata", "name", "spec", "status", "labels", "containers", "$patch", "x"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
QUERIES = st.sampled_from(
    [
        "", "dryRun=All", "fieldManager=x", "fieldValidation=Strict", "limit=-1", "limit=1&continue=x",
        "continue=eyJ2IjoxfQ", "resourceVersion=99999999999999999999999", "resourceVersion=%D9%A1",
        "labelSelector=a%20in%20(", "fieldSelector=metadata.name", "watch=1&timeoutSeconds=x",
        "timeoutSeconds=99999999999999999999", "gracePeriodSeconds=1e9", "dryRun=x", "a&&&==", "%",
        "fieldManager=x&force=true&dryRun=All", "propagationPolicy=Orphan&orphanDependents=1",
        "sendInitialEvents=1&watch=1&resourceVersionMatch=NotOlderThan",
    ]
)  # fmt: skip
MEDIA = st.sampled_from(
    ["", MERGE, STRATEGIC, APPLY, PATCH, YAML, "application/vnd.kubernetes.protobuf", "text/plain", "x;;=,"]
)
ACCEPTS = st.sampled_from(
    [
        "*/*", "application/yaml", "application/json;as=Table;v=v1;g=meta.k8s.io", "text/html", ";;=,",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    ]
)  # fmt: skip


@examples(300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "X"]),
    number=st.integers(0, 200),
    name=NAMES,
    below=st.sampled_from(["", "/status", "/scale", "/binding", "/eviction", "/finalize", "/log", "/x/y"]),
    query=QUERIES,
    media=MEDIA,
    accept=ACCEPTS,
    body=st.none() | VALUES | st.binary(max_size=40),
)
def test_no_request_is_an_internal_error(
    method: str, number: int, name: str, below: str, query: str, media: str, accept: str, body: Any
) -> None:
    async def ask() -> None:
        resources = list(SHARED.server.resources)
        target = f"{root(resources[number % len(resources)])}/{name}{below if name else ''}?{query}"
        request = Request.of(method, target, body, content_type=media, accept=accept)
        answer = await SHARED.server.handle(request)
        if isinstance(answer, Response):
            assert answer.status != 500 or b"Internal error occurred" not in answer.body, answer.body
        assert (await SHARED("GET", "/readyz"))[0] == 200

    asyncio.run(ask())


SHARED = Api()


# Bombs.


def in_seconds(limit: float) -> Any:
    """CPU seconds of this process, so that others on the machine do not count."""

    class Timed:
        def __enter__(self) -> None:
            self.began = time.process_time()

        def __exit__(self, *error: object) -> None:
            assert time.process_time() - self.began < limit

    return Timed()


@pytest.mark.parametrize("depth", [300, 2000, 11_000, 400_000])
@pytest.mark.parametrize("media", ["", MERGE, STRATEGIC, APPLY, PATCH, YAML, "scale"])
async def test_deep_json_is_a_bad_request(api: Api, depth: int, media: str) -> None:
    await api("POST", PODS, POD)
    deep = b'{"metadata":{"name":"deep"},"spec":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"
    if media in ("", YAML):
        status, answer = await api("POST", PODS, deep, media)
    elif media == "scale":
        status, answer = await api(
            "PATCH", "/apis/apps/v1/namespaces/default/deployments/d/scale", deep, MERGE
        )
        assert status == 404
        return
    else:
        status, answer = await api("PATCH", f"{PODS}/p?fieldManager=x", deep, media)
    assert (status, answer["reason"]) == (400, "BadRequest")
    assert len(answer["message"]) < 1000


async def test_an_object_does_not_grow_deep_by_patches(api: Api) -> None:
    await make_boxes(api)
    box: Json = {"apiVersion": "example.com/v1", "kind": "Box", "metadata": {"name": "b"}, "a": {}}
    await api("POST", "/apis/example.com/v1/boxes", box)
    operations = [{"op": "copy", "from": "/a", "path": f"/a{'/b' * (2**n)}"} for n in range(8)]
    for operation in operations * 3:
        await api("PATCH", "/apis/example.com/v1/boxes/b", [operation], PATCH)
    status, found = await api("GET", "/apis/example.com/v1/boxes")
    assert status == 200
    assert depth_of(found["items"][0]["a"]) < 200


async def test_templates_do_not_grow_deep_by_patches(api: Api) -> None:
    """The managed fields of a template are part of the object, and may contain anything."""
    fields = {"manager": "x", "operation": "Update", "fieldsV1": {}}
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels, "managedFields": [fields]},
        "spec": {"containers": [{"name": "main", "image": "web"}]},
    }
    spec = {"selector": {"matchLabels": labels}, "template": template}
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    await api("POST", deployments, {"metadata": {"name": "web"}, "spec": spec})
    top = "/spec/template/metadata/managedFields/0/fieldsV1"
    statuses = []
    for n in range(7):
        operation = {"op": "copy", "from": top, "path": f"{top}{'/b' * (2**n)}"}
        statuses.append((await api("PATCH", f"{deployments}/web", [operation], PATCH))[0])
    assert statuses == [200] * 6 + [400]


def depth_of(value: Any) -> int:
    return 1 + max(map(depth_of, value.values()), default=0)


ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


async def make_boxes(api: Api, schema: Any = ANYTHING) -> int:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "boxes", "kind": "Box"}
    spec = {"group": "example.com", "scope": "Cluster", "names": names, "versions": [version]}
    status, _ = await api("POST", DEFINITIONS, {"metadata": {"name": "boxes.example.com"}, "spec": spec})
    return status


@pytest.mark.parametrize("count", [25, 9000])
async def test_copies_do_not_multiply(api: Api, count: int) -> None:
    await api("POST", CONFIG_MAPS, {"metadata": {"name": "m"}, "data": {"a": "x" * 1000}})
    doubling = [{"op": "copy", "from": "/data", "path": f"/data/k{number}"} for number in range(count)]
    with in_seconds(2):
        status, _ = await api("PATCH", f"{CONFIG_MAPS}/m", doubling, PATCH)
    assert status == 422


def bomb(levels: int, width: int) -> str:
    lines = [f"l0: &l0 [{','.join(['x'] * width)}]"]
    lines += [f"l{n}: &l{n} [{','.join([f'*l{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines)


def merge_bomb(levels: int, width: int) -> str:
    lines = ["l0: &l0 {x: y}"]
    lines += [f"l{n}: &l{n} {{<<: [{','.join([f'*l{n - 1}'] * width)}]}}" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(bomb(9, 9), id="a billion laughs"),
        pytest.param(bomb(2, 3000), id="a wide one"),
        pytest.param(merge_bomb(9, 9), id="a billion merges"),
        pytest.param("a: &a [*a]", id="a circle"),
        pytest.param(f"a: &a {'x' * 100_000}\nb: [{','.join(['*a'] * 1000)}]", id="a long text often"),
        pytest.param("\n".join(" " * n + "a:" for n in range(1200)), id="deep by indentation"),
        pytest.param("- " * 100_000, id="deep by dashes"),
        pytest.param("? [a, b]\n: c", id="a list as a key"),
        pytest.param("!!python/object:os.system x", id="a tag of Python"),
        pytest.param("a: .nan\nb: !!binary x", id="no numbers"),
        pytest.param("%", id="nonsense"),
    ],
)
@pytest.mark.parametrize("media", [YAML, APPLY])
async def test_yaml_does_not_explode(api: Api, text: str, media: str) -> None:
    body = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\n{text}\n".encode()
    with in_seconds(3):
        if media == YAML:
            status, _ = await api("POST", CONFIG_MAPS, body, media)
        else:
            status, _ = await api("PATCH", f"{CONFIG_MAPS}/m?fieldManager=x", body, media)
    assert status in (
        400,
        415,
        201,
        500,
    )  # unknown fields are pruned, and an apply of them is a 500 everywhere


async def test_yaml_aliases_and_dates_are_understood(api: Api) -> None:
    body = b"metadata: {name: m, labels: &l {a: b}, annotations: *l}\ndata: {when: 2020-01-01, 1: x}\n"
    status, found = await api("POST", CONFIG_MAPS, body, YAML)
    assert (status, found["metadata"]["annotations"], found["data"]) == (
        201, {"a": "b"}, {"when": "2020-01-01", "1": "x"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("amount", "kept"),
    [
        ("1e5", "100e3"), ("1e20", "100e18"), ("1e100", "10e99"), ("1e5000", "100e4998"), ("0e99999", "0"),
        ("1e100000", "10e99999"), ("1e19", "10e18"), ("100000000000000000000", "100E"), ("1000e-3", "1"),
        ("1e999999999", None), ("1e-999999999", None), ("1e99999999999999999999", None), ("9" * 5000, None),
        ("0." + "0" * 5000 + "1", None), ([], None), ({}, None), ("1e-100000", "1e-9"),
    ],
)  # fmt: skip
async def test_quantities_are_not_written_out(api: Api, amount: Any, kept: str | None) -> None:
    """Kept as the real one keeps them, where it does not take minutes for them."""
    limits = {"spec": {"limits": [{"type": "Pod", "max": {"cpu": amount}}]}}
    body = {"metadata": {"name": "l"}, **limits}
    with in_seconds(1):
        status, found = await api("POST", "/api/v1/namespaces/default/limitranges", body)
    if kept is None:
        assert status == 400
    else:
        assert (status, found["spec"]["limits"][0]["max"]["cpu"]) == (201, kept)


@pytest.mark.parametrize(
    "schema",
    [
        5, "x", [], {"type": 5}, {"properties": 5}, {"properties": {"a": 5}}, {"items": 5}, {"enum": 5},
        {"required": 5}, {"required": [5]}, {"additionalProperties": 5}, {"pattern": 5}, {"pattern": "("},
        {"multipleOf": 0}, {"minimum": "x"}, {"maxLength": "x"}, {"allOf": 5}, {"allOf": [5]}, {"not": 5},
        {"$ref": "#/components/schemas/x"}, {"x-kubernetes-list-map-keys": 5}, {"nullable": "x"},
    ],
)  # fmt: skip
async def test_a_schema_that_is_none_is_rejected(api: Api, schema: Any) -> None:
    nested = {"type": "object", "properties": {"a": schema}} if isinstance(schema, dict) else schema
    assert await make_boxes(api, nested) == 422


async def test_no_definition_takes_over_a_built_in_kind(api: Api) -> None:
    schema = {"openAPIV3Schema": {"type": "object"}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    names = {"plural": "deployments", "kind": "Deployment"}
    spec = {"group": "apps", "scope": "Namespaced", "names": names, "versions": [version]}
    status, _ = await api("POST", DEFINITIONS, {"metadata": {"name": "deployments.apps"}, "spec": spec})
    assert status == 422
    assert (await api("GET", "/apis/apps/v1/deployments"))[0] == 200


async def test_a_definition_of_thousands_of_versions_is_served_in_time(api: Api) -> None:
    versions = [
        {
            "name": f"v{number}",
            "served": True,
            "storage": number == 0,
            "schema": {"openAPIV3Schema": {"type": "object"}},
        }
        for number in range(3000)
    ]
    names = {"plural": "boxes", "kind": "Box"}
    spec = {"group": "example.com", "scope": "Cluster", "names": names, "versions": versions}
    with in_seconds(30):
        await api("POST", DEFINITIONS, {"metadata": {"name": "boxes.example.com"}, "spec": spec})
    assert (await api("GET", "/apis/example.com/v2999/boxes"))[0] == 200


@pytest.mark.parametrize(
    "query",
    [
        "labelSelector=" + "%2C".join(f"!a{n}" for n in range(5000)),
        "labelSelector=a%20in%20(" + "%2C".join(f"a{n}" for n in range(5000)) + ")",
        "labelSelector=" + "(" * 50_000,
        "labelSelector=" + "a" * 60_000,
        "fieldSelector=" + "%2C".join("metadata.name!%3Da" for _ in range(3000)),
        "fieldSelector=" + "%3D" * 20_000,
        "continue=" + "e" * 60_000,
        "&".join("labelSelector=a" for _ in range(4000)),
        "limit=" + "9" * 60_000,
        "resourceVersion=" + "9" * 60_000,
    ],
)
async def test_giant_queries_are_answered_in_time(api: Api, query: str) -> None:
    for number in range(300):
        await api("POST", CONFIG_MAPS, {"metadata": {"name": f"m{number}"}})
    with in_seconds(2):
        status, _ = await api("GET", f"/api/v1/configmaps?{query}")
    assert status in (200, 400)


@pytest.mark.parametrize("count", [20_000])
async def test_many_items_take_no_more_than_their_share(api: Api, count: int) -> None:
    """What compares all items with each other would take minutes."""
    names = [f"a/b{number}" for number in range(count)]
    order = {"metadata": {"finalizers": names, "$setElementOrder/finalizers": names[::-1]}}
    twice = b'{"metadata":{"name":"m"},' + b",".join(b'"k%d":1' % (n // 2) for n in range(count * 2)) + b"}"
    with in_seconds(30):
        await api("POST", CONFIG_MAPS, {"metadata": {"name": "m", "finalizers": names}})
        await api("PATCH", f"{CONFIG_MAPS}/m", order, STRATEGIC)
        gone = {"metadata": {"$deleteFromPrimitiveList/finalizers": names[: count // 2]}}
        await api("PATCH", f"{CONFIG_MAPS}/m", gone, STRATEGIC)
        await api("DELETE", f"{CONFIG_MAPS}/m")
        await api("PATCH", f"{CONFIG_MAPS}/m", {"metadata": {"finalizers": names}}, MERGE)
        await api("POST", f"{CONFIG_MAPS}?fieldValidation=Strict", twice)


async def test_a_time_in_protobuf_that_is_none_is_rejected(api: Api) -> None:
    seconds = b"\x08" + b"\xff" * 9 + b"\x01" + b"\x08" + b"\xff\xff\xff\xff\xff\xff\xff\x7f"
    meta = encode_message((1, "m"), (8, seconds))
    body = MAGIC + encode_message(
        (1, encode_message((1, "v1"), (2, "ConfigMap"))), (2, encode_message((1, meta)))
    )
    status, _ = await api("POST", CONFIG_MAPS, body, "application/vnd.kubernetes.protobuf")
    assert status == 400


async def test_what_watches_may_see_again_is_bounded() -> None:
    """Many versions of a large object are not all kept."""
    store = Store(max_log_bytes=5_000_000)
    api = Api(store)
    await api("POST", CONFIG_MAPS, {"metadata": {"name": "m"}})
    for number in range(30):
        body = {"metadata": {"name": "m"}, "data": {"x": f"{number}" + "x" * 1_000_000}}
        assert (await api("PUT", f"{CONFIG_MAPS}/m", body))[0] == 200
        assert store.log_bytes <= 5_000_000
    status, found = await api("GET", f"{CONFIG_MAPS}?resourceVersion=20&resourceVersionMatch=Exact&limit=1")
    assert (status, found["reason"]) == (410, "Expired")
    assert store.log_bytes == sum(each.log_bytes for each in store.collections.values())


async def test_a_full_store_grows_no_more_and_recovers() -> None:
    api = Api(Store(max_bytes=3_000_000))
    statuses = []
    for number in range(5):
        body = {"metadata": {"name": f"m{number}"}, "data": {"x": "x" * 900_000}}
        status, answer = await api("POST", CONFIG_MAPS, body)
        statuses.append(status)
    assert statuses == [201, 201, 201, 507, 507]
    assert "delete some of them" in answer["message"]
    assert (await api("PATCH", f"{CONFIG_MAPS}/m0", {"data": {"x": "y"}}, MERGE))[0] == 200
    assert (await api("POST", CONFIG_MAPS, body))[0] == 201
    assert (await api("DELETE", f"{CONFIG_MAPS}/m1"))[0] == 200
