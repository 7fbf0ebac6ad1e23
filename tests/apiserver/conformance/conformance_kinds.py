"""One small object of every family of kinds that the API server serves, and a change that each one takes."""

# ruff: noqa: E501  one case a line
from __future__ import annotations

from typing import Any, NamedTuple

Json = dict[str, Any]

CONTAINER: Json = {"name": "c", "image": "registry.example/app:1"}
TEMPLATE: Json = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [CONTAINER]}}
SELECTOR: Json = {"matchLabels": {"app": "x"}}
DEFINITION_VERSION: Json = {
    "name": "v1",
    "served": True,
    "storage": True,
    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
}


class Kind(NamedTuple):
    """`body` lacks the metadata; `change` is a merge patch that is allowed, `wrong` one of a wrong type."""

    root: str
    plural: str
    kind: str
    body: Json
    change: Json
    wrong: Json
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return self.root.removeprefix("/apis/").removeprefix("/api/")

    def collection(self) -> str:
        return (
            f"{self.root}/namespaces/{{ns}}/{self.plural}"
            if self.namespaced
            else f"{self.root}/{self.plural}"
        )

    def item(self, name: str = "{ns}-a") -> str:
        return f"{self.collection()}/{name}"

    def object(self, name: str = "{ns}-a", **metadata: Any) -> Json:
        meta = {"name": name, "labels": {"case": "{ns}"}, **metadata}
        return {"apiVersion": self.api_version, "kind": self.kind, "metadata": meta, **self.body}


LABELS: Json = {"metadata": {"labels": {"changed": "yes"}}}
KINDS = (
    Kind("/api/v1", "pods", "Pod", {"spec": {"containers": [CONTAINER]}}, {"spec": {"activeDeadlineSeconds": 60}}, {"spec": {"nodeName": 7}}),
    Kind("/api/v1", "nodes", "Node", {"status": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"}}}, {"spec": {"unschedulable": True}}, {"spec": {"unschedulable": "x"}}, False),
    Kind("/api/v1", "namespaces", "Namespace", {}, LABELS, {"metadata": {"labels": 3}}, False),
    Kind("/api/v1", "services", "Service", {"spec": {"clusterIP": "None", "selector": {"app": "x"}, "ports": [{"port": 80}]}}, {"spec": {"selector": {"app": "y"}}}, {"spec": {"ports": "x"}}),
    Kind("/api/v1", "configmaps", "ConfigMap", {"data": {"a": "b"}}, {"data": {"c": "d"}}, {"data": ["x"]}),
    Kind("/api/v1", "secrets", "Secret", {"stringData": {"a": "b"}}, {"data": {"c": "ZA=="}}, {"type": 4}),
    Kind("/api/v1", "serviceaccounts", "ServiceAccount", {}, {"automountServiceAccountToken": False}, {"automountServiceAccountToken": "x"}),
    Kind("/api/v1", "persistentvolumeclaims", "PersistentVolumeClaim", {"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "s", "resources": {"requests": {"storage": "1Gi"}}}}, LABELS, {"spec": {"volumeName": []}}),
    Kind("/api/v1", "persistentvolumes", "PersistentVolume", {"spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}}, LABELS, {"spec": {"capacity": "x"}}, False),
    Kind("/api/v1", "events", "Event", {"involvedObject": {"kind": "Pod", "name": "p", "namespace": "{ns}"}, "reason": "Tested", "message": "m", "type": "Normal", "source": {"component": "t"}}, {"count": 2}, {"count": "x"}),
    Kind("/api/v1", "replicationcontrollers", "ReplicationController", {"spec": {"template": TEMPLATE, "selector": {"app": "x"}}}, {"spec": {"replicas": 3}}, {"spec": {"replicas": "x"}}),
    Kind("/apis/apps/v1", "deployments", "Deployment", {"spec": {"selector": SELECTOR, "template": TEMPLATE}}, {"spec": {"replicas": 3}}, {"spec": {"replicas": "x"}}),
    Kind("/apis/apps/v1", "replicasets", "ReplicaSet", {"spec": {"selector": SELECTOR, "template": TEMPLATE}}, {"spec": {"replicas": 3}}, {"spec": {"replicas": True}}),
    Kind("/apis/apps/v1", "statefulsets", "StatefulSet", {"spec": {"serviceName": "s", "selector": SELECTOR, "template": TEMPLATE}}, {"spec": {"replicas": 3}}, {"spec": {"serviceName": 1}}),
    Kind("/apis/apps/v1", "daemonsets", "DaemonSet", {"spec": {"selector": SELECTOR, "template": TEMPLATE}}, {"spec": {"minReadySeconds": 3}}, {"spec": []}),
    Kind("/apis/batch/v1", "cronjobs", "CronJob", {"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}}}}}, {"spec": {"suspend": True}}, {"spec": {"suspend": 1}}),
    Kind("/apis/policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", {"spec": {"minAvailable": 1, "selector": SELECTOR}}, {"spec": {"minAvailable": 2}}, {"spec": {"minAvailable": []}}),
    Kind("/apis/scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", {"value": 5}, {"description": "d"}, {"value": "x"}, False),
    Kind("/apis/storage.k8s.io/v1", "storageclasses", "StorageClass", {"provisioner": "example.com/p"}, {"allowVolumeExpansion": True}, {"provisioner": {}}, False),
    Kind("/apis/storage.k8s.io/v1", "csidrivers", "CSIDriver", {"spec": {}}, {"spec": {"requiresRepublish": True}}, {"spec": {"attachRequired": 0}}, False),
    Kind("/apis/storage.k8s.io/v1", "csinodes", "CSINode", {"spec": {"drivers": []}}, LABELS, {"spec": {"drivers": {}}}, False),
    Kind("/apis/coordination.k8s.io/v1", "leases", "Lease", {"spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}}, {"spec": {"holderIdentity": "you"}}, {"spec": {"leaseDurationSeconds": "x"}}),
    Kind("/apis/events.k8s.io/v1", "events", "Event", {"regarding": {"kind": "Pod", "name": "p", "namespace": "{ns}"}, "reason": "Tested", "note": "m", "type": "Normal", "action": "Test", "reportingController": "example.com/t", "reportingInstance": "i", "eventTime": "2026-01-02T03:04:05.000006Z"}, LABELS, {"note": 1}),
    Kind("/apis/resource.k8s.io/v1", "resourceclaims", "ResourceClaim", {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "d"}}]}}}, LABELS, {"spec": {"devices": 1}}),
    Kind("/apis/resource.k8s.io/v1", "deviceclasses", "DeviceClass", {"spec": {}}, LABELS, {"spec": {"selectors": 1}}, False),
    Kind("/apis/rbac.authorization.k8s.io/v1", "roles", "Role", {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}, LABELS, {"rules": {}}),
    Kind("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding", {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}, "subjects": [{"kind": "User", "name": "u"}]}, LABELS, {"subjects": 3}, False),
)  # fmt: skip
