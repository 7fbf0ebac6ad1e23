"""Objects that an editor of a namespace can make: none that a kube-apiserver accepts stops or blinds us."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from typing import ClassVar

import pytest
from custom_objects import install, readable

from controlplane.control_plane import ADMIN, token_of
from controlplane.objects import node, pod
from controlplane.pods import add_nodes, condition, create, placed
from controlplane.waiting import eventually
from stowplan import CustomResource, Definition
from stowplan.api.crd import crd_of

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
DRIVER = "hostile.example.com"
MERGE = "application/merge-patch+json"


def deep(levels: int, core: str = "1") -> str:
    return '{"a":' * levels + core + "}" * levels


def compact(plain) -> str:
    return json.dumps(plain, separators=(",", ":"))


def send(control_plane, method: str, path: str, text: str = "", kind: str = "application/json") -> str:
    """As `control_plane.request`, with texts that Python's json module cannot follow."""
    asked = urllib.request.Request(
        control_plane.server + path,
        text.encode() or None,
        {"Authorization": f"Bearer {token_of(ADMIN)}", "Content-Type": kind},
        method=method,
    )
    trusted = ssl.create_default_context(cafile=str(control_plane.certificate))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted)
    )
    with opener.open(asked, timeout=60) as answer:
        return answer.read().decode()


@pytest.fixture
def hostile(control_plane):
    """Paths of objects that are too deep for `wipe`: they go with the test."""
    paths: list[str] = []
    yield paths
    for path in paths:
        try:
            send(
                control_plane,
                "PATCH",
                path,
                '{"metadata":{"finalizers":null}}',
                "application/merge-patch+json",
            )
            send(control_plane, "DELETE", path, '{"gracePeriodSeconds": 0}')
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise


def devices(control_plane) -> None:
    control_plane.request(
        "POST", "/apis/resource.k8s.io/v1/deviceclasses", {"metadata": {"name": "gpu"}, "spec": {}}
    )
    control_plane.request(
        "POST",
        "/apis/resource.k8s.io/v1/resourceslices",
        {
            "metadata": {"name": "slice-1"},
            "spec": {
                "driver": DRIVER,
                "nodeName": "n1",
                "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "d0"}],
            },
        },
    )


async def schedules(control_plane, name: str, **others) -> None:
    create(control_plane, pod(name, **others))
    await eventually(lambda: placed(control_plane).get(name) or condition(control_plane, name), bool)
    assert placed(control_plane)[name], condition(control_plane, name)["message"]


async def test_a_claim_with_deep_opaque_parameters_is_allocated_with_them(control_plane, hostile):
    add_nodes(control_plane, node("n1"))
    devices(control_plane)
    parameters = deep(1690)  # the API server takes 10 KiB
    claim = {
        "metadata": {"name": "deep"},
        "spec": {
            "devices": {
                "requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}],
                "config": [{"opaque": {"driver": DRIVER, "parameters": "HERE"}}],
            }
        },
    }
    hostile.append(f"{CLAIMS}/deep")
    send(control_plane, "POST", CLAIMS, compact(claim).replace('"HERE"', parameters))
    with control_plane.stowplan() as scheduler:
        await schedules(control_plane, "before")
        claims = [{"name": "c", "resourceClaimName": "deep"}]
        await schedules(control_plane, "user", resourceClaims=claims)
        await schedules(control_plane, "after")
        assert "RecursionError" not in scheduler.output
    found = send(control_plane, "GET", f"{CLAIMS}/deep")
    assert found.count(parameters) == 2  # in the spec, and among what was allocated


@pytest.mark.parametrize("brackets", ["[]", "{}"])
async def test_a_deep_claim_does_not_hide_the_others(control_plane, hostile, brackets):
    """It stands in one list with hundreds, and in the watch between two others."""
    add_nodes(control_plane, node("n1"))
    devices(control_plane)
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
    for number in range(300):
        control_plane.request("POST", CLAIMS, {"metadata": {"name": f"good-{number}"}, "spec": spec})
    inner = deep(1600) if brackets == "{}" else "[" * 4500 + "]" * 4500
    text = compact(
        {
            "metadata": {"name": "HERE"},
            "spec": {"devices": {"config": [{"opaque": {"driver": DRIVER, "parameters": {"p": "DEEP"}}}]}},
        }
    ).replace('"DEEP"', inner)
    hostile += [f"{CLAIMS}/bad-{number}" for number in range(2)]
    send(control_plane, "POST", CLAIMS, text.replace("HERE", "bad-0"))
    with control_plane.stowplan() as scheduler:
        claims = [{"name": "c", "resourceClaimName": "good-150"}]
        await schedules(control_plane, "user", resourceClaims=claims)
        send(control_plane, "POST", CLAIMS, text.replace("HERE", "bad-1"))
        await schedules(control_plane, "after")
        assert "Object cannot be read" not in scheduler.output
        assert "RecursionError" not in scheduler.output


@pytest.mark.parametrize("extenders", [False, True], ids=["alone", "with an extender"])
async def test_a_pod_with_deep_managed_fields_is_scheduled_and_counted(control_plane, hostile, extenders):
    add_nodes(control_plane, node("n1"))
    fields = {
        "manager": "evil",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": "HERE",
    }
    inner = '{"f:a":' * 9900 + "{}" + "}" * 9900
    config = {}
    if extenders:  # nobody listens there; pods are kept whole for it all the same
        url = "http://127.0.0.1:1"
        config["extenders"] = [{"urlPrefix": url, "filterVerb": "filter", "weight": 1, "ignorable": True}]
    for name, target in (("bound", "n1"), ("pending", "")):
        plain = pod(name, requests={"cpu": "1500m"}, nodeName=target)
        plain["metadata"]["managedFields"] = [fields]
        hostile.append(f"{PODS}/{name}")
        send(control_plane, "POST", PODS, compact(plain).replace('"HERE"', inner))
    with control_plane.stowplan(**config) as scheduler:
        await eventually(lambda: '"nodeName":"n1"' in send(control_plane, "GET", f"{PODS}/pending"), bool)
        for path in hostile:
            send(control_plane, "PATCH", path, '{"metadata":{"labels":{"a":"b"}}}', MERGE)
        late = pod("late", requests={"cpu": "1500m"})
        late["metadata"]["managedFields"] = [fields]
        hostile.append(f"{PODS}/late")
        send(control_plane, "POST", PODS, compact(late).replace('"HERE"', inner))
        await eventually(
            lambda: "1 Insufficient cpu" in send(control_plane, "GET", f"{PODS}/late"), bool
        )  # the other two are counted
        assert "RecursionError" not in scheduler.output
        assert "Object cannot be read" not in scheduler.output


class Rack(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "racks", "Rack", namespaced=False)


@pytest.mark.parametrize("watched_when", ["from the start", "while it runs"])
async def test_a_deep_custom_resource_does_not_hide_the_others(
    control_plane, hostile, tmp_path, watched_when
):
    """A plugin that watches racks wants the ten good ones."""
    definition = crd_of(Rack)
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    install(control_plane, definition)
    racks = "/apis/example.com/v1/racks"
    hostile.append(f"{racks}/bad")

    def spoil():
        text = compact(
            {
                "apiVersion": "example.com/v1",
                "kind": "Rack",
                "metadata": {"name": "bad"},
                "spec": {"x": "HERE"},
            }
        )
        send(control_plane, "POST", racks, text.replace('"HERE"', deep(3000)))

    if watched_when == "from the start":
        spoil()
    (tmp_path / "racked.py").write_text(RACKED)
    add_nodes(control_plane, node("n1"))
    profile = {
        "schedulerName": "default-scheduler",
        "plugins": {"multiPoint": {"enabled": [{"name": "Racked"}]}},
    }
    with (
        readable(control_plane, Rack),
        control_plane.stowplan(f"--plugin-dir={tmp_path}", profiles=[profile]) as it,
    ):
        create(control_plane, pod("waiting"))
        await eventually(lambda: condition(control_plane, "waiting"), bool)
        if watched_when != "from the start":
            spoil()
        for number in range(10):
            body = {"apiVersion": "example.com/v1", "kind": "Rack", "metadata": {"name": f"good-{number}"}}
            control_plane.request("POST", racks, body)
        await schedules(control_plane, "racked")
        assert "RecursionError" not in it.output


RACKED = """
from typing import ClassVar
from stowplan import ClusterEvent, CustomResource, Definition, Plugin, Status

class Rack(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "racks", "Rack", namespaced=False)

class Racked(Plugin):
    watches = (Rack,)
    def pre_filter(self, state, pod, nodes):
        names = {rack.name for rack in self.handle.cluster.watched(Rack)}
        good = {name for name in names if name.startswith("good-")}
        return None if len(good) == 10 else Status.unschedulable(f"{len(good)} racks")
"""


@pytest.mark.parametrize("amount", ["1e5000", "5e4294967299", "9" * 400, "1e-5000", "+5", "007", "10E"])
async def test_a_bound_pod_with_absurd_limits_is_counted_and_a_pending_one_gets_a_condition(
    control_plane, amount
):
    add_nodes(control_plane, node("n1"))

    def limited(name, **spec):
        plain = pod(name, **spec)
        resources = {"limits": {"cpu": amount}, "requests": {"cpu": "1n" if amount == "1e-5000" else "3"}}
        plain["spec"]["containers"][0]["resources"] = resources
        return plain

    with control_plane.stowplan() as scheduler:
        create(control_plane, limited("bound", nodeName="n1"))
        await eventually(lambda: placed(control_plane)["bound"], bool)
        create(control_plane, pod("big", requests={"cpu": "4"}))
        found = await eventually(lambda: condition(control_plane, "big"), bool)
        assert "1 Insufficient cpu" in found["message"]
        everything = pod("everything")
        everything["spec"]["containers"][0]["resources"] = {"limits": {"cpu": amount}}
        create(control_plane, everything)
        found = await eventually(lambda: condition(control_plane, "everything"), bool)
        assert found["status"] == ("True" if amount == "1e-5000" else "False"), found
        assert "Object cannot be read" not in scheduler.output
