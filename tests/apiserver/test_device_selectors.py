"""Device selectors that are not valid CEL are rejected, as kube-apiserver v1.36 rejects them."""

from __future__ import annotations

from typing import Any

import pytest
from api_staging import Staged

GROUP = "/apis/resource.k8s.io/v1"
NOT_BOOL = "must evaluate to bool or the unknown type, not"
PLACES = {
    "ResourceClaim": "spec.devices.requests[0].exactly.selectors[0].cel.expression",
    "ResourceClaimTemplate": "spec.spec.devices.requests[0].firstAvailable[0].selectors[0].cel.expression",
    "DeviceClass": "spec.selectors[0].cel.expression",
}
PATHS = {
    "ResourceClaim": f"{GROUP}/namespaces/default/resourceclaims",
    "ResourceClaimTemplate": f"{GROUP}/namespaces/default/resourceclaimtemplates",
    "DeviceClass": f"{GROUP}/deviceclasses",
}


def with_selector(kind: str, expression: str) -> dict[str, Any]:
    selectors = [{"cel": {"expression": expression}}]
    asked = {"deviceClassName": "gpu", "selectors": selectors}
    spec: dict[str, Any] = {"selectors": selectors}
    if kind == "ResourceClaim":
        spec = {"devices": {"requests": [{"name": "r", "exactly": asked}]}}
    elif kind == "ResourceClaimTemplate":
        first = [{"name": "s", **asked}]
        spec = {"spec": {"devices": {"requests": [{"name": "r", "firstAvailable": first}]}}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize(
    ("expression", "said"),
    [
        pytest.param("1", f'Invalid value: "1": {NOT_BOOL} int', id="a number"),
        pytest.param("'a'", f"Invalid value: \"'a'\": {NOT_BOOL} string", id="a string"),
        pytest.param("true" + " && true" * 2000, "Too long: may not be more than 10240 bytes", id="too long"),
        pytest.param(
            "device.driver ==", 'Invalid value: "device.driver ==": compilation failed: ', id="syntax"
        ),
        pytest.param("nope", 'Invalid value: "nope": compilation failed: ', id="an unknown name"),
        pytest.param("device.nope", 'Invalid value: "device.nope": compilation failed: ', id="no such field"),
        pytest.param("", 'Invalid value: "": compilation failed: ', id="empty"),
    ],
)
async def test_a_selector_that_is_not_valid_is_rejected(kind: str, expression: str, said: str) -> None:
    status, answer = await Staged()("POST", PATHS[kind], with_selector(kind, expression))
    assert status == 422
    start = f'{kind}.resource.k8s.io "x" is invalid: {PLACES[kind]}: {said}'
    assert answer["message"] == start if said[-1] != " " else answer["message"].startswith(start)


@pytest.mark.parametrize("kind", PLACES)
async def test_selectors_that_are_valid_are_accepted(kind: str) -> None:
    expression = 'device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].model == "a"'
    assert (await Staged()("POST", PATHS[kind], with_selector(kind, expression)))[0] == 201


async def test_an_update_is_checked_too() -> None:
    api = Staged()
    await api("POST", PATHS["DeviceClass"], with_selector("DeviceClass", "true"))
    status, answer = await api("PUT", f"{PATHS['DeviceClass']}/x", with_selector("DeviceClass", "1"))
    assert (status, NOT_BOOL in answer["message"]) == (422, True)
