"""Random nodes."""

from __future__ import annotations

from hypothesis import strategies as st

from drawing.words import HOSTNAME, NODE_LABELS, Json, few, most, perhaps, seldom, some

ALLOCATABLE = {
    "cpu": ("4", "2", "1500m", "7910m", "0"),
    "memory": ("8Gi", "4Gi", "1e9", "32986188Ki", "1.5G", "0"),
    "ephemeral-storage": ("10Gi", "1Gi", "0"),
    "hugepages-2Mi": ("64Mi", "4Mi", "0"),
    "example.com/gpu": ("4", "1", "1500m", "0"),
    "other.org/nic": ("2", "1"),
    "attachable-volumes-x": ("3",),
    "kubernetes.io/odd": ("2",),
    "requests.example.com/gpu": ("9",),
    "storage": ("9Gi",),
}
ROOM = {
    "cpu": ("16", "7910m", "11"),
    "memory": ("64Gi", "32986188Ki", "13e9"),
    "ephemeral-storage": ("100Gi", "33G"),
    "hugepages-2Mi": ("640Mi", "0"),
    "example.com/gpu": ("40", "7", "0"),
    "other.org/nic": ("9",),
    "attachable-volumes-x": ("9",),
    "kubernetes.io/odd": ("9",),
    "pods": ("110",),
}
PODS = ("110", "110", "5", "2", "1", "0", None)
TAINTS = st.fixed_dictionaries(
    {
        "key": st.sampled_from(("gpu", "old", "node.kubernetes.io/unschedulable")),
        "effect": st.sampled_from(("PreferNoSchedule", "PreferNoSchedule", "NoSchedule", "NoExecute")),
    },
    optional={"value": st.sampled_from(("a", "b", ""))},
)
IMAGE_SIZES = {
    "web:latest": 500 * 2**20,
    "web:v2": 30 * 2**20,
    "host:5000/web:latest": 1500 * 2**20,
    "reg.io/db@sha256:abc": 777_777_777,
    "tiny:latest": 1,
    "huge:latest": 9 * 2**30,
}
"""One size for a name, whichever node tells it: which node tells it first is a matter of history."""
IMAGES = st.sets(st.sampled_from(sorted(IMAGE_SIZES)), max_size=3).map(
    lambda names: [
        {"names": [name, f"{name}-alias"], "sizeBytes": IMAGE_SIZES[name]} for name in sorted(names)
    ]
)
FEATURES = ("InPlaceThings", "RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport")
ALL = frozenset(("taints", "resources", "images", "features"))
"""Others are `roomy`, where much fits but to another degree, and `tight`, where a few pods fill a node."""


def node_kinds(of: frozenset[str] = ALL) -> st.SearchStrategy[Json]:
    """A node without its name; `hostname` says which label it gets."""
    spec, status = {}, {"allocatable": st.just({"cpu": "4", "memory": "8Gi", "pods": "110"})}
    if "taints" in of:
        spec = {"taints": few(TAINTS, 3), "unschedulable": seldom(False, st.just(True), 4)}
    if "resources" in of:
        usual = st.fixed_dictionaries(
            {"cpu": st.sampled_from(ALLOCATABLE["cpu"]), "memory": st.sampled_from(ALLOCATABLE["memory"])},
            optional={name: st.sampled_from(values) for name, values in list(ALLOCATABLE.items())[2:]},
        )
        pods = st.sampled_from(PODS)
        status["allocatable"] = st.tuples(perhaps(usual, some(ALLOCATABLE), 4), pods).map(_with_pods)
    if "roomy" in of:
        status["allocatable"] = st.fixed_dictionaries({name: st.sampled_from(ROOM[name]) for name in ROOM})
    if "tight" in of:
        status["allocatable"] = st.fixed_dictionaries(
            {
                "cpu": st.sampled_from(("1", "2")),
                "memory": st.sampled_from(("1Gi", "2Gi")),
                "pods": st.sampled_from(("110", "3", "2")),
            }
        )
    if "images" in of:
        status["images"] = IMAGES
    if "features" in of:
        status["declaredFeatures"] = st.sets(st.sampled_from(FEATURES), max_size=3).map(sorted)
    return st.fixed_dictionaries(
        {
            "labels": most(NODE_LABELS),
            "hostname": st.sampled_from(("own", "own", "own", "shared", "none")),
            "spec": st.fixed_dictionaries(spec),
            "status": st.fixed_dictionaries(status),
        }
    )


def _with_pods(drawn: tuple[Json, str | None]) -> Json:
    allocatable, pods = drawn
    return allocatable if pods is None else allocatable | {"pods": pods}


def node(name: str, kind: Json) -> Json:
    hostname = {"own": {HOSTNAME: name}, "shared": {HOSTNAME: "shared"}, "none": {}}[kind["hostname"]]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": kind["labels"] | hostname},
        "spec": kind["spec"],
        "status": kind["status"],
    }
