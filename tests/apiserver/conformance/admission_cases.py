"""Cases of admission and authorization: limits, quotas, policies, roles and reviews."""

# ruff: noqa: E501  one case a line
from __future__ import annotations

from typing import Any

from conformance.conformance_cases import OPERATIONS
from conformance.conformance_extra import CLAIMS, CONTAINER, PODS, pod
from conformance.conformance_kinds import LABELS, Kind
from conformance.conformance_steps import MERGE_PATCH, Case, Step

Json = dict[str, Any]

RANGES = "/api/v1/namespaces/{ns}/limitranges"
QUOTAS = "/api/v1/namespaces/{ns}/resourcequotas"
SERVICES = "/api/v1/namespaces/{ns}/services"
MAPS = "/api/v1/namespaces/{ns}/configmaps"
PAUSE = Step("PAUSE", "")


def sized(name: str = "p", requests: Json | None = None, limits: Json | None = None, **more: Any) -> Json:
    given = {"requests": requests, "limits": limits}
    resources = {part: amounts for part, amounts in given.items() if amounts}
    return pod(name, container={"resources": resources}, **more)


def limits(*items: Json) -> Step:
    return Step("POST", RANGES, {"metadata": {"name": "r"}, "spec": {"limits": list(items)}})


def claim(name: str, size: str, storage_class: str = "") -> Json:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": size}},
    }
    return {"metadata": {"name": name}, "spec": spec}


def quota(hard: Json, used: Json | None = None, **spec: Any) -> tuple[Step, ...]:
    """A quota with a status such as the controller gives it."""
    status = {"hard": hard, "used": used if used is not None else dict.fromkeys(hard, "0")}
    return (
        Step("POST", QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}}),
        Step("PATCH", QUOTAS + "/q/status", {"status": status}, MERGE_PATCH),
        PAUSE,
    )


USED = Step("GET", QUOTAS + "/q")
LIMIT_CASES = [
    Case("limits: defaults of containers", (
        limits({"type": "Container", "default": {"cpu": "500m", "memory": "64Mi"}, "defaultRequest": {"cpu": "100m"}}),
        PAUSE,
        Step("POST", PODS, pod("a")),
        Step("POST", PODS, sized("b", {"cpu": "200m"}, {"cpu": "300m"})),
        Step("POST", PODS, sized("d", {"cpu": "800m"})),
        Step("POST", PODS, pod("e", initContainers=[{"name": "i", "image": "x"}])),
    )),
    Case("limits: defaults from min and max", (
        limits({"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "32Mi"}}),
        Step("GET", RANGES + "/r"),
        PAUSE,
        Step("POST", PODS, pod("a")),
    )),
    Case("limits: min and max of containers", (
        limits({"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "100m"}}),
        PAUSE,
        Step("POST", PODS, sized("a", {"cpu": "50m"}, {"cpu": "1"})),
        Step("POST", PODS, sized("b", {"cpu": "1"}, {"cpu": "3"})),
        Step("POST", PODS, sized("d", {"cpu": "3"}, {"cpu": "3"})),
        Step("POST", PODS, sized("e", {"cpu": "100m"}, {"cpu": "2"})),
        Step("POST", PODS, {"metadata": {"generateName": "g-"}, "spec": {"containers": [{**CONTAINER, "resources": {"limits": {"cpu": "3"}}}]}}),
        Step("PATCH", PODS + "/e", {"metadata": {"labels": {"x": "y"}}}, MERGE_PATCH),
    )),
    Case("limits: memory without a request or limit", (
        limits({"type": "Container", "max": {"memory": "1Gi"}, "default": {"memory": "512Mi"}, "defaultRequest": {"memory": "256Mi"}}),
        PAUSE,
        Step("POST", PODS, sized("a", {}, {"memory": "2Gi"})),
        Step("POST", PODS, pod("b")),
    )),
    Case("limits: ratio", (
        limits({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}),
        PAUSE,
        Step("POST", PODS, sized("a", {"cpu": "1"}, {"cpu": "2"})),
        Step("POST", PODS, sized("b", {"cpu": "1"}, {"cpu": "2500m"})),
        Step("POST", PODS, pod("d")),
        Step("POST", PODS, sized("e", {"cpu": "1"})),
    )),
    Case("limits: of whole pods", (
        limits({"type": "Pod", "max": {"cpu": "2"}, "min": {"memory": "100Mi"}}),
        PAUSE,
        Step("POST", PODS, sized("a", {"cpu": "1", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"})),
        Step("POST", PODS, sized("b", {"memory": "1Gi"}, {"cpu": "3"})),
        Step("POST", PODS, sized("d", {"memory": "50Mi"}, {"cpu": "1"})),
        Step("POST", PODS, sized("e", {"memory": "100Mi"})),
        Step("POST", PODS, sized("f", {}, {"cpu": "1"})),
    )),
    Case("limits: ratio of whole pods", (
        limits({"type": "Pod", "maxLimitRequestRatio": {"memory": "1.5"}}),
        PAUSE,
        Step("POST", PODS, sized("a", {"memory": "1Gi"}, {"memory": "2Gi"})),
        Step("POST", PODS, sized("b", {"memory": "1Gi"}, {"memory": "1536Mi"})),
    )),
    Case("limits: of claims", (
        limits({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "5Gi"}}),
        PAUSE,
        Step("POST", CLAIMS, claim("a", "500Mi")),
        Step("POST", CLAIMS, claim("b", "6Gi")),
        Step("POST", CLAIMS, claim("d", "5Gi")),
    )),
    Case("limits: pods with resources of their own", (
        limits({"type": "Pod", "max": {"cpu": "2"}}),
        PAUSE,
        Step("POST", PODS, pod("a", resources={"limits": {"cpu": "3"}})),
        Step("POST", PODS, pod("b", resources={"limits": {"cpu": "1"}})),
    )),
    Case("limit ranges that are refused", (
        limits({"type": "Nonsense", "max": {"cpu": "2"}}),
        limits({"type": "Pod", "default": {"cpu": "2"}}),
        limits({"type": "Pod"}, {"type": "Pod"}),
        limits({"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}}),
        limits({"type": "Container", "min": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}),
        limits({"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}),
        limits({"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}}),
        limits({"type": "Container", "maxLimitRequestRatio": {"cpu": "500m"}}),
        limits({"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "4"}}),
        limits({"type": "PersistentVolumeClaim"}),
        limits({"type": "Container", "default": {"gpu": "1"}}),
        limits({"type": "Container", "default": {"example.com/gpu": "1"}, "defaultRequest": {"example.com/gpu": "2"}}),
    )),
]  # fmt: skip


QUOTA_CASES = [
    Case("quotas: pods", (
        *quota({"pods": "2"}),
        Step("POST", PODS, pod("a")),
        USED,
        Step("POST", PODS + "?dryRun=All", pod("x")),
        USED,
        Step("POST", PODS, pod("b")),
        Step("POST", PODS, pod("d")),
        Step("POST", PODS, pod("a")),
        USED,
    )),
    Case("quotas: compute resources", (
        *quota({"requests.cpu": "2", "limits.memory": "2Gi", "memory": "1Gi"}),
        Step("POST", PODS, pod("a")),
        Step("POST", PODS, pod("n", containers=[CONTAINER, {**CONTAINER, "name": "d"}])),
        Step("POST", PODS, sized("b", {"cpu": "1500m", "memory": "256Mi"}, {"memory": "1Gi"})),
        USED,
        Step("POST", PODS, sized("d", {"cpu": "1", "memory": "256Mi"}, {"memory": "1Gi"})),
        Step("POST", PODS, sized("e", {"cpu": "600m", "memory": "1Gi"}, {"memory": "3Gi"})),
        Step("POST", PODS, sized("f", {"cpu": "500m", "memory": "256Mi"}, {"memory": "1Gi"})),
        USED,
    )),
    Case("quotas: a status that is not there yet", (
        Step("POST", QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}}),
        Step("POST", PODS, pod("a")),
        Step("PATCH", QUOTAS + "/q/status", {"status": {"hard": {"pods": "1"}}}, MERGE_PATCH),
        PAUSE,
        Step("POST", PODS, pod("b")),
    )),
    Case("quotas: extended resources and huge pages", (
        *quota({"requests.example.com/gpu": "2", "hugepages-2Mi": "4Mi", "requests.ephemeral-storage": "1Gi"}),
        Step("POST", PODS, sized("a", {"example.com/gpu": "2"}, {"example.com/gpu": "2"})),
        Step("POST", PODS, sized("b", {"example.com/gpu": "1"}, {"example.com/gpu": "1"})),
        Step("POST", PODS, sized("d", {"hugepages-2Mi": "6Mi", "cpu": "1"}, {"hugepages-2Mi": "6Mi"})),
        Step("POST", PODS, sized("e", {"ephemeral-storage": "2Gi"})),
        USED,
    )),
    Case("quotas: counts of objects", (
        *quota({"count/configmaps": "1", "configmaps": "5", "count/deployments.apps": "0", "services": "1", "services.nodeports": "1"}),
        Step("POST", MAPS, {"metadata": {"name": "a"}}),
        Step("POST", MAPS, {"metadata": {"name": "b"}}),
        Step("POST", "/apis/apps/v1/namespaces/{ns}/deployments", {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [CONTAINER]}}}}),
        Step("POST", SERVICES, {"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 1, "name": "a"}, {"port": 2, "name": "b"}]}}),
        Step("POST", SERVICES, {"metadata": {"name": "s"}, "spec": {"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"port": 1}]}}),
        Step("POST", SERVICES, {"metadata": {"name": "t"}, "spec": {"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"port": 1}]}}),
        USED,
    )),
    Case("quotas: claims and storage classes", (
        *quota({"requests.storage": "5Gi", "fast.storageclass.storage.k8s.io/requests.storage": "2Gi", "fast.storageclass.storage.k8s.io/persistentvolumeclaims": "1", "persistentvolumeclaims": "3"}),
        Step("POST", CLAIMS, claim("a", "3Gi", "fast")),
        Step("POST", CLAIMS, claim("b", "1Gi", "fast")),
        Step("POST", CLAIMS, claim("d", "1Gi", "fast")),
        Step("POST", CLAIMS, claim("e", "5Gi", "slow")),
        Step("POST", CLAIMS, claim("f", "4Gi", "slow")),
        USED,
    )),
    Case("quotas: scopes", (
        *quota({"pods": "0"}, scopes=["BestEffort"]),
        Step("POST", PODS, pod("a")),
        Step("POST", PODS, sized("b", {"cpu": "1"})),
        USED,
    )),
    Case("quotas: terminating pods", (
        *quota({"pods": "1", "cpu": "1"}, scopes=["Terminating"]),
        Step("POST", PODS, sized("a", {"cpu": "1"}, activeDeadlineSeconds=10)),
        Step("POST", PODS, sized("b", {"cpu": "1"}, activeDeadlineSeconds=10)),
        Step("POST", PODS, sized("d", {"cpu": "1"})),
        Step("PATCH", PODS + "/d", {"spec": {"activeDeadlineSeconds": 10}}, MERGE_PATCH),
        USED,
    )),
    Case("quotas: by priority class", (
        *quota({"pods": "1"}, scopeSelector={"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}]}),
        Step("POST", PODS, pod("a", priorityClassName="system-node-critical")),
        Step("POST", PODS, pod("b", priorityClassName="system-node-critical")),
        Step("POST", PODS, pod("d")),
        USED,
    )),
    Case("quotas: affinity across namespaces", (
        *quota({"pods": "0"}, scopes=["CrossNamespacePodAffinity"]),
        Step("POST", PODS, pod("a", affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "z", "namespaces": ["x"], "labelSelector": {}}]}})),
        Step("POST", PODS, pod("b", affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "z", "labelSelector": {}}]}})),
    )),
    Case("quotas that are refused", tuple(
        Step("POST", QUOTAS, {"metadata": {"name": "q"}, "spec": spec})
        for spec in (
            {"hard": {"nonsense": "1"}},
            {"hard": {"pods": "-1"}},
            {"hard": {"pods": "500m"}},
            {"hard": {"pods": "1"}, "scopes": ["Nonsense"]},
            {"hard": {"pods": "1"}, "scopes": ["BestEffort", "NotBestEffort"]},
            {"hard": {"cpu": "1"}, "scopes": ["BestEffort"]},
            {"hard": {"services": "1"}, "scopes": ["Terminating"]},
            {"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}},
            {"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [{"scopeName": "Terminating", "operator": "In", "values": ["a"]}]}},
            {"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Near", "values": ["a"]}]}},
        )
    )),
    Case("quotas: scopes stay", (
        *quota({"pods": "1"}, scopes=["BestEffort"]),
        Step("PATCH", QUOTAS + "/q", {"spec": {"scopes": None}}, MERGE_PATCH),
        Step("PATCH", QUOTAS + "/q", {"spec": {"hard": {"pods": "3"}}}, MERGE_PATCH),
    )),
]  # fmt: skip


NO_RULES: Json = {
    "apiGroups": ["none.example.com"],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["things"],
}
HOOK: Json = {
    "name": "hook.example.com",
    "clientConfig": {"url": "https://127.0.0.1:9/hook"},
    "rules": [NO_RULES],
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
}
RULES: Json = {"resourceRules": [NO_RULES]}
REQUEST = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIV01INENBUUF3SERFYU1CZ0dBMVVFQXd3UmMzbHpkR1Z0T201dlpHVTZaWGhoYlhCc1pUQlpNQk1HQnlxRwpTTTQ5QWdFR0NDcUdTTTQ5QXdFSEEwSUFCQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBCkFBQUFBQUE9Ci0tLS0tRU5EIENFUlRJRklDQVRFIFJFUVVFU1QtLS0tLQo="
ROOT = "/apis/admissionregistration.k8s.io/v1"
GROUP_KINDS = (
    Kind(
        ROOT,
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        {"webhooks": [HOOK]},
        LABELS,
        {"webhooks": 3},
        False,
    ),
    Kind(
        ROOT,
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        {"webhooks": [HOOK]},
        LABELS,
        {"webhooks": 3},
        False,
    ),
    Kind(
        ROOT,
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        {"spec": {"matchConstraints": RULES, "validations": [{"expression": "true"}]}},
        {"spec": {"failurePolicy": "Ignore"}},
        {"spec": 3},
        False,
    ),
    Kind(
        ROOT,
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        {"spec": {"policyName": "p", "validationActions": ["Deny"]}},
        {"spec": {"validationActions": ["Warn"]}},
        {"spec": 3},
        False,
    ),
    Kind(
        ROOT,
        "mutatingadmissionpolicies",
        "MutatingAdmissionPolicy",
        {
            "spec": {
                "matchConstraints": RULES,
                "reinvocationPolicy": "Never",
                "mutations": [
                    {
                        "patchType": "JSONPatch",
                        "jsonPatch": {"expression": "[JSONPatch{op: 'remove', path: '/spec'}]"},
                    }
                ],
            }
        },
        {"spec": {"failurePolicy": "Ignore"}},
        {"spec": 3},
        False,
    ),
    Kind(
        ROOT,
        "mutatingadmissionpolicybindings",
        "MutatingAdmissionPolicyBinding",
        {"spec": {"policyName": "p"}},
        LABELS,
        {"spec": 3},
        False,
    ),
    Kind(
        "/apis/flowcontrol.apiserver.k8s.io/v1",
        "flowschemas",
        "FlowSchema",
        {"spec": {"priorityLevelConfiguration": {"name": "exempt"}}},
        {"spec": {"matchingPrecedence": 7}},
        {"spec": 3},
        False,
    ),
    Kind(
        "/apis/flowcontrol.apiserver.k8s.io/v1",
        "prioritylevelconfigurations",
        "PriorityLevelConfiguration",
        {"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}},
        {"spec": {"limited": {"nominalConcurrencyShares": 3}}},
        {"spec": 3},
        False,
    ),
    Kind(
        "/apis/node.k8s.io/v1",
        "runtimeclasses",
        "RuntimeClass",
        {"handler": "h"},
        LABELS,
        {"handler": 3},
        False,
    ),
)
STEADY = ("create twice", "verbs that are not there")
"""Of flow schemas: a controller in kube-apiserver writes their status at any time after that."""
GROUP_CASES = [
    Case(f"{kind.plural}.{kind.api_version}: {name}", steps(kind))
    for kind in GROUP_KINDS
    for name, steps in OPERATIONS.items()
    if kind.kind != "FlowSchema" or name in STEADY
]


RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLES, BINDINGS = f"{RBAC}/namespaces/{{ns}}/roles", f"{RBAC}/namespaces/{{ns}}/rolebindings"
REVIEWS = "/apis/authorization.k8s.io/v1"


def rule(verbs: str, resources: str = "pods", group: str = "", names: tuple[str, ...] = ()) -> Json:
    found: Json = {"apiGroups": [group], "resources": resources.split(","), "verbs": verbs.split(",")}
    return {**found, "resourceNames": list(names)} if names else found


def role(name: str, *rules: Json, kind: str = "roles", **more: Any) -> Step:
    path = ROLES if kind == "roles" else f"{RBAC}/{kind}"
    return Step("POST", path, {"metadata": {"name": name, **more}, "rules": list(rules)})


def bound(role: str, *subjects: Json, kind: str = "Role", where: str = BINDINGS, name: str = "b") -> Step:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    return Step("POST", where, {"metadata": {"name": name}, "roleRef": reference, "subjects": list(subjects)})


def user(name: str = "{ns}-alice") -> Json:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}


def by(name: str, *steps: Step, groups: tuple[str, ...] = ()) -> tuple[Step, ...]:
    """The same as somebody else."""
    headers = (("Impersonate-User", name), *(("Impersonate-Group", group) for group in groups))
    return tuple(step._replace(headers=headers) for step in steps)


def review(kind: str = "selfsubjectaccessreviews", **spec: Any) -> Step:
    return Step("POST", f"{REVIEWS}/{kind}", {"spec": spec})


ALICE = "{ns}-alice"
DEVICE_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaims"
DEVICE: Json = {"driver": "d.example.com", "pool": "p", "device": "x"}
ALLOCATION: Json = {"devices": {"results": [{"request": "r", **DEVICE}]}}


def device_claim(**request: Any) -> Json:
    requests = [{"name": "r", "exactly": {"deviceClassName": "d", **request}}]
    return {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}}


def claim_status(**status: Any) -> Step:
    return Step("PATCH", DEVICE_CLAIMS + "/c/status", {"status": status}, MERGE_PATCH)


RBAC_CASES = [
    Case("rbac: nothing is allowed to a stranger", by(ALICE,
        Step("GET", PODS),
        Step("GET", PODS + "/p"),
        Step("GET", "/api/v1/pods"),
        Step("GET", "/api/v1/nodes/n"),
        Step("POST", PODS, pod()),
        Step("PATCH", PODS + "/p", {}, MERGE_PATCH),
        Step("PUT", PODS + "/p/status", {}),
        Step("DELETE", PODS + "/p"),
        Step("DELETE", PODS),
        Step("GET", PODS + "?watch=1"),
        Step("GET", PODS + "?fieldSelector=metadata.name%3Dp"),
        Step("GET", PODS + "/p/log"),
        Step("GET", "/apis/apps/v1/namespaces/{ns}/deployments"),
        Step("GET", "/apis/nonsense.example.com/v1/things"),
        Step("GET", "/api/v1/namespaces/{ns}"),
        Step("DELETE", "/api/v1/namespaces/{ns}"),
        Step("GET", "/metrics"),
        Step("POST", "/nonsense"),
        Step("GET", "/healthz"),
    )),
    Case("rbac: a role in a namespace", (
        role("r", rule("get,list,watch"), rule("update", "pods/status"), rule("get", "configmaps", names=("one",))),
        bound("r", user()),
        PAUSE,
        *by(ALICE,
            Step("GET", PODS),
            Step("GET", PODS + "/none"),
            Step("POST", PODS, pod()),
            Step("GET", "/api/v1/pods"),
            Step("GET", MAPS + "/one"),
            Step("GET", MAPS + "/two"),
            Step("GET", MAPS),
            Step("GET", MAPS + "?fieldSelector=metadata.name%3Done"),
            Step("PUT", PODS + "/none/status", pod("none")),
            Step("GET", PODS + "/none/status"),
        ),
        Step("DELETE", BINDINGS + "/b"),
        PAUSE,
        *by(ALICE, Step("GET", PODS)),
    )),
    Case("rbac: cluster roles", (
        role("{ns}-c", rule("*", "*", "*"), kind="clusterroles"),
        bound("{ns}-c", user(), kind="ClusterRole"),
        PAUSE,
        *by(ALICE, Step("GET", PODS), Step("GET", "/api/v1/pods"), Step("GET", "/api/v1/nodes")),
        bound("{ns}-c", user(), kind="ClusterRole", where=f"{RBAC}/clusterrolebindings", name="{ns}-c"),
        PAUSE,
        *by(ALICE, Step("GET", "/api/v1/pods?labelSelector=none%3D{ns}"), Step("GET", "/apis/nonsense/v1/things"), Step("GET", "/metrics/nonsense")),
    )),
    Case("rbac: a role that is not there", (
        bound("none", user()),
        bound("{ns}-none", user(), kind="ClusterRole", name="c"),
        PAUSE,
        *by(ALICE, Step("GET", MAPS)),
    )),
    Case("rbac: groups and service accounts", (
        role("r", rule("list")),
        bound("r", {"kind": "Group", "name": "{ns}-devs"}, {"kind": "ServiceAccount", "name": "robot", "namespace": "{ns}"}),
        PAUSE,
        *by(ALICE, Step("GET", PODS)),
        *by(ALICE, Step("GET", PODS), groups=("{ns}-devs",)),
        *by("system:serviceaccount:{ns}:robot", Step("GET", PODS)),
        *by("system:serviceaccount:{ns}:other", Step("GET", PODS)),
    )),
    Case("rbac: paths", (
        Step("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "{ns}-p"}, "rules": [{"nonResourceURLs": ["/nonsense", "/logs/*"], "verbs": ["get"]}]}),
        bound("{ns}-p", user(), kind="ClusterRole", where=f"{RBAC}/clusterrolebindings", name="{ns}-p"),
        PAUSE,
        *by(ALICE, Step("GET", "/nonsense"), Step("GET", "/nonsense/more"), Step("GET", "/logs/nonsense"), Step("POST", "/nonsense")),
    )),
    Case("rbac: reviews", (
        role("r", rule("get,list"), rule("get", "pods/log"), rule("delete", "deployments", "apps", ("web",))),
        bound("r", user()),
        PAUSE,
        *by(ALICE,
            review(resourceAttributes={"namespace": "{ns}", "verb": "get", "resource": "pods"}),
            review(resourceAttributes={"namespace": "{ns}", "verb": "create", "resource": "pods"}),
            review(resourceAttributes={"namespace": "{ns}", "verb": "get", "resource": "pods", "subresource": "log"}),
            review(resourceAttributes={"namespace": "{ns}", "verb": "delete", "group": "apps", "resource": "deployments", "name": "web"}),
            review(resourceAttributes={"verb": "get", "resource": "pods"}),
            review(nonResourceAttributes={"verb": "get", "path": "/openapi/v2"}),
            review(nonResourceAttributes={"verb": "get", "path": "/metrics"}),
            review(),
            review("subjectaccessreviews", user="x", resourceAttributes={"verb": "get", "resource": "pods"}),
        ),
        review("subjectaccessreviews", user="{ns}-alice", resourceAttributes={"namespace": "{ns}", "verb": "list", "resource": "pods"}),
        review("subjectaccessreviews", user="x", groups=["system:masters"], resourceAttributes={"verb": "list", "resource": "pods"}),
        review("subjectaccessreviews", user="bob", resourceAttributes={"namespace": "{ns}", "verb": "list", "resource": "pods"}),
        review("subjectaccessreviews", resourceAttributes={"verb": "list", "resource": "pods"}),
        review("subjectaccessreviews", user="bob"),
        Step("POST", f"{REVIEWS}/namespaces/{{ns}}/localsubjectaccessreviews", {"metadata": {"namespace": "{ns}"}, "spec": {"user": "{ns}-alice", "resourceAttributes": {"namespace": "{ns}", "verb": "get", "resource": "pods"}}}),
        Step("POST", f"{REVIEWS}/namespaces/{{ns}}/localsubjectaccessreviews", {"metadata": {"namespace": "{ns}"}, "spec": {"user": "{ns}-alice", "resourceAttributes": {"namespace": "other", "verb": "get", "resource": "pods"}}}),
    )),
    Case("rbac: rules of oneself", (
        role("r", rule("get,list"), rule("delete", "deployments", "apps", ("web",))),
        bound("r", user()),
        PAUSE,
        *by(ALICE, review("selfsubjectrulesreviews", namespace="{ns}"), review("selfsubjectrulesreviews")),
    )),
    Case("claims: access as an administrator", (
        Step("POST", DEVICE_CLAIMS, device_claim(adminAccess=True)),
        Step("POST", "/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaimtemplates", {"metadata": {"name": "c"}, "spec": {"spec": device_claim(adminAccess=True)["spec"]}}),
        Step("PATCH", "/api/v1/namespaces/{ns}", {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}, MERGE_PATCH),
        PAUSE,
        Step("POST", DEVICE_CLAIMS, device_claim(adminAccess=True)),
        Step("POST", "/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaimtemplates", {"metadata": {"name": "c"}, "spec": {"spec": device_claim(adminAccess=True)["spec"]}}),
    )),
    Case("rbac: the status of claims", (
        Step("POST", DEVICE_CLAIMS, device_claim()),
        role("r", rule("get,patch", "resourceclaims,resourceclaims/status", "resource.k8s.io")),
        bound("r", user()),
        PAUSE,
        *by(ALICE, claim_status(allocation=ALLOCATION)),
        claim_status(allocation=ALLOCATION),
        *by(ALICE, claim_status(devices=[DEVICE]), claim_status(reservedFor=[{"resource": "pods", "name": "p", "uid": "u"}])),
        role("s", rule("arbitrary-node:patch", "resourceclaims/driver", "resource.k8s.io", ("d.example.com",))),
        bound("s", user(), name="s"),
        PAUSE,
        *by(ALICE, claim_status(devices=[DEVICE])),
    )),
    Case("rbac: who one is", (
        *by(ALICE, Step("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}), groups=("a", "b")),
        *by("system:serviceaccount:{ns}:robot", Step("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})),
        Step("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, headers=(("Impersonate-User", "u"), ("Impersonate-Uid", "7"), ("Impersonate-Extra-Scopes", "view"))),
        Step("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, headers=(("Impersonate-User", "u"), ("Impersonate-Extra-Example.com%2fNode-Name", "n"), ("Impersonate-Extra-100%zz", "x"))),
        Step("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, headers=(("Impersonate-Group", "a"),)),
    )),
    Case("rbac: impersonation needs a right", (
        Step("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "{ns}-i"}, "rules": [rule("impersonate", "users", names=("{ns}-bob",)), rule("create", "tokenreviews", "authentication.k8s.io")]}),
        bound("{ns}-i", user(), kind="ClusterRole", where=f"{RBAC}/clusterrolebindings", name="{ns}-i"),
        PAUSE,
        *by(ALICE, Step("GET", PODS)),
        *by(ALICE, review("subjectaccessreviews", user="{ns}-alice", resourceAttributes={"verb": "impersonate", "resource": "users", "name": "{ns}-bob"})),
    )),
    Case("rbac: nobody grants more than he may", (
        role("{ns}-wide", rule("get,watch,delete", "pods,services"), rule("list", "nodes"), kind="clusterroles"),
        role("r", rule("get,list"), rule("create,update,patch", "roles,rolebindings", "rbac.authorization.k8s.io")),
        bound("r", user()),
        PAUSE,
        *by(ALICE,
            role("same", rule("get")),
            role("more", rule("get,delete"), rule("get", "secrets")),
            role("all", rule("*", "*", "*")),
            role("named", rule("delete", names=("p",))),
            Step("PATCH", ROLES + "/same", {"rules": [rule("get,watch")]}, MERGE_PATCH),
            Step("PATCH", ROLES + "/same", {"metadata": {"labels": {"a": "b"}}}, MERGE_PATCH),
            bound("same", user("bob"), name="x"),
            bound("{ns}-wide", user("bob"), kind="ClusterRole", name="y"),
            bound("none", user("bob"), name="z"),
            Step("PATCH", BINDINGS + "/x", {"subjects": [user("eve")]}, MERGE_PATCH),
        ),
    )),
    Case("rbac: the rights to escalate and to bind", (
        role("{ns}-wide", rule("get"), kind="clusterroles"),
        role("{ns}-other", rule("get"), kind="clusterroles"),
        role("r", rule("create", "roles,rolebindings", "rbac.authorization.k8s.io"), rule("escalate", "roles", "rbac.authorization.k8s.io"), rule("bind", "clusterroles", "rbac.authorization.k8s.io", ("{ns}-wide",))),
        bound("r", user()),
        PAUSE,
        *by(ALICE,
            role("more", rule("get,delete"), rule("get", "secrets")),
            bound("{ns}-wide", user("bob"), kind="ClusterRole", name="y"),
            bound("{ns}-other", user("bob"), kind="ClusterRole", name="z"),
        ),
    )),
    Case("rbac: roles and bindings that are refused", (
        role("r", {"apiGroups": [""], "resources": ["pods"]}),
        role("r", {"resources": ["pods"], "verbs": ["get"]}),
        role("r", {"apiGroups": [""], "verbs": ["get"]}),
        role("r", {"nonResourceURLs": ["/x"], "verbs": ["get"]}),
        role("{ns}-r", {"apiGroups": [""], "resources": ["pods"], "nonResourceURLs": ["/x"], "verbs": ["get"]}, kind="clusterroles"),
        bound("r", {"kind": "User"}),
        bound("r", {"kind": "ServiceAccount", "name": "a"}),
        bound("r", {"kind": "Nonsense", "name": "a"}),
        bound("", user()),
        bound("r", user(), kind="Nonsense"),
        bound("r", user(), where=f"{RBAC}/clusterrolebindings", name="{ns}-r"),
    )),
    Case("rbac: service account tokens", (
        Step("POST", "/api/v1/namespaces/{ns}/serviceaccounts", {"metadata": {"name": "robot"}}),
        Step("POST", "/api/v1/namespaces/{ns}/serviceaccounts/robot/token", {"spec": {"audiences": ["x"], "expirationSeconds": 60}}),
        Step("POST", "/api/v1/namespaces/{ns}/serviceaccounts/none/token", {}),
        Step("POST", "/api/v1/namespaces/{ns}/serviceaccounts/robot/token", {"spec": {"audiences": ["x"], "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "none"}}}),
        Step("POST", "/api/v1/namespaces/{ns}/serviceaccounts/robot/token", {"spec": {"audiences": ["x"], "boundObjectRef": {"kind": "Node", "apiVersion": "v2", "name": "none"}}}),
        Step("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "nonsense"}}),
        Step("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {}}),
    )),
]  # fmt: skip


EVENTS = "/api/v1/namespaces/{ns}/events"
NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/{ns}/events"
EVENT_CASES = [
    Case("events: selected by source", (
        Step("POST", EVENTS, {"metadata": {"name": "old"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "{ns}"}, "reason": "R", "source": {"component": "{ns}-kubelet", "host": "n"}}),
        Step("POST", NEW_EVENTS, {"metadata": {"name": "new"}, "regarding": {"kind": "Pod", "name": "p", "namespace": "{ns}"}, "reason": "R", "note": "n", "type": "Normal", "action": "A", "reportingController": "example.com/c", "reportingInstance": "i", "eventTime": "2026-01-02T03:04:05.000006Z"}),
        Step("GET", EVENTS + "?fieldSelector=source%3D{ns}-kubelet"),
        Step("GET", EVENTS + "?fieldSelector=source%3Dexample.com/c"),
        Step("GET", EVENTS + "?fieldSelector=reportingComponent%3Dexample.com/c"),
        Step("GET", NEW_EVENTS + "?fieldSelector=source%3Dexample.com/c"),
        Step("GET", NEW_EVENTS + "?fieldSelector=reportingController%3Dexample.com/c"),
    )),
]  # fmt: skip


POLICIES, POLICY_BINDINGS = f"{ROOT}/validatingadmissionpolicies", f"{ROOT}/validatingadmissionpolicybindings"
HERE: Json = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "{ns}"}}}
ON_MAPS: Json = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE", "UPDATE"],
    "resources": ["configmaps"],
}


def policy(
    *validations: Json, rules: tuple[Json, ...] = (ON_MAPS,), binding: Json | None = None, **spec: Any
) -> tuple[Step, ...]:
    match = {**HERE, "resourceRules": list(rules)}
    body = {"matchConstraints": match, "validations": list(validations), **spec}
    bound = {"policyName": "{ns}-p", "validationActions": ["Deny"], **(binding or {})}
    return (
        Step("QUIET", POLICIES, {"metadata": {"name": "{ns}-p"}, "spec": body}),
        Step("QUIET", POLICY_BINDINGS, {"metadata": {"name": "{ns}-b"}, "spec": bound}),
        *(PAUSE,) * 3,
    )


def config(name: str = "a", labels: Json | None = None, **data: str) -> Step:
    return Step("POST", MAPS, {"metadata": {"name": name, "labels": labels or {"app": "x"}}, "data": data})


GONE = (Step("DELETE", POLICIES + "/{ns}-p"), Step("DELETE", POLICY_BINDINGS + "/{ns}-b"))
POLICY_CASES = [
    Case("policies: an expression decides", (
        *policy({"expression": "object.metadata.name.startsWith('good')"}),
        config("good"), config("bad"),
        Step("PATCH", MAPS + "/good", {"data": {"a": "b"}}, MERGE_PATCH),
    )),
    Case("policies: messages and reasons", (
        *policy(
            {"expression": "!('a' in object.data)", "message": "a is not allowed", "reason": "Forbidden"},
            {"expression": "!('b' in object.data)", "messageExpression": "'b is ' + string(object.data.b)"},
            {"expression": "!('c' in object.data)", "message": "plain", "messageExpression": "string(object.data.none)"},
            {"expression": "!('d' in object.data)", "reason": "RequestEntityTooLarge"},
        ),
        config(a="1"), config(b="2"), config(c="3"), config(d="4"), config(a="1", b="2"), config("z", e="5"),
    )),
    Case("policies: an expression that fails", (
        *policy({"expression": "object.data.none == 'x'"}),
        config(a="1"),
    )),
    Case("policies: failures that are ignored", (
        *policy({"expression": "object.data.none == 'x'"}, failurePolicy="Ignore"),
        config(a="1"),
    )),
    Case("policies: conditions, variables, old objects, requests", (
        *policy(
            {"expression": "variables.allowed"},
            matchConditions=[{"name": "not-exempt", "expression": "!object.metadata.name.startsWith('exempt')"}],
            variables=[
                {"name": "size", "expression": "has(object.data) ? object.data.size() : 0"},
                {"name": "allowed", "expression": "variables.size < 2 && (oldObject == null || request.operation == 'UPDATE') && request.namespace == '{ns}' && request.userInfo.username == 'admin' && namespaceObject.metadata.name == '{ns}'"},
            ],
        ),
        config("one", a="1"), config("two", a="1", b="2"), config("exempt", a="1", b="2"),
        Step("PATCH", MAPS + "/one", {"data": {"b": "2"}}, MERGE_PATCH),
    )),
    Case("policies: selected objects and names", (
        *policy({"expression": "false"}, binding={"matchResources": {"objectSelector": {"matchLabels": {"env": "test"}}}}),
        config("a"), config("b", {"env": "test"}),
    )),
    Case("policies: excluded resources", (
        *policy({"expression": "false"}, matchConstraints={**HERE, "resourceRules": [{**ON_MAPS, "resources": ["*"]}], "excludeResourceRules": [{**ON_MAPS, "resourceNames": ["free"]}]}),
        config("free"), config("bound"), Step("POST", "/api/v1/namespaces/{ns}/serviceaccounts", {"metadata": {"name": "s"}}),
    )),
    Case("policies: params", (
        Step("QUIET", "/api/v1/namespaces/{ns}/secrets", {"metadata": {"name": "limits"}, "stringData": {"max": "MQ=="}}),
        *policy(
            {"expression": "string(params.data.max) != '' && object.data.size() < 2", "messageExpression": "'params ' + params.metadata.name"},
            paramKind={"apiVersion": "v1", "kind": "Secret"},
            binding={"paramRef": {"name": "limits", "namespace": "{ns}", "parameterNotFoundAction": "Deny"}},
        ),
        config("a", x="1"), config("b", x="1", y="2"),
    )),
    Case("policies: params that are not there", (
        *policy(
            {"expression": "true"},
            paramKind={"apiVersion": "v1", "kind": "Secret"},
            binding={"paramRef": {"name": "none", "namespace": "{ns}", "parameterNotFoundAction": "Deny"}},
        ),
        config("a"),
    )),
    Case("policies: params that need not be there", (
        *policy(
            {"expression": "params == null"},
            paramKind={"apiVersion": "v1", "kind": "Secret"},
            binding={"paramRef": {"name": "none", "namespace": "{ns}", "parameterNotFoundAction": "Allow"}},
        ),
        config("a"),
    )),
    Case("policies: deletions", (
        config("a"), config("keep"),
        *policy({"expression": "object == null && oldObject.metadata.name != 'keep'"}, rules=({**ON_MAPS, "operations": ["DELETE"]},)),
        Step("DELETE", MAPS + "/a"), Step("DELETE", MAPS + "/keep"), Step("DELETE", MAPS),
    )),
    Case("policies: audit annotations, warnings", (
        *policy({"expression": "false"}, auditAnnotations=[{"key": "k", "valueExpression": "'v'"}], binding={"validationActions": ["Audit"]}),
        config("a"),
    )),
    Case("policies: the authorizer", (
        *policy({"expression": "authorizer.group('').resource('pods').namespace('{ns}').check('create').allowed()"}),
        config("a"),
    )),
]  # fmt: skip


MUTATING, MUTATING_BINDINGS = f"{ROOT}/mutatingadmissionpolicies", f"{ROOT}/mutatingadmissionpolicybindings"


def mutation(
    expression: str, kind: str = "ApplyConfiguration", rules: tuple[Json, ...] = (ON_MAPS,), **spec: Any
) -> tuple[Step, ...]:
    field = "applyConfiguration" if kind == "ApplyConfiguration" else "jsonPatch"
    body = {
        "matchConstraints": {**HERE, "resourceRules": list(rules)},
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": kind, field: {"expression": expression}}],
        **spec,
    }
    return (
        Step("QUIET", MUTATING, {"metadata": {"name": "{ns}-p"}, "spec": body}),
        Step("QUIET", MUTATING_BINDINGS, {"metadata": {"name": "{ns}-b"}, "spec": {"policyName": "{ns}-p"}}),
        *(PAUSE,) * 3,
    )


ON_PODS: Json = {**ON_MAPS, "resources": ["pods"]}
MUTATION_CASES = [
    Case("mutations: a configuration is applied", (
        *mutation("Object{metadata: Object.metadata{labels: {'added': object.metadata.name}}}"),
        config("a"),
    )),
    Case("mutations: a sidecar", (
        *mutation("Object{spec: Object.spec{initContainers: [Object.spec.initContainers{name: 'side', image: 'side:1', restartPolicy: 'Always'}]}}", rules=(ON_PODS,)),
        Step("POST", PODS, pod("a")),
    )),
    Case("mutations: a JSON patch", (
        *mutation("[JSONPatch{op: 'add', path: '/data/' + jsonpatch.escapeKey('k'), value: 'v'}]", "JSONPatch"),
        config("a", x="1"),
    )),
    Case("mutations: a test that fails", (
        *mutation("[JSONPatch{op: 'test', path: '/metadata/name', value: 'other'}, JSONPatch{op: 'remove', path: '/data'}]", "JSONPatch"),
        config("a", x="1"),
    )),
    Case("mutations: an expression that fails", (
        *mutation("Object{data: {'x': string(object.data.none)}}"),
        config("a", x="1"),
    )),
    Case("mutations: a field that is not there", (
        *mutation("Object{nope: 1}"),
        config("a", x="1"),
    )),
    Case("mutations: failures that are ignored", (
        *mutation("Object{nope: 1}", failurePolicy="Ignore"),
        config("a", x="1"),
    )),
    Case("mutations: conditions and variables", (
        *mutation(
            "Object{metadata: Object.metadata{annotations: {'size': variables.size}}}",
            variables=[{"name": "size", "expression": "string(object.data.size())"}],
            matchConditions=[{"name": "b", "expression": "'b' in object.data"}],
        ),
        config("a", a="1"), config("b", a="1", b="2"),
    )),
]  # fmt: skip


def secured(level: str, *bodies: Json, **more: str) -> tuple[Step, ...]:
    labels = {
        f"pod-security.kubernetes.io/{key.replace('_', '-')}": value
        for key, value in {"enforce": level, **more}.items()
    }
    return (
        Step("PATCH", "/api/v1/namespaces/{ns}", {"metadata": {"labels": labels}}, MERGE_PATCH),
        PAUSE,
        *(Step("POST", PODS + "?dryRun=All", body) for body in bodies),
    )


def context(**fields: Any) -> Json:
    return {"securityContext": fields}


SAFE = context(
    allowPrivilegeEscalation=False,
    runAsNonRoot=True,
    capabilities={"drop": ["ALL"]},
    seccompProfile={"type": "RuntimeDefault"},
)
SECURITY_CASES = [
    Case("pod security: baseline", secured("baseline",
        pod("ok"),
        pod("c", hostNetwork=True, hostPID=True, hostIPC=True),
        pod("d", container=context(capabilities={"add": ["NET_ADMIN", "CHOWN", "SYS_TIME"]})),
        pod("e", volumes=[{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "hostPath": {"path": "/"}}]),
        pod("f", container={"ports": [{"containerPort": 80, "hostPort": 80}, {"containerPort": 81, "hostPort": 81}]}),
        pod("h", securityContext={"seLinuxOptions": {"type": "bad_t", "user": "u", "role": "r"}}),
        pod("i", container=context(seccompProfile={"type": "Unconfined"}), securityContext={"seccompProfile": {"type": "Unconfined"}}),
        pod("j", securityContext={"sysctls": [{"name": "kernel.x", "value": "1"}, {"name": "net.ipv4.tcp_syncookies", "value": "1"}]}),
        pod("k", container=context(appArmorProfile={"type": "Unconfined"})),
        pod("l", container={"livenessProbe": {"httpGet": {"port": 80, "host": "1.2.3.4"}}}),
        pod("m", container=context(capabilities={"add": ["BPF"]}), initContainers=[{"name": "i", "image": "x", **context(capabilities={"add": ["BPF"]})}], hostPID=True),
    )),
    Case("pod security: restricted", secured("restricted",
        pod("ok", container=SAFE),
        pod("a"),
        pod("b", container={"securityContext": {**SAFE["securityContext"], "runAsUser": 0}}),
        pod("c", container={"securityContext": {**SAFE["securityContext"], "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE", "CHOWN"]}}}),
        pod("d", container=SAFE, volumes=[{"name": "v", "nfs": {"server": "s", "path": "/"}}, {"name": "w", "hostPath": {"path": "/"}}, {"name": "x", "emptyDir": {}}]),
        pod("e", container={"securityContext": {**SAFE["securityContext"], "runAsNonRoot": False}}),
        pod("f", container=SAFE, securityContext={"runAsNonRoot": False, "runAsUser": 0}),
        pod("g", container={"securityContext": {**SAFE["securityContext"], "seccompProfile": {"type": "Unconfined"}}}),
        pod("h", container={"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}, securityContext={"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}),
    )),
    Case("pod security: versions and levels that are none", (
        *secured("baseline", pod("a", hostPID=True), enforce_version="v1.30"),
        *secured("privileged", pod("a", hostPID=True)),
        Step("PATCH", "/api/v1/namespaces/{ns}", {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "nonsense", "pod-security.kubernetes.io/enforce-version": "x"}}}, MERGE_PATCH),
    )),
]  # fmt: skip


RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"
SCHEDULING: Json = {"nodeSelector": {"runtime": "yes"}, "tolerations": [{"key": "r", "operator": "Exists"}]}
RUNTIME_CASES = [
    Case("runtime classes: overhead", (
        Step("QUIET", RUNTIMES, {"metadata": {"name": "{ns}-r"}, "handler": "h", "overhead": {"podFixed": {"cpu": "100m", "memory": "64Mi"}}}),
        PAUSE,
        Step("POST", PODS, sized("a", {"cpu": "1"}, runtimeClassName="{ns}-r")),
        Step("POST", PODS, pod("b", runtimeClassName="{ns}-r", overhead={"cpu": "1"})),
        Step("POST", PODS, pod("c", runtimeClassName="{ns}-r", overhead={"cpu": "100m", "memory": "64Mi"})),
        Step("POST", PODS, pod("d", runtimeClassName="{ns}-none")),
        Step("POST", PODS, pod("e", overhead={"cpu": "1"})),
    )),
    Case("runtime classes: scheduling", (
        Step("QUIET", RUNTIMES, {"metadata": {"name": "{ns}-r"}, "handler": "h", "scheduling": SCHEDULING}),
        PAUSE,
        Step("POST", PODS, pod("a", runtimeClassName="{ns}-r", nodeSelector={"a": "b"})),
        Step("POST", PODS, pod("b", runtimeClassName="{ns}-r", nodeSelector={"runtime": "no"})),
        Step("POST", PODS, pod("c", runtimeClassName="{ns}-r", tolerations=[{"key": "r", "operator": "Exists"}, {"key": "s", "operator": "Exists"}])),
    )),
    Case("runtime classes: overhead counts for quotas", (
        Step("QUIET", RUNTIMES, {"metadata": {"name": "{ns}-r"}, "handler": "h", "overhead": {"podFixed": {"cpu": "100m"}}}),
        *quota({"requests.cpu": "1"}),
        Step("POST", PODS, sized("a", {"cpu": "1"}, runtimeClassName="{ns}-r")),
        Step("POST", PODS, sized("b", {"cpu": "900m"}, runtimeClassName="{ns}-r")),
        USED,
    )),
]  # fmt: skip


def admission_cases() -> list[Case]:
    return (
        LIMIT_CASES
        + QUOTA_CASES
        + GROUP_CASES
        + RBAC_CASES
        + EVENT_CASES
        + POLICY_CASES
        + MUTATION_CASES
        + SECURITY_CASES
        + RUNTIME_CASES
    )
