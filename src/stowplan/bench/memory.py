"""Measures the memory of a cluster as an API server describes it: nodes with images, pods of 5 to 6 KB."""

from __future__ import annotations

import gc
import time
from typing import Any

import msgspec

from stowplan.api.meta import decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.bench.decisions import resident_bytes
from stowplan.cluster import Cluster

PODS_PER_OWNER = 25


class MemoryUse(msgspec.Struct, rename="camel"):
    nodes: int
    pods: int
    pod_bytes: int
    """Bytes of JSON, on average."""
    rss_mb: float
    before_mb: float
    seconds: float


def measure_memory(nodes: int, pods: int) -> MemoryUse:
    cluster, before, began = Cluster(), resident_bytes(), time.perf_counter()
    for number in range(nodes):
        cluster.apply(decode(NodeObject, msgspec.json.encode(plain_node(number))))
    total = 0
    for number in range(pods):
        text = msgspec.json.encode(plain_pod(number, nodes))
        total += len(text)
        cluster.apply(Pod.decode(text))
    took = time.perf_counter() - began
    gc.collect()
    megabyte = 2**20
    return MemoryUse(
        nodes,
        pods,
        total // max(pods, 1),
        round(resident_bytes() / megabyte, 1),
        round(before / megabyte, 1),
        round(took, 1),
    )


def plain_node(number: int) -> dict[str, object]:
    images = [
        {
            "names": [
                f"registry.example/team/service-{image}@sha256:{image:064x}",
                f"registry.example/team/service-{image}:v1.{image}",
            ],
            "sizeBytes": 10_000_000 + image,
        }
        for image in range(number % 10, number % 10 + 50)
    ]
    amounts = {"cpu": "32", "memory": "128Gi", "ephemeral-storage": "500Gi", "pods": "110"}
    conditions = [
        {"type": kind, "status": "False", "lastHeartbeatTime": "2026-01-01T00:00:00Z", "reason": "Fine"}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"node-{number}",
            "uid": f"00000000-0000-4000-8000-{number:012d}",
            "labels": {
                "kubernetes.io/hostname": f"node-{number}",
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/zone": f"zone-{number % 3}",
                "node.kubernetes.io/instance-type": "large",
            },
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "spec": {"podCIDR": f"10.{number // 256 % 256}.{number % 256}.0/24"},
        "status": {"capacity": amounts, "allocatable": amounts, "images": images, "conditions": conditions},
    }


def plain_pod(number: int, nodes: int) -> dict[str, object]:
    owner = number // PODS_PER_OWNER
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"service-{owner}-7d4b9c6f5d-{number:05d}",
            "namespace": f"team-{owner % 40}",
            "uid": f"10000000-0000-4000-8000-{number:012d}",
            "resourceVersion": str(1_000_000 + number),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "app": f"service-{owner}",
                "pod-template-hash": "7d4b9c6f5d",
                "team": f"team-{owner % 40}",
            },
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"service-{owner}-7d4b9c6f5d",
                    "uid": f"20000000-0000-4000-8000-{owner:012d}",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": _managed_fields(),
        },
        "spec": _spec(number, owner, nodes),
        "status": _status(owner, number),
    }


def _spec(number: int, owner: int, nodes: int) -> dict[str, Any]:
    token = f"kube-api-access-{number:05d}"
    return {
        "nodeName": f"node-{number % nodes}",
        "schedulerName": "default-scheduler",
        "serviceAccountName": "default",
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "containers": [_container(name, owner, token) for name in ("main", "proxy")],
        "volumes": [
            {"name": token, "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
            {"name": "settings", "configMap": {"name": f"service-{owner}", "defaultMode": 420}},
        ],
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{key}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for key in ("not-ready", "unreachable")
        ],
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": {"app": f"service-{owner}"}},
                        },
                    }
                ]
            }
        },
    }


def _container(name: str, owner: int, token: str) -> dict[str, object]:
    return {
        "name": name,
        "image": f"registry.example/team/service-{owner % 60}:v1.{owner % 60}",
        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
        "env": [{"name": f"SETTING_{index}", "value": f"value-of-setting-{index}"} for index in range(12)],
        "resources": {
            "requests": {"cpu": f"{100 + owner % 7 * 50}m", "memory": "256Mi"},
            "limits": {"memory": "512Mi"},
        },
        "volumeMounts": [
            {"name": token, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True},
            {"name": "settings", "mountPath": "/etc/settings"},
        ],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8080}, "periodSeconds": 10},
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log",
    }


def _status(owner: int, number: int) -> dict[str, object]:
    times = {"lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "startTime": "2026-01-01T00:00:00Z",
        "hostIP": "10.0.0.1",
        "podIP": f"10.1.{number // 256 % 256}.{number % 256}",
        "qosClass": "Burstable",
        "conditions": [{"type": kind, "status": "True", **times} for kind in kinds],
        "containerStatuses": [
            {
                "name": name,
                "ready": True,
                "restartCount": 0,
                "image": f"registry.example/team/service-{owner % 60}:v1.{owner % 60}",
                "imageID": f"registry.example/team/service-{owner % 60}@sha256:{owner:064x}",
                "containerID": f"containerd://{number:064x}",
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }
            for name in ("main", "proxy")
        ],
    }


def _managed_fields() -> list[dict[str, object]]:
    fields: dict[str, object] = {
        f"f:part-{index}": {".": {}, "f:name": {}, "f:value": {}} for index in range(12)
    }
    return [
        {"manager": "controller", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:spec": fields}}
    ]
