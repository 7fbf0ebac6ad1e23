"""RBAC over HTTP: service account tokens, impersonation by clients that may and may not, aggregated roles."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from api_staging import Staged

from stowplan.apiserver import ApiServer
from stowplan.apiserver.http import serve

Json = dict[str, Any]
Ask = Callable[..., Any]
TOKEN = "secret"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
REVIEW = "/apis/authentication.k8s.io/v1/tokenreviews"


@pytest.fixture
def api() -> Staged:
    return Staged(ApiServer(rbac=True))


@pytest.fixture
async def ask(api: Staged) -> AsyncIterator[Ask]:
    """Ask over HTTP with a token and headers, some of them more than once."""
    import asyncio

    async with serve(api.server, token=TOKEN) as front:

        def send(method: str, path: str, body: Any, token: str, headers: tuple[Any, ...]) -> tuple[int, Any]:
            connection = http.client.HTTPConnection(front.host, front.port, timeout=10)
            connection.putrequest(method, path)
            data = b"" if body is None else json.dumps(body).encode()
            given = (("Authorization", f"Bearer {token}"), ("Content-Length", str(len(data))), *headers)
            for name, value in given:
                connection.putheader(name, value)
            connection.endheaders(data)
            answer = connection.getresponse()
            found = answer.status, json.loads(answer.read())
            connection.close()
            return found

        async def asked(
            method: str, path: str, body: Any = None, *, token: str = TOKEN, headers: tuple[Any, ...] = ()
        ) -> tuple[int, Any]:
            return await asyncio.to_thread(send, method, path, body, token, headers)

        yield asked


async def make_account(ask: Ask, name: str = "robot") -> str:
    await ask("POST", ACCOUNTS, {"metadata": {"name": name}})
    status, made = await ask("POST", f"{ACCOUNTS}/{name}/token", {})
    assert status == 201
    token: str = made["status"]["token"]
    return token


async def grant(ask: Ask, name: str, rules: list[Json], *subjects: Json) -> None:
    await ask("POST", f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    body = {"metadata": {"name": name}, "roleRef": reference, "subjects": list(subjects)}
    assert (await ask("POST", f"{RBAC}/clusterrolebindings", body))[0] == 201


ROBOT = {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}
LIST_PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}


async def test_a_service_account_does_what_its_role_allows(ask: Ask) -> None:
    token = await make_account(ask)
    status, said = await ask("GET", "/api/v1/pods", token=token)
    assert (status, said["message"]) == (
        403,
        'pods is forbidden: User "system:serviceaccount:default:robot" cannot list resource "pods" in API '
        'group "" at the cluster scope',
    )
    await grant(ask, "lists", [LIST_PODS], ROBOT)
    assert (await ask("GET", "/api/v1/pods", token=token))[0] == 200
    assert (await ask("GET", "/apis", token=token))[0] == 200, "discovery is everybody's"


async def test_a_token_ends_with_its_account_and_pod(ask: Ask) -> None:
    token = await make_account(ask)
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    await ask("POST", "/api/v1/namespaces/default/pods", pod)
    reference = {"kind": "Pod", "apiVersion": "v1", "name": "p"}
    body = {"spec": {"audiences": ["vault"], "boundObjectRef": reference}}
    bound = (await ask("POST", f"{ACCOUNTS}/robot/token", body))[1]["status"]["token"]
    assert (await ask("GET", "/apis", token=bound))[0] == 401, "it is for another audience"
    question = {"spec": {"token": bound, "audiences": ["vault"]}}
    status = (await ask("POST", REVIEW, question))[1]["status"]
    assert status["authenticated"]
    assert status["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["p"]
    await ask("DELETE", "/api/v1/namespaces/default/pods/p", {"gracePeriodSeconds": 0})
    assert not (await ask("POST", REVIEW, question))[1]["status"].get("authenticated")
    await ask("DELETE", f"{ACCOUNTS}/robot")
    assert (await ask("GET", "/apis", token=token))[0] == 401


def forged(token: str, header: Json | None = None, **claims: Any) -> str:
    def part(text: str, change: Json) -> str:
        known = json.loads(base64.urlsafe_b64decode(text + "=="))
        return base64.urlsafe_b64encode(json.dumps({**known, **change}).encode()).decode().rstrip("=")

    head, body, signature = token.split(".")
    return f"{part(head, header or {})}.{part(body, claims)}.{signature}"


async def test_forged_tokens_are_worth_nothing(ask: Ask) -> None:
    token = await make_account(ask)
    assert (await ask("GET", "/apis", token=token))[0] == 200
    attempts = [
        forged(token, exp=2**40),
        forged(token, {"alg": "none"}).rpartition(".")[0] + ".",
        forged(token, {"alg": "HS256"}),
        forged(token, sub="system:admin"),
        token[:-3] + "AAA",
        f"{token}.{token}",
        "..",
        "a.b.c",
        "x" * 20_000,
    ]
    for attempt in attempts:
        status = (await ask("GET", "/apis", token=attempt))[0]
        assert status in (401, 431), attempt[:80]


async def test_impersonation_needs_a_right(ask: Ask) -> None:
    token = await make_account(ask)
    as_bob = (("Impersonate-User", "bob"),)
    status, said = await ask("GET", "/api/v1/pods", token=token, headers=as_bob)
    assert (status, said["message"]) == (
        403,
        'pods is forbidden: User "system:serviceaccount:default:robot" cannot impersonate-on:user-info:list '
        'resource "pods" in API group "" at the cluster scope',
    )
    may = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["bob"]}
    await grant(ask, "impersonates", [may], ROBOT)
    status, said = await ask("GET", "/api/v1/pods", token=token, headers=as_bob)
    assert 'User "bob" cannot list' in said["message"]
    status, said = await ask(
        "GET", "/api/v1/pods", token=token, headers=(*as_bob, ("Impersonate-Group", "system:masters"))
    )
    assert said["message"] == (
        'groups "system:masters" is forbidden: User "system:serviceaccount:default:robot" cannot impersonate '
        'resource "groups" in API group "" at the cluster scope'
    )


async def test_every_group_that_is_impersonated_counts(ask: Ask) -> None:
    await grant(ask, "lists", [LIST_PODS], {"kind": "Group", "name": "second"})
    headers = (("Impersonate-User", "bob"), ("Impersonate-Group", "first"), ("Impersonate-Group", "second"))
    assert (await ask("GET", "/api/v1/pods", headers=headers))[0] == 200
    assert (await ask("GET", "/api/v1/pods", headers=headers[:2]))[0] == 403


async def test_aggregated_roles_follow_their_parts(api: Staged) -> None:
    selector = {"clusterRoleSelectors": [{"matchLabels": {"aggregate": "yes"}}]}
    body = {"metadata": {"name": "whole"}, "aggregationRule": selector, "rules": []}
    await api("POST", f"{RBAC}/clusterroles", body)
    part = {"metadata": {"name": "part", "labels": {"aggregate": "yes"}}, "rules": [LIST_PODS]}
    await api("POST", f"{RBAC}/clusterroles", part)
    assert (await api("GET", f"{RBAC}/clusterroles/whole"))[1]["rules"] == [LIST_PODS]
    await api("DELETE", f"{RBAC}/clusterroles/part")
    assert not (await api("GET", f"{RBAC}/clusterroles/whole"))[1].get("rules")
    _, view = await api("GET", f"{RBAC}/clusterroles/view")
    assert any("pods" in rule.get("resources", ()) for rule in view["rules"])


async def test_a_signing_request_says_who_made_it(api: Staged) -> None:
    body = {
        "metadata": {"name": "csr"},
        "spec": {
            "request": "LS0t",
            "signerName": "example.com/x",
            "usages": ["client auth"],
            "username": "root",
        },
    }
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    status, made = await api("POST", path, body, impersonate_user="bob", impersonate_group="system:masters")
    assert (status, made["spec"]["username"]) == (201, "bob")
    approved = {"type": "Approved", "status": "True", "reason": "ok"}
    made["status"] = {"conditions": [approved]}
    status, made = await api("PUT", f"{path}/csr/approval", made)
    assert (status, made["status"]["conditions"][0]["type"]) == (200, "Approved")


async def test_without_rbac_everybody_may_do_everything() -> None:
    api = Staged(ApiServer())
    review = {"spec": {"resourceAttributes": {"verb": "delete", "resource": "nodes"}}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert (await api("POST", path, review, impersonate_user="bob"))[1]["status"] == {"allowed": True}
    assert (await api("GET", "/api/v1/nodes", impersonate_user="bob"))[0] == 200


async def test_every_group_version_has_an_api_service(api: Staged) -> None:
    _, found = await api("GET", "/apis/apiregistration.k8s.io/v1/apiservices")
    names = {item["metadata"]["name"] for item in found["items"]}
    assert {"v1.", "v1.apps", "v1.admissionregistration.k8s.io"} <= names


async def test_pods_mount_the_token_of_their_account(api: Staged) -> None:
    accounts, pods = (f"/api/v1/namespaces/default/{kind}" for kind in ("serviceaccounts", "pods"))
    await api("POST", accounts, {"metadata": {"name": "default"}})
    shy = {"metadata": {"name": "shy"}, "automountServiceAccountToken": False}
    await api("POST", accounts, {**shy, "imagePullSecrets": [{"name": "registry"}]})

    async def made(name: str, **spec: Any) -> Json:
        whole = {"containers": [{"name": "c", "image": "app:1"}], **spec}
        return (await api("POST", pods, {"metadata": {"name": name}, "spec": whole}))[1]

    spec = (await made("plain"))["spec"]
    path = "/var/run/secrets/kubernetes.io/serviceaccount"
    volume = spec["volumes"][0]["name"]
    assert spec["serviceAccountName"] == "default"
    assert spec["containers"][0]["volumeMounts"] == [{"name": volume, "readOnly": True, "mountPath": path}]
    assert "volumes" not in (await made("no", automountServiceAccountToken=False))["spec"]
    spec = (await made("shy", serviceAccountName="shy"))["spec"]
    assert ("volumes" in spec, spec["imagePullSecrets"]) == (False, [{"name": "registry"}])
    said = await made("lost", serviceAccountName="none")
    assert said["message"] == (
        'pods "lost" is forbidden: error looking up service account default/none: '
        'serviceaccount "none" not found'
    )
