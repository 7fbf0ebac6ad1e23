"""What a pod could ask for, tolerate or be called instead, so that it goes elsewhere, or anywhere at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from stowplan.api.amounts import exact_text
from stowplan.api.node import Taint
from stowplan.api.pod import Container, Pod, PodSpec, Toleration, label_set_of, shape_of
from stowplan.api.quantity import Quantity
from stowplan.api.taints import is_tolerated
from stowplan.explain.changes import Change, Flip
from stowplan.explain.pod_terms import without_terms
from stowplan.explain.reasons import taint_text
from stowplan.explain.trial import Trial, least, nearest

replace = msgspec.structs.replace
TAINTS_TRIED = 10
FINEST = 2**16
"""The first step of a search, as a part of what the largest node has: scores tell no smaller ones apart."""
MILLI, WHOLE = 10**6, 10**9
"""What cpu, and all else, is counted in, in nano-units."""


class Asker(NamedTuple):
    """A part of a pod that asks for resources, and the pod's spec if it asked for others."""

    name: str
    asks: Mapping[str, Quantity]
    spec_with: Callable[[dict[str, Quantity]], PodSpec]


def requests(trial: Trial) -> Iterator[Change]:
    """Of each resource, the least that must be asked less; for a pod that has a node, also more."""
    for resource, asked in trial.pod.requests.items():
        if asked:
            found = [each for asker in _askers(trial.pod.spec) for each in _amounts(trial, asker, resource)]
            yield from sorted(found, key=lambda each: abs(each.now - each.was))[:1]


def _amounts(trial: Trial, asker: Asker, resource: str) -> Iterator[Change]:
    unit = MILLI if resource == "cpu" else WHOLE
    was = -(-asker.asks.get(resource, 0) // unit)
    if was <= 0:
        return

    def asking(amount: int) -> Pod:
        asks = {**asker.asks, resource: Quantity(amount * unit)}
        return replace(trial.pod, shape=shape_of(asker.spec_with(asks)))

    def change(sign: int, search: Any, most: int) -> Iterator[Change]:
        found: tuple[int, Flip] | None = search(lambda step: trial.with_pod(asking(was + sign * step)), most)
        if found is not None:
            amount = was + sign * found[0]
            before, after = exact_text(resource, was), exact_text(resource, amount)
            yield Change(
                kind="request",
                text=f"{resource} request {after} of the {asker.name} instead of {before}",
                flip=found[1],
                was=was,
                now=amount,
                pod=asking(amount),
                less=asking(amount - sign),
            )

    if trial.winner is None:
        yield from change(-1, least, was)  # the less it asks, the more nodes have room
    else:
        largest = int(trial.cluster.nodes.allocatable[resource].max(initial=0))
        search = partial(nearest, step=max(largest // FINEST, 1))
        yield from change(-1, search, was)
        yield from change(1, search, largest - was)


def _askers(spec: PodSpec) -> Iterator[Asker]:
    own = spec.resources
    if own is not None and own.requests:
        yield Asker(
            "the pod", own.requests, lambda asks: replace(spec, resources=replace(own, requests=asks))
        )
    for field in ("containers", "init_containers"):
        group: tuple[Container, ...] = getattr(spec, field)
        for place, each in enumerate(group):
            if each.resources.requests:
                yield Asker(f"container {each.name}", each.resources.requests, _in_group(spec, field, place))


def _in_group(spec: PodSpec, field: str, place: int) -> Callable[[dict[str, Quantity]], PodSpec]:
    def spec_with(asks: dict[str, Quantity]) -> PodSpec:
        group: list[Container] = list(getattr(spec, field))
        group[place] = replace(group[place], resources=replace(group[place].resources, requests=asks))
        return replace(spec, **{field: tuple(group)})

    return spec_with


def tolerations(trial: Trial) -> Iterator[Change]:
    """One taint of those that the pod does not tolerate, the most frequent first."""
    own = trial.pod.spec.tolerations
    counts: Counter[Taint] = Counter()
    for node in trial.cluster.nodes.objects:
        if node.spec.taints:
            counts.update(taint for taint in node.taints if not is_tolerated(taint, own))
    for taint, _ in counts.most_common(TAINTS_TRIED):
        added = Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)
        pod = _with_spec(trial.pod, tolerations=(*own, added))
        if (flip := trial.with_pod(pod)) is not None:
            text = f"a toleration of {taint_text(*taint)}"
            yield Change(kind="toleration", text=text, flip=flip, now=taint_text(*taint), pod=pod)


def terms(trial: Trial) -> Iterator[Change]:
    """One thing less that the pod asks of nodes, or of the pods near it."""
    for text, spec in without_terms(trial.pod.spec):
        pod = replace(trial.pod, shape=shape_of(spec))
        if (flip := trial.with_pod(pod)) is not None:
            yield Change(kind="term", text=f"without {text}", flip=flip, was=text, pod=pod)


def labels(trial: Trial) -> Iterator[Change]:
    """A label less, such as one by which other pods keep it away."""
    pod = trial.pod
    for key, value in pod.labels.items():
        left = {name: each for name, each in pod.labels.items() if name != key}
        changed = replace(pod, label_set=label_set_of(pod.namespace, left))
        if (flip := trial.with_pod(changed)) is not None:
            text = f"without the pod's label {key}={value}"
            yield Change(kind="pod label", text=text, flip=flip, was=f"{key}={value}", pod=changed)


def priorities(trial: Trial) -> Iterator[Change]:
    """The least priority with which pods could be evicted for the pod."""
    pod = trial.pod
    if trial.winner is not None or trial.decision.nominated is not None:
        return
    # Only on either side of another pod's priority anything differs.
    others = np.unique(trial.cluster.nodes.pods.priority)
    steps = [int(each) + 1 - pod.priority for each in others.tolist() if each >= pod.priority]

    def asking(priority: int) -> Pod:
        return _with_spec(pod, priority=priority)

    found = least(lambda count: trial.with_preemption(asking(pod.priority + steps[count - 1])), len(steps))
    if found is not None:
        priority = pod.priority + steps[found[0] - 1]
        yield Change(
            kind="priority",
            text=f"priority {priority} instead of {pod.priority}",
            flip=found[1],
            was=pod.priority,
            now=priority,
            pod=asking(priority),
            less=asking(priority - 1),
        )


def _with_spec(pod: Pod, **fields: Any) -> Pod:
    return replace(pod, shape=shape_of(replace(pod.spec, **fields)))
