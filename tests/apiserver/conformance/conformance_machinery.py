"""Cases of the machinery that all kinds share: bodies, options, selectors, pages, and custom resources."""

# ruff: noqa: E501  one case a line
from __future__ import annotations

from typing import Any

from conformance.conformance_extra import DEFINITIONS, DEPLOYMENT, DEPLOYMENTS, JOB, JOBS, NODES, PODS, pod
from conformance.conformance_steps import (
    APPLY_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    TABLE,
    Case,
    Step,
)
from stowplan.api.protobuf import CONTENT_TYPE, MAGIC, encode_message

Json = dict[str, Any]

REPLICA_SETS = "/apis/apps/v1/namespaces/{ns}/replicasets"
CONTROLLERS = "/api/v1/namespaces/{ns}/replicationcontrollers"
AUTOSCALERS = "/apis/autoscaling/{}/namespaces/{{ns}}/horizontalpodautoscalers"
AUTOSCALED = {
    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
    "maxReplicas": 3,
}
TEMPLATE = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def protobuf(api_version: str, kind: str, message: bytes = b"") -> bytes:
    return MAGIC + encode_message((1, encode_message((1, api_version), (2, kind))), (2, message))


def _delete(path: str, api_version: str, kind: str = "DeleteOptions", policy: str = "Orphan") -> Step:
    return Step("DELETE", path, protobuf(api_version, kind, encode_message((4, policy))), CONTENT_TYPE)


def _select(path: str, *selectors: str) -> tuple[Step, ...]:
    return tuple(Step("GET", f"{path}?fieldSelector={each.replace('=', '%3D')}") for each in selectors)


WIRE_CASES = [
    Case("delete options in protobuf", (
        Step("POST", DEPLOYMENTS, DEPLOYMENT),
        _delete(DEPLOYMENTS + "/d", "apps/v1"),
        Step("GET", DEPLOYMENTS + "/d"),
        _delete(DEPLOYMENTS + "/d", "v1", policy="Background"),
        Step("POST", DEPLOYMENTS, DEPLOYMENT),
        _delete(DEPLOYMENTS + "/d", "meta.k8s.io/v1"),
        _delete(DEPLOYMENTS + "/d", "nonsense/v1"),
        _delete(DEPLOYMENTS + "/d", "apps/v1", "Nonsense"),
        _delete(DEPLOYMENTS, "apps/v1"),
    )),
    Case("delete options in JSON", (
        Step("POST", DEPLOYMENTS, DEPLOYMENT),
        Step("DELETE", DEPLOYMENTS + "/d", {"kind": "DeleteOptions", "apiVersion": "nonsense/v1"}),
        Step("DELETE", DEPLOYMENTS + "/d", {"kind": "Pod", "apiVersion": "v1"}),
        Step("DELETE", DEPLOYMENTS + "/d", {"kind": "DeleteOptions", "apiVersion": "apps/v1", "propagationPolicy": "Orphan"}),
        Step("GET", DEPLOYMENTS + "/d"),
    )),
    Case("selectors of booleans and numbers", (
        Step("POST", NODES, {"metadata": {"name": "{ns}-a"}}),
        Step("POST", NODES, {"metadata": {"name": "{ns}-b"}, "spec": {"unschedulable": True}}),
        *_select(NODES, *(f"metadata.name!=x,spec.unschedulable={value},metadata.name={{ns}}-{name}" for value in ("true", "false", "") for name in "ab")),
        Step("POST", PODS, pod("a")),
        Step("POST", PODS, pod("b", hostNetwork=True)),
        *_select(PODS, "spec.hostNetwork=false", "spec.hostNetwork=true", "spec.hostNetwork=", "spec.hostNetwork!=true", "status.podIP=", "status.podIPs=", "status.nominatedNodeName=", "spec.serviceAccountName="),
        Step("POST", JOBS, JOB),
        *_select(JOBS, "status.successful=0", "status.successful=", "status.successful=1"),
        Step("POST", REPLICA_SETS, {"metadata": {"name": "r"}, "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": TEMPLATE}}),
        *_select(REPLICA_SETS, "status.replicas=0", "status.replicas=1", "status.replicas="),
        Step("POST", CONTROLLERS, {"metadata": {"name": "r"}, "spec": {"template": TEMPLATE}}),
        *_select(CONTROLLERS, "status.replicas=0", "status.replicas=1"),
    )),
]  # fmt: skip

JSON_TWICE = b'{"metadata":{"name":"m","name":"m","labels":{"a":"b","a":"c"}},"data":{"x":"1"},"nonsense":1,"data":{"x":"2"},"other":{"deep":1},"nonsense":2}'
POD_TWICE = b'{"metadata":{"name":"p"},"spec":{"zzz":1,"containers":[{"image":"i","name":"c","foo":1,"name":"c"},{"name":"d","image":"i","bar":2}],"aaa":{"b":1},"restartPolicy":"Always","restartPolicy":"Never"},"beta":1,"alpha":2,"spec":{"containers":[{"name":"c","image":"i"}]}}'
YAML_TWICE = b"""
metadata:
  name: m
  name: m
data:
  x: "1"
  x: "2"
nonsense: 1
other:
  deep: 1
  deep: 2
"""
YAML_UNKNOWN = b"""
metadata:
  name: y
  odd: 1
nonsense: 1
data: {x: "1"}
another: 2
"""
APPLY_TWICE = b"""
apiVersion: v1
kind: ConfigMap
metadata:
  name: a
data:
  x: "1"
  x: "2"
"""
APPLY_JSON_TWICE = (
    b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","name":"a"},"data":{"x":"1","x":"2"}}'
)
MAPS = "/api/v1/namespaces/{ns}/configmaps"
ADDRESSES = "/apis/networking.k8s.io/v1/ipaddresses"
RANGES = "/apis/networking.k8s.io/v1/servicecidrs"
YAML = "application/yaml"
ONLY_TABLES = "application/json;as=Table;v=v1;g=meta.k8s.io"
ONLY_METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"


def _validations(path: str, body: Any, media: str, method: str = "POST") -> tuple[Step, ...]:
    sign = "&" if "?" in path else "?"
    return tuple(
        Step(method, f"{path}{sign}fieldValidation={each}", body, media)
        for each in ("Strict", "Warn", "Ignore")
    )


def _address(address: str, **ref: Any) -> Step:
    return Step("POST", ADDRESSES, {"metadata": {"name": address}, "spec": {"parentRef": ref} if ref else {}})


def _range(name: str, *cidrs: str) -> Step:
    return Step("POST", RANGES, {"metadata": {"name": name}, "spec": {"cidrs": list(cidrs)}})


PARENT = {"resource": "services", "name": "s", "namespace": "{ns}"}
MORE_WIRE_CASES = [
    Case("duplicate and unknown fields in JSON", (
        *_validations(MAPS, JSON_TWICE, "application/json"),
        Step("POST", PODS + "?fieldValidation=Strict", POD_TWICE),
        *_validations(MAPS + "/m", JSON_TWICE, "application/json", "PUT"),
    )),
    Case("duplicate and unknown fields in YAML", (
        *_validations(MAPS, YAML_TWICE, YAML),
        *_validations(MAPS, YAML_UNKNOWN, YAML),
    )),
    Case("unknown fields in patches", (
        Step("POST", MAPS, {"metadata": {"name": "m"}, "data": {"a": "b"}}),
        *(_validations(MAPS + "/m", b'{"data":{"x":"1","x":"2"},"nonsense":1,"another":1,"data":{"y":"3"}}', STRATEGIC_PATCH, "PATCH")),
    )),
    Case("duplicate fields in applied configurations", (
        *_validations(MAPS + "/a?fieldManager=one", APPLY_TWICE, APPLY_PATCH, "PATCH"),
        *_validations(MAPS + "/a?fieldManager=one", APPLY_JSON_TWICE, APPLY_PATCH, "PATCH"),
    )),
    Case("forms that cannot be made", (
        Step("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}, accept=ONLY_TABLES),
        Step("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}, accept=ONLY_METADATA),
        Step("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "nonsense"}}, accept=ONLY_TABLES),
        Step("POST", DEPLOYMENTS, DEPLOYMENT),
        Step("GET", DEPLOYMENTS + "/d/scale", accept=ONLY_TABLES),
        Step("GET", DEPLOYMENTS + "/d/scale", accept=ONLY_METADATA),
        Step("GET", DEPLOYMENTS + "/none", accept=ONLY_TABLES),
        Step("GET", DEPLOYMENTS + "/d/status", accept=ONLY_TABLES),
        Step("DELETE", DEPLOYMENTS + "/d", accept=ONLY_TABLES),
        Step("POST", PODS, pod(), accept=ONLY_TABLES),
        Step("POST", PODS + "/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}, accept=ONLY_TABLES),
        Step("GET", PODS, accept="text/plain"),
        Step("GET", PODS, accept="application/json;as=Table;v=v2;g=meta.k8s.io"),
        Step("GET", PODS, accept="application/json;as=Nonsense;v=v1;g=meta.k8s.io"),
        Step("GET", PODS + "/p", accept="application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
        Step("GET", PODS, accept=ONLY_METADATA),
        Step("GET", DEPLOYMENTS, accept=ONLY_METADATA),
        Step("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles", accept=ONLY_METADATA),
        Step("GET", "/apis/scheduling.k8s.io/v1/priorityclasses", accept=ONLY_METADATA),
        Step("GET", "/apis/storage.k8s.io/v1/csinodes", accept=ONLY_METADATA),
        Step("GET", "/apis/events.k8s.io/v1/namespaces/{ns}/events", accept=ONLY_METADATA),
        Step("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", accept=ONLY_METADATA),
    )),
    Case("a nomination ends when the pod is bound", (
        Step("POST", PODS, pod()),
        Step("PATCH", PODS + "/p/status", {"status": {"nominatedNodeName": "n"}}, MERGE_PATCH),
        Step("POST", PODS + "/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}),
        Step("GET", PODS + "/p"),
        Step("GET", PODS, accept=TABLE),
        Step("PATCH", PODS + "/p/status", {"status": {"nominatedNodeName": "n"}}, MERGE_PATCH),
    )),
    Case("addresses of services", (
        _address("192.168.77.1", **PARENT),
        _address("2001:db8::77:1", **PARENT),
        _address("2001:DB8::77:2", **PARENT),
        _address("2001:db8:0:0:0:0:77:3", **PARENT),
        _address("::ffff:1.2.3.4", **PARENT),
        _address("192.168.077.2", **PARENT),
        _address("nonsense", **PARENT),
        _address("192.168.77.4"),
        _address("192.168.77.5", resource="services"),
        _address("192.168.77.5", group="A_b", resource="bad/name", name="", namespace="B_d"),
        Step("GET", ADDRESSES + "/192.168.77.1"),
        Step("GET", ADDRESSES + "/2001:db8::77:1"),
        Step("PATCH", ADDRESSES + "/192.168.77.1", {"spec": {"parentRef": {"name": "t"}}}, MERGE_PATCH),
        Step("PATCH", ADDRESSES + "/192.168.77.1", {"metadata": {"labels": {"a": "b"}}}, MERGE_PATCH),
        Step("DELETE", ADDRESSES + "/192.168.77.1"),
        Step("DELETE", ADDRESSES + "/2001:db8::77:1"),
    )),
    Case("ranges of services", (
        _range("{ns}-a", "10.77.0.0/24"),
        _range("{ns}-b", "10.77.1.0/24", "2001:db8:77::/64"),
        _range("{ns}-c", "10.77.0.1/24"),
        _range("{ns}-c", "10.77.0.0/33"),
        _range("{ns}-c", "nonsense"),
        _range("{ns}-c"),
        _range("{ns}-c", "10.77.2.0/24", "10.77.3.0/24"),
        _range("{ns}-c", "10.77.2.0/24", "10.77.3.0/24", "10.77.4.0/24"),
        _range("{ns}-c", "2001:DB8:78::/64"),
        _range("Bad_", "10.77.2.0/24"),
        Step("GET", RANGES + "/{ns}-b", accept=TABLE),
        Step("PATCH", RANGES + "/{ns}-a", {"spec": {"cidrs": ["10.78.0.0/24"]}}, MERGE_PATCH),
        Step("PATCH", RANGES + "/{ns}-a", {"spec": {"cidrs": ["10.77.0.0/24", "2001:db8:79::/64"]}}, MERGE_PATCH),
        Step("PATCH", RANGES + "/{ns}-a", {"metadata": {"labels": {"a": "b"}}}, MERGE_PATCH),
        Step("PATCH", RANGES + "/{ns}-a/status", {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}}, MERGE_PATCH),
        Step("DELETE", RANGES + "/{ns}-b"),
        Step("DELETE", RANGES + "/{ns}-a"),
    )),
]  # fmt: skip


GROUP = "/apis/{ns}.example.com"
THINGS = GROUP + "/v1/namespaces/{ns}/things"
DEFINITION = DEFINITIONS + "/things.{ns}.example.com"


def definition(
    spec: Json | None = None, *, root: Json | None = None, versions: list[Json] | None = None, **version: Any
) -> Json:
    """A definition of Things; `spec` are the fields of their spec."""
    schema = root or {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": spec or {}}, "status": FREE},
    }
    one = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **version}
    names = {"plural": "things", "kind": "Thing", "shortNames": ["th"], "categories": ["all"]}
    body = {"group": "{ns}.example.com", "scope": "Namespaced", "names": names, "versions": versions or [one]}
    return {"metadata": {"name": "things.{ns}.example.com"}, "spec": body}


def thing(spec: Json, name: str = "t", version: str = "v1", **more: Any) -> Json:
    return {
        "apiVersion": "{ns}.example.com/" + version,
        "kind": "Thing",
        "metadata": {"name": name},
        "spec": spec,
        **more,
    }


def _things(name: str, made: Json, *steps: Step, wait: str = "v1") -> Case:
    """A case about objects of a definition."""
    return Case(
        f"things: {name}", (Step("QUIET", DEFINITIONS, made), Step("WAIT", f"{GROUP}/{wait}"), *steps)
    )


def _create(*specs: Json) -> tuple[Step, ...]:
    """Only the first object of a name is created; those after it are about their errors."""
    return tuple(Step("POST", THINGS, thing(spec, f"t{number}")) for number, spec in enumerate(specs))


def _refused(name: str, *made: Json) -> Case:
    """Definitions that are rejected."""
    return Case(f"definitions: {name}", tuple(Step("POST", DEFINITIONS, each) for each in made))


FREE: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
FORMATS = (
    "date",
    "date-time",
    "datetime",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "cidr",
    "mac",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "byte",
    "uri",
    "password",
    "hexcolor",
    "rgbcolor",
    "isbn",
    "isbn10",
    "isbn13",
    "ssn",
    "creditcard",
    "bsonobjectid",
    "k8s-short-name",
    "k8s-long-name",
    "nonsense",
)
GOOD = {
    "date": "2026-01-02",
    "date-time": "2026-01-02T03:04:05Z",
    "datetime": "2026-01-02T03:04:05.5+01:00",
    "duration": "3h2m",
    "email": "a@example.com",
    "hostname": "a.example.com",
    "ipv4": "1.2.3.4",
    "ipv6": "2001:db8::1",
    "cidr": "10.0.0.0/8",
    "mac": "01:02:03:04:05:06",
    "uuid": "0d8fbf1c-f8a6-4f9b-8b4f-1c5e6f7a8b9c",
    "uuid3": "0d8fbf1c-f8a6-3f9b-8b4f-1c5e6f7a8b9c",
    "uuid4": "0d8fbf1c-f8a6-4f9b-8b4f-1c5e6f7a8b9c",
    "uuid5": "0d8fbf1c-f8a6-5f9b-8b4f-1c5e6f7a8b9c",
    "byte": "aGVsbG8=",
    "uri": "https://example.com/a?b=c",
    "password": "x",
    "hexcolor": "#ff00aa",
    "rgbcolor": "rgb(1,2,3)",
    "isbn": "978-3-16-148410-0",
    "isbn10": "3-16-148410-X",
    "isbn13": "978-3-16-148410-0",
    "ssn": "111-11-1111",
    "creditcard": "4012888888881881",
    "bsonobjectid": "507f1f77bcf86cd799439011",
    "k8s-short-name": "a-b",
    "k8s-long-name": "a.b",
    "nonsense": "x",
}
ODD = {
    "date": ["2026-1-2", "2026-02-30", "20260102"],
    "date-time": [
        "2026-01-02",
        "2026-01-02T03:04:05",
        "2026-01-02 03:04:05Z",
        "2026-01-02T03:04:05.123456789Z",
    ],
    "duration": ["1", "3 h", "1d", "1.5h", "5 minutes", "-1h", "1w"],
    "email": ["a", "A <a@example.com>", "a@b"],
    "hostname": ["a_b", "-a", "1.2", "a..b", "A.B"],
    "ipv4": ["1.2.3", "1.2.3.256", "01.2.3.4", "::1"],
    "ipv6": ["1.2.3.4", "::ffff:1.2.3.4", "fe80::1%eth0", "g::"],
    "cidr": ["10.0.0.0", "10.0.0.1/8", "::/0", "10.0.0.0/33"],
    "mac": ["01:02", "01-02-03-04-05-06", "0102.0304.0506"],
    "uuid": ["x", "0d8fbf1cf8a64f9b8b4f1c5e6f7a8b9c", "0D8FBF1C-F8A6-4F9B-8B4F-1C5E6F7A8B9C"],
    "byte": ["a", "a b=", "aGVsbG8"],
    "uri": ["a", "/a", "http//x", "mailto:a@b", "http://"],
    "hexcolor": ["red", "#fff", "fff"],
    "k8s-short-name": ["A", "a.b"],
    "k8s-long-name": ["a_b", "A"],
}
COLUMNS = [
    {"name": name, "type": kind, "jsonPath": path}
    for name, kind, path in (
        ("Text", "string", ".spec.text"),
        ("Object", "string", ".spec.object"),
        ("List", "string", ".spec.list"),
        ("First", "string", ".spec.list[0]"),
        ("Last", "string", ".spec.list[-1:]"),
        ("Names", "string", ".spec.items[*].name"),
        ("Chosen", "string", '.spec.items[?(@.name=="b")].value'),
        ("Number", "integer", ".spec.number"),
        ("Real", "number", ".spec.real"),
        ("Flag", "boolean", ".spec.flag"),
        ("Moment", "date", ".spec.moment"),
        ("None", "string", ".spec.none"),
        ("Wrong", "integer", ".spec.text"),
        ("NumberText", "string", ".spec.number"),
        ("FlagText", "string", ".spec.flag"),
        ("RealText", "string", ".spec.real"),
        ("Label", "string", ".metadata.labels.a\\.b/c"),
        ("Age", "date", ".metadata.creationTimestamp"),
    )
]
SHOWN = {
    "text": "x",
    "object": {"b": 1, "a": {"c": [1, "2"]}},
    "list": ["one", "two", "three"],
    "items": [{"name": "a", "value": 1}, {"name": "b", "value": 2}],
    "number": 7,
    "real": 2.5,
    "flag": True,
    "moment": "nonsense",
}
SELECTABLE: Json = {
    "color": TEXT,
    "size": NUMBER,
    "flag": {"type": "boolean"},
    "deep": {"type": "object", "properties": {"er": TEXT}},
}
SCALED: Json = {
    "specReplicasPath": ".spec.size.wanted",
    "statusReplicasPath": ".status.found",
    "labelSelectorPath": ".status.selector",
}
TWO_VERSIONS = [
    {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "spec": {
                        "type": "object",
                        "properties": {"a": TEXT, "b": {"type": "string", "default": "one"}},
                    }
                },
            }
        },
    },
    {
        "name": "v2",
        "served": True,
        "storage": False,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "spec": {
                        "type": "object",
                        "properties": {"a": TEXT, "c": {"type": "string", "default": "two"}},
                    }
                },
            }
        },
    },
    {"name": "v3alpha1", "served": False, "storage": False, "schema": {"openAPIV3Schema": FREE}},
]
SECOND = GROUP + "/v2/namespaces/{ns}/things"
THING_CASES = [
    _things("formats", definition({f"f{number}": {"type": "string", "format": each} for number, each in enumerate(FORMATS)}),
        *_create({f"f{number}": GOOD[each] for number, each in enumerate(FORMATS)}),
        *(Step("POST", THINGS + "?dryRun=All", thing({f"f{FORMATS.index(each)}": value}, f"odd-{number}")) for each in FORMATS for number, value in enumerate(["?!", *ODD.get(each, [])])),
    ),
    _things("number formats", definition({"i": {"type": "integer", "format": "int32"}, "l": {"type": "integer", "format": "int64"}, "f": {"type": "number", "format": "float"}, "d": {"type": "number", "format": "double"}, "n": {"type": "number"}}),
        *_create({"i": 2**31 - 1, "l": 2**40, "f": 1.5, "d": 2}, {"i": 2**31}, {"i": -(2**31) - 1}, {"l": 2**63 - 1}, {"i": 1.5}, {"f": 1e300}, {"d": 1e300, "n": 3}),
    ),
    _things("sets and maps", definition({
        "set": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"}, "numbers": {"type": "array", "items": NUMBER, "x-kubernetes-list-type": "set"},
        "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"], "items": {"type": "object", "required": ["a", "b"], "properties": {"a": TEXT, "b": NUMBER, "c": TEXT}}},
        "atomic": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "atomic"},
    }), *_create(
        {"set": ["a", "b"], "map": [{"a": "x", "b": 1}, {"a": "x", "b": 2}], "atomic": ["a", "a"]}, {"set": ["a", "b", "a", "a"]}, {"numbers": [1, 1, 2]},
        {"map": [{"a": "x", "b": 1}, {"a": "x", "b": 1, "c": "y"}]}, {"map": [{"a": "x"}]},
    )),
    _things("embedded resources", definition({"e": {"type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True}, "s": {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"spec": FREE}}}),
        *_create(
            {"e": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "nonsense": 1}, "spec": {"a": 1}}}, {"e": {"kind": "Pod"}}, {"e": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "B_d", "labels": {"a": "-"}}}},
            {"s": {"apiVersion": "v1", "kind": "Pod", "other": 1, "spec": {"b": 2}}}, {"e": {"apiVersion": "a/b/c", "kind": "P_d"}},
        ),
    ),
    _things("nullable fields", definition({"n": {"type": "string", "nullable": True}, "d": {"type": "string", "nullable": True, "default": "x"}, "e": {"type": "string", "default": "y"}, "m": {"type": "string"}, "o": {"type": "object", "nullable": True, "properties": {"i": {"type": "string", "default": "z"}}}}),
        *_create({"n": None, "d": None, "e": None, "m": None, "o": None}, {"o": {}}, {}),
    ),
    _things("columns", definition({"text": TEXT, "object": FREE, "list": {"type": "array", "items": TEXT}, "items": {"type": "array", "items": FREE}, "number": NUMBER, "real": {"type": "number"}, "flag": {"type": "boolean"}, "moment": TEXT}, additionalPrinterColumns=COLUMNS),
        Step("POST", THINGS, thing(SHOWN)), Step("GET", THINGS + "/t", accept=TABLE), Step("POST", THINGS, thing({}, "e")), Step("GET", THINGS + "/e", accept=TABLE),
        Step("GET", THINGS, accept=ONLY_METADATA),
    ),
    _things("selectable fields", definition(SELECTABLE, selectableFields=[{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.size"}, {"jsonPath": ".spec.flag"}, {"jsonPath": ".spec.deep.er"}]),
        Step("POST", THINGS, thing({"color": "red", "size": 3, "flag": True, "deep": {"er": "x"}}, "a")), Step("POST", THINGS, thing({}, "b")), Step("POST", THINGS, thing({"color": "red", "size": 0, "flag": False}, "c")),
        *_select(THINGS, "spec.color=red", "spec.color!=red", "spec.color=", "spec.size=3", "spec.size=0", "spec.size=", "spec.flag=false", "spec.flag=", "spec.deep.er=x", "spec.color=red,metadata.name=c", "spec.deep=x"),
        Step("GET", THINGS + "?watch=1&timeoutSeconds=1&fieldSelector=spec.color%3Dred"),
        Step("DELETE", THINGS + "?fieldSelector=spec.color%3Dred"), Step("GET", THINGS),
    ),
    _things("status and scale", definition(root=FREE, subresources={"status": {}, "scale": SCALED}),
        Step("POST", THINGS, thing({"size": {"wanted": 2}}, status={"found": 1})), Step("GET", THINGS + "/t/scale"),
        Step("PUT", THINGS + "/t/status", thing({"size": {"wanted": 9}}, status={"found": 4, "selector": "a=b"}) | {"metadata": {"name": "t", "labels": {"x": "y"}}}),
        Step("PATCH", THINGS + "/t/status", {"status": {"found": 4, "selector": "a=b"}, "metadata": {"labels": {"x": "y"}}, "spec": {"size": {"wanted": 9}}}, MERGE_PATCH),
        Step("GET", THINGS + "/t/scale"), Step("PATCH", THINGS + "/t/scale", {"spec": {"replicas": 7}}, MERGE_PATCH), Step("PATCH", THINGS + "/t/scale", {"spec": {"replicas": -7}}, MERGE_PATCH),
        Step("PUT", THINGS + "/t/scale", {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "t", "namespace": "{ns}"}, "spec": {"replicas": 8}}), Step("GET", THINGS + "/t"),
        Step("POST", THINGS, thing({}, "empty")), Step("GET", THINGS + "/empty/scale"), Step("PATCH", THINGS + "/empty/scale", {"spec": {"replicas": 1}}, MERGE_PATCH),
        Step("PATCH", THINGS + "/t?fieldManager=one", thing({"size": {"wanted": 3}}), APPLY_PATCH), Step("PATCH", THINGS + "/t/status?fieldManager=two", {"apiVersion": "{ns}.example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "status": {"found": 5}}, APPLY_PATCH),
    ),
    _things("several versions", definition(versions=TWO_VERSIONS),
        Step("GET", GROUP), Step("GET", GROUP + "/v3alpha1"), Step("POST", THINGS, thing({"a": "x"})), Step("GET", THINGS + "/t"), Step("GET", SECOND + "/t"), Step("GET", SECOND),
        Step("POST", SECOND, thing({"a": "y", "c": "z"}, "u", "v2")), Step("GET", THINGS + "/u"), Step("GET", SECOND + "/u"), Step("GET", THINGS), Step("GET", THINGS + "?watch=1&timeoutSeconds=1"), Step("GET", SECOND + "?watch=1&timeoutSeconds=1"), Step("POST", SECOND, thing({"a": "y"}, "w", "v1")), Step("POST", SECOND, thing({"a": "y"}, "w", "v2") | {"kind": "Other"}),
        Step("DELETE", SECOND + "/t"), Step("GET", THINGS + "/t"),
        wait="v2",
    ),
    _things("defaults come when they are read", definition({"a": TEXT}),
        Step("POST", THINGS, thing({"a": "x"})), Step("POST", THINGS, thing({}, "u")),
        Step("QUIET-PATCH", DEFINITION, {"spec": {"versions": [TWO_VERSIONS[0], TWO_VERSIONS[1]]}}, MERGE_PATCH), Step("WAIT", SECOND),
        Step("GET", THINGS + "/t"), Step("GET", THINGS), Step("GET", SECOND + "/u"), Step("PATCH", THINGS + "/t", {"metadata": {"labels": {"a": "b"}}}, MERGE_PATCH),
    ),
    _things("strict", definition({"a": TEXT, "l": {"type": "array", "items": {"type": "object", "properties": {"b": TEXT}}}}),
        Step("POST", THINGS + "?fieldValidation=Strict", b'{"apiVersion":"{ns}.example.com/v1","kind":"Thing","metadata":{"name":"s","odd":1,"name":"s"},"zzz":1,"spec":{"zz":1,"a":"x","l":[{"b":"1","c":2}],"a":"y","aa":2},"zzz":2}'),
        Step("POST", THINGS + "?fieldValidation=Strict", b"apiVersion: {ns}.example.com/v1\nkind: Thing\nmetadata: {name: s}\nspec:\n  a: x\n  a: z\n  b: x\n", YAML),
        Step("POST", THINGS, thing({"a": "x"})),
        Step("PATCH", THINGS + "/t?fieldValidation=Strict", {"spec": {"zz": 1}}, APPLY_PATCH), Step("PATCH", THINGS + "/t?fieldValidation=Strict&fieldManager=m", thing({"zz": 1}), APPLY_PATCH),
    ),
]  # fmt: skip


def _with(made: Json, **spec: Any) -> Json:
    """A definition with other fields of its spec."""
    return {**made, "spec": {**made["spec"], **spec}}


def _protected(name: str, annotation: str | None = None) -> Json:
    made = definition()
    notes = {} if annotation is None else {"annotations": {"api-approved.kubernetes.io": annotation}}
    group = f"{{ns}}{name}.k8s.io"
    return {
        **made,
        "metadata": {"name": f"things.{group}", **notes},
        "spec": {**made["spec"], "group": group},
    }


def _names(**names: Any) -> Json:
    made = definition()
    return _with(made, names={**made["spec"]["names"], **names})


ONE = definition()["spec"]["versions"][0]
ITEM = {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}
WEBHOOK = {"conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/x"}}
DEFINITION_CASES = [
    _refused("groups that need an approval", _protected("a"), _protected("b", ""), _protected("e", "nonsense")),
    _refused("versions", _with(definition(), versions=[]), _with(definition(), versions=[{**ONE, "storage": False}]), _with(definition(), versions=[ONE, {**ONE, "name": "v2"}]), _with(definition(), versions=[ONE, {**ONE, "storage": False}]), _with(definition(), versions=[{**ONE, "name": "V_1"}]), _with(definition(), versions=[{**ONE, "schema": None}])),
    _refused("schemas that are not structural",
        definition(root={"properties": {}}), definition(root={"type": "string"}), definition({"a": {}}), definition({"a": {"type": "array"}}), definition({"a": {"type": "nonsense"}}), definition({"a": {"type": "object", "properties": {"b": TEXT}, "additionalProperties": TEXT}}),
        definition({"a": {"x-kubernetes-preserve-unknown-fields": False, "type": "object"}}), definition({"a": {"type": "string", "anyOf": [{"type": "string"}]}}),
        definition({"a": {"type": "object", "not": {"properties": {"b": TEXT}}}}), definition({"a": {"type": "array", "items": [TEXT]}}), definition({"a": {"$ref": "x"}}), definition({"a": {"type": "object", "x-kubernetes-embedded-resource": True, "nullable": True}}),
        definition({"a": {"type": "string", "uniqueItems": True}}), definition({"a": {"type": "array", "items": TEXT, "uniqueItems": True}}),
    ),
    _refused("defaults that do not fit", definition({"a": {"type": "string", "default": 1}}), definition({"a": {"type": "integer", "maximum": 3, "default": 5}}), definition({"a": {"type": "object", "default": {"b": 1}, "properties": {"c": TEXT}}})),
    _refused("lists", definition({"a": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "nonsense"}}), definition({"a": {"type": "array", "items": ITEM, "x-kubernetes-list-type": "map"}}), definition({"a": {"type": "array", "items": ITEM, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["b"]}}),
        definition({"a": {"type": "array", "items": {"type": "object", "properties": {"a": TEXT}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}}), definition({"a": {"type": "array", "items": ITEM, "x-kubernetes-list-type": "set"}}), definition({"a": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}}),
        definition({"a": {"type": "string", "x-kubernetes-list-type": "set"}}), definition({"a": {"type": "array", "items": ITEM, "x-kubernetes-list-map-keys": ["a"]}}), definition({"a": {"type": "object", "x-kubernetes-map-type": "nonsense"}}), definition({"a": {"type": "array", "items": TEXT, "x-kubernetes-map-type": "atomic"}}),
    ),
    _refused("columns", *(definition(additionalPrinterColumns=[column]) for column in ({"name": "A", "type": "string"}, {"name": "A", "type": "nonsense", "jsonPath": ".spec"}, {"type": "string", "jsonPath": ".spec"}, {"name": "A", "type": "string", "jsonPath": "spec[("}, {"name": "A", "type": "string", "jsonPath": "{.spec}"}, {"name": "A", "type": "string", "jsonPath": "spec.x"}, {"name": "A", "jsonPath": ".spec", "type": "integer", "format": "nonsense"}))),
    _refused("subresources", definition(subresources={"scale": {}}), definition(subresources={"scale": {"specReplicasPath": ".status.x", "statusReplicasPath": ".spec.x", "labelSelectorPath": ".metadata.x"}}), definition(subresources={"scale": {"specReplicasPath": "spec.x", "statusReplicasPath": ".status[0]"}})),
    _refused("selectable fields", definition({"a": TEXT, "o": FREE}, selectableFields=[{"jsonPath": ".spec.none"}]), definition({"a": TEXT, "o": FREE}, selectableFields=[{"jsonPath": ".spec.o"}]), definition({"a": TEXT}, selectableFields=[{"jsonPath": "spec.a"}]), definition({"a": TEXT}, selectableFields=[{"jsonPath": ".spec.a"}, {"jsonPath": ".spec.a"}]), definition({"a": TEXT}, selectableFields=[{}]), definition({"a": TEXT}, selectableFields=[{"jsonPath": ".metadata.name"}])),
    _refused("conversion", _with(definition(), conversion={"strategy": "Webhook"}), _with(definition(), conversion={"strategy": "None", "webhook": WEBHOOK}), _with(definition(), conversion={"strategy": "Nonsense"}), _with(definition(), conversion={"strategy": "Webhook", "webhook": {**WEBHOOK, "conversionReviewVersions": []}})),
    _refused("names", _names(plural="Things"), _names(kind="thing_s"), _names(singular="A_b"), _names(listKind="Thing"), _names(shortNames=["A_b"]), _names(categories=["A_b"]), _names(kind=""), _with(definition(), scope="Nonsense"), _with(definition(), group=""), _with(definition(), group="nodots"), _with(definition(), scope="")),
    Case("definitions: updates", (
        Step("QUIET", DEFINITIONS, definition({"a": TEXT})),
        Step("WAIT", GROUP + "/v1"),
        Step("PATCH", DEFINITION, {"spec": {"scope": "Cluster"}}, MERGE_PATCH),
        Step("PATCH", DEFINITION, {"spec": {"group": "other.example.com"}}, MERGE_PATCH),
        Step("PATCH", DEFINITION, {"spec": {"names": {"kind": "Other"}}}, MERGE_PATCH),
        Step("PATCH", DEFINITION, {"spec": {"names": {"plural": "others"}}}, MERGE_PATCH),
        Step("PATCH", DEFINITION, {"spec": {"versions": [{**ONE, "name": "v2"}]}}, MERGE_PATCH),
    )),
]  # fmt: skip


def _ruled(*rules: str | Json, **schema: Any) -> Json:
    """A definition whose spec has rules; texts are rules without a message."""
    fields = {
        "a": NUMBER,
        "b": NUMBER,
        "s": {"type": "string", "maxLength": 50},
        "list": {"type": "array", "maxItems": 10, "items": NUMBER},
        "m": {
            "type": "object",
            "maxProperties": 5,
            "additionalProperties": {"type": "string", "maxLength": 10},
        },
    }
    made = [{"rule": each} if isinstance(each, str) else each for each in rules]
    spec = {"type": "object", "properties": {**fields, **schema}, "x-kubernetes-validations": made}
    return definition(root={"type": "object", "properties": {"spec": spec, "status": FREE}})


def _rule(rule: str, **more: Any) -> Json:
    return {"rule": rule, **more}


def _changed(*specs: Json) -> tuple[Step, ...]:
    return tuple(Step("PATCH", THINGS + "/t0", {"spec": spec}, MERGE_PATCH) for spec in specs)


UNBOUND: Json = {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}
RULE_CASES = [
    _things("rules", _ruled(_rule("self.a <= self.b"), _rule("self.s != 'bad'", message="s must not be bad"), _rule("self.a < 100", messageExpression="'a is too large for ' + self.s", fieldPath=".a", reason="FieldValueForbidden"), _rule("has(self.m) ? self.m.all(k, k.size() < 3) : true", reason="FieldValueRequired")),
        *_create({"a": 1, "b": 2, "s": "x"}, {"a": 3, "b": 2, "s": "bad"}, {"a": 100, "b": 200, "s": "x"}, {"a": 1, "b": 2, "s": "x", "m": {"long": "y"}}, {"a": "x", "b": 2}, {"a": 1}),
    ),
    _things("rules of changes", _ruled(_rule("self.a >= oldSelf.a", message="a must not shrink"), _rule("!oldSelf.hasValue() || self.b == oldSelf.value().b", optionalOldSelf=True, message="b never changes"), s={"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}),
        *_create({"a": 5, "b": 1, "s": "x"}), *_changed({"a": 6}, {"a": 4}, {"b": 2}, {"s": "y"}, {"s": None}, {"s": "z"}, {"a": 7}),
    ),
    _things("rules of items and maps", definition({"list": {"type": "array", "maxItems": 5, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string", "maxLength": 9}, "v": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]}}, "x-kubernetes-validations": [{"rule": "self.v < 10", "message": "too large"}]}}, "m": {"type": "object", "maxProperties": 3, "additionalProperties": {"type": "string", "maxLength": 9, "x-kubernetes-validations": [{"rule": "self.startsWith('a')"}]}}}),
        *_create({"list": [{"k": "x", "v": 1}, {"k": "y", "v": 2}], "m": {"one": "abc"}}, {"list": [{"k": "x", "v": 1}, {"k": "y", "v": 20}]}, {"m": {"one": "abc", "two": "xyz"}}),
        *_changed({"list": [{"k": "y", "v": 1}, {"k": "x", "v": 1}]}, {"list": [{"k": "y", "v": 3}, {"k": "z", "v": 0}]}),
    ),
    _things("rules of types", _ruled(_rule("!has(self.t) || self.t > timestamp('2026-01-01T00:00:00Z')"), _rule("!has(self.d) || self.d < duration('1h')"), _rule("!has(self.n) || self.n < 2.5"), _rule("!has(self.ios) || (type(self.ios) == int ? self.ios > 1 : self.ios == 'x')"), _rule("!has(self.by) || self.by == b'hello'"), _rule("!has(self.x__dash__y) || self.x__dash__y"), _rule("!has(self.__if__) || self.__if__ == 'z'"),
        t={"type": "string", "format": "date-time"}, d={"type": "string", "format": "duration"}, n={"type": "number"}, ios={"x-kubernetes-int-or-string": True}, by={"type": "string", "format": "byte"}, **{"x-y": {"type": "boolean"}, "if": {"type": "string"}}),
        *_create({"t": "2026-05-01T00:00:00Z", "d": "5m", "n": 2, "ios": 2, "by": "aGVsbG8=", "x-y": True, "if": "z"}, {"t": "2025-05-01T00:00:00Z"}, {"d": "2h"}, {"n": 3}, {"ios": "y"}, {"ios": 0}, {"by": "aGVsbA=="}, {"x-y": False}, {"if": "a"}),
    ),
    _things("rules that fail or cost too much", _ruled(_rule("self.list[5] == 1"), _rule("self.m['x'] == 'y'", message="m.x must be y")),
        *_create({"list": [1, 2], "m": {"x": "y"}}, {"list": [0, 0, 0, 0, 0, 1], "m": {}}, {"list": [0, 0, 0, 0, 0, 1], "m": {"x": "y"}}),
    ),
    _things("rules that cost too much", _ruled(_rule("self.u.all(x, self.u.all(y, x + y >= 0))"), u={"type": "array", "maxItems": 1000, "items": {"type": "integer", "maximum": 100}}), *_create({"u": [1, 2]}, {"u": [1] * 1000})),
    _things("finalizers", definition(), *(Step("POST", THINGS, thing({}, f"t{number}") | {"metadata": {"name": f"t{number}", "finalizers": [name]}}) for number, name in enumerate(("plain", "example.com/full", "bad name")))),
    _things("applied as YAML that begins like JSON", definition({"a": TEXT}), Step("PATCH", THINGS + "/t?fieldManager=one", b'{"apiVersion": "{ns}.example.com/v1", "kind": "Thing", "metadata": {"name": "t",}, "spec": {"a": "x",},}', APPLY_PATCH)),
    _things("rules of metadata", definition(root={"type": "object", "properties": {"spec": FREE}, "x-kubernetes-validations": [{"rule": "self.metadata.name.startsWith('t')"}, {"rule": "self.kind == 'Thing'"}]}),
        *_create({"a": 1}), Step("POST", THINGS, thing({}, "other")),
    ),
    _refused("rules that make no sense", _ruled("self.a"), _ruled(""), _ruled(_rule("self.a == 1", messageExpression="self.a")), _ruled(_rule("self.a == 1", message="a\nb")), _ruled(_rule("self.a == 1", fieldPath=".none")), _ruled(_rule("self.a == 1", reason="Nonsense")),
        _ruled("self.a == oldSelf.a", list={"type": "array", "maxItems": 3, "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > oldSelf"}]}}), _ruled(_rule("self.a == 1", optionalOldSelf=True)),
    ),
    _refused("rules that cost too much", _ruled("self.u.all(x, x.all(y, self.u.all(z, z.all(w, w == y))))", u=UNBOUND), _ruled("self.u.all(x, x.all(y, y == y))", u=UNBOUND)),
]  # fmt: skip

MAPS, SECRETS = "/api/v1/namespaces/{ns}/configmaps", "/api/v1/namespaces/{ns}/secrets"
EPHEMERAL = PODS + "/p/ephemeralcontainers"


def _new(path: str, *bodies: Json) -> tuple[Step, ...]:
    return tuple(
        Step("POST", path, {"metadata": {"name": f"m{number}"}, **body}) for number, body in enumerate(bodies)
    )


def _merge(path: str, *bodies: Json) -> tuple[Step, ...]:
    return tuple(Step("PATCH", path, body, MERGE_PATCH) for body in bodies)


def _debug(*containers: Json) -> Step:
    return Step("PATCH", EPHEMERAL, {"spec": {"ephemeralContainers": [*containers]}}, STRATEGIC_PATCH)


def _resize(resources: Json) -> Step:
    body = {"spec": {"containers": [{"name": "c", "resources": resources}]}}
    return Step("PATCH", PODS + "/p/resize", body, STRATEGIC_PATCH)


CORE_CASES = [
    Case("config maps: keys", _new(MAPS, {"data": {"": "x"}}, {"data": {"a b": "x"}}, {"data": {"..a": "x"}}, {"data": {".": "x"}}, {"data": {"k" * 254: "x"}}, {"data": {"a": "x"}, "binaryData": {"a": "eA=="}}, {"binaryData": {"a/b": "eA=="}}, {"data": {"a": "x" * 700_000}, "binaryData": {"b": "eHh4" * 150_000}})),
    Case("config maps: immutable", (
        *_new(MAPS, {"data": {"a": "x"}}),
        *_merge(MAPS + "/m0", {"immutable": True}, {"data": {"a": "y"}}, {"immutable": None}, {"immutable": False, "data": {"b": "z"}, "binaryData": {"c": "eA=="}}, {"data": {"a b": "z"}}, {"metadata": {"labels": {"a": "b"}}}),
    )),
    Case("secrets: keys", _new(SECRETS, {"data": {"": "eA=="}}, {"stringData": {"a b": "x"}}, {"data": {"..": "eA=="}}, {"stringData": {"a": "x" * 1_048_577}}, {"stringData": {"a": "x" * 1_048_576}})),
    Case("secrets: types", _new(SECRETS, *({"type": f"kubernetes.io/{kind}", "stringData": given} for kind, given in (("tls", {}), ("tls", {"tls.crt": "", "tls.key": ""}), ("basic-auth", {}), ("basic-auth", {"password": ""}), ("ssh-auth", {"ssh-privatekey": ""}), ("dockercfg", {}), ("dockerconfigjson", {".dockerconfigjson": "{}"}), ("service-account-token", {}))))),
    Case("secrets: immutable", (
        *_new(SECRETS, {"stringData": {"a": "x"}, "immutable": True}),
        *_merge(SECRETS + "/m0", {"data": {"a": "eQ=="}}, {"immutable": None}, {"type": "example.com/other"}, {"stringData": {"a": "x"}}, {"metadata": {"labels": {"a": "b"}}}),
    )),
    Case("pods: sysctls", tuple(
        Step("POST", PODS + "?dryRun=All", pod(securityContext={"sysctls": [{"name": name, "value": "1"} for name in names]}))
        for names in (("kernel.shm_rmid_forced", "net/ipv4/tcp_syncookies"), ("foo-", "kernel.shmmax", "safe-and-unsafe", "bar.."), ("a", "a"), ("",), ("a" * 254,))
    )),
    Case("pods: resize", (
        Step("POST", PODS, pod(container={"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "example.com/gpu": "1"}}})),
        Step("GET", PODS + "/p/resize"),
        *(_resize({"requests": requests}) for requests in ({"cpu": "2"}, {"cpu": "3"}, {"memory": "1Gi"}, {"ephemeral-storage": "1Gi"})),
        _resize({"limits": {"cpu": "4"}}),
        _resize({"limits": {"example.com/gpu": "2"}, "requests": {"example.com/gpu": "2"}}),
        Step("PATCH", PODS + "/p/resize", {"spec": {"containers": [{"name": "other", "image": "i"}]}}, STRATEGIC_PATCH),
        Step("PATCH", PODS + "/p/resize", {"spec": {"containers": [{"name": "c", "image": "i"}]}}, MERGE_PATCH),
        Step("PATCH", PODS + "/p/status", {"status": {"containerStatuses": [{"name": "c", "image": "i", "imageID": "i", "ready": True, "restartCount": 0, "state": {"running": {}}}]}}, MERGE_PATCH),
        _resize({"limits": {"cpu": "5"}}),
        Step("PATCH", PODS + "/p", {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "5"}}}]}}, STRATEGIC_PATCH),
        Step("GET", PODS + "/p"),
    )),
    Case("pods: ephemeral containers", (
        Step("POST", PODS, pod()),
        Step("GET", EPHEMERAL),
        _debug({"name": "d", "image": "i"}),
        _debug({"name": "e", "image": "i", "targetContainerName": "c"}),
        _debug({"name": "d", "image": "other"}),
        _debug({"name": "c", "image": "i"}),
        _debug({"name": "f", "image": "i", "targetContainerName": "none"}),
        _debug({"name": "f", "image": "i", "resources": {"requests": {"cpu": "1"}}}),
        _debug({"name": "f", "image": "i", "ports": [{"containerPort": 1}]}),
        _debug({"name": "f", "image": "i", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}),
        _debug({"name": "f", "image": "i", "livenessProbe": {"httpGet": {"path": "/", "port": 1}}}),
        _debug({"name": "f"}),
        _debug({"image": "i"}),
        Step("PATCH", EPHEMERAL, {"spec": {"ephemeralContainers": []}}, MERGE_PATCH),
        Step("PATCH", PODS + "/p", {"spec": {"ephemeralContainers": [{"name": "g", "image": "i"}]}}, STRATEGIC_PATCH),
        Step("POST", PODS, pod("q", ephemeralContainers=[{"name": "g", "image": "i"}])),
        Step("GET", PODS + "/p"),
    )),
    Case("autoscalers: defaults and status", (
        Step("POST", AUTOSCALERS.format("v2"), {"metadata": {"name": "a"}, "spec": AUTOSCALED, "status": {"desiredReplicas": 7}}),
        Step("GET", AUTOSCALERS.format("v1") + "/a"),
        Step("POST", AUTOSCALERS.format("v1"), {"metadata": {"name": "b"}, "spec": {**AUTOSCALED, "targetCPUUtilizationPercentage": 50}}),
        Step("GET", AUTOSCALERS.format("v2") + "/b"),
        Step("PATCH", AUTOSCALERS.format("v2") + "/a", {"spec": {"minReplicas": 2}, "status": {"desiredReplicas": 9}}, MERGE_PATCH),
        Step("PATCH", AUTOSCALERS.format("v2") + "/a", {"spec": {"minReplicas": None}}, MERGE_PATCH),
        Step("PATCH", AUTOSCALERS.format("v2") + "/a/status", {"status": {"desiredReplicas": 2, "currentReplicas": 1}, "spec": {"maxReplicas": 9}}, MERGE_PATCH),
        Step("GET", AUTOSCALERS.format("v2") + "/a"),
        Step("POST", AUTOSCALERS.format("v2"), {"metadata": {"name": "c"}, "spec": {}}),
        Step("POST", AUTOSCALERS.format("v2"), {"metadata": {"name": "c"}, "spec": {**AUTOSCALED, "minReplicas": -1}}),
        Step("POST", AUTOSCALERS.format("v2"), {"metadata": {"name": "c"}, "spec": {**AUTOSCALED, "minReplicas": 4}}),
    )),
]  # fmt: skip


def machinery_cases() -> list[Case]:
    return WIRE_CASES + MORE_WIRE_CASES + THING_CASES + DEFINITION_CASES + RULE_CASES + CORE_CASES
