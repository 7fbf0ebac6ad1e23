"""Cases of the kinds of scheduler-plugins and Volcano, which are installed as CustomResourceDefinitions."""

# ruff: noqa: E501  one case a line
from __future__ import annotations

from typing import Any

from conformance.conformance_steps import MERGE_PATCH, TABLE, Case, Step
from stowplan.api.group_crds import PUBLISHED

Json = dict[str, Any]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
COSCHEDULING, VOLCANO = "scheduling.x-k8s.io/v1alpha1", "scheduling.volcano.sh/v1beta1"
PHASES = f"/apis/{COSCHEDULING}/namespaces/{{ns}}/podgroups"
ELASTIC = f"/apis/{COSCHEDULING}/namespaces/{{ns}}/elasticquotas"
GROUPS, QUEUES = f"/apis/{VOLCANO}/namespaces/{{ns}}/podgroups", f"/apis/{VOLCANO}/queues"
HYPER = "/apis/topology.volcano.sh/v1alpha1/hypernodes"


def installed(*names: str) -> tuple[Step, ...]:
    """The definitions of these kinds, and the wait until they are served."""
    steps: list[Step] = []
    for name in names:
        spec = PUBLISHED[name]["spec"]
        root = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        steps += [Step("QUIET", CRDS, PUBLISHED[name]), Step("WAIT", root)]
    return tuple(steps)


def custom(api_version: str, kind: str, name: str, **parts: Any) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **parts}


def phases(name: str, **spec: Any) -> Step:
    return Step("POST", PHASES, custom(COSCHEDULING, "PodGroup", name, spec=spec))


def elastic(name: str, **spec: Any) -> Step:
    return Step("POST", ELASTIC, custom(COSCHEDULING, "ElasticQuota", name, spec=spec))


def volcano(name: str, **spec: Any) -> Step:
    return Step("POST", GROUPS, custom(VOLCANO, "PodGroup", name, spec=spec, status={"phase": "Pending"}))


def queue(name: str, **spec: Any) -> Step:
    return Step("POST", QUEUES, custom(VOLCANO, "Queue", "{ns}-" + name, spec=spec))


def hyper(name: str, *members: Json, **spec: Any) -> Step:
    whole = {"members": list(members), **spec}
    return Step(
        "POST", HYPER, custom("topology.volcano.sh/v1alpha1", "HyperNode", "{ns}-" + name, spec=whole)
    )


def nodes(kind: str = "Node", **selector: Any) -> Json:
    return {"type": kind, "selector": selector}


CRD_CASES = [
    Case("groups of scheduler-plugins", (
        *installed("podgroups.scheduling.x-k8s.io"),
        phases("a", minMember=3, minResources={"cpu": 3, "memory": "1Gi"}, scheduleTimeoutSeconds=10),
        phases("b", minMember=0),
        phases("b", minMember="x"),
        phases("b", minResources={"cpu": "much"}),
        phases("b", minMember=1, nonsense=1),
        Step("PATCH", f"{PHASES}/a", {"spec": {"minMember": 4}, "status": {"phase": "Running"}}, MERGE_PATCH),
        Step("PATCH", f"{PHASES}/a/status", {"spec": {"minMember": 5}, "status": {"phase": "Scheduling", "running": 2, "occupiedBy": "{ns}/x"}}, MERGE_PATCH),
        Step("GET", PHASES, accept=TABLE),
    )),
    Case("elastic quotas", (
        *installed("elasticquotas.scheduling.x-k8s.io"),
        elastic("q", min={"cpu": 2}, max={"cpu": "4", "example.com/gpu": 1}),
        elastic("r", min={"cpu": []}),
        Step("PATCH", f"{ELASTIC}/q/status", {"status": {"used": {"cpu": "1500m"}}}, MERGE_PATCH),
        Step("GET", ELASTIC, accept=TABLE),
    )),
    Case("groups of Volcano", (
        *installed("podgroups.scheduling.volcano.sh"),
        volcano("a", minMember=3, minTaskMember={"ps": 1, "worker": 2}, priorityClassName="high"),
        volcano("b", minMember=-1),
        volcano("b", networkTopology={"highestTierAllowed": 1}),
        volcano("d", networkTopology={"highestTierAllowed": 1, "highestTierName": "rack"}),
        volcano("d", networkTopology={"mode": "firm"}),
        volcano("e", queue="q", subGroupPolicy=[{"name": "s", "subGroupSize": 2, "labelSelector": {"matchLabels": {"a": "b"}}}]),
        volcano("f", subGroupPolicy=[{"name": "s", "subGroupSize": 0}]),
        volcano("f", subGroupPolicy=[{"minSubGroups": 1}]),
        Step("PATCH", f"{GROUPS}/a", {"status": {"phase": "Inqueue", "conditions": [{"type": "Unschedulable", "status": "True", "transitionID": "x"}]}}, MERGE_PATCH),
        Step("GET", GROUPS, accept=TABLE),
        Step("GET", f"{GROUPS}/a/status"),
    )),
    Case("queues of Volcano", (
        *installed("queues.scheduling.volcano.sh"),
        queue("a", capability={"cpu": 4}, guarantee={"resource": {"cpu": "1"}}, reclaimable=False, parent="root"),
        queue("b", weight=0),
        queue("b", weight=65536),
        queue("b", priority=-1),
        queue("b", dequeueStrategy="lifo"),
        Step("PATCH", f"{QUEUES}/{{ns}}-a/status", {"status": {"state": "Open", "running": 1, "allocated": {"cpu": "2"}}}, MERGE_PATCH),
        Step("GET", f"{QUEUES}/{{ns}}-a", accept=TABLE),
    )),
    Case("hyper nodes", (
        *installed("hypernodes.topology.volcano.sh"),
        hyper("a", nodes(exactMatch={"name": "n1"}), nodes("HyperNode", regexMatch={"pattern": "^s"}), nodes(labelMatch={"matchLabels": {"rack": "r1"}}), tier=1, tierName="rack"),
        hyper("b"),
        hyper("b", nodes(), tier=1),
        hyper("b", nodes(exactMatch={"name": "n"}, regexMatch={"pattern": "n"}), tier=1),
        hyper("b", nodes("HyperNode", labelMatch={"matchLabels": {}}), tier=1),
        hyper("b", nodes("Rack", exactMatch={"name": "n"}), tier=1),
        hyper("b", nodes(exactMatch={"name": ""}), tier=1),
        hyper("b", tier=-1),
        Step("GET", f"{HYPER}/{{ns}}-a", accept=TABLE),
    )),
]  # fmt: skip
