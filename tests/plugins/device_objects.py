"""Claims, slices, classes, nodes and pods, written shortly, for the tests of device allocation."""

from __future__ import annotations

from typing import Any

from stowplan.api.kinds import object_of
from stowplan.api.meta import decode
from stowplan.api.pod import Pod
from stowplan.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from stowplan.cluster import Cluster, Node
from stowplan.plugins.devices.allocator import search
from stowplan.plugins.devices.claims import allocation_of, new_share_id
from stowplan.plugins.devices.pools import Offer

DRIVER = "gpu.example.com"
GPU = {"kind": "DeviceClass", "metadata": {"name": "gpu"}}


def node(name: str = "n1", labels: dict[str, str] | None = None, **allocatable: str) -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "status": {"allocatable": {"cpu": "8", "pods": "110", **allocatable}},
    }


def device(name: str, capacity: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A device; keywords that name no field of a device are attributes of it."""
    fields = {"taints", "consumesCounters", "bindsToNode", "bindingConditions", "bindingFailureConditions"}
    fields |= {"allowMultipleAllocations", "nodeName", "nodeSelector", "allNodes"}
    kinds = {bool: "bool", int: "int", str: "string"}
    return {
        "name": name,
        "attributes": {key: {kinds[type(value)]: value} for key, value in more.items() if key not in fields},
        "capacity": {
            key: value if isinstance(value, dict) else {"value": value}
            for key, value in (capacity or {}).items()
        },
        **{key: value for key, value in more.items() if key in fields},
    }


def a_slice(
    name: str,
    *devices: str | dict[str, Any],
    pool: str = "",
    driver: str = DRIVER,
    generation: int = 1,
    count: int = 1,
    **spec: Any,
) -> dict[str, Any]:
    """A slice of the pool of node n1, if nothing else is said."""
    scopes = {"nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"}
    if not scopes & spec.keys():
        spec["nodeName"] = "n1"
    pool = pool or spec.get("nodeName", "pool")
    return {
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            "devices": [device(each) if isinstance(each, str) else each for each in devices],
            **spec,
        },
    }


def details(count: int = 1, cls: str = "gpu", cel: str | None = None, **more: Any) -> dict[str, Any]:
    found = {"deviceClassName": cls, "allocationMode": "ExactCount", "count": count, **more}
    if found["allocationMode"] == "All":
        del found["count"]
    return found | ({"selectors": [{"cel": {"expression": cel}}]} if cel else {})


def ask(name: str = "r", count: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": details(count, **more)}


def ask_all(name: str = "r", **more: Any) -> dict[str, Any]:
    return ask(name, allocationMode="All", **more)


def ask_first(name: str, **alternatives: dict[str, Any]) -> dict[str, Any]:
    """A request with alternatives, by name."""
    return {"name": name, "firstAvailable": [{"name": key, **value} for key, value in alternatives.items()]}


def claim(*requests: dict[str, Any], name: str = "c", **more: Any) -> dict[str, Any]:
    """A claim; `status` and `metadata` are taken as they are, all else is part of spec.devices."""
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", **more.pop("metadata", {})}
    status = more.pop("status", {})
    spec = {"devices": {"requests": list(requests), **more}}
    return {"kind": "ResourceClaim", "metadata": metadata, "spec": spec, "status": status}


def held(*devices: str, name: str = "held", pool: str = "n1", **more: Any) -> dict[str, Any]:
    """A claim that holds devices already."""
    results = [{"request": "r", "driver": DRIVER, "pool": pool, "device": each, **more} for each in devices]
    return claim(name=name, status={"allocation": {"devices": {"results": results}}})


def selects(**labels: str) -> dict[str, Any]:
    expressions = [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]
    return {"nodeSelectorTerms": [{"matchExpressions": expressions}]}


def device_class(name: str, *expressions: str, **spec: Any) -> dict[str, Any]:
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": selectors, **spec}}


def pod(*claims: dict[str, Any], name: str = "p", requests: dict[str, str] | None = None, **more: Any) -> Pod:
    """A pod that uses these entries of spec.resourceClaims and asks for these resources."""
    containers = more.pop("containers", [{"name": "main", "resources": {"requests": requests or {}}}])
    return Pod.decode({
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": containers, "resourceClaims": list(claims), **more.pop("spec", {})},
        "status": more.pop("status", {}),
    })  # fmt: skip


def uses(name: str = "c") -> dict[str, Any]:
    return {"name": name, "resourceClaimName": name}


def cluster_of(*objects: dict[str, Any]) -> Cluster:
    return Cluster.of(found for each in objects if (found := object_of(each)) is not None)


def node_in(cluster: Cluster, name: str = "n1") -> Node:
    return next(each for each in cluster.nodes if each.name == name)


def read_claim(data: dict[str, Any]) -> ResourceClaim:
    return decode(ResourceClaim, data)


def read_slice(data: dict[str, Any]) -> ResourceSlice:
    return decode(ResourceSlice, data)


def read_class(data: dict[str, Any]) -> DeviceClass:
    return decode(DeviceClass, data)


def allocate(demands, node, pools, usage, *, share_id=new_share_id, **more):
    """What `search` finds, as the allocations of the claims; or the reason why there is none."""
    found = search(demands, node, Offer(pools), usage, {}, **more)
    if isinstance(found, str):
        return found
    return [allocation_of(demand, held, node, share_id) for demand, held in zip(demands, found, strict=True)]
