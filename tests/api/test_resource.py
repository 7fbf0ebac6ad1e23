"""Claims, slices and classes: what is read, what is written back, which class serves an extended resource."""

from __future__ import annotations

import msgspec
import pytest

from stowplan.api.meta import decode
from stowplan.api.resource import DeviceClass, DeviceClassIndex, ResourceClaim, ResourceSlice
from stowplan.cluster import ObjectStore
from stowplan.errors import InputError

RESULT = {
    "request": "r/x", "driver": "d.io", "pool": "p", "device": "d0", "adminAccess": True, "shareID": "s",
    "tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": 5}],
    "bindingConditions": ["Ready"], "bindingFailureConditions": ["Failed"],
    "consumedCapacity": {"memory": "10Gi"},
}  # fmt: skip
CLAIM = {
    "metadata": {"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "7", "finalizers": ["f"]},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "e",
                    "exactly": {
                        "deviceClassName": "gpu",
                        "selectors": [{"cel": {"expression": "true"}}],
                        "count": 2,
                        "tolerations": [{"operator": "Exists"}],
                        "capacity": {"requests": {"memory": "1.5Gi", "cores": 2}},
                        "adminAccess": True,
                    },
                },
                {
                    "name": "r",
                    "firstAvailable": [{"name": "x", "deviceClassName": "gpu", "allocationMode": "All"}],
                },
            ],
            "constraints": [{"requests": ["e"], "matchAttribute": "d.io/a"}, {"distinctAttribute": "d.io/b"}],
            "config": [
                {"requests": ["e"], "opaque": {"driver": "d.io", "parameters": {"any": ["thing", None]}}}
            ],
        }
    },
    "status": {
        "allocation": {
            "devices": {
                "results": [RESULT],
                "config": [{"opaque": {"driver": "d.io"}, "source": "FromClass"}],
            },
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
                ]
            },
            "allocationTimestamp": "2026-01-01T00:00:00Z",
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "v"}],
        "devices": [
            {
                "driver": "d.io",
                "pool": "p",
                "device": "d0",
                "shareID": "s",
                "conditions": [{"type": "Ready", "status": "True"}],
                "data": {"k": 1},
                "networkData": {"interfaceName": "eth1"},
            }
        ],
    },
}


def test_a_claim_is_written_back_as_it_was_read():
    assert msgspec.json.decode(msgspec.json.encode(decode(ResourceClaim, CLAIM))) == CLAIM


def test_devices_report_on_what_was_allocated():
    claim = decode(ResourceClaim, CLAIM)
    (result,), (status,) = claim.allocation.devices.results, claim.status.devices
    assert status.is_of(result)
    assert status.is_true("Ready")
    assert not status.is_true("Failed")
    assert not status.is_of(msgspec.structs.replace(result, share_id=None))


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        pytest.param({"string": ""}, ("string", ""), id="a string, be it empty"),
        pytest.param({"int": 0}, ("number", 0), id="a number, be it zero"),
        pytest.param({"bool": False}, ("flag", False), id="a flag, be it false"),
        pytest.param({"version": "1.2.3"}, ("version", "1.2.3"), id="a version"),
        pytest.param({"strings": ["a"]}, None, id="a type of the future"),
    ],
)
def test_attributes_have_a_type(attribute, value):
    found = decode(ResourceSlice, {"spec": {"devices": [{"name": "d", "attributes": {"a": attribute}}]}})
    assert found.spec.devices[0].attributes["a"].typed_value == value


def test_a_quantity_that_is_none_is_refused_with_its_field():
    with pytest.raises(InputError, match=r"spec\.devices\[0\]\.capacity.*1\.5\.3"):
        decode(ResourceSlice, {"spec": {"devices": [{"name": "d", "capacity": {"m": {"value": "1.5.3"}}}]}})


def device_class(name, resource=None, created=None):
    return decode(
        DeviceClass,
        {
            "metadata": {"name": name, "creationTimestamp": created},
            "spec": {"extendedResourceName": resource},
        },
    )


OLD, NEW = "2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"
IMPLICIT = "deviceclass.resource.kubernetes.io"


@pytest.mark.parametrize(
    ("classes", "resource", "expected"),
    [
        pytest.param([device_class("a", "x.io/gpu")], "x.io/gpu", "a", id="by the name it gives"),
        pytest.param([device_class("a", "x.io/gpu")], "x.io/tpu", None, id="another name"),
        pytest.param([device_class("a")], f"{IMPLICIT}/a", "a", id="by its own name"),
        pytest.param([device_class("a", "x.io/gpu")], f"{IMPLICIT}/a", "a", id="by its own name as well"),
        pytest.param([device_class("a")], f"{IMPLICIT}/b", None, id="a class that is not there"),
        pytest.param(
            [device_class("a", "x.io/gpu", OLD), device_class("b", "x.io/gpu", NEW)], "x.io/gpu", "b",
            id="the newest of two",
        ),
        pytest.param(
            [device_class("b", "x.io/gpu", NEW), device_class("a", "x.io/gpu", NEW)], "x.io/gpu", "a",
            id="the first by name of two of an age",
        ),
    ],
)  # fmt: skip
def test_class_of_an_extended_resource(classes, resource, expected):
    found = DeviceClassIndex(classes).class_for(resource)
    assert (found and found.name) == expected


def test_the_index_follows_the_store():
    store: ObjectStore[DeviceClass] = ObjectStore()
    assert not DeviceClassIndex.of(store)
    store.put(device_class("a", "x.io/gpu"))
    index = DeviceClassIndex.of(store)
    assert index.class_for("x.io/gpu").name == "a"
    assert DeviceClassIndex.of(store) is index
    store.remove("a")
    assert DeviceClassIndex.of(store).class_for("x.io/gpu") is None
