"""Admission policies beyond what one answer shows: warnings, budgets, reinvocation, what is never asked."""

from __future__ import annotations

import time
from typing import Any

import pytest
from api_staging import Staged

from stowplan.apiserver import Request, Response
from stowplan.client.api import MERGE_PATCH

Json = dict[str, Any]
ROOT = "/apis/admissionregistration.k8s.io/v1"
MAPS = "/api/v1/namespaces/default/configmaps"
RULE = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
ON_MAPS = {**RULE, "operations": ["CREATE"], "resources": ["configmaps"]}


async def bind(api: Staged, name: str, kind: str, rule: Json, actions: Json, **spec: Any) -> tuple[int, Any]:
    match = {"resourceRules": [rule]}
    made = await api(
        "POST",
        f"{ROOT}/{kind}admissionpolicies",
        {"metadata": {"name": name}, "spec": {"matchConstraints": match, **spec}},
    )
    body = {"metadata": {"name": name}, "spec": {"policyName": name, **actions}}
    await api("POST", f"{ROOT}/{kind}admissionpolicybindings", body)
    return made


async def test_a_warning_is_a_header(api: Staged) -> None:
    validations = [{"expression": "false", "message": "no good"}]
    await bind(
        api, "p", "validating", ON_MAPS, {"validationActions": ["Warn", "Audit"]}, validations=validations
    )
    answer = await api.server.handle(Request.of("POST", MAPS, {"metadata": {"name": "a"}}))
    assert isinstance(answer, Response)
    assert answer.status == 201
    said = "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p': no good"
    assert ("Warning", f'299 - "{said}"') in answer.headers


COSTLY = "[0,1,2,3,4,5,6,7,8,9]"
for _ in range(7):
    COSTLY = f"[0,1,2,3,4,5,6,7,8,9].map(x{_}, {COSTLY})"


async def test_a_costly_expression_ends_within_its_budget(api: Staged) -> None:
    many = [{"expression": f"{COSTLY}.size() > {number}"} for number in range(20)]
    await bind(api, "p", "validating", ON_MAPS, {"validationActions": ["Deny"]}, validations=many)
    began = time.process_time()
    status, said = await api("POST", MAPS, {"metadata": {"name": "a"}})
    assert status == 422
    assert "cost limit exceeded" in said["message"]
    assert time.process_time() - began < 5


async def test_a_policy_cannot_lock_itself_in(api: Staged) -> None:
    await bind(
        api, "p", "validating", RULE, {"validationActions": ["Deny"]}, validations=[{"expression": "false"}]
    )
    assert (await api("POST", MAPS, {"metadata": {"name": "a"}}))[0] == 422
    assert (await api("DELETE", f"{ROOT}/validatingadmissionpolicybindings/p"))[0] == 200
    assert (await api("POST", MAPS, {"metadata": {"name": "a"}}))[0] == 201


@pytest.mark.parametrize(("policy", "wanted"), [("Never", "1"), ("IfNeeded", "3")])
async def test_a_mutation_is_invoked_again_after_others(api: Staged, policy: str, wanted: str) -> None:
    def spec(text: str, again: str) -> Json:
        mutation = {"patchType": "JSONPatch", "jsonPatch": {"expression": text}}
        return {"mutations": [mutation], "reinvocationPolicy": again}

    counts = "[JSONPatch{op: 'add', path: '/data/count', value: string(object.data.size())}]"
    adds = "[JSONPatch{op: 'add', path: '/data/more', value: 'x'}]"
    await bind(api, "a", "mutating", ON_MAPS, {}, **spec(counts, policy))
    await bind(api, "b", "mutating", ON_MAPS, {}, **spec(adds, "Never"))
    status, made = await api("POST", MAPS, {"metadata": {"name": "m"}, "data": {"one": "1"}})
    assert (status, made["data"]["count"]) == (201, wanted)


@pytest.mark.parametrize(
    "text", ["nope", "object.x +", "1 + 'a'", "'x'", "object.metadata.name", "params.x == 1"]
)
async def test_a_wrong_expression_is_rejected(api: Staged, text: str) -> None:
    status, said = await bind(
        api, "p", "validating", ON_MAPS, {"validationActions": ["Deny"]}, validations=[{"expression": text}]
    )
    assert status == 422
    assert said["details"]["causes"][0]["field"] == "spec.validations[0].expression"


async def test_variables_that_refer_to_themselves_fail(api: Staged) -> None:
    variables = [{"name": "a", "expression": "variables.b"}, {"name": "b", "expression": "variables.a"}]
    await bind(
        api,
        "p",
        "validating",
        ON_MAPS,
        {"validationActions": ["Deny"]},
        variables=variables,
        validations=[{"expression": "variables.a == 1"}],
    )
    status, said = await api("POST", MAPS, {"metadata": {"name": "a"}})
    assert status == 422
    assert "refers to itself" in said["message"]


LABELS = {"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted"}


async def test_pod_security_rejects_pods_and_warns_of_templates(api: Staged) -> None:
    await api("POST", "/api/v1/namespaces", {"metadata": {"name": "safe", "labels": LABELS}})
    containers = [{"name": "c", "image": "x", "securityContext": {"privileged": True}}]
    status, said = await api(
        "POST",
        "/api/v1/namespaces/safe/pods",
        {"metadata": {"name": "p"}, "spec": {"containers": containers}},
    )
    assert (status, said["message"]) == (
        403,
        'pods "p" is forbidden: violates PodSecurity "baseline:latest": privileged (container "c" must not '
        "set securityContext.privileged=true)",
    )
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    body = {"metadata": {"name": "d"}, "spec": spec}
    answer = await api.server.handle(Request.of("POST", "/apis/apps/v1/namespaces/safe/deployments", body))
    assert isinstance(answer, Response)
    assert answer.status == 201
    assert any('would violate PodSecurity \\"restricted:latest\\"' in value for _, value in answer.headers)


async def test_a_stricter_level_warns_of_the_pods_that_are_there(api: Staged) -> None:
    """In the words that kube-apiserver v1.36.4 was seen to use."""
    await api("POST", "/api/v1/namespaces", {"metadata": {"name": "strict"}})
    for name, spec in {"z": {}, "a": {"hostNetwork": True}, "m": {}, "h": {"hostPID": True}}.items():
        body = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "x"}], **spec}}
        assert (await api("POST", "/api/v1/namespaces/strict/pods", body))[0] == 201

    async def label(name: str, value: str) -> list[str]:
        patch = {"metadata": {"labels": {f"pod-security.kubernetes.io/{name}": value}}}
        request = Request.of("PATCH", "/api/v1/namespaces/strict", patch, content_type=MERGE_PATCH)
        answer = await api.server.handle(request)
        assert isinstance(answer, Response)
        assert answer.status == 200
        said = [value for name, value in answer.headers if name == "Warning"]
        return [each.removeprefix('299 - "').removesuffix('"').replace('\\"', '"') for each in said]

    new_level = 'existing pods in namespace "strict" violate the new PodSecurity enforce level'
    missing = (
        "allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, seccompProfile"
    )
    assert await label("enforce", "baseline") == [
        f'{new_level} "baseline:latest"',
        "a (and 1 other pod): host namespaces",
    ]
    assert await label("enforce", "restricted") == [
        f'{new_level} "restricted:latest"',
        f"a (and 1 other pod): host namespaces, {missing}",
        f"m (and 1 other pod): {missing}",
    ]
    assert await label("enforce", "baseline") == []
    assert await label("enforce-version", "v1.30") == [
        f'{new_level} "baseline:v1.30"',
        "a (and 1 other pod): host namespaces",
    ]
    assert await label("warn", "restricted") == []
