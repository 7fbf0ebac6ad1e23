"""Random pods."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from drawing.words import (
    HOSTNAME,
    NAMESPACE_LABELS,
    NAMESPACES,
    NODE_LABELS,
    POD_LABELS,
    TOPOLOGY_KEYS,
    ZONE,
    Json,
    few,
    most,
    node_terms,
    one,
    own_selectors,
    perhaps,
    resolved,
    seldom,
    selectors,
    some,
    without_none,
)

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ALL = frozenset(
    (
        "resources",
        "ports",
        "images",
        "features",
        "tolerations",
        "nodes",
        "near",
        "spread",
        "owners",
        "priority",
    )
)
REQUESTS = {
    "cpu": ("100m", "0", "0.5", "1", "2500m", "0.1m", "33.3m"),
    "memory": ("64Mi", "0", "1Gi", "100M", "5e8", "100m", "1.25Gi", "129e6"),
    "ephemeral-storage": ("1Gi", "0", "100Mi"),
    "hugepages-2Mi": ("4Mi", "0", "2Mi"),
    "example.com/gpu": ("1", "0", "2", "500m"),
    "other.org/nic": ("1",),
    "attachable-volumes-x": ("1",),
    "kubernetes.io/odd": ("1",),
    "requests.example.com/gpu": ("1",),
    "storage": ("1Gi",),
}
COMMON = {name: REQUESTS[name] for name in ("cpu", "memory")}
IMAGES = (
    "web",
    "web:v2",
    "host:5000/web",
    "reg.io/db@sha256:abc",
    "tiny",
    "huge",
    "huge:latest-alias",
    "none",
)
WEIGHTS = st.sampled_from((1, 29, 57, 58, 71, 100))


def requests() -> st.SearchStrategy[Json]:
    extra = st.tuples(most(COMMON), one(REQUESTS)).map(lambda both: both[0] | both[1])
    return perhaps(most(COMMON), st.one_of(extra, extra, some(REQUESTS)), 3)


PORTS = st.fixed_dictionaries(
    {"containerPort": st.just(80), "hostPort": st.sampled_from((80, 81, 0))},
    optional={
        "hostIP": st.sampled_from(("", "0.0.0.0", "10.0.0.1", "10.0.0.2", "::")),
        "protocol": st.sampled_from(("TCP", "UDP", "SCTP")),
    },
)


def containers(of: frozenset[str]) -> st.SearchStrategy[Json]:
    parts: dict[str, Any] = {}
    if "resources" in of:
        limits = seldom({}, some(COMMON).map(lambda limits: {"limits": limits}), 4)
        parts["resources"] = st.tuples(requests(), limits).map(lambda both: {"requests": both[0]} | both[1])
    if "tight" in of:
        wanted = {"cpu": ("400m", "700m", "1"), "memory": ("300Mi", "500Mi", "0")}
        parts["resources"] = most(wanted).map(_requests)
    if "ports" in of:
        parts["ports"] = few(PORTS, 2)
    if "features" in of:
        rule = st.sampled_from(("Restart", "RestartAllContainers")).map(lambda action: [{"action": action}])
        parts["restartPolicyRules"] = seldom([], rule)
    image = st.sampled_from(IMAGES) if "images" in of else st.just("web")
    return st.fixed_dictionaries({"image": image, **parts})


def _named(prefix: str) -> Any:
    return lambda found: [{"name": f"{prefix}{index}", **each} for index, each in enumerate(found)]


def container_parts(of: frozenset[str]) -> st.SearchStrategy[Json]:
    each = containers(of)
    first = st.tuples(each, st.sampled_from(({}, {"restartPolicy": "Always"}))).map(
        lambda two: two[0] | two[1]
    )
    most = 2 if of & {"resources", "ports", "images", "features"} else 1
    optional = {"initContainers": few(first, 3).map(_named("i"))} if most > 1 else {}
    return st.fixed_dictionaries(
        {"containers": st.lists(each, min_size=1, max_size=most).map(_named("c"))}, optional=optional
    )


TOLERATIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.sampled_from(("gpu", "old", "node.kubernetes.io/unschedulable", "")),
        "operator": st.sampled_from(("Equal", "Exists", "", "Lt")),
        "value": st.sampled_from(("a", "b", "")),
        "effect": st.sampled_from(("NoSchedule", "PreferNoSchedule", "NoExecute", "")),
    },
)


def node_affinities() -> st.SearchStrategy[Json]:
    preferred = st.fixed_dictionaries(
        {"weight": st.sampled_from((0, 1, 30, 50, 100)), "preference": node_terms(mistakes=False)}
    )
    with_mistakes = st.fixed_dictionaries({"weight": st.sampled_from((0, 7)), "preference": node_terms()})
    return st.fixed_dictionaries(
        {},
        optional={
            REQUIRED: few(node_terms()).map(lambda terms: {"nodeSelectorTerms": terms}),
            PREFERRED: few(perhaps(preferred, with_mistakes, 12)),
        },
    )


def pod_terms(mistakes: bool) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(
        {
            "topologyKey": st.sampled_from(TOPOLOGY_KEYS),
            "labelSelector": own_selectors(mistakes),
            "namespaces": seldom([], st.lists(st.sampled_from(NAMESPACES), max_size=2, unique=True), 3),
            "namespaceSelector": seldom(None, selectors(NAMESPACE_LABELS), 3),
        }
    ).map(without_none)


def pod_affinities(mistakes: bool) -> st.SearchStrategy[Json]:
    term = pod_terms(mistakes)
    weighted = st.fixed_dictionaries({"weight": WEIGHTS, "podAffinityTerm": term})
    return st.fixed_dictionaries({}, optional={REQUIRED: few(term, 2), PREFERRED: few(weighted, 2)})


def affinities(of: frozenset[str], mistakes: bool) -> st.SearchStrategy[Json]:
    parts: dict[str, Any] = {}
    if "nodes" in of:
        parts["nodeAffinity"] = node_affinities()
    if "near" in of:
        parts["podAffinity"] = pod_affinities(mistakes)
        parts["podAntiAffinity"] = pod_affinities(mistakes)
    return st.fixed_dictionaries({}, optional=parts)


CONSTRAINTS = st.fixed_dictionaries(
    {
        "maxSkew": st.sampled_from((1, 1, 2, 5)),
        "topologyKey": st.sampled_from((ZONE, *TOPOLOGY_KEYS)),
        "whenUnsatisfiable": st.sampled_from(("DoNotSchedule", "ScheduleAnyway")),
        "labelSelector": own_selectors(),
    },
    optional={
        "minDomains": st.sampled_from((1, 2, 3, 5)),
        "nodeAffinityPolicy": st.sampled_from(("Honor", "Ignore")),
        "nodeTaintsPolicy": st.sampled_from(("Honor", "Ignore")),
        "matchLabelKeys": st.lists(st.sampled_from(("hash", "tier", "missing")), max_size=2, unique=True),
    },
)
OWNERS = st.sampled_from(
    (
        ("apps/v1", "ReplicaSet", "owner", True),
        ("apps/v1", "StatefulSet", "owner", True),
        ("v1", "ReplicationController", "owner", True),
        ("apps/v1", "ReplicaSet", "gone", True),
        ("apps/v1", "ReplicaSet", "owner", False),
        ("batch/v1", "Job", "owner", True),
    )
).map(
    lambda owner: [dict(zip(("apiVersion", "kind", "name", "controller"), owner, strict=True)) | {"uid": "o"}]
)


def pod_kinds(of: frozenset[str] = ALL, mistakes: bool = False) -> st.SearchStrategy[Json]:
    """A pod without its name: `metadata`, `spec`, `status`."""
    spec: dict[str, Any] = {}
    meta: dict[str, Any] = {}
    if "resources" in of:
        spec["overhead"] = seldom({}, some(COMMON), 5)
        pod_level = {name: REQUESTS[name] for name in ("cpu", "memory", "hugepages-2Mi", "storage")}
        spec["resources"] = seldom({}, some(pod_level).map(lambda found: {"requests": found}), 4)
    if "tolerations" in of:
        spec["tolerations"] = few(TOLERATIONS, 2)
    if "nodes" in of:
        spec["nodeSelector"] = seldom({}, one(NODE_LABELS), 4)
    if "nodes" in of or "near" in of:
        spec["affinity"] = affinities(of, mistakes)
    if "spread" in of:
        spec["topologySpreadConstraints"] = perhaps(few(CONSTRAINTS.map(without_none)), st.just([]), 3)
    if "owners" in of:
        meta["ownerReferences"] = perhaps(OWNERS, st.just([]), 3)
    if "features" in of:
        spec["hostNetwork"], spec["hostUsers"] = st.booleans(), st.booleans()
    if "priority" in of:
        spec["priority"] = st.sampled_from((0, -10, 5, 10))
    if "images" in of:
        volume = st.sampled_from(("web", "huge")).map(
            lambda name: {"name": "v", "image": {"reference": name}}
        )
        spec["volumes"] = seldom([], volume.map(lambda each: [each]), 5)
    return st.tuples(
        container_parts(of),
        st.fixed_dictionaries(spec),
        st.fixed_dictionaries(
            {
                "namespace": st.sampled_from(("default", "default", *NAMESPACES)),
                "labels": most(POD_LABELS),
                **meta,
            }
        ),
    ).map(_put_together)


def _put_together(parts: tuple[Json, Json, Json]) -> Json:
    containers, spec, meta = parts
    return {"metadata": meta, "spec": containers | resolved(spec, meta["labels"]), "status": {}}


def resizes(kind: Json) -> st.SearchStrategy[Json]:
    """A status for a pod of that kind: what its containers have been given so far."""
    spec = kind["spec"]
    given = st.fixed_dictionaries(
        {}, optional={"resources": some(COMMON).map(_requests), "allocatedResources": some(COMMON)}
    )
    parts: dict[str, Any] = {
        "containerStatuses": _statuses(spec["containers"], given),
        "initContainerStatuses": _statuses(spec.get("initContainers", []), given),
        "conditions": st.sampled_from(
            (
                [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
                [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}],
            )
        ),
    }
    asked = spec.get("resources", {}).get("requests", {})
    whole = {name: st.sampled_from(REQUESTS[name]) for name in asked}
    if whole:
        parts["resources"] = st.fixed_dictionaries(whole).map(_requests)
        parts["allocatedResources"] = st.fixed_dictionaries(whole)
    return st.fixed_dictionaries({}, optional=parts)


def _statuses(containers: list[Json], given: st.SearchStrategy[Json]) -> st.SearchStrategy[list[Json]]:
    return st.tuples(*(given for _ in containers)).map(
        lambda found: [{"name": c["name"], **each} for c, each in zip(containers, found, strict=True)]
    )


def _requests(found: Json) -> Json:
    return {"requests": found}


def pod(name: str, kind: Json, *, node: str = "", status: Json | None = None, leaving: bool = False) -> Json:
    meta = {"name": name, "uid": f"uid-{name}", **kind["metadata"]}
    if leaving:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec = kind["spec"] | ({"nodeName": node} if node else {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": spec,
        "status": kind["status"] | (status or {}),
    }


def demands(of: frozenset[str]) -> st.SearchStrategy[Json]:
    """Fields for the spec of an important pod that a crowded node can often not meet."""
    all_apps = st.sampled_from(({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, {}))
    selector = st.one_of(
        one({"app": POD_LABELS["app"]}).map(lambda labels: {"matchLabels": labels}), all_apps
    )
    key = st.sampled_from((HOSTNAME, ZONE))
    parts: dict[str, Any] = {"priority": st.just(10)}
    if "ports" in of or "tight" in of:
        port = st.sampled_from(({"hostPort": 80}, {"hostPort": 81, "hostIP": "10.0.0.1"}))
        ports = st.lists(port, min_size=1, max_size=1) if "ports" in of else st.just([])
        size = st.sampled_from(("900m", "1", "100m")) if "tight" in of else st.just("0")
        parts["containers"] = st.tuples(ports, size).map(_container)
    if "near" in of:
        term = st.fixed_dictionaries({"topologyKey": key, "labelSelector": selector})
        parts["affinity"] = st.lists(term, min_size=1, max_size=2).map(
            lambda terms: {"podAntiAffinity": {REQUIRED: terms}}
        )
    if "spread" in of:
        constraint = {
            "maxSkew": st.integers(1, 2),
            "topologyKey": key,
            "whenUnsatisfiable": st.just("DoNotSchedule"),
            "labelSelector": selector,
            "minDomains": st.sampled_from((5, 1)),
        }
        parts["topologySpreadConstraints"] = st.lists(
            st.fixed_dictionaries(constraint), min_size=1, max_size=2
        )
    return st.fixed_dictionaries(parts)


def _container(found: tuple[list[Json], str]) -> list[Json]:
    ports, size = found
    return [{"name": "c0", "image": "web", "ports": ports, "resources": {"requests": {"cpu": size}}}]
