"""Feature gates that Stowplan takes notice of, with what they depend on."""

from __future__ import annotations

from collections.abc import Mapping

from stowplan.errors import InputError

GENERIC_WORKLOAD = "GenericWorkload"
GANG_SCHEDULING = "GangScheduling"
TOPOLOGY = "TopologyAwareWorkloadScheduling"
PREEMPTION = "WorkloadAwarePreemption"
WORKLOAD_CLAIMS = "DRAWorkloadResourceClaims"
WORKLOAD_WITH_JOB = "WorkloadWithJob"

DEPENDENCIES: Mapping[str, tuple[str, ...]] = {
    GENERIC_WORKLOAD: (),
    GANG_SCHEDULING: (GENERIC_WORKLOAD,),
    TOPOLOGY: (GENERIC_WORKLOAD,),
    PREEMPTION: (GANG_SCHEDULING,),
    WORKLOAD_CLAIMS: ("DynamicResourceAllocation", GENERIC_WORKLOAD),
    WORKLOAD_WITH_JOB: (GENERIC_WORKLOAD,),
}
"""The gates of pod groups, all off by default, each with those that it needs."""

FeatureGates = frozenset[str]
NO_GATES: FeatureGates = frozenset()


def enabled_gates(given: Mapping[str, bool]) -> FeatureGates:
    """The gates of pod groups that are on. Raises InputError if one needs another that is off."""
    found = frozenset(gate for gate, is_on in given.items() if is_on and gate in DEPENDENCIES)
    for gate in sorted(found):
        missing = [
            each
            for each in DEPENDENCIES[gate]
            if (each not in found if each in DEPENDENCIES else given.get(each) is False)
        ]
        if missing:
            raise InputError(
                f"{gate} is enabled, but depends on features that are disabled: [{' '.join(missing)}]",
                what="--feature-gates",
            )
    return found
