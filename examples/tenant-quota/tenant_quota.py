"""TenantQuota: limits the CPU that the pods of a namespace request together, by a custom resource."""

from collections.abc import Iterator
from typing import ClassVar

from stowplan import (
    Action,
    ClusterEvent,
    Column,
    CustomResource,
    CycleState,
    Definition,
    Handle,
    Hint,
    NodeTable,
    Plugin,
    PluginArgs,
    Pod,
    Quantity,
    Resource,
    Status,
    Wire,
)


class TenantSpec(Wire, frozen=True):
    cpu: Quantity


class Tenant(CustomResource, frozen=True, kw_only=True):
    """Limits the CPU that the pods of the namespace with the same name request together."""

    definition: ClassVar = Definition(
        "example.com",
        "v1",
        "tenants",
        "Tenant",
        namespaced=False,
        columns=(Column("CPU", ".spec.cpu", "string"),),
    )
    spec: TenantSpec


class TenantQuota(Plugin):
    watches = (Tenant,)

    def __init__(self, args: PluginArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._used: dict[str, dict[str, int]] = {}  # thousandths of a CPU, by namespace and uid of the pod

    def pre_filter(self, state: CycleState, pod: Pod, nodes: NodeTable) -> Status | None:
        return (
            None if self._fits(pod) else Status.unresolvable(f"the CPU quota of {pod.namespace} is used up")
        )

    def reserve(self, state: CycleState, pod: Pod, node_name: str) -> Status | None:
        self._count(pod)
        return None

    def unreserve(self, state: CycleState, pod: Pod, node_name: str) -> None:
        self.pod_deleted(pod)

    def pod_added(self, pod: Pod) -> None:
        if pod.node_name:
            self._count(pod)

    def pod_updated(self, old: Pod, new: Pod) -> None:
        self.pod_added(new)

    def pod_deleted(self, pod: Pod) -> None:
        self._used.get(pod.namespace, {}).pop(pod.uid, None)

    def events_to_register(self) -> Iterator[ClusterEvent]:
        yield ClusterEvent(Tenant.definition.event_resource, Action.ALL)
        yield ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE)  # deleted, or ended

    def queueing_hint(self, pod: Pod, event: ClusterEvent, old: object, new: object) -> Hint:
        return Hint.QUEUE if self._fits(pod) else Hint.SKIP

    def _count(self, pod: Pod) -> None:
        self._used.setdefault(pod.namespace, {})[pod.uid] = pod.requests.get("cpu", 0)

    def _fits(self, pod: Pod) -> bool:
        tenant = self.handle.watched(Tenant).get(pod.namespace)
        used = sum(self._used.get(pod.namespace, {}).values())
        return tenant is None or used + pod.requests.get("cpu", 0) <= tenant.spec.cpu.milli
