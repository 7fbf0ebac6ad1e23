"""What a cluster has from the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stowplan.apiserver.managed import Manager

if TYPE_CHECKING:
    from stowplan.apiserver.objects import Objects
    from stowplan.apiserver.resources import Resources

Json = dict[str, Any]

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
PRIORITY_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
MANAGER = Manager("kube-apiserver", "Update", "v1")


def fill(objects: Objects, resources: Resources) -> None:
    """Create what is not there yet."""
    for name in NAMESPACES:
        _create(objects, resources, "", "namespaces", "", {"metadata": {"name": name}, "spec": {}})
    for name, value in PRIORITY_CLASSES.items():
        body: Json = {"metadata": {"name": name}, "value": value}
        _create(objects, resources, "scheduling.k8s.io", "priorityclasses", "", body)
    service: Json = {
        "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443, "targetPort": 6443}]},
    }
    _create(objects, resources, "", "services", "default", service)


def _create(
    objects: Objects, resources: Resources, group: str, plural: str, namespace: str, body: Json
) -> None:
    resource = resources.find(group, "v1", plural)
    assert resource is not None
    if (namespace, body["metadata"]["name"]) in objects.collection(resource).records:
        return
    data, _ = resource.codec.in_form({"kind": resource.kind, "apiVersion": resource.group_version, **body})
    objects.create(resource, namespace, data, MANAGER._replace(api_version=resource.group_version))
