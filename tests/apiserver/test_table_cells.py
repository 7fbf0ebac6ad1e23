"""What `kubectl get` shows of kinds whose columns are made up from several fields, as kube-apiserver does."""

from __future__ import annotations

from typing import Any

import pytest
from api_staging import Staged

Json = dict[str, Any]

CORE, NETWORK = "/api/v1/namespaces/default", "/apis/networking.k8s.io/v1"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
SCALERS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
HARD = {"pods": "3", "limits.cpu": "2", "requests.memory": "1Gi", "cpu": "1"}
USED = {"pods": "1", "limits.cpu": "500m", "requests.memory": "0", "cpu": "0"}
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}


def resource(name: str, **target: Any) -> Json:
    return {"type": "Resource", "resource": {"name": name, "target": target}}


CPU = resource("cpu", type="Utilization", averageUtilization=50)
MEMORY = resource("memory", type="AverageValue", averageValue="1Gi")
MEASURED = [
    {
        "type": "Resource",
        "resource": {"name": "cpu", "current": {"averageUtilization": 42, "averageValue": "1"}},
    },
    {"type": "Resource", "resource": {"name": "memory", "current": {"averageValue": "512Mi"}}},
]
ADDRESSES = [{"ip": f"10.0.0.{number}"} for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("path", "body", "cells"),
    [
        (f"{CORE}/endpoints", {}, ["<none>"]),
        (
            f"{CORE}/endpoints",
            {
                "subsets": [
                    {
                        "addresses": ADDRESSES,
                        "notReadyAddresses": [{"ip": "10.0.0.9"}],
                        "ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}],
                    }
                ]
            },
            ["10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 3 more..."],
        ),
        (f"{CORE}/endpoints", {"subsets": [{"addresses": ADDRESSES[:1]}]}, ["10.0.0.1"]),
        (SLICES, {"addressType": "IPv4", "endpoints": [], "ports": []}, ["IPv4", "<unset>", "<unset>"]),
        (
            SLICES,
            {
                "addressType": "IPv4",
                "endpoints": [{"addresses": [f"10.0.0.{number}"]} for number in range(1, 6)],
                "ports": [
                    {"port": 80, "name": "a"},
                    {"name": "b"},
                    {"port": 82, "name": "c"},
                    {"port": 83, "name": "d"},
                ],
            },
            ["IPv4", "80,b,82 + 1 more...", "10.0.0.1,10.0.0.2,10.0.0.3 + 2 more..."],
        ),
        (
            f"{CORE}/resourcequotas",
            {"spec": {"hard": HARD}, "status": {"hard": HARD, "used": USED}},
            ["cpu: 0/1, pods: 1/3, requests.memory: 0/1Gi", "limits.cpu: 500m/2"],
        ),
        (f"{CORE}/resourcequotas", {"spec": {"hard": HARD}}, ["", ""]),
        (
            f"{NETWORK}/ingressclasses",
            {"spec": {"controller": "example.com/c"}},
            ["example.com/c", "<none>"],
        ),
        (
            f"{NETWORK}/ingressclasses",
            {
                "spec": {
                    "controller": "example.com/c",
                    "parameters": {"apiGroup": "g.example", "kind": "K", "name": "n"},
                }
            },
            ["example.com/c", "K.g.example/n"],
        ),
        (
            f"{NETWORK}/namespaces/default/ingresses",
            {
                "spec": {
                    "ingressClassName": "ic",
                    "tls": [{"hosts": ["a"]}],
                    "rules": [{"host": f"{letter}.example"} for letter in "abcd"],
                }
            },
            ["ic", "a.example,b.example,c.example + 1 more...", "", "80, 443"],
        ),
        (
            f"{NETWORK}/namespaces/default/ingresses",
            {
                "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}},
                "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}, {"hostname": "h.example"}]}},
            },
            ["<none>", "*", "1.2.3.4,h.example", "80"],
        ),
        (
            f"{NETWORK}/namespaces/default/networkpolicies",
            {
                "spec": {
                    "podSelector": {
                        "matchLabels": {"b": "2", "a": "1"},
                        "matchExpressions": [{"key": "z", "operator": "In", "values": ["y", "x"]}],
                    }
                }
            },
            ["a=1,b=2,z in (x,y)"],
        ),
        (f"{NETWORK}/namespaces/default/networkpolicies", {"spec": {"podSelector": {}}}, ["<none>"]),
        (
            SCALERS,
            {"spec": {"scaleTargetRef": TARGET, "minReplicas": 1, "maxReplicas": 5, "metrics": [CPU]}},
            ["Deployment/d", "cpu: <unknown>/50%", "1", 5, 0],
        ),
        (
            SCALERS,
            {
                "spec": {
                    "scaleTargetRef": TARGET,
                    "minReplicas": 2,
                    "maxReplicas": 5,
                    "metrics": [CPU, MEMORY, resource("cpu", type="Utilization", averageUtilization=70)],
                },
                "status": {"currentReplicas": 3, "desiredReplicas": 3, "currentMetrics": MEASURED},
            },
            ["Deployment/d", "cpu: 42%/50%, memory: 512Mi/1Gi + 1 more...", "2", 5, 3],
        ),
        (
            "/apis/apps/v1/namespaces/default/controllerrevisions",
            {
                "metadata": {
                    "ownerReferences": [
                        {
                            "apiVersion": "apps/v1",
                            "kind": "DaemonSet",
                            "name": "d",
                            "uid": "u",
                            "controller": True,
                        }
                    ]
                },
                "data": {},
                "revision": 3,
            },
            ["daemonset.apps/d", 3],
        ),
        (
            "/apis/storage.k8s.io/v1/volumeattachments",
            {
                "spec": {
                    "attacher": "x.example",
                    "nodeName": "n",
                    "source": {"persistentVolumeName": "pv"},
                }
            },
            ["x.example", "pv", "n", False],
        ),
    ],
)
async def test_cells(api: Staged, path: str, body: Json, cells: list[Any]) -> None:
    meta = {**body.get("metadata", {}), "name": "it"}
    status, said = await api("POST", path, {**body, "metadata": meta})
    assert status == 201, said
    if "status" in body:
        status, said = await api("PUT", f"{path}/it/status", {**body, "metadata": meta})
        assert status == 200, said
    table = (await api("GET", path, accept=TABLE))[1]
    (row,) = [each["cells"] for each in table["rows"] if each["cells"][0] == "it"]
    assert row[1:-1] == cells
