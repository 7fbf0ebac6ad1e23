"""What differs between configuration versions, as data: default plugins, removed names, fields.

The lists are those of the last Kubernetes release that served a version, in the names of that release.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stowplan.config.types import GROUP, Entries

PointPlugins = Mapping[str, Entries]


def _without_weights(*names: str) -> Entries:
    return tuple((name, 0) for name in names)


# v1beta3 had the same list, weights and multiPoint, but not yet these.
NEWER_THAN_V1BETA3 = ("DynamicResources", "NodeDeclaredFeatures")

# SchedulingGates is newer than most of these versions. It affects no pod they knew, and a pod with gates must
# not be attempted: the API server rejects its binding.
ALWAYS: dict[str, Entries] = {
    "preEnqueue": _without_weights("SchedulingGates"),
    "queueSort": _without_weights("PrioritySort"),
    "reserve": _without_weights("VolumeBinding"),
    "preBind": _without_weights("VolumeBinding"),
    "bind": _without_weights("DefaultBinder"),
    "postFilter": _without_weights("DefaultPreemption"),
}
_FILTER_OF_1_19 = _without_weights(
    "NodeUnschedulable",
    "NodeName",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "VolumeRestrictions",
    "EBSLimits",
    "GCEPDLimits",
    "NodeVolumeLimits",
    "AzureDiskLimits",
    "VolumeBinding",
    "VolumeZone",
    "PodTopologySpread",
    "InterPodAffinity",
)
_V1BETA2: PointPlugins = {
    **ALWAYS,
    "preFilter": _without_weights(
        "NodeResourcesFit",
        "NodePorts",
        "VolumeRestrictions",
        "PodTopologySpread",
        "InterPodAffinity",
        "VolumeBinding",
        "VolumeZone",
        "NodeAffinity",
    ),
    "filter": _FILTER_OF_1_19,
    "preScore": _without_weights("InterPodAffinity", "PodTopologySpread", "TaintToleration", "NodeAffinity"),
    "score": (
        ("NodeResourcesBalancedAllocation", 1),
        ("ImageLocality", 1),
        ("InterPodAffinity", 1),
        ("NodeResourcesFit", 1),
        ("NodeAffinity", 1),
        ("PodTopologySpread", 2),
        ("TaintToleration", 1),
    ),
}
_V1BETA1: PointPlugins = {
    **ALWAYS,
    "preFilter": _without_weights(
        "NodeResourcesFit",
        "NodePorts",
        "PodTopologySpread",
        "InterPodAffinity",
        "VolumeBinding",
        "NodeAffinity",
    ),
    "filter": _FILTER_OF_1_19,
    "preScore": _without_weights("InterPodAffinity", "PodTopologySpread", "TaintToleration", "NodeAffinity"),
    "score": (
        ("NodeResourcesBalancedAllocation", 1),
        ("ImageLocality", 1),
        ("InterPodAffinity", 1),
        ("NodeResourcesLeastAllocated", 1),
        ("NodeAffinity", 1),
        ("NodePreferAvoidPods", 10000),
        ("PodTopologySpread", 2),
        ("TaintToleration", 1),
    ),
}
# 1.18. Preemption and volume binding were not plugins yet, but always ran.
_V1ALPHA: PointPlugins = {
    **ALWAYS,
    "preFilter": _without_weights("NodeResourcesFit", "NodePorts", "InterPodAffinity", "PodTopologySpread"),
    "filter": _without_weights(
        "NodeUnschedulable",
        "NodeResourcesFit",
        "NodeName",
        "NodePorts",
        "NodeAffinity",
        "VolumeRestrictions",
        "TaintToleration",
        "EBSLimits",
        "GCEPDLimits",
        "NodeVolumeLimits",
        "AzureDiskLimits",
        "VolumeBinding",
        "VolumeZone",
        "InterPodAffinity",
        "PodTopologySpread",
    ),
    "preScore": _without_weights(
        "InterPodAffinity", "DefaultPodTopologySpread", "TaintToleration", "PodTopologySpread"
    ),
    "score": (
        ("NodeResourcesBalancedAllocation", 1),
        ("ImageLocality", 1),
        ("InterPodAffinity", 1),
        ("NodeResourcesLeastAllocated", 1),
        ("NodeAffinity", 1),
        ("NodePreferAvoidPods", 10000),
        ("DefaultPodTopologySpread", 1),
        ("TaintToleration", 1),
        ("PodTopologySpread", 1),
    ),
}


_ADDRESSES = ("healthzBindAddress", "metricsBindAddress")
_V1ALPHA2_FIELDS = (*_ADDRESSES, "bindTimeoutSeconds", "disablePreemption")
_V1ALPHA1_FIELDS = (
    *_V1ALPHA2_FIELDS,
    "algorithmSource",
    "failureDomains",
    "hardPodAffinitySymmetricWeight",
    "pluginConfig",
    "plugins",
    "schedulerName",
)


class Version(NamedTuple):
    """A version no longer served: its releases, its default plugins by extension point, its own fields."""

    releases: str
    plugins: PointPlugins | None  # None where it had multiPoint
    fields: tuple[str, ...] = ()
    strict: bool = True  # before v1beta1, unknown fields were ignored and upper case did not matter


OLD_VERSIONS = {
    f"{GROUP}/v1beta3": Version("1.23 to 1.28", None),
    f"{GROUP}/v1beta2": Version("1.22 to 1.27", _V1BETA2, _ADDRESSES),
    f"{GROUP}/v1beta1": Version("1.19 to 1.22", _V1BETA1, _ADDRESSES),
    f"{GROUP}/v1alpha2": Version("1.18", _V1ALPHA, _V1ALPHA2_FIELDS, strict=False),
    f"{GROUP}/v1alpha1": Version("1.12 to 1.18", _V1ALPHA, _V1ALPHA1_FIELDS, strict=False),
    "componentconfig/v1alpha1": Version("1.11 and before", _V1ALPHA, _V1ALPHA1_FIELDS, strict=False),
}
POLICY = Version("1.22 and before", _V1ALPHA, strict=False)

# Today's names. In-tree volume types use CSI now, so one plugin counts all volumes.
RENAMED_PLUGINS = {
    "EBSLimits": "NodeVolumeLimits",
    "GCEPDLimits": "NodeVolumeLimits",
    "AzureDiskLimits": "NodeVolumeLimits",
    "CinderLimits": "NodeVolumeLimits",
    "SelectorSpread": "PodTopologySpread",
    "DefaultPodTopologySpread": "PodTopologySpread",
    "NodeResourcesLeastAllocated": "NodeResourcesFit",
    "NodeResourcesMostAllocated": "NodeResourcesFit",
    "RequestedToCapacityRatio": "NodeResourcesFit",
}
SELECTOR_SPREAD = ("SelectorSpread", "DefaultPodTopologySpread")
SCORING_STRATEGIES = {
    "NodeResourcesLeastAllocated": "LeastAllocated",
    "NodeResourcesMostAllocated": "MostAllocated",
    "RequestedToCapacityRatio": "RequestedToCapacityRatio",
}
REMOVED_PLUGINS = frozenset(("NodeLabel", "NodePreferAvoidPods", "NodeResourceLimits", "ServiceAffinity"))

# scheduler-plugins: v1 has no such arguments any more, because the scheduler's own client is used, or because
# nothing is remembered that could expire.
REMOVED_ARGS = {
    "Coscheduling": ("deniedPGExpirationTimeSeconds", "kubeMaster", "kubeConfigPath"),
    "CapacityScheduling": ("kubeConfigPath",),
    "NodeResourceTopologyMatch": ("kubeconfigpath", "masteroverride", "namespaces"),
}
# scheduler-plugins: its releases read the arguments of these in several versions, whatever the file's is.
READ_IN_ANY_VERSION = frozenset(
    (
        *REMOVED_ARGS,
        "LoadVariationRiskBalancing",
        "LowRiskOverCommitment",
        "NetworkOverhead",
        "NodeResourcesAllocatable",
        "PreemptionToleration",
        "SySched",
        "TargetLoadPacking",
        "TopologicalSort",
    )
)
BETAS = tuple(f"{GROUP}/v1beta{number}" for number in (1, 2, 3))

# Plugins that now prepare at another extension point what they did in one: enabled at the first, they need
# the second too.
COMPANIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "filter",
        "preFilter",
        (
            "NodeAffinity",
            "NodePorts",
            "NodeResourcesFit",
            "VolumeRestrictions",
            "NodeVolumeLimits",
            "VolumeBinding",
            "VolumeZone",
            "PodTopologySpread",
            "InterPodAffinity",
        ),
    ),
    (
        "score",
        "preScore",
        (
            "TaintToleration",
            "NodeAffinity",
            "NodeResourcesFit",
            "PodTopologySpread",
            "InterPodAffinity",
            "NodeResourcesBalancedAllocation",
        ),
    ),
    ("postFilter", "preEnqueue", ("DefaultPreemption",)),
)

# algorithmSource.provider: which scoring plugin replaced NodeResourcesLeastAllocated.
PROVIDERS = {
    "DefaultProvider": "NodeResourcesLeastAllocated",
    "ClusterAutoscalerProvider": "NodeResourcesMostAllocated",
}

ADDED_ARGUMENTS: dict[tuple[str, str], tuple[dict[str, object], str]] = {
    (f"{GROUP}/v1beta1", "NetworkTraffic"): (
        {"compat": True},
        "NetworkTraffic uses the query of v1beta1, which sums the receive counter and names nodes by the "
        "label kubernetes_node (compat: true); compat: false measures the traffic of the last minutes",
    )
}
"""By version and plugin: arguments that keep what the version did, if the file has none, and a warning."""
# Policy: predicates in the order in which they ran, with the filter plugins that replaced them.
PREDICATES: dict[str, tuple[str, ...]] = {
    "CheckNodeUnschedulable": ("NodeUnschedulable",),
    "GeneralPredicates": ("NodeResourcesFit", "NodeName", "NodePorts", "NodeAffinity"),
    "HostName": ("NodeName",),
    "PodFitsHostPorts": ("NodePorts",),
    "PodFitsPorts": ("NodePorts",),
    "MatchNodeSelector": ("NodeAffinity",),
    "PodFitsResources": ("NodeResourcesFit",),
    "NoDiskConflict": ("VolumeRestrictions",),
    "PodToleratesNodeTaints": ("TaintToleration",),
    "PodToleratesNodeNoExecuteTaints": ("TaintToleration",),
    # Node conditions are taints now.
    "CheckNodeCondition": ("TaintToleration",),
    "CheckNodeMemoryPressure": ("TaintToleration",),
    "CheckNodeDiskPressure": ("TaintToleration",),
    "CheckNodePIDPressure": ("TaintToleration",),
    "CheckNodeLabelPresence": ("NodeLabel",),
    "CheckServiceAffinity": ("ServiceAffinity",),
    "MaxEBSVolumeCount": ("EBSLimits",),
    "MaxGCEPDVolumeCount": ("GCEPDLimits",),
    "MaxCSIVolumeCountPred": ("NodeVolumeLimits",),
    "MaxCSIVolumeCount": ("NodeVolumeLimits",),
    "MaxAzureDiskVolumeCount": ("AzureDiskLimits",),
    "MaxCinderVolumeCount": ("CinderLimits",),
    "CheckVolumeBinding": ("VolumeBinding",),
    "NoVolumeZoneConflict": ("VolumeZone",),
    "EvenPodsSpread": ("PodTopologySpread",),
    "MatchInterPodAffinity": ("InterPodAffinity",),
}
MANDATORY_PREDICATES = ("CheckNodeUnschedulable", "PodToleratesNodeTaints")
DEFAULT_PREDICATES = (
    "NoVolumeZoneConflict",
    "MaxEBSVolumeCount",
    "MaxGCEPDVolumeCount",
    "MaxAzureDiskVolumeCount",
    "MaxCSIVolumeCountPred",
    "MatchInterPodAffinity",
    "NoDiskConflict",
    "GeneralPredicates",
    "PodToleratesNodeTaints",
    "CheckVolumeBinding",
    "CheckNodeUnschedulable",
    "EvenPodsSpread",
)
# Policy: priorities and their score plugins. EqualPriority gave every node the same score and has no plugin.
PRIORITIES = {
    "BalancedResourceAllocation": "NodeResourcesBalancedAllocation",
    "EqualPriority": "",
    "EvenPodsSpreadPriority": "PodTopologySpread",
    "ImageLocalityPriority": "ImageLocality",
    "InterPodAffinityPriority": "InterPodAffinity",
    "NodeLabelPriority": "NodeLabel",
    "ServiceAntiAffinityPriority": "ServiceAffinity",
    "LeastRequestedPriority": "NodeResourcesLeastAllocated",
    "MostRequestedPriority": "NodeResourcesMostAllocated",
    "NodeAffinityPriority": "NodeAffinity",
    "NodePreferAvoidPodsPriority": "NodePreferAvoidPods",
    "RequestedToCapacityRatioPriority": "RequestedToCapacityRatio",
    "ResourceLimitsPriority": "NodeResourceLimits",
    "SelectorSpreadPriority": "SelectorSpread",
    "ServiceSpreadingPriority": "SelectorSpread",
    "TaintTolerationPriority": "TaintToleration",
}
DEFAULT_PRIORITIES = {
    "SelectorSpreadPriority": 1,
    "InterPodAffinityPriority": 1,
    "LeastRequestedPriority": 1,
    "BalancedResourceAllocation": 1,
    "NodePreferAvoidPodsPriority": 10000,
    "NodeAffinityPriority": 1,
    "TaintTolerationPriority": 1,
    "ImageLocalityPriority": 1,
    "EvenPodsSpreadPriority": 2,
}
