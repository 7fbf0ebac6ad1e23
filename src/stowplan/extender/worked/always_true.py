"""The smallest extender: a predicate that accepts every node, a priority that is always 0, and a preemption
that accepts all victims. The paths are those of everpeace/k8s-scheduler-extender-example.
"""

from __future__ import annotations

from stowplan.api.pod import Pod
from stowplan.extender.functions import Node, predicate, preemption, priority


@predicate(path="/scheduler/predicates/always_true")
def always_true(pod: Pod, node: Node) -> bool:
    return True


@priority(path="/scheduler/priorities/zero_score")
def zero_score(pod: Pod, node: Node) -> int:
    return 0


@preemption(path="/scheduler/preemption")
def keep_all(pod: Pod, node_name: str, victims: list[str]) -> bool:
    return True
