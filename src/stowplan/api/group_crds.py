"""CustomResourceDefinitions of the pod groups and queues of scheduler-plugins and Volcano.

Operators such as Kubeflow Trainer, KubeRay and Volcano's own write these kinds. They are given whole here,
with the fields that Stowplan does not read, so that no field of an object is lost.
"""

from __future__ import annotations

from stowplan.api.meta import Json

_QUANTITY = r"^[+-]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
_TEXT: Json = {"type": "string"}
_ANYTHING: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_AGE: Json = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def _about(description: str, schema: Json) -> Json:
    return {"description": description, **schema}


def _number(description: str, **more: object) -> Json:
    return {"description": description, "type": "integer", "format": "int32", **more}


def _text(description: str, **more: object) -> Json:
    return {"description": description, "type": "string", **more}


def _amounts(description: str) -> Json:
    amount = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": _QUANTITY,
        "x-kubernetes-int-or-string": True,
    }
    return {"description": description, "type": "object", "additionalProperties": amount}


def _fields(description: str, *required: str, **properties: Json) -> Json:
    """An object; these of its fields are required."""
    found: Json = {"description": description, "type": "object", "properties": properties}
    return found | ({"required": list(required)} if required else {})


def _list(description: str, items: Json) -> Json:
    return {"description": description, "type": "array", "items": items}


def _column(name: str, path: str, kind: str = "string", priority: int = 0) -> Json:
    found = {"name": name, "type": kind, "jsonPath": path}
    return found | ({"priority": priority} if priority else {})


def _definition(
    group: str,
    version: str,
    kind: str,
    schema: Json,
    columns: tuple[Json, ...],
    *,
    short_names: tuple[str, ...],
    namespaced: bool = True,
    has_status: bool = True,
) -> Json:
    plural = f"{kind.lower()}s"
    served: Json = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [*columns, _AGE],
    }
    if has_status:
        served["subresources"] = {"status": {}}
    names = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
        "shortNames": list(short_names),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": names,
            "versions": [served],
        },
    }


def _object(description: str, spec: Json, status: Json) -> Json:
    return _fields(
        description, apiVersion=_TEXT, kind=_TEXT, metadata={"type": "object"}, spec=spec, status=status
    )


_COUNTS = {
    "running": _number("Members that run."),
    "succeeded": _number("Members that have succeeded."),
    "failed": _number("Members that have failed."),
}
_COSCHEDULING_GROUP = _object(
    "A group of pods that start together. Pods join it with the label scheduling.x-k8s.io/pod-group.",
    _fields(
        "What the group needs.",
        minMember=_number("How many members must fit before one of them starts.", minimum=1),
        minResources=_amounts("What the group needs at least; it waits while the cluster has less."),
        scheduleTimeoutSeconds=_number("How many seconds binding the group may take."),
    ),
    _fields(
        "How far the group is.",
        phase=_text("Pending, Scheduling, Running, Finished, Failed or Unknown."),
        occupiedBy=_text("The owners of the members, as namespace/name."),
        scheduleStartTime=_text("When scheduling began.", format="date-time", nullable=True),
        **_COUNTS,
    ),
)
_ELASTIC_QUOTA = _object(
    "How much the pods of a namespace may use, and how much of it is guaranteed.",
    _fields(
        "The limits.",
        min=_amounts("What is guaranteed. What is not used of it, other namespaces may borrow."),
        max=_amounts("What the pods of the namespace use at most, borrowed amounts included."),
    ),
    _fields("The usage.", used=_amounts("What the running pods of the namespace request.")),
)
_NETWORK_TOPOLOGY = _fields(
    "How close to each other the members must be, in tiers of HyperNodes.",
    mode=_text(
        "hard: the limit must be kept. soft: it is a preference.", default="hard", enum=["hard", "soft"]
    ),
    highestTierAllowed=_number("The widest tier whose HyperNodes may hold all members."),
    highestTierName=_text("The same, by the name of the tier."),
) | {
    "x-kubernetes-validations": [
        {
            "rule": "!(has(self.highestTierAllowed) && has(self.highestTierName))",
            "message": "must not specify 'highestTierAllowed' and 'highestTierName' simultaneously",
        }
    ]
}
_CONDITION = _fields(
    "What is the case with the object.",
    type=_text("The type of the condition."),
    status=_text("True, False or Unknown."),
    reason=_text("Why, in one word."),
    message=_text("Why, for people."),
    transitionID=_text("The scheduling session that changed it last."),
    lastTransitionTime=_text("When it changed last.", format="date-time"),
)
_VOLCANO_GROUP = _object(
    "A group of pods that start together. Pods join it with the annotation scheduling.k8s.io/group-name.",
    _fields(
        "What the group needs.",
        minMember=_number("How many members must fit before one of them starts.", minimum=0),
        minTaskMember=_about(
            "How many members of each task must fit.",
            {"type": "object", "additionalProperties": {"type": "integer", "format": "int32"}},
        ),
        queue=_text("The queue that the group is in.", default="default"),
        priorityClassName=_text("The PriorityClass of the group."),
        minResources=_amounts("What the group needs at least before its pods are created."),
        networkTopology=_NETWORK_TOPOLOGY,
        subGroupPolicy=_list(
            "Parts of the group with limits of their own.",
            _fields(
                "One kind of part.",
                "name",
                name=_text("Its name."),
                labelSelector=_about("The pods that it is made of.", _ANYTHING),
                matchLabelKeys=_list("Labels whose values tell the parts from each other.", _TEXT),
                subGroupSize=_number("How many members each part has.", minimum=1),
                minSubGroups=_number("How many parts must fit.", minimum=0),
                networkTopology=_NETWORK_TOPOLOGY,
            ),
        ),
    ),
    _fields(
        "How far the group is.",
        phase=_text("Pending, Inqueue, Running, Completed or Unknown."),
        conditions=_list("Why the group waits, if it does.", _CONDITION),
        **_COUNTS,
    ),
)
_QUEUE = _object(
    "A queue of pod groups, with its share of the cluster.",
    _fields(
        "The share of the queue.",
        weight=_number(
            "The share, compared with those of the other queues.", minimum=1, maximum=65535, default=1
        ),
        capability=_amounts("What the groups of the queue use at most."),
        deserved=_amounts("What they may take back from queues that borrow it."),
        guarantee=_fields("What is kept for the queue.", resource=_amounts("The amounts.")),
        reclaimable=_about("Whether others may take back what the queue borrows.", {"type": "boolean"}),
        parent=_text("The queue that this one is a part of."),
        priority=_number("Queues of a higher priority come first.", minimum=0),
        dequeueStrategy=_text("traverse or fifo.", default="traverse", enum=["traverse", "fifo"]),
        type=_text("The type of the queue."),
        affinity=_about("Groups of nodes for the queue.", _ANYTHING),
        extendClusters=_list("Other clusters for the queue.", _ANYTHING),
    ),
    _fields(
        "What is in the queue.",
        state=_text("Open, Closing, Closed or Unknown."),
        allocated=_amounts("What the pods of the queue's groups request."),
        reservation=_about("What is reserved for the queue.", _ANYTHING),
        **{
            phase.lower(): _number(f"How many of its groups are {phase}.")
            for phase in ("Pending", "Running", "Unknown", "Inqueue", "Completed")
        },
    ),
)
_SELECTOR = _fields(
    "Chooses members; exactly one field is set.",
    exactMatch=_fields("By name.", "name", name=_text("The name.", minLength=1)),
    regexMatch=_fields("By a pattern.", "pattern", pattern=_text("The pattern.", minLength=1)),
    labelMatch=_about("By labels, for nodes alone.", _ANYTHING),
) | {
    "x-kubernetes-validations": [
        {
            "rule": "(has(self.exactMatch) ? 1 : 0) + (has(self.regexMatch) ? 1 : 0) + "
            "(has(self.labelMatch) ? 1 : 0) == 1",
            "message": "exactly one of exactMatch, regexMatch and labelMatch must be set",
        }
    ]
}
_MEMBER = _fields(
    "Nodes or HyperNodes.",
    "type",
    "selector",
    type=_text("What the selector chooses.", enum=["Node", "HyperNode"]),
    selector=_SELECTOR,
) | {
    "x-kubernetes-validations": [
        {
            "rule": "self.type == 'Node' || !has(self.selector.labelMatch)",
            "message": "labelMatch is for members of type Node",
        }
    ]
}
_HYPER_NODE = _object(
    "Nodes that are close to each other in the network.",
    _fields(
        "The place in the tree of HyperNodes.",
        "tier",
        tier=_number("The level: larger numbers are wider.", minimum=0),
        tierName=_text("A name for the level."),
        members=_list("What it contains.", _MEMBER) | {"maxItems": 1000},
    ),
    _fields(
        "What was found.",
        nodeCount=_about("How many nodes it contains.", {"type": "integer", "format": "int64"}),
        conditions=_list("What is the case with it.", _CONDITION),
    ),
)
_PHASE = (".status.phase", "string")
PUBLISHED: dict[str, Json] = {
    item["metadata"]["name"]: item
    for item in (
        _definition(
            "scheduling.x-k8s.io",
            "v1alpha1",
            "PodGroup",
            _COSCHEDULING_GROUP,
            (
                _column("Phase", *_PHASE),
                _column("MinMember", ".spec.minMember", "integer"),
                _column("Running", ".status.running", "integer"),
                _column("Succeeded", ".status.succeeded", "integer"),
                _column("Failed", ".status.failed", "integer"),
            ),
            short_names=("pg", "pgs"),
        ),
        _definition(
            "scheduling.x-k8s.io",
            "v1alpha1",
            "ElasticQuota",
            _ELASTIC_QUOTA,
            (_column("Used", ".status.used"), _column("Max", ".spec.max")),
            short_names=("eq", "eqs"),
        ),
        _definition(
            "scheduling.volcano.sh",
            "v1beta1",
            "PodGroup",
            _VOLCANO_GROUP,
            (
                _column("STATUS", *_PHASE),
                _column("minMember", ".spec.minMember", "integer"),
                _column("RUNNINGS", ".status.running", "integer"),
                _column("QUEUE", ".spec.queue", priority=1),
            ),
            short_names=("pg", "podgroup-v1beta1"),
            has_status=False,
        ),
        _definition(
            "scheduling.volcano.sh",
            "v1beta1",
            "Queue",
            _QUEUE,
            (
                _column("Weight", ".spec.weight", "integer"),
                _column("State", ".status.state"),
                _column("Parent", ".spec.parent"),
            ),
            short_names=("q", "queue-v1beta1"),
            namespaced=False,
        ),
        _definition(
            "topology.volcano.sh",
            "v1alpha1",
            "HyperNode",
            _HYPER_NODE,
            (_column("Tier", ".spec.tier", "integer"), _column("NodeCount", ".status.nodeCount", "integer")),
            short_names=("hn",),
            namespaced=False,
        ),
    )
}
"""The definitions by name, such as `podgroups.scheduling.x-k8s.io`."""
