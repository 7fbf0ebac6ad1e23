"""GangScheduling: holds the pods of a PodGroup back until enough of them exist to be placed together."""

from __future__ import annotations

from stowplan.api.groups import IN_TREE, KINDS_OF_FAMILY, Group, GroupKey
from stowplan.framework import Pod, Right, Status
from stowplan.plugins.group_members import GroupPlugin


class GangScheduling(GroupPlugin):
    group_families = (IN_TREE,)
    watches = KINDS_OF_FAMILY[IN_TREE]
    rights = (Right("podgroups/status", ("patch", "update"), IN_TREE),)  # which the host writes for it

    def check_group(self, pod: Pod, key: GroupKey, group: Group | None) -> Status | None:
        if group is None:
            # parity: kube-scheduler's spelling
            text = f'waiting for pods\'s pod group "{key.name}" to appear in scheduling queue'
            fault = self.groups.fault_of(key)
            return Status.unresolvable(f"{text}; it cannot be read: {fault}" if fault else text)
        if group.policy == "basic" or group.was_scheduled or self.groups.known_count(key) >= group.min_count:
            return None
        return Status.unresolvable("waiting for minCount pods from a gang to appear in scheduling queue")
