"""Cases of the machinery that all kinds share: bodies, options, selectors, pages, and custom resources."""

# ruff: noqa: E501  one case a line
from __future__ import annotations

from typing import Any

from conformance.conformance_extra import DEPLOYMENT, DEPLOYMENTS, JOB, JOBS, NODES, PODS, pod
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
        Step("GET", ADDRESSES + "/192.168.77.1", accept=TABLE),
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


def machinery_cases() -> list[Case]:
    return WIRE_CASES + MORE_WIRE_CASES
