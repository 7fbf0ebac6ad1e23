"""Pods and nodes as the API server wrote them, for extenders: they may read what no struct of ours holds.

Only what some configured extender may be sent is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import msgspec
from msgspec import Raw

from stowplan.api.nesting import members
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.client.extenders import Extender
from stowplan.client.resources import Watched, WatchedResource
from stowplan.client.watch import EventKind, OnEvent
from stowplan.scheduler.stillness import Stillness


class WholeObjects:
    def __init__(self, extenders: Iterable[Extender], stillness: Stillness) -> None:
        extenders = tuple(extenders)
        self._keeps_nodes = any(extender.wants_whole_nodes for extender in extenders)
        self._keeps_placed = any(extender.wants_whole_victims for extender in extenders)
        self._is_asked = bool(extenders)
        self._stillness = stillness
        self._nodes: dict[str, Raw] = {}
        self._pods: dict[str, Raw] = {}

    def node(self, name: str) -> Raw:
        return self._nodes[name]

    def pod(self, uid: str) -> Raw:
        return self._pods[uid]

    def following(self, resource: WatchedResource, on_event: OnEvent) -> tuple[WatchedResource, OnEvent]:
        """The same watch, listened to on the way."""
        if not self._is_asked or resource.kind not in ("Pod", "Node"):
            return resource, on_event
        last: list[bytes] = [b""]

        def decode(data: bytes) -> Watched:
            last[0] = data
            return resource.decode(data)

        def on_watched(kind: EventKind, old: Watched | None, new: Watched | None) -> None:
            form = None if new is None or not self._is_wanted(new) else _as_sent(new, last[0])
            item = old if new is None else new
            if item is not None:
                self._stillness.after(partial(self._take_in, item, form))
            on_event(kind, old, new)

        return msgspec.structs.replace(resource, decode=decode), on_watched

    def _is_wanted(self, item: Watched) -> bool:
        if isinstance(item, Pod):
            return self._keeps_placed or not item.node_name
        return self._keeps_nodes and isinstance(item, NodeObject)

    def _take_in(self, item: Watched, form: Raw | None) -> None:
        forms, key = (self._pods, item.uid) if isinstance(item, Pod) else (self._nodes, item.name)
        if form is None:
            forms.pop(key, None)
        else:
            forms[key] = form


def _as_sent(item: Watched, data: bytes) -> Raw:
    """As kube-scheduler sends it: without kind and apiVersion, and of pods without managedFields."""
    parts = members(data)
    parts.pop("kind", None)
    parts.pop("apiVersion", None)
    if isinstance(item, Pod):
        meta = members(parts["metadata"])
        meta.pop("managedFields", None)
        parts["metadata"] = Raw(msgspec.json.encode(meta))
    return Raw(msgspec.json.encode(parts))
