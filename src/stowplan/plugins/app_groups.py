"""AppGroups: which workloads belong together, and which of them talk to each other.

A pod belongs to an AppGroup, and to a workload of it, by two labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec

from stowplan.config.field_errors import child, invalid
from stowplan.framework import Column, CustomResource, Definition, Handle, PluginArgs, Pod, Quantity, Wire

GROUP_LABEL = "appgroup.diktyo.x-k8s.io"
WORKLOAD_LABEL = "appgroup.diktyo.x-k8s.io.workload"
MAX_NETWORK_COST = 10_000


def bounded(lowest: int, highest: int | None = None) -> msgspec.Meta:
    """Bounds that only the definition states: objects that are older than it are still read."""
    limits = {"minimum": lowest} | ({} if highest is None else {"maximum": highest})
    return msgspec.Meta(extra_json_schema=limits)


TIME = msgspec.Meta(extra_json_schema={"format": "date-time"})


class WorkloadInfo(Wire, frozen=True):
    selector: str
    """The value of the pods' workload label."""
    kind: str = ""
    name: str = ""
    api_version: str = ""
    namespace: str = ""


class Dependency(Wire, frozen=True):
    workload: WorkloadInfo
    min_bandwidth: Quantity | None = None
    max_network_cost: Annotated[int, bounded(0, MAX_NETWORK_COST)] = 0


class AppGroupWorkload(Wire, frozen=True):
    workload: WorkloadInfo
    dependencies: tuple[Dependency, ...] = ()


class AppGroupSpec(Wire, frozen=True):
    num_members: Annotated[int, bounded(1)] = 1
    topology_sorting_algorithm: str = ""
    workloads: tuple[AppGroupWorkload, ...] = ()


class WorkloadIndex(Wire, frozen=True):
    workload: WorkloadInfo
    index: int = 1


class AppGroupStatus(Wire, frozen=True):
    running_workloads: Annotated[int, bounded(0)] = 0
    schedule_start_time: Annotated[str, TIME] | None = None
    topology_calculation_time: Annotated[str, TIME] | None = None
    topology_order: tuple[WorkloadIndex, ...] = ()


class AppGroup(CustomResource, frozen=True):
    """Workloads that belong together, with the dependencies between them."""

    definition: ClassVar = Definition(
        "appgroup.diktyo.x-k8s.io",
        "v1alpha1",
        "appgroups",
        "AppGroup",
        short_names=("ag", "ags"),
        columns=(
            Column("Members", ".spec.numMembers", "integer"),
            Column("Algorithm", ".spec.topologySortingAlgorithm"),
        ),
        has_status=False,  # the controllers of diktyo-io write the status with the rest
    )
    spec: AppGroupSpec = AppGroupSpec()
    status: AppGroupStatus = AppGroupStatus()


class AppGroupArgs(PluginArgs):
    namespaces: tuple[str, ...] = ("default",)
    """Where AppGroups are looked up: in the pod's own namespace first, if listed, then in this order."""

    def __post_init__(self) -> None:
        self.namespaces = self.namespaces or ("default",)

    def validate(self, path: str) -> Iterator[str]:
        for index, namespace in enumerate(self.namespaces):
            if not namespace or "/" in namespace:
                where = f"{child(path, 'namespaces')}[{index}]"
                yield invalid(where, namespace, "must be the name of a namespace")


class AppGroups:
    """The AppGroups of some namespaces, looked up by pod."""

    def __init__(self, handle: Handle, namespaces: tuple[str, ...]) -> None:
        self._items, self._namespaces = handle.watched(AppGroup), namespaces

    def find(self, pod: Pod) -> AppGroup | None:
        name = pod.labels.get(GROUP_LABEL)
        if not name:
            return None
        if pod.namespace in self._namespaces:
            own = self._items.get(f"{pod.namespace}/{name}")
            if own is not None:
                return own
        found = (self._items.get(f"{namespace}/{name}") for namespace in self._namespaces)
        return next((item for item in found if item is not None), None)

    def missing_text(self, pod: Pod) -> str:
        """What is wrong with a pod that names an AppGroup which cannot be found."""
        name = pod.labels.get(GROUP_LABEL)
        if not self._items.is_served:
            return (
                f"AppGroup {name} cannot be read: CRD {AppGroup.definition.plural}.{GROUP_LABEL} is missing"
            )
        for namespace in self._namespaces:
            if (found := self._items.unreadable.get(f"{namespace}/{name}")) is not None:
                return f"AppGroup {name} cannot be read: {found.fault}"
        places = "namespace" if len(self._namespaces) == 1 else "namespaces"
        return f"AppGroup {name} does not exist in {places} {', '.join(self._namespaces)}"
