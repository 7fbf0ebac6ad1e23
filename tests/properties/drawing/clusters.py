"""Random clusters, and the pod to place in them."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from drawing import nodes, pods
from drawing.words import NAMESPACE_LABELS, NAMESPACES, POD_LABELS, Json, few, one, seldom, selectors, some

MOST_NODES = 60
EVICTIONS = (
    [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}],
    [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}],
    [],
)
STARTS = tuple(f"2026-01-01T00:00:0{second}Z" for second in range(4))


class Scene(NamedTuple):
    """A cluster, the pods to place one after another, and pods that were promised a node."""

    objects: list[Json]
    pending: list[Json]
    nominated: list[tuple[Json, str]] = []


@st.composite
def node_lists(draw: Any, of: frozenset[str], most: int = MOST_NODES) -> list[Json]:
    kinds = draw(st.lists(nodes.node_kinds(of), min_size=1, max_size=5))
    runs = draw(
        st.lists(
            st.tuples(st.integers(0, len(kinds) - 1), st.sampled_from((1, 1, 1, 2, 3, 20))),
            min_size=1,
            max_size=12,
        )
    )
    found = [kinds[kind] for kind, times in runs for _ in range(times)][:most]
    return [nodes.node(f"n{index:02}", kind) for index, kind in enumerate(found)]


@st.composite
def bound_pods(draw: Any, of: frozenset[str], node_names: list[str], most: int = 20) -> list[Json]:
    count = draw(st.sampled_from((most // 2, most, 3, 0)))
    if not count:
        return []
    kinds = draw(st.lists(pods.pod_kinds(of, mistakes=True), min_size=1, max_size=4))
    places = draw(
        st.lists(
            st.tuples(
                st.integers(0, len(kinds) - 1),
                st.sampled_from((*node_names, "unknown")),
                st.sampled_from((None, None, *STARTS)),
                seldom(False, st.booleans(), 3),
            ),
            min_size=count * 2 // 3,
            max_size=count,
        )
    )
    found = []
    for index, (number, name, start, leaving) in enumerate(places):
        status: Json = {} if start is None else {"startTime": start}
        if "resources" in of:
            status |= draw(seldom({}, pods.resizes(kinds[number]), 4))
        if leaving and "priority" in of:
            status["conditions"] = [*status.get("conditions", []), *draw(st.sampled_from(EVICTIONS))]
        found.append(pods.pod(f"p{index:02}", kinds[number], node=name, status=status, leaving=leaving))
    return found


def namespaces() -> st.SearchStrategy[list[Json]]:
    """Some of the namespaces; the API server would have all of them."""
    each = st.fixed_dictionaries({}, optional={name: some(NAMESPACE_LABELS) for name in NAMESPACES})
    return each.map(
        lambda found: [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            for name, labels in found.items()
        ]
    )


def owners() -> st.SearchStrategy[list[Json]]:
    """Services and owners that select pods, one of each kind."""
    plain, full = (
        st.one_of(one(POD_LABELS), one(POD_LABELS), some(POD_LABELS), st.none()),
        selectors(mistakes=True),
    )
    kinds = (
        ("v1", "Service", plain),
        ("v1", "Service", plain),
        ("v1", "ReplicationController", plain),
        ("apps/v1", "ReplicaSet", full),
        ("apps/v1", "StatefulSet", full),
    )
    each = st.tuples(
        *(
            st.tuples(st.sampled_from(("default", *NAMESPACES)), selector, st.booleans())
            for *_, selector in kinds
        )
    )

    def built(found: Any) -> list[Json]:
        return [
            {
                "apiVersion": version,
                "kind": kind,
                "metadata": {"name": f"s{index}" if kind == "Service" else "owner", "namespace": namespace},
                "spec": {} if selector is None else {"selector": selector},
            }
            for index, ((version, kind, _), (namespace, selector, there)) in enumerate(
                zip(kinds, found, strict=True)
            )
            if there
        ]

    return each.map(built)


def budgets() -> st.SearchStrategy[list[Json]]:
    each = st.tuples(
        st.sampled_from(("default", *NAMESPACES)),
        selectors(mistakes=True),
        st.integers(0, 2),
        st.sampled_from(({}, {}, {"p00": "2026-01-01T00:00:00Z"})),
    )

    def built(index: int, found: Any) -> Json:
        namespace, selector, allowed, disrupted = found
        return {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": f"b{index}", "namespace": namespace},
            "spec": {} if selector is None else {"selector": selector},
            "status": {"disruptionsAllowed": allowed, "disruptedPods": disrupted},
        }

    return few(each, 2).map(lambda found: [built(index, each) for index, each in enumerate(found)])


@st.composite
def scenes(
    draw: Any,
    pod_parts: frozenset[str],
    node_parts: frozenset[str],
    *,
    most_nodes: int = MOST_NODES,
    most_pods: int = 20,
    mistakes: bool = False,
) -> Scene:
    """Three pods to place."""
    found = draw(node_lists(node_parts, most_nodes))
    names = [node["metadata"]["name"] for node in found]
    objects = [*found, *draw(bound_pods(pod_parts, names, most_pods))]
    if "near" in pod_parts:
        objects += draw(namespaces())
    if "owners" in pod_parts:
        objects += draw(owners())
    kinds = pods.pod_kinds(pod_parts, mistakes=mistakes)
    return Scene(objects, [pods.pod(f"new{index}", draw(kinds)) for index in range(3)])


@st.composite
def crowded_scenes(draw: Any, pod_parts: frozenset[str], node_parts: frozenset[str]) -> Scene:
    """Few nodes with many pods, an important one to place, and pods that were promised a node."""
    scene = draw(scenes(pod_parts | {"priority"}, node_parts, most_nodes=3, most_pods=12))
    names = [item["metadata"]["name"] for item in scene.objects if item["kind"] == "Node"]
    kinds = pods.pod_kinds(pod_parts | {"priority"})
    promised = draw(few(st.tuples(kinds, st.sampled_from(names)), 2))
    nominated = [(pods.pod(f"ahead{index}", kind), name) for index, (kind, name) in enumerate(promised)]
    status = draw(seldom({}, st.just({"nominatedNodeName": names[0]}), 5))
    policy = draw(seldom({}, st.just({"preemptionPolicy": "Never"}), 12))
    pending = [
        pod | {"spec": pod["spec"] | draw(pods.demands(pod_parts)) | policy, "status": status}
        for pod in scene.pending
    ]
    return Scene([*scene.objects, *draw(budgets())], pending, nominated)


def mixed_scenes(**how: Any) -> st.SearchStrategy[Scene]:
    """Scenes that use some parts at a time: with all of them at once hardly a node fits."""
    return st.tuples(
        st.sets(st.sampled_from(sorted(pods.ALL)), min_size=1, max_size=5),
        st.sets(st.sampled_from(sorted(nodes.ALL)), max_size=3),
    ).flatmap(lambda parts: scenes(frozenset(parts[0]), frozenset(parts[1]), **how))
