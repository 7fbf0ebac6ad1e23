"""Cases of the machinery that all kinds share: bodies, options, selectors, pages, and custom resources."""

# ruff: noqa: E501  one case a line
from __future__ import annotations

from typing import Any

from conformance.conformance_extra import DEPLOYMENT, DEPLOYMENTS, JOB, JOBS, NODES, PODS, pod
from conformance.conformance_steps import Case, Step
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


def machinery_cases() -> list[Case]:
    return WIRE_CASES
