"""What is special about each kind; `strategy_of` finds it by group and plural."""

from __future__ import annotations

from stowplan.apiserver.strategies import core, groups, limits, others, registration, workloads
from stowplan.apiserver.strategies.definitions import DefinitionStrategy
from stowplan.apiserver.strategies.pods import PodStrategy
from stowplan.apiserver.strategies.strategy import Strategy
from stowplan.config.gates import NO_GATES, FeatureGates

__all__ = ["Strategy", "strategy_of"]


def strategy_of(group: str, plural: str, gates: FeatureGates = NO_GATES) -> Strategy:
    name = f"{plural}.{group}" if group else plural
    if name in groups.STRATEGIES:
        return groups.STRATEGIES[name](gates)
    return STRATEGIES.get(name) or Strategy()


STRATEGIES: dict[str, Strategy] = {
    "pods": PodStrategy(),
    "nodes": core.NodeStrategy(),
    "namespaces": core.NamespaceStrategy(),
    "services": core.ServiceStrategy(),
    "persistentvolumeclaims": core.ClaimStrategy(),
    "persistentvolumes": core.VolumeStrategy(),
    "replicationcontrollers": core.ReplicationControllerStrategy(),
    "events": core.EventStrategy(),
    "events.events.k8s.io": core.NewEventStrategy(),
    "configmaps": core.ConfigMapStrategy(),
    "secrets": core.SecretStrategy(),
    "serviceaccounts": core.ReturnsDeleted(),
    "podtemplates": core.ReturnsDeleted(),
    "resourcequotas": limits.ResourceQuotaStrategy(),
    "limitranges": limits.LimitRangeStrategy(),
    "endpoints": core.CreatedOnUpdate(),
    "deployments.apps": workloads.DeploymentStrategy(),
    "replicasets.apps": workloads.ReplicaSetStrategy(),
    "statefulsets.apps": workloads.StatefulSetStrategy(),
    "daemonsets.apps": workloads.DaemonSetStrategy(),
    "jobs.batch": workloads.JobStrategy(),
    "cronjobs.batch": workloads.CronJobStrategy(),
    "poddisruptionbudgets.policy": workloads.BudgetStrategy(),
    "horizontalpodautoscalers.autoscaling": workloads.AutoscalerStrategy(),
    "priorityclasses.scheduling.k8s.io": others.PriorityClassStrategy(),
    "leases.coordination.k8s.io": others.LeaseStrategy(),
    "storageclasses.storage.k8s.io": others.StorageClassStrategy(),
    "csidrivers.storage.k8s.io": others.CsiDriverStrategy(),
    "csinodes.storage.k8s.io": others.CsiNodeStrategy(),
    "csistoragecapacities.storage.k8s.io": others.NeedsVersion(),
    "volumeattachments.storage.k8s.io": others.AttachmentStrategy(),
    "resourceclaims.resource.k8s.io": others.ResourceClaimStrategy(),
    "resourceclaimtemplates.resource.k8s.io": others.ResourceClaimTemplateStrategy(),
    "resourceslices.resource.k8s.io": others.SliceStrategy(),
    "deviceclasses.resource.k8s.io": others.DeviceClassStrategy(),
    "ipaddresses.networking.k8s.io": others.AddressStrategy(),
    "servicecidrs.networking.k8s.io": others.RangeStrategy(),
    "roles.rbac.authorization.k8s.io": others.RoleStrategy(namespaced=True),
    "rolebindings.rbac.authorization.k8s.io": others.BindingStrategy(namespaced=True),
    "clusterroles.rbac.authorization.k8s.io": others.RoleStrategy(namespaced=False),
    "clusterrolebindings.rbac.authorization.k8s.io": others.BindingStrategy(namespaced=False),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": registration.WebhookStrategy(
        mutates=False
    ),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": registration.WebhookStrategy(mutates=True),
    "validatingadmissionpolicies.admissionregistration.k8s.io": registration.PolicyStrategy(mutates=False),
    "mutatingadmissionpolicies.admissionregistration.k8s.io": registration.PolicyStrategy(mutates=True),
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": registration.PolicyBindingStrategy(
        mutates=False
    ),
    "mutatingadmissionpolicybindings.admissionregistration.k8s.io": registration.PolicyBindingStrategy(
        mutates=True
    ),
    "flowschemas.flowcontrol.apiserver.k8s.io": registration.FlowSchemaStrategy(),
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": registration.PriorityLevelStrategy(),
    "certificatesigningrequests.certificates.k8s.io": registration.SigningRequestStrategy(),
    "apiservices.apiregistration.k8s.io": registration.ApiServiceStrategy(),
    "runtimeclasses.node.k8s.io": registration.RuntimeClassStrategy(),
    "customresourcedefinitions.apiextensions.k8s.io": DefinitionStrategy(),
}
