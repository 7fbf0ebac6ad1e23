"""Pod groups and their members, as far as plugins that read groups keep them up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from stowplan import log
from stowplan.api.groups import KINDS_OF_FAMILY, Group, GroupKey, GroupObject, named_groups
from stowplan.api.meta import Object
from stowplan.api.pod import Pod

NEVER_EVICTED = 2**62
"""Above the priority of any pod or group."""
ObjectKey = tuple[str, str, str]
"""API group, namespace and name of the object that describes a group, or several."""
NO_MEMBERS: Mapping[str, Pod] = {}


class Reservation(msgspec.Struct, frozen=True):
    """Nodes that are kept for a group that has waited long, until enough room on them should be free."""

    key: GroupKey
    nodes: tuple[str, ...]
    until: float
    """In seconds since 1970."""
    priority: int = 0
    """Pods of a higher one are not affected."""

    @property
    def reason(self) -> str:
        """Why other pods do not get these nodes."""
        return f"node(s) reserved for pod group {self.key} until {_clock_text(self.until)}"


def _clock_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M UTC")


class Groups:
    """The members of every group: pending pods of our profiles, and pods with a node, by any scheduler.

    Empty, and asked nothing, until a plugin calls `use`.
    """

    def __init__(self, watched: Callable[[type[object]], Any], placed: Mapping[str, Pod]) -> None:
        """`watched` finds the objects of a kind, `placed` has the pods that have a node or are assumed."""
        self._watched, self._placed = watched, placed
        self.families: frozenset[str] = frozenset()
        """The API groups whose groups count."""
        self._scheduler_names: set[str] = set()
        self._members: dict[GroupKey, dict[str, Pod]] = {}
        self._keys: dict[ObjectKey, set[GroupKey]] = {}
        """The groups with members by the object that describes them, if it exists."""
        self._succeeded: dict[GroupKey, set[str]] = {}
        """Members that have finished; they count although they are no longer watched."""
        self._read: dict[GroupKey, tuple[Object, Group | None]] = {}
        self._whole: tuple[tuple[int, ...], dict[GroupKey, Group]] = ((), {})
        self.reservation: Reservation | None = None
        """At most one group has nodes kept for it, and only where a plugin does that."""
        self._version = 0
        """Increases whenever a group gets its first member, or loses its last."""

    def use(self, families: Iterable[str], scheduler_name: str) -> None:
        """Follow groups of these API groups, with pending pods of this profile."""
        self.families |= frozenset(families)
        self._scheduler_names.add(scheduler_name)

    def key_of(self, pod: Pod) -> GroupKey | None:
        """The group that the pod belongs to."""
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
                    known = self._read[key] = (item, _describe(item, key))
                if known[1] is not None:
                    return known[1]
        self._read.pop(key, None)
        return None

    def object_of(self, key: GroupKey) -> GroupObject | None:
        """The object that describes the group."""
        return None if self.find(key) is None else self._read[key][0]  # type: ignore[return-value]

    def fault_of(self, key: GroupKey) -> str:
        """Why the object that describes the group cannot be read; empty if it can, or does not exist."""
        name = f"{key.namespace}/{key.name.partition('/')[0]}"
        found = (self._watched(kind).unreadable.get(name) for kind in KINDS_OF_FAMILY[key.family])
        return next((str(each.fault) for each in found if each is not None), "")

    def known_keys(self) -> list[GroupKey]:
        """All groups: those that pods name, and those that objects describe, in order of their names."""
        found = set(self._members)
        for family in self.families:
            for kind in KINDS_OF_FAMILY[family]:
                if (
                    kind.definition.plural == "podgroups"
                ):  # groups of a Workload are known by their pods alone
                    found |= {GroupKey(family, item.namespace, item.name) for item in self._watched(kind)}
        return sorted(found, key=lambda key: (key.namespace, key.name, key.family))

    def members(self, key: GroupKey) -> Mapping[str, Pod]:
        """All known members by uid."""
        return self._members.get(key, NO_MEMBERS)

    def members_of(self, item: GroupObject) -> list[Pod]:
        """All known members of the groups that an object describes."""
        keys = self._keys.get((item.family, item.namespace, item.name), ())
        return [pod for key in keys for pod in self._members[key].values()]

    def succeeded(self, key: GroupKey) -> int:
        return len(self._succeeded.get(key, ()))

    def known_count(self, key: GroupKey) -> int:
        return len(self._members.get(key, ())) + len(self._succeeded.get(key, ()))

    def placed(self, key: GroupKey) -> list[Pod]:
        """The members that have a node, or were placed on one by us."""
        placed = self._placed
        return [placed[uid] for uid in self._members.get(key, ()) if uid in placed]

    def whole(self) -> Mapping[GroupKey, Group]:
        """Groups whose members can only be evicted all together."""
        kinds = [kind for family in self.families for kind in KINDS_OF_FAMILY[family]]
        versions = (self._version, *(self._watched(kind).version for kind in kinds))
        if self._whole[0] != versions:
            found = ((key, self.find(key)) for key in self._members)
            whole = {key: group for key, group in found if group is not None and group.disruption == "all"}
            self._whole = (versions, whole)
        return self._whole[1]

    def ranks(self, preemptor: Pod) -> Mapping[str, int]:
        """Priorities in preemption that differ from those of the pods, by uid.

        Members of groups that are evicted as a whole have their group's. The preemptor's own group is safe.
        """
        found: dict[str, int] = {}
        for key, group in self.whole().items():
            found.update(dict.fromkeys(self._members[key], group.priority))
        if (own := self.key_of(preemptor)) is not None:
            found.update(dict.fromkeys(self.members(own), NEVER_EVICTED))
        return found

    def evicted_with(self, victims: Iterable[Pod]) -> list[Pod]:
        """The victims, each with all other placed members of its group if that is evicted as a whole."""
        found = {pod.uid: pod for pod in victims}
        whole = self.whole()
        for pod in tuple(found.values()):
            key = self.key_of(pod) if whole else None
            if key is not None and key in whole:
                found.update((other.uid, other) for other in self.placed(key))
        return list(found.values())

    # What plugins report

    def put(self, pod: Pod) -> None:
        key = self.key_of(pod)
        if key is None:
            return
        if pod.node_name or pod.scheduler_name in self._scheduler_names:
            members = self._members.get(key)
            if members is None:
                members = self._members[key] = {}
                self._keys.setdefault(_object_key(key), set()).add(key)
                self._version += 1
                _warn_of_others(pod, key)
            members[pod.uid] = pod

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
            self._keys[_object_key(key)].discard(key)
            if not self._keys[_object_key(key)]:
                del self._keys[_object_key(key)]
            self._version += 1
            if self.find(key) is None:
                self._succeeded.pop(key, None)


def _warn_of_others(pod: Pod, key: GroupKey) -> None:
    """Say, for the first member of a group, which others it names that do not count."""
    others = [f"{each.family} {each}" for each in named_groups(pod) if each != key]
    if others:
        log.warn(
            "Pod names several pod groups; name only one. The first is used",
            pod=pod,
            podGroup=f"{key.family} {key}",
            ignored=others,
        )


def _object_key(key: GroupKey) -> ObjectKey:
    return key.family, key.namespace, key.name.partition("/")[0]  # a Workload may have several groups


def _describe(item: GroupObject, key: GroupKey) -> Group | None:
    for group in item.groups():
        name = group.key.name
        if name == key.name or (name.endswith("/") and key.name.startswith(name)):  # a replica, if it has any
            return msgspec.structs.replace(group, key=key)
    return None
