"""Manifests as plain data, and what explaining a pod on them gives."""

from __future__ import annotations

import io
import json

from stowplan.api.manifests import read
from stowplan.api.templates import find_target
from stowplan.config import load
from stowplan.explain.explainer import Explainer
from stowplan.framework.registry import Registry

REGISTRY = Registry.installed()
V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
ZONE = "topology.kubernetes.io/zone"


def node(name, *, cpu="4", memory="8Gi", zone="a", taints=(), labels=None, **spec):
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, ZONE: zone} | (labels or {})},
        "spec": {"taints": list(taints), **spec},
        "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "110"}},
    }


def pod(
    name, *, on="", cpu="1", memory="1Gi", namespace=None, labels=None, status=None, metadata=None, **spec
):
    named = {"name": name, "labels": labels or {}} | ({"namespace": namespace} if namespace else {})
    resources = {"requests": {"cpu": cpu, "memory": memory}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": named | (metadata or {}),
        "spec": {"nodeName": on, "containers": [{"name": "c", "image": "i", "resources": resources}]} | spec,
        "status": status or {},
    }


def priority_class(name, value, **fields):
    meta = {"name": name}
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": meta,
        "value": value,
    } | fields


def workload(kind, name, *, labels=None, group="apps", pod_spec=None, **spec):
    labels = labels or {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod_spec or pod("x")["spec"] | {"nodeName": ""}}
    return {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": template} | spec,
    }


def manifests_of(*objects, namespace="default"):
    """Read as a list from standard input, and faultless."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode()
    found = read(["-"], io.BytesIO(text), namespace)
    assert not found.faults
    return found


def explain(wanted, *objects, config=None, node_name=None, seed=None):
    """The explanation of the last of the pods in `wanted`, separated by spaces."""
    manifests = manifests_of(*objects)
    loaded = load(V1 | config, REGISTRY).config if config else None
    explainer = Explainer(manifests, loaded, registry=REGISTRY, seed=seed)
    return [explainer.explain(find_target(manifests, each), node_name) for each in wanted.split()][-1]
