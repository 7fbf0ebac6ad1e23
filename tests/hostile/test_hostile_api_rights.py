"""What a service account with few rights tries in order to get more, with `--rbac`."""

from __future__ import annotations

from typing import Any

import pytest

from stowplan.apiserver import ApiServer, Request, Response
from stowplan.apiserver.rbac import User, account_groups

Json = dict[str, Any]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
MAPS = "/api/v1/namespaces/default/configmaps"
ROBOT = User("system:serviceaccount:default:robot", "u", account_groups("default"))
APPLY = "application/apply-patch+yaml"


class Api:
    """One server; `robot` asks as the service account, `admin` as whoever has the token."""

    def __init__(self) -> None:
        self.server = ApiServer(rbac=True)

    async def admin(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Json]:
        return await self._ask(Request.of(method, path, body, **headers))

    async def robot(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Json]:
        request = Request.of(method, path, body, **headers)
        request.user = ROBOT
        return await self._ask(request)

    async def _ask(self, request: Request) -> tuple[int, Json]:
        answer = await self.server.handle(request)
        return (answer.status, answer.json()) if isinstance(answer, Response) else (200, {"kind": "watch"})

    async def grant(self, *rules: Json, name: str = "granted") -> None:
        role = {"metadata": {"name": name}, "rules": list(rules)}
        assert (await self.admin("POST", f"{RBAC}/clusterroles", role))[0] == 201
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        subject = {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}
        body = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
        assert (await self.admin("POST", f"{RBAC}/clusterrolebindings", body))[0] == 201


@pytest.fixture
def api() -> Api:
    return Api()


def rule(resource: str, *verbs: str, group: str = "", **more: Any) -> Json:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs), **more}


@pytest.mark.parametrize(
    ("verb", "method", "path"),
    [
        pytest.param("list", "GET", f"{MAPS}?watch=", id="an empty flag"),
        pytest.param("list", "GET", f"{MAPS}?watch=yes", id="another word"),
        pytest.param("list", "GET", f"{MAPS}?watch=True", id="a capital"),
        pytest.param("get", "GET", f"{MAPS}/x?watch=t", id="of one object"),
        pytest.param("create", "POST", "/api/v1/watch/namespaces/default/configmaps", id="by POST"),
        pytest.param("delete", "DELETE", "/api/v1/watch/namespaces/default/configmaps/x", id="by DELETE"),
    ],
)
async def test_a_watch_needs_the_right_to_watch(api: Api, verb: str, method: str, path: str) -> None:
    await api.grant(rule("configmaps", verb))
    status, said = await api.robot(method, path)
    assert status in (403, 405), said


async def test_an_update_or_apply_that_creates_needs_the_right_to_create(api: Api) -> None:
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    await api.grant(
        rule("configmaps", "patch", "update"), rule("leases", "update", group="coordination.k8s.io")
    )
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}}
    applied = await api.robot("PATCH", f"{MAPS}/new?fieldManager=m", body, content_type=APPLY)
    assert applied[0] == 403, applied
    assert 'cannot create resource "configmaps"' in applied[1]["message"]
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "new"}, "spec": {}}
    status, said = await api.robot("PUT", f"{leases}/new", lease)
    assert status == 403, said
    assert (await api.admin("PATCH", f"{MAPS}/new?fieldManager=a", body, content_type=APPLY))[0] == 201
    assert (await api.robot("PATCH", f"{MAPS}/new?fieldManager=m", body, content_type=APPLY))[0] == 200


EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
ROLE_EDITOR = (
    rule("roles", "*", group="rbac.authorization.k8s.io", verbs=["create", "update", "patch", "get"]),
    rule("clusterroles", "create", "update", "patch", "get", group="rbac.authorization.k8s.io"),
    rule("rolebindings", "create", "update", "patch", group="rbac.authorization.k8s.io"),
    rule("clusterrolebindings", "create", "update", "patch", group="rbac.authorization.k8s.io"),
)


@pytest.mark.parametrize(
    ("method", "path", "body", "media"),
    [
        pytest.param(
            "POST",
            f"{RBAC}/clusterroles",
            {"metadata": {"name": "n"}, "rules": [EVERYTHING]},
            "application/json",
            id="a role that grants everything",
        ),
        pytest.param(
            "POST",
            f"{RBAC}/clusterroles",
            {
                "metadata": {"name": "n"},
                "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"power": "all"}}]},
            },
            "application/json",
            id="a role that takes its rules from others",
        ),
        pytest.param(
            "PATCH",
            f"{RBAC}/clusterroles/own",
            {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"power": "all"}}]}},
            "application/merge-patch+json",
            id="the same by a patch",
        ),
        pytest.param(
            "PATCH",
            f"{RBAC}/clusterroles/cluster-admin",
            {"metadata": {"labels": {"collected": "true"}}},
            "application/merge-patch+json",
            id="a label that others collect",
        ),
        pytest.param(
            "PATCH",
            f"{RBAC}/clusterroles/own?fieldManager=m&force=true",
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": "own"},
                "rules": [EVERYTHING],
            },
            APPLY,
            id="by apply",
        ),
        pytest.param(
            "POST",
            f"{RBAC}/clusterrolebindings",
            {
                "metadata": {"name": "n"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "cluster-admin",
                },
                "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}],
            },
            "application/json",
            id="a binding to the administrator's role",
        ),
        pytest.param(
            "PATCH",
            f"{RBAC}/clusterrolebindings/cluster-admin",
            {"subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}]},
            "application/merge-patch+json",
            id="a subject more",
        ),
    ],
)
async def test_nobody_grants_what_he_does_not_have(
    api: Api, method: str, path: str, body: Json, media: str
) -> None:
    await api.grant(*ROLE_EDITOR)
    powerful = {"metadata": {"name": "powerful", "labels": {"power": "all"}}, "rules": [EVERYTHING]}
    await api.admin("POST", f"{RBAC}/clusterroles", powerful)
    own = {"metadata": {"name": "own"}, "rules": []}
    assert (await api.robot("POST", f"{RBAC}/clusterroles", own))[0] == 201
    status, said = await api.robot(method, path, body, content_type=media)
    assert status == 403, said
    assert "attempting to grant RBAC permissions not currently held" in said["message"]


async def test_a_role_that_a_policy_makes_larger_is_checked_as_it_is_stored(api: Api) -> None:
    await api.grant(*ROLE_EDITOR)
    registration = "/apis/admissionregistration.k8s.io/v1"
    everything = "[{'apiGroups': ['*'], 'resources': ['*'], 'verbs': ['*']}]"
    patch = f"[JSONPatch{{op: 'add', path: '/rules', value: {everything}}}]"
    policy = {
        "metadata": {"name": "larger"},
        "spec": {
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["rbac.authorization.k8s.io"],
                        "apiVersions": ["*"],
                        "resources": ["clusterroles"],
                        "operations": ["CREATE"],
                    }
                ]
            },
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
        },
    }
    made = await api.admin("POST", f"{registration}/mutatingadmissionpolicies", policy)
    assert made[0] == 201, made
    binding = {"metadata": {"name": "larger"}, "spec": {"policyName": "larger"}}
    assert (await api.admin("POST", f"{registration}/mutatingadmissionpolicybindings", binding))[0] == 201
    status, said = await api.robot("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "n"}, "rules": []})
    assert status == 403, said


async def test_a_role_that_is_not_yet_there_cannot_be_bound_in_advance(api: Api) -> None:
    await api.grant(*ROLE_EDITOR)
    body = {
        "metadata": {"name": "n"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "later"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}],
    }
    assert (await api.robot("POST", f"{RBAC}/clusterrolebindings", body))[0] in (403, 404)


@pytest.mark.parametrize(
    "headers",
    [
        {"impersonate_user": "admin"},
        {"impersonate_user": "system:serviceaccount:kube-system:x"},
        {"impersonate_user": ROBOT.name, "impersonate_group": "system:masters"},
        {"impersonate_user": ROBOT.name, "impersonate_uid": "1"},
        {"impersonate_user": ROBOT.name, "impersonate_extra_scopes": "all"},
        {"impersonate_group": "system:masters"},
        {"impersonate_uid": "1"},
        {"impersonate_extra_scopes": "all"},
    ],
)
async def test_impersonation_needs_a_right_for_every_part(api: Api, headers: dict[str, str]) -> None:
    await api.grant(
        rule("configmaps", "list"),
        rule("serviceaccounts", "impersonate", resourceNames=["robot"]),
    )
    assert (await api.robot("GET", MAPS))[0] == 200
    assert (await api.robot("GET", MAPS, **headers))[0] in (400, 403)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/namespaces/default/serviceaccounts/other/token", {}),
        ("POST", "/api/v1/namespaces/kube-system/serviceaccounts/default/token", {}),
        ("GET", "/api/v1/namespaces/kube-system/secrets", None),
        ("GET", "/metrics", None),
        ("GET", "/page/", None),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}}),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": {"user": "admin"}}),
        ("PUT", "/api/v1/namespaces/default/finalize", {"metadata": {"name": "default"}}),
        ("DELETE", "/api/v1/namespaces/default", None),
        ("GET", "/api/v1//namespaces/default//secrets", None),
        ("GET", "/api/v1/namespaces/default/configmaps/../secrets", None),
    ],
)
async def test_what_was_not_granted_is_forbidden(api: Api, method: str, path: str, body: Json | None) -> None:
    await api.grant(rule("configmaps", "*"), rule("serviceaccounts", "get"))
    status, _ = await api.robot(method, path, body)
    assert status in (403, 404)


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
async def test_the_namespaces_of_the_cluster_stay(api: Api, name: str) -> None:
    status, said = await api.admin("DELETE", f"/api/v1/namespaces/{name}")
    assert (status, said["message"]) == (
        403,
        f'namespaces "{name}" is forbidden: this namespace may not be deleted',
    )
    assert (await api.admin("DELETE", "/api/v1/namespaces"))[0] == 405
