"""The definition of NodeResourceTopology on a real API server."""

from __future__ import annotations

from custom_objects import install_kind

from stowplan.plugins.node_resource_topologies import NodeResourceTopology


def test_the_definition_is_accepted_and_objects_are_kept_whole(control_plane):
    install_kind(control_plane, NodeResourceTopology)
    resource = {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "3500m"}
    zone = {
        "name": "node-0",
        "type": "Node",
        "costs": [{"name": "node-0", "value": 10}],
        "resources": [resource],
    }
    item = {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": "numa-test"},
        "topologyPolicies": ["SingleNUMANodePodLevel"],
        "attributes": [{"name": "topologyManagerScope", "value": "pod"}],
        "zones": [zone],
    }
    path = NodeResourceTopology.definition.path
    control_plane.request("POST", path, item)
    found = control_plane.request("GET", f"{path}/numa-test")
    assert found["zones"][0].items() >= zone.items()
