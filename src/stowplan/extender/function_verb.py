"""Asks a function about the nodes of a request."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from stowplan.api.extender import ExtenderFilterResult
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.cluster import ClusterView
from stowplan.errors import PluginError
from stowplan.extender.asked import UNKNOWN, Asked
from stowplan.extender.functions import Function
from stowplan.extender.scored import Scored
from stowplan.framework.answers import describe, plain_text, raise_interrupt, score_of, shown, stack_of
from stowplan.framework.args import PluginArgs
from stowplan.framework.handle import Handle
from stowplan.framework.plugin import Plugin
from stowplan.scheduler.guard import Guard


class FunctionVerb:
    """Asks a function about the nodes of a request: those that came whole, or those of our own view."""

    def __init__(self, function: Function, view: ClusterView | None, guard: Guard) -> None:
        self.function, self._view, self._guard = function, view, guard
        kind = type(function.name, (Plugin,), {"__module__": function.module, "budget": math.inf})
        self._watched: Plugin = kind(PluginArgs(), Handle(view or ClusterView()))
        """Stands for the function where calls are watched; its budget is that of the request."""

    def filter(self, asked: Asked) -> ExtenderFilterResult:
        kept, failed = [], {}
        for place, (name, node) in enumerate(zip(asked.names, self._nodes(asked), strict=True)):
            reason = UNKNOWN if node is None else self._reason(asked.pod, node)
            if reason is None:
                kept.append(place)
            else:
                failed[name] = reason
        names = [asked.names[place] for place in kept] if asked.items is None else None
        return ExtenderFilterResult(nodes=asked.whole(kept), node_names=names, failed_nodes=failed)

    def prioritize(self, asked: Asked) -> Scored:
        nodes = self._nodes(asked)
        return Scored.of(asked.names, [0 if node is None else self._score(asked.pod, node) for node in nodes])

    def _nodes(self, asked: Asked) -> Iterable[NodeObject | None]:
        whole = asked.objects()
        if whole is not None:
            return whole
        if self._view is None:
            raise PluginError(
                "the request names nodes and the extender follows no cluster: start it with --follow or "
                "--kubeconfig, or set nodeCacheCapable: false in the scheduler's configuration"
            )
        nodes = self._view.nodes
        return [None if row < 0 else nodes.objects[row] for row in nodes.rows_of(asked.names).tolist()]

    def _reason(self, pod: Pod, node: NodeObject) -> str | None:
        answer = self._asked(pod, node)
        if answer is True:
            return None
        if answer is False:
            return f"predicate {self.function.name} refuses the node"
        if isinstance(answer, str) and answer:
            return plain_text(answer)
        raise PluginError(self._failure(f"expected True, False or a reason, got {shown(answer)}", pod, node))

    def _score(self, pod: Pod, node: NodeObject) -> int:
        answer = self._asked(pod, node)
        try:
            return score_of(answer)
        except TypeError as error:
            raise PluginError(self._failure(str(error), pod, node)) from None

    def _asked(self, pod: Pod, node: NodeObject) -> Any:
        try:
            with self._guard.calling(self.function.kind, self._watched):
                return self.function.call(pod, node)
        except BaseException as error:
            raise_interrupt(error)
            raise PluginError(self._failure(describe(error), pod, node), stack_of(error)) from error

    def _failure(self, what: str, pod: Pod, node: NodeObject) -> str:
        return f"{self.function.kind} {self.function.name}: {what} (pod {pod.key}, node {node.name})"
