"""Whether a kubelet takes a pod that was put on its node, judged and worded as the kubelet does."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from stowplan.api.node import NodeObject, is_tolerated
from stowplan.api.pod import HostPort, Pod
from stowplan.api.requests import is_extended
from stowplan.api.selectors import node_terms_of, selector_of_map

NATIVE = ("cpu", "memory", "ephemeral-storage")


class Rejection(NamedTuple):
    reason: str
    message: str


class Usage(NamedTuple):
    """What the pods that a node has taken already take of it."""

    pods: int
    requests: Mapping[str, int]
    ports: Collection[HostPort]


def judge(pod: Pod, node: NodeObject, used: Usage) -> Rejection | None:
    """The first reason to reject the pod; None if there is none."""
    return next(_rejections(pod, node, used), None)


def _rejections(pod: Pod, node: NodeObject, used: Usage) -> Iterator[Rejection]:
    yield from _lacking_resources(pod, node.allocatable, used)
    if not _is_wanted_there(pod, node):
        yield _reject("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if any(_conflict(wanted, taken) for wanted in pod.shape.ports for taken in used.ports):
        yield _reject("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    tolerations = pod.spec.tolerations
    if any(taint.effect == "NoExecute" and not is_tolerated(taint, tolerations) for taint in node.taints):
        yield _reject("TaintToleration", "node(s) had taints that the pod didn't tolerate")


def _lacking_resources(pod: Pod, capacity: Mapping[str, int], used: Usage) -> Iterator[Rejection]:
    """Extended resources that the node does not list are ignored."""
    most = capacity.get("pods", 0)
    if used.pods + 1 > most:
        yield _out_of("pods", 1, used.pods, most)
    names = [*NATIVE, *(name for name in pod.requests if name not in NATIVE)]
    for name in names:
        wanted = pod.requests.get(name, 0)
        if not wanted or (is_extended(name) and name not in capacity):
            continue
        taken, most = used.requests.get(name, 0), capacity.get(name, 0)
        if wanted > most - taken:
            yield _out_of(name, wanted, taken, most)


def _out_of(resource: str, wanted: int, taken: int, most: int) -> Rejection:
    text = f"requested: {wanted}, used: {taken}, capacity: {most}"
    return Rejection(f"OutOf{resource}", f"Node didn't have enough resource: {resource}, {text}")


def _reject(rule: str, why: str) -> Rejection:
    return Rejection(rule, f"Predicate {rule} failed: {why}")


def _is_wanted_there(pod: Pod, node: NodeObject) -> bool:
    spec = pod.spec
    if spec.node_selector and not selector_of_map(spec.node_selector).matches(node.labels):
        return False
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    if required is None:
        return True
    return any(term.matches(node.labels, node.name) for term in node_terms_of(required))


def _conflict(one: HostPort, other: HostPort) -> bool:
    if (one.port, one.protocol) != (other.port, other.protocol):
        return False
    return one.ip == other.ip or one.is_on_every_address or other.is_on_every_address
