"""The smallest extender there is: a predicate that takes every node, and a priority that has no favourite."""

from __future__ import annotations

from stowplan.api.pod import Pod
from stowplan.extender.functions import Node, predicate, priority


@predicate(path="/scheduler/predicates/always_true")
def always_true(pod: Pod, node: Node) -> bool:
    return True


@priority(path="/scheduler/priorities/zero_score")
def zero_score(pod: Pod, node: Node) -> int:
    return 0
