"""Device selectors that a kube-apiserver accepts and that are made to keep a scheduler busy."""

from __future__ import annotations

import time
from typing import Any

import pytest

from controlplane.control_plane import ControlPlane
from controlplane.objects import node, pod
from controlplane.pages import ask
from controlplane.waiting import eventually

Json = dict[str, Any]

DRIVER = "gpu.example.com"
NODES = 40
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"
TEN = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
NESTED = "".join(f"{TEN}.all(v{number}, " for number in range(4))
HOSTILE = {
    "backtracking": f'"{"a" * 60}!".matches("^(a+)+$")',
    "costly": f"{NESTED}device.driver.size() > v0 - v1" + ")" * 4,
    "patterns": " && ".join(f'!device.driver.matches("(.{{1,500}}){{2}}{number}")' for number in range(200)),
    "replacing": f'"{"a" * 2000}".replace("", "{"b" * 2000}").replace("b", "{"c" * 2000}").size() > 0',
    "doubled": "".join(f"cel.bind(x{i + 1}, [x{i}, x{i}], " for i in range(28)).replace("x0, x0", "1, 1")
    + "x28 == x28"
    + ")" * 28,
    "deep": "!(" * 200 + " + ".join(["1"] * 200) + " > 0" + ")" * 200,
}


def claim(name: str, expression: str) -> Json:
    exactly = {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": expression}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }


def a_slice(node_name: str) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"slice-{node_name}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"d{number}", "attributes": {"n": {"int": number}}} for number in range(8)],
        },
    }


@pytest.fixture
def devices(control_plane: ControlPlane) -> None:
    names = [f"n{number}" for number in range(NODES)]
    cls = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
    control_plane.request("POST", "/apis/resource.k8s.io/v1/deviceclasses", cls)
    for name in names:
        made = node(name)
        control_plane.request("POST", "/api/v1/nodes", made)
        control_plane.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": made["status"]})
        control_plane.request("POST", "/apis/resource.k8s.io/v1/resourceslices", a_slice(name))


@pytest.mark.usefixtures("devices")
async def test_hostile_selectors_do_not_stop_the_scheduler(control_plane: ControlPlane) -> None:
    for name, expression in HOSTILE.items():
        control_plane.request("POST", CLAIMS, claim(name, expression))  # the API server accepts them all
        uses = [{"name": "c", "resourceClaimName": name}]
        control_plane.request("POST", PODS, pod(f"hostile-{name}", resourceClaims=uses))
    with control_plane.stowplan(name="hostile-cel") as running:
        for number in range(3):
            control_plane.request("POST", PODS, pod(f"plain-{number}"))
            await eventually(
                lambda name=f"plain-{number}": control_plane.request("GET", f"{PODS}/{name}"),
                lambda found: bool(found["spec"].get("nodeName")),
                seconds=60,
            )
            assert ask(running.server, "/livez")[0] == 200
        began = time.monotonic()
    assert running.exit_status == 0  # SIGTERM was enough
    assert time.monotonic() - began < 25
