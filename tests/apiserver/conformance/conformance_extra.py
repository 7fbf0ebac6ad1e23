"""Cases that belong to single kinds: pods and their subresources, scale, status, custom resources, discovery."""

# ruff: noqa: E501  one case a line
from __future__ import annotations

from typing import Any

from conformance.conformance_steps import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    TABLE,
    Case,
    Step,
)

Json = dict[str, Any]

PODS = "/api/v1/namespaces/{ns}/pods"
NODES = "/api/v1/nodes"
BUDGETS = "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{ns}/deployments"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CONTAINER: Json = {"name": "c", "image": "registry.example/app:1"}


def pod(name: str = "p", *, container: Json | None = None, metadata: Json | None = None, **spec: Any) -> Json:
    containers = [{**CONTAINER, **(container or {})}]
    return {"metadata": {"name": name, **(metadata or {})}, "spec": {"containers": containers, **spec}}


def _pods(name: str, *bodies: Json) -> Case:
    return Case(f"pods: {name}", tuple(Step("POST", PODS + "?dryRun=All", body) for body in bodies))


def _affinity(side: str, **terms: Any) -> Json:
    return pod(affinity={side: terms})


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _terms(*expressions: Json, fields: list[Json] | None = None) -> Json:
    term = {"matchExpressions": list(expressions), **({"matchFields": fields} if fields else {})}
    return _affinity("nodeAffinity", **{REQUIRED: {"nodeSelectorTerms": [term]}})


POD_CASES = [
    _pods("no containers", {"metadata": {"name": "p"}}, {"metadata": {"name": "p"}, "spec": {"containers": []}}),
    _pods("containers without name or image", pod(container={"name": ""}), pod(container={"image": ""}), pod(container={"name": "Bad_"}), pod(container={"image": " x"})),
    _pods("two containers of one name", pod(containers=[CONTAINER, CONTAINER])),
    _pods("init containers", pod(initContainers=[{"name": "i", "image": "x"}]), pod(initContainers=[{"name": "c", "image": "x"}]), pod(initContainers=[{"name": "i", "image": "x", "restartPolicy": "Always"}])),
    _pods("pull policies", pod(container={"image": "x:latest"}), pod(container={"image": "host:5000/x"}), pod(container={"image": "x@sha256:0123"}), pod(container={"imagePullPolicy": "Often"})),
    _pods("restart policy, dns policy", pod(restartPolicy="Sometimes"), pod(restartPolicy="Never"), pod(dnsPolicy="Nonsense")),
    _pods("requests from limits", pod(container={"resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}), pod(container={"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1", "memory": "64Mi"}}})),
    _pods("requests above limits", pod(container={"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}})),
    _pods("negative and odd amounts", pod(container={"resources": {"requests": {"cpu": "-1"}}}), pod(container={"resources": {"requests": {"cpu": "0.0001"}}}), pod(container={"resources": {"requests": {"memory": "1.5Gi", "cpu": 2}}})),
    _pods("extended resources", pod(container={"resources": {"limits": {"example.com/gpu": "1"}}}), pod(container={"resources": {"requests": {"example.com/gpu": "1"}}}), pod(container={"resources": {"limits": {"example.com/gpu": "1.5"}}})),
    _pods("resources of odd names", pod(container={"resources": {"limits": {"gpu": "1"}}})),
    _pods("quality of service", pod(), pod(container={"resources": {"requests": {"cpu": "1"}}}), pod(container={"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}})),
    _pods("ports", pod(container={"ports": [{"containerPort": 80}]}), pod(container={"ports": [{"containerPort": 0}]}), pod(container={"ports": [{"containerPort": 70000}]}), pod(container={"ports": [{"containerPort": 80, "protocol": "HTTP"}]}), pod(container={"ports": [{"containerPort": 80, "name": "UPPER"}]})),
    _pods("host ports", pod(hostNetwork=True, container={"ports": [{"containerPort": 80}]}), pod(container={"ports": [{"containerPort": 80, "hostPort": 81}, {"containerPort": 82, "hostPort": 81}]})),
    _pods("volumes", pod(volumes=[{"name": "v"}]), pod(volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]), pod(volumes=[{"name": "v", "persistentVolumeClaim": {}}]), pod(volumes=[{"name": "v"}, {"name": "v"}]), pod(volumes=[{"name": "v", "configMap": {"name": "m"}}, {"name": "w", "secret": {"secretName": "s"}}])),
    _pods("mounts", pod(container={"volumeMounts": [{"name": "v", "mountPath": "/a"}]}), pod(volumes=[{"name": "v"}], container={"volumeMounts": [{"name": "v", "mountPath": "/a"}]}), pod(volumes=[{"name": "v"}], container={"volumeMounts": [{"name": "v"}]})),
    _pods("environment", pod(container={"env": [{"name": "A", "value": "b"}]}), pod(container={"env": [{"value": "b"}]}), pod(container={"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]})),
    _pods("probes", pod(container={"livenessProbe": {"httpGet": {"port": 80}}}), pod(container={"readinessProbe": {"tcpSocket": {"port": "http"}}})),
    _pods("node selectors", pod(nodeSelector={"a": "b"}), pod(nodeSelector={"a b": "c"})),
    _pods("node affinity", _terms({"key": "a", "operator": "In", "values": ["b"]}), _terms({"key": "a", "operator": "In"}), _terms({"key": "a", "operator": "Exists", "values": ["b"]}), _terms({"key": "a", "operator": "Gt", "values": ["1", "2"]}), _terms({"key": "a", "operator": "Near"})),
    _pods("node affinity by fields", _terms(fields=[{"key": "metadata.name", "operator": "In", "values": ["n"]}]), _terms(fields=[{"key": "spec.x", "operator": "In", "values": ["n"]}]), _terms(fields=[{"key": "metadata.name", "operator": "Exists"}])),
    _pods("node affinity without terms, with bad weights", _affinity("nodeAffinity", **{REQUIRED: {"nodeSelectorTerms": []}}), _affinity("nodeAffinity", **{PREFERRED: [{"weight": 0, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]})),
    _pods("pod affinity", _affinity("podAffinity", **{REQUIRED: [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}]}), _affinity("podAffinity", **{REQUIRED: [{"labelSelector": {}}]}), _affinity("podAntiAffinity", **{PREFERRED: [{"weight": 101, "podAffinityTerm": {"topologyKey": "zone"}}]}), _affinity("podAffinity", **{REQUIRED: [{"topologyKey": "zone", "labelSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]})),
    _pods("pod affinity by label keys", {**_affinity("podAffinity", **{REQUIRED: [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["v"]}]}), "metadata": {"name": "p", "labels": {"v": "1"}}}),
    _pods("tolerations", pod(tolerations=[{"key": "a", "operator": "Exists"}]), pod(tolerations=[{"operator": "Equal"}]), pod(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]), pod(tolerations=[{"key": "a", "effect": "Nonsense"}]), pod(tolerations=[{"key": "a", "operator": "Exists", "tolerationSeconds": 5}])),
    _pods("tolerations of nodes that are not ready", pod(tolerations=[{"operator": "Exists"}]), pod(tolerations=[{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}])),
    _pods("topology spread", pod(topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": "b"}}}]), pod(topologySpreadConstraints=[{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "Never"}]), pod(topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}])),
    _pods("topology spread twice over one key", pod(topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}, {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}])),
    _pods("topology spread by label keys", pod(metadata={"labels": {"v": "1"}}, topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["v"]}])),
    _pods("priority", pod(priorityClassName="system-node-critical"), pod(priorityClassName="nonsense"), pod(priority=5), pod(priorityClassName="system-cluster-critical", priority=2000000000), pod(preemptionPolicy="Never")),
    _pods("scheduling gates", pod(schedulingGates=[{"name": "example.com/g"}]), pod(schedulingGates=[{"name": "example.com/g"}], nodeName="n"), pod(schedulingGates=[{"name": "a b"}]), pod(schedulingGates=[{"name": "g"}, {"name": "g"}])),
    _pods("deadlines and names of hosts", pod(activeDeadlineSeconds=0), pod(hostname="A"), pod(nodeName="A_")),
    _pods("a status of its own", {**pod(), "status": {"phase": "Running"}}),
    Case("pods: updates", (
        Step("POST", PODS, pod()),
        Step("PATCH", PODS + "/p", {"spec": {"containers": [{"name": "c", "image": "new"}]}}, STRATEGIC_PATCH),
        Step("PATCH", PODS + "/p", {"spec": {"tolerations": [{"key": "x", "operator": "Exists"}]}}, MERGE_PATCH),
        Step("PATCH", PODS + "/p", {"spec": {"containers": [{"name": "d", "image": "new"}]}}, STRATEGIC_PATCH),
        Step("PATCH", PODS + "/p", {"spec": {"activeDeadlineSeconds": 10}}, MERGE_PATCH),
        Step("PATCH", PODS + "/p", {"spec": {"activeDeadlineSeconds": 20}}, MERGE_PATCH),
        Step("PATCH", PODS + "/p", {"spec": {"schedulingGates": [{"name": "g"}]}}, MERGE_PATCH),
    )),
    Case("pods: gates are taken off", (
        Step("POST", PODS, pod(schedulingGates=[{"name": "a"}, {"name": "b"}])),
        Step("PATCH", PODS + "/p", {"spec": {"nodeSelector": {"x": "y"}}}, MERGE_PATCH),
        Step("PATCH", PODS + "/p", {"spec": {"schedulingGates": [{"name": "b"}]}}, MERGE_PATCH),
        Step("POST", PODS + "/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}),
        Step("PATCH", PODS + "/p", [{"op": "remove", "path": "/spec/schedulingGates"}], JSON_PATCH),
    )),
    Case("pods: status", (
        Step("POST", PODS, pod()),
        Step("PATCH", PODS + "/p/status", {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}, STRATEGIC_PATCH),
        Step("PATCH", PODS + "/p/status", {"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "X", "status": "True"}]}}, STRATEGIC_PATCH),
        Step("PATCH", PODS + "/p/status", {"spec": {"nodeName": "n"}}, MERGE_PATCH),
        Step("PATCH", PODS + "/p/status", {"metadata": {"uid": "b5a1c6ee-0000-4000-8000-000000000000"}, "status": {"phase": "Failed"}}, STRATEGIC_PATCH),
        Step("GET", PODS + "/p/status"),
        Step("PATCH", PODS + "/none/status", {}, MERGE_PATCH),
    )),
    Case("pods: selectors of fields", (
        Step("POST", PODS, pod("a", nodeName="n1")),
        Step("POST", PODS, pod("b", schedulerName="mine")),
        *(Step("GET", f"{PODS}?fieldSelector={terms}") for terms in ("spec.nodeName%3Dn1", "spec.nodeName%3D", "spec.nodeName!%3Dn1", "status.phase%3DPending", "status.phase!%3DPending,spec.nodeName%3D", "spec.schedulerName%3Dmine", "metadata.name%3Da,spec.nodeName%3Dn2", "spec.restartPolicy%3DAlways", "spec.unknown%3Dx", "nonsense")),
    )),
    Case("pods: selectors of labels", (
        Step("POST", PODS, pod("a", metadata={"labels": {"app": "x", "tier": "1"}})),
        Step("POST", PODS, pod("b", metadata={"labels": {"app": "y"}})),
        *(Step("GET", f"{PODS}?labelSelector={terms}") for terms in ("app%3Dx", "app%3D%3Dx", "app!%3Dx", "app+in+(x,y)", "app+notin+(x)", "tier", "!tier", "app,tier", "tier+%3E+0", "app%3D", "%3Dx", "app+in+x", "app+in+()", "a/b/c", "app%3Da+b", ",", "app%3Dx,,tier")),
    )),
    Case("pods: pages", (
        *(Step("POST", PODS, pod(name)) for name in "abc"),
        Step("GET", PODS + "?limit=2"),
        Step("GET", PODS + "?limit=5"),
        Step("GET", PODS + "?limit=x"),
        Step("GET", PODS + "?continue=abc%21"),
        Step("GET", PODS + "?resourceVersion=x"),
        Step("GET", PODS + "?resourceVersion=99999999"),
        Step("GET", PODS + "?resourceVersionMatch=Exact"),
        Step("GET", PODS + "?resourceVersion=0&resourceVersionMatch=Exact"),
        Step("GET", PODS + "?resourceVersion=0&resourceVersionMatch=Nonsense"),
        Step("GET", PODS + "?resourceVersion=0&resourceVersionMatch=NotOlderThan"),
        Step("GET", PODS + "?sendInitialEvents=true"),
    )),
    Case("pods: watches that are refused", (
        Step("GET", PODS + "?watch=1&resourceVersion=x&timeoutSeconds=1"),
        Step("GET", PODS + "?watch=1&sendInitialEvents=true&timeoutSeconds=1"),
        Step("GET", PODS + "?watch=1&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"),
        Step("GET", PODS + "?watch=1&labelSelector=a%3D%3D%3Db&timeoutSeconds=1"),
    )),
    Case("pods: a watch with selectors", (
        Step("POST", PODS, pod("a", metadata={"labels": {"x": "y"}})),
        Step("GET", PODS + "?watch=1&timeoutSeconds=1&labelSelector=x%3Dy"),
        Step("GET", PODS + "?watch=1&timeoutSeconds=1&labelSelector=x%3Dz"),
        Step("GET", PODS + "?watch=1&timeoutSeconds=1", accept=TABLE),
        Step("GET", "/api/v1/watch/namespaces/{ns}/pods?timeoutSeconds=1"),
        Step("GET", "/api/v1/watch/namespaces/{ns}/pods/a?timeoutSeconds=1"),
    )),
    Case("pods: binding", (
        Step("POST", NODES, {"metadata": {"name": "{ns}-n", "labels": {"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r"}}}),
        Step("POST", PODS, pod()),
        Step("POST", PODS + "/p/binding", {"metadata": {"name": "p", "annotations": {"a": "b"}}, "target": {"kind": "Node", "name": "{ns}-n"}}),
        Step("GET", PODS + "/p"),
        Step("POST", PODS + "/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "{ns}-n"}}),
        Step("POST", PODS + "/none/binding", {"metadata": {"name": "none"}, "target": {"kind": "Node", "name": "{ns}-n"}}),
        Step("GET", PODS + "/p/binding"),
    )),
    Case("pods: bindings that are refused", (
        Step("POST", PODS, pod()),
        Step("POST", PODS + "/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node"}}),
        Step("POST", PODS + "/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Shelf", "name": "n"}}),
        Step("POST", PODS + "/p/binding", {"metadata": {"name": "q"}, "target": {"kind": "Node", "name": "n"}}),
        Step("POST", PODS + "/p/binding", {"metadata": {"name": "p", "uid": "b5a1c6ee-0000-4000-8000-000000000000"}, "target": {"kind": "Node", "name": "n"}}),
        Step("POST", PODS + "/p/binding", {"target": "n"}),
        Step("POST", PODS + "/p/binding?dryRun=All", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}),
        Step("GET", PODS + "/p"),
    )),
    Case("bindings without a pod in the path", (
        Step("POST", PODS, pod()),
        Step("POST", "/api/v1/namespaces/{ns}/bindings", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}),
        Step("GET", PODS + "/p"),
        Step("POST", "/api/v1/namespaces/{ns}/bindings", {"metadata": {"name": "none"}, "target": {"kind": "Node", "name": "n"}}),
        Step("GET", "/api/v1/namespaces/{ns}/bindings"),
    )),
    Case("pods: deletion with grace", (
        Step("POST", PODS, pod(nodeName="n")),
        Step("DELETE", PODS + "/p"),
        Step("GET", PODS + "/p"),
        Step("DELETE", PODS + "/p", {"gracePeriodSeconds": 5}),
        Step("DELETE", PODS + "/p", {"gracePeriodSeconds": 10}),
        Step("POST", PODS + "/p/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}),
        Step("DELETE", PODS + "/p?gracePeriodSeconds=0"),
        Step("GET", PODS + "/p"),
    )),
    Case("pods: deletion of one that is done", (
        Step("POST", PODS, pod(nodeName="n", terminationGracePeriodSeconds=7)),
        Step("PATCH", PODS + "/p/status", {"status": {"phase": "Succeeded"}}, MERGE_PATCH),
        Step("DELETE", PODS + "/p"),
        Step("GET", PODS + "/p"),
    )),
    Case("pods: eviction", (
        Step("POST", PODS, pod(metadata={"labels": {"app": "x"}}, nodeName="n")),
        Step("PATCH", PODS + "/p/status", {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}, MERGE_PATCH),
        Step("POST", BUDGETS, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}}),
        Step("POST", PODS + "/p/eviction", {"metadata": {"name": "p"}}),
        Step("PATCH", BUDGETS + "/b/status", {"status": {"observedGeneration": 1, "disruptionsAllowed": 0, "desiredHealthy": 1, "currentHealthy": 1, "expectedPods": 1}}, MERGE_PATCH),
        Step("POST", PODS + "/p/eviction", {"metadata": {"name": "p"}}),
        Step("PATCH", BUDGETS + "/b/status", {"status": {"disruptionsAllowed": 1}}, MERGE_PATCH),
        Step("POST", PODS + "/p/eviction", {"metadata": {"name": "p"}}),
        Step("GET", BUDGETS + "/b"),
        Step("GET", PODS + "/p"),
        Step("POST", PODS + "/none/eviction", {"metadata": {"name": "none"}}),
        Step("POST", PODS + "/p/eviction", {"metadata": {"name": "other"}}),
    )),
    Case("pods: eviction under two budgets", (
        Step("POST", PODS, pod(metadata={"labels": {"app": "x"}}, nodeName="n")),
        Step("PATCH", PODS + "/p/status", {"status": {"phase": "Running"}}, MERGE_PATCH),
        *(Step("POST", BUDGETS, {"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": {}}}) for name in "ab"),
        Step("POST", PODS + "/p/eviction", {"metadata": {"name": "p"}}),
    )),
]  # fmt: skip

DEPLOYMENT: Json = {
    "metadata": {"name": "d"},
    "spec": {
        "selector": {"matchLabels": {"app": "x"}},
        "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [CONTAINER]}},
    },
}


def _definition(**version: Any) -> Json:
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "maximum": 9},
                    "color": {"type": "string", "default": "red", "enum": ["red", "blue"]},
                    "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
                    "replicas": {"type": "integer"},
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    "either": {"x-kubernetes-int-or-string": True},
                },
            },
            "status": {
                "type": "object",
                "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}},
            },
        },
    }
    return {
        "metadata": {"name": "boxes.{ns}.example.com"},
        "spec": {
            "group": "{ns}.example.com",
            "scope": "Namespaced",
            "names": {"plural": "boxes", "singular": "box", "kind": "Box", "shortNames": ["bx"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    **version,
                }
            ],
        },
    }


SCALE = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
BOXES = "/apis/{ns}.example.com/v1/namespaces/{ns}/boxes"
COLUMNS = [
    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
    {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
]


def box(name: str = "b", **spec: Any) -> Json:
    return {
        "apiVersion": "{ns}.example.com/v1",
        "kind": "Box",
        "metadata": {"name": name},
        "spec": {"size": 3, **spec},
    }


def _boxes(name: str, *steps: Step, **version: Any) -> Case:
    wait = Step("WAIT", "/apis/{ns}.example.com/v1")
    return Case(
        f"custom resources: {name}", (Step("QUIET", DEFINITIONS, _definition(**version)), wait, *steps)
    )


CUSTOM_CASES = [
    _boxes("created, defaulted, pruned", Step("POST", BOXES, box(nonsense=1, free={"a": {"b": 1}})), Step("GET", BOXES + "/b"), Step("GET", BOXES), Step("DELETE", BOXES + "/b"), Step("GET", BOXES + "/b")),
    _boxes("validated", *(Step("POST", BOXES, body) for body in (box(size=0), box(size=10), box(size="x"), box(color="green"), box(name="UP"), box(tags=["a", "b", "c"]), box(tags="x"), box(either=True), {**box(), "spec": {}}))),
    _boxes("strict", Step("POST", BOXES + "?fieldValidation=Strict", box(nonsense=1)), Step("POST", BOXES + "?fieldValidation=Strict", box())),
    _boxes("updated", Step("POST", BOXES, box()), Step("PUT", BOXES + "/b", box(size=4)), Step("PATCH", BOXES + "/b", {"spec": {"size": 5}}, MERGE_PATCH), Step("PATCH", BOXES + "/b", {"spec": {"size": 50}}, MERGE_PATCH), Step("PATCH", BOXES + "/b", {"spec": {"size": 5}}, STRATEGIC_PATCH), Step("PATCH", BOXES + "/b", [{"op": "replace", "path": "/spec/size", "value": 6}], JSON_PATCH)),
    _boxes("applied", Step("PATCH", BOXES + "/b?fieldManager=one", box(), APPLY_PATCH), Step("PATCH", BOXES + "/b?fieldManager=two", box(size=4), APPLY_PATCH), Step("PATCH", BOXES + "/b?fieldManager=two&force=true", box(size=4), APPLY_PATCH), Step("PATCH", BOXES + "/b?fieldManager=one", box(nonsense=1), APPLY_PATCH)),
    _boxes("status", Step("POST", BOXES, {**box(), "status": {"phase": "x"}}), Step("PATCH", BOXES + "/b/status", {"status": {"phase": "y"}, "spec": {"size": 9}}, MERGE_PATCH), Step("PATCH", BOXES + "/b", {"status": {"phase": "z"}, "spec": {"size": 8}}, MERGE_PATCH), Step("GET", BOXES + "/b/status"), subresources={"status": {}}),
    _boxes("scale", Step("POST", BOXES, box(replicas=2)), Step("GET", BOXES + "/b/scale"), Step("PATCH", BOXES + "/b/scale", {"spec": {"replicas": 3}}, MERGE_PATCH), Step("GET", BOXES + "/b"), subresources={"status": {}, "scale": SCALE}),
    _boxes("no status of their own", Step("POST", BOXES, box()), Step("GET", BOXES + "/b/status"), Step("GET", BOXES + "/b/scale")),
    _boxes("columns", Step("POST", BOXES, box()), Step("GET", BOXES, accept=TABLE), additionalPrinterColumns=COLUMNS),
    _boxes("watched", Step("POST", BOXES, box()), Step("GET", BOXES + "?watch=1&timeoutSeconds=1")),
    _boxes("selected", Step("POST", BOXES, box()), Step("GET", BOXES + "?fieldSelector=metadata.name%3Db"), Step("GET", BOXES + "?fieldSelector=spec.size%3D3"), Step("DELETE", BOXES), Step("GET", BOXES)),
]  # fmt: skip

OTHER_CASES = [
    Case("scale of a deployment", (
        Step("POST", DEPLOYMENTS, DEPLOYMENT),
        Step("GET", DEPLOYMENTS + "/d/scale"),
        Step("PATCH", DEPLOYMENTS + "/d/scale", {"spec": {"replicas": 5}}, MERGE_PATCH),
        Step("GET", DEPLOYMENTS + "/d"),
        Step("PATCH", DEPLOYMENTS + "/d/scale", {"spec": {"replicas": -1}}, MERGE_PATCH),
        Step("GET", DEPLOYMENTS + "/none/scale"),
        Step("PATCH", DEPLOYMENTS + "/d/status", {"status": {"replicas": 5, "readyReplicas": 2}, "spec": {"replicas": 9}}, MERGE_PATCH),
    )),
    Case("deployments that are refused", tuple(
        Step("POST", DEPLOYMENTS, {**DEPLOYMENT, "spec": {**DEPLOYMENT["spec"], **change}})
        for change in (
            {"replicas": -1}, {"selector": None}, {"selector": {}}, {"selector": {"matchLabels": {"app": "y"}}}, {"template": {}},
        )
    )),
    Case("a deployment's selector stays", (
        Step("POST", DEPLOYMENTS, DEPLOYMENT),
        Step("PATCH", DEPLOYMENTS + "/d", {"spec": {"selector": {"matchLabels": {"app": "z"}}, "template": {"metadata": {"labels": {"app": "z"}}}}}, MERGE_PATCH),
    )),
    Case("nodes: taints", (
        Step("POST", NODES, {"metadata": {"name": "{ns}-n"}, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
        Step("PATCH", NODES + "/{ns}-n", {"spec": {"taints": [{"key": "b", "effect": "NoExecute"}]}}, STRATEGIC_PATCH),
        Step("PATCH", NODES + "/{ns}-n", {"spec": {"taints": [{"key": "a", "effect": "Nonsense"}]}}, MERGE_PATCH),
        Step("PATCH", NODES + "/{ns}-n/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, STRATEGIC_PATCH),
        Step("PATCH", NODES + "/{ns}-n/status", {"status": {"capacity": {"cpu": "8000m"}}}, MERGE_PATCH),
    )),
    Case("claims that are refused", (
        Step("POST", "/api/v1/namespaces/{ns}/persistentvolumeclaims", {"metadata": {"name": "c"}, "spec": {}}),
        Step("POST", "/api/v1/namespaces/{ns}/persistentvolumeclaims", {"metadata": {"name": "c"}, "spec": {"accessModes": ["Nonsense"], "resources": {"requests": {"storage": "1Gi"}}}}),
    )),
    Case("priority classes that are refused", (
        Step("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "system-{ns}"}, "value": 1}),
        Step("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "{ns}"}, "value": 1000000001}),
        Step("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "{ns}"}, "value": 7}),
        Step("PATCH", "/apis/scheduling.k8s.io/v1/priorityclasses/{ns}", {"value": 8}, MERGE_PATCH),
    )),
    Case("objects in namespaces that are not there, or not theirs", (
        Step("POST", "/api/v1/namespaces/none-{ns}/pods", pod()),
        Step("GET", "/api/v1/namespaces/none-{ns}/pods"),
        Step("POST", PODS, pod(metadata={"namespace": "other"})),
        Step("POST", NODES, {"metadata": {"name": "{ns}-x", "namespace": "{ns}"}}),
        Step("POST", "/api/v1/pods", pod()),
        Step("DELETE", "/api/v1/pods"),
    )),
    Case("bodies that are none", tuple(
        Step("POST", PODS, body) for body in ({}, [], "text", 3)
    )),
    Case("paths that are none", tuple(
        Step("GET", path) for path in ("/nonsense", "/api/v1/nonsense", "/apis/nonsense/v1/things", "/apis/apps/v9/deployments", "/api/v1/namespaces/{ns}/nodes", "/api/v1/nodes/x/nonsense", "/apis/apps/v1/nonsense")
    )),
    Case("events of both groups are the same", (
        Step("POST", "/apis/events.k8s.io/v1/namespaces/{ns}/events", {"metadata": {"name": "e"}, "regarding": {"kind": "Pod", "name": "p", "namespace": "{ns}"}, "reason": "R", "note": "n", "type": "Normal", "action": "A", "reportingController": "example.com/c", "reportingInstance": "i", "eventTime": "2026-01-02T03:04:05.000006Z"}),
        Step("GET", "/api/v1/namespaces/{ns}/events/e"),
        Step("GET", "/api/v1/namespaces/{ns}/events?fieldSelector=involvedObject.name%3Dp,reason%3DR"),
        Step("GET", "/apis/events.k8s.io/v1/namespaces/{ns}/events?fieldSelector=regarding.name%3Dp"),
        Step("PATCH", "/api/v1/namespaces/{ns}/events/e", {"count": 3}, MERGE_PATCH),
        Step("GET", "/apis/events.k8s.io/v1/namespaces/{ns}/events/e"),
    )),
    Case("reviews", (
        Step("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}),
        Step("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "nonsense"}}),
        Step("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
    )),
    Case("discovery of single groups", tuple(
        Step("GET", path)
        for path in ("/apis/apps", "/apis/apps/v1", "/apis/batch/v1", "/apis/policy/v1", "/apis/scheduling.k8s.io/v1", "/apis/storage.k8s.io/v1", "/apis/coordination.k8s.io", "/apis/events.k8s.io/v1", "/apis/resource.k8s.io/v1", "/apis/rbac.authorization.k8s.io/v1", "/apis/apiextensions.k8s.io/v1", "/api/v1", "/apis/nonsense", "/apis/apps/v9")
    )),
]  # fmt: skip


JOBS = "/apis/batch/v1/namespaces/{ns}/jobs"
CLAIMS = "/api/v1/namespaces/{ns}/persistentvolumeclaims"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
JOB: Json = {
    "metadata": {"name": "j"},
    "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}},
}


def applied(*containers: Json, **spec: Any) -> Json:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": list(containers)}}
    body = {"selector": {"matchLabels": {"app": "x"}}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": body}


def _apply(manager: str, body: Json, query: str = "") -> Step:
    return Step("PATCH", f"{DEPLOYMENTS}/d?fieldManager={manager}{query}", body, APPLY_PATCH)


SIDE: Json = {"name": "s", "image": "registry.example/side:1"}
MORE_CASES = [
    Case("jobs", (
        Step("POST", JOBS, JOB),
        Step("GET", JOBS + "/j"),
        Step("PATCH", JOBS + "/j", {"spec": {"parallelism": 3}}, MERGE_PATCH),
        Step("PATCH", JOBS + "/j", {"spec": {"completions": 3}}, MERGE_PATCH),
        Step("PATCH", JOBS + "/j/status", {"status": {"active": 1, "startTime": "2026-01-02T03:04:05Z"}}, MERGE_PATCH),
        Step("DELETE", JOBS + "/j", {"propagationPolicy": "Background"}),
    )),
    Case("jobs that are refused", tuple(
        Step("POST", JOBS, {**JOB, "spec": {**JOB["spec"], **change}})
        for change in ({"parallelism": -1}, {"backoffLimit": -1}, {"template": {"spec": {"containers": [CONTAINER]}}})
    )),
    Case("deletion that orphans or waits for dependents", (
        Step("POST", DEPLOYMENTS, DEPLOYMENT),
        Step("DELETE", DEPLOYMENTS + "/d", {"propagationPolicy": "Foreground"}),
        Step("GET", DEPLOYMENTS + "/d"),
        Step("DELETE", DEPLOYMENTS + "/d", {"propagationPolicy": "Orphan"}),
        Step("PATCH", DEPLOYMENTS + "/d", {"metadata": {"finalizers": None}}, MERGE_PATCH),
        Step("GET", DEPLOYMENTS + "/d"),
    )),
    Case("containers merged strategically", (
        Step("POST", DEPLOYMENTS, DEPLOYMENT),
        Step("PATCH", DEPLOYMENTS + "/d", {"spec": {"template": {"spec": {"containers": [SIDE]}}}}, STRATEGIC_PATCH),
        Step("PATCH", DEPLOYMENTS + "/d", {"spec": {"template": {"spec": {"containers": [{"name": "c", "$patch": "delete"}]}}}}, STRATEGIC_PATCH),
        Step("PATCH", DEPLOYMENTS + "/d", {"spec": {"template": {"spec": {"containers": [{"$patch": "replace"}, CONTAINER]}}}}, STRATEGIC_PATCH),
        Step("PATCH", DEPLOYMENTS + "/d", {"spec": {"template": {"spec": {"$setElementOrder/containers": [{"name": "s"}, {"name": "c"}], "containers": [SIDE]}}}}, STRATEGIC_PATCH),
        Step("PATCH", DEPLOYMENTS + "/d", {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}, STRATEGIC_PATCH),
        Step("PATCH", DEPLOYMENTS + "/d", {"spec": {"template": {"spec": {"containers": [{"image": "x"}]}}}}, STRATEGIC_PATCH),
    )),
    Case("containers applied by two managers", (
        _apply("one", applied(CONTAINER)),
        _apply("two", applied(SIDE)),
        _apply("one", applied({**CONTAINER, "image": "registry.example/app:2"})),
        _apply("two", applied({**CONTAINER, "image": "registry.example/app:3"})),
        _apply("two", applied({**CONTAINER, "image": "registry.example/app:3"}), "&force=true"),
        _apply("one", applied(SIDE)),
        Step("GET", DEPLOYMENTS + "/d"),
    )),
    Case("fields given up by who applied them", (
        _apply("one", applied(CONTAINER, replicas=3, minReadySeconds=5)),
        _apply("one", applied(CONTAINER, replicas=3)),
        _apply("two", applied(CONTAINER, replicas=3)),
        _apply("one", applied(CONTAINER)),
        Step("PATCH", DEPLOYMENTS + "/d", {"spec": {"replicas": 7}}, MERGE_PATCH),
        _apply("two", applied(CONTAINER, replicas=3)),
    )),
    Case("managed fields are taken off", (
        _apply("one", applied(CONTAINER)),
        Step("PATCH", DEPLOYMENTS + "/d", {"metadata": {"managedFields": [{}]}}, MERGE_PATCH),
        Step("PATCH", DEPLOYMENTS + "/d", [{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}], JSON_PATCH),
        Step("PATCH", DEPLOYMENTS + "/d", {"spec": {"replicas": 2}}, MERGE_PATCH),
    )),
    Case("status replaced", (
        Step("POST", PODS, pod()),
        Step("PUT", PODS + "/p/status", {**pod(), "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}}),
        Step("GET", PODS + "?fieldSelector=status.podIP%3D10.0.0.1"),
        Step("PUT", PODS + "/p/status", {**pod("q"), "status": {}}),
    )),
    Case("claims get the default class", (
        Step("POST", CLASSES, {"metadata": {"name": "{ns}-d", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "example.com/p"}),
        Step("POST", CLAIMS, {"metadata": {"name": "a"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}}),
        Step("PATCH", CLAIMS + "/a", {"spec": {"accessModes": ["ReadWriteMany"]}}, MERGE_PATCH),
        Step("PATCH", CLASSES + "/{ns}-d", {"provisioner": "other"}, MERGE_PATCH),
        Step("DELETE", CLASSES + "/{ns}-d"),
    )),
    Case("namespaces that end take nothing new", (
        Step("POST", "/api/v1/namespaces", {"metadata": {"name": "{ns}-end"}}),
        Step("DELETE", "/api/v1/namespaces/{ns}-end"),
        Step("POST", "/api/v1/namespaces/{ns}-end/pods", pod()),
        Step("DELETE", "/api/v1/namespaces/{ns}-end"),
        Step("PUT", "/api/v1/namespaces/{ns}-end/finalize", {"metadata": {"name": "{ns}-end"}, "spec": {"finalizers": []}}),
        Step("GET", "/api/v1/namespaces/{ns}-end"),
    )),
    Case("replica sets and stateful sets are scaled", (
        Step("POST", "/apis/apps/v1/namespaces/{ns}/statefulsets", {**applied(CONTAINER), "kind": "StatefulSet"}),
        Step("GET", "/apis/apps/v1/namespaces/{ns}/statefulsets/d/scale"),
        Step("PUT", "/apis/apps/v1/namespaces/{ns}/statefulsets/d/scale", {"metadata": {"name": "d", "namespace": "{ns}"}, "spec": {"replicas": 4}}),
        Step("PUT", "/apis/apps/v1/namespaces/{ns}/statefulsets/d/scale", {"metadata": {"name": "e", "namespace": "{ns}"}, "spec": {"replicas": 4}}),
    )),
    Case("leases are renewed", (
        Step("PUT", "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases/l", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-02T03:04:05.000006Z"}}),
        Step("PATCH", "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases/l", {"spec": {"leaseDurationSeconds": 0}}, MERGE_PATCH),
        Step("PATCH", "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases/l", {"spec": {"renewTime": "nonsense"}}, STRATEGIC_PATCH),
    )),
]  # fmt: skip


def extra_cases() -> list[Case]:
    return POD_CASES + CUSTOM_CASES + OTHER_CASES + MORE_CASES
