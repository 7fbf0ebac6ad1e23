"""Objects of every kind that a scheduler reads, changed at random: valid ones, odd ones and nonsense.

What of it an API server accepts is for it to say. No exponent is larger than 6,000: kube-apiserver expands them.
"""

# ruff: noqa: E501 (tables)

from __future__ import annotations

import copy
import random
from typing import Any, NamedTuple

Json = dict[str, Any]

QUANTITIES = (
    "0", "1", "+5", "007", "-1", "1n", "1u", "100m", "1.5", ".5", "1.", "1e3", "1E3", "12e-1", "1Ki", "1.5Gi", "1Ei",
    "8Ei", "9Ei", "1E", "9E", "10E", "1e18", "1e19", "1e400", "1e5000", "1e-5000", "5e4294967299", "0.0000000001",
    "9223372036854775807", "9223372036854775808", "9" * 30, "9" * 400, "1" + "0" * 60, "0." + "0" * 60 + "1",
    "1000001n", "123456789.123456789", "3e-10", "0e5000", "4611686018427387904", "999999999999999999999Ki",
)  # fmt: skip
NUMBERS = (0, 1, 2, 3, 100, -1, 65535, 65536, 2**31 - 1, -(2**31), 2**31, 2**53, 2**63 - 1, -(2**63))
TEXTS = (
    "", " ", "a", "A", "0", "-1", "1e5", "true", "null", "*", "..", "-", "a-", "a/b", "example.com/x", "kubernetes.io/x",
    "x" * 63, "x" * 253, "x" * 5000, "é", "日本語", "\U0001f600", "a\nb", "a\tb", "\\", '"', "%s%d", "{{.}}", "<&>",
    "\u0000", "\u2028", "\ufffd", "99999999999999999999", "9223372036854775807", "0x10", "1_0", "١", "In", "NotIn",
    "Exists", "DoesNotExist", "Gt", "Lt", "Equal", "NoSchedule", "NoExecute", "PreferNoSchedule", "Honor", "Ignore",
    "DoNotSchedule", "ScheduleAnyway", "Always", "Never", "OnFailure", "PreemptLowerPriority", "TCP", "UDP", "SCTP",
    "ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod", "Block", "Filesystem", "Immediate",
    "WaitForFirstConsumer", "ExactCount", "All", "kubernetes.io/hostname", "topology.kubernetes.io/zone", "zone-a",
    "metadata.name", "fuzz-0", "fuzz-1", "cpu", "memory", "pods", "hugepages-2Mi", "ephemeral-storage", "storage",
    "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-01:00", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456Z",
)  # fmt: skip


class Kind(NamedTuple):
    path: str
    """Of its collection in the namespace `fuzz`."""
    example: Json
    status: Json | None = None


def zone_term(**others: Any) -> Json:
    return {
        "matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-a"]}],
        **others,
    }


SELECTOR: Json = {
    "matchLabels": {"app": "web"},
    "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a", "b"]}],
}
AFFINITY_TERM: Json = {
    "labelSelector": SELECTOR,
    "topologyKey": "topology.kubernetes.io/zone",
    "namespaces": ["fuzz"],
    "namespaceSelector": {"matchLabels": {"team": "x"}},
    "matchLabelKeys": ["rev"],
}
RESOURCES: Json = {
    "requests": {"cpu": "100m", "memory": "64Mi", "ephemeral-storage": "1Gi", "example.com/widgets": "1"},
    "limits": {"cpu": "1", "memory": "128Mi", "example.com/widgets": "1"},
}

POD: Json = {
    "metadata": {
        "labels": {"app": "web", "tier": "c", "rev": "1"},
        "annotations": {"note": '{"a": [1, {"b": null}]}'},
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "u-1", "controller": True}
        ],
        "finalizers": ["example.com/keep"],
    },
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "registry.example.com/web:1",
                "resources": RESOURCES,
                "ports": [{"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1", "protocol": "TCP"}],
            },
            {"name": "other", "image": "other", "resources": {"requests": {"cpu": "10m"}}},
        ],
        "initContainers": [
            {"name": "first", "image": "init", "resources": {"requests": {"cpu": "2"}}},
            {
                "name": "side",
                "image": "side",
                "restartPolicy": "Always",
                "resources": {"requests": {"cpu": "20m", "memory": "1Mi"}},
            },
        ],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "claim-1", "readOnly": False}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "csi", "csi": {"driver": "csi.example.com"}},
            {
                "name": "own",
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "spec": {
                            "accessModes": ["ReadWriteOnce"],
                            "resources": {"requests": {"storage": "1Gi"}},
                        }
                    }
                },
            },
            {"name": "disk", "gcePersistentDisk": {"pdName": "pd-1", "readOnly": True}},
            {"name": "rbd", "rbd": {"monitors": ["m1"], "image": "i", "pool": "p"}},
            {
                "name": "iscsi",
                "iscsi": {"targetPortal": "10.0.0.1:3260", "iqn": "iqn.2001-04.com.example:x", "lun": 0},
            },
        ],
        "nodeSelector": {"disk": "ssd"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        zone_term(),
                        {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["none"]}]},
                        {"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["5"]}]},
                    ]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 10, "preference": zone_term()}
                ],
            },
            "podAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 5, "podAffinityTerm": AFFINITY_TERM}
                ]
            },
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [AFFINITY_TERM],
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 100, "podAffinityTerm": AFFINITY_TERM}
                ],
            },
        },
        "tolerations": [
            {"key": "only", "operator": "Equal", "value": "x", "effect": "NoSchedule"},
            {"key": "later", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},
        ],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": SELECTOR,
                "nodeAffinityPolicy": "Honor",
                "nodeTaintsPolicy": "Ignore",
                "matchLabelKeys": ["rev"],
            }
        ],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "claim-a"}],
        "schedulingGates": [{"name": "example.com/gate"}],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 30,
        "hostNetwork": False,
        "hostUsers": True,
        "resources": {"requests": {"cpu": "3", "memory": "1Gi"}},
    },
}
POD_STATUS: Json = {
    "phase": "Running",
    "nominatedNodeName": "fuzz-1",
    "startTime": "2026-01-01T00:00:00Z",
    "observedGeneration": 1,
    "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "later"},
    ],
    "containerStatuses": [
        {
            "name": "main",
            "image": "x",
            "imageID": "y",
            "ready": True,
            "restartCount": 1,
            "allocatedResources": {"cpu": "150m"},
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }
    ],
    "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "claim-a"}],
}
NODE: Json = {
    "metadata": {
        "labels": {"topology.kubernetes.io/zone": "zone-a", "kubernetes.io/hostname": "h", "size": "9"},
        "annotations": {"a": "b"},
    },
    "spec": {
        "taints": [{"key": "only", "value": "x", "effect": "NoSchedule"}],
        "unschedulable": False,
        "podCIDR": "10.1.0.0/24",
        "providerID": "x://y",
    },
}
NODE_STATUS: Json = {
    "capacity": {"cpu": "8", "memory": "16Gi", "pods": "110", "example.com/widgets": "3"},
    "allocatable": {
        "cpu": "8", "memory": "16Gi", "pods": "110", "example.com/widgets": "3", "hugepages-2Mi": "0",
        "ephemeral-storage": "100Gi",
    },
    "images": [{"names": ["registry.example.com/web:1", "web@sha256:1"], "sizeBytes": 100_000_000}],
    "conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "m"}],
    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    "nodeInfo": {
        "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeletVersion": "",
        "kubeProxyVersion": "", "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": "",
    },
    "declaredFeatures": ["GuaranteedQoSPodCPUResize"],
}  # fmt: skip
OPAQUE: Json = {
    "driver": "dra.example.com",
    "parameters": {"any": ["thing", None, {"deep": [[[[]]]]}], "n": 1},
}
REQUEST: Json = {
    "deviceClassName": "class-1",
    "selectors": [{"cel": {"expression": "device.driver == 'dra.example.com'"}}],
    "allocationMode": "ExactCount",
    "count": 1,
    "tolerations": [{"key": "k", "operator": "Exists"}],
    "capacity": {"requests": {"memory": "1Gi"}},
}
CLAIM: Json = {
    "spec": {
        "devices": {
            "requests": [
                {"name": "r1", "exactly": {**REQUEST, "adminAccess": False}},
                {"name": "r2", "firstAvailable": [{"name": "s1", **REQUEST}]},
            ],
            "constraints": [{"requests": ["r1"], "matchAttribute": "dra.example.com/model"}],
            "config": [{"requests": ["r1"], "opaque": OPAQUE}],
        }
    }
}
CLAIM_STATUS: Json = {
    "allocation": {
        "devices": {
            "results": [
                {
                    "request": "r1",
                    "driver": "dra.example.com",
                    "pool": "pool",
                    "device": "d0",
                    "adminAccess": False,
                }
            ],
            "config": [{"source": "FromClaim", "requests": ["r1"], "opaque": OPAQUE}],
        },
        "nodeSelector": {"nodeSelectorTerms": [zone_term()]},
        "allocationTimestamp": "2026-01-01T00:00:00Z",
    },
    "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
    "devices": [
        {
            "driver": "dra.example.com",
            "pool": "pool",
            "device": "d0",
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "r",
                    "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
            "data": {"k": [1, None, {}]},
            "networkData": {"interfaceName": "eth1", "ips": ["10.0.0.1/24"], "hardwareAddress": "aa:bb"},
        }
    ],
}
SLICE: Json = {
    "spec": {
        "driver": "dra.example.com",
        "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "fuzz-0",
        "devices": [
            {
                "name": "d0",
                "attributes": {
                    "model": {"string": "x"},
                    "n": {"int": 5},
                    "b": {"bool": True},
                    "v": {"version": "1.2.3"},
                },
                "capacity": {"memory": {"value": "16Gi"}},
            },
            {"name": "d1", "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
        ],
    }
}
POOLED_SLICE: Json = {
    "spec": {
        "driver": "dra.example.com",
        "pool": {"name": "pool-2", "generation": 1, "resourceSliceCount": 1},
        "nodeSelector": {"nodeSelectorTerms": [zone_term()]},
        "sharedCounters": [{"name": "set", "counters": {"units": {"value": "8"}}}],
    }
}
DEVICE_CLASS: Json = {
    "spec": {
        "selectors": [{"cel": {"expression": "device.attributes['dra.example.com'].model == 'x'"}}],
        "config": [{"opaque": OPAQUE}],
        "extendedResourceName": "example.com/fuzzed",
    }
}
PVC: Json = {
    "metadata": {"annotations": {"volume.kubernetes.io/selected-node": "fuzz-0"}},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}, "limits": {"storage": "2Gi"}},
        "storageClassName": "class-1",
        "volumeMode": "Filesystem",
        "volumeName": "pv-1",
        "selector": SELECTOR,
    },
}
PV: Json = {
    "metadata": {"labels": {"topology.kubernetes.io/zone": "zone-a"}},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "5Gi"},
        "storageClassName": "class-1",
        "volumeMode": "Filesystem",
        "csi": {"driver": "csi.example.com", "volumeHandle": "h"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [zone_term()]}},
        "claimRef": {"namespace": "fuzz", "name": "claim-1"},
        "persistentVolumeReclaimPolicy": "Retain",
    },
}
APIS, CORE, STORAGE = (
    "/apis/{}/namespaces/fuzz/{}",
    "/api/v1/namespaces/fuzz/{}",
    "/apis/storage.k8s.io/v1/{}",
)
DEVICES = "resource.k8s.io/v1"
TEMPLATE: Json = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}

KINDS: dict[str, Kind] = {
    "Pod": Kind(CORE.format("pods"), POD, POD_STATUS),
    "Node": Kind("/api/v1/nodes", NODE, NODE_STATUS),
    "ResourceClaim": Kind(APIS.format(DEVICES, "resourceclaims"), CLAIM, CLAIM_STATUS),
    "ResourceSlice": Kind(f"/apis/{DEVICES}/resourceslices", SLICE),
    "PooledSlice": Kind(f"/apis/{DEVICES}/resourceslices", POOLED_SLICE),
    "DeviceClass": Kind(f"/apis/{DEVICES}/deviceclasses", DEVICE_CLASS),
    "PersistentVolumeClaim": Kind(CORE.format("persistentvolumeclaims"), PVC, {
        "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "5Gi"}}),
    "PersistentVolume": Kind("/api/v1/persistentvolumes", PV, {"phase": "Available", "message": "m"}),
    "StorageClass": Kind(STORAGE.format("storageclasses"), {
        "provisioner": "csi.example.com",
        "volumeBindingMode": "WaitForFirstConsumer",
        "parameters": {"a": "b"},
        "allowedTopologies": [
            {"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": ["zone-a"]}]}],
    }),
    "CSINode": Kind(STORAGE.format("csinodes"), {
        "metadata": {"annotations": {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/gce-pd,x"}},
        "spec": {"drivers": [
            {"name": "csi.example.com", "nodeID": "n", "topologyKeys": ["zone"], "allocatable": {"count": 5}}]},
    }),
    "CSIDriver": Kind(STORAGE.format("csidrivers"), {"spec": {"storageCapacity": True, "attachRequired": False}}),
    "CSIStorageCapacity": Kind(APIS.format("storage.k8s.io/v1", "csistoragecapacities"), {
        "storageClassName": "class-1",
        "capacity": "10Gi",
        "maximumVolumeSize": "5Gi",
        "nodeTopology": {"matchLabels": {"topology.kubernetes.io/zone": "zone-a"}},
    }),
    "VolumeAttachment": Kind(STORAGE.format("volumeattachments"), {
        "spec": {"attacher": "csi.example.com", "nodeName": "fuzz-0", "source": {"persistentVolumeName": "pv-1"}}}),
    "PodDisruptionBudget": Kind(APIS.format("policy/v1", "poddisruptionbudgets"), {
        "spec": {"selector": SELECTOR, "minAvailable": 1, "unhealthyPodEvictionPolicy": "IfHealthyBudget"}},
        {"disruptionsAllowed": 1, "disruptedPods": {"p": "2026-01-01T00:00:00Z"}, "currentHealthy": 1,
         "desiredHealthy": 1, "expectedPods": 1}),
    "Service": Kind(CORE.format("services"), {
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}], "clusterIP": "None"}}),
    "ReplicaSet": Kind(APIS.format("apps/v1", "replicasets"), {
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "replicas": 1, "template": TEMPLATE}}),
    "StatefulSet": Kind(APIS.format("apps/v1", "statefulsets"), {
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "serviceName": "s", "template": TEMPLATE}}),
    "ReplicationController": Kind(CORE.format("replicationcontrollers"), {
        "spec": {"selector": {"app": "web"}, "replicas": 0, "template": TEMPLATE}}),
    "Namespace": Kind("/api/v1/namespaces", {"metadata": {"labels": {"team": "x"}}}),
    "PriorityClass": Kind("/apis/scheduling.k8s.io/v1/priorityclasses", {"value": 7, "preemptionPolicy": "Never"}),
}  # fmt: skip


class Mutator:
    """Draws everything from one generator, so that a seed tells it all."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def mutated(self, example: Json, times: int) -> Json:
        """A copy of an object in which so many things are different."""
        changed = copy.deepcopy(example)
        for _ in range(times):
            places = list(_places(changed))
            if places:
                self._change(*self.draw.choice(places))
        return changed

    def thinned(self, example: Json) -> Json:
        """A copy without most of what may be absent, since one wrong field hides all others."""
        thin = copy.deepcopy(example)
        for holder in (thin, thin.get("metadata", {}), thin.get("spec", {}), thin.get("status", {})):
            for key in list(holder):
                if key not in KEPT and self.draw.random() < 0.6:
                    del holder[key]
        return thin

    def _change(self, holder: Any, key: Any) -> None:
        value, chance = holder[key], self.draw.random()
        if chance < 0.08:
            holder[key] = None
        elif chance < 0.16:
            del holder[key]
        elif chance < 0.2:
            holder[key] = self._anything()
        elif isinstance(value, bool):
            holder[key] = not value
        elif isinstance(value, int):
            holder[key] = self.draw.choice(NUMBERS)
        elif isinstance(value, str):
            holder[key] = self.draw.choice(QUANTITIES if _is_amount(value) else TEXTS)
        elif isinstance(value, list):
            self._change_list(value)
        elif isinstance(value, dict):
            name = self.draw.choice((*TEXTS, *value))
            like = self.draw.choice(list(value.values())) if value else "x"
            value[name] = self.draw.choice(QUANTITIES) if _is_amount(like) else copy.deepcopy(like)

    def _change_list(self, value: list[Any]) -> None:
        chance = self.draw.random()
        if not value or chance < 0.2:
            value.clear()
        elif chance < 0.6:
            value.append(copy.deepcopy(self.draw.choice(value)))
        elif chance < 0.8:
            value.extend(copy.deepcopy(value) * self.draw.choice((1, 8, 40)))
        else:
            value.append(self._anything())

    def _anything(self) -> Any:
        return self.draw.choice(
            (*TEXTS, *NUMBERS, *QUANTITIES, True, False, [], {}, [[]], {"a": {"b": []}}, 1.5, 1e300)
        )


KEPT = ("metadata", "spec", "status", "containers", "driver", "pool", "devices", "provisioner", "accessModes", "capacity",
        "selector", "template", "drivers", "attacher", "nodeName", "source", "ports", "csi", "resources", "value",
        "storageClassName", "disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods",
        "automountServiceAccountToken")  # fmt: skip


def _places(value: Any) -> Any:
    """Everything in an object that can be something else, with what holds it."""
    if isinstance(value, dict | list):
        for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from _places(inner)


def _is_amount(value: Any) -> bool:
    return isinstance(value, str) and value[:1].isdigit() and len(value) < 8 and ":" not in value
