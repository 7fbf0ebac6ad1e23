"""Pod groups and their members, as far as plugins that read groups keep them up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from stowplan.api.groups import KINDS_OF_FAMILY, Group, GroupKey, GroupObject, named_groups
from stowplan.api.meta import Object
from stowplan.api.pod import Pod

NO_MEMBERS: Mapping[str, Pod] = {}


class Groups:
    """The members of every group: pending pods of our profiles, and pods with a node, whoever bound them.

    Empty, and asked nothing, until a plugin calls `use`.
    """

    def __init__(self, watched: Callable[[type[Any]], Any], placed: Mapping[str, Pod]) -> None:
        """`watched` finds the objects of a kind, `placed` has the pods that have a node or are assumed."""
        self._watched, self._placed = watched, placed
        self.families: frozenset[str] = frozenset()
        """The API groups whose groups count."""
        self._scheduler_names: set[str] = set()
        self._members: dict[GroupKey, dict[str, Pod]] = {}
        self._succeeded: dict[GroupKey, set[str]] = {}
        """Members that have run to their end, which count although nobody watches them any more."""
        self._read: dict[GroupKey, tuple[Object, Group | None]] = {}

    def use(self, families: Iterable[str], scheduler_name: str) -> None:
        """Follow groups of these API groups, with pending pods of this profile."""
        self.families |= frozenset(families)
        self._scheduler_names.add(scheduler_name)

    def key_of(self, pod: Pod) -> GroupKey | None:
        """The group that the pod belongs to."""
        if not self.families:
            return None
        return next((key for key in named_groups(pod) if key.family in self.families), None)

    def find(self, key: GroupKey) -> Group | None:
        """The group as its object describes it; None if there is none."""
        for kind in KINDS_OF_FAMILY[key.family]:
            name = key.name
            if "/" in name:  # a Workload's, which may have several groups
                name = name.partition("/")[0]
            item: GroupObject | None = self._watched(kind).get(f"{key.namespace}/{name}")
            if item is not None:
                known = self._read.get(key)
                if known is None or known[0] is not item:
                    known = self._read[key] = (item, _described(item, key))
                if known[1] is not None:
                    return known[1]
        self._read.pop(key, None)
        return None

    def object_of(self, key: GroupKey) -> GroupObject | None:
        """The object that describes the group."""
        return None if self.find(key) is None else self._read[key][0]  # type: ignore[return-value]

    def members(self, key: GroupKey) -> Mapping[str, Pod]:
        """All known members by uid."""
        return self._members.get(key, NO_MEMBERS)

    def succeeded(self, key: GroupKey) -> int:
        return len(self._succeeded.get(key, ()))

    def known_count(self, key: GroupKey) -> int:
        return len(self._members.get(key, ())) + len(self._succeeded.get(key, ()))

    def placed(self, key: GroupKey) -> list[Pod]:
        """The members that have a node, or were placed on one by us."""
        placed = self._placed
        return [placed[uid] for uid in self._members.get(key, ()) if uid in placed]

    def __iter__(self) -> Any:
        return iter(self._members)

    # What plugins report

    def put(self, pod: Pod) -> None:
        key = self.key_of(pod)
        if key is None:
            return
        if pod.node_name or pod.scheduler_name in self._scheduler_names:
            self._members.setdefault(key, {})[pod.uid] = pod

    def move(self, old: Pod, new: Pod) -> None:
        """A member has changed; its group may be another one, where a label or annotation names it."""
        if self.key_of(old) != self.key_of(new):
            self.remove(old)
        self.put(new)

    def remove(self, pod: Pod) -> None:
        key = self.key_of(pod)
        members = self._members.get(key) if key is not None else None
        if key is None or members is None:
            return
        known = members.pop(pod.uid, None)
        if known is not None and pod.phase == "Succeeded":
            self._succeeded.setdefault(key, set()).add(pod.uid)
        if not members:
            del self._members[key]
            if self.find(key) is None:
                self._succeeded.pop(key, None)


def _described(item: GroupObject, key: GroupKey) -> Group | None:
    for group in item.groups():
        name = group.key.name
        if name == key.name or (name.endswith("/") and key.name.startswith(name)):  # a replica, if it has any
            return msgspec.structs.replace(group, key=key)
    return None
