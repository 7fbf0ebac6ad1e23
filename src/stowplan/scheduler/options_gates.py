"""Feature gates: whether Stowplan does what a gate of kube-scheduler 1.36 switches. None can be changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

DONE = frozenset(
    (
        "ClearingNominatedNodeNameAfterBinding",
        "DRAAdminAccess",
        "DRAConsumableCapacity",
        "DRADeviceBindingConditions",
        "DRADeviceTaints",
        "DRAExtendedResource",
        "DRAPartitionableDevices",
        "DRAPrioritizedList",
        "DRAResourceClaimDeviceStatus",
        "DRAResourceClaimGranularStatusAuthorization",
        "DRASchedulerFilterTimeout",
        "DynamicResourceAllocation",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScaling",
        "MatchLabelKeysInPodAffinity",
        "MatchLabelKeysInPodTopologySpread",
        "MatchLabelKeysInPodTopologySpreadSelectorMerge",
        "NodeDeclaredFeatures",
        "NodeInclusionPolicyInPodTopologySpread",
        "NominatedNodeNameForExpectation",
        "OpportunisticBatching",
        "PodLevelResources",
        "PodObservedGenerationTracking",
        "PodSchedulingReadiness",
        "SchedulerAsyncPreemption",
        "SchedulerPopFromBackoffQ",
        "SchedulerQueueingHints",
        "SidecarContainers",
        "VolumeAttributesClass",
    )
)
NOT_DONE = frozenset(
    (
        "AllAlpha",
        "ComponentFlagz",
        "ComponentStatusz",
        "CoordinatedLeaderElection",
        "DRADeviceTaintRules",
        "DRAListTypeAttributes",
        "DRANodeAllocatableResources",
        "DRAWorkloadResourceClaims",
        "GangScheduling",
        "GenericWorkload",
        "SchedulerAsyncAPICalls",
        "StorageCapacityScoring",
        "TaintTolerationComparisonOperators",
        "TopologyAwareWorkloadScheduling",
        "VolumeLimitScaling",
        "WorkloadAwarePreemption",
    )
)


def gate_warnings(gates: Mapping[str, bool]) -> Iterator[str]:
    """One line for every gate that asks for what will not happen."""
    for gate, on in gates.items():
        asked = f"--feature-gates: {gate}={str(on).lower()} has no effect"
        if gate in DONE:
            if not on:
                yield f"{asked}: Stowplan always does it"
        elif gate in NOT_DONE:
            if on:
                yield f"{asked}: Stowplan does not do it"
        elif gate == "AllBeta":
            yield f"{asked}: beta features are as kube-scheduler 1.36 has them by default"
        else:
            yield f"{asked}: kube-scheduler 1.36 has no such gate that concerns scheduling"
